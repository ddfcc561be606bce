//! Arbitrary conversations and answers, written by one side and read by the other.

use proptest::prelude::*;
use serde_json::json;
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{
    CallResult, Message, ModelRequest, OutputFormat, RawToolCall, RequestTool, StopReason, ToolChoice, Usage,
};
use toolwright_models::served::{ResponseEnd, ResponseHead, ResponsePiece, ResponseWriter, ServedApi, read_request};
use toolwright_models::{Decoder, decode_whole, encode};
use toolwright_testkit::stream_order::check_stream;

fn object() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("{}".to_owned()),
        "[a-z]{1,8}".prop_map(|text| json!({"a": text, "b": [1, null]}).to_string()),
        any::<i32>().prop_map(|number| json!({"n": number}).to_string()),
    ]
}

/// A conversation as every API carries it: turns of a question, and answers with calls and their results.
fn conversation() -> impl Strategy<Value = Vec<Message>> {
    let text = "[a-z]{1,12}( [a-z]{1,6})?";
    let turn = (text, text, proptest::collection::vec((object(), text), 0..3));
    proptest::collection::vec(turn, 1..4).prop_map(|turns| {
        let mut messages = Vec::new();
        let last = turns.len() - 1;
        for (at, (question, said, called)) in turns.into_iter().enumerate() {
            messages.push(Message::user(question));
            let call = |(number, (arguments, _)): (usize, &(String, String))| RawToolCall {
                id: format!("call_{at}_{number}"),
                name: format!("tool_{number}"),
                arguments: arguments.clone(),
            };
            let calls: Vec<RawToolCall> = called.iter().enumerate().map(call).collect();
            if calls.is_empty() && at == last {
                break;
            }
            let result = |(call, (_, text)): (&RawToolCall, &(String, String))| CallResult {
                call_id: call.id.clone(),
                name: call.name.clone(),
                content: vec![ContentBlock::text(text)],
                ..CallResult::default()
            };
            let results: Vec<CallResult> = calls.iter().zip(&called).map(result).collect();
            messages.push(Message::Assistant { text: said, calls, opaque: Vec::new() });
            if !results.is_empty() {
                messages.push(Message::Tool { results });
            }
        }
        messages
    })
}

fn pieces() -> impl Strategy<Value = Vec<ResponsePiece>> {
    let text = "[a-z é]{1,10}";
    let piece = prop_oneof![
        text.prop_map(ResponsePiece::Text),
        text.prop_map(ResponsePiece::Reasoning),
        Just(ResponsePiece::Break),
        object().prop_map(|arguments| {
            ResponsePiece::Call(RawToolCall { id: String::new(), name: "look".into(), arguments })
        }),
        (object(), any::<bool>()).prop_map(|(arguments, _)| {
            ResponsePiece::Began(RawToolCall { id: String::new(), name: "own".into(), arguments })
        }),
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| {
        let mut out = Vec::new();
        for (at, mut piece) in pieces.into_iter().enumerate() {
            let id = format!("c{at}");
            match &mut piece {
                ResponsePiece::Call(call) => call.id.clone_from(&id),
                ResponsePiece::Began(call) => {
                    call.id.clone_from(&id);
                    out.push(piece);
                    out.push(ResponsePiece::Ended { id, ok: at % 2 == 0, text: "done".into() });
                    continue;
                }
                _ => {}
            }
            out.push(piece);
        }
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sent_conversations_are_read_back(
        messages in conversation(),
        system in "[a-z]{0,10}",
        temperature in proptest::option::of(Just(0.5)),
        forced in any::<bool>(),
    ) {
        let tool = RequestTool {
            name: "tool_0".into(),
            description: "Looks.".into(),
            parameters: json!({"type": "object", "properties": {"a": {"type": "string"}}}),
            ..RequestTool::default()
        };
        let request = ModelRequest {
            system,
            messages,
            tools: vec![tool].into(),
            tool_choice: if forced { ToolChoice::Required } else { ToolChoice::Auto },
            parallel_calls: Some(false),
            output: Some(OutputFormat { name: "answer".into(), schema: Some(json!({
                "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false,
            })) }),
            max_tokens: Some(100),
            temperature,
            ..ModelRequest::default()
        };
        for api in ServedApi::ALL {
            let sent = encode(api.api(), &request, "some-model");
            let read = read_request(api, &sent.bytes()).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(&read.model, "some-model");
            prop_assert!(read.stream);
            let back = &read.request;
            prop_assert_eq!(&back.system, &request.system, "{}", api);
            prop_assert_eq!(&back.messages, &request.messages, "{}", api);
            prop_assert_eq!(&back.tools[0].name, "tool_0");
            prop_assert_eq!(&back.tools[0].parameters["properties"], &request.tools[0].parameters["properties"]);
            prop_assert_eq!(&back.tool_choice, &request.tool_choice, "{}", api);
            prop_assert_eq!(back.parallel_calls, Some(false), "{}", api);
            prop_assert_eq!(&back.output, &request.output, "{}", api);
            prop_assert_eq!(back.max_tokens, Some(100));
            prop_assert_eq!(back.temperature, temperature);
        }
    }

    #[test]
    fn written_answers_are_decoded_to_the_same(pieces in pieces(), include_usage in any::<bool>(), cut in any::<bool>()) {
        let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for piece in &pieces {
            match piece {
                ResponsePiece::Text(said) => text.push_str(said),
                ResponsePiece::Reasoning(said) => reasoning.push_str(said),
                ResponsePiece::Call(call) => calls.push(call.clone()),
                _ => {}
            }
        }
        let usage = Usage { input_tokens: 20, output_tokens: 7, cached_tokens: 5, reasoning_tokens: 3, ..Usage::default() };
        let stop = match (cut, calls.is_empty()) {
            (true, _) => StopReason::MaxTokens,
            (false, true) => StopReason::End,
            (false, false) => StopReason::ToolCalls,
        };
        for api in ServedApi::ALL {
            let head = ResponseHead {
                id: "resp_1".into(),
                model: "m".into(),
                include_usage,
                shows_calls: api == ServedApi::Responses,
                ..ResponseHead::default()
            };
            let mut writer = ResponseWriter::new(api, head);
            let mut stream = writer.begin();
            for piece in &pieces {
                stream.push_str(&writer.piece(piece));
            }
            stream.push_str(&writer.end(ResponseEnd { stop: stop.clone(), usage, pending: false }));
            check_stream(api.path(), &stream).map_err(TestCaseError::fail)?;
            let mut decoder = Decoder::new(api.api());
            decoder.feed(stream.as_bytes(), &mut |_| {});
            let streamed = decoder.finish().map_err(|error| TestCaseError::fail(error.to_string()))?;
            let whole = decode_whole(api.api(), writer.body().to_string().as_bytes())
                .map_err(|error| TestCaseError::fail(error.to_string()))?;
            for (answer, is_whole) in [(streamed, false), (whole, true)] {
                // Chat sets texts of two turns apart by an empty line.
                let plain = |text: &str| text.replace("\n\n", "");
                prop_assert_eq!(plain(&answer.text), plain(&text), "{}", api);
                prop_assert_eq!(plain(&answer.reasoning), plain(&reasoning), "{}", api);
                // A whole message of Anthropic's that was cut loses a call at its end.
                if !(cut && is_whole) {
                    prop_assert_eq!(&answer.calls, &calls, "{}", api);
                    prop_assert_eq!(&answer.stop, &stop, "{}", api);
                }
                if include_usage || is_whole || api != ServedApi::Chat {
                    prop_assert_eq!(answer.usage, usage, "{}", api);
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        for api in ServedApi::ALL {
            prop_assert!(read_request(api, &bytes).is_err());
        }
    }
}
