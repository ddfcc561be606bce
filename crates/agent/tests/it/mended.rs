//! Calls that a model has mended: once each, whatever comes between.

use std::sync::Arc;

use serde_json::json;
use toolwright_agent::{DriverError, Limits, RunState, Status};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::{CallId, Effects};

use crate::fixture::{Counter, Fixture, Reply, ScriptedApprover, asking, begin, options};
use crate::resume::Fragile;

fn script() -> Vec<Reply> {
    vec![Reply::Calls(vec![("1", "t__add", json!({"n": "one"}))]), Reply::Text("done")]
}

fn mended(fixture: &Fixture) -> usize {
    fixture.model.mended.load(std::sync::atomic::Ordering::SeqCst)
}

#[tokio::test]
async fn a_granted_call_is_not_repaired_again() {
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN);
    let fixture = Fixture::mending(dir.path(), script(), vec![tool.clone()], |store| store).await;
    let later = asking(ScriptedApprover::new(&[("1", ApprovalDecision::Later)]));
    let mut state = begin(Limits::default());
    let asked = fixture.driver.run(&mut state, &later).await.unwrap();
    assert_eq!((asked.status, &asked.pending[0].arguments), (Status::Suspended, &json!({"n": 1})));

    let mut state = RunState::from_json(state.to_json().unwrap()).unwrap();
    state.on_approvals(vec![(CallId::new("1"), ApprovalDecision::Approve)]).unwrap();
    let report = fixture.driver.run(&mut state, &later).await.unwrap();
    assert_eq!((report.status, tool.count(), mended(&fixture)), (Status::Success, 1, 1), "{:?}", report.pending);
    let call = &report.to_json()["calls"][0];
    assert_eq!((&call["arguments"], &call["ran_with"]), (&json!({"n": "one"}), &json!({"n": 1})));
    assert_eq!(call["provenance"]["repair"]["end"], "accepted");
}

#[tokio::test]
async fn a_crash_before_dispatch_repeats_no_repair() {
    // The saves: before the model, before the calls, what the check came to.
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN);
    let fragile = |store| Fragile::new(store, 3, true);
    let fixture = Fixture::mending(dir.path(), script(), vec![tool.clone()], fragile).await;
    let broken = fixture.driver.run(&mut begin(Limits::default()), &options()).await;
    assert!(matches!(broken, Err(DriverError::Store(_))));
    assert_eq!((tool.count(), mended(&fixture)), (0, 1));
    drop(fixture);
    let fixture = Fixture::mending(dir.path(), script(), vec![tool.clone()], |store| store).await;
    let report = fixture.driver.resume(&options()).await.unwrap();
    assert_eq!((report.status, tool.count(), mended(&fixture)), (Status::Success, 1, 0));
    assert_eq!(report.usage.input_tokens, 100 + 2 * 7, "what the first attempt took stays counted");
}

#[tokio::test]
async fn tokens_of_repairs_count_against_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN);
    let fixture = Fixture::mending(dir.path(), script(), vec![tool], |store| store).await;
    let limits = Limits { tokens: Some(50), ..Limits::default() };
    let report = fixture.driver.run(&mut begin(limits), &options()).await.unwrap();
    let usage = report.usage;
    assert_eq!((report.status, usage.input_tokens, usage.output_tokens), (Status::Partial, 107, 13));
    assert!(report.reason.unwrap().contains("50 tokens"));
}

#[tokio::test]
async fn tokens_of_failed_repairs_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN);
    let fixture = Fixture::mending(dir.path(), script(), vec![tool.clone()], |store| store).await;
    fixture.model.mending_fails.store(true, std::sync::atomic::Ordering::SeqCst);
    let report = fixture.driver.run(&mut begin(Limits::default()), &options()).await.unwrap();
    assert_eq!((report.status, tool.count(), mended(&fixture)), (Status::Partial, 0, 1), "{report:?}");
    assert_eq!((report.usage.input_tokens, report.usage.output_tokens), (100 + 2 * 7, 10 + 2 * 3));
}

#[tokio::test]
async fn an_unchanged_call_has_no_provenance() {
    let dir = tempfile::tempdir().unwrap();
    let calls = Reply::Calls(vec![("1", "t__add", json!({"n": 1})), ("2", "t__add", json!({"n": "2"}))]);
    let tools: Vec<Arc<dyn toolwright_core::Tool>> = vec![Counter::new("t:add@1.0.0", Effects::READ)];
    let fixture = Fixture::new(dir.path(), vec![calls, Reply::Text("done")], tools).await;
    let report = fixture.driver.run(&mut begin(Limits::default()), &options()).await.unwrap().to_json();
    assert!(report["calls"][0].get("ran_with").is_none() && report["calls"][0].get("provenance").is_none());
    assert_eq!(report["calls"][1]["ran_with"], json!({"n": 2}));
    assert_eq!(report["calls"][1]["provenance"], json!({"coerced": ["/n"]}));
}
