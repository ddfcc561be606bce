//! Compaction of the oldest turns: the requests to models, and the resulting conversation. The state is saved
//! before a model is asked, so a crash loses no answer.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::ContentBlock;
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::context::EstimatedTokens;
use toolwright_core::model::{CallResult, Message, Usage};
use toolwright_core::outcome::Outcome;
use toolwright_core::session::CallId;

use super::Guard;
use super::memory::{Fact, Memory, Original, read_facts};
use super::render::{self, Author, Files, Originals, RenderContext, Turn, content_text, parts, within};
use super::user_words::Task;
use crate::report::Status;
use crate::run::{RunState, TransitionError};

/// Bytes for each token that a text may have.
const BYTES: usize = 4;
/// Parts that facts are taken out of, each by itself: in a long text models overlook things.
const MAX_PARTS: usize = 8;
/// Tokens of one.
const PART: usize = 8000;
/// Facts of one at most.
const FACTS: usize = 12;
/// Tokens of one in an answer, about.
const FACT_TOKENS: usize = 40;
/// Bytes of a result that the summary is made of: what is in it comes as facts.
const SUMMARIZED_RESULT: usize = 512;
/// The part of the room that is put into words, and that which facts are taken out of: making room reads no more than
/// there is to be made.
const SUMMARIZED: usize = 4;
const READ: usize = 2;
/// Words of a summary.
const WORDS: std::ops::RangeInclusive<usize> = 40..=600;

/// What is under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Compaction {
    /// The messages that one is to stand for.
    range: (usize, usize),
    /// Where their text is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    original: Option<Original>,
    /// Where their images and other files are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    files: Vec<String>,
    /// What the user said in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    said: Vec<String>,
    /// How many of these are older than the message of the task.
    #[serde(default)]
    said_before: usize,
    /// The request for the summary, then those for facts.
    calls: Vec<CompactionCall>,
    /// What those that have ended used.
    #[serde(default)]
    usage: Usage,
    /// Estimated tokens of the conversation before.
    before: usize,
    /// Those of the tools beside it.
    tools: usize,
}

/// What of the turns outlives them, besides the summary.
struct Kept {
    facts: Vec<Fact>,
    words: (Vec<String>, Task),
    original: Option<Original>,
    files: Vec<String>,
}

/// A call that is made on behalf of the guard. No model has asked for it, and none sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompactionCall {
    /// Its id, unique in the run.
    pub id: CallId,
    /// Wire name of the tool.
    pub name: String,
    /// Its arguments.
    pub arguments: Value,
    /// What came of it: its structured result, or why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<Result<Value, String>>,
}

impl CompactionCall {
    fn call(&self) -> ToolCall {
        let arguments = RawArguments::Value(self.arguments.clone());
        ToolCall { id: self.id.clone(), name: self.name.clone(), arguments }
    }
}

/// What became of putting turns together.
#[derive(Debug, Clone, PartialEq)]
pub enum Compacted {
    /// Some calls have not ended.
    Open,
    /// It is done.
    Done {
        /// Messages that one of ours stands for now.
        messages: usize,
        /// Estimated tokens of the request before and after, tools included.
        tokens: (usize, usize),
        /// Facts that are kept.
        facts: usize,
        /// Where the text of the messages is.
        handle: Option<String>,
        /// Why facts of some parts are missing.
        missing: Vec<String>,
        /// What all of the calls used.
        usage: Usage,
    },
    /// There is no summary; the conversation is as it was.
    Failed(String),
}

/// The tools that turns are put together with, by wire name.
#[derive(Debug, Clone)]
pub(crate) struct MemoryTools {
    pub(crate) summarize: String,
    pub(crate) extract: String,
    /// Tokens that their model takes in, where it is another than the run's and that is known.
    pub(crate) window: Option<usize>,
}

/// What the models are asked that put turns together.
struct Asked {
    summarized: String,
    /// The parts that facts are taken out of.
    facts: Vec<String>,
    /// Words of the summary.
    words: usize,
    /// Tokens of all of it, as the model counts.
    takes: u64,
}

/// What is known of the turns besides what stands in the conversation.
#[derive(Debug, Default)]
pub(crate) struct CompactionSources {
    /// Results that were stored before.
    pub(crate) originals: Originals,
    /// Where the text of all of them is.
    pub(crate) stored: Option<Original>,
    /// Their images and other files that were stored.
    pub(crate) files: Files,
}

impl RunState {
    /// What is stored of the results in `range`, because the conversation has not got all of them: `(call, handle)`, of a
    /// result several times where there are several parts.
    pub(crate) fn stored_in(&self, range: &Range<usize>) -> Vec<(String, String)> {
        let of = |result: &CallResult| {
            let handles = self.guard.handles.get(&result.call_id).into_iter().flatten();
            handles.map(|handle| (result.call_id.clone(), handle.clone())).collect::<Vec<_>>()
        };
        self.results_in(range).flat_map(of).collect()
    }

    fn results_in(&self, range: &Range<usize>) -> impl Iterator<Item = &CallResult> {
        self.messages.get(range.clone()).into_iter().flatten().flat_map(results_of)
    }

    /// The text of the messages in `range` that are to be put together, as the model saw them.
    pub(crate) fn text_of(&self, range: &Range<usize>, files: &Files) -> String {
        render::whole(&self.to_put_together(range), files)
    }

    /// The blocks of the messages in `range` that are to be put together.
    pub(crate) fn blocks_of(&self, range: &Range<usize>) -> Vec<&ContentBlock> {
        let mut blocks = Vec::new();
        for turn in self.to_put_together(range) {
            match turn.message {
                Message::User { content } => blocks.extend(content),
                Message::Tool { results } => blocks.extend(results.iter().flat_map(|result| &result.content)),
                Message::Assistant { .. } => {}
            }
        }
        blocks
    }

    /// Whether what is left of the task's tokens is enough for putting the messages in `range` together.
    pub(crate) fn affords_compaction(
        &self,
        range: &Range<usize>,
        whole: &CompactionSources,
        with: &MemoryTools,
    ) -> bool {
        let left = self.tokens_left();
        left.is_none_or(|left| self.asked_of(range, whole, with).is_some_and(|asked| asked.takes <= left))
    }

    /// What the models are asked that put the messages in `range` together.
    fn asked_of(&self, range: &Range<usize>, whole: &CompactionSources, with: &MemoryTools) -> Option<Asked> {
        let limit = self.context_limit()?;
        // Of another model's window half is left for its prompt and answer.
        let limit = with.window.map_or(limit, |window| limit.min(self.guard.gauge.estimate(window / 2)));
        let turns = self.turns_in(range);
        let Guard { notes, handles, memory, .. } = &self.guard;
        let known = RenderContext { originals: &whole.originals, files: &whole.files, notes, handles };
        let retold = memory.as_ref().map(Memory::retold);
        let room = limit / SUMMARIZED * BYTES;
        let summarized = render::retelling(retold.as_deref(), &turns, known, SUMMARIZED_RESULT, room);
        let all = (limit / READ).min(PART * MAX_PARTS);
        let facts = parts(&within(&turns, known, usize::MAX, all * BYTES), PART.min(all) * BYTES, MAX_PARTS);
        let words = (Self::memory_room(limit) * 3 / 4).clamp(*WORDS.start(), *WORDS.end());
        let texts = std::iter::once(&summarized).chain(&facts).map(|text| EstimatedTokens::of_text(text));
        let takes = texts.sum::<usize>() + words + facts.len() * FACTS * FACT_TOKENS;
        Some(Asked { summarized, facts, words, takes: self.in_tokens(takes) as u64 })
    }

    /// Begins to put the messages in `range` together: the calls to be made are [`super::super::Step::Compact`] until
    /// [`RunState::on_compacted`] has heard of all of them. To be saved before they are. Returns whether it has begun: not
    /// where the calls would take more than is left of the task's tokens.
    pub(crate) fn begin_compaction(
        &mut self,
        range: Range<usize>,
        whole: CompactionSources,
        with: &MemoryTools,
        tools: usize,
    ) -> bool {
        let Some(Asked { summarized, facts, words, takes }) = self.asked_of(&range, &whole, with) else { return false };
        if self.tokens_left().is_some_and(|left| takes > left) {
            return false;
        }
        let number = self.guard.begun + 1;
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
        let mut calls = vec![call("summary", &with.summarize, summary)];
        let facts = facts.into_iter().enumerate();
        calls.extend(facts.map(|(n, text)| {
            call(&format!("facts-{}", n + 1), &with.extract, json!({"text": text, "max_facts": FACTS}))
        }));
        let all = range.clone().filter(|at| !self.stays(*at)).filter_map(|at| Some((at, self.turn_at(at)?)));
        let said = all.filter_map(|(at, turn)| match turn.message {
            Message::User { content } if turn.voice == Author::User => Some((at, content_text(content, &whole.files))),
            _ => None,
        });
        let said: Vec<(usize, String)> = said.filter(|(_, text)| !text.trim().is_empty()).collect();
        let said_before = said.iter().filter(|(at, _)| self.guard.task_at.is_some_and(|task| *at < task)).count();
        let said = said.into_iter().map(|(_, text)| text).collect();
        let before = self.context_tokens();
        let mut files: Vec<String> = whole.files.into_values().collect();
        files.extend(
            self.results_in(&range).filter_map(|result| self.guard.files.get(&result.call_id)).flatten().cloned(),
        );
        files.sort();
        self.guard.begun = number;
        let (range, original) = ((range.start, range.end), whole.stored);
        let usage = Usage::default();
        self.guard.compaction =
            Some(Compaction { range, original, files, said, said_before, calls, usage, before, tools });
        true
    }

    /// Tokens that the task may still use.
    fn tokens_left(&self) -> Option<u64> {
        let Usage { input_tokens, output_tokens, .. } = self.task.usage;
        Some(self.spec.limits.tokens?.saturating_sub(input_tokens.saturating_add(output_tokens)))
    }

    /// The calls of what is under way that have not ended.
    pub(crate) fn compaction_calls(&self) -> Vec<ToolCall> {
        let calls = self.guard.compaction.iter().flat_map(|compaction| &compaction.calls);
        calls.filter(|call| call.ended.is_none()).map(CompactionCall::call).collect()
    }

    /// Calls of [`super::super::Step::Compact`] ended, any of them; they used `usage`. Once all have, one message of ours
    /// stands for the turns, or nothing has changed.
    ///
    /// # Errors
    /// [`TransitionError`] unless each outcome belongs to such a call.
    pub fn on_compacted(&mut self, outcomes: Vec<Outcome>, usage: Usage) -> Result<Compacted, TransitionError> {
        let phase = self.phase.describe();
        let illegal = TransitionError::Illegal { transition: "on_compacted", phase };
        let compaction = self.guard.compaction.as_mut().ok_or(illegal)?;
        let open =
            |calls: &[CompactionCall], id: &CallId| calls.iter().any(|call| call.id == *id && call.ended.is_none());
        if let Some(strange) = outcomes.iter().find(|outcome| !open(&compaction.calls, &outcome.call_id)) {
            return Err(TransitionError::NoSuchCall { transition: "on_compacted", call: strange.call_id.clone() });
        }
        for outcome in outcomes {
            if let Some(call) = compaction.calls.iter_mut().find(|call| call.id == outcome.call_id) {
                call.ended = Some(ended(outcome));
            }
        }
        compaction.usage.add(usage);
        self.task.usage.add(usage);
        self.guard.counts.usage.add(usage);
        let is_open = compaction.calls.iter().any(|call| call.ended.is_none());
        if is_open {
            return Ok(Compacted::Open);
        }
        let Some(compaction) = self.guard.compaction.take() else { return Ok(Compacted::Open) };
        let compacted = self.finish_compaction(compaction);
        match compacted {
            Compacted::Done { .. } => self.guard.compaction_done(),
            _ => self.guard.compaction_failed(),
        }
        // What that took counts, before the model is asked again.
        if let Some(reason) = self.spec.limits.exhausted(self.task.turns, &self.task.usage) {
            self.finish(Status::Partial, Some(reason));
        }
        Ok(compacted)
    }

    fn finish_compaction(&mut self, compaction: Compaction) -> Compacted {
        let Compaction { range: (start, end), original, files, said: words, said_before, calls, usage, before, tools } =
            compaction;
        let mut results = calls.into_iter().map(|call| call.ended.unwrap_or_else(|| Err("it did not end".into())));
        let summary = match results.next() {
            Some(Ok(summary)) if has_summary(&summary) => summary,
            Some(Err(why)) => return self.compaction_failed(why),
            _ => return self.compaction_failed("the summary is empty".into()),
        };
        let said = render::said(&self.to_put_together(&(start..end)));
        let (mut facts, mut missing) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(value) => facts.extend(read_facts(&value, &said)),
                Err(why) => missing.push(why),
            }
        }
        let handle = original.as_ref().map(|original| original.handle.clone());
        let kept = Kept { facts, words: (words, self.task_beside(&(start..end), said_before)), original, files };
        let Some(messages) = self.put_together(start..end, &summary, kept) else {
            return self.compaction_failed("the conversation is another by now".into());
        };
        self.guard.counts.summarized += 1;
        self.guard.counts.messages += messages as u64;
        let facts = self.guard.memory.as_ref().map_or(0, |memory| memory.facts());
        let tokens = (before + tools, self.context_tokens() + tools);
        Compacted::Done { messages, tokens, facts, handle, missing, usage }
    }

    fn compaction_failed(&mut self, why: String) -> Compacted {
        self.guard.counts.failed += 1;
        Compacted::Failed(why)
    }

    /// Where the message of the task stands beside what the user said in `range`, in so many messages before it.
    fn task_beside(&self, range: &Range<usize>, said_before: usize) -> Task {
        let record = self.guard.memory.as_ref().map(|memory| memory.at);
        match self.guard.task_at {
            Some(at) if at < range.start => Task::Above,
            // What stands for the turns before the task is behind it since it was put there.
            Some(at) if at < range.end && record.is_some_and(|record| at < record) => Task::Above,
            Some(at) if at < range.end => Task::After(said_before),
            _ => Task::Below,
        }
    }

    fn turn_at(&self, at: usize) -> Option<Turn<'_>> {
        Some(Turn { message: self.messages.get(at)?, voice: self.guard.voice_at(at) })
    }

    /// The messages of `range` but those that stay.
    fn to_put_together(&self, range: &Range<usize>) -> Vec<Turn<'_>> {
        range.clone().filter(|at| !self.stays(*at)).filter_map(|at| self.turn_at(at)).collect()
    }

    /// The same without the record of those before, which needs no other reading: its facts are kept as they are.
    fn turns_in(&self, range: &Range<usize>) -> Vec<Turn<'_>> {
        let record = self.guard.memory.as_ref().map(|memory| memory.at);
        let all = range.clone().filter(|at| !self.stays(*at) && record != Some(*at));
        all.filter_map(|at| self.turn_at(at)).collect()
    }

    /// Puts one message in the place of those in `range`, and before it those of them that stay, so that who reads on
    /// knows the task before the work on it. Returns how many it stands for.
    fn put_together(&mut self, range: Range<usize>, summary: &Value, kept_of: Kept) -> Option<usize> {
        let Kept { facts, words, original, files } = kept_of;
        if range.end > self.messages.len() || range.start >= range.end {
            return None;
        }
        let (start, end) = (range.start, range.end);
        let room = Self::memory_room(self.context_limit().unwrap_or_default()).max(100);
        let kept: Vec<usize> = range.clone().filter(|at| self.stays(*at)).collect();
        let mut answers = 0;
        let (mut stay, mut gone, mut loads) = (Vec::new(), 0, Vec::new());
        let taken: Vec<Message> = self.messages.drain(range).collect();
        for (at, message) in (start..).zip(taken) {
            if kept.contains(&at) {
                stay.push(message);
                continue;
            }
            gone += 1;
            match message {
                Message::Assistant { calls, .. } => {
                    answers += 1;
                    self.guard.gone.extend(calls.into_iter().map(|call| call.id));
                }
                Message::Tool { results } => {
                    for result in results {
                        self.guard.forget(&result.call_id);
                        loads.extend(result.loads);
                    }
                }
                Message::User { .. } => {}
            }
        }
        // What a result had loaded is shown from now on: nothing in the conversation loads it any more.
        self.load(loads);
        let stays = stay.len();
        let mut memory = self.guard.memory.take().unwrap_or_default();
        memory.at = start + stays;
        memory.take(summary, facts, answers, original, room);
        memory.take_words(words.0, words.1);
        memory.keep_files(files);
        self.messages.splice(start..start, stay.into_iter().chain(std::iter::once(memory.message(room))));
        self.guard.memory = Some(memory);
        let moved = |at: usize| match at {
            _ if at < start => at,
            _ if at >= end => at - (end - start) + 1 + stays,
            _ => start + kept.iter().position(|kept| *kept == at).unwrap_or_default(),
        };
        self.guard.task_at = self.guard.task_at.map(moved);
        self.guard.pins.iter_mut().for_each(|at| *at = moved(*at));
        let ours = self.guard.ours.iter_mut().flatten();
        ours.for_each(|ours| ours.at = if (start..end).contains(&ours.at) { usize::MAX } else { moved(ours.at) });
        self.guard.ours.iter_mut().for_each(|ours| ours.retain(|ours| ours.at != usize::MAX));
        Some(gone)
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
