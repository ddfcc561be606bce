//! What the two sides of MCP read of strangers: any message, header, address or state is taken or refused, and what we
//! write ourselves is read again as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::ListKind;
use toolwright_fuzz::text;
use toolwright_mcp::elicitation::{Form, Page};
use toolwright_mcp::merge::{self, merge};
use toolwright_mcp::message::{self, Message};
use toolwright_mcp::revision::Era;
use toolwright_mcp::tasks::StateKey;
use toolwright_mcp::{asking, convert, headers, tasks};

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
    let _ = asking::request_of(params, 100);
}

/// What servers list and answer: merged, each item has a name of its own that leads to it, and what is said in the words of
/// a generation is said in them.
fn listed(one: &Value, other: &Value) {
    for kind in ListKind::ALL {
        let list = |value: &Value| value.get(kind.list_key()).and_then(Value::as_array).cloned().unwrap_or_default();
        let (one, other) = (list(one), list(other));
        let merged = merge(kind, vec![("a", &*one), ("b", &*other), ("a", &*other)]);
        assert_eq!(merged.items.len(), merged.by_shown_name.len(), "two items of one name");
        for item in &merged.items {
            let shown = item[kind.item_key()].as_str().expect("a name");
            assert!(merged.by_shown_name.contains_key(shown), "an item that nobody has");
        }
    }
    let Value::Object(result) = one else { return };
    for era in [Era::Legacy, Era::Modern] {
        let mut once = result.clone();
        convert::result(era, "tools/list", &mut once, &Value::Null);
        let mut twice = once.clone();
        convert::result(era, "tools/list", &mut twice, &Value::Null);
        assert_eq!(once, twice, "an answer in the words of its generation");
    }
    let _ = tasks::ttl(one);
    let _ = tasks::announced(result);
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
        listed(&params, &serde_json::from_str(other).unwrap_or_default());
    }
    let _ = merge::qualified(one);
    if !one.is_empty() {
        let address = merge::qualify("a", one);
        let Some(("a", own)) = merge::qualified(&address) else { panic!("an address without its server: {address}") };
        assert_eq!(merge::qualify("a", own), address, "an address that is encoded stays as it is");
    }
    let _ = merge::fits(one, other);
    let key = StateKey::new([7; 32]);
    assert!(key.open(one, ContentHash::of_bytes(b"x"), 1).is_err(), "a state that nobody signed");
});
