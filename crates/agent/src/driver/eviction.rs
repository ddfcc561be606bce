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
use toolwright_core::output::{DEFAULT_MAX_BYTES, OutputReaders};
use toolwright_core::store::{StoreError, StoredOutput};
use toolwright_runtime::executor::output_readers;

use super::tool_view::RequestTools;
use super::{Driver, RunOptions};
use crate::run::{
    BinaryHandles, CompactionSources, Evicted, EvictionPlan, MAX_NOTE_FILES, ResultPosition, RunState, StoredResults,
    StoredText, content_beyond, content_text, has_text,
};

/// The reason why the next turn is the last.
const FULL: &str = "Your context window is full";
/// The most bytes of one stored result, and of all together, that are read again for a compaction.
const RESULT_BYTES: usize = DEFAULT_MAX_BYTES;
const ALL_BYTES: usize = 1 << 20;
/// Bytes at each end of a stored result; a preview shows less.
const END_BYTES: usize = 4096;

/// Evicted results.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EvictionCounts {
    results: usize,
    /// Evicted results that the model can read by a handle.
    stored: usize,
}

/// A way in which room was made, for observers.
pub(super) struct CompactionRecord {
    pub(super) layer: CompactionLayer,
    /// Estimated tokens before and after.
    pub(super) tokens: (usize, usize),
    pub(super) results: EvictionCounts,
    pub(super) messages: usize,
    pub(super) handle: Option<String>,
    pub(super) usage: Usage,
}

impl CompactionRecord {
    fn by_eviction(layer: CompactionLayer, tokens: (usize, usize), results: EvictionCounts) -> Self {
        Self { layer, tokens, results, messages: 0, handle: None, usage: Usage::default() }
    }
}

/// Makes room for one request.
struct ContextTrimmer<'a> {
    driver: &'a Driver,
    options: &'a RunOptions,
    /// Estimated tokens of the request's tool definitions.
    tools: usize,
    /// The tools that read stored outputs.
    readers: OutputReaders,
    /// The tools as the model knows them.
    snapshot: &'a Arc<Snapshot>,
}

impl Driver {
    /// Makes room in the conversation before the model is asked, if its window is known or an overflow has revealed it.
    /// Steps that need a model are only begun. Returns whether the state has changed.
    pub(super) async fn make_room(
        &self,
        state: &mut RunState,
        request_tools: &RequestTools,
        snapshot: &Arc<Snapshot>,
        options: &RunOptions,
    ) -> bool {
        let tools = request_tools.exposure_record.tokens;
        let config = state.config();
        let answer = self.model.answer_tokens(&config.model, config.max_tokens, &config.settings);
        state.expect_answer(answer);
        self.count(state, request_tools).await;
        let mut plan = state.plan_room(tools);
        if plan.is_nothing() {
            return false;
        }
        if plan.summarize.is_some() && self.memory_tools(state).is_none() {
            state.postpone_compaction();
            plan = state.plan_without_model(tools);
        }
        let readers = output_readers(&self.run_context(state, snapshot, options));
        ContextTrimmer { driver: self, options, tools, readers, snapshot }.make(state, plan).await;
        true
    }

    /// Counts a conversation near its limit with the model's own tokenizer, if there is one. The tokenizer loads its
    /// tables at its first count.
    async fn count(&self, state: &mut RunState, request_tools: &RequestTools) {
        let Some(counter) = self.executor.services().tokens.of_model(&state.config().model) else { return };
        let Some(countable) = state.to_count(request_tools.exposure_record.tokens, &request_tools.tools) else {
            return;
        };
        let estimate = countable.estimate;
        let count = move || {
            let counts = countable.texts.iter().map(|text| counter.count(text));
            let exact = |(tokens, exactness)| (exactness == Exactness::Exact).then_some(tokens);
            counts.map(exact).sum::<Option<usize>>().map(|tokens| tokens + countable.overhead)
        };
        match tokio::task::spawn_blocking(count).await {
            Ok(Some(exact)) => state.on_counted(exact, estimate),
            // The counter has logged the reason.
            Ok(None) => {}
            Err(error) => {
                self.warn("tokenizer_failed", format!("the tokens of a conversation were not counted: {error}"))
            }
        }
    }

    /// Records in transcript and events how room was made.
    pub(super) fn report_room(&self, state: &RunState, made: CompactionRecord, options: &RunOptions) {
        let CompactionRecord { layer, tokens: (before, after), results, messages, handle, usage } = made;
        let EvictionCounts { results, stored: kept } = results;
        let tokens = |estimate: usize| state.in_tokens(estimate) as u64;
        let (before, after) = (tokens(before), tokens(after));
        let limit = state.context_limit().map_or(0, tokens);
        self.record(options, || {
            json!({"type": "room", "turn": state.turns(), "layer": layer, "before": before, "after": after, "limit": limit,
                "results": results, "kept": kept, "messages": messages, "handle": handle, "usage": usage})
        });
        self.executor.services().events.emit_with(|| Event::Compacted {
            op: options.op(),
            session: options.session.id.clone(),
            model: state.config().model.clone(),
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

impl ContextTrimmer<'_> {
    async fn make(&self, state: &mut RunState, plan: EvictionPlan) {
        let EvictionPlan { truncate, summarize, mut full } = plan;
        let before = self.request_tokens(state);
        let mut evicted = self.evict(state, truncate).await;
        if let Some(range) = summarize
            && !self.begin_compaction(state, range).await
        {
            state.postpone_compaction();
            let plan = state.plan_without_model(self.tools);
            let more = self.evict(state, plan.truncate).await;
            evicted = EvictionCounts { results: evicted.results + more.results, stored: evicted.stored + more.stored };
            full = plan.full;
        }
        if evicted.results > 0 {
            // A compaction is reported at its end.
            state.count_truncation();
            let tokens = (before, self.request_tokens(state));
            self.report(state, CompactionRecord::by_eviction(CompactionLayer::Truncate, tokens, evicted));
        }
        if full {
            self.force_last_turn(state).await;
        }
    }

    /// Makes the next request the last, because nothing else makes room. Results that the model has not seen are
    /// evicted too.
    async fn force_last_turn(&self, state: &mut RunState) {
        let was_last = state.is_last_turn();
        let before = self.request_tokens(state);
        state.force_final(FULL);
        let positions = state.plan_last(self.tools).truncate;
        let evicted = self.evict(state, positions).await;
        if was_last && evicted.results == 0 {
            return;
        }
        let message =
            "the conversation does not fit the model's window, however it is shortened: the next turn is the last";
        self.driver.warn("context_full", message.to_owned());
        let tokens = (before, self.request_tokens(state));
        self.report(state, CompactionRecord::by_eviction(CompactionLayer::ForceFinal, tokens, evicted));
    }

    /// Replaces these results by notes. Stores each first if a tool can read it. A result that cannot be stored stays,
    /// as long as the conversation fits with it.
    async fn evict(&self, state: &mut RunState, positions: Vec<ResultPosition>) -> EvictionCounts {
        let mut counts = EvictionCounts::default();
        for position in positions {
            // One at a time: a result that cannot be stored stays if earlier ones have made enough room.
            if let Some(evicted) = self.store_result(state, position).await {
                counts.results += 1;
                let result = state.result_at(position);
                counts.stored += usize::from(result.is_some_and(|result| evicted.is_kept(result, &self.readers)));
                state.evict(evicted, &self.readers);
            }
        }
        counts
    }

    /// Stores a result; `None` if it stays in the conversation.
    async fn store_result(&self, state: &RunState, position: ResultPosition) -> Option<Evicted> {
        let result = state.result_at(position)?;
        let entry = self.snapshot.list().iter().find(|entry| entry.wire_name == result.name);
        let is_repeatable = entry.is_some_and(|entry| entry.is_repeatable());
        let texts = state.stored_handles(position).to_vec();
        let mut evicted = Evicted { position, texts, files: Vec::new(), is_repeatable };
        if let Err(error) = self.store_parts(result, &mut evicted).await {
            self.warn_not_stored("an old result", &error);
            return self.is_over(state).then_some(evicted);
        }
        Some(evicted)
    }

    async fn store_parts(&self, result: &CallResult, evicted: &mut Evicted) -> Result<(), StoreError> {
        let files = self.store_files(result.content.iter()).await?;
        evicted.files = files.values().cloned().collect();
        evicted.files.sort();
        // A preview of an earlier stored part may contain more than the stored text.
        let previewed = self.ends_of(&evicted.texts).await;
        let rest = content_beyond(&result.content, &evicted.texts, &previewed);
        // A result of files only is fully described by their handles.
        if (has_text(&rest) || evicted.files.len() > MAX_NOTE_FILES) && !self.readers.is_empty() {
            let stored = self.store_text(&content_text(&rest, &files)).await?;
            evicted.texts.push(stored.handle);
        }
        Ok(())
    }

    async fn store_text(&self, text: &str) -> Result<StoredOutput, StoreError> {
        self.driver.executor.services().outputs.put(&self.options.session.id, text.as_bytes()).await
    }

    /// Returns beginning and end of the stored texts, as far as they can be read; previews show no more.
    async fn ends_of(&self, handles: &[String]) -> String {
        let (outputs, session) = (&self.driver.executor.services().outputs, &self.options.session.id);
        let mut previewed = String::new();
        for handle in handles {
            let mut at = 0;
            while let Ok(slice) = outputs.read(session, handle, at, END_BYTES).await {
                previewed.push_str(&slice.text);
                previewed.push('\n');
                let end = slice.total_bytes.saturating_sub(END_BYTES as u64);
                if at > 0 || slice.next_offset >= slice.total_bytes {
                    break;
                }
                at = end.max(slice.next_offset);
            }
        }
        previewed
    }

    /// Stores the images and other files among these blocks.
    async fn store_files<'b>(
        &self,
        blocks: impl Iterator<Item = &'b ContentBlock> + Send,
    ) -> Result<BinaryHandles, StoreError> {
        let outputs = &self.driver.executor.services().outputs;
        let mut files = BinaryHandles::new();
        for (data, media_type) in blocks.filter_map(ContentBlock::binary) {
            let hash = ContentHash::of_bytes(data.as_bytes());
            let Ok(bytes) = BASE64_STANDARD.decode(data) else { continue };
            if let Entry::Vacant(file) = files.entry(hash) {
                let stored = outputs.put_artifact(&self.options.session.id, &bytes, media_type).await?;
                file.insert(stored.handle);
            }
        }
        Ok(files)
    }

    /// Stores the turns in `range` and begins to compact them. If they cannot be stored, begins only if the
    /// conversation does not fit otherwise. Returns whether it has begun.
    async fn begin_compaction(&self, state: &mut RunState, range: Range<usize>) -> bool {
        let originals = self.read_originals(state, &range).await;
        let mut sources = CompactionSources { originals, ..CompactionSources::default() };
        // Checked before storing, so that nothing is stored for a compaction that cannot begin.
        let tools = self.driver.memory_tools(state);
        let Some(tools) = tools.filter(|tools| state.can_afford_compaction(&range, &sources, tools)) else {
            return false;
        };
        if let Err(error) = self.store_turns(state, &range, &mut sources).await {
            self.warn_not_stored("the turns that were to be put together", &error);
            if !self.is_over(state) {
                return false;
            }
        }
        state.begin_compaction(range, sources, &tools, self.tools)
    }

    /// Reads the stored results in `range` again.
    async fn read_originals(&self, state: &RunState, range: &Range<usize>) -> StoredResults {
        let (outputs, session) = (&self.driver.executor.services().outputs, &self.options.session.id);
        let mut originals = StoredResults::new();
        let mut left = ALL_BYTES;
        for (call, handle) in state.stored_in(range) {
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
        originals
    }

    async fn store_turns(
        &self,
        state: &RunState,
        range: &Range<usize>,
        sources: &mut CompactionSources,
    ) -> Result<(), StoreError> {
        sources.files = self.store_files(state.blocks_of(range).into_iter()).await?;
        if !self.readers.is_empty() {
            let stored = self.store_text(&state.text_of(range, &sources.files)).await?;
            let advice = self.readers.advice(&stored.handle);
            sources.stored = Some(StoredText { handle: stored.handle, advice });
        }
        Ok(())
    }

    /// Returns the estimated tokens of the next request.
    fn request_tokens(&self, state: &RunState) -> usize {
        state.context_tokens() + self.tools
    }

    /// Returns whether the next request is too large.
    fn is_over(&self, state: &RunState) -> bool {
        state.context_limit().is_some_and(|limit| self.request_tokens(state) > limit)
    }

    fn report(&self, state: &RunState, made: CompactionRecord) {
        self.driver.report_room(state, made, self.options);
    }

    fn warn_not_stored(&self, what: &str, error: &StoreError) {
        let message = format!("{what} could not be stored to make room in the conversation: {error}");
        self.driver.warn("output_store_failed", message);
    }
}
