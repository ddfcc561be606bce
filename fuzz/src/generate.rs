//! Schemas out of choices: what a fuzzer would be long in spelling, combined at random.

use arbitrary::{Result, Unstructured};
use serde_json::{Map, Value, json};

/// Schemas inside schemas.
const MAX_DEPTH: usize = 6;
/// Keywords of one schema, and members of one keyword.
const MAX_MEMBERS: usize = 5;

const NAMES: [&str; 8] = ["a", "b", "name", "type", "$ref", "with space", "né/~x", ""];
const TYPES: [&str; 8] = ["string", "integer", "number", "boolean", "object", "array", "null", "dict"];
const REFS: [&str; 13] = [
    "#",
    "#/$defs/a",
    "#/$defs/b",
    "#/definitions/a",
    "#/properties/a",
    "#/$defs/a/properties/b",
    "#anchor",
    "http://json-schema.org/draft-07/schema#",
    "https://example.com/s.json",
    "anchor",
    "#/%24defs/a",
    "anchor#/properties/a",
    "#/%zz",
];
const TEXTS: [&str; 10] = [
    "date-time",
    "email",
    "uuid",
    "^a+$",
    "(a+)+$",
    "\\p{L}{2,}",
    "[",
    "anchor",
    "http://json-schema.org/draft-04/schema#",
    "A description. ",
];
const HOLDS_SCHEMA: [&str; 12] = [
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
    "additionalItems",
    "contentSchema",
];
const HOLDS_SCHEMAS: [&str; 5] = ["anyOf", "oneOf", "allOf", "prefixItems", "items"];
const HOLDS_NAMED: [&str; 6] =
    ["properties", "$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies"];
const HOLDS_NUMBER: [&str; 11] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxContains",
];
const HOLDS_TEXT: [&str; 10] =
    ["description", "title", "format", "pattern", "$id", "$anchor", "$dynamicAnchor", "$schema", "$comment", "const"];
const HOLDS_ANY: [&str; 8] =
    ["const", "default", "enum", "examples", "required", "nullable", "uniqueItems", "discriminator"];

/// A schema, nearly legal, steered by `choices`; what they do not say is as short as can be.
pub(crate) fn schema(choices: &[u8]) -> Value {
    schema_of(&mut Unstructured::new(choices), 0).unwrap_or(Value::Bool(true))
}

fn schema_of(choices: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    if depth >= MAX_DEPTH || choices.is_empty() || choices.ratio(1u8, 40u8)? {
        return Ok(choices.choose(&[json!(true), json!({}), json!(false), json!({"type": "string"})])?.clone());
    }
    let mut schema = Map::new();
    if choices.ratio(7u8, 8u8)? {
        let kind = match choices.int_in_range(0..=7u8)? {
            0 => json!([choices.choose(&TYPES)?, choices.choose(&TYPES)?]),
            1..=3 => json!("object"),
            _ => json!(choices.choose(&TYPES)?),
        };
        schema.insert("type".into(), kind);
    }
    for _ in 0..choices.int_in_range(0..=MAX_MEMBERS)? {
        let (keyword, value) = match choices.int_in_range(0..=9u8)? {
            0 => (*choices.choose(&HOLDS_SCHEMA)?, schema_of(choices, depth + 1)?),
            1 | 2 => {
                (*choices.choose(&HOLDS_SCHEMAS)?, several(choices, |choices| schema_of(choices, depth + 1))?.into())
            }
            3..=5 => {
                let members = several(choices, |choices| Ok((name(choices)?, schema_of(choices, depth + 1)?)))?;
                (*choices.choose(&HOLDS_NAMED)?, Value::Object(members.into_iter().collect()))
            }
            6 => (*choices.choose(&HOLDS_NUMBER)?, number(choices)?),
            7 => (*choices.choose(&HOLDS_TEXT)?, json!(choices.choose(&TEXTS)?)),
            8 => ("$ref", json!(choices.choose(&REFS)?)),
            _ => (*choices.choose(&HOLDS_ANY)?, instance(choices, 0)?),
        };
        schema.insert(keyword.into(), value);
    }
    Ok(Value::Object(schema))
}

/// A value that `schema` may well allow, steered by `choices`.
pub(crate) fn instance_of(schema: &Value, choices: &[u8]) -> Value {
    sample(schema, schema, &mut Unstructured::new(choices), 0).unwrap_or_default()
}

fn sample(root: &Value, schema: &Value, choices: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    if depth > MAX_DEPTH {
        return Ok(Value::Null);
    }
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|path| root.pointer(path.strip_prefix('#')?));
    if let Some(target) = target {
        return sample(root, target, choices, depth + 1);
    }
    if let Some(fixed) = schema.get("const").or_else(|| schema.get("default")) {
        return Ok(fixed.clone());
    }
    for branches in ["enum", "anyOf", "oneOf"].iter().filter_map(|keyword| schema.get(keyword)?.as_array()) {
        if let Ok(branch) = choices.choose(branches) {
            let is_value = schema.get("enum").is_some();
            return if is_value { Ok(branch.clone()) } else { sample(root, branch, choices, depth + 1) };
        }
    }
    let kinds = schema.get("type").map(|kind| kind.as_array().map_or(vec![kind], |kinds| kinds.iter().collect()));
    let kind = match kinds.as_deref() {
        Some([_, ..]) => choices.choose(&kinds.unwrap_or_default())?.as_str(),
        _ if schema.get("properties").is_some() => Some("object"),
        _ => None,
    };
    Ok(match kind {
        Some("object") => {
            let mut members = Map::new();
            for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                if !choices.ratio(1u8, 4u8)? {
                    members.insert(name.clone(), sample(root, property, choices, depth + 1)?);
                }
            }
            Value::Object(members)
        }
        Some("array") => {
            let items = schema.get("items").unwrap_or(&Value::Null);
            several(choices, |choices| sample(root, items, choices, depth + 1))?.into()
        }
        Some("string") => json!(choices.choose(&TEXTS)?),
        Some("integer") => json!(choices.arbitrary::<i8>()?),
        Some("number") => number(choices)?,
        Some("boolean") => Value::Bool(choices.arbitrary()?),
        Some(_) => Value::Null,
        None => instance(choices, depth)?,
    })
}

fn instance(choices: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    Ok(match choices.int_in_range(0..=8u8)? {
        0 => Value::Null,
        1 => Value::Bool(choices.arbitrary()?),
        2 => number(choices)?,
        3 => json!(choices.choose(&TEXTS)?),
        4 | 5 => name(choices)?.into(),
        6 => several(choices, |choices| name(choices).map(Value::from))?.into(),
        7 if depth < MAX_DEPTH => several(choices, |choices| instance(choices, depth + 1))?.into(),
        _ if depth < MAX_DEPTH => {
            let members = several(choices, |choices| Ok((name(choices)?, instance(choices, depth + 1)?)))?;
            Value::Object(members.into_iter().collect())
        }
        _ => Value::Null,
    })
}

fn several<T>(
    choices: &mut Unstructured<'_>,
    mut one: impl FnMut(&mut Unstructured<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    (0..choices.int_in_range(0..=MAX_MEMBERS)?).map(|_| one(choices)).collect()
}

fn name(choices: &mut Unstructured<'_>) -> Result<String> {
    choices.choose(&NAMES).map(|name| (*name).to_owned())
}

fn number(choices: &mut Unstructured<'_>) -> Result<Value> {
    Ok(match choices.int_in_range(0..=3u8)? {
        0 => json!(choices.arbitrary::<i8>()?),
        1 => json!(choices.arbitrary::<i64>()?),
        2 => json!(choices.arbitrary::<u64>()?),
        _ => json!(choices.arbitrary::<f64>()?),
    })
}
