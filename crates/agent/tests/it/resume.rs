//! Going on after a crash: the same requests, and no call twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_agent::{DriverError, Limits, Status};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::store::{RunStore, SavedRun, StoreError};
use toolwright_core::{CallId, Effects, Outcome, Tool};
use toolwright_runtime::SqliteStore;

use crate::house::{Counter, Desk, House, Reply, asking, begin, options, provider, until};

/// Loses power at one of its saves, just after or just before it is written.
struct Fragile {
    store: Arc<SqliteStore>,
    saves: AtomicUsize,
    breaks_at: usize,
    written: bool,
}

#[async_trait]
impl RunStore for Fragile {
    async fn save_run(&self, run: &str, state: &Value) -> Result<(), StoreError> {
        let breaks = self.saves.fetch_add(1, Ordering::SeqCst) + 1 == self.breaks_at;
        if !breaks || self.written {
            self.store.save_run(run, state).await?;
        }
        if breaks { Err(StoreError::NotFound("the power".into())) } else { Ok(()) }
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
async fn a_crash_between_any_two_steps_changes_no_request_and_repeats_no_call() {
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN);
    let whole = House::new(dir.path(), script(), vec![tool.clone()]).await;
    let report = whole.driver.run(&mut begin(Limits::default()), &options()).await.unwrap();
    let expected = whole.requests();
    assert_eq!((report.answer.as_str(), tool.count(), expected.len()), ("three", 3, 3));

    // Six saves: three times the model, twice calls, and the end. The first one must be written.
    for (breaks_at, written) in (1..=6).map(|n| (n, true)).chain((2..=6).map(|n| (n, false))) {
        let dir = tempfile::tempdir().unwrap();
        let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN);
        let fragile = |store| Arc::new(Fragile { store, saves: AtomicUsize::new(0), breaks_at, written });
        let house = House::with_store(dir.path(), script(), vec![tool.clone()], fragile).await;
        let broken = house.driver.run(&mut begin(Limits::default()), &options()).await;
        assert!(matches!(broken, Err(DriverError::Store(_))), "save {breaks_at}");
        let mut sent = house.requests();
        drop(house);
        let house = House::new(dir.path(), script(), vec![tool.clone()]).await;
        let resumed = house.driver.resume(&options()).await.unwrap();
        sent.extend(house.requests());
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
async fn a_crash_in_the_middle_of_a_turn_repeats_nothing_that_is_in_doubt() {
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
    let house = House::new(dir.path(), script.clone(), tools.clone()).await;
    // Nobody answers for `waiting`, so it is not dispatched.
    let desk = asking(Desk::new(&[approve("t__finished"), approve("t__doubtful")]));
    let driver = house.driver.clone();
    let run = tokio::spawn(async move { driver.run(&mut begin(Limits::default()), &desk).await });
    let store = house.store.clone();
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
    drop(house);

    let house = House::new(dir.path(), script, tools).await;
    // A call that is wrongly run again would hang, at the desk or in the tool.
    let options = asking(Desk::new(&[approve("t__waiting")]));
    let resumed = tokio::time::timeout(std::time::Duration::from_secs(20), house.driver.resume(&options)).await;
    let report = resumed.unwrap().unwrap();
    assert_eq!((report.status, report.answer.as_str()), (Status::Success, "went on"));
    assert_eq!([finished.count(), doubtful.count(), harmless.count(), waiting.count()], [1, 1, 2, 1]);
    assert_eq!(report.calls.iter().map(|call| call.ok).collect::<Vec<_>>(), [true, false, true, true]);
    let message = &report.calls[1].error.as_ref().unwrap().message;
    assert!(message.starts_with("unknown: ") && message.contains("may or may not"), "{message}");
}

#[tokio::test]
async fn a_tool_that_changed_meanwhile_is_not_run_on_the_old_call() {
    let dir = tempfile::tempdir().unwrap();
    let old = Counter::saying("t:a@1.0.0", Effects::READ, "old");
    let script = vec![Reply::Calls(vec![("1", "t__a", json!({}))]), Reply::Text("x")];
    let fragile = |store| Arc::new(Fragile { store, saves: AtomicUsize::new(0), breaks_at: 2, written: true });
    let house = House::with_store(dir.path(), script.clone(), vec![old.clone()], fragile).await;
    house.driver.run(&mut begin(Limits::default()), &options()).await.unwrap_err();
    let new = Counter::saying("t:a@1.0.0", Effects::READ, "new");
    let house = House::new(dir.path(), script, vec![new.clone()]).await;
    let report = house.driver.resume(&options()).await.unwrap();
    assert_eq!((old.count(), new.count(), report.calls[0].ok), (0, 0, false));
    assert!(report.calls[0].error.as_ref().unwrap().message.contains("has changed"));
}

#[tokio::test]
async fn what_was_never_saved_cannot_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let house = House::new(dir.path(), vec![], vec![]).await;
    house.catalogue.add_provider(provider("other", vec![])).await.unwrap();
    let error = house.driver.resume(&options()).await.unwrap_err();
    assert_eq!(error.to_string(), "no run `run-1` was saved");
}
