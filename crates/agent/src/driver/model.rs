//! Sends one request to the model, records it, and starts calls while the answer streams in.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::Snapshot;
use toolwright_core::event::Event;
use toolwright_core::model::{
    Exposed, ModelError, ModelErrorKind, ModelEvents, ModelRequest, ModelResponse, RecordedError, WrittenCall,
};
use toolwright_core::operation::Op;
use toolwright_core::redact::learn_written;
use toolwright_core::select::Showing;
use toolwright_core::session::CallId;

use toolwright_runtime::executor::{Asked, ModelAsk, ModelCallRecord};

use super::streaming::{InFlightCalls, StreamEvents};
use super::text::TextEvents;
use super::tool_view::resolve;
use super::{Driver, DriverError, RunOptions};
use crate::run::{Dispatch, RunState};

impl Driver {
    /// Asks the model, under the token of `in_flight`, and tells the state what came of it. Returns these with the calls that
    /// were started meanwhile.
    pub(super) async fn ask_model(
        &self,
        state: &mut RunState,
        request: ModelRequest,
        shown_tools: ModelTools<'_>,
        options: &RunOptions,
        mut in_flight: InFlightCalls,
    ) -> Result<InFlightCalls, DriverError> {
        let cancel = &in_flight.cancel.clone();
        let (model, turn) = (state.spec().model.clone(), state.turns() + 1);
        let services = self.executor.services();
        let text = TextEvents::new(services.events.clone(), services.redactor.clone(), options.session.id.clone());
        let op = self.executor.begin(&options.lineage(turn));
        state.asked(shown_tools.showing.tokens);
        self.asked(&op, state, &request, shown_tools.showing, options);
        let (session, tools) = (&*options.session, Some(shown_tools.showing));
        let ask = ModelAsk { op, session, model: &model, asked: Asked::Answer(&request), tools };
        let record = self.executor.open_model_record(ask);
        let answer = if state.spec().dispatch == Dispatch::Streaming {
            let (events, mut calls) = StreamEvents::new(&text, self.executor.calls_per_turn());
            let mut answering = std::pin::pin!(self.complete(&model, &request, &record, &events, cancel));
            let answer = loop {
                tokio::select! {
                    biased;
                    Some(call) = calls.recv() => self.may_start(state, call, shown_tools.snapshot, options, &mut in_flight).await?,
                    answer = &mut answering => break answer,
                }
            };
            answer.map_err(|error| with_partial(error, &events))
        } else {
            self.complete(&model, &request, &record, &text, cancel).await
        };
        text.finish();
        self.answered(turn, shown_tools.snapshot, &answer, options);
        record.end(&answer);
        match answer {
            Ok(response) => state.on_model(response, &|call| resolve(shown_tools.snapshot, call))?,
            // What was started is kept, whatever happened; a cancel is seen before the next step.
            Err(error) if !in_flight.is_empty() => state.on_model_error(&error)?,
            Err(error) => {
                state.answer_lost();
                match (cancel.cause(), error.kind) {
                    (Some(cause), _) => state.cancel(cause),
                    (None, ModelErrorKind::Canceled) => state.cancel(CancelCause::User),
                    // The window is smaller than was known. Each round removes something, so they end.
                    (None, ModelErrorKind::ContextOverflow) if state.on_overflow(shown_tools.showing.tokens) => {}
                    _ => state.on_model_error(&error)?,
                }
            }
        }
        Ok(in_flight)
    }

    async fn complete(
        &self,
        model: &str,
        request: &ModelRequest,
        record: &ModelCallRecord<'_>,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        let events = record.watch(events);
        tokio::select! {
            biased;
            cause = cancel.cancelled() => Err(ModelError::new(ModelErrorKind::Canceled, format!("cancelled {}", cause.describe()))),
            answer = self.model.complete(model, request, &events, cancel) => answer,
        }
    }

    /// Starts a call whose block has closed, if it may start by itself. The state knows of it before it runs.
    async fn may_start(
        &self,
        state: &mut RunState,
        written: WrittenCall,
        snapshot: &Arc<Snapshot>,
        options: &RunOptions,
        in_flight: &mut InFlightCalls,
    ) -> Result<(), DriverError> {
        let Some(call) = state.on_call(written, &|call| resolve(snapshot, call))? else { return Ok(()) };
        let run = self.run_context(state, snapshot, options, &in_flight.cancel, in_flight);
        let Some(valid) = self.executor.startable(call, &run) else { return Ok(()) };
        state.start(&valid.id)?;
        self.save(state, options).await?;
        in_flight.start(&self.executor, valid, &run);
        Ok(())
    }

    fn asked(&self, op: &Op, state: &RunState, request: &ModelRequest, showing: Showing, options: &RunOptions) {
        let services = self.executor.services();
        let (model, turn) = (&state.spec().model, state.turns() + 1);
        let shown = request.tools.iter().filter(|tool| tool.exposed != Exposed::Deferred);
        services.events.tell_routine(|| Event::ModelStarted {
            op: op.clone(),
            session: options.session.id.clone(),
            model: model.clone(),
            turn,
            shown: shown.map(|tool| tool.name.clone()).collect(),
            deferred: showing.deferred,
            exposure: showing.exposure,
        });
        let exposure = state.exposure();
        self.record(
            options,
            || json!({"type": "request", "turn": turn, "model": model, "exposure": exposure, "request": request}),
        );
    }

    fn answered(
        &self,
        turn: u32,
        snapshot: &Snapshot,
        answer: &Result<ModelResponse, ModelError>,
        options: &RunOptions,
    ) {
        // What was whole of a broken answer is recorded as well.
        let said = answer.as_ref().map_or_else(|error| error.partial.as_deref(), Some);
        for call in said.iter().flat_map(|said| &said.calls) {
            let (id, arguments) = (CallId::new(call.id.as_str()), RawArguments::Text(call.arguments.clone()));
            let call = ToolCall { id, name: call.name.clone(), arguments };
            learn_written(&call, snapshot, &*self.executor.services().redactor);
        }
        self.record(options, || match answer {
            Ok(response) => json!({"type": "response", "turn": turn, "response": response}),
            Err(error) => {
                let mut line = json!({"type": "model_error", "turn": turn});
                if let (Value::Object(line), Ok(Value::Object(error))) =
                    (&mut line, serde_json::to_value(RecordedError::of(error)))
                {
                    line.extend(error);
                }
                line
            }
        });
    }
}

/// What the model of a request sees of the catalogue.
#[derive(Clone, Copy)]
pub(super) struct ModelTools<'a> {
    /// What the names that it writes mean.
    pub(super) snapshot: &'a Arc<Snapshot>,
    pub(super) showing: Showing,
}

/// A broken answer with at least the text that came.
fn with_partial(mut error: ModelError, events: &StreamEvents<'_>) -> ModelError {
    let usage = error.usage;
    let said = || Box::new(ModelResponse { text: events.said(), usage, ..ModelResponse::default() });
    error.partial.get_or_insert_with(said);
    error
}
