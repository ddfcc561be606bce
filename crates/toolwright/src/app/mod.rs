//! A running instance: catalogue, executor and stores, built once from a configuration and used by every command.

mod agents;
mod client;
mod fallback_client;
mod operate;
mod parts;
mod plans;
mod reload;
mod request;
mod stores;
mod tools;
mod unmatched_names;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Mutex;
use toolwright_core::approval::Approver;
use toolwright_core::client::Roots;
use toolwright_core::model::ModelClient;
use toolwright_gateway::MetricsSource;
use toolwright_mcp::client::McpOptions;
use toolwright_models::{HttpModelClient, Models};
use toolwright_providers::catalogue::CatalogueConfig;
use toolwright_providers::openapi::OpenApiConfig;
use toolwright_providers::rest::RestToolConfig;
use toolwright_runtime::{
    Catalogue, EventHub, Executor, JobManager, ObserverHandle, Pins, SecretRedactor, SqliteStore, StoredMemory,
    SystemClock, TriggerManager,
};
use toolwright_search::{Selector, ToolVectors};
use toolwright_telemetry::Metrics;

use crate::config::file::Defaults;
use crate::config::{Config, LoadOptions, Problem, Server, SkillEntry};
use crate::error::Error;

use self::parts::{build, llm_tools, select, telemetry};

pub use crate::error::PlanRefused;
pub(crate) use agents::Facades;
pub use agents::{Agent, Conversation, DrivenGroups, Events, RunningTriggers};
pub use client::{ClientOptions, FormAnswer, PageAnswer, Person};
pub use fallback_client::{GatewayFallback, InboxPerson};
pub(crate) use operate::Operations;
pub use parts::build::authorization;
pub use parts::select::embedder;
pub use plans::{PlanOptions, PlanReport, PlanWriter, PlannedOutcome, WrittenPlan};
pub use reload::watch;
pub use request::{RequestAnswer, RequestConfig, RequestContext};
pub(crate) use tools::LIST_WAIT;
pub use tools::{CallOptions, PickedTool};

/// Time limit of a provider's listing, after which it counts as failed.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long running calls may take to end after a shutdown signal.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// How long closing the store may take. Its content is safe in any case.
const CLOSE: Duration = Duration::from_secs(4);
/// How long providers may take to shut down.
const SHUTDOWN: Duration = Duration::from_secs(4);

/// Looks up variables of the configuration, at the start and at every reload.
pub type VariableSource = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The changes of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReloadChanges {
    /// Providers that were added.
    pub added: Vec<String>,
    /// Providers that were replaced because their settings changed.
    pub changed: Vec<String>,
    /// Providers that were removed.
    pub removed: Vec<String>,
    /// Changed settings that only take effect after a restart.
    pub needs_restart: Vec<&'static str>,
    /// Problems of the new configuration that leave it usable.
    pub problems: Vec<Problem>,
}

/// The options that the embedding program gives an instance.
#[derive(Default)]
pub(crate) struct HostOptions {
    /// The temporary folder of an instance without a state directory, whose store is in memory. Removed with the
    /// instance.
    pub(crate) temporary: Option<tempfile::TempDir>,
    /// Answers if policy asks.
    pub(crate) approver: Option<Arc<dyn Approver>>,
    /// Clients of models, by provider.
    pub(crate) models: Vec<(String, Arc<dyn ModelClient>)>,
    /// Whether the program names every model, so that models of the environment are ignored.
    pub(crate) names_its_models: bool,
}

/// The parts that serve one configuration. Shared by `Arc`.
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
    triggers: Arc<TriggerManager>,
    /// Whether this process runs triggers.
    runs_triggers: AtomicBool,
    pins: Arc<Pins>,
    models: Arc<Models>,
    /// The model of LLM-backed tools for which nothing else names one.
    default_model: Option<String>,
    /// Which models work well with which tools; replaced at each reload.
    compat: llm_tools::CompatCell,
    selector: OnceLock<Arc<Selector>>,
    /// The agents' driver for this configuration, shared so that runs share their tool views.
    driver: std::sync::Mutex<Option<(Arc<Config>, toolwright_agent::Driver)>>,
    mcp: McpOptions,
    embeddings: select::Embeddings,
    telemetry: telemetry::Telemetry,
    /// The configured providers in the catalogue.
    running: Mutex<ProviderSettings>,
    /// Observers of events until the shutdown.
    observations: Mutex<Vec<ObserverHandle>>,
    /// Answers if policy asks and no other approver is named.
    approver: Option<Arc<dyn Approver>>,
    /// Removed at the shutdown.
    temporary: std::sync::Mutex<Option<tempfile::TempDir>>,
}

/// The settings of the providers in the catalogue.
#[derive(Default)]
struct ProviderSettings {
    servers: HashMap<String, Server>,
    rest: Vec<(String, RestToolConfig)>,
    catalogues: HashMap<String, CatalogueConfig>,
    openapi: HashMap<String, OpenApiConfig>,
    settings: Option<build::ProviderOptions>,
    llm: Option<llm_tools::LlmProviderOptions>,
    /// The configuration of which all LLM-backed tools are offered already.
    all_llm_of: Option<Arc<Config>>,
    agents: Option<agents::ConfiguredAgents>,
    skills: Option<(Vec<SkillEntry>, Defaults)>,
}

impl std::fmt::Debug for Toolwright {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Toolwright").field("catalogue", &self.catalogue).finish_non_exhaustive()
    }
}

impl Toolwright {
    /// Loads the configuration of `options`, with variables from the environment and the user's file of secrets, and
    /// opens it.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn load(options: LoadOptions) -> Result<Arc<Self>, Error> {
        let variables = crate::config::variable;
        let config = crate::config::load(&options, &variables);
        Self::open(options, config, Box::new(variables)).await
    }

    /// Opens a loaded configuration. All providers are then in the catalogue, with the built-in tools and the cached
    /// lists of the others. Nothing is connected yet, see [`Toolwright::list_all`]. `options` and `variables` are for
    /// [`Toolwright::reload`].
    ///
    /// # Errors
    /// [`Error`].
    pub async fn open(options: LoadOptions, config: Config, variables: VariableSource) -> Result<Arc<Self>, Error> {
        Self::open_within(options, config, variables, HostOptions::default()).await
    }

    /// Like [`Toolwright::open`], embedded in a program.
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
            Some(_) => SqliteStore::in_memory().map_err(Error::StateDir)?,
            None => SqliteStore::open(&config.state_dir).map_err(Error::StateDir)?,
        };
        let http = HttpModelClient::new(build::endpoints(&config, &*variables));
        let models = Arc::new(Models::new(http, Arc::clone(&redactor) as _));
        models.on_replay(build::replay_warning(&events));
        for (provider, client) in host.models {
            models.answer_by(&provider, client);
        }
        build::read_recordings(&models, &config).await;
        redactor.add(
            models.endpoints().iter().filter_map(|endpoint| endpoint.key.as_ref()).map(|key| key.expose().to_owned()),
        );
        let telemetry = telemetry::Telemetry::start(&config.telemetry, &events, Arc::clone(&store) as _);
        let jobs = JobManager::new(Arc::clone(&store), &config.state_dir);
        let triggers = TriggerManager::new(Arc::clone(&store), Arc::new(SystemClock));
        triggers.use_channels(config.sections.channels.clone());
        let default_model = match host.names_its_models {
            true => config.sections.models.default.clone(),
            false => llm_tools::default_model(&config, &*variables, models.endpoints()),
        };
        let compat = llm_tools::compat_cell(&config);
        let tool_models = build::ToolModels { default: default_model.clone(), compat: &compat };
        let memory = StoredMemory::new(Arc::clone(&store));
        let executor = build::executor(&config, &events, &redactor, &memory, &models, (&jobs, &triggers), tool_models);
        let catalogue = Catalogue::new(Arc::clone(&events) as _, Arc::clone(&redactor) as _, LIST_TIMEOUT);
        let pins = Pins::new(Arc::clone(&store) as _, config.sections.pins);
        catalogue.keep_pins(Arc::clone(&pins));
        let roots = Arc::new(Roots::default());
        let mcp = McpOptions { manifests: Arc::clone(&store) as _, events: Arc::clone(&events) as _, roots };
        if config.sections.defaults.calls.auto_background_after.is_some() {
            catalogue.offer_jobs().await;
        }
        // A run has a model for extraction, and offers the tool itself.
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
            triggers,
            runs_triggers: AtomicBool::new(false),
            driver: std::sync::Mutex::default(),
            pins,
            models,
            default_model,
            compat,
            selector: OnceLock::new(),
            mcp,
            embeddings: select::Embeddings::default(),
            telemetry,
            running: Mutex::default(),
            observations: Mutex::default(),
            approver: host.approver,
            temporary: std::sync::Mutex::new(host.temporary),
        });
        memory.use_vectors(select::vectors(&app));
        app.resolve_providers().await?;
        Ok(app)
    }

    /// Returns the configuration in force.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the catalogue.
    #[must_use]
    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }

    /// Returns the folders for servers that ask while no call runs: none unless set.
    #[must_use]
    pub fn roots(&self) -> &Arc<Roots> {
        &self.mcp.roots
    }

    /// Returns the executor.
    #[must_use]
    pub fn executor(&self) -> &Arc<Executor> {
        &self.executor
    }

    /// Returns the event hub.
    #[must_use]
    pub fn events(&self) -> &Arc<EventHub> {
        &self.events
    }

    /// Returns the redactor of all output of Toolwright.
    #[must_use]
    pub fn redactor(&self) -> &Arc<SecretRedactor> {
        &self.redactor
    }

    /// Returns metrics of its events: since the start if the configuration sends telemetry, else since the first call
    /// of this method. Needs a tokio runtime.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        self.telemetry.metrics()
    }

    /// Returns the source of `/metrics`.
    #[must_use]
    pub fn metrics_source(&self) -> Arc<dyn MetricsSource> {
        self.telemetry.source()
    }

    /// Returns the endpoints and properties of models. Requests to models go through the executor and its queues.
    #[must_use]
    pub fn models(&self) -> &Arc<Models> {
        &self.models
    }

    /// From now on, appends every request to a model with its answer, redacted, to this file. The model `replay:FILE`
    /// replays it. `docs/models.md` describes the format.
    ///
    /// # Errors
    /// The file cannot be written, or requests are already being recorded.
    pub fn record_models(&self, file: &Path) -> Result<(), Error> {
        self.executor.models().recorder().start(file).map_err(Error::io(file.display().to_string()))
    }

    /// Returns the selector of tools, with the embeddings that are configured when it is used, and the judge that was
    /// configured when Toolwright was opened.
    #[must_use]
    pub fn selector(self: &Arc<Self>) -> &Arc<Selector> {
        self.selector.get_or_init(|| Arc::new(select::selector(self)))
    }

    /// Returns the vectors of tools by the configured embedding model, which is loaded at first use and after a change;
    /// `None` without one.
    ///
    /// # Errors
    /// See [`embedder`].
    pub async fn tool_vectors(&self) -> Result<Option<Arc<ToolVectors>>, Error> {
        Ok(self.embeddings.of(self, &self.config()).await?)
    }

    /// Ends jobs and other running work properly (see [`Executor::shut_down`]), then the providers.
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

    /// Keeps an observer of the events until Toolwright is shut down, so that it gets the last ones.
    pub async fn observed_by(&self, observation: ObserverHandle) {
        self.observations.lock().await.push(observation);
    }
}
