//! Opens and closes calls, and reads the headers of messages.

use toolwright_core::model::WrittenCall;

use super::code::Code;
use super::output::Sink;
use super::{MAX_BLANK, MAX_BLOCK, MAX_HEADER, MAX_REREAD, Mode, Open, TextDecoder};
use crate::format::{At, Channels, Prompted, Recipient, Spacing};
use crate::syntax::named::Body;
use crate::syntax::scan::blank;
use crate::syntax::{Block, Step, View};

impl TextDecoder {
    /// Tries the forms that have no marker where the text begins. None when there is nothing to try.
    pub(super) fn try_bare(&mut self, ended: bool, sink: Sink<'_>) -> Option<bool> {
        let forms: Vec<usize> =
            self.forms.iter().enumerate().filter(|(_, (_, call))| call.at() == At::Start).map(|(at, _)| at).collect();
        if forms.is_empty() || matches!(self.state.mode, Mode::Thinking(_)) {
            self.state.bare = false;
            return None;
        }
        let rest = &self.text[self.at..];
        let mut skipped = blank(rest);
        // Several calls are set apart.
        let apart = self.state.section && rest[skipped..].starts_with([';', ',']);
        if apart {
            skipped += 1;
            skipped += blank(&rest[skipped..]);
        }
        // It is measured anew with each piece.
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
                // A marker may stand here; text ends the matter by itself.
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
        let view = View {
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
                self.state.reread += open.block.reach();
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
    pub(super) fn finish_block(&mut self, len: usize, calls: Vec<WrittenCall>, sink: Sink<'_>) {
        let Some(open) = self.state.block.take() else { return };
        let form = open.forms.get(open.form).map(|form| self.forms[*form]);
        let spacing = form.map_or(Spacing::Trim, |(row, _)| row.spacing);
        let bare = form.is_some_and(|(row, _)| row.calls.iter().any(|call| call.at() == At::Start));
        self.state.section = bare || form.is_some_and(|(_, call)| !call.trailers().is_empty());
        if self.state.mode == Mode::Undecided {
            let always = self.thinking.iter().all(|thinking| thinking.prompted == Prompted::Always);
            let thought = always && !self.state.undecided.trim_ascii().is_empty();
            self.settle_undecided(if thought { Mode::Thinking(None) } else { Mode::Text }, sink);
        }
        if let Mode::Thinking(_) = self.state.mode {
            let doubt = self.state.doubt.get_or_insert_default();
            doubt.raw.push_str(&self.text[self.at..self.at + len]);
            doubt.calls.extend(calls.into_iter().map(|call| (call, spacing)));
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

    /// Reads a header, and says by it what follows.
    pub(super) fn read_header(&mut self, channels: &'static Channels, ended: bool, sink: Sink<'_>) -> bool {
        let rest = &self.text[self.at..];
        let longest = MAX_HEADER + channels.message.len();
        let Some(end) = rest[..rest.floor_char_boundary(longest)].find(channels.message) else {
            if ended || rest.len() > longest {
                // No header: its first token is text.
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
                let body = Body::new(tool.unwrap_or(name), len, recipient.end, tool.is_some());
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
