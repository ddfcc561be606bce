//! Recorded models: `replay:FILE` returns the responses recorded in FILE, without a server.

mod matching;
mod recording;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use toolwright_core::Redactor;
use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{
    ModelCard, ModelError, ModelErrorKind, ModelEvent, ModelEvents, ModelRequest, ModelResponse, NotRecorded,
    RECORDED_OF, REPLAY, RequestProgress, RequestTool, Usability,
};

use recording::{RecordedExchange, Recording};

/// Number of recordings kept open.
const MAX_RECORDINGS: usize = 16;
/// Suffix of a file's name: unrecorded requests get the recorded responses in order.
const LOOSE: &str = "?loose";
/// The shortest piece of text that is one event, in bytes, and the most pieces of one text.
const PIECE: usize = 24;
const MAX_PIECES: usize = 400;

/// A recording that gives its first response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Its file, as the model's id names it.
    pub file: String,
    /// Number of requests.
    pub requests: usize,
    /// Whether the last line is incomplete and was left out.
    pub is_torn: bool,
    /// Lines that are too long and were left out.
    pub overlong: usize,
}

/// All recordings of one client.
pub(crate) struct Replays {
    redactor: Arc<dyn Redactor>,
    files: Mutex<OpenRecordings>,
}

#[derive(Default)]
struct OpenRecordings {
    open: HashMap<String, Arc<Player>>,
    /// Recordings that could not be read the last time, and why.
    unusable: HashMap<String, String>,
}

impl Replays {
    /// Requests are recorded after `redactor`, and searched for after it.
    pub(crate) fn new(redactor: Arc<dyn Redactor>) -> Self {
        Self { redactor, files: Mutex::default() }
    }

    /// Returns the recorded response to `request`. Calls `announce` before the first response of a recording.
    ///
    /// # Errors
    /// `Unsupported` if there is no such recording, `BadResponse` if it has no answer to the request, or the
    /// recorded failure with its usage and partial response. None of them may be retried.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        announce: &(dyn Fn(&Replayed) + Sync),
    ) -> Result<ModelResponse, ModelError> {
        let player = self.ready(model).await?;
        let named = ReplayId::of(model)?;
        let asked = self.redactor.redact_value(&matching::key_of_request(request));
        let system = matching::system(&self.redactor.redact(&request.system));
        let (number, first) = player.take(&asked, system, named)?;
        if first {
            let recording = &player.recording;
            announce(&Replayed {
                file: named.file.to_owned(),
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
                if let Some(partial) = &error.partial {
                    play(partial, events);
                }
                Err(error.error())
            }
        }
    }

    /// Returns the recording of an id. Reads it on another thread if needed.
    pub(crate) async fn ready(self: &Arc<Self>, model: &str) -> Result<Arc<Player>, ModelError> {
        let named = ReplayId::of(model)?;
        let open = self.files().open.get(named.file).cloned();
        let player = match open {
            Some(player) => player,
            None => {
                let (replays, file) = (Arc::clone(self), named.file.to_owned());
                let read = tokio::task::spawn_blocking(move || replays.open(&file)).await;
                read.map_err(|error| ModelError {
                    source: Some(Box::new(error)),
                    ..ModelError::new(ModelErrorKind::Unsupported, format!("{model} was not read"))
                })??
            }
        };
        player.of(named).map(|_| player)
    }

    pub(crate) fn has_tool_search(&self, model: &str) -> bool {
        ReplayId::of(model)
            .is_ok_and(|named| self.files().open.get(named.file).is_some_and(|player| player.recording.has_deferred))
    }

    pub(crate) fn lacks_native(&self, model: &str, tool: &RequestTool) -> Option<String> {
        let files = self.files();
        let player = ReplayId::of(model).ok().and_then(|named| files.open.get(named.file));
        let was_declared = player.is_some_and(|player| player.recording.natives.contains(&tool.name));
        (!was_declared).then(|| "it was not declared when the recording was made".to_owned())
    }

    /// Returns what is known of a recording without reading it: nothing before [`Self::ready`].
    pub(crate) fn card(&self, model: &str) -> ModelCard {
        let unknown = |why| ModelCard { usability: Usability::Unknown(why), ..ModelCard::default() };
        let named = match ReplayId::of(model) {
            Ok(named) => named,
            Err(error) => return unknown(error.message),
        };
        let files = self.files();
        let Some(player) = files.open.get(named.file) else {
            return files.unusable.get(named.file).cloned().map(unknown).unwrap_or_default();
        };
        let all = &player.recording.models;
        match player.of(named) {
            Ok(Some(of)) => {
                let of = Arc::clone(&all[of]);
                ModelCard { stands_for: Some(Arc::clone(&of)), recorded: [of].into(), ..ModelCard::default() }
            }
            Ok(None) => {
                ModelCard { stands_for: all.first().cloned(), recorded: all[..].into(), ..ModelCard::default() }
            }
            Err(error) => unknown(error.message),
        }
    }

    /// Checks the id without reading a file.
    pub(crate) fn check(&self, model: &str) -> Result<(), ModelError> {
        match self.card(model).usability {
            Usability::Unknown(why) => Err(ModelError::new(ModelErrorKind::Unsupported, why)),
            Usability::Usable | Usability::NoKey => Ok(()),
        }
    }

    /// Reads a file, blocking.
    fn open(&self, file: &str) -> Result<Arc<Player>, ModelError> {
        let room = |files: &OpenRecordings| {
            let message = format!("{MAX_RECORDINGS} recordings are open already, and {file} would be one more");
            let full = || ModelError::new(ModelErrorKind::Unsupported, message);
            if files.open.len() < MAX_RECORDINGS { Ok(()) } else { Err(full()) }
        };
        room(&self.files())?;
        // Files are read concurrently. If one is read twice at once, the first result counts.
        let recording = Recording::read(file);
        let mut files = self.files();
        if let Some(player) = files.open.get(file) {
            return Ok(Arc::clone(player));
        }
        let recording = recording.inspect_err(|error| {
            if files.unusable.len() == MAX_RECORDINGS {
                files.unusable.clear();
            }
            files.unusable.insert(file.to_owned(), described(error));
        })?;
        room(&files)?;
        files.unusable.remove(file);
        let player = Arc::new(Player { file: file.to_owned(), recording, state: Mutex::default() });
        files.open.insert(file.to_owned(), Arc::clone(&player));
        Ok(player)
    }

    fn files(&self) -> MutexGuard<'_, OpenRecordings> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error with its cause.
fn described(error: &ModelError) -> String {
    match &error.source {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// What to do with an unrecorded request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnUnrecorded {
    Fail,
    TakeNext,
}

/// The id of a recording: `replay:FILE`, then optionally `?loose`, then optionally `?model=` and the only model whose
/// responses are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReplayId<'a> {
    file: &'a str,
    model: Option<&'a str>,
    unrecorded: OnUnrecorded,
}

impl<'a> ReplayId<'a> {
    fn of(id: &'a str) -> Result<Self, ModelError> {
        let rest = id.strip_prefix(REPLAY).unwrap_or(id);
        let (rest, model) = rest.split_once(RECORDED_OF).map_or((rest, None), |(rest, model)| (rest, Some(model)));
        let (file, unrecorded) = match rest.strip_suffix(LOOSE) {
            Some(file) => (file, OnUnrecorded::TakeNext),
            None => (rest, OnUnrecorded::Fail),
        };
        if file.is_empty() {
            let message = format!("`{id}` names no recording: write {REPLAY}FILE, or {REPLAY}FILE{LOOSE}");
            return Err(ModelError::new(ModelErrorKind::Unsupported, message));
        }
        Ok(Self { file, model, unrecorded })
    }
}

/// A recording that is being played.
pub(crate) struct Player {
    file: String,
    recording: Recording,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// For each exchange, the number of its last playback, from 1; 0 if it was not played.
    played: Vec<u64>,
    /// Responses that were played.
    answers: u64,
}

impl Player {
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.played.resize(self.recording.exchanges.len(), 0);
        state
    }

    /// Returns the index of the only model whose responses are wanted; `None` for any.
    fn of(&self, named: ReplayId<'_>) -> Result<Option<usize>, ModelError> {
        let Some(wanted) = named.model else { return Ok(None) };
        let models = &self.recording.models;
        let place = models.iter().position(|model| **model == *wanted);
        place.map(Some).ok_or_else(|| {
            let message =
                format!("the recording {} has no answer of {wanted}; it has those of {}", self.file, models.join(", "));
            ModelError::new(ModelErrorKind::Unsupported, message)
        })
    }

    /// Returns the number of the exchange for a request, and whether it is the first one played. A request that was
    /// recorded several times gets its responses in order, those with its system prompt first, and then the last one
    /// repeatedly: a request that failed with one model and succeeded with the next fails first.
    fn take(&self, asked: &Value, system: ContentHash, named: ReplayId<'_>) -> Result<(usize, bool), ModelError> {
        let exchanges = &self.recording.exchanges;
        let of = self.of(named)?;
        let is_of = |number: &usize| of.is_none_or(|of| exchanges[*number].model == of);
        let known = self.fitting(asked);
        let fitting: Vec<usize> = known.iter().copied().filter(is_of).collect();
        let mut state = self.state();
        let is_played = |number: &usize| state.played[*number] > 0;
        let same = |number: &usize| exchanges[*number].system == system;
        let unplayed: Vec<usize> = fitting.iter().copied().filter(|number| !is_played(number)).collect();
        let next = unplayed.iter().find(|number| same(number)).or_else(|| unplayed.first());
        let number =
            next.or_else(|| fitting.iter().max_by_key(|number| (same(number), state.played[**number]))).copied();
        let number = match (number, named.unrecorded) {
            (Some(number), _) => number,
            (None, OnUnrecorded::TakeNext) => {
                let next = (0..exchanges.len()).find(|number| is_of(number) && !is_played(number));
                next.ok_or_else(|| {
                    let all = (0..exchanges.len()).filter(is_of).count();
                    let file = &self.file;
                    missing(format!("the recording {file} is at its end: all of its {all} answers are played"))
                })?
            }
            (None, OnUnrecorded::Fail) => {
                let played: Vec<bool> = state.played.iter().map(|played| *played > 0).collect();
                drop(state);
                return Err(match known.first() {
                    Some(other) => self.of_another(*other, named),
                    None => self.unknown(asked, system, &played),
                });
            }
        };
        state.answers += 1;
        state.played[number] = state.answers;
        Ok((number, state.answers == 1))
    }

    /// Returns the exchanges with this request, in order. Without any, those that may match: redacted text may have
    /// been anything.
    fn fitting(&self, asked: &Value) -> Vec<usize> {
        let (hash, messages) = (ContentHash::of_value(asked), matching::messages(asked).len());
        let exchanges = || self.recording.exchanges.iter().enumerate();
        let same: Vec<usize> =
            exchanges().filter(|(_, exchange)| exchange.hash == hash).map(|(number, _)| number).collect();
        if !same.is_empty() {
            return same;
        }
        let may_be = |exchange: &RecordedExchange| {
            exchange.is_marked
                && exchange.messages == messages
                && serde_json::from_str(&exchange.key).is_ok_and(|key| matching::fits(&key, asked))
        };
        exchanges().filter(|(_, exchange)| may_be(exchange)).map(|(number, _)| number).collect()
    }

    /// The request is recorded, but not of the model that is wanted.
    fn of_another(&self, number: usize, named: ReplayId<'_>) -> ModelError {
        let exchange = &self.recording.exchanges[number];
        let (wanted, asked) = (named.model.unwrap_or_default(), &self.recording.models[exchange.model]);
        missing(format!(
            "the recording {} has this request of {asked} (line {}), and not of {wanted}: leave {RECORDED_OF}{wanted} \
             away to get its answer",
            self.file, exchange.line
        ))
    }

    /// Why a request has no response: how it differs from the most similar recorded one.
    fn unknown(&self, asked: &Value, system: ContentHash, played: &[bool]) -> ModelError {
        let exchanges = &self.recording.exchanges;
        let keys = exchanges.iter().map(|exchange| serde_json::from_str(&exchange.key).unwrap_or_default());
        let keys: Vec<Value> = keys.collect();
        // Of equally similar ones, the first unplayed one, which was expected next.
        let near = (0..keys.len()).rev().max_by_key(|&number| {
            let similarity = matching::similarity(&keys[number], asked, exchanges[number].system == system);
            (similarity, !played[number])
        });
        let differs = near.and_then(|number| {
            let difference = matching::difference(&keys[number], asked)?;
            Some(format!("; the nearest is on line {}, which differs at {difference}", exchanges[number].line))
        });
        missing(format!(
            "the recording {} holds {} requests, and not this one{}; record it again, or append {LOOSE} to the file's \
             name, and such a request gets the next answer",
            self.file,
            keys.len(),
            differs.unwrap_or_default()
        ))
    }
}

fn missing(message: String) -> ModelError {
    ModelError {
        should_retry: Some(false),
        source: Some(Box::new(NotRecorded)),
        ..ModelError::new(ModelErrorKind::BadResponse, message)
    }
}

/// Passes on a response piece by piece, as if it were streamed.
fn play(answer: &ModelResponse, events: &dyn ModelEvents) {
    events.on_traffic(RequestProgress::FirstByte);
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
