//! The texts of a document, field by field.

use serde_json::Value;

use super::super::Document;
use super::bm25f::Field;

/// How deep a schema or an example is read.
const MAX_DEPTH: usize = 12;
/// How many parts of a tool's schema, and of its examples, are looked at.
const MAX_PARTS: usize = 2048;

/// Calls `text` with every text of a document, and the field it belongs to.
pub(in crate::select) fn each_text<'a>(document: &'a Document<'_>, mut text: impl FnMut(Field, &'a str)) {
    text(Field::Name, document.name);
    text(Field::Title, document.title);
    text(Field::Description, document.description);
    document.tags.iter().take(MAX_PARTS).for_each(|tag| text(Field::Tags, tag));
    if let Some(schema) = document.parameters {
        Walk { left: MAX_PARTS, text: &mut text }.schema(schema, 0);
    }
    let mut walk = Walk { left: MAX_PARTS, text: &mut text };
    document.examples.iter().for_each(|example| walk.example(example, 0));
    text(Field::Server, document.server);
    text(Field::ServerDescription, &document.server_description);
}

/// A bounded walk. Schemas are read as they come, never compiled: whatever is not of the expected form is
/// passed over.
struct Walk<F> {
    left: usize,
    text: F,
}

impl<'a, F: FnMut(Field, &'a str)> Walk<F> {
    /// Takes one of the parts that are left; whether there was one.
    fn take(&mut self) -> bool {
        let any = self.left > 0;
        self.left -= usize::from(any);
        any
    }

    fn found(&mut self, field: Field, text: &'a str) {
        if self.take() {
            (self.text)(field, text);
        }
    }

    fn schema(&mut self, schema: &'a Value, depth: usize) {
        let Some(schema) = schema.as_object().filter(|_| depth < MAX_DEPTH && self.take()) else { return };
        for (keyword, value) in schema {
            match (keyword.as_str(), value) {
                ("description", Value::String(text)) => self.found(Field::ArgumentDescriptions, text),
                ("const", Value::String(text)) => self.found(Field::ArgumentValues, text),
                ("enum", Value::Array(values)) => {
                    values.iter().filter_map(Value::as_str).for_each(|text| self.found(Field::ArgumentValues, text));
                }
                ("properties", Value::Object(properties)) => {
                    for (name, schema) in properties {
                        self.found(Field::ArgumentNames, name);
                        self.schema(schema, depth + 1);
                    }
                }
                ("$defs" | "definitions", Value::Object(schemas)) => {
                    schemas.values().for_each(|schema| self.schema(schema, depth + 1));
                }
                ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(schemas)) => {
                    schemas.iter().for_each(|schema| self.schema(schema, depth + 1));
                }
                ("items" | "additionalProperties", schema) => self.schema(schema, depth + 1),
                _ => {}
            }
        }
    }

    fn example(&mut self, value: &'a Value, depth: usize) {
        if depth == MAX_DEPTH || !self.take() {
            return;
        }
        match value {
            Value::String(text) => (self.text)(Field::Examples, text),
            Value::Array(values) => values.iter().for_each(|value| self.example(value, depth + 1)),
            Value::Object(members) => members.values().for_each(|value| self.example(value, depth + 1)),
            _ => {}
        }
    }
}
