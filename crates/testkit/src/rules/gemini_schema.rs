//! Gemini's `parameters`: the `Schema` message, a subset of OpenAPI 3.0, parsed by its field types.

use serde_json::{Map, Value};

use super::walk::escape;
use super::{Report, rules};

/// The documentation of the message in the Gemini API.
const SCHEMA: &str = "https://ai.google.dev/api/caching#Schema, \
                      https://docs.cloud.google.com/nodejs/docs/reference/generativelanguage/latest/generativelanguage/\
                      protos.google.ai.generativelanguage.v1beta.ischema";

rules! { ALL:
    FIELD = "gemini-schema/field",
        "a schema has the fields of Schema and no others: no `$ref`, `$defs`, `const`, `oneOf`, `additionalProperties`",
        SCHEMA;
    VALUE = "gemini-schema/value",
        "a field's value has the field's type",
        SCHEMA;
    TYPE = "gemini-schema/type",
        "`type` is STRING, NUMBER, INTEGER, BOOLEAN, ARRAY, OBJECT or NULL in either case, and missing only beside `anyOf`",
        "https://ai.google.dev/api/caching#Type; 400 «Invalid value at '….type'» \
         (google-gemini/deprecated-generative-ai-js#320)";
    ROOT = "gemini-schema/root-object",
        "`parameters` itself is of type OBJECT",
        "400 «functionDeclaration parameters schema should be of type OBJECT» (diegosouzapw/OmniRoute#3360)";
    ENUM = "gemini-schema/enum",
        "`enum` stands with type STRING and holds at least one string, none empty",
        "content.proto Schema.enum; 400 «enum: only allowed for STRING type» (directus/directus#27100), «enum[1]: cannot \
         be empty» (Bobsilvio/ha-claude#32), «enum: should be non-empty for STRING type with enum format» \
         (elastic/kibana#286302)";
    ITEMS = "gemini-schema/items",
        "type ARRAY has `items`, and no other type has",
        "400 «items: missing field» (cline/cline#7339), «items: field predicate failed: $type == Type.ARRAY» \
         (anomalyco/opencode#49392)";
    PROPERTIES = "gemini-schema/properties",
        "only type OBJECT has `properties` and `required`; `parameters` itself has at least one property, or is left out",
        "400 «properties: only allowed for OBJECT type» (anomalyco/opencode#11888), «properties: should be non-empty for \
         OBJECT type» (agno-agi/agno#2112); python-genai types.py FunctionDeclaration.parameters («can be left unset»)";
    REQUIRED = "gemini-schema/required",
        "`required` and `propertyOrdering` name properties of the same schema",
        "https://spec.openapis.org/oas/v3.0.3#schema-object; 400 «required[0]: property is not defined» \
         (iBUHub/AIStudioToAPI#154)";
    FORMAT = "gemini-schema/format",
        "`format` is float or double for NUMBER, int32 or int64 for INTEGER, enum or date-time for STRING",
        "content.proto Schema.format; 400 «only 'enum' and 'date-time' are supported for STRING type», which adk-python \
         keeps to";
    ANY_OF = "gemini-schema/any-of-alone",
        "nothing stands beside `anyOf`",
        "400 «When using any_of, it must be the only field set»";
    PARAMETER = "gemini-schema/parameter-name",
        "the root's properties start with a letter or `_`, and have 1 to 64 of a-z, A-Z, 0-9 and `_`",
        "python-genai types.py FunctionDeclaration.parameters";
}

/// The type of a field of the message, in the JSON form of protocol buffers.
enum Field {
    Text,
    Flag,
    Number,
    /// An int64: a whole number, or a string that holds one.
    Count,
    Texts,
    Any,
    Schema,
    Schemas,
    Map,
}

fn field(name: &str) -> Option<Field> {
    Some(match name {
        "type" | "format" | "title" | "description" | "pattern" => Field::Text,
        "nullable" => Field::Flag,
        "minimum" | "maximum" => Field::Number,
        "minItems" | "maxItems" | "minProperties" | "maxProperties" | "minLength" | "maxLength" => Field::Count,
        "enum" | "required" | "propertyOrdering" => Field::Texts,
        "example" | "default" => Field::Any,
        "items" => Field::Schema,
        "anyOf" => Field::Schemas,
        "properties" => Field::Map,
        _ => return None,
    })
}

impl Field {
    fn takes(&self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Flag => value.is_boolean(),
            Self::Number => value.is_number(),
            Self::Count => value.is_i64() || value.as_str().is_some_and(|text| text.parse::<i64>().is_ok()),
            Self::Texts => value.as_array().is_some_and(|values| values.iter().all(Value::is_string)),
            Self::Any => true,
            Self::Schema => value.is_object(),
            Self::Schemas => value.as_array().is_some_and(|values| values.iter().all(Value::is_object)),
            Self::Map => value.as_object().is_some_and(|map| map.values().all(Value::is_object)),
        }
    }
}

const TYPES: [&str; 7] = ["STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"];
const FORMATS: [(&str, [&str; 2]); 3] =
    [("NUMBER", ["float", "double"]), ("INTEGER", ["int32", "int64"]), ("STRING", ["enum", "date-time"])];
const LONGEST_PARAMETER: usize = 64;

/// Returns the value of a field that is set. In the JSON form of protocol buffers `null` leaves a field unset
/// (<https://protobuf.dev/programming-guides/json/>).
pub(super) fn set<'a>(message: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    message.get(field).filter(|value| !value.is_null())
}

/// Returns the properties of a schema.
fn properties(schema: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    set(schema, "properties").and_then(Value::as_object).into_iter().flatten()
}

/// Checks the `parameters` of a declaration.
pub(super) fn check(root: &Value, path: &str, report: &mut Report) {
    let Some(schema) = root.as_object() else {
        return report.add(&VALUE, path, "not an object");
    };
    if kind(schema).as_deref() != Some("OBJECT") {
        report.add(&ROOT, path, "the root's type is not OBJECT");
    } else if properties(schema).next().is_none() {
        report.add(&PROPERTIES, path, "no parameters, but not left out");
    }
    for (name, _) in properties(schema) {
        let starts = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
        let legal = name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
        if !starts || !legal || name.len() > LONGEST_PARAMETER {
            report.add(&PARAMETER, format!("{path}/properties"), format!("parameter `{name}`"));
        }
    }
    let mut open = vec![(path.to_owned(), schema)];
    while let Some((path, schema)) = open.pop() {
        check_fields(schema, &path, report);
        check_node(schema, &path, report);
        let single = set(schema, "items").map(|child| (format!("{path}/items"), child));
        let listed = set(schema, "anyOf").and_then(Value::as_array).into_iter().flatten().enumerate();
        let listed = listed.map(|(index, child)| (format!("{path}/anyOf/{index}"), child));
        let mapped = properties(schema).map(|(name, child)| (format!("{path}/properties/{}", escape(name)), child));
        open.extend(
            single.into_iter().chain(listed).chain(mapped).filter_map(|(at, child)| Some((at, child.as_object()?))),
        );
    }
}

fn check_fields(schema: &Map<String, Value>, path: &str, report: &mut Report) {
    for (name, value) in schema {
        match field(name) {
            None => report.add(&FIELD, path, format!("unknown field `{name}`")),
            // A type that is not a string is reported as a type.
            Some(field) if name != "type" && !value.is_null() && !field.takes(value) => {
                report.add(&VALUE, format!("{path}/{name}"), format!("{value} is not a value of `{name}`"));
            }
            Some(_) => {}
        }
    }
    if set(schema, "anyOf").is_some()
        && let Some(beside) = schema.keys().find(|name| *name != "anyOf" && set(schema, name).is_some())
    {
        report.add(&ANY_OF, path, format!("`{beside}` beside `anyOf`"));
    }
}

/// Returns the schema's type in capitals.
fn kind(schema: &Map<String, Value>) -> Option<String> {
    set(schema, "type").and_then(Value::as_str).map(str::to_ascii_uppercase)
}

fn check_node(schema: &Map<String, Value>, path: &str, report: &mut Report) {
    let kind = kind(schema);
    let kind = kind.as_deref();
    match kind {
        Some(kind) if TYPES.contains(&kind) => {}
        None if set(schema, "type").is_none() && set(schema, "anyOf").is_some() => {}
        // Without a type, the type's keywords cannot be checked.
        _ => return report.add(&TYPE, path, "no type, or an unknown one"),
    }
    if let Some(values) = set(schema, "enum") {
        let sound =
            values.as_array().is_some_and(|values| !values.is_empty() && values.iter().all(|value| value != ""));
        if kind != Some("STRING") || !sound {
            report.add(&ENUM, path, "enum with another type, empty, or with an empty string");
        }
    }
    if set(schema, "items").is_some() != (kind == Some("ARRAY")) {
        report.add(&ITEMS, path, "`items` and type ARRAY do not go together");
    }
    if kind != Some("OBJECT")
        && let Some(field) = ["properties", "required"].into_iter().find(|field| set(schema, field).is_some())
    {
        return report.add(&PROPERTIES, path, format!("`{field}` on another type than OBJECT"));
    }
    for field in ["required", "propertyOrdering"] {
        let mut names = set(schema, field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        if let Some(name) = names.find(|name| !properties(schema).any(|(known, _)| known == name)) {
            report.add(&REQUIRED, format!("{path}/{field}"), format!("`{name}` is no property"));
        }
    }
    let format = set(schema, "format").and_then(Value::as_str);
    let known = FORMATS.iter().find(|(name, _)| Some(*name) == kind).map(|(_, formats)| formats);
    if let Some(format) = format.filter(|format| !known.is_some_and(|formats| formats.contains(format))) {
        report.add(&FORMAT, path, format!("format `{format}`"));
    }
}
