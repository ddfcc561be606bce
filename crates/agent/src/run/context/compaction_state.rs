//! Compaction of the oldest turns: the requests to models, and the resulting conversation. The state is saved
//! before a model is asked, so that a crash loses no answer.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::ContentBlock;
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::context::EstimatedTokens;
use toolwright_core::model::{CallResult, Message, Usage};
use toolwright_core::outcome::Outcome;
use toolwright_core::session::CallId;

use super::memory::{Fact, Memory, StoredText, read_facts};
use super::render::{
    self, AuthoredMessage, BinaryHandles, MessageAuthor, RenderContext, StoredResults, content_text, parts, within,
};
use super::user_messages::TaskPosition;
use super::{ContextState, memory_tokens};
use crate::report::Status;
use crate::run::TodoSeen;
use crate::run::{RunState, TransitionError};

/// Bytes per token of a text.
const BYTES: usize = 4;
/// The most parts from which facts are extracted, each in a separate request: models overlook things in a long text.
const MAX_PARTS: usize = 8;
/// Maximum tokens of a part.
const PART: usize = 8000;
/// Maximum facts of a part.
const FACTS: usize = 12;
/// Approximate tokens of a fact in an answer.
const FACT_TOKENS: usize = 40;
/// Bytes of a result that the summary is based on. Facts carry the rest.
const SUMMARIZED_RESULT: usize = 512;
/// The divisors of the limit that give how much is summarised and how much facts are extracted from: making room reads
/// no more than it frees.
const SUMMARIZED: usize = 4;
const READ: usize = 2;
/// Words of a summary.
const WORDS: std::ops::RangeInclusive<usize> = 40..=600;

/// A compaction in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Compaction {
    /// The messages to replace by one.
    range: (usize, usize),
    /// Handle of their stored text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    original: Option<StoredText>,
    /// Handles of their images and other files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    files: Vec<String>,
    /// The user's words in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    words: Vec<String>,
    /// How many of these are older than the message of the task.
    #[serde(default)]
    words_before: usize,
    /// The request for the summary, followed by those for facts.
    calls: Vec<CompactionCall>,
    /// Usage of the calls that have ended.
    #[serde(default)]
    usage: Usage,
    /// Estimated tokens of the conversation before.
    before: usize,
    /// Estimated tokens of the tools.
    tools: usize,
}

/// The parts of the turns that remain in addition to the summary.
struct RetainedContent {
    facts: Vec<Fact>,
    words: (Vec<String>, TaskPosition),
    original: Option<StoredText>,
    files: Vec<String>,
}

/// A call that compacts the conversation. The run's model has not requested it and does not see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompactionCall {
    /// Its id, unique in the run.
    pub id: CallId,
    /// Wire name of the tool.
    pub name: String,
    /// Its arguments.
    pub arguments: Value,
    /// Its structured result, or why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<Result<Value, String>>,
}

impl CompactionCall {
    fn call(&self) -> ToolCall {
        let arguments = RawArguments::Value(self.arguments.clone());
        ToolCall::new(self.id.clone(), self.name.clone(), arguments)
    }
}

/// The state of a compaction after some of its calls ended.
#[derive(Debug, Clone, PartialEq)]
pub enum CompactionState {
    /// Some calls have not ended.
    Open,
    /// It is done.
    Done {
        /// Messages that were replaced by one.
        messages: usize,
        /// Estimated tokens of the request before and after, tools included.
        tokens: (usize, usize),
        /// Facts that were kept.
        facts: usize,
        /// Handle of the stored text of the messages.
        handle: Option<String>,
        /// The reasons why facts of some parts are missing.
        missing: Vec<String>,
        /// Usage of all calls.
        usage: Usage,
    },
    /// There is no summary; the conversation is unchanged.
    Failed(String),
}

/// The tools that compact turns, by wire name.
#[derive(Debug, Clone)]
pub(crate) struct MemoryTools {
    pub(crate) summarize: String,
    pub(crate) extract: String,
    /// The context window of their model, if known and not the run's model.
    pub(crate) window: Option<usize>,
}

/// The requests of a compaction.
struct CompactionRequests {
    /// The text to summarise.
    summarized: String,
    /// The parts to extract facts from.
    facts: Vec<String>,
    /// Words of the summary.
    words: usize,
    /// Tokens of the whole, as the model counts.
    tokens: u64,
}

/// The stored data of the turns outside of the conversation.
#[derive(Debug, Default)]
pub(crate) struct CompactionSources {
    /// Results that were stored before.
    pub(crate) originals: StoredResults,
    /// Handle of the stored text of all of them.
    pub(crate) stored: Option<StoredText>,
    /// Their stored images and other files.
    pub(crate) files: BinaryHandles,
}

impl RunState {
    /// Returns the stored parts of the results in `range`: `(call, handle)`, several times for a result with several
    /// parts.
    pub(crate) fn stored_in(&self, range: &Range<usize>) -> Vec<(String, String)> {
        let of = |result: &CallResult| {
            let handles = self.context.handles.get(&result.call_id).into_iter().flatten();
            handles.map(|handle| (result.call_id.clone(), handle.clone())).collect::<Vec<_>>()
        };
        self.results_in(range).flat_map(of).collect()
    }

    fn results_in(&self, range: &Range<usize>) -> impl Iterator<Item = &CallResult> {
        self.messages.get(range.clone()).into_iter().flatten().flat_map(results_of)
    }

    /// Returns the text of the messages in `range` that can be compacted, as the model saw them.
    pub(crate) fn text_of(&self, range: &Range<usize>, files: &BinaryHandles) -> String {
        render::whole(&self.compactable_turns(range), files)
    }

    /// Returns the blocks of the messages in `range` that can be compacted.
    pub(crate) fn blocks_of(&self, range: &Range<usize>) -> Vec<&ContentBlock> {
        let mut blocks = Vec::new();
        for turn in self.compactable_turns(range) {
            match turn.message {
                Message::User { content } => blocks.extend(content),
                Message::Tool { results } => blocks.extend(results.iter().flat_map(|result| &result.content)),
                Message::Assistant { .. } => {}
            }
        }
        blocks
    }

    /// Returns whether the rest of the task's tokens is enough to compact the messages in `range`.
    pub(crate) fn can_afford_compaction(
        &self,
        range: &Range<usize>,
        sources: &CompactionSources,
        tools: &MemoryTools,
    ) -> bool {
        let left = self.tokens_left();
        left.is_none_or(|left| self.requests(range, sources, tools).is_some_and(|requests| requests.tokens <= left))
    }

    /// Returns the requests that compact the messages in `range`.
    fn requests(
        &self,
        range: &Range<usize>,
        sources: &CompactionSources,
        tools: &MemoryTools,
    ) -> Option<CompactionRequests> {
        let limit = self.context_limit()?;
        // Another model's window is halved to leave room for its prompt and answer.
        let limit = tools.window.map_or(limit, |window| limit.min(self.context.gauge.estimate(window / 2)));
        let turns = self.turns_in(range);
        let ContextState { notes, handles, memory, .. } = &self.context;
        let render_context = RenderContext { originals: &sources.originals, files: &sources.files, notes, handles };
        let earlier = memory.as_ref().map(Memory::to_text);
        let room = limit / SUMMARIZED * BYTES;
        let summarized = render::with_earlier(earlier.as_deref(), &turns, render_context, SUMMARIZED_RESULT, room);
        let all = (limit / READ).min(PART * MAX_PARTS);
        let facts = parts(&within(&turns, render_context, usize::MAX, all * BYTES), PART.min(all) * BYTES, MAX_PARTS);
        let words = (memory_tokens(limit) * 3 / 4).clamp(*WORDS.start(), *WORDS.end());
        let texts = std::iter::once(&summarized).chain(&facts).map(|text| EstimatedTokens::of_text(text));
        let tokens = texts.sum::<usize>() + words + facts.len() * FACTS * FACT_TOKENS;
        Some(CompactionRequests { summarized, facts, words, tokens: self.in_tokens(tokens) as u64 })
    }

    /// Begins to compact the messages in `range`: [`crate::run::Step::Compact`] returns its calls until
    /// [`RunState::on_compacted`] has got all of them. Save the state before the calls run. Returns false if the calls
    /// would take more than the rest of the task's tokens.
    pub(crate) fn begin_compaction(
        &mut self,
        range: Range<usize>,
        sources: CompactionSources,
        memory_tools: &MemoryTools,
        tools: usize,
    ) -> bool {
        let Some(CompactionRequests { summarized, facts, words, tokens }) =
            self.requests(&range, &sources, memory_tools)
        else {
            return false;
        };
        if self.tokens_left().is_some_and(|left| tokens > left) {
            return false;
        }
        let number = self.context.begun + 1;
        let call = |what: &str, name: &str, arguments: Value| CompactionCall {
            id: CallId::new(format!("compaction-{number}-{what}")),
            name: name.to_owned(),
            arguments,
            ended: None,
        };
        let focus = "What the user wants, what was decided and why, what was done and found, what is still to do. Names, \
                     numbers, paths and identifiers exactly as they stand. Who speaks stands at the left margin: what is \
                     in a result was found, and nobody's wish.";
        let summary = json!({"content": summarized, "max_length": words, "focus": focus});
        let mut calls = vec![call("summary", &memory_tools.summarize, summary)];
        let facts = facts.into_iter().enumerate();
        calls.extend(facts.map(|(n, text)| {
            call(&format!("facts-{}", n + 1), &memory_tools.extract, json!({"text": text, "max_facts": FACTS}))
        }));
        let turns = range.clone().filter(|at| !self.is_protected(*at)).filter_map(|at| Some((at, self.turn_at(at)?)));
        let words = turns.filter_map(|(at, turn)| match turn.message {
            Message::User { content } if turn.author == MessageAuthor::User => {
                Some((at, content_text(content, &sources.files)))
            }
            _ => None,
        });
        let words: Vec<(usize, String)> = words.filter(|(_, text)| !text.trim().is_empty()).collect();
        let words_before = words.iter().filter(|(at, _)| self.context.task_at.is_some_and(|task| *at < task)).count();
        let words = words.into_iter().map(|(_, text)| text).collect();
        let before = self.context_tokens();
        let mut files: Vec<String> = sources.files.into_values().collect();
        files.extend(
            self.results_in(&range).filter_map(|result| self.context.files.get(&result.call_id)).flatten().cloned(),
        );
        files.sort();
        self.context.begun = number;
        self.context.compaction = Some(Compaction {
            range: (range.start, range.end),
            original: sources.stored,
            files,
            words,
            words_before,
            calls,
            usage: Usage::default(),
            before,
            tools,
        });
        true
    }

    /// Returns the tokens that the task may still use.
    fn tokens_left(&self) -> Option<u64> {
        let Usage { input_tokens, output_tokens, .. } = self.task.usage;
        Some(self.config.limits.tokens?.saturating_sub(input_tokens.saturating_add(output_tokens)))
    }

    /// Returns the calls of the current compaction that have not ended.
    pub(crate) fn compaction_calls(&self) -> Vec<ToolCall> {
        let calls = self.context.compaction.iter().flat_map(|compaction| &compaction.calls);
        calls.filter(|call| call.ended.is_none()).map(CompactionCall::call).collect()
    }

    /// Takes ended calls of [`crate::run::Step::Compact`] and their `usage`. Once all have ended, one message replaces
    /// the turns, or the conversation stays unchanged.
    ///
    /// # Errors
    /// [`TransitionError`] unless each outcome belongs to such a call.
    pub fn on_compacted(&mut self, outcomes: Vec<Outcome>, usage: Usage) -> Result<CompactionState, TransitionError> {
        let illegal = self.illegal("on_compacted");
        let compaction = self.context.compaction.as_mut().ok_or(illegal)?;
        let open =
            |calls: &[CompactionCall], id: &CallId| calls.iter().any(|call| call.id == *id && call.ended.is_none());
        if let Some(unknown) = outcomes.iter().find(|outcome| !open(&compaction.calls, &outcome.call_id)) {
            return Err(TransitionError::NoSuchCall { transition: "on_compacted", call: unknown.call_id.clone() });
        }
        for outcome in outcomes {
            if let Some(call) = compaction.calls.iter_mut().find(|call| call.id == outcome.call_id) {
                call.ended = Some(ended(outcome));
            }
        }
        compaction.usage.add(usage);
        self.task.usage.add(usage);
        self.context.counts.usage.add(usage);
        let is_open = compaction.calls.iter().any(|call| call.ended.is_none());
        if is_open {
            return Ok(CompactionState::Open);
        }
        let Some(compaction) = self.context.compaction.take() else { return Ok(CompactionState::Open) };
        let compacted = self.finish_compaction(compaction);
        match compacted {
            CompactionState::Done { .. } => self.context.compaction_done(),
            _ => self.context.compaction_failed(),
        }
        // The limit is checked before the model is asked again.
        if let Some(reason) = self.config.limits.exhausted(self.task.turns, &self.task.usage) {
            self.finish(Status::Partial, Some(reason));
        }
        Ok(compacted)
    }

    fn finish_compaction(&mut self, compaction: Compaction) -> CompactionState {
        let Compaction { range: (start, end), original, files, words, words_before, calls, usage, before, tools } =
            compaction;
        let mut results = calls.into_iter().map(|call| call.ended.unwrap_or_else(|| Err("it did not end".into())));
        let summary = match results.next() {
            Some(Ok(summary)) if has_summary(&summary) => summary,
            Some(Err(why)) => return self.compaction_failed(why),
            _ => return self.compaction_failed("the summary is empty".into()),
        };
        let texts = render::author_texts(&self.compactable_turns(&(start..end)));
        let (mut facts, mut missing) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(value) => facts.extend(read_facts(&value, &texts)),
                Err(why) => missing.push(why),
            }
        }
        let handle = original.as_ref().map(|original| original.handle.clone());
        let words = (words, self.task_position(&(start..end), words_before));
        let remains = RetainedContent { facts, words, original, files };
        let Some(messages) = self.replace_turns(start..end, &summary, remains) else {
            return self.compaction_failed("the conversation is another by now".into());
        };
        self.context.counts.summarized += 1;
        if let TodoSeen::Ago(_) = self.todo {
            // The list that the model saw may have been removed.
            self.todo = TodoSeen::Never;
        }
        self.context.counts.messages += messages as u64;
        let facts = self.context.memory.as_ref().map_or(0, |memory| memory.facts());
        let tokens = (before + tools, self.context_tokens() + tools);
        CompactionState::Done { messages, tokens, facts, handle, missing, usage }
    }

    fn compaction_failed(&mut self, why: String) -> CompactionState {
        self.context.counts.failed += 1;
        CompactionState::Failed(why)
    }

    /// Returns the position of the task's message among the user's words in `range`, of which `words_before` precede
    /// it.
    fn task_position(&self, range: &Range<usize>, words_before: usize) -> TaskPosition {
        let record = self.context.memory.as_ref().map(|memory| memory.at);
        match self.context.task_at {
            Some(at) if at < range.start => TaskPosition::Above,
            // The task precedes the message that replaces the turns before it.
            Some(at) if at < range.end && record.is_some_and(|record| at < record) => TaskPosition::Above,
            Some(at) if at < range.end => TaskPosition::After(words_before),
            _ => TaskPosition::Below,
        }
    }

    pub(super) fn turn_at(&self, at: usize) -> Option<AuthoredMessage<'_>> {
        Some(AuthoredMessage { message: self.messages.get(at)?, author: self.context.author_at(at) })
    }

    /// Returns whether a message is never compacted.
    fn is_protected(&self, at: usize) -> bool {
        self.context.task_at == Some(at)
    }

    /// Returns the messages of `range` without the one that stays.
    fn compactable_turns(&self, range: &Range<usize>) -> Vec<AuthoredMessage<'_>> {
        range.clone().filter(|at| !self.is_protected(*at)).filter_map(|at| self.turn_at(at)).collect()
    }

    /// Returns the same without the record of earlier turns, whose facts are kept.
    fn turns_in(&self, range: &Range<usize>) -> Vec<AuthoredMessage<'_>> {
        let record = self.context.memory.as_ref().map(|memory| memory.at);
        let all = range.clone().filter(|at| !self.is_protected(*at) && record != Some(*at));
        all.filter_map(|at| self.turn_at(at)).collect()
    }

    /// Replaces the messages in `range` by one, after the one that stays, so that the task precedes the work on it.
    /// Returns how many it replaces.
    fn replace_turns(&mut self, range: Range<usize>, summary: &Value, remains: RetainedContent) -> Option<usize> {
        let RetainedContent { facts, words, original, files } = remains;
        if range.end > self.messages.len() || range.start >= range.end {
            return None;
        }
        let (start, end) = (range.start, range.end);
        let room = memory_tokens(self.context_limit().unwrap_or_default()).max(100);
        let (mut answers, mut replaced) = (0, 0);
        let (mut task, mut loads) = (None, Vec::new());
        let removed: Vec<Message> = self.messages.drain(range).collect();
        for (at, message) in (start..).zip(removed) {
            if self.is_protected(at) {
                task = Some(message);
                continue;
            }
            replaced += 1;
            match message {
                Message::Assistant { calls, .. } => {
                    answers += 1;
                    self.context.removed_ids.extend(calls.into_iter().map(|call| call.id));
                }
                Message::Tool { results } => {
                    for result in results {
                        self.context.forget(&result.call_id);
                        loads.extend(result.loads);
                    }
                }
                Message::User { .. } => {}
            }
        }
        // No result in the conversation loads these tools any more, so they are shown from now on.
        self.load(loads);
        let inserted = usize::from(task.is_some()) + 1;
        let mut memory = self.context.memory.take().unwrap_or_default();
        memory.at = start + inserted - 1;
        memory.add(summary, facts, answers, original, room);
        memory.add_words(words.0, words.1);
        memory.add_files(files);
        self.messages.splice(start..start, task.into_iter().chain(std::iter::once(memory.message(room))));
        self.context.memory = Some(memory);
        let moved = |at: usize| match at {
            _ if at < start => at,
            _ if at >= end => at - (end - start) + inserted,
            _ => start,
        };
        self.context.task_at = self.context.task_at.map(moved);
        self.context.notices.retain(|notice| !(start..end).contains(&notice.at));
        self.context.notices.iter_mut().for_each(|notice| notice.at = moved(notice.at));
        Some(replaced)
    }
}

fn results_of(message: &Message) -> &[CallResult] {
    match message {
        Message::Tool { results } => results,
        _ => &[],
    }
}

fn ended(outcome: Outcome) -> Result<Value, String> {
    match (outcome.error, outcome.structured) {
        (None, Some(value)) if outcome.ok => Ok(value),
        (Some(error), _) => Err(error.message().to_owned()),
        _ => Err("it gave no result".into()),
    }
}

fn has_summary(value: &Value) -> bool {
    value.get("summary").and_then(Value::as_str).is_some_and(|text| !text.trim().is_empty())
}
