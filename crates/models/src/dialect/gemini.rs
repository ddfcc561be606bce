//! Gemini's `Schema`: types in capitals, `nullable` for null, unions without other keywords, enumerations of strings.

use serde_json::{Map, Value, json};
use toolwright_core::pointer::push;

use super::Loss;
use super::keywords::append_description;
use super::types::Types;
use super::words;

/// Turns a translation in plain JSON Schema without references into a `Schema`. Null for a tool without parameters: the API
/// refuses an object without properties.
pub(super) fn declare(tool: &str, parameters: Value, losses: &mut Vec<Loss>) -> Value {
    let Value::Object(mut map) = parameters else { return Value::Null };
    if map.get("properties").and_then(Value::as_object).is_none_or(Map::is_empty) {
        return Value::Null;
    }
    Declarer { tool, losses, path: String::new() }.schema(&mut map);
    Value::Object(map)
}

struct Declarer<'a, 'l> {
    tool: &'a str,
    losses: &'l mut Vec<Loss>,
    path: String,
}

impl Declarer<'_, '_> {
    fn lose(&mut self, keyword: &str, note: &str) {
        let (tool, path) = (self.tool.to_owned(), self.path.clone());
        self.losses.push(Loss { tool, path, keyword: keyword.to_owned(), note: note.to_owned() });
    }

    fn below(&mut self, segment: &[&str], value: &mut Value) {
        let length = self.path.len();
        for part in segment {
            push(&mut self.path, part);
        }
        match value {
            Value::Object(map) => self.schema(map),
            other => *other = json!({"type": "STRING"}),
        }
        self.path.truncate(length);
    }

    fn schema(&mut self, map: &mut Map<String, Value>) {
        let declared = map.get("type").map_or(Types::NONE, |types| Types::read(types).0);
        let types = if declared == Types::NONE { Types::implied(map) } else { declared };
        if map.contains_key("anyOf") {
            return self.union(map, types);
        }
        if types.without(Types::NULL).len() > 1 || (types == Types::NONE) {
            return self.several(map, types);
        }
        self.one(map, types);
    }

    /// One type, or null, or either.
    fn one(&mut self, map: &mut Map<String, Value>, types: Types) {
        let bare = types.without(Types::NULL);
        if types.has(Types::NULL) && bare != Types::NONE {
            map.insert("nullable".to_owned(), Value::Bool(true));
            if let Some(values) = map.get_mut("enum").and_then(Value::as_array_mut) {
                values.retain(|value| !value.is_null());
            }
        }
        let shown = if bare == Types::NONE { types } else { bare };
        let name = Value::String(shown.names().next().unwrap_or("string").to_ascii_uppercase());
        match map.get_mut("type") {
            Some(own) => *own = name,
            None => drop(map.shift_insert(0, "type".to_owned(), name)),
        }
        // Most schemas are a type and a description.
        let rest = |key: &String| matches!(key.as_str(), "enum" | "format" | "properties" | "required" | "items");
        if shown != Types::ARRAY && !map.keys().any(rest) {
            return;
        }
        let mut sentences = Vec::new();
        let kept = |map: &Map<String, Value>, key: &str| match (key, map.get(key)) {
            ("enum", Some(Value::Array(values))) => {
                shown == Types::STRING && values.iter().all(|value| value.as_str().is_some_and(|text| !text.is_empty()))
            }
            ("format", Some(format)) => match format.as_str().unwrap_or_default() {
                "date-time" | "enum" => shown == Types::STRING,
                "int32" | "int64" => shown == Types::INTEGER || shown == Types::NUMBER,
                "float" | "double" => shown == Types::NUMBER,
                _ => false,
            },
            _ => true,
        };
        for key in ["enum", "format"] {
            if map.contains_key(key) && !kept(map, key) {
                let value = map.shift_remove(key).unwrap_or_default();
                sentences.extend(words::sentence(key, &value));
                self.lose(key, "Gemini has none of this type: said in the description");
            }
        }
        if map.get("properties").and_then(Value::as_object).is_some_and(Map::is_empty) || shown != Types::OBJECT {
            map.shift_remove("properties");
            map.shift_remove("required");
        }
        if shown != Types::ARRAY {
            map.shift_remove("items");
        } else if map.get("items").and_then(Value::as_object).is_none_or(Map::is_empty) {
            map.insert("items".to_owned(), anything());
        } else if let Some(items) = map.get_mut("items") {
            self.below(&["items"], items);
        }
        if let Some(Value::Object(properties)) = map.get_mut("properties") {
            for (name, property) in properties.iter_mut() {
                self.below(&["properties", name], property);
            }
        }
        if map.get("required").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            map.shift_remove("required");
        }
        append_description(map, &sentences);
    }

    /// Several types, or any, as a union of one each.
    fn several(&mut self, map: &mut Map<String, Value>, types: Types) {
        if map.is_empty() {
            *map = anything().as_object().cloned().unwrap_or_default();
            return;
        }
        let description = map.shift_remove("description");
        let any = Types::STRING.with(Types::NUMBER).with(Types::BOOLEAN).with(Types::OBJECT);
        let shown = if types.without(Types::NULL) == Types::NONE { any } else { types };
        let parts = shown.without(Types::NULL).names().map(|name| {
            let mut part = map.clone();
            let (one, _) = Types::read(&Value::from(name));
            if let Some(values) = part.get_mut("enum").and_then(Value::as_array_mut) {
                values.retain(|value| one.allow(value));
                if values.is_empty() {
                    part.shift_remove("enum");
                }
            }
            part.insert("type".to_owned(), if types.has(Types::NULL) { json!([name, "null"]) } else { json!(name) });
            Value::Object(part)
        });
        let mut parts: Vec<Value> = parts.collect();
        if let (Some(description), Some(Value::Object(first))) = (description, parts.first_mut()) {
            first.insert("description".to_owned(), description);
        }
        parts.iter_mut().filter_map(Value::as_object_mut).for_each(|part| {
            let (types, _) = part.get("type").map_or((Types::NONE, true), Types::read);
            self.one(part, types);
        });
        map.clear();
        map.insert("anyOf".to_owned(), Value::Array(parts));
    }

    /// A union stands alone: "when using any_of, it must be the only field set".
    fn union(&mut self, map: &mut Map<String, Value>, types: Types) {
        let Some(Value::Array(mut branches)) = map.shift_remove("anyOf") else { return };
        let is_null = |branch: &Value| branch.get("type").is_some_and(|types| Types::read(types).0 == Types::NULL);
        let before = branches.len();
        branches.retain(|branch| !is_null(branch));
        let nullable = branches.len() < before || types.has(Types::NULL);
        let bare = types.without(Types::NULL);
        if map.contains_key("properties") || map.contains_key("items") || branches.is_empty() {
            if !branches.is_empty() {
                let mut sentences = Vec::new();
                sentences.extend(words::sentence("anyOf", &Value::Array(branches)));
                append_description(map, &sentences);
                self.lose("anyOf", "stands beside properties or items: said in the description");
            }
            let types = if branches_are_null(types, nullable) { Types::NULL } else { types };
            return if types == Types::NONE { self.several(map, types) } else { self.one(map, types) };
        }
        let single = branches.len() == 1;
        for (at, branch) in branches.iter_mut().enumerate() {
            let Value::Object(branch) = branch else { continue };
            if branch.get("type").is_none() && bare != Types::NONE && Types::implied(branch) == Types::NONE {
                branch.insert("type".to_owned(), bare.to_value());
            }
            if nullable {
                let own = branch.get("type").map_or(Types::implied(branch), |types| Types::read(types).0);
                if own != Types::NONE {
                    branch.insert("type".to_owned(), own.with(Types::NULL).to_value());
                }
            }
            for (key, value) in map.iter().filter(|(key, _)| key.as_str() != "type") {
                match (key.as_str(), single || at == 0) {
                    ("description", true) => {
                        let own = branch.get("description").and_then(Value::as_str).map(str::to_owned);
                        branch.insert("description".to_owned(), value.clone());
                        append_description(branch, &own.into_iter().collect::<Vec<_>>());
                    }
                    ("description", false) => {}
                    (_, true) => {
                        branch.entry(key.clone()).or_insert_with(|| value.clone());
                    }
                    (_, false) => {}
                }
            }
        }
        if single {
            if let Some(Value::Object(branch)) = branches.pop() {
                *map = branch;
                self.schema(map);
            }
            return;
        }
        map.clear();
        let mut parts = Vec::with_capacity(branches.len());
        for (at, mut branch) in branches.into_iter().enumerate() {
            self.below(&["anyOf", &at.to_string()], &mut branch);
            parts.push(branch);
        }
        map.insert("anyOf".to_owned(), Value::Array(parts));
    }
}

/// Whether only null is allowed.
fn branches_are_null(types: Types, nullable: bool) -> bool {
    types == Types::NONE && nullable
}

/// A value of any type except an array, whose items would be required.
fn anything() -> Value {
    json!({"anyOf": [{"type": "STRING"}, {"type": "NUMBER"}, {"type": "BOOLEAN"}, {"type": "OBJECT"}]})
}
