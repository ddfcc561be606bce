//! Derives the types of values that schemas promise and require, as far as they say.

use serde_json::Value;

use crate::base::pattern::nearest;
use crate::schema::referred;

const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const INTEGER: u8 = 4;
const NUMBER: u8 = 8;
const STRING: u8 = 16;
const ARRAY: u8 = 32;
const OBJECT: u8 = 64;
const NAMES: [(u8, &str); 7] = [
    (NULL, "null"),
    (BOOLEAN, "boolean"),
    (INTEGER, "integer"),
    (NUMBER, "number"),
    (STRING, "string"),
    (ARRAY, "array"),
    (OBJECT, "object"),
];
/// Nesting depth of schema branches that are examined.
const MAX_DEPTH: usize = 8;

/// A set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    /// The types that `schema` allows; `None` if it does not say.
    pub(super) fn of(root: &Value, schema: &Value) -> Option<Self> {
        Self::within(root, schema, 0)
    }

    fn within(root: &Value, schema: &Value, depth: usize) -> Option<Self> {
        let schema = referred(root, schema);
        let union = |all: &[Value]| {
            all.iter().try_fold(0, |types, one| Some(types | Self::within(root, one, depth + 1)?.0)).map(Self)
        };
        let named = match schema.get("type") {
            Some(Value::String(name)) => Self::named(name),
            Some(Value::Array(names)) => names
                .iter()
                .try_fold(0, |types, name| Some(types | Self::named(name.as_str()?)?.0))
                .filter(|types| *types != 0)
                .map(Self),
            _ => None,
        };
        let listed = || match (schema.get("const"), schema.get("enum").and_then(Value::as_array)) {
            (Some(one), _) => Some(Self::of_value(one)),
            (None, Some(all)) if !all.is_empty() => Some(Self(all.iter().fold(0, |t, one| t | Self::of_value(one).0))),
            _ => None,
        };
        let branches = || {
            let branches = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array);
            branches.filter(|all| depth < MAX_DEPTH && !all.is_empty()).and_then(|all| union(all))
        };
        named.or_else(listed).or_else(branches)
    }

    fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(bit, _)| Self(*bit))
    }

    /// The type of a value.
    pub(super) fn of_value(value: &Value) -> Self {
        Self(match value {
            Value::Null => NULL,
            Value::Bool(_) => BOOLEAN,
            Value::Number(number) if number.is_f64() => NUMBER,
            Value::Number(_) => INTEGER,
            Value::String(_) => STRING,
            Value::Array(_) => ARRAY,
            Value::Object(_) => OBJECT,
        })
    }

    /// Whether some value of these types fits where `required` are expected. A number may become text, and a number may
    /// be whole; text that spells another type does not count.
    pub(super) fn fit(self, required: Self) -> bool {
        let mut can = self.0;
        if can & (INTEGER | NUMBER) != 0 {
            can |= INTEGER | NUMBER | STRING;
        }
        can & required.0 != 0
    }

    /// Names of the types, for messages.
    pub(super) fn names(self) -> String {
        let names: Vec<&str> = NAMES.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, name)| *name).collect();
        names.join(" or ")
    }

    fn has_members(self) -> bool {
        self.0 & (ARRAY | OBJECT) != 0
    }
}

/// A schema's statement about a place inside its values.
#[derive(Debug, PartialEq)]
pub(super) enum PathSchema<'a> {
    /// The schema of the place.
    Known(&'a Value),
    /// It does not say.
    Unknown,
    /// It names members, not this one, and allows others; the member, and a similar name.
    Unnamed(String, Option<String>),
    /// There can be no such place; the reason.
    Closed(String),
}

/// The place of `steps` inside the values of `root`.
pub(super) fn place<'a>(root: &'a Value, steps: &[String]) -> PathSchema<'a> {
    let mut schema = referred(root, root);
    for step in steps {
        if schema.is_boolean() {
            return PathSchema::Unknown;
        }
        if let Some(types) = Types::of(root, schema)
            && !types.has_members()
        {
            return PathSchema::Closed(format!("it is of type {}, which has no `{step}`", types.names()));
        }
        let members = schema.get("properties").and_then(Value::as_object);
        let item = step.parse::<usize>().ok();
        let tuple = schema.get("prefixItems").and_then(|items| items.get(item?));
        let items = || schema.get("items").filter(|items| item.is_some() && !items.is_array());
        let extra = schema.get("additionalProperties");
        let next = members.and_then(|members| members.get(step)).or(tuple).or_else(items);
        schema = match (next, extra) {
            (Some(next), _) => referred(root, next),
            (None, _)
                if ["anyOf", "oneOf", "allOf", "patternProperties"].iter().any(|key| schema.get(key).is_some()) =>
            {
                return PathSchema::Unknown;
            }
            (None, Some(extra @ Value::Object(_))) => referred(root, extra),
            (None, extra) => {
                let Some(members) = members else { return PathSchema::Unknown };
                let near = nearest(step, members.keys().map(String::as_str)).map(str::to_owned);
                if extra == Some(&Value::Bool(false)) {
                    let hint = near.map_or_else(
                        || format!("; it has {}", members.keys().take(12).cloned().collect::<Vec<_>>().join(", ")),
                        |near| format!("; did you mean `{near}`?"),
                    );
                    return PathSchema::Closed(format!("it has no `{step}`{hint}"));
                }
                return PathSchema::Unnamed(step.clone(), near);
            }
        };
    }
    PathSchema::Known(schema)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_fit_where_a_value_is_allowed() {
        for (has, wants, fits) in [
            (json!({"type": "string"}), json!({"type": "string"}), true),
            (json!({"type": "string"}), json!({"type": "integer"}), false),
            (json!({"type": "integer"}), json!({"type": "string"}), true),
            (json!({"type": "number"}), json!({"type": "integer"}), true),
            (json!({"type": ["string", "null"]}), json!({"enum": ["a"]}), true),
            (json!({"type": "object"}), json!({"type": "string"}), false),
            (json!({"const": true}), json!({"anyOf": [{"type": "integer"}, {"type": "array"}]}), false),
        ] {
            let types = |schema: &Value| Types::of(schema, schema).expect("typed");
            assert_eq!(types(&has).fit(types(&wants)), fits, "{has} in {wants}");
        }
        for untyped in [json!({}), json!(true), json!({"type": "dict"}), json!({"anyOf": [{}, {"type": "string"}]})] {
            assert_eq!(Types::of(&untyped, &untyped), None, "{untyped}");
        }
    }

    #[test]
    fn places_are_followed_as_far_as_schemas_say() {
        let root = json!({
            "type": "object",
            "properties": {
                "list": {"type": "array", "items": {"$ref": "#/$defs/one"}}, "any": {}, "map": {"additionalProperties": {"type": "string"}},
                "closed": {"properties": {"name": {"type": "string"}}, "additionalProperties": false},
            },
            "$defs": {"one": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        });
        let check = |path: &str| {
            let steps: Vec<String> = path.split('.').map(str::to_owned).collect();
            match place(&root, &steps) {
                PathSchema::Known(schema) => Types::of(&root, schema).map_or("untyped".into(), Types::names),
                PathSchema::Unknown => "unknown".into(),
                PathSchema::Unnamed(name, near) => format!("unnamed {name} {}", near.unwrap_or_default()),
                PathSchema::Closed(why) => why,
            }
        };
        assert_eq!(check("list.0.id"), "integer");
        assert_eq!(check("list.3.ids"), "unnamed ids id");
        assert_eq!(check("any.thing"), "unknown");
        assert_eq!(check("map.x"), "string");
        assert_eq!(check("closed.nam"), "it has no `nam`; did you mean `name`?");
        assert_eq!(check("closed.name.x"), "it is of type string, which has no `x`");
        assert_eq!(check("other"), "unnamed other ");
    }
}
