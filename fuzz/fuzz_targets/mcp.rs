//! What the two sides of MCP read of strangers: any message, header, address or state is taken or refused, and what we
//! write ourselves is read again as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use toolwright_core::canonical::ContentHash;
use toolwright_fuzz::text;
use toolwright_mcp::message::{self, Message};
use toolwright_mcp::state::StateKey;
use toolwright_mcp::{address, headers};

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
    let _ = address::qualified(one);
    let _ = address::fits(one, other);
    let key = StateKey::new([7; 32]);
    assert!(key.open(one, ContentHash::of_bytes(b"x"), 1).is_err(), "a state that nobody signed");
});
