//! OpenAI: additional rules for a strict function's schema.

use serde_json::Value;

use super::walk::{Node, Place, nodes, types};
use super::{Report, Rule, rules};

/// The guide for most of these rules (section «Supported schemas»).
const GUIDE: &str = "https://developers.openai.com/api/docs/guides/structured-outputs#supported-schemas";

rules! { ALL:
    REQUIRED = "openai-strict/required",
        "`required` of every object names exactly its properties",
        GUIDE;
    CLOSED = "openai-strict/closed",
        "every object says `\"additionalProperties\": false`",
        GUIDE;
    KEYWORD = "openai-strict/keyword",
        "only the listed keywords stand in a schema, besides its annotations `$schema`, `title` and `description`",
        GUIDE;
    FORMAT = "openai-strict/format",
        "`format` is date-time, time, date, duration, email, hostname, ipv4, ipv6 or uuid",
        GUIDE;
    TYPED = "openai-strict/typed",
        "every schema says its `type`, or is an `anyOf` or a `$ref`",
        "400 «schema must have a 'type' key»";
    REF_ALONE = "openai-strict/ref-alone",
        "nothing stands beside a `$ref`",
        "openai-python lib/_pydantic.py («we can't use `$ref`s if there are also other properties defined»)";
    ENUM_TYPE = "openai-strict/enum-type",
        "every value of `enum`, and `const`, has the type that its schema says",
        "400 «enum value … does not validate against {'type': …}»";
    DEPTH = "openai-strict/depth",
        "objects nest at most 10 levels",
        GUIDE;
    PROPERTIES = "openai-strict/property-count",
        "a schema has at most 5,000 properties in all",
        GUIDE;
    STRINGS = "openai-strict/string-size",
        "names of properties and definitions, enum and const values have at most 120,000 characters in all",
        GUIDE;
    ENUM_VALUES = "openai-strict/enum-count",
        "a schema has at most 1,000 enum values in all",
        GUIDE;
    ENUM_SIZE = "openai-strict/enum-size",
        "one enum of more than 250 strings has at most 15,000 characters",
        GUIDE;
}

const KEYWORDS: [&str; 23] = [
    "$schema",
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "const",
    "anyOf",
    "$ref",
    "$defs",
    "definitions",
    "pattern",
    "format",
    "multipleOf",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "minItems",
    "maxItems",
    "title",
    "description",
];
const FORMATS: [&str; 9] = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];
const DEEPEST: usize = 10;
const MOST_PROPERTIES: usize = 5_000;
const MOST_CHARACTERS: usize = 120_000;
const MOST_ENUM_VALUES: usize = 1_000;
const LONG_ENUM: usize = 250;
const MOST_LONG_ENUM_CHARACTERS: usize = 15_000;

/// Checks the `parameters` of a strict function, which must be a sound JSON Schema.
pub(super) fn check(schema: &Value, path: &str, report: &mut Report) {
    let nodes = nodes(schema, path);
    for node in &nodes {
        // A boolean that closes an object is not checked as a schema; any other value there is reported with the
        // object.
        if node.place == Place::Under("additionalProperties") && node.schema.is_boolean() {
            continue;
        }
        check_keywords(node, report);
        if node.is_object() {
            check_object(node, report);
        }
        check_values(node, report);
        if node.objects > DEEPEST && node.is_object() {
            report.add(&DEPTH, &node.path, format!("an object at level {}", node.objects));
        }
    }
    check_sizes(&nodes, path, report);
}

fn check_keywords(node: &Node<'_>, report: &mut Report) {
    for (keyword, _) in node.keywords() {
        if !KEYWORDS.contains(&keyword.as_str()) {
            report.add(&KEYWORD, &node.path, format!("`{keyword}` is not among the supported keywords"));
        }
    }
    if let Some(format) = node.get("format")
        && !FORMATS.iter().any(|known| format == known)
    {
        report.add(&FORMAT, &node.path, format!("format {format}"));
    }
    if ["type", "anyOf", "$ref"].iter().all(|keyword| node.get(keyword).is_none()) {
        report.add(&TYPED, &node.path, "no type");
    }
    if node.get("$ref").is_some()
        && let Some((beside, _)) = node.keywords().find(|(keyword, _)| *keyword != "$ref")
    {
        report.add(&REF_ALONE, &node.path, format!("`{beside}` beside `$ref`"));
    }
}

fn check_object(node: &Node<'_>, report: &mut Report) {
    if node.get("additionalProperties") != Some(&Value::Bool(false)) {
        report.add(&CLOSED, &node.path, "`additionalProperties` is not false");
    }
    let mut properties: Vec<&str> = property_names(node).collect();
    let mut required: Vec<&str> =
        node.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    properties.sort_unstable();
    required.sort_unstable();
    if properties != required || node.get("required").is_none() {
        report.add(&REQUIRED, &node.path, "`required` and the properties differ, or `required` is missing");
    }
}

fn property_names<'a>(node: &Node<'a>) -> impl Iterator<Item = &'a str> {
    names(node.get("properties"))
}

fn names(map: Option<&Value>) -> impl Iterator<Item = &str> {
    map.and_then(Value::as_object).into_iter().flatten().map(|(name, _)| name.as_str())
}

fn values<'a>(node: &Node<'a>) -> impl Iterator<Item = &'a Value> {
    node.get("enum").and_then(Value::as_array).into_iter().flatten()
}

fn check_values(node: &Node<'_>, report: &mut Report) {
    let said: Vec<&str> = types(node.schema).collect();
    let mut fixed = values(node).chain(node.get("const"));
    if !said.is_empty()
        && let Some(odd) = fixed.find(|value| !said.iter().any(|name| is_of(value, name)))
    {
        report.add(&ENUM_TYPE, &node.path, format!("{odd} is not of type {said:?}"));
    }
    let strings: Vec<&str> = values(node).filter_map(Value::as_str).collect();
    let characters = characters(strings.iter().copied());
    if strings.len() > LONG_ENUM && characters > MOST_LONG_ENUM_CHARACTERS {
        report.add(&ENUM_SIZE, &node.path, format!("{} strings of {characters} characters", strings.len()));
    }
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

fn characters<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| text.chars().count()).sum()
}

fn check_sizes(nodes: &[Node<'_>], path: &str, report: &mut Report) {
    let mut limit = |rule: &Rule, what: &str, found: usize, most: usize| {
        if found > most {
            report.add(rule, path, format!("{found} {what}; at most {most} are allowed"));
        }
    };
    let over_all = |count: fn(&Node<'_>) -> usize| nodes.iter().map(count).sum::<usize>();
    limit(&PROPERTIES, "properties", over_all(|node| property_names(node).count()), MOST_PROPERTIES);
    limit(&ENUM_VALUES, "enum values", over_all(|node| values(node).count()), MOST_ENUM_VALUES);
    let strings = over_all(|node| {
        let defined = ["$defs", "definitions"].into_iter().flat_map(|keyword| names(node.get(keyword)));
        let fixed = values(node).chain(node.get("const")).filter_map(Value::as_str);
        characters(property_names(node).chain(defined).chain(fixed))
    });
    limit(&STRINGS, "characters in names and values", strings, MOST_CHARACTERS);
}
