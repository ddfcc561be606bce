//! Calls as values.

use std::sync::Arc;

use serde_json::json;
use toolwright_agent::plan_calls;
use toolwright_core::model::{Message, ModelErrorKind, ModelRequest};
use toolwright_core::{Caller, Cancel, Effects, Principal};

use crate::fixture::{Counter, Fixture, Reply};

#[tokio::test]
async fn planned_calls_come_back_as_values() {
    let dir = tempfile::tempdir().unwrap();
    let (open, closed) = (Counter::new("t:a@1.0.0", Effects::UNKNOWN), Counter::for_roles("t:ops@1.0.0", &["ops"]));
    let script = vec![Reply::Calls(vec![
        ("1", "a", json!({"n": "3"})),
        ("1", "t__a", json!({"n": "x"})),
        ("", "t__ops", json!({})),
        ("2", "t__zzz", json!({})),
    ])];
    let fixture = Fixture::new(dir.path(), script, vec![open.clone(), closed]).await;
    let guest = Principal { id: "g".into(), roles: vec![], owner: false };
    let request = ModelRequest { messages: vec![Message::user("count")], ..ModelRequest::default() };
    let (snapshot, cancel) = (fixture.catalogue.snapshot(), Cancel::new());
    let client = fixture.model.client();
    let ask = plan_calls(&*client, "test/m", request, &snapshot, Caller::of(&guest), &cancel);
    let planned = ask.await.unwrap();
    let mut calls = planned.calls.iter();
    let first = calls.next().unwrap().as_ref().unwrap();
    assert_eq!((first.wire_name.as_str(), &first.arguments), ("t__a", &json!({"n": 3})));
    assert_eq!(serde_json::to_value(&first.provenance).unwrap(), json!({"matched": "bare", "coerced": ["/n"]}));
    let rejected: Vec<_> = calls.map(|call| call.as_ref().unwrap_err().error.kind().as_str()).collect();
    assert_eq!(rejected, ["invalid_parameters", "not_permitted", "unknown_tool"]);
    let ids: std::collections::HashSet<_> =
        planned.calls.iter().map(|call| call.as_ref().map_or_else(|r| r.call_id.clone(), |c| c.id.clone())).collect();
    assert_eq!((ids.len(), open.count(), fixture.requests().len()), (4, 0, 1), "ids are unique, and nothing ran");
    let shown = fixture.model.shown.lock().unwrap()[0].clone();
    assert_eq!(shown.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["t__a"]);
    assert_eq!(first.to_call().name, "t:a@1.0.0");
}

#[tokio::test]
async fn a_failed_model_request_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::new(dir.path(), vec![Reply::Fail(ModelErrorKind::Auth)], vec![]).await;
    let (owner, snapshot) = (Principal::owner(), Arc::clone(&fixture.catalogue.snapshot()));
    let cancel = Cancel::new();
    let asked =
        plan_calls(&*fixture.model.client(), "test/m", ModelRequest::default(), &snapshot, Caller::of(&owner), &cancel)
            .await;
    assert_eq!(asked.unwrap_err().kind, ModelErrorKind::Auth);
}
