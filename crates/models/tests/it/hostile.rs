//! Answers that break the rules of an API: sloppy servers, hostile ones, and arbitrary bytes.

use proptest::prelude::*;
use serde_json::{Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{
    CallResult, MAX_TOKENS, Message, ModelError, ModelErrorKind, ModelEvent, ModelRequest, RawToolCall, RequestTool,
    Usage,
};
use toolwright_models::{Api, Decoder, decode_whole, encode};

use crate::streams::{call, decode_all, sse, usage};

#[test]
fn malformed_and_cut_ends_differ() {
    let check = |api: Api, bytes: &str, part: &str| {
        for chunk in [1, 7, bytes.len()] {
            let mut decoder = Decoder::detecting(api);
            bytes.as_bytes().chunks(chunk).for_each(|piece| decoder.feed(piece, &mut |_| {}));
            let error = decoder.finish().unwrap_err();
            assert!(error.kind == ModelErrorKind::BadResponse && error.message.contains(part), "{bytes}: {error}");
        }
    };
    for (malformed, api) in [
        (r#"{"choices": [{"message": {"content": "a"}, "finish_reason": oops}]}"#, Api::OpenAiChat),
        ("{\n\"choices\": [{\"message\": {\"content\": \"a\"},, }]\n}", Api::OpenAiChat),
        (r#"{"type": "message", "content": [{"type": "text", "text": "\x"}]}"#, Api::Anthropic),
        (r#"{"message": {"content": 'a'}, "done": true}"#, Api::Ollama),
        ("data: {\"choices\": nothing}", Api::OpenAiChat),
    ] {
        check(api, malformed, "holds something that is no");
    }
    let whole = r#"{"choices": [{"message": {"content": "aé", "n": [true, 15]}, "finish_reason": "stop"}]}"#;
    for end in (1..whole.len()).filter(|end| whole.is_char_boundary(*end)) {
        check(Api::OpenAiChat, &whole[..end], "broke off");
        check(Api::OpenAiChat, &format!("data: {}", &whole[..end]), "broke off");
        // A line whose last brackets alone are missing is mended.
        if end < whole.len() - "}]}".len() {
            check(Api::OpenAiChat, &format!("{}\n", &whole[..end]), "broke off");
        }
    }
    for end in 1..6 {
        for line in ["{\"choices\": []}\n", "data: {\"choices\": []}\n\ndata: "] {
            check(Api::OpenAiChat, &format!("{line}{}", &"[DONE]"[..end]), "broke off");
        }
    }
}

#[test]
fn leading_byte_order_mark_is_skipped() {
    let whole = r#"{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}"#;
    let lines = "{\"message\":{\"content\":\"a\"}}\n{\"done\":true}\n";
    let events = format!("data: {whole}\n\n");
    for (api, text) in [(Api::OpenAiChat, whole), (Api::OpenAiChat, events.as_str()), (Api::Ollama, lines)] {
        let marked = format!("\u{feff}{text}");
        for chunk in 1..=8 {
            let mut decoder = Decoder::detecting(api);
            marked.as_bytes().chunks(chunk).for_each(|piece| decoder.feed(piece, &mut |_| {}));
            assert_eq!(decoder.finish().unwrap().text, "a", "{marked} in chunks of {chunk}");
        }
    }
    assert_eq!(decode_all(Api::Ollama, &format!("\u{feff}{lines}")).text, "a");
}

#[test]
fn unusual_usage_figures_are_kept() {
    let check = |api: Api, events: &[&str], text: &str, calls: &[RawToolCall]| {
        let answer = decode_all(api, &sse(&events.join("\n"), false));
        assert_eq!((answer.text.as_str(), answer.calls.as_slice()), (text, calls), "{events:?}");
    };
    let two = [call("x", "a", "{}"), call("y", "b", r#"{"k":1}"#)];
    check(
        Api::OpenAiChat,
        &[
            r#"{"choices":[{"index":null,"delta":{"content":"T"}}]}"#,
            r#"{"choices":[{"index":"0","delta":{"tool_calls":[{"index":"0","id":"x","function":{"name":"a","arguments":"{"}},{"index":"1","id":"y","function":{"name":"b","arguments":"{\"k\""}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":"0","function":{"arguments":"}"}},{"index":"1","function":{"arguments":":1}"}}]}}]}"#,
            r#"{"choices":[{"index":{},"delta":{},"finish_reason":"tool_calls"}]}"#,
        ],
        "T",
        &two,
    );
    check(
        Api::OpenAiResponses,
        &[
            r#"{"type":"response.output_text.delta","output_index":null,"delta":"T"}"#,
            r#"{"type":"response.output_item.done","output_index":"1","item":{"type":"function_call","call_id":"x","name":"a","arguments":"{}"}}"#,
            r#"{"type":"response.completed","response":{"status":"completed"}}"#,
        ],
        "T",
        &two[..1],
    );
    check(
        Api::Anthropic,
        &[
            r#"{"type":"content_block_start","index":null,"content_block":{"type":"text","text":"T"}}"#,
            r#"{"type":"content_block_stop","index":null}"#,
            r#"{"type":"content_block_start","index":"1","content_block":{"type":"tool_use","id":"x","name":"a"}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"partial_json":"{}"}}"#,
            r#"{"type":"content_block_stop","index":"1"}"#,
            r#"{"type":"message_stop"}"#,
        ],
        "T",
        &two[..1],
    );
    check(
        Api::Gemini,
        &[
            r#"{"candidates":[{"index":null,"content":{"parts":[{"text":"T","thought":null},{"functionCall":{"id":"x","name":"a","args":{},"willContinue":0}}]}}]}"#,
            r#"{"candidates":[{"index":"0","finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":"7","candidatesTokenCount":1.5}}"#,
        ],
        "T",
        &two[..1],
    );
    let line = r#"{"message":{"content":"T"},"done":true,"eval_count":"9","prompt_eval_count":-1}"#;
    let answer = decode_all(Api::Ollama, line);
    assert_eq!((answer.text.as_str(), answer.usage), ("T", usage(0, 9, 0)));
}

#[test]
fn the_first_of_several_answers_counts() {
    let chat = |first: &str, second: &str| {
        format!(
            r#"{{"choices":[{{{first}"message":{{"content":"a"}},"finish_reason":"stop"}},{{{second}"message":{{"content":"b"}},"finish_reason":"stop"}}]}}"#
        )
    };
    for (first, second) in [("", ""), (r#""index":null,"#, r#""index":null,"#), (r#""index":0,"#, r#""index":1,"#)] {
        let answer = decode_whole(Api::OpenAiChat, chat(first, second).as_bytes()).unwrap();
        assert_eq!(answer.text, "a", "{first} {second}");
    }
    let candidates = r#"{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"},{"content":{"parts":[{"text":"b"}]},"finishReason":"STOP"}]}"#;
    assert_eq!(decode_whole(Api::Gemini, candidates.as_bytes()).unwrap().text, "a");
}

/// Feeds `events` and expects a `BadResponse`; what was given out is what was kept.
fn refused(api: Api, events: &[String]) -> ModelError {
    let mut decoder = Decoder::new(api);
    let (mut text, mut calls) = (String::new(), 0);
    let mut sink = |event| match event {
        ModelEvent::Text(piece) => text.push_str(&piece),
        ModelEvent::Call(_) => calls += 1,
        ModelEvent::Reasoning(_) | ModelEvent::Opaque(_) => {}
    };
    events.iter().for_each(|event| decoder.feed(format!("data: {event}\n\n").as_bytes(), &mut sink));
    let error = decoder.finish().unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::BadResponse);
    let kept = error.partial.as_deref().map(|partial| (partial.text.as_str(), partial.calls.len()));
    assert_eq!(kept.unwrap_or_default(), (text.as_str(), calls));
    error
}

#[test]
fn a_block_that_is_no_object_is_refused() {
    for block in ["7", r#"["x","","","","",{}]"#] {
        refused(
            Api::Anthropic,
            &[
                format!(r#"{{"type":"content_block_start","content_block":{block}}}"#),
                r#"{"type":"content_block_delta","delta":{"partial_json":"{}"}}"#.into(),
                r#"{"type":"content_block_stop"}"#.into(),
                r#"{"type":"message_stop"}"#.into(),
            ],
        );
    }
}

#[test]
fn open_blocks_are_bounded() {
    let check = |api: Api, begin: &dyn Fn(usize) -> String| {
        let events: Vec<_> = (0..2000).map(begin).collect();
        let error = refused(api, &events);
        assert!(error.message.contains("more than 1024"), "{error}");
    };
    check(Api::OpenAiChat, &|n| {
        format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":{n},"function":{{"name":"f"}}}}]}}}}]}}"#)
    });
    check(Api::OpenAiResponses, &|n| {
        format!(r#"{{"type":"response.output_item.added","output_index":{n},"item":{{"type":"function_call"}}}}"#)
    });
    check(Api::Anthropic, &|n| format!(r#"{{"type":"content_block_start","index":{n},"content_block":{{}}}}"#));
    check(Api::Gemini, &|n| format!(r#"{{"event_type":"step.start","index":{n},"step":{{"type":"function_call"}}}}"#));
}

#[test]
fn calls_and_items_are_bounded() {
    let parts = vec!["{}"; 70_000].join(",");
    let event = format!(r#"{{"candidates":[{{"content":{{"parts":[{parts}]}},"finishReason":"STOP"}}]}}"#);
    let error = refused(Api::Gemini, &[event]);
    assert!(error.message.contains("more than 65536"), "{error}");
    let call = r#"{"message":{"tool_calls":[{"function":{"name":"a"}}]}}"#;
    assert!(decode_whole(Api::Ollama, vec![call; 70_000].join("\n").as_bytes()).is_err());
}

#[test]
fn implausible_usage_figures_are_ignored() {
    const MOST: Usage = Usage {
        input_tokens: MAX_TOKENS,
        output_tokens: MAX_TOKENS,
        cached_tokens: MAX_TOKENS,
        cache_written_tokens: MAX_TOKENS,
        reasoning_tokens: MAX_TOKENS,
    };
    const NO_REASONING: Usage = Usage { reasoning_tokens: 0, ..MOST };
    for count in [MAX_TOKENS + 1, i64::MAX.cast_unsigned(), u64::MAX] {
        for (api, answer, most) in [
            (
                Api::OpenAiChat,
                json!({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": count, "completion_tokens": count, "total_tokens": count,
                        "prompt_tokens_details": {"cached_tokens": count, "cache_write_tokens": count},
                        "completion_tokens_details": {"reasoning_tokens": count}}}),
                MOST,
            ),
            (
                Api::OpenAiResponses,
                json!({"object": "response", "status": "completed", "output": [],
                    "usage": {"input_tokens": count, "output_tokens": count, "total_tokens": count,
                        "input_tokens_details": {"cached_tokens": count, "cache_write_tokens": count}}}),
                NO_REASONING,
            ),
            (
                Api::Anthropic,
                json!({"type": "message", "content": [], "stop_reason": "end_turn",
                    "usage": {"input_tokens": count, "output_tokens": count, "cache_read_input_tokens": count,
                        "cache_creation_input_tokens": count}}),
                NO_REASONING,
            ),
            (
                Api::Gemini,
                json!({"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}],
                    "usageMetadata": {"promptTokenCount": count, "candidatesTokenCount": count,
                        "thoughtsTokenCount": count, "cachedContentTokenCount": count}}),
                Usage { cache_written_tokens: 0, ..MOST },
            ),
            (
                Api::Ollama,
                json!({"message": {"content": "a"}, "done": true, "prompt_eval_count": count, "eval_count": count}),
                Usage { cache_written_tokens: 0, cached_tokens: 0, ..NO_REASONING },
            ),
        ] {
            let answer = decode_whole(api, answer.to_string().as_bytes()).unwrap();
            assert_eq!(answer.usage, most, "{api} {count}");
        }
        // Nor those of an answer that broke off.
        let cut = json!({"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": count}});
        let error = refused(Api::OpenAiChat, &[cut.to_string()]);
        assert_eq!(error.usage.input_tokens, MAX_TOKENS);
        assert_eq!(error.partial.map(|partial| partial.usage.input_tokens), Some(MAX_TOKENS));
    }
}

/// Fragments that get past the first hurdles of the decoders.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        prop_oneof![
            Just("\n"), Just("\r\n\r\n"), Just("data: "), Just("data: [DONE]\n\n"), Just("{}\n\n"), Just("{\"error\":null}\n"),
            Just("data: {\"type\":\"message_start\",\"message\":{}}\n\n"),
            Just("data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\"}}\n\n"),
            Just("data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":7}\n\n"),
            Just("data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\"}}\n\n"),
            Just("data: {\"type\":\"content_block_stop\",\"index\":0}\n\n"),
            Just("data: {\"type\":\"message_stop\"}\n\n"),
            Just("data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":9}]},\"finish_reason\":\"length\"}]}\n\n"),
            Just("data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"function_call\"}}\n\n"),
            Just("data: {\"type\":\"response.function_call_arguments.delta\",\"output_index\":0,\"delta\":\"{}\"}\n\n"),
            Just("data: {\"type\":\"response.output_item.done\",\"output_index\":0,\"item\":{\"type\":\"shell_call\",\"action\":[1]}}\n\n"),
            Just("data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n"),
            Just("{\"candidates\":[{\"content\":{\"parts\":[{\"functionCall\":{\"name\":\"a\",\"willContinue\":true}},{\"text\":\"t\",\"thoughtSignature\":\"s\"},{\"new\":1}]}}]}\n"),
            Just("data: {\"candidates\":[{\"content\":{\"parts\":[{\"functionCall\":{\"partialArgs\":[{\"jsonPath\":\"$.a[3].b\",\"stringValue\":\"x\",\"willContinue\":true}],\"willContinue\":true}}]}}]}\n\n"),
            Just("{\"candidates\":[{\"finishReason\":\"STOP\"}]}\n"), Just("[{\"done\":true},\n"), Just("{\"a\":[{"), Just("}]"),
            Just("{\"event_type\":\"step.start\",\"index\":0,\"step\":{\"type\":\"function_call\"}}\n"),
            Just("{\"event_type\":\"step.stop\",\"index\":0}\n"), Just("{\"event_type\":\"interaction.completed\"}\n"),
            Just("{\"message\":{\"tool_calls\":[{\"function\":{\"name\":\"\"}}]},\"done\":true}\n"),
        ]
        .prop_map(|text| text.as_bytes().to_vec()),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["\\PC{0,12}", Just(String::new()), Just(" \n".into()), Just("call_1".into()), Just("{\"a\":1}".into())]
}

fn message() -> impl Strategy<Value = Message> {
    let block = prop_oneof![
        text().prop_map(ContentBlock::text),
        (text(), prop_oneof![Just("image/png"), Just("x")]).prop_map(|(data, media)| ContentBlock::image(data, media)),
    ];
    let blocks = proptest::collection::vec(block, 0..3);
    let call = (text(), text(), text()).prop_map(|(id, name, arguments)| RawToolCall { id, name, arguments });
    let result = (text(), text(), blocks.clone(), any::<bool>()).prop_map(|(call_id, name, content, is_error)| {
        CallResult { call_id, name, content, is_error, loads: Vec::new() }
    });
    prop_oneof![
        blocks.prop_map(|content| Message::User { content }),
        (text(), proptest::collection::vec(call, 0..3)).prop_map(|(text, calls)| Message::Assistant {
            text,
            calls,
            opaque: vec![]
        }),
        proptest::collection::vec(result, 0..3).prop_map(|results| Message::Tool { results }),
    ]
}

proptest! {
    #[test]
    fn decoders_take_anything(fragments in proptest::collection::vec(fragment(), 0..12), chunk in 1usize..20) {
        let bytes = fragments.concat();
        for api in Api::ALL {
            for make in [Decoder::new, Decoder::detecting] {
                let mut decoder = make(api);
                for piece in bytes.chunks(chunk) {
                    decoder.feed(piece, &mut |_| {});
                }
                let mut whole = make(api);
                whole.feed(&bytes, &mut |_| {});
                match (decoder.finish(), whole.finish()) {
                    (Ok(chunked), Ok(whole)) => prop_assert_eq!(chunked, whole),
                    (Err(chunked), Err(whole)) => {
                        prop_assert_eq!(chunked.kind, whole.kind);
                        prop_assert_eq!(chunked.partial, whole.partial);
                    }
                    (chunked, whole) => prop_assert!(false, "{chunked:?} but whole {whole:?}"),
                }
            }
        }
    }

    /// By the same rules as the scripted server, which are those of the APIs.
    #[test]
    fn any_history_is_legal(messages in proptest::collection::vec(message(), 1..8), bad_schema in prop_oneof![Just(Value::Null), Just(serde_json::json!({"oneOf": [1], "properties": 3}))]) {
        let tools = vec![RequestTool { name: "t".into(), parameters: bad_schema, ..RequestTool::default() }];
        for tools in [tools, vec![]] {
            let request = ModelRequest { system: " ".into(), messages: messages.clone(), tools: tools.into(), ..ModelRequest::default() };
            for (api, wire) in crate::http::client::PAIRS {
                let encoded = encode(api, &request, "m");
                let body = encoded.body();
                let empty = |key: &str| body[key].as_array().is_some_and(Vec::is_empty);
                if !["messages", "input", "contents"].into_iter().any(empty) {
                    let checked = wire.check(&body);
                    prop_assert!(checked.is_ok(), "{api}: {checked:?}\n{body}");
                }
            }
        }
    }
}
