//! Calls as a name, and then the JSON of the arguments; and text after a marker that is the one argument of a tool, like
//! code for an interpreter.

use serde::de::IgnoredAny;
use serde_json::json;
use toolwright_core::json::{Repaired, repair};
use toolwright_core::model::RawToolCall;

use super::PastCall;
use super::scan::{PrefixMatch, Scan, ScanStop, begins, whitespace_len};
use super::typing::Schema;
use super::typing::in_an_item;
use super::{AcceptedCalls, CallReader, MAX_NAME, ReaderInput, Step, call, is_name};
use crate::table;
use crate::table::format::Raw;
use crate::table::format::{Id, Named};

/// Reads a name, the JSON and the closing markers.
#[derive(Debug)]
pub(super) struct NamedReader {
    form: &'static Named,
    section: Option<(&'static str, &'static str)>,
    header: Option<Header>,
    json: Option<(usize, Scan)>,
    end: Option<usize>,
    /// Position from which the end is searched if there is no JSON.
    search: usize,
}

#[derive(Debug)]
struct Header {
    name: String,
    id: String,
    len: usize,
}

impl NamedReader {
    pub(super) fn new(form: &'static Named, section: Option<(&'static str, &'static str)>) -> Self {
        Self { form, section, header: None, json: None, end: None, search: 0 }
    }
}

impl CallReader for NamedReader {
    fn read_len(&self) -> usize {
        self.json.as_ref().map_or(self.search, |(_, scan)| scan.at())
    }

    fn step(&mut self, head: usize, view: ReaderInput<'_>) -> Step {
        let (form, section, text) = (self.form, self.section, view.text);
        let header = match &self.header {
            Some(header) => header,
            None => match header(form, head, view) {
                Ok(header) => &*self.header.insert(header),
                Err(step) => return step,
            },
        };
        if self.json.is_none() {
            let mut at = header.len + whitespace_len(&text[header.len..]);
            if let Some((open, _)) = form.fence {
                match begins(&text[at..], open) {
                    PrefixMatch::Yes => at += open.len(),
                    PrefixMatch::Perhaps => return view.wait(),
                    PrefixMatch::No => {}
                }
                at += whitespace_len(&text[at..]);
            }
            match text[at..].bytes().next() {
                None => return view.wait(),
                Some(b'{') => self.json = Some((at, Scan::json(at, [form.close, None]))),
                Some(_) => return unread(form, header, at, &mut self.search, view),
            }
        }
        let Some((start, scan)) = &mut self.json else { return Step::Fail };
        let end = loop {
            match self.end.map_or_else(|| scan.run(text), ScanStop::End) {
                ScanStop::More if view.ended => return cut(form, header, *start, view),
                ScanStop::More => return Step::More,
                ScanStop::End(end) => break *self.end.insert(end),
                ScanStop::Watched(at) => {
                    let Some(close) = form.close else { return Step::Fail };
                    match begins(&text[at..], close) {
                        // Brackets are missing.
                        PrefixMatch::Yes => break *self.end.insert(at),
                        PrefixMatch::Perhaps if !view.ended => return Step::More,
                        _ => scan.skip(),
                    }
                }
            }
        };
        let mut at = end + whitespace_len(&text[end..]);
        if let Some((_, close)) = form.fence {
            match begins(&text[at..], close) {
                PrefixMatch::Yes => at += close.len() + whitespace_len(&text[at + close.len()..]),
                PrefixMatch::Perhaps if !view.ended => return Step::More,
                _ => {}
            }
        }
        let rest = &text[at..];
        let len = match form.close {
            None => end,
            Some(close) if rest.starts_with(close) => at + close.len(),
            // The end of the answer closes it too, if the JSON is complete.
            Some(_) if view.ended && table::is_control(form.open) && trim_stops(rest, view.stops).is_empty() => end,
            Some(close) => {
                // Another call, or the end of the section, also closes it.
                let next = [Some(form.open), section.map(|section| section.1)];
                if next.iter().flatten().any(|next| rest.starts_with(next)) {
                    end
                } else if next.iter().flatten().chain([&close]).any(|next| begins(rest, next) == PrefixMatch::Perhaps) {
                    return view.wait();
                } else {
                    return unread(form, header, *start, &mut self.search, view);
                }
            }
        };
        match arguments(text[*start..end].trim_ascii_end()) {
            Some(arguments) => header.call(len, arguments),
            None => unread(form, header, *start, &mut self.search, view),
        }
    }
}

impl Header {
    fn call(&self, len: usize, arguments: String) -> Step {
        Step::Done { len, calls: vec![RawToolCall { id: self.id.clone(), name: self.name.clone(), arguments }] }
    }
}

/// Handles a call whose JSON is unclosed at the end of the response.
fn cut(form: &Named, header: &Header, start: usize, view: ReaderInput<'_>) -> Step {
    match form.close.is_some_and(|close| may_end(&view.text[start..], close)) {
        true => unread(form, header, start, &mut 0, view),
        false => Step::Fail,
    }
}

/// Whether unclosed JSON may have ended before `close`: an unclosed text may hide its end. Otherwise the token is part
/// of a cut text.
fn may_end(json: &str, close: &str) -> bool {
    json.split_once(close).is_some_and(|(json, _)| json.trim_ascii_end().ends_with(['}', ']', '`']))
}

/// Reads a closed call whose arguments, from `start` on, are not an object. Empty ones become an empty object; others
/// are returned as written, so that the check can report them to the model. Without a control token it is text unless
/// its name is a tool's.
fn unread(form: &Named, header: &Header, start: usize, search: &mut usize, view: ReaderInput<'_>) -> Step {
    let Some(close) = form.close else { return Step::Fail };
    if !(table::is_control(form.open) || view.may_call(&header.name)) {
        return Step::Fail;
    }
    let bytes = view.text.as_bytes();
    let from = start.max(*search).min(bytes.len());
    let Some(end) = memchr::memmem::find(&bytes[from..], close.as_bytes()).map(|at| from + at) else {
        *search = (bytes.len() + 1).saturating_sub(close.len()).max(from);
        return view.wait();
    };
    let written = view.text[start..end].trim_ascii();
    let written = match form.fence {
        Some((_, fence)) => written.strip_suffix(fence).unwrap_or(written).trim_ascii_end(),
        None => written,
    };
    let arguments = if written.is_empty() { "{}" } else { written };
    header.call(end + close.len(), arguments.to_owned())
}

/// Reads an object as written, repaired if needed. An object cut inside an item stays cut.
pub(crate) fn arguments(json: &str) -> Option<String> {
    if serde_json::from_str::<IgnoredAny>(json).is_ok() {
        return Some(json.to_owned());
    }
    let Repaired { value, cut, .. } = repair(json).ok()?;
    value.is_object().then(|| if cut.as_deref().is_some_and(in_an_item) { json.to_owned() } else { value.to_string() })
}

/// Reads the name, and its id.
fn header(form: &Named, head: usize, view: ReaderInput<'_>) -> Result<Header, Step> {
    let mut start = head;
    if !form.skip.is_empty() {
        match begins(&view.text[head..], form.skip) {
            PrefixMatch::Yes => start += form.skip.len(),
            PrefixMatch::Perhaps => return Err(view.wait()),
            PrefixMatch::No => {}
        }
    }
    if table::is_control(form.open) {
        // After a control token a name follows, whatever white space is in between.
        start += whitespace_len(&view.text[start..]);
    }
    let rest = &view.text[start..];
    let word = |text: &str| text.find(|c| !is_name(c)).unwrap_or(text.len());
    let name = word(rest);
    if name > MAX_NAME {
        return Err(Step::Fail);
    }
    let mut at = name;
    let mut id = "";
    if let Id::After(marker) = form.id {
        match begins(&rest[at..], marker) {
            PrefixMatch::Yes => {
                let from = at + marker.len();
                at = from + word(&rest[from..]);
                id = &rest[from..at];
            }
            PrefixMatch::Perhaps => return Err(view.wait()),
            PrefixMatch::No => {}
        }
    }
    // Spaces before the end of the name are ignored.
    let spaces = match form.name_end.iter().all(|end| table::is_control(end)) {
        true => whitespace_len(&rest[at..]),
        false => rest[at..].len() - rest[at..].trim_start_matches(' ').len(),
    };
    let after = &rest[at + spaces..];
    let Some(end) = form.name_end.iter().find(|end| after.starts_with(**end)) else {
        let perhaps = form.name_end.iter().any(|end| begins(after, end) == PrefixMatch::Perhaps);
        return Err(if perhaps { view.wait() } else { Step::Fail });
    };
    // The bracket of the JSON ends the name and is not part of the header.
    let len = start + at + spaces + if *end == "{" { 0 } else { end.len() };
    let (name, id) = match form.id {
        Id::AroundName(prefix) => (called(prefix, &rest[..name], view), &rest[..name]),
        _ => (&rest[..name], id),
    };
    // Without a closing marker or control token, only the name identifies a call.
    let plain = form.close.is_none() && !table::is_control(form.open);
    let doubtful = plain && view.trust == AcceptedCalls::Known && !view.knows(name);
    if name.is_empty() || doubtful {
        return Err(Step::Fail);
    }
    Ok(Header { name: name.to_owned(), id: id.to_owned(), len })
}

/// Returns the name in an id. Clients rewrite ids with illegal characters, and the model then imitates them:
/// `functions_name_0`, `functionsname0`. These must name a tool of the request.
fn called<'a>(prefix: &str, id: &'a str, view: ReaderInput<'_>) -> &'a str {
    let marks = ['.', '_', ':'];
    let name = bare_name(prefix, id);
    let rest = id.strip_prefix(prefix.trim_end_matches(marks)).unwrap_or(id);
    let rest = rest.strip_prefix(marks).unwrap_or(rest);
    let bare = rest.trim_end_matches(|c: char| c.is_ascii_digit());
    let others = [rest, bare, bare.strip_suffix(marks).unwrap_or(bare)];
    match view.knows(name) {
        true => name,
        false => others.into_iter().find(|name| view.knows(name)).unwrap_or(name),
    }
}

/// The name between `prefix` and a number.
fn bare_name<'a>(prefix: &str, id: &'a str) -> &'a str {
    let name = id.strip_prefix(prefix).unwrap_or(id);
    match name.rsplit_once(':') {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}

/// Reads a call whose name is in its message header, see [`crate::table::format::Channels`].
#[derive(Debug)]
pub(crate) struct Body {
    name: String,
    /// The length of the header.
    head: usize,
    /// The token that ends the message.
    close: &'static str,
    /// Whether the JSON alone identifies a call.
    certain: bool,
    scan: Option<Scan>,
    end: Option<usize>,
    /// Position from which the token is searched.
    search: usize,
}

impl Body {
    /// A message to `name`, whose body begins after `head` bytes. It is a call if `close` ends it, or, if
    /// `certain`, if it is JSON.
    pub(crate) fn new(name: &str, head: usize, close: &'static str, certain: bool) -> Self {
        Self { name: name.to_owned(), head, close, certain, scan: None, end: None, search: head }
    }

    /// Returns a body that is not JSON as it is; an empty one becomes an empty object.
    fn unread(&mut self, start: usize, view: ReaderInput<'_>) -> Step {
        let bytes = view.text.as_bytes();
        let from = self.search.max(start).min(bytes.len());
        match memchr::memmem::find(&bytes[from..], self.close.as_bytes()).map(|at| from + at) {
            Some(end) => {
                let written = view.text[start..end].trim_ascii();
                self.call(end, if written.is_empty() { "{}" } else { written }.to_owned())
            }
            None => {
                self.search = (bytes.len() + 1).saturating_sub(self.close.len()).max(from);
                view.wait()
            }
        }
    }

    fn call(&self, len: usize, arguments: String) -> Step {
        let call = RawToolCall { id: String::new(), name: self.name.clone(), arguments };
        Step::Done { len, calls: vec![call] }
    }
}

impl CallReader for Body {
    fn read_len(&self) -> usize {
        self.scan.as_ref().map_or(self.search, Scan::at)
    }

    fn step(&mut self, _head: usize, view: ReaderInput<'_>) -> Step {
        let start = self.head + whitespace_len(&view.text[self.head..]);
        let first = view.text[start..].bytes().next();
        if self.scan.is_none() && first == Some(b'{') {
            self.scan = Some(Scan::json(start, [None, None]));
        }
        let Some(scan) = &mut self.scan else {
            return if first.is_none() { view.wait() } else { self.unread(start, view) };
        };
        let end = match self.end {
            Some(end) => end,
            None => match scan.run(view.text) {
                ScanStop::End(end) => *self.end.insert(end),
                _ if view.ended && may_end(&view.text[start..], self.close) => return self.unread(start, view),
                _ if view.ended => return Step::Fail,
                _ => return Step::More,
            },
        };
        let rest = view.text[end..].trim_ascii_start();
        match (arguments(&view.text[start..end]), begins(rest, self.close)) {
            (Some(arguments), PrefixMatch::Yes) => self.call(end, arguments),
            (Some(arguments), _) if self.certain => self.call(end, arguments),
            (Some(_), PrefixMatch::Perhaps) => view.wait(),
            _ => self.unread(start, view),
        }
    }
}

/// Writes a call as the model was trained on it.
pub(crate) fn write(form: &Named, call: &PastCall<'_>) -> String {
    let legal = !call.id.is_empty() && call.id.chars().all(is_name);
    let header = match form.id {
        Id::AroundName(prefix) if legal && bare_name(prefix, call.id) == call.name => call.id.to_owned(),
        Id::AroundName(prefix) => format!("{prefix}{}:{}", call.name, call.index),
        Id::After(marker) if legal => format!("{}{marker}{}", call.name, call.id),
        Id::After(_) | Id::None => call.name.to_owned(),
    };
    let end = form.name_end.first().copied().unwrap_or_default();
    let (before, after) = match form.fence {
        Some((open, close)) => (format!("{open}\n"), format!("\n{close}")),
        None => Default::default(),
    };
    let close = form.close.unwrap_or_default();
    format!("{}{}{header}{end}{before}{}{after}{close}", form.open, form.skip, call.json)
}

/// Reads text that ends where the next piece begins, or with the answer.
#[derive(Debug)]
pub(super) struct RawReader {
    form: &'static Raw,
    /// Position from which the end is searched.
    search: usize,
}

impl RawReader {
    pub(super) fn new(form: &'static Raw) -> Self {
        Self { form, search: 0 }
    }
}

impl CallReader for RawReader {
    fn read_len(&self) -> usize {
        self.search
    }

    fn step(&mut self, head: usize, view: ReaderInput<'_>) -> Step {
        let form = self.form;
        let (name, start) = match tool(form, head, view) {
            Ok(found) => found,
            Err(step) => return step,
        };
        let bytes = view.text.as_bytes();
        let from = self.search.max(start).min(bytes.len());
        let until = form.until.and_then(|until| memchr::memmem::find(&bytes[from..], until.as_bytes()));
        let end = match until {
            Some(at) => from + at,
            None if !view.ended => {
                self.search = (bytes.len() + 1).saturating_sub(form.until.map_or(0, str::len)).max(from);
                return Step::More;
            }
            None => bytes.len(),
        };
        let code = trim_stops(&view.text[start..end], view.stops);
        if code.is_empty() || (until.is_none() && is_cut(code)) {
            return Step::Fail;
        }
        let schema = Schema::of_tool(view.tools, name);
        let member = schema.and_then(|schema| schema.members().first().copied()).unwrap_or(form.argument);
        Step::Done { len: end, calls: vec![call(name, json!({ member: code }).to_string())] }
    }
}

/// Reads the tool, and the start of its text.
fn tool(form: &Raw, head: usize, view: ReaderInput<'_>) -> Result<(&'static str, usize), Step> {
    let believed = |name: &&&str| view.knows(name);
    let Some(end) = form.name_end else {
        let usual = form.tools.first().filter(|_| view.trust == AcceptedCalls::Any);
        let name = form.tools.iter().find(believed).or(usual).ok_or(Step::Fail)?;
        return Ok((name, head));
    };
    if form.open.is_empty() && view.trust == AcceptedCalls::Known {
        return Err(Step::Fail);
    }
    let mut step = Step::Fail;
    for name in form.tools.iter().filter(|name| view.trust == AcceptedCalls::Any || believed(name)) {
        let rest = &view.text[head..];
        match begins(rest, name) {
            PrefixMatch::Yes => match begins(&rest[name.len()..], end) {
                PrefixMatch::Yes => return Ok((name, head + name.len() + end.len())),
                PrefixMatch::Perhaps => step = view.wait(),
                PrefixMatch::No => {}
            },
            PrefixMatch::Perhaps => step = view.wait(),
            PrefixMatch::No => {}
        }
    }
    Err(step)
}

/// `code` without white space around it and the tokens that end the answer.
fn trim_stops<'a>(code: &'a str, stops: &[&str]) -> &'a str {
    let mut code = code.trim_ascii();
    while let Some(rest) = stops.iter().find_map(|stop| code.strip_suffix(stop)) {
        code = rest.trim_ascii_end();
    }
    code
}

/// Whether brackets or texts in `code` are open, so that it was cut.
fn is_cut(code: &str) -> bool {
    let mut scan = Scan::code();
    loop {
        match scan.run(code) {
            ScanStop::More => return scan.is_open(),
            ScanStop::End(_) => {}
            // A comment.
            ScanStop::Watched(at) => {
                let line = code[at..].find('\n').unwrap_or(code.len() - at);
                (0..line).for_each(|_| scan.skip());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_code_is_distinguished() {
        for (code, expect) in [
            ("print(1)", false),
            ("x = {'a': [1]}\nprint(x)  # it's done", false),
            ("print(", true),
            ("x = 'a", true),
            ("{\"name\": ", true),
        ] {
            assert_eq!(is_cut(code), expect, "{code}");
        }
    }
}
