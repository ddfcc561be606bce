//! The texts of a document, field by field.

use serde_json::Value;

use super::Document;

/// Maximal depth read of a schema or example.
const MAX_DEPTH: usize = 12;
/// Maximal number of parts read of a tool's schema, and of its examples.
const MAX_PARTS: usize = 2048;

/// Calls `text` with every text of a document, and the field it belongs to.
pub(crate) fn each_text<'a>(document: &'a Document<'_>, mut text: impl FnMut(Field, &'a str)) {
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

/// A bounded walk. Schemas are read as data, never compiled: unexpected parts are
/// skipped.
struct Walk<F> {
    left: usize,
    text: F,
}

impl<'a, F: FnMut(Field, &'a str)> Walk<F> {
    /// Counts a part. Returns whether the bound allows it.
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

/// A part of a tool that is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Name,
    Title,
    Description,
    Tags,
    ArgumentNames,
    ArgumentDescriptions,
    ArgumentValues,
    Examples,
    Server,
    ServerDescription,
}

/// Weight of a field. Its usual length is a constant, not the catalogue's mean, so that a tool's score for a
/// word does not depend on other tools.
struct Weight {
    boost: f32,
    /// Share of the length normalisation, 0..1.
    b: f32,
    /// Number of words of a field of usual length.
    usual: f32,
}

impl Field {
    /// Every field; a field's place is its number.
    pub(super) const ALL: [Self; 10] = [
        Self::Name,
        Self::Title,
        Self::Description,
        Self::Tags,
        Self::ArgumentNames,
        Self::ArgumentDescriptions,
        Self::ArgumentValues,
        Self::Examples,
        Self::Server,
        Self::ServerDescription,
    ];

    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Title => "title",
            Self::Description => "description",
            Self::Tags => "tags",
            Self::ArgumentNames => "arguments",
            Self::ArgumentDescriptions => "descriptions of arguments",
            Self::ArgumentValues => "values of arguments",
            Self::Examples => "examples",
            Self::Server => "server",
            Self::ServerDescription => "description of the server",
        }
    }

    /// Whether it is prose, in which a word may mean anything.
    pub(crate) fn is_prose(self) -> bool {
        matches!(self, Self::Description | Self::ArgumentDescriptions | Self::ServerDescription)
    }

    /// Whether neighbouring words are also indexed as one; in prose only those without a stop word in between.
    pub(super) fn joins(self) -> bool {
        matches!(self, Self::Name | Self::Title | Self::Description)
    }

    const fn weight(self) -> Weight {
        let (boost, b, usual) = match self {
            Self::Name => (3.0, 0.3, 3.0),
            Self::Title => (3.0, 0.3, 3.0),
            Self::Description => (1.5, 0.5, 8.0),
            Self::Tags => (1.5, 0.5, 3.0),
            Self::ArgumentNames => (1.0, 0.5, 5.0),
            Self::ArgumentDescriptions => (0.5, 0.6, 20.0),
            Self::ArgumentValues => (1.0, 0.5, 5.0),
            Self::Examples => (1.0, 0.5, 10.0),
            Self::Server => (1.0, 0.3, 2.0),
            Self::ServerDescription => (0.5, 0.5, 12.0),
        };
        Weight { boost, b, usual }
    }
}

/// Saturation of repeated words.
const K1: f32 = 1.2;
/// Bound on the weight of a short field, relative to one of usual length.
const MAX_BOOST: f32 = 4.0;

/// Weight of one occurrence in a field of so many words.
pub(super) fn occurrence(field: Field, words: usize) -> f32 {
    let Weight { boost, b, usual } = field.weight();
    // A text is bounded: its words are far fewer than 2^24.
    #[expect(clippy::cast_precision_loss, reason = "see above")]
    let length = 1.0 - b + b * words as f32 / usual;
    boost / length.max(1.0 / MAX_BOOST)
}

/// Saturated weight of a word's occurrences in a tool: always less than 1.
pub(super) fn impact(occurrences: f32) -> f32 {
    occurrences / (occurrences + K1)
}

/// Weight of a word that `matching` of `tools` have.
#[expect(clippy::cast_precision_loss, reason = "a score needs no more")]
pub(super) fn rarity(tools: usize, matching: usize) -> f32 {
    let (tools, matching) = (tools as f32, matching as f32);
    ((tools - matching + 0.5) / (matching + 0.5)).ln_1p()
}
