//! The calls of a turn: which run, their outcomes and decisions, and the loop guard over their results.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::ContentBlock;
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{CallResult, Cost, Message, NativeOutput, Usage};
use toolwright_core::model_repair::RepairRecord;
use toolwright_core::outcome::Outcome;
use toolwright_core::session::CallId;
use toolwright_runtime::executor::BUDGET_EXCEEDED;

use super::turn_call::{CallStatus, TurnCall};
use super::{Phase, RunState, TransitionError};
use crate::report::{ProducedFile, ReportedCall, Status};

/// Sources that a task keeps.
const MAX_SOURCES: usize = 200;

impl RunState {
    /// Calls that will run were checked; the checks used `usage`, and `repairs` are the arguments that a model
    /// repaired. The calls run with these, however often they are checked again. Returns whether the state changed
    /// and must be saved before anything runs.
    pub fn on_checked(&mut self, usage: Usage, repairs: Vec<(CallId, RepairRecord)>) -> bool {
        self.task.usage.add(usage);
        let mut changed = usage != Usage::default();
        let Phase::Calls { calls } = &mut self.phase else { return changed };
        for (id, record) in repairs {
            let known = calls.iter_mut().find(|call| call.id == id && call.is_open() && call.repair.is_none());
            if let Some(call) = known {
                call.repair = Some(Box::new(record));
                changed = true;
            }
        }
        changed
    }

    /// Adds the calls' own requests to models, apart from their checks, to the usage of the task.
    pub fn on_used(&mut self, usage: Usage, cost: Cost) {
        self.task.usage.add(usage);
        self.on_cost(cost);
    }

    /// What the usage of the task has of its jobs, by call.
    pub fn on_used_by_jobs(&mut self, of_jobs: &[(CallId, Usage)]) {
        self.of_jobs = of_jobs.to_vec();
    }

    /// What the usage has of jobs that were still counted, by call.
    #[must_use]
    pub fn used_by_jobs(&self) -> &[(CallId, Usage)] {
        &self.of_jobs
    }

    /// Adds what requests to models cost. Their usage is added with what they brought.
    pub fn on_cost(&mut self, cost: Cost) {
        self.task.cost.add(cost);
    }

    /// Tools of the model's provider ran for the answer that comes next, and made these files.
    pub fn on_native(&mut self, output: &NativeOutput, files: Vec<ProducedFile>) {
        self.task.calls.extend(output.uses.iter().map(ReportedCall::native));
        for citation in &output.citations {
            if self.task.sources.len() < MAX_SOURCES && !self.task.sources.contains(citation) {
                self.task.sources.push(citation.clone());
            }
        }
        self.task.files.extend(files);
    }

    /// Calls ended: any of those that run or wait for permission to; the rest stays as it is. A pending outcome
    /// leaves its call to a person.
    ///
    /// # Errors
    /// [`TransitionError`] unless each outcome belongs to such a call, and there is one.
    pub fn on_tools(&mut self, outcomes: Vec<Outcome>) -> Result<(), TransitionError> {
        let mut calls = self.expect_calls("on_tools")?.to_vec();
        if outcomes.is_empty() {
            return Err(self.illegal("on_tools"));
        }
        let window_full = outcomes.iter().any(|outcome| outcome.extras.contains_key(BUDGET_EXCEEDED));
        let mut positions = Vec::with_capacity(outcomes.len());
        for Outcome { call_id, .. } in &outcomes {
            let position = calls.iter().position(|call| call.id == *call_id && call.is_open());
            match position.filter(|position| !positions.contains(position)) {
                Some(position) => positions.push(position),
                None => return Err(TransitionError::NoSuchCall { transition: "on_tools", call: call_id.clone() }),
            }
        }
        for (position, outcome) in positions.into_iter().zip(outcomes) {
            calls[position].end(self.apply_agent_tool(outcome));
        }
        calls.iter_mut().for_each(TurnCall::unblock);
        self.phase = Phase::Calls { calls };
        if window_full {
            self.force_final("Your context window is full");
        }
        self.settle();
        Ok(())
    }

    /// A person decided about pending calls: approved ones can run, denied and skipped ones have
    /// their result, `Later` changes nothing.
    ///
    /// # Errors
    /// [`TransitionError`] unless each decision belongs to a call that waits for one.
    pub fn on_approvals(&mut self, decisions: Vec<(CallId, ApprovalDecision)>) -> Result<(), TransitionError> {
        let mut calls = self.expect_calls("on_approvals")?.to_vec();
        for (id, decision) in decisions {
            let Some(call) = calls.iter_mut().find(|call| call.id == id && call.approval_request().is_some()) else {
                return Err(TransitionError::NoSuchCall { transition: "on_approvals", call: id });
            };
            call.decide(decision);
        }
        calls.iter_mut().for_each(TurnCall::unblock);
        self.phase = Phase::Calls { calls };
        self.settle();
        Ok(())
    }

    /// Lets the pending calls run as they are, so that the approver is asked again.
    pub fn ask_again(&mut self) {
        if let Phase::Calls { calls } = &mut self.phase {
            calls.iter_mut().for_each(TurnCall::ask_again);
            calls.iter_mut().for_each(TurnCall::unblock);
        }
    }

    /// These calls could not run: they wait for others that wait for a person, or for permission.
    pub(crate) fn on_blocked(&mut self, which: impl Fn(&CallId) -> bool) {
        if let Phase::Calls { calls } = &mut self.phase {
            calls.iter_mut().filter(|call| which(&call.id)).for_each(TurnCall::block);
        }
    }

    /// Lets the held calls run. Returns whether there were any.
    pub fn dispatch(&mut self) -> bool {
        self.dispatch_only(|_| true)
    }

    /// The calls that can run now or already run.
    pub(crate) fn runnable(&self) -> impl Iterator<Item = &TurnCall> {
        self.current_calls().iter().filter(|call| call.is_runnable())
    }

    /// Whether calls run whose outcomes are unknown.
    pub(crate) fn has_started(&self) -> bool {
        self.current_calls().iter().any(TurnCall::is_started)
    }

    /// Whether this call runs.
    pub(crate) fn is_started(&self, id: &CallId) -> bool {
        self.current_calls().iter().any(|call| call.id == *id && call.is_started())
    }

    /// Leaves the started calls that `which` selects to run with their turn.
    pub(crate) fn requeue_started(&mut self, which: impl Fn(&CallId) -> bool) {
        if let Phase::Calls { calls } = &mut self.phase {
            let started = calls.iter_mut().filter(|call| call.is_started() && which(&call.id));
            started.for_each(|call| call.status = CallStatus::Ready);
        }
    }

    fn current_calls(&self) -> &[TurnCall] {
        match &self.phase {
            Phase::Calls { calls } => calls,
            Phase::Model { streamed, .. } => streamed,
            Phase::Done { .. } => &[],
        }
    }

    fn expect_calls(&self, transition: &'static str) -> Result<&[TurnCall], TransitionError> {
        match &self.phase {
            Phase::Calls { calls } => Ok(calls),
            _ => Err(self.illegal(transition)),
        }
    }

    /// Once every call of the turn is answered: on to the model, unless the loop guard stops the run.
    pub(super) fn settle(&mut self) {
        let Phase::Calls { calls } = &mut self.phase else { return };
        if !calls.iter().all(TurnCall::is_answered) {
            return;
        }
        let looping = self.task.repeats.note_turn(calls);
        let all_ok = calls.iter().all(|call| call.answer().is_some_and(|answer| answer.record.ok));
        self.commit();
        if self.finish_with_report() {
            return;
        }
        // An answer that was written before a call failed does not know of that.
        if let Some(text) = self.task.answered.take().filter(|_| all_ok) {
            return self.on_final_text(&text);
        }
        match looping {
            Some(call) => {
                let reason =
                    format!("the loop guard stopped it: {call} gave the same result to the same call {STOP_AT} times");
                self.finish(Status::Partial, Some(reason));
            }
            None => self.ask_model(),
        }
    }

    /// Puts the results of the turn's calls, all answered, into the conversation.
    pub(super) fn commit(&mut self) {
        let Phase::Calls { calls } = &mut self.phase else { return };
        let calls = std::mem::take(calls);
        self.load_called(&calls);
        let mut results = Vec::with_capacity(calls.len());
        for call in calls {
            if let CallStatus::Answered(mut answer) = call.status {
                self.context.note_stored(&answer.result.call_id, answer.handles);
                if answer.record.ok
                    && answer.record.tool.starts_with(READ)
                    && self.has_read(&answer.result, &answer.record.arguments)
                    && let Some(text) = answer.result.content.first_mut()
                {
                    *text = ContentBlock::text(UNCHANGED);
                }
                results.push(answer.result);
                self.task.calls.push(answer.record);
            }
        }
        results.iter_mut().for_each(|result| self.load_found(result));
        self.messages.push(Message::Tool { results });
    }

    /// Whether the conversation still holds this very text of a file as the result of the same call.
    fn has_read(&self, result: &CallResult, arguments: &Value) -> bool {
        let Some(ContentBlock::Text { text, .. }) = result.content.first() else { return false };
        if text.len() < WORTH_A_NOTE {
            return false;
        }
        let is_same = |earlier: &CallResult| {
            !earlier.is_error && earlier.name == result.name && earlier.content.first() == result.content.first()
        };
        let held = self.messages.iter().filter_map(|message| match message {
            Message::Tool { results } => Some(results.iter().filter(|earlier| is_same(earlier))),
            Message::User { .. } | Message::Assistant { .. } => None,
        });
        held.flatten().any(|earlier| {
            self.messages.iter().any(|message| match message {
                Message::Assistant { calls, .. } => calls.iter().any(|call| {
                    call.id == earlier.call_id
                        && serde_json::from_str::<Value>(&call.arguments).is_ok_and(|written| written == *arguments)
                }),
                Message::User { .. } | Message::Tool { .. } => false,
            })
        })
    }

    /// Calls that the task may still make.
    pub(super) fn calls_left(&self) -> usize {
        self.spec.limits.calls_left(self.task.calls.len())
    }
}

/// The tool whose repeated results are not shown twice, in any version.
const READ: &str = "fs:read@";
/// Bytes of a text below which a note would save nothing.
const WORTH_A_NOTE: usize = 400;
/// What stands in the place of a text that the conversation holds.
const UNCHANGED: &str = "[toolwright notice] Unchanged: what an earlier call with these arguments read is still in this \
                         conversation, and the file has the same text now.";

/// Repeats at which the model is warned.
const WARN_AT: u32 = 3;
/// Repeats at which the run is stopped.
const STOP_AT: u32 = 4;

/// The loop guard: how often each call came with the same result since there was anything new. A new call or a new result
/// is progress and resets the counts, so that tests can be run again after each edit, while two calls that alternate
/// without end are still found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Repeats(BTreeMap<ContentHash, u32>);

impl Repeats {
    /// Counts a turn whose calls are all answered, and adds the warning to repeated results. A call with its result
    /// counts once per turn: the model has not seen the other results yet. Returns the wire name of a call that stops
    /// the run.
    fn note_turn(&mut self, calls: &mut [TurnCall]) -> Option<String> {
        let pairs: Vec<ContentHash> = calls.iter().map(pair).collect();
        if pairs.iter().any(|pair| !self.0.contains_key(pair)) {
            self.0.values_mut().for_each(|count| *count = 0);
        }
        for pair in pairs.iter().collect::<BTreeSet<_>>() {
            *self.0.entry(*pair).or_default() += 1;
        }
        let mut looping = None;
        for (call, pair) in calls.iter_mut().zip(&pairs) {
            match self.0.get(pair).copied().unwrap_or_default() {
                WARN_AT => call.add_note(ContentBlock::text(format!(
                    "[toolwright notice] This call gave this very result {WARN_AT} times now. Once more and the run is stopped: do something else, or give your final answer."
                ))),
                count if count >= STOP_AT => looping = Some(call.wire_name.clone()),
                _ => {}
            }
        }
        looping
    }
}

fn pair(call: &TurnCall) -> ContentHash {
    let result = call.answer().map(|answer| (&answer.result.content, answer.result.is_error));
    ContentHash::of_value(&json!([call.wire_name, call.argument_value(), result]))
}
