//! Sends one request to the model, records it, streams its text, and starts calls while the answer arrives.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::Snapshot;
use toolwright_core::context::Redactor;
use toolwright_core::event::{Event, EventSink, NoEvents};
use toolwright_core::exposure::ExposureRecord;
use toolwright_core::model::{
    Cost, ModelError, ModelErrorKind, ModelEvent, ModelEvents, ModelRequest, ModelResponse, NativeOutput, NativeTool,
    RawToolCall, RecordedError, RequestProgress, ToolVisibility,
};
use toolwright_core::operation::Op;
use toolwright_core::redact::{StreamRedactor, learn_written};
use toolwright_core::session::{CallId, SessionId};
use toolwright_runtime::executor::{ModelAsk, ModelQuestion};

use super::run_calls::InFlightCalls;
use super::tool_view::resolve;
use super::{Driver, DriverError, RunOptions, RunWatcher};
use crate::report::ProducedFile;
use crate::run::{Dispatch, RunState};

/// The most files of one answer that are fetched from its provider; further ones stay there.
const MAX_FETCHED: usize = 16;
/// The code of warnings about these files.
const FILE: &str = "native_file";

impl Driver {
    /// Asks the model, under the cancel token of `in_flight`, and applies the answer to the state. Returns `in_flight`
    /// with the calls that were started meanwhile.
    pub(super) async fn ask_model(
        &self,
        state: &mut RunState,
        request: ModelRequest,
        snapshot: &Arc<Snapshot>,
        (exposure_record, note): (ExposureRecord, Option<String>),
        options: &RunOptions,
        mut in_flight: InFlightCalls,
    ) -> Result<InFlightCalls, DriverError> {
        let cancel = &in_flight.cancel.clone();
        let (model, turn) = (state.config().model.clone(), state.turns() + 1);
        let room = match &options.agent_budget {
            Some(agent_budget) => agent_budget.reserve(&*self.model, &model, &request).await.map(Some),
            None => Ok(None),
        };
        let room = match room {
            Ok(room) => room,
            Err(refused) => {
                state.end_at_limit(refused.message().to_owned());
                return Ok(in_flight);
            }
        };
        let services = self.executor.services();
        let events = if options.is_part() { Arc::new(NoEvents) as _ } else { Arc::clone(&services.events) };
        let text = TextEvents {
            watcher: options.watcher.clone(),
            ..TextEvents::new(events, services.redactor.clone(), options.session.id.clone())
        };
        let op = self.executor.begin(&options.lineage(turn));
        state.on_request(exposure_record.tokens);
        self.record_request(&op, state, &request, exposure_record, options);
        let (session, tools) = (&*options.session, Some(exposure_record));
        let (question, lost) = (ModelQuestion::Answer(&request), options.lost.to_vec());
        let ask = ModelAsk { op, session, model: &model, question, tools, lost, note };
        let record = self.executor.models().open_record(ask);
        let answer = if state.config().dispatch == Dispatch::Streaming {
            let (events, mut calls) = StreamEvents::new(&text, self.executor.calls_per_turn());
            let mut answering = std::pin::pin!(record.complete(&*self.model, &request, &events, cancel));
            let answer = loop {
                tokio::select! {
                    biased;
                    Some(call) = calls.recv() => self.may_start(state, call, snapshot, options, &mut in_flight).await?,
                    answer = &mut answering => break answer,
                }
            };
            answer.map_err(|error| with_partial(error, &events))
        } else {
            record.complete(&*self.model, &request, &text, cancel).await
        };
        text.finish();
        if let Some(watcher) = &options.watcher {
            watcher.answered(answer.as_ref());
        }
        let used = answer.as_ref().map_or_else(|error| error.usage, |answer| answer.usage);
        room.into_iter().for_each(|room| room.settle(used));
        in_flight.meter.report(&model, used);
        state.on_cost(match &answer {
            Ok(_) => Cost::of(self.prices().of(&model).and_then(|prices| prices.known_cost(used))),
            Err(_) => Cost::of_usage(used, self.prices().of(&model)),
        });
        self.record_answer(turn, snapshot, &answer, options);
        record.end(&answer);
        if let Ok(response) = &answer
            && !response.native.is_empty()
        {
            self.take_native(state, &response.native, options).await;
        }
        match answer {
            Ok(response) => state.on_model(response, &|call| resolve(snapshot, call))?,
            // Started calls are kept in any case; a cancel is noticed before the next step.
            Err(error) if !in_flight.is_empty() => state.on_model_error(&error)?,
            Err(error) => {
                state.keep_started_calls(None);
                match (cancel.cause(), error.kind) {
                    // The run is left to the next process before its next step.
                    (Some(CancelCause::Shutdown), _) => {}
                    (Some(cause), _) => state.cancel(cause),
                    (None, ModelErrorKind::Canceled) => state.cancel(CancelCause::User),
                    // The window is smaller than expected. The retries end, because each removes something.
                    (None, ModelErrorKind::ContextOverflow) if state.on_overflow(exposure_record.tokens) => {}
                    _ => state.on_model_error(&error)?,
                }
            }
        }
        Ok(in_flight)
    }

    /// Records the work of the provider's tools: files in the store, uses and sources in the report.
    async fn take_native(&self, state: &mut RunState, output: &NativeOutput, options: &RunOptions) {
        let model = state.config().model.clone();
        for tool in NativeTool::ALL {
            if output.charged(tool) > 0 {
                state.on_cost(Cost::of(self.prices().of_uses(&model, tool, output)));
            }
        }
        let mut files = Vec::with_capacity(output.artifacts.len());
        for artifact in &output.artifacts {
            let mut file = ProducedFile {
                name: artifact.name.clone(),
                media_type: artifact.media_type.clone(),
                handle: None,
                bytes: None,
            };
            let may_fetch = files.len() < MAX_FETCHED;
            let bytes = match (&artifact.data, artifact.path.as_ref().filter(|_| may_fetch)) {
                (Some(data), _) => BASE64_STANDARD.decode(data).map(Some).map_err(|error| error.to_string()),
                (None, Some(path)) => match self.model.fetch_file(&model, path, &options.cancel).await {
                    Ok(fetched) => {
                        file.media_type = fetched.media_type;
                        Ok(Some(fetched.bytes))
                    }
                    Err(error) => Err(error.message),
                },
                // The file stays at the provider.
                (None, None) => Ok(None),
            };
            match bytes {
                Ok(Some(bytes)) => {
                    let outputs = &self.executor.services().outputs;
                    match outputs.put_artifact(&options.session.id, &bytes, &file.media_type).await {
                        Ok(stored) => (file.handle, file.bytes) = (Some(stored.handle), Some(stored.bytes)),
                        Err(error) => self.warn(FILE, format!("file `{}` of {model} was not kept: {error}", file.name)),
                    }
                }
                Ok(None) => {}
                Err(error) => self.warn(FILE, format!("file `{}` of {model} was not fetched: {error}", file.name)),
            }
            files.push(file);
        }
        state.on_native(output, files);
    }

    /// Starts a call whose block is complete, if it can start alone. The state is saved before it runs.
    async fn may_start(
        &self,
        state: &mut RunState,
        written: RawToolCall,
        snapshot: &Arc<Snapshot>,
        options: &RunOptions,
        in_flight: &mut InFlightCalls,
    ) -> Result<(), DriverError> {
        let Some(call) = state.on_call(written, &|call| resolve(snapshot, call))? else { return Ok(()) };
        let run = self.call_context(state, snapshot, options, &in_flight.cancel, in_flight);
        let written = call.clone();
        let Some(valid) = self.executor.startable(call, &run) else { return Ok(()) };
        state.start(&valid.id)?;
        self.save(state, options).await?;
        if let Some(watcher) = &options.watcher {
            watcher.on_call_start(&written);
        }
        in_flight.start(&self.executor, valid, &run);
        Ok(())
    }

    fn record_request(
        &self,
        op: &Op,
        state: &RunState,
        request: &ModelRequest,
        exposure_record: ExposureRecord,
        options: &RunOptions,
    ) {
        let services = self.executor.services();
        let (model, turn) = (&state.config().model, state.turns() + 1);
        let listed_tools = request.tools.iter().filter(|tool| tool.exposed != ToolVisibility::Deferred);
        services.events.emit_routine(|| Event::ModelStarted {
            op: op.clone(),
            session: options.session.id.clone(),
            model: model.clone(),
            turn,
            shown: listed_tools.map(|tool| tool.name.clone()).collect(),
            deferred: exposure_record.deferred,
            exposure: exposure_record.exposure,
        });
        let exposure = state.exposure();
        self.record(
            options,
            || json!({"type": "request", "turn": turn, "model": model, "exposure": exposure, "request": request}),
        );
    }

    fn record_answer(
        &self,
        turn: u32,
        snapshot: &Snapshot,
        answer: &Result<ModelResponse, ModelError>,
        options: &RunOptions,
    ) {
        // The complete calls of a broken answer are recorded too.
        let response = answer.as_ref().map_or_else(|error| error.partial.as_deref(), Some);
        for call in response.iter().flat_map(|response| &response.calls) {
            let (id, arguments) = (CallId::new(call.id.as_str()), RawArguments::Text(call.arguments.clone()));
            let call = ToolCall::new(id, call.name.clone(), arguments);
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

/// Adds the text that has arrived to the error of a broken answer.
fn with_partial(mut error: ModelError, events: &StreamEvents<'_>) -> ModelError {
    let usage = error.usage;
    let partial = || Box::new(ModelResponse { text: events.text_so_far(), usage, ..ModelResponse::default() });
    error.partial.get_or_insert_with(partial);
    error
}

/// Passes text on, and sends complete calls to be started: as many as may run in a turn.
struct StreamEvents<'a> {
    text: &'a TextEvents,
    text_so_far: Mutex<String>,
    calls: UnboundedSender<RawToolCall>,
    left: AtomicUsize,
}

impl<'a> StreamEvents<'a> {
    fn new(text: &'a TextEvents, limit: usize) -> (Self, UnboundedReceiver<RawToolCall>) {
        let (calls, receiver) = unbounded_channel();
        (Self { text, text_so_far: Mutex::default(), calls, left: AtomicUsize::new(limit) }, receiver)
    }

    fn text_so_far(&self) -> String {
        self.text_so_far.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ModelEvents for StreamEvents<'_> {
    fn on_event(&self, event: ModelEvent) {
        match &event {
            ModelEvent::Text(text) => {
                self.text_so_far.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
            }
            ModelEvent::Call(call) => {
                let one_less = |left: usize| left.checked_sub(1);
                if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
                    // Without a receiver the call runs after its turn is complete.
                    let _ = self.calls.send(call.clone());
                }
            }
            ModelEvent::Reasoning(_) | ModelEvent::Opaque(_) => {}
        }
        self.text.on_event(event);
    }

    fn on_traffic(&self, traffic: RequestProgress) {
        self.text.on_traffic(traffic);
    }
}

/// Emits the model's text as events, as soon as it cannot be part of a secret, which may arrive in several pieces.
struct TextEvents {
    events: Arc<dyn EventSink>,
    session: SessionId,
    stream: Mutex<StreamRedactor>,
    watcher: Option<Arc<dyn RunWatcher>>,
}

impl TextEvents {
    fn new(events: Arc<dyn EventSink>, redactor: Arc<dyn Redactor>, session: SessionId) -> Self {
        Self { events, session, stream: Mutex::new(StreamRedactor::new(redactor)), watcher: None }
    }

    /// Emits the rest at the end of the answer.
    fn finish(&self) {
        self.emit(StreamRedactor::finish);
    }

    fn emit(&self, take: impl FnOnce(&mut StreamRedactor) -> String) {
        let text = take(&mut self.stream.lock().unwrap_or_else(PoisonError::into_inner));
        if !text.is_empty() {
            if let Some(watcher) = &self.watcher {
                watcher.text(&text);
            }
            self.events.emit_routine(|| Event::ModelText { session: self.session.clone(), text });
        }
    }
}

impl ModelEvents for TextEvents {
    fn on_event(&self, event: ModelEvent) {
        match event {
            ModelEvent::Text(text) => self.emit(|stream| stream.push(&text)),
            ModelEvent::Reasoning(text) => {
                if let Some(watcher) = &self.watcher {
                    watcher.reasoning(&text);
                }
            }
            ModelEvent::Call(_) | ModelEvent::Opaque(_) => {}
        }
    }

    fn on_traffic(&self, traffic: RequestProgress) {
        if let (RequestProgress::Lost(parts), Some(watcher)) = (traffic, &self.watcher) {
            watcher.lost(&parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use toolwright_testkit::{FakeEvents, FakeRedactor};

    use super::*;

    fn check(pieces: &[&str], expect: &[&str]) {
        let log = Arc::new(FakeEvents::default());
        let events = TextEvents::new(log.clone(), Arc::new(FakeRedactor("sk-12345")), SessionId::new("s"));
        for piece in pieces {
            events.on_event(ModelEvent::Text((*piece).to_owned()));
        }
        events.finish();
        let seen = log.seen();
        let texts = seen.iter().filter_map(|event| match event {
            Event::ModelText { text, .. } => Some(text),
            _ => None,
        });
        assert_eq!(texts.collect::<Vec<_>>(), expect, "{pieces:?}");
    }

    #[test]
    fn text_streams_word_by_word_without_secrets() {
        check(&[], &[]);
        check(&["one tw", "o\n"], &["one ", "two\n"]);
        check(&["the key is sk-1", "23", "45, keep it"], &["the key is ", "[secret], keep ", "it"]);
        check(&["sk-12345"], &["[secret]"]);
        check(&["早上好。sk-", "12345"], &["早上好。", "[secret]"]);
    }
}
