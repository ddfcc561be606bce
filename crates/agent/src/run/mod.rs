//! The agent loop as a value: no I/O, no clock, no runtime. It says what to do next, is told what came
//! of it, and can be saved and reloaded as JSON between any two steps.
//!
//! Its history is legal at every moment that a model is asked: each call id is unique, and each call
//! has exactly one result, in call order, whatever happened to it.

mod answer;
mod context;
mod dispatch;
mod ending;
mod exposure;
mod jobs;
mod limits;
mod progress;
mod repeats;
mod step;
#[cfg(test)]
mod tests;
mod turn;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::cancel::CancelCause;
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::error::ToolError;
use toolwright_core::model::{Message, ModelError, ModelRequest, Usage};
use toolwright_core::outcome::Outcome;
use toolwright_core::policy::UserRequest;
use toolwright_core::repair::RepairRecord;
use toolwright_core::session::CallId;
use toolwright_runtime::executor::BUDGET_EXCEEDED;

use crate::report::{CallRecord, RunResult, Status};
use crate::tools::FinalReport;
use context::Guard;
pub use context::{Compacted, CompactionCall, Compactions, ContextOptions};
pub(crate) use context::{
    CompactionSources, Evicted, Files, MAX_FILES, MemoryTools, Original, Originals, Plan, Repeat, ResultPosition,
    besides, content_text, has_text,
};
use exposure::ExposureState;
pub use limits::Limits;
use repeats::Repeats;
pub use step::{DEFAULT_PICK_SIZE, Dispatch, Grant, LoadError, RunSpec, Step, ToolBatch, TransitionError};
use turn::CallStatus;
pub use turn::Resolved;
pub(crate) use turn::TurnCall;

/// Version of the saved form. A state of another version is refused, never guessed at.
pub const FORMAT_VERSION: u32 = 1;

/// One run, at rest between two steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    version: u32,
    spec: RunSpec,
    messages: Vec<Message>,
    task: Task,
    phase: Phase,
    /// What the user wrote, and nobody else: notices and results are in `messages` too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    said: Vec<String>,
    /// How the catalogue is put before the model; settled in the first turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exposure_state: Option<ExposureState>,
    /// Jobs that the conversation tells the end of, until the store has noted that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reported_jobs: Vec<String>,
    /// What the conversation takes of the model's window, and what was done about it.
    #[serde(default)]
    guard: Guard,
}

/// What is counted for each task, that is for each message of the user.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Task {
    turns: u32,
    elapsed: Duration,
    usage: Usage,
    calls: Vec<CallRecord>,
    repeats: Repeats,
    /// The model's last text.
    said: String,
    /// The model was told that there was nothing in its answer.
    corrected: bool,
    /// The model was told that a limit is near that ends the run without a last turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    warned: bool,
    /// Why its next turn is the last, whatever the limits say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forced: Option<String>,
    /// What it ends with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    report: Option<FinalReport>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "waits_for", rename_all = "snake_case")]
enum Phase {
    /// The model; in a last turn it may not call tools.
    Model {
        last: bool,
        /// The calls of its answer that are whole, while it is not.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        streamed: Vec<TurnCall>,
    },
    /// The calls of one turn, at least one of them unanswered.
    Calls { calls: Vec<TurnCall> },
    /// The user.
    Done {
        result: RunResult,
        /// What an interrupted run waited for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        interrupted: Option<Interrupted>,
    },
}

/// What a run waited for when it was cancelled, or when the model could not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Interrupted {
    Model {
        last: bool,
    },
    /// They are answered by now.
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
    /// A run that begins with `messages`; the last one is the task. Those of the user count as the user's own
    /// words, see [`RunState::request`].
    #[must_use]
    pub fn new(spec: RunSpec, messages: Vec<Message>) -> Self {
        let said = messages.iter().filter_map(|message| match message {
            Message::User { content } => Some(joined_text(content)),
            Message::Assistant { .. } | Message::Tool { .. } => None,
        });
        let said = said.collect();
        let (version, task, phase) = (FORMAT_VERSION, Task::default(), Phase::model(false));
        let guard = Guard::new(&messages);
        let mut state =
            Self { version, spec, messages, task, phase, said, exposure_state: None, reported_jobs: Vec::new(), guard };
        state.ask_model();
        state
    }

    /// Reads a saved state.
    ///
    /// # Errors
    /// [`LoadError`] for another format version or a damaged state.
    pub fn from_json(saved: Value) -> Result<Self, LoadError> {
        let version = saved.get("version").and_then(Value::as_u64);
        if version != Some(u64::from(FORMAT_VERSION)) {
            return Err(LoadError::Version(version));
        }
        let mut state: Self = serde_json::from_value(saved)?;
        state.guard.note_ours(&state.messages);
        Ok(state)
    }

    /// The saved form.
    ///
    /// # Errors
    /// Those of the serializer; a state that came from JSON has none.
    pub fn to_json(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(self)
    }

    /// What does not change during the run.
    #[must_use]
    pub fn spec(&self) -> &RunSpec {
        &self.spec
    }

    /// The conversation so far.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The user's own words in this run, for conditions of policy rules.
    #[must_use]
    pub fn request(&self) -> UserRequest {
        UserRequest::new(self.said.iter().map(String::as_str))
    }

    /// Model answers since the user's last message.
    #[must_use]
    pub fn turns(&self) -> u32 {
        self.task.turns
    }

    /// What is left of the time limit, if there is one.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.spec.limits.time.map(|limit| limit.saturating_sub(self.task.elapsed))
    }

    /// What to do next. Asked twice, it says the same.
    #[must_use]
    pub fn step(&self) -> Step {
        match &self.phase {
            Phase::Model { .. } if self.guard.is_compacting() => Step::Compact(self.compaction_calls()),
            Phase::Model { last, .. } => Step::CallModel(ModelRequest {
                system: self.system(),
                messages: self.messages.clone(),
                tool_choice: self.tool_choice(*last),
                max_tokens: self.spec.max_tokens,
                temperature: self.spec.temperature,
                settings: self.spec.settings.clone(),
                reuse: self.reuse(*last),
                ..ModelRequest::default()
            }),
            Phase::Calls { calls } => {
                let (batch, held) = (turn::batch(calls), turn::held(calls));
                if !batch.calls.is_empty() || !batch.started.is_empty() {
                    Step::CallTools(batch)
                } else if !held.is_empty() {
                    Step::AwaitDispatch(held)
                } else {
                    Step::AwaitApproval(turn::questions(calls))
                }
            }
            Phase::Done { result, .. } => Step::Done(result.clone()),
        }
    }

    /// The model did not answer, and trying again at once is no use: the run fails, and can be reopened. But
    /// where calls of a broken answer were started, the answer is kept with these alone: they end, and the
    /// model goes on from their results, so that nothing is called twice.
    ///
    /// # Errors
    /// [`TransitionError`] unless the run waits for the model.
    pub fn on_model_error(&mut self, error: &ModelError) -> Result<(), TransitionError> {
        self.expect_model("on_model_error")?;
        if !self.keep_started(error.partial.as_deref()) {
            self.task.usage.add(error.usage);
            self.interrupt(Status::Failure, format!("the model request failed: {error}"));
        }
        Ok(())
    }

    /// Calls that are to run were checked, which took `usage`: `mended` are those that a model has mended. They
    /// run with that, however often they are checked again. Returns whether the state is another now, and so
    /// to be saved before anything runs.
    pub fn on_checked(&mut self, usage: Usage, mended: Vec<(CallId, RepairRecord)>) -> bool {
        self.task.usage.add(usage);
        let mut changed = usage != Usage::default();
        let Phase::Calls { calls } = &mut self.phase else { return changed };
        for (id, record) in mended {
            let known = calls.iter_mut().find(|call| call.id == id && call.is_open() && call.mended.is_none());
            if let Some(call) = known {
                call.mended = Some(Box::new(record));
                changed = true;
            }
        }
        changed
    }

    /// Calls used this of models, besides what their checks took: it counts against the limit of the task.
    pub fn on_used(&mut self, usage: Usage) {
        self.task.usage.add(usage);
    }

    /// Calls ended. Any part of those that were to run, or that wait for leave to, may be told at a time; the
    /// rest stays as it is. An outcome that is pending leaves its call to a person.
    ///
    /// # Errors
    /// [`TransitionError`] unless each outcome belongs to such a call, and there is one.
    pub fn on_tools(&mut self, outcomes: Vec<Outcome>) -> Result<(), TransitionError> {
        let mut calls = self.expect_calls("on_tools")?.to_vec();
        if outcomes.is_empty() {
            return Err(TransitionError::Illegal { transition: "on_tools", phase: self.phase.describe() });
        }
        let window_full = outcomes.iter().any(|outcome| outcome.extras.contains_key(BUDGET_EXCEEDED));
        let mut places = Vec::with_capacity(outcomes.len());
        for Outcome { call_id, .. } in &outcomes {
            let place = calls.iter().position(|call| call.id == *call_id && call.is_open());
            match place.filter(|place| !places.contains(place)) {
                Some(place) => places.push(place),
                None => return Err(TransitionError::NoSuchCall { transition: "on_tools", call: call_id.clone() }),
            }
        }
        for (place, outcome) in places.into_iter().zip(outcomes) {
            calls[place].ended(self.heed(outcome));
        }
        self.phase = Phase::Calls { calls };
        if window_full {
            self.force_final("Your context window is full");
        }
        self.settle();
        Ok(())
    }

    /// A person decided about pending calls: granted ones are to run, denied and skipped ones have
    /// their result, `Later` changes nothing.
    ///
    /// # Errors
    /// [`TransitionError`] unless each decision belongs to a call that waits for one.
    pub fn on_approvals(&mut self, decisions: Vec<(CallId, ApprovalDecision)>) -> Result<(), TransitionError> {
        let mut calls = self.expect_calls("on_approvals")?.to_vec();
        for (id, decision) in decisions {
            let Some(call) = calls.iter_mut().find(|call| call.id == id && call.question().is_some()) else {
                return Err(TransitionError::NoSuchCall { transition: "on_approvals", call: id });
            };
            call.decided(decision);
        }
        self.phase = Phase::Calls { calls };
        self.settle();
        Ok(())
    }

    /// Leaves the pending calls to run as they are, so that whoever is asked then decides.
    pub fn ask_again(&mut self) {
        if let Phase::Calls { calls } = &mut self.phase {
            calls.iter_mut().for_each(TurnCall::ask_again);
        }
    }

    /// Time passed. Past the limit the run ends as partial, its open calls answered as cancelled.
    pub fn on_elapsed(&mut self, passed: Duration) {
        self.task.elapsed += passed;
        if self.time_left() == Some(Duration::ZERO) {
            self.cancel(CancelCause::RunLimit);
        }
    }

    /// Ends the run now, its open calls answered as cancelled. It can be reopened, unless a limit ended it.
    /// A run that is over stays as it is.
    pub fn cancel(&mut self, cause: CancelCause) {
        if self.is_over() {
            return;
        }
        self.keep_started(None);
        if let Phase::Calls { calls } = &mut self.phase {
            for call in calls.iter_mut().filter(|call| !call.is_answered()) {
                call.ended(Outcome::failed(call.id.clone(), ToolError::canceled(cause)));
            }
        }
        if cause == CancelCause::RunLimit {
            self.stop(Status::Partial, self.spec.limits.why_time());
        } else {
            self.interrupt(Status::Cancelled, format!("cancelled {}", cause.describe()));
        }
    }

    /// Takes up a run that was cancelled, or that failed because the model could not be asked: it waits
    /// for the model as if it had not ended, and what its task used up stays counted. Any other run
    /// stays as it is. Returns whether it was taken up.
    pub fn reopen(&mut self) -> bool {
        let Phase::Done { interrupted: Some(waited), .. } = self.phase else { return false };
        match waited {
            // What there is to say before this turn has been said.
            Interrupted::Model { last } => self.phase = Phase::model(last),
            Interrupted::Calls => self.ask_model(),
        }
        true
    }

    /// Whether the model is to be asked.
    #[must_use]
    pub fn waits_for_model(&self) -> bool {
        matches!(self.phase, Phase::Model { .. })
    }

    /// Whether the run has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done { .. })
    }

    /// The user's next message: the conversation goes on, counters and limits begin anew.
    ///
    /// # Errors
    /// [`TransitionError`] unless the run is over.
    pub fn continue_with(&mut self, content: Vec<ContentBlock>) -> Result<(), TransitionError> {
        if !self.is_over() {
            return Err(TransitionError::Illegal { transition: "continue_with", phase: self.phase.describe() });
        }
        self.said.push(joined_text(&content));
        self.guard.begin_task(self.messages.len());
        self.messages.push(Message::User { content });
        self.task = Task::default();
        self.ask_model();
        Ok(())
    }

    /// The calls that are to run now, or run.
    pub(crate) fn to_run(&self) -> impl Iterator<Item = &TurnCall> {
        self.open_calls().iter().filter(|call| call.is_to_run())
    }

    fn expect_model(&self, transition: &'static str) -> Result<bool, TransitionError> {
        match self.phase {
            Phase::Model { last, .. } => Ok(last),
            _ => Err(TransitionError::Illegal { transition, phase: self.phase.describe() }),
        }
    }

    fn take_model(&mut self, transition: &'static str) -> Result<(bool, Vec<TurnCall>), TransitionError> {
        match &mut self.phase {
            Phase::Model { last, streamed } => Ok((*last, std::mem::take(streamed))),
            _ => Err(TransitionError::Illegal { transition, phase: self.phase.describe() }),
        }
    }

    fn expect_calls(&self, transition: &'static str) -> Result<&[TurnCall], TransitionError> {
        match &self.phase {
            Phase::Calls { calls } => Ok(calls),
            _ => Err(TransitionError::Illegal { transition, phase: self.phase.describe() }),
        }
    }

    /// Once every call of the turn is answered: on to the model, unless the loop guard stops the run.
    fn settle(&mut self) {
        let Phase::Calls { calls } = &mut self.phase else { return };
        if !calls.iter().all(TurnCall::is_answered) {
            return;
        }
        let looping = self.task.repeats.note_turn(calls);
        self.commit();
        if self.deliver() {
            return;
        }
        match looping {
            Some(call) => {
                let reason = format!(
                    "the loop guard stopped it: {call} gave the same result to the same call {} times",
                    repeats::STOP_AT
                );
                self.finish(Status::Partial, Some(reason));
            }
            None => self.ask_model(),
        }
    }

    /// Puts the results of the turn's calls, all answered, into the conversation.
    fn commit(&mut self) {
        let Phase::Calls { calls } = &mut self.phase else { return };
        let calls = std::mem::take(calls);
        self.load_called(&calls);
        let mut results = Vec::with_capacity(calls.len());
        for call in calls {
            if let CallStatus::Answered(answer) = call.status {
                self.guard.note_stored(&answer.result.call_id, answer.handles);
                results.push(answer.result);
                self.task.calls.push(answer.record);
            }
        }
        results.iter_mut().for_each(|result| self.take_found(result));
        self.messages.push(Message::Tool { results });
    }

    /// Commits what is open and ends the run.
    fn stop(&mut self, status: Status, reason: String) {
        self.commit();
        self.finish(status, Some(reason));
    }

    /// Commits what is open and ends the run so that it can be reopened.
    fn interrupt(&mut self, status: Status, reason: String) {
        let waited = match self.phase {
            Phase::Model { last, .. } => Interrupted::Model { last },
            _ => Interrupted::Calls,
        };
        self.commit();
        self.guard.abandon();
        self.phase = Phase::Done { result: self.result(status, Some(reason)), interrupted: Some(waited) };
    }

    fn ask_model(&mut self) {
        let limits = &self.spec.limits;
        if let Some(reason) = limits.exhausted(self.task.turns, &self.task.usage) {
            self.finish(Status::Partial, Some(reason));
            return;
        }
        let calls = u32::try_from(self.task.calls.len()).unwrap_or(u32::MAX);
        let notice =
            self.task.forced.as_deref().map(limits::last_turn).or_else(|| limits.notice(self.task.turns, calls));
        let near = limits.near(self.task.elapsed, &self.task.usage).filter(|_| notice.is_none() && !self.task.warned);
        self.task.warned |= near.is_some();
        let notice = notice.or(near);
        self.phase = Phase::model(notice.as_ref().is_some_and(|notice| notice.last));
        if let Some(notice) = notice {
            self.tell(notice.text, None);
        }
    }

    fn finish(&mut self, status: Status, reason: Option<String>) {
        self.guard.abandon();
        let (status, reason) = match self.nothing_worked() {
            Some(why) if status == Status::Success => (Status::Partial, Some(why)),
            _ => (status, reason),
        };
        self.phase = Phase::Done { result: self.result(status, reason), interrupted: None };
    }
}
