//! Converts plain text values to the types in the tool's schema.

use serde_json::Value;
use toolwright_core::json::{Repaired, repair, type_name};
use toolwright_core::model::RequestTool;

/// The deepest nesting of schemas, references included.
const MAX_DEPTH: usize = 32;

/// A schema and the document that its references point into.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schema<'a> {
    root: &'a Value,
    node: &'a Value,
}

/// The JSON types that a schema allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Types(u8);

const NAMES: [&str; 7] = ["string", "integer", "number", "boolean", "null", "array", "object"];

impl Types {
    fn has(self, name: &str) -> bool {
        NAMES.iter().position(|known| *known == name).is_some_and(|bit| self.0 & (1 << bit) != 0)
    }

    fn add(&mut self, name: &str) {
        if let Some(bit) = NAMES.iter().position(|known| *known == name) {
            self.0 |= 1 << bit;
        }
    }

    /// The empty container that fits.
    pub(crate) fn empty(self) -> Option<Value> {
        [Value::Array(Vec::new()), Value::Object(serde_json::Map::new())].into_iter().find(|empty| self.allow(empty))
    }

    /// Whether a value of this type fits.
    pub(crate) fn allow(self, value: &Value) -> bool {
        match value {
            Value::Null => self.has("null"),
            Value::Bool(_) => self.has("boolean"),
            Value::Number(number) => {
                let whole = number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|n| n.fract() == 0.0);
                self.has("number") || (self.has("integer") && whole)
            }
            Value::String(_) => self.has("string"),
            Value::Array(_) => self.has("array"),
            Value::Object(_) => self.has("object"),
        }
    }
}

impl<'a> Schema<'a> {
    /// The schema of the arguments of the tool called `name`.
    pub(crate) fn of_tool(tools: &'a [RequestTool], name: &str) -> Option<Self> {
        let root = &tools.iter().find(|tool| tool.name == name)?.parameters;
        Some(Self { root, node: root })
    }

    /// The schema of a member.
    pub(crate) fn member(self, key: &str) -> Option<Self> {
        self.find(MAX_DEPTH, &|node| node.get("properties")?.get(key))
    }

    /// The schema of an array's items.
    pub(crate) fn items(self) -> Option<Self> {
        self.find(MAX_DEPTH, &|node| node.get("items"))
    }

    /// The names of the members, required ones first.
    pub(crate) fn members(self) -> Vec<&'a str> {
        let properties = self.find(MAX_DEPTH, &|node| node.get("properties")).and_then(|found| found.node.as_object());
        let mut names: Vec<&str> =
            properties.into_iter().flat_map(|members| members.keys().map(String::as_str)).collect();
        let required = self.find(MAX_DEPTH, &|node| node.get("required")).and_then(|found| found.node.as_array());
        names.sort_by_key(|name| !required.is_some_and(|list| list.iter().any(|item| item == name)));
        names
    }

    fn find(self, depth: usize, get: &dyn Fn(&'a Value) -> Option<&'a Value>) -> Option<Self> {
        if depth == 0 {
            return None;
        }
        if let Some(node) = get(self.node) {
            return Some(Self { root: self.root, node });
        }
        self.branches().find_map(|branch| branch.find(depth - 1, get))
    }

    /// The schemas that the schema refers to or combines.
    fn branches(self) -> impl Iterator<Item = Self> {
        let target = self.node.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
        let target = target.and_then(|pointer| self.root.pointer(pointer));
        let combined = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(move |key| self.node.get(key)?.as_array());
        target.into_iter().chain(combined.flatten()).map(move |node| Self { root: self.root, node })
    }

    /// Returns the types that it allows; `None` if it does not say.
    pub(crate) fn types(self) -> Option<Types> {
        let mut types = Types::default();
        self.gather(MAX_DEPTH, &mut types);
        (types != Types::default()).then_some(types)
    }

    fn gather(self, depth: usize, types: &mut Types) {
        if depth == 0 {
            return;
        }
        match self.node.get("type") {
            Some(Value::String(name)) => return types.add(name),
            Some(Value::Array(names)) => {
                return names.iter().filter_map(Value::as_str).for_each(|name| types.add(name));
            }
            _ => {}
        }
        let listed = self.node.get("enum").and_then(Value::as_array).into_iter().flatten();
        for value in listed.chain(self.node.get("const")) {
            types.add(type_name(value));
        }
        self.branches().for_each(|branch| branch.gather(depth - 1, types));
        if *types == Types::default() && self.node.get("properties").is_some() {
            types.add("object");
        }
    }
}

/// Converts `text` to a value. If the schema allows texts and other types, a fitting other type wins; a text that fits
/// no type stays a text, for the check to report. Without a schema only a JSON container is parsed: the check converts
/// a text to a number where needed, but never a number to a text.
pub(crate) fn value(schema: Option<Schema<'_>>, text: &str) -> Value {
    let bare = text.trim();
    let Some(types) = schema.and_then(Schema::types) else {
        let container = bare.starts_with(['{', '[']).then(|| serde_json::from_str(bare).ok()).flatten();
        return container.unwrap_or_else(|| text.into());
    };
    if types == (Types(1)) {
        return text.into();
    }
    json(bare).filter(|value| !value.is_string() && types.allow(value)).unwrap_or_else(|| {
        let mended = |kind: &str, open: char| types.has(kind) && bare.starts_with(open);
        let mended = (mended("object", '{') || mended("array", '[')).then(|| repair(bare).ok()).flatten();
        match mended {
            Some(Repaired { value, cut, .. })
                if types.allow(&value) && !value.is_string() && !cut.as_deref().is_some_and(in_an_item) =>
            {
                value
            }
            _ if types.has("string") => text.into(),
            // A quoted text of the wrong type is reported with its content.
            _ => json(bare).unwrap_or_else(|| text.into()),
        }
    })
}

/// Whether the place `cut` in a value is in an item of a list. Half an item may have another meaning, so
/// such a value is returned as written, and the check of the call finds the cut.
pub(crate) fn in_an_item(cut: &str) -> bool {
    cut.split('/').any(|step| step.parse::<usize>().is_ok())
}

/// Parses JSON, or one of Python's constants.
pub(crate) fn json(text: &str) -> Option<Value> {
    match text {
        "True" => Some(Value::Bool(true)),
        "False" => Some(Value::Bool(false)),
        "None" => Some(Value::Null),
        _ => serde_json::from_str(text).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_schema_decides_what_a_text_is() {
        let check = |schema: Value, text: &str, expect: Value| {
            let got = value(Some(Schema { root: &schema, node: &schema }), text);
            assert_eq!(got, expect, "{text:?} as {schema}");
        };
        check(json!({"type": "string"}), "12", json!("12"));
        check(json!({"type": "string"}), " null\n", json!(" null\n"));
        check(json!({"type": "integer"}), " 12\n", json!(12));
        check(json!({"type": "integer"}), "1.5", json!(1.5));
        check(json!({"type": "number"}), "1e3", json!(1e3));
        check(json!({"type": "boolean"}), "True", json!(true));
        check(json!({"type": "null"}), "None", json!(null));
        check(json!({"type": ["string", "null"]}), "null", json!(null));
        check(json!({"type": ["null", "string"]}), "nullify", json!("nullify"));
        check(json!({"type": ["string", "object"]}), r#"{"a": 1}"#, json!({"a": 1}));
        check(json!({"type": ["string", "integer"]}), "2 dollars", json!("2 dollars"));
        check(json!({"type": "array"}), "['a', True]", json!(["a", true]));
        check(json!({"type": "object"}), "{'a': 'it'}", json!({"a": "it"}));
        check(json!({"enum": ["a", "b"]}), "a", json!("a"));
        check(json!({"enum": [1, 2]}), "2", json!(2));
        check(json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}), "7", json!(7));
        check(json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}), "7", json!(7));
        check(json!({"$ref": "#"}), "7", json!("7"));
        check(json!({}), "7", json!("7"));
        check(json!(true), "[7]", json!([7]));
        check(json!({"type": "integer"}), "seven", json!("seven"));
    }
}
