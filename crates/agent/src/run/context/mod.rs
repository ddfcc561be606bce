//! The context window: how much of it a conversation takes, and how room is made in it. Pure; the driver stores what is
//! evicted and asks the models.

mod compaction_state;
mod eviction_plan;
mod memory;
mod render;
mod size;
mod user_messages;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use toolwright_core::ContentBlock;
use toolwright_core::agents::handoff::Conversation;
use toolwright_core::context::EstimatedTokens;
use toolwright_core::model::{CallResult, Message, RequestTool, Usage};
use toolwright_core::output::OutputReaders;

use self::compaction_state::Compaction;
use self::eviction_plan::{EvictionInput, EvictionScope};
use self::memory::Memory;
use self::render::{AuthoredMessage, MessageAuthor, RenderContext, within};
use self::size::TokenCalibration;
use super::{Phase, RunState};

pub use self::compaction_state::{CompactionCall, CompactionState};
pub(crate) use self::compaction_state::{CompactionSources, MemoryTools};
pub(crate) use self::eviction_plan::{Evicted, EvictionPlan, MAX_NOTE_FILES, ResultPosition, has_text};
pub(crate) use self::memory::StoredText;
pub(crate) use self::render::{BinaryHandles, StoredResults, content_beyond, content_text};
pub(crate) use self::size::CountableRequest;

/// The divisor of a window that gives its reserve, because counts are not exact.
const BUFFER: usize = 20;
/// Tokens reserved for an answer without a limit, but a quarter of the window at most.
const ANSWER: usize = 4096;
/// Percentage of the limit from which the model's own tokenizer counts the conversation.
const EXACT_COUNT_PERCENT: usize = 80;
/// The least number of model answers between two compactions.
const ANSWERS_BETWEEN: u32 = 5;
/// The divisor of the limit that gives the size of a summary. Facts and the user's words may have as much each.
const MEMORY: usize = 18;
/// Maximum bytes of a conversation that is handed to another agent.
const MAX_RECORD: usize = 64 << 10;
/// The new limit after an unexpected overflow, in quarters of the conversation.
const AFTER_OVERFLOW: usize = 3;

/// How often room was made, and the usage for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompactionCounts {
    /// Times that old results were evicted.
    pub truncated: u32,
    /// Times that turns were summarised.
    pub summarized: u32,
    /// Times that a summary failed.
    pub failed: u32,
    /// Evicted results.
    pub results: u64,
    /// Summarised messages.
    pub messages: u64,
    /// Usage of the models that summarised; the run's usage includes it.
    pub usage: Usage,
}

/// The context window of a run. Part of its saved state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ContextState {
    gauge: TokenCalibration,
    /// Estimated tokens that a request may have, learned from an unexpected overflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    ceiling: Option<usize>,
    /// Position of the message that began the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    task_at: Option<usize>,
    /// The messages in the user's role that this program wrote.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notices: Vec<NoticeMessage>,
    /// Handles of results that the conversation holds only in part or not at all, by call id.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    handles: BTreeMap<String, Vec<String>>,
    /// Handles of the images and other files of evicted results, by call id.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    files: BTreeMap<String, Vec<String>>,
    /// Ids of calls whose result is replaced by a note.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    notes: BTreeSet<String>,
    /// Ids of calls that are no longer in the conversation, which are not reused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    removed_ids: Vec<String>,
    /// Answers since the last compaction; `None` if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    answers_since: Option<u32>,
    /// Failed compactions since the last success, in this task.
    failures: u32,
    /// Maximum tokens of an answer, if the model's client knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    /// The compaction in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    compaction: Option<Compaction>,
    /// The number of compactions begun so far.
    begun: u32,
    counts: CompactionCounts,
}

/// A message in the user's role that this program wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NoticeMessage {
    /// Its position.
    at: usize,
    /// The job, channel, trigger or other agent whose text it reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
}

impl ContextState {
    /// Creates it for a run that begins with these messages.
    pub(super) fn new(messages: &[Message]) -> Self {
        let task_at = messages.iter().rposition(|message| matches!(message, Message::User { .. }));
        Self { task_at, ..Self::default() }
    }

    /// Returns the author of the message at this position, if it is in the user's role.
    fn author_at(&self, at: usize) -> MessageAuthor<'_> {
        if self.memory.as_ref().is_some_and(|memory| memory.at == at) {
            return MessageAuthor::Program;
        }
        match self.notices.iter().find(|notice| notice.at == at) {
            Some(NoticeMessage { source: Some(source), .. }) => MessageAuthor::Source(source),
            Some(_) => MessageAuthor::Program,
            None => MessageAuthor::User,
        }
    }

    /// Begins a task with the message at this position.
    pub(super) fn begin_task(&mut self, at: usize) {
        self.task_at = Some(at);
        if std::mem::take(&mut self.failures) > 0 {
            self.answers_since = None;
        }
    }

    fn compaction_done(&mut self) {
        (self.failures, self.answers_since) = (0, Some(0));
    }

    /// Records a failed compaction: the next try is after one answer, then after two, and so on.
    fn compaction_failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.answers_since = Some(ANSWERS_BETWEEN.saturating_sub(self.failures));
    }

    /// Records an answer of the model.
    pub(super) fn on_answer(&mut self, usage: &Usage) {
        self.gauge.learn(usage.input_tokens);
        if let Some(answers) = &mut self.answers_since {
            *answers = answers.saturating_add(1);
        }
    }

    /// Records the handles of the stored parts of a call's result.
    pub(super) fn note_stored(&mut self, call: &str, handles: Vec<String>) {
        if !handles.is_empty() {
            self.handles.insert(call.to_owned(), handles);
        }
    }

    /// Forgets a call whose result is no longer in the conversation.
    fn forget(&mut self, call: &str) {
        self.handles.remove(call);
        self.files.remove(call);
        self.notes.remove(call);
    }

    pub(super) fn removed_ids(&self) -> &[String] {
        &self.removed_ids
    }

    pub(super) fn is_compacting(&self) -> bool {
        self.compaction.is_some()
    }

    /// Abandons the compaction in progress. It may begin again.
    pub(super) fn abandon(&mut self) {
        self.compaction = None;
    }

    /// Returns whether turns may be compacted now.
    fn is_due(&self) -> bool {
        self.answers_since.is_none_or(|answers| answers >= ANSWERS_BETWEEN)
    }
}

/// Returns the most tokens of a request. An answer is reserved at most half of the window, because a higher limit means
/// that there is none.
fn limit(window: usize, answer: Option<u32>) -> usize {
    let answer = answer.map_or(ANSWER.min(window / 4), |tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
    let answer = answer.min(window / 2);
    window.saturating_sub(window / BUFFER).saturating_sub(answer)
}

/// Returns the estimated tokens of a summary for a limit of this many tokens. Its facts and the user's words may have
/// as much each.
fn memory_tokens(limit: usize) -> usize {
    limit / MEMORY
}

/// Returns the most estimated tokens of the message that replaces turns.
fn record_tokens(limit: usize) -> usize {
    memory_tokens(limit) * 3
}

impl RunState {
    /// Returns the estimated tokens of system prompt and conversation.
    #[must_use]
    pub fn context_tokens(&self) -> usize {
        size::conversation(&self.system(), &self.messages)
    }

    /// Returns the most estimated tokens of system prompt, conversation and tool definitions together: the model's
    /// window, if known, minus its answer and a reserve, corrected by how the model counts; and at most what an
    /// overflow has shown.
    #[must_use]
    pub fn context_limit(&self) -> Option<usize> {
        let answer = self.context.answer.or(self.config.max_tokens);
        let by_window = self.config.window.map(|window| limit(window, answer));
        let by_window = by_window.map(|tokens| self.context.gauge.estimate(tokens));
        [by_window, self.context.ceiling].into_iter().flatten().min()
    }

    /// Converts an estimate to the model's count, as far as known.
    #[must_use]
    pub fn in_tokens(&self, estimate: usize) -> usize {
        self.context.gauge.tokens(estimate)
    }

    /// Returns whether the model's own tokenizer has counted the conversation.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.context.gauge.is_exact()
    }

    /// Returns the estimated tokens that could be freed for further results, by evicting old ones and compacting turns.
    #[must_use]
    pub fn removable_tokens(&self) -> usize {
        let limit = self.context_limit();
        let memory = limit.filter(|_| self.config.context.summarize && self.context.is_due()).map(record_tokens);
        // While calls run, the model has seen the whole conversation.
        self.room(0, limit.unwrap_or(0), 0, memory, EvictionScope::All).most()
    }

    /// Makes room if the next request is over `budget` estimated tokens: replaces the oldest results by a note, down to
    /// three quarters. Results that the model has not seen yet stay. Stores nothing, for runs without a store. Returns
    /// how many results were removed.
    pub fn fit_context(&mut self, budget: usize) -> usize {
        if !self.waits_for_model() || self.context_tokens() <= budget {
            return 0;
        }
        let positions = self.room(0, budget, budget / 4 * 3, None, EvictionScope::Seen).plan().truncate;
        for position in &positions {
            if let Some(result) = self.result_mut(*position) {
                let tokens = result.tokens();
                result.content = vec![ContentBlock::text(format!(
                    "[toolwright removed this result, about {tokens} tokens, to make room in the conversation; call the tool again if you need it]"
                ))];
            }
        }
        positions.len()
    }

    /// Returns the conversation as another agent may see it.
    pub(crate) fn conversation(&self) -> Conversation {
        let turns: Vec<AuthoredMessage<'_>> = (0..self.messages.len()).filter_map(|at| self.turn_at(at)).collect();
        let render_context = RenderContext {
            originals: &StoredResults::new(),
            files: &BinaryHandles::new(),
            notes: &self.context.notes,
            handles: &self.context.handles,
        };
        Conversation { user: self.user_texts.clone(), record: within(&turns, render_context, usize::MAX, MAX_RECORD) }
    }

    /// Adds a message by Toolwright to the conversation, in the user's role; `source`: whose text it reports.
    pub(super) fn push_notice(&mut self, text: impl Into<String>, source: Option<&str>) {
        self.context.notices.push(NoticeMessage { at: self.messages.len(), source: source.map(str::to_owned) });
        self.messages.push(Message::user(text.into()));
    }

    /// Returns how often room was made in this run, and the usage for it.
    #[must_use]
    pub fn compactions(&self) -> CompactionCounts {
        self.context.counts
    }

    /// Sets the most tokens of an answer, including reasoning, if the model's client knows it.
    pub(crate) fn expect_answer(&mut self, tokens: Option<u32>) {
        self.context.answer = tokens;
    }

    /// Records that the request is about to be sent, with definitions of `tools` estimated tokens. Its reported size
    /// shows how the model counts.
    pub(crate) fn on_request(&mut self, tools: usize) {
        self.context.gauge.asked = self.context_tokens() + tools;
    }

    /// Returns what to count exactly, if the next request is near the limit; `tools` estimated tokens of it are
    /// definitions.
    pub(crate) fn to_count(&self, tools: usize, request_tools: &[RequestTool]) -> Option<CountableRequest> {
        let limit = self.context_limit().filter(|_| self.waits_for_model() && !self.context.is_compacting())?;
        let uncertainty = size::uncertainty(&self.messages);
        let is_near = self.context_tokens() + tools + uncertainty > limit * EXACT_COUNT_PERCENT / 100;
        is_near.then(|| CountableRequest::of(&self.system(), &self.messages, request_tools, tools))
    }

    /// Records the tokenizer's count of what [`RunState::to_count`] returned.
    pub(crate) fn on_counted(&mut self, exact: usize, estimate: usize) {
        self.context.gauge.count(exact, estimate);
    }

    /// Plans how to make room before the model is asked with `tools` estimated tokens of definitions.
    pub(crate) fn plan_room(&self, tools: usize) -> EvictionPlan {
        let Phase::Model { last, .. } = self.phase else { return EvictionPlan::default() };
        let limit = self.context_limit().filter(|_| !self.context.is_compacting());
        let Some(limit) = limit else { return EvictionPlan::default() };
        let plan = |memory| self.room(tools, limit, self.target(limit), memory, self.scope()).plan();
        let record = (self.config.context.summarize && !last).then(|| record_tokens(limit));
        let mild = plan(record.filter(|_| self.context.is_due()));
        // Before a run ends, turns are compacted earlier than usual; also after one failure, which may be transient.
        if mild.full && self.context.failures <= 1 { plan(record) } else { mild }
    }

    /// Plans how to make room without a model's help.
    pub(crate) fn plan_without_model(&self, tools: usize) -> EvictionPlan {
        let Some(limit) = self.context_limit() else { return EvictionPlan::default() };
        self.room(tools, limit, self.target(limit), None, self.scope()).plan()
    }

    /// Plans how to make room if nothing else helps: results that the model has not seen may be evicted too.
    pub(crate) fn plan_last(&self, tools: usize) -> EvictionPlan {
        let Some(limit) = self.context_limit() else { return EvictionPlan::default() };
        self.room(tools, limit, limit, None, EvictionScope::All).plan()
    }

    /// Handles an unexpected overflow report of the API for the conversation with `tools` estimated tokens of
    /// definitions. Returns whether room can be made.
    pub(crate) fn on_overflow(&mut self, tools: usize) -> bool {
        let Phase::Model { last, .. } = self.phase else { return false };
        let ceiling = (self.context_tokens() + tools) / 4 * AFTER_OVERFLOW;
        self.context.ceiling = Some(self.context.ceiling.map_or(ceiling, |known| known.min(ceiling)));
        !last || !self.plan_last(tools).truncate.is_empty()
    }

    /// Returns the handles of the stored parts of this result.
    pub(crate) fn stored_handles(&self, position: ResultPosition) -> &[String] {
        let handles = self.result_at(position).and_then(|result| self.context.handles.get(&result.call_id));
        handles.map_or(&[], Vec::as_slice)
    }

    pub(crate) fn result_at(&self, position: ResultPosition) -> Option<&CallResult> {
        match self.messages.get(position.message)? {
            Message::Tool { results } => results.get(position.result),
            _ => None,
        }
    }

    /// Replaces a result by a note that names its handles. `readers` read stored text.
    pub(crate) fn evict(&mut self, evicted: Evicted, readers: &OutputReaders) {
        let beginning = self.context_limit().map_or(0, eviction_plan::beginning);
        let Some(result) = self.result_mut(evicted.position) else { return };
        let call = result.call_id.clone();
        result.content = vec![ContentBlock::text(evicted.note(result, readers, beginning))];
        self.context.counts.results += 1;
        self.context.note_stored(&call, evicted.texts);
        if !evicted.files.is_empty() {
            self.context.files.insert(call.clone(), evicted.files);
        }
        self.context.notes.insert(call);
    }

    /// Postpones compaction, which is not possible now, by one answer.
    pub(crate) fn postpone_compaction(&mut self) {
        self.context.answers_since = Some(ANSWERS_BETWEEN - 1);
    }

    /// Counts that old results were evicted.
    pub(crate) fn count_truncation(&mut self) {
        self.context.counts.truncated += 1;
    }

    fn result_mut(&mut self, position: ResultPosition) -> Option<&mut CallResult> {
        match self.messages.get_mut(position.message)? {
            Message::Tool { results } => results.get_mut(position.result),
            _ => None,
        }
    }

    /// Returns the size to reach when room is made.
    fn target(&self, limit: usize) -> usize {
        (limit as f64 * self.config.context.target.clamp(0.2, 0.8)) as usize
    }

    /// Returns which results may be evicted now: unseen ones only before the last request.
    fn scope(&self) -> EvictionScope {
        if self.is_last_turn() { EvictionScope::All } else { EvictionScope::Seen }
    }

    fn room(
        &self,
        tools: usize,
        limit: usize,
        target: usize,
        memory: Option<usize>,
        scope: EvictionScope,
    ) -> EvictionInput<'_> {
        let is_certain = scope == EvictionScope::All || self.is_counted();
        EvictionInput {
            messages: &self.messages,
            overhead: EstimatedTokens::of_text(&self.system()) + tools,
            uncertainty: if is_certain { 0 } else { size::uncertainty(&self.messages) },
            limit,
            target,
            task_at: self.context.task_at,
            notes: &self.context.notes,
            memory,
            scope,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_leaves_room_for_the_answer() {
        for (window, answer, expect) in [
            (4000, Some(100), 3700),
            (200_000, Some(8192), 181_808),
            (200_000, None, 185_904),
            (8000, None, 5600),
            // A limit of nearly the whole window counts as none. Otherwise every run would end at once.
            (8000, Some(7900), 3600),
            (0, Some(1), 0),
        ] {
            assert_eq!(limit(window, answer), expect, "{window} {answer:?}");
        }
    }
}
