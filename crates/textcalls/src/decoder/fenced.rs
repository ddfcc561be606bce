//! An answer that is JSON in a block of code, and nothing else: asked for JSON, some models fence it.

use serde::de::IgnoredAny;

const OPEN: &str = "```json";
const CLOSE: &str = "```";
/// The longest answer that is held back, in bytes.
const MAX_HELD: usize = 4 << 20;

/// The text, as long as it may be such a block.
#[derive(Debug, Default)]
pub(super) struct Fenced {
    held: String,
    /// Where the closing fence is looked for.
    search: usize,
    over: bool,
}

impl Fenced {
    /// One that takes nothing.
    pub(super) fn off() -> Self {
        Self { over: true, ..Self::default() }
    }

    /// Whether all that comes is ordinary text.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Takes `piece`, and gives back what is ordinary text after all.
    pub(super) fn take(&mut self, piece: &str) -> Option<String> {
        self.held.push_str(piece);
        if !self.over && self.may_be() {
            return None;
        }
        self.over = true;
        Some(std::mem::take(&mut self.held))
    }

    /// The text that is held back: the JSON of a block if it has `ended` with it.
    pub(super) fn settle(&mut self, ended: bool) -> String {
        self.over = true;
        let held = std::mem::take(&mut self.held);
        let inner = held.trim_ascii().strip_prefix(OPEN).and_then(|text| text.strip_suffix(CLOSE));
        match inner.map(str::trim_ascii) {
            Some(json) if ended && serde_json::from_str::<IgnoredAny>(json).is_ok() => json.to_owned(),
            _ => held,
        }
    }

    fn may_be(&mut self) -> bool {
        let text = self.held.trim_ascii_start();
        if text.len() <= OPEN.len() {
            return OPEN.starts_with(text);
        }
        if !text.starts_with(OPEN) || self.held.len() > MAX_HELD {
            return false;
        }
        let from = self.search.max(self.held.len() - text.len() + OPEN.len());
        match memchr::memmem::find(&self.held.as_bytes()[from..], CLOSE.as_bytes()) {
            Some(at) => {
                self.search = from + at;
                self.held[from + at + CLOSE.len()..].trim_ascii().is_empty()
            }
            None => {
                self.search = (self.held.len() + 1).saturating_sub(CLOSE.len()).max(from);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_is_one_block_of_json_is_unwrapped() {
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
