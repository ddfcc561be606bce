//! A run whose agents start agents, over real parts: each says what its script has.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_agent::{AgentProvider, AgentProviderOptions, Driver, Limits, RunConfig, RunOptions, RunReport};
use toolwright_core::agents::{AgentConfig, AgentLimits, AgentTree as _};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::context::NoRedaction;
use toolwright_core::job::{JobFilter, JobScope, Jobs as _};
use toolwright_core::model::{Message, ModelResponse, PriceTable, Prices, RawToolCall, StopReason, Usage};
use toolwright_core::store::{LedgerStore as _, RunStore};
use toolwright_core::trace::Trace;
use toolwright_core::{Effects, Services, Tool, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput};
use toolwright_runtime::executor::ExecutorOptions;
use toolwright_runtime::{Catalogue, Executor, JobManager, OutputFiles, SqliteStore, SystemClock};
use toolwright_testkit::{FakeApprover, FakeEvents, FakeModel, FakeRequest};

use crate::fixture::{Reply, begin, options, provider, until};

/// What each agent says, turn by turn; the root is called `root`.
pub(crate) type AgentScripts = HashMap<&'static str, Vec<Reply>>;

pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// Sends a message to the first job of the run's session.
pub(crate) async fn send_to_job(tree: &Tree, text: &str) {
    let (jobs, options) = (&tree.jobs, options());
    let scope = JobScope::Of(&options.session);
    let job = jobs.list(scope, JobFilter::Open, 1).await.unwrap().remove(0);
    jobs.send(scope, &job.id, text.into()).await.unwrap();
}

/// Runs the tree, and sends its job a message while `slow` waits.
pub(crate) async fn run_and_send(tree: &Tree, slow: &WaitingTool, text: &str) -> RunReport {
    let options = options();
    let sending = async {
        until(|| slow.began.load(Ordering::SeqCst)).await;
        send_to_job(tree, text).await;
        slow.go.notify_one();
    };
    tokio::join!(tree.run(&options), sending).0
}

/// The call of an agent.
pub(crate) fn start(id: &'static str, agent: &'static str) -> (&'static str, &'static str, Value) {
    (id, agent, json!({"reason": "it is asked for", "task": "do it"}))
}

pub(crate) fn agent(name: &str) -> AgentConfig {
    AgentConfig { name: name.to_owned(), prompt: format!("I am {name}."), ..AgentConfig::default() }
}

pub(crate) struct Tree {
    pub(crate) driver: Driver,
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) model: Arc<FakeModel>,
    pub(crate) log: Arc<FakeEvents>,
    pub(crate) jobs: Arc<JobManager>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) catalogue: Arc<Catalogue>,
}

/// Answers by who asks, and by how often it has answered, so that a resumed run goes on where it was.
fn model(scripts: AgentScripts) -> Arc<FakeModel> {
    let scripts = Arc::new(scripts);
    Arc::new(FakeModel::with_future(move |call| {
        let scripts = Arc::clone(&scripts);
        Box::pin(async move { answer(&scripts, call).await })
    }))
}

async fn answer(
    scripts: &AgentScripts,
    call: FakeRequest<'_>,
) -> Result<ModelResponse, toolwright_core::model::ModelError> {
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
    let written = |(id, name, arguments): (&str, &str, Value)| RawToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_string(),
    };
    let calls: Vec<RawToolCall> = calls.into_iter().map(written).collect();
    Ok(ModelResponse {
        text: text.to_owned(),
        stop: if calls.is_empty() { StopReason::End } else { StopReason::ToolCalls },
        calls,
        usage: Usage { input_tokens: 100, output_tokens: 10, ..Usage::default() },
        ..ModelResponse::default()
    })
}

pub(crate) fn who(system: &str) -> String {
    let name = system.strip_prefix("I am ").and_then(|rest| rest.split_once('.'));
    name.map_or("root", |(name, _)| name).to_owned()
}

impl Tree {
    pub(crate) async fn new(
        dir: &Path,
        scripts: AgentScripts,
        agents: Vec<AgentConfig>,
        tools: Vec<Arc<dyn Tool>>,
    ) -> Self {
        Self::over(dir, scripts, agents, tools, |store| store).await
    }

    pub(crate) async fn over<S: RunStore + 'static>(
        dir: &Path,
        scripts: AgentScripts,
        agents: Vec<AgentConfig>,
        tools: Vec<Arc<dyn Tool>>,
        wrap: impl FnOnce(Arc<SqliteStore>) -> Arc<S>,
    ) -> Self {
        let store = SqliteStore::open(dir).unwrap();
        let log = Arc::new(FakeEvents::default());
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
        let parts = AgentProviderOptions {
            runs: runs.clone(),
            tree: store.clone(),
            limits: limits.clone(),
            default_model: None,
            config: Arc::new(|model| RunConfig::new(model, "")),
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
    pub(crate) fn shown(&self, agent: &str) -> Vec<String> {
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

    pub(crate) async fn trace(&self) -> Trace {
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
    pub(crate) async fn agents(&self) -> (usize, usize) {
        let agents = self.store.agents_of("run-1").await.unwrap();
        let below = agents.iter().filter(|agent| agent.parent.is_some());
        (below.clone().count(), below.filter(|agent| agent.live).count())
    }
}

/// Agents a, b and c: each starts the next, and c calls a tool.
pub(crate) fn three_levels() -> (AgentScripts, Vec<AgentConfig>) {
    let scripts = HashMap::from([
        ("root", vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Text("all done")]),
        ("a", vec![Reply::Calls(vec![start("1", "agent__b")]), Reply::Text("a done")]),
        ("b", vec![Reply::Calls(vec![start("1", "agent__c")]), Reply::Text("b done")]),
        ("c", vec![Reply::Calls(vec![("1", "t__write", json!({}))]), Reply::Text("c done")]),
    ]);
    (scripts, ["a", "b", "c"].map(agent).to_vec())
}

/// Approves whatever it is asked.
pub(crate) fn approving() -> Arc<FakeApprover> {
    Arc::new(FakeApprover::saying(ApprovalDecision::Approve))
}

/// A tool that waits until it may end.
pub(crate) struct WaitingTool {
    pub(crate) began: AtomicBool,
    pub(crate) go: tokio::sync::Notify,
}

impl WaitingTool {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { began: AtomicBool::new(false), go: tokio::sync::Notify::new() })
    }
}

#[async_trait::async_trait]
impl Tool for WaitingTool {
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
