//! Handles the model's answer: calls to run, or a text that ends the task.

use toolwright_core::model::{Message, ModelResponse, OpaqueData, StopReason, WrittenCall};

use super::turn::{self, CallStatus, Resolved, TurnCall};
use super::{Dispatch, Phase, RunState, TransitionError};
use crate::report::Status;

const EMPTY_ANSWER: &str =
    "[toolwright notice] Your last answer was empty. Call a tool, or give your final answer to the user as text.";
const CUT_ANSWER: &str = "[toolwright notice] Your last answer was cut at its token limit before any call or text in it was \
finished, and nothing of it ran. Write a shorter call, or do the work in several.";
const CUT_AFTER_CALL: &str = "[toolwright notice] Your answer was cut at its token limit after this call: whatever you began \
after it was lost and did not run. If that was a call, write it again, shorter.";

impl RunState {
    /// The model answered. `resolve` finds the tool of a call as the model saw the catalogue.
    ///
    /// # Errors
    /// [`TransitionError`] unless the run waits for the model.
    pub fn on_model(
        &mut self,
        response: ModelResponse,
        resolve: &dyn Fn(&WrittenCall) -> Option<Resolved>,
    ) -> Result<(), TransitionError> {
        let (last, streamed) = self.take_model("on_model")?;
        self.count_turn(&response);
        let known = (self.messages.as_slice(), self.guard.gone());
        let mut calls = turn::take_calls(response.calls, streamed, self.task.turns, known, resolve);
        if calls.is_empty() {
            self.on_text(response.text, response.stop, response.opaque);
            return Ok(());
        }
        self.task.corrected = false;
        if response.stop == StopReason::MaxTokens
            && let Some(newest) = calls.last_mut()
        {
            newest.note = Some(CUT_AFTER_CALL.into());
        }
        let ready = if self.spec.dispatch == Dispatch::Manual { CallStatus::Held } else { CallStatus::ToRun };
        for call in calls.iter_mut().filter(|call| call.status == CallStatus::Streamed) {
            call.status = ready.clone();
        }
        if last {
            turn::refuse_work(&mut calls, "this was the last turn, so the call was not run");
        } else if let Some(limit) = self.spec.limits.calls {
            turn::refuse(&mut calls, self.calls_left(), &format!("the run may make {limit} calls and has made them"));
        }
        let replayed = calls.iter().map(TurnCall::replay).collect();
        self.messages.push(Message::Assistant { text: response.text, calls: replayed, opaque: response.opaque });
        let reports = calls.iter().any(TurnCall::is_open);
        self.phase = Phase::Calls { calls };
        if last && !reports {
            self.stop(Status::Partial, self.why_last());
        } else {
            self.settle();
        }
        Ok(())
    }

    /// An answer without calls: the end, unless there is nothing in it.
    fn on_text(&mut self, text: String, stop: StopReason, opaque: Vec<OpaqueData>) {
        if text.trim().is_empty() {
            let cut = stop == StopReason::MaxTokens;
            if stop == StopReason::Refusal {
                self.finish(Status::Failure, Some("the model refused to answer".into()));
            } else if !self.task.corrected {
                // The empty answer itself is left out: several APIs refuse empty messages.
                self.task.corrected = true;
                self.tell(if cut { CUT_ANSWER } else { EMPTY_ANSWER }, None);
                self.ask_model();
            } else if cut {
                let why = "the answer was cut at its token limit again before anything in it was whole";
                self.finish(Status::Partial, Some(why.into()));
            } else {
                self.finish(Status::Failure, Some("the model gave an empty answer twice".into()));
            }
            return;
        }
        self.messages.push(Message::Assistant { text: text.clone(), calls: Vec::new(), opaque });
        if !matches!(stop, StopReason::MaxTokens | StopReason::Refusal) && self.adopt(&text) {
            return;
        }
        match stop {
            StopReason::MaxTokens => self.finish(Status::Partial, Some("the answer was cut at its token limit".into())),
            StopReason::Refusal => self.finish(Status::Failure, Some("the model refused to answer".into())),
            _ => self.finish(Status::Success, None),
        }
    }
}
