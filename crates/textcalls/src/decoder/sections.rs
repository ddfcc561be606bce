//! Finds where calls, message headers and reasoning begin and end.

use toolwright_core::model::RawToolCall;

use super::markers::Code;
use super::output::Sink;
use super::{MAX_BLANK, MAX_BLOCK, MAX_HEADER, MAX_REREAD, Mode, Open, TextDecoder};
use crate::syntax::named::Body;
use crate::syntax::scan::whitespace_len;
use crate::syntax::{Block, ReaderInput, Step};
use crate::table::format::{
    Channels, FormPosition, Format, Place, PromptOpening, Reasoning as Thinking, Recipient, Spacing,
};

impl TextDecoder {
    /// Tries the forms without a marker at the beginning of the text. `None` if there is nothing to try.
    pub(super) fn try_bare(&mut self, ended: bool, sink: Sink<'_>) -> Option<bool> {
        let forms: Vec<usize> = self
            .forms
            .iter()
            .enumerate()
            .filter(|(_, (_, call))| call.at() == FormPosition::Start)
            .map(|(at, _)| at)
            .collect();
        if forms.is_empty() || matches!(self.state.mode, Mode::Thinking(_)) {
            self.state.bare = false;
            return None;
        }
        let rest = &self.text[self.at..];
        let mut skipped = whitespace_len(rest);
        // Several calls are set apart.
        let apart = self.state.section && rest[skipped..].starts_with([';', ',']);
        if apart {
            skipped += 1;
            skipped += whitespace_len(&rest[skipped..]);
        }
        // The length is measured again with each piece.
        if skipped > MAX_BLANK {
            self.state.bare = false;
            return None;
        }
        let word = rest[skipped..].chars().next();
        match word {
            None if ended => None,
            None => Some(false),
            Some('{' | '[') => {
                if apart {
                    self.at += skipped;
                } else {
                    self.plain(skipped, sink);
                }
                self.state.bare = false;
                self.open_block(forms, 0);
                Some(true)
            }
            Some(letter) if letter.is_ascii_alphanumeric() || letter == '_' => {
                self.state.bare = false;
                if skipped > 0 {
                    return None;
                }
                self.open_block(forms, 0);
                Some(true)
            }
            Some(_) => {
                // A marker may come; text ends the attempt.
                None
            }
        }
    }

    pub(super) fn open_block(&mut self, forms: Vec<usize>, marker: usize) {
        if let Some(&first) = forms.first() {
            let block = Block::new(self.forms[first].1);
            self.state.block = Some(Open { marker, forms, form: 0, block });
        }
    }

    /// Reads on in the open call.
    pub(super) fn read_block(&mut self, ended: bool, sink: Sink<'_>) -> bool {
        let Some(open) = &mut self.state.block else { return true };
        let rest = &self.text[self.at..];
        let cut = rest.floor_char_boundary(MAX_BLOCK);
        let long = cut < rest.len();
        let form = open.forms.get(open.form);
        let view = ReaderInput {
            text: &rest[..cut],
            ended: ended && !long,
            tools: &self.tools,
            trust: self.trust,
            alone: self.state.code.line_blank(),
            stops: form.map_or(&[], |form| self.forms[*form].0.stops),
        };
        match open.block.step(view) {
            Step::More if !long => false,
            Step::Done { len, calls } => {
                self.finish_block(len, calls, sink);
                true
            }
            Step::More | Step::Fail => {
                self.state.reread += open.block.read_len();
                open.form += 1;
                if let Some(&next) = open.forms.get(open.form) {
                    open.block = Block::new(self.forms[next].1);
                    return true;
                }
                let marker = open.marker;
                self.state.block = None;
                self.state.calls_off |= ended || self.state.reread > MAX_REREAD;
                self.plain(marker, sink);
                true
            }
        }
    }

    /// A block has closed.
    pub(super) fn finish_block(&mut self, len: usize, calls: Vec<RawToolCall>, sink: Sink<'_>) {
        let Some(open) = self.state.block.take() else { return };
        let form = open.forms.get(open.form).map(|form| self.forms[*form]);
        let spacing = form.map_or(Spacing::Trim, |(row, _)| row.spacing);
        let bare = form.is_some_and(|(row, _)| row.calls.iter().any(|call| call.at() == FormPosition::Start));
        self.state.section = bare || form.is_some_and(|(_, call)| !call.trailers().is_empty());
        if self.state.mode == Mode::Undecided {
            let always = self.thinking.iter().all(|thinking| thinking.prompted == PromptOpening::Always);
            let thought = always && !self.state.undecided.trim_ascii().is_empty();
            self.settle_undecided(if thought { Mode::Thinking(None) } else { Mode::Text }, sink);
        }
        if let Mode::Thinking(_) = self.state.mode {
            let tentative = self.state.tentative.get_or_insert_default();
            tentative.raw.push_str(&self.text[self.at..self.at + len]);
            tentative.calls.extend(calls.into_iter().map(|call| (call, spacing)));
        } else {
            calls.into_iter().for_each(|call| self.out.call(call, spacing, sink));
        }
        self.at += len;
        self.state.fresh = true;
        self.state.bare = bare;
        self.state.code.interrupt();
    }

    /// A header begins.
    pub(super) fn open_header(&mut self, marker: &str, sink: Sink<'_>) -> bool {
        self.end_thinking(sink);
        if let Some(index) = self.channels.iter().position(|channels| channels.opens.contains(&marker)) {
            self.state.mode = Mode::Header(index);
        }
        true
    }

    /// Reads a header, which determines the following content.
    pub(super) fn read_header(&mut self, channels: &'static Channels, ended: bool, sink: Sink<'_>) -> bool {
        let rest = &self.text[self.at..];
        let longest = MAX_HEADER + channels.message.len();
        let Some(end) = rest[..rest.floor_char_boundary(longest)].find(channels.message) else {
            if ended || rest.len() > longest {
                // Not a header: its first token is text.
                self.state.mode = Mode::Text;
                let first = channels.opens.iter().find(|open| rest.starts_with(**open)).map_or(0, |open| open.len());
                self.plain(first, sink);
                return true;
            }
            return false;
        };
        let len = end + channels.message.len();
        let header = &rest[..end];
        self.state.mode = Mode::Text;
        self.state.fresh = true;
        self.state.code = Code::new();
        let recipient = channels.recipient.as_ref();
        if let Some((name, recipient)) =
            recipient.and_then(|recipient| Some((addressee(recipient, header)?, recipient)))
        {
            if self.state.calls_off {
                self.plain(len, sink);
            } else {
                let tool = name.strip_prefix(recipient.namespace);
                // A message to a tool is a call, even if it is not closed.
                let is_tool = tool.is_some() || self.tools.iter().any(|tool| tool.name == name);
                let body = Body::new(tool.unwrap_or(name), len, recipient.end, is_tool);
                self.state.block = Some(Open { marker: len, forms: Vec::new(), form: 0, block: Block::body(body) });
            }
            return true;
        }
        if header.contains(channels.thought) {
            if self.keep {
                let silent = header.find(channels.silent).map_or(0, |at| at + channels.silent.len());
                self.at += silent;
                self.plain(len - silent, sink);
            } else {
                self.at += len;
            }
            self.state.mode = Mode::Thinking(None);
            return true;
        }
        self.at += len;
        true
    }
}

/// The tool that a header names.
fn addressee<'a>(recipient: &Recipient, header: &'a str) -> Option<&'a str> {
    let name = header.split_whitespace().find_map(|word| word.strip_prefix(recipient.open))?;
    let name = name.split('<').next()?;
    let bare = name.strip_prefix(recipient.namespace).unwrap_or(name);
    (!bare.is_empty() && !recipient.others.contains(&name)).then_some(name)
}

impl TextDecoder {
    /// The beginning of the response in the prompt: without the header of the turn, and without reasoning that is closed but not
    /// opened.
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
        let hidden = |thinking: &&&Thinking| thinking.prompted != PromptOpening::Never;
        let lead = || self.thinking.iter().filter(hidden).any(|thinking| thinking.close.contains(&marker));
        match self.state.mode {
            Mode::Undecided => lead(),
            // The reasoning it closes was passed on as text.
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
                if let (Some(tentative), Mode::Thinking(thinking)) = (self.state.tentative.take(), self.state.mode) {
                    let spacing = thinking.map_or(Spacing::Trim, |index| self.thinking[index].spacing);
                    self.out.reasoning(&tentative.raw, spacing, sink);
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
        if state.mode == Mode::Undecided && thinking.prompted == PromptOpening::Always {
            // The prompt has opened it, and the model repeats it.
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

    /// Passes on the text that was held back, as text or reasoning.
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
        let hidden = self.thinking.iter().find(|thinking| thinking.prompted != PromptOpening::Never);
        let spacing = hidden.map_or(Spacing::Trim, |thinking| thinking.spacing);
        let (verbatim, rest) = lead.split_at(self.state.verbatim);
        self.out.verbatim(verbatim, sink);
        self.out.reasoning(rest, spacing, sink);
        self.state.mode = Mode::Thinking(None);
        self.out.end_reasoning(spacing, sink);
        self.after_thinking();
    }

    /// Splits off the tokens at the end of `text` that end the response, with the white space around them.
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
