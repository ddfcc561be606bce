//! What a schema or a value must not be able to do: run for ever, or run out of stack.

use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::{Value, json};

use super::CompiledSchema;
use crate::arguments::{Provenance, fit};

/// Fits `value` on a thread of the size that a runtime gives its workers. A bound far from any time that
/// it should take.
fn check(schema: Value, value: Value) {
    let (done, ended) = channel();
    let name = schema.to_string();
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        if let Ok(compiled) = CompiledSchema::compile(&schema) {
            let fitted = fit(&compiled, value, Provenance::default());
            assert!(fitted.violations.len() <= 12);
        }
        done.send(()).expect("somebody waits");
    });
    ended.recv_timeout(Duration::from_secs(20)).unwrap_or_else(|error| panic!("{error}: {name}"));
    thread.expect("spawned").join().expect("ended well");
}

fn nested(depth: usize, wrap: impl Fn(Value) -> Value, leaf: Value) -> Value {
    (0..depth).fold(leaf, |inner, _| wrap(inner))
}

#[test]
fn a_schema_that_leads_back_to_itself_ends() {
    let circles = [
        json!({"$ref": "#"}),
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        json!({"allOf": [{"$ref": "#"}], "required": ["x"]}),
        json!({"anyOf": [{"$ref": "#"}, {"type": "string"}]}),
        json!({"oneOf": [{"$ref": "#"}, {"type": "string"}]}),
        json!({"not": {"$ref": "#"}}),
        json!({"if": {"$ref": "#"}, "then": {"required": ["x"]}}),
        json!({"$dynamicAnchor": "n", "allOf": [{"$dynamicRef": "#n"}]}),
        json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}),
    ];
    for schema in circles {
        for value in [json!({}), json!({"x": {"x": 1}}), json!("s")] {
            check(schema.clone(), value);
        }
    }
}

#[test]
fn a_deep_value_under_a_recursive_schema_ends() {
    let tree = json!({"type": "object", "properties": {"a": {"$ref": "#"}, "v": {"type": "integer"}}});
    check(tree, nested(127, |inner| json!({"a": inner, "v": "1"}), json!({"v": "x"})));
    let either = json!({"anyOf": [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {}}, "required": ["a"]},
    ]});
    check(either, nested(100, |inner| json!({"a": inner}), json!(1)));
    let dynamic = json!({"$dynamicAnchor": "n", "type": "array", "items": {"$dynamicRef": "#n"}});
    check(dynamic, nested(120, |inner| json!([inner]), json!("x")));
}

#[test]
fn a_schema_that_doubles_at_each_step_ends() {
    for applicator in ["allOf", "anyOf", "oneOf"] {
        let mut definitions = serde_json::Map::new();
        for level in 0..40 {
            let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
            definitions.insert(format!("d{level}"), json!({applicator: [next.clone(), next]}));
        }
        definitions.insert("d40".into(), json!({"type": "string"}));
        let schema = json!({"$defs": definitions, "$ref": "#/$defs/d0"});
        check(schema.clone(), json!({"x": 1}));
        check(schema, json!(1));
    }
}

#[test]
fn a_dynamic_reference_means_the_outermost_anchor() {
    let schema = json!({
        "$id": "https://example.com/strict", "$dynamicAnchor": "node", "$ref": "tree", "unevaluatedProperties": false,
        "$defs": {"tree": {"$id": "https://example.com/tree", "$dynamicAnchor": "node", "type": "object",
            "properties": {"data": true, "children": {"type": "array", "items": {"$dynamicRef": "#node"}}}}},
    });
    let compiled = CompiledSchema::compile(&schema).expect("compiles");
    assert!(compiled.is_valid(&json!({"children": [{"data": 1}]})));
    assert!(!compiled.is_valid(&json!({"children": [{"daat": 1}]})));
}
