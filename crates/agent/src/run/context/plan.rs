//! Plans how to shorten a conversation that is too long. Pure: sizes in, a plan out.

use std::collections::BTreeSet;
use std::ops::Range;

use toolwright_core::model::Message;

/// Results below so many hundredths of a note are kept: a handle in their place gains next to nothing.
const WORTH_REMOVING: usize = 250;
/// Tokens of the note that takes the place of a result, at most, but for the beginning of the result in it.
const NOTE: usize = 60;
/// From a room of so many tokens on, the note has the beginning of the result: a byte for so many tokens of the room, and
/// no more than so many bytes.
const ROOMY: usize = 60_000;
const TOKENS_A_BYTE: usize = 500;
const MOST_BYTES: usize = 400;
/// Bytes for each token of a text.
const BYTES: usize = 4;
/// Turns at the end that are never put together.
const LAST_TURNS: usize = 2;
/// A plan that frees less than this part of the room is left until there is no other way: each one costs the
/// provider's prompt cache.
const WORTHWHILE: usize = 10;
/// What old results alone may leave of the room, in hundredths, where they do not come down to the target: asking a model
/// costs more than losing the provider's prompt cache once more.
const ENOUGH: usize = 70;
/// What a conversation may fill of its room before room is made, in hundredths: what is left is for the results of
/// the next turn.
const FULL: usize = 90;

/// A conversation and the room that it has, in estimated tokens.
pub(super) struct CompactionInput<'a> {
    pub(super) messages: &'a [Message],
    /// What every request has besides: system prompt and tools.
    pub(super) besides: usize,
    /// What the newest results may have more than is estimated: no API has counted them yet.
    pub(super) unsure: usize,
    /// What a request may have.
    pub(super) limit: usize,
    /// What it is to have once room was made, if that can be.
    pub(super) target: usize,
    /// Where messages stand that stay as they are.
    pub(super) kept: &'a dyn Fn(usize) -> bool,
    /// Ids of calls whose result is a note already: it names where the result is, and stays.
    pub(super) notes: &'a BTreeSet<String>,
    /// Tokens of the message that the oldest turns would be put together to; `None`: they may not be now.
    pub(super) memory: Option<usize>,
    pub(super) reach: EvictionScope,
}

/// Which results may give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictionScope {
    /// Those that the model has seen.
    Seen,
    /// All: there is no other way to ask it at all.
    All,
}

/// Where a result stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResultPosition {
    pub(crate) message: usize,
    pub(crate) result: usize,
}

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Results that give way to a note.
    pub(crate) truncate: Vec<ResultPosition>,
    /// Messages that are put together to one.
    pub(crate) summarize: Option<Range<usize>>,
    /// That is not enough.
    pub(crate) full: bool,
}

impl Plan {
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl CompactionInput<'_> {
    /// The mildest plan that comes to the target, or near enough without a model; where none does, the one that comes
    /// nearest to it.
    pub(super) fn plan(&self) -> Plan {
        let sizes: Vec<usize> = self.messages.iter().map(Message::tokens).collect();
        let total = self.besides + self.unsure + sizes.iter().sum::<usize>();
        let trigger = if self.reach == EvictionScope::All { self.limit } else { self.limit * FULL / 100 };
        if total <= trigger {
            return Plan::default();
        }
        let results = self.removable();
        let (truncate, left) = self.truncated(&results, 0, total);
        if left <= self.target.max(self.limit * ENOUGH / 100) {
            return Plan { truncate, ..Plan::default() };
        }
        if let Some((range, gain)) = self.range(&sizes, total) {
            let (rest, after) = self.truncated(&results, range.end, total - gain);
            if self.is_worthwhile(total, after) {
                return Plan { truncate: rest, summarize: Some(range), full: false };
            }
        }
        if !self.is_worthwhile(total, left) {
            return Plan::default();
        }
        Plan { truncate, summarize: None, full: left.saturating_sub(self.unsure) > self.limit }
    }

    /// Tokens that could be freed, whatever it takes.
    pub(super) fn most(&self) -> usize {
        let sizes: Vec<usize> = self.messages.iter().map(Message::tokens).collect();
        let (end, gain) = match self.range(&sizes, usize::MAX / 2) {
            Some((range, gain)) => (range.end, gain),
            None => (0, 0),
        };
        gain + self.removable().iter().filter(|(place, _)| place.message >= end).map(|(_, gain)| gain).sum::<usize>()
    }

    fn is_worthwhile(&self, before: usize, after: usize) -> bool {
        before > self.limit || before - after.min(before) >= self.limit / WORTHWHILE
    }

    /// The results that could be removed, the oldest first, with what that gains. What they load stays loaded.
    fn removable(&self) -> Vec<(ResultPosition, usize)> {
        let note = NOTE + beginning(self.limit) / BYTES;
        let newest = self.messages.iter().rposition(|message| matches!(message, Message::Tool { .. })).unwrap_or(0);
        let end = if self.reach == EvictionScope::All { self.messages.len() } else { newest };
        let results = self.messages[..end].iter().enumerate().filter_map(|(at, message)| match message {
            Message::Tool { results } => Some((at, results)),
            _ => None,
        });
        let each = results.flat_map(|(message, results)| {
            results.iter().enumerate().map(move |(result, content)| (ResultPosition { message, result }, content))
        });
        each.filter(|(_, result)| !self.notes.contains(&result.call_id))
            .map(|(place, result)| (place, result.tokens()))
            .filter(|(_, tokens)| *tokens >= note * WORTH_REMOVING / 100)
            .map(|(place, tokens)| (place, tokens - note))
            .collect()
    }

    /// Of the results from message `from` on, as many as it takes to get from `total` to the target; and what is left.
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

    /// The oldest messages, as few as it takes to come to the target, with what putting them together gains. No
    /// call is parted from its result.
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
            if !(self.kept)(added) {
                freed += sizes[added];
                answered |= matches!(self.messages[added], Message::Assistant { .. });
            }
            // A result follows its call at once.
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

/// Bytes of a result that stay in its note, in a room of `limit` tokens.
pub(super) fn beginning(limit: usize) -> usize {
    if limit < ROOMY { 0 } else { (limit / TOKENS_A_BYTE).min(MOST_BYTES) }
}

#[cfg(test)]
mod tests {
    use toolwright_core::ContentBlock;
    use toolwright_core::model::{CallResult, WrittenCall};

    use super::*;

    /// `u40` a user's message of about so many tokens, `a40` an answer in text, `c40` a call with a result, `n40` one whose
    /// result is a note.
    fn messages(written: &str) -> Vec<Message> {
        let of = |part: &str| {
            let text = "four".repeat(part[1..].parse::<usize>().expect("a number"));
            let call = WrittenCall { id: "1".into(), name: "t".into(), arguments: "{}".into() };
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

    /// The plan for a room of 1000, with a target of 500, in short: `t2,4` for results, `s1..5` for a range, `full`.
    fn check(written: &str, memory: Option<usize>, kept: &[usize], reach: EvictionScope, expect: &str) {
        let messages = messages(written);
        let kept = |at: usize| kept.contains(&at);
        let notes = BTreeSet::from(["noted".to_owned()]);
        let crowded = CompactionInput {
            messages: &messages,
            besides: 0,
            unsure: 0,
            limit: 1000,
            target: 500,
            kept: &kept,
            notes: &notes,
            memory,
            reach,
        };
        let plan = crowded.plan();
        let places: Vec<String> = plan.truncate.iter().map(|place| place.message.to_string()).collect();
        let truncate = (!places.is_empty()).then(|| format!("t{}", places.join(",")));
        let summarize = plan.summarize.map(|range| format!("s{}..{}", range.start, range.end));
        let parts: Vec<String> =
            [summarize, truncate, plan.full.then(|| "full".into())].into_iter().flatten().collect();
        assert_eq!(parts.join(" "), expect, "{written} {memory:?}");
    }

    #[test]
    fn the_mildest_plan_that_comes_to_the_target_is_taken() {
        let seen = EvictionScope::Seen;
        // Up to nine tenths of the room nothing happens.
        check("u10 c400 c400 c20", Some(100), &[], seen, "");
        // Old results alone are enough, the oldest first, and no more than it takes.
        check("u10 c400 c400 c150 c20", Some(100), &[], seen, "t2,4");
        // Where they are nearly, no model is asked.
        check("u10 a400 c500 c100", Some(100), &[], seen, "t3");
        // They are not: the oldest turns are put together, and what is left over the target of results goes too.
        check("u10 a300 a300 a200 a100 a50", Some(100), &[], seen, "s1..3");
        check("u10 a400 c200 c400 a10 a10", Some(100), &[], seen, "s1..6");
        // The results of the last turn stay, even where the model may not be asked to put anything together.
        check("u10 a400 c300 c250", None, &[], seen, "t3");
        check("u10 a800 c150", None, &[], seen, "");
        check("u10 a800 c280", None, &[], seen, "full");
        check("u10 a800 c280", None, &[], EvictionScope::All, "t3");
        // A note stays, however long it is: what it stands for is stored under the handles in it.
        check("u10 n400 c400 c150 c20", Some(100), &[], seen, "t4,6");
    }

    #[test]
    fn a_large_room_keeps_the_beginning_of_what_gives_way() {
        for (limit, bytes) in [(7000, 0), (59_999, 0), (60_000, 120), (120_000, 240), (1_000_000, 400)] {
            assert_eq!(beginning(limit), bytes, "{limit}");
        }
    }

    #[test]
    fn what_is_kept_is_kept_and_no_call_loses_its_result() {
        let seen = EvictionScope::Seen;
        // The kept message is within the range, and gains nothing.
        check("u10 u400 a300 a300 a20 a20", Some(100), &[1], seen, "s1..4");
        check("u10 u900 a20 a20 a20", Some(10), &[1], seen, "");
        // The last two turns are kept, so there is nothing to put together.
        check("u10 a900 a50", Some(100), &[], seen, "");
        // What is put together must be more than what comes of it.
        check("u10 a50 a850 a50", Some(100), &[], seen, "");
        // Never between a call and its result: 2 and 3, 4 and 5.
        check("u10 a500 c100 c100 c300 a10 a10", Some(50), &[], seen, "s1..6");
    }

    #[test]
    fn a_full_conversation_of_which_nothing_can_go_is_full() {
        check("u2000", Some(100), &[], EvictionScope::Seen, "full");
        check("u950", Some(100), &[], EvictionScope::Seen, "");
    }
}
