//! A running instance: catalogue, executor and stores, built once from a configuration and used by every command.

mod api_token;
mod build;
mod call;
mod client;
mod compat;
mod embeddings;
mod llm;
mod pins;
mod reload;
mod replay;
mod select;
mod telemetry;
mod tokens;
mod unmatched;
mod watch;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Mutex;
use toolwright_core::approval::{Answers, Approver, FormQuestion, InboxStore, NoApprover, Question};
use toolwright_core::catalogue::Provider;
use toolwright_core::embedding::EmbeddingError;
use toolwright_core::error::labelled;
use toolwright_core::model::ModelClient;
use toolwright_core::name_table::Resolution;
use toolwright_core::roots::Roots;
use toolwright_core::session::{Session, SessionId};
use toolwright_core::store::{ApprovalStore, RunStore, StoreError};
use toolwright_core::{Outcome, Policy, Profile};
use toolwright_gateway::MetricsSource;
use toolwright_models::{HttpModelClient, Models};
use toolwright_providers::catalogue::CatalogueSpec;
use toolwright_providers::mcp::McpDeps;
use toolwright_providers::openapi::OpenApiSpec;
use toolwright_runtime::{
    Catalogue, EventHub, Executor, FormInbox, FormInboxParts, Inbox, InboxParts, JobManager, Observation, Pins,
    RecoveryTerms, RunContext, SecretRedactor, Selector, SqliteStore, ToolVectors,
};
use toolwright_telemetry::Metrics;

use crate::config::{Config, LoadOptions, NamedRestTool, Problem, Server};

pub use api_token::{api_token, api_token_file};
pub use build::authorization;
pub use call::{CallOptions, CallTimes};
pub use client::{ClientOptions, Filled, GatewayFallback, InboxPerson, Person, Visited};
pub use embeddings::embedder;
pub use reload::Reloaded;
pub use watch::watch;

/// How long a provider may take to list before it counts as failed.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long running calls have to end after a shutdown signal.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// How long the store may take to be closed: what it holds is kept all the same.
const CLOSE: Duration = Duration::from_secs(4);
/// How long providers may take to shut down.
const SHUTDOWN: Duration = Duration::from_secs(4);

/// How long a bare name is looked for in providers that have not listed.
const SEARCH: Duration = Duration::from_secs(3);

/// Name of the provider of built-in tools.
pub(crate) const BUILTIN: &str = "builtin";
/// Name of the provider of tools that a model answers.
pub(crate) const LLM: &str = "llm";
/// Name of the provider of REST tools.
pub(crate) const REST: &str = "rest";

/// Where variables of the configuration come from, now and at every reload.
pub type VariableSource = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// What can go wrong. Its sources are kept: see [`std::error::Error::source`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be used.
    #[error("the configuration cannot be used: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<Problem>),
    /// The state directory cannot be used.
    #[error("{0}; choose another with --state-dir or TOOLWRIGHT_STATE_DIR")]
    Store(#[from] StoreError),
    /// A fault of Toolwright: a built-in tool that breaks the rules of registration.
    #[error("the built-in tools cannot be registered: {0}")]
    Builtins(#[from] toolwright_core::catalogue::RegistrationError),
    /// A tool of the program cannot be registered.
    #[error("{0}")]
    Tool(#[source] toolwright_core::catalogue::RegistrationError),
    /// Two sources of tools have one name.
    #[error("{0}; give one of them another namespace")]
    Duplicate(#[from] toolwright_runtime::catalogue::DuplicateProvider),
    /// Sources of tools cannot be listed: their names, and why.
    #[error("{}", sources(.0))]
    Sources(Vec<(String, String)>),
    /// A call failed or was refused.
    #[error("{}", failed(.0))]
    Call(Box<Outcome>),
    /// An agent's run could not go on.
    #[error(transparent)]
    Agent(#[from] toolwright_agent::DriverError),
    /// The model cannot be asked.
    #[error("{0}")]
    Model(#[from] toolwright_core::model::ModelError),
    /// The gateway cannot listen.
    #[error(transparent)]
    Http(#[from] toolwright_gateway::HttpError),
    /// The operating system refuses something: what, and why.
    #[error("{doing}: {source}")]
    Io {
        /// What was to be done.
        doing: String,
        /// Why it was not.
        source: std::io::Error,
    },
    /// The program asks for something that cannot be: what is missing or contradicts itself, and the remedy.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// The outcome of the call that failed, where it is one.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Call(outcome) => Some(outcome),
            _ => None,
        }
    }
}

fn sources(failed: &[(String, String)]) -> String {
    let each = failed.iter().map(|(name, why)| format!("{name} has no tools: {why}"));
    each.collect::<Vec<_>>().join("; ")
}

fn failed(outcome: &Outcome) -> String {
    let tool = outcome.tool.as_ref().map_or_else(|| "the call".to_owned(), |tool| tool.without_version().to_owned());
    match &outcome.error {
        Some(error) => format!("{tool} failed: {}", labelled(error.kind().as_str(), error.message())),
        None => format!("{tool} has no result yet: {}", outcome.status()),
    }
}

/// What an instance has of the program in which it is embedded.
#[derive(Default)]
pub(crate) struct HostOptions {
    /// The state directory of one that keeps nothing: its store is in memory, and this folder goes with it.
    pub(crate) temporary: Option<tempfile::TempDir>,
    /// Answers where policy asks.
    pub(crate) approver: Option<Arc<dyn Approver>>,
    /// Clients of models, by provider.
    pub(crate) models: Vec<(String, Arc<dyn ModelClient>)>,
    /// The program names every model that is asked: the environment names none.
    pub(crate) names_its_models: bool,
}

/// Whether a source may have tools under names that begin so. A wire name begins with `_` where its namespace begins with
/// a digit.
fn may_fill(source: &dyn Provider, written: &str) -> bool {
    let digit = written.strip_prefix('_').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    source.may_fill(written) || digit.is_some_and(|namespace| source.may_fill(namespace))
}

/// Everything that serves one configuration. Shared by `Arc`.
pub struct Toolwright {
    options: LoadOptions,
    variables: Arc<VariableSource>,
    config: RwLock<Arc<Config>>,
    catalogue: Arc<Catalogue>,
    executor: Arc<Executor>,
    jobs: Arc<JobManager>,
    events: Arc<EventHub>,
    redactor: Arc<SecretRedactor>,
    store: Arc<SqliteStore>,
    pins: Arc<Pins>,
    models: Arc<Models>,
    /// The model of LLM-backed tools for which nothing else says one.
    default_model: Option<String>,
    /// What the runner goes by; put in anew at each reload.
    compat: compat::CompatCell,
    selector: OnceLock<Arc<Selector>>,
    mcp: McpDeps,
    embeddings: embeddings::Embeddings,
    telemetry: telemetry::Telemetry,
    /// What is in the catalogue, as far as it comes from the configuration.
    running: Mutex<Running>,
    /// Who observes the events until the end.
    observations: Mutex<Vec<Observation>>,
    /// Answers where policy asks and nobody else is named.
    approver: Option<Arc<dyn Approver>>,
    /// Removed at the end.
    temporary: std::sync::Mutex<Option<tempfile::TempDir>>,
}

/// What the providers in the catalogue were built from.
#[derive(Default)]
struct Running {
    servers: HashMap<String, Server>,
    rest: Vec<NamedRestTool>,
    catalogues: HashMap<String, CatalogueSpec>,
    openapi: HashMap<String, OpenApiSpec>,
    settings: Option<build::ProviderSettings>,
    llm: Option<llm::LlmSettings>,
}

impl std::fmt::Debug for Toolwright {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Toolwright").field("catalogue", &self.catalogue).finish_non_exhaustive()
    }
}

impl Toolwright {
    /// Loads the configuration that `options` name, with the environment's variables and the user's file of secrets, and
    /// opens it.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn load(options: LoadOptions) -> Result<Arc<Self>, Error> {
        let variables = crate::config::variable;
        let config = crate::config::load(&options, &variables);
        Self::open(options, config, Box::new(variables)).await
    }

    /// Opens a loaded configuration: every provider is in the catalogue, with the built-in tools and
    /// what is known of the others from their last lists; nothing is connected yet
    /// (see [`Toolwright::list_all`]). `options` and `variables` serve [`Toolwright::reload`].
    ///
    /// # Errors
    /// [`Error`].
    pub async fn open(options: LoadOptions, config: Config, variables: VariableSource) -> Result<Arc<Self>, Error> {
        Self::open_within(options, config, variables, HostOptions::default()).await
    }

    /// As [`Toolwright::open`], within a program.
    pub(crate) async fn open_within(
        options: LoadOptions,
        config: Config,
        variables: VariableSource,
        host: HostOptions,
    ) -> Result<Arc<Self>, Error> {
        if config.is_unusable() {
            return Err(Error::Config(config.problems));
        }
        let events = Arc::new(EventHub::default());
        let redactor = Arc::new(SecretRedactor::default());
        redactor.add(config.secrets.iter().cloned());
        let store = match &host.temporary {
            Some(_) => SqliteStore::in_memory()?,
            None => SqliteStore::open(&config.state_dir)?,
        };
        let http = HttpModelClient::new(build::endpoints(&config, &*variables));
        let models = Arc::new(Models::new(http, Arc::clone(&redactor) as _));
        models.on_replay(replay::warning(&events));
        for (provider, client) in host.models {
            models.answer_by(&provider, client);
        }
        replay::read(&models, &config).await;
        redactor.add(
            models.endpoints().iter().filter_map(|endpoint| endpoint.key.as_ref()).map(|key| key.expose().to_owned()),
        );
        let telemetry = telemetry::Telemetry::start(&config.telemetry, &events, Arc::clone(&store) as _);
        let jobs = JobManager::new(Arc::clone(&store), &config.state_dir);
        let default_model = match host.names_its_models {
            true => config.written.models.default.clone(),
            false => llm::default_model(&config, &*variables, models.endpoints()),
        };
        let compat = compat::cell(&config);
        let tool_models = build::ToolModels { default: default_model.clone(), compat: &compat };
        let executor = build::executor(&config, &events, &redactor, &store, &models, &jobs, tool_models);
        let catalogue = Catalogue::new(Arc::clone(&events) as _, Arc::clone(&redactor) as _, LIST_TIMEOUT);
        let pins = Pins::new(Arc::clone(&store) as _, config.written.pins.into());
        catalogue.keep_pins(Arc::clone(&pins));
        let roots = Arc::new(Roots::default());
        let mcp = McpDeps { manifests: Arc::clone(&store) as _, events: Arc::clone(&events) as _, roots };
        if config.written.defaults.auto_background_after.is_some() {
            catalogue.offer_jobs().await;
        }
        // A run has a model for it, and offers it.
        catalogue.offer_extraction(executor.can_extract()).await;
        let app = Arc::new(Self {
            options,
            variables: Arc::new(variables),
            config: RwLock::new(Arc::new(config)),
            catalogue,
            executor,
            jobs,
            events,
            redactor,
            store,
            pins,
            models,
            default_model,
            compat,
            selector: OnceLock::new(),
            mcp,
            embeddings: embeddings::Embeddings::default(),
            telemetry,
            running: Mutex::default(),
            observations: Mutex::default(),
            approver: host.approver,
            temporary: std::sync::Mutex::new(host.temporary),
        });
        app.settle_providers().await?;
        Ok(app)
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The catalogue.
    #[must_use]
    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }

    /// The folders that servers receive if they ask while no call runs: none unless set.
    #[must_use]
    pub fn roots(&self) -> &Arc<Roots> {
        &self.mcp.roots
    }

    /// The one executor.
    #[must_use]
    pub fn executor(&self) -> &Arc<Executor> {
        &self.executor
    }

    /// The events.
    #[must_use]
    pub fn events(&self) -> &Arc<EventHub> {
        &self.events
    }

    /// The redactor: whatever leaves Toolwright goes through it.
    #[must_use]
    pub fn redactor(&self) -> &Arc<SecretRedactor> {
        &self.redactor
    }

    /// What is counted of its events: since it was opened where the configuration sends telemetry, else since this
    /// was first asked for. Within a runtime of tokio.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        self.telemetry.metrics()
    }

    /// [`Toolwright::metrics`] as `/metrics` shows them.
    #[must_use]
    pub fn metrics_source(&self) -> Arc<dyn MetricsSource> {
        self.telemetry.source()
    }

    /// Where models are and what is known of them. Requests to them go by the executor and its client, in line with
    /// all others.
    #[must_use]
    pub fn models(&self) -> &Arc<Models> {
        &self.models
    }

    /// Records every request to a model with its answer from now on, redacted, at the end of this file:
    /// `replay:FILE` plays it. `docs/models.md` tells its form.
    ///
    /// # Errors
    /// When the file cannot be written, and when requests are recorded already.
    pub fn record_models(&self, file: &Path) -> std::io::Result<()> {
        self.executor.recorder().start(file)
    }

    /// Who picks tools: with the embeddings that are configured when a pick needs them, and the judge that was when
    /// Toolwright was opened.
    #[must_use]
    pub fn selector(self: &Arc<Self>) -> &Arc<Selector> {
        self.selector.get_or_init(|| Arc::new(select::selector(self)))
    }

    /// The vectors of tools by the configured embedding model, which is loaded at first use and when another
    /// is configured; `None` where none is configured.
    ///
    /// # Errors
    /// See [`embedder`].
    pub async fn tool_vectors(&self) -> Result<Option<Arc<ToolVectors>>, EmbeddingError> {
        self.embeddings.of(self, &self.config()).await
    }

    /// The saved runs.
    #[must_use]
    pub fn runs(&self) -> Arc<dyn RunStore> {
        Arc::clone(&self.store) as _
    }

    /// The questions that wait for a person.
    #[must_use]
    pub fn inbox(&self) -> Arc<dyn InboxStore> {
        Arc::clone(&self.store) as _
    }

    /// What was approved for always.
    #[must_use]
    pub fn approvals(&self) -> Arc<dyn ApprovalStore> {
        Arc::clone(&self.store) as _
    }

    /// Forgets which version of a catalogue was accepted last, so that an older one is taken the next time it is listed.
    /// Returns whether anything was known of it.
    ///
    /// # Errors
    /// What the store says.
    pub async fn forget_catalogue(&self, name: &str) -> Result<bool, StoreError> {
        toolwright_providers::catalogue::forget(&*self.store, name).await
    }

    /// An approver that asks through the inbox; it calls `told` with each question once the inbox has stored it. With
    /// [`Answers::Elsewhere`] calls do not wait for the answer: jobs do.
    #[must_use]
    pub fn ask_inbox(&self, answers: Answers, told: impl Fn(&Question) + Send + Sync + 'static) -> Inbox {
        let parts = InboxParts::new(self.inbox(), Arc::clone(&self.executor.services().clock));
        Inbox::new(InboxParts { answers, told: Arc::new(told), ..parts })
    }

    /// Asks people through the inbox what tools' sources want to know; it calls `told` with each question once it
    /// is kept there. Calls wait for the answers.
    #[must_use]
    pub fn ask_forms(&self, told: impl Fn(&FormQuestion) + Send + Sync + 'static) -> FormInbox {
        let parts = FormInboxParts::new(self.inbox(), Arc::clone(&self.executor.services().clock));
        FormInbox::new(FormInboxParts { told: Arc::new(told), ..parts })
    }

    /// The jobs.
    #[must_use]
    pub fn jobs(&self) -> &Arc<JobManager> {
        &self.jobs
    }

    /// Takes up, from now on, jobs that dead processes left, and offers the tools that follow jobs once there is one.
    /// For processes that stay: what they take and cannot finish is left to others again. Where such a job still
    /// needs a person's decision, the inbox asks for it.
    pub fn recover_jobs(self: &Arc<Self>) {
        self.follow_jobs(None);
    }

    /// As [`Toolwright::recover_jobs`], for processes that end with one session: they take up the jobs of that session only,
    /// and leave others' alone.
    pub fn recover_jobs_of(self: &Arc<Self>, session: SessionId) {
        self.follow_jobs(Some(session));
    }

    /// Offers the tools that follow jobs from when there is a first one.
    pub(crate) fn offer_jobs_once_there_is_one(&self) {
        let (first, catalogue) = (self.jobs.first(), Arc::downgrade(&self.catalogue));
        tokio::spawn(async move {
            if first.await
                && let Some(catalogue) = catalogue.upgrade()
            {
                catalogue.offer_jobs().await;
            }
        });
    }

    /// Who answers where policy asks, as the program said it.
    pub(crate) fn own_approver(&self) -> Option<Arc<dyn Approver>> {
        self.approver.clone()
    }

    fn follow_jobs(self: &Arc<Self>, session: Option<SessionId>) {
        self.offer_jobs_once_there_is_one();
        let app = Arc::downgrade(self);
        let context = move |session: Session, snapshot| {
            let (policy, approver): (_, Arc<dyn Approver>) = match app.upgrade() {
                Some(app) => (app.config().policy(None, Profile::Ask), Arc::new(app.ask_inbox(Answers::Here, |_| ()))),
                None => (Policy::of(Profile::Ask), Arc::new(NoApprover { remedy: "the program is ending".into() })),
            };
            RunContext::new(Arc::new(session), snapshot, Arc::new(policy), approver)
        };
        let (catalogue, root) = (Arc::clone(&self.catalogue), self.config().root.clone());
        let terms = RecoveryTerms { catalogue, root, session, context: Arc::new(context) };
        self.executor.recover_jobs(terms);
    }

    /// Connects and lists every provider, as many at once as `mcp_init_concurrency` says, and waits at
    /// most `wait`. Providers that take longer go on by themselves.
    pub async fn list_all(self: &Arc<Self>, wait: Duration) {
        let concurrency = self.config().written.defaults.mcp_init_concurrency;
        let catalogue = Arc::clone(&self.catalogue);
        let listing = tokio::spawn(async move { catalogue.refresh_all(concurrency).await });
        // On a time-out the task is let go, not stopped.
        let _ = tokio::time::timeout(wait, listing).await;
    }

    /// Lists what may have the tool of this name: the providers that may fill the namespace it begins with, within `wait`.
    /// A name that begins with none is waited for only where it may be a bare one, until it is found and for a
    /// few seconds at most: a server that hangs holds up its own tools and no others.
    pub async fn list_for(self: &Arc<Self>, tool: &str, wait: Duration) {
        let is_found = || matches!(self.catalogue.snapshot().resolve(tool), Resolution::Found(..));
        let namespace = tool.split_once("__").or_else(|| tool.split_once(':')).map(|(namespace, _)| namespace.trim());
        match namespace {
            Some(namespace) => {
                let sources = self.catalogue.sources();
                let able = sources.iter().filter(|source| may_fill(&***source, namespace));
                let names: Vec<String> = able.map(|source| source.name().to_owned()).collect();
                let lists = join_all(names.iter().map(|name| self.catalogue.refresh(name)));
                let _ = tokio::time::timeout(wait, lists).await;
            }
            // Built-in and REST tools are listed when Toolwright opens.
            None if is_found() => {}
            None => {
                let mut changes = self.catalogue.changes();
                let found = async { while !is_found() && changes.changed().await.is_ok() {} };
                tokio::select! {
                    () = found => {}
                    () = self.list_all(wait.min(SEARCH)) => {}
                }
            }
        }
    }

    /// Ends jobs and what else runs in good order (see [`Executor::shut_down`]), then the providers.
    pub async fn shut_down(&self) {
        self.jobs.shut_down(SHUTDOWN_GRACE).await;
        self.executor.shut_down(SHUTDOWN_GRACE).await;
        self.catalogue.shut_down(SHUTDOWN).await;
        for observation in std::mem::take(&mut *self.observations.lock().await) {
            observation.end().await;
        }
        self.telemetry.shut_down().await;
        match tokio::time::timeout(CLOSE, self.store.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("{error}"),
            Err(_) => tracing::debug!("the store was not closed within {CLOSE:?}"),
        }
        drop(self.temporary.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Keeps an observer of the events until Toolwright is shut down, which lets it see the last of them.
    pub async fn observed_by(&self, observation: Observation) {
        self.observations.lock().await.push(observation);
    }
}
