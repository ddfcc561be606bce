//! Answers in the composed form: the same however they are cut, and after they were written again.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use toolwright_core::model::{RawToolCall, RequestTool};
use toolwright_fuzz::{parameters, pieces, same, text};
use toolwright_textcalls::composed::{Composed, ComposedTool, Transport};

static TRANSPORTS: LazyLock<Vec<Transport>> = LazyLock::new(|| {
    let tool = |name: &str, parameters: Value| RequestTool { name: name.into(), parameters, ..RequestTool::default() };
    let plain = tool("plain", json!({"type": "object", "properties": {"a": {}, "_tool": {}, "__output": {}}}));
    let wrapped = tool("wrapped", json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}));
    let result = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let both = [ComposedTool { tool: &plain, latent: None }, ComposedTool { tool: &wrapped, latent: Some(&result) }];
    vec![Transport::new(None, &both), Transport::new(Some(&result), &both), Transport::new(Some(&result), &[])]
});

fn assert_same(one: &Composed, other: &Composed) {
    let value = |answer: &Composed| {
        let calls: Vec<_> = answer
            .calls
            .iter()
            .map(|one| {
                let arguments = serde_json::from_str(&one.call.arguments).unwrap_or(Value::Null);
                json!([one.call.id, one.call.name, arguments, one.reasoning, one.output])
            })
            .collect();
        json!([answer.output, calls])
    };
    assert!(same(&value(one), &value(other)), "{one:?}\n{other:?}");
}

fuzz_target!(|data: &[u8]| {
    let ([choice, chunk], written) = parameters(data);
    let (transport, text) = (&TRANSPORTS[choice % TRANSPORTS.len()], text(written));
    let whole = transport.decode(&text);
    let mut decoder = transport.decoder();
    let mut calls = Vec::new();
    pieces(&text, 1 + chunk).for_each(|piece| decoder.feed(piece, &mut |call| calls.push(call.clone())));
    assert_eq!(whole, decoder.finish());
    let Ok(answer) = whole else { return };
    assert_eq!(answer.calls, calls, "the pieces are not the answer");
    let size: usize = answer.calls.iter().map(|call| call.call.arguments.len() + call.call.name.len()).sum();
    assert!(size <= 16 * text.len() + 1024, "{} bytes become {size}", text.len());
    let is_legal = |call: &RawToolCall| {
        !call.name.is_empty() && serde_json::from_str::<Value>(&call.arguments).is_ok_and(|value| value.is_object())
    };
    if answer.calls.iter().all(|one| is_legal(&one.call)) {
        assert_same(&transport.decode(&transport.encode(&answer)).expect("an answer"), &answer);
    }
});
