//! What a task has used so far, and its status.

use toolwright_core::error::ErrorKind;
use toolwright_core::model::ModelResponse;

use super::turn;
use super::{Phase, RunState};
use crate::report::{HeldCall, NO_ANSWER, RunReport, RunResult, Status};
use crate::tools::{FINAL_REPORT_ID, TASK_STATUS_ID};

impl RunState {
    /// The report of the task so far.
    #[must_use]
    pub fn report(&self) -> RunReport {
        let mut report = RunReport {
            status: Status::Suspended,
            answer: String::new(),
            reason: None,
            turns: self.task.turns,
            calls: self.task.calls.clone(),
            usage: self.task.usage,
            pending: Vec::new(),
            held: Vec::new(),
            exposure: self.exposure().cloned(),
            final_report: self.task.report.clone().filter(|_| self.is_over()),
        };
        match &self.phase {
            Phase::Done { result, .. } => {
                (report.status, report.answer, report.reason) =
                    (result.status, result.answer.clone(), result.reason.clone());
            }
            Phase::Calls { calls } => {
                report.calls.extend(calls.iter().filter_map(|call| call.answer().map(|answer| answer.record.clone())));
                report.pending = turn::questions(calls);
                report.held = calls.iter().filter_map(HeldCall::of).collect();
                let why =
                    if report.held.is_empty() { "a person must decide first" } else { "calls wait for leave to run" };
                report.reason = Some(why.into());
            }
            Phase::Model { .. } => report.reason = Some("the model has not answered".into()),
        }
        report
    }

    pub(super) fn count_turn(&mut self, response: &ModelResponse) {
        self.task.turns += 1;
        self.task.usage.add(response.usage);
        self.guard.on_answer(&response.usage);
        if !response.text.trim().is_empty() {
            self.task.said.clone_from(&response.text);
        }
    }

    /// Calls that the task may still make.
    pub(super) fn calls_left(&self) -> usize {
        let limit = self.spec.limits.calls.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        limit.saturating_sub(self.task.calls.len())
    }

    /// Why an answer is not what the task was for: the model called tools, and no call succeeded. The agent's own tools,
    /// what a limit kept from running and what a person cancelled do not count.
    pub(super) fn nothing_worked(&self) -> Option<String> {
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

    pub(super) fn result(&self, status: Status, reason: Option<String>) -> RunResult {
        let answer = if self.task.said.is_empty() && status != Status::Success {
            let failed = self.task.calls.iter().filter(|call| !call.ok).count();
            let reason = reason.as_deref().unwrap_or(status.as_str());
            format!("{NO_ANSWER}{reason}. Calls made: {}, of which failed: {failed}.", self.task.calls.len())
        } else {
            self.task.said.clone()
        };
        RunResult { status, answer, reason }
    }
}
