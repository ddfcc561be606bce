//! Makes room in the context window before the model is asked. Evicted results are stored first.

use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::Snapshot;
use toolwright_core::content::ContentBlock;
use toolwright_core::context::Exactness;
use toolwright_core::event::{CompactionLayer, Event};
use toolwright_core::model::{CallResult, Usage};
use toolwright_core::operation::Origin;
use toolwright_core::output::{DEFAULT_MAX_BYTES, Readers};
use toolwright_core::store::StoreError;
use toolwright_runtime::RunContext;
use toolwright_runtime::executor::readers;

use super::request_tools::RequestTools;
use super::{Driver, RunOptions};
use crate::run::{
    CompactionSources, Evicted, Files, MAX_FILES, Original, Originals, Plan, Repeat, ResultPosition, RunState, besides,
    content_text, has_text,
};

/// What the next turn is the last for.
const FULL: &str = "Your context window is full";
/// Bytes of one stored result that are read again when turns are put together, and of all of them.
const RESULT_BYTES: usize = DEFAULT_MAX_BYTES;
const ALL_BYTES: usize = 1 << 20;
/// Bytes at either end of a stored result, more than a preview shows.
const END_BYTES: usize = 4096;

/// Whether there is more room now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoomMade {
    Nothing,
    Room,
}

/// Whether turns are being put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CompactionStart {
    NotMeant,
    /// They cannot be now.
    Not,
    Yes,
}

/// How what gives way is kept and read again.
struct EvictionContext<'a> {
    readers: Readers,
    /// The tools as the model knows them.
    snapshot: &'a Arc<Snapshot>,
}

/// Results that gave way.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EvictedCounts {
    pub(super) results: usize,
    /// Those of them that the model can read by a handle.
    pub(super) kept: usize,
}

/// One thing that was done, for whoever watches.
pub(super) struct Done {
    pub(super) layer: CompactionLayer,
    /// Estimated tokens before and after.
    pub(super) tokens: (usize, usize),
    pub(super) results: EvictedCounts,
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
        shown: &RequestTools,
        snapshot: &Arc<Snapshot>,
        options: &RunOptions,
    ) -> RoomMade {
        let tools = shown.showing.tokens;
        let spec = state.spec();
        let answer = self.model.answer_tokens(&spec.model, spec.max_tokens, &spec.settings);
        state.expect_answer(answer);
        self.count(state, shown).await;
        let mut plan = state.plan_room(tools);
        if plan.is_nothing() {
            return RoomMade::Nothing;
        }
        if plan.summarize.is_some() && self.with(state).is_none() {
            state.put_off_compaction();
            plan = state.plan_alone(tools);
        }
        let eviction = EvictionContext { readers: readers(&self.terms(state, snapshot, options)), snapshot };
        let Plan { truncate, summarize, mut full } = plan;
        let before = state.context_tokens() + tools;
        let mut gone = self.evict(state, truncate, &eviction, tools, options).await;
        let begun = match summarize {
            Some(range) => self.put_together(state, range, &eviction, tools, options).await,
            None => CompactionStart::NotMeant,
        };
        if begun == CompactionStart::Not {
            state.put_off_compaction();
            let without = state.plan_alone(tools);
            let more = self.evict(state, without.truncate, &eviction, tools, options).await;
            gone = EvictedCounts { results: gone.results + more.results, kept: gone.kept + more.kept };
            full = without.full;
        }
        if gone.results > 0 {
            // Where turns are put together besides, that is told when it is done.
            state.count_truncation();
            let tokens = (before, state.context_tokens() + tools);
            self.tell(state, Done::of(CompactionLayer::Truncate, tokens, gone), options);
        }
        if full {
            self.force_last(state, &eviction, tools, options).await;
        }
        RoomMade::Room
    }

    /// Nothing else helps: the model is asked for the last time, and what it has not seen yet gives way too.
    async fn force_last(
        &self,
        state: &mut RunState,
        eviction: &EvictionContext<'_>,
        tools: usize,
        options: &RunOptions,
    ) {
        let was_last = state.is_last_turn();
        let before = state.context_tokens() + tools;
        state.force_final(FULL);
        let places = state.plan_last(tools).truncate;
        let gone = self.evict(state, places, eviction, tools, options).await;
        if was_last && gone.results == 0 {
            return;
        }
        let message =
            "the conversation does not fit the model's window, however it is shortened: the next turn is the last";
        self.warn("context_full", message.to_owned());
        let tokens = (before, state.context_tokens() + tools);
        self.tell(state, Done::of(CompactionLayer::ForceFinal, tokens, gone), options);
    }

    /// Counts a conversation that comes near its limit by the model's own tokenizer, where there is one. It reads its
    /// tables then, and not before.
    async fn count(&self, state: &mut RunState, shown: &RequestTools) {
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

    /// Puts notes in the place of these results, which are stored first where somebody can read them; one that cannot be
    /// stays, as long as the conversation fits with it.
    async fn evict(
        &self,
        state: &mut RunState,
        places: Vec<ResultPosition>,
        eviction: &EvictionContext<'_>,
        tools: usize,
        options: &RunOptions,
    ) -> EvictedCounts {
        let mut gone = EvictedCounts::default();
        for place in places {
            // At once: what cannot be stored stays where those before it have made room enough.
            if let Some(evicted) = self.keep(state, place, eviction, tools, options).await {
                gone.results += 1;
                let result = state.result_at(place);
                gone.kept += usize::from(result.is_some_and(|result| evicted.is_kept(result, &eviction.readers)));
                state.truncate(evicted, &eviction.readers);
            }
        }
        gone
    }

    async fn keep(
        &self,
        state: &RunState,
        place: ResultPosition,
        eviction: &EvictionContext<'_>,
        tools: usize,
        options: &RunOptions,
    ) -> Option<Evicted> {
        let result = state.result_at(place)?;
        let entry = eviction.snapshot.list().iter().find(|entry| entry.wire_name == result.name);
        let again = if entry.is_some_and(|entry| entry.is_repeatable()) { Repeat::May } else { Repeat::MayNot };
        let texts = state.stored(place).to_vec();
        let mut kept = Evicted { place, texts, files: Vec::new(), again };
        if let Err(error) = self.store_parts(result, &mut kept, eviction, options).await {
            self.not_stored("an old result", &error);
            return is_over(state, tools).then_some(kept);
        }
        Some(kept)
    }

    async fn store_parts(
        &self,
        result: &CallResult,
        kept: &mut Evicted,
        eviction: &EvictionContext<'_>,
        options: &RunOptions,
    ) -> Result<(), StoreError> {
        let files = self.store_files(result.content.iter(), options).await?;
        kept.files = in_order(&files);
        // What stands in place of a part that was stored before names its handle; more than that it may say, too.
        let known = self.ends_of(&kept.texts, options).await;
        let rest = besides(&result.content, &kept.texts, &known);
        // A result that is nothing but files is whole by their handles.
        if (has_text(&rest) || kept.files.len() > MAX_FILES) && !eviction.readers.is_empty() {
            let text = content_text(&rest, &files);
            let stored = self.executor.services().outputs.put(&options.session.id, text.as_bytes()).await?;
            kept.texts.push(stored.handle);
        }
        Ok(())
    }

    /// Beginning and end of what is stored under these handles, as far as it can be read: all that previews are made of.
    async fn ends_of(&self, handles: &[String], options: &RunOptions) -> String {
        let (outputs, session) = (&self.executor.services().outputs, &options.session.id);
        let mut known = String::new();
        for handle in handles {
            let mut at = 0;
            while let Ok(slice) = outputs.read(session, handle, at, END_BYTES).await {
                known.push_str(&slice.text);
                known.push('\n');
                let end = slice.total_bytes.saturating_sub(END_BYTES as u64);
                if at > 0 || slice.next_offset >= slice.total_bytes {
                    break;
                }
                at = end.max(slice.next_offset);
            }
        }
        known
    }

    /// Stores the images and other files among these blocks.
    async fn store_files<'a>(
        &self,
        blocks: impl Iterator<Item = &'a ContentBlock> + Send,
        options: &RunOptions,
    ) -> Result<Files, StoreError> {
        let outputs = &self.executor.services().outputs;
        let mut files = Files::new();
        for (data, media_type) in blocks.filter_map(ContentBlock::binary) {
            let hash = ContentHash::of_bytes(data.as_bytes());
            let Ok(bytes) = BASE64_STANDARD.decode(data) else { continue };
            if let Entry::Vacant(file) = files.entry(hash) {
                let stored = outputs.put_artifact(&options.session.id, &bytes, media_type).await?;
                file.insert(stored.handle.to_string());
            }
        }
        Ok(files)
    }

    /// Stores the turns in `range` and begins to put them together. Where they cannot be stored, it does so only if the
    /// conversation does not fit as it is.
    async fn put_together(
        &self,
        state: &mut RunState,
        range: Range<usize>,
        eviction: &EvictionContext<'_>,
        tools: usize,
        options: &RunOptions,
    ) -> CompactionStart {
        let (outputs, session) = (&self.executor.services().outputs, &options.session.id);
        let mut originals = Originals::new();
        let mut left = ALL_BYTES;
        for (call, handle) in state.stored_in(&range) {
            let whole: &mut String = originals.entry(call).or_default();
            match outputs.read(session, &handle, 0, RESULT_BYTES.min(left)).await {
                Ok(slice) => {
                    left = left.saturating_sub(slice.text.len());
                    if !whole.is_empty() && !whole.ends_with('\n') {
                        whole.push('\n');
                    }
                    whole.push_str(&slice.text);
                }
                Err(error) => tracing::warn!("a stored result could not be read again: {error}"),
            }
            if left == 0 {
                break;
            }
        }
        originals.retain(|_, text| !text.is_empty());
        let mut whole = CompactionSources { originals, ..CompactionSources::default() };
        // Nothing is stored for what is not begun.
        let Some(with) = self.with(state).filter(|with| state.affords_compaction(&range, &whole, with)) else {
            return CompactionStart::Not;
        };
        if let Err(error) = self.store_turns(state, &range, &mut whole, eviction, options).await {
            self.not_stored("the turns that were to be put together", &error);
            if !is_over(state, tools) {
                return CompactionStart::Not;
            }
        }
        if state.begin_compaction(range, whole, &with, tools) { CompactionStart::Yes } else { CompactionStart::Not }
    }

    async fn store_turns(
        &self,
        state: &RunState,
        range: &Range<usize>,
        whole: &mut CompactionSources,
        eviction: &EvictionContext<'_>,
        options: &RunOptions,
    ) -> Result<(), StoreError> {
        whole.files = self.store_files(state.blocks_of(range).into_iter(), options).await?;
        if !eviction.readers.is_empty() {
            let text = state.text_of(range, &whole.files);
            let stored = self.executor.services().outputs.put(&options.session.id, text.as_bytes()).await?;
            let handle = stored.handle.to_string();
            let advice = eviction.readers.advice(&handle);
            whole.stored = Some(Original { handle, advice });
        }
        Ok(())
    }

    fn not_stored(&self, what: &str, error: &StoreError) {
        self.warn(
            "output_store_failed",
            format!("{what} could not be stored to make room in the conversation: {error}"),
        );
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
        let Done { layer, tokens: (before, after), results: EvictedCounts { results, kept }, messages, handle, usage } =
            done;
        let tokens = |estimate: usize| state.in_tokens(estimate) as u64;
        let (before, after) = (tokens(before), tokens(after));
        let limit = state.context_limit().map_or(0, tokens);
        self.record(options, || {
            json!({"type": "room", "turn": state.turns(), "layer": layer, "before": before, "after": after, "limit": limit,
                "results": results, "kept": kept, "messages": messages, "handle": handle, "usage": usage})
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
            kept: kept as u64,
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
    fn of(layer: CompactionLayer, tokens: (usize, usize), results: EvictedCounts) -> Self {
        Self { layer, tokens, results, messages: 0, handle: None, usage: Usage::default() }
    }
}

/// Whether the next request does not fit as it is.
fn is_over(state: &RunState, tools: usize) -> bool {
    state.context_limit().is_some_and(|limit| state.context_tokens() + tools > limit)
}

fn in_order(files: &Files) -> Vec<String> {
    let mut handles: Vec<String> = files.values().cloned().collect();
    handles.sort();
    handles
}
