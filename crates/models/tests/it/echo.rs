//! What an API wants back comes back as it came, at the place where it stood.

use serde_json::{Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{CallResult, Message, ModelRequest, ModelResponse};
use toolwright_models::{Api, decode_whole, encode};

/// Decodes `answer`, answers its calls, and returns what the next request holds after the first question.
fn replayed(api: Api, answer: &Value, key: &str) -> Vec<Value> {
    let answer = decode_whole(api, answer.to_string().as_bytes()).unwrap();
    let result = |call: &toolwright_core::model::RawToolCall| CallResult {
        call_id: call.id.clone(),
        name: call.name.clone(),
        content: vec![ContentBlock::text("ok")],
        ..CallResult::default()
    };
    let results = answer.calls.iter().map(result).collect();
    let messages = vec![
        Message::user("go"),
        Message::Assistant { text: answer.text, calls: answer.calls, opaque: answer.opaque },
        Message::Tool { results },
    ];
    let request = ModelRequest { messages, ..ModelRequest::default() };
    // A conversation of this API means nothing to another.
    for other in Api::ALL.into_iter().filter(|other| *other != api) {
        assert!(!encode(other, &request, "m").body().to_string().contains("c2ln"), "{other}");
    }
    encode(api, &request, "m").body()[key].as_array().unwrap()[1..].to_vec()
}

#[test]
fn anthropic_blocks_keep_their_order() {
    let content = json!([
        {"type": "thinking", "thinking": "Hm.", "signature": "c2lnMQ"},
        {"type": "text", "text": "Sünnig? "},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "web_search_result"}]},
        {"type": "text", "text": "Yes."},
        {"type": "redacted_thinking", "data": "c2lnMg"},
        {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {"k": [1]}},
        {"type": "tool_use", "id": "toolu_2", "name": "b", "input": {}},
    ]);
    let message = json!({"type": "message", "content": content, "stop_reason": "tool_use"});
    let replayed = replayed(Api::Anthropic, &message, "messages");
    assert_eq!(replayed[0]["content"], content);
    assert_eq!(replayed[1]["content"][1]["tool_use_id"], "toolu_2");

    let ends_in_thought =
        json!([{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b", "signature": "c2ln"}]);
    let message = json!({"type": "message", "content": ends_in_thought, "stop_reason": "end_turn"});
    assert_eq!(self::replayed(Api::Anthropic, &message, "messages")[0]["content"], json!([ends_in_thought[0]]));
}

#[test]
fn responses_items_keep_their_order() {
    let reasoning = |id: &str| json!({"type": "reasoning", "id": id, "summary": [], "encrypted_content": "c2ln"});
    let message = |text: &str, phase: &str| {
        let content = json!([{"type": "output_text", "text": text}]);
        json!({"type": "message", "role": "assistant", "content": content, "phase": phase})
    };
    let call = json!({"type": "function_call", "call_id": "call_9", "name": "a", "arguments": "{\"k\": 1}"});
    let search = json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}});
    let kept = [reasoning("rs_1"), message("Look", "commentary"), search, reasoning("rs_2"), call];
    let mut output = kept.to_vec();
    // Neither can be sent back: the server did not keep the first, and nothing follows the second.
    output.insert(0, json!({"type": "reasoning", "id": "rs_0", "summary": [{"type": "summary_text", "text": "Why"}]}));
    output.push(reasoning("rs_3"));
    let response = json!({"object": "response", "status": "completed", "output": output});
    let replayed = replayed(Api::OpenAiResponses, &response, "input");
    assert_eq!(replayed[..5], kept);
    assert_eq!(replayed[5], json!({"type": "function_call_output", "call_id": "call_9", "output": "ok"}));
    assert_eq!(decode_whole(Api::OpenAiResponses, response.to_string().as_bytes()).unwrap().reasoning, "Why");
}

#[test]
fn gemini_signatures_stay_on_their_parts() {
    let parts = json!([
        {"text": "Thinking aloud", "thought": true},
        {"text": "First. "},
        {"text": "Sécond.", "thoughtSignature": "c2lnMQ"},
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}, "thoughtSignature": "c2lnMg"},
        {"text": " Third."},
        {"functionCall": {"name": "a", "args": {"k": 1}, "id": "id-1"}, "thoughtSignature": "c2lnMw"},
        {"functionCall": {"name": "b", "args": {}}},
        {"text": "", "thoughtSignature": "c2lnNA"},
    ]);
    let body = json!({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]});
    let replayed = replayed(Api::Gemini, &body, "contents");
    assert_eq!(replayed[0]["parts"], Value::from(parts.as_array().unwrap()[1..].to_vec()));
    let response = |at: usize| &replayed[1]["parts"][at]["functionResponse"];
    assert_eq!((response(0)["id"].as_str(), response(1).get("id")), (Some("id-1"), None));
    assert_eq!(*response(1), json!({"name": "b", "response": {"output": "ok"}}));
}

#[test]
fn compatible_server_extras_stay_on_their_message() {
    let extra = |signature: &str| json!({"google": {"thought_signature": signature}});
    let function = |name: &str| json!({"name": name, "arguments": "{}"});
    let details = json!([
        {"type": "reasoning.text", "text": "Hm.", "signature": "c2lnMQ", "format": "anthropic-claude-v1", "index": 0},
        {"type": "reasoning.encrypted", "data": "c2lnMg", "id": "rs_1", "index": 0},
    ]);
    let mut message = json!({
        "role": "assistant", "content": null, "reasoning_content": "c2lnMA", "reasoning": "",
        "reasoning_details": details,
    });
    message["tool_calls"] = json!([
        {"id": "c0", "type": "function", "function": function("a"), "extra_content": extra("c2lnMw")},
        {"id": "c1", "type": "function", "function": function("b")},
        {"id": "c2", "type": "function", "function": function("c"), "extra_content": extra("c2lnNA")},
    ]);
    let body = json!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]});
    assert_eq!(replayed(Api::OpenAiChat, &body, "messages")[0], message);

    let plain = json!({"role": "assistant", "content": "Hi."});
    let mut said = plain.clone();
    (said["reasoning_content"], said["refusal"]) = (Value::Null, Value::Null);
    let body = json!({"choices": [{"index": 0, "message": said, "finish_reason": "stop"}]});
    assert_eq!(replayed(Api::OpenAiChat, &body, "messages")[0], plain, "nothing came, nothing goes back");
}

/// The second request after a stream of Chat Completions, to the byte.
#[test]
fn reasoning_and_extras_return_next_turn() {
    let deltas = [
        json!({"role": "assistant", "content": null, "reasoning_content": ""}),
        json!({"reasoning_content": "Look ", "content": null}),
        json!({"reasoning_content": "first.", "reasoning_details": [
            {"type": "reasoning.text", "text": "Look ", "format": "f", "index": 0}]}),
        json!({"reasoning_details": [{"type": "reasoning.text", "text": "first.", "index": 0}]}),
        json!({"reasoning_details": [
            {"type": "reasoning.text", "text": null, "signature": "c2ln", "index": 0},
            {"type": "reasoning.text", "text": "Then", "index": 1}]}),
        json!({"tool_calls": [{"index": 0, "id": "c0", "type": "function",
            "extra_content": {"google": {"thought_signature": "c2lnMQ"}}, "function": {"name": "a", "arguments": "{"}}]}),
        json!({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}),
        json!({"tool_calls": [{"index": 1, "id": "c1", "type": "function", "function": {"name": "b", "arguments": "{}"}}]}),
    ];
    let mut stream: String = deltas
        .iter()
        .map(|delta| format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})))
        .collect();
    let broken = stream.clone();
    stream += "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n";
    let message = concat!(
        r#"{"role":"assistant","content":null,"reasoning_content":"Look first.","reasoning_details":["#,
        r#"{"type":"reasoning.text","text":"Look first.","format":"f","index":0,"signature":"c2ln"},"#,
        r#"{"type":"reasoning.text","text":"Then","index":1}],"#,
        r#""tool_calls":[{"id":"c0","type":"function","function":{"name":"a","arguments":"{}"},"#,
        r#""extra_content":{"google":{"thought_signature":"c2lnMQ"}}},"#,
        r#"{"id":"c1","type":"function","function":{"name":"b","arguments":"{}"}}]}"#,
    );
    let check = |answer: ModelResponse| {
        assert_eq!(answer.reasoning, "Look first.");
        let past = Message::Assistant { text: answer.text, calls: answer.calls, opaque: answer.opaque };
        let request = ModelRequest { messages: vec![Message::user("go"), past], ..ModelRequest::default() };
        let body = String::from_utf8(encode(Api::OpenAiChat, &request, "m").bytes()).unwrap();
        assert!(body.contains(message), "{body}");
    };
    check(decode_whole(Api::OpenAiChat, stream.as_bytes()).unwrap());
    check(*decode_whole(Api::OpenAiChat, broken.as_bytes()).unwrap_err().partial.unwrap());
}

#[test]
fn unsigned_gemini_call_gets_the_placeholder_signature() {
    let stand_in = json!("skip_thought_signature_validator");
    let call = |name: &str| json!({"functionCall": {"name": name, "args": {}, "id": name}});
    let signed = |mut part: Value| {
        part["thoughtSignature"] = json!("c2ln");
        part
    };
    let check = |parts: Value, expect: [Value; 2]| {
        let body = json!({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]});
        let replayed = replayed(Api::Gemini, &body, "contents");
        let calls = replayed[0]["parts"].as_array().unwrap().iter().filter(|part| part.get("functionCall").is_some());
        let signatures: Vec<Value> = calls.map(|part| part["thoughtSignature"].clone()).collect();
        assert_eq!(signatures, expect, "{parts}");
    };
    check(json!([call("a"), call("b")]), [stand_in.clone(), Value::Null]);
    check(json!([signed(call("a")), call("b")]), [json!("c2ln"), Value::Null]);
    check(json!([signed(json!({"text": "Hm."})), call("a"), call("b")]), [stand_in.clone(), Value::Null]);

    let steps = json!([{"type": "thought", "signature": "c2ln"}, {"type": "function_call", "id": "x", "name": "a"}]);
    let body = json!({"object": "interaction", "status": "requires_action", "steps": steps});
    assert_eq!(replayed(Api::Gemini, &body, "contents")[0]["parts"][0]["thoughtSignature"], stand_in);
}
