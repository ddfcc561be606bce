//! Handles the model's answer: its calls, while they stream in and when it is complete, or a text that ends the task.

use toolwright_core::call::ToolCall;
use toolwright_core::model::{Message, ModelError, ModelResponse, OpaqueData, RawToolCall, StopReason};
use toolwright_core::session::CallId;

use super::turn_call::{self, CallPosition, CallStatus, ResolveTool, TurnCall};
use super::{Dispatch, Phase, RunState, TransitionError};
use crate::report::{FinalReport, Status};

const EMPTY_ANSWER: &str =
    "[toolwright notice] Your last answer was empty. Call a tool, or give your final answer to the user as text.";
const CUT_ANSWER: &str = "[toolwright notice] Your last answer was cut at its token limit before any call or text in it was \
finished, and nothing of it ran. Write a shorter call, or do the work in several.";
const FILES_ONLY: &str = "The answer is the file that was made.";
const CUT_AFTER_CALL: &str = "[toolwright notice] Your answer was cut at its token limit after this call: whatever you began \
after it was lost and did not run. If that was a call, write it again, shorter.";
const ANSWER_BROKE: &str = "[toolwright notice] The connection broke while you wrote this answer. Calls up to this one ran; \
whatever you wrote or called after it was lost.";

impl RunState {
    /// Takes the model's answer.
    ///
    /// # Errors
    /// [`TransitionError`] unless the run waits for the model.
    pub fn on_model(&mut self, response: ModelResponse, resolve: ResolveTool<'_>) -> Result<(), TransitionError> {
        let Phase::Model { last, streamed } = &mut self.phase else { return Err(self.illegal("on_model")) };
        let (last, streamed) = (*last, std::mem::take(streamed));
        self.count_turn(&response);
        let ids = turn_call::call_ids(&self.messages, self.context.removed_ids(), &streamed);
        let client = &self.config.client;
        let resolve = &|call: &RawToolCall| client.resolve(call).or_else(|| resolve(call));
        let mut calls = turn_call::take_calls(response.calls, streamed, self.task.turns, ids, resolve);
        if calls.is_empty() && response.stop.is_pause() {
            // The text so far is sent back unchanged, and the provider continues it.
            self.messages.push(Message::Assistant { text: response.text, calls: Vec::new(), opaque: response.opaque });
            self.ask_model();
            return Ok(());
        }
        if calls.is_empty() && response.text.trim().is_empty() && !response.native.artifacts.is_empty() {
            self.on_text(FILES_ONLY.into(), response.stop, response.opaque);
            return Ok(());
        }
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
        let ready = if self.config.dispatch == Dispatch::Manual { CallStatus::Held } else { CallStatus::Ready };
        for call in calls.iter_mut().filter(|call| call.status == CallStatus::Streamed) {
            let is_own = client.tool(&call.written).is_none();
            call.status = if is_own { ready.clone() } else { CallStatus::ForClient };
        }
        if last {
            let work = calls.iter_mut().filter(|call| !call.is_report());
            turn_call::refuse(work, "this was the last turn, so the call was not run");
        } else if let Some(limit) = self.config.limits.calls {
            let why = format!("the run may make {limit} calls and has made them");
            turn_call::refuse(calls.iter_mut().skip(self.calls_left()), &why);
        }
        turn_call::refuse_other_handoffs(&mut calls, |agent| self.config.may_hand_to(agent));
        self.task.answered = Some(response.text.clone()).filter(|_| response.is_final);
        let reports = calls.iter().any(TurnCall::is_open);
        self.begin_calls(calls, response.text, response.opaque);
        if last && !reports {
            self.stop(Status::Partial, self.last_turn_reason());
        } else {
            self.finish_turn();
        }
        Ok(())
    }

    /// Adds an answer with calls to the conversation.
    pub(super) fn begin_calls(&mut self, calls: Vec<TurnCall>, text: String, opaque: Vec<OpaqueData>) {
        let replayed = calls.iter().map(TurnCall::replay).collect();
        self.messages.push(Message::Assistant { text, calls: replayed, opaque });
        self.count_for_todo();
        self.phase = Phase::Calls { calls };
    }

    /// Takes an answer without calls, which ends the task unless it is empty.
    fn on_text(&mut self, text: String, stop: StopReason, opaque: Vec<OpaqueData>) {
        if text.trim().is_empty() {
            return self.on_empty(stop);
        }
        self.messages.push(Message::Assistant { text: text.clone(), calls: Vec::new(), opaque });
        self.count_for_todo();
        match stop {
            StopReason::MaxTokens => self.finish(Status::Partial, Some("the answer was cut at its token limit".into())),
            StopReason::Refusal => self.finish(Status::Failure, Some("the model refused to answer".into())),
            _ => self.on_final_text(&text),
        }
    }

    fn on_empty(&mut self, stop: StopReason) {
        let cut = stop == StopReason::MaxTokens;
        if stop == StopReason::Refusal {
            self.finish(Status::Failure, Some("the model refused to answer".into()));
        } else if !self.task.corrected {
            // The empty answer itself is left out, because several APIs refuse empty messages.
            self.task.corrected = true;
            self.push_notice(if cut { CUT_ANSWER } else { EMPTY_ANSWER }, None);
            self.ask_model();
        } else if cut {
            let why = "the answer was cut at its token limit again before anything in it was whole";
            self.finish(Status::Partial, Some(why.into()));
        } else {
            self.finish(Status::Failure, Some("the model gave an empty answer twice".into()));
        }
    }

    /// Takes a complete answer in text. If the run must end with a report, the text is converted to one if possible.
    /// Otherwise a notice tells the model once what is wrong, and the second time the run ends without a report.
    pub(super) fn on_final_text(&mut self, text: &str) {
        let Some(config) = &self.config.agent_tools.report else { return self.finish(Status::Success, None) };
        match FinalReport::from_text(text, config) {
            Ok(report) => {
                self.task.report = Some(report);
                self.finish_with_report();
            }
            Err(why) if self.task.corrected => {
                self.finish(Status::Partial, Some(format!("there is no final report: {why}")));
            }
            Err(why) => {
                self.task.corrected = true;
                let notice = format!(
                    "[toolwright notice] Your answer is not in the form that was asked for: {why}. Give it by calling agent__final_report."
                );
                self.push_notice(notice, None);
                self.ask_model();
            }
        }
    }

    /// Handles a failed model request that a retry would not help: the run fails, and can be reopened. If calls of a
    /// broken answer were started, the answer is kept with these calls only. They end, and the model continues from
    /// their results, so that nothing is called twice.
    ///
    /// # Errors
    /// [`TransitionError`] unless the run waits for the model.
    pub fn on_model_error(&mut self, error: &ModelError) -> Result<(), TransitionError> {
        if !self.waits_for_model() {
            return Err(self.illegal("on_model_error"));
        }
        if !self.keep_started_calls(error.partial.as_deref()) {
            self.task.usage.add(error.usage);
            self.interrupt(Status::Failure, format!("the model request failed: {error}"));
        }
        Ok(())
    }

    /// Takes a complete call of an answer that is still streaming. Returns it, under its final id, if the run lets it
    /// start; call [`RunState::start`] before dispatching it.
    ///
    /// # Errors
    /// [`TransitionError`] unless the run waits for the model.
    pub fn on_call(
        &mut self,
        call: RawToolCall,
        resolve: ResolveTool<'_>,
    ) -> Result<Option<ToolCall>, TransitionError> {
        let (turn, left) = (self.task.turns + 1, self.calls_left());
        let Phase::Model { last, streamed } = &mut self.phase else { return Err(self.illegal("on_call")) };
        let (index, ids) = (streamed.len(), turn_call::call_ids(&self.messages, self.context.removed_ids(), streamed));
        let client = &self.config.client;
        let is_client = client.tool(&call.name).is_some();
        let resolve = &|call: &RawToolCall| client.resolve(call).or_else(|| resolve(call));
        let call = TurnCall::new(call, CallPosition { turn, index }, &ids, resolve);
        let is_second_handoff = call.is_handoff() && streamed.iter().any(TurnCall::is_handoff);
        let may_start = self.config.dispatch == Dispatch::Streaming && !*last && index < left && !is_second_handoff;
        let may_start = may_start && !is_client;
        let startable = may_start.then(|| call.as_written());
        streamed.push(call);
        Ok(startable)
    }

    /// Records that a call of an answer that is still streaming is about to run.
    ///
    /// # Errors
    /// [`TransitionError`] unless [`RunState::on_call`] returned it.
    pub fn start(&mut self, call: &CallId) -> Result<(), TransitionError> {
        let streamed = match &mut self.phase {
            Phase::Model { streamed, .. } => streamed.as_mut_slice(),
            _ => &mut [],
        };
        match streamed.iter_mut().find(|known| known.id == *call && known.status == CallStatus::Streamed) {
            Some(known) => {
                known.status = CallStatus::Started;
                Ok(())
            }
            None => Err(TransitionError::NoSuchCall { transition: "start", call: call.clone() }),
        }
    }

    /// Continues after a broken answer with its started calls and its other known parts. Without started calls, the
    /// whole answer is discarded, and the result is false.
    pub(crate) fn keep_started_calls(&mut self, partial: Option<&ModelResponse>) -> bool {
        let Phase::Model { streamed, .. } = &mut self.phase else { return false };
        let mut calls = std::mem::take(streamed);
        calls.retain(TurnCall::is_started);
        let Some(newest) = calls.last_mut() else { return false };
        newest.note = Some(ANSWER_BROKE.into());
        let response = partial.cloned().unwrap_or_default();
        self.count_turn(&response);
        self.begin_calls(calls, response.text, response.opaque);
        true
    }

    fn count_turn(&mut self, response: &ModelResponse) {
        self.task.turns += 1;
        self.task.usage.add(response.usage);
        self.context.on_answer(&response.usage);
        if !response.text.trim().is_empty() {
            self.task.last_text.clone_from(&response.text);
        }
    }
}
