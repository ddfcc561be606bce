//! The configuration as typed: what may stand in a file, with unit and default of each key. These
//! structs are the one definition table: the checker, the published JSON Schema and `config schema`
//! all come from them.

mod catalogue;
mod context;
mod llm;
mod models;
mod openapi;
mod pins;
mod sampling;
mod sandbox;
mod sections;
mod selection;
mod settings;
mod telemetry;
mod tools;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use toolwright_mcp::client::McpServerConfig;

pub use catalogue::CatalogueEntry;
pub use context::ContextSection;
pub use llm::{LlmOutput, LlmPreference, LlmSection, LlmTokens, LlmToolEntry, LlmVariant};
pub use models::{ModelOverrides, ModelPrices, ModelQueue, ModelRetry, ModelTimeouts, Models};
pub use openapi::{OpenApiAuth, OpenApiEntry, OpenApiGrouping, OpenApiOperation};
pub use pins::{DriftSetting, FirstUseSetting, PinsSection};
pub use sampling::SamplingSection;
pub use sandbox::{SandboxLimits, SandboxSection};
pub use sections::{
    AgentToolSetting, ClientToken, Defaults, DispatchSetting, EffectFlags, ModelApi, ModelEndpoint, OutputsSection,
    PathGuardSetting, PolicyEffect, PolicyGuard, PolicyProfile, PolicyRule, PolicySection, PolicyTool, Queue,
    SchemaForm, ServerSection, View, ViewExposure, WebSection,
};
pub use selection::{EmbeddingApi, Embeddings, ExposureSetting, ScorerSetting, SelectionSection};
pub use telemetry::TelemetrySection;
pub use tools::{RestMethod, RestResponse, RestTool};
pub use toolwright_core::setting::{CacheTtl, TimeSpan, Written};

/// A `toolwright.yaml`. Every section may be left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Toolwright configuration")]
pub struct ConfigFile {
    /// What holds where nothing nearer says otherwise.
    pub defaults: Defaults,
    /// MCP servers by name. A `mcpServers` block of another client pastes in as it is.
    #[serde(serialize_with = "of_none")]
    #[schemars(extend("x-entries" = true))]
    pub(crate) mcp_servers: IndexMap<String, McpServerConfig>,
    /// HTTP endpoints as tools, by name.
    #[schemars(extend("x-entries" = true))]
    pub rest_tools: IndexMap<String, RestTool>,
    /// Named queues that bound how many calls run at once.
    #[schemars(extend("x-entries" = true))]
    pub queues: IndexMap<String, Queue>,
    /// Which calls may run.
    pub policy: PolicySection,
    /// Signed tools from elsewhere, by namespace.
    #[schemars(extend("x-entries" = true))]
    pub catalogues: IndexMap<String, CatalogueEntry>,
    /// When definitions of others are trusted.
    pub pins: PinsSection,
    /// Models for `run` and `chat`.
    pub models: Models,
    /// Room in long conversations.
    pub context: ContextSection,
    /// Where and how long large outputs are kept.
    pub outputs: OutputsSection,
    /// What the sources of tools may ask of a model.
    pub sampling: SamplingSection,
    /// What the processes of tools may do.
    pub sandbox: SandboxSection,
    /// `toolwright serve`.
    pub server: ServerSection,
    /// Parts of the catalogue that `toolwright serve` offers at addresses of their own, `/mcp/{name}`, by name. A view
    /// and a source of tools may not have one name.
    pub views: IndexMap<String, View>,
    /// Which addresses `web__fetch` and REST tools may reach.
    pub web: WebSection,
    /// `OpenAPI` documents as tools.
    #[schemars(extend("x-entries" = true))]
    pub openapi: IndexMap<String, OpenApiEntry>,
    /// What holds for all tools that a model answers.
    pub llm: LlmSection,
    /// Tools that a model answers and texts to fill in, by name, in the namespace `llm`.
    #[schemars(extend("x-entries" = true))]
    pub llm_tools: IndexMap<String, LlmToolEntry>,
    /// Agents.
    #[schemars(extend("x-unsupported" = true))]
    pub agents: Option<Value>,
    /// How tools are chosen for a model.
    pub selection: SelectionSection,
    /// Spans and metrics, sent to an OpenTelemetry receiver.
    pub telemetry: TelemetrySection,
    /// Several machines.
    #[schemars(extend("x-unsupported" = true))]
    pub cluster: Option<Value>,
}

/// Entries are taken out of a file one by one, so that a broken one leaves the others alone ([`super::Config::servers`]).
fn of_none<T, S: Serializer>(_: &IndexMap<String, T>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(std::iter::empty::<(String, ())>())
}
