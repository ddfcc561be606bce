//! Defines the keys of `toolwright.yaml`, with unit and default of each.
//!
//! Each section has the type of the component that uses it; those of the library itself are here. The checker, the
//! published JSON Schema and the reference are derived from these structs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use toolwright_agent::{ContextOptions, Dispatch};
use toolwright_core::agents::{AgentConfig, AgentLimits};
use toolwright_core::definition::ToolConfig;
use toolwright_core::duration;
use toolwright_core::pins::PinConfig;
use toolwright_core::policy::{Policy, Profile, Rule, ToolNote};
use toolwright_core::setting::TimeSpan;
use toolwright_core::store::channel::Channels;
use toolwright_core::trigger::{TriggerConfig, TriggerKind};
use toolwright_gateway::{ServerConfig, ViewConfig};
use toolwright_mcp::client::McpServerConfig;
use toolwright_providers::builtin::native::NativeToolsConfig;
use toolwright_providers::builtin::web::WebConfig;
use toolwright_providers::builtin::{PathGuard, ShellConfig};
use toolwright_providers::catalogue::CatalogueConfig;
use toolwright_providers::openapi::OpenApiConfig;
use toolwright_providers::rest::RestToolConfig;
use toolwright_runtime::QueueConfig;
use toolwright_runtime::executor::{CallDefaults, GuardConfig};
use toolwright_telemetry::TelemetryConfig;
use url::Url;

use super::llm_tools::LlmToolConfig;
use super::models::ModelsConfig;
pub use super::selection::{CascadeConfig, EmbeddingsConfig, ScorerName, SelectionConfig};

/// A `toolwright.yaml`. Every section may be left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Toolwright configuration")]
pub struct ConfigFile {
    /// Defaults for what tools, servers and agents do not set themselves.
    pub defaults: Defaults,
    /// MCP servers by name. A `mcpServers` block of another client pastes in as it is.
    pub(in crate::config) mcp_servers: Entries<McpServerConfig>,
    /// HTTP endpoints as tools, by name.
    pub(in crate::config) rest_tools: Entries<RestToolConfig>,
    /// Named queues that bound how many calls run at once.
    pub(in crate::config) queues: Entries<QueueConfig>,
    /// Which calls may run.
    pub policy: PolicyConfig,
    /// Signed catalogues of tools that are fetched over https, by namespace.
    pub(in crate::config) catalogues: Entries<CatalogueConfig>,
    /// When tool definitions from other sources are trusted.
    pub pins: PinConfig,
    /// Models for `run` and `chat`.
    pub models: ModelsConfig,
    /// How long conversations are shortened to fit the model's window.
    pub context: ContextOptions,
    /// Where and how long large outputs are kept.
    pub outputs: OutputsConfig,
    /// Requests to models that tool sources may make (MCP sampling).
    pub sampling: SamplingConfig,
    /// What the processes of tools may do.
    #[serde(rename = "sandbox")]
    pub shell: ShellConfig,
    /// `toolwright serve`.
    pub server: ServerConfig,
    /// Views: parts of the catalogue that `toolwright serve` offers at `/mcp/{name}`, by name. A view must not have the
    /// name of a source of tools.
    pub views: IndexMap<String, ViewConfig>,
    /// Which addresses `web__fetch` and REST tools may reach.
    pub web: WebConfig,
    /// `OpenAPI` documents as tools.
    pub(in crate::config) openapi: Entries<OpenApiConfig>,
    /// Settings for all LLM-backed tools.
    pub llm: LlmConfig,
    /// LLM-backed tools, whose calls a model answers, and text templates; by name, in the namespace `llm`.
    pub(in crate::config) llm_tools: Entries<LlmToolConfig>,
    /// Tools that providers of models run themselves.
    pub native_tools: NativeToolsConfig,
    /// Channels that agents write to, by name. A channel without an entry is private and broadcasts.
    pub channels: Channels,
    /// Agents by name. Files in `agents` beside the configuration, in `.claude/agents` of the project and of the home
    /// folder define further ones.
    pub(in crate::config) agents: Entries<AgentConfig>,
    /// Triggers of this workspace, by name: `toolwright serve` and `toolwright chat` run them.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub triggers: IndexMap<String, TriggerConfig>,
    /// Your own tools that install triggers, by name, in the namespace `trigger`.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub tools: IndexMap<String, ToolEntry>,
    /// Tools that a JSON Schema declares and that have no code, by name, in the namespace `schema`: the model that
    /// calls one writes the result, `_output`, itself. With `_activity`, or with the name of an existing tool, that
    /// tool runs the call. With `_delegate` a model answers the call in a separate run.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub schema_tools: IndexMap<String, Map<String, Value>>,
    /// Which documents `_delegate` may take from URLs.
    pub delegates: DelegatesConfig,
    /// How tools are chosen for a model.
    pub selection: SelectionConfig,
    /// Spans and metrics, sent to an OpenTelemetry receiver.
    pub telemetry: TelemetryConfig,
    /// Several machines.
    #[schemars(extend("x-unsupported" = true))]
    pub cluster: Option<Value>,
}

/// Entries of a section by name, as a file has them. They are taken out one by one, so that a broken one leaves the others
/// alone, and are in the [`Config`](crate::config::Config): here they have no more than their schema.
pub struct Entries<T>(PhantomData<fn() -> T>);

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T> Clone for Entries<T> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<T> PartialEq for Entries<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> std::fmt::Debug for Entries<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entries")
    }
}

impl<T> Serialize for Entries<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        none(self, serializer)
    }
}

impl<'de, T> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self::default())
    }
}

impl<T: JsonSchema> JsonSchema for Entries<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("EntriesOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object", "additionalProperties": generator.subschema_for::<T>(), "x-entries": true})
    }
}

/// Serializes a mapping that is empty by default.
fn none<T, S: Serializer>(_: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(std::iter::empty::<(String, ())>())
}

/// `defaults`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    /// What holds for calls where nothing nearer says otherwise.
    #[serde(flatten)]
    pub calls: CallDefaults,
    /// When the calls of a model's answer start, in `run` and `chat`.
    pub dispatch: Dispatch,
    /// The agent's own tools that `run` and `chat` list as well. A model may call `batch` and `task_status` in any
    /// case; the others are listed only if they are named here or in an agent's `tools`. `agent__final_report` is shown
    /// by `run --format` and `--output-schema`.
    pub agent_tools: Vec<AgentToolName>,
    /// How long a question waits in the inbox for a person before its call is denied. Default: ten minutes; a week in
    /// runs that a trigger started.
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::option")]
    #[schemars(with = "Option<TimeSpan>")]
    pub approval_time: Option<Duration>,
    /// Whether agents can form lasting groups. The tools `group__*` are then listed, and `serve` and `chat` run the
    /// members. Changing it needs a restart.
    pub groups: bool,
    /// Whether the tools that install triggers are listed to models: `trigger__timer`, `__schedule`, `__channel`,
    /// `__file` and `__webhook`. Such a tool is listed in any case if an agent's `tools`, a view's `allow`,
    /// `builtins_allowed` or `selection.pinned` names it.
    pub triggers: bool,
    /// The model, `provider/model`, that is asked once to repair the invalid arguments of a call. Each repair is one
    /// request. Default: none; the caller gets the validation error. Changing it needs a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair_model: Option<String>,
    /// How many MCP servers start at once.
    #[schemars(range(min = 1, max = 256))]
    pub mcp_init_concurrency: usize,
    /// Logs every message from and to MCP servers with time, server and direction, without secrets. `true` writes to
    /// standard error; a text names the file to write, relative to the workspace root. Changing it needs a restart.
    pub trace_mcp: TraceMcp,
    /// Whether the built-in tools (`fs`, `shell`, `web`) are in the catalogue.
    pub builtins: bool,
    /// Built-in tools that are offered, as globs on wire names (`fs__*`); empty: all.
    pub builtins_allowed: Vec<String>,
    /// Built-in tools that are not offered, as globs. Applied after `builtins_allowed`.
    pub builtins_denied: Vec<String>,
    /// How single built-in tools are called and explained, by wire name (`shell__bash`) or id (`shell:bash`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub builtin_tools: BTreeMap<String, ToolConfig>,
    /// How the `fs` tools treat paths outside the workspace root.
    pub path_guard: PathGuard,
    /// Environment variables, as globs, that commands of `shell` and MCP servers do not inherit, in addition to
    /// Toolwright's own and the keys of model APIs. To pass one to a server, set it in the server's `env`.
    pub withheld_env: Vec<String>,
    /// Limits that a run and the agents that it starts share; `turns`, `calls` and `time` apply to each agent alone.
    /// Default: 5 levels, 8 agents at once, 64 in all. An agent's own `limits` take precedence.
    #[serde(skip_serializing_if = "AgentLimits::is_empty")]
    pub agents: AgentLimits,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            calls: CallDefaults::default(),
            dispatch: Dispatch::TurnEnd,
            agent_tools: Vec::new(),
            approval_time: None,
            groups: false,
            triggers: false,
            repair_model: None,
            mcp_init_concurrency: 8,
            trace_mcp: TraceMcp::Switch(false),
            builtins: true,
            builtins_allowed: Vec::new(),
            builtins_denied: Vec::new(),
            builtin_tools: BTreeMap::new(),
            path_guard: PathGuard::Block,
            withheld_env: Vec::new(),
            agents: AgentLimits::default(),
        }
    }
}

/// Where messages of MCP servers are shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TraceMcp {
    /// On standard error, or not at all.
    Switch(bool),
    /// In a file.
    File(String),
}

/// An entry of `tools`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolEntry {
    /// What the tool does: `trigger` installs a trigger and returns its id.
    #[serde(rename = "type")]
    pub kind: ToolType,
    /// What makes its triggers fire.
    pub class: TriggerKind,
    /// What models are told. Default: that of the built-in tool of this class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Keys of `triggers` that are fixed for its triggers. Models do not see them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub set: Map<String, Value>,
}

/// What a tool of `tools` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolType {
    /// Installs a trigger.
    Trigger,
}

/// A tool of the agent itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentToolName {
    /// `agent__batch`: several calls as one.
    Batch,
    /// `agent__task_status`: how far the task is.
    TaskStatus,
    /// `agent__todo`: the to-do list of the session.
    Todo,
    /// `agent__ask_user`: a question to the person, with choices.
    AskUser,
    /// `memory__files`: text files that stay between conversations.
    MemoryFiles,
}

/// `policy`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyConfig {
    /// Decides calls that no rule matches. `--policy` overrides it. Without either, `run` in a terminal and `serve
    /// --http` use `ask`, and `serve --stdio` uses `client`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Rules, in order; the first that matches decides. Rules of nearer files come first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Effects and tags that you give to tools. Where several entries match a tool, the first that sets an effect
    /// decides it, and all tags count. Entries of nearer files come first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolNote>,
    /// Models that judge calls before the rules do, in order. Changing them needs a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<GuardConfig>,
}

impl PolicyConfig {
    /// Returns the policy of its rules under a profile.
    #[must_use]
    pub fn policy_for(&self, profile: Profile) -> Policy {
        Policy { profile, rules: self.rules.clone(), tools: self.tools.clone(), within: None }
    }
}

/// `outputs`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OutputsConfig {
    /// Folder of stored outputs, relative to the workspace root. Default: `outputs` in the state directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Bytes of all stored outputs together; the oldest are deleted first.
    #[schemars(range(min = 65_536))]
    pub max_bytes: u64,
    /// How long an output is kept.
    #[serde(with = "duration::required")]
    #[schemars(with = "TimeSpan")]
    pub max_age: Duration,
    /// Model that output__extract asks, `provider/model`. Default: the model of the run, else `models.default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extract_model: Option<String>,
    /// Requests that one call of output__extract may make.
    #[schemars(range(min = 1))]
    pub extract_max_requests: u32,
    /// Input and output tokens of all these requests. The input is estimated before a request is sent, and corrected by
    /// what the API reports.
    pub extract_max_tokens: u64,
    /// US dollars that all these requests may cost, estimated in the same way. The model needs `models.<name>.prices`
    /// for it. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub extract_max_cost: Option<f64>,
}

impl Default for OutputsConfig {
    fn default() -> Self {
        Self {
            dir: None,
            max_bytes: 1 << 30,
            max_age: Duration::from_secs(30 * 24 * 3600),
            extract_model: None,
            extract_max_requests: 150,
            extract_max_tokens: 2_000_000,
            extract_max_cost: None,
        }
    }
}

/// `sampling`. A server whose tool is called by `run`, `chat` or `call`, or behind `serve` by a client that offers no
/// model of its own, may ask a model a question of its own. Each is a call of `client:sample` to policy: by default it
/// is asked about. Rules may look at `args.source`, the tool whose server asks, at `args.messages` and
/// `args.systemPrompt`. Where a client of `serve` says that it offers a model, that is asked instead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingConfig {
    /// Whether servers may ask a model. With `false` they are not offered sampling.
    pub enabled: bool,
    /// The model that answers, `provider/model`. Default: the model of the run, else `models.default`. Without any,
    /// sampling is not offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tokens of one answer.
    #[schemars(range(min = 1))]
    pub max_tokens: u32,
    /// Requests in one `run`, `chat` or `call`. Behind `serve`: in each call of a client.
    pub max_requests: u32,
    /// Input and output tokens of all these requests. The input is estimated before a request is sent, and corrected by
    /// what the API reports.
    pub max_total_tokens: u64,
    /// US dollars that all these requests may cost, estimated in the same way. The model needs `models.<name>.prices`
    /// for it. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub max_cost: Option<f64>,
}

impl Default for SamplingConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            model: None,
            max_tokens: 4096,
            max_requests: 20,
            max_total_tokens: 100_000,
            max_cost: None,
        }
    }
}

/// `llm`: what holds for all tools that a model answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LlmConfig {
    /// File of `toolwright bench` that says which models are recommended for which tools, relative to the workspace root.
    /// Default: `toolwright-compat.json` there, else `models/compat.json` in the state directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compat: Option<String>,
}

/// Which documents `_delegate` may take from URLs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DelegatesConfig {
    /// URLs whose documents `_delegate` may name. A URL that ends with `/` stands for all URLs below it. Default: none.
    /// Changing it needs a restart.
    pub urls: Vec<String>,
}

impl DelegatesConfig {
    /// Returns whether the document at a URL may be read.
    pub(crate) fn allows(&self, url: &Url) -> bool {
        let is_plain = url.username().is_empty() && url.password().is_none();
        let allows = |allowed: &Url| {
            let same = (allowed.scheme(), allowed.host_str(), allowed.port_or_known_default())
                == (url.scheme(), url.host_str(), url.port_or_known_default());
            let below = allowed.path().ends_with('/') && url.path().starts_with(allowed.path());
            same && (below || (allowed.path(), allowed.query()) == (url.path(), url.query()))
        };
        is_plain && self.urls.iter().filter_map(|allowed| Url::parse(allowed).ok()).any(|allowed| allows(&allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_allowed_by_name_or_folder() {
        let config = DelegatesConfig { urls: vec!["https://a.example/d/".into(), "https://b.example/one.json".into()] };
        for (url, expect) in [
            ("https://a.example/d/x.yaml", true),
            ("https://a.example/d/../e.yaml", false),
            ("https://a.example/dx", false),
            ("http://a.example/d/x.yaml", false),
            ("https://a.example:8443/d/x.yaml", false),
            ("https://a.example.evil/d/x.yaml", false),
            ("https://user@a.example/d/x.yaml", false),
            ("https://b.example/one.json", true),
            ("https://b.example/one.json?x=1", false),
        ] {
            assert_eq!(config.allows(&Url::parse(url).expect("url")), expect, "{url}");
        }
    }
}
