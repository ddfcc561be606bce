//! Dispatch modes other than at the end of a turn: while the model is still writing, or when the caller allows it.

use toolwright_core::call::ToolCall;
use toolwright_core::model::{Message, ModelResponse, WrittenCall};
use toolwright_core::session::CallId;

use super::turn::{self, CallStatus, Resolved, ResultPosition, TurnCall};
use super::{Dispatch, Phase, RunState, TransitionError};

const ANSWER_BROKE: &str = "[toolwright notice] The connection broke while you wrote this answer. Calls up to this one ran; \
whatever you wrote or called after it was lost.";

impl RunState {
    /// A call of an answer that is still being written is whole. Returns it under the id that it keeps if it
    /// may be started, as far as the run decides; then [`RunState::start`] comes before its dispatch.
    ///
    /// # Errors
    /// [`TransitionError`] unless the run waits for the model.
    pub fn on_call(
        &mut self,
        call: WrittenCall,
        resolve: &dyn Fn(&WrittenCall) -> Option<Resolved>,
    ) -> Result<Option<ToolCall>, TransitionError> {
        let (turn, left) = (self.task.turns + 1, self.calls_left());
        let Phase::Model { last, streamed } = &mut self.phase else {
            return Err(TransitionError::Illegal { transition: "on_call", phase: self.phase.describe() });
        };
        let (index, taken) = (streamed.len(), turn::taken_ids(&self.messages, self.guard.gone(), streamed));
        let place = ResultPosition { turn, index, taken: &taken, resolve };
        let call = TurnCall::take(call, place, CallStatus::Streamed);
        let may_start = self.spec.dispatch == Dispatch::Streaming && !*last && index < left;
        let startable = may_start.then(|| call.as_written());
        streamed.push(call);
        Ok(startable)
    }

    /// A call of an answer that is still being written is about to run.
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

    /// An answer broke off: what was started of it is kept, as by [`RunState::on_model_error`]; else the model
    /// is to be asked again.
    pub(crate) fn answer_lost(&mut self) {
        self.keep_started(None);
    }

    /// Goes from a broken answer to its started calls. False if there are none; then all of it is forgotten.
    pub(super) fn keep_started(&mut self, partial: Option<&ModelResponse>) -> bool {
        let Phase::Model { streamed, .. } = &mut self.phase else { return false };
        let mut calls = std::mem::take(streamed);
        calls.retain(TurnCall::is_started);
        let Some(newest) = calls.last_mut() else { return false };
        newest.note = Some(ANSWER_BROKE.into());
        let response = partial.cloned().unwrap_or_default();
        self.count_turn(&response);
        let replayed = calls.iter().map(TurnCall::replay).collect();
        self.messages.push(Message::Assistant { text: response.text, calls: replayed, opaque: response.opaque });
        self.phase = Phase::Calls { calls };
        true
    }

    /// Whether calls run whose outcomes have not been told.
    pub(crate) fn has_started(&self) -> bool {
        self.open_calls().iter().any(TurnCall::is_started)
    }

    /// Whether this call runs.
    pub(crate) fn is_started(&self, id: &CallId) -> bool {
        self.open_calls().iter().any(|call| call.id == *id && call.is_started())
    }

    /// A started call did not come to run: it is to run with its turn.
    pub(crate) fn put_off(&mut self, id: &CallId) {
        if let Phase::Calls { calls } = &mut self.phase {
            let started = calls.iter_mut().filter(|call| call.id == *id && call.is_started());
            started.for_each(|call| call.status = CallStatus::ToRun);
        }
    }

    /// As [`RunState::put_off`], for all that were started.
    pub(crate) fn put_off_started(&mut self) {
        let started: Vec<CallId> =
            self.open_calls().iter().filter(|call| call.is_started()).map(|call| call.id.clone()).collect();
        started.iter().for_each(|id| self.put_off(id));
    }

    pub(super) fn open_calls(&self) -> &[TurnCall] {
        match &self.phase {
            Phase::Calls { calls } => calls,
            Phase::Model { streamed, .. } => streamed,
            Phase::Done { .. } => &[],
        }
    }

    /// Lets the calls run that wait for leave. Returns whether there were any.
    pub fn dispatch(&mut self) -> bool {
        let Phase::Calls { calls } = &mut self.phase else { return false };
        let mut held = calls.iter_mut().filter(|call| call.status == CallStatus::Held).peekable();
        let any = held.peek().is_some();
        held.for_each(|call| call.status = CallStatus::ToRun);
        any
    }
}
