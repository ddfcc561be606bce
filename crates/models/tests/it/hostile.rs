//! What no honest server sends.

use serde_json::json;
use toolwright_core::model::{MAX_TOKENS, ModelError, ModelErrorKind, ModelEvent, Usage};
use toolwright_models::{Api, Decoder, decode_whole};

/// Feeds `events` and expects a `BadResponse`; what was given out is what was kept.
fn refused(api: Api, events: &[String]) -> ModelError {
    let mut decoder = Decoder::new(api);
    let (mut text, mut calls) = (String::new(), 0);
    let mut sink = |event| match event {
        ModelEvent::Text(piece) => text.push_str(&piece),
        ModelEvent::Call(_) => calls += 1,
        ModelEvent::Reasoning(_) => {}
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
fn figures_that_no_request_has_are_not_believed() {
    const MOST: Usage = Usage {
        input_tokens: MAX_TOKENS,
        output_tokens: MAX_TOKENS,
        cached_tokens: MAX_TOKENS,
        cache_written_tokens: MAX_TOKENS,
    };
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
                MOST,
            ),
            (
                Api::Anthropic,
                json!({"type": "message", "content": [], "stop_reason": "end_turn",
                    "usage": {"input_tokens": count, "output_tokens": count, "cache_read_input_tokens": count,
                        "cache_creation_input_tokens": count}}),
                MOST,
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
                Usage { cache_written_tokens: 0, cached_tokens: 0, ..MOST },
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
