//! Gemini's `parametersJsonSchema`: the supported part of JSON Schema.

use serde_json::Value;

use super::common::json_schema;
use super::walk::{Place, is_cyclic, nodes};
use super::{Report, rules};

/// The list of supported JSON Schema keywords. It is documented at the field for answers; functions' parameters are
/// handled the same way.
const SUPPORTED: &str = "https://ai.google.dev/api/generate-content#GenerationConfig (`responseJsonSchema`), python-genai \
                         types.py GenerateContentConfig.response_json_schema";

rules! { ALL:
    ROOT = "gemini-json/root-object",
        "`parametersJsonSchema` describes an object",
        "python-genai types.py FunctionDeclaration.parameters_json_schema («The schema must describe an object»)";
    KEYWORD = "gemini-json/keyword",
        "only the listed keywords stand in a schema",
        SUPPORTED;
    ENUM = "gemini-json/enum-values",
        "enum values are strings or numbers",
        SUPPORTED;
    REF_ALONE = "gemini-json/ref-alone",
        "beside a `$ref` of a sub-schema stand only keywords that start with `$`",
        SUPPORTED;
    CYCLE = "gemini-json/cycle",
        "a schema contains itself only through properties that are not required",
        SUPPORTED;
}

const KEYWORDS: [&str; 21] = [
    "$id",
    "$defs",
    "$ref",
    "$anchor",
    "type",
    "format",
    "title",
    "description",
    "enum",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "anyOf",
    "oneOf",
    "properties",
    "additionalProperties",
    "required",
    "propertyOrdering",
];

/// Checks a `parametersJsonSchema`.
pub(super) fn check(schema: &Value, path: &str, report: &mut Report) {
    if schema.get("type").is_none_or(|kind| kind != "object") {
        report.add(&ROOT, path, "the root's type is not \"object\"");
    }
    if !json_schema(schema, path, report) {
        return;
    }
    for node in nodes(schema, path) {
        for (keyword, _) in node.keywords().filter(|(keyword, _)| !KEYWORDS.contains(&keyword.as_str())) {
            report.add(&KEYWORD, &node.path, format!("`{keyword}` is not among the supported keywords"));
        }
        let mut values = node.get("enum").and_then(Value::as_array).into_iter().flatten();
        if let Some(odd) = values.find(|value| !value.is_string() && !value.is_number()) {
            report.add(&ENUM, &node.path, format!("enum holds {odd}"));
        }
        if node.get("$ref").is_none() {
            continue;
        }
        if let Some((beside, _)) = node.keywords().find(|(keyword, _)| !keyword.starts_with('$')) {
            report.add(&REF_ALONE, &node.path, format!("`{beside}` beside `$ref`"));
        }
        if is_cyclic(schema, node.schema, |place| place != Place::Property { required: false }) {
            report.add(&CYCLE, &node.path, "the reference leads back to itself through required parts only");
        }
    }
}
