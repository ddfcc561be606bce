//! The set of JSON types that a schema allows.

use serde_json::{Map, Value};

/// A set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Types(u8);

/// In output order; `integer` is separate from `number`.
const NAMES: [&str; 7] = ["string", "number", "integer", "boolean", "array", "object", "null"];
/// Words that authors write for a type, lower case.
const FOREIGN: [(Types, &[&str]); 7] = [
    (Types::STRING, &["str", "text", "char", "varchar"]),
    (Types::NUMBER, &["float", "float32", "float64", "double", "decimal", "num"]),
    (Types::INTEGER, &["int", "int32", "int64", "long", "short", "byte", "bigint", "uint"]),
    (Types::BOOLEAN, &["bool"]),
    (Types::ARRAY, &["list", "tuple", "set", "sequence", "arraylist"]),
    (Types::OBJECT, &["dict", "dictionary", "map", "hashmap", "record", "struct"]),
    (Types::NULL, &["none", "nil"]),
];

impl Types {
    pub(super) const NONE: Self = Self(0);
    pub(super) const STRING: Self = Self(1);
    pub(super) const NUMBER: Self = Self(2);
    pub(super) const INTEGER: Self = Self(4);
    pub(super) const BOOLEAN: Self = Self(8);
    pub(super) const ARRAY: Self = Self(16);
    pub(super) const OBJECT: Self = Self(32);
    pub(super) const NULL: Self = Self(64);

    /// The value of a `type`, and whether it is legal as written. An empty set is no restriction: a value that cannot be read
    /// as a type counts as absent.
    pub(super) fn read(value: &Value) -> (Self, bool) {
        match value {
            Value::String(name) => Self::named(name),
            Value::Array(names) if !names.is_empty() => {
                let mut all = (Self::NONE, true);
                for name in names {
                    let (one, legal) = name.as_str().map_or((Self::NONE, false), Self::named);
                    // An unrestricted type makes the whole union unrestricted.
                    if one == Self::NONE {
                        return (Self::NONE, false);
                    }
                    all = (all.0.with(one), all.1 && legal && !all.0.has(one));
                }
                all
            }
            _ => (Self::NONE, false),
        }
    }

    fn named(name: &str) -> (Self, bool) {
        if let Some(at) = NAMES.iter().position(|known| *known == name) {
            return (Self(1 << at), true);
        }
        let lower = name.trim().to_ascii_lowercase();
        let known = NAMES.iter().position(|known| *known == lower).map(|at| Self(1 << at));
        let foreign = || FOREIGN.iter().find(|(_, words)| words.contains(&&*lower)).map(|(types, _)| *types);
        (known.or_else(foreign).unwrap_or(Self::NONE), false)
    }

    /// The type of one value.
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) if number.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Intersects the types; an integer is a number.
    pub(super) fn and(self, other: Self) -> Self {
        let widen = |types: Self| if types.has(Self::NUMBER) { types.with(Self::INTEGER) } else { types };
        let both = Self(widen(self).0 & widen(other).0);
        if both.has(Self::NUMBER) && !(self.has(Self::INTEGER) && other.has(Self::INTEGER)) {
            both.without(Self::INTEGER)
        } else {
            both
        }
    }

    pub(super) fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether the two sets have no common value.
    pub(super) fn disjoint(self, other: Self) -> bool {
        self != Self::NONE && other != Self::NONE && self.and(other) == Self::NONE
    }

    /// Whether `value` is of one of these types.
    pub(super) fn allow(self, value: &Value) -> bool {
        let own = Self::of(value);
        let whole = || value.as_f64().is_some_and(|number| number.fract() == 0.0);
        self == Self::NONE
            || self.has(own)
            || (own == Self::INTEGER && self.has(Self::NUMBER))
            || (own == Self::NUMBER && self.has(Self::INTEGER) && whole())
    }

    /// Converts it to the value of a `type`.
    pub(super) fn to_value(self) -> Value {
        let mut names = self.names().map(Value::from);
        match self.len() {
            1 => names.next().unwrap_or_default(),
            _ => Value::Array(names.collect()),
        }
    }

    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.iter().enumerate().filter(move |(at, _)| self.0 & (1 << at) != 0).map(|(_, name)| *name)
    }

    /// The types of a schema without `type`, by its other keywords.
    pub(super) fn implied(schema: &Map<String, Value>) -> Self {
        let has = |key: &str| schema.contains_key(key);
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            return values.iter().fold(Self::NONE, |all, value| all.with(Self::of(value)));
        }
        if let Some(value) = schema.get("const") {
            return Self::of(value);
        }
        if has("properties") || has("additionalProperties") || has("required") {
            Self::OBJECT
        } else if has("items") || has("prefixItems") || has("minItems") || has("maxItems") {
            Self::ARRAY
        } else if has("pattern") || has("minLength") || has("maxLength") {
            Self::STRING
        } else if has("minimum") || has("maximum") || has("multipleOf") {
            Self::NUMBER
        } else {
            Self::NONE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn type_names_are_parsed() {
        let check = |value: Value, names: &[&str], legal: bool| {
            let (types, is_legal) = Types::read(&value);
            assert_eq!((types.names().collect::<Vec<_>>(), is_legal), (names.to_vec(), legal), "{value}");
        };
        check(json!("integer"), &["integer"], true);
        check(json!(["string", "null"]), &["string", "null"], true);
        check(json!(["string", "string"]), &["string"], false);
        check(json!("Dict"), &["object"], false);
        check(json!("float"), &["number"], false);
        check(json!(["tuple", "None"]), &["array", "null"], false);
        for nothing in [json!("any"), json!(""), json!(["string", "any"]), json!([]), json!(3), json!({"a": 1})] {
            check(nothing, &[], false);
        }
    }

    #[test]
    fn an_integer_is_a_number() {
        assert_eq!(Types::INTEGER.and(Types::NUMBER), Types::INTEGER);
        assert_eq!(Types::NUMBER.and(Types::NUMBER), Types::NUMBER);
        assert!(!Types::INTEGER.disjoint(Types::NUMBER) && Types::STRING.disjoint(Types::NULL));
        assert!(Types::INTEGER.allow(&json!(2.0)) && !Types::INTEGER.allow(&json!(2.5)));
    }
}
