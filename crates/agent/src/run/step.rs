//! Inputs and outputs of the state machine besides messages.

use serde::{Deserialize, Serialize};
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest};
use toolwright_core::call::ToolCall;
use toolwright_core::model::{ModelRequest, ModelSettings};
use toolwright_core::repair::RepairRecord;
use toolwright_core::select::Exposure;
use toolwright_core::session::CallId;

use super::{ContextOptions, FORMAT_VERSION, Limits};
use crate::report::RunResult;
use crate::tools::AgentTools;

/// What does not change during a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// The model, `provider/model`.
    pub model: String,
    /// System prompt; see [`crate::prompt::system_prompt`].
    pub system: String,
    /// Limit of one answer in tokens.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// How else it answers.
    #[serde(default, skip_serializing_if = "ModelSettings::is_empty")]
    pub settings: ModelSettings,
    /// Limits of each task.
    #[serde(default)]
    pub limits: Limits,
    /// When the model's calls start.
    #[serde(default)]
    pub dispatch: Dispatch,
    /// Globs on tool ids (with or without version) and wire names; empty for all tools. To this run
    /// there are no others, however often it is resumed.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Tokens that the model takes in, where it is known: room is made before the conversation would not fit. Where it
    /// is not, when the API says that.
    #[serde(default)]
    pub window: Option<usize>,
    /// How the catalogue is put before the model; `None` to choose by what its tools cost and what the model's
    /// API can do.
    #[serde(default)]
    pub exposure: Option<Exposure>,
    /// Tools that every exposure shows: globs as in `tools`.
    #[serde(default)]
    pub pinned: Vec<String>,
    /// Tools that the exposure `pick` takes for a task at most, besides those that are pinned, found or called. Fewer
    /// where their definitions are large: they may have a fiftieth of the catalogue's tokens.
    #[serde(default = "default_pick_size")]
    pub pick_size: usize,
    /// Which tools of the agent itself are shown.
    #[serde(default)]
    pub agent_tools: AgentTools,
    /// How room is made where the conversation comes near the window.
    #[serde(default)]
    pub context: ContextOptions,
}

/// Tools that are picked for a task unless configured otherwise.
pub const DEFAULT_PICK_SIZE: usize = 8;

fn default_pick_size() -> usize {
    DEFAULT_PICK_SIZE
}

/// When the calls of a model's answer start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dispatch {
    /// When they are let: the run stops with them as values, and goes on after [`super::RunState::dispatch`],
    /// or with outcomes from elsewhere by [`super::RunState::on_tools`].
    Manual,
    /// When the answer is over.
    #[default]
    TurnEnd,
    /// As soon as a call's own block closes, if it may start by itself: it is valid as it was written, needs
    /// no approval, has a schema and no references, and is within the limits. All others when the answer is
    /// over. If the answer breaks off, what was started ends and its results are kept.
    Streaming,
}

/// What to do next.
#[derive(Debug, Clone)]
pub enum Step {
    /// Ask the model, then tell [`super::RunState::on_model`] or [`super::RunState::on_model_error`]; on the
    /// way, [`super::RunState::on_call`] of each call that is whole. The driver adds the tools.
    CallModel(ModelRequest),
    /// Run these calls, then tell [`super::RunState::on_tools`].
    CallTools(ToolBatch),
    /// Make these calls on behalf of the context guard, then tell [`super::RunState::on_compacted`]. The model has not
    /// asked for them and does not see them.
    Compact(Vec<ToolCall>),
    /// Ask a person, then tell [`super::RunState::on_approvals`].
    AwaitApproval(Vec<ApprovalRequest>),
    /// Show these calls, then tell [`super::RunState::dispatch`] or [`super::RunState::on_tools`].
    AwaitDispatch(Vec<ToolCall>),
    /// Nothing, until [`super::RunState::continue_with`].
    Done(RunResult),
}

/// Calls to run.
#[derive(Debug, Clone, Default)]
pub struct ToolBatch {
    /// The calls as the model wrote them, under their unique ids.
    pub calls: Vec<ToolCall>,
    /// What a person has decided about some of them.
    pub grants: Vec<Grant>,
    /// What a model made of some of them when they were checked before: they run with that, and no model is
    /// asked again.
    pub mended: Vec<(CallId, RepairRecord)>,
    /// Calls of the same turn that were started before: their outcomes are awaited too.
    pub started: Vec<CallId>,
}

/// A person's leave to run one call. It holds for the very question that was asked: same definition,
/// same arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// The question.
    pub request: ApprovalRequest,
    /// `Approve` or `Always`.
    pub decision: ApprovalDecision,
}

/// A transition that the state does not allow. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    /// The state waits for something else.
    #[error("`{transition}` is not allowed now: the run {phase}")]
    Illegal {
        /// What was tried.
        transition: &'static str,
        /// What the run waits for.
        phase: &'static str,
    },
    /// No such call waits for that.
    #[error("`{transition}`: no call `{call}` is waiting for it")]
    NoSuchCall {
        /// What was tried.
        transition: &'static str,
        /// The call.
        call: CallId,
    },
}

/// A saved state that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Another version wrote it.
    #[error(
        "the saved run has format version {0:?}, this program reads version {FORMAT_VERSION}: resume it with the program that began it"
    )]
    Version(Option<u64>),
    /// It is damaged.
    #[error("the saved run cannot be read: {0}")]
    Damaged(#[from] serde_json::Error),
}
