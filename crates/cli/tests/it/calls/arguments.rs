//! `validate` and `decode --format arguments` as programs use them: JSON on standard output, whatever happens.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::command_line::cli::{program, run, stderr};
use crate::support::Fixture;

/// Runs with `input` on standard input; the lines of the answer and the exit code.
pub(crate) fn answers(fixture: &Fixture, arguments: &[&str], input: &str) -> (Vec<Value>, i32) {
    let mut command = program(fixture);
    let piped = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the program runs");
    child.stdin.take().expect("standard input").write_all(input.as_bytes()).expect("input");
    let output = child.wait_with_output().expect("the program ends");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    (lines.collect(), output.status.code().expect("an exit code"))
}

fn check(fixture: &Fixture, arguments: &[&str], input: &str, code: i32, expect: &[Value]) {
    assert_eq!(answers(fixture, arguments, input), (expect.to_vec(), code), "{arguments:?} {input}");
}

#[test]
fn decode_reads_broken_arguments_without_any_configuration() {
    let fixture = Fixture::with("version: [not a configuration\n");
    let decode = ["decode", "--format", "arguments"];
    check(&fixture, &decode, "{'a': [1, 2", 0, &[json!({"value": {"a": [1, 2]}, "repaired": true})]);
    check(&fixture, &decode, " [1] ", 0, &[json!({"value": [1], "repaired": false})]);
    let nothing = json!({"value": null, "repaired": false, "error": {"kind": "unreadable", "message": "there is no value in the text"}});
    check(&fixture, &decode, "", 1, std::slice::from_ref(&nothing));
    let file = fixture.write("project/args.txt", "{a: 1}");
    let file = file.to_str().expect("a path");
    check(&fixture, &[&decode[..], &[file]].concat(), "", 0, &[json!({"value": {"a": 1}, "repaired": true})]);

    let (lines, code) =
        answers(&fixture, &[&decode[..], &["--jsonl", "-"]].concat(), "\"{a: 1}\"\n\"\"\nnot a string\n\"2\"\n");
    assert_eq!(code, 1);
    assert_eq!(lines[..2], [json!({"value": {"a": 1}, "repaired": true}), nothing]);
    assert!(
        lines[2]["error"]["message"].as_str().is_some_and(|error| error.contains("not one JSON string")),
        "{}",
        lines[2]
    );
    assert_eq!(lines[3..], [json!({"value": 2, "repaired": false})]);
}

#[test]
fn validate_by_schema_needs_no_configuration() {
    let fixture = Fixture::with("version: [not a configuration\n");
    let schema = json!({"type": ["object", "integer"], "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let file = fixture.write("project/schema.json", &schema.to_string());
    let against =
        |more: &[&str]| [&["validate", "--schema", file.to_str().expect("a path")][..], more].concat().join("\u{1f}");
    let check = |more: &[&str], input: &str, code: i32, expect: Value| {
        let arguments = against(more);
        check(&fixture, &arguments.split('\u{1f}').collect::<Vec<_>>(), input, code, &[expect]);
    };
    let valid = |arguments: Value, coerced: Value, repaired: bool| json!({"valid": true, "arguments": arguments, "coerced": coerced, "repaired": repaired, "errors": []});
    check(&["{\"n\": 1}"], "", 0, valid(json!({"n": 1}), json!([]), false));
    check(&["--coerce", "-"], "{n: '1',}", 0, valid(json!({"n": 1}), json!(["/n"]), true));
    check(&["-3"], "", 0, valid(json!(-3), json!([]), false));
    let error = json!({"path": "/n", "keyword": "type", "message": "expected integer, got string \"1\""});
    let invalid = json!({"valid": false, "arguments": {"n": "1"}, "coerced": [], "repaired": false, "errors": [error]});
    check(&["{\"n\": \"1\"}"], "", 1, invalid.clone());
    check(&["--no-coerce", "{\"n\": \"1\"}"], "", 1, invalid);
    let missing = json!({"path": "", "keyword": "required", "message": "the required property \"n\" is missing"});
    check(&[], "", 1, json!({"valid": false, "arguments": {}, "coerced": [], "repaired": false, "errors": [missing]}));
    let empty = json!({"path": "", "keyword": "parse", "message": "there is no value in the text"});
    check(&["-"], "", 1, json!({"valid": false, "arguments": "", "coerced": [], "repaired": false, "errors": [empty]}));
}

#[test]
fn schemas_of_several_files_become_one() {
    let fixture = Fixture::new();
    fixture.write("project/part.json", r#"{"n": {"type": "integer"}}"#);
    fixture.write("project/whole.json", r#"{"properties": {"n": {"$ref": "part.json#/n"}}}"#);
    fixture.write("project/remote.json", r#"{"$ref": "https://schemas.example/x.json"}"#);
    let whole = json!({
        "properties": {"n": {"$ref": "#/$defs/document-1/n"}},
        "$defs": {"document-1": {"n": {"type": "integer"}}},
    });
    check(&fixture, &["validate", "--schema", "whole.json", "--bundle"], "", 0, &[whole]);
    assert_eq!(answers(&fixture, &["validate", "--schema", "remote.json", "--bundle"], "").1, 2);
}

#[test]
fn bundles_take_files_of_the_schema_folder_only() {
    let fixture = Fixture::new();
    fixture.write("project/schemas/below/part.json", r#"{"$ref": "../other.json"}"#);
    fixture.write("project/schemas/other.json", r#"{"type": "null"}"#);
    fixture.write("project/outside.json", r#"{"type": "string"}"#);
    let outside = fixture.path("project/outside.json").display().to_string();
    for (reference, code) in [("below/part.json", 0), ("../outside.json", 2), (&*outside, 2)] {
        fixture.write("project/schemas/whole.json", &json!({"$ref": reference}).to_string());
        let output = run(&fixture, &["validate", "--schema", "schemas/whole.json", "--bundle"]);
        let stderr_text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{reference}: {stderr_text}");
        assert_eq!(stderr_text.contains("the schema's folder"), code == 2, "{reference}: {stderr_text}");
    }
    assert_eq!(answers(&fixture, &["validate", "--tool", "fs__read", "--bundle"], "").1, 2);
}

#[test]
fn validate_takes_any_json_type() {
    let fixture = Fixture::new();
    fixture.write("project/any.json", "{}");
    let plain = |text: &str| {
        let value: Value = serde_json::from_str(text).expect("JSON");
        let expect = json!({"valid": true, "arguments": value, "coerced": [], "repaired": false, "errors": []});
        check(&fixture, &["validate", "--json", "--schema", "any.json", "-"], text, 0, &[expect]);
    };
    for text in ["null", "true", "-1.5e3", "\"\"", "\"null\"", r#""{\"a\": 1}""#, "\"a\u{7f}b\"", "[]", " [\"1\"] "] {
        plain(text);
    }
}

#[test]
fn validate_reads_the_named_draft() {
    let fixture = Fixture::new();
    fixture.write("project/pair.json", r#"{"items": [{"type": "string"}]}"#);
    let code = |more: &[&str]| answers(&fixture, &[&["validate", "--schema", "pair.json"], more].concat(), "").1;
    for draft in ["4", "6", "7", "2019-09"] {
        assert_eq!(code(&["--draft", draft, "[1]"]), 1, "{draft}");
    }
    assert_eq!((code(&["[1]"]), code(&["[\"a\"]"])), (1, 0));
    assert_eq!(code(&["--draft", "2020-12", "[1]"]), 2);
    assert_eq!(code(&["--draft", "5", "[1]"]), 2);
}

#[test]
fn validate_refuses_a_remote_reference_by_name() {
    let fixture = Fixture::new();
    fixture.write("project/remote.json", r#"{"$ref": "http://localhost:1234/s.json"}"#);
    let (lines, code) = answers(&fixture, &["validate", "--schema", "remote.json", "1"], "");
    assert_eq!(code, 2);
    let message = lines[0]["error"]["message"].as_str().expect("a message");
    assert!(message.contains("http://localhost:1234/s.json") && message.contains("refused"), "{message}");
}

#[test]
fn validate_by_tool_matches_a_call() {
    let fixture = Fixture::new();
    let tool = |arguments| answers(&fixture, &["validate", "--tool", "fs__read", arguments], "");
    let (lines, code) = tool("{path: 'a', limit: '5'}");
    assert_eq!(code, 0, "{lines:?}");
    assert_eq!((&lines[0]["coerced"], &lines[0]["repaired"]), (&json!(["/limit"]), &json!(true)));
    assert_eq!((&lines[0]["arguments"]["path"], &lines[0]["arguments"]["limit"]), (&json!("a"), &json!(5)));
    let (lines, code) = tool("{}");
    assert_eq!((code, &lines[0]["errors"][0]["keyword"]), (1, &json!("required")));
    let (lines, code) = tool("[1]");
    assert_eq!(
        (code, &lines[0]["errors"][0]["message"]),
        (1, &json!("the arguments must be a JSON object, not an array"))
    );
    let (lines, code) = answers(&fixture, &["validate", "--tool", "fs__raed"], "");
    assert_eq!((code, &lines[0]["error"]["kind"]), (3, &json!("unknown_tool")));
}
