//! Why an answer ended, in the words of each API, and that a call which was cut never comes out.

use serde_json::{Value, json};
use toolwright_core::model::StopReason::{self, End, MaxTokens, Refusal, StopSequence, ToolCalls};
use toolwright_models::served::{self, ResponseHead, ResponseWriter, ServedApi};
use toolwright_models::{Api, decode_whole};

use crate::streams::{decode_all, sse};

fn other(word: &str) -> StopReason {
    StopReason::Other(word.into())
}

fn check(api: Api, whole: &Value, expect: &StopReason) {
    let answer = decode_whole(api, whole.to_string().as_bytes()).unwrap();
    assert_eq!(answer.stop, *expect, "{whole}");
}

#[test]
fn finish_reasons_of_each_api() {
    for (word, expect) in
        [("stop", End), ("length", MaxTokens), ("content_filter", Refusal), ("tool_calls", End), ("odd", other("odd"))]
    {
        let body = json!({"choices": [{"message": {"content": "a"}, "finish_reason": word}]});
        check(Api::OpenAiChat, &body, &expect);
    }
    for (word, expect) in [
        ("end_turn", End),
        ("stop_sequence", StopSequence(None)),
        ("max_tokens", MaxTokens),
        ("refusal", Refusal),
        ("model_context_window_exceeded", MaxTokens),
        ("pause_turn", other("pause_turn")),
    ] {
        let content = json!([{"type": "text", "text": "a"}]);
        check(Api::Anthropic, &json!({"type": "message", "content": content, "stop_reason": word}), &expect);
    }
    let used = json!([{"type": "tool_use", "id": "x", "name": "a", "input": {}}]);
    check(Api::Anthropic, &json!({"type": "message", "content": used, "stop_reason": "tool_use"}), &ToolCalls);
    for (details, expect) in [
        (json!({"reason": "max_output_tokens"}), MaxTokens),
        (json!({"reason": "content_filter"}), Refusal),
        (Value::Null, MaxTokens),
        (json!({"reason": "odd"}), other("odd")),
    ] {
        let body = json!({"object": "response", "status": "incomplete", "output": [], "incomplete_details": details});
        check(Api::OpenAiResponses, &body, &expect);
    }
    for (word, expect) in [
        ("STOP", End),
        ("MAX_TOKENS", MaxTokens),
        ("SAFETY", Refusal),
        ("PROHIBITED_CONTENT", Refusal),
        ("MALFORMED_FUNCTION_CALL", other("MALFORMED_FUNCTION_CALL")),
        ("OTHER", other("OTHER")),
    ] {
        check(Api::Gemini, &json!({"candidates": [{"content": {"parts": []}, "finishReason": word}]}), &expect);
    }
    check(Api::Gemini, &json!({"promptFeedback": {"blockReason": "SAFETY"}}), &Refusal);
}

/// Whole and streamed, the text that ended an answer is read where the API tells it, and a client of Messages is told.
#[test]
fn reported_stop_sequences_reach_clients() {
    let stop_reason = StopSequence(Some("END".into()));
    let said = json!([{"type": "text", "text": "a"}]);
    let chat = |key: &str, end: Value| json!({"choices": [{"index": 0, key: {"content": "a"}, "finish_reason": "stop", "stop_reason": end}]});
    for (api, whole, events, expect) in [
        (
            Api::Anthropic,
            json!({"type": "message", "content": said, "stop_reason": "stop_sequence", "stop_sequence": "END"}),
            vec![
                json!({"type": "message_start", "message": {}}),
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}}),
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"}}),
                json!({"type": "message_stop"}),
            ],
            stop_reason.clone(),
        ),
        (Api::OpenAiChat, chat("message", json!("END")), vec![chat("delta", json!("END"))], stop_reason),
        (Api::OpenAiChat, chat("message", json!(2)), vec![chat("delta", Value::Null)], End),
    ] {
        check(api, &whole, &expect);
        let lines: Vec<String> = events.iter().map(Value::to_string).collect();
        let stop = decode_all(api, &sse(&lines.join("\n"), false)).stop;
        assert_eq!(stop, expect, "{api}");
        let mut writer = ResponseWriter::new(ServedApi::Messages, ResponseHead::default());
        let stream = writer.begin() + &writer.end(served::ResponseEnd { stop, ..served::ResponseEnd::default() });
        let (reason, sequence) =
            if expect == End { ("end_turn", Value::Null) } else { ("stop_sequence", json!("END")) };
        let written = json!({"stop_reason": reason, "stop_sequence": sequence});
        assert!(stream.contains(&format!("\"delta\":{written}")), "{stream}");
        let body = writer.body();
        assert_eq!((&body["stop_reason"], &body["stop_sequence"]), (&json!(reason), &sequence));
    }
}

#[test]
fn cut_and_filtered_calls_are_not_emitted() {
    let names = |api: Api, events: &[Value]| -> Vec<String> {
        let lines: Vec<String> = events.iter().map(Value::to_string).collect();
        decode_all(api, &sse(&lines.join("\n"), false)).calls.into_iter().map(|call| call.name).collect()
    };
    for reason in ["length", "content_filter"] {
        let call = |index: u8, name: &str, arguments: &str| json!({"index": index, "id": name, "function": {"name": name, "arguments": arguments}});
        let delta = json!({"tool_calls": [call(0, "whole", "{}"), call(1, "cut", "{\"k\": ")]});
        let chunk = json!({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]});
        assert_eq!(names(Api::OpenAiChat, &[chunk]), ["whole"], "{reason}");
    }
    for reason in ["max_tokens", "refusal", "model_context_window_exceeded"] {
        let block = |name: &str, input: Value| json!({"type": "tool_use", "id": name, "name": name, "input": input});
        let mut events = vec![json!({"type": "message_start", "message": {}})];
        for (index, (name, input)) in [("whole", "{}"), ("cut", "{\"k\": ")].into_iter().enumerate() {
            events
                .push(json!({"type": "content_block_start", "index": index, "content_block": block(name, json!({}))}));
            let delta = json!({"type": "input_json_delta", "partial_json": input});
            events.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
            events.push(json!({"type": "content_block_stop", "index": index}));
        }
        events.push(json!({"type": "message_delta", "delta": {"stop_reason": reason}}));
        events.push(json!({"type": "message_stop"}));
        assert_eq!(names(Api::Anthropic, &events), ["whole"], "{reason}");
        let content = [block("whole", json!({"k": 1})), block("cut", json!({"k": "hal"}))];
        let message = json!({"type": "message", "content": content, "stop_reason": reason});
        let answer = decode_whole(Api::Anthropic, message.to_string().as_bytes()).unwrap();
        assert_eq!((answer.calls.len(), answer.calls[0].name.as_str()), (1, "whole"), "{reason}");
    }
    for reason in ["max_output_tokens", "content_filter"] {
        let item = |name: &str, arguments: &str| json!({"type": "function_call", "call_id": name, "name": name, "arguments": arguments});
        let output = [item("whole", "{}"), item("cut", "{\"k\": ")];
        let response = json!({"status": "incomplete", "incomplete_details": {"reason": reason}, "output": output});
        let event = json!({"type": "response.incomplete", "response": response});
        assert_eq!(names(Api::OpenAiResponses, &[event]), ["whole"], "{reason}");
    }
    for reason in ["MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL"] {
        let part = |call: Value| json!({"candidates": [{"content": {"parts": [{"functionCall": call}]}}]});
        let grows =
            json!({"name": "cut", "partialArgs": [{"jsonPath": "$.k", "stringValue": "h"}], "willContinue": true});
        let end = json!({"candidates": [{"finishReason": reason}]});
        let events = [part(json!({"name": "whole", "args": {}})), part(grows), end];
        assert_eq!(names(Api::Gemini, &events), ["whole"], "{reason}");
    }
}
