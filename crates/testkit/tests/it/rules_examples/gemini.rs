use serde_json::{Value, json};

use super::{Example, Gemini, fields, object, schemas, with_defs};

pub(super) fn gemini() -> Vec<Example> {
    let at = "/0/functionDeclarations/0";
    let field = |rule, name: &str, value: Value| fields(Gemini, rule, json!({ format!("{at}/{name}"): value }));
    vec![
        field("gemini/declaration", "strict", json!(true)),
        fields(Gemini, "gemini/declaration", json!({ "/0/functionDeclarations": {} })),
        field("gemini/name", "name", json!("look up")),
        field("gemini/name", "name", json!("2look")),
        field("gemini/name", "name", json!("-look")),
        field("gemini/name", "name", json!("n".repeat(65))),
        field("gemini/description", "description", json!("")),
        field("gemini/description", "description", json!(null)),
        field("gemini/one-schema", "parameters", object(json!({ "a": { "type": "STRING" } }))),
    ]
}

pub(super) fn gemini_schema() -> Vec<Example> {
    let declared = |schema: Value| json!([{ "functionDeclarations": [{ "name": "t", "description": "d", "parameters": schema }] }]);
    let whole =
        |rule, breaks, mended| Example { api: Gemini, rule, breaks: declared(breaks), mended: declared(mended) };
    let of = |schema: Value| json!({ "type": "OBJECT", "properties": { "a": schema } });
    let one = |rule, breaks: Value, mended: Value| whole(rule, of(breaks), of(mended));
    let string = json!({ "type": "STRING" });
    let mut found: Vec<Example> = Vec::new();
    for keyword in
        ["$ref", "$defs", "const", "oneOf", "allOf", "additionalProperties", "exclusiveMinimum", "$schema", "examples"]
    {
        found.push(one("gemini-schema/field", json!({ "type": "STRING", keyword: {} }), string.clone()));
    }
    for (field, bad, good) in [
        ("description", json!(1), json!("one")),
        ("nullable", json!("true"), json!(true)),
        ("pattern", json!({}), json!(null)),
        ("maxLength", json!(1.5), json!("2")),
        ("minLength", json!([1]), json!(1)),
    ] {
        found.push(one(
            "gemini-schema/value",
            json!({ "type": "STRING", field: bad }),
            json!({ "type": "STRING", field: good }),
        ));
    }
    for (bad, good) in [("STRING", "date"), ("NUMBER", "int32"), ("INTEGER", "double"), ("BOOLEAN", "enum")]
        .iter()
        .zip(["date-time", "float", "int64", ""])
    {
        let mended = if good.is_empty() { json!({ "type": bad.0 }) } else { json!({ "type": bad.0, "format": good }) };
        found.push(one("gemini-schema/format", json!({ "type": bad.0, "format": bad.1 }), mended));
    }
    let enum_of = |kind: &str, values: Value| json!({ "type": kind, "enum": values });
    let listing = |field: &str, name: &str| json!({ "type": "OBJECT", "properties": { "a": string }, field: [name] });
    let any_of = json!({ "anyOf": [string, { "type": "integer" }] });
    found.extend([
        one(
            "gemini-schema/value",
            json!({ "type": "ARRAY", "items": true }),
            json!({ "type": "ARRAY", "items": string }),
        ),
        one("gemini-schema/value", enum_of("STRING", json!([1])), enum_of("STRING", json!(["1"]))),
        one("gemini-schema/type", json!({ "type": "dict" }), json!({ "type": "string" })),
        one("gemini-schema/type", json!({ "type": ["STRING", "NULL"] }), json!({ "type": "STRING", "nullable": true })),
        one("gemini-schema/type", json!({ "description": "anything" }), any_of.clone()),
        whole("gemini-schema/root-object", string.clone(), of(string.clone())),
        one("gemini-schema/enum", enum_of("INTEGER", json!(["1"])), enum_of("STRING", json!(["1"]))),
        one("gemini-schema/enum", enum_of("STRING", json!(["x", ""])), enum_of("STRING", json!(["x"]))),
        one("gemini-schema/enum", enum_of("STRING", json!([])), string.clone()),
        one("gemini-schema/items", json!({ "type": "ARRAY" }), json!({ "type": "ARRAY", "items": string })),
        one("gemini-schema/items", json!({ "type": "STRING", "items": string }), string.clone()),
        whole("gemini-schema/properties", json!({ "type": "OBJECT" }), of(string.clone())),
        whole("gemini-schema/properties", json!({ "type": "OBJECT", "properties": {} }), Value::Null),
        one("gemini-schema/properties", json!({ "type": "STRING", "properties": {} }), json!({ "type": "OBJECT" })),
        one("gemini-schema/properties", json!({ "type": "STRING", "required": [] }), string.clone()),
        whole("gemini-schema/required", listing("required", "b"), listing("required", "a")),
        whole("gemini-schema/required", listing("propertyOrdering", "b"), listing("propertyOrdering", "a")),
        one("gemini-schema/any-of-alone", json!({ "description": "either", "anyOf": any_of["anyOf"] }), any_of),
        whole(
            "gemini-schema/parameter-name",
            json!({ "type": "OBJECT", "properties": { "max-results": string } }),
            json!({ "type": "OBJECT", "properties": { "max_results": string } }),
        ),
        whole(
            "gemini-schema/parameter-name",
            json!({ "type": "OBJECT", "properties": { "2nd": string } }),
            json!({ "type": "OBJECT", "properties": { "_2nd": string } }),
        ),
    ]);
    found
}

pub(super) fn gemini_json() -> Vec<Example> {
    let whole = |rule, breaks, mended| schemas(Gemini, false, rule, breaks, mended);
    let one = |rule, breaks: Value, mended: Value| {
        whole(rule, object(json!({ "a": breaks })), object(json!({ "a": mended })))
    };
    let string = json!({ "type": "string" });
    let mut found: Vec<Example> = Vec::new();
    let unsupported = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "default": "x", "const": "x", "pattern": "x", "minLength": 1,
        "exclusiveMinimum": 1, "uniqueItems": true, "allOf": [string], "not": { "type": "null" }, "patternProperties": {}
    });
    for (keyword, value) in unsupported.as_object().unwrap() {
        found.push(one("gemini-json/keyword", json!({ "type": "string", keyword: value }), string.clone()));
    }
    let list = |required: &[&str]| {
        let node =
            json!({ "type": "object", "properties": { "next": { "$ref": "#/$defs/list" } }, "required": required });
        with_defs(object(json!({ "a": { "$ref": "#/$defs/list" } })), json!({ "list": node }))
    };
    let referring = |keyword: &str, value: &str| {
        with_defs(object(json!({ "a": { "$ref": "#/$defs/s", keyword: value } })), json!({ "s": string }))
    };
    found.extend([
        whole("gemini-json/root-object", string.clone(), object(json!({}))),
        whole("gemini-json/root-object", json!({ "properties": {} }), object(json!({}))),
        one("gemini-json/enum-values", json!({ "enum": [true] }), json!({ "enum": ["x", 1] })),
        whole("gemini-json/ref-alone", referring("description", "one"), referring("$anchor", "one")),
        whole("gemini-json/cycle", list(&["next"]), list(&[])),
        whole("gemini-json/cycle", json!({ "type": "object", "properties": { "a": { "type": "array", "items": { "$ref": "#" } } }, "required": ["a"] }),
              json!({ "type": "object", "properties": { "a": { "type": "array", "items": { "$ref": "#" } } } })),
    ]);
    found
}
