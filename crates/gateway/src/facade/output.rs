//! The answer of one request as it is written: what a run says becomes pieces of the API, and frames of a stream.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use toolwright_agent::RunWatcher;
use toolwright_core::approval::ApprovalRequest;
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::content::text_for_model;
use toolwright_core::model::{
    ModelError, ModelErrorKind, ModelEvent, ModelEvents, ModelResponse, StopReason, WrittenCall,
};
use toolwright_core::outcome::Outcome;
use toolwright_core::output::head_and_tail;
use toolwright_models::served::{End, Fault, Piece, ResponseHead, ResponseWriter, ServedApi, error_body};

/// Bytes of a result that an item of a call shows.
const SHOWN_RESULT: usize = 4000;
/// How the names of the agent's own tools begin: they are no work of its own.
const OWN: &str = "agent__final_report";
/// What the id of a question begins with; the id of its call follows.
pub(super) const QUESTION: &str = "appr_";

/// Why a request has no answer.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) fault: Fault,
    pub(super) message: String,
    pub(super) field: Option<&'static str>,
    pub(super) retry_after_ms: Option<u64>,
}

impl Refusal {
    pub(super) fn new(fault: Fault, message: impl Into<String>) -> Self {
        Self { fault, message: message.into(), field: None, retry_after_ms: None }
    }

    pub(super) fn of_model(error: &ModelError) -> Self {
        let fault = match error.kind {
            ModelErrorKind::RateLimit | ModelErrorKind::Quota => Fault::RateLimited,
            ModelErrorKind::Unavailable => Fault::Overloaded,
            ModelErrorKind::ContextOverflow | ModelErrorKind::ContentFilter | ModelErrorKind::Invalid => Fault::Invalid,
            ModelErrorKind::Unsupported => Fault::NotFound,
            ModelErrorKind::Auth | ModelErrorKind::BadResponse | ModelErrorKind::Canceled => Fault::Internal,
        };
        Self { retry_after_ms: error.retry_after_ms, ..Self::new(fault, format!("the model: {error}")) }
    }

    pub(super) fn body(&self, api: ServedApi) -> Value {
        error_body(api, self.fault, &self.message, self.field)
    }
}

/// What a stream gets.
#[derive(Debug)]
pub(super) enum Frame {
    /// Events.
    Events(String),
    /// The request is refused, before any event.
    Refused(Refusal),
}

/// The answer of one request.
pub(super) struct Output {
    api: ServedApi,
    reasoning: bool,
    state: Mutex<State>,
    /// Told when a call waits for a person.
    pub(super) asked: Notify,
}

struct State {
    writer: ResponseWriter,
    frames: Option<UnboundedSender<Frame>>,
    begun: bool,
    /// The next text is another one than the last.
    broken: bool,
    /// The text since the last break.
    said: String,
    calls: HashSet<String>,
    stop: StopReason,
    refusal: Option<Refusal>,
}

impl Output {
    pub(super) fn new(
        api: ServedApi,
        head: ResponseHead,
        reasoning: bool,
        frames: Option<UnboundedSender<Frame>>,
    ) -> Self {
        let state = State {
            writer: ResponseWriter::new(api, head),
            frames,
            begun: false,
            broken: false,
            said: String::new(),
            calls: HashSet::new(),
            stop: StopReason::End,
            refusal: None,
        };
        Self { api, reasoning, state: Mutex::new(state), asked: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer so far.
    pub(super) fn body(&self) -> Value {
        self.state().writer.body()
    }

    /// Adds a piece.
    pub(super) fn piece(&self, piece: &Piece) {
        let mut state = self.state();
        if matches!(piece, Piece::Call(_) | Piece::Began(_) | Piece::Question { .. }) {
            state.broken = true;
        }
        state.write(piece);
    }

    /// What the model refused or failed with last, if nothing came after.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.state().refusal.clone()
    }

    /// Why the model stopped last.
    pub(super) fn stop(&self) -> StopReason {
        self.state().stop.clone()
    }

    /// Says the answer, unless it is the text that was said last.
    pub(super) fn answer(&self, text: &str) {
        let mut state = self.state();
        if !text.trim().is_empty() && state.said.trim() != text.trim() {
            state.broken = true;
            state.say(text);
        }
    }

    /// Ends the answer. The events that say so are sent by the result: what is stored must be stored before.
    pub(super) fn end(&self, end: End) -> impl FnOnce() + use<'_> {
        let mut state = self.state();
        state.begin();
        let events = state.writer.end(end);
        drop(state);
        move || self.state().send(events)
    }

    /// Ends the answer with an error.
    pub(super) fn fail(&self, refusal: &Refusal) {
        let body = refusal.body(self.api);
        let mut state = self.state();
        if state.begun {
            let events = state.writer.fail(&body);
            state.send(events);
        } else {
            // Responses keeps failed ones.
            let _ = state.writer.fail(&body);
            if let Some(frames) = &state.frames {
                let _ = frames.send(Frame::Refused(refusal.clone()));
            }
        }
    }

    /// Shows that a call waits for a person.
    pub(super) fn question(&self, request: &ApprovalRequest, name: &str) {
        let id = format!("{QUESTION}{}", request.call_id.as_str());
        let arguments = request.arguments.to_string();
        self.piece(&Piece::Question { id: id.clone(), call: WrittenCall { id, name: name.to_owned(), arguments } });
        self.asked.notify_one();
    }
}

impl State {
    fn send(&self, events: String) {
        if let Some(frames) = self.frames.as_ref().filter(|_| !events.is_empty()) {
            // Without a reader the client is gone.
            let _ = frames.send(Frame::Events(events));
        }
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            let events = self.writer.begin();
            self.send(events);
        }
    }

    fn write(&mut self, piece: &Piece) {
        self.begin();
        let events = self.writer.piece(piece);
        self.send(events);
    }

    fn say(&mut self, piece: &str) {
        if std::mem::take(&mut self.broken) {
            self.said.clear();
            self.write(&Piece::Break);
        }
        self.said.push_str(piece);
        self.write(&Piece::Text(piece.to_owned()));
    }
}

impl RunWatcher for Output {
    fn text(&self, piece: &str) {
        self.state().say(piece);
    }

    fn reasoning(&self, piece: &str) {
        if self.reasoning {
            self.state().write(&Piece::Reasoning(piece.to_owned()));
        }
    }

    fn answered(&self, answer: Result<&ModelResponse, &ModelError>) {
        let mut state = self.state();
        state.broken = true;
        match answer {
            Ok(response) => (state.stop, state.refusal) = (response.stop.clone(), None),
            Err(error) => state.refusal = Some(Refusal::of_model(error)),
        }
    }

    fn began(&self, call: &ToolCall) {
        if call.name == OWN || !self.state().calls.insert(call.id.to_string()) {
            return;
        }
        let arguments = match &call.arguments {
            RawArguments::Text(text) => text.clone(),
            RawArguments::Value(value) | RawArguments::Resolved(value, _) => value.to_string(),
        };
        let call = WrittenCall { id: call.id.to_string(), name: call.name.clone(), arguments };
        self.piece(&Piece::Began(call));
    }

    fn ended(&self, outcome: &Outcome) {
        let id = outcome.call_id.to_string();
        if outcome.pending.is_some() || !self.state().calls.remove(&id) {
            return;
        }
        let text = head_and_tail(&text_for_model(&outcome.content), SHOWN_RESULT);
        self.piece(&Piece::Ended { id, ok: outcome.ok, text });
    }
}

impl ModelEvents for Output {
    fn on_event(&self, event: ModelEvent) {
        match event {
            ModelEvent::Text(text) => self.text(&text),
            ModelEvent::Reasoning(text) => self.reasoning(&text),
            ModelEvent::Call(call) => self.piece(&Piece::Call(call)),
        }
    }
}
