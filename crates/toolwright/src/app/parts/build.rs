//! Builds the executor, the providers and the models' endpoints from the configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::{Map, Value};
use toolwright_agent::{ModelDelegates, ModelExtractor};
use toolwright_core::catalogue::declared::{DeclaredTools, SCHEMA_NAMESPACE};
use toolwright_core::catalogue::{Provider, ProviderKind, RegistrationError};
use toolwright_core::context::{EstimatedTokens, Exactness, Services, TokenCounter};
use toolwright_core::definition::ToolConfig;
use toolwright_core::event::EventSink as _;
use toolwright_core::llm::shipped;
use toolwright_core::model::{Bound, ModelBounds, ModelClient as _, is_replay};
use toolwright_core::pattern::{allowed_by, glob_match};
use toolwright_core::tool::StaticProvider;
use toolwright_core::tool_id::{server_namespace, wire_candidate};
use toolwright_core::trigger::TriggerKind;
use toolwright_core::{Event, SandboxProfile, ToolDefinition};
use toolwright_mcp::client::{McpServerOptions, McpTransport};
use toolwright_models::{Endpoints, Models, Replayed, endpoints_from_env};
use toolwright_net::HttpOptions;
use toolwright_oauth::{CredentialStore, OAuth, OAuthOptions};
use toolwright_providers::builtin::{self, BuiltinOptions, OptionalTool, SkillTool, TriggerTool, native, web};
use toolwright_providers::rest::{RestOptions, RestProvider, RestToolConfig};
use toolwright_runtime::executor::RepairOptions;
use toolwright_runtime::{
    Budgets, EventHub, Executor, ExecutorOptions, JobManager, ModelTraffic, OutputFiles, Queues, Responses,
    SecretRedactor, SessionFiles, SessionManuals, SqliteStore, StoredMemory, SystemClock, TriggerManager,
};
use toolwright_sandbox::enforce::{Sandbox, SandboxConfig};
use toolwright_sandbox::withheld_by_default;
use url::Url;

use super::delegates::Documents;
use super::frames::frames;
use super::llm_tools::{CompatCell, recommends};
use crate::config::file::{AgentToolName, Defaults, ToolEntry};
use crate::config::{
    BUILTIN, Config, LLM, Layer, LayerKind, LlmEntry, REST, SKILLS, Server, Severity, SkillEntry, environment,
    secret_file,
};

/// Folder in the state directory with credentials of servers.
const CREDENTIALS: &str = "oauth";
/// The namespace of tools that install triggers.
const TRIGGER: &str = "trigger";

/// Settings that built-in and REST providers are built from.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::app) struct ProviderOptions {
    enabled: bool,
    allowed: Vec<String>,
    denied: Vec<String>,
    /// Settings of single tools, by wire name or id.
    settings: BTreeMap<String, ToolConfig>,
    builtin: BuiltinOptions,
    web: web::WebConfig,
    native: native::NativeToolsConfig,
    triggers: Vec<TriggerTool>,
    declared: IndexMap<String, Map<String, Value>>,
}

impl ProviderOptions {
    pub(in crate::app) fn of(config: &Config) -> Self {
        let defaults = &config.sections.defaults;
        let builtin = BuiltinOptions {
            path_guard: defaults.path_guard,
            protected: protected(config),
            // Logins, tokens and data of other sessions, and the secrets of variables that entries name.
            withheld: [Some(config.state_dir.clone()), secret_file(&environment)].into_iter().flatten().collect(),
            edit_journals: Some(config.state_dir.join("edits")),
            withheld_env: withheld_env(config),
            shell: config.sections.shell.clone(),
            channels: config.sections.channels.clone(),
            groups: defaults.groups,
            agents: agent_names(config),
            privileged: config
                .agents
                .iter()
                .filter(|agent| agent.config.privileged)
                .map(|agent| agent.config.name.clone())
                .collect(),
            triggers: trigger_kinds(config),
            optional: optional_tools(config),
        };
        Self {
            enabled: defaults.builtins,
            allowed: defaults.builtins_allowed.clone(),
            denied: defaults.builtins_denied.clone(),
            settings: defaults.builtin_tools.clone(),
            builtin,
            web: config.sections.web.clone(),
            native: config.sections.native_tools.clone(),
            triggers: trigger_tools(config),
            declared: config.sections.schema_tools.clone(),
        }
    }

    /// Returns the environment variables that children do not inherit.
    pub(in crate::app) fn withheld_env(&self) -> &[String] {
        &self.builtin.withheld_env
    }

    /// Returns how server processes are sandboxed.
    pub(in crate::app) fn sandbox(&self) -> &SandboxConfig {
        &self.builtin.shell.sandbox
    }

    /// Returns the built-in tools that the lists allow; `None` if they are disabled.
    pub(in crate::app) fn builtins(&self) -> Result<Option<Arc<dyn Provider>>, RegistrationError> {
        if !self.enabled {
            return Ok(None);
        }
        let mut tools = builtin::tools(&self.builtin);
        tools.extend(web::tools(&self.web));
        tools.extend(native::tools(&self.native));
        tools.extend(self.triggers.iter().map(|tool| Arc::new(tool.clone()) as _));
        tools.retain(|tool| {
            let id = tool.definition().id;
            allowed_by(&self.allowed, &self.denied, &wire_candidate(id.namespace(), id.name()))
        });
        let settled = |definition: &mut ToolDefinition| {
            let wire_name = wire_candidate(definition.id.namespace(), definition.id.name());
            let by_id = || self.settings.get(definition.id.without_version());
            if let Some(settings) = self.settings.get(&wire_name).or_else(by_id) {
                settings.apply(definition);
            }
        };
        Ok(Some(Arc::new(StaticProvider::adjusted(BUILTIN, ProviderKind::Builtin, tools, settled)?)))
    }

    /// Returns the tools that are declared by schemas; `None` without any.
    pub(in crate::app) fn declared(&self) -> Option<Arc<dyn Provider>> {
        let tools: Vec<(&str, Value)> =
            self.declared.iter().map(|(name, schema)| (name.as_str(), Value::Object(schema.clone()))).collect();
        let tools = tools.iter().map(|(name, schema)| (*name, schema));
        (!self.declared.is_empty()).then(|| Arc::new(DeclaredTools::new(SCHEMA_NAMESPACE, tools)) as _)
    }

    /// Returns the REST tools; `None` without any.
    pub(in crate::app) fn rest(&self, tools: &[(String, RestToolConfig)]) -> Option<Arc<dyn Provider>> {
        if tools.is_empty() {
            return None;
        }
        let options = RestOptions { address: self.web.address.clone(), ..RestOptions::default() };
        match RestProvider::new(tools.to_vec(), &options) {
            Ok(provider) => Some(Arc::new(provider)),
            // Each tool was compiled when the configuration was read.
            Err(error) => {
                tracing::error!("{error}");
                None
            }
        }
    }
}

/// Returns the tool that loads skills for models; `None` without skills, or if it is disabled.
pub(in crate::app) fn skills(skills: &[SkillEntry], defaults: &Defaults) -> Option<Arc<dyn Provider>> {
    let is_allowed = allowed_by(&defaults.builtins_allowed, &defaults.builtins_denied, "agent__skill");
    if skills.is_empty() || !defaults.builtins || !is_allowed {
        return None;
    }
    let tool = Arc::new(SkillTool(skills.iter().map(|entry| entry.skill.clone()).collect()));
    match StaticProvider::new(SKILLS, ProviderKind::Builtin, vec![tool]) {
        Ok(provider) => Some(Arc::new(provider)),
        // Its definition is constant and covered by a test.
        Err(error) => {
            tracing::error!("{error}");
            None
        }
    }
}

/// Returns the kinds of triggers that models may install: all if configured so, else those whose tools are named.
fn trigger_kinds(config: &Config) -> Vec<TriggerKind> {
    let defaults = &config.sections.defaults;
    if defaults.triggers {
        return TriggerKind::ALL.to_vec();
    }
    TriggerKind::ALL.into_iter().filter(|kind| is_named(config, TRIGGER, kind.as_str())).collect()
}

/// Returns whether the configuration names this built-in tool, which is then listed. A glob that begins with the
/// namespace counts, except `agent__*`, which means the agents.
fn is_named(config: &Config, namespace: &str, name: &str) -> bool {
    let agents = config.agents.iter().flat_map(|agent| agent.config.tools.iter().flatten());
    let views = config.sections.views.values().flat_map(|view| &view.allowed);
    let defaults = &config.sections.defaults;
    let named = agents.chain(views).chain(&defaults.builtins_allowed).chain(&config.sections.selection.pinned);
    let (wire, id) = (wire_candidate(namespace, name), format!("{namespace}:{name}"));
    let mut globs = named.filter(|glob| glob.starts_with(namespace) && *glob != "agent__*");
    globs.any(|glob| glob_match(glob, &wire) || glob_match(glob, &id))
}

/// Returns the optional tools to list: those in `defaults.agent_tools`, or named elsewhere.
fn optional_tools(config: &Config) -> Vec<OptionalTool> {
    let agent_tools = &config.sections.defaults.agent_tools;
    let is_shown = |tool: OptionalTool| match tool {
        OptionalTool::Todo => agent_tools.contains(&AgentToolName::Todo),
        OptionalTool::AskUser => agent_tools.contains(&AgentToolName::AskUser),
        OptionalTool::MemoryFiles => agent_tools.contains(&AgentToolName::MemoryFiles),
    };
    let is_wanted = |tool: &OptionalTool| is_shown(*tool) || is_named(config, tool.name().0, tool.name().1);
    OptionalTool::ALL.into_iter().filter(is_wanted).collect()
}

/// Returns the tools of the section `tools`. An entry with an invalid or used name is dropped.
fn trigger_tools(config: &Config) -> Vec<TriggerTool> {
    let tool = |(name, entry): (&String, &ToolEntry)| {
        let is_taken = TriggerKind::ALL.iter().any(|kind| kind.as_str() == name);
        let tool = TriggerTool::named(name, entry.class, entry.description.clone(), entry.set.clone());
        match tool {
            Ok(_) if is_taken => {
                tracing::warn!("tools.{name}: trigger__{name} is a built-in tool; choose another name")
            }
            Ok(tool) => return Some(tool.with_agents(agent_names(config))),
            Err(error) => tracing::warn!("tools.{name}: {error}"),
        }
        None
    };
    config.sections.tools.iter().filter_map(tool).collect()
}

fn agent_names(config: &Config) -> Vec<String> {
    config.agents.iter().map(|agent| agent.config.name.clone()).collect()
}

/// Returns the files that tools must not change without approval: every possible configuration file, existing or not,
/// and the state, which contains approvals.
fn protected(config: &Config) -> Vec<PathBuf> {
    // A new folder of a project's agents or skills applies only after approval.
    let is_new = |layer: &&Layer| matches!(layer.kind, LayerKind::ProjectFolder(_)) && !layer.path.exists();
    let files = config.candidates.iter().filter(|layer| !is_new(layer)).map(|layer| layer.path.clone());
    // Files with prompts and settings of tools are configuration too.
    let named = config.named_files.iter().chain(&config.compat.files).cloned();
    files.chain(named).chain([config.state_dir.clone()]).collect()
}

fn withheld_env(config: &Config) -> Vec<String> {
    let mut withheld = withheld_by_default();
    withheld.extend(config.sections.defaults.withheld_env.iter().cloned());
    withheld.extend(config.key_variables.iter().cloned());
    withheld
}

/// Returns configured tools that are not in the catalogue, by tool prefix or name, with the reasons.
pub(in crate::app) fn missing_tools(config: &Config) -> Vec<(String, String)> {
    let namespace = |entry: &str| server_namespace(entry, &|_| false);
    let mut absent = Vec::new();
    for problem in config.problems.iter().filter(|problem| problem.severity == Severity::EntryDisabled) {
        let why = &problem.message;
        let entry = |section| problem.field.strip_prefix(section).and_then(|path: &str| path.split('.').next());
        if let Some(entry) = entry("mcp_servers.") {
            absent.push((namespace(entry), format!("server {entry} was left out: {why}")));
        } else if let Some(entry) = entry("rest_tools.") {
            absent.push((wire_candidate(REST, entry), format!("REST tool {entry} was left out: {why}")));
        } else if let Some(entry) = entry("llm_tools.") {
            absent.push((wire_candidate(LLM, entry), format!("LLM tool {entry} was left out: {why}")));
        } else if let Some(entry) = entry("catalogues.") {
            absent.push((entry.to_owned(), format!("catalogue {entry} was left out: {why}")));
        } else if let Some(entry) = entry("openapi.") {
            absent.push((entry.to_owned(), format!("OpenAPI document {entry} was left out: {why}")));
        }
    }
    for (section, entry) in &config.disabled {
        let (name, what) = match *section {
            "mcp_servers" => (namespace(entry), "server"),
            "rest_tools" => (wire_candidate(REST, entry), "REST tool"),
            "openapi" => (entry.clone(), "OpenAPI document"),
            _ => (entry.clone(), "catalogue"),
        };
        absent.push((name, format!("{what} {entry} is disabled in the configuration")));
    }
    for entry in &config.llm_tools {
        if let LlmEntry::Off(entry) = entry {
            absent.push((wire_candidate(LLM, entry), format!("LLM tool {entry} is disabled in the configuration")));
        }
    }
    let defaults = &config.sections.defaults;
    if defaults.builtins {
        let listed = trigger_kinds(config);
        for kind in TriggerKind::ALL.iter().filter(|kind| !listed.contains(kind)) {
            let name = wire_candidate(TRIGGER, kind.as_str());
            let why = format!("{name} is not listed: set `defaults.triggers: true`, or name it in an agent's `tools`");
            absent.push((name, why));
        }
        let listed = optional_tools(config);
        for tool in OptionalTool::ALL.into_iter().filter(|tool| !listed.contains(tool)) {
            let (namespace, name) = tool.name();
            let wire = wire_candidate(namespace, name);
            let key = wire.trim_start_matches("agent__").replace("__", "_");
            let why = format!(
                "{wire} is not listed: add `{key}` to `defaults.agent_tools`, or name it in an agent's `tools`"
            );
            absent.push((wire, why));
        }
        if config.sections.web.search.is_empty() {
            let why = "web__search is not listed: name an engine under `web.search`";
            absent.push(("web__search".into(), why.into()));
        }
        if !defaults.groups {
            absent.push(("group".into(), "the tools of groups are not listed: set `defaults.groups: true`".into()));
            if config.sections.channels.0.is_empty() {
                let why = "the tools of channels are not listed: name a channel under `channels`";
                absent.push(("channel".into(), why.into()));
            }
        }
    }
    // An entry that only lost a part of itself is in the catalogue.
    absent.retain(|(name, _)| {
        let is_server = config.servers.iter().any(|server| server.namespace == *name);
        !is_server && !config.openapi.iter().any(|document| document.name == *name)
    });
    // After all others, because the first reason counts.
    let unanswered =
        "it asks a model, and none is known that answers it: set `models.default` or the key of a model API";
    absent.extend(shipped().iter().map(|tool| (wire_candidate(LLM, tool.source().id.name()), unanswered.to_owned())));
    absent
}

/// Returns the options of an MCP provider.
pub(in crate::app) fn server_options(
    server: &Server,
    config: &Config,
    redactor: &Arc<SecretRedactor>,
) -> McpServerOptions {
    let is_process = matches!(server.config.transport, McpTransport::Stdio { .. });
    McpServerOptions {
        defined_in: server.defined_in.clone(),
        withheld_env: withheld_env(config),
        sandbox: is_process.then(|| server_sandbox(server.config.sandbox, config)),
        frames: frames(&config.sections.defaults.trace_mcp, &config.root, redactor),
        authorizer: authorization(server, config, redactor).map(|parts| Arc::new(OAuth::new(parts)) as _),
        // Snapshots explain missing tools by the provider's name, so it is the namespace.
        ..McpServerOptions::new(server.namespace.clone(), server.config.clone())
    }
}

/// Returns the OAuth options of a server, if it uses OAuth, with its credentials in the state directory. Its tokens are
/// registered with `redactor`.
#[must_use]
pub fn authorization(server: &Server, config: &Config, redactor: &Arc<SecretRedactor>) -> Option<OAuthOptions> {
    let url = server.config.transport.url()?;
    let redactor = Arc::clone(redactor);
    Some(OAuthOptions {
        server: server.entry.clone(),
        url: http_address(url)?,
        settings: server.config.oauth.clone()?,
        store: CredentialStore::folder(config.state_dir.join(CREDENTIALS)),
        http: HttpOptions::default(),
        consent: None,
        secrets: Some(Arc::new(move |secret| redactor.add([secret]))),
    })
}

/// Returns the address whose OAuth metadata is used: for a WebSocket, that of the HTTP server where it starts.
fn http_address(url: &str) -> Option<Url> {
    let mut url = Url::parse(url).ok()?;
    match url.scheme() {
        "ws" => url.set_scheme("http").ok()?,
        "wss" => url.set_scheme("https").ok()?,
        _ => {}
    }
    Some(url)
}

/// Returns the sandbox of a server's process.
pub(crate) fn server_sandbox(profile: SandboxProfile, config: &Config) -> Sandbox {
    let settings = SandboxConfig { protected: protected(config), ..config.sections.shell.sandbox.clone() };
    Sandbox { profile, root: config.root.clone(), settings }
}

/// Returns the endpoints for models: the environment's, overridden by the configuration's.
pub(in crate::app) fn endpoints(config: &Config, variables: &dyn Fn(&str) -> Option<String>) -> Endpoints {
    let mut endpoints = endpoints_from_env(variables);
    for endpoint in &config.model_endpoints {
        endpoints.insert(endpoint.clone());
    }
    for (name, overrides) in &config.model_overrides {
        endpoints.set_overrides(name, overrides.clone());
    }
    endpoints
}

/// Which models answer tools.
pub(in crate::app) struct ToolModels<'a> {
    /// The model of tools for which nothing else names one.
    pub(in crate::app) default: Option<String>,
    /// The recommended models.
    pub(in crate::app) compat: &'a CompatCell,
}

pub(in crate::app) fn executor(
    config: &Config,
    events: &Arc<EventHub>,
    redactor: &Arc<SecretRedactor>,
    memory: &Arc<StoredMemory>,
    models: &Arc<Models>,
    (jobs, triggers): (&Arc<JobManager>, &Arc<TriggerManager>),
    tool_models: ToolModels<'_>,
) -> Arc<Executor> {
    let store = memory.store();
    let outputs = &config.sections.outputs;
    let dir = outputs
        .dir
        .as_ref()
        .map_or_else(|| config.state_dir.join("outputs"), |dir| config.root.join(PathBuf::from(dir)));
    let stored = OutputFiles::with_limits(dir, outputs.max_bytes, outputs.max_age);
    stored.start_sweeping();
    let services = Services {
        model: ModelTraffic::new(Arc::clone(models) as _, config.model_traffic()),
        files: Arc::new(SessionFiles::default()),
        jobs: Arc::clone(jobs) as _,
        triggers: Arc::clone(triggers) as _,
        manuals: Arc::new(SessionManuals::default()),
        log: Arc::clone(store) as _,
        memory: Arc::clone(memory) as _,
        groups: Arc::clone(store) as _,
        outputs: stored,
        extractor: Some(Arc::new(extractor(config, tool_models.default.clone()))),
        delegates: Some(Arc::new(delegates(config, tool_models.default.clone(), store))),
        events: Arc::clone(events) as _,
        redactor: Arc::clone(redactor) as _,
        tokens: Arc::new(Tokenizers::of(config)),
        ..Services::none(Arc::new(SystemClock))
    };
    let defaults = &config.sections.defaults;
    let mut options = ExecutorOptions::new(Arc::new(services), Arc::clone(store) as _, Arc::clone(store) as _);
    options.defaults = defaults.calls.clone();
    options.repair = defaults.repair_model.as_deref().map(RepairOptions::by);
    options.guards = config.guards();
    options.jobs = Some(Arc::clone(jobs));
    options.prices = config.prices();
    let tokens = &config.sections.server.tokens;
    let budget = tokens.iter().filter_map(|(name, client)| Some((name.clone(), client.budget.as_ref()?)));
    let by_principal = budget.map(|(name, budget)| (name, (budget.bounds(), budget.period))).collect();
    options.budgets = Some(Budgets { by_principal, store: Arc::clone(store) as _ });
    options.compat = recommends(tool_models.compat);
    options.default_model = tool_models.default;
    options.queues = Queues::new(config.queues.clone());
    options.lock_dir = Some(config.state_dir.join("locks"));
    // Only tools with a time to live use it.
    options.cache = Some(Responses::new(Arc::clone(store), Arc::new(SystemClock)));
    Executor::new(options)
}

/// Creates the extractor of stored outputs.
fn extractor(config: &Config, default_model: Option<String>) -> ModelExtractor {
    let config_copy = config.clone();
    let outputs = &config.sections.outputs;
    ModelExtractor {
        bounds: ModelBounds {
            requests: Bound::new(outputs.extract_max_requests, "outputs.extract_max_requests"),
            tokens: Bound::new(outputs.extract_max_tokens, "outputs.extract_max_tokens"),
            cost_usd: outputs.extract_max_cost.map(|most| Bound::new(most, "outputs.extract_max_cost")),
        },
        prices: config.prices(),
        model: config.sections.outputs.extract_model.clone(),
        default_model,
        window: Arc::new(move |model| config_copy.window(model)),
    }
}

/// Creates the delegates, which answer calls in separate runs.
fn delegates(config: &Config, default_model: Option<String>, store: &Arc<SqliteStore>) -> ModelDelegates {
    let config_copy = config.clone();
    let documents = Documents::new(config.sections.delegates.clone(), config.sections.web.address.clone());
    ModelDelegates {
        default_model,
        window: Arc::new(move |model| config_copy.window(model)),
        documents: Arc::new(documents),
        runs: Arc::clone(store) as _,
        tree: Arc::clone(store) as _,
        limits: config.sections.defaults.agents.clone(),
    }
}

/// The configured tokenizers, by model id or provider. Each file is read at its first count.
struct Tokenizers(BTreeMap<String, Arc<dyn TokenCounter>>);

impl Tokenizers {
    #[cfg(feature = "embeddings")]
    fn of(config: &Config) -> Self {
        // Models that share a file share its table.
        let mut tables: BTreeMap<_, Arc<dyn TokenCounter>> = BTreeMap::new();
        let mut table = |(name, path): &(String, std::path::PathBuf)| {
            let table =
                tables.entry(path.clone()).or_insert_with(|| toolwright_search::embed::TokenTable::new(path) as _);
            (name.clone(), Arc::clone(table))
        };
        Self(config.tokenizers.iter().map(&mut table).collect())
    }

    #[cfg(not(feature = "embeddings"))]
    fn of(config: &Config) -> Self {
        if !config.tokenizers.is_empty() {
            tracing::warn!("this program was built without the feature `embeddings`: tokens are estimated");
        }
        Self(BTreeMap::new())
    }
}

impl TokenCounter for Tokenizers {
    fn count(&self, text: &str) -> (usize, Exactness) {
        EstimatedTokens.count(text)
    }

    fn of_model(&self, model: &str) -> Option<Arc<dyn TokenCounter>> {
        let provider = || self.0.get(model.split_once('/')?.0);
        self.0.get(model).or_else(provider).cloned()
    }
}

/// Loads the recordings that the configuration names instead of models, on a blocking thread, so that the properties of
/// their models are known. A recording that cannot be read is reported when it is used.
pub(in crate::app) async fn read_recordings(models: &Models, config: &Config) {
    let sections = &config.sections;
    let named = [
        &sections.models.default,
        &sections.models.judge,
        &sections.sampling.model,
        &sections.context.model,
        &sections.outputs.extract_model,
        &sections.defaults.repair_model,
        &sections.selection.judge_model,
    ];
    for recording in named.into_iter().flatten().filter(|model| is_replay(model)) {
        let _ = models.ready(recording).await;
    }
}

/// Warns once of each recording that is replayed.
pub(in crate::app) fn replay_warning(events: &Arc<EventHub>) -> impl Fn(&Replayed) + Send + Sync + 'static + use<> {
    let events = Arc::clone(events);
    move |Replayed { file, requests, is_torn, overlong }| {
        let torn = if *is_torn { "; its last line is not whole and left out" } else { "" };
        let long = match overlong {
            0 => String::new(),
            lines => format!("; {lines} of its lines are too long and left out"),
        };
        let message = format!("answers are replayed from {file} ({requests} requests{torn}{long}): no model is asked");
        events.emit(Event::Warning { code: "replayed".to_owned(), message });
    }
}
