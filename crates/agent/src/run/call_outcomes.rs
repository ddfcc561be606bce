//! The calls of a turn: which run, their outcomes and approvals, and the loop guard over their results.

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

/// The most sources that a task keeps.
const MAX_SOURCES: usize = 200;

impl RunState {
    /// Records the check of calls that will run: `usage` of the checks, and `repairs` of arguments by a model. The
    /// calls run with these even if they are checked again. Returns whether the state changed and must be saved before
    /// anything runs.
    pub fn on_checked(&mut self, usage: Usage, repairs: Vec<(CallId, RepairRecord)>) -> bool {
        self.task.usage.add(usage);
        let mut changed = usage != Usage::default();
        let Phase::Calls { calls } = &mut self.phase else { return changed };
        for (id, record) in repairs {
            let repaired_call = calls.iter_mut().find(|call| call.id == id && call.is_open() && call.repair.is_none());
            if let Some(call) = repaired_call {
                call.repair = Some(Box::new(record));
                changed = true;
            }
        }
        changed
    }

    /// Adds the calls' requests to models, except those of their checks, to the usage of the task.
    pub fn on_used(&mut self, usage: Usage, cost: Cost) {
        self.task.usage.add(usage);
        self.on_cost(cost);
    }

    /// Sets how much of each call's job the usage of the task includes.
    pub fn on_used_by_jobs(&mut self, of_jobs: &[(CallId, Usage)]) {
        self.of_jobs = of_jobs.to_vec();
    }

    /// Returns how much of each call's job the usage includes, for jobs that are still counted.
    #[must_use]
    pub fn used_by_jobs(&self) -> &[(CallId, Usage)] {
        &self.of_jobs
    }

    /// Adds the cost of requests to models, whose usage is added with their results.
    pub fn on_cost(&mut self, cost: Cost) {
        self.task.cost.add(cost);
    }

    /// Adds what tools of the model's provider did for the next answer, and the `files` that they created.
    pub fn on_native(&mut self, output: &NativeOutput, files: Vec<ProducedFile>) {
        self.task.calls.extend(output.uses.iter().map(ReportedCall::native));
        for citation in &output.citations {
            if self.task.sources.len() < MAX_SOURCES && !self.task.sources.contains(citation) {
                self.task.sources.push(citation.clone());
            }
        }
        self.task.files.extend(files);
    }

    /// Takes outcomes of calls that run or are held; others stay unchanged. A pending outcome leaves its call for a
    /// person.
    ///
    /// # Errors
    /// [`TransitionError`] unless each outcome belongs to such a call, and there is at least one.
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
        self.finish_turn();
        Ok(())
    }

    /// Takes a person's decisions about pending calls: approved ones can run, denied and skipped ones have their
    /// result, `SlowTool` changes nothing.
    ///
    /// # Errors
    /// [`TransitionError`] unless each decision belongs to a pending call.
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
        self.finish_turn();
        Ok(())
    }

    /// Lets the pending calls run without a decision, so that the approver is asked again.
    pub fn ask_again(&mut self) {
        if let Phase::Calls { calls } = &mut self.phase {
            calls.iter_mut().for_each(TurnCall::ask_again);
            calls.iter_mut().for_each(TurnCall::unblock);
        }
    }

    /// Marks calls as blocked: they depend on calls that wait for a person or for permission.
    pub(crate) fn on_blocked(&mut self, which: impl Fn(&CallId) -> bool) {
        if let Phase::Calls { calls } = &mut self.phase {
            calls.iter_mut().filter(|call| which(&call.id)).for_each(TurnCall::block);
        }
    }

    /// Lets the held calls run. Returns whether there were any.
    pub fn dispatch(&mut self) -> bool {
        self.dispatch_only(|_| true)
    }

    /// Returns the calls that can run now or already run.
    pub(crate) fn runnable(&self) -> impl Iterator<Item = &TurnCall> {
        self.current_calls().iter().filter(|call| call.is_runnable())
    }

    /// Returns whether started calls have no outcome yet.
    pub(crate) fn has_started(&self) -> bool {
        self.current_calls().iter().any(TurnCall::is_started)
    }

    /// Returns whether this call runs.
    pub(crate) fn is_started(&self, id: &CallId) -> bool {
        self.current_calls().iter().any(|call| call.id == *id && call.is_started())
    }

    /// Resets the started calls that `which` selects, so that they run with their turn.
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

    /// Once every call of the turn is answered, continues with the model, unless the loop guard stops the run.
    pub(super) fn finish_turn(&mut self) {
        let Phase::Calls { calls } = &mut self.phase else { return };
        if !calls.iter().all(TurnCall::is_answered) {
            return;
        }
        let looping = self.task.repeats.note_turn(calls);
        let all_ok = calls.iter().all(|call| call.answer().is_some_and(|answer| answer.record.ok));
        // An answer that was written before the client's messages, or before a call failed, does not take them into account.
        let is_answer = all_ok && self.task.after_calls.is_empty();
        self.commit();
        if self.finish_with_report() {
            return;
        }
        if let Some(text) = self.task.answered.take().filter(|_| is_answer) {
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

    /// Adds the results of the turn's calls, all answered, to the conversation, and the client's messages after them.
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
        self.messages.append(&mut self.task.after_calls);
    }

    /// Returns whether the conversation still contains this exact text of a file as the result of the same call.
    fn has_read(&self, result: &CallResult, arguments: &Value) -> bool {
        let Some(ContentBlock::Text { text, .. }) = result.content.first() else { return false };
        if text.len() < MIN_NOTED_BYTES {
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

    /// Returns how many calls the task may still make.
    pub(super) fn calls_left(&self) -> usize {
        self.config.limits.calls_left(self.task.calls.len())
    }
}

/// The tool (in any version) whose repeated results are not shown twice.
const READ: &str = "fs:read@";
/// Texts below this size, in bytes, are not replaced, because a note would save nothing.
const MIN_NOTED_BYTES: usize = 400;
/// Replaces a text that the conversation already contains.
const UNCHANGED: &str = "[toolwright notice] Unchanged: what an earlier call with these arguments read is still in this \
                         conversation, and the file has the same text now.";

/// Repeats at which the model is warned.
const WARN_AT: u32 = 3;
/// Repeats at which the run is stopped.
const STOP_AT: u32 = 4;

/// The loop guard: counts how often each call has had the same result since the last progress. A new call or result is
/// progress and resets the counts, so that tests can run again after each edit, while two endlessly alternating calls
/// are still detected.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct LoopGuard(BTreeMap<ContentHash, u32>);

impl LoopGuard {
    /// Counts a turn whose calls are all answered, and adds the warning to repeated results. An equal call with an
    /// equal result counts once per turn, because the model has not seen the others yet. Returns the wire name of a
    /// call that stops the run.
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
                    "[toolwright notice] This call has now given the same result {WARN_AT} times. If it does so once more, the run is stopped: do something else, or give your final answer."
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
