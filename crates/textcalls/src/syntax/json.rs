//! Calls as JSON that holds the name.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use toolwright_core::json::{Repaired, repair};
use toolwright_core::model::RawToolCall;

use super::PastCall;
use super::scan::{PrefixMatch, Scan, ScanStop, begins, whitespace_len};
use super::typing::in_an_item;
use super::{AcceptedCalls, CallReader, ReaderInput, Step};
use crate::table::format::{FormPosition, Json, Keys, Shape};

/// Keys that models of all families use, in order of preference.
const NAMES: [&str; 3] = ["name", "tool_name", "function"];
const ARGUMENTS: [&str; 3] = ["arguments", "parameters", "args"];
const IDS: [&str; 3] = ["id", "tool_call_id", "call_id"];

const FENCE: &str = "```";

/// Reads calls of one form.
#[derive(Debug)]
pub(super) struct JsonReader {
    form: &'static Json,
    at: usize,
    scan: Option<Scan>,
    values: Vec<Range<usize>>,
}

impl CallReader for JsonReader {
    fn read_len(&self) -> usize {
        self.scan.as_ref().map_or(self.at, Scan::at)
    }

    fn step(&mut self, head: usize, view: ReaderInput<'_>) -> Step {
        self.at = self.at.max(head);
        let text = view.text;
        if self.form.close.is_none() && !self.values.is_empty() {
            return self.bare(view);
        }
        loop {
            let Some(scan) = &mut self.scan else {
                match self.between(view) {
                    Some(step) => return step,
                    None => continue,
                }
            };
            match scan.run(text) {
                ScanStop::More if view.ended => return self.cut(view),
                ScanStop::More => return Step::More,
                ScanStop::End(end) => {
                    self.values.push(self.at..end);
                    self.at = end;
                    self.scan = None;
                    if self.form.close.is_none() {
                        return self.bare(view);
                    }
                }
                ScanStop::Watched(at) => {
                    let rest = &text[at..];
                    if self.form.close.is_some_and(|close| rest.starts_with(close)) {
                        self.values.push(self.at..at);
                        return self.closed(at, view);
                    }
                    if self.form.open.iter().any(|open| rest.starts_with(open)) {
                        return Step::Fail;
                    }
                    let markers = self.form.close.iter().chain(self.form.open);
                    if !view.ended && markers.clone().any(|marker| begins(rest, marker) == PrefixMatch::Perhaps) {
                        return Step::More;
                    }
                    scan.skip();
                }
            }
        }
    }
}

impl JsonReader {
    /// A reader of values up to the marker, or of a single value without one.
    pub(super) fn new(form: &'static Json) -> Self {
        Self { form, at: 0, scan: None, values: Vec::new() }
    }

    /// Reads separators before, between and after values.
    fn between(&mut self, view: ReaderInput<'_>) -> Option<Step> {
        self.at += whitespace_len(&view.text[self.at..]);
        let rest = &view.text[self.at..];
        if let Some(close) = self.form.close {
            match begins(rest, close) {
                PrefixMatch::Yes => return Some(self.closed(self.at, view)),
                PrefixMatch::Perhaps => return Some(view.wait()),
                PrefixMatch::No => {}
            }
        }
        match rest.bytes().next() {
            None => Some(view.wait()),
            // Without a closing marker, several calls are recognised by their bracket.
            Some(b'{') if self.form.close.is_none() && self.form.shape == Shape::Array => Some(Step::Fail),
            Some(b'{' | b'[') => {
                self.scan = Some(Scan::json(self.at, [self.form.close, self.form.open.first().copied()]));
                None
            }
            // A block of code around the JSON.
            Some(b'`') if self.form.close.is_some() => match begins(rest, FENCE) {
                PrefixMatch::Yes if "json".starts_with(&rest[FENCE.len()..]) => Some(view.wait()),
                PrefixMatch::Yes => {
                    self.at += FENCE.len() + if rest[FENCE.len()..].starts_with("json") { 4 } else { 0 };
                    None
                }
                PrefixMatch::Perhaps => Some(view.wait()),
                PrefixMatch::No => Some(Step::Fail),
            },
            // A surplus bracket, or a separator.
            Some(b',' | b';' | b'}' | b']') if !self.values.is_empty() => {
                self.at += 1;
                None
            }
            Some(_) => Some(Step::Fail),
        }
    }

    /// The response ended inside a value. An unclosed text may hide the marker.
    fn cut(&mut self, view: ReaderInput<'_>) -> Step {
        let Some(close) = self.form.close else { return Step::Fail };
        let end = memchr::memmem::find(&view.text.as_bytes()[self.at..], close.as_bytes()).map(|end| self.at + end);
        match end.filter(|end| view.text[..*end].trim_ascii_end().ends_with(['}', ']'])) {
            Some(end) => {
                self.values.push(self.at..end);
                self.closed(end, view)
            }
            None => Step::Fail,
        }
    }

    /// The marker has come.
    fn closed(&self, at: usize, view: ReaderInput<'_>) -> Step {
        let mut found = Vec::new();
        for value in &self.values {
            match calls(&view.text[value.clone()], &self.form.keys) {
                Some(calls) => found.extend(calls),
                None => return Step::Fail,
            }
        }
        let len = at + self.form.close.map_or(0, str::len);
        if found.is_empty() { Step::Fail } else { Step::Done { len, calls: found } }
    }

    /// Reads a call without a closing marker, which ends with the value. Without an opening marker either, it must be a
    /// complete call; and, if the format is unknown, the whole response.
    fn bare(&self, view: ReaderInput<'_>) -> Step {
        let Some(value) = self.values.last() else { return Step::Fail };
        let json = &view.text[value.clone()];
        if !self.form.open.is_empty() {
            return self.closed(self.at, view);
        }
        let Some(calls) = strict(json, &self.form.keys, FormPosition::Start).filter(|calls| !calls.is_empty()) else {
            return Step::Fail;
        };
        if view.trust == AcceptedCalls::Known {
            let rest = &view.text[self.at..];
            if !calls.iter().all(|call| view.may_call(&call.name)) || whitespace_len(rest) < rest.len() {
                return Step::Fail;
            }
            if !view.ended {
                return Step::More;
            }
        } else if !calls.iter().all(|call| view.knows(&call.name)) {
            // An object with these keys is a call only if nothing else follows.
            let rest = view.text[self.at..].trim_ascii_start();
            let next = [";", ",", "{"];
            let mut next = next.iter().chain(view.stops);
            let ends = rest.is_empty() || next.clone().any(|next| rest.starts_with(next));
            if !view.ended && next.any(|next| begins(rest, next) == PrefixMatch::Perhaps) {
                return Step::More;
            }
            if !ends || !calls.iter().all(|call| call.arguments.starts_with('{')) {
                return Step::Fail;
            }
        }
        Step::Done { len: self.at, calls }
    }
}

/// The calls in `json`, repaired if needed. Arguments that were cut inside an item stay cut.
fn calls(json: &str, keys: &Keys) -> Option<Vec<RawToolCall>> {
    strict(json, keys, FormPosition::Marker).or_else(|| {
        let Repaired { value, cut, .. } = repair(json).ok()?;
        let mut calls = strict(&value.to_string(), keys, FormPosition::Marker)?;
        if let (Some(cut), Some(last)) = (cut, calls.last_mut())
            && let Some((arguments, inside)) = cut_arguments(&value, &cut, &last.arguments)
            && in_an_item(inside)
        {
            last.arguments = reopened(arguments, inside)?;
        }
        Some(calls)
    })
}

/// Returns the `arguments` that contain the container at `cut`, with its place in them, if any.
fn cut_arguments<'a>(value: &'a Value, cut: &'a str, arguments: &str) -> Option<(&'a Value, &'a str)> {
    let steps = cut.match_indices('/').skip(1).map(|(at, _)| at).chain([cut.len()]);
    // The path to the arguments has at most a place in a list of calls, `function`, and their key.
    steps.take(3).map(|at| cut.split_at(at)).find_map(|(path, inside)| {
        let found = value.pointer(path).filter(|found| found.is_object())?;
        let written = found.to_string();
        (written == arguments).then_some((found, inside))
    })
}

/// Returns the text of an object without the closing brackets of the containers on the path `cut`, which is last in it.
/// `None` if it would be read differently.
fn reopened(object: &Value, cut: &str) -> Option<String> {
    let text = object.to_string();
    let open = text.get(..text.len().checked_sub(cut.matches('/').count() + 1)?)?;
    let again = repair(open).ok()?;
    (again.value == *object && again.cut.as_deref() == Some(cut)).then(|| open.to_owned())
}

fn strict(json: &str, keys: &Keys, at: FormPosition) -> Option<Vec<RawToolCall>> {
    let json = json.trim_ascii();
    if json.starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(json).ok()?;
        return items.iter().map(|item| one(item.get(), keys, at)).collect();
    }
    Some(vec![one(json, keys, at)?])
}

/// Reads one call object.
fn one(json: &str, keys: &Keys, at: FormPosition) -> Option<RawToolCall> {
    let members: Members<'_> = serde_json::from_str(json).ok()?;
    let find = |known: &[&str]| known.iter().find_map(|key| members.get(key));
    let name = NAMES.iter().find_map(|key| members.get(key).and_then(text_of)).filter(|name| !name.is_empty());
    let id = find(&IDS).map(|id| text_of(id).unwrap_or_else(|| id.get().to_owned())).filter(|id| id != "null");
    match (name, find(&ARGUMENTS)) {
        (Some(name), Some(arguments)) => {
            Some(RawToolCall { id: id.unwrap_or_default(), name, arguments: arguments_of(arguments) })
        }
        (None, _) if members.get("function").is_some_and(|inner| inner.get().starts_with('{')) => {
            let inner = one(members.get("function")?.get(), keys, at)?;
            Some(RawToolCall { id: id.unwrap_or(inner.id), ..inner })
        }
        _ if matches!(keys, Keys::NameIsKey) => match members.0.as_slice() {
            [(name, arguments)] if arguments.get().starts_with('{') => {
                Some(RawToolCall { id: String::new(), name: name.clone(), arguments: arguments.get().to_owned() })
            }
            _ => None,
        },
        (Some(name), None) if at == FormPosition::Marker => {
            Some(RawToolCall { id: id.unwrap_or_default(), name, arguments: "{}".to_owned() })
        }
        _ => None,
    }
}

fn text_of(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

/// Arguments as they are written, or the content if they are a JSON string.
fn arguments_of(value: &RawValue) -> String {
    match value.get() {
        "null" => "{}".to_owned(),
        json => text_of(value).unwrap_or_else(|| json.to_owned()),
    }
}

/// The members of an object, their values unread.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| *value)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Reader).map(Members)
    }
}

/// Writes calls as the model was trained on them.
pub(crate) fn write(form: &Json, calls: &[PastCall<'_>]) -> String {
    let objects: Vec<String> = calls.iter().map(|call| object(form, call)).collect();
    let open = form.open.first().copied().unwrap_or_default();
    let close = form.close.unwrap_or_default();
    match form.shape {
        Shape::Array => format!("{open}[{}]{close}", objects.join(", ")),
        Shape::Object if open.is_empty() => objects.join("; "),
        Shape::Object if close.is_empty() => objects.iter().map(|object| format!("{open}{object}")).collect(),
        Shape::Object => {
            let blocks: Vec<String> = objects.iter().map(|object| format!("{open}\n{object}\n{close}")).collect();
            blocks.join("\n")
        }
    }
}

fn object(form: &Json, call: &PastCall<'_>) -> String {
    let text = |text: &str| Value::from(text).to_string();
    match &form.keys {
        Keys::NameIsKey => format!("{{{}: {}}}", text(call.name), call.json),
        Keys::Named { name, arguments, id } => {
            let id = id.filter(|_| !call.id.is_empty()).map(|key| format!("\"{key}\": {}, ", text(call.id)));
            let (id, written) = (id.unwrap_or_default(), text(call.name));
            format!("{{{id}\"{name}\": {written}, \"{arguments}\": {}}}", call.json)
        }
    }
}
