//! Where the agents and models behind the facades come from, and what a token may do there.

use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_agent::{Driver, RunOptions, RunSpec};
use toolwright_core::approval::Approver;
use toolwright_core::cancel::Cancel;
use toolwright_core::policy::Profile;
use toolwright_core::session::Principal;
use toolwright_core::store::ObjectStore;
use toolwright_models::Api;

/// `server.facades`: the APIs of OpenAI and Anthropic at `/v1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FacadeConfig {
    /// Whether they are served. Changing it needs a restart.
    pub enabled: bool,
    /// What the name of a configured model stands for: `agent` for the default agent with the tools of the token, or `raw`
    /// for the model itself.
    pub models: ModelsMean,
    /// What happens to a request whose client disconnects: `cancel` it, or `continue` to its end.
    pub on_disconnect: OnDisconnect,
    /// Who decides where policy asks, unless the token says otherwise.
    pub approvals: FacadeApprovals,
}

impl Default for FacadeConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            models: ModelsMean::Agent,
            on_disconnect: OnDisconnect::Cancel,
            approvals: FacadeApprovals::Inbox,
        }
    }
}

/// What the name of a configured model stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelsMean {
    /// The default agent.
    Agent,
    /// The model itself.
    Raw,
}

/// What happens to a request whose client disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    /// It is cancelled.
    Cancel,
    /// It continues; a stored response can be fetched.
    Continue,
}

/// Who decides where policy asks about a call of an agent behind a facade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FacadeApprovals {
    /// Nobody: such calls are denied.
    Deny,
    /// Whoever answers the inbox. The request waits; a stored response is pending meanwhile.
    Inbox,
    /// The client: by the tool `approve_tool_call` if it brings that, by items of Responses, else nobody.
    Tool,
}

/// What the `model` of a request stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An agent by name.
    Agent(String),
    /// The default agent with this model.
    Model(String),
    /// The model itself.
    Raw(String),
}

/// What a run is made of.
pub struct RunOrder {
    /// The agent, or the model of the default one.
    pub target: Target,
    /// Id of the run.
    pub run: String,
    /// Id of the session, to which stored outputs and jobs belong.
    pub session: String,
    /// On whose behalf.
    pub principal: Principal,
    /// Decides where no rule matches, unless the agent has a stricter one.
    pub profile: Profile,
    /// The tools that it may use at most, by id; empty for all.
    pub tools: Vec<String>,
    /// The client's own instructions.
    pub system: String,
    /// Answers where policy asks.
    pub approver: Arc<dyn Approver>,
    /// Ends the run.
    pub cancel: Cancel,
}

impl std::fmt::Debug for RunOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunOrder").field("target", &self.target).field("run", &self.run).finish_non_exhaustive()
    }
}

/// A run before it begins.
#[derive(Debug)]
pub struct PreparedRun {
    /// Drives it.
    pub driver: Driver,
    /// Its options.
    pub options: RunOptions,
    /// Its specification.
    pub spec: RunSpec,
}

/// The agents and models behind the facades.
#[async_trait]
pub trait AgentSource: std::fmt::Debug + Send + Sync {
    /// The names that `GET /v1/models` lists.
    fn names(&self) -> Vec<String>;

    /// What a name stands for.
    ///
    /// # Errors
    /// Why it stands for nothing, in words.
    fn resolve(&self, name: &str, mean: ModelsMean) -> Result<Target, String>;

    /// The API of a model, where that is known.
    fn api(&self, model: &str) -> Option<Api>;

    /// Makes a run.
    ///
    /// # Errors
    /// Why there can be none, in words.
    async fn prepare(&self, order: RunOrder) -> Result<PreparedRun, String>;

    /// Asks whoever answers the inbox, and waits.
    fn inbox(&self) -> Arc<dyn Approver>;

    /// Keeps responses and conversations.
    fn objects(&self) -> Arc<dyn ObjectStore>;
}
