//! Regular expressions that an API takes, and those that it does not in words.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::keywords::say;
use super::words::{self, Form};
use super::write::MAX_DEPTH;

/// Memory that a pattern may take compiled, in bytes.
const MAX_COMPILED: usize = 1 << 20;

/// Whether OpenAI and servers that speak its APIs take a pattern. One that they do not take fails the whole request, strict
/// or not: "regex lookaround is not supported" (vercel/ai#21037), and what Python's `re` cannot compile
/// (BerriAI/litellm#40485), which has no `\p{…}` and writes names of groups another way. DeepSeek compiles them with an
/// engine without look-around too.
pub(super) fn is_regular(pattern: &str) -> bool {
    words::is_simple_pattern(pattern)
        || is_common(pattern) && regex::RegexBuilder::new(pattern).size_limit(MAX_COMPILED).build().is_ok()
}

/// Whether a pattern has no group but plain ones, and no escape that some engines lack or read another way.
fn is_common(pattern: &str) -> bool {
    let mut rest = pattern.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'\\', [b'1'..=b'9' | b'k' | b'p' | b'P' | b'A' | b'z' | b'Z' | b'G', ..]) => return false,
            (b'\\', [b'u' | b'x' | b'U', b'{', ..]) => return false,
            (b'\\', [_, after @ ..]) => after,
            (b'(', [b'?', b':', after @ ..]) => after,
            (b'(', [b'?', ..]) => return false,
            _ => tail,
        };
    }
    true
}

/// `schema` without the patterns that `takes` refuses: they stand in the descriptions of what they bound.
pub(crate) fn in_words(schema: &Value, takes: fn(&str) -> bool) -> Cow<'_, Value> {
    if has_other(schema, takes, 0) { Cow::Owned(written(schema, takes, 0)) } else { Cow::Borrowed(schema) }
}

/// Whether OpenAI takes a pattern.
pub(crate) fn of_openai(pattern: &str) -> bool {
    is_regular(pattern)
}

/// Takes none.
pub(crate) fn of_nobody(_pattern: &str) -> bool {
    false
}

/// The schemas inside a value of a keyword.
enum Inside<'a> {
    One(&'a Value),
    List(&'a [Value]),
    Named(&'a Map<String, Value>),
    None,
}

fn inside<'a>(keyword: &str, value: &'a Value) -> Inside<'a> {
    match (keyword, value) {
        ("properties" | "$defs" | "definitions", Value::Object(map)) => Inside::Named(map),
        ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(list)) => Inside::List(list),
        ("items" | "additionalItems" | "additionalProperties", Value::Object(_)) => Inside::One(value),
        _ => match (words::form(keyword), value) {
            (Form::Schema, Value::Object(_)) => Inside::One(value),
            (Form::Schemas, Value::Object(map)) => Inside::Named(map),
            _ => Inside::None,
        },
    }
}

/// Whether a keyword is a pattern that is not taken.
fn is_other(keyword: &str, value: &Value, takes: fn(&str) -> bool) -> bool {
    match (keyword, value) {
        ("pattern", Value::String(pattern)) => !takes(pattern),
        ("patternProperties", Value::Object(map)) => map.keys().any(|pattern| !takes(pattern)),
        _ => false,
    }
}

/// What is deeper than any schema that is shown counts as one that has: it is written without.
fn has_other(schema: &Value, takes: fn(&str) -> bool, depth: usize) -> bool {
    let Some(map) = schema.as_object() else { return false };
    let below = |inner: &Value| has_other(inner, takes, depth + 1);
    depth >= MAX_DEPTH
        || map.iter().any(|(keyword, value)| {
            is_other(keyword, value, takes)
                || match inside(keyword, value) {
                    Inside::One(inner) => below(inner),
                    Inside::List(list) => list.iter().any(below),
                    Inside::Named(map) => map.values().any(below),
                    Inside::None => false,
                }
        })
}

fn written(schema: &Value, takes: fn(&str) -> bool, depth: usize) -> Value {
    let Some(map) = schema.as_object() else { return schema.clone() };
    if depth >= MAX_DEPTH {
        return Value::Object(Map::new());
    }
    let below = |inner: &Value| written(inner, takes, depth + 1);
    let (mut view, mut said) = (Map::with_capacity(map.len()), Vec::new());
    for (keyword, value) in map {
        if is_other(keyword, value, takes) {
            said.extend(words::sentence(keyword, value));
            continue;
        }
        let shown = match inside(keyword, value) {
            Inside::One(inner) => below(inner),
            Inside::List(list) => list.iter().map(below).collect(),
            Inside::Named(map) => Value::Object(map.iter().map(|(name, inner)| (name.clone(), below(inner))).collect()),
            Inside::None => value.clone(),
        };
        view.insert(keyword.clone(), shown);
    }
    say(&mut view, &said);
    Value::Object(view)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pattern_is_regular_where_every_engine_takes_it() {
        for (pattern, regular) in [
            ("^[a-z]{2,8}(-\\d+)*$", true),
            ("^(?:a|b)$", true),
            ("\\bword\\b", true),
            ("^https?:\\/\\/[^/]+$", true),
            ("^\\u0041$", true),
            // Figma's, and zod's of an e-mail address.
            ("^(?!undefined$|null$)", false),
            (
                "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$",
                false,
            ),
            ("(?<=a)b", false),
            ("(?<name>a)", false),
            ("(a)\\1", false),
            ("\\p{L}+", false),
            ("[[]", false),
            ("\\u{41}", false),
            ("(", false),
            ("\\\\1(?:a)", true),
            ("(a{1,1000}){1,1000}", false),
        ] {
            assert_eq!(is_regular(pattern), regular, "{pattern}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_looks_simple_compiles(pattern in "[\\[\\]^$a-d0-3{},.*+?|()\\\\/~&-]{0,12}") {
            proptest::prop_assert!(!words::is_simple_pattern(&pattern) || regex::Regex::new(&pattern).is_ok());
        }
    }

    #[test]
    fn patterns_go_into_words_wherever_a_schema_stands_and_nowhere_else() {
        let ahead = "^(?=a)b";
        let schema = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "pattern": ahead, "description": "What to find."},
                "plain": {"type": "string", "pattern": "^a+$", "default": {"pattern": ahead}},
                "list": {"type": "array", "items": {"anyOf": [{"pattern": ahead}, {"const": {"pattern": ahead}}]}},
            },
            "patternProperties": {ahead: {"type": "string"}},
            "$defs": {"pattern": {"not": {"pattern": ahead}}},
        });
        let expect = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "What to find. Must match ^(?=a)b."},
                "plain": {"type": "string", "pattern": "^a+$", "default": {"pattern": ahead}},
                "list": {"type": "array", "items": {"anyOf": [
                    {"description": "Must match ^(?=a)b."}, {"const": {"pattern": ahead}},
                ]}},
            },
            "$defs": {"pattern": {"not": {"description": "Must match ^(?=a)b."}}},
            "description": "JSON Schema `patternProperties`: {\"^(?=a)b\":{\"type\":\"string\"}}.",
        });
        assert_eq!(*in_words(&schema, of_openai), expect);
        let none = in_words(&schema, of_nobody);
        assert_eq!(none.pointer("/properties/plain/description"), Some(&json!("Must match ^a+$.")));
        assert!(matches!(in_words(&json!({"pattern": "a", "$defs": {}}), of_openai), Cow::Borrowed(_)));
    }
}
