//! The error type of the library.

use toolwright_agent::DriverError;
use toolwright_core::Outcome;
use toolwright_core::embedding::EmbeddingError;
use toolwright_core::error::labelled;
use toolwright_core::model::ModelError;
use toolwright_core::plan::PlanCheck;
use toolwright_core::store::StoreError;

use crate::config::Problem;
use crate::import::ImportError;
use crate::import::edit::EditError;

/// The errors of the library. Their sources are available through [`std::error::Error::source`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be used.
    #[error("the configuration cannot be used: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<Problem>),
    /// The state directory cannot be used.
    #[error("{0}; choose another: `--state-dir`, TOOLWRIGHT_STATE_DIR, or `state_dir` of the builder")]
    StateDir(#[source] StoreError),
    /// The system cannot watch the configuration's files.
    #[error(transparent)]
    Watch(#[from] notify::Error),
    /// Stored data cannot be read or written.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A fault of Toolwright: a built-in tool violates the rules of registration.
    #[error("the built-in tools cannot be registered: {0}")]
    Builtins(#[from] toolwright_core::catalogue::RegistrationError),
    /// A tool of the program cannot be registered.
    #[error("{0}")]
    Tool(#[source] toolwright_core::catalogue::RegistrationError),
    /// Two sources of tools have the same name.
    #[error("{0}; give one of them another namespace")]
    Duplicate(#[from] toolwright_runtime::catalogue::DuplicateProvider),
    /// Sources of tools cannot be listed: their names, with the reasons.
    #[error("{}", sources(.0))]
    Sources(Vec<(String, String)>),
    /// A call failed or was refused.
    #[error("{}", failed(.0))]
    Call(Box<Outcome>),
    /// An agent's run could not continue.
    #[error(transparent)]
    Agent(#[from] DriverError),
    /// The model cannot be asked.
    #[error("{0}")]
    Model(#[from] ModelError),
    /// The answer to a request cannot be used, for this reason.
    #[error("the model gave no answer that can be used: {0}")]
    Answer(String),
    /// The embedding model cannot be used.
    #[error(transparent)]
    Embedding(#[from] EmbeddingError),
    /// A plan did not run, or was not written.
    #[error(transparent)]
    Plan(#[from] PlanRefused),
    /// A client's file cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A configuration file was not edited.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The gateway cannot listen.
    #[error(transparent)]
    Http(#[from] toolwright_gateway::HttpError),
    /// An operation of the system failed.
    #[error("{doing}: {source}")]
    Io {
        /// The failed action.
        doing: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The program's request is incomplete or contradictory; with the remedy.
    #[error("{0}")]
    Usage(String),
}

/// The reason why a plan did not run.
#[derive(Debug, thiserror::Error)]
pub enum PlanRefused {
    /// The result of its check.
    #[error("the plan is not valid")]
    Check(Box<PlanCheck>),
    /// No plan is stored under this name.
    #[error("no plan is kept under `{0}`")]
    NotFound(String),
    /// Its state could not be read or stored.
    #[error("the plan cannot be kept: {0}")]
    Store(#[source] StoreError),
    /// The model could not be asked for a plan.
    #[error("the model wrote no plan: {0}")]
    Model(#[source] ModelError),
    /// The model's answer contains no plan, for this reason.
    #[error("the model wrote no plan: {0}")]
    Unreadable(String),
}

impl Error {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// Returns the outcome of the failed call, if the error is of a call.
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
