//! Jobs, with a real store, and with real processes that are really killed.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::approval::NoApprover;
use toolwright_core::catalogue::ProviderKind;
use toolwright_core::definition::{Concurrency, Mode, OnOutputMismatch};
use toolwright_core::event::{Event, Partial};
use toolwright_core::job::{JobFilter, JobRecord, JobScope, JobState, Jobs as _};
use toolwright_core::output::ResultAudience;
use toolwright_core::store::{MessageKind, RunStore, StoreError};
use toolwright_core::{
    CallId, CancelCause, Effects, Outcome, Policy, Principal, Profile, RawArguments, Services, Session, SessionId,
    StaticProvider, Tool, ToolCall, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::executor::{BUDGET_EXCEEDED, ContextBudget, Promotion};
use toolwright_runtime::{
    Catalogue, EventHub, Executor, ExecutorOptions, JobManager, RecoveryOptions, RunContext, SqliteStore, SystemClock,
};

pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Notes each of its runs in a file that outlives it, and takes its time.
struct Work {
    name: &'static str,
    mode: Mode,
    effects: Effects,
    runs: PathBuf,
}

#[async_trait]
impl Tool for Work {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::format("j", self.name, "1.0.0").expect("id");
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "ms": {"type": "integer"}, "bytes": {"type": "integer"}}});
        let mut definition = ToolDefinition::new(id, "Works.", Some(schema));
        definition.mode = self.mode;
        definition.effects = self.effects;
        if self.name.starts_with("alone") {
            definition.concurrency = Concurrency::Exclusive;
        }
        if self.name.starts_with("strict") {
            definition.output_schema = Some(json!({"type": "object", "required": ["n"]}));
            definition.on_output_mismatch = OnOutputMismatch::Error;
        }
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let number = |name: &str| arguments.get(name).and_then(Value::as_u64).unwrap_or(0);
        let mut runs = std::fs::OpenOptions::new().create(true).append(true).open(&self.runs).expect("runs");
        runs.write_all(format!("{}\n", number("n")).as_bytes()).expect("noted");
        context.partials.send(Partial::Text(format!("working on {}", number("n"))));
        if self.mode == Mode::Stateful {
            let mut said = Vec::new();
            loop {
                let input = context.turns.pause(ToolOutput::text(format!("so far: {said:?}"))).await?;
                match input.as_str() {
                    Some("end") if self.name.starts_with("strict") => {
                        return Ok(ToolOutput { structured: Some(json!({"n": 1})), ..ToolOutput::default() });
                    }
                    Some("end") => return Ok(ToolOutput::text(format!("in all: {said:?}"))),
                    other => said.push(other.unwrap_or("?").to_owned()),
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(number("ms"))) => Ok(match self.name {
                "again" if number("bytes") > 0 => ToolOutput::text("x".repeat(usize::try_from(number("bytes")).expect("small"))),
                "strict" => ToolOutput { structured: Some(json!({"n": number("n")})), ..ToolOutput::default() },
                _ => ToolOutput::text(format!("result {}", number("n"))),
            }),
            cause = context.cancel.cancelled() => Err(ToolError::canceled(cause)),
        }
    }
}

pub(crate) struct Fixture {
    pub(crate) executor: Arc<Executor>,
    pub(crate) jobs: Arc<JobManager>,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) run: RunContext,
    runs: PathBuf,
}

pub(crate) async fn fixture(dir: &Path) -> Fixture {
    fixture_with(dir, |_| ()).await
}

pub(crate) async fn fixture_with(dir: &Path, configure: impl FnOnce(&mut ExecutorOptions)) -> Fixture {
    let runs = dir.join("runs");
    let tool = |name, mode, effects| Arc::new(Work { name, mode, effects, runs: runs.clone() }) as Arc<dyn Tool>;
    let tools = vec![
        tool("again", Mode::Background, Effects::WRITE),
        tool("once", Mode::Background, Effects::UNKNOWN),
        tool("direct", Mode::Direct, Effects::UNKNOWN),
        tool("alone", Mode::Direct, Effects::UNKNOWN),
        tool("alone_job", Mode::Background, Effects::UNKNOWN),
        tool("talk", Mode::Stateful, Effects::UNKNOWN),
        tool("strict", Mode::Direct, Effects::UNKNOWN),
        tool("strict_talk", Mode::Stateful, Effects::UNKNOWN),
    ];
    let catalogue = Catalogue::from_snapshot(Arc::default());
    let provider = StaticProvider::new("jobs", ProviderKind::Native, tools).expect("provider");
    catalogue.add_provider(Arc::new(provider)).await.expect("added");
    catalogue.refresh("jobs").await;
    let store = SqliteStore::open(dir).expect("store");
    let jobs = JobManager::new(Arc::clone(&store), dir);
    let mut services = Services::none(Arc::new(SystemClock));
    services.events = Arc::new(EventHub::default());
    services.jobs = Arc::clone(&jobs) as _;
    services.log = Arc::clone(&store) as _;
    let mut options = ExecutorOptions::new(Arc::new(services), Arc::clone(&store) as _, Arc::clone(&store) as _);
    options.jobs = Some(Arc::clone(&jobs));
    options.grace = Duration::from_millis(300);
    configure(&mut options);
    let run = terms(session("s", dir), catalogue.snapshot());
    Fixture { executor: Executor::new(options), jobs, catalogue, run, runs }
}

pub(crate) fn session(id: &str, root: &Path) -> Session {
    Session { id: SessionId::new(id), principal: Principal::owner(), root: root.to_owned(), agent: None }
}

pub(crate) fn terms(session: Session, snapshot: Arc<toolwright_core::Snapshot>) -> RunContext {
    let approver = Arc::new(NoApprover { remedy: String::new() });
    RunContext::new(Arc::new(session), snapshot, Arc::new(Policy::of(Profile::Trusted)), approver)
}

impl Fixture {
    pub(crate) async fn call(&self, id: &str, name: &str, arguments: Value) -> Outcome {
        self.call_under(&self.run, id, name, arguments).await
    }

    pub(crate) async fn call_under(&self, run: &RunContext, id: &str, name: &str, arguments: Value) -> Outcome {
        let call = ToolCall::new(CallId::new(id), format!("j__{name}"), RawArguments::Value(arguments));
        self.executor.run_calls(vec![call], run).await.pop().expect("one outcome")
    }

    fn scope(&self) -> JobScope<'_> {
        JobScope::Of(&self.run.session)
    }

    pub(crate) async fn wait(&self, id: &str) -> JobRecord {
        self.jobs.wait(self.scope(), id, LONG).await.expect("the job is known")
    }

    pub(crate) fn recover(&self) {
        let context = Arc::new(terms);
        let (catalogue, root) = (Arc::clone(&self.catalogue), self.run.session.root.clone());
        self.executor.recover_jobs(RecoveryOptions { catalogue, root, session: None, context });
    }

    pub(crate) fn runs(&self) -> HashMap<u64, usize> {
        runs(&self.runs)
    }
}

fn runs(path: &Path) -> HashMap<u64, usize> {
    let mut runs = HashMap::new();
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        *runs.entry(line.parse().expect("a number")).or_default() += 1;
    }
    runs
}

pub(crate) fn id(outcome: &Outcome) -> String {
    assert!(outcome.ok, "{outcome:?}");
    outcome.structured.as_ref().and_then(|note| note["job"].as_str()).expect("a job id").to_owned()
}

pub(crate) fn text(job: &JobRecord) -> String {
    job.outcome.as_ref().map(Outcome::text).unwrap_or_default()
}

#[tokio::test]
async fn a_background_call_is_answered_with_its_job() {
    let dir = tempfile::tempdir().expect("dir");
    let fixture = fixture(dir.path()).await;
    let started = fixture.call("c", "once", json!({"n": 7, "ms": 100})).await;
    let id = id(&started);
    assert!(id.starts_with("once_") && id.len() == 13 && started.text().contains(&id), "{}", started.text());
    let now = fixture.jobs.get(fixture.scope(), &id).await.expect("committed before its id was told");
    assert!(!now.state.is_over() && now.owner.is_some_and(|owner| owner.alive), "{now:?}");
    let done = fixture.wait(&id).await;
    assert_eq!((done.state, text(&done).as_str(), done.attempts), (JobState::Done, "result 7", 1));
    assert_eq!((done.owner, done.ended_ms.is_some()), (None, true));
    let read = fixture.jobs.read(fixture.scope(), &id, 0, 10).await.expect("read");
    assert_eq!((read.text.as_str(), read.total), ("working on 7\nresult 7\n", 2));
    let stranger = session("t", dir.path());
    assert!(fixture.jobs.get(JobScope::Of(&stranger), &id).await.is_err(), "jobs belong to their session");
    assert!(fixture.jobs.list(JobScope::Of(&stranger), JobFilter::All, 9).await.expect("list").is_empty());
    let (log, own) = (&fixture.executor.services().log, &fixture.run.session.id);
    assert!(log.wait(own, 0, LONG).await.expect("waited"));
    let news = log.messages(own, 0, 9).await.expect("news");
    let ends: Vec<_> = news.iter().filter_map(|row| row.message()).map(|end| (end.kind, &*end.subject)).collect();
    assert_eq!(ends, [(MessageKind::Job, &*id)]);
    log.withdraw(own, MessageKind::Job, &id).await.expect("withdrawn");
    assert!(log.messages(own, 0, 9).await.expect("news").is_empty());
}

#[tokio::test]
async fn a_call_without_promotion_is_awaited() {
    let dir = tempfile::tempdir().expect("dir");
    let fixture = fixture(dir.path()).await;
    for (background_after, id) in [(None, "a"), (Some(Duration::from_millis(50)), "b"), (Some(Duration::ZERO), "c")] {
        let run = RunContext { promotion: Promotion::Never, background_after, ..fixture.run.clone() };
        let call = fixture.call_under(&run, id, "direct", json!({"n": 1, "ms": 300}));
        let before = fixture.runs().get(&1).copied().unwrap_or_default();
        let promote = async {
            while fixture.runs().get(&1).copied().unwrap_or_default() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(fixture.executor.promote_all(&run.session.id), 0, "there is none that could");
        };
        let (outcome, ()) = tokio::join!(call, promote);
        assert_eq!(outcome.text(), "result 1", "{id}");
    }
}

#[tokio::test]
async fn a_running_call_becomes_a_job_without_restart() {
    let dir = tempfile::tempdir().expect("dir");
    let fixture = fixture(dir.path()).await;
    let run = RunContext { cancel: toolwright_core::Cancel::new(), ..fixture.run.clone() };
    let call = fixture.call_under(&run, "c", "direct", json!({"n": 1, "ms": 400}));
    let promote = async {
        while fixture.runs().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(fixture.executor.promote_all(&run.session.id), 1);
    };
    let (outcome, ()) = tokio::join!(call, promote);
    assert_eq!(fixture.executor.promote_all(&run.session.id), 0, "it is no running call any more");
    run.cancel.cancel(CancelCause::User);
    let done = fixture.wait(&id(&outcome)).await;
    assert_eq!((done.state, text(&done).as_str()), (JobState::Done, "result 1"), "it outlives its caller's cancel");
    assert_eq!(fixture.runs(), HashMap::from([(1, 1)]));
}

#[tokio::test]
async fn only_a_long_call_becomes_a_job() {
    let dir = tempfile::tempdir().expect("dir");
    let fixture =
        fixture_with(dir.path(), |options| options.defaults.auto_background_after = Some(Duration::from_millis(500)))
            .await;
    assert_eq!(fixture.call("a", "direct", json!({"n": 1, "ms": 0})).await.text(), "result 1");
    let long = fixture.call("b", "direct", json!({"n": 2, "ms": 1500})).await;
    assert_eq!(text(&fixture.wait(&id(&long)).await), "result 2");
    assert_eq!(fixture.runs(), HashMap::from([(1, 1), (2, 1)]));
}

/// Notes an outcome when it is told to.
#[derive(Default)]
struct SlowJournal {
    asked: tokio::sync::Notify,
    resume: tokio::sync::Notify,
}

#[async_trait]
impl RunStore for SlowJournal {
    async fn call_dispatched(&self, _run: &str, _call: &CallId) -> Result<(), StoreError> {
        Ok(())
    }

    async fn call_finished(&self, _run: &str, _outcome: &Outcome) -> Result<(), StoreError> {
        self.asked.notify_one();
        self.resume.notified().await;
        Ok(())
    }
}

#[tokio::test]
async fn a_job_outlives_a_caller_that_leaves() {
    let dir = tempfile::tempdir().expect("dir");
    let fixture = fixture(dir.path()).await;
    let journal = Arc::new(SlowJournal::default());
    let run = RunContext {
        background_after: Some(Duration::from_millis(20)),
        journal: Some((Arc::clone(&journal) as _, "r".into())),
        ..fixture.run.clone()
    };
    {
        let mut calling = std::pin::pin!(fixture.call_under(&run, "a", "direct", json!({"n": 1, "ms": 300})));
        tokio::select! {
            _ = &mut calling => panic!("its end is not noted yet"),
            () = journal.asked.notified() => {}
        }
    }
    journal.resume.notify_one();
    let jobs = fixture.jobs.list(fixture.scope(), JobFilter::All, 9).await.expect("list");
    let done = fixture.wait(&jobs[0].id).await;
    assert_eq!((done.state, text(&done).as_str()), (JobState::Done, "result 1"));
}

#[tokio::test]
async fn only_the_job_notice_uses_context_space() {
    let dir = tempfile::tempdir().expect("dir");
    let fixture = fixture(dir.path()).await;
    for (room, fits) in [(1000, true), (1, false)] {
        let run = RunContext {
            background_after: Some(Duration::from_millis(20)),
            budget: Some(Arc::new(ContextBudget::new(room))),
            ..fixture.run.clone()
        };
        let reported = fixture.call_under(&run, &room.to_string(), "direct", json!({"n": 1, "ms": 200})).await;
        assert_eq!(reported.extras.contains_key(BUDGET_EXCEEDED) || !reported.ok, !fits, "{room}: {reported:?}");
        let jobs = fixture.jobs.list(fixture.scope(), JobFilter::All, 9).await.expect("list");
        let job = jobs.iter().find(|job| job.call.as_str() == room.to_string()).expect("its job");
        assert_eq!(text(&fixture.wait(&job.id).await), "result 1", "{room}");
    }
}

/// What observers hear of jobs, one word or two each.
/// The job that a result stands for, where its tool has an output schema.
fn noted(outcome: &Outcome) -> String {
    assert!(outcome.ok && outcome.structured.is_none(), "{outcome:?}");
    let id = outcome.meta["toolwright/job"]["job"].as_str().expect("a job").to_owned();
    assert!(outcome.text().contains(&id) && outcome.extras.contains_key("stands_in"), "{outcome:?}");
    id
}

#[tokio::test]
async fn a_job_notice_need_not_fit_the_schema() {
    let dir = tempfile::tempdir().expect("dir");
    let hub = Arc::new(EventHub::default());
    let mut warnings = hub.subscribe();
    let events = Arc::clone(&hub);
    let fixture = fixture_with(dir.path(), |options| {
        options.services = Arc::new(Services { events, ..Services::clone(&options.services) });
    })
    .await;
    for after in [Duration::ZERO, Duration::from_millis(20)] {
        let run = RunContext { background_after: Some(after), ..fixture.run.clone() };
        let outcome = fixture.call_under(&run, "a", "strict", json!({"n": 4, "ms": 200})).await;
        let done = fixture.wait(&noted(&outcome)).await;
        assert_eq!(
            (done.state, done.outcome.and_then(|outcome| outcome.structured)),
            (JobState::Done, Some(json!({"n": 4})))
        );
    }
    let step = fixture.call("b", "strict_talk", json!({"n": 5})).await;
    let id = noted(&step);
    fixture.jobs.send(fixture.scope(), &id, json!("end")).await.expect("sent");
    while fixture.wait(&id).await.state != JobState::Done {}
    while let Ok(event) = warnings.try_recv() {
        assert!(!matches!(&*event, Event::Warning { .. }), "{event:?}");
    }
}

fn job_events(events: &mut tokio::sync::broadcast::Receiver<Arc<Event>>) -> Vec<String> {
    let mut heard = Vec::new();
    let mut ops = Vec::new();
    while let Ok(event) = events.try_recv().map(Arc::unwrap_or_clone) {
        let (op, said) = match event {
            Event::JobStarted { op, .. } => (op, "started".to_owned()),
            Event::JobChanged { op, state, .. } => (op, state.to_string()),
            Event::JobFinished { op, state, error, .. } => {
                (op, format!("ended {state} {}", error.map_or("well", |error| error.as_str())))
            }
            Event::JobPromoted { op, by, .. } => {
                assert!(!ops.contains(&op), "it is the call's");
                heard.push(format!("promoted by {by}"));
                continue;
            }
            _ => continue,
        };
        ops.push(op);
        heard.push(said);
    }
    assert!(ops.windows(2).all(|two| two[0] == two[1]), "a job is one operation");
    heard
}

#[tokio::test]
async fn observers_get_each_state_of_a_job() {
    let dir = tempfile::tempdir().expect("dir");
    let hub = Arc::new(EventHub::default());
    let events = Arc::clone(&hub);
    let fixture = fixture_with(dir.path(), |options| {
        options.services = Arc::new(Services { events, ..Services::clone(&options.services) });
        options.defaults.auto_background_after = Some(Duration::from_millis(20));
    })
    .await;
    let mut events = hub.subscribe();
    fixture.wait(&id(&fixture.call("a", "once", json!({"n": 1, "ms": 0})).await)).await;
    assert_eq!(job_events(&mut events), ["started", "running", "ended done well"]);

    fixture.wait(&id(&fixture.call("b", "direct", json!({"n": 2, "ms": 200})).await)).await;
    let promoted = ["started", "running", "promoted by auto_background_after", "ended done well"];
    assert_eq!(job_events(&mut events), promoted);

    let talk = id(&fixture.call("c", "talk", json!({})).await);
    fixture.jobs.send(fixture.scope(), &talk, json!("one")).await.expect("it waits");
    fixture.wait(&talk).await;
    fixture.jobs.stop(fixture.scope(), &talk).await.expect("stopped");
    while !fixture.wait(&talk).await.state.is_over() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let steps = ["started", "running", "waiting_input", "running", "waiting_input", "ended cancelled canceled"];
    assert_eq!(job_events(&mut events), steps);
}

#[tokio::test]
async fn a_stateful_tool_continues_step_by_step() {
    let dir = tempfile::tempdir().expect("dir");
    let fixture = fixture(dir.path()).await;
    let first = fixture.call("c", "talk", json!({})).await;
    let id = id(&first);
    assert!(first.text().starts_with("so far: []") && first.text().contains(&id), "{}", first.text());
    fixture.jobs.send(fixture.scope(), &id, json!("one")).await.expect("it waits");
    let second = fixture.wait(&id).await;
    assert_eq!((second.state, text(&second).as_str()), (JobState::WaitingInput, "so far: [\"one\"]"));
    fixture.jobs.send(fixture.scope(), &id, json!("end")).await.expect("it waits");
    let end = fixture.wait(&id).await;
    assert_eq!((end.state, text(&end).as_str()), (JobState::Done, "in all: [\"one\"]"));
    let refused = fixture.jobs.send(fixture.scope(), &id, json!("more")).await.expect_err("it is over");
    assert!(refused.to_string().contains("is done"), "{refused}");
}

#[tokio::test]
async fn other_processes_see_continue_and_stop_a_job() {
    let dir = tempfile::tempdir().expect("dir");
    let fixture = fixture(dir.path()).await;
    // It has none of the jobs, so it goes through the store, as another process does.
    let other = JobManager::new(SqliteStore::open(dir.path()).expect("store"), dir.path());
    let talk = id(&fixture.call("a", "talk", json!({})).await);
    let slow = id(&fixture.call("b", "once", json!({"n": 3, "ms": 60_000})).await);
    other.send(JobScope::All, &talk, json!("end")).await.expect("sent");
    let end = other.wait(JobScope::All, &talk, LONG).await.expect("known");
    assert_eq!((end.state, text(&end).as_str()), (JobState::Done, "in all: []"));
    while other.read(JobScope::All, &slow, 0, 9).await.expect("read").total == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    other.stop(JobScope::All, &slow).await.expect("stopped");
    assert_eq!(other.wait(JobScope::All, &slow, LONG).await.expect("known").state, JobState::Cancelled);
    other.stop(JobScope::All, &slow).await.expect("one that is over stays as it is");
    assert_eq!(other.list(JobScope::All, JobFilter::All, 9).await.expect("list").len(), 2);
}

#[tokio::test]
async fn a_shutdown_leaves_repeatable_jobs_to_others() {
    let dir = tempfile::tempdir().expect("dir");
    let first = fixture(dir.path()).await;
    let again = id(&first.call("a", "again", json!({"n": 1, "ms": 300})).await);
    let once = id(&first.call("b", "once", json!({"n": 2, "ms": 60_000})).await);
    while first.runs().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.jobs.shut_down(LONG).await;
    let states = [&again, &once].map(|id| first.jobs.get(JobScope::All, id));
    let states: Vec<_> =
        futures_util::future::join_all(states).await.into_iter().map(|job| job.expect("kept").state).collect();
    assert_eq!(states, [JobState::Pending, JobState::Cancelled]);
    let refused = first.call("c", "once", json!({"n": 3})).await;
    assert!(refused.error.is_some_and(|error| error.message().contains("shutting down")));
    let second = fixture(dir.path()).await;
    second.recover();
    let done = second.wait(&again).await;
    assert_eq!((done.state, text(&done).as_str(), done.attempts), (JobState::Done, "result 1", 2));
    assert_eq!(second.runs(), HashMap::from([(1, 2), (2, 1)]));
}

#[tokio::test]
async fn a_resumed_job_keeps_its_callers_cap() {
    let dir = tempfile::tempdir().expect("dir");
    let first = fixture(dir.path()).await;
    let client = RunContext { results_for: ResultAudience::Client, ..first.run.clone() };
    let arguments = json!({"n": 1, "ms": 300, "bytes": 40_000});
    let of_client = id(&first.call_under(&client, "a", "again", arguments.clone()).await);
    let of_run = id(&first.call("b", "again", arguments).await);
    first.jobs.shut_down(LONG).await;
    let second = fixture(dir.path()).await;
    second.recover();
    assert_eq!(text(&second.wait(&of_client).await).len(), 40_000);
    assert!(text(&second.wait(&of_run).await).len() < 20_000);
}

/// Jobs of the test that kills processes: the even ones may run again.
const JOBS: u64 = 60;
const KILLS: usize = 6;
const DIR: &str = "TOOLWRIGHT_TEST_JOBS_DIR";
const FROM: &str = "TOOLWRIGHT_TEST_JOBS_FROM";

/// The process that is killed, which is this test alone: starts jobs one by one and tells each id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let (Ok(dir), Ok(from)) = (std::env::var(DIR), std::env::var(FROM)) else { return };
    let fixture = fixture(Path::new(&dir)).await;
    fixture.recover();
    for n in from.parse().expect("a number")..JOBS {
        let name = if n % 2 == 0 { "again" } else { "once" };
        let outcome = fixture.call(&format!("c{n}"), name, json!({"n": n, "ms": 20 + n * 37 % 150})).await;
        let line = format!("ack {n} {}\n", id(&outcome));
        std::io::stdout().write_all(line.as_bytes()).expect("told");
        std::io::stdout().flush().expect("told");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    // It is killed here at the latest.
    std::future::pending::<()>().await;
}

fn spawn(dir: &Path, from: u64) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "background::jobs::child", "--nocapture"])
        .env(DIR, dir)
        .env(FROM, from.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("spawned")
}

/// Collects what a child tells until it is killed.
fn listen(child: &mut Child, acks: &std::sync::Mutex<HashMap<u64, String>>) {
    for line in BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok) {
        if let Some((n, id)) = line.split_once("ack ").and_then(|(_, ack)| ack.split_once(' ')) {
            acks.lock().expect("lock").insert(n.parse().expect("a number"), id.to_owned());
        }
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_lose_and_repeat_no_job() {
    let dir = tempfile::tempdir().expect("dir");
    let acks = Arc::new(std::sync::Mutex::new(HashMap::new()));
    let started = Instant::now();
    let mut kills = 0;
    // A job that was begun but not told is begun again under another id: that is its caller's doing, so
    // numbers that were not told are left out.
    let mut from = 0;
    let jobs = JobManager::new(SqliteStore::open(dir.path()).expect("store"), dir.path());
    loop {
        let mut child = spawn(dir.path(), from);
        let (heard, pid) = (Arc::clone(&acks), child.id());
        let listener = std::thread::spawn(move || {
            listen(&mut child, &heard);
            child.wait().expect("ended")
        });
        let last = kills == KILLS;
        tokio::time::sleep(Duration::from_millis(350)).await;
        if last {
            let ids: Vec<String> = acks.lock().expect("lock").values().cloned().collect();
            for id in ids {
                jobs.wait(JobScope::All, &id, LONG).await.expect("every id that was told answers");
            }
        }
        Command::new("kill").args(["-9", &pid.to_string()]).status().expect("killed");
        listener.join().expect("heard");
        if last {
            break;
        }
        kills += 1;
        from =
            runs(&dir.path().join("runs")).keys().chain(acks.lock().expect("lock").keys()).max().map_or(0, |n| n + 2);
    }
    let acks = acks.lock().expect("lock").clone();
    let runs = runs(&dir.path().join("runs"));
    assert!(acks.len() >= 10, "{} jobs in {:?}", acks.len(), started.elapsed());
    for (n, id) in acks {
        let job = jobs.get(JobScope::All, &id).await.expect("every id that was told answers");
        let ran = runs.get(&n).copied().unwrap_or(0);
        let reported = format!("{job:?} ran {ran} times");
        match job.state {
            JobState::Done => assert_eq!(text(&job), format!("result {n}"), "{reported}"),
            JobState::Unknown => assert!(n % 2 == 1, "{reported}"),
            _ => panic!("{reported}"),
        }
        assert!(n % 2 == 0 || ran <= 1, "{reported}");
        assert!(job.state != JobState::Done || ran >= 1, "{reported}");
    }
}
