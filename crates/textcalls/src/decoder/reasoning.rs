//! Where reasoning begins and ends.

use super::code::Code;
use super::output::Sink;
use super::{Mode, TextDecoder};
use crate::format::{Format, Place, Prompted, Reasoning as Thinking, Spacing};

impl TextDecoder {
    /// What the prompt has begun of the answer: without the header of the turn, and without reasoning that it
    /// closes but does not open.
    pub(super) fn begun<'a>(&self, rows: &[Format], prefix: &'a str) -> &'a str {
        let turns = rows.iter().flat_map(|row| row.turn);
        let header = turns.filter_map(|turn| prefix.rfind(turn).map(|at| at + turn.len())).max();
        let begun = header.map_or(prefix, |end| prefix[end..].trim_ascii_start());
        let closes =
            self.thinking.iter().flat_map(|thinking| thinking.close.iter().map(move |close| (thinking, close)));
        let lone = closes.filter_map(|(thinking, close)| {
            let (before, after) = begun.split_once(close)?;
            (!thinking.open.iter().any(|open| before.contains(open))).then_some(after)
        });
        lone.min_by_key(|after| after.len()).unwrap_or(begun)
    }

    /// Whether `marker` closes reasoning here.
    pub(super) fn closes(&self, marker: &str) -> bool {
        let hidden = |thinking: &&&Thinking| thinking.prompted != Prompted::Never;
        let lead = || self.thinking.iter().filter(hidden).any(|thinking| thinking.close.contains(&marker));
        match self.state.mode {
            Mode::Undecided => lead(),
            // What it closes has gone out as text.
            Mode::Text if self.state.keeps_undecided => lead(),
            Mode::Thinking(Some(index)) => self.thinking[index].close.contains(&marker),
            _ => false,
        }
    }

    pub(super) fn close(&mut self, len: usize, sink: Sink<'_>) -> bool {
        if self.keep {
            self.plain(len, sink);
            self.state.keeps_undecided = false;
            self.after_thinking();
            return true;
        }
        self.at += len;
        match self.state.mode {
            Mode::Undecided => self.settle_undecided(Mode::Thinking(None), sink),
            _ => {
                if let (Some(doubt), Mode::Thinking(thinking)) = (self.state.doubt.take(), self.state.mode) {
                    let spacing = thinking.map_or(Spacing::Trim, |index| self.thinking[index].spacing);
                    self.out.reasoning(&doubt.raw, spacing, sink);
                }
                self.end_thinking(sink);
            }
        }
        true
    }

    /// Opens reasoning, if `marker` does here.
    pub(super) fn opens(&mut self, marker: &str, len: usize, sink: Sink<'_>) -> bool {
        let Some(index) = self.thinking.iter().position(|thinking| thinking.open.contains(&marker)) else {
            return false;
        };
        let thinking = self.thinking[index];
        let state = &mut self.state;
        let here = thinking.place == Place::Anywhere || (state.fresh && state.undecided.trim_ascii().is_empty());
        if matches!(state.mode, Mode::Thinking(_)) || !here {
            return false;
        }
        if state.mode == Mode::Undecided && thinking.prompted == Prompted::Always {
            // The prompt has opened it: the model said it again.
            state.undecided.push_str(marker);
            state.verbatim = state.undecided.len();
            state.fresh = false;
            self.at += len;
            return true;
        }
        if self.keep {
            self.plain(len, sink);
        } else {
            self.at += len;
            if self.state.mode == Mode::Undecided {
                self.settle_undecided(Mode::Text, sink);
            }
        }
        self.state.mode = Mode::Thinking(Some(index));
        true
    }

    /// What was held back is text, or was reasoning.
    pub(super) fn settle_undecided(&mut self, was: Mode, sink: Sink<'_>) {
        let lead = std::mem::take(&mut self.state.undecided);
        self.state.mode = Mode::Text;
        if was == Mode::Text {
            let (text, stops) = self.split_stops(&lead);
            self.out.text(text, sink);
            if !stops.is_empty() {
                self.out.stop(stops, sink);
            }
            return;
        }
        let hidden = self.thinking.iter().find(|thinking| thinking.prompted != Prompted::Never);
        let spacing = hidden.map_or(Spacing::Trim, |thinking| thinking.spacing);
        let (verbatim, rest) = lead.split_at(self.state.verbatim);
        self.out.verbatim(verbatim, sink);
        self.out.reasoning(rest, spacing, sink);
        self.state.mode = Mode::Thinking(None);
        self.out.end_reasoning(spacing, sink);
        self.after_thinking();
    }

    /// The tokens at the end of `text` that end the answer, with the white space around them.
    pub(super) fn split_stops<'a>(&self, text: &'a str) -> (&'a str, &'a str) {
        let mut end = text.len();
        loop {
            let rest = text[..end].trim_ascii_end();
            let stops = self.forms.iter().flat_map(|(row, _)| row.stops);
            match stops.copied().find(|stop| rest.ends_with(stop)) {
                Some(stop) => end = rest.len() - stop.len(),
                None => return text.split_at(end),
            }
        }
    }

    pub(super) fn end_thinking(&mut self, sink: Sink<'_>) {
        if let Mode::Thinking(thinking) = self.state.mode {
            let spacing = thinking.map_or(Spacing::Trim, |index| self.thinking[index].spacing);
            if !self.keep {
                self.out.end_reasoning(spacing, sink);
            }
            self.after_thinking();
        }
    }

    pub(super) fn after_thinking(&mut self) {
        self.state.mode = Mode::Text;
        self.state.fresh = true;
        self.state.bare = true;
        self.state.code = Code::new();
    }
}
