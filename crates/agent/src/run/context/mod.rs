//! The context guard: what a conversation takes of the model's window, and how room is made in it. Pure; the driver
//! stores what gives way and asks the models.

mod compaction;
mod evicted;
mod gauge;
mod memory;
mod plan;
mod render;
mod size;
mod user_words;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use toolwright_core::ContentBlock;
use toolwright_core::context::EstimatedTokens;
use toolwright_core::model::{CallResult, Message, ShownTool, Usage};
use toolwright_core::output::Readers;

use self::compaction::Compaction;
use self::gauge::Gauge;
use self::memory::Memory;
use self::plan::{CompactionInput, EvictionScope};
use self::render::Author;
use super::exposure::NOTICE;
use super::{Phase, RunState};

pub use self::compaction::{Compacted, CompactionCall};
pub(crate) use self::compaction::{CompactionSources, MemoryTools};
pub(crate) use self::evicted::{Evicted, MAX_FILES, Repeat, has_text};
pub(crate) use self::memory::Original;
pub(crate) use self::plan::{Plan, ResultPosition};
pub(crate) use self::render::{Files, Originals, besides, content_text};
pub(crate) use self::size::Countable;

/// The part of a window that is left free, since counts are not certain.
const BUFFER: usize = 20;
/// Tokens that an answer is reckoned with where it has no limit, but a quarter of the window at most.
const ANSWER: usize = 4096;
/// From this many hundredths of its room on, a conversation is counted again by the model's own tokenizer.
const NEAR: usize = 80;
/// Answers of the model before turns are put together again.
const ANSWERS_BETWEEN: u32 = 5;
/// The part of the room that a summary may have, as much the facts, and as much what the user said.
const MEMORY: usize = 18;
/// What an overflow that nobody foresaw says of the room: this many quarters of the conversation.
const AFTER_OVERFLOW: usize = 3;

/// How room is made in a run's conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContextOptions {
    /// Whether a model may put the oldest turns together where giving up old results is not enough.
    pub summarize: bool,
    /// That model, `provider/model`; `None` for the run's own: the conversation goes to no other unless it is named here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What making room once leaves, as a part of what a request may have, 0.2 to 0.8. The less, the rarer the provider's
    /// prompt cache is lost.
    pub target: f64,
}

impl Default for ContextOptions {
    fn default() -> Self {
        Self { summarize: true, model: None, target: 0.5 }
    }
}

/// How often room was made, and what that took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Compactions {
    /// Times that old results gave way, which takes no model; where turns are put together besides, that counts for itself.
    pub truncated: u32,
    /// Times that turns were put together.
    pub summarized: u32,
    /// Times that this failed.
    pub failed: u32,
    /// Results that gave way.
    pub results: u64,
    /// Messages that were put together.
    pub messages: u64,
    /// What models used for it; it is in the run's usage too.
    pub usage: Usage,
}

/// What the guard knows of a run. Part of its saved state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Guard {
    gauge: Gauge,
    /// Estimated tokens that a request may have, by an overflow that nobody foresaw.
    #[serde(skip_serializing_if = "Option::is_none")]
    ceiling: Option<usize>,
    /// Where the message stands that began the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    task_at: Option<usize>,
    /// Where messages stand that stay by the word of whoever runs this.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pins: Vec<usize>,
    /// The messages of the user's role that are not the user's; `None` in runs that were saved before this was noted.
    #[serde(skip_serializing_if = "Option::is_none")]
    ours: Option<Vec<ProgramMessage>>,
    /// Handles of results of which the conversation has a part only, or none, by the ids of their calls.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    handles: BTreeMap<String, Vec<String>>,
    /// Handles of the images and other files of results that gave way, by the ids of their calls.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    files: BTreeMap<String, Vec<String>>,
    /// Ids of calls whose result is a note of ours by now.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    notes: BTreeSet<String>,
    /// Ids of calls that are not in the conversation any more: no other call gets them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone: Vec<String>,
    /// Answers since turns were put together; `None` if they never were.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u32>,
    /// Times that this failed since it was done, in this task.
    failures: u32,
    /// Tokens of an answer whose request does not say how many it may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    /// What is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    compaction: Option<Compaction>,
    /// How many were begun.
    begun: u32,
    counts: Compactions,
}

/// A message of the user's role that the program wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ProgramMessage {
    /// Where it stands.
    at: usize,
    /// The background job whose news it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job: Option<String>,
}

impl Guard {
    /// The run's, whose messages begin with those.
    pub(super) fn new(messages: &[Message]) -> Self {
        let task_at = messages.iter().rposition(|message| matches!(message, Message::User { .. }));
        Self { task_at, ours: Some(Vec::new()), ..Self::default() }
    }

    /// Notes whose the messages of a run are that was saved before that was noted: by how they begin.
    pub(super) fn note_ours(&mut self, messages: &[Message]) {
        if self.ours.is_some() {
            return;
        }
        let ours = messages.iter().enumerate().filter_map(|(at, message)| {
            let Message::User { content } = message else { return None };
            let rest = content.first()?.as_text()?.strip_prefix(NOTICE)?;
            let job = rest.strip_prefix(" Background job ").and_then(|rest| rest.split(' ').next());
            Some(ProgramMessage { at, job: job.map(str::to_owned) })
        });
        self.ours = Some(ours.collect());
    }

    /// Whose the message at this place is, if it is of the user's role.
    fn voice_at(&self, at: usize) -> Author<'_> {
        if self.memory.as_ref().is_some_and(|memory| memory.at == at) {
            return Author::Program;
        }
        match self.ours.iter().flatten().find(|ours| ours.at == at) {
            Some(ProgramMessage { job: Some(job), .. }) => Author::Job(job),
            Some(_) => Author::Program,
            None => Author::User,
        }
    }

    /// A task begins with the message at this place.
    pub(super) fn begin_task(&mut self, at: usize) {
        self.task_at = Some(at);
        if std::mem::take(&mut self.failures) > 0 {
            self.since = None;
        }
    }

    /// Turns were put together.
    fn compaction_done(&mut self) {
        (self.failures, self.since) = (0, Some(0));
    }

    /// Turns could not be put together: it is tried again after an answer, after two the next time, and so on.
    fn compaction_failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.since = Some(ANSWERS_BETWEEN.saturating_sub(self.failures));
    }

    /// The model has answered.
    pub(super) fn on_answer(&mut self, usage: &Usage) {
        self.gauge.learn(usage.input_tokens);
        if let Some(since) = &mut self.since {
            *since = since.saturating_add(1);
        }
    }

    /// These are the handles of all of this call's result that the conversation has not got.
    pub(super) fn note_stored(&mut self, call: &str, handles: Vec<String>) {
        if !handles.is_empty() {
            self.handles.insert(call.to_owned(), handles);
        }
    }

    /// The result of this call is in the conversation no more.
    fn forget(&mut self, call: &str) {
        self.handles.remove(call);
        self.files.remove(call);
        self.notes.remove(call);
    }

    pub(super) fn gone(&self) -> &[String] {
        &self.gone
    }

    pub(super) fn is_compacting(&self) -> bool {
        self.compaction.is_some()
    }

    /// What is under way is given up; it may begin anew.
    pub(super) fn abandon(&mut self) {
        self.compaction = None;
    }
}

/// The room of a conversation, and what may be done in it; see [`CompactionInput`].
struct Room {
    limit: usize,
    target: usize,
    memory: Option<usize>,
    reach: EvictionScope,
}

/// Tokens that a request may have. More than half of the window is kept for no answer: a limit above is meant as none.
fn limit(window: usize, answer: Option<u32>) -> usize {
    let answer = answer.map_or(ANSWER.min(window / 4), |tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
    let answer = answer.min(window / 2);
    window.saturating_sub(window / BUFFER).saturating_sub(answer)
}

impl RunState {
    /// Estimated tokens of system prompt and conversation.
    #[must_use]
    pub fn context_tokens(&self) -> usize {
        size::conversation(&self.system(), &self.messages)
    }

    /// Estimated tokens that system prompt, conversation and definitions of tools may have together: the model's
    /// window, if it is known, less its answer and a buffer, by what is known of how the model counts; and no more than
    /// an overflow has shown.
    #[must_use]
    pub fn context_limit(&self) -> Option<usize> {
        let answer = self.guard.answer.or(self.spec.max_tokens);
        let by_window = self.spec.window.map(|window| limit(window, answer));
        let by_window = by_window.map(|tokens| self.guard.gauge.estimate(tokens));
        [by_window, self.guard.ceiling].into_iter().flatten().min()
    }

    /// What an estimate comes to as the model counts, as far as that is known.
    #[must_use]
    pub fn in_tokens(&self, estimate: usize) -> usize {
        self.guard.gauge.tokens(estimate)
    }

    /// Whether the model's own tokenizer has counted the conversation.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.guard.gauge.is_exact()
    }

    /// Estimated tokens of what could give way to further results: old ones, and turns that may be put together.
    #[must_use]
    pub fn removable_tokens(&self) -> usize {
        let limit = self.context_limit();
        let memory = limit.filter(|_| self.spec.context.summarize && self.is_due()).map(Self::record_room);
        // The model has seen all that is in the conversation while calls run.
        let room = Room { limit: limit.unwrap_or(0), target: 0, memory, reach: EvictionScope::All };
        self.in_room(0, room, |crowded| crowded.most())
    }

    /// Makes room where the next request is over `budget` estimated tokens: the oldest results give way to a note that
    /// says so, down to three quarters. The results that the model has not seen yet stay. Nothing is kept of what gives way:
    /// for runs that have no store. Returns how many were removed.
    pub fn fit_context(&mut self, budget: usize) -> usize {
        if !matches!(self.phase, Phase::Model { .. }) || self.context_tokens() <= budget {
            return 0;
        }
        let room = Room { limit: budget, target: budget / 4 * 3, memory: None, reach: EvictionScope::Seen };
        let places = self.plan_in(0, room).truncate;
        for place in &places {
            if let Some(result) = self.result_mut(*place) {
                let tokens = result.tokens();
                result.content = vec![ContentBlock::text(format!(
                    "[toolwright removed this result, about {tokens} tokens, to make room in the conversation; call the tool again if you need it]"
                ))];
            }
        }
        places.len()
    }

    /// Adds a text to the conversation that stays in it word for word, however often room is made: what the model is
    /// never to lose sight of. The model reads it with its next request. A run that waits for calls takes none.
    pub fn pin(&mut self, text: &str) -> bool {
        if self.guard.is_compacting() || matches!(&self.phase, Phase::Calls { .. }) || !self.open_calls().is_empty() {
            return false;
        }
        self.guard.pins.push(self.messages.len());
        self.messages.push(Message::user(text));
        true
    }

    /// Adds a message of the program's to the conversation, in the user's role; `job`: the background job whose news it has.
    pub(super) fn tell(&mut self, text: impl Into<String>, job: Option<&str>) {
        let ours = ProgramMessage { at: self.messages.len(), job: job.map(str::to_owned) };
        self.guard.ours.get_or_insert_default().push(ours);
        self.messages.push(Message::user(text.into()));
    }

    /// How often room was made in this run, and what that took.
    #[must_use]
    pub fn compactions(&self) -> Compactions {
        self.guard.counts
    }

    /// What an answer to the run's requests may have, thoughts among it, as far as the model's client knows.
    pub(crate) fn expect_answer(&mut self, tokens: Option<u32>) {
        self.guard.answer = tokens;
    }

    /// The request is about to be asked, with definitions of `tools` estimated tokens: what its API reports of it tells
    /// how the model counts.
    pub(crate) fn asked(&mut self, tools: usize) {
        self.guard.gauge.asked = self.context_tokens() + tools;
    }

    /// What is to be counted exactly, if the next request comes near the limit; `tools` estimated tokens of it are
    /// definitions.
    pub(crate) fn to_count(&self, tools: usize, shown: &[ShownTool]) -> Option<Countable> {
        let limit = self.context_limit().filter(|_| self.waits_for_model() && !self.guard.is_compacting())?;
        let unsure = size::unsure(&self.messages);
        let is_near = self.context_tokens() + tools + unsure > limit * NEAR / 100;
        is_near.then(|| Countable::of(&self.system(), &self.messages, shown, tools))
    }

    /// The model's tokenizer has counted what [`RunState::to_count`] gave.
    pub(crate) fn on_counted(&mut self, exact: usize, estimate: usize) {
        self.guard.gauge.count(exact, estimate);
    }

    /// What is to be done before the model is asked, whose tools have `tools` estimated tokens.
    pub(crate) fn plan_room(&self, tools: usize) -> Plan {
        let Phase::Model { last, .. } = self.phase else { return Plan::default() };
        let Some(limit) = self.context_limit().filter(|_| !self.guard.is_compacting()) else { return Plan::default() };
        let (target, reach) = (self.target(limit), self.reach());
        let plan = |memory| self.plan_in(tools, Room { limit, target, memory, reach });
        let record = (self.spec.context.summarize && !last).then(|| Self::record_room(limit));
        let mild = plan(record.filter(|_| self.is_due()));
        // Before a run ends, turns are put together sooner than is due; and models fail for a moment, so that is tried again.
        if mild.full && self.guard.failures <= 1 { plan(record) } else { mild }
    }

    /// The same where no model can be asked to help.
    pub(crate) fn plan_alone(&self, tools: usize) -> Plan {
        let Some(limit) = self.context_limit() else { return Plan::default() };
        self.plan_in(tools, Room { limit, target: self.target(limit), memory: None, reach: self.reach() })
    }

    /// The plan where nothing else helps: results that the model has not seen may give way too.
    pub(crate) fn plan_last(&self, tools: usize) -> Plan {
        let Some(limit) = self.context_limit() else { return Plan::default() };
        self.plan_in(tools, Room { limit, target: limit, memory: None, reach: EvictionScope::All })
    }

    /// The API says that the conversation, with `tools` estimated tokens of definitions, does not fit, and nobody has
    /// foreseen it. Returns whether there is anything to be done about it.
    pub(crate) fn on_overflow(&mut self, tools: usize) -> bool {
        let Phase::Model { last, .. } = self.phase else { return false };
        let shown = (self.context_tokens() + tools) / 4 * AFTER_OVERFLOW;
        self.guard.ceiling = Some(self.guard.ceiling.map_or(shown, |known| known.min(shown)));
        !last || !self.plan_last(tools).truncate.is_empty()
    }

    /// The handles of what was stored of this result before.
    pub(crate) fn stored(&self, place: ResultPosition) -> &[String] {
        let handles = self.result_at(place).and_then(|result| self.guard.handles.get(&result.call_id));
        handles.map_or(&[], Vec::as_slice)
    }

    /// Bytes of an old result that stay in the conversation when it gives way: of a small room none.
    pub(crate) fn beginning(&self) -> usize {
        self.context_limit().map_or(0, plan::beginning)
    }

    pub(crate) fn result_at(&self, place: ResultPosition) -> Option<&CallResult> {
        match self.messages.get(place.message)? {
            Message::Tool { results } => results.get(place.result),
            _ => None,
        }
    }

    /// A result gives way to a note that names where it is now. `readers` read stored text.
    pub(crate) fn truncate(&mut self, gone: Evicted, readers: &Readers) {
        let beginning = self.beginning();
        let Some(result) = self.result_mut(gone.place) else { return };
        let call = result.call_id.clone();
        result.content = vec![ContentBlock::text(gone.note(result, readers, beginning))];
        self.guard.counts.results += 1;
        self.guard.note_stored(&call, gone.texts);
        if !gone.files.is_empty() {
            self.guard.files.insert(call.clone(), gone.files);
        }
        self.guard.notes.insert(call);
    }

    /// Nothing can be put together now: it is left for an answer.
    pub(crate) fn put_off_compaction(&mut self) {
        self.guard.since = Some(ANSWERS_BETWEEN - 1);
    }

    /// Old results gave way.
    pub(crate) fn count_truncation(&mut self) {
        self.guard.counts.truncated += 1;
    }

    fn result_mut(&mut self, place: ResultPosition) -> Option<&mut CallResult> {
        match self.messages.get_mut(place.message)? {
            Message::Tool { results } => results.get_mut(place.result),
            _ => None,
        }
    }

    /// Whether turns may be put together by now.
    fn is_due(&self) -> bool {
        self.guard.since.is_none_or(|answers| answers >= ANSWERS_BETWEEN)
    }

    /// What making room leaves of `limit`.
    fn target(&self, limit: usize) -> usize {
        (limit as f64 * self.spec.context.target.clamp(0.2, 0.8)) as usize
    }

    /// The results that may give way now: those that the model has not seen yet only where it is asked for the last time.
    fn reach(&self) -> EvictionScope {
        if self.is_last_turn() { EvictionScope::All } else { EvictionScope::Seen }
    }

    fn plan_in(&self, tools: usize, room: Room) -> Plan {
        self.in_room(tools, room, |crowded| crowded.plan())
    }

    fn in_room<T>(&self, tools: usize, room: Room, what: impl FnOnce(&CompactionInput<'_>) -> T) -> T {
        let Room { limit, target, memory, reach } = room;
        let besides = EstimatedTokens::of_text(&self.system()) + tools;
        let kept = |at: usize| self.stays(at);
        let notes = &self.guard.notes;
        let is_sure = reach == EvictionScope::All || self.is_counted();
        let unsure = if is_sure { 0 } else { size::unsure(&self.messages) };
        what(&CompactionInput {
            messages: &self.messages,
            besides,
            unsure,
            limit,
            target,
            kept: &kept,
            notes,
            memory,
            reach,
        })
    }

    /// Whether a message is never put together with others.
    fn stays(&self, at: usize) -> bool {
        self.guard.task_at == Some(at) || self.guard.pins.contains(&at)
    }

    /// Estimated tokens that a summary may have in a room of `limit`, and as many its facts and the user's words.
    fn memory_room(limit: usize) -> usize {
        limit / MEMORY
    }

    /// Estimated tokens of what takes the place of turns, at most.
    fn record_room(limit: usize) -> usize {
        Self::memory_room(limit) * 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_of_a_request_is_the_window_less_a_twentieth_and_its_answer() {
        for (window, answer, expect) in [
            (4000, Some(100), 3700),
            (200_000, Some(8192), 181_808),
            (200_000, None, 185_904),
            (8000, None, 5600),
            // A limit of nearly the whole window is meant as none: it does not end every run at once.
            (8000, Some(7900), 3600),
            (0, Some(1), 0),
        ] {
            assert_eq!(limit(window, answer), expect, "{window} {answer:?}");
        }
    }
}
