//! Going on after an interruption: the same requests, and no call twice.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_agent::{DriverError, Limits, RunOptions, Status};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::model::ModelErrorKind;
use toolwright_core::store::{Claim, RunStore, SavedRun, StoreError};
use toolwright_core::{CallId, CancelCause, Effects, Outcome, Tool};
use toolwright_runtime::SqliteStore;
use toolwright_testkit::FakeApprover;

use crate::fixture::{Counter, Fixture, Reply, asking, begin, options, provider, until};

/// A store of runs that loses power at a save, or whose runs another process drives.
pub(crate) struct FaultyStore {
    store: Arc<SqliteStore>,
    /// Whether the power is lost at the save of this state.
    breaks: Box<dyn Fn(&Value) -> bool + Send + Sync>,
    /// Whether that save is written.
    written: bool,
    taken: AtomicBool,
}

impl FaultyStore {
    /// Loses power at this save, counted from 1.
    pub(crate) fn new(store: Arc<SqliteStore>, breaks_at: usize, written: bool) -> Arc<Self> {
        let saves = AtomicUsize::new(0);
        Self::when(store, move |_| saves.fetch_add(1, Ordering::SeqCst) + 1 == breaks_at, written)
    }

    /// Loses power at the saves that `breaks` names.
    pub(crate) fn when(
        store: Arc<SqliteStore>,
        breaks: impl Fn(&Value) -> bool + Send + Sync + 'static,
        written: bool,
    ) -> Arc<Self> {
        Arc::new(Self { store, breaks: Box::new(breaks), written, taken: AtomicBool::new(false) })
    }

    async fn save(&self, state: &Value, write: impl Future<Output = Result<(), StoreError>>) -> Result<(), StoreError> {
        assert!(!self.taken.load(Ordering::SeqCst), "the other one's state would be lost");
        let breaks = (self.breaks)(state);
        if !breaks || self.written {
            write.await?;
        }
        if breaks { Err(StoreError::NotFound("the power".into())) } else { Ok(()) }
    }
}

#[async_trait]
impl RunStore for FaultyStore {
    async fn claim(&self, run: &str) -> Result<Claim, StoreError> {
        if self.taken.load(Ordering::SeqCst) {
            return Ok(Claim::TakenBy("process 7".into()));
        }
        self.store.claim(run).await
    }
    async fn release(&self, run: &str) -> Result<(), StoreError> {
        self.store.release(run).await
    }
    async fn save_run(&self, run: &str, state: &Value) -> Result<(), StoreError> {
        self.save(state, self.store.save_run(run, state)).await
    }
    async fn save_during_step(&self, run: &str, state: &Value) -> Result<(), StoreError> {
        self.save(state, self.store.save_during_step(run, state)).await
    }
    async fn run(&self, run: &str) -> Result<Option<SavedRun>, StoreError> {
        self.store.run(run).await
    }
    async fn call_dispatched(&self, run: &str, call: &CallId) -> Result<(), StoreError> {
        self.store.call_dispatched(run, call).await
    }
    async fn call_finished(&self, run: &str, outcome: &Outcome) -> Result<(), StoreError> {
        self.store.call_finished(run, outcome).await
    }
}

fn script() -> Vec<Reply> {
    vec![
        Reply::Calls(vec![
            ("1", "t__add", json!({"n": 1})),
            ("2", "t__add", json!({"n": 2})),
            ("3", "add", json!({"n": "x"})),
        ]),
        Reply::Calls(vec![("1", "t__add", json!({"n": 3}))]),
        Reply::Text("three"),
    ]
}

#[tokio::test]
async fn a_crash_between_steps_repeats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN);
    let whole = Fixture::new(dir.path(), script(), vec![tool.clone()]).await;
    let report = whole.driver.run(&mut begin(Limits::default()), &options()).await.unwrap();
    let expected = whole.requests();
    assert_eq!((report.answer.as_str(), tool.count(), expected.len()), ("three", 3, 3));

    // Six saves: three times the model, twice calls, and the end. The first one must be written.
    for (breaks_at, written) in (1..=6).map(|n| (n, true)).chain((2..=6).map(|n| (n, false))) {
        let dir = tempfile::tempdir().unwrap();
        let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN);
        let fragile = |store| FaultyStore::new(store, breaks_at, written);
        let fixture = Fixture::with_store(dir.path(), script(), vec![tool.clone()], fragile).await;
        let broken = fixture.driver.run(&mut begin(Limits::default()), &options()).await;
        assert!(matches!(broken, Err(DriverError::Store(_))), "save {breaks_at}");
        let mut sent = fixture.requests();
        drop(fixture);
        let fixture = Fixture::new(dir.path(), script(), vec![tool.clone()]).await;
        let resumed = fixture.driver.resume(&options()).await.unwrap();
        sent.extend(fixture.requests());
        // A model answer that was not saved is asked for again, with the same bytes.
        sent.dedup();
        assert_eq!(sent, expected, "save {breaks_at}, written {written}");
        assert_eq!(tool.count(), 3, "save {breaks_at}, written {written}");
        let strip = |mut value: Value| {
            for call in value["calls"].as_array_mut().unwrap() {
                call["latency_ms"] = json!(0);
            }
            value
        };
        assert_eq!(strip(resumed.to_json()), strip(report.to_json()), "save {breaks_at}, written {written}");
    }
}

#[tokio::test]
async fn a_crash_during_calls_repeats_no_doubtful_call() {
    let dir = tempfile::tempdir().unwrap();
    let finished = Counter::new("t:finished@1.0.0", Effects::UNKNOWN);
    let doubtful = Counter::new("t:doubtful@1.0.0", Effects::UNKNOWN).hang(1);
    let harmless = Counter::new("t:harmless@1.0.0", Effects::READ).hang(1);
    let waiting = Counter::new("t:waiting@1.0.0", Effects::UNKNOWN);
    let tools: Vec<Arc<dyn Tool>> = vec![finished.clone(), doubtful.clone(), harmless.clone(), waiting.clone()];
    let script = vec![
        Reply::Calls(
            ["t__finished", "t__doubtful", "t__harmless", "t__waiting"].map(|name| (name, name, json!({}))).to_vec(),
        ),
        Reply::Text("went on"),
    ];
    let approve = |name| (name, ApprovalDecision::Approve);
    let fixture = Fixture::new(dir.path(), script.clone(), tools.clone()).await;
    // Nobody answers for `waiting`, so it is not dispatched.
    let approver = asking(Arc::new(FakeApprover::by_call(&[approve("t__finished"), approve("t__doubtful")])));
    let driver = fixture.driver.clone();
    let run = tokio::spawn(async move { driver.run(&mut begin(Limits::default()), &approver).await });
    let store = fixture.store.clone();
    until(|| finished.count() == 1 && doubtful.count() == 1 && harmless.count() == 1).await;
    loop {
        let saved = store.run("run-1").await.unwrap().unwrap();
        if saved.calls.len() == 3 && saved.calls.iter().any(|(_, outcome)| outcome.is_some()) {
            break;
        }
        tokio::task::yield_now().await;
    }
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    drop(fixture);

    let fixture = Fixture::new(dir.path(), script, tools).await;
    // A call that is wrongly run again would hang, at the approval or in the tool.
    let (records, transcript) = transcript();
    let options = RunOptions {
        transcript: Some(transcript),
        ..asking(Arc::new(FakeApprover::by_call(&[approve("t__waiting")])))
    };
    let resumed = tokio::time::timeout(std::time::Duration::from_secs(20), fixture.driver.resume(&options)).await;
    let report = resumed.unwrap().unwrap();
    assert_eq!((report.status, report.answer.as_str()), (Status::Success, "went on"));
    assert_eq!([finished.count(), doubtful.count(), harmless.count(), waiting.count()], [1, 1, 2, 1]);
    assert_eq!(report.calls.iter().map(|call| call.ok).collect::<Vec<_>>(), [true, false, true, true]);
    let message = &report.calls[1].error.as_ref().unwrap().message;
    assert!(message.starts_with("unknown: ") && message.contains("may or may not"), "{message}");
    let mut recorded: Vec<(u64, String)> = Vec::new();
    for record in records.lock().unwrap().iter().filter(|record| record["type"] == "outcomes") {
        let outcomes = record["outcomes"].as_array().unwrap().iter();
        recorded
            .extend(outcomes.map(|o| (record["turn"].as_u64().unwrap(), o["call_id"].as_str().unwrap().to_owned())));
    }
    recorded.sort_unstable();
    let expect = ["t__doubtful", "t__finished", "t__harmless", "t__waiting"].map(|id| (1, id.to_owned()));
    assert_eq!(recorded, expect, "what was settled on resume is in the transcript, once");
}

/// A transcript and what is recorded in it.
fn transcript() -> (Arc<Mutex<Vec<Value>>>, Arc<dyn toolwright_agent::Transcript>) {
    let records: Arc<Mutex<Vec<Value>>> = Arc::default();
    let sink = Arc::clone(&records);
    (records, Arc::new(move |record: Value| sink.lock().unwrap().push(record)))
}

#[tokio::test]
async fn a_cancelled_run_can_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN).hang(1);
    let script = vec![Reply::Calls(vec![("1", "t__add", json!({}))]), Reply::Text("went on")];
    let fixture = Fixture::new(dir.path(), script, vec![tool.clone()]).await;
    let options_before = options();
    let stop = async {
        until(|| tool.count() == 1).await;
        options_before.cancel.cancel(CancelCause::User);
    };
    let mut state = begin(Limits::default());
    let (report, ()) = tokio::join!(fixture.driver.run(&mut state, &options_before), stop);
    assert_eq!(report.unwrap().status, Status::Cancelled);
    let report = fixture.driver.resume(&options()).await.unwrap();
    assert_eq!((report.status, report.answer.as_str(), report.turns), (Status::Success, "went on", 2));
    assert_eq!((tool.count(), report.calls[0].ok), (1, false));
    assert!(fixture.requests()[1].contains("canceled by the user"));
    let asked = fixture.requests().len();
    assert_eq!(fixture.driver.resume(&options()).await.unwrap(), report, "what is over stays over");
    assert_eq!(fixture.requests().len(), asked);
}

#[tokio::test]
async fn a_run_with_model_failure_can_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN);
    let call = Reply::Calls(vec![("1", "t__add", json!({}))]);
    let down = vec![call.clone(), Reply::Fail(ModelErrorKind::Unavailable)];
    let fixture = Fixture::new(dir.path(), down, vec![tool.clone()]).await;
    let report = fixture.driver.run(&mut begin(Limits::default()), &options()).await.unwrap();
    assert_eq!(report.status, Status::Failure);
    let failed = fixture.requests().pop();
    let fixture = Fixture::new(dir.path(), vec![call, Reply::Text("went on")], vec![tool.clone()]).await;
    let report = fixture.driver.resume(&options()).await.unwrap();
    assert_eq!((report.status, report.answer.as_str(), tool.count()), (Status::Success, "went on", 1));
    assert_eq!(fixture.requests().pop(), failed, "the same request");
}

#[tokio::test]
async fn a_run_of_another_process_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut handle = None;
    let elsewhere = |store| {
        let store = FaultyStore::when(store, |_| false, true);
        store.taken.store(true, Ordering::SeqCst);
        handle = Some(Arc::clone(&store));
        store
    };
    let fixture = Fixture::with_store(dir.path(), vec![Reply::Text("x")], vec![], elsewhere).await;
    let refused = fixture.driver.run(&mut begin(Limits::default()), &options()).await.unwrap_err();
    assert_eq!(refused.to_string(), "run `run-1` is being driven by process 7: wait for it to end, or stop it");
    assert!(matches!(fixture.driver.resume(&options()).await, Err(DriverError::Taken { .. })));
    assert!(fixture.requests().is_empty());
    handle.unwrap().taken.store(false, Ordering::SeqCst);
    assert_eq!(fixture.driver.run(&mut begin(Limits::default()), &options()).await.unwrap().answer, "x");
}

#[tokio::test]
async fn a_changed_tool_runs_no_old_call() {
    let dir = tempfile::tempdir().unwrap();
    let old = Counter::saying("t:a@1.0.0", Effects::READ, "old");
    let script = vec![Reply::Calls(vec![("1", "t__a", json!({}))]), Reply::Text("x")];
    let fragile = |store| FaultyStore::new(store, 2, true);
    let fixture = Fixture::with_store(dir.path(), script.clone(), vec![old.clone()], fragile).await;
    fixture.driver.run(&mut begin(Limits::default()), &options()).await.unwrap_err();
    let new = Counter::saying("t:a@1.0.0", Effects::READ, "new");
    let fixture = Fixture::new(dir.path(), script, vec![new.clone()]).await;
    let report = fixture.driver.resume(&options()).await.unwrap();
    assert_eq!((old.count(), new.count(), report.calls[0].ok), (0, 0, false));
    assert!(report.calls[0].error.as_ref().unwrap().message.contains("has changed"));
}

#[tokio::test]
async fn an_unsaved_run_cannot_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::new(dir.path(), vec![], vec![]).await;
    fixture.catalogue.add_provider(provider("other", vec![])).await.unwrap();
    let error = fixture.driver.resume(&options()).await.unwrap_err();
    assert_eq!(error.to_string(), "no run `run-1` was saved");
}
