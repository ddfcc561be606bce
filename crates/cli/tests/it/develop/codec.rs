//! `encode` and `decode` as programs use them: JSON on standard output, whatever happens, and no configuration.

use serde_json::{Value, json};

use crate::calls::arguments::answers;
use crate::support::Fixture;

const APIS: [&str; 5] = ["openai-chat", "openai-responses", "anthropic", "gemini", "ollama"];

/// A project whose configuration cannot be read, with a file of tools.
fn fixture(tools: &str) -> Fixture {
    let fixture = Fixture::with("version: [not a configuration\n");
    fixture.write("project/tools.json", tools);
    fixture
}

fn answer(fixture: &Fixture, arguments: &[&str], input: &str) -> (Value, i32) {
    let (mut lines, code) = answers(fixture, arguments, input);
    assert_eq!(lines.len(), 1, "{arguments:?}: {lines:?}");
    (lines.remove(0), code)
}

fn encode(fixture: &Fixture, api: &str, more: &[&str]) -> Value {
    let (document, code) = answer(fixture, &[&["encode", "--api", api, "--tools", "tools.json"], more].concat(), "");
    assert_eq!(code, 0, "{document}");
    document
}

#[test]
fn encode_gives_the_tools_of_each_api() {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let fixture = fixture(&json!([{"name": "read", "description": "Reads.", "parameters": schema}]).to_string());
    for api in APIS {
        let document = encode(&fixture, api, &[]);
        let tool = &document["tools"][0];
        let (name, parameters) = match api {
            "openai-chat" | "ollama" => (&tool["function"]["name"], &tool["function"]["parameters"]),
            "openai-responses" => (&tool["name"], &tool["parameters"]),
            "anthropic" => (&tool["name"], &tool["input_schema"]),
            _ => {
                let declaration = &tool["functionDeclarations"][0];
                (&declaration["name"], &declaration["parametersJsonSchema"])
            }
        };
        assert_eq!((name, &parameters["properties"]["path"]["type"]), (&json!("read"), &json!("string")), "{document}");
        assert_eq!(document["names"], json!({"read": "read"}));
        assert_eq!((&document["losses"], &document["quarantined"]), (&json!([]), &json!([])), "{api}");
    }
    let strict = encode(&fixture, "openai-chat", &["--strict"]);
    assert_eq!(strict["tools"][0]["function"]["strict"], json!(true), "{strict}");
}

#[test]
fn encode_reads_tools_however_they_are_written() {
    for tools in [
        r#"[{"name": "a", "inputSchema": {"type": "object"}}, {"name": "b"}]"#,
        r#"{"tools": [{"name": "a", "input_schema": {"type": "object"}}, {"name": "b", "parameters": null}]}"#,
        "{\"name\": \"a\", \"description\": null}\n\n{\"name\": \"b\"}\n",
        r#"[{"type": "function", "function": {"name": "a"}}, {"type": "function", "name": "b"}]"#,
        r#"{"a": {"name": "a"}, "b": {"name": "b"}}"#,
    ] {
        let document = encode(&fixture(tools), "anthropic", &[]);
        let names: Vec<&Value> =
            document["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
        assert_eq!(names, ["a", "b"], "{tools}");
    }
    assert_eq!(encode(&fixture(""), "ollama", &[])["tools"], json!([]));
    let (document, code) =
        answer(&fixture(""), &["encode", "--api", "ollama", "--tools", "-"], "{\"name\": \"from a pipe\"}");
    assert_eq!((code, &document["names"]), (0, &json!({"from_a_pipe": "from a pipe"})));
    for (tools, complaint) in [
        ("{\"name\": \"a\"}\n{\"name\"", "line 2"),
        ("nothing like it", "not JSON"),
        ("[{\"description\": \"x\"}]", "tool 1: it has no `name`"),
        ("[1]", "tool 1: it is not an object"),
        ("3", "neither a list"),
    ] {
        let (document, code) = answer(&fixture(tools), &["encode", "--api", "gemini", "--tools", "tools.json"], "");
        let message = document["error"]["message"].as_str().expect("a message");
        assert!(code == 2 && message.contains(complaint), "{tools}: {message}");
    }
}

#[test]
fn encode_makes_names_legal_and_distinct() {
    let long = "x".repeat(90);
    let tools = json!([{"name": "a.b"}, {"name": "a_b", "id": "second"}, {"name": "é"}, {"name": "9"}, {"name": long}]);
    let fixture = fixture(&tools.to_string());
    let document = encode(&fixture, "openai-responses", &[]);
    let names = document["names"].as_object().expect("names");
    let ids: Vec<&str> = names.values().filter_map(Value::as_str).collect();
    assert_eq!(ids, ["a.b", "second", "é", "9", &long]);
    for name in names.keys() {
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        assert!(name.len() <= 64 && name.chars().all(legal) && !name.starts_with(char::is_numeric), "{name}");
    }
    assert_eq!(document, encode(&fixture, "openai-responses", &[]), "the same again");
}

/// One answer of Anthropic, as it streams.
const EVENTS: [&str; 7] = [
    r#"{"type":"message_start","message":{"usage":{"input_tokens":5,"output_tokens":1}}}"#,
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Sure — reading."}}"#,
    r#"{"type":"content_block_stop","index":0}"#,
    r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"a_b","input":{"path":"x"}}}"#,
    r#"{"type":"content_block_stop","index":1}"#,
    r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":9}}"#,
];
const STOP: &str = r#"{"type":"message_stop"}"#;

#[test]
fn decode_detects_the_form_at_any_chunking() {
    let fixture = fixture("[]");
    let lines = format!("{}\n{STOP}\n", EVENTS.join("\n"));
    let events: String = lines.lines().map(|line| format!("event: x\ndata: {line}\n\n")).collect();
    let body = json!({
        "type": "message", "role": "assistant", "stop_reason": "tool_use",
        "content": [
            {"type": "text", "text": "Sure — reading."},
            {"type": "tool_use", "id": "toolu_1", "name": "a_b", "input": {"path": "x"}},
        ],
        "usage": {"input_tokens": 5, "output_tokens": 9},
    });
    let expect = json!({
        "text": "Sure — reading.", "reasoning": "",
        "calls": [{"id": "toolu_1", "name": "a_b", "arguments": {"path": "x"}}],
        "usage": {"input_tokens": 5, "output_tokens": 9, "cached_tokens": 0},
        "stop_reason": "tool_calls",
    });
    for input in [lines, events, body.to_string(), format!("{body:#}")] {
        for chunk in [&[][..], &["--chunk", "1"], &["--chunk", "7"]] {
            let arguments = [&["decode", "--format", "anthropic", "--json"], chunk].concat();
            assert_eq!(answer(&fixture, &arguments, &input), (expect.clone(), 0), "{chunk:?} {input}");
        }
    }
}

#[test]
fn decode_keeps_whole_parts_of_failed_answers() {
    let fixture = fixture("[]");
    let decode = ["decode", "--format", "anthropic"];
    let (document, code) = answer(&fixture, &decode, &EVENTS.join("\n"));
    assert_eq!((code, &document["text"], &document["calls"][0]["name"]), (1, &json!("Sure — reading."), &json!("a_b")));
    assert_eq!((&document["error"]["kind"], document.get("stop_reason")), (&json!("bad_response"), None), "{document}");

    let body = r#"{"type":"error","error":{"type":"overloaded_error","message":"busy now"}}"#;
    let (document, code) = answer(&fixture, &decode, body);
    assert_eq!((code, &document["calls"], &document["text"]), (1, &json!([]), &json!("")));
    assert!(document["error"]["message"].as_str().is_some_and(|message| message.contains("busy now")), "{document}");
    for input in ["", "no JSON at all", "{\"a\"", "[1, 2]"] {
        let (document, code) = answer(&fixture, &decode, input);
        assert!(code == 1 && document["error"].is_object() && document["calls"] == json!([]), "{input}: {document}");
    }
}

/// A body of Chat Completions with these calls: name and arguments.
fn chat(calls: &[(&str, &str)]) -> String {
    let call = |(name, arguments): &(&str, &str)| json!({"type": "function", "function": {"name": name, "arguments": arguments}});
    let calls: Vec<Value> = calls.iter().map(call).collect();
    json!({"choices": [{"message": {"content": null, "tool_calls": calls}, "finish_reason": "tool_calls"}]}).to_string()
}

#[test]
fn decode_numbers_calls_and_parses_arguments() {
    let body = chat(&[("a", "{\"x\": 1}"), ("b", ""), ("c", "{\"x\": "), ("d", "[1]")]);
    let (document, code) = answer(&fixture("[]"), &["decode", "--format", "openai-chat", "-"], &body);
    let expect = json!([
        {"id": "call_0", "name": "a", "arguments": {"x": 1}},
        {"id": "call_1", "name": "b", "arguments": {}},
        {"id": "call_2", "name": "c", "arguments": "{\"x\": "},
        {"id": "call_3", "name": "d", "arguments": "[1]"},
    ]);
    assert_eq!((&document["calls"], code), (&expect, 0));
}

#[test]
fn decode_reverses_encode() {
    let either = json!({"anyOf": [
        {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
        {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    ]});
    let fixture = fixture(&json!([{"name": "look/up", "parameters": either}]).to_string());
    let document = encode(&fixture, "openai-chat", &[]);
    let function = &document["tools"][0]["function"];
    let name = function["name"].as_str().expect("a name");
    assert_eq!(document["names"], json!({name: "look/up"}));
    let arguments = match function["parameters"]["properties"].as_object().expect("properties") {
        properties if properties.contains_key("id") => json!({"id": 3}),
        wrapped => json!({wrapped.keys().next().expect("a property"): {"id": 3}}),
    };
    let body = chat(&[(name, &arguments.to_string()), ("other", "{}")]);
    let (document, _) = answer(&fixture, &["decode", "--format", "openai-chat", "--tools", "tools.json"], &body);
    let expect = json!([
        {"id": "call_0", "name": "look/up", "arguments": {"id": 3}},
        {"id": "call_1", "name": "other", "arguments": {}},
    ]);
    assert_eq!(document["calls"], expect);
}

#[test]
fn decode_answers_each_line_on_failure_too() {
    let fixture = fixture("[]");
    let input = format!("{}\n3\n{}\n", json!(chat(&[("a", "{}")])), json!("nothing"));
    let (lines, code) = answers(&fixture, &["decode", "--format", "openai-chat", "--jsonl"], &input);
    assert_eq!((lines.len(), code), (3, 1));
    assert_eq!(lines[0]["calls"][0]["name"], json!("a"));
    for (line, kind) in [(&lines[1], "input"), (&lines[2], "bad_response")] {
        assert_eq!((&line["calls"], &line["error"]["kind"]), (&json!([]), &json!(kind)), "{line}");
    }
}

#[test]
fn decode_answers_each_line_once() {
    let fixture = fixture("[]");
    let decode = |format: &str, input: &str| answers(&fixture, &["decode", "--format", format, "--jsonl"], input);
    let (lines, code) = decode("hermes", "\u{feff}\"a\"\n\n  \r\n\"b\"\n[1]\n\n\"c\"");
    let texts: Vec<&str> = lines.iter().map(|line| line["text"].as_str().expect("a text")).collect();
    assert_eq!((texts, code), (vec!["a", "", "", "b", "", "", "c"], 1));
    let failed: Vec<bool> = lines.iter().map(|line| line["error"]["kind"] == "input").collect();
    assert_eq!(failed, [false, true, true, false, true, true, false]);
    assert_eq!(decode("hermes", ""), (vec![], 0));
    assert_eq!(decode("hermes", "\n").0.len(), 1);

    let surrogates = r#""\ud800x \udc00 \ud83d\ude00 \ud83dé \uD800\ud800""#;
    let (lines, code) = decode("hermes", &format!("{surrogates}\n"));
    let half = "\u{fffd}";
    assert_eq!(
        (lines[0]["text"].as_str(), code),
        (Some(format!("{half}x {half} 😀 {half}é {half}{half}").as_str()), 0)
    );
    assert_eq!(decode("hermes", "\"a\" \"b\"\n").1, 1, "one string a line");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    for tools in ["\u{feff}[{\"name\": \"a\"}]", "\u{feff}{\"name\": \"a\"}\n{\"name\": \"b\"}\n"] {
        assert_eq!(encode(&fixture(tools), "ollama", &[])["tools"][0]["function"]["name"], "a", "{tools}");
    }
    let body = format!("\u{feff}{}", chat(&[("a", "{}")]));
    for chunk in ["1", "2", "4096"] {
        let (document, code) = answer(&fixture("[]"), &["decode", "--format", "openai-chat", "--chunk", chunk], &body);
        assert_eq!((code, &document["calls"][0]["name"]), (0, &json!("a")), "{document}");
    }
}

#[test]
fn a_bad_command_line_answers_as_json() {
    for arguments in [&["decode", "--format", "nonsense"][..], &["encode", "--api", "ollama"], &["validate", "{}"]] {
        let (document, code) = answer(&fixture("[]"), arguments, "");
        assert_eq!((code, &document["error"]["kind"]), (2, &json!("usage")), "{arguments:?}");
    }
}

#[test]
fn decode_finds_the_text_format() {
    let fixture =
        fixture(&json!([{"name": "get/it", "parameters": {"properties": {"n": {"type": "integer"}}}}]).to_string());
    let hermes = "Hm.</think>Sure.<tool_call>\n{\"name\": \"get_it\", \"arguments\": {\"n\": 3}}\n</tool_call>";
    let coder =
        "Hm.</think>Sure.<tool_call>\n<function=get_it>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>";
    let calls = json!([{"id": "call_0", "name": "get/it", "arguments": {"n": 3}}]);
    let split = json!({"text": "Sure.", "reasoning": "Hm.", "calls": calls});
    let kept = json!({"text": "<think>Hm.</think>Sure.", "reasoning": "", "calls": calls});
    for (arguments, input, expect) in [
        (&["--format", "hermes"][..], hermes, &split),
        (&["--format", "auto", "--model", "Qwen3-8B.jinja"], hermes, &split),
        (&["--format", "auto", "--model", "Qwen/Qwen3-8B"], hermes, &split),
        (&["--format", "auto", "--model", "nobody-knows-it"], coder, &split),
        (&["--format", "auto"], hermes, &split),
        (&["--format", "qwen3.5", "--prefix", "<think>"], coder, &split),
        (&["--format", "hermes", "--prefix", "<think>", "--reasoning", "keep"], hermes, &kept),
    ] {
        for chunk in ["1", "5", "4096"] {
            let arguments = [&["decode", "--tools", "tools.json", "--chunk", chunk], arguments].concat();
            assert_eq!(answer(&fixture, &arguments, input), (expect.clone(), 0), "{arguments:?}");
        }
    }
}

#[test]
fn decode_formats_match_help_and_completions() {
    let fixture = fixture("[]");
    for format in toolwright::textcalls::formats() {
        let expect = json!({"text": "Plain text.", "reasoning": "", "calls": []});
        let arguments = ["decode", "--format", format.name(), "--prefix", ""];
        assert_eq!(answer(&fixture, &arguments, "Plain text."), (expect, 0), "{}", format.name());
    }
}
