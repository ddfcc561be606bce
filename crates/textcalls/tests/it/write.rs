//! Writing the text formats: what is written reads back, and goldens hold what a model sees.

use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{CallResult, RawToolCall, RequestTool};
use toolwright_textcalls::{Choice, Options, Values, decode, formats};

use crate::read::in_pieces;

/// Pieces of texts: what JSON, Python and tags care about.
const PLAIN: [&str; 24] = [
    "a", "Z9", " ", "\n", "\t", "\r\n", "\"", "'", "\\", "\\n", "{", "}", "[", "]", "(", ")", ",", ":", "=", "é",
    "日本", "&", "&amp;", "null",
];
/// Pieces of markers.
const MARKERS: [&str; 22] = [
    "<tool_call>",
    "</tool_call>",
    "<function=x>",
    "</function>",
    "<param name=\"a\">",
    "</param>",
    "]]>",
    "<![CDATA[",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|tool_call_end|>",
    "<|call|>",
    "<|end|>",
    "<think>",
    "</think>",
    "```",
    "@@a=b\n",
    "[/t_x]",
    "[t_x/]",
    "</t_x>",
    "<\\/t_x>",
    ";",
];

fn texts(values: Values) -> BoxedStrategy<String> {
    let plain = prop::sample::select(&PLAIN[..]);
    let piece = match values {
        Values::NoMarkers => plain.boxed(),
        Values::Any => prop_oneof![2 => plain, 1 => prop::sample::select(&MARKERS[..])].boxed(),
    };
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat()).boxed()
}

/// A value and its schema.
fn typed(values: Values) -> impl Strategy<Value = (Value, Value)> {
    let text = texts(values);
    let inner = texts(values);
    prop_oneof![
        3 => text.prop_map(|text| (json!(text), json!({"type": "string"}))),
        1 => any::<i64>().prop_map(|number| (json!(number), json!({"type": "integer"}))),
        1 => any::<bool>().prop_map(|flag| (json!(flag), json!({"type": "boolean"}))),
        1 => (-1e9..1e9f64).prop_map(|number| (json!(number), json!({"type": "number"}))),
        1 => prop::collection::vec(inner.clone(), 0..3)
            .prop_map(|items| (json!(items), json!({"type": "array", "items": {"type": "string"}}))),
        1 => inner.prop_map(|text| (
            json!({"text": text, "deep": {"n": [1, 2]}}),
            json!({"type": "object", "properties": {
                "text": {"type": "string"},
                "deep": {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}}}},
            }}),
        )),
    ]
}

/// A name, an id, arguments with their schemas, and whether the tool has a body.
type DrawnCall = (String, String, Vec<(Value, Value)>, bool);

/// Calls, and the tools that they call.
fn calls(values: Values) -> impl Strategy<Value = Vec<(RawToolCall, RequestTool)>> {
    let one = ("t_[a-z0-9_]{0,6}", "[a-zA-Z0-9]{9}", prop::collection::vec(typed(values), 0..4), any::<bool>());
    prop::collection::vec(one, 1..4).prop_map(|calls| {
        let build = |(index, (name, id, values, body)): (usize, DrawnCall)| {
            let (mut arguments, mut properties) = (Map::new(), Map::new());
            for (at, (value, schema)) in values.into_iter().enumerate() {
                arguments.insert(format!("k{at}"), value);
                properties.insert(format!("k{at}"), schema);
            }
            let name = format!("{name}{index}");
            let arguments = Value::Object(arguments).to_string();
            let parameters = json!({"type": "object", "properties": properties});
            let body_argument = body.then(|| "k0".to_owned());
            let tool = RequestTool { name: name.clone(), parameters, body_argument, ..RequestTool::default() };
            (RawToolCall { id, name, arguments }, tool)
        };
        calls.into_iter().enumerate().map(build).collect()
    })
}

fn same(got: &[RawToolCall], want: &[RawToolCall]) -> bool {
    let value = |call: &RawToolCall| serde_json::from_str::<Value>(&call.arguments).ok();
    got.len() == want.len()
        && got
            .iter()
            .zip(want)
            .all(|(got, want)| got.name == want.name && value(got).is_some() && value(got) == value(want))
}

fn written_calls_are_read_back(values: Values) {
    let of_kind: Vec<_> = formats().iter().filter(|format| format.values() == values).collect();
    assert!(of_kind.len() > 5);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) };
    let mut runner = prop::test_runner::TestRunner::new(config);
    let cases = (prop::sample::select(of_kind), calls(values), 1usize..40);
    runner
        .run(&cases, |(format, calls, size)| {
            let (calls, tools): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
            let options = Options { tools: tools.clone().into(), ..Options::default() };
            let written = format.write_calls(&calls, &tools);
            let whole = decode(&written, Choice::Format(format), options.clone());
            prop_assert!(same(&whole.calls, &calls), "{}: {written:?}\n{whole:?}\n{calls:?}", format.name());
            prop_assert_eq!(whole.text.trim(), "", "{}: {}", format.name(), written);
            prop_assert_eq!(&in_pieces(&written, size, Choice::Format(format), options), &whole);
            Ok(())
        })
        .unwrap();
}

#[test]
fn written_calls_with_any_values_are_read_back() {
    written_calls_are_read_back(Values::Any);
}

#[test]
fn calls_without_markers_in_values_are_read_back() {
    written_calls_are_read_back(Values::NoMarkers);
}

#[test]
fn non_object_arguments_are_replayed_as_none() {
    for format in formats() {
        let call = RawToolCall { id: String::new(), name: "now".into(), arguments: "{\"a\":".into() };
        let tools: Arc<[RequestTool]> = [RequestTool { name: "now".into(), ..RequestTool::default() }].into();
        let written = format.write_call(&call, &tools);
        let read = decode(&written, Choice::Format(format), Options { tools, ..Options::default() });
        assert_eq!(read.calls.len(), 1, "{}: {written}", format.name());
        assert_eq!(read.calls[0].arguments, "{}", "{}: {written}", format.name());
    }
}

/// What a model of each family is shown. `TOOLWRIGHT_BLESS=1` rewrites.
#[test]
fn prompts_calls_and_results_are_as_they_were() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bless = std::env::var_os("TOOLWRIGHT_BLESS").is_some();
    let tools = [
        RequestTool {
            name: "fs__write".into(),
            description: "Writes a file.".into(),
            parameters: json!({"type": "object", "properties": {
                "path": {"type": "string"}, "content": {"type": "string"}, "append": {"type": "boolean"},
            }, "required": ["path", "content"]}),
            body_argument: Some("content".into()),
            ..RequestTool::default()
        },
        RequestTool {
            name: "clock__now".into(),
            description: "Tells the time.".into(),
            parameters: json!({"type": "object"}),
            ..RequestTool::default()
        },
    ];
    let call = |id: &str, name: &str, arguments: Value| RawToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.to_string(),
    };
    let result = |call_id: &str, name: &str, text: &str, is_error| CallResult {
        call_id: call_id.into(),
        name: name.into(),
        content: vec![ContentBlock::text(text)],
        is_error,
        ..CallResult::default()
    };
    let calls = [
        call("abcdefghi", "fs__write", json!({"path": "a.txt", "content": "one\n\"two\"", "append": true})),
        call("123456789", "clock__now", json!({})),
    ];
    let results = [
        result("abcdefghi", "fs__write", "the disk is full", true),
        result("123456789", "clock__now", "12:00\n\"noon\"", false),
    ];
    for format in formats() {
        let got = format!(
            "{}\n======== calls\n{}\n======== results\n{}\n",
            format.prompt(&tools),
            format.write_calls(&calls, &tools),
            format.write_results(&results)
        );
        let path = folder.join(format!("{}.txt", format.name()));
        if bless {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &got).unwrap();
        }
        let want = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(got == want, "{} differs; TOOLWRIGHT_BLESS=1 rewrites it. Got:\n{got}", path.display());
        let options = Options { tools: tools.to_vec().into(), ..Options::default() };
        let read = decode(&format.write_calls(&calls, &tools), Choice::Format(format), options);
        assert!(same(&read.calls, &calls), "{}: {read:?}", format.name());
    }
    assert_eq!(formats()[0].prompt(&[]), "");
}
