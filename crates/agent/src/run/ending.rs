//! Ends a task by a result, limit, report or interruption, and reopens an ended run.

use serde::Deserialize as _;
use toolwright_core::agents::LimitWarning;
use toolwright_core::agents::handoff::HANDOFF_ID;
use toolwright_core::cancel::CancelCause;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::{PromptReuse, ToolChoice};
use toolwright_core::outcome::Outcome;
use toolwright_core::store::MessageKind;
use toolwright_core::store::todo::{REMIND_AFTER, TODO_ID, TodoList};

use super::config::last_turn;
use super::turn_call::{self, TurnCall};
use super::{InterruptedPhase, NOTICE, Phase, RunState, SessionNotice, TaskState, TodoSeen};
use crate::report::{FinalReport, HeldCall, NO_ANSWER, RunReport, RunResult, Status, UnfinishedChild};
use crate::tools::{FINAL_REPORT, FINAL_REPORT_ID, TASK_STATUS_ID, TaskStatus};

/// The beginning of the notice with the to-do list.
const TODO_NOTICE: &str = "[toolwright notice] The to-do list of this session:";

impl RunState {
    /// Makes the next turn the last, as the limit of turns does: a notice tells the model `why` (the beginning of a
    /// sentence, like "The conversation is full"), and it may not call tools. Running calls end first. Only the first
    /// reason counts; an ended run stays unchanged.
    pub fn force_final(&mut self, why: impl Into<String>) {
        if self.is_over() || self.task.forced.is_some() {
            return;
        }
        let why = why.into();
        if let Phase::Model { last: last @ false, .. } = &mut self.phase {
            *last = true;
            self.push_notice(last_turn(&why).text, None);
        }
        self.task.forced = Some(why);
    }

    /// Returns whether this is the last request to the model: with only the final report tool if a report is required,
    /// else without tools.
    #[must_use]
    pub fn is_last_turn(&self) -> bool {
        matches!(self.phase, Phase::Model { last: true, .. })
    }

    pub(super) fn tool_choice(&self, last: bool) -> ToolChoice {
        match (last, &self.config.agent_tools.report) {
            (false, _) if self.task.turns == 0 => self.config.client.tool_choice.clone(),
            (false, _) => ToolChoice::Auto,
            (true, None) => ToolChoice::None,
            (true, Some(_)) => ToolChoice::Tool(FINAL_REPORT.into()),
        }
    }

    /// Returns how much of the next request later ones repeat. A request with only the report tool has a different
    /// beginning.
    pub(super) fn reuse(&self, last: bool) -> PromptReuse {
        if last && self.config.agent_tools.report.is_some() { PromptReuse::Once } else { PromptReuse::Conversation }
    }

    /// Applies an outcome of the agent's own tools to the run. Only the first report counts, from the run itself or
    /// from an agent that answers in its place.
    pub(super) fn apply_agent_tool(&mut self, outcome: Outcome) -> Outcome {
        if outcome.ok && outcome.tool.as_ref().is_some_and(|tool| tool.as_str() == TODO_ID) {
            self.todo = TodoSeen::Ago(0);
        }
        let value = outcome.structured.as_ref().filter(|_| outcome.ok);
        match (outcome.tool.as_ref().map(|tool| tool.as_str()), value) {
            (Some(FINAL_REPORT_ID | HANDOFF_ID), Some(value)) => {
                let Ok(report) = serde_json::from_value::<FinalReport>(value.clone()) else { return outcome };
                if self.task.report.is_some() {
                    let error = ToolError::new(ErrorKind::LimitExceeded, "the run has its final report already");
                    return Outcome { tool: outcome.tool, ..Outcome::failed(outcome.call_id, error) };
                }
                self.task.report = Some(report);
            }
            (Some(TASK_STATUS_ID), Some(value))
                if TaskStatus::deserialize(value).is_ok_and(|status| status.is_final()) =>
            {
                self.force_final("You said that the task is completed");
            }
            _ => {}
        }
        outcome
    }

    /// Ends the task with its report. Returns whether there is one.
    pub(super) fn finish_with_report(&mut self) -> bool {
        let Some(report) = &self.task.report else { return false };
        let (status, answer) = (report.status, report.text());
        let reason = (status != Status::Success).then(|| format!("the model reported {}", status.as_str()));
        self.task.last_text = answer;
        self.finish(status, reason);
        true
    }

    /// Ends the task. A success without a successful call becomes partial.
    pub(super) fn finish(&mut self, status: Status, reason: Option<String>) {
        self.context.abandon();
        let (status, reason) = match self.no_call_succeeded() {
            Some(why) if status == Status::Success => (Status::Partial, Some(why)),
            _ => (status, reason),
        };
        self.phase = Phase::Done { result: self.result(status, reason), interrupted: None };
    }

    /// Answers the open calls and ends the run.
    pub(super) fn stop(&mut self, status: Status, reason: String) {
        self.commit();
        self.finish(status, Some(reason));
    }

    /// Answers the open calls and ends the run so that it can be reopened.
    pub(super) fn interrupt(&mut self, status: Status, reason: String) {
        let waited_for = match self.phase {
            Phase::Model { last, .. } => InterruptedPhase::Model { last },
            _ => InterruptedPhase::Calls,
        };
        self.commit();
        self.context.abandon();
        self.phase = Phase::Done { result: self.result(status, Some(reason)), interrupted: Some(waited_for) };
    }

    /// Ends the run now; its open calls are answered as cancelled. It can be reopened, unless a limit ended it. An
    /// ended run stays unchanged.
    pub fn cancel(&mut self, cause: CancelCause) {
        if self.is_over() {
            return;
        }
        self.keep_started_calls(None);
        if let Phase::Calls { calls } = &mut self.phase {
            for call in calls.iter_mut().filter(|call| !call.is_answered()) {
                call.end(Outcome::failed(call.id.clone(), ToolError::canceled(cause)));
            }
        }
        if cause == CancelCause::RunLimit {
            self.stop(Status::Partial, self.config.limits.time_limit_reason(self.task.bound.as_ref()));
        } else {
            self.interrupt(Status::Cancelled, format!("cancelled {}", cause.describe()));
        }
    }

    /// Ends the run as partial, because a limit of the tree of agents allows no further request.
    pub fn end_at_limit(&mut self, reason: String) {
        if !self.is_over() {
            self.keep_started_calls(None);
            self.stop(Status::Partial, reason);
        }
    }

    /// Takes the answer back, so that the model answers again: agents of the run had not ended. `notice` tells the
    /// model the reason. Returns whether it was taken back.
    pub fn take_back(&mut self, notice: String) -> bool {
        if !self.can_reopen_answer() {
            return false;
        }
        self.task.report = None;
        self.task.children_named = true;
        self.ask_model();
        if self.waits_for_model() {
            self.push_notice(notice, None);
        }
        true
    }

    /// Returns whether the model has answered, and the limits allow another turn.
    #[must_use]
    pub fn can_reopen_answer(&self) -> bool {
        let Phase::Done { result, interrupted: None } = &self.phase else { return false };
        (result.status == Status::Success || self.task.report.is_some())
            && self.config.limits.exhausted(self.task.turns, &self.task.usage).is_none()
    }

    /// Returns whether it ended in a way that [`RunState::reopen`] can undo.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self.phase, Phase::Done { interrupted: Some(_), .. })
    }

    /// Returns whether the model was told of agents that still ran when it answered.
    pub(crate) fn has_named_children(&self) -> bool {
        self.task.children_named
    }

    /// Returns whether the report says what happened to the agent of this job.
    pub(crate) fn has_child_outcome(&self, job: &str) -> bool {
        self.task.children.iter().any(|known| known.job == job)
    }

    /// Adds to the report what happened to an agent that still ran at the end.
    pub(crate) fn record_child_outcome(&mut self, child: UnfinishedChild) {
        if !self.has_child_outcome(&child.job) {
            self.task.children.push(child);
        }
    }

    /// Reopens a run that was cancelled, or that failed because the model could not be asked: it waits for the model as
    /// if it had not ended, and its usage still counts. Any other run stays unchanged. Returns whether it was reopened.
    pub fn reopen(&mut self) -> bool {
        let Phase::Done { interrupted: Some(waited_for), .. } = self.phase else { return false };
        match waited_for {
            // The conversation already contains the notices of this turn.
            InterruptedPhase::Model { last } => self.phase = Phase::model(last),
            InterruptedPhase::Calls => self.ask_model(),
        }
        true
    }

    /// Adds the session's new messages for the model, which is asked next.
    pub fn add_session_messages(&mut self, mail: &[SessionNotice]) {
        if !matches!(&self.phase, Phase::Model { streamed, .. } if streamed.is_empty()) {
            return;
        }
        for notice in mail {
            if notice.seq > self.last_notice {
                self.push_notice(&*notice.text, Some(&notice.source));
                self.last_notice = notice.seq;
            }
        }
    }

    /// Warns the model, which is asked next, of limits that are nearly used up, once for each.
    pub(crate) fn warn(&mut self, near: &[LimitWarning]) {
        if !matches!(&self.phase, Phase::Model { streamed, last: false } if streamed.is_empty()) {
            return;
        }
        for LimitWarning { key, notice } in near {
            if !self.task.warned_of.contains(key) {
                self.task.warned_of.push(key.clone());
                self.push_notice(format!("{NOTICE} {notice}"), None);
            }
        }
    }

    /// Returns whether the model must be shown the to-do list with the next request: there may be open items, and it
    /// has not seen the list for some answers, or its last view is no longer in the conversation.
    pub(crate) fn is_todo_due(&self) -> bool {
        let asks = matches!(&self.phase, Phase::Model { streamed, last: false } if streamed.is_empty());
        asks && match self.todo {
            TodoSeen::Never => true,
            TodoSeen::Ago(answers) => answers >= REMIND_AFTER,
            TodoSeen::NothingToDo => false,
        }
    }

    /// Shows the model, which is asked next, the open items.
    pub(crate) fn show_todo(&mut self, list: &TodoList) {
        if list.is_open() {
            self.push_notice(format!("{TODO_NOTICE}\n{}", list.text()), None);
            self.todo = TodoSeen::Ago(0);
        } else {
            self.todo = TodoSeen::NothingToDo;
        }
    }

    /// Counts an answer of the model since it last saw the to-do list.
    pub(super) fn count_for_todo(&mut self) {
        if let TodoSeen::Ago(answers) = &mut self.todo {
            *answers = answers.saturating_add(1);
        }
    }

    /// Returns the number of the last message that the model was told; 0 for none.
    #[must_use]
    pub fn last_notice(&self) -> u64 {
        self.last_notice
    }

    /// Returns the number after which the messages that led to its task begin; `None` if not known yet.
    #[must_use]
    pub fn woken_by_messages_after(&self) -> Option<u64> {
        self.task.since
    }

    /// Records that the session's messages up to this one are older than its task.
    pub(crate) fn skip_messages_until(&mut self, seq: u64) {
        self.task.since = Some(seq);
    }

    /// Returns whether a message can wake the run: it has answered, but not by a final report, and its limits allow
    /// another turn.
    #[must_use]
    pub fn can_wake(&self) -> bool {
        let answered = matches!(&self.phase, Phase::Done { result, .. } if result.status == Status::Success);
        answered
            && !self.ends_with_plan()
            && self.task.report.is_none()
            && self.config.limits.exhausted(self.task.turns, &self.task.usage).is_none()
    }

    /// Continues an answered task because messages arrived. Counters and limits continue too.
    pub fn wake(&mut self, mail: &[SessionNotice]) {
        if mail.iter().any(|notice| notice.seq > self.last_notice) && self.can_wake() {
            self.ask_model();
            self.add_session_messages(mail);
        }
    }

    /// Takes an answer back because the run has got messages meanwhile, and tells the model. Ends of its jobs do not
    /// count. Returns whether the limits allow it.
    pub fn reopen_for_messages(&mut self, mail: &[SessionNotice]) -> bool {
        let is_written_to = mail.iter().any(|notice| notice.seq > self.last_notice && notice.kind != MessageKind::Job);
        if !is_written_to || !self.can_reopen_answer() {
            return false;
        }
        self.task.report = None;
        self.ask_model();
        self.add_session_messages(mail);
        self.waits_for_model()
    }

    /// Returns whether messages begin a new task of an ended run. Ends of jobs do not after a final report, which stays
    /// the answer.
    #[must_use]
    pub fn is_woken_by(&self, mail: &[SessionNotice]) -> bool {
        let is_unread = |notice: &&SessionNotice| notice.seq > self.last_notice;
        let counts = |notice: &SessionNotice| self.task.report.is_none() || notice.kind != MessageKind::Job;
        self.is_over() && mail.iter().filter(is_unread).any(counts)
    }

    /// Begins a new task of an ended run with messages instead of the user's. Counters and limits start again.
    pub fn receive(&mut self, mail: &[SessionNotice]) {
        if self.is_over() {
            self.context.begin_task(self.messages.len());
            self.task = TaskState::default();
            self.ask_model();
            self.add_session_messages(mail);
        }
    }

    /// Returns the report of the task so far.
    #[must_use]
    pub fn report(&self) -> RunReport {
        let mut report = RunReport {
            status: Status::Suspended,
            answer: String::new(),
            reason: None,
            turns: self.task.turns,
            calls: self.task.calls.clone(),
            usage: self.task.usage,
            cost_usd: self.task.cost.usd(),
            pending: Vec::new(),
            held: Vec::new(),
            exposure: self.exposure().cloned(),
            final_report: self.task.report.clone().filter(|_| self.is_over()),
            children: self.task.children.clone(),
            sources: self.task.sources.clone(),
            files: self.task.files.clone(),
        };
        match &self.phase {
            Phase::Done { result, .. } => {
                (report.status, report.answer, report.reason) =
                    (result.status, result.answer.clone(), result.reason.clone());
            }
            Phase::Calls { calls } => {
                report.calls.extend(calls.iter().filter_map(|call| call.answer().map(|answer| answer.record.clone())));
                report.pending = turn_call::approval_requests(calls);
                report.held = calls.iter().filter(|call| call.is_held()).map(held_call).collect();
                let why = match (report.held.is_empty(), report.pending.is_empty()) {
                    (false, _) => "calls wait for leave to run",
                    (true, false) => "a person must decide first",
                    (true, true) => "the client has calls to run",
                };
                report.reason = Some(why.into());
            }
            Phase::Model { .. } => report.reason = Some("the model has not answered".into()),
        }
        report
    }

    /// Returns the reason why a turn was the last, for a model that still called tools in it.
    pub(super) fn last_turn_reason(&self) -> String {
        match &self.task.forced {
            Some(why) => format!("the last turn was forced: {why}"),
            None => self.config.limits.last_turn_reason(self.task.turns),
        }
    }

    /// Returns the reason why a success is only partial: the model called tools, and no call succeeded. The agent's own
    /// tools, calls refused by a limit and cancelled calls do not count.
    fn no_call_succeeded(&self) -> Option<String> {
        let (mut failed, mut denied) = (0, 0);
        for call in self.task.calls.iter().filter(|call| ![FINAL_REPORT_ID, TASK_STATUS_ID].contains(&&*call.tool)) {
            match call.error.as_ref().map(|error| error.kind) {
                None => return None,
                Some(ErrorKind::LimitExceeded | ErrorKind::Canceled) => {}
                Some(ErrorKind::Denied | ErrorKind::NotPermitted) => denied += 1,
                Some(_) => failed += 1,
            }
        }
        match (failed, denied) {
            (0, 0) => None,
            (failed, 0) => Some(format!("no call succeeded: {failed} failed")),
            (0, denied) => Some(format!("no call succeeded: {denied} denied")),
            (failed, denied) => Some(format!("no call succeeded: {failed} failed, {denied} denied")),
        }
    }

    fn result(&self, status: Status, reason: Option<String>) -> RunResult {
        let answer = if self.task.last_text.is_empty() && status != Status::Success {
            let failed = self.task.calls.iter().filter(|call| !call.ok).count();
            let reason = reason.as_deref().unwrap_or(status.as_str());
            format!("{NO_ANSWER}{reason}. Calls made: {}, of which failed: {failed}.", self.task.calls.len())
        } else {
            self.task.last_text.clone()
        };
        RunResult { status, answer, reason }
    }
}

fn held_call(call: &TurnCall) -> HeldCall {
    HeldCall { id: call.id.to_string(), tool: call.wire_name.clone(), arguments: call.argument_value(), verdict: None }
}
