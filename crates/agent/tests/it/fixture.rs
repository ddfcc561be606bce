//! The fixture of the tests: a scripted model and counting tools; all other parts are real.
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_agent::{Driver, Limits, RunConfig, RunOptions, RunState};
use toolwright_core::approval::{Approver, NoApprover};
use toolwright_core::client::NoClient;
use toolwright_core::context::NoRedaction;
use toolwright_core::event::EventSink;
use toolwright_core::model::{
    Message, ModelClient, ModelError, ModelErrorKind, ModelEvent, ModelResponse, PriceTable, Prices, RawToolCall,
    RequestTool, StopReason, Usage,
};
use toolwright_core::store::{FileUse, RunStore};
use toolwright_core::{
    Cancel, Effects, Policy, Principal, Profile, ProviderKind, Services, Session, SessionId, StaticProvider, Tool,
    ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::executor::{ExecutorOptions, RepairOptions};
use toolwright_runtime::{Catalogue, Executor, JobManager, OutputFiles, SqliteStore, SystemClock};
use toolwright_testkit::{FakeEvents, FakeModel, FakeRequest};

/// The model that repairs calls in a [`Fixture::with_repairs`].
const REPAIRER: &str = "fix/m";
/// The model that judges tools: the first of a list fits.
pub(crate) const JUDGE: &str = "judge/m";

/// The reply of the model to a request.
#[derive(Clone)]
pub(crate) enum Reply {
    Text(&'static str),
    Calls(Vec<(&'static str, &'static str, Value)>),
    /// Calls, and then the connection breaks.
    Broken(Vec<(&'static str, &'static str, Value)>),
    Fail(ModelErrorKind),
    /// Waits until it is cancelled.
    Hang,
}

pub(crate) type Condition = Arc<dyn Fn() -> bool + Send + Sync>;

/// Answers by the number of assistant messages in the request, so that a resumed run goes on where it
/// was. Keeps every request as it was sent.
pub(crate) struct ModelScript {
    script: Vec<Reply>,
    pub(crate) requests: Mutex<Vec<String>>,
    pub(crate) before_answer: Mutex<Option<Box<dyn FnMut() + Send>>>,
    /// An answer with calls ends when this holds.
    pub(crate) over_when: Mutex<Option<Condition>>,
    /// How often it was asked, as [`REPAIRER`], to repair a call. Each repair differs.
    pub(crate) repairs: AtomicUsize,
    /// Whether the answer to that, and that of [`JUDGE`], breaks off after it used tokens.
    pub(crate) repair_fails: AtomicBool,
    /// The tools of each request.
    pub(crate) shown: Mutex<Vec<Arc<[RequestTool]>>>,
    overflows: AtomicUsize,
    /// Whether its API loads deferred tools.
    pub(crate) tool_search: AtomicBool,
}

impl ModelScript {
    /// The client that answers by it.
    pub(crate) fn client(self: &Arc<Self>) -> Arc<FakeModel> {
        let (script, tools) = (Arc::clone(self), Arc::clone(self));
        let fake = FakeModel::with_future(move |call| {
            let script = Arc::clone(&script);
            Box::pin(async move { script.answer(call).await })
        });
        Arc::new(fake.with_tool_search(move || tools.tool_search.load(Ordering::SeqCst)))
    }

    async fn answer(
        &self,
        FakeRequest { model, request, events, cancel, .. }: FakeRequest<'_>,
    ) -> Result<ModelResponse, ModelError> {
        if [REPAIRER, JUDGE].contains(&model) {
            let text = match model {
                JUDGE => json!({"scores": [{"tool": 1, "score": 0.9}]}),
                _ => json!({"n": self.repairs.fetch_add(1, Ordering::SeqCst) + 1}),
            };
            let text = text.to_string();
            let usage = Usage { input_tokens: 100, output_tokens: 10, cached_tokens: 0, ..Usage::default() };
            if self.repair_fails.load(Ordering::SeqCst) {
                return Err(ModelError { usage, ..ModelError::new(ModelErrorKind::BadResponse, "it broke off") });
            }
            return Ok(ModelResponse { text, usage, ..ModelResponse::default() });
        }
        let turn = request.messages.iter().filter(|message| matches!(message, Message::Assistant { .. })).count();
        self.requests.lock().unwrap().push(format!("{model} {}", serde_json::to_string(request).unwrap()));
        self.shown.lock().unwrap().push(request.tools.clone());
        if let Some(before) = self.before_answer.lock().unwrap().as_mut() {
            before();
        }
        let mut breaks = false;
        let (text, calls) = match self.script.get(turn).cloned().unwrap_or(Reply::Text("out of script")) {
            Reply::Text(text) => (text, Vec::new()),
            Reply::Calls(calls) => ("", calls),
            Reply::Broken(calls) => {
                breaks = true;
                ("Let me see.", calls)
            }
            Reply::Fail(ModelErrorKind::ContextOverflow) if self.overflows.fetch_add(1, Ordering::SeqCst) > 0 => {
                ("it fits", Vec::new())
            }
            Reply::Fail(kind) => return Err(ModelError::new(kind, "scripted failure")),
            Reply::Hang => {
                cancel.cancelled().await;
                return Err(ModelError::new(ModelErrorKind::Canceled, "cancelled"));
            }
        };
        if !text.is_empty() {
            events.on_event(ModelEvent::Text(text.to_owned()));
        }
        let written = |(id, name, arguments): (&str, &str, Value)| RawToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_string(),
        };
        let calls: Vec<RawToolCall> = calls.into_iter().map(written).collect();
        calls.iter().cloned().for_each(|call| events.on_event(ModelEvent::Call(call)));
        let condition = self.over_when.lock().unwrap().clone().filter(|_| !calls.is_empty());
        if let Some(condition) = condition {
            tokio::select! {
                () = until(&*condition) => {}
                _ = cancel.cancelled() => return Err(ModelError::new(ModelErrorKind::Canceled, "cancelled")),
            }
        }
        if breaks {
            return Err(ModelError::new(ModelErrorKind::BadResponse, "the connection broke"));
        }
        Ok(ModelResponse {
            text: text.to_owned(),
            stop: if calls.is_empty() { StopReason::End } else { StopReason::ToolCalls },
            calls,
            usage: Usage { input_tokens: 7, output_tokens: 3, cached_tokens: 0, ..Usage::default() },
            ..ModelResponse::default()
        })
    }
}

/// A tool that counts how often it ran, and can be made to hang.
pub(crate) struct Counter {
    id: &'static str,
    effects: Effects,
    says: &'static str,
    roles: Vec<String>,
    pub(crate) ran: AtomicUsize,
    hangs: AtomicUsize,
}

impl Counter {
    pub(crate) fn new(id: &'static str, effects: Effects) -> Arc<Self> {
        Self::saying(id, effects, "counted")
    }

    pub(crate) fn saying(id: &'static str, effects: Effects, says: &'static str) -> Arc<Self> {
        Arc::new(Self { id, effects, says, roles: Vec::new(), ran: AtomicUsize::new(0), hangs: AtomicUsize::new(0) })
    }

    pub(crate) fn for_roles(id: &'static str, roles: &[&str]) -> Arc<Self> {
        let roles = roles.iter().map(|role| (*role).to_owned()).collect();
        Arc::new(Self {
            id,
            effects: Effects::READ,
            says: "x",
            roles,
            ran: AtomicUsize::new(0),
            hangs: AtomicUsize::new(0),
        })
    }

    /// Hangs in its first `times` runs, until it is cancelled.
    pub(crate) fn hang(self: Arc<Self>, times: usize) -> Arc<Self> {
        self.hangs.store(times, Ordering::SeqCst);
        self
    }

    pub(crate) fn count(&self) -> usize {
        self.ran.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Tool for Counter {
    fn definition(&self) -> ToolDefinition {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let mut definition = ToolDefinition::new(ToolId::parse(self.id).unwrap(), "Counts.", Some(schema));
        definition.effects = self.effects;
        definition.allowed_roles.clone_from(&self.roles);
        definition.description.push_str(self.says);
        definition
    }

    /// It replaces the file that it is given.
    fn files(&self, arguments: &Value, _session: &Session) -> FileUse {
        arguments["file"].as_str().map(|file| FileUse::replacing(file.into())).unwrap_or_default()
    }

    async fn run(&self, _arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        if self.ran.fetch_add(1, Ordering::SeqCst) < self.hangs.load(Ordering::SeqCst) {
            let cause = context.cancel.cancelled().await;
            return Err(ToolError::canceled(cause));
        }
        Ok(ToolOutput::text(self.says))
    }
}

pub(crate) struct Fixture {
    pub(crate) driver: Driver,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) model: Arc<ModelScript>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) log: Arc<FakeEvents>,
    pub(crate) store: Arc<SqliteStore>,
}

pub(crate) fn provider(name: &str, tools: Vec<Arc<dyn Tool>>) -> Arc<StaticProvider> {
    Arc::new(StaticProvider::new(name, ProviderKind::Native, tools).unwrap())
}

impl Fixture {
    pub(crate) async fn new(dir: &Path, script: Vec<Reply>, tools: Vec<Arc<dyn Tool>>) -> Self {
        Self::with_store(dir, script, tools, |store| store).await
    }

    /// A fixture that stores runs through `wrap`.
    pub(crate) async fn with_store<S: RunStore + 'static>(
        dir: &Path,
        script: Vec<Reply>,
        tools: Vec<Arc<dyn Tool>>,
        wrap: impl FnOnce(Arc<SqliteStore>) -> Arc<S>,
    ) -> Self {
        Self::build(dir, script, tools, wrap, None).await
    }

    /// As [`Fixture::with_store`], with a model that repairs calls.
    pub(crate) async fn with_repairs<S: RunStore + 'static>(
        dir: &Path,
        script: Vec<Reply>,
        tools: Vec<Arc<dyn Tool>>,
        wrap: impl FnOnce(Arc<SqliteStore>) -> Arc<S>,
    ) -> Self {
        Self::build(dir, script, tools, wrap, Some(RepairOptions::by(REPAIRER))).await
    }

    async fn build<S: RunStore + 'static>(
        dir: &Path,
        script: Vec<Reply>,
        tools: Vec<Arc<dyn Tool>>,
        wrap: impl FnOnce(Arc<SqliteStore>) -> Arc<S>,
        repair: Option<RepairOptions>,
    ) -> Self {
        let store = SqliteStore::open(dir).unwrap();
        let log = Arc::new(FakeEvents::default());
        let events: Arc<dyn EventSink> = log.clone();
        let model = Arc::new(ModelScript {
            script,
            requests: Mutex::default(),
            before_answer: Mutex::default(),
            over_when: Mutex::default(),
            repairs: AtomicUsize::new(0),
            repair_fails: AtomicBool::new(false),
            shown: Mutex::default(),
            overflows: AtomicUsize::new(0),
            tool_search: AtomicBool::new(false),
        });
        let client: Arc<dyn ModelClient> = model.client();
        let jobs = JobManager::new(store.clone(), dir);
        let services = Services {
            outputs: OutputFiles::new(dir.join("outputs")),
            events: Arc::clone(&events),
            jobs: jobs.clone(),
            log: store.clone(),
            model: Arc::clone(&client),
            ..Services::none(Arc::new(SystemClock))
        };
        let mut settings = ExecutorOptions::new(Arc::new(services), store.clone(), store.clone());
        settings.jobs = Some(jobs);
        settings.repair = repair;
        settings.prices = PriceTable::from_iter([("judge".to_owned(), Prices { input: 10.0, ..Prices::default() })]);
        settings.grace = Duration::from_millis(200);
        let executor = Executor::new(settings);
        let catalogue = Catalogue::new(events, Arc::new(NoRedaction), Duration::from_secs(5));
        catalogue.add_provider(provider("test", tools)).await.unwrap();
        catalogue.refresh("test").await;
        let driver = Driver::new(executor.clone(), catalogue.clone(), client, Some(wrap(store.clone())));
        Self { driver, catalogue, model, executor, log, store }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.model.requests.lock().unwrap().clone()
    }
}

pub(crate) fn options() -> RunOptions {
    let session = Session { id: SessionId::new("s"), principal: Principal::owner(), root: "/work".into(), agent: None };
    RunOptions::new(
        "run-1".into(),
        Arc::new(session),
        Arc::new(Policy::of(Profile::Trusted)),
        Arc::new(NoApprover { remedy: "nobody is here".into() }),
        Arc::new(NoClient),
        Cancel::new(),
    )
}

/// Options under which everything that writes is asked about.
pub(crate) fn asking(approver: Arc<dyn Approver>) -> RunOptions {
    RunOptions { policy: Arc::new(Policy::of(Profile::Ask)), approver, ..options() }
}

pub(crate) fn run_config(limits: Limits) -> RunConfig {
    RunConfig { limits, pick_size: 12, ..RunConfig::new("test/m", "sys") }
}

pub(crate) fn begin(limits: Limits) -> RunState {
    begin_with(run_config(limits))
}

pub(crate) fn begin_with(config: RunConfig) -> RunState {
    RunState::new(config, vec![Message::user("task")])
}

/// Waits, within bounds, until `condition` holds.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it did not come about within 5 s");
}
