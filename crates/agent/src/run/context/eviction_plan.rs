//! Plans how to make room in a conversation that is too long, and writes the notes that replace evicted results.

use std::collections::BTreeSet;
use std::ops::Range;

use toolwright_core::content::ContentBlock;
use toolwright_core::model::{CallResult, Message};
use toolwright_core::output::OutputReaders;

/// A result is evicted only if it has this many hundredths of its note's size. Smaller ones free next to nothing.
const MIN_EVICTED_PERCENT: usize = 250;
/// The most tokens of the note that replaces a result, without the beginning of the result.
const NOTE: usize = 60;
/// The limit, in tokens, from which the note contains the beginning of the result: a byte for each `TOKENS_A_BYTE` of
/// the limit, and at most `MOST_BYTES`.
const PREVIEW_LIMIT: usize = 60_000;
const TOKENS_A_BYTE: usize = 500;
const MOST_BYTES: usize = 400;
/// Bytes per token of a text.
const BYTES: usize = 4;
/// Turns at the end that are never compacted.
const LAST_TURNS: usize = 2;
/// The divisor of the limit that gives the least worthwhile gain. Smaller plans wait until there is no other way,
/// because each invalidates the provider's prompt cache.
const MIN_GAIN_DIVISOR: usize = 10;
/// Percentage of the limit that is low enough if evicting old results does not reach the target: asking a model costs
/// more than invalidating the provider's prompt cache again.
const SUFFICIENT_PERCENT: usize = 70;
/// Percentage of the limit at which room is made. The rest is for the results of the next turn.
const FULL: usize = 90;

/// A conversation and its limits, in estimated tokens.
pub(super) struct EvictionInput<'a> {
    pub(super) messages: &'a [Message],
    /// Tokens of system prompt and tools, which are in every request.
    pub(super) overhead: usize,
    /// By how much the estimate of the newest results may be too low, because no API has counted them yet.
    pub(super) uncertainty: usize,
    /// The most tokens of a request.
    pub(super) limit: usize,
    /// The size to reach when room is made, if possible.
    pub(super) target: usize,
    /// The message of the task, which is never changed.
    pub(super) task_at: Option<usize>,
    /// Ids of calls whose result is already a note, which is kept.
    pub(super) notes: &'a BTreeSet<String>,
    /// Tokens of the summary that would replace the oldest turns; `None` if they may not be compacted now.
    pub(super) memory: Option<usize>,
    pub(super) scope: EvictionScope,
}

/// Which results may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictionScope {
    /// Results that the model has seen.
    Seen,
    /// All results, because the model could not be asked otherwise.
    All,
}

/// The position of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResultPosition {
    pub(crate) message: usize,
    pub(crate) result: usize,
}

/// A plan to make room.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EvictionPlan {
    /// Results to replace by notes.
    pub(crate) truncate: Vec<ResultPosition>,
    /// Messages to compact into one.
    pub(crate) summarize: Option<Range<usize>>,
    /// Whether the plan is not enough.
    pub(crate) full: bool,
}

impl EvictionPlan {
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl EvictionInput<'_> {
    /// Returns the mildest plan that reaches the target, or comes near enough without a model. If none does, returns
    /// the one that comes nearest.
    pub(super) fn plan(&self) -> EvictionPlan {
        let sizes: Vec<usize> = self.messages.iter().map(Message::tokens).collect();
        let total = self.overhead + self.uncertainty + sizes.iter().sum::<usize>();
        let trigger = if self.scope == EvictionScope::All { self.limit } else { self.limit * FULL / 100 };
        if total <= trigger {
            return EvictionPlan::default();
        }
        let results = self.evictable();
        let (truncate, left) = self.truncated(&results, 0, total);
        if left <= self.target.max(self.limit * SUFFICIENT_PERCENT / 100) {
            return EvictionPlan { truncate, ..EvictionPlan::default() };
        }
        if let Some((range, gain)) = self.range(&sizes, total) {
            let (rest, after) = self.truncated(&results, range.end, total - gain);
            if self.is_worthwhile(total, after) {
                return EvictionPlan { truncate: rest, summarize: Some(range), full: false };
            }
        }
        if !self.is_worthwhile(total, left) {
            return EvictionPlan::default();
        }
        EvictionPlan { truncate, summarize: None, full: left.saturating_sub(self.uncertainty) > self.limit }
    }

    /// Returns the most tokens that could be freed.
    pub(super) fn most(&self) -> usize {
        let sizes: Vec<usize> = self.messages.iter().map(Message::tokens).collect();
        let (end, gain) = match self.range(&sizes, usize::MAX / 2) {
            Some((range, gain)) => (range.end, gain),
            None => (0, 0),
        };
        gain + self.evictable().iter().filter(|(place, _)| place.message >= end).map(|(_, gain)| gain).sum::<usize>()
    }

    fn is_worthwhile(&self, before: usize, after: usize) -> bool {
        before > self.limit || before - after.min(before) >= self.limit / MIN_GAIN_DIVISOR
    }

    /// Returns the results that can be evicted, the oldest first, with the tokens that each frees. Tools that they
    /// loaded stay loaded.
    fn evictable(&self) -> Vec<(ResultPosition, usize)> {
        let note = NOTE + beginning(self.limit) / BYTES;
        let newest = self.messages.iter().rposition(|message| matches!(message, Message::Tool { .. })).unwrap_or(0);
        let end = if self.scope == EvictionScope::All { self.messages.len() } else { newest };
        let results = self.messages[..end].iter().enumerate().filter_map(|(at, message)| match message {
            Message::Tool { results } => Some((at, results)),
            _ => None,
        });
        let each = results.flat_map(|(message, results)| {
            results.iter().enumerate().map(move |(result, content)| (ResultPosition { message, result }, content))
        });
        each.filter(|(_, result)| !self.notes.contains(&result.call_id))
            .map(|(place, result)| (place, result.tokens()))
            .filter(|(_, tokens)| *tokens >= note * MIN_EVICTED_PERCENT / 100)
            .map(|(place, tokens)| (place, tokens - note))
            .collect()
    }

    /// Returns as many of the results from message `from` on as are needed to get from `total` to the target, and the
    /// remaining total.
    fn truncated(
        &self,
        results: &[(ResultPosition, usize)],
        from: usize,
        total: usize,
    ) -> (Vec<ResultPosition>, usize) {
        let (mut left, mut taken) = (total, Vec::new());
        for (place, gain) in results.iter().filter(|(place, _)| place.message >= from) {
            if left <= self.target {
                break;
            }
            left = left.saturating_sub(*gain);
            taken.push(*place);
        }
        (taken, left)
    }

    /// Returns the oldest messages, as few as are needed to reach the target, with the tokens that compacting them
    /// frees. No call is separated from its result.
    fn range(&self, sizes: &[usize], total: usize) -> Option<(Range<usize>, usize)> {
        let memory = self.memory?;
        let is_user = |message: &Message| matches!(message, Message::User { .. });
        let start = self.messages.iter().position(is_user).map_or(0, |first| first + 1);
        let answers = self.messages.iter().enumerate().rev();
        let mut answers = answers.filter(|(_, message)| matches!(message, Message::Assistant { .. }));
        let last = answers.nth(LAST_TURNS - 1).map(|(at, _)| at)?;
        let (mut freed, mut best) = (0, None);
        let mut answered = false;
        for end in start + 1..=last {
            let added = end - 1;
            if self.task_at != Some(added) {
                freed += sizes[added];
                answered |= matches!(self.messages[added], Message::Assistant { .. });
            }
            // A result directly follows its call.
            if !answered || matches!(self.messages[end], Message::Tool { .. }) || freed <= memory {
                continue;
            }
            best = Some((start..end, freed - memory));
            if total - (freed - memory) <= self.target {
                break;
            }
        }
        best
    }
}

/// Returns the bytes of a result that its note keeps, for a limit of this many tokens.
pub(super) fn beginning(limit: usize) -> usize {
    if limit < PREVIEW_LIMIT { 0 } else { (limit / TOKENS_A_BYTE).min(MOST_BYTES) }
}

/// Maximum files that a note names; the stored text names all.
pub(crate) const MAX_NOTE_FILES: usize = 4;

/// A result to evict, with the handles of its stored parts.
#[derive(Debug, Clone)]
pub(crate) struct Evicted {
    pub(crate) position: ResultPosition,
    /// Handles of its text; several if parts of it were stored before.
    pub(crate) texts: Vec<String>,
    /// Handles of its images and other files, which the stored text names too.
    pub(crate) files: Vec<String>,
    /// Whether its call may be repeated without a second effect.
    pub(crate) is_repeatable: bool,
}

/// Returns whether any of these blocks is not a file.
pub(crate) fn has_text<'b>(blocks: impl IntoIterator<Item = &'b ContentBlock>) -> bool {
    blocks.into_iter().any(|block| block.binary().is_none() && !block.placeholder().trim().is_empty())
}

impl Evicted {
    /// Returns whether the model can still read the result by its handles: its text, if it has any, with these tools;
    /// otherwise its files.
    pub(crate) fn is_kept(&self, result: &CallResult, readers: &OutputReaders) -> bool {
        self.has_readable_text(readers) || (!self.files.is_empty() && !has_text(&result.content))
    }

    fn has_readable_text(&self, readers: &OutputReaders) -> bool {
        !self.texts.is_empty() && !readers.is_empty()
    }

    /// Returns the note, with `beginning` bytes of the result. Names the handles of the text only if there are
    /// `readers`.
    pub(super) fn note(&self, result: &CallResult, readers: &OutputReaders, beginning: usize) -> String {
        let texts = || result.content.iter().filter_map(|block| block.as_text());
        let bytes: usize = texts().map(str::len).sum();
        let mut how = Vec::new();
        if let Some((first, more)) = self.texts.split_first().filter(|_| !readers.is_empty()) {
            how.push(advice(first, readers));
            if !more.is_empty() {
                how.push(format!("further parts of it under {}", more.join(", ")));
            }
        }
        if let Some(named) = self.files.get(..self.files.len().min(MAX_NOTE_FILES)).filter(|files| !files.is_empty()) {
            let rest = match self.files.len() - named.len() {
                0 => String::new(),
                rest => format!(" and {rest} more, which the stored text names"),
            };
            how.push(format!("its images and other files are kept under {}{rest}", named.join(", ")));
        }
        if !self.is_kept(result, readers) {
            let what = if how.is_empty() { "it" } else { "its text" };
            how.push(match self.is_repeatable {
                true => format!("{what} was not kept; call the tool again if you need it"),
                false => format!("{what} was not kept, and the call is not to be made again for it"),
            });
        }
        let note = format!("[toolwright took this result, {bytes} bytes, out to make room; {}]", how.join("; "));
        let text = texts().find(|text| !text.trim().is_empty()).filter(|_| beginning > 0);
        match text.map(|text| &text[..text.floor_char_boundary(beginning)]) {
            Some(begins) => format!("{note}\nIt began: {begins}…"),
            None => note,
        }
    }
}

/// Returns how to read a stored text: only one way, because there are many notes.
fn advice(handle: &str, readers: &OutputReaders) -> String {
    let OutputReaders { read, grep, extract } = readers.clone();
    if read.is_some() {
        return format!("it is stored. {}", OutputReaders { read, ..OutputReaders::default() }.advice(handle));
    }
    format!("it is stored under the handle {handle}. {}", OutputReaders { read: None, grep, extract }.advice(handle))
}

#[cfg(test)]
mod tests {
    use toolwright_core::model::RawToolCall;

    use super::*;

    /// Returns messages: `u40` of the user with about this many tokens, `a40` an answer in text, `c40` a call with a
    /// result, `n40` a call whose result is a note.
    fn messages(written: &str) -> Vec<Message> {
        let of = |part: &str| {
            let text = "four".repeat(part[1..].parse::<usize>().expect("a number"));
            let call = RawToolCall { id: "1".into(), name: "t".into(), arguments: "{}".into() };
            let call_id = if part.starts_with('n') { "noted".into() } else { "1".into() };
            let result =
                CallResult { content: vec![ContentBlock::text(text.clone())], call_id, ..CallResult::default() };
            let answer = |text, calls| Message::Assistant { text, calls, opaque: Vec::new() };
            match part.as_bytes()[0] {
                b'u' => vec![Message::user(text)],
                b'a' => vec![answer(text, Vec::new())],
                _ => vec![answer(String::new(), vec![call]), Message::Tool { results: vec![result] }],
            }
        };
        written.split(' ').flat_map(of).collect()
    }

    /// Checks the plan for a room of 1000 with a target of 500, in short form: `t2,4` for results, `s1..5` for a range,
    /// `full`.
    fn check(written: &str, memory: Option<usize>, task_at: Option<usize>, scope: EvictionScope, expect: &str) {
        let messages = messages(written);
        let notes = BTreeSet::from(["noted".to_owned()]);
        let room = EvictionInput {
            messages: &messages,
            overhead: 0,
            uncertainty: 0,
            limit: 1000,
            target: 500,
            task_at,
            notes: &notes,
            memory,
            scope,
        };
        let plan = room.plan();
        let places: Vec<String> = plan.truncate.iter().map(|place| place.message.to_string()).collect();
        let truncate = (!places.is_empty()).then(|| format!("t{}", places.join(",")));
        let summarize = plan.summarize.map(|range| format!("s{}..{}", range.start, range.end));
        let parts: Vec<String> =
            [summarize, truncate, plan.full.then(|| "full".into())].into_iter().flatten().collect();
        assert_eq!(parts.join(" "), expect, "{written} {memory:?}");
    }

    #[test]
    fn the_least_eviction_that_suffices_is_chosen() {
        let seen = EvictionScope::Seen;
        // Up to nine tenths of the room nothing is done.
        check("u10 c400 c400 c20", Some(100), None, seen, "");
        // Old results are enough: the oldest first, and no more than necessary.
        check("u10 c400 c400 c150 c20", Some(100), None, seen, "t2,4");
        // If they are nearly enough, no model is asked.
        check("u10 a400 c500 c100", Some(100), None, seen, "t3");
        // If they are not, the oldest turns are compacted, and results beyond the target are evicted too.
        check("u10 a300 a300 a200 a100 a50", Some(100), None, seen, "s1..3");
        check("u10 a400 c200 c400 a10 a10", Some(100), None, seen, "s1..6");
        // The results of the last turn stay, even if turns may not be compacted.
        check("u10 a400 c300 c250", None, None, seen, "t3");
        check("u10 a800 c150", None, None, seen, "");
        check("u10 a800 c280", None, None, seen, "full");
        check("u10 a800 c280", None, None, EvictionScope::All, "t3");
        // A note stays, regardless of its length: its result is stored under the handles in it.
        check("u10 n400 c400 c150 c20", Some(100), None, seen, "t4,6");
    }

    #[test]
    fn a_large_window_keeps_the_beginning_of_results() {
        for (limit, bytes) in [(7000, 0), (59_999, 0), (60_000, 120), (120_000, 240), (1_000_000, 400)] {
            assert_eq!(beginning(limit), bytes, "{limit}");
        }
    }

    #[test]
    fn the_task_and_results_of_calls_stay() {
        let seen = EvictionScope::Seen;
        // The kept message is within the range, but frees nothing.
        check("u10 u400 a300 a300 a20 a20", Some(100), Some(1), seen, "s1..4");
        check("u10 u900 a20 a20 a20", Some(10), Some(1), seen, "");
        // The last two turns stay, so there is nothing to compact.
        check("u10 a900 a50", Some(100), None, seen, "");
        // Compacted turns must be larger than their summary.
        check("u10 a50 a850 a50", Some(100), None, seen, "");
        // Never between a call and its result: 2 and 3, 4 and 5.
        check("u10 a500 c100 c100 c300 a10 a10", Some(50), None, seen, "s1..6");
    }

    #[test]
    fn a_conversation_that_cannot_shrink_is_full() {
        check("u2000", Some(100), None, EvictionScope::Seen, "full");
        check("u950", Some(100), None, EvictionScope::Seen, "");
    }

    fn named(read: Option<&str>, grep: Option<&str>) -> OutputReaders {
        OutputReaders { read: read.map(str::to_owned), grep: grep.map(str::to_owned), extract: None }
    }

    #[test]
    fn a_result_note_explains_how_to_read_it() {
        let result = |text: &str| CallResult { content: vec![ContentBlock::text(text)], ..CallResult::default() };
        let (both, grep) = (named(Some("output__read"), Some("output__grep")), named(None, Some("output__grep")));
        let check_of =
            |text: &str, texts: &[&str], files: &[&str], is_repeatable, readers: &OutputReaders, expect: &str| {
                let all = |handles: &[&str]| handles.iter().map(|handle| (*handle).to_owned()).collect();
                let position = ResultPosition { message: 0, result: 0 };
                let evicted = Evicted { position, texts: all(texts), files: all(files), is_repeatable };
                let (result, bytes) = (result(text), text.len());
                let note = evicted.note(&result, readers, 0);
                assert_eq!(evicted.is_kept(&result, readers), !note.contains("not kept"), "{note}");
                assert_eq!(note, format!("[toolwright took this result, {bytes} bytes, out to make room; {expect}]"));
            };
        let check = |texts: &[&str], files: &[&str], is_repeatable, readers: &OutputReaders, expect: &str| {
            check_of("four", texts, files, is_repeatable, readers, expect);
        };
        let read = "it is stored. Read it with output__read {\"handle\": \"s/1\", \"offset\": 0}";
        check(&["s/1"], &[], true, &both, read);
        check(&["s/1", "s/2", "s/3"], &[], true, &both, &format!("{read}; further parts of it under s/2, s/3"));
        let search = "it is stored under the handle s/1. Search it with output__grep {\"handle\": …, \"pattern\": …}";
        check(&["s/1"], &[], true, &grep, search);
        let files = "its images and other files are kept under s/2, s/3";
        check_of("", &[], &["s/2", "s/3"], true, &both, files);
        check(&["s/1"], &["s/2", "s/3"], false, &both, &format!("{read}; {files}"));
        let many =
            "its images and other files are kept under s/2, s/3, s/4, s/5 and 2 more, which the stored text names";
        let all = ["s/2", "s/3", "s/4", "s/5", "s/6", "s/7"];
        check(&["s/1"], &all, true, &both, &format!("{read}; {many}"));
        let none = named(None, None);
        let image = "its images and other files are kept under s/2";
        check_of("", &[], &["s/2"], true, &none, image);
        // Its text cannot be read by any tool, or was not stored.
        let lost = format!("{image}; its text was not kept; call the tool again if you need it");
        check(&[], &["s/2"], true, &none, &lost);
        check(&["s/1"], &["s/2"], true, &none, &lost);
        check(&[], &["s/2"], true, &both, &lost);
        let lost = format!("{image}; its text was not kept, and the call is not to be made again for it");
        check(&[], &["s/2"], false, &none, &lost);
        check(&["s/1"], &[], true, &none, "it was not kept; call the tool again if you need it");
        check(&[], &[], false, &both, "it was not kept, and the call is not to be made again for it");
    }

    #[test]
    fn the_beginning_of_a_result_follows_its_note() {
        let result = CallResult { content: vec![ContentBlock::text("größer als alles")], ..CallResult::default() };
        let position = ResultPosition { message: 0, result: 0 };
        let evicted = Evicted { position, texts: Vec::new(), files: Vec::new(), is_repeatable: true };
        let note = evicted.note(&result, &named(None, None), 3);
        assert!(note.ends_with("if you need it]\nIt began: gr…"), "{note}");
    }
}
