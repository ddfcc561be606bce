//! Passes on text and reasoning as soon as they are certain, without the white space that belongs to markers.

use std::collections::HashSet;

use serde::de::IgnoredAny;
use toolwright_core::model::{ModelEvent, RawToolCall};

use crate::table::format::{JsonResponseForm, Spacing};

/// Receives the pieces as they arrive.
pub(super) type Sink<'a> = &'a mut dyn FnMut(ModelEvent);

/// The most white space that is held back; more in one place is passed on.
const MAX_PENDING: usize = 1 << 20;

/// The pieces, and the white space between them that may still belong to a marker.
#[derive(Debug)]
pub(super) struct Output {
    /// A response that may be JSON in a code block.
    fenced: Fenced,
    /// White space and end tokens after the text so far.
    pending: String,
    /// White space after the reasoning so far.
    pending_reasoning: String,
    /// Whether text was passed on.
    has_text: bool,
    /// Whether text of the open reasoning was passed on.
    has_thought: bool,
    /// Whether reasoning or a call was passed on, so that white space may belong to it.
    has_other: bool,
    /// Whether only white space followed the last call.
    after_call: bool,
    /// Whether white space is no longer held back.
    flooded: bool,
    /// The ids of the calls so far.
    ids: HashSet<String>,
}

impl Output {
    /// Starts empty.
    pub(super) fn new(answers: JsonResponseForm) -> Self {
        Self {
            fenced: if answers == JsonResponseForm::FencedJson { Fenced::default() } else { Fenced::off() },
            pending: String::new(),
            pending_reasoning: String::new(),
            has_text: false,
            has_thought: false,
            has_other: false,
            after_call: false,
            flooded: false,
            ids: HashSet::new(),
        }
    }

    /// Text.
    pub(super) fn text(&mut self, piece: &str, sink: Sink<'_>) {
        if self.fenced.is_over() {
            self.plain(piece, sink);
        } else if let Some(text) = self.fenced.take(piece) {
            self.plain(&text, sink);
        }
    }

    fn plain(&mut self, piece: &str, sink: Sink<'_>) {
        self.flooded |= self.pending.len() > MAX_PENDING;
        let body = if self.flooded { piece } else { piece.trim_ascii_end() };
        if body.is_empty() {
            self.pending.push_str(piece);
            return;
        }
        let mut out = std::mem::take(&mut self.pending);
        out.push_str(body);
        self.pending.push_str(&piece[body.len()..]);
        if !self.has_text {
            // After reasoning or a call, white space is dropped; otherwise only empty lines at the start.
            let text = out.trim_ascii_start();
            let line = out[..out.len() - text.len()].rfind('\n').map_or(0, |end| end + 1);
            out = if self.has_other { text.to_owned() } else { out.split_off(line) };
        }
        if !out.is_empty() {
            self.has_text = true;
            self.after_call = false;
            sink(ModelEvent::Text(out));
        }
    }

    /// A token that ends the response, unless text follows.
    pub(super) fn stop(&mut self, token: &str, sink: Sink<'_>) {
        self.settle(true, sink);
        self.pending.push_str(token);
    }

    /// Ends a text: no more comes, or another piece comes first.
    pub(super) fn settle(&mut self, ended: bool, sink: Sink<'_>) {
        let held = self.fenced.settle(ended);
        self.plain(&held, sink);
    }

    /// A piece of reasoning.
    pub(super) fn reasoning(&mut self, piece: &str, spacing: Spacing, sink: Sink<'_>) {
        let body = piece.trim_ascii_end();
        if body.is_empty() {
            self.pending_reasoning.push_str(piece);
            return;
        }
        let mut out = std::mem::take(&mut self.pending_reasoning);
        out.push_str(body);
        if !self.has_thought && spacing == Spacing::Trim {
            out = out.trim_ascii_start().to_owned();
        }
        self.pending_reasoning.push_str(&piece[body.len()..]);
        self.thought(out, sink);
    }

    /// A piece of reasoning with its white space.
    pub(super) fn verbatim(&mut self, piece: &str, sink: Sink<'_>) {
        let mut out = std::mem::take(&mut self.pending_reasoning);
        out.push_str(piece);
        if !out.is_empty() {
            self.thought(out, sink);
        }
    }

    fn thought(&mut self, out: String, sink: Sink<'_>) {
        self.has_thought = true;
        self.has_other = true;
        sink(ModelEvent::Reasoning(out));
    }

    /// The reasoning is over.
    pub(super) fn end_reasoning(&mut self, spacing: Spacing, sink: Sink<'_>) {
        let rest = std::mem::take(&mut self.pending_reasoning);
        if spacing == Spacing::Keep && self.has_thought && !rest.is_empty() {
            self.thought(rest, sink);
        }
        self.has_thought = false;
        self.has_other = true;
        if !self.has_text {
            self.pending.clear();
        }
    }

    /// A call. A repeated id is dropped.
    pub(super) fn call(&mut self, mut call: RawToolCall, spacing: Spacing, sink: Sink<'_>) {
        self.settle(false, sink);
        self.has_other = true;
        let spaced = self.has_text && !self.after_call && !self.pending.is_empty();
        if spacing == Spacing::Keep && spaced {
            sink(ModelEvent::Text(std::mem::take(&mut self.pending)));
        }
        self.after_call = true;
        if !call.id.is_empty() && !self.ids.insert(call.id.clone()) {
            call.id.clear();
        }
        sink(ModelEvent::Call(call));
    }
}

const FENCE_OPEN: &str = "```json";
const FENCE_CLOSE: &str = "```";
/// The longest response that is held back, in bytes.
const MAX_HELD: usize = 4 << 20;

/// A response that may be only JSON in a code block, as some models write when JSON is requested.
#[derive(Debug, Default)]
struct Fenced {
    held: String,
    /// Position from which the closing fence is searched.
    search: usize,
    over: bool,
}

impl Fenced {
    /// Returns an inactive one.
    fn off() -> Self {
        Self { over: true, ..Self::default() }
    }

    /// Whether the rest is ordinary text.
    fn is_over(&self) -> bool {
        self.over
    }

    /// Reads `piece`, and returns the part that turned out to be ordinary text.
    fn take(&mut self, piece: &str) -> Option<String> {
        self.held.push_str(piece);
        if !self.over && self.may_be() {
            return None;
        }
        self.over = true;
        Some(std::mem::take(&mut self.held))
    }

    /// The text that is held back: the JSON in the block, if the response has `ended` with it.
    fn settle(&mut self, ended: bool) -> String {
        self.over = true;
        let held = std::mem::take(&mut self.held);
        let inner = held.trim_ascii().strip_prefix(FENCE_OPEN).and_then(|text| text.strip_suffix(FENCE_CLOSE));
        match inner.map(str::trim_ascii) {
            Some(json) if ended && serde_json::from_str::<IgnoredAny>(json).is_ok() => json.to_owned(),
            _ => held,
        }
    }

    fn may_be(&mut self) -> bool {
        let text = self.held.trim_ascii_start();
        if text.len() <= FENCE_OPEN.len() {
            return FENCE_OPEN.starts_with(text);
        }
        if !text.starts_with(FENCE_OPEN) || self.held.len() > MAX_HELD {
            return false;
        }
        let from = self.search.max(self.held.len() - text.len() + FENCE_OPEN.len());
        match memchr::memmem::find(&self.held.as_bytes()[from..], FENCE_CLOSE.as_bytes()) {
            Some(at) => {
                self.search = from + at;
                self.held[from + at + FENCE_CLOSE.len()..].trim_ascii().is_empty()
            }
            None => {
                self.search = (self.held.len() + 1).saturating_sub(FENCE_CLOSE.len()).max(from);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lone_json_block_is_unwrapped() {
        let check = |text: &str, expect: &str| {
            for size in 1..=text.len() {
                let (mut fenced, mut out) = (Fenced::default(), String::new());
                for piece in text.as_bytes().chunks(size) {
                    out += &fenced.take(std::str::from_utf8(piece).expect("ASCII")).unwrap_or_default();
                }
                out += &fenced.settle(true);
                assert_eq!(out, expect, "{text:?} by {size}");
            }
        };
        check("```json\n{\"a\": 1}\n```\n", "{\"a\": 1}");
        check("```json [1]```", "[1]");
        check("```json\n{\"a\": 1\n```", "```json\n{\"a\": 1\n```");
        check("```json\n{}\n```\nThat is it.", "```json\n{}\n```\nThat is it.");
        check("```rust\nfn\n```", "```rust\nfn\n```");
        check("{\"a\": 1}", "{\"a\": 1}");
    }
}
