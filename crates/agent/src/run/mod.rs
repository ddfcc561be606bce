//! The agent loop as a value, without I/O, clock or runtime. It returns the next step, takes its result, and can be
//! saved and loaded as JSON after any step.
//!
//! The history is legal for every model request: each call id is unique, and each call has exactly one result, in call
//! order.

mod answer;
mod call_outcomes;
mod client;
mod config;
mod context;
mod ending;
mod exposure;
mod plan;
#[cfg(test)]
mod tests;
mod turn_call;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolwright_core::agents::TimeLeft;
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest};
use toolwright_core::call::ToolCall;
use toolwright_core::cancel::CancelCause;
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::model::{Citation, Cost, Message, ModelRequest, Usage};
use toolwright_core::model_repair::RepairRecord;
use toolwright_core::plan::ExclusionReason;
use toolwright_core::policy::UserRequest;
use toolwright_core::session::CallId;
use toolwright_core::store::MessageKind;

use crate::report::{FinalReport, ProducedFile, ReportedCall, RunResult, Status, UnfinishedChild};
use call_outcomes::LoopGuard;
pub use client::ClientRunOptions;
pub use config::{ContextOptions, DEFAULT_PICK_SIZE, Dispatch, Limits, RunConfig};
use context::ContextState;
pub(crate) use context::{
    BinaryHandles, CompactionSources, Evicted, EvictionPlan, MAX_NOTE_FILES, MemoryTools, ResultPosition,
    StoredResults, StoredText, content_beyond, content_text, has_text,
};
pub use context::{CompactionCall, CompactionCounts, CompactionState};
use exposure::ExposureState;
pub(crate) use exposure::{instance_field, show_field};
pub use plan::{AfterPlan, RunPlan};
pub use turn_call::ResolvedTool;
pub(crate) use turn_call::TurnCall;

/// Version of the saved form. A state of another version is refused.
pub const FORMAT_VERSION: u32 = 1;
/// Prefix of notices by Toolwright to the model.
const NOTICE: &str = "[toolwright notice]";

/// The state of a run between two steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    version: u32,
    #[serde(rename = "spec")]
    config: RunConfig,
    messages: Vec<Message>,
    task: TaskState,
    phase: Phase,
    /// The usage of calls' jobs that has been counted, so that a job continued by another process counts once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    of_jobs: Vec<(CallId, Usage)>,
    /// The user's own messages, without notices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    user_texts: Vec<String>,
    /// How the model is shown the catalogue; chosen in the first turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exposure: Option<ExposureState>,
    /// The number of the last message of the session log that the conversation contains.
    #[serde(default)]
    last_notice: u64,
    /// When the model last saw the session's to-do list.
    #[serde(default)]
    todo: TodoSeen,
    /// How much of the model's window the conversation takes, and how room was made.
    #[serde(default)]
    context: ContextState,
    /// The plan that the run executes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plan: Option<Box<RunPlan>>,
}

/// The state of one task, which is the work on one message of the user.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct TaskState {
    /// The number of the last message of the session before the task, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
    turns: u32,
    elapsed: Duration,
    usage: Usage,
    #[serde(default)]
    cost: Cost,
    calls: Vec<ReportedCall>,
    /// Sources that answers cite.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sources: Vec<Citation>,
    /// Files that the provider's tools created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    files: Vec<ProducedFile>,
    repeats: LoopGuard,
    /// The client's messages that follow the results of the current calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    after_calls: Vec<Message>,
    /// The answer that the model wrote together with calls, which run first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answered: Option<String>,
    /// The model's last text.
    last_text: String,
    /// Whether a notice has told the model that its answer is empty or in the wrong form.
    corrected: bool,
    /// Whether a notice has told the model that a limit is near that ends the run without a last turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    warned: bool,
    /// The keys of the tree's limits that the model was warned of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    warned_of: Vec<String>,
    /// The time limit set by agents above, on the scale of `elapsed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bound: Option<TimeLeft>,
    /// The reason why the next turn is the last, regardless of the limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forced: Option<String>,
    /// The final report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    report: Option<FinalReport>,
    /// Whether a notice has told the model that agents were still running when it answered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    children_named: bool,
    /// The fates of agents that still ran at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    children: Vec<UnfinishedChild>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "waits_for", rename_all = "snake_case")]
enum Phase {
    /// The run waits for the model, which may not call tools in a last turn.
    Model {
        last: bool,
        /// The complete calls of an answer that is still streaming.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        streamed: Vec<TurnCall>,
    },
    /// The run waits for the calls of one turn, of which at least one is unanswered.
    Calls { calls: Vec<TurnCall> },
    /// The run waits for the user.
    Done {
        result: RunResult,
        /// The step that the run waited for when it was interrupted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        interrupted: Option<InterruptedPhase>,
    },
}

/// When the model last saw the to-do list of its session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TodoSeen {
    /// Not in this conversation.
    #[default]
    Never,
    /// This many answers ago.
    Ago(u32),
    /// The list has no open items, as far as the run knows.
    NothingToDo,
}

/// The step that a run waited for when it was cancelled or the model request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum InterruptedPhase {
    Model {
        last: bool,
    },
    /// Its calls, which are answered by now.
    Calls,
}

impl Phase {
    fn model(last: bool) -> Self {
        Self::Model { last, streamed: Vec::new() }
    }

    fn describe(&self) -> &'static str {
        match self {
            Self::Model { .. } => "waits for the model",
            Self::Calls { .. } => "waits for its calls",
            Self::Done { .. } => "is over",
        }
    }
}

impl RunState {
    /// Creates a run that begins with `messages`; the last one is the task. The user's messages among them count as the
    /// user's own words, see [`RunState::request`].
    #[must_use]
    pub fn new(config: RunConfig, messages: Vec<Message>) -> Self {
        let user_texts = messages.iter().filter_map(Self::user_text);
        let mut state = Self {
            version: FORMAT_VERSION,
            config,
            user_texts: user_texts.collect(),
            context: ContextState::new(&messages),
            messages,
            task: TaskState::default(),
            phase: Phase::model(false),
            of_jobs: Vec::new(),
            exposure: None,
            last_notice: 0,
            todo: TodoSeen::Never,
            plan: None,
        };
        state.ask_model();
        state
    }

    /// Creates a run without a task: messages of its session begin tasks. `introduction` comes first.
    #[must_use]
    pub fn resident(config: RunConfig, introduction: impl Into<String>) -> Self {
        let mut state = Self::new(config, vec![Message::user(introduction)]);
        let result = RunResult { status: Status::Success, answer: String::new(), reason: None };
        state.phase = Phase::Done { result, interrupted: None };
        state
    }

    /// Reads a saved state.
    ///
    /// # Errors
    /// [`LoadError`] for a different format version or a damaged state.
    pub fn from_json(saved: Value) -> Result<Self, LoadError> {
        let version = saved.get("version").and_then(Value::as_u64);
        if version != Some(u64::from(FORMAT_VERSION)) {
            return Err(LoadError::Version(version));
        }
        Ok(serde_json::from_value(saved)?)
    }

    /// Returns the saved form.
    ///
    /// # Errors
    /// Errors of the serializer, which cannot occur for a state that was loaded from JSON.
    pub fn to_json(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(self)
    }

    /// Returns the fixed configuration of the run.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Returns the conversation so far.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Returns the user's own words in this run, for conditions of policy rules.
    #[must_use]
    pub fn request(&self) -> UserRequest {
        UserRequest::new(self.user_texts.iter().map(String::as_str))
    }

    /// Returns the number of model answers since the user's last message.
    #[must_use]
    pub fn turns(&self) -> u32 {
        self.task.turns
    }

    /// Returns the usage of the task so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.task.usage
    }

    /// Returns the rest of the time limit, if there is one.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.time_limit().map(|limit| limit.saturating_sub(self.task.elapsed))
    }

    /// Returns the time that the task may take: its own limit, or less if an agent above has less.
    fn time_limit(&self) -> Option<Duration> {
        let bound = self.task.bound.as_ref().map(|bound| bound.left);
        self.config.limits.time.into_iter().chain(bound).min()
    }

    /// Limits the task to the time left of an agent above; `None` removes that limit.
    pub fn limit_time(&mut self, above: Option<&TimeLeft>) {
        let elapsed = self.task.elapsed;
        self.task.bound = above.map(|above| TimeLeft { of: above.of.clone(), left: elapsed + above.left });
    }

    /// Returns the next step. Does not change the state.
    #[must_use]
    pub fn step(&self) -> Step {
        match &self.phase {
            Phase::Model { .. } if self.context.is_compacting() => Step::Compact(self.compaction_calls()),
            Phase::Model { last, .. } => Step::CallModel(ModelRequest {
                system: self.system(),
                messages: self.messages.clone(),
                tool_choice: self.tool_choice(*last),
                parallel_calls: self.config.client.parallel_calls,
                output: self.config.client.output.clone(),
                max_tokens: self.config.max_tokens,
                temperature: self.config.temperature,
                settings: self.config.settings.clone(),
                reuse: self.reuse(*last),
                ..ModelRequest::default()
            }),
            Phase::Calls { calls } => {
                let (batch, held) = (turn_call::batch(calls), turn_call::held(calls));
                if !batch.calls.is_empty() || !batch.started.is_empty() {
                    Step::CallTools(batch)
                } else if !held.is_empty() {
                    Step::AwaitDispatch(held)
                } else {
                    Step::AwaitApproval(turn_call::approval_requests(calls))
                }
            }
            Phase::Done { result, .. } => Step::Done(result.clone()),
        }
    }

    /// Adds elapsed time. Beyond the limit the run ends as partial, and its open calls are answered as cancelled.
    pub fn on_elapsed(&mut self, passed: Duration) {
        self.task.elapsed += passed;
        if self.time_left() == Some(Duration::ZERO) {
            self.cancel(CancelCause::RunLimit);
        }
    }

    /// Returns whether the model is asked next.
    #[must_use]
    pub fn waits_for_model(&self) -> bool {
        matches!(self.phase, Phase::Model { .. })
    }

    /// Returns whether the run has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done { .. })
    }

    /// Adds the user's next message. The conversation continues; counters and limits start again.
    ///
    /// # Errors
    /// [`TransitionError`] unless the run is over.
    pub fn continue_with(&mut self, content: Vec<ContentBlock>) -> Result<(), TransitionError> {
        if !self.is_over() {
            return Err(self.illegal("continue_with"));
        }
        self.user_texts.push(joined_text(&content));
        self.context.begin_task(self.messages.len());
        self.messages.push(Message::User { content });
        self.task = TaskState::default();
        self.ask_model();
        Ok(())
    }

    fn user_text(message: &Message) -> Option<String> {
        match message {
            Message::User { content } => Some(joined_text(content)),
            Message::Assistant { .. } | Message::Tool { .. } => None,
        }
    }

    fn illegal(&self, transition: &'static str) -> TransitionError {
        TransitionError::Illegal { transition, phase: self.phase.describe() }
    }

    fn ask_model(&mut self) {
        if self.ends_with_plan() {
            return self.finish_plan();
        }
        self.plan = None;
        let limits = &self.config.limits;
        if let Some(reason) = limits.exhausted(self.task.turns, &self.task.usage) {
            self.finish(Status::Partial, Some(reason));
            return;
        }
        let forced = self.task.forced.as_deref().map(config::last_turn);
        let notice = forced.or_else(|| limits.notice(self.task.turns, self.task.calls.len()));
        let near = limits
            .near(self.time_limit(), self.task.elapsed, &self.task.usage)
            .filter(|_| notice.is_none() && !self.task.warned);
        self.task.warned |= near.is_some();
        let notice = notice.or(near);
        self.phase = Phase::model(notice.as_ref().is_some_and(|notice| notice.last));
        if let Some(notice) = notice {
            self.push_notice(notice.text, None);
        }
    }
}

/// A message of the session log, in the form for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionNotice {
    /// Its number.
    pub seq: u64,
    /// The subject.
    pub kind: MessageKind,
    /// The text for the model.
    pub text: String,
    /// The author, such as `job build_1` or `channel news`.
    pub source: String,
}

/// The next step of a run.
#[derive(Debug, Clone)]
pub enum Step {
    /// Ask the model, then call [`RunState::on_model`] or [`RunState::on_model_error`]; while it streams,
    /// [`RunState::on_call`] for each complete call. The driver adds the tools.
    CallModel(ModelRequest),
    /// Run these calls, then call [`RunState::on_tools`].
    CallTools(ToolBatch),
    /// Make these calls to compact the conversation, then call [`RunState::on_compacted`]. The model has not requested
    /// them and does not see them.
    Compact(Vec<ToolCall>),
    /// Ask a person, then call [`RunState::on_approvals`].
    AwaitApproval(Vec<ApprovalRequest>),
    /// Show these calls, then call [`RunState::dispatch`] or [`RunState::on_tools`].
    AwaitDispatch(Vec<ToolCall>),
    /// Wait for [`RunState::continue_with`].
    Done(RunResult),
}

/// Calls to run.
#[derive(Debug, Clone, Default)]
pub struct ToolBatch {
    /// The calls as the model wrote them, under their unique ids.
    pub calls: Vec<ToolCall>,
    /// A person's approvals of some of them.
    pub grants: Vec<Grant>,
    /// Repairs by a model from an earlier check. The calls run with them, and no model is asked again.
    pub repairs: Vec<(CallId, RepairRecord)>,
    /// Calls of the same turn that already run, whose outcomes are awaited too.
    pub started: Vec<CallId>,
    /// Calls of the same turn that do not run now, and whose values other calls may need.
    pub excluded: Vec<ExcludedCall>,
}

/// A call of a turn that does not run now.
#[derive(Debug, Clone, PartialEq)]
pub struct ExcludedCall {
    /// How many of the calls to run precede it.
    pub after: usize,
    /// The call as the model wrote it.
    pub call: ToolCall,
    /// The reason why it does not run.
    pub end: ExclusionReason,
}

impl ToolBatch {
    /// Returns all calls in the order of the answer, and those of them that do not run.
    #[must_use]
    pub fn in_order(self) -> (Vec<ToolCall>, Vec<(CallId, ExclusionReason)>) {
        let ends = self.excluded.iter().map(|one| (one.call.id.clone(), one.end.clone())).collect();
        let mut calls = self.calls;
        for one in self.excluded.into_iter().rev() {
            calls.insert(one.after.min(calls.len()), one.call);
        }
        (calls, ends)
    }
}

/// A person's approval of one call. It applies only to the question that was asked: the same definition and arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// The question.
    pub request: ApprovalRequest,
    /// `Approve` or `Always`.
    pub decision: ApprovalDecision,
}

/// A transition that the state does not allow. The state is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    /// The run waits for something else.
    #[error("`{transition}` is not allowed now: the run {phase}")]
    Illegal {
        /// The transition.
        transition: &'static str,
        /// The step that the run waits for.
        phase: &'static str,
    },
    /// No such call waits for it.
    #[error("`{transition}`: no call `{call}` is waiting for it")]
    NoSuchCall {
        /// The transition.
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
