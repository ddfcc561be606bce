//! The schemas of documents, as tools have them.

use serde_json::{Value, json};

use super::{document, import_of, schema};

#[test]
fn a_discriminator_selects_the_alternative() {
    let kind = |more: Value| json!({"type": "object", "properties": {"kind": more}});
    let text = json!({"type": "string"});
    let schemas = json!({"Cat": kind(text.clone()), "Dog": {"allOf": [kind(text)]},
        "Own": kind(json!({"enum": ["own"]})), "Other": {"type": "object"}});
    let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let schema = json!({"oneOf": [reference("Cat"), reference("Dog"), reference("Own"), reference("Other")],
        "discriminator": {"propertyName": "kind", "mapping": {"woof": "#/components/schemas/Dog", "bark": "Dog"}}});
    let body = json!({"content": {"application/json": {"schema": schema}}});
    let more = json!({"components": {"schemas": schemas}});
    let imported = import_of(&document(json!({"/": {"post": {"requestBody": body}}}), more), |_| {});
    let own = |name: &str, values: Value| {
        let values = json!({"properties": {"kind": {"enum": values}}, "required": ["kind"]});
        json!({"allOf": [{"$ref": format!("#/$defs/{name}")}, values]})
    };
    let branches = &super::schema(&imported.tools[0])["properties"]["body"]["anyOf"];
    assert_eq!((&branches[0], &branches[1]), (&own("Cat", json!(["Cat"])), &own("Dog", json!(["woof", "bark"]))));
    // What a branch says itself goes first, and one without the property has no values.
    assert_eq!(branches[2], json!({"$ref": "#/$defs/Own"}));
    assert_eq!(branches[3], json!({"type": "object"}));
}

#[test]
fn discriminator_defaults_take_any_value() {
    let kind = json!({"type": "object", "properties": {"kind": {"type": "string"}}});
    let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    for default in ["Dog", "#/components/schemas/Dog"] {
        let discriminator = json!({"propertyName": "kind", "mapping": {"woof": "Dog"}, "defaultMapping": default});
        let schema = json!({"oneOf": [reference("Cat"), reference("Dog")], "discriminator": discriminator});
        let body = json!({"content": {"application/json": {"schema": schema}}});
        let more = json!({"openapi": "3.2.0", "components": {"schemas": {"Cat": kind, "Dog": kind}}});
        let imported = import_of(&document(json!({"/": {"post": {"requestBody": body}}}), more), |_| {});
        let branches = &super::schema(&imported.tools[0])["properties"]["body"]["anyOf"];
        assert_eq!(branches[0]["allOf"][1]["properties"], json!({"kind": {"enum": ["Cat"]}}), "{default}");
        assert_eq!(branches[1], json!({"$ref": "#/$defs/Dog"}), "{default}");
    }
}

#[test]
fn openapi_3_0_schemas_become_2020_12() {
    let check = |schema: Value, expect: Value| {
        let body = json!({"content": {"application/json": {"schema": schema}}});
        let imported = import_of(&document(json!({"/": {"post": {"requestBody": body}}}), json!({})), |_| {});
        assert_eq!(super::schema(&imported.tools[0])["properties"]["body"], expect, "{:?}", imported.refused);
    };
    check(
        json!({"type": "string", "nullable": true, "enum": ["a"]}),
        json!({"type": ["string", "null"], "enum": ["a", null]}),
    );
    check(
        json!({"type": "number", "minimum": 1, "exclusiveMinimum": true, "maximum": 5, "exclusiveMaximum": false}),
        json!({"type": "number", "exclusiveMinimum": 1, "maximum": 5}),
    );
    check(
        json!({"nullable": true, "allOf": [{"type": "object"}]}),
        json!({"anyOf": [{"allOf": [{"type": "object"}]}, {"type": "null"}]}),
    );
    check(
        json!({"type": "object", "required": ["id", "n"], "x-y": 1, "discriminator": {}, "properties": {
            "id": {"type": "string", "readOnly": true}, "n": {"type": "string", "example": "e"}}}),
        json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "string", "examples": ["e"]}}}),
    );
    check(json!({"type": "file", "format": "f"}), json!({"format": "f"}));
    check(
        json!({"oneOf": [{"type": "object"}, {"type": "object"}], "discriminator": {"propertyName": "t"}}),
        json!({"anyOf": [{"type": "object"}, {"type": "object"}]}),
    );
}

/// As FastAPI and pydantic write a parameter or property of an enumeration.
#[test]
fn siblings_of_references_hold_since_3_1() {
    let check = |version: &str, schema: Value, expect: Value| {
        let schemas = json!({
            "Color": {"type": "string", "title": "Color", "enum": ["red", "blue"]},
            "Id": {"type": "string", "maxLength": 9},
            "Pet": {"type": "object", "properties": {"id": {"type": "string", "readOnly": true}, "n": {}}},
        });
        let more = json!({"openapi": version, "components": {"schemas": schemas}});
        let body = json!({"content": {"application/json": {"schema": schema}}});
        let imported = import_of(&document(json!({"/": {"post": {"requestBody": body}}}), more), |_| {});
        assert_eq!(super::schema(&imported.tools[0])["properties"]["body"], expect, "{:?}", imported.refused);
    };
    let beside = |name: &str, more: Value| {
        let mut schema = json!({"$ref": format!("#/components/schemas/{name}")});
        schema.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        schema
    };
    let color = json!({"type": "string", "title": "Color", "enum": ["red", "blue"]});
    let mut reported = color.clone();
    (reported["default"], reported["description"]) = (json!("red"), json!("Which."));
    let words = json!({"default": "red", "description": "Which."});
    check("3.1.0", beside("Color", words.clone()), reported);
    check("3.0.3", beside("Color", words), color.clone());
    check("3.1.0", beside("Id", json!({"minLength": 2})), json!({"type": "string", "maxLength": 9, "minLength": 2}));
    check(
        "3.1.0",
        beside("Id", json!({"maxLength": 4, "title": "Short"})),
        json!({"allOf": [{"type": "string", "maxLength": 9}], "maxLength": 4, "title": "Short"}),
    );
    check("3.1.0", beside("Color", json!({"allOf": [{"const": "red"}]})), json!({"allOf": [color, {"const": "red"}]}));
    check(
        "3.1.0",
        beside("Pet", json!({"required": ["id", "n"], "description": "Whose."})),
        json!({"$ref": "#/$defs/Pet", "required": ["n"], "description": "Whose."}),
    );
}

#[test]
fn read_only_members_are_never_required() {
    let check = |schema: Value, expect: Value| {
        let base = json!({"type": "object", "properties": {"id": {"type": "string", "readOnly": true}, "n": {}}});
        let more = json!({"components": {"schemas": {"Base": base, "Need": {"required": ["id", "n"]}}}});
        let body = json!({"content": {"application/json": {"schema": schema}}});
        let imported = import_of(&document(json!({"/": {"post": {"requestBody": body}}}), more), |_| {});
        let whole = super::schema(&imported.tools[0]);
        assert_eq!(whole["properties"]["body"], expect);
    };
    let base = || json!({"$ref": "#/components/schemas/Base"});
    let kept = || json!({"$ref": "#/$defs/Base"});
    check(json!({"allOf": [base()], "required": ["id", "n"]}), json!({"allOf": [kept()], "required": ["n"]}));
    check(json!({"allOf": [base(), {"required": ["id", "n"]}]}), json!({"allOf": [kept(), {"required": ["n"]}]}));
    check(
        json!({"allOf": [{"$ref": "#/components/schemas/Need"}, {"allOf": [base()]}]}),
        json!({"allOf": [{"required": ["n"]}, {"allOf": [kept()]}]}),
    );
    let own = json!({"type": "object", "properties": {"id": {"readOnly": true}, "n": {}}});
    let mut whole = own.clone();
    whole["allOf"] = json!([{"allOf": [{"required": ["id"]}]}, {"required": ["n"]}]);
    check(whole, json!({"type": "object", "properties": {"n": {}}, "allOf": [{"allOf": [{}]}, {"required": ["n"]}]}));
    // What is inside of a value is another's.
    check(
        json!({"properties": {"id": {"readOnly": true}, "sub": {"required": ["id"], "properties": {"id": {}}}}}),
        json!({"properties": {"sub": {"required": ["id"], "properties": {"id": {}}}}}),
    );
}

#[test]
fn hidden_requirements_are_dropped_in_copies() {
    let check = |schema: Value, expect: Value, definitions: &[&str]| {
        let text = || json!({"type": "string"});
        let base = json!({"type": "object", "properties": {"id": {"type": "string", "readOnly": true}, "n": {}}});
        let schemas = json!({
            "Base": base,
            "Extra": {"properties": {"x": text()}, "required": ["id", "x"]},
            "Deep": {"allOf": [{"$ref": "#/components/schemas/Extra"}], "title": "Deep"},
            "Other": {"properties": {"y": text()}, "required": ["y"]},
            "Round": {"allOf": [{"$ref": "#/components/schemas/Round"}], "required": ["id"]},
        });
        let body = json!({"content": {"application/json": {"schema": schema}}});
        let more = json!({"components": {"schemas": schemas}});
        let imported = import_of(&document(json!({"/": {"post": {"requestBody": body}}}), more), |_| {});
        let whole = super::schema(&imported.tools[0]);
        assert_eq!(whole["properties"]["body"], expect);
        let names: Vec<&String> = whole["$defs"].as_object().into_iter().flat_map(|defs| defs.keys()).collect();
        assert_eq!(names, definitions);
    };
    let of = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let kept = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
    let extra = || json!({"properties": {"x": {"type": "string"}}, "required": ["x"]});
    check(json!({"allOf": [of("Base"), of("Extra")]}), json!({"allOf": [kept("Base"), extra()]}), &["Base"]);
    check(
        json!({"allOf": [of("Deep"), of("Base")]}),
        json!({"allOf": [{"allOf": [extra()], "title": "Deep"}, kept("Base")]}),
        &["Base"],
    );
    check(
        json!({"allOf": [of("Base"), of("Other")]}),
        json!({"allOf": [kept("Base"), kept("Other")]}),
        &["Base", "Other"],
    );
    // By itself it asks for what it says.
    check(json!({"properties": {"e": of("Extra")}}), json!({"properties": {"e": kept("Extra")}}), &["Extra"]);
    let paths = json!({"/": {"post": {"requestBody": {"content": {"application/json": {"schema":
        {"allOf": [of("Base"), of("Round")]}}}}}}});
    let schemas = json!({"Base": {"properties": {"id": {"readOnly": true}}},
        "Round": {"allOf": [of("Round")], "required": ["id"]}});
    let imported = import_of(&document(paths, json!({"components": {"schemas": schemas}})), |_| {});
    assert_eq!(imported.tools.len() + imported.refused.len(), 1);
}

#[test]
fn references_become_definitions_and_cycles_stay_cycles() {
    let node = json!({"type": "object", "properties": {
        "next": {"$ref": "#/components/schemas/Node"}, "leaf": {"$ref": "#/components/schemas/Leaf"}}});
    let components =
        json!({"schemas": {"Node": node, "Leaf": {"type": "string"}, "Loop": {"$ref": "#/components/schemas/Loop"}}});
    let body = |name: &str| json!({"requestBody": {"content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}}}});
    let paths = json!({"/a": {"post": body("Node")}, "/b": {"post": body("Loop")}, "/c": {"post": body("None")}});
    let imported = import_of(&document(paths, json!({"components": components})), |_| {});
    assert_eq!(imported.tools.len(), 1);
    assert_eq!(
        schema(&imported.tools[0]),
        &json!({
            "type": "object",
            "properties": {"body": {"$ref": "#/$defs/Node"}},
            "additionalProperties": false,
            "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "leaf": {"type": "string"}}}},
        })
    );
    let reasons: Vec<&str> = imported.refused.iter().map(|refused| refused.reason.as_str()).collect();
    assert!(reasons[0].contains("circle") && reasons[1].contains("names nothing"), "{reasons:?}");
}
