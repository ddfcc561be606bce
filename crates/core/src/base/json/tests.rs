use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn check(text: &str, expect: Value) {
    let read = repair(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(read.value, expect, "{text}");
    assert_eq!(read.repaired, serde_json::from_str::<Value>(text).is_err(), "{text}");
}

/// Runs one case per line: `{id, input, expected}`; returns the failed ones.
fn failures(lines: &str) -> (usize, Vec<String>) {
    let mut failed = Vec::new();
    let cases: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("a case")).collect();
    for case in &cases {
        let text = |key: &str| case[key].as_str().expect("a text");
        let expect: Value = serde_json::from_str(text("expected")).expect("JSON");
        let read = repair(text("input")).map(|read| read.value);
        if read.as_ref() != Ok(&expect) {
            failed.push(format!("{}: {} -> {read:?}", text("id"), text("input")));
        }
    }
    (cases.len(), failed)
}

#[test]
fn cases_that_other_repairers_agree_on() {
    let (_, failed) = failures(include_str!("fixtures/jsonrepair.jsonl"));
    assert_eq!(failed, Vec::<String>::new());
}

/// The whole set, where it is: `TOOLWRIGHT_TEST_DATA` names its folder.
#[test]
fn most_of_the_whole_set_is_repaired() {
    let Some(folder) = std::env::var_os("TOOLWRIGHT_TEST_DATA").map(PathBuf::from) else { return };
    let lines = std::fs::read_to_string(folder.join("json_repair/cases.jsonl")).expect("the cases");
    let (count, failed) = failures(&lines);
    println!("{} of {count} as expected", count - failed.len());
    assert!(failed.len() * 20 <= count, "{} of {count} failed:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn text_around_json_is_ignored() {
    check("Sure! Here it is: {\"a\": 1}. Anything else?", json!({"a": 1}));
    check("Here:\n```json\n{\"a\": \"```\"}\n```\nDone.", json!({"a": "```"}));
    check("{{\"a\": 1}}", json!({"a": 1}));
    check("{\"a\": 1}\n{\"a\": 2}\n", json!([{"a": 1}, {"a": 2}]));
    check("\"a\": 1, \"b\": [2]", json!({"a": 1, "b": [2]}));
}

#[test]
fn bare_quotes_stay_in_their_string() {
    check(r#"{"code": "print("hi", "ho")", "n": 1}"#, json!({"code": "print(\"hi\", \"ho\")", "n": 1}));
    check(r#"{"text": "she said "yes", and left"}"#, json!({"text": "she said \"yes\", and left"}));
    check(r#"{"text": "a 24" screen", "b": "c"}"#, json!({"text": "a 24\" screen", "b": "c"}));
    check(r#"["say "hi"", "x"]"#, json!(["say \"hi\"", "x"]));
    check("{\"a\": \"one\ntwo\", \"b\": 'it\\'s'}", json!({"a": "one\ntwo", "b": "it's"}));
    check(r#"{"re": "\d+\.", "n": 1,}"#, json!({"re": "\\d+\\.", "n": 1}));
    check("{'a': 'it's fine', 'b': 2}", json!({"a": "it's fine", "b": 2}));
}

#[test]
fn missing_brackets_and_quotes_are_added() {
    check(r#"{"a": "b", "c": ["d", {"e": "f"#, json!({"a": "b", "c": ["d", {"e": "f"}]}));
    check(r#"{"a": "b"#, json!({"a": "b"}));
    check(r#"{"a": "b},"#, json!({"a": "b"}));
    check(r#"{"a": "x\"#, json!({"a": "x"}));
    check(r#"{"a":"#, json!({"a": null}));
    check(r#"{"a": , "b": 2}"#, json!({"a": null, "b": 2}));
    check(r#"{"a": [1, "b": 2}"#, json!({"a": [1], "b": 2}));
    check(r#"{"a": 1 "b": 2 c: 3}"#, json!({"a": 1, "b": 2, "c": 3}));
    check(r#"["This is C(2)", "This is F(3)]"#, json!(["This is C(2)", "This is F(3)"]));
    check("{a: 12 kg, b: x-1, c: /tmp/y}", json!({"a": "12 kg", "b": "x-1", "c": "/tmp/y"}));
}

#[test]
fn other_notations_are_read() {
    check("{'a': True, 'b': None, 'c': NaN, 'd': undefined}", json!({"a": true, "b": null, "c": null, "d": null}));
    check(r#"{"_id": ObjectId("12"), "n": NumberLong(3)}"#, json!({"_id": "12", "n": 3}));
    check(
        r#"{"a": "x" + 'y', # note
        "b": 1}"#,
        json!({"a": "xy", "b": 1}),
    );
    check(r#"{\"a\": \"b \\\"c\\\"\"}"#, json!({"a": "b \"c\""}));
    check(r#"{"a": '\u00e9\ud83d\ude00\ud83d'}"#, json!({"a": "é😀\u{fffd}"}));
}

#[test]
fn empty_and_too_large_input_fail() {
    for text in ["", "  \n", "// only a comment", "/* open"] {
        assert_eq!(repair(text), Err(UnreadableJson::Empty), "{text}");
    }
    for unit in ["[", "{\"a\":", "[{\"a\":"] {
        assert_eq!(repair(&unit.repeat(200_000)), Err(UnreadableJson::TooDeep), "{unit}");
    }
}

#[test]
fn deepest_repaired_value_can_be_read_back() {
    let deepest = format!("{}{}", "{\"a\":".repeat(MAX_DEPTH), "}".repeat(MAX_DEPTH));
    for text in [deepest.clone(), format!("{deepest} {deepest}"), "[".repeat(MAX_DEPTH)] {
        let value = repair(&text).expect("deep enough").value;
        assert_eq!(serde_json::from_str::<Value>(&value.to_string()).expect("JSON"), value);
    }
}

#[test]
fn repair_steps_grow_linearly() {
    let units = [
        "\"", "\"a", "\",", "\"a, \"b", "'\"", "\\", "\\\"", "/*", "//", "`", "```", "a(", "1 ", "a ", "a: ", "\" ",
        "\"}", "}]", ",", ":", "+", "\"+", "{a", "\" /*", "“'", "\"\n", "1 \"b,", "``` x", "\"x} ", "…", "{}",
        "\"a\":", "x\"", "\u{a0}",
    ];
    for opening in ["", "{", "[", "{\"a\": \"", "[\"", "{\"a\":[{\"b\":\""] {
        for unit in units {
            let text = |bytes: usize| format!("{opening}{}", unit.repeat(bytes / unit.len()));
            let (short, long) = (repair::steps(&text(2_000)), repair::steps(&text(16_000)));
            assert!(long <= 8 * short + 2_000, "{opening}{unit}…: {short} steps, then {long}");
            assert!(long <= 16 * 16_000 + 2_000, "{opening}{unit}…: {long} steps");
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..6).prop_map(|members| members.into_iter().collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_json_is_unchanged(value in any_json()) {
        let read = repair(&value.to_string()).expect("valid");
        prop_assert_eq!(read, Repaired { value, repaired: false, cut: None });
    }

    #[test]
    fn no_text_causes_a_panic(text in any::<String>()) {
        let _ = repair(&text);
    }

    #[test]
    fn no_marks_cause_a_panic(text in "[\\[\\]{}:,\"'`“\\\\/*#+.()u0-2a\ntrue -]{0,60}") {
        let _ = repair(&text);
    }

    #[test]
    fn a_cut_text_is_read(value in any_json(), at in any::<prop::sample::Index>()) {
        let text = json!({"a": value}).to_string();
        let mut end = 1 + at.index(text.len() - 1);
        while !text.is_char_boundary(end) {
            end += 1;
        }
        prop_assert!(repair(&text[..end]).expect("an object").value.is_object());
    }
}

#[test]
fn a_cut_text_names_its_open_containers() {
    for (text, cut) in [
        (r#"{"a": 1}"#, None),
        (r#"{"a": 1,}"#, None),
        (r#"{"a": 1"#, Some("")),
        (r#"{"a": "x"#, Some("")),
        (r#"{"a": [{"b": 1}"#, Some("/a")),
        (r#"{"a": [{"b": 1},"#, Some("/a")),
        (r#"{"a": [{"b": 1}, {"b": 2"#, Some("/a/1")),
        (r#"{"a": [{"b": 1}, {"#, Some("/a/1")),
        (r#"{"a": [{"b": 1}, {"b": {"c": "x"#, Some("/a/1/b")),
        (r#"{"a/b": [[1, "#, Some("/a~1b/0")),
        ("```json\n{\"a\": [1]}", None),
        (r#"{"a": 1} {"b": 2"#, None),
        (r#"[{"a": 1}, {"b": 2"#, Some("/1")),
        (r#"[{"a": 1}]"#, None),
    ] {
        assert_eq!(repair(text).expect(text).cut.as_deref(), cut, "{text}");
    }
}

#[test]
fn a_fault_begins_with_its_place() {
    for (text, expect) in [
        ("{\"a\": 1,\n \"b\" 2}", "line 2, column 6: expected `:`"),
        ("{\"a\": }", "line 1, column 7: expected a value"),
        ("{\"a\": 1,}", "line 1, column 9: expected another member after the comma"),
        ("{a: 1}", "line 1, column 2: expected a name in double quotes"),
        ("{\"a\": 1}}", "line 1, column 9: expected nothing more: the value has ended"),
        ("nope", "line 1, column 2: expected a value: `true`"),
        ("{\"a\": 1", "line 1, column 7: the text ends inside an object: expected `,` or `}`"),
        ("\"a", "line 1, column 2: the text ends inside a string"),
        ("\"a\nb\"", "line 2, column 0: expected no line break or tab in a string"),
        ("", "line 1, column 0: the text ends where a value is expected"),
    ] {
        let error = serde_json::from_str::<Value>(text).expect_err("no JSON");
        assert!(fault(&error).starts_with(expect), "{text}: {}", fault(&error));
    }
}
