//! Objects: their properties, required properties, and additions for strict tools.

use serde_json::{Map, Value, json};

use super::restore::{Member, SchemaRestore};
use super::types::Types;
use super::write::{Node, StrictDeviation, Writer, brief};

impl Writer<'_, '_> {
    pub(super) fn object(
        &mut self,
        map: &Map<String, Value>,
        value: &Value,
        is_root: bool,
        node: &mut Node,
    ) -> Result<(), StrictDeviation> {
        let declared = self.declared(value);
        let (mut required, mut optional) = (Vec::new(), false);
        let listed = required_names(map);
        let all_required = self.rules.strict.is_some_and(|strict| strict.all_required);
        let mut properties = Map::with_capacity(declared.len());
        for (name, schema) in &declared {
            if *schema == &Value::Bool(false) {
                self.at(&["properties", name], |writer| writer.differ("false", "it may not be given: left out"))?;
                continue;
            }
            let marked = schema.get("required") == Some(&Value::Bool(true));
            let needed = marked || listed.binary_search(name).is_ok();
            let mut written = self.at(&["properties", name], |writer| {
                if marked {
                    writer.record_loss("required", "stands at the property: put into the list of its object");
                }
                writer.schema(schema)
            })?;
            let filled = all_required && !needed;
            if filled {
                if !self.accepts_null(schema, 0) {
                    nullable(&mut written);
                } else if schema.get("default") != Some(&Value::Null) {
                    // Null and absent differ here, and the translation can express only one of them.
                    let why = "an optional property that may also be null: strict tools cannot leave it out";
                    return Err(self.at(&["properties", name], |writer| writer.inexact(why)));
                }
                optional = true;
            }
            let alias = self.alias(name, value);
            if needed || all_required {
                required.push(Value::from(alias.as_deref().unwrap_or(name)));
            }
            self.undoes |= filled || alias.is_some();
            properties.insert(alias.clone().unwrap_or_else(|| (*name).to_owned()), Value::Object(written.view));
            if filled || alias.is_some() || !written.undo.is_empty() {
                node.undo.members.push(Member {
                    name: (*name).to_owned(),
                    alias,
                    null_is_absent: filled,
                    undo: written.undo,
                });
            }
        }
        let undeclared = listed.iter().filter(|name| !is_declared(value, name));
        let undeclared: Vec<Value> = undeclared.map(|name| self.required_name(name, node)).collect();
        if !undeclared.is_empty() {
            if self.rules.keeps("dependentRequired") {
                required.extend(undeclared);
            } else {
                self.leave_out("required", &Value::Array(undeclared), node)?;
            }
        }
        if optional {
            self.record_loss(
                "required",
                "what is optional is required and may be null; the null is taken out of calls",
            );
        }
        if self.rules.strict.is_some() {
            self.close(map, declared.is_empty() && !is_root)?;
        }
        node.view.insert("properties".to_owned(), Value::Object(properties));
        if !required.is_empty() || self.rules.strict.is_some() || map.contains_key("required") {
            node.view.insert("required".to_owned(), Value::Array(required));
        }
        if self.rules.strict.is_some() {
            node.view.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        Ok(())
    }

    /// Returns the properties of an object; a list of named ones is also accepted.
    fn declared<'v>(&mut self, value: &'v Value) -> Vec<(&'v str, &'v Value)> {
        match value {
            Value::Object(map) => map.iter().map(|(name, schema)| (name.as_str(), schema)).collect(),
            Value::Array(list) => {
                self.record_loss("properties", "a list: read as properties by `name`");
                let mut named: Vec<(&str, &Value)> =
                    list.iter().filter_map(|item| Some((item.get("name")?.as_str()?, item))).collect();
                named.sort_by_key(|(name, _)| *name);
                named.dedup_by_key(|(name, _)| *name);
                named
            }
            other => {
                self.record_loss("properties", format!("{} names none", brief(other)));
                Vec::new()
            }
        }
    }

    /// Returns another name for a property if its own is illegal.
    fn alias(&mut self, name: &str, properties: &Value) -> Option<String> {
        if self.blind || self.rules.takes_name(name) {
            return None;
        }
        let mut alias = legal_name(name);
        while is_declared(properties, &alias) {
            alias.push('_');
        }
        self.at(&["properties", name], |writer| {
            writer.record_loss(
                "properties",
                format!("the name is not allowed: shown as `{alias}`, and called by its own name"),
            );
        });
        Some(alias)
    }

    /// Whether null is valid, as far as the schema shows without compiling.
    fn accepts_null(&mut self, schema: &Value, hops: usize) -> bool {
        let Some(map) = schema.as_object().filter(|_| hops < 16) else { return schema == &Value::Bool(true) };
        let types = map.get("type").map_or(Types::NONE, |types| Types::read(types).0);
        if !types.allow(&Value::Null) {
            return false;
        }
        if let Some(target) = map.get("$ref").and_then(Value::as_str).and_then(|text| self.refs.resolve(text)) {
            return self.accepts_null(target, hops + 1);
        }
        let branches = ["anyOf", "oneOf"].iter().find_map(|key| map.get(*key)).and_then(Value::as_array);
        map.get("enum").and_then(Value::as_array).is_none_or(|values| values.contains(&Value::Null))
            && map.get("const").is_none_or(Value::is_null)
            && branches.is_none_or(|list| list.iter().any(|branch| self.accepts_null(branch, hops + 1)))
            && map
                .get("allOf")
                .and_then(Value::as_array)
                .is_none_or(|list| list.iter().all(|branch| self.accepts_null(branch, hops + 1)))
    }

    /// The name in the translation of a required property that is not declared.
    fn required_name(&mut self, name: &str, node: &mut Node) -> Value {
        if self.blind || self.rules.takes_name(name) {
            return Value::from(name);
        }
        let alias = legal_name(name);
        let member = Member {
            name: name.to_owned(),
            alias: Some(alias.clone()),
            null_is_absent: false,
            undo: SchemaRestore::default(),
        };
        node.undo.members.push(member);
        self.undoes = true;
        Value::from(alias)
    }

    /// Checks that an object may be closed, as strict tools require. An object that declares properties and does not
    /// mention others counts as closed: authors of tools mean that.
    pub(super) fn close(&mut self, map: &Map<String, Value>, is_bare: bool) -> Result<(), StrictDeviation> {
        match map.get("additionalProperties") {
            Some(Value::Bool(false)) => Ok(()),
            Some(_) => Err(self.inexact("an object with further properties, which strict tools cannot have")),
            None if is_bare => Err(self.inexact("an object of any properties, which strict tools cannot have")),
            None if self.rules.are_of_answers() => Err(self.inexact("an object that does not say that it is closed")),
            None => {
                self.record_loss(
                    "additionalProperties",
                    "not given: the properties that are declared are taken for all",
                );
                Ok(())
            }
        }
    }

    /// `required` of a schema that declares no properties.
    pub(super) fn required(
        &mut self,
        map: &Map<String, Value>,
        value: &Value,
        node: &mut Node,
    ) -> Result<(), StrictDeviation> {
        // A boolean at a property is for the object around it.
        if value.is_boolean() {
            return Ok(());
        }
        let legal = value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
        if !legal {
            self.record_loss("required", format!("{} is not a list of names: mended", brief(value)));
        }
        if map.contains_key("properties") {
            return Ok(());
        }
        let required = required_names(map);
        let required: Vec<Value> = required.iter().map(|name| self.required_name(name, node)).collect();
        if required.is_empty() {
            return Ok(());
        }
        if self.rules.strict.is_none() && self.rules.keeps("dependentRequired") {
            node.view.insert("required".to_owned(), Value::Array(required));
            return Ok(());
        }
        self.leave_out("required", &Value::Array(required), node)
    }
}

/// Makes a written schema nullable.
pub(super) fn nullable(node: &mut Node) {
    let types = node.view.get("type").map_or(Types::NONE, |types| Types::read(types).0);
    let plain =
        types != Types::NONE && !types.has(Types::OBJECT.with(Types::ARRAY)) && !node.view.contains_key("const");
    if let Some(branches) = node.view.get_mut("anyOf").and_then(Value::as_array_mut) {
        branches.push(json!({"type": "null"}));
        if !node.undo.union.is_empty() {
            node.undo.union.push(SchemaRestore::default());
        }
    } else if plain {
        node.view.insert("type".to_owned(), types.with(Types::NULL).to_value());
        if let Some(values) = node.view.get_mut("enum").and_then(Value::as_array_mut) {
            values.push(Value::Null);
        }
    } else {
        let mut view = std::mem::take(&mut node.view);
        let description = view.shift_remove("description");
        node.view.insert("anyOf".to_owned(), json!([view, {"type": "null"}]));
        if let Some(description) = description {
            node.view.insert("description".to_owned(), description);
        }
        let undo = std::mem::take(&mut node.undo);
        if !undo.is_empty() {
            node.undo.union = vec![undo, SchemaRestore::default()];
        }
    }
}

pub(super) fn names(required: Option<&Value>) -> impl Iterator<Item = &str> {
    let (one, many) = match required {
        Some(Value::String(name)) => (Some(name.as_str()), None),
        Some(Value::Array(list)) => (None, Some(list.iter().filter_map(Value::as_str))),
        _ => (None, None),
    };
    one.into_iter().chain(many.into_iter().flatten())
}

/// The names that `map` requires, sorted.
fn required_names(map: &Map<String, Value>) -> Vec<&str> {
    let mut all: Vec<&str> = names(map.get("required")).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn is_declared(properties: &Value, name: &str) -> bool {
    match properties {
        Value::Object(map) => map.contains_key(name),
        other => {
            other.as_array().is_some_and(|list| list.iter().any(|item| item.get("name").is_some_and(|own| own == name)))
        }
    }
}

/// Returns a legal property name for every API. It depends on the name alone; a final hash distinguishes similar names.
fn legal_name(name: &str) -> String {
    const OFFSET: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    let hash = name.bytes().fold(OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME));
    let mut alias = String::new();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        alias.push('_');
    }
    alias.extend(name.chars().take(48).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }));
    alias.push_str(&format!("_{hash:08x}"));
    alias
}
