//! Ends a task before its limits do: by a final report, or by a forced last turn.

use serde::Deserialize as _;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::{Reuse, ToolChoice};
use toolwright_core::outcome::Outcome;

use super::limits::last_turn;
use super::{Phase, RunState};
use crate::report::Status;
use crate::tools::{FINAL_REPORT, FINAL_REPORT_ID, FinalReport, TASK_STATUS_ID, TaskStatus};

impl RunState {
    /// Makes the next turn the last, as if it were the limit's: the model is told `why` (the beginning of a
    /// sentence, like "The conversation is full") and may not call tools. Calls that are under way end first. The
    /// first reason counts; a run that is over stays as it is.
    pub fn force_final(&mut self, why: impl Into<String>) {
        if self.is_over() || self.task.forced.is_some() {
            return;
        }
        let why = why.into();
        if let Phase::Model { last: last @ false, .. } = &mut self.phase {
            *last = true;
            self.tell(last_turn(&why).text, None);
        }
        self.task.forced = Some(why);
    }

    /// Whether the model is asked for the last time: with the final report alone, where the run is to end with one,
    /// else without tools.
    #[must_use]
    pub fn is_last_turn(&self) -> bool {
        matches!(self.phase, Phase::Model { last: true, .. })
    }

    pub(super) fn tool_choice(&self, last: bool) -> ToolChoice {
        match (last, &self.spec.agent_tools.report) {
            (false, _) => ToolChoice::Auto,
            (true, None) => ToolChoice::None,
            (true, Some(_)) => ToolChoice::Tool(FINAL_REPORT.into()),
        }
    }

    /// What of the next request those after it begin with. Who is asked for the report alone is shown no other tool, so
    /// that nothing is as it was before, or will be.
    pub(super) fn reuse(&self, last: bool) -> Reuse {
        if last && self.spec.agent_tools.report.is_some() { Reuse::Once } else { Reuse::Conversation }
    }

    /// Takes what an outcome of the agent's own tools means for the run. A report counts once: those after the
    /// first are refused.
    pub(super) fn heed(&mut self, outcome: Outcome) -> Outcome {
        let said = outcome.structured.as_ref().filter(|_| outcome.ok);
        match (outcome.tool.as_ref().map(|tool| tool.as_str()), said) {
            (Some(FINAL_REPORT_ID), Some(said)) => {
                let Ok(report) = serde_json::from_value::<FinalReport>(said.clone()) else { return outcome };
                if self.task.report.is_some() {
                    let error = ToolError::new(ErrorKind::LimitExceeded, "the run has its final report already");
                    return Outcome { tool: outcome.tool, ..Outcome::failed(outcome.call_id, error) };
                }
                self.task.report = Some(report);
            }
            (Some(TASK_STATUS_ID), Some(said))
                if TaskStatus::deserialize(said).is_ok_and(|status| status.is_final()) =>
            {
                self.force_final("You said that the task is completed");
            }
            _ => {}
        }
        outcome
    }

    /// Ends the task with its report, if there is one.
    pub(super) fn deliver(&mut self) -> bool {
        let Some(report) = &self.task.report else { return false };
        let (status, answer) = (report.status, report.text());
        let reason = (status != Status::Success).then(|| format!("the model reported {}", status.as_str()));
        self.task.said = answer;
        self.finish(status, reason);
        true
    }

    /// An answer in text, where the run is to end with a report: taken for it if it makes one. Else the model is
    /// told once what is wrong, and the second time the run ends without. Returns whether that settled it.
    pub(super) fn adopt(&mut self, text: &str) -> bool {
        let Some(spec) = &self.spec.agent_tools.report else { return false };
        match FinalReport::adopt(text, spec) {
            Ok(report) => {
                self.task.report = Some(report);
                self.deliver()
            }
            Err(why) if self.task.corrected => {
                self.finish(Status::Partial, Some(format!("there is no final report: {why}")));
                true
            }
            Err(why) => {
                self.task.corrected = true;
                let told = format!(
                    "[toolwright notice] Your answer is not in the form that was asked for: {why}. Give it by calling agent__final_report."
                );
                self.tell(told, None);
                self.ask_model();
                true
            }
        }
    }

    /// Why a turn was the last, for a model that called tools in it nevertheless.
    pub(super) fn why_last(&self) -> String {
        match &self.task.forced {
            Some(why) => format!("the last turn was forced: {why}"),
            None => self.spec.limits.why_last(self.task.turns),
        }
    }
}
