//! Calls as tags: a tag with one tag per argument and a plain text value, or nested tags, each behind a token.

use std::ops::Range;

use serde_json::{Map, Value};
use toolwright_core::json::type_name;
use toolwright_core::model::RawToolCall;

use super::PastCall;
use super::scan::{PrefixMatch, begins, whitespace_len};
use super::typing::{self, Schema};
use super::{CallReader, MAX_NAME, ReaderInput, Step, call, is_name};
use crate::table::format::Nested;
use crate::table::format::{Quoting, Tagged, TypeNotation, ValuePadding};

const CDATA: (&str, &str) = ("<![CDATA[", "]]>");
/// The end of CDATA inside CDATA, split over two sections.
const CDATA_SPLIT: &str = "]]]]><![CDATA[>";

/// Reads tag after tag.
#[derive(Debug)]
pub(super) struct TaggedReader {
    form: &'static Tagged,
    at: usize,
    outer: bool,
    stage: Stage,
    calls: Vec<RawToolCall>,
}

#[derive(Debug, Default)]
enum Stage {
    /// Before the tag around calls, if there is one.
    #[default]
    Begin,
    /// Between calls.
    Between,
    /// In a name.
    Name,
    /// Between arguments.
    Params(Pending),
    /// In the value of an argument.
    Value {
        pending: Pending,
        param: Param,
        /// Position from which its end is searched.
        search: usize,
    },
}

/// An open call.
#[derive(Debug, Default)]
struct Pending {
    name: String,
    params: Vec<Param>,
}

/// An argument.
#[derive(Debug)]
struct Param {
    key: String,
    /// Its other attributes.
    attributes: Range<usize>,
    value: Range<usize>,
    /// Whether it holds all arguments, as one JSON object.
    is_all: bool,
}

impl CallReader for TaggedReader {
    fn read_len(&self) -> usize {
        match &self.stage {
            Stage::Value { search, .. } => *search,
            _ => self.at,
        }
    }

    fn step(&mut self, head: usize, view: ReaderInput<'_>) -> Step {
        self.at = self.at.max(head);
        loop {
            let outcome = match std::mem::take(&mut self.stage) {
                Stage::Begin => self.begin(view),
                Stage::Between => self.between(view),
                Stage::Name => self.name(view),
                Stage::Params(pending) => self.params(pending, view),
                Stage::Value { pending, param, search } => self.value(pending, param, search, view),
            };
            if let Err(step) = outcome {
                return step;
            }
        }
    }
}

impl TaggedReader {
    pub(super) fn new(form: &'static Tagged) -> Self {
        Self { form, at: 0, outer: false, stage: Stage::Begin, calls: Vec::new() }
    }

    fn begin(&mut self, view: ReaderInput<'_>) -> Result<(), Step> {
        // The marker of the call was read, unless the block begins with the tag around it.
        self.outer = self.form.outer.is_some_and(|(open, _)| {
            view.text[self.at..].starts_with(open) && !view.text[..self.at].ends_with(self.form.open)
        });
        if let (true, Some((open, _))) = (self.outer, self.form.outer) {
            self.at += open.len();
            self.stage = Stage::Between;
        } else {
            self.stage = Stage::Name;
        }
        Ok(())
    }

    fn between(&mut self, view: ReaderInput<'_>) -> Result<(), Step> {
        self.stage = Stage::Between;
        self.at += whitespace_len(&view.text[self.at..]);
        let rest = &view.text[self.at..];
        if rest.starts_with(self.form.open) {
            self.at += self.form.open.len();
            self.stage = Stage::Name;
            return Ok(());
        }
        let outer = self.form.outer.filter(|_| !self.calls.is_empty());
        if let Some((open, close)) = outer {
            if rest.starts_with(close) {
                return Err(self.done(self.at + close.len()));
            }
            if rest.starts_with(open) {
                return Err(self.done(self.at));
            }
        }
        let markers = [Some(self.form.open), outer.map(|outer| outer.0), outer.map(|outer| outer.1)];
        let perhaps = markers.iter().flatten().any(|marker| begins(rest, marker) == PrefixMatch::Perhaps);
        Err(if perhaps { view.wait() } else { Step::Fail })
    }

    fn done(&mut self, len: usize) -> Step {
        Step::Done { len, calls: std::mem::take(&mut self.calls) }
    }

    fn name(&mut self, view: ReaderInput<'_>) -> Result<(), Step> {
        self.stage = Stage::Name;
        let rest = &view.text[self.at..];
        // Models sometimes quote the name.
        let mark = rest.chars().next().filter(|first| matches!(first, '"' | '\''));
        let mark = mark.filter(|_| !self.form.name_end.is_empty());
        let lead = if self.form.name_end.is_empty() { whitespace_len(rest) } else { usize::from(mark.is_some()) };
        let rest = &rest[lead..];
        let len = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let after = &rest[len..];
        let tail = match mark {
            Some(_) if after.is_empty() && len <= MAX_NAME => return Err(view.wait()),
            Some(mark) if !after.starts_with(mark) => return Err(Step::Fail),
            mark => usize::from(mark.is_some()),
        };
        let after = &after[tail..];
        if len > MAX_NAME || (len == 0 && !(after.is_empty() && tail == 0)) {
            return Err(Step::Fail);
        }
        let end = match (self.form.name_end, begins(after, self.form.name_end)) {
            ("", _) if after.is_empty() => return Err(view.wait()),
            ("", _) => 0,
            (end, PrefixMatch::Yes) => end.len(),
            (_, PrefixMatch::Perhaps) => return Err(view.wait()),
            (_, PrefixMatch::No) => return Err(Step::Fail),
        };
        let head = self.at + lead + len + tail + end;
        let Some(skipped) = tag_end(&view.text[head..], self.form.head_end) else {
            return Err(if view.text.len() - head > MAX_NAME { Step::Fail } else { view.wait() });
        };
        self.at = head + skipped + self.form.head_end.len();
        self.stage = Stage::Params(Pending { name: unquote(&rest[..len], self.form.quoting), params: Vec::new() });
        Ok(())
    }

    fn params(&mut self, mut pending: Pending, view: ReaderInput<'_>) -> Result<(), Step> {
        self.at += whitespace_len(&view.text[self.at..]);
        let rest = &view.text[self.at..];
        let outer = self.form.outer.map(|outer| outer.1).filter(|_| self.outer);
        let json = self.form.json.filter(|_| pending.params.is_empty());
        let is_all = json.is_some_and(|(open, ..)| rest.starts_with(open));
        if is_all || rest.starts_with(self.form.param) {
            let read = if is_all { all(self.form, self.at, view.text) } else { param(self.form, self.at, view.text) };
            let Some(param) = read else {
                let cut = rest.len() <= 2 * MAX_NAME && !view.ended;
                self.stage = Stage::Params(pending);
                return Err(if cut { Step::More } else { Step::Fail });
            };
            let search = param.value.start;
            self.stage = Stage::Value { pending, param, search };
            return Ok(());
        }
        let closed = if rest.starts_with(self.form.close) {
            self.form.close.len()
        } else if outer.is_some_and(|outer| rest.starts_with(outer)) {
            // The end tag is missing.
            0
        } else {
            let markers = [Some(self.form.param), Some(self.form.close), outer, json.map(|json| json.0)];
            let perhaps = markers.iter().flatten().any(|marker| begins(rest, marker) == PrefixMatch::Perhaps);
            self.stage = Stage::Params(pending);
            return Err(if perhaps { view.wait() } else { Step::Fail });
        };
        if let Some(all) = pending.params.iter().find(|param| param.is_all) {
            self.calls.push(call(&pending.name, view.text[all.value.clone()].trim().to_owned()));
            return self.closed(closed);
        }
        let schema = Schema::of_tool(view.tools, &pending.name);
        let arguments: Map<String, Value> = pending
            .params
            .drain(..)
            .map(|param| {
                let value = typed(self.form, schema.and_then(|schema| schema.member(&param.key)), &param, view.text);
                (param.key, value)
            })
            .collect();
        self.calls.push(call(&pending.name, Value::Object(arguments).to_string()));
        self.closed(closed)
    }

    /// A call has closed.
    fn closed(&mut self, len: usize) -> Result<(), Step> {
        self.at += len;
        if self.outer {
            self.stage = Stage::Between;
            return Ok(());
        }
        Err(self.done(self.at))
    }

    /// Returns the end of a value without an end tag, up to `end`: before the tag of another argument of the tool, on a
    /// separate line, or before the end tags of the function and of the outer tag.
    fn missed_end(&self, pending: &Pending, param: &Param, end: usize, view: ReaderInput<'_>) -> Option<usize> {
        let (_, outer) = self.form.outer.filter(|_| self.form.padding == ValuePadding::Newlines && !param.is_all)?;
        let schema = Schema::of_tool(view.tools, &pending.name);
        let is_other = |key: &str| {
            let is_given = key == param.key || pending.params.iter().any(|given| given.key == key);
            !is_given && schema.is_some_and(|schema| schema.member(key).is_some())
        };
        let mut start = param.value.start;
        for line in view.text[start..end].split_inclusive('\n') {
            let tag = &view.text[start + whitespace_len(line)..];
            let closes =
                || tag.strip_prefix(self.form.close).is_some_and(|rest| rest.trim_ascii_start().starts_with(outer));
            let key = tag.strip_prefix(self.form.param).and_then(|rest| rest.split(self.form.key_end).next());
            if start > param.value.start && (key.is_some_and(is_other) || (self.outer && closes())) {
                return Some(start);
            }
            start += line.len();
        }
        None
    }

    /// Reads a value, which ends at the first end tag before another argument or the end of the call; other end tags
    /// belong to it.
    fn value(&mut self, pending: Pending, param: Param, search: usize, view: ReaderInput<'_>) -> Result<(), Step> {
        let text = view.text;
        let close = self.form.json.filter(|_| param.is_all).map_or(self.form.value_close, |json| json.2);
        let cdata = self.form.padding == ValuePadding::Cdata && text[param.value.start..].starts_with(CDATA.0);
        let mut from = search;
        let outcome = loop {
            let Some(found) = memchr::memmem::find(&text.as_bytes()[from..], close.as_bytes()) else {
                // The tag may be cut at the end of the text.
                let mut resume = text.len().saturating_sub(close.len() - 1).max(from);
                while !text.is_char_boundary(resume) {
                    resume -= 1;
                }
                from = resume;
                if let Some(end) = view.ended.then(|| self.missed_end(&pending, &param, text.len(), view)).flatten() {
                    return self.end_value(pending, param, end, end);
                }
                break view.wait();
            };
            let end = from + found;
            let after = end + close.len();
            let rest = text[after..].trim_ascii_start();
            let outer = self.form.outer.map(|outer| outer.1).filter(|_| self.outer);
            let param_open = Some(self.form.param).filter(|_| !param.is_all);
            let next = [param_open, Some(self.form.close), outer];
            let mut best = PrefixMatch::No;
            for marker in next.iter().flatten() {
                match begins(rest, marker) {
                    PrefixMatch::Yes => best = PrefixMatch::Yes,
                    PrefixMatch::Perhaps if best == PrefixMatch::No => best = PrefixMatch::Perhaps,
                    _ => {}
                }
            }
            if cdata && !text[..end].ends_with(CDATA.1) {
                best = PrefixMatch::No;
            }
            match best {
                PrefixMatch::Yes => {
                    let missed = self.missed_end(&pending, &param, end, view);
                    let (end, after) = missed.map_or((end, after), |end| (end, end));
                    return self.end_value(pending, param, end, after);
                }
                PrefixMatch::Perhaps => {
                    from = end;
                    break view.wait();
                }
                PrefixMatch::No => from = after,
            }
        };
        self.stage = Stage::Value { pending, param, search: from };
        Err(outcome)
    }

    /// Ends the value at `end`; the rest begins at `after`.
    fn end_value(&mut self, mut pending: Pending, mut param: Param, end: usize, after: usize) -> Result<(), Step> {
        param.value.end = end;
        self.at = after;
        pending.params.push(param);
        self.stage = Stage::Params(pending);
        Ok(())
    }
}

/// Returns the position of `end`; 0 if `end` is empty.
fn tag_end(text: &str, end: &str) -> Option<usize> {
    if end.is_empty() { Some(0) } else { text.find(end).filter(|at| *at <= MAX_NAME) }
}

/// Reads the tag of an argument at `at`; `None` if it is incomplete.
fn param(form: &Tagged, at: usize, text: &str) -> Option<Param> {
    let key = at + form.param.len();
    let len = text[key..].find(form.key_end).filter(|len| *len <= MAX_NAME)?;
    let head = key + len + form.key_end.len();
    let attributes = tag_end(&text[head..], form.value_open)?;
    let start = head + attributes + form.value_open.len();
    let name = text[key..key + len].trim();
    // Models sometimes quote the name.
    let bare = ['"', '\''].iter().find_map(|mark| name.strip_prefix(*mark)?.strip_suffix(*mark));
    let name = unquote(bare.unwrap_or(name), form.quoting);
    Some(Param { key: name, attributes: head..head + attributes, value: start..start, is_all: false })
}

/// Reads the tag of all arguments at `at`; `None` if it is incomplete.
fn all(form: &Tagged, at: usize, text: &str) -> Option<Param> {
    let (open, head_end, _) = form.json?;
    let head = at + open.len();
    let start = head + tag_end(&text[head..], head_end)? + head_end.len();
    Some(Param { key: String::new(), attributes: head..head, value: start..start, is_all: true })
}

/// The value of an argument.
fn typed(form: &Tagged, schema: Option<Schema<'_>>, param: &Param, text: &str) -> Value {
    let raw = &text[param.value.clone()];
    let raw = match form.padding {
        ValuePadding::None => raw,
        ValuePadding::Newlines => {
            let line = if raw.starts_with("\r\n") { "\r\n" } else { "\n" };
            let raw = raw.strip_prefix(line).unwrap_or(raw);
            raw.strip_suffix(line).unwrap_or(raw)
        }
        ValuePadding::Cdata => match raw.strip_prefix(CDATA.0).and_then(|raw| raw.strip_suffix(CDATA.1)) {
            Some(inner) => return inner.replace(CDATA_SPLIT, CDATA.1).into(),
            None => raw,
        },
    };
    let said = match form.typed {
        TypeNotation::BySchema => None,
        TypeNotation::StringFlag => attribute(&text[param.attributes.clone()], "string").map(|flag| flag == "true"),
        TypeNotation::TypeName => attribute(&text[param.attributes.clone()], "type").map(|name| name == "string"),
    };
    match said {
        Some(true) => raw.into(),
        Some(false) => typing::json(raw.trim()).unwrap_or_else(|| typing::value(schema, raw)),
        None => typing::value(schema, raw),
    }
}

fn attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = attributes.split_once(name)?;
    value.strip_prefix("=\"")?.split('"').next()
}

fn unquote(name: &str, quoting: Quoting) -> String {
    match quoting {
        Quoting::Plain => name.to_owned(),
        Quoting::Entities => name.replace("&quot;", "\"").replace("&amp;", "&"),
    }
}

/// Writes a call as the model was trained on it.
pub(crate) fn write(form: &Tagged, call: &PastCall<'_>) -> String {
    let line = form.layout;
    let quote = |name: &str| match form.quoting {
        Quoting::Plain => name.to_owned(),
        Quoting::Entities => name.replace('&', "&amp;").replace('"', "&quot;"),
    };
    let number = form.number.map(|key| format!(" {key}=\"{}\"", call.index + 1)).unwrap_or_default();
    let (name, end) = (quote(call.name), form.name_end);
    let mut out = format!("{}{name}{end}{number}{}{line}", form.open, form.head_end);
    for (key, value) in &call.arguments {
        let said = match form.typed {
            TypeNotation::BySchema => String::new(),
            TypeNotation::StringFlag => format!(" string=\"{}\"", value.is_string()),
            TypeNotation::TypeName => format!(" type=\"{}\"", type_name(value)),
        };
        let (open, close) = (form.value_open, form.value_close);
        let (key, value) = (quote(key), padded(form, value));
        out += &format!("{}{key}{}{said}{open}{value}{close}{line}", form.param, form.key_end);
    }
    out += form.close;
    match form.outer {
        Some((open, close)) => format!("{open}{line}{out}{line}{close}"),
        None => out,
    }
}

fn padded(form: &Tagged, value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        // JSON can escape an end tag in a string.
        other => match other.to_string() {
            text if text.contains(form.value_close) => text.replace('<', "\\u003c"),
            text => text,
        },
    };
    match form.padding {
        ValuePadding::None => text,
        ValuePadding::Newlines => format!("\n{text}\n"),
        ValuePadding::Cdata if text.contains(form.value_close) || text.starts_with(CDATA.0) => {
            format!("{}{}{}", CDATA.0, text.replace(CDATA.1, CDATA_SPLIT), CDATA.1)
        }
        ValuePadding::Cdata => text,
    }
}

/// Tags inside tags that are followed.
const MAX_DEPTH: usize = 64;

/// Waits for the end, then reads the tags.
#[derive(Debug)]
pub(super) struct NestedReader {
    form: &'static Nested,
    /// Position from which the end is searched.
    search: usize,
}

/// A tag with its content.
#[derive(Debug, Default)]
struct Element {
    tag: String,
    text: String,
    children: Vec<Element>,
}

impl NestedReader {
    pub(super) fn new(form: &'static Nested) -> Self {
        Self { form, search: 0 }
    }
}

impl CallReader for NestedReader {
    fn read_len(&self) -> usize {
        self.search
    }

    fn step(&mut self, head: usize, view: ReaderInput<'_>) -> Step {
        let form = self.form;
        let rest = &view.text[head..];
        let len = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let body = head + len + form.head_end.len();
        if len > MAX_NAME || (!rest[len..].starts_with(form.head_end) && !form.head_end.starts_with(&rest[len..])) {
            return Step::Fail;
        }
        let bytes = view.text.as_bytes();
        let from = self.search.max(body).min(bytes.len());
        let Some(end) = memchr::memmem::find(&bytes[from..], form.close.as_bytes()).map(|at| from + at) else {
            self.search = (bytes.len() + 1).saturating_sub(form.close.len());
            return view.wait();
        };
        let name = &rest[..len];
        match elements(form, &view.text[body..end]) {
            Some(members) if len > 0 => {
                let arguments = object(form, Schema::of_tool(view.tools, name), members);
                Step::Done { len: end + form.close.len(), calls: vec![call(name, arguments.to_string())] }
            }
            _ => Step::Fail,
        }
    }
}

/// The tags in `text`, if each is closed.
fn elements(form: &Nested, text: &str) -> Option<Vec<Element>> {
    let mut stack = vec![Element::default()];
    let mut pieces = text.split(form.mark);
    stack[0].text.push_str(pieces.next()?);
    for piece in pieces {
        let (tag, after) = piece.strip_prefix('<')?.split_once('>')?;
        if let Some(tag) = tag.strip_prefix('/') {
            let closed = stack.pop().filter(|element| element.tag == tag)?;
            stack.last_mut()?.children.push(closed);
            stack.last_mut()?.text.push_str(after);
        } else {
            if stack.len() > MAX_DEPTH {
                return None;
            }
            stack.push(Element { tag: tag.to_owned(), text: after.to_owned(), children: Vec::new() });
        }
    }
    let root = stack.pop()?;
    stack.is_empty().then_some(root.children)
}

fn object(form: &Nested, schema: Option<Schema<'_>>, members: Vec<Element>) -> Value {
    let mut object = Map::new();
    for member in members {
        let schema = schema.and_then(|schema| schema.member(&member.tag));
        let (tag, value) = (member.tag.clone(), nested_value(form, schema, member));
        object.insert(tag, value);
    }
    Value::Object(object)
}

fn nested_value(form: &Nested, schema: Option<Schema<'_>>, element: Element) -> Value {
    if element.children.is_empty() {
        let typed = typing::value(schema, &element.text);
        return match schema.and_then(Schema::types) {
            Some(types) if element.text.trim().is_empty() && !types.allow(&typed) => types.empty().unwrap_or(typed),
            _ => typed,
        };
    }
    let items = element.children.iter().all(|child| child.tag == form.item);
    if items && schema.and_then(Schema::types).is_none_or(|types| types.allow(&Value::Array(Vec::new()))) {
        let schema = schema.and_then(Schema::items);
        return element.children.into_iter().map(|child| nested_value(form, schema, child)).collect();
    }
    object(form, schema, element.children)
}

/// Writes a call as the model was trained on it.
pub(crate) fn write_nested(form: &Nested, call: &PastCall<'_>) -> String {
    let mut out = format!("{}{}{}", form.open, call.name, form.head_end);
    call.arguments.iter().for_each(|(key, value)| element(form, key, value, &mut out));
    out + form.close
}

fn element(form: &Nested, tag: &str, value: &Value, out: &mut String) {
    let mark = form.mark;
    *out += &format!("{mark}<{tag}>");
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| element(form, key, value, out)),
        Value::Array(items) => items.iter().for_each(|item| element(form, form.item, item, out)),
        Value::String(text) => out.push_str(text),
        other => *out += &other.to_string(),
    }
    *out += &format!("{mark}</{tag}>");
}
