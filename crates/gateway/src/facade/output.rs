//! Writes the answer to one request: turns the events of a run into pieces of the API, and frames of a stream.

use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::sync::Notify;
use toolwright_agent::RunWatcher;
use toolwright_core::approval::ApprovalRequest;
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::content::text_for_model;
use toolwright_core::model::{
    ModelError, ModelEvent, ModelEvents, ModelResponse, RawToolCall, RequestProgress, StopReason,
};
use toolwright_core::outcome::Outcome;
use toolwright_core::output::head_and_tail;
use toolwright_core::tool_id::short_hash;
use toolwright_models::served::{Fault, ResponseEnd, ResponseHead, ResponsePiece, ResponseWriter, ServedApi};

use super::refusal::Refusal;
use crate::http::api_shape::with_request_id;

/// Bytes of a result that a call's item shows.
const SHOWN_RESULT: usize = 4000;
/// Unread bytes at which the writer stops. One more piece may be added to them.
const MAX_UNREAD: usize = 256 * 1024;
/// Longest time that a client may leave events unread.
const STALL: Duration = Duration::from_secs(60);
/// The agent's internal tool for its final report, which is not shown as a call.
const OWN: &str = "agent__final_report";
/// Prefix of a question's id; the id of its call follows.
pub(super) const QUESTION: &str = "appr_";
/// Length of the hash in a call's id, in digits.
const CALL_HASH: usize = 24;

/// An item of a stream.
#[derive(Debug)]
pub(super) enum Frame {
    /// Events.
    Events(String),
    /// The request is refused before any event. The text is the same refusal as events, for a stream that has begun
    /// with a comment.
    Refused(Refusal, String),
}

/// The answer of one request.
pub(super) struct Output {
    api: ServedApi,
    id: String,
    shows: ResponseIncludes,
    state: Mutex<OutputState>,
    /// Whether the owner deleted it, so that it must not be stored.
    pub(super) deleted: AtomicBool,
    /// Notified when a call waits for a person.
    pub(super) person_needed: Notify,
    /// Notified when an answer that waits for a person is stored.
    pub(super) pending: Notify,
    /// Notified when there is something to read.
    more: Notify,
    /// Notified when events were read, or the reader has left.
    room: Notify,
}

/// The optional parts of an answer that the client asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ResponseIncludes {
    pub(super) reasoning: bool,
    /// Reasoning with its API's signature.
    pub(super) signatures: bool,
}

struct OutputState {
    writer: ResponseWriter,
    /// The pieces written so far, consecutive texts joined.
    pieces: Vec<ResponsePiece>,
    /// Events that the client of a stream has not read.
    unread: Option<UnreadEvents>,
    begun: bool,
    /// The parts that the model is not sent.
    lost: Vec<&'static str>,
    /// Whether the next text starts a new block.
    broken: bool,
    /// The text since the last break.
    text: String,
    calls: HashSet<String>,
    has_question: bool,
    stop: StopReason,
    refusal: Option<Refusal>,
}

#[derive(Default)]
struct UnreadEvents {
    events: String,
    refused: Option<(Refusal, String)>,
    /// Whether the work is ending: its last output is small and does not wait for the reader.
    is_ending: bool,
    /// Whether no more events follow.
    ended: bool,
}

impl Output {
    /// Creates an answer. With `is_stream`, [`Output::next`] reads its events.
    pub(super) fn new(api: ServedApi, head: ResponseHead, shows: ResponseIncludes, is_stream: bool) -> Self {
        let id = head.id.clone();
        let state = OutputState {
            writer: ResponseWriter::new(api, head),
            pieces: Vec::new(),
            unread: is_stream.then(UnreadEvents::default),
            begun: false,
            lost: Vec::new(),
            broken: false,
            text: String::new(),
            calls: HashSet::new(),
            has_question: false,
            stop: StopReason::End,
            refusal: None,
        };
        Self {
            api,
            id,
            shows,
            state: Mutex::new(state),
            deleted: AtomicBool::new(false),
            person_needed: Notify::new(),
            pending: Notify::new(),
            more: Notify::new(),
            room: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, OutputState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the reader.
    fn write(&self, write: impl FnOnce(&mut OutputState)) {
        write(&mut self.state());
        self.more.notify_one();
    }

    /// Returns the next frame of a stream: all unread events, or the refusal. `None` at the end.
    pub(super) async fn next(&self) -> Option<Frame> {
        loop {
            {
                let mut state = self.state();
                let unread = state.unread.as_mut()?;
                if !unread.events.is_empty() {
                    let events = std::mem::take(&mut unread.events);
                    self.room.notify_one();
                    return Some(Frame::Events(events));
                }
                if let Some((refusal, events)) = unread.refused.take() {
                    return Some(Frame::Refused(refusal, events));
                }
                if unread.ended {
                    return None;
                }
            }
            self.more.notified().await;
        }
    }

    /// Detaches the reader of the stream.
    pub(super) fn detach_reader(&self) {
        self.state().unread = None;
        self.room.notify_one();
    }

    /// Ends the stream: no more events follow.
    pub(super) fn close(&self) {
        self.write(|state| {
            if let Some(unread) = &mut state.unread {
                unread.ended = true;
            }
        });
    }

    fn has_room(&self) -> bool {
        let has_room = |unread: &UnreadEvents| unread.is_ending || unread.ended || unread.events.len() < MAX_UNREAD;
        self.state().unread.as_ref().is_none_or(has_room)
    }

    /// Marks that the work is about to end and only writes its last events.
    fn ending(&self) {
        if let Some(unread) = &mut self.state().unread {
            unread.is_ending = true;
        }
    }

    /// Ends the stream with an error; the work continues.
    fn cut(&self) {
        let why = "the stream was not read for a minute, and ends here; the work goes on";
        let body = self.error_body(&Refusal::new(Fault::Internal, why));
        self.write(|state| {
            let events = state.writer.interrupt(&body);
            state.send(&events);
            if let Some(unread) = &mut state.unread {
                unread.ended = true;
            }
        });
    }

    /// Runs the work that writes this answer at the pace of its reader. While more than [`MAX_UNREAD`] bytes are
    /// unread, the work is paused, and with it the stream of the model. A reader that reads nothing for [`STALL`]
    /// counts as gone: the work is cancelled, or continues if `survives_disconnect`. If the reader comes back, it gets
    /// the unread events and the reason why the stream ended.
    pub(super) async fn run_at_reader_pace<T>(
        &self,
        work: impl Future<Output = T>,
        cancel: &Cancel,
        survives_disconnect: bool,
    ) -> T {
        let mut work = pin!(work);
        loop {
            let full = poll_fn(|_| if self.has_room() { Poll::Pending } else { Poll::Ready(()) });
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = full => {}
            }
            while !self.has_room() {
                tokio::select! {
                    () = self.room.notified() => {}
                    _ = cancel.cancelled() => self.ending(),
                    () = tokio::time::sleep(STALL) => {
                        if survives_disconnect {
                            self.cut();
                        } else {
                            cancel.cancel(CancelCause::CallerGone);
                        }
                    }
                }
            }
        }
    }

    /// Returns the parts that the model is not sent, as far as it was asked.
    pub(super) fn lost(&self) -> Vec<&'static str> {
        self.state().lost.clone()
    }

    /// Returns whether a person was asked.
    pub(super) fn has_question(&self) -> bool {
        self.state().has_question
    }

    /// Returns the answer so far.
    pub(super) fn body(&self) -> Value {
        self.state().writer.body()
    }

    /// Adds a piece.
    pub(super) fn piece(&self, piece: &ResponsePiece) {
        self.write(|state| state.write(piece));
    }

    /// Returns the pieces written so far, for [`Output::replay`].
    pub(super) fn pieces(&self) -> Value {
        json!(self.state().pieces)
    }

    /// Writes the pieces of a stored answer; unreadable pieces are left out.
    pub(super) fn replay(&self, pieces: &Value) {
        let pieces = pieces.as_array().into_iter().flatten();
        for piece in pieces.filter_map(|piece| ResponsePiece::deserialize(piece).ok()) {
            self.piece(&piece);
        }
    }

    /// Returns the model's last refusal or failure, if nothing followed it.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.state().refusal.clone()
    }

    /// Returns the model's last stop reason.
    pub(super) fn stop(&self) -> StopReason {
        self.state().stop.clone()
    }

    /// Writes the final answer, unless it equals the last text written.
    pub(super) fn answer(&self, text: &str) {
        self.write(|state| {
            if !text.trim().is_empty() && state.text.trim() != text.trim() {
                state.broken = true;
                state.say(text);
            }
        });
    }

    /// Ends the answer. The returned function sends the final events, so that the caller can store the answer first.
    pub(super) fn end(&self, end: ResponseEnd) -> impl FnOnce() + use<'_> {
        let mut state = self.state();
        state.begin();
        let events = state.writer.end(end);
        drop(state);
        move || {
            self.write(|state| state.send(&events));
            self.close();
        }
    }

    /// Ends the answer with an error.
    pub(super) fn fail(&self, refusal: &Refusal) {
        let body = self.error_body(refusal);
        self.write(|state| {
            if state.begun {
                let events = state.writer.fail(&body);
                state.send(&events);
            } else {
                let events = state.writer.begin() + &state.writer.fail(&body);
                if let Some(unread) = &mut state.unread {
                    unread.refused = Some((refusal.clone(), events));
                }
            }
        });
        self.close();
    }

    /// Ends the answer as cancelled; in an API without such an end, with the error.
    pub(super) fn cancel(&self, why: &Refusal) {
        let body = self.error_body(why);
        self.write(|state| {
            state.begin();
            let events = state.writer.cancel(&body);
            state.send(&events);
        });
        self.close();
    }

    /// The error in the API's form, with the id of this request where the form has one.
    fn error_body(&self, refusal: &Refusal) -> Value {
        with_request_id(refusal.body(self.api), &self.id)
    }

    /// Returns the client's id of a call of this run. It is unique across runs, because models reuse their call ids and
    /// the client's next request uses it to name the run.
    pub(super) fn id_of_call(&self, own: &str) -> String {
        let prefix = if self.api == ServedApi::Messages { "toolu" } else { "call" };
        format!("{prefix}_{}", self.hash_of(own))
    }

    /// Returns the client's id of a question about a call of this run.
    pub(super) fn id_of_question(&self, call: &str) -> String {
        format!("{QUESTION}{}", self.hash_of(call))
    }

    fn hash_of(&self, call: &str) -> String {
        short_hash(&format!("{} {call}", self.id), CALL_HASH)
    }

    /// Gives a model's call an id unique to this answer, if its API has no ids and the call was only numbered.
    pub(super) fn name(&self, call: &mut RawToolCall) {
        let is_numbered = |number: &str| number.bytes().all(|byte| byte.is_ascii_digit());
        if call.id.strip_prefix("call_").is_some_and(is_numbered) {
            call.id = self.id_of_call(&call.id);
        }
    }

    /// Shows once that a call waits for a person.
    pub(super) fn question(&self, request: &ApprovalRequest, name: &str) {
        let id = self.id_of_question(request.call_id.as_str());
        let is_shown =
            |piece: &ResponsePiece| matches!(piece, ResponsePiece::Question { id: shown, .. } if *shown == id);
        if self.state().pieces.iter().any(is_shown) {
            return;
        }
        let arguments = request.arguments.to_string();
        self.piece(&ResponsePiece::Question {
            id: id.clone(),
            call: RawToolCall { id, name: name.to_owned(), arguments },
        });
    }
}

impl OutputState {
    fn send(&mut self, events: &str) {
        if let Some(unread) = self.unread.as_mut().filter(|unread| !unread.ended) {
            unread.events.push_str(events);
        }
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            let events = self.writer.begin();
            self.send(&events);
        }
    }

    fn write(&mut self, piece: &ResponsePiece) {
        self.begin();
        let events = self.writer.piece(piece);
        self.send(&events);
        match piece {
            ResponsePiece::Text(text) => self.text.push_str(text),
            ResponsePiece::Break => self.text.clear(),
            ResponsePiece::Call(_) => self.broken = true,
            ResponsePiece::Began(call) => {
                self.broken = true;
                self.calls.insert(call.id.clone());
            }
            ResponsePiece::Ended { id, .. } => drop(self.calls.remove(id)),
            ResponsePiece::Question { .. } => (self.broken, self.has_question) = (true, true),
            ResponsePiece::Reasoning(_) | ResponsePiece::Opaque(_) => {}
        }
        match (self.pieces.last_mut(), piece) {
            (Some(ResponsePiece::Text(whole)), ResponsePiece::Text(more))
            | (Some(ResponsePiece::Reasoning(whole)), ResponsePiece::Reasoning(more)) => {
                whole.push_str(more);
            }
            _ => self.pieces.push(piece.clone()),
        }
    }

    fn say(&mut self, piece: &str) {
        if std::mem::take(&mut self.broken) {
            self.write(&ResponsePiece::Break);
        }
        self.write(&ResponsePiece::Text(piece.to_owned()));
    }
}

impl RunWatcher for Output {
    fn lost(&self, parts: &[&'static str]) {
        let state = &mut *self.state();
        state.lost.extend(parts);
        state.lost.sort_unstable();
        state.lost.dedup();
        state.writer.forget(parts);
    }

    fn text(&self, piece: &str) {
        self.write(|state| state.say(piece));
    }

    fn reasoning(&self, piece: &str) {
        if self.shows.reasoning {
            self.write(|state| state.write(&ResponsePiece::Reasoning(piece.to_owned())));
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

    fn on_call_start(&self, call: &ToolCall) {
        if call.name == OWN || self.state().calls.contains(call.id.as_str()) {
            return;
        }
        let arguments = match &call.arguments {
            RawArguments::Text(text) => text.clone(),
            RawArguments::Value(value) | RawArguments::Resolved(value, _) => value.to_string(),
        };
        let call = RawToolCall { id: call.id.to_string(), name: call.name.clone(), arguments };
        self.piece(&ResponsePiece::Began(call));
    }

    fn ended(&self, outcome: &Outcome) {
        let id = outcome.call_id.to_string();
        if outcome.pending.is_some() || !self.state().calls.contains(&id) {
            return;
        }
        let text = head_and_tail(&text_for_model(&outcome.content), SHOWN_RESULT);
        self.piece(&ResponsePiece::Ended { id, ok: outcome.ok, text });
    }
}

impl ModelEvents for Output {
    fn on_event(&self, event: ModelEvent) {
        match event {
            ModelEvent::Text(text) => self.text(&text),
            ModelEvent::Reasoning(text) => self.reasoning(&text),
            ModelEvent::Call(mut call) => {
                self.name(&mut call);
                self.piece(&ResponsePiece::Call(call));
            }
            ModelEvent::Opaque(data) if self.shows.signatures => self.piece(&ResponsePiece::Opaque(data)),
            ModelEvent::Opaque(_) => {}
        }
    }

    fn on_traffic(&self, traffic: RequestProgress) {
        if let RequestProgress::Lost(parts) = traffic {
            RunWatcher::lost(self, &parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use toolwright_testkit::stream_order::check_stream;

    use super::*;

    const PIECE: usize = 10_000;

    /// Writes far more than the bound, and records the most unread bytes in `most`.
    async fn speak(output: &Output, most: &AtomicUsize) {
        for _ in 0..200 {
            output.text(&"x".repeat(PIECE));
            let unread = output.state().unread.as_ref().map_or(0, |unread| unread.events.len());
            most.fetch_max(unread, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
        output.end(ResponseEnd::default())();
    }

    #[tokio::test(start_paused = true)]
    async fn responses_wait_for_slow_readers() {
        let output = Output::new(ServedApi::Chat, ResponseHead::default(), ResponseIncludes::default(), true);
        let (most, cancel) = (AtomicUsize::new(0), Cancel::new());
        let reading = async {
            let mut read = 0;
            while let Some(Frame::Events(events)) = output.next().await {
                read += events.len();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            read
        };
        let (read, ()) = tokio::join!(reading, output.run_at_reader_pace(speak(&output, &most), &cancel, false));
        assert!(read > 200 * PIECE, "all of it is read: {read}");
        let most = most.load(Ordering::Relaxed);
        assert!(most < MAX_UNREAD + 2 * PIECE, "{most} bytes waited");
    }

    #[tokio::test(start_paused = true)]
    async fn readers_that_stall_read_how_it_ended() {
        for api in ServedApi::ALL {
            for survives_disconnect in [true, false] {
                let output = Output::new(api, ResponseHead::default(), ResponseIncludes::default(), true);
                let (most, cancel) = (AtomicUsize::new(0), Cancel::new());
                let work = async {
                    tokio::select! {
                        () = speak(&output, &most) => {}
                        _ = cancel.cancelled() => output.fail(&Refusal::new(Fault::Internal, "cancelled")),
                    }
                };
                output.run_at_reader_pace(work, &cancel, survives_disconnect).await;
                assert_eq!(cancel.cause().is_some(), !survives_disconnect);
                let mut stream = String::new();
                while let Some(Frame::Events(events)) = output.next().await {
                    stream.push_str(&events);
                }
                assert!(stream.len() > MAX_UNREAD, "what waited is read");
                check_stream(api.path(), &stream)
                    .unwrap_or_else(|error| panic!("{api} {survives_disconnect}: {error}"));
                let why = if survives_disconnect { "not read for a minute" } else { "cancelled" };
                assert!(stream.contains(why), "{api}: it says why");
                let body = output.body().to_string();
                assert_eq!(body.len() > 200 * PIECE, survives_disconnect, "{api}: what goes on is whole");
            }
        }
    }
}
