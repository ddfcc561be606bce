//! Anthropic Messages: rules for all tools, for strict tools, and limits for a whole request.

use std::collections::HashSet;

use jsonschema::Draft;
use serde_json::{Map, Value};

use super::common::{compiles, known, local_refs, name, objects, string, unique};
use super::walk::{Node, Place, is_cyclic, nodes, resolve};
use super::{Report, rules};

/// «JSON Schema limitations», which strict tools share with structured outputs.
const LIMITATIONS: &str =
    "https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations";
/// «Schema complexity limits», over all strict schemas of a request.
const COMPLEXITY: &str =
    "https://platform.claude.com/docs/en/build-with-claude/structured-outputs#schema-complexity-limits";

rules! { ALL:
    TOOL = "anthropic/tool",
        "a tool has the fields of the reference, with their types, and no others",
        "anthropic-sdk-python types/tool_param.py; 400 «Extra inputs are not permitted»";
    NAME = "anthropic/name",
        "a name matches ^[a-zA-Z0-9_-]{1,64}$",
        "https://platform.claude.com/docs/en/agents-and-tools/tool-use/define-tools";
    ROOT_OBJECT = "anthropic/root-object",
        "`input_schema` says `\"type\": \"object\"`",
        "anthropic-sdk-python types/tool_param.py InputSchemaTyped";
    ROOT_COMBINATOR = "anthropic/root-combinator",
        "`input_schema` has no `oneOf`, `allOf` or `anyOf` at its root",
        "400 «input_schema does not support oneOf, allOf, or anyOf at the top level» (anthropics/claude-code#10606)";
    PROPERTY_NAME = "anthropic/property-name",
        "the names of the root's properties match ^[a-zA-Z0-9_.-]{1,64}$",
        "400 «input_schema.properties: Property keys should match pattern» (anthropics/claude-code#79418)";
    DRAFT = "anthropic/draft-2020-12",
        "`input_schema` is valid as JSON Schema 2020-12, whatever its `$schema` says",
        "anthropic-sdk-python types/tool_param.py; 400 «JSON schema is invalid. It must match JSON Schema draft 2020-12»";
    CLOSED = "anthropic-strict/closed",
        "every object of a strict tool says `\"additionalProperties\": false`",
        LIMITATIONS;
    KEYWORD = "anthropic-strict/keyword",
        "a strict tool uses only the supported keywords: no bounds of numbers or lengths, no `oneOf`, no `maxItems`",
        LIMITATIONS;
    MIN_ITEMS = "anthropic-strict/min-items",
        "`minItems` of a strict tool is 0 or 1",
        LIMITATIONS;
    ENUM = "anthropic-strict/enum-values",
        "enum values of a strict tool are strings, numbers, booleans or null",
        LIMITATIONS;
    ALL_OF_REF = "anthropic-strict/all-of-ref",
        "no `$ref` stands in an `allOf` of a strict tool",
        LIMITATIONS;
    RECURSION = "anthropic-strict/recursion",
        "a strict tool's schema does not contain itself",
        LIMITATIONS;
    FORMAT = "anthropic-strict/format",
        "`format` of a strict tool is date-time, time, date, duration, email, hostname, uri, ipv4, ipv6 or uuid",
        LIMITATIONS;
    PATTERN = "anthropic-strict/pattern",
        "`pattern` of a strict tool has no backreference, lookaround or word boundary",
        LIMITATIONS;
    STRICT_TOOLS = "anthropic-request/strict-tools",
        "at most 20 tools of a request are strict",
        COMPLEXITY;
    OPTIONAL = "anthropic-request/optional-parameters",
        "the strict tools of a request have at most 24 properties that are not required, at any depth",
        COMPLEXITY;
    DEFERRED_CACHE = "anthropic/deferred-cache",
        "a deferred tool has no `cache_control`",
        "400 «Tool '…' cannot have both defer_loading=true and cache_control set» (anthropics/claude-code#30920)";
    NOT_DEFERRED = "anthropic-request/not-deferred",
        "at least one tool of a request is not deferred",
        "https://platform.claude.com/docs/en/agents-and-tools/tool-use/tool-search-tool; 400 «All tools have \
         defer_loading set. At least one tool must be non-deferred.»";
    UNIONS = "anthropic-request/union-parameters",
        "the strict tools of a request have at most 16 properties that use `anyOf` or several types",
        COMPLEXITY;
}

const FIELDS: [&str; 10] = [
    "type",
    "name",
    "description",
    "input_schema",
    "strict",
    "cache_control",
    "defer_loading",
    "input_examples",
    "allowed_callers",
    "eager_input_streaming",
];
const LONGEST_NAME: usize = 64;
const KEYWORDS: [&str; 19] = [
    "type",
    "enum",
    "const",
    "anyOf",
    "allOf",
    "$ref",
    "$def",
    "$defs",
    "definitions",
    "default",
    "required",
    "additionalProperties",
    "properties",
    "items",
    "format",
    "pattern",
    "minItems",
    "title",
    "description",
];
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"];
const MOST_STRICT: usize = 20;
const MOST_OPTIONAL: usize = 24;
const MOST_UNIONS: usize = 16;

/// Checks the tools of a Messages request.
pub(super) fn check(tools: &[Value], report: &mut Report) {
    let mut named = Vec::new();
    if !tools.is_empty() && tools.iter().all(|tool| tool["defer_loading"] == true) {
        report.add(&NOT_DEFERRED, "", "all tools are deferred");
    }
    let (mut strict, mut optional, mut unions) = (0, 0, 0);
    for (path, tool) in objects(tools, "", report) {
        if tool.get("type").and_then(Value::as_str).is_some_and(|kind| kind != "custom") {
            continue;
        }
        report.enter(tool);
        let schema = check_tool(tool, &path, report);
        if let (Some(schema), Some(Value::Bool(true))) = (schema, tool.get("strict")) {
            let nodes = nodes(schema, &format!("{path}/input_schema"));
            check_strict(schema, &nodes, report);
            strict += 1;
            let properties = nodes.iter().filter(|node| matches!(node.place, Place::Property { .. }));
            optional += properties.clone().filter(|node| node.place == Place::Property { required: false }).count();
            unions += properties.filter(|node| uses_union(schema, node.schema)).count();
        }
        named.push((path, tool.get("name")));
    }
    unique(named.into_iter(), report);
    for (rule, found, most) in
        [(&STRICT_TOOLS, strict, MOST_STRICT), (&OPTIONAL, optional, MOST_OPTIONAL), (&UNIONS, unions, MOST_UNIONS)]
    {
        if found > most {
            report.add(rule, "", format!("{found} in the request; at most {most} are allowed"));
        }
    }
}

/// Checks the rules for all tools. Returns the schema if it is sound.
fn check_tool<'a>(tool: &'a Map<String, Value>, path: &str, report: &mut Report) -> Option<&'a Value> {
    known(&TOOL, tool, &FIELDS, path, report);
    name(&NAME, tool.get("name"), path, LONGEST_NAME, "_-", report);
    string(&TOOL, tool.get("description"), format!("{path}/description"), report);
    if tool.get("strict").is_some_and(|strict| !strict.is_boolean()) {
        report.add(&TOOL, format!("{path}/strict"), "not a boolean");
    }
    if tool.get("defer_loading") == Some(&Value::Bool(true)) && tool.contains_key("cache_control") {
        report.add(&DEFERRED_CACHE, path, "deferred, and with a cache breakpoint");
    }
    let path = format!("{path}/input_schema");
    let Some((schema, root)) = tool.get("input_schema").and_then(|schema| Some((schema, schema.as_object()?))) else {
        report.add(&TOOL, path, "missing, or not an object");
        return None;
    };
    if root.get("type").is_none_or(|kind| kind != "object") {
        report.add(&ROOT_OBJECT, &path, "the root's type is not \"object\"");
    }
    for keyword in ["oneOf", "allOf", "anyOf"].into_iter().filter(|keyword| root.contains_key(*keyword)) {
        report.add(&ROOT_COMBINATOR, &path, format!("`{keyword}` at the root"));
    }
    for property in root.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
        let legal = |char: char| char.is_ascii_alphanumeric() || "_.-".contains(char);
        if property.is_empty() || property.chars().count() > LONGEST_NAME || !property.chars().all(legal) {
            report.add(&PROPERTY_NAME, format!("{path}/properties"), format!("property `{property}`"));
        }
    }
    let sound = local_refs(schema, &path, report) && compiles(&DRAFT, schema, Some(Draft::Draft202012), &path, report);
    sound.then_some(schema)
}

/// Checks the schema of a structured output.
pub(super) fn check_answer(schema: &Value, path: &str, report: &mut Report) {
    check_strict(schema, &nodes(schema, path), report);
}

fn check_strict(root: &Value, nodes: &[Node<'_>], report: &mut Report) {
    for node in nodes {
        for (keyword, _) in node.keywords().filter(|(keyword, _)| !KEYWORDS.contains(&keyword.as_str())) {
            report.add(&KEYWORD, &node.path, format!("`{keyword}` is not among the supported keywords"));
        }
        if node.is_object() && node.get("additionalProperties") != Some(&Value::Bool(false)) {
            report.add(&CLOSED, &node.path, "`additionalProperties` is not false");
        }
        if let Some(least) = node.get("minItems").filter(|least| **least != 0 && **least != 1) {
            report.add(&MIN_ITEMS, &node.path, format!("minItems is {least}"));
        }
        let mut values = node.get("enum").and_then(Value::as_array).into_iter().flatten();
        if let Some(value) = values.find(|value| value.is_object() || value.is_array()) {
            report.add(&ENUM, &node.path, format!("enum holds {value}"));
        }
        if let Some(format) = node.get("format").filter(|format| !FORMATS.iter().any(|known| *format == known)) {
            report.add(&FORMAT, &node.path, format!("format {format}"));
        }
        if let Some(odd) = node.get("pattern").and_then(Value::as_str).and_then(unsupported_pattern_part) {
            report.add(&PATTERN, &node.path, format!("the pattern has {odd}"));
        }
        if node.get("$ref").is_some() {
            if node.place == Place::Under("allOf") {
                report.add(&ALL_OF_REF, &node.path, "`$ref` in an `allOf`");
            }
            if is_cyclic(root, node.schema, |_| true) {
                report.add(&RECURSION, &node.path, "the reference leads back to itself");
            }
        }
    }
}

/// Returns the part of a regular expression that strict tools do not support.
fn unsupported_pattern_part(pattern: &str) -> Option<&'static str> {
    let mut chars = pattern.char_indices();
    let mut in_class = false;
    while let Some((at, char)) = chars.next() {
        let after = &pattern[at + char.len_utf8()..];
        match char {
            '\\' => match chars.next() {
                Some((_, '1'..='9' | 'k')) if !in_class => return Some("a backreference"),
                Some((_, 'b' | 'B')) if !in_class => return Some("a word boundary"),
                _ => {}
            },
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class && ["?=", "?!", "?<=", "?<!"].iter().any(|look| after.starts_with(look)) => {
                return Some("a lookaround");
            }
            _ => {}
        }
    }
    None
}

/// Whether a property's schema uses a union: itself, in its items, or in a schema that it refers to. Properties below
/// it are checked separately.
fn uses_union(root: &Value, property: &Value) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![property];
    while let Some(schema) = open.pop() {
        if schema.get("anyOf").is_some() || schema.get("type").is_some_and(Value::is_array) {
            return true;
        }
        if seen.insert(std::ptr::from_ref(schema)) {
            let target = schema.get("$ref").and_then(Value::as_str).and_then(|reference| resolve(root, reference));
            let all_of = schema.get("allOf").and_then(Value::as_array).into_iter().flatten();
            open.extend(schema.get("items").into_iter().chain(target).chain(all_of));
        }
    }
    false
}
