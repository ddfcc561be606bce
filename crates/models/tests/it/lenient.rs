//! What servers and relays send that the APIs do not say, and how it ends when it is not even that.

use toolwright_core::model::ModelErrorKind;
use toolwright_models::{Api, Decoder};

use crate::streams::decode_all;

#[test]
fn a_malformed_end_is_told_from_one_that_was_cut() {
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
        check(Api::OpenAiChat, &format!("{}\n", &whole[..end]), "broke off");
    }
    for end in 1..6 {
        for line in ["{\"choices\": []}\n", "data: {\"choices\": []}\n\ndata: "] {
            check(Api::OpenAiChat, &format!("{line}{}", &"[DONE]"[..end]), "broke off");
        }
    }
}

#[test]
fn a_byte_order_mark_before_an_answer_is_skipped() {
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
