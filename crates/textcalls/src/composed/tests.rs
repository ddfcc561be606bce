use proptest::prelude::*;
use serde_json::json;
use toolwright_core::model::{RawToolCall, ToolVisibility};
use toolwright_core::schema::CompiledSchema;

use super::*;

fn tool(name: &str, parameters: Value) -> RequestTool {
    RequestTool { name: name.into(), description: format!("Does {name}."), parameters, ..RequestTool::default() }
}

fn transport(output: Option<&Value>, tools: &[RequestTool]) -> Transport {
    let tools: Vec<ComposedTool<'_>> = tools.iter().map(|tool| ComposedTool { tool, latent: None }).collect();
    Transport::new(output, &tools)
}

/// Whether the composed schema accepts the answer. It must compile, which shows that every reference resolves.
fn admits(transport: &Transport, answer: &Value) -> bool {
    CompiledSchema::compile(transport.schema()).expect("the composed schema compiles").is_valid(answer)
}

fn names(composed: &Composed) -> Vec<(&str, &str)> {
    composed.calls.iter().map(|call| (call.call.name.as_str(), call.call.arguments.as_str())).collect()
}

fn pair() -> [RequestTool; 2] {
    [
        tool(
            "files__read",
            json!({"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}, "required": ["path"]}),
        ),
        tool("any__thing", json!({"type": "object"})),
    ]
}

#[test]
fn deferred_tools_are_not_offered() {
    let [read, any] = pair();
    let deferred = RequestTool { exposed: ToolVisibility::Deferred, ..any };
    assert_eq!(transport(None, &[deferred, read.clone()]), transport(None, &[read]));
}

#[test]
fn the_composed_schema_as_it_is_written() {
    let mood = tool("text__mood", json!({"properties": {"text": {"type": "string"}}, "required": ["text"]}));
    let tree = tool(
        "tree__add",
        json!({
            "type": "object",
            "properties": {"root": {"$ref": "#/$defs/node"}, "_tool": {"type": "string"}},
            "required": ["root", "_tool"],
            "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}, "unused": {}},
        }),
    );
    let either = tool("either__way", json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}));
    let result = json!({"type": "string"});
    let composed = Transport::new(
        Some(&json!({"type": "object", "properties": {"summary": {"type": "string"}}, "required": ["summary"]})),
        &[
            ComposedTool { tool: &mood, latent: Some(&result) },
            ComposedTool { tool: &tree, latent: None },
            ComposedTool { tool: &either, latent: None },
        ],
    );
    let golden: Value = serde_json::from_str(include_str!("golden.json")).expect("JSON");
    assert_eq!(composed.schema(), &golden, "{:#}", composed.schema());
    assert_eq!(composed.schema().to_string(), golden.to_string(), "the order counts");
}

#[test]
fn greeting_and_summary_compose() {
    let greet = json!({"type": "object", "properties": {"userName": {"type": "string"}}, "required": ["userName"]});
    let summary = json!({"type": "object", "properties": {"summary": {"type": "string"}}, "required": ["summary"]});
    let composed = transport(Some(&summary), &[tool("greetUser", greet)]);
    let call = json!({"_tool": "greetUser", "_reasoningForCall": "polite", "userName": "Ada"});
    for (answer, legal) in [
        (json!({"output": null, "calls": [call]}), true),
        (json!({"output": {"summary": "x"}, "calls": []}), true),
        (json!({"output": {"summary": "x"}, "calls": [call]}), true),
        (json!({"output": {"summary": "x"}}), false),
        (json!({"calls": [call]}), false),
        (json!({"output": {"summary": "x", "more": 1}, "calls": []}), false),
        (json!({"output": null, "calls": [{"_tool": "greetUser", "_reasoningForCall": "polite"}]}), false),
        (json!({"output": null, "calls": [{"_tool": "other", "_reasoningForCall": "", "userName": "Ada"}]}), false),
    ] {
        assert_eq!(admits(&composed, &answer), legal, "{answer}");
    }
}

#[test]
fn only_calls_or_outputs_are_legal() {
    let composed = transport(None, &pair());
    let call = json!({"_tool": "files__read", "_reasoningForCall": "to see", "path": "a"});
    for (answer, legal) in [
        (json!({"output": null, "calls": [call]}), true),
        (json!({"output": "done", "calls": []}), true),
        (json!({"output": "done", "calls": [call, call]}), true),
        (json!({"output": {"a": 1}, "calls": []}), false),
        (json!({"output": null}), false),
        (json!({"output": null, "calls": [{"_tool": "files__write", "_reasoningForCall": "", "path": "a"}]}), false),
        (json!({"output": null, "calls": [{"_tool": "files__read", "_reasoningForCall": ""}]}), false),
        (
            json!({"output": null, "calls": [{"_tool": "files__read", "_reasoningForCall": "", "path": "a", "_output": 1}]}),
            false,
        ),
        (
            json!({"output": null, "calls": [{"_tool": "any__thing", "_reasoningForCall": "", "_arguments": {"x": [1]}}]}),
            true,
        ),
    ] {
        assert_eq!(admits(&composed, &answer), legal, "{answer}");
    }
    let none = transport(None, &[]);
    assert!(admits(&none, &json!({"output": "x", "calls": []})));
    assert!(!admits(&none, &json!({"output": "x", "calls": [call]})));
}

#[test]
fn references_keep_their_targets() {
    let output = json!({
        "$id": "https://example.com/tree",
        "$defs": {"leaf": {"$anchor": "leaf", "type": "integer"}},
        "type": "object",
        "properties": {"value": {"$ref": "#leaf"}, "next": {"$ref": "#"}, "again": {"$ref": "#/properties/value"}},
        "required": ["value"],
    });
    let dynamic = tool(
        "a__b",
        json!({"$dynamicAnchor": "node", "properties": {"next": {"$dynamicRef": "#node"}, "n": {"type": "integer"}}}),
    );
    let inner = tool(
        "c__d",
        json!({"properties": {
            "x": {"$id": "https://example.com/x", "$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s"},
            "literal": {"enum": [{"$ref": "#/nowhere"}]},
        }}),
    );
    let composed = transport(Some(&output), &[dynamic, inner]);
    let answer = |output: Value| json!({"output": output, "calls": []});
    assert!(admits(&composed, &answer(json!({"value": 1, "next": {"value": 2, "again": 3}}))));
    assert!(!admits(&composed, &answer(json!({"value": 1, "next": {"value": "2"}}))));
    assert!(!admits(&composed, &answer(json!({"value": 1, "again": "3"}))));
    let call = |name: &str, parameters: Value| {
        let mut item = json!({"_tool": name, "_reasoningForCall": ""});
        item.as_object_mut().expect("an object").extend(parameters.as_object().cloned().expect("an object"));
        json!({"output": null, "calls": [item]})
    };
    // An anchor at the root concerns the whole schema, so the arguments stay together.
    assert!(admits(&composed, &call("a__b", json!({"_arguments": {"next": {"n": 1}}}))));
    assert!(!admits(&composed, &call("a__b", json!({"_arguments": {"next": {"n": "1"}}}))));
    assert!(admits(&composed, &call("c__d", json!({"x": "s", "literal": {"$ref": "#/nowhere"}}))));
    assert!(!admits(&composed, &call("c__d", json!({"x": 1}))));
}

#[test]
fn parameters_named_like_our_members_stay_parameters() {
    let names = ["_tool", "__tool", "_output", "_arguments", "_reasoningForCall", "_id", "tool"];
    let properties: serde_json::Map<String, Value> = names.iter().map(|name| ((*name).into(), json!({}))).collect();
    let composed = transport(None, &[tool("odd__one", json!({"properties": properties, "required": names}))]);
    let arguments =
        json!({"_tool": 1, "__tool": 2, "_output": 3, "_arguments": 4, "_reasoningForCall": 5, "_id": 6, "tool": 7});
    let call = RawToolCall { id: "call_0".into(), name: "odd__one".into(), arguments: arguments.to_string() };
    let answer =
        Composed { output: None, calls: vec![ComposedCall { call, reasoning: None, output: None }], complete: true };
    let text = composed.encode(&answer);
    assert!(admits(&composed, &serde_json::from_str(&text).expect("JSON")), "{text}");
    assert_eq!(composed.decode(&text), Ok(answer));
}

#[test]
fn only_latent_tools_bring_their_result() {
    let mood = tool("text__mood", json!({"properties": {"text": {}}}));
    let item = r#"{"output": null, "calls": [{"_tool": "text__mood", "text": "x", "_output": "good"}]}"#;
    let result = json!({"type": "string"});
    let latent = Transport::new(None, &[ComposedTool { tool: &mood, latent: Some(&result) }]);
    assert_eq!(latent.decode(item).expect("usable").calls[0].output, Some(json!("good")));
    let explicit = transport(None, &[mood]);
    assert_eq!(explicit.decode(item).expect("usable").calls[0].output, None);
}

#[test]
fn unusable_answers_are_explained() {
    let composed = transport(None, &pair());
    for (text, expect) in [
        ("", UnusableAnswer::NoObject),
        ("I think { so }.", UnusableAnswer::NoObject),
        ("{\"output\": null, \"calls\": []}", UnusableAnswer::Neither),
        ("{\"output\": null, \"calls\": null}", UnusableAnswer::Neither),
        ("{\"output\": \"half a sen", UnusableAnswer::Cut),
        ("{\"calls\": [{\"_tool\": \"files__read\", \"path\": \"/\"", UnusableAnswer::Cut),
    ] {
        let error = composed.decode(text).expect_err("unusable");
        assert_eq!(error, expect, "{text}");
        assert!(error.correction().contains("\"calls\""), "{}", error.correction());
    }
}

#[test]
fn malformed_and_cut_answers_are_parsed() {
    let composed = transport(None, &pair());
    for (text, complete) in [
        ("{\"output\": null, \"calls\": [{\"_tool\": \"files__read\", \"path\": \"a]}\"}]}", true),
        (
            "Sure: {a}\n```json\n{'output': None, 'calls': [{'_tool': 'files__read', 'path': 'a]}',},]}\n```\nDone {b}.",
            true,
        ),
        ("{output: null, calls: {_tool: \"files__read\", path: \"a]}\"}}", true),
        ("{\"calls\": [{\"_tool\": \"files__read\", \"path\": \"a]}\"}, {\"_tool\": \"files__read\", \"pa", false),
        ("{\"calls\": [{\"_tool\": \"files__read\", \"path\": \"a]}\"]}", true),
    ] {
        let read = composed.decode(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!((names(&read), read.complete), (vec![("files__read", r#"{"path":"a]}"}"#)], complete), "{text}");
    }
    let odd = composed.decode("{\"calls\": [\"files__read\", {\"path\": 1}]}").expect("usable");
    assert_eq!(names(&odd), [("", "files__read"), ("", "{\"path\":1}")]);
}

#[test]
fn a_call_is_emitted_as_its_item_closes() {
    let composed = transport(None, &pair());
    let (mut decoder, mut seen) = (composed.decoder(), Vec::new());
    for (piece, count) in
        [("{\"calls\": [{\"_tool\": \"files__read\", \"path\": \"}\"", 0), ("}", 1), (", {", 1), ("}", 2)]
    {
        decoder.feed(piece, &mut |call| seen.push(call.call.id.clone()));
        assert_eq!(seen.len(), count, "{piece}");
    }
    assert_eq!(seen, ["call_0", "call_1"]);
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from)
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-z_\"{]{0,8}", inner, 0..4).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

fn feed_in_pieces(
    transport: &Transport,
    text: &str,
    size: usize,
) -> (Vec<ComposedCall>, Result<Composed, UnusableAnswer>) {
    let (mut decoder, mut seen) = (transport.decoder(), Vec::new());
    let letters: Vec<char> = text.chars().collect();
    for piece in letters.chunks(size) {
        decoder.feed(&piece.iter().collect::<String>(), &mut |call| seen.push(call.clone()));
    }
    (seen, decoder.finish())
}

proptest! {
    #[test]
    fn composed_answers_validate_and_read_back(
        output in value(), open in proptest::collection::btree_map("_{0,2}(tool|output|[a-z]{0,4})", value(), 0..4),
        path in "\\PC{0,20}", why in "\\PC{0,10}", count in 0usize..4, size in 1usize..9,
    ) {
        let composed = transport(Some(&json!({})), &pair());
        let arguments = [json!({"path": path}), open.into_iter().collect()];
        let calls: Vec<ComposedCall> = (0..count).map(|number| ComposedCall {
            call: RawToolCall {
                id: format!("call_{number}"),
                name: pair()[number % 2].name.clone(),
                arguments: arguments[number % 2].to_string(),
            },
            reasoning: Some(why.clone()).filter(|why| !why.is_empty()),
            output: None,
        }).collect();
        let answer = Composed { output: Some(output).filter(|output| !output.is_null()), calls, complete: true };
        let text = composed.encode(&answer);
        prop_assert!(admits(&composed, &serde_json::from_str(&text).expect("JSON")), "{}", text);
        let (seen, read) = feed_in_pieces(&composed, &text, size);
        prop_assert_eq!(&seen, &answer.calls);
        let expect = if answer.output.is_none() && count == 0 { Err(UnusableAnswer::Neither) } else { Ok(answer) };
        prop_assert_eq!(&read, &expect);
        prop_assert_eq!(composed.decode(&text), expect);
    }

    #[test]
    fn chunking_does_not_change_the_result(text in "([{}\\[\\]:,\"' ]|output|calls|_tool|\\PC){0,60}", size in 1usize..9) {
        let composed = transport(None, &pair());
        let (seen, read) = feed_in_pieces(&composed, &text, size);
        prop_assert_eq!(&composed.decode(&text), &read);
        if let Ok(read) = read {
            prop_assert_eq!(seen, read.calls);
        }
    }
}
