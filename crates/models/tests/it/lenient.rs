//! What servers and relays send that the APIs do not say, and how it ends when it is not even that.

use toolwright_core::model::{ModelErrorKind, WrittenCall};
use toolwright_models::{Api, Decoder, decode_whole};

use crate::streams::{call, decode_all, sse, usage};

#[test]
fn malformed_and_cut_ends_are_told_apart() {
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
fn odd_usage_figures_lose_nothing() {
    let check = |api: Api, events: &[&str], text: &str, calls: &[WrittenCall]| {
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
fn of_several_answers_the_first_is_taken() {
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
