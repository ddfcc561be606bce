//! Runs from task to answer, and planned calls.
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_agent::{Limits, RunConfig, RunOptions, Status, plan_calls};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::event::CompactionLayer;
use toolwright_core::model::{Message, ModelErrorKind, ModelRequest};
use toolwright_core::store::{
    Author, FILES, LedgerStore as _, LogMessage, MessageKind, NewRow, SessionLog, WRITES, WriteNotes,
};
use toolwright_core::{CallId, Caller, Cancel, CancelCause, Effects, Event, Principal, Session, SessionId};
use toolwright_testkit::FakeApprover;

use crate::fixture::{Counter, Fixture, Reply, asking, begin, begin_with, options, provider, run_config, until};

fn calls(names: &[(&'static str, &'static str)]) -> Reply {
    Reply::Calls(names.iter().map(|(id, name)| (*id, *name, json!({}))).collect())
}

fn result_texts(messages: &[Message]) -> Vec<String> {
    let mut texts = Vec::new();
    for message in messages {
        if let Message::Tool { results } = message {
            texts.extend(results.iter().map(|result| toolwright_core::content::joined_text(&result.content)));
        }
    }
    texts
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_count_messages_read_before() {
    let dir = tempfile::tempdir().unwrap();
    let write = |id, file| Reply::Calls(vec![(id, "t__w", json!({"file": file}))]);
    let script = vec![write("1", "/before"), write("2", "/after"), Reply::Text("done")];
    let fixture = Fixture::new(dir.path(), script, vec![Counter::new("t:w@1.0.0", Effects::WRITE)]).await;
    let store = Arc::clone(&fixture.store);
    // It comes while the first answer is written.
    let mut once = false;
    *fixture.model.before_answer.lock().unwrap() = Some(Box::new(move || {
        if !std::mem::replace(&mut once, true) {
            let author = Author { session: Some(SessionId::new("other")), ..Author::default() };
            let (kind, subject) = (MessageKind::Group, "other".to_owned());
            let message = LogMessage { kind, subject, text: "go".into(), data: Value::Null };
            let row = NewRow::message(&SessionId::new("s"), "owner", author, message);
            let store = Arc::clone(&store);
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(SessionLog::append(&*store, row))
            })
            .unwrap();
        }
    }));
    fixture.driver.run(&mut begin(Limits::default()), &options()).await.unwrap();
    let mut rows = fixture.store.values(&SessionId::new(WRITES), FILES).await.unwrap();
    let wrote_ms = rows.first().expect("a note").at_ms;
    rows.reverse();
    let notes = WriteNotes::of(rows);
    assert_eq!(["/before", "/after"].map(|file| notes.hops(Path::new(file), wrote_ms)), [0, 1]);
}

#[tokio::test]
async fn a_run_emits_events_and_a_transcript() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Counter::new("t:a@1.0.0", Effects::READ), Counter::new("t:b@1.0.0", Effects::UNKNOWN));
    let script = vec![calls(&[("1", "t__a"), ("2", "b"), ("3", "t__zzz")]), Reply::Text("all done")];
    let fixture = Fixture::new(dir.path(), script, vec![a.clone(), b.clone()]).await;
    let records: Arc<Mutex<Vec<Value>>> = Arc::default();
    let sink = Arc::clone(&records);
    let transcript = move |record: Value| sink.lock().unwrap().push(record);
    let options = RunOptions { transcript: Some(Arc::new(transcript)), ..options() };
    let mut state = begin(Limits::default());
    let report = fixture.driver.run(&mut state, &options).await.unwrap();

    assert_eq!((report.status, report.answer.as_str(), report.turns), (Status::Success, "all done", 2));
    assert_eq!((a.count(), b.count()), (1, 1));
    let calls: Vec<_> = report.calls.iter().map(|call| (call.tool.as_str(), call.ok)).collect();
    assert_eq!(calls, [("t:a@1.0.0", true), ("t:b@1.0.0", true), ("t__zzz", false)]);
    let second = &fixture.requests()[1];
    assert!(second.contains(r#""name":"t__b","arguments":"{}""#), "a bare name is replayed as the wire name: {second}");
    let first: Value = serde_json::from_str(fixture.requests()[0].strip_prefix("test/m ").unwrap()).unwrap();
    let shown: Vec<_> = first["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(shown, ["t__a", "t__b"]);

    let events = fixture.log.seen().clone();
    let models: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::ModelStarted { turn, shown, .. } => Some(format!("start {turn} {}", shown.len())),
            Event::ModelText { text, .. } => Some(text.clone()),
            Event::ModelFinished { ok, usage, .. } => Some(format!("end {ok} {}", usage.input_tokens)),
            _ => None,
        })
        .collect();
    assert_eq!(models, ["start 1 2", "end true 7", "start 2 2", "all done", "end true 7"]);
    fixture.executor.ledger().flush().await.unwrap();
    let totals = fixture.store.totals().await.unwrap();
    assert_eq!((totals.model_calls, totals.tool_calls, totals.tool_failures), (2, 3, 1));
    let types: Vec<_> =
        records.lock().unwrap().iter().map(|record| record["type"].as_str().unwrap().to_owned()).collect();
    assert_eq!(types, ["request", "response", "outcomes", "request", "response", "report"]);
}

#[tokio::test]
async fn a_conversation_keeps_its_state_over_messages() {
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::new("t:a@1.0.0", Effects::READ);
    let script = vec![calls(&[("1", "t__a")]), Reply::Text("one"), calls(&[("1", "t__a")]), Reply::Text("two")];
    let fixture = Fixture::new(dir.path(), script, vec![tool.clone()]).await;
    let mut state = begin(Limits::default());
    assert_eq!(fixture.driver.run(&mut state, &options()).await.unwrap().answer, "one");
    state.continue_with(vec![toolwright_core::ContentBlock::text("more")]).unwrap();
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!((report.answer.as_str(), report.calls.len(), tool.count()), ("two", 1, 2));
    assert_eq!(state.messages().len(), 8);
}

#[tokio::test]
async fn a_call_runs_on_the_implementation_shown() {
    let dir = tempfile::tempdir().unwrap();
    let old = Counter::saying("t:a@1.0.0", Effects::READ, "old");
    let fixture = Fixture::new(dir.path(), vec![calls(&[("1", "t__a")]), Reply::Text("x")], vec![old.clone()]).await;
    let new = Counter::saying("t:a@1.0.0", Effects::READ, "new");
    let (catalogue, replacement) = (fixture.catalogue.clone(), new.clone());
    // While the model thinks, the catalogue changes under it.
    *fixture.model.before_answer.lock().unwrap() = Some(Box::new(move || {
        let (catalogue, tool) = (catalogue.clone(), replacement.clone());
        let runtime = tokio::runtime::Handle::current();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                runtime.block_on(async {
                    catalogue.remove_provider("test").await;
                    catalogue.add_provider(provider("test", vec![tool])).await.unwrap();
                    catalogue.refresh("test").await;
                });
            });
        });
    }));
    let mut state = begin(Limits::default());
    fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!((old.count(), new.count()), (1, 0));
    assert!(fixture.requests()[0].contains("Counts.old") && fixture.requests()[1].contains("Counts.new"));
}

#[tokio::test]
async fn a_run_has_only_its_allowed_tools() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, ops) = (
        Counter::new("t:a@1.0.0", Effects::READ),
        Counter::new("t:b@1.0.0", Effects::READ),
        Counter::for_roles("x:ops@1.0.0", &["ops"]),
    );
    let script = vec![calls(&[("1", "t__a"), ("2", "t:b@1.0.0"), ("3", "x__ops")]), Reply::Text("x")];
    let fixture = Fixture::new(dir.path(), script, vec![a.clone(), b.clone(), ops.clone()]).await;
    let guest = Principal { id: "g".into(), roles: vec![], owner: false };
    let session = Session { principal: guest, ..(*options().session).clone() };
    let options = RunOptions { session: Arc::new(session), ..options() };
    let tools = vec!["t:a".to_owned(), "x__*".to_owned()];
    let mut state = begin_with(RunConfig { tools, ..run_config(Limits::default()) });
    let report = fixture.driver.run(&mut state, &options).await.unwrap();
    assert_eq!((a.count(), b.count(), ops.count()), (1, 0, 0));
    assert_eq!(report.calls.iter().map(|call| call.ok).collect::<Vec<_>>(), [true, false, false]);
    let events = fixture.log.seen().clone();
    assert!(events.iter().any(|event| matches!(event, Event::ModelStarted { shown, .. } if shown == &["t__a"])));
    assert!(fixture.driver.system_prompt("Base.", &[], state.config(), &options).text().starts_with("Base."));
}

#[tokio::test]
async fn a_cancel_ends_the_run_and_answers_calls() {
    for hang_in_model in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let tool = Counter::new("t:a@1.0.0", Effects::READ).hang(9);
        let script = if hang_in_model { vec![Reply::Hang] } else { vec![calls(&[("1", "t__a"), ("2", "t__a")])] };
        let fixture = Fixture::new(dir.path(), script, vec![tool.clone()]).await;
        let options = options();
        let cancel = options.cancel.clone();
        let mut state = begin(Limits::default());
        let stop = async {
            until(|| if hang_in_model { fixture.requests().len() == 1 } else { tool.count() == 2 }).await;
            cancel.cancel(CancelCause::User);
        };
        let (report, ()) = tokio::join!(fixture.driver.run(&mut state, &options), stop);
        let report = report.unwrap();
        assert_eq!((report.status, report.reason.as_deref()), (Status::Cancelled, Some("cancelled by the user")));
        let texts = result_texts(state.messages());
        assert_eq!(texts.len(), if hang_in_model { 0 } else { 2 });
        assert!(texts.iter().all(|text| text.contains("canceled by the user")), "{texts:?}");
    }
}

#[tokio::test]
async fn the_time_limit_stops_running_calls() {
    for script in [vec![Reply::Hang], vec![calls(&[("1", "t__a")])]] {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::new(dir.path(), script, vec![Counter::new("t:a@1.0.0", Effects::READ).hang(9)]).await;
        let mut state = begin(Limits { time: Some(Duration::from_millis(100)), ..Limits::default() });
        let report = fixture.driver.run(&mut state, &options()).await.unwrap();
        assert_eq!(
            (report.status, report.reason.as_deref()),
            (Status::Partial, Some("the time limit of 100ms was reached"))
        );
    }
}

#[tokio::test]
async fn a_model_that_fails_fails_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::new(dir.path(), vec![Reply::Fail(ModelErrorKind::Auth)], vec![]).await;
    let mut state = begin(Limits::default());
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!(report.status, Status::Failure);
    assert!(report.answer.contains("scripted failure"), "{}", report.answer);
}

#[tokio::test]
async fn an_overflowing_conversation_is_shortened_and_continues() {
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::saying("t:a@1.0.0", Effects::READ, Box::leak("x".repeat(4000).into_boxed_str()));
    let script = vec![calls(&[("1", "t__a")]), calls(&[("2", "t__a")]), Reply::Fail(ModelErrorKind::ContextOverflow)];
    let fixture = Fixture::new(dir.path(), script, vec![tool]).await;
    let mut state = begin(Limits::default());
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!((report.status, report.answer.as_str()), (Status::Success, "it fits"));
    let texts = result_texts(state.messages());
    assert!(texts[0].starts_with("[toolwright took this result") && texts[1].starts_with("xxx"), "{texts:?}");
    let log = fixture.log.seen();
    let truncated = |event: &&Event| matches!(event, Event::Compacted { layer: CompactionLayer::Truncate, results: 1, kept: 0, before, after, .. } if before > after);
    assert!(texts[0].contains("it was not kept"), "nothing here reads what is stored: {}", texts[0]);
    assert_eq!(log.iter().filter(truncated).count(), 1);
}

#[tokio::test]
async fn a_known_window_is_respected() {
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::saying("t:a@1.0.0", Effects::READ, Box::leak("x".repeat(4000).into_boxed_str()));
    let script = vec![calls(&[("1", "t__a")]), calls(&[("2", "t__a")]), Reply::Text("done")];
    let fixture = Fixture::new(dir.path(), script, vec![tool]).await;
    let mut state = begin_with(RunConfig { window: Some(4000), ..run_config(Limits::default()) });
    fixture.driver.run(&mut state, &options()).await.unwrap();
    assert!(fixture.requests()[1].contains("xxx") && fixture.requests()[2].contains("[toolwright took this result"));
}

/// Waits until the thread of the store has let go of its file, which it does after its last user: the log
/// beside the file is gone then.
async fn store_closed(dir: &std::path::Path) {
    for _ in 0..1000 {
        let mut files = std::fs::read_dir(dir).unwrap();
        if !files.any(|file| file.unwrap().file_name().to_string_lossy().ends_with("-wal")) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the store is still open");
}

#[tokio::test]
async fn a_question_nobody_can_answer_suspends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let (read, write) = (Counter::new("t:read@1.0.0", Effects::READ), Counter::new("t:write@1.0.0", Effects::WRITE));
    let script = vec![calls(&[("r", "t__read"), ("w", "t__write")]), Reply::Text("done")];
    let tools: Vec<Arc<dyn toolwright_core::Tool>> = vec![read.clone(), write.clone()];
    let later = Arc::new(FakeApprover::by_call(&[("w", ApprovalDecision::Later)]));
    let fixture = Fixture::new(dir.path(), script.clone(), tools.clone()).await;
    let mut state = begin(Limits::default());
    let report = fixture.driver.run(&mut state, &asking(later.clone())).await.unwrap();
    assert_eq!((report.status, report.pending.len(), report.calls.len()), (Status::Suspended, 1, 1));
    assert_eq!((later.count(), read.count(), write.count()), (1, 1, 0));

    // Asked again after a restart, it is still `later`; then it is approved: by a person, or beforehand.
    drop(fixture);
    store_closed(dir.path()).await;
    for beforehand in [false, true] {
        let copy = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(dir.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        let ran = write.count();
        let fixture = Fixture::new(copy.path(), script.clone(), tools.clone()).await;
        assert_eq!(fixture.driver.resume(&asking(later.clone())).await.unwrap().status, Status::Suspended);
        let approver = if beforehand {
            Arc::new(FakeApprover::by_call(&[]))
        } else {
            Arc::new(FakeApprover::by_call(&[("w", ApprovalDecision::Approve)]))
        };
        let options = asking(approver);
        let mut state = fixture.driver.load(&options).await.unwrap();
        if beforehand {
            state.on_approvals(vec![(CallId::new("w"), ApprovalDecision::Approve)]).unwrap();
        }
        let report = fixture.driver.run(&mut state, &options).await.unwrap();
        assert_eq!((report.status, report.answer.as_str()), (Status::Success, "done"));
        assert_eq!((read.count(), write.count()), (1, ran + 1));
    }
}

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
