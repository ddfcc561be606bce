//! Configuration: `toolwright.yaml` and the layers below it. [`ConfigFile`] is the content of one file, [`Config`] the
//! result of all layers, with variables expanded.

mod agents;
mod claude_agents;
mod files;
mod layers;
mod load;
mod resolve;
mod sections;
mod skills;
mod sources;
pub mod trust;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use toolwright_core::exposure::Exposure;
use toolwright_core::model::PriceTable;
use toolwright_core::policy::{Policy, Profile};
use toolwright_core::trigger::TriggerConfig;
use toolwright_mcp::client::McpServerConfig;
use toolwright_models::{Endpoint, ModelOverrides};
use toolwright_providers::catalogue::CatalogueConfig;
use toolwright_providers::openapi::OpenApiConfig;
use toolwright_providers::rest::RestToolConfig;
use toolwright_runtime::executor::GuardBinding;
use toolwright_runtime::{QueueConfig, TrafficConfig};
use toolwright_telemetry::Telemetry;

use self::files::FileStamp;
use crate::secrets::mask;
use crate::trust::ProjectTrust;

pub use agents::AgentEntry;
pub use files::folders::FolderKind;
pub use files::node::{Problem, Severity, SourceLocation};
pub use files::{Layer, LayerKind, Variables, user_file};
pub use load::{LoadOptions, load, state_dir};
pub use sections::check::{json_schema, policy_file};
pub use sections::file::{self, ConfigFile, DelegatesConfig, PolicyConfig};
pub use sections::llm_tools::{LlmEntry, ShippedToolOverrides};
pub use sections::models::{CompatSource, ModelConfig, ModelsConfig, read_compat};
pub use sections::selection::EmbeddingsConfig;
pub use sections::variables::{forget_secrets, keep_secrets, names_variable, secret_file, variable};
pub use skills::SkillEntry;

pub(crate) use files::folders::{ANY as ANY_FILE, contents, summary as folder_summary};
pub(crate) use files::{project_kind, read_text};
pub(crate) use load::code_settings_path;
#[cfg(not(feature = "embeddings"))]
pub(crate) use resolve::cannot_load;
pub(crate) use sections::check::{checked, snake_case};
pub(crate) use sections::servers::{is_understood, timeout};
pub(crate) use sections::variables::environment;

/// Name of the provider of built-in tools.
pub(crate) const BUILTIN: &str = "builtin";
/// Name of the provider of LLM-backed tools.
pub(crate) const LLM: &str = "llm";
/// Name of the provider of the tool that loads skills.
pub(crate) const SKILLS: &str = "skills";
/// Name of the provider of REST tools.
pub(crate) const REST: &str = "rest";

/// A configuration ready for use.
#[derive(Debug, Clone)]
pub struct Config {
    /// Files that were read, nearest first.
    pub files: Vec<PathBuf>,
    /// The names of the read files in the store of pins.
    pub pin_scopes: Vec<String>,
    /// Every place that was searched, nearest first.
    pub candidates: Vec<Layer>,
    /// These places, and those of approvals of a project's files, with their stamps from before they were read. Hot
    /// reload watches them.
    pub(in crate::config) stamps: Vec<(PathBuf, FileStamp)>,
    /// The project's files that exist, or that existed and still apply, with their states.
    pub trust: Vec<ProjectTrust>,
    /// Workspace root, absolute.
    pub root: PathBuf,
    /// State directory, absolute.
    pub state_dir: PathBuf,
    /// The settings, with variables expanded; entries are below.
    pub sections: ConfigFile,
    /// All files merged, as written.
    pub(in crate::config) tree: Value,
    /// Usable MCP servers, in order.
    pub servers: Vec<Server>,
    /// Disabled entries of servers, REST tools, documents and catalogues: section and name.
    pub disabled: Vec<(&'static str, String)>,
    /// Usable REST tools, in order, with `${VAR}` expanded and `${parameters.x}` kept.
    pub rest_tools: Vec<(String, RestToolConfig)>,
    /// Usable OpenAPI documents, in order.
    pub openapi: Vec<OpenApiConfig>,
    /// Usable remote catalogues, in order.
    pub catalogues: Vec<CatalogueConfig>,
    /// LLM-backed tools and text templates, in order.
    pub llm_tools: Vec<LlmEntry>,
    /// Usable agents: entries, then those of files.
    pub agents: Vec<AgentEntry>,
    /// Usable skills.
    pub skills: Vec<SkillEntry>,
    /// Files of LLM tools and OpenAPI documents, existing or not. Hot reload watches them too.
    pub named_files: Vec<PathBuf>,
    /// The stamps of these files from before they were read.
    pub(in crate::config) named_stamps: Vec<FileStamp>,
    /// Which models work well with which tools.
    pub compat: CompatSource,
    /// Endpoints for models, in addition to those of the environment.
    pub model_endpoints: Vec<Endpoint>,
    /// How requests to models are made, by model id or provider.
    pub model_overrides: Vec<(String, ModelOverrides)>,
    /// Files of tokenizers, by model id or provider.
    pub tokenizers: Vec<(String, PathBuf)>,
    /// Export of spans and metrics.
    pub telemetry: Telemetry,
    /// Queues.
    pub queues: BTreeMap<String, QueueConfig>,
    /// Values that must never be printed.
    pub secrets: Vec<String>,
    /// Variables used in the server's token and in keys and headers of model endpoints. Children do not inherit them.
    pub key_variables: Vec<String>,
    /// The problems of the configuration.
    pub problems: Vec<Problem>,
}

/// An MCP server. Two are equal if the same process or connection can serve both.
#[derive(Debug, Clone)]
pub struct Server {
    /// Its name in the configuration.
    pub entry: String,
    /// The namespace of its tools.
    pub namespace: String,
    /// The place of its definition.
    pub at: SourceLocation,
    /// The file that contains its entry, which distinguishes its pins from those of other servers of its name.
    pub defined_in: String,
    /// Its entry, with variables expanded. `oauth` is set if Toolwright gets tokens for it.
    pub config: McpServerConfig,
}

impl PartialEq for Server {
    fn eq(&self, other: &Self) -> bool {
        let Self { entry: _, at: _, namespace, defined_in, config } = self;
        (namespace, defined_in, config) == (&other.namespace, &other.defined_in, &other.config)
    }
}

impl Config {
    /// Returns whether the configuration cannot be used.
    #[must_use]
    pub fn is_unusable(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Returns the agent of this name.
    #[must_use]
    pub fn agent(&self, name: &str) -> Option<&AgentEntry> {
        self.agents.iter().find(|agent| agent.config.name == name)
    }

    /// Returns the triggers of the configuration and of its agents, with their names.
    pub(crate) fn named_triggers(&self) -> Vec<(String, TriggerConfig)> {
        let mut named: Vec<(String, TriggerConfig)> = self.sections.triggers.clone().into_iter().collect();
        for agent in &self.agents {
            for (number, written) in agent.config.triggers.iter().enumerate() {
                let name = format!("{}-{}", agent.config.name, number + 1);
                match TriggerConfig::parse(written) {
                    Ok(trigger) => {
                        named.push((name, TriggerConfig { agent: Some(agent.config.name.clone()), ..trigger }))
                    }
                    Err(error) => tracing::warn!("trigger {} of agent {}: {error}", number + 1, agent.config.name),
                }
            }
        }
        named
    }

    /// Names the configured webhooks that admit no request where `variables` looks up their secrets. These are not among
    /// the problems: only a server needs the secrets.
    #[must_use]
    pub fn unsigned_webhooks(&self, variables: Variables<'_>) -> Vec<Problem> {
        let unsigned = |(name, trigger): (String, TriggerConfig)| {
            let remedy = trigger.missing_secret(variables)?;
            let (field, message) = (format!("triggers.{name}"), "it admits no request".to_owned());
            Some(Problem { severity: Severity::Warning, file: None, line: None, field, message, remedy })
        };
        self.named_triggers().into_iter().filter_map(unsigned).collect()
    }

    /// Returns the rules under a profile: the given one, else the configured one, else `default`.
    #[must_use]
    pub fn policy(&self, profile: Option<Profile>, default: Profile) -> Policy {
        let policy = &self.sections.policy;
        policy.policy_for(profile.or(policy.profile).unwrap_or(default))
    }

    /// Returns the models that judge calls, in order.
    #[must_use]
    pub fn guards(&self) -> Vec<GuardBinding> {
        self.sections.policy.guards.iter().map(GuardBinding::from).collect()
    }

    /// Returns how the catalogue is exposed to `model` (`provider/model`); `None` to choose by cost. A setting for the
    /// model overrides that for its provider, and both override `selection.exposure`.
    #[must_use]
    pub fn exposure(&self, model: &str) -> Option<Exposure> {
        let own = self.of_model(model, |model| model.exposure);
        own.unwrap_or(self.sections.selection.exposure).exposure()
    }

    /// Returns the context window of `model` in tokens, if configured for it or its provider.
    #[must_use]
    pub fn window(&self, model: &str) -> Option<usize> {
        self.of_model(model, |model| model.requests.window)
    }

    fn of_model<T>(&self, model: &str, setting: impl Fn(&ModelConfig) -> Option<T>) -> Option<T> {
        let by_name = &self.sections.models.by_name;
        let of = |name: &str| by_name.get(name).and_then(&setting);
        of(model).or_else(|| of(model.split_once('/')?.0))
    }

    /// Returns how requests to models are queued and retried, by model id or provider.
    #[must_use]
    pub fn model_traffic(&self) -> BTreeMap<String, TrafficConfig> {
        let models = self.sections.models.by_name.iter().map(|(name, model)| (name.clone(), model.traffic.clone()));
        models.filter(|(_, traffic)| *traffic != TrafficConfig::default()).collect()
    }

    /// Returns the prices of models, by model id or provider, and of uses of their providers' tools.
    #[must_use]
    pub fn prices(&self) -> PriceTable {
        let models = self.sections.models.by_name.iter();
        let prices: PriceTable =
            models.filter_map(|(name, overrides)| Some((name.clone(), overrides.prices?))).collect();
        prices.with_tools(self.sections.native_tools.prices())
    }

    /// Returns every file that may affect the configuration, existing or not.
    pub(crate) fn watched(&self) -> impl Iterator<Item = &PathBuf> {
        let places = self.stamps.iter().map(|(path, _)| path);
        places.chain(&self.named_files).chain(&self.compat.files)
    }

    /// Returns whether the files are unchanged since they were read, by their stamps.
    pub(crate) fn is_current(&self) -> bool {
        let places = self.stamps.iter().map(|(path, stamp)| (path, stamp));
        let named = self.named_files.iter().zip(&self.named_stamps);
        let all = places.chain(named).chain(self.compat.files.iter().zip(&self.compat.stamps));
        all.into_iter().all(|(path, stamp)| FileStamp::of(path) == *stamp)
    }

    /// Returns the configuration as written, with secrets masked.
    #[must_use]
    pub fn to_redacted_json(&self) -> Value {
        let mut value = serde_json::to_value(ConfigFile::default()).unwrap_or_default();
        merge_over_defaults(&mut value, self.tree.clone());
        mask(&mut value);
        value
    }
}

/// Overrides the defaults by the written values.
fn merge_over_defaults(defaults: &mut Value, written: Value) {
    match (defaults, written) {
        (Value::Object(defaults), Value::Object(written)) => {
            for (key, value) in written {
                merge_over_defaults(defaults.entry(key).or_insert(Value::Null), value);
            }
        }
        (place, written) => *place = written,
    }
}

/// Parses a document of another program to a plain value.
pub(crate) fn parse_value(text: &str, file: &std::sync::Arc<std::path::Path>) -> Result<serde_json::Value, Problem> {
    files::node::Node::parse(text, file).map(|node| node.to_value())
}

/// Returns the value for display, with actual and possible secrets masked: header, environment and query values,
/// passwords in addresses and arguments. `${VAR}` references stay.
#[must_use]
pub fn masked(value: &serde_json::Value) -> serde_json::Value {
    let mut value = value.clone();
    crate::secrets::mask(&mut value);
    value
}

/// Returns whether the value, as it would be written to a file, contains an actual or possible secret.
#[must_use]
pub fn holds_secrets(value: &serde_json::Value) -> bool {
    masked(value) != *value
}
