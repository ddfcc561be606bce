//! Configuration: `toolwright.yaml` and the layers below it. [`ConfigFile`] is the content of one file, [`Config`] the
//! result of all layers, with variables filled in.

mod agents;
mod files;
mod folders;
mod layers;
mod load;
mod node;
mod sections;
mod settle;
mod skills;
mod sources;
pub mod trust;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use toolwright_core::exposure::Exposure;
use toolwright_core::model::PriceTable;
use toolwright_core::policy::{Policy, Profile};
use toolwright_mcp::client::McpServerConfig;
use toolwright_models::{Endpoint, ModelOverrides};
use toolwright_providers::catalogue::CatalogueConfig;
use toolwright_providers::openapi::OpenApiConfig;
use toolwright_providers::rest::RestToolConfig;
use toolwright_runtime::executor::GuardBinding;
use toolwright_runtime::{QueueConfig, TrafficConfig};
use toolwright_telemetry::Telemetry;

use self::files::Stamp;
use crate::secrets::mask;
use crate::trust::Judged;

pub use agents::AgentEntry;
pub use files::{Layer, LayerKind, Variables, user_file};
pub use folders::FolderKind;
pub use load::{LoadOptions, load, state_dir};
pub use node::{At, Problem, Severity};
pub use sections::check::{json_schema, policy_file};
pub use sections::delegates::DelegatesConfig;
pub use sections::file::{self, ConfigFile, EmbeddingsConfig, PolicyConfig};
pub use sections::llm_tools::{LlmEntry, Tuned};
pub use sections::models::{CompatSource, ModelConfig, ModelsConfig, read_compat};
pub use sections::variables::{forget_secrets, keep_secrets, names_variable, secret_file, variable};
pub use skills::SkillEntry;

pub(crate) use files::{project_kind, read_text};
pub(crate) use folders::{ANY as ANY_FILE, contents, summary as folder_summary};
pub(crate) use load::place_of_code;
pub(crate) use sections::check::{checked, snake_case};
pub(crate) use sections::servers::{is_understood, timeout};
pub(crate) use sections::variables::environment;

/// Name of the provider of built-in tools.
pub(crate) const BUILTIN: &str = "builtin";
/// Name of the provider of tools that a model answers.
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
    /// What the files that were read are called where pins are kept.
    pub pin_scopes: Vec<String>,
    /// Every place that was looked at, nearest first.
    pub candidates: Vec<Layer>,
    /// These places, and where approvals of a project's files are kept, as they were when they were looked at; hot
    /// reload watches them.
    pub(in crate::config) stamps: Vec<(PathBuf, Stamp)>,
    /// The project's files that are there, or were and still hold, and how they stand.
    pub trust: Vec<Judged>,
    /// Workspace root, absolute.
    pub root: PathBuf,
    /// State directory, absolute.
    pub state_dir: PathBuf,
    /// The settings, variables filled in; entries are below.
    pub sections: ConfigFile,
    /// All files laid over each other, as they were written.
    pub(in crate::config) tree: Value,
    /// MCP servers that can be used, in order.
    pub servers: Vec<Server>,
    /// Entries of servers, REST tools, documents and catalogues that are switched off: section and name.
    pub disabled: Vec<(&'static str, String)>,
    /// REST tools that can be used, in order; `${VAR}` filled in, `${parameters.x}` kept.
    pub rest_tools: Vec<(String, RestToolConfig)>,
    /// OpenAPI documents that can be used, in order.
    pub openapi: Vec<OpenApiConfig>,
    /// Remote catalogues that can be used, in order.
    pub catalogues: Vec<CatalogueConfig>,
    /// Tools that a model answers and texts to fill in, in order.
    pub llm_tools: Vec<LlmEntry>,
    /// Agents that can be used: entries, then those of files.
    pub agents: Vec<AgentEntry>,
    /// Skills that can be used.
    pub skills: Vec<SkillEntry>,
    /// Files that LLM tools and OpenAPI documents are written in, there or not; hot reload watches them too.
    pub named_files: Vec<PathBuf>,
    /// What told these files' contents when they were read.
    pub(in crate::config) named_stamps: Vec<Stamp>,
    /// Which models do well with which tools.
    pub compat: CompatSource,
    /// Places that answer model requests, besides those that the environment names.
    pub model_endpoints: Vec<Endpoint>,
    /// How requests to models are made, by model id or provider.
    pub model_overrides: Vec<(String, ModelOverrides)>,
    /// Files of tokenizers, by model id or provider.
    pub tokenizers: Vec<(String, PathBuf)>,
    /// Spans and metrics for others.
    pub telemetry: Telemetry,
    /// Queues.
    pub queues: BTreeMap<String, QueueConfig>,
    /// Values that must never be printed.
    pub secrets: Vec<String>,
    /// Variables that went into the server's token and the keys and headers of model endpoints; children do
    /// not inherit them.
    pub key_variables: Vec<String>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// One MCP server. Two are equal when the same process or connection serves both.
#[derive(Debug, Clone)]
pub struct Server {
    /// Its name in the configuration.
    pub entry: String,
    /// The namespace its tools get.
    pub namespace: String,
    /// Where it was written.
    pub at: At,
    /// The file that its entry stands in, by which its pins are told from those of others of its name.
    pub defined_in: String,
    /// Its entry, variables filled in. Its `oauth` is there where tokens of ours are wanted.
    pub config: McpServerConfig,
}

impl PartialEq for Server {
    fn eq(&self, other: &Self) -> bool {
        let Self { entry: _, at: _, namespace, defined_in, config } = self;
        (namespace, defined_in, config) == (&other.namespace, &other.defined_in, &other.config)
    }
}

impl Config {
    /// Whether it cannot be used.
    #[must_use]
    pub fn is_unusable(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// The agent of this name.
    #[must_use]
    pub fn agent(&self, name: &str) -> Option<&AgentEntry> {
        self.agents.iter().find(|agent| agent.spec.name == name)
    }

    /// The rules under a profile: the one given, else the configured one, else `default`.
    #[must_use]
    pub fn policy(&self, given: Option<Profile>, default: Profile) -> Policy {
        let policy = &self.sections.policy;
        policy.under(given.or(policy.profile).unwrap_or(default))
    }

    /// The models that judge calls, in order.
    #[must_use]
    pub fn guards(&self) -> Vec<GuardBinding> {
        self.sections.policy.guards.iter().map(GuardBinding::from).collect()
    }

    /// How the catalogue is put before `model`, `provider/model`; `None` to choose by cost. What is written for
    /// the model beats what is written for its provider, and both `selection.exposure`.
    #[must_use]
    pub fn exposure(&self, model: &str) -> Option<Exposure> {
        let own = self.of_model(model, |model| model.exposure);
        own.unwrap_or(self.sections.selection.exposure).exposure()
    }

    /// Tokens that `model` takes in, where they are configured for it or its provider.
    #[must_use]
    pub fn window(&self, model: &str) -> Option<usize> {
        self.of_model(model, |model| model.requests.window)
    }

    fn of_model<T>(&self, model: &str, setting: impl Fn(&ModelConfig) -> Option<T>) -> Option<T> {
        let by_name = &self.sections.models.by_name;
        let of = |name: &str| by_name.get(name).and_then(&setting);
        of(model).or_else(|| of(model.split_once('/')?.0))
    }

    /// How requests to models wait and are made again, by model id or provider.
    #[must_use]
    pub fn model_traffic(&self) -> BTreeMap<String, TrafficConfig> {
        let models = self.sections.models.by_name.iter().map(|(name, model)| (name.clone(), model.traffic.clone()));
        models.filter(|(_, traffic)| *traffic != TrafficConfig::default()).collect()
    }

    /// What models cost, by model id or provider, and the uses of their providers' tools.
    #[must_use]
    pub fn prices(&self) -> PriceTable {
        let models = self.sections.models.by_name.iter();
        let prices: PriceTable =
            models.filter_map(|(name, overrides)| Some((name.clone(), overrides.prices?))).collect();
        prices.with_tools(self.sections.native_tools.prices())
    }

    /// Every file that decides what the configuration is, there or not.
    pub(crate) fn watched(&self) -> impl Iterator<Item = &PathBuf> {
        let places = self.stamps.iter().map(|(path, _)| path);
        places.chain(&self.named_files).chain(&self.compat.files)
    }

    /// Whether the files say what they said when they were read, as far as their stamps tell.
    pub(crate) fn is_current(&self) -> bool {
        let places = self.stamps.iter().map(|(path, stamp)| (path, stamp));
        let named = self.named_files.iter().zip(&self.named_stamps);
        let all = places.chain(named).chain(self.compat.files.iter().zip(&self.compat.stamps));
        all.into_iter().all(|(path, stamp)| Stamp::of(path) == *stamp)
    }

    /// The configuration as it was written, secrets masked.
    #[must_use]
    pub fn shown(&self) -> Value {
        let mut value = serde_json::to_value(ConfigFile::default()).unwrap_or_default();
        lay_over(&mut value, self.tree.clone());
        mask(&mut value);
        value
    }
}

/// Puts what was written over the defaults.
fn lay_over(defaults: &mut Value, written: Value) {
    match (defaults, written) {
        (Value::Object(defaults), Value::Object(written)) => {
            for (key, value) in written {
                lay_over(defaults.entry(key).or_insert(Value::Null), value);
            }
        }
        (place, written) => *place = written,
    }
}

/// A document as a plain value, for files that are not ours.
pub(crate) fn parse_value(text: &str, file: &std::sync::Arc<std::path::Path>) -> Result<serde_json::Value, Problem> {
    node::Node::parse(text, file).map(|node| node.to_value())
}

/// The value with all masked that is or may be secret, for showing it: header, environment and query
/// values, passwords in addresses and arguments. `${VAR}` references stay.
#[must_use]
pub fn masked(value: &serde_json::Value) -> serde_json::Value {
    let mut value = value.clone();
    crate::secrets::mask(&mut value);
    value
}

/// Whether the value, as it may be written to a file, holds what is or may be a secret.
#[must_use]
pub fn holds_secrets(value: &serde_json::Value) -> bool {
    masked(value) != *value
}
