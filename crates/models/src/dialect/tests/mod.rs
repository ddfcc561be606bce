//! Tests: the translation of schemas, dialect by dialect.

mod properties;

use serde_json::{Map, json};

use super::*;

fn tool(name: &str, parameters: Value) -> RequestTool {
    RequestTool { name: name.into(), parameters, ..RequestTool::default() }
}

fn one(dialect: Dialect, strict: bool, parameters: &Value) -> Toolset {
    translate(dialect, &[tool("t", parameters.clone())], strict)
}

/// The view that is not strict.
fn check(dialect: Dialect, parameters: Value, expect: Value) {
    let set = one(dialect, false, &parameters);
    assert_eq!(set.quarantined, [], "{parameters}");
    assert_eq!(set.tools[0].parameters, expect, "{dialect:?} {parameters}\n{:#?}", set.losses);
}

/// Checks the strict view, or why there is none.
fn strict(dialect: Dialect, parameters: Value, expect: Result<Value, &str>) {
    let set = one(dialect, true, &parameters);
    let tool = &set.tools[0];
    match expect {
        Ok(view) => assert_eq!((tool.strict, &tool.parameters), (true, &view), "{parameters}\n{:#?}", set.losses),
        Err(why) => {
            let reason = set.losses.iter().find(|loss| loss.keyword == "strict").map_or("", |loss| loss.note.as_str());
            assert!(!tool.strict && reason.contains(why), "{parameters}: {reason}");
        }
    }
}

fn with(property: Value) -> Value {
    json!({"type": "object", "properties": {"p": property}})
}

#[test]
fn a_valid_schema_is_shown_unchanged() {
    let schema = json!({
        "type": "object", "description": "d", "properties": {
            "a": {"type": "string", "title": "A", "default": "x", "enum": ["x", "y"], "minLength": 1},
            "b": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]},
            "c": {"type": "array", "items": {"$ref": "#/$defs/C"}, "uniqueItems": true},
            "d": {"if": {"type": "string"}, "then": {"pattern": "^a"}, "not": {"const": "b"}},
        },
        "required": ["a"], "additionalProperties": false, "$defs": {"C": {"type": "object", "patternProperties": {"^x": {}}}},
    });
    check(Dialect::OpenAi, schema.clone(), schema.clone());
    check(Dialect::Anthropic, schema.clone(), schema);
}

#[test]
fn malformed_schemas_are_repaired() {
    let openai = |property: Value, expect: Value| check(Dialect::OpenAi, with(property), with(expect));
    openai(
        json!({"type": "dict", "properties": {"x": {"type": "float"}}}),
        json!({"type": "object", "properties": {"x": {"type": "number"}}}),
    );
    openai(json!({"type": "tuple"}), json!({"type": "array", "items": {}}));
    openai(json!({"type": "any", "description": 3}), json!({"description": "3"}));
    openai(
        json!({"type": "string", "minLength": "2", "maxLength": -1, "pattern": "(", "title": null}),
        json!({"type": "string", "minLength": 2}),
    );
    openai(
        json!({"type": "number", "minimum": 1, "exclusiveMinimum": true}),
        json!({"type": "number", "exclusiveMinimum": 1}),
    );
    openai(
        json!({"items": [{"type": "string"}], "additionalItems": false}),
        json!({"prefixItems": [{"type": "string"}], "items": false}),
    );
    openai(
        json!({"type": "array", "prefixItems": [{"type": "string"}]}),
        json!({"type": "array", "prefixItems": [{"type": "string"}], "items": {}}),
    );
    openai(
        json!({"properties": [{"name": "x", "type": "string"}]}),
        json!({"properties": {"x": {"type": "string"}}}).clone(),
    );
    openai(json!(true), json!({}));
    openai(json!("Integer"), json!({"type": "integer"}));
    openai(json!("how many"), json!({"description": "how many"}));
    openai(json!(null), json!({}));
    openai(json!({"$ref": "https://example.com/x.json", "description": "d"}), json!({"description": "d"}));
    openai(json!({"$ref": "#/$defs/loop"}), json!({}));
    openai(json!({"anyOf": null, "enum": [], "required": 3, "nullable": true, "x-y": 1}), json!({}));
    check(
        Dialect::OpenAi,
        json!({"properties": {"a": {"type": "string", "required": true}, "b": {}, "c": false}, "required": "b"}),
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a", "b"]}),
    );
    check(
        Dialect::OpenAi,
        json!({"q": {"type": "string"}}),
        json!({"type": "object", "properties": {"q": {"type": "string"}}}),
    );
    for open in [json!(null), json!({}), json!([]), json!(true), json!({"type": "object"}), json!({"$schema": "x"})] {
        check(Dialect::OpenAi, open, json!({"type": "object", "properties": {}}));
    }
}

#[test]
fn roots_become_objects() {
    let branches = json!([{"properties": {"a": {"$ref": "#"}}}, {"type": "object"}]);
    let inner = json!({"anyOf": [{"properties": {"a": {"$ref": "#/$defs/root"}}}, {"type": "object"}]});
    let wrapped = json!({
        "type": "object", "properties": {"input": inner}, "required": ["input"], "additionalProperties": false,
        "$defs": {"root": inner},
    });
    check(Dialect::Anthropic, json!({"anyOf": branches}), wrapped);
    let refs = json!({"$ref": "#/definitions/A", "definitions": {
        "A": {"type": "object", "properties": {"next": {"$ref": "#/definitions/A"}, "all": {"$ref": "#"}, "b": {"$ref": "#b"}}},
        "B": {"$id": "#b", "type": "string"},
    }});
    let properties = json!({"next": {"$ref": "#/$defs/A"}, "all": {"$ref": "#"}, "b": {"$ref": "#/$defs/b"}});
    let expect = json!({"type": "object", "properties": properties, "$defs": {
        "A": {"type": "object", "properties": properties}, "b": {"type": "string"},
    }});
    check(Dialect::Anthropic, refs, expect);
    check(Dialect::OpenAi, json!({"$ref": "#"}), json!({"type": "object", "properties": {}}));
    check(Dialect::OpenAi, json!({"type": ["object", "null"]}), json!({"type": "object", "properties": {}}));
}

#[test]
fn impossible_tools_and_names_are_quarantined() {
    let tools = [
        tool("a", json!({"type": "string"})),
        tool("b", json!(false)),
        tool("c", json!("string")),
        tool("d", json!({"type": "object", "properties": {}})),
        tool("d", json!({})),
        tool("not legal", json!({})),
        tool("", json!({})),
    ];
    for dialect in Dialect::ALL {
        let set = translate(dialect, &tools, true);
        let names: Vec<_> = set.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["d"]);
        let reasons: Vec<_> = set.quarantined.iter().map(|left| left.reason.as_str()).collect();
        let expect = ["takes string", "no arguments", "no schema", "before it", "name", "name"];
        assert!(
            reasons.len() == 6 && reasons.iter().zip(expect).all(|(reason, part)| reason.contains(part)),
            "{reasons:?}"
        );
    }
}

#[test]
fn patterns_that_openai_refuses_are_named() {
    // Figma's pattern, which a look at the schema accepts, and one among keywords to correct.
    let figma = "^(?!undefined$|null$)";
    for beside in [json!({}), json!({"items": "string"})] {
        let mut property = json!({"type": ["string", "array"], "items": {}, "description": "A key.", "pattern": figma});
        property.as_object_mut().unwrap().extend(beside.as_object().unwrap().clone());
        let view = one(Dialect::OpenAi, false, &with(property));
        let shown = &view.tools[0].parameters["properties"]["p"];
        assert_eq!(
            (shown.get("pattern"), &shown["description"]),
            (None, &json!(format!("A key. Must match {figma}.")))
        );
        assert!(view.losses.iter().any(|loss| loss.keyword == "pattern"), "{:?}", view.losses);
    }
    let named = with(json!({"type": "object", "patternProperties": {"(?<=a)b": {"type": "string"}, "^a$": {}}}));
    let shown = &one(Dialect::OpenAi, false, &named).tools[0].parameters["properties"]["p"];
    assert_eq!(shown.get("patternProperties"), None, "{shown}");
    let kept = with(json!({"type": "string", "pattern": "^(?:a|b)+$"}));
    check(Dialect::OpenAi, kept.clone(), kept);
    let closed = |pattern: &str| {
        json!({"type": "object", "properties": {"p": {"type": "string", "pattern": pattern}}, "required": ["p"],
            "additionalProperties": false})
    };
    strict(Dialect::OpenAi, closed("^a+$"), Ok(closed("^a+$")));
    strict(Dialect::OpenAi, closed(figma), Err("strict tools have no `pattern` of"));
    check(Dialect::Anthropic, closed(figma), closed(figma));
}

#[test]
fn strict_openai_view_is_equal_or_absent() {
    let closed = |property: Value| json!({"type": "object", "properties": {"p": property}, "required": ["p"], "additionalProperties": false});
    let ok = |property: Value, expect: Value| strict(Dialect::OpenAi, with(property), Ok(closed(expect)));
    ok(json!({"type": "string", "enum": ["a"]}), json!({"type": ["string", "null"], "enum": ["a", null]}));
    ok(
        json!({"type": "string", "default": "a"}),
        json!({"type": ["string", "null"], "description": "Default: \"a\"."}),
    );
    ok(json!({"enum": [1, 2]}), json!({"type": ["integer", "null"], "enum": [1, 2, null]}));
    ok(json!({"const": "a"}), json!({"anyOf": [{"type": "string", "const": "a"}, {"type": "null"}]}));
    ok(
        json!({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null, "title": "P"}),
        json!({"anyOf": [{"type": "string"}, {"type": "null"}], "title": "P"}),
    );
    ok(
        json!({"type": "object", "properties": {"x": {"type": "number", "minimum": 0}}, "required": ["x"], "description": "d"}),
        json!({"anyOf": [
            {"type": "object", "properties": {"x": {"type": "number", "minimum": 0}}, "required": ["x"], "additionalProperties": false},
            {"type": "null"},
        ], "description": "d"}),
    );
    let no = |property: Value, why: &str| strict(Dialect::OpenAi, with(property), Err(why));
    no(json!({"type": "string", "minLength": 1}), "`minLength`");
    no(json!({"type": "string", "format": "uri"}), "`format`");
    no(json!({"type": ["string", "null"]}), "may also be null");
    no(json!({"anyOf": [{"type": "string"}, {"type": "null"}], "default": "a"}), "may also be null");
    no(json!({"type": "object"}), "any properties");
    no(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": true}),
        "further properties",
    );
    no(json!({"type": "object", "additionalProperties": {"type": "string"}}), "further properties");
    no(json!({"oneOf": [{"type": "number"}, {"type": "integer"}]}), "match several");
    no(json!({"type": "boolean", "enum": ["True", "False"]}), "no value is both");
    no(json!({"type": "string", "const": 1}), "no value is both");
    ok(json!({"type": "integer", "enum": [1, "all"]}), json!({"type": ["integer", "null"], "enum": [1, null]}));
    no(json!({"type": "array"}), "any items");
    no(json!({}), "any type");
    no(
        json!({"type": "object", "properties": {"b": {"type": "string"}}, "patternProperties": {"a": {}}}),
        "`patternProperties`",
    );
    no(json!({"enum": (0..1_200).collect::<Vec<_>>()}), "values of enumerations");
    strict(Dialect::OpenAi, json!({}), Err("without a schema"));
    strict(
        Dialect::OpenAi,
        json!({"type": "object", "properties": {}}),
        Ok(json!({
            "type": "object", "properties": {}, "required": [], "additionalProperties": false,
        })),
    );
    strict(Dialect::OpenAi, json!({"type": "object", "properties": {}, "required": ["x"]}), Err("`required`"));
    let node = json!({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}},
        "required": ["next"], "additionalProperties": false});
    let list = json!({"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}, "required": ["n"],
        "additionalProperties": false, "$defs": {"N": node}});
    strict(Dialect::OpenAi, list.clone(), Ok(list.clone()));
    strict(Dialect::Anthropic, list, Err("recursive"));
}

#[test]
fn strict_for_anthropic_is_budgeted_over_the_request() {
    let schema = |optional: usize| {
        let properties: Map<String, Value> =
            (0..optional).map(|at| (format!("p{at}"), json!({"type": "string"}))).collect();
        json!({"type": "object", "properties": properties, "additionalProperties": false})
    };
    let tools: Vec<_> = (0..30).map(|at| tool(&format!("t{at}"), schema(2))).collect();
    let set = translate(Dialect::Anthropic, &tools, true);
    assert_eq!(set.tools.iter().filter(|tool| tool.strict).count(), 12, "24 optional parameters");
    assert!(set.losses.iter().any(|loss| loss.tool == "t12" && loss.note.contains("optional parameters")));
    let tools: Vec<_> = (0..30).map(|at| tool(&format!("t{at}"), schema(0))).collect();
    let strict = |set: Toolset| set.tools.iter().filter(|tool| tool.strict).count();
    assert_eq!(strict(translate(Dialect::Anthropic, &tools, true)), 20);
    assert_eq!(strict(translate(Dialect::Anthropic, &tools, false)), 0);
    let own = |word: Option<bool>| {
        let tools: Vec<_> = tools.iter().take(1).map(|tool| RequestTool { strict: word, ..tool.clone() }).collect();
        (strict(translate(Dialect::Anthropic, &tools, true)), strict(translate(Dialect::Anthropic, &tools, false)))
    };
    assert_eq!((own(Some(true)), own(Some(false)), own(None)), ((1, 1), (0, 0), (1, 0)));
}

#[test]
fn gemini_gets_unknown_keywords_as_text() {
    let json_schema = |property: Value, expect: Value| check(Dialect::GeminiJsonSchema, with(property), with(expect));
    json_schema(
        json!({"type": "string", "description": "D.", "pattern": "^a$", "default": "a", "const": "a"}),
        json!({"type": "string", "description": "D. Must match ^a$. Default: \"a\".", "enum": ["a"]}),
    );
    json_schema(json!({"allOf": [{"type": "string"}, {"enum": ["a"]}]}), json!({"type": "string", "enum": ["a"]}));
    check(
        Dialect::GeminiJsonSchema,
        json!({"properties": {"a": {"$ref": "#/$defs/A", "description": "d"}, "b": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "string"}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "description": "d"}, "b": {"$ref": "#/$defs/A"}},
            "$defs": {"A": {"type": "string"}}}),
    );
}

#[test]
fn gemini_gets_a_description_for_every_tool() {
    assert_eq!(one(Dialect::GeminiJsonSchema, false, &json!({"title": "Flights"})).tools[0].description, "Flights");
    assert_eq!(one(Dialect::GeminiJsonSchema, false, &json!({})).tools[0].description, "t");
    assert_eq!(one(Dialect::OpenAi, false, &json!({"title": "Flights"})).tools[0].description, "");
}

#[test]
fn cycles_for_the_same_value_are_cut() {
    let check = |schema: Value, expect: Value| {
        check(Dialect::OpenAi, schema.clone(), expect);
        for dialect in [Dialect::OpenAi, Dialect::Anthropic] {
            let set = one(dialect, true, &schema);
            assert!(set.losses.iter().any(|loss| loss.note.contains("leads back")), "{dialect:?} {schema}");
        }
    };
    let wrapped = |property: Value| json!({"type": "object", "properties": {"input": property}, "required": ["input"], "additionalProperties": false});
    check(json!({"anyOf": [{"$ref": "#"}]}), json!({"type": "object", "properties": {}}));
    check(
        json!({"anyOf": [{"required": ["a"]}, {"$ref": "#", "title": "again"}]}),
        wrapped(json!({"anyOf": [{"required": ["a"]}]})),
    );
    // The reference from outside stays, and so do members that are of the kind of the whole.
    let list = |first: Value| json!({"anyOf": [first, {"type": "array", "items": {"$ref": "#/$defs/b"}}]});
    let def = json!({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/b"}]});
    check(
        json!({"type": "object", "properties": {"p": {"$ref": "#/$defs/a"}}, "$defs": {"a": list(def), "b": {"$ref": "#/$defs/a"}}}),
        json!({"type": "object", "properties": {"p": {"$ref": "#/$defs/a"}}, "$defs": {
            "a": {"anyOf": [{"anyOf": [{"type": "string"}]}, {"type": "array", "items": {"$ref": "#/$defs/a"}}]},
        }}),
    );
    check(
        json!({"type": "object", "properties": {"p": {"type": "string", "not": {"anyOf": [{"$ref": "#/properties/p"}, {"const": "a"}]}}}}),
        with(json!({"type": "string"})),
    );
}

#[test]
fn references_that_multiply_for_one_value_are_quarantined() {
    let step = |at: usize| json!({"$ref": format!("#/$defs/{at}")});
    let mut definitions: Map<String, Value> =
        (0..40).map(|at| (at.to_string(), json!({"anyOf": [step(at + 1), step(at + 1)]}))).collect();
    definitions.insert("40".into(), json!({"type": "string"}));
    let schema = json!({"type": "object", "properties": {"p": step(0)}, "$defs": definitions});
    for dialect in Dialect::ALL {
        let set = one(dialect, false, &schema);
        assert!(set.quarantined.len() == 1 && set.quarantined[0].reason.contains("multiply"), "{dialect:?}");
    }
}

#[test]
fn nested_alternatives_do_not_multiply_work() {
    let either = json!({"properties": {"a": {"$ref": "#/$defs/e"}, "b c": {}}, "required": ["a"]});
    let schema = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/e"}},
        "$defs": {"e": {"anyOf": [either, either]}}});
    let set = one(Dialect::Anthropic, false, &schema);
    let call = (0..100).fold(json!({"z": 1}), |inner, _| json!({"a": inner}));
    assert_eq!(set.restore("t", &call.to_string()), None);
    assert_eq!(set.replay("t", &call), None);
}

#[test]
fn recursion_is_written_out_to_a_bound() {
    let tree = json!({"type": "object", "properties": {"t": {"$ref": "#/$defs/T"}}, "$defs": {
        "T": {"type": "object", "properties": {"l": {"$ref": "#/$defs/T"}, "r": {"$ref": "#/$defs/T"}}},
    }});
    for dialect in [Dialect::GeminiJsonSchema, Dialect::Ollama] {
        let set = one(dialect, false, &tree);
        let text = set.tools[0].parameters.to_string();
        assert!(!text.contains("$ref") && text.len() < 1_000, "{text}");
        assert!(set.losses.iter().any(|loss| loss.note.contains("levels deep")), "{:?}", set.losses);
    }
    // Each definition is used ten times by the next: expanded, it would be 10^12 schemas.
    let mut definitions = Map::new();
    for at in 0..12 {
        let properties: Map<String, Value> =
            (0..10).map(|p| (format!("p{p}"), json!({"$ref": format!("#/$defs/d{}", at + 1)}))).collect();
        definitions.insert(format!("d{at}"), json!({"type": "object", "properties": properties}));
    }
    definitions.insert("d12".into(), json!({"type": "string"}));
    let bomb = json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": definitions});
    for dialect in [Dialect::GeminiJsonSchema, Dialect::Ollama, Dialect::OpenAi] {
        let set = one(dialect, true, &bomb);
        assert!(set.tools[0].parameters.to_string().len() < 200_000);
    }
}

#[test]
fn ollama_gets_only_representable_schemas() {
    check(
        Dialect::Ollama,
        json!({"description": "All.", "properties": {
            "a": {"type": ["string", "null"], "format": "uri", "title": "A"},
            "b": {"oneOf": [{"type": "string"}, {"$ref": "#/$defs/B"}]},
        }, "required": ["a"], "additionalProperties": false, "$defs": {"B": {"type": "array", "items": {"type": "integer", "minimum": 1}}}}),
        json!({"type": "object", "properties": {
            "a": {"type": ["string", "null"], "description": "Format: uri."},
            "b": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer", "description": "At least 1."}}]},
        }, "required": ["a"]}),
    );
}

#[test]
fn calls_are_changed_back_and_forth() {
    let round = |dialect: Dialect, parameters: Value, arguments: Value, shown: Value| {
        let set = one(dialect, true, &parameters);
        let replayed = set.replay("t", &arguments).unwrap_or_else(|| arguments.clone());
        assert_eq!(replayed, shown, "{parameters} {:?}", set.losses);
        let restored = set.restore("t", &shown.to_string()).unwrap_or_else(|| shown.to_string());
        assert_eq!(serde_json::from_str::<Value>(&restored).expect("JSON"), arguments, "{parameters}");
    };
    let root =
        json!({"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}]});
    round(Dialect::Anthropic, root, json!({"a": 1}), json!({"input": {"a": 1}}));
    let named = json!({"type": "object", "properties": {"größe": {"type": "object", "properties": {"a b": {"type": "string"}}}}});
    let set = one(Dialect::Anthropic, false, &named);
    let text = set.tools[0].parameters.to_string();
    assert!(!text.contains("größe") && !text.contains("a b"), "{text}");
    let arguments = json!({"größe": {"a b": "x", "c": 1}});
    let shown = set.replay("t", &arguments).expect("renamed");
    assert_eq!(set.restore("t", &shown.to_string()), Some(arguments.to_string()));
    // Each of the two objects has what the other lacks.
    let object = |name: &str, tag: &str| json!({"type": "object", "properties": {"kind": {"const": tag}, name: {"type": "string"}, "both": {"type": "string"}}, "required": ["kind"]});
    let list = json!({"type": "object", "properties": {"list": {"type": "array", "items": {"anyOf": [object("a", "x"), object("b", "y")]}}}});
    round(
        Dialect::OpenAi,
        list,
        json!({"list": [{"kind": "y", "b": "1"}, {"kind": "x"}]}),
        json!({"list": [{"kind": "y", "b": "1", "both": null}, {"kind": "x", "a": null, "both": null}]}),
    );
    let tree = json!({"type": "object", "properties": {"value": {"type": "string"}, "kids": {"type": "array", "items": {"$ref": "#"}}}});
    round(
        Dialect::OpenAi,
        tree,
        json!({"kids": [{"value": "x"}]}),
        json!({"kids": [{"value": "x", "kids": null}], "value": null}),
    );
    let set = one(Dialect::OpenAi, true, &json!({"type": "object", "properties": {"a": {"type": "string"}}}));
    for nothing in ["not JSON", "{\"a\": \"x\"}", "[]", "null"] {
        assert_eq!(set.restore("t", nothing), None);
    }
    assert_eq!(set.restore("other", "{\"a\": null}"), None);
    assert_eq!(set.restore("t", "{\"a\": null}").as_deref(), Some("{}"));
}

#[test]
fn long_descriptions_are_cut_at_api_limits() {
    let long = RequestTool { description: "ä".repeat(2_000), ..tool("t", json!({})) };
    let length =
        |dialect: Dialect| translate(dialect, std::slice::from_ref(&long), false).tools[0].description.chars().count();
    assert_eq!((length(Dialect::OpenAi), length(Dialect::Anthropic)), (1_024, 2_000));
}
