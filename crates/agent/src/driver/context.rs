//! Making room before the model is asked: what gives way is stored first.

use std::ops::Range;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use toolwright_core::catalogue::Snapshot;
use toolwright_core::content::ContentBlock;
use toolwright_core::context::Exactness;
use toolwright_core::event::{CompactionLayer, Event};
use toolwright_core::model::Usage;
use toolwright_core::operation::Origin;
use toolwright_core::output::{DEFAULT_MAX_BYTES, Readers, countable_text};
use toolwright_runtime::RunContext;
use toolwright_runtime::executor::readers;

use super::shown::Shown;
use super::{Driver, RunOptions};
use crate::run::{GivenUp, Original, Originals, Place, Plan, RunState, Whole};

/// What the next turn is the last for.
const FULL: &str = "Your context window is full";
/// Bytes of one stored result that are read again when turns are put together, and of all of them.
const RESULT_BYTES: usize = DEFAULT_MAX_BYTES;
const ALL_BYTES: usize = 1 << 20;

/// Whether there is more room now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    Nothing,
    Room,
}

/// One thing that was done, for whoever watches.
pub(super) struct Done {
    pub(super) layer: CompactionLayer,
    /// Estimated tokens before and after.
    pub(super) tokens: (usize, usize),
    pub(super) results: usize,
    pub(super) messages: usize,
    pub(super) handle: Option<String>,
    pub(super) usage: Usage,
}

impl Driver {
    /// Makes room in the conversation before the model is asked, where its window is known, or an overflow has shown it.
    /// What a model has to help with is begun only.
    pub(super) async fn make_room(
        &self,
        state: &mut RunState,
        shown: &Shown,
        snapshot: &Arc<Snapshot>,
        options: &RunOptions,
    ) -> Made {
        let tools = shown.showing.tokens;
        self.count(state, shown).await;
        let mut plan = state.plan_room(tools);
        if plan.is_nothing() {
            return Made::Nothing;
        }
        if plan.summarize.is_some() && self.with(state).is_none() {
            state.put_off_compaction();
            plan = state.plan_room(tools);
        }
        let readers = readers(&self.terms(state, snapshot, options));
        let Plan { truncate, summarize, full } = plan;
        let before = state.context_tokens() + tools;
        let results = self.give_up(state, truncate, &readers, options).await;
        match summarize {
            Some(range) => self.put_together(state, range, &readers, tools, options).await,
            None if results > 0 => {
                state.count_truncation();
                let tokens = (before, state.context_tokens() + tools);
                self.tell(state, Done::of(CompactionLayer::Truncate, tokens, results), options);
            }
            None => {}
        }
        if full {
            self.force_last(state, &readers, tools, options).await;
        }
        Made::Room
    }

    /// Nothing else helps: the model is asked for the last time, and what it has not seen yet gives way too.
    async fn force_last(&self, state: &mut RunState, readers: &Readers, tools: usize, options: &RunOptions) {
        let was_last = state.is_last_turn();
        let before = state.context_tokens() + tools;
        state.force_final(FULL);
        let places = state.plan_last(tools).truncate;
        let results = self.give_up(state, places, readers, options).await;
        if was_last && results == 0 {
            return;
        }
        let message =
            "the conversation does not fit the model's window, however it is shortened: the next turn is the last";
        self.warn("context_full", message.to_owned());
        let tokens = (before, state.context_tokens() + tools);
        self.tell(state, Done::of(CompactionLayer::ForceFinal, tokens, results), options);
    }

    /// Counts a conversation that comes near its limit by the model's own tokenizer, where there is one. It reads its
    /// tables then, and not before.
    async fn count(&self, state: &mut RunState, shown: &Shown) {
        let Some(counter) = self.executor.services().tokens.of_model(&state.spec().model) else { return };
        let Some(countable) = state.to_count(shown.showing.tokens, &shown.tools) else { return };
        let estimate = countable.estimate;
        let count = move || {
            let counts = countable.texts.iter().map(|text| counter.count(text));
            let exact = |(tokens, exactness)| (exactness == Exactness::Exact).then_some(tokens);
            counts.map(exact).sum::<Option<usize>>().map(|tokens| tokens + countable.besides)
        };
        match tokio::task::spawn_blocking(count).await {
            Ok(Some(exact)) => state.on_counted(exact, estimate),
            // The counter has told why.
            Ok(None) => {}
            Err(error) => {
                self.warn("tokenizer_failed", format!("the tokens of a conversation were not counted: {error}"))
            }
        }
    }

    /// Puts notes in the place of these results, which are stored first where somebody can read them. Returns how many.
    async fn give_up(
        &self,
        state: &mut RunState,
        places: Vec<Place>,
        readers: &Readers,
        options: &RunOptions,
    ) -> usize {
        let mut given_up = Vec::with_capacity(places.len());
        for place in places {
            given_up.push(self.keep(state, place, readers, options).await);
        }
        let count = given_up.len();
        state.truncate(given_up, reader(readers));
        count
    }

    async fn keep(&self, state: &RunState, place: Place, readers: &Readers, options: &RunOptions) -> GivenUp {
        let mut kept = GivenUp { place, text: state.stored(place).map(str::to_owned), images: Vec::new() };
        let Some(result) = state.result_at(place) else { return kept };
        let (outputs, session) = (&self.executor.services().outputs, &options.session.id);
        if kept.text.is_none() && reader(readers).is_some() {
            match outputs.put(session, countable_text(&result.content).as_bytes()).await {
                Ok(stored) => kept.text = Some(stored.handle.to_string()),
                Err(error) => tracing::warn!("an old result was not stored: {error}"),
            }
        }
        for block in &result.content {
            let ContentBlock::Image { data, mime_type, .. } = block else { continue };
            let Ok(bytes) = BASE64_STANDARD.decode(data) else { continue };
            match outputs.put_artifact(session, &bytes, mime_type).await {
                Ok(stored) => kept.images.push(stored.handle.to_string()),
                Err(error) => tracing::warn!("an image was not stored: {error}"),
            }
        }
        kept
    }

    /// Stores the turns in `range` and begins to put them together.
    async fn put_together(
        &self,
        state: &mut RunState,
        range: Range<usize>,
        readers: &Readers,
        tools: usize,
        options: &RunOptions,
    ) {
        let (outputs, session) = (&self.executor.services().outputs, &options.session.id);
        let mut originals = Originals::new();
        let mut left = ALL_BYTES;
        for (call, handle) in state.stored_in(&range) {
            match outputs.read(session, &handle, 0, RESULT_BYTES.min(left)).await {
                Ok(slice) => {
                    left = left.saturating_sub(slice.text.len());
                    originals.insert(call, slice.text);
                }
                Err(error) => tracing::warn!("a stored result could not be read again: {error}"),
            }
            if left == 0 {
                break;
            }
        }
        let original = match reader(readers) {
            None => None,
            Some(_) => match outputs.put(session, state.text_of(&range).as_bytes()).await {
                Ok(stored) => {
                    let handle = stored.handle.to_string();
                    let advice = readers.advice(&handle);
                    Some(Original { handle, advice })
                }
                Err(error) => {
                    tracing::warn!("the turns that are put together were not stored: {error}");
                    None
                }
            },
        };
        if let Some(with) = self.with(state) {
            state.begin_compaction(range, Whole { originals, stored: original }, &with, tools);
        }
    }

    /// The terms of what is done for the run, and not by its model.
    pub(super) fn terms(&self, state: &RunState, snapshot: &Arc<Snapshot>, options: &RunOptions) -> RunContext {
        RunContext {
            lineage: options.lineage(state.turns()),
            origin: Origin::Agent,
            model: Some(state.spec().model.as_str().into()),
            request: Some(Arc::new(state.request())),
            ..RunContext::new(
                Arc::clone(&options.session),
                Arc::clone(snapshot),
                Arc::clone(&options.policy),
                Arc::clone(&options.approver),
            )
        }
    }

    pub(super) fn tell(&self, state: &RunState, done: Done, options: &RunOptions) {
        let Done { layer, tokens: (before, after), results, messages, handle, usage } = done;
        let tokens = |estimate: usize| state.in_tokens(estimate) as u64;
        let (before, after) = (tokens(before), tokens(after));
        let limit = state.context_limit().map_or(0, tokens);
        self.record(options, || {
            json!({"type": "room", "turn": state.turns(), "layer": layer, "before": before, "after": after, "limit": limit,
                "results": results, "messages": messages, "handle": handle, "usage": usage})
        });
        self.executor.services().events.tell(|| Event::Compacted {
            op: options.op(),
            session: options.session.id.clone(),
            model: state.spec().model.clone(),
            layer,
            before,
            after,
            limit,
            exact: state.is_counted(),
            results: results as u64,
            messages: messages as u64,
            handle,
            usage,
        });
    }

    pub(super) fn warn(&self, code: &str, message: String) {
        self.executor.services().events.emit(Event::Warning { code: code.into(), message });
    }
}

impl Done {
    fn of(layer: CompactionLayer, tokens: (usize, usize), results: usize) -> Self {
        Self { layer, tokens, results, messages: 0, handle: None, usage: Usage::default() }
    }
}

/// The tool by which stored text is read, under the name that the model has for it.
fn reader(readers: &Readers) -> Option<&str> {
    [&readers.read, &readers.grep, &readers.extract].into_iter().find_map(|name| name.as_deref())
}
