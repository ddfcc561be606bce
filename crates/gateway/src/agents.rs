//! Defines the source of the agents and models behind the facades.

use std::sync::Arc;

use async_trait::async_trait;
use toolwright_agent::{Driver, RunConfig, RunOptions};
use toolwright_core::approval::Approver;
use toolwright_core::cancel::Cancel;
use toolwright_core::policy::Profile;
use toolwright_core::session::Principal;
use toolwright_core::store::{ObjectStore, RunStore};
use toolwright_models::Api;

use crate::config::ModelsMean;

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
    /// The tools that it may use at most, by id; `None` for all.
    pub tools: Option<Vec<String>>,
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
    pub spec: RunConfig,
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

    /// The API of the model that answers, where that is known.
    fn api(&self, target: &Target) -> Option<Api>;

    /// Makes a run.
    ///
    /// # Errors
    /// Why there can be none, in words.
    async fn prepare(&self, order: RunOrder) -> Result<PreparedRun, String>;

    /// Asks whoever answers the inbox, and waits.
    fn inbox(&self) -> Arc<dyn Approver>;

    /// Keeps responses and conversations.
    fn objects(&self) -> Arc<dyn ObjectStore>;

    /// Claims what one process works on.
    fn runs(&self) -> Arc<dyn RunStore>;
}
