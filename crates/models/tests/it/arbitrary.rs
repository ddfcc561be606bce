//! No bytes, cut anywhere, make a decoder panic or a conversation illegal.

use proptest::prelude::*;
use serde_json::Value;
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{CallResult, Message, ModelRequest, ShownTool, WrittenCall};
use toolwright_models::{Api, Decoder, encode};

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
    let call = (text(), text(), text()).prop_map(|(id, name, arguments)| WrittenCall { id, name, arguments });
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
        let tools = vec![ShownTool { name: "t".into(), parameters: bad_schema, ..ShownTool::default() }];
        for tools in [tools, vec![]] {
            let request = ModelRequest { system: " ".into(), messages: messages.clone(), tools: tools.into(), ..ModelRequest::default() };
            for (api, wire) in crate::client::PAIRS {
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
