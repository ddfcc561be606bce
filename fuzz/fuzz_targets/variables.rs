//! References in arguments: what waits stands where it was written, what is resolved is valid, and values are
//! never looked through.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use toolwright_core::arguments::RawArguments;
use toolwright_core::call::{Caller, PendingCall, ToolCall, check, resolve_pending};
use toolwright_core::catalogue::Snapshot;
use toolwright_core::session::{CallId, Principal};
use toolwright_core::variables::{Completeness, MARK, Values, VariableReader, resolve, resolve_at};
use toolwright_fuzz::{json, tools};

static VALUES: LazyLock<Values> = LazyLock::new(|| {
    Values(json!({
        "state": {"user": {"name": "Ada", "tags": ["x", "y"], "off": false, "none": null}, "mark": "†input.city"},
        "input": {"city": "Turin", "n": 3, "list": [[1], {}]},
        "scratch": {"": "empty", "deep": {"a": {"b": {"c": "†state.mark"}}}},
    }))
});

static SNAPSHOT: LazyLock<Snapshot> = LazyLock::new(|| {
    tools::snapshot(&[json!({"type": "object", "properties": {
        "a": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array", "items": {"type": "string"}},
    }, "required": ["a"]})])
});

fuzz_target!(|data: &[u8]| {
    let Some(written) = json(data) else { return };
    let mut value = written.clone();
    let found = resolve(&mut value, VariableReader::of(&*VALUES));
    assert!(written.to_string().contains(MARK) || value == written);
    for hole in found.pending.iter().chain(&found.missing) {
        assert_eq!(value.pointer(&hole.path).and_then(|place| place.as_str()), Some(hole.reference.as_str()));
    }
    assert!(found.oversized.is_empty() && found.violations().len() <= 12);
    let landed = resolve_at(&mut value, &found.pending, VariableReader::of(&*VALUES), Completeness::Closed);
    assert!(landed.pending.is_empty());

    let entry = &SNAPSHOT.list()[0];
    let schema = entry.tool.schema().ok().flatten().expect("it compiled");
    let arguments = RawArguments::Value(written);
    let call = ToolCall::new(CallId::new("call"), entry.wire_name.clone(), arguments);
    let guest = Principal { id: "guest".into(), roles: Vec::new(), owner: false };
    let Ok(valid) = check(call, &SNAPSHOT, Caller { principal: &guest, variables: Some(&*VALUES) }) else { return };
    assert!(!valid.pending.is_empty() || schema.is_valid(&valid.arguments));
    match resolve_pending(valid, Some(&*VALUES), Completeness::Closed) {
        Ok(PendingCall::Ready(call)) => assert!(call.pending.is_empty() && schema.is_valid(&call.arguments)),
        Ok(PendingCall::Waits(call)) => panic!("nothing will come for {:?}", call.pending),
        Err(rejection) => assert!(!rejection.violations.is_empty()),
    }
});
