//! Schemas that are their own view: most are, and a look at them costs less than writing them anew.

use serde_json::{Map, Value};

use super::rules::Rules;
use super::types::Types;
use super::words::{self, Form};
use super::write::{MAX_DEPTH, MAX_NODES};

/// Names in a `required` that are compared with each other.
const MAX_REQUIRED: usize = 64;

/// The view of `root` by `rules`, which are not strict, if that is `root` as it stands. None says nothing.
pub(super) fn view(rules: &Rules, root: &Map<String, Value>) -> Option<Value> {
    let is_object = root.get("type").is_some_and(|types| types == "object");
    let sound = is_object && root.contains_key("properties") && Look { rules, nodes: 0 }.schema(root, 0);
    sound.then(|| {
        let mut view = root.clone();
        view.shift_remove("$schema");
        Value::Object(view)
    })
}

struct Look<'r> {
    rules: &'r Rules,
    nodes: usize,
}

impl Look<'_> {
    fn schema(&mut self, map: &Map<String, Value>, depth: usize) -> bool {
        self.nodes += 1;
        if depth >= MAX_DEPTH || self.nodes > MAX_NODES {
            return false;
        }
        let is_root = depth == 0;
        let (mut is_array, mut has_items) = (false, false);
        for (key, value) in map {
            let sound = match key.as_str() {
                "$schema" => is_root,
                "type" => {
                    let (types, legal) = Types::read(value);
                    is_array = types.has(Types::ARRAY);
                    legal
                }
                "description" => value.is_string(),
                "properties" => value.as_object().is_some_and(|all| {
                    all.iter().all(|(name, inner)| self.rules.takes_name(name, is_root) && self.one(inner, depth))
                }),
                "required" => self.required(map, value, is_root),
                "items" => {
                    has_items = true;
                    self.one(value, depth)
                }
                "additionalProperties" => self.rules.keeps(key) && (value.is_boolean() || self.one(value, depth)),
                "anyOf" => !is_root && self.list(value, depth),
                "oneOf" | "allOf" => !is_root && self.rules.keeps(key) && self.list(value, depth),
                "enum" => !is_root && value.as_array().is_some_and(|values| self.rules.takes_values(values)),
                "const" => !is_root && self.rules.keeps(key),
                "exclusiveMinimum" | "exclusiveMaximum" => self.rules.keeps(key) && value.is_number(),
                _ => {
                    let form = words::form(key);
                    if form == Form::Unknown {
                        self.rules.for_clients
                    } else {
                        self.rules.keeps(key) && words::is_legal(key, form, value) && self.rules.keeps_value(key, value)
                    }
                }
            };
            if !sound {
                return false;
            }
        }
        has_items || !is_array
    }

    fn one(&mut self, value: &Value, depth: usize) -> bool {
        value.as_object().is_some_and(|inner| self.schema(inner, depth + 1))
    }

    fn list(&mut self, value: &Value, depth: usize) -> bool {
        value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(|inner| self.one(inner, depth)))
    }

    /// Names, each once, of properties that are declared or need not be.
    fn required(&self, map: &Map<String, Value>, value: &Value, is_root: bool) -> bool {
        let Some(list) = value.as_array().filter(|list| list.len() <= MAX_REQUIRED) else { return false };
        let declared = map.get("properties").and_then(Value::as_object);
        let undeclared = self.rules.keeps("dependentRequired");
        list.iter().enumerate().all(|(at, name)| {
            name.as_str().is_some_and(|text| {
                declared.is_some_and(|all| all.contains_key(text)) || undeclared && self.rules.takes_name(text, is_root)
            }) && !list[..at].contains(name)
        })
    }
}
