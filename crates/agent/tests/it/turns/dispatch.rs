//! Calls that start before their turn is over, and calls that wait for leave.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_agent::{Dispatch, DriverError, Limits, RunConfig, RunState, Status};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::model::Message;
use toolwright_core::{CallId, CancelCause, Effects, Outcome, Tool};
use toolwright_testkit::FakeApprover;

use crate::fixture::{Counter, Fixture, Reply, asking, begin_with, options, run_config, until};
use crate::turns::resume::FaultyStore;

fn under(dispatch: Dispatch) -> RunState {
    begin_with(RunConfig { dispatch, ..run_config(Limits::default()) })
}

fn calls(names: &[&'static str]) -> Vec<(&'static str, &'static str, Value)> {
    names.iter().map(|name| (*name, *name, json!({}))).collect()
}

fn results(state: &RunState) -> Vec<(String, String)> {
    let tool = |message: &Message| match message {
        Message::Tool { results } => results.clone(),
        _ => Vec::new(),
    };
    let text = |content: &[toolwright_core::ContentBlock]| toolwright_core::content::joined_text(content);
    state.messages().iter().flat_map(tool).map(|result| (result.call_id, text(&result.content))).collect()
}

#[tokio::test]
async fn a_call_starts_while_the_answer_streams() {
    let dir = tempfile::tempdir().unwrap();
    let (read, write) = (Counter::new("t:read@1.0.0", Effects::READ), Counter::new("t:write@1.0.0", Effects::WRITE));
    let script = vec![Reply::Calls(calls(&["t__write", "t__read", "t__nope"])), Reply::Text("done")];
    let fixture = Fixture::new(dir.path(), script, vec![read.clone(), write.clone()]).await;
    let (reads, writes) = (read.clone(), write.clone());
    // The answer is not over before the reading call has run, and the writing one has not begun by then.
    *fixture.model.over_when.lock().unwrap() = Some(Arc::new(move || reads.count() == 1 && writes.count() == 0));
    let approver = Arc::new(FakeApprover::by_call(&[("t__write", ApprovalDecision::Approve)]));
    let mut state = under(Dispatch::Streaming);
    let report = fixture.driver.run(&mut state, &asking(approver.clone())).await.unwrap();
    assert_eq!((report.status, read.count(), write.count()), (Status::Success, 1, 1));
    let ids: Vec<_> = results(&state).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["t__write", "t__read", "t__nope"], "results stand in call order");
    let shown = fixture.model.shown.lock().unwrap().clone();
    assert!(Arc::ptr_eq(&shown[0], &shown[1]), "the tools of one catalogue are shared between requests");
}

#[tokio::test]
async fn a_broken_answer_keeps_started_results() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Counter::new("t:a@1.0.0", Effects::READ), Counter::new("t:b@1.0.0", Effects::WRITE));
    let script = vec![Reply::Broken(calls(&["t__a", "t__b"])), Reply::Text("went on")];
    let fixture = Fixture::new(dir.path(), script, vec![a.clone(), b.clone()]).await;
    let counter = a.clone();
    *fixture.model.over_when.lock().unwrap() = Some(Arc::new(move || counter.count() == 1));
    let mut state = under(Dispatch::Streaming);
    let report = fixture.driver.run(&mut state, &asking(Arc::new(FakeApprover::by_call(&[])))).await.unwrap();
    assert_eq!((report.status, report.answer.as_str()), (Status::Success, "went on"));
    assert_eq!((a.count(), b.count()), (1, 0), "what was not started does not run because of a broken answer");
    let results = results(&state);
    assert!(results.len() == 1 && results[0].1.contains("counted") && results[0].1.contains("was lost"), "{results:?}");
    let second = &fixture.requests()[1];
    assert!(
        second.contains("Let me see.") && second.contains(r#""id":"t__a""#) && !second.contains("t__b\",\"arguments")
    );
}

#[tokio::test]
async fn a_cancel_during_an_answer_reaches_started_calls() {
    let dir = tempfile::tempdir().unwrap();
    let slow = Counter::new("t:slow@1.0.0", Effects::READ).hang(1);
    let fixture = Fixture::new(dir.path(), vec![Reply::Calls(calls(&["t__slow"]))], vec![slow.clone()]).await;
    *fixture.model.over_when.lock().unwrap() = Some(Arc::new(|| false));
    let run_options = options();
    let (driver, cancel) = (fixture.driver.clone(), run_options.cancel.clone());
    let run = tokio::spawn(async move {
        let mut state = under(Dispatch::Streaming);
        (driver.run(&mut state, &run_options).await.unwrap(), state)
    });
    until(|| slow.count() == 1).await;
    cancel.cancel(CancelCause::User);
    let (report, state) = run.await.unwrap();
    assert_eq!((report.status, report.calls.len()), (Status::Cancelled, 1));
    assert!(results(&state)[0].1.contains("cancel"), "{:?}", results(&state));
}

#[tokio::test]
async fn a_crash_during_an_answer_repeats_nothing() {
    let names = ["t__a", "t__b", "t__c"];
    let tools = || ["t:a@1.0.0", "t:b@1.0.0", "t:c@1.0.0"].map(|id| Counter::new(id, Effects::UNKNOWN));
    let script = || vec![Reply::Calls(calls(&names)), Reply::Text("all done"), Reply::Text("all done")];
    let of = |tools: &[Arc<Counter>; 3]| -> Vec<Arc<dyn Tool>> { tools.iter().map(|tool| tool.clone() as _).collect() };
    // Seven saves: before the model, before each call, before the turn's end, before the model, and at the end.
    for (breaks_at, written) in (1..=7).flat_map(|n| [(n, true), (n, false)]).filter(|case| *case != (1, false)) {
        let dir = tempfile::tempdir().unwrap();
        let tools = tools();
        let fixture =
            Fixture::with_store(dir.path(), script(), of(&tools), |store| FaultyStore::new(store, breaks_at, written))
                .await;
        let ran = tools.clone();
        *fixture.model.over_when.lock().unwrap() = Some(Arc::new(move || ran.iter().all(|tool| tool.count() == 1)));
        let broken = fixture.driver.run(&mut under(Dispatch::Streaming), &options()).await;
        assert!(matches!(broken, Err(DriverError::Store(_))), "save {breaks_at}");
        drop(fixture);
        let fixture = Fixture::new(dir.path(), script(), of(&tools)).await;
        let resumed = fixture.driver.resume(&options()).await.unwrap();
        assert_eq!((resumed.status, resumed.answer.as_str()), (Status::Success, "all done"), "save {breaks_at}");
        for tool in &tools {
            assert!(tool.count() <= 1, "save {breaks_at}, written {written}");
        }
    }
}

#[tokio::test]
async fn manual_calls_run_only_after_dispatch() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Counter::new("t:a@1.0.0", Effects::READ), Counter::new("t:b@1.0.0", Effects::READ));
    let script = vec![Reply::Calls(calls(&["t__a", "t__b"])), Reply::Text("done")];
    let fixture = Fixture::new(dir.path(), script, vec![a.clone(), b.clone()]).await;
    let report = fixture.driver.run(&mut under(Dispatch::Manual), &options()).await.unwrap();
    assert_eq!((report.status, report.held.len(), a.count()), (Status::Suspended, 2, 0));
    let mut state = fixture.driver.load(&options()).await.unwrap();
    let elsewhere =
        Outcome::failed(CallId::new("t__a"), toolwright_core::ToolError::new(toolwright_core::ErrorKind::Denied, "no"));
    state.on_tools(vec![elsewhere]).unwrap();
    assert!(state.dispatch());
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!((report.status, a.count(), b.count()), (Status::Success, 0, 1));
}
