//! Model usage of a run's calls: their own requests, and the repairs of their arguments.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_agent::{DriverError, Limits, RunConfig, RunOptions, RunState, Status};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::client::{AskingCall, ClientRequest};
use toolwright_core::definition::Mode;
use toolwright_core::error::ErrorKind;
use toolwright_core::exposure::Exposure;
use toolwright_core::model::{Message, ModelRequest, Usage};
use toolwright_core::store::LedgerStore as _;
use toolwright_core::{
    CallId, Effects, Session, SessionId, Tool, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::ModelJudge;
use toolwright_search::{Method, PickOptions, Selector, ToolFinder};
use toolwright_testkit::{FakeApprover, FakeCallClient};

use crate::fixture::{Counter, Fixture, JUDGE, Reply, asking, begin, options};
use crate::turns::resume::FaultyStore;

/// Asks a model, and then fails where it is told to.
#[derive(Default)]
struct ModelAskingTool(Mode);

#[async_trait]
impl Tool for ModelAskingTool {
    fn definition(&self) -> ToolDefinition {
        let schema = json!({"type": "object", "properties": {"fails": {"type": "boolean"}}});
        let mut definition = ToolDefinition::new(ToolId::parse("t:asks@1.0.0").unwrap(), "Asks a model.", Some(schema));
        definition.mode = self.0;
        definition
    }

    fn awaits_others(&self) -> bool {
        true
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        if self.0 == Mode::Background {
            // The run has given an answer by then.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let request = ModelRequest { messages: vec![Message::user("q")], ..ModelRequest::default() };
        context.calls.ask("test/other", &request).await.unwrap();
        match arguments["fails"].as_bool() {
            Some(true) => Err(ToolError::new(ErrorKind::ExecutionError, "it failed all the same")),
            _ => Ok(ToolOutput::text("asked")),
        }
    }
}

fn script() -> Vec<Reply> {
    let calls = vec![("1", "t__asks", json!({})), ("2", "t__asks", json!({"fails": true}))];
    vec![Reply::Calls(calls), Reply::Text("done")]
}

/// The script's two answers, and one to each call.
const USED: Usage =
    Usage { input_tokens: 28, output_tokens: 12, cached_tokens: 0, cache_written_tokens: 0, reasoning_tokens: 0 };

#[tokio::test]
async fn model_usage_of_calls_counts_and_is_reported() {
    // With those of its calls the first answer came to thirty.
    let stopped = Usage { input_tokens: 21, output_tokens: 9, ..Usage::default() };
    for (tokens, used, is_stopped) in [(None, USED, false), (Some(31), USED, false), (Some(30), stopped, true)] {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::new(dir.path(), script(), vec![Arc::new(ModelAskingTool::default())]).await;
        let limits = Limits { tokens, ..Limits::default() };
        let report = fixture.driver.run(&mut begin(limits), &options()).await.unwrap();
        assert_eq!((report.usage, report.reason.is_some()), (used, is_stopped), "{tokens:?}: {report:?}");
    }
}

#[tokio::test]
async fn a_judge_of_tools_counts_for_the_run() {
    let search = || Reply::Calls(vec![("1", "tools__search", json!({"query": "the weather"}))]);
    // What the judge uses counts where its answer is of no use, too.
    for (exposure, script, breaks, asked) in [
        (Exposure::Pick, vec![Reply::Text("done")], false, 1),
        (Exposure::Pick, vec![Reply::Text("done")], true, 1),
        (Exposure::Search, vec![search(), Reply::Text("done")], false, 2),
        (Exposure::Search, vec![search(), Reply::Text("done")], true, 2),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let tools = [("sky:weather@1.0.0", " Tells the weather."), ("mail:send@1.0.0", " Sends a letter.")];
        let tools = tools.map(|(id, about)| Counter::saying(id, Effects::READ, about) as Arc<dyn Tool>);
        let fixture = Fixture::new(dir.path(), script, tools.into()).await;
        fixture.model.repair_fails.store(breaks, Ordering::SeqCst);
        let elsewhere = Session { id: SessionId::new("selection"), ..Session::clone(&options().session) };
        let judge = ModelJudge::new(Arc::clone(&fixture.executor), Arc::new(elsewhere), JUDGE);
        let selector = Arc::new(Selector::new().with_judge(Arc::new(judge)));
        let by_judge = PickOptions { scorer: Method::Judge, ..PickOptions::default() };
        let driver = fixture.driver.clone().with_finder(ToolFinder::new(selector, by_judge));
        let config = RunConfig { exposure: Some(exposure), ..RunConfig::new("judge/run", "sys") };
        let mut state = RunState::new(config, vec![Message::user("How is the weather?")]);
        let report = driver.run(&mut state, &options()).await.unwrap();
        let expect = Usage { input_tokens: 7 * asked + 100, output_tokens: 3 * asked + 10, ..Usage::default() };
        assert_eq!((report.status, report.usage), (Status::Success, expect), "{exposure:?} {breaks}: {report:?}");
        let cost = expect.input_tokens as f64 * 10.0 / 1e6;
        assert!(report.cost_usd.is_some_and(|usd| (usd - cost).abs() < 1e-9), "{exposure:?} {breaks}: {report:?}");
        fixture.store.flush().await.unwrap();
        let trace = fixture.store.find_traces("run-1").await.unwrap().remove(0);
        let rows = fixture.store.operations(&trace, 100).await.unwrap();
        assert_eq!(rows.iter().filter(|row| &*row.name == JUDGE).count(), 1, "{exposure:?} {breaks}: {rows:?}");
        let noted = rows.iter().filter_map(|row| row.note.as_deref());
        let failed = noted.filter(|note| note.starts_with("picked without judge, which failed: it broke off"));
        assert_eq!(failed.count(), usize::from(breaks && exposure == Exposure::Pick), "{rows:?}");
    }
}

#[tokio::test]
async fn usage_of_calls_before_a_crash_counts_once() {
    // Four saves: before each of the two questions, before the calls, and at the end.
    for (breaks_at, written) in [(2, true), (3, false), (3, true), (4, true)] {
        let dir = tempfile::tempdir().unwrap();
        let fragile = |store| FaultyStore::new(store, breaks_at, written);
        let fixture =
            Fixture::with_store(dir.path(), script(), vec![Arc::new(ModelAskingTool::default())], fragile).await;
        let broken = fixture.driver.run(&mut begin(Limits::default()), &options()).await;
        assert!(matches!(broken, Err(DriverError::Store(_))), "save {breaks_at}");
        drop(fixture);
        let fixture = Fixture::new(dir.path(), script(), vec![Arc::new(ModelAskingTool::default())]).await;
        let report = fixture.driver.resume(&options()).await.unwrap();
        assert_eq!(report.usage, USED, "save {breaks_at}, written {written}");
    }
}

/// A tool of a source that asks its client, and knows nothing of models.
struct SamplingTool;

#[async_trait]
impl Tool for SamplingTool {
    fn definition(&self) -> ToolDefinition {
        let schema = json!({"type": "object", "properties": {"fails": {"type": "boolean"}}});
        ToolDefinition::new(ToolId::parse("t:asks@1.0.0").unwrap(), "Asks its client.", Some(schema))
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let method = "sampling/createMessage".to_owned();
        context.client.ask(vec![ClientRequest { key: None, method, params: json!({}) }]).await?;
        match arguments["fails"].as_bool() {
            Some(true) => Err(ToolError::new(ErrorKind::ExecutionError, "it failed all the same")),
            _ => Ok(ToolOutput::text("asked")),
        }
    }
}

/// The client of one call, whose answers use what a model's do.
fn sampling(asking: &AskingCall) -> FakeCallClient {
    // A run counts what its calls use.
    let recorder = asking.usage.clone();
    FakeCallClient::new(move |_| {
        let used = Usage { input_tokens: 7, output_tokens: 3, ..Usage::default() };
        recorder.as_ref().unwrap().record("test/other", used);
        json!({})
    })
}

#[tokio::test]
async fn usage_of_sampling_before_a_crash_counts_once() {
    let client = || FakeCallClient::saying(json!({})).with(|client| client.for_call = Some(sampling));
    let options = || RunOptions { client: Arc::new(client()), ..options() };
    for (breaks_at, written) in [(2, true), (3, false), (3, true), (4, true)] {
        let dir = tempfile::tempdir().unwrap();
        let fragile = |store| FaultyStore::new(store, breaks_at, written);
        let fixture = Fixture::with_store(dir.path(), script(), vec![Arc::new(SamplingTool)], fragile).await;
        let broken = fixture.driver.run(&mut begin(Limits::default()), &options()).await;
        assert!(matches!(broken, Err(DriverError::Store(_))), "save {breaks_at}");
        drop(fixture);
        let fixture = Fixture::new(dir.path(), script(), vec![Arc::new(SamplingTool)]).await;
        let report = fixture.driver.resume(&options()).await.unwrap();
        assert_eq!(report.usage, USED, "save {breaks_at}, written {written}");
    }
}

#[tokio::test]
async fn usage_of_jobs_counts_at_any_time() {
    // With its job the run asks four times; it does not go on for the job where thirty tokens are used by then.
    let three = Usage { input_tokens: 21, output_tokens: 9, ..Usage::default() };
    for (tokens, used) in [(None, USED), (Some(30), three)] {
        let dir = tempfile::tempdir().unwrap();
        let script = vec![
            Reply::Calls(vec![("1", "t__asks", json!({}))]),
            Reply::Text("I have begun."),
            Reply::Text("It was found."),
        ];
        let fixture = Fixture::new(dir.path(), script, vec![Arc::new(ModelAskingTool(Mode::Background))]).await;
        let driver = fixture.driver.clone().with_job_wait(Duration::from_secs(20));
        let limits = Limits { tokens, ..Limits::default() };
        let mut state = begin(limits);
        let report = driver.run(&mut state, &options()).await.unwrap();
        assert_eq!(report.usage, used, "{tokens:?}: {report:?}");
        assert_eq!(fixture.requests().len() as u64 * 7, used.input_tokens);
        assert_eq!(fixture.driver.load(&options()).await.unwrap().report().usage, used, "it is saved");
    }
}

#[tokio::test]
async fn usage_of_jobs_counts_once_despite_crashes() {
    for (breaks_at, written) in (1..=6).flat_map(|n| [(n, true), (n, false)]) {
        let dir = tempfile::tempdir().unwrap();
        let fixture = async |breaks_at| {
            let script = vec![
                Reply::Calls(vec![("1", "t__asks", json!({}))]),
                Reply::Text("I have begun."),
                Reply::Text("It was found."),
            ];
            let fragile = |store| FaultyStore::new(store, breaks_at, written);
            Fixture::with_store(dir.path(), script, vec![Arc::new(ModelAskingTool(Mode::Background))], fragile).await
        };
        let broken = fixture(breaks_at).await;
        let driver = broken.driver.clone().with_job_wait(Duration::from_secs(20));
        let mut state = begin(Limits::default());
        let outcome = driver.run(&mut state, &options()).await;
        drop((broken, driver));
        let fixture = fixture(usize::MAX).await;
        let driver = fixture.driver.clone().with_job_wait(Duration::from_secs(20));
        if outcome.is_err() {
            state = driver.load(&options()).await.unwrap_or_else(|_| begin(Limits::default()));
            driver.run(&mut state, &options()).await.unwrap();
        }
        assert_eq!(state.report().usage, USED, "save {breaks_at}, written {written}");
    }
}

#[tokio::test]
async fn usage_of_a_job_between_tasks_counts() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        vec![Reply::Calls(vec![("1", "t__asks", json!({}))]), Reply::Text("I have begun."), Reply::Text("Yes.")];
    let fixture = Fixture::new(dir.path(), script, vec![Arc::new(ModelAskingTool(Mode::Background))]).await;
    let mut state = begin(Limits::default());
    fixture.driver.run(&mut state, &options()).await.unwrap();
    assert!(fixture.executor.services().log.wait(&options().session.id, 0, Duration::from_secs(20)).await.unwrap());
    fixture.driver.receive(&mut state, &options()).await.unwrap();
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!((report.answer.as_str(), report.usage.input_tokens), ("Yes.", 14), "the job's request and the own one");
}

/// A call whose arguments need a repair.
fn unfit_script() -> Vec<Reply> {
    vec![Reply::Calls(vec![("1", "t__add", json!({"n": "one"}))]), Reply::Text("done")]
}

fn repairs(fixture: &Fixture) -> usize {
    fixture.model.repairs.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_granted_call_is_not_repaired_again() {
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN);
    let fixture = Fixture::with_repairs(dir.path(), unfit_script(), vec![tool.clone()], |store| store).await;
    let later = asking(Arc::new(FakeApprover::by_call(&[("1", ApprovalDecision::Later)])));
    let mut state = begin(Limits::default());
    let asked = fixture.driver.run(&mut state, &later).await.unwrap();
    assert_eq!((asked.status, &asked.pending[0].arguments), (Status::Suspended, &json!({"n": 1})));

    let mut state = RunState::from_json(state.to_json().unwrap()).unwrap();
    state.on_approvals(vec![(CallId::new("1"), ApprovalDecision::Approve)]).unwrap();
    let report = fixture.driver.run(&mut state, &later).await.unwrap();
    assert_eq!((report.status, tool.count(), repairs(&fixture)), (Status::Success, 1, 1), "{:?}", report.pending);
    let call = &report.to_json()["calls"][0];
    assert_eq!((&call["arguments"], &call["ran_with"]), (&json!({"n": "one"}), &json!({"n": 1})));
    assert_eq!(call["provenance"]["repair"]["end"], "accepted");
}

#[tokio::test]
async fn a_crash_before_dispatch_repeats_no_repair() {
    // The saves: before the model, before the calls, what the check came to.
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN);
    let fragile = |store| FaultyStore::new(store, 3, true);
    let fixture = Fixture::with_repairs(dir.path(), unfit_script(), vec![tool.clone()], fragile).await;
    let broken = fixture.driver.run(&mut begin(Limits::default()), &options()).await;
    assert!(matches!(broken, Err(DriverError::Store(_))));
    assert_eq!((tool.count(), repairs(&fixture)), (0, 1));
    drop(fixture);
    let fixture = Fixture::with_repairs(dir.path(), unfit_script(), vec![tool.clone()], |store| store).await;
    let report = fixture.driver.resume(&options()).await.unwrap();
    assert_eq!((report.status, tool.count(), repairs(&fixture)), (Status::Success, 1, 0));
    assert_eq!(report.usage.input_tokens, 100 + 2 * 7, "what the first attempt took stays counted");
}

#[tokio::test]
async fn tokens_of_repairs_count_against_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let tool = Counter::new("t:add@1.0.0", Effects::UNKNOWN);
    let fixture = Fixture::with_repairs(dir.path(), unfit_script(), vec![tool], |store| store).await;
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
    let fixture = Fixture::with_repairs(dir.path(), unfit_script(), vec![tool.clone()], |store| store).await;
    fixture.model.repair_fails.store(true, Ordering::SeqCst);
    let report = fixture.driver.run(&mut begin(Limits::default()), &options()).await.unwrap();
    assert_eq!((report.status, tool.count(), repairs(&fixture)), (Status::Partial, 0, 1), "{report:?}");
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
