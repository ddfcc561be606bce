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

use crate::config::ModelTarget;

/// The meaning of the `model` field of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunTarget {
    /// An agent by name.
    Agent(String),
    /// The default agent with this model.
    Model(String),
    /// The model itself, without an agent.
    Raw(String),
}

/// The parameters of a run.
pub struct RunRequest {
    /// The agent or model to run.
    pub target: RunTarget,
    /// Id of the run.
    pub run: String,
    /// Id of the session, which owns stored outputs and jobs.
    pub session: String,
    /// The principal on whose behalf the run acts.
    pub principal: Principal,
    /// Decides where no rule matches, unless the agent has a stricter one.
    pub profile: Profile,
    /// Ids of the tools that the run may use; `None` for all.
    pub tools: Option<Vec<String>>,
    /// The client's own instructions.
    pub system: String,
    /// Answers where policy asks.
    pub approver: Arc<dyn Approver>,
    /// Ends the run.
    pub cancel: Cancel,
}

impl std::fmt::Debug for RunRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunOrder").field("target", &self.target).field("run", &self.run).finish_non_exhaustive()
    }
}

/// A prepared run that has not started.
#[derive(Debug)]
pub struct PreparedRun {
    /// Drives it.
    pub driver: Driver,
    /// Its options.
    pub options: RunOptions,
    /// Its specification.
    pub config: RunConfig,
}

/// The agents and models behind the facades.
#[async_trait]
pub trait AgentSource: std::fmt::Debug + Send + Sync {
    /// The names that `GET /v1/models` lists.
    fn names(&self) -> Vec<String>;

    /// Resolves a model name.
    ///
    /// # Errors
    /// The reason why the name has no meaning, as a message.
    fn resolve(&self, name: &str, mean: ModelTarget) -> Result<RunTarget, String>;

    /// Returns the API of the model that answers, if known.
    fn api(&self, target: &RunTarget) -> Option<Api>;

    /// Prepares a run.
    ///
    /// # Errors
    /// The reason why the run cannot be prepared, as a message.
    async fn prepare(&self, order: RunRequest) -> Result<PreparedRun, String>;

    /// Returns the approver that asks in the inbox and waits for an answer.
    fn inbox(&self) -> Arc<dyn Approver>;

    /// Returns the store of responses and conversations.
    fn objects(&self) -> Arc<dyn ObjectStore>;

    /// Returns the store that holds each process's claims on runs.
    fn runs(&self) -> Arc<dyn RunStore>;
}
