//! What clients of MCP are listed.

use serde_json::json;

use super::*;

/// The portable form of a root, and the keywords that it loses.
fn root(schema: Value, expect: Value, lost: &[&str]) {
    let portable = Portable::new("t", &schema);
    assert_eq!(*portable.schema(), expect, "{schema:#}\n{:#}\n{:#?}", portable.schema(), portable.losses());
    let keywords: Vec<&str> = portable.losses().iter().map(|loss| loss.keyword.as_str()).collect();
    assert_eq!(keywords, lost, "{:#?}", portable.losses());
}

fn property(schema: Value, expect: Value, lost: &[&str]) {
    root(with(schema), with(expect), lost);
}

#[test]
fn sound_schema_is_listed_unchanged() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
        "properties": {"a": {"type": "string", "x-mcp-header": "A", "optional": true}}, "required": ["a"],
        "additionalProperties": false, "x-later": 1,
    });
    let mut expect = schema.clone();
    expect.as_object_mut().expect("object").remove("$schema");
    root(schema, expect, &[]);
    root(json!({}), json!({"type": "object", "properties": {}}), &[]);
    root(json!({"type": "object"}), json!({"type": "object", "properties": {}}), &[]);
}

#[test]
fn root_alternatives_of_required_are_described() {
    root(
        json!({
            "type": "object", "properties": {"route": {"type": "string"}, "file": {"type": "string"}},
            "anyOf": [{"required": ["route"]}, {"required": ["file"]}],
        }),
        json!({
            "type": "object", "properties": {"route": {"type": "string"}, "file": {"type": "string"}},
            "description": "Needs at least one of these: `route`; or `file`.",
        }),
        &["anyOf"],
    );
}

#[test]
fn root_tagged_union_becomes_one_object() {
    let form = |kind: &str, name: &str, types: &str| {
        json!({
            "type": "object", "properties": {"kind": {"type": "string", "const": kind}, "id": {"type": types}, name: {"type": "number"}},
            "required": ["kind", name], "additionalProperties": false,
        })
    };
    root(
        json!({"oneOf": [form("circle", "r", "string"), {"$ref": "#/$defs/Square"}, {"type": "null"}], "$defs": {"Square": form("square", "side", "integer")}}),
        json!({
            "type": "object",
            "properties": {
                "kind": {"type": "string", "enum": ["circle", "square"]}, "id": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "r": {"type": "number"}, "side": {"type": "number"},
            },
            "required": ["kind"], "additionalProperties": false,
            "description": "Needs exactly one of these: `kind` = \"circle\", `r`; or `kind` = \"square\", `side`.",
        }),
        &["oneOf"],
    );
}

#[test]
fn root_all_of_parts_are_merged() {
    root(
        json!({
            "allOf": [
                {"properties": {"a": {"type": "string"}}, "required": ["a"]},
                {"anyOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}, {"required": ["a"]}]},
            ],
            "not": {"required": ["c"]},
        }),
        json!({
            "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"],
            "description": "Needs at least one of these: `b`; or `a`. JSON Schema `not`: {\"required\":[\"c\"]}.",
        }),
        &["anyOf", "not"],
    );
    root(
        json!({"enum": [{"a": 1}]}),
        json!({"type": "object", "description": "One of: {\"a\":1}.", "properties": {}}),
        &["enum"],
    );
}

#[test]
fn alternatives_that_lead_back_to_the_root_end() {
    let schema = json!({"anyOf": [{"$ref": "#"}, {"properties": {"a": {"$ref": "#"}}}]});
    let portable = Portable::new("t", &schema);
    assert!(portable.schema()["properties"].is_object() && portable.schema().get("anyOf").is_none());
}

#[test]
fn tuple_items_become_items_of_any_place() {
    let number = || json!({"type": "number"});
    property(
        json!({"type": "array", "items": [number(), number()], "minItems": 2, "maxItems": 2}),
        json!({"type": "array", "items": number(), "minItems": 2, "maxItems": 2}),
        &["items"],
    );
    property(
        json!({"type": "array", "prefixItems": [{"type": "string", "title": "key"}, number()], "items": false}),
        json!({
            "type": "array", "maxItems": 2, "items": {"anyOf": [{"type": "string", "title": "key"}, number()]},
            "description": "Items in this order: key (string), then number.",
        }),
        &["prefixItems"],
    );
    property(
        json!({"type": "array", "prefixItems": [number()], "items": {"type": "boolean"}}),
        json!({"type": "array", "items": {"anyOf": [number(), {"type": "boolean"}]}, "description": "Items in this order: number."}),
        &["prefixItems"],
    );
}

#[test]
fn tuple_item_properties_are_changed_back() {
    let schema = with(
        json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "object", "properties": {"a b": {}}}]}),
    );
    let portable = Portable::new("t", &schema);
    let named = portable.schema().pointer("/properties/p/items/anyOf/1/properties").and_then(Value::as_object);
    let name = named.and_then(|all| all.keys().next()).expect("a name");
    assert_ne!(name, "a b");
    let mut call = json!({"p": ["x", {}]});
    call["p"][1][name.as_str()] = json!(1);
    assert_eq!(portable.restore(call), json!({"p": ["x", {"a b": 1}]}));
}

#[test]
fn deeper_combinations_become_any_of() {
    property(
        json!({"oneOf": [{"type": "string"}, {"type": "integer"}]}),
        json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        &["oneOf"],
    );
    property(json!({"allOf": [{"type": "string"}, {"minLength": 1}]}), json!({"type": "string", "minLength": 1}), &[]);
    property(json!(true), json!({}), &[]);
    property(json!({"type": "array", "items": true}), json!({"type": "array", "items": {}}), &[]);
    property(json!({"type": "array"}), json!({"type": "array", "items": {}}), &[]);
    property(
        json!({"type": "string", "not": {"const": "a"}}),
        json!({"type": "string", "description": "JSON Schema `not`: {\"const\":\"a\"}."}),
        &["not"],
    );
}
