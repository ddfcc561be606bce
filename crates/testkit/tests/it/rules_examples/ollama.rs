use serde_json::{Value, json};

use super::{Example, Ollama, fields, object, schemas};

pub(super) fn ollama() -> Vec<Example> {
    let field = |rule, name: &str, value: Value| fields(Ollama, rule, json!({ format!("/0/{name}"): value }));
    let one = |rule, breaks: Value, mended: Value| {
        schemas(Ollama, false, rule, object(json!({ "a": breaks })), object(json!({ "a": mended })))
    };
    let inside = |property: Value| object(json!({ "b": { "anyOf": [property] } }));
    vec![
        field("ollama/tool", "type", json!("tool")),
        field("ollama/tool", "function", json!("look_up")),
        field("ollama/tool", "function/description", json!(1)),
        field("ollama/name", "function/name", json!("")),
        field("ollama/parameters", "function/parameters", json!(null)),
        field("ollama/parameters", "function/parameters/type", json!(["object", "null"])),
        field("ollama/required", "function/parameters/required", json!("a")),
        field("ollama/properties", "function/parameters/properties", json!([])),
        one("ollama/properties", json!(true), json!({})),
        one("ollama/properties", object(json!({ "b": true })), object(json!({ "b": {} }))),
        one("ollama/property-type", json!({ "type": { "name": "string" } }), json!({ "type": ["string", "null"] })),
        one("ollama/property-type", json!({ "Type": 1 }), json!({ "Type": "string" })),
        one("ollama/property-type", inside(json!({ "type": [1] })), inside(json!({ "type": "string" }))),
        one("ollama/property-description", json!({ "description": ["one"] }), json!({ "description": "one" })),
        one("ollama/enum", json!({ "enum": "x" }), json!({ "enum": ["x", 1, null] })),
        one("ollama/any-of", json!({ "anyOf": [true] }), json!({ "anyOf": [{}] })),
    ]
}
