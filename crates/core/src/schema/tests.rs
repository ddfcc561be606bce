//! Tests: a selection of the official JSON Schema test suite, or the whole suite if present; and schemas
//! that try to loop forever or to exhaust the stack.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::{Value, json};

use super::{CompiledSchema, Draft};

/// Test results of one draft.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    refused: usize,
    failed: Vec<String>,
}

impl Tally {
    /// Runs a group of tests in the suite's format: `{description, schema, tests: [{data, valid}]}`.
    fn group(&mut self, draft: Draft, group: &Value) {
        let title = format!("draft {}: {}", draft.as_str(), group["description"]);
        let tests = group["tests"].as_array().expect("tests");
        let compiled = match CompiledSchema::compile_as(&group["schema"], draft) {
            Ok(compiled) => compiled,
            Err(error) if error.message.contains("http://localhost:1234/") && error.message.contains("refused") => {
                self.refused += tests.len();
                return;
            }
            Err(error) => return self.failed.push(format!("{title}: {error}")),
        };
        for test in tests {
            let valid = test["valid"].as_bool();
            let agree = Some(compiled.is_valid(&test["data"])) == valid
                && Some(compiled.violations(&test["data"]).is_empty()) == valid;
            match agree {
                true => self.passed += 1,
                false => self.failed.push(format!("{title}: {}", test["description"])),
            }
        }
    }
}

fn read(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).expect("a file of the suite");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn the_selection_passes() {
    let selection: BTreeMap<String, Vec<Value>> =
        serde_json::from_str(include_str!("fixtures/json_schema_suite.json")).expect("the selection");
    for draft in Draft::ALL {
        let mut tally = Tally::default();
        for group in &selection[draft.as_str()] {
            tally.group(draft, group);
        }
        assert_eq!(tally.failed, Vec::<String>::new());
        assert!(tally.passed > 0 && tally.refused > 0, "draft {}: {tally:?}", draft.as_str());
    }
}

/// `TOOLWRIGHT_JSON_SCHEMA_SUITE` names the suite's folder, which has `tests` in it.
#[test]
fn the_whole_suite_passes_where_it_is() {
    let Some(folder) = std::env::var_os("TOOLWRIGHT_JSON_SCHEMA_SUITE").map(PathBuf::from) else { return };
    let mut failed = Vec::new();
    for draft in Draft::ALL {
        let mut tally = Tally::default();
        let files = std::fs::read_dir(folder.join("tests").join(format!("draft{}", draft.as_str()))).expect("a folder");
        for file in files.map(|file| file.expect("a file").path()).filter(|file| file.is_file()) {
            for group in read(&file) {
                tally.group(draft, &group);
            }
        }
        let Tally { passed, refused, .. } = tally;
        println!("draft {}: {passed} passed, {refused} refused, {} failed", draft.as_str(), tally.failed.len());
        failed.append(&mut tally.failed);
    }
    assert_eq!(failed, Vec::<String>::new());
}

/// Validates and coerces `value` on a thread with the stack size of runtime workers. The time limit is far above the
/// expected time.
fn check_that_it_ends(schema: Value, value: Value) {
    let (done, ended) = channel();
    let name = schema.to_string();
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        if let Ok(compiled) = CompiledSchema::compile(&schema) {
            assert!(compiled.violations(&value).len() <= 12);
            let _ = compiled.coerce(&value);
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
fn a_recursive_schema_ends() {
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
            check_that_it_ends(schema.clone(), value);
        }
    }
}

#[test]
fn a_deep_value_under_a_recursive_schema_ends() {
    let tree = json!({"type": "object", "properties": {"a": {"$ref": "#"}, "v": {"type": "integer"}}});
    check_that_it_ends(tree, nested(127, |inner| json!({"a": inner, "v": "1"}), json!({"v": "x"})));
    let either = json!({"anyOf": [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {}}, "required": ["a"]},
    ]});
    check_that_it_ends(either, nested(100, |inner| json!({"a": inner}), json!(1)));
    let dynamic = json!({"$dynamicAnchor": "n", "type": "array", "items": {"$dynamicRef": "#n"}});
    check_that_it_ends(dynamic, nested(120, |inner| json!([inner]), json!("x")));
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
        check_that_it_ends(schema.clone(), json!({"x": 1}));
        check_that_it_ends(schema, json!(1));
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
