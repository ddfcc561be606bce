//! Agents that start agents: one tree with one account, rights that only narrow, and nothing lost or done twice.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_agent::{AgentParts, AgentProvider, ChildEnd, Driver, Limits, RunOptions, RunReport, RunSpec, Status};
use toolwright_core::agents::{AgentLimits, AgentSpec, AgentTree as _, OnChildren};
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest, Approver};
use toolwright_core::context::NoRedaction;
use toolwright_core::job::{JobScope, Jobs as _, Listed};
use toolwright_core::model::{Message, ModelResponse, PriceTable, Prices, StopReason, Usage, WrittenCall};
use toolwright_core::policy::Rule;
use toolwright_core::store::{LedgerStore as _, RunStore};
use toolwright_core::trace::{Trace, TraceOp};
use toolwright_core::{
    CancelCause, Effects, Event, Policy, Profile, Services, Session, SessionId, Tool, ToolContext, ToolDefinition,
    ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::executor::ExecutorOptions;
use toolwright_runtime::{
    Catalogue, Executor, JobManager, OutputFiles, RecoveryOptions, RunContext, SqliteStore, SystemClock,
};
use toolwright_testkit::{FakeCall, FakeModel};

use crate::fixture::{Counter, Log, Reply, begin, begin_with, options, provider, until};
use crate::resume::Fragile;

/// What each agent says, turn by turn; the root is called `root`.
pub(crate) type Scripts = HashMap<&'static str, Vec<Reply>>;

pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// Sends a message to the first job of the run's session.
pub(crate) async fn send_to_job(tree: &Tree, text: &str) {
    let (jobs, options) = (&tree.jobs, options());
    let scope = JobScope::Of(&options.session);
    let job = jobs.list(scope, Listed::Open, 1).await.unwrap().remove(0);
    jobs.send(scope, &job.id, text.into()).await.unwrap();
}

/// The call of an agent.
pub(crate) fn start(id: &'static str, agent: &'static str) -> (&'static str, &'static str, Value) {
    (id, agent, json!({"reason": "it is asked for", "task": "do it"}))
}

pub(crate) fn agent(name: &str) -> AgentSpec {
    AgentSpec { name: name.to_owned(), prompt: format!("I am {name}."), ..AgentSpec::default() }
}

pub(crate) struct Tree {
    pub(crate) driver: Driver,
    pub(crate) store: Arc<SqliteStore>,
    model: Arc<FakeModel>,
    log: Arc<Log>,
    pub(crate) jobs: Arc<JobManager>,
    executor: Arc<Executor>,
    catalogue: Arc<Catalogue>,
}

/// Answers by who asks, and by how often it has answered, so that a resumed run goes on where it was.
fn model(scripts: Scripts) -> Arc<FakeModel> {
    let scripts = Arc::new(scripts);
    Arc::new(FakeModel::with_future(move |call| {
        let scripts = Arc::clone(&scripts);
        Box::pin(async move { answer(&scripts, call).await })
    }))
}

async fn answer(scripts: &Scripts, call: FakeCall<'_>) -> Result<ModelResponse, toolwright_core::model::ModelError> {
    let said = call.request.messages.iter().filter(|message| matches!(message, Message::Assistant { .. })).count();
    let who = who(&call.request.system);
    let script = scripts.get(who.as_str()).unwrap_or_else(|| panic!("{who} has no script"));
    let reply = script.get(said).or(script.last()).cloned().unwrap();
    let (text, calls) = match reply {
        Reply::Text(text) => (text, Vec::new()),
        Reply::Calls(calls) => ("", calls),
        Reply::Hang => {
            let cause = call.cancel.cancelled().await;
            panic!("a cancelled request goes on: {cause:?}");
        }
        Reply::Fail(kind) => return Err(toolwright_core::model::ModelError::new(kind, "scripted failure")),
        Reply::Broken(_) => unreachable!("no script here breaks off"),
    };
    let written = |(id, name, arguments): (&str, &str, Value)| WrittenCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_string(),
    };
    let calls: Vec<WrittenCall> = calls.into_iter().map(written).collect();
    Ok(ModelResponse {
        text: text.to_owned(),
        stop: if calls.is_empty() { StopReason::End } else { StopReason::ToolCalls },
        calls,
        usage: Usage { input_tokens: 100, output_tokens: 10, ..Usage::default() },
        ..ModelResponse::default()
    })
}

fn who(system: &str) -> String {
    let name = system.strip_prefix("I am ").and_then(|rest| rest.split_once('.'));
    name.map_or("root", |(name, _)| name).to_owned()
}

impl Tree {
    pub(crate) async fn new(dir: &Path, scripts: Scripts, agents: Vec<AgentSpec>, tools: Vec<Arc<dyn Tool>>) -> Self {
        Self::over(dir, scripts, agents, tools, |store| store).await
    }

    async fn over<S: RunStore + 'static>(
        dir: &Path,
        scripts: Scripts,
        agents: Vec<AgentSpec>,
        tools: Vec<Arc<dyn Tool>>,
        wrap: impl FnOnce(Arc<SqliteStore>) -> Arc<S>,
    ) -> Self {
        let store = SqliteStore::open(dir).unwrap();
        let log = Arc::new(Log::default());
        let model = model(scripts);
        let jobs = JobManager::new(store.clone(), dir);
        let services = Services {
            outputs: OutputFiles::new(dir.join("outputs")),
            events: log.clone(),
            log: store.clone(),
            jobs: jobs.clone(),
            model: model.clone(),
            ..Services::none(Arc::new(SystemClock))
        };
        let mut settings = ExecutorOptions::new(Arc::new(services), store.clone(), store.clone());
        settings.jobs = Some(jobs.clone());
        settings.grace = Duration::from_secs(5);
        let prices = Prices { input: 10.0, output: 100.0, cached: None, cache_written: None };
        settings.prices = PriceTable::from_iter([("test".to_owned(), prices)]);
        let executor = Executor::new(settings);
        let catalogue = Catalogue::new(log.clone(), Arc::new(NoRedaction), Duration::from_secs(5));
        let runs: Arc<dyn RunStore> = wrap(store.clone());
        let limits = AgentLimits::default();
        let parts = AgentParts {
            runs: runs.clone(),
            tree: store.clone(),
            limits: limits.clone(),
            default_model: None,
            spec: Arc::new(|model| RunSpec::new(model, "")),
        };
        let agents = Arc::new(AgentProvider::new(agents, parts));
        catalogue.add_provider(provider("test", tools)).await.unwrap();
        catalogue.add_provider(agents).await.unwrap();
        catalogue.refresh("test").await;
        catalogue.refresh("agents").await;
        let driver = Driver::new(executor.clone(), catalogue.clone(), model.clone(), Some(runs));
        let driver = driver.with_agents(store.clone(), limits);
        Self { driver, store, model, log, jobs, executor, catalogue }
    }

    pub(crate) async fn run(&self, options: &RunOptions) -> RunReport {
        let report = tokio::time::timeout(WAIT, self.driver.run(&mut begin(Limits::default()), options)).await;
        report.unwrap().unwrap()
    }

    /// The tools that the last request of an agent showed.
    fn shown(&self, agent: &str) -> Vec<String> {
        let asked = self.model.asked();
        let (_, request) = asked.iter().rev().find(|(_, request)| who(&request.system) == agent).unwrap();
        request.tools.iter().map(|tool| tool.name.clone()).collect()
    }

    /// The text of the results that the last request of an agent had.
    pub(crate) fn results(&self, agent: &str) -> String {
        let asked = self.model.asked();
        let (_, request) = asked.iter().rev().find(|(_, request)| who(&request.system) == agent).unwrap();
        serde_json::to_string(&request.messages).unwrap()
    }

    async fn trace(&self) -> Trace {
        self.store.flush().await.unwrap();
        let root = self.store.find_traces("run-1").await.unwrap().remove(0);
        let tree = self.store.trace_tree(&root).await.unwrap();
        let mut entries = Vec::new();
        for of in &tree {
            entries.extend(self.store.operations(of, 1000).await.unwrap());
        }
        Trace::of_tree(&tree, &entries).unwrap()
    }

    /// How many agents below the root were begun, and how many of them run.
    async fn agents(&self) -> (usize, usize) {
        let agents = self.store.agents_of("run-1").await.unwrap();
        let below = agents.iter().filter(|agent| agent.parent.is_some());
        (below.clone().count(), below.filter(|agent| agent.live).count())
    }
}

/// Agents a, b and c: each starts the next, and c calls a tool.
fn three_levels() -> (Scripts, Vec<AgentSpec>) {
    let scripts = HashMap::from([
        ("root", vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Text("all done")]),
        ("a", vec![Reply::Calls(vec![start("1", "agent__b")]), Reply::Text("a done")]),
        ("b", vec![Reply::Calls(vec![start("1", "agent__c")]), Reply::Text("b done")]),
        ("c", vec![Reply::Calls(vec![("1", "t__write", json!({}))]), Reply::Text("c done")]),
    ]);
    (scripts, ["a", "b", "c"].map(agent).to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn three_levels_roll_up_to_the_root() {
    let dir = tempfile::tempdir().unwrap();
    let (scripts, agents) = three_levels();
    let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN);
    let tree = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
    let report = tree.run(&options()).await;
    assert_eq!((report.status, report.answer.as_str(), tool.count()), (Status::Success, "all done", 1));
    let usage = Usage { input_tokens: 800, output_tokens: 80, ..Usage::default() };
    assert_eq!(report.usage, usage, "eight requests");
    assert!(report.cost_usd.is_some_and(|cost| (cost - 0.016).abs() < 1e-9), "{report:?}");
    assert_eq!(report.calls.len(), 1);

    let trace = tree.trace().await;
    assert_eq!((trace.totals.model_calls, trace.totals.tool_calls, trace.totals.usage), (8, 4, usage));
    let cost = trace.totals.cost_usd.unwrap();
    assert!((cost - 0.016).abs() < 1e-9, "{cost}");
    let call = |ops: &[TraceOp]| ops.iter().find(|op| op.agent.is_some()).cloned().unwrap();
    let a = call(&trace.turns[0].ops);
    let b = call(&a.children);
    let c = call(&b.children);
    let requests = |op: &TraceOp| op.agent.as_ref().unwrap().totals.model_calls;
    assert_eq!([&a, &b, &c].map(requests), [6, 4, 2]);
    assert!(c.children.iter().any(|op| op.name == "t:write@1.0.0"), "{c:?}");
    let listed = tree.store.traces(10).await.unwrap();
    assert_eq!((listed.len(), listed[0].sums.model_calls), (1, 8), "agents are part of the run that began them");
    assert_eq!(tree.agents().await, (3, 0), "an agent that has ended holds nothing");
    assert!(!tree.shown("b").iter().any(|name| name == "agent__a" || name == "agent__b"), "{:?}", tree.shown("b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_only_spawns_stops_at_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let four = || (0..4).map(|n| start(["1", "2", "3", "4"][n], "agent__a")).collect();
    let scripts = HashMap::from([("root", vec![Reply::Calls(four())]), ("a", vec![Reply::Text("a done")])]);
    let tree = Tree::new(dir.path(), scripts, vec![agent("a")], Vec::new()).await;
    let boss = AgentSpec { limits: AgentLimits { agents: Some(6), ..AgentLimits::default() }, ..agent("boss") };
    let spec = RunSpec {
        limits: Limits { turns: 4, ..Limits::default() },
        agent: Some(Arc::new(boss)),
        ..RunSpec::new("test/m", "sys")
    };
    let mut state = begin_with(spec);
    let report = tree.driver.run(&mut state, &options()).await.unwrap();
    let started = report.calls.iter().filter(|call| call.ok).count();
    assert_eq!((started, report.calls.len(), tree.agents().await), (6, 16, (6, 0)));
    let reported = tree.results("root");
    assert!(
        reported.contains("6 agents were started below agent boss") && reported.contains("do the rest yourself"),
        "{reported}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn depth_and_agents_at_once_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let chain = |next| vec![Reply::Calls(vec![start("1", next)]), Reply::Text("done")];
    let scripts = HashMap::from([
        ("root", vec![Reply::Calls(vec![start("1", "agent__a"), start("2", "agent__c")]), Reply::Text("done")]),
        ("a", chain("agent__b")),
        ("b", chain("agent__c")),
        ("c", vec![Reply::Text("c done")]),
    ]);
    let limits = AgentLimits { depth: Some(2), ..AgentLimits::default() };
    let tree = Tree::new(dir.path(), scripts, ["a", "b", "c"].map(agent).to_vec(), Vec::new()).await;
    let spec = |limits: AgentLimits| RunSpec {
        agent: Some(Arc::new(AgentSpec { limits, ..agent("boss") })),
        ..RunSpec::new("test/m", "sys")
    };
    tree.driver.run(&mut begin_with(spec(limits)), &options()).await.unwrap();
    assert!(tree.results("b").contains("agent boss may have 2 levels"), "{}", tree.results("b"));
    assert_eq!(tree.agents().await, (3, 0));

    let limits = AgentLimits { live: Some(0), ..AgentLimits::default() };
    let session = Session { id: SessionId::new("other"), ..Session::clone(&options().session) };
    let options = RunOptions { run_id: "run-2".into(), session: Arc::new(session), ..options() };
    tree.driver.run(&mut begin_with(spec(limits)), &options).await.unwrap();
    assert!(tree.results("root").contains("0 agents run below agent boss"), "{}", tree.results("root"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_money_end_the_tree() {
    for limits in [
        AgentLimits { tokens: Some(5000), ..AgentLimits::default() },
        AgentLimits { cost: Some(0.42), ..AgentLimits::default() },
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (scripts, agents) = three_levels();
        let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN);
        let tree = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
        let spec = RunSpec {
            agent: Some(Arc::new(AgentSpec { limits: limits.clone(), ..agent("boss") })),
            ..RunSpec::new("test/m", "sys")
        };
        let report = tree.driver.run(&mut begin_with(spec), &options()).await.unwrap();
        // Each request may have an answer of 4096 tokens, so the agents below run out of them first.
        assert_eq!(report.status, Status::Success, "{limits:?} {report:?}");
        assert!(tree.results("root").contains("is over the limit of"), "{}", tree.results("root"));
        assert!(tree.model.requests() < 8, "{}", tree.model.requests());
    }
}

/// Keeps what it is asked, and approves.
#[derive(Default)]
struct Inbox(Mutex<Vec<ApprovalRequest>>);

#[async_trait::async_trait]
impl Approver for Inbox {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        self.0.lock().unwrap().push(request.clone());
        ApprovalDecision::Approve
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_from_depth_three_shows_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let (scripts, agents) = three_levels();
    let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN);
    let tree = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
    let inbox = Arc::new(Inbox::default());
    let options = RunOptions { policy: Arc::new(Policy::of(Profile::Ask)), approver: inbox.clone(), ..options() };
    let report = tree.run(&options).await;
    assert_eq!((report.status, tool.count()), (Status::Success, 1));
    let asked = inbox.0.lock().unwrap();
    let path = asked[0].agent_path().unwrap();
    let step = |name: &str| format!("{name} (it is asked for)");
    assert_eq!((asked.len(), path), (1, ["a", "b", "c"].map(step).join(" > ")), "starting an agent asks nobody");
    assert_eq!(asked[0].tool.as_str(), "t:write@1.0.0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_agent_suspends_its_callers() {
    struct Later;
    #[async_trait::async_trait]
    impl Approver for Later {
        async fn ask(&self, _request: &ApprovalRequest) -> ApprovalDecision {
            ApprovalDecision::Later
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let (scripts, agents) = three_levels();
    let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN);
    let tree = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
    let asking = |approver| RunOptions { policy: Arc::new(Policy::of(Profile::Ask)), approver, ..options() };
    let report = tree.run(&asking(Arc::new(Later))).await;
    assert_eq!((report.status, tool.count()), (Status::Suspended, 0));
    assert_eq!(report.pending[0].tool.as_str(), "t:write@1.0.0");
    assert_eq!(report.pending[0].agents.len(), 3);
    let before = tree.model.requests();
    let report = tree.driver.resume(&asking(Arc::new(Inbox::default()))).await.unwrap();
    assert_eq!((report.status, tool.count()), (Status::Success, 1));
    assert_eq!(tree.model.requests() - before, 4, "each goes on where it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_depth_three() {
    let dir = tempfile::tempdir().unwrap();
    let (scripts, agents) = three_levels();
    let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN).hang(1);
    let tree = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
    let options = options();
    let stop = async {
        until(|| tool.count() == 1).await;
        assert_eq!(tree.agents().await, (3, 3));
        options.cancel.cancel(CancelCause::User);
    };
    let (report, ()) = tokio::join!(tree.run(&options), stop);
    assert_eq!(report.status, Status::Cancelled);
    assert_eq!(tree.agents().await, (3, 0));
    let events = tree.log.0.lock().unwrap();
    let ended =
        events.iter().filter(|event| matches!(event, Event::RunFinished { status, .. } if status == "cancelled"));
    assert_eq!(ended.count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_save_repeats_nothing() {
    let fresh = |dir: &Path, breaks: Option<(usize, bool)>| {
        let scripts = HashMap::from([
            ("root", vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Text("all done")]),
            ("a", vec![Reply::Calls(vec![("1", "t__write", json!({}))]), Reply::Text("a done")]),
        ]);
        let (dir, tool) = (dir.to_owned(), Counter::new("t:write@1.0.0", Effects::UNKNOWN));
        async move {
            let (at, written) = breaks.unwrap_or((usize::MAX, true));
            let fragile = |store| Fragile::new(store, at, written);
            (Tree::over(&dir, scripts, vec![agent("a")], vec![tool.clone()], fragile).await, tool)
        }
    };
    // Four saves of the root (model, calls, model, end), and four of the agent inside its calls.
    for (at, written) in (2..=8).flat_map(|n| [(n, true), (n, false)]) {
        let dir = tempfile::tempdir().unwrap();
        let (tree, first) = fresh(dir.path(), Some((at, written))).await;
        let broken = tokio::time::timeout(WAIT, tree.driver.run(&mut begin(Limits::default()), &options())).await;
        let ended = broken.unwrap();
        let asked = tree.model.requests();
        drop(tree);
        let (tree, second) = fresh(dir.path(), None).await;
        let report = match ended {
            // The root hears that its agent could not be saved, as of any tool.
            Ok(report) => report,
            Err(_) => tree.driver.resume(&options()).await.unwrap(),
        };
        assert_eq!(report.answer, "all done", "save {at}, written {written}");
        assert!(first.count() + second.count() <= 1, "save {at}, written {written}: it ran twice");
        assert!(asked + tree.model.requests() <= 5, "save {at}, written {written}");
        assert_eq!(tree.agents().await.1, 0, "save {at}, written {written}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_agent_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (scripts, agents) = three_levels();
    let tool = Counter::new("t:write@1.0.0", Effects::READ).hang(1);
    // A runtime that is gone with all of its tasks, as if the process had died.
    let (path, parts, hangs) = (dir.path().to_owned(), (scripts.clone(), agents.clone()), tool.clone());
    let died = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let asked = runtime.block_on(async {
            let tree = Tree::new(&path, parts.0, parts.1, vec![hangs.clone()]).await;
            let driver = tree.driver.clone();
            tokio::spawn(async move { driver.run(&mut begin(Limits::default()), &options()).await });
            until(|| hangs.count() == 1).await;
            tree.model.requests()
        });
        runtime.shutdown_background();
        asked
    });
    let asked = tokio::task::spawn_blocking(move || died.join().unwrap()).await.unwrap();
    let report = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
    let resumed = tokio::time::timeout(WAIT, report.driver.resume(&options())).await.unwrap().unwrap();
    assert_eq!((resumed.status, resumed.answer.as_str()), (Status::Success, "all done"));
    assert_eq!((asked, report.model.requests()), (4, 4), "nothing is asked again");
    let usage = Usage { input_tokens: 800, output_tokens: 80, ..Usage::default() };
    assert_eq!(resumed.usage, usage);
    assert!(resumed.cost_usd.is_some_and(|cost| (cost - 0.016).abs() < 1e-9), "{resumed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_of_agents_become_results() {
    let report = |status: &str, key: &str, content: Value| {
        let format = if key == "content_json" { "json" } else { "markdown" };
        vec![Reply::Calls(vec![(
            "r",
            "agent__final_report",
            json!({"status": status, "format": format, key: content}),
        )])]
    };
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let typed = |name| AgentSpec { output_schema: schema.as_object().cloned(), ..agent(name) };
    let calls = ["good", "half", "bad", "typed", "untyped"];
    let names = ["agent__good", "agent__half", "agent__bad", "agent__typed", "agent__untyped"];
    let root = calls.iter().zip(names).map(|(id, name)| start(id, name)).collect();
    let scripts = HashMap::from([
        ("root", vec![Reply::Calls(root), Reply::Text("done")]),
        ("good", report("success", "content", json!("found it"))),
        ("half", report("partial", "content", json!("half of it"))),
        ("bad", report("failure", "content", json!("there is none"))),
        ("typed", report("success", "content_json", json!({"n": 3}))),
        ("untyped", vec![Reply::Text("no JSON at all")]),
    ]);
    let agents = vec![agent("good"), agent("half"), agent("bad"), typed("typed"), typed("untyped")];
    let dir = tempfile::tempdir().unwrap();
    let tree = Tree::new(dir.path(), scripts, agents, Vec::new()).await;
    let run = tree.run(&options()).await;
    assert_eq!(run.calls.iter().map(|call| call.ok).collect::<Vec<_>>(), [true, true, false, true, false]);
    let reported = tree.results("root");
    for part in ["found it", "half of it", "The agent is not done: the model reported partial", "there is none"] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert!(reported.contains("without a report in the form that is asked for"), "{reported}");
    assert!(tree.shown("typed").contains(&"agent__final_report".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_of_agents_only_narrow() {
    let spec = |tools: Option<&[&str]>, policy| AgentSpec {
        tools: tools.map(|globs| globs.iter().map(|glob| (*glob).to_owned()).collect()),
        policy,
        ..agent("a")
    };
    // Profile of the run, that of the agent, its tools; whether it may call `t__write`, and whether it is asked about.
    for (root, own, tools, ran, asked) in [
        (Profile::Trusted, None, None, 1, 0),
        (Profile::Ask, Some(Profile::Trusted), None, 1, 1),
        (Profile::Trusted, Some(Profile::Ask), None, 1, 1),
        (Profile::Owner, None, None, 1, 1),
        (Profile::Client, None, None, 1, 1),
        (Profile::Client, Some(Profile::Trusted), None, 1, 0),
        (Profile::Trusted, None, Some(&["t:read"][..]), 0, 0),
    ] {
        let scripts = HashMap::from([
            ("root", vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Text("done")]),
            ("a", vec![Reply::Calls(vec![("1", "t__write", json!({}))]), Reply::Text("a done")]),
        ]);
        let dir = tempfile::tempdir().unwrap();
        let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN);
        let read = Counter::new("t:read@1.0.0", Effects::READ);
        let tree = Tree::new(dir.path(), scripts, vec![spec(tools, own)], vec![tool.clone(), read]).await;
        let inbox = Arc::new(Inbox::default());
        let options = RunOptions { policy: Arc::new(Policy::of(root)), approver: inbox.clone(), ..options() };
        tree.run(&options).await;
        assert_eq!((tool.count(), inbox.0.lock().unwrap().len()), (ran, asked), "{root:?} {own:?} {tools:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_taken_over_keeps_its_rights() {
    let trusted = || Policy::of(Profile::Trusted);
    let denying = Policy { rules: vec![Rule::deny("t:write").because("not here")], ..trusted() };
    // The policy of the run, the tools of the agent that starts one in the background, and what becomes of the call of the
    // latter in a process where everything runs: whether it ran, whether a person was asked, what it was told.
    for (policy, tools, ran, asked, told) in [
        (trusted(), None, 1, 0, "counted"),
        (Policy::of(Profile::Ask), None, 1, 1, "counted"),
        (denying, None, 0, 0, "not here"),
        (trusted(), Some(vec!["agent:*".to_owned()]), 0, 0, "no tool is called `t__write`"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let scripts = |a: Vec<Reply>| {
            HashMap::from([
                ("root", vec![Reply::Calls(vec![start("1", "agent__m")])]),
                ("m", vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Hang]),
                ("a", a),
            ])
        };
        let agents =
            || vec![AgentSpec { tools: tools.clone(), ..agent("m") }, AgentSpec { background: true, ..agent("a") }];
        let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN);
        let first = Tree::new(dir.path(), scripts(vec![Reply::Hang]), agents(), vec![tool.clone()]).await;
        let options = RunOptions { policy: Arc::new(policy), ..options() };
        let has_begun = || first.model.asked().iter().any(|(_, request)| who(&request.system) == "a");
        tokio::select! {
            report = first.run(&options) => panic!("it hangs: {report:?}"),
            () = until(has_begun) => first.jobs.shut_down(WAIT).await,
        }
        let a = vec![Reply::Calls(vec![("1", "t__write", json!({}))]), Reply::Text("a done")];
        let second = Tree::new(dir.path(), scripts(a), agents(), vec![tool.clone()]).await;
        let inbox = Arc::new(Inbox::default());
        let approver = inbox.clone();
        let context = move |session: Session, snapshot| {
            let policy = Arc::new(Policy::of(Profile::Trusted));
            RunContext::new(Arc::new(session), snapshot, policy, approver.clone())
        };
        let job = second.jobs.list(JobScope::All, Listed::Open, 1).await.unwrap().remove(0);
        second.executor.recover_jobs(RecoveryOptions {
            catalogue: second.catalogue.clone(),
            root: "/work".into(),
            session: None,
            context: Arc::new(context),
        });
        let job = second.jobs.wait(JobScope::All, &job.id, WAIT).await.unwrap();
        let said = job.outcome.unwrap().model_text();
        assert!(said.starts_with("a done"), "{said}: {}", second.results("a"));
        let asks = inbox.0.lock().unwrap().clone();
        assert_eq!((tool.count(), asks.len()), (ran, asked), "{:?}", options.policy);
        assert!(second.results("a").contains(told), "{told}: {}", second.results("a"));
        for request in &asks {
            assert_eq!(request.agent_path().unwrap(), "m (it is asked for) > a (it is asked for)");
        }
        let known = second.store.agents_of("run-1").await.unwrap();
        let of = |name: &str| known.iter().find(|agent| agent.name == name).unwrap();
        assert_eq!((of("a").parent.as_ref(), of("a").spent.tokens), (Some(&of("m").id), 220), "it stays in its tree");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_does_not_end_over_live_agents() {
    for (policy, expect) in [(OnChildren::Wait, None), (OnChildren::Cancel, Some(ChildEnd::Cancelled))] {
        let scripts = HashMap::from([
            (
                "root",
                vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Text("too early"), Reply::Text("with all")],
            ),
            ("a", vec![Reply::Calls(vec![("1", "t__slow", json!({}))]), Reply::Text("a done")]),
        ]);
        let dir = tempfile::tempdir().unwrap();
        let slow = Counter::new("t:slow@1.0.0", Effects::READ);
        let slow = if expect.is_some() { slow.hang(1) } else { slow };
        let background = AgentSpec { background: true, ..agent("a") };
        let tree = Tree::new(dir.path(), scripts, vec![background], vec![slow.clone()]).await;
        let boss = AgentSpec { on_children: policy, ..agent("boss") };
        let spec = RunSpec { agent: Some(Arc::new(boss)), ..RunSpec::new("test/m", "sys") };
        let mut state = begin_with(spec);
        let options = options();
        let running = tree.driver.run(&mut state, &options);
        let report = tokio::time::timeout(WAIT, running).await.unwrap().unwrap();
        assert_eq!((report.answer.as_str(), report.turns), ("with all", 3), "{policy:?} {report:?}");
        let reported = tree.results("root");
        assert!(reported.contains("not accepted yet") && reported.contains("a (job a_"), "{policy:?}: {reported}");
        assert_eq!(report.children.first().map(|child| child.end), expect, "{policy:?}");
        if policy == OnChildren::Wait {
            assert!(reported.contains("is done. Its result:\\na done"), "{reported}");
            assert_eq!(report.usage.input_tokens, 500, "what its agents used counts");
        }
        until(|| {
            !tree
                .log
                .0
                .lock()
                .unwrap()
                .iter()
                .filter(|e| matches!(e, Event::JobFinished { .. }))
                .collect::<Vec<_>>()
                .is_empty()
        })
        .await;
        assert_eq!(tree.agents().await, (1, 0), "{policy:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_reaches_an_agent_in_the_background() {
    let scripts = HashMap::from([
        ("root", vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Text("early"), Reply::Text("all done")]),
        ("a", vec![Reply::Calls(vec![("1", "t__slow", json!({}))]), Reply::Text("a done")]),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let slow = Waits::new();
    let background = AgentSpec { background: true, ..agent("a") };
    let tree = Tree::new(dir.path(), scripts, vec![background], vec![slow.clone()]).await;
    let options = options();
    let sending = async {
        until(|| slow.began.load(Ordering::SeqCst)).await;
        send_to_job(&tree, "look into the cellar").await;
        slow.go.notify_one();
    };
    let (report, ()) = tokio::join!(tree.run(&options), sending);
    assert_eq!(report.answer, "all done");
    let reported = tree.results("a");
    assert!(reported.contains("your caller sent a message:\\nlook into the cellar"), "{reported}");
}

/// A tool that waits until it may end.
pub(crate) struct Waits {
    pub(crate) began: AtomicBool,
    pub(crate) go: tokio::sync::Notify,
}

impl Waits {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { began: AtomicBool::new(false), go: tokio::sync::Notify::new() })
    }
}

#[async_trait::async_trait]
impl Tool for Waits {
    fn definition(&self) -> ToolDefinition {
        let mut definition =
            ToolDefinition::new(ToolId::parse("t:slow@1.0.0").unwrap(), "Waits.", Some(json!({"type": "object"})));
        definition.effects = Effects::READ;
        definition
    }

    async fn run(&self, _arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        self.began.store(true, Ordering::SeqCst);
        self.go.notified().await;
        Ok(ToolOutput::text("waited"))
    }
}
