//! Streams, decoded at every chunking.

use serde_json::{Value, json};
use toolwright_core::model::{
    Message, ModelError, ModelErrorKind, ModelEvent, ModelRequest, ModelResponse, RawToolCall, StopReason, Usage,
};
use toolwright_models::{Api, Decoder, EncodedTools, decode_whole, encode_with};

/// Decodes and checks that the pieces sum up to the answer.
fn decode(api: Api, bytes: &[u8], chunk: usize) -> Result<ModelResponse, ModelError> {
    let mut decoder = Decoder::new(api);
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    let mut sink = |event| match event {
        ModelEvent::Text(piece) => text.push_str(&piece),
        ModelEvent::Reasoning(piece) => reasoning.push_str(&piece),
        ModelEvent::Opaque(_) => {}
        ModelEvent::Call(call) => calls.push(call),
    };
    bytes.chunks(chunk).for_each(|piece| decoder.feed(piece, &mut sink));
    decoder.end(&mut sink);
    let answer = decoder.finish()?;
    assert_eq!((&answer.text, &answer.calls), (&text, &calls));
    assert!(reasoning.ends_with(&answer.reasoning));
    Ok(answer)
}

/// The same answer at every chunking.
pub(crate) fn decode_all(api: Api, stream: &str) -> ModelResponse {
    let whole = decode(api, stream.as_bytes(), stream.len()).unwrap();
    for chunk in 1..=64 {
        assert_eq!(decode(api, stream.as_bytes(), chunk).unwrap(), whole, "chunks of {chunk}");
    }
    whole
}

fn refused(api: Api, stream: &str) -> ModelError {
    let error = decode(api, stream.as_bytes(), stream.len().max(1)).unwrap_err();
    for chunk in 1..=64 {
        assert_eq!(decode(api, stream.as_bytes(), chunk).unwrap_err().kind, error.kind, "chunks of {chunk}");
    }
    error
}

/// The data of events as the stream that carried it.
pub(crate) fn sse(data: &str, done: bool) -> String {
    let mut stream: String =
        data.lines().filter(|line| !line.is_empty()).map(|line| format!("data: {line}\r\n\r\n")).collect();
    if done {
        stream.push_str("data: [DONE]\n\n");
    }
    stream
}

pub(crate) fn call(id: &str, name: &str, arguments: &str) -> RawToolCall {
    RawToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
}

pub(crate) fn usage(input_tokens: u64, output_tokens: u64, cached_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, cached_tokens, ..Usage::default() }
}

#[test]
fn calls_of_anthropic_streams_are_read() {
    let answer =
        decode_all(Api::Anthropic, &sse(include_str!("../fixtures/anthropic/text_then_call.chunks.txt"), false));
    assert_eq!(answer.text, "Looking up the harbour of Bergen.");
    let arguments = r#"{"ports": [{"name": "Bergen", "height_cm": 142, "rising": true}]}"#;
    assert_eq!(answer.calls, [call("toolu_1", "tide_table", arguments)]);
    assert_eq!((answer.stop, answer.usage), (StopReason::ToolCalls, usage(412, 61, 0)));

    let answer = decode_all(
        Api::Anthropic,
        &sse(include_str!("../fixtures/anthropic/call_without_arguments.chunks.txt"), false),
    );
    assert_eq!(answer.calls, [call("toolu_2", "list_tickets", "{}")]);
    assert_eq!(answer.usage, usage(318, 33, 0));
}

#[test]
fn restarted_message_replaces_the_first() {
    let answer =
        decode_all(Api::Anthropic, &sse(include_str!("../fixtures/anthropic/restarted_message.chunks.txt"), false));
    assert_eq!(answer.calls, [call("toolu_kept", "paint", r#"{"colour": "blue"}"#)]);
    assert_eq!(answer.reasoning, "Once more, whole.");
    assert_eq!(answer.opaque.len(), 1);
    assert_eq!(answer.opaque[0].data["item"]["signature"], "c2lnLWI=");
}

#[test]
fn calls_of_chat_streams_are_read() {
    let answer =
        decode_all(Api::OpenAiChat, &sse(include_str!("../fixtures/openai_chat/call_in_pieces.chunks.txt"), true));
    assert_eq!(answer.calls, [call("call_a1", "tide_table", r#"{"port": "Stavanger", "days": 3}"#)]);
    assert_eq!((answer.stop, answer.usage), (StopReason::ToolCalls, usage(210, 22, 192)));

    let answer =
        decode_all(Api::OpenAiChat, &sse(include_str!("../fixtures/openai_chat/call_at_once.chunks.txt"), true));
    assert_eq!(answer.calls, [call("D681PevKs", "tide_table", r#"{"port": "Bergen"}"#)]);
}

#[test]
fn calls_of_whole_answers_are_read() {
    let answer = decode_whole(Api::OpenAiChat, include_bytes!("../fixtures/openai_chat/call_at_once.json")).unwrap();
    assert_eq!(answer.calls, [call("D681PevKs", "tide_table", r#"{"port": "Bergen"}"#)]);

    let answer =
        decode_whole(Api::OpenAiChat, include_bytes!("../fixtures/openai_chat/reasoning_beside_the_answer.json"))
            .unwrap();
    assert_eq!(answer.calls, [call("call_x1", "tide_table", r#"{"port":"Bergen"}"#)]);
    assert!(answer.reasoning.starts_with("The question is about tides") && answer.text.is_empty());
    // xAI counts the reasoning beside the answer.
    assert_eq!(answer.usage, Usage { reasoning_tokens: 140, ..usage(180, 24 + 140, 64) });

    let answer =
        decode_whole(Api::Anthropic, include_bytes!("../fixtures/anthropic/call_without_arguments.json")).unwrap();
    assert_eq!((answer.calls.len(), answer.stop), (1, StopReason::ToolCalls));
    assert_eq!((answer.calls[0].name.as_str(), answer.calls[0].arguments.as_str()), ("list_tickets", "{}"));
}

/// What an answer used by these figures, whole and streamed.
fn check_usage(api: Api, figures: &Value, expect: Usage) {
    let (whole, stream) = match api {
        Api::OpenAiChat => {
            let choice = json!({"index": 0, "message": {"content": "a"}, "finish_reason": "stop"});
            let end = json!({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]});
            let used = json!({"choices": [], "usage": figures});
            (json!({"choices": [choice], "usage": figures}), format!("{end}\n{used}"))
        }
        _ => {
            let response = json!({"object": "response", "status": "completed", "output": [], "usage": figures});
            let end = json!({"type": "response.completed", "response": response});
            (response, end.to_string())
        }
    };
    assert_eq!(decode_whole(api, whole.to_string().as_bytes()).unwrap().usage, expect, "{figures}");
    assert_eq!(decode_all(api, &sse(&stream, api == Api::OpenAiChat)).usage, expect, "{figures}");
}

#[test]
fn reasoning_tokens_count_as_output_tokens() {
    // (prompt, cached, answer, reasoning, all) -> tokens of the answer, and of its reasoning
    for (prompt, cached, answer, reasoning, all, expect) in [
        // OpenAI: among those of the answer.
        (32, Some(6), 103, Some(94), Some(135), (103, 94)),
        // xAI: beside them.
        (32, Some(6), 9, Some(94), Some(135), (103, 94)),
        (21, None, 0, Some(60), Some(81), (60, 60)),
        // Google under OpenAI's names says only how many there are of all.
        (9, None, 3, None, Some(105), (96, 93)),
        (9, None, 3, None, Some(12), (3, 0)),
        // Other sums mean nothing that is known.
        (32, Some(6), 9, None, Some(135), (9, 0)),
        (32, Some(6), 9, Some(0), Some(135), (9, 0)),
        (32, Some(6), 9, Some(90), Some(135), (9, 9)),
        (32, Some(6), 103, Some(94), None, (103, 94)),
        (32, None, 103, None, None, (103, 0)),
        (32, None, 103, None, Some(0), (103, 0)),
    ] {
        let details = |name: &str, value: Option<u64>| value.map_or(Value::Null, |value| json!({name: value}));
        let chat = json!({"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": all,
            "prompt_tokens_details": details("cached_tokens", cached),
            "completion_tokens_details": details("reasoning_tokens", reasoning)});
        let responses = json!({"input_tokens": prompt, "output_tokens": answer, "total_tokens": all,
            "input_tokens_details": details("cached_tokens", cached),
            "output_tokens_details": details("reasoning_tokens", reasoning)});
        let (output_tokens, reasoning_tokens) = expect;
        let expect = Usage { reasoning_tokens, ..usage(prompt, output_tokens, cached.unwrap_or(0)) };
        check_usage(Api::OpenAiChat, &chat, expect);
        check_usage(Api::OpenAiResponses, &responses, expect);
    }
}

#[test]
fn ollama_lines() {
    let stream = concat!(
        r#"{"model":"qwen3","message":{"role":"assistant","content":"","thinking":"Hm. "},"done":false}"#,
        "\n",
        r#"{"model":"qwen3","message":{"role":"assistant","content":"Ünder"},"done":false}"#,
        "\n",
        r#"{"model":"qwen3","message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"a","arguments":{"z":1,"a":[2]}}}]},"done":false}"#,
        "\n",
        r#"{"model":"qwen3","message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"b","arguments":{}}}]},"done":false}"#,
        "\n",
        r#"{"model":"qwen3","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","prompt_eval_count":26,"eval_count":83}"#,
    );
    let answer = decode_all(Api::Ollama, stream);
    assert_eq!((answer.text.as_str(), answer.reasoning.as_str()), ("Ünder", "Hm. "));
    assert_eq!(answer.calls, [call("call_0", "a", r#"{"z":1,"a":[2]}"#), call("call_1", "b", "{}")]);
    assert_eq!((answer.stop, answer.usage), (StopReason::ToolCalls, usage(26, 83, 0)));
    assert_eq!(answer.opaque[0].data["item"]["thinking"], "Hm. ");
}

#[test]
fn calls_differ_by_index_or_id() {
    let chunk = |calls: &str| format!(r#"{{"choices":[{{"index":0,"delta":{{"tool_calls":[{calls}]}}}}]}}"#);
    let end = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let interleaved = [
        chunk(
            r#"{"index":0,"id":"x","function":{"name":"a","arguments":""}},{"index":1,"id":"y","function":{"name":"b","arguments":""}}"#,
        ),
        chunk(r#"{"index":1,"function":{"arguments":"{}"}},{"index":0,"function":{"arguments":"[]"}}"#),
        end.into(),
    ];
    let answer = decode_all(Api::OpenAiChat, &sse(&interleaved.join("\n"), true));
    assert_eq!(answer.calls, [call("x", "a", "[]"), call("y", "b", "{}")]);
    assert_eq!(answer.stop, StopReason::ToolCalls);

    let same_index = [
        chunk(r#"{"index":0,"id":"x","function":{"name":"a","arguments":"{}"}}"#),
        chunk(r#"{"index":0,"id":"x2","function":{"name":"b","arguments":{"k":1}}}"#),
        chunk(r#"{"function":{"name":"c","arguments":"{}"}}"#),
        end.into(),
    ];
    let answer = decode_all(Api::OpenAiChat, &sse(&same_index.join("\n"), true));
    assert_eq!(answer.calls, [call("x", "a", "{}"), call("x2", "b", r#"{"k":1}"#), call("call_2", "c", "{}")]);
}

#[test]
fn whole_chat_call_leaves_when_next_begins() {
    let piece = |index: u32, name: &str, arguments: &str| {
        let function = json!({"name": name, "arguments": arguments});
        let delta = json!({"tool_calls": [{"index": index, "id": format!("{name}{index}"), "function": function}]});
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta}]}))
    };
    let more = |index: u32, arguments: &str| {
        let delta = json!({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]});
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta}]}))
    };
    let check = |pieces: &[String], out: usize| {
        let mut decoder = Decoder::new(Api::OpenAiChat);
        let mut calls = 0;
        for piece in pieces {
            decoder.feed(piece.as_bytes(), &mut |event| calls += usize::from(matches!(event, ModelEvent::Call(_))));
        }
        assert_eq!(calls, out, "{pieces:?}");
    };
    check(&[piece(0, "a", "{\"x\": 1}")], 0);
    check(&[piece(0, "a", "{\"x\":"), more(0, "1}"), piece(1, "b", "")], 1);
    // Pieces that come in turns: nothing is whole when the second begins.
    check(&[piece(0, "a", ""), piece(1, "b", ""), more(0, "{}"), more(1, "{}")], 0);
    check(&[piece(0, "a", "{\"x\":"), piece(1, "b", "{}"), piece(2, "c", "")], 0);
}

#[test]
fn cut_call_is_dropped_malformed_one_kept() {
    let chat = |reason: &str| {
        sse(
            &format!(
                "{}\n{}",
                r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"a","arguments":"{\"k"}}]}}]}"#,
                format_args!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}]}}"#)
            ),
            true,
        )
    };
    let cut = decode_all(Api::OpenAiChat, &chat("length"));
    assert_eq!((cut.calls.len(), cut.stop), (0, StopReason::MaxTokens));
    let malformed = decode_all(Api::OpenAiChat, &chat("tool_calls"));
    assert_eq!(malformed.calls, [call("x", "a", "{\"k")]);
}

#[test]
fn empty_arguments_and_cut_arguments_differ() {
    let stream = |reason: &str| {
        let start = |index: u64, input: &str| {
            format!(
                r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"tool_use","id":"t{index}","name":"a","input":{input}}}}}"#
            )
        };
        let stop = |index: u64| format!(r#"{{"type":"content_block_stop","index":{index}}}"#);
        let events = [
            r#"{"type":"message_start","message":{}}"#.to_owned(),
            start(0, r#"{"whole":1}"#),
            stop(0),
            start(1, "{}"),
            stop(1),
            format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}"}},"usage":{{}}}}"#),
            r#"{"type":"message_stop"}"#.to_owned(),
        ];
        decode_all(Api::Anthropic, &sse(&events.join("\n"), false)).calls
    };
    let whole = call("t0", "a", r#"{"whole":1}"#);
    assert_eq!(stream("tool_use"), [whole.clone(), call("t1", "a", "{}")]);
    assert_eq!(stream("max_tokens"), [whole]);
}

#[test]
fn cut_responses_item_is_no_call() {
    let body = r#"{"object":"response","status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[
        {"type":"function_call","call_id":"c1","name":"a","arguments":"{}","status":"completed"},
        {"type":"function_call","call_id":"c2","name":"a","arguments":"{}","status":"incomplete"},
        {"type":"shell_call","call_id":"c3","action":{"commands":["ls"]},"status":"incomplete"},
        {"type":"computer_call","call_id":"c4","actions":[{"type":"click"}],"status":"completed"}]}"#;
    let answer = decode_whole(Api::OpenAiResponses, body.as_bytes()).unwrap();
    assert_eq!((answer.calls, answer.stop), (vec![call("c1", "a", "{}")], StopReason::MaxTokens));
    assert_eq!(answer.other_calls.len(), 1);
    assert_eq!(answer.other_calls[0].input[0]["type"], "click");
}

#[test]
fn calls_of_custom_tools_are_other_calls() {
    let body = r#"{"choices":[{"index":0,"message":{"content":null,"tool_calls":[
        {"id":"c1","type":"custom","custom":{"name":"sql","input":"SELECT {"}},
        {"id":"c2","type":"function","function":{"name":"a","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}"#;
    let answer = decode_whole(Api::OpenAiChat, body.as_bytes()).unwrap();
    assert_eq!(answer.calls, [call("c2", "a", "{}")]);
    let other = &answer.other_calls[0];
    assert_eq!((other.kind.as_str(), other.name.as_deref(), &other.input), ("custom", Some("sql"), &"SELECT {".into()));
}

#[test]
fn error_body_is_an_error_everywhere() {
    for api in Api::ALL {
        for (body, kind) in [
            (
                r#"{"error":{"message":"no: busy","type":"rate_limit_error","code":"rate_limit"}}"#,
                ModelErrorKind::RateLimit,
            ),
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"no: busy"}}"#,
                ModelErrorKind::Unavailable,
            ),
            (r#"[{"error":{"code":503,"message":"no: busy","status":"UNAVAILABLE"}}]"#, ModelErrorKind::Unavailable),
            (r#"{"error":"no: busy"}"#, ModelErrorKind::Unavailable),
            (r#"{"object":"error","message":"no: busy","type":"invalid_request_error"}"#, ModelErrorKind::Invalid),
            (r#"{"detail":"no: busy"}"#, ModelErrorKind::Unavailable),
        ] {
            let error = decode_whole(api, body.as_bytes()).unwrap_err();
            assert!(error.kind == kind && error.message.contains("no: busy"), "{api} {body}: {error}");
            assert!(error.partial.is_none());
        }
        for nothing in ["<html>oops</html>", "{}", "[]", "null", ""] {
            assert_eq!(
                decode_whole(api, nothing.as_bytes()).unwrap_err().kind,
                ModelErrorKind::BadResponse,
                "{api} {nothing}"
            );
        }
    }
}

#[test]
fn wrapped_schema_is_undone_and_redone() {
    use std::sync::Arc;
    use toolwright_core::model::RequestTool;
    use toolwright_models::dialect::{Dialect, translate};
    let parameters =
        json!({"anyOf": [{"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"]}]});
    let tool = RequestTool { name: "a".into(), parameters, ..RequestTool::default() };
    let set = translate(Dialect::Anthropic, &[tool], false);
    let wrapper = set.tools[0].wrapped.expect("wrapped");
    let mut decoder = Decoder::detecting(Api::Anthropic).with_tools(Arc::new(set.clone()));
    let body = r#"{"type":"message","content":[{"type":"tool_use","id":"t","name":"a","input":{"WRAPPER":{"k":1}}}],"stop_reason":"tool_use"}"#;
    decoder.feed(body.replace("WRAPPER", wrapper).as_bytes(), &mut |_| {});
    let calls = decoder.finish().unwrap().calls;
    assert_eq!(calls, [call("t", "a", r#"{"k":1}"#)]);
    let past = Message::Assistant { text: String::new(), calls, opaque: vec![] };
    let request = ModelRequest { messages: vec![Message::user("go"), past], ..ModelRequest::default() };
    let body = encode_with(&request, "m", &EncodedTools::of(Api::Anthropic, set)).body();
    assert_eq!(body["messages"][1]["content"][0]["input"], json!({wrapper: {"k": 1}}));
}

#[test]
fn a_broken_stream_reports_its_kept_part() {
    let streams = [
        (Api::Anthropic, sse(include_str!("../fixtures/anthropic/text_then_call.chunks.txt"), false)),
        (Api::OpenAiChat, sse(include_str!("../fixtures/openai_chat/call_in_pieces.chunks.txt"), false)),
        (
            Api::Ollama,
            "{\"message\":{\"content\":\"a\"},\"done\":false}\n{\"message\":{\"content\":\"\"},\"done\":true}\n".into(),
        ),
    ];
    for (api, stream) in streams {
        let end = stream
            .rfind(if api == Api::Anthropic { "message_stop" } else { "tool_calls\"" })
            .or(stream.rfind("true"))
            .unwrap();
        for at in (0..end).step_by(7) {
            let error = decode(api, &stream.as_bytes()[..at], 5).unwrap_err();
            assert_eq!(error.kind, ModelErrorKind::BadResponse);
            let reported = ["broke off", "holds no"].iter().any(|part| error.message.contains(part));
            assert!(reported || at == 0, "{error}");
            let partial = error.partial.map(|partial| *partial).unwrap_or_default();
            let kept = !partial.text.is_empty() || !partial.reasoning.is_empty() || !partial.calls.is_empty();
            assert_eq!(error.message.contains("kept as a partial answer"), kept, "{}", error.message);
        }
    }
}

#[test]
fn errors_inside_a_stream_are_that_error() {
    let anthropic = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    assert_eq!(refused(Api::Anthropic, anthropic).kind, ModelErrorKind::Unavailable);
    let chat = "data: {\"error\":{\"message\":\"maximum context length\",\"type\":\"invalid_request_error\",\"code\":\"context_length_exceeded\"}}\n\n";
    assert_eq!(refused(Api::OpenAiChat, chat).kind, ModelErrorKind::ContextOverflow);
    assert_eq!(
        refused(Api::Ollama, "{\"error\":\"model runner has unexpectedly stopped\"}\n").kind,
        ModelErrorKind::Unavailable
    );
    let spliced = "data: {\"type\":\"message_start\",\"message\":{}}\n\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"a\"}}\n\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n";
    assert_eq!(refused(Api::Anthropic, spliced).kind, ModelErrorKind::BadResponse);
    let nonsense = refused(Api::OpenAiChat, "data: <html>\n\n");
    assert!(nonsense.kind == ModelErrorKind::BadResponse && nonsense.message.contains("<html>"), "{nonsense}");
}
