//! Reads responses in every format: one state machine, driven by the rows of the table.

mod markers;
mod output;
mod sections;

use std::sync::Arc;

use toolwright_core::model::{ModelEvent, RawToolCall, RequestTool};

use crate::syntax::scan::{PrefixMatch, Utf8, begins, whitespace_len};
use crate::syntax::{AcceptedCalls, Block};
use crate::table::format::{
    Call, Channels, EndsReasoning, Format, JsonResponseForm, PromptOpening, Reasoning as Thinking, Spacing,
};
use crate::{Choice, Options, Reasoning, formats, table};
use markers::{Code, Hit, Markers, Roles};
use output::{Output, Sink};

/// Maximal length of a call, in bytes; a longer one is text.
const MAX_BLOCK: usize = 4 << 20;
/// The most text that is held back until it is clear whether it was reasoning.
const MAX_UNDECIDED: usize = 64 << 20;
/// The longest header of a message.
const MAX_HEADER: usize = 1 << 10;
/// The longest fence of a block of code.
const MAX_FENCE: usize = 64;
/// The most white space before a call without a marker.
const MAX_BLANK: usize = 1 << 10;
/// Bound on the bytes of text that are read again because the start of a call turned out to be text.
const MAX_REREAD: usize = 32 << 20;

/// Decodes a response while it is streamed.
///
/// Input may be split anywhere, also inside characters, without effect on the result; invalid UTF-8 becomes U+FFFD.
/// Text and reasoning are passed on as soon as their role is certain, a call when its block closes.
#[derive(Debug)]
pub struct TextDecoder {
    forms: Vec<(&'static Format, &'static Call)>,
    thinking: Vec<&'static Thinking>,
    channels: Vec<&'static Channels>,
    /// Outside of reasoning.
    outside: Markers,
    /// Markers inside reasoning.
    inside: Markers,
    prefaces: Vec<&'static str>,
    trust: AcceptedCalls,
    keep: bool,
    tools: Arc<[RequestTool]>,
    utf8: Utf8,
    /// Text that is not read, from `at` on.
    text: String,
    at: usize,
    state: State,
    out: Output,
}

/// State of the decoder.
#[derive(Debug)]
struct State {
    mode: Mode,
    /// Whether the text so far may be reasoning that is kept in it.
    keeps_undecided: bool,
    /// Text that becomes reasoning if a later marker says so.
    undecided: String,
    /// Length of the part that keeps its white space.
    verbatim: usize,
    /// Whether nothing was read yet.
    begins: bool,
    /// Whether no text was read since the beginning, reasoning or a call.
    fresh: bool,
    /// Whether a form without a marker may still come.
    bare: bool,
    /// Which text is code.
    code: Code,
    /// The open call.
    block: Option<Open>,
    /// Whether calls were read and their section is open.
    section: bool,
    /// Calls at the end of reasoning, which belong to it if it continues.
    tentative: Option<TentativeCalls>,
    /// Whether call markers are text.
    calls_off: bool,
    reread: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Text or reasoning, not known yet.
    Undecided,
    Text,
    /// In reasoning, by its index in the list; `None` if a header opened it.
    Thinking(Option<usize>),
    /// In the header of a message.
    Header(usize),
}

#[derive(Debug)]
struct Open {
    /// Length of the marker, which is text if no call follows.
    marker: usize,
    /// The forms that it may have.
    forms: Vec<usize>,
    /// Index of the form being tried.
    form: usize,
    block: Block,
}

#[derive(Debug, Default)]
struct TentativeCalls {
    raw: String,
    calls: Vec<(RawToolCall, Spacing)>,
}

impl TextDecoder {
    /// A decoder for one answer.
    #[must_use]
    pub fn new(choice: Choice, options: Options) -> Self {
        let (rows, trust) = match choice {
            Choice::Format(format) => (std::slice::from_ref(format), AcceptedCalls::Any),
            Choice::Auto => (formats(), AcceptedCalls::Known),
        };
        let keep = options.reasoning == Reasoning::Keep;
        let answers = match choice {
            Choice::Format(format) => format.answers,
            Choice::Auto => JsonResponseForm::Bare,
        };
        let mut decoder = Self {
            forms: Vec::new(),
            thinking: rows.iter().filter_map(|row| row.reasoning).collect(),
            channels: rows.iter().filter_map(|row| row.channels).collect(),
            outside: Markers::default(),
            inside: Markers::default(),
            prefaces: Vec::new(),
            trust,
            keep,
            tools: options.tools,
            utf8: Utf8::default(),
            text: String::new(),
            at: 0,
            state: State::new(),
            out: Output::new(answers),
        };
        rows.iter().for_each(|row| decoder.add(row));
        let hidden = decoder.thinking.iter().any(|thinking| thinking.prompted != PromptOpening::Never);
        if options.prefix.is_none() && hidden {
            decoder.state.keeps_undecided = keep;
            decoder.state.mode = if keep { Mode::Text } else { Mode::Undecided };
        }
        decoder.text = options.prefix.map(|prefix| decoder.begun(rows, &prefix).to_owned()).unwrap_or_default();
        decoder
    }

    /// The markers and forms of a row.
    fn add(&mut self, row: &'static Format) {
        let (outside, inside, trust) = (&mut self.outside, &mut self.inside, self.trust);
        // For an unknown format, ambiguous markers are text.
        let says = |marker: &str| trust == AcceptedCalls::Any || table::is_control(marker);
        outside.add("```", Roles::FENCE, None);
        if let Some(thinking) = row.reasoning {
            thinking.open.iter().for_each(|open| outside.add(open, Roles::OPEN, None));
            for (markers, role) in [(thinking.close, Roles::CLOSE), (thinking.before, Roles::BEFORE)] {
                for marker in markers {
                    // An ambiguous marker does not turn all text before it into reasoning.
                    if role == Roles::CLOSE || says(marker) {
                        outside.add(marker, role, None);
                    }
                    inside.add(marker, role, None);
                }
            }
        }
        if let Some(channels) = row.channels {
            for (markers, role) in [(channels.opens, Roles::HEADER), (channels.ends, Roles::END)] {
                for marker in markers {
                    outside.add(marker, role, None);
                    inside.add(marker, role, None);
                }
            }
        }
        row.noise.iter().filter(|noise| says(noise)).for_each(|noise| outside.add(noise, Roles::NOISE, None));
        row.stops.iter().for_each(|stop| outside.add(stop, Roles::STOP, None));
        let yields = row.reasoning.is_some_and(|thinking| thinking.yields == EndsReasoning::ToCalls);
        for call in row.calls {
            self.forms.push((row, call));
            let form = Some(self.forms.len() - 1);
            for open in call.section.map(|section| section.0).into_iter().chain(call.opens()) {
                outside.add(open, Roles::default(), form);
                if yields {
                    inside.add(open, Roles::default(), form);
                }
            }
            for trailer in call.trailers() {
                outside.add(trailer, Roles::TRAILER, None);
                if yields {
                    inside.add(trailer, Roles::TRAILER, None);
                }
            }
        }
        if self.trust == AcceptedCalls::Any {
            self.prefaces.extend(row.preface);
        }
    }

    /// Reads the next bytes and passes completed pieces to `sink`.
    pub fn feed(&mut self, bytes: &[u8], sink: &mut dyn FnMut(ModelEvent)) {
        self.utf8.feed(bytes, &mut self.text);
        self.run(false, sink);
        self.text.drain(..self.at);
        self.at = 0;
    }

    /// Ends the input. Incomplete calls are text.
    pub fn finish(mut self, sink: &mut dyn FnMut(ModelEvent)) {
        self.utf8.finish(&mut self.text);
        self.run(true, sink);
        match self.state.mode {
            Mode::Undecided => self.settle_undecided(Mode::Text, sink),
            Mode::Thinking(_) => {
                let tentative = self.state.tentative.take();
                self.end_thinking(sink);
                for (call, spacing) in tentative.into_iter().flat_map(|tentative| tentative.calls) {
                    self.out.call(call, spacing, sink);
                }
            }
            Mode::Text | Mode::Header(_) => {}
        }
        self.out.settle(true, sink);
    }

    fn run(&mut self, ended: bool, sink: Sink<'_>) {
        while self.step(ended, sink) {}
    }

    /// Reads the next piece. Returns whether there may be more.
    fn step(&mut self, ended: bool, sink: Sink<'_>) -> bool {
        if self.state.block.is_some() {
            return self.read_block(ended, sink);
        }
        if let Mode::Header(channels) = self.state.mode {
            return self.read_header(self.channels[channels], ended, sink);
        }
        if self.state.begins {
            match self.begin(ended) {
                Some(done) => return done,
                None => self.state.begins = false,
            }
        }
        if self.state.bare
            && !self.state.calls_off
            && let Some(more) = self.try_bare(ended, sink)
        {
            return more;
        }
        let markers = if matches!(self.state.mode, Mode::Thinking(_)) { &self.inside } else { &self.outside };
        match markers.find(&self.text[self.at..], ended) {
            Hit::None => {
                self.plain(self.text.len() - self.at, sink);
                false
            }
            Hit::Beginning { at } => {
                self.plain(at, sink);
                false
            }
            Hit::Marker { at, index } => {
                self.plain(at, sink);
                self.act(index, ended, sink)
            }
        }
    }

    /// Reads a header or preface at the beginning. `None` if there is none.
    fn begin(&mut self, ended: bool) -> Option<bool> {
        let rest = &self.text[self.at..];
        let starts = self.channels.iter().enumerate().filter(|_| self.trust == AcceptedCalls::Any);
        for (index, channels) in starts {
            for start in channels.starts {
                match begins(rest, start) {
                    PrefixMatch::Yes => {
                        self.state.begins = false;
                        self.state.mode = Mode::Header(index);
                        return Some(true);
                    }
                    PrefixMatch::Perhaps if !ended => return Some(false),
                    _ => {}
                }
            }
        }
        for preface in &self.prefaces {
            match begins(rest, preface) {
                PrefixMatch::Yes => {
                    self.at += preface.len();
                    self.state.begins = false;
                    return Some(true);
                }
                PrefixMatch::Perhaps if !ended => return Some(false),
                _ => {}
            }
        }
        None
    }

    /// Passes on `len` bytes as text or reasoning, by the mode.
    fn plain(&mut self, len: usize, sink: Sink<'_>) {
        if len == 0 {
            return;
        }
        let piece = &self.text[self.at..self.at + len];
        let state = &mut self.state;
        state.code.take(piece);
        if !piece.trim_ascii().is_empty() {
            state.fresh = false;
            state.bare = false;
        }
        match state.mode {
            Mode::Undecided => {
                if state.verbatim == state.undecided.len() && state.verbatim > 0 {
                    state.verbatim += whitespace_len(piece);
                }
                state.undecided.push_str(piece);
                self.at += len;
                if self.state.undecided.len() > MAX_UNDECIDED {
                    self.settle_undecided(Mode::Text, sink);
                }
                return;
            }
            Mode::Thinking(thinking) => {
                let spacing = thinking.map_or(Spacing::Trim, |index| self.thinking[index].spacing);
                let mut thought = |piece: &str| match self.keep {
                    true => self.out.text(piece, sink),
                    false => self.out.reasoning(piece, spacing, sink),
                };
                match &mut state.tentative {
                    Some(tentative) if piece.trim_ascii().is_empty() => tentative.raw.push_str(piece),
                    tentative => {
                        if let Some(tentative) = tentative.take() {
                            thought(&tentative.raw);
                        }
                        thought(piece);
                    }
                }
            }
            Mode::Text | Mode::Header(_) => self.out.text(piece, sink),
        }
        self.at += len;
    }

    /// Acts on the marker that comes next.
    fn act(&mut self, index: usize, ended: bool, sink: Sink<'_>) -> bool {
        let mode = self.state.mode;
        let marker = if matches!(mode, Mode::Thinking(_)) { self.inside.get(index) } else { self.outside.get(index) };
        let (text, roles) = (marker.text, marker.roles);
        let len = text.len();
        if roles.has(Roles::FENCE) {
            return self.fence(ended, sink);
        }
        // Calls of one section follow each other, whatever precedes their marker.
        let quoted = self.state.code.quotes(marker.control) && !self.state.section;
        if roles.has(Roles::HEADER) && !quoted {
            return self.open_header(text, sink);
        }
        if roles.has(Roles::END) && !quoted {
            if self.keep && matches!(mode, Mode::Thinking(_)) {
                self.plain(len, sink);
            } else {
                self.at += len;
            }
            self.end_thinking(sink);
            return true;
        }
        if roles.has(Roles::CLOSE) && !quoted && self.closes(text) {
            return self.close(len, sink);
        }
        if roles.has(Roles::BEFORE) && !quoted && mode != Mode::Text {
            match mode {
                Mode::Undecided => self.settle_undecided(Mode::Thinking(None), sink),
                _ => self.end_thinking(sink),
            }
            return true;
        }
        if roles.has(Roles::OPEN) && !quoted && self.opens(text, len, sink) {
            return true;
        }
        let is_call = !marker_calls(self, index, mode).is_empty();
        if is_call && !self.state.calls_off && !quoted {
            let forms = marker_calls(self, index, mode).to_vec();
            self.open_block(forms, len);
            return true;
        }
        if roles.has(Roles::TRAILER) && self.state.section {
            match &mut self.state.tentative {
                Some(tentative) => tentative.raw.push_str(text),
                None => self.state.section = false,
            }
            self.at += len;
            return true;
        }
        let outside = !matches!(mode, Mode::Thinking(_));
        if outside && roles.has(Roles::NOISE) && !quoted {
            self.at += len;
        } else if roles.has(Roles::STOP) && mode == Mode::Text {
            self.out.stop(text, sink);
            self.at += len;
        } else {
            self.plain(len, sink);
        }
        true
    }

    /// A fence of a block of code.
    fn fence(&mut self, ended: bool, sink: Sink<'_>) -> bool {
        let rest = &self.text[self.at..];
        let run = rest.bytes().take(MAX_FENCE).take_while(|byte| *byte == b'`').count();
        let after = rest[run..].chars().next();
        if after.is_none() && !ended {
            return false;
        }
        let mut code = std::mem::replace(&mut self.state.code, Code::new());
        code.fence(&rest[..run], after);
        self.plain(run, sink);
        self.state.code = code;
        true
    }
}

/// The forms that a marker may begin.
fn marker_calls(decoder: &TextDecoder, index: usize, mode: Mode) -> &[usize] {
    let markers = if matches!(mode, Mode::Thinking(_)) { &decoder.inside } else { &decoder.outside };
    &markers.get(index).calls
}

impl State {
    fn new() -> Self {
        Self {
            mode: Mode::Text,
            keeps_undecided: false,
            undecided: String::new(),
            verbatim: 0,
            begins: true,
            fresh: true,
            bare: true,
            code: Code::new(),
            block: None,
            section: false,
            tentative: None,
            calls_off: false,
            reread: 0,
        }
    }
}
