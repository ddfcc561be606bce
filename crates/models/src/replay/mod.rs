//! Models that are recordings: `replay:FILE` answers what the model answered when FILE was written, and asks nobody.

mod matching;
mod recording;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use toolwright_core::Redactor;
use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{
    ModelCard, ModelError, ModelErrorKind, ModelEvent, ModelEvents, ModelRequest, ModelResponse, REPLAY, Traffic,
    Usability,
};

use recording::{Exchange, Recording};

/// Recordings that are kept open.
const MAX_RECORDINGS: usize = 16;
/// Behind the file's name: requests that are not recorded get the recorded answers in their order.
const LOOSE: &str = "?loose";
/// The shortest piece of text that is told as one event, in bytes, and the most pieces of one text.
const PIECE: usize = 24;
const MAX_PIECES: usize = 400;

/// A recording that gives its first answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Its file, as the model's id names it.
    pub file: String,
    /// How many requests it holds.
    pub requests: usize,
    /// Whether its last line is not whole, and left out.
    pub is_torn: bool,
    /// Lines that are too long to be read, and left out.
    pub overlong: usize,
}

/// All recordings of one client.
pub(crate) struct Replays {
    redactor: Arc<dyn Redactor>,
    open: Mutex<HashMap<String, Arc<Player>>>,
}

impl Replays {
    /// Requests are recorded as `redactor` leaves them, so they are looked for as it does.
    pub(crate) fn new(redactor: Arc<dyn Redactor>) -> Self {
        Self { redactor, open: Mutex::default() }
    }

    /// The recorded answer to `request`. `told` hears of a recording before its first answer.
    ///
    /// # Errors
    /// `Unsupported` where there is no such recording, `BadResponse` where it has no answer to the request, and what
    /// was recorded as the request's failure. None of them is worth another try.
    pub(crate) fn answer(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        told: &dyn Fn(&Replayed),
    ) -> Result<ModelResponse, ModelError> {
        let (file, otherwise) = named(model)?;
        let player = self.player(file)?;
        let asked = self.redactor.redact_value(&matching::of_request(request));
        let system = matching::system(&self.redactor.redact(&request.system));
        let (number, first) = player.take(&asked, system, otherwise)?;
        if first {
            let recording = &player.recording;
            told(&Replayed {
                file: file.to_owned(),
                requests: recording.exchanges.len(),
                is_torn: recording.is_torn,
                overlong: recording.overlong,
            });
        }
        match &player.recording.exchanges[number].answer {
            Ok(answer) => {
                play(answer, events);
                Ok(answer.clone())
            }
            Err(error) => {
                let message = format!("{} (replayed from {file})", error.message);
                Err(ModelError { should_retry: Some(false), ..ModelError::new(error.kind, message) })
            }
        }
    }

    pub(crate) fn has_tool_search(&self, model: &str) -> bool {
        named(model).and_then(|(file, _)| self.player(file)).is_ok_and(|player| player.recording.has_deferred)
    }

    pub(crate) fn card(&self, model: &str) -> ModelCard {
        match named(model).and_then(|(file, _)| self.player(file)) {
            Ok(player) => ModelCard { stands_for: player.recording.model.clone(), ..ModelCard::default() },
            Err(error) => ModelCard { usability: Usability::Unknown(described(&error)), ..ModelCard::default() },
        }
    }

    pub(crate) fn check(&self, model: &str) -> Result<(), ModelError> {
        named(model).and_then(|(file, _)| self.player(file)).map(drop)
    }

    /// The recording of a file, which is read when it is first asked for.
    fn player(&self, file: &str) -> Result<Arc<Player>, ModelError> {
        let open = || self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let room = |open: &HashMap<String, Arc<Player>>| {
            let message = format!("{MAX_RECORDINGS} recordings are open already, and {file} would be one more");
            let full = || ModelError::new(ModelErrorKind::Unsupported, message);
            if open.len() < MAX_RECORDINGS { Ok(()) } else { Err(full()) }
        };
        {
            let open = open();
            if let Some(player) = open.get(file) {
                return Ok(Arc::clone(player));
            }
            room(&open)?;
        }
        // Nobody waits for the others to be read. Of two that are read at once the first counts.
        let player = Arc::new(Player { recording: Recording::read(file)?, state: Mutex::default() });
        let mut open = open();
        if let Some(player) = open.get(file) {
            return Ok(Arc::clone(player));
        }
        room(&open)?;
        open.insert(file.to_owned(), Arc::clone(&player));
        Ok(player)
    }

    /// Whether what the id names was read before.
    pub(crate) fn is_open(&self, model: &str) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        named(model).is_ok_and(|(file, _)| open.contains_key(file))
    }
}

/// An error with its cause.
fn described(error: &ModelError) -> String {
    match &error.source {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// What becomes of a request that is not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Otherwise {
    Fail,
    TakeNext,
}

/// The file that a model's id names.
fn named(model: &str) -> Result<(&str, Otherwise), ModelError> {
    let rest = model.strip_prefix(REPLAY).unwrap_or(model);
    let (file, otherwise) = match rest.strip_suffix(LOOSE) {
        Some(file) => (file, Otherwise::TakeNext),
        None => (rest, Otherwise::Fail),
    };
    if file.is_empty() {
        let message = format!("`{model}` names no recording: write {REPLAY}FILE, or {REPLAY}FILE{LOOSE}");
        return Err(ModelError::new(ModelErrorKind::Unsupported, message));
    }
    Ok((file, otherwise))
}

/// A recording at some place in it.
struct Player {
    recording: Recording,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Of each exchange, which of all answers it was when it was played last, from 1; 0 for one that was not.
    played: Vec<u64>,
    /// Answers that were played.
    answers: u64,
}

impl Player {
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.played.resize(self.recording.exchanges.len(), 0);
        state
    }

    /// The number of the exchange that answers a request, and whether it is the first of all that is played. A request
    /// that was recorded several times gets its answers in their order, those with its system prompt first, and then
    /// the last of them again.
    fn take(&self, asked: &Value, system: ContentHash, otherwise: Otherwise) -> Result<(usize, bool), ModelError> {
        let exchanges = &self.recording.exchanges;
        let fitting = self.fitting(asked);
        let mut state = self.state();
        let is_played = |number: &usize| state.played[*number] > 0;
        let same = |number: &usize| exchanges[*number].system == system;
        let unplayed: Vec<usize> = fitting.iter().copied().filter(|number| !is_played(number)).collect();
        let next = unplayed.iter().find(|number| same(number)).or_else(|| unplayed.first());
        let number =
            next.or_else(|| fitting.iter().max_by_key(|number| (same(number), state.played[**number]))).copied();
        let number = match (number, otherwise) {
            (Some(number), _) => number,
            (None, Otherwise::TakeNext) => (0..exchanges.len()).find(|number| !is_played(number)).ok_or_else(|| {
                let message = format!("the recording is at its end: all of its {} answers are played", exchanges.len());
                ModelError::new(ModelErrorKind::BadResponse, message)
            })?,
            (None, Otherwise::Fail) => {
                let played: Vec<bool> = state.played.iter().map(|played| *played > 0).collect();
                drop(state);
                return Err(self.unknown(asked, &played));
            }
        };
        state.answers += 1;
        state.played[number] = state.answers;
        Ok((number, state.answers == 1))
    }

    /// The exchanges whose request this is, in order. Where there is none, those that it may be: of what was taken out
    /// of them nobody knows what it was.
    fn fitting(&self, asked: &Value) -> Vec<usize> {
        let (hash, messages) = (ContentHash::of_value(asked), matching::messages(asked).len());
        let exchanges = || self.recording.exchanges.iter().enumerate();
        let same: Vec<usize> =
            exchanges().filter(|(_, exchange)| exchange.hash == hash).map(|(number, _)| number).collect();
        if !same.is_empty() {
            return same;
        }
        let may_be = |exchange: &Exchange| {
            exchange.is_marked
                && exchange.messages == messages
                && serde_json::from_str(&exchange.key).is_ok_and(|key| matching::fits(&key, asked))
        };
        exchanges().filter(|(_, exchange)| may_be(exchange)).map(|(number, _)| number).collect()
    }

    /// Why a request has no answer: in what it differs from the recorded one that begins as it does for longest.
    fn unknown(&self, asked: &Value, played: &[bool]) -> ModelError {
        let keys =
            self.recording.exchanges.iter().map(|exchange| serde_json::from_str(&exchange.key).unwrap_or_default());
        let keys: Vec<Value> = keys.collect();
        // Of those that are equally near the first that has not been played, which is the one that was to come.
        let near =
            (0..keys.len()).rev().max_by_key(|&number| (matching::common(&keys[number], asked), !played[number]));
        let differs = near.and_then(|number| {
            let difference = matching::difference(&keys[number], asked)?;
            Some(format!("; the nearest is number {}, which differs at {difference}", number + 1))
        });
        let message = format!(
            "the recording holds {} requests, and not this one{}; with {LOOSE} behind the file's name, such a request \
             gets the next answer",
            keys.len(),
            differs.unwrap_or_default()
        );
        ModelError::new(ModelErrorKind::BadResponse, message)
    }
}

/// Tells an answer piece by piece, as if it came.
fn play(answer: &ModelResponse, events: &dyn ModelEvents) {
    events.on_traffic(Traffic::FirstByte);
    for piece in pieces(&answer.reasoning) {
        events.on_event(ModelEvent::Reasoning(piece.to_owned()));
    }
    for piece in pieces(&answer.text) {
        events.on_event(ModelEvent::Text(piece.to_owned()));
    }
    for call in &answer.calls {
        events.on_event(ModelEvent::Call(call.clone()));
    }
}

fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let size = PIECE.max(text.len().div_ceil(MAX_PIECES));
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = (size.min(rest.len())..=rest.len()).find(|&end| rest.is_char_boundary(end))?;
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}
