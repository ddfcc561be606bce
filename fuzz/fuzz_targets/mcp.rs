//! What the two sides of MCP read of strangers: any message, header, address or state is taken or refused, and what we
//! write ourselves is read again as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use toolwright_core::canonical::ContentHash;
use toolwright_fuzz::text;
use toolwright_mcp::form::Form;
use toolwright_mcp::message::{self, Message};
use toolwright_mcp::page::Page;
use toolwright_mcp::state::StateKey;
use toolwright_mcp::{address, headers, sampling};

/// What a server asks back, and an answer: what fits a form once fits it again.
fn asked(params: &Value, answer: &str) {
    if let Ok(page) = Page::of(params) {
        assert!(page.address.as_str().len() <= 4000, "an address that nobody can look at");
    }
    if let Ok(form) = Form::of(params) {
        for field in &form.fields {
            let _ = field.read(answer);
        }
        if let Ok(Value::Object(given)) = serde_json::from_str(answer)
            && let Ok(content) = form.check(given)
        {
            assert_eq!(form.check(content.clone()).as_ref(), Ok(&content), "a form that was filled in");
        }
    }
    let _ = sampling::request_of(params, 100);
}

fuzz_target!(|data: &[u8]| {
    if let Ok(Message::Request(request)) = message::parse(data) {
        let again = message::request(&request.id, &request.method, &request.raw);
        let Ok(Message::Request(second)) = message::parse(&again) else { panic!("our own request is refused") };
        assert_eq!((second.id, second.method), (request.id, request.method));
    }
    let text = text(data);
    let (one, other) = text.split_once('\n').unwrap_or((&text, ""));
    assert_eq!(headers::decode(&headers::encode(one)).as_deref(), Some(one), "a header value");
    if let Ok(schema) = serde_json::from_str::<Value>(one) {
        let _ = headers::mirrored(&schema);
    }
    if let Ok(params) = serde_json::from_str::<Value>(one) {
        asked(&params, other);
    }
    let _ = address::qualified(one);
    let _ = address::fits(one, other);
    let key = StateKey::new([7; 32]);
    assert!(key.open(one, ContentHash::of_bytes(b"x"), 1).is_err(), "a state that nobody signed");
});
