//! Calls as in Python: `[name(key="value", …), …]`.

use serde_json::{Map, Value};
use toolwright_core::model::WrittenCall;

use super::PastCall;
use super::literal::{self, Reader};
use super::scan::{Begins, Reach, Scan, begins, blank};
use super::typing::Schema;
use super::{MAX_NAME, Step, Trust, View, call, is_name};
use crate::format::Pythonic;

/// How far it has been read.
#[derive(Debug, Default)]
pub(crate) struct Block {
    value: Option<(usize, Scan)>,
    end: Option<usize>,
}

impl Block {
    /// How far it has been read.
    pub(crate) fn reach(&self) -> usize {
        self.value.as_ref().map_or(0, |(_, scan)| scan.at())
    }

    /// Finds where the brackets close, then reads it all.
    pub(crate) fn step(&mut self, form: &Pythonic, head: usize, view: View<'_>) -> Step {
        let text = view.text;
        if self.value.is_none() {
            let start = head + blank(&text[head..]);
            let rest = &text[start..];
            let name = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            if name > MAX_NAME || (name > 0 && form.list) {
                return Step::Fail;
            }
            match rest[name..].bytes().next() {
                None => return view.wait(),
                Some(b'[') if form.list => {}
                Some(b'(') if !form.list && name > 0 => {}
                Some(_) => return Step::Fail,
            }
            // Before a name and a parenthesis there is no doubt that ordinary brackets are text.
            if form.list {
                let inner = rest[1..].trim_ascii_start();
                let name = inner.find(|c| !is_name(c)).unwrap_or(inner.len());
                match inner[name..].bytes().next() {
                    None if name <= MAX_NAME => return view.wait(),
                    Some(b'(') if name > 0 => {}
                    _ => return Step::Fail,
                }
            }
            self.value = Some((start, Scan::python(start + name)));
        }
        let Some((start, scan)) = &mut self.value else { return Step::Fail };
        let start = *start;
        let end = match self.end.map_or_else(|| scan.run(text), Reach::End) {
            Reach::End(end) => *self.end.insert(end),
            _ => return view.wait(),
        };
        let len = match form.close {
            None => end,
            Some(close) => {
                let at = end + blank(&text[end..]);
                match begins(&text[at..], close) {
                    Begins::Yes => at + close.len(),
                    Begins::Perhaps => return view.wait(),
                    Begins::No => return Step::Fail,
                }
            }
        };
        let source = &text[start..end];
        let source = if form.list { &source[1..source.len() - 1] } else { source };
        let Some(calls) = read(source, form, view).filter(|calls| !calls.is_empty()) else { return Step::Fail };
        if form.open.is_empty() && view.trust == Trust::Known {
            let rest = &text[len..];
            if !calls.iter().all(|call| view.may_call(&call.name)) || blank(rest) < rest.len() {
                return Step::Fail;
            }
            if !view.ended {
                return Step::More;
            }
        }
        Step::Done { len, calls }
    }
}

/// Calls with commas between them.
fn read(source: &str, form: &Pythonic, view: View<'_>) -> Option<Vec<WrittenCall>> {
    let mut reader = Reader::new(source);
    let mut calls = Vec::new();
    loop {
        reader.space();
        if reader.is_done() {
            return Some(calls);
        }
        let written = reader.word(is_name);
        let name = written.strip_suffix(form.suffix).unwrap_or(written);
        if name.is_empty() || !reader.take("(") {
            return None;
        }
        let arguments = arguments(&mut reader, Schema::of_tool(view.tools, name))?;
        calls.push(call(name, Value::Object(arguments).to_string()));
        reader.space();
        if !reader.take(",") && !reader.is_done() {
            return None;
        }
    }
}

/// Arguments up to the parenthesis. One without a name is the next of the tool's.
fn arguments(reader: &mut Reader<'_>, schema: Option<Schema<'_>>) -> Option<Map<String, Value>> {
    let mut members = schema.map(Schema::members).unwrap_or_default().into_iter();
    let mut arguments = Map::new();
    loop {
        reader.space();
        if reader.take(")") {
            return Some(arguments);
        }
        let key = match reader.keyword() {
            Some(key) => key.to_owned(),
            None => members.next()?.to_owned(),
        };
        arguments.insert(key, reader.value()?);
        reader.space();
        if !reader.take(",") && !reader.peeks(')') {
            return None;
        }
    }
}

/// Calls as they were trained.
pub(crate) fn write(form: &Pythonic, calls: &[PastCall<'_>]) -> String {
    let calls: Vec<String> = calls
        .iter()
        .map(|call| {
            let arguments = call.arguments.iter().map(|(key, value)| format!("{key}={}", literal::write(value)));
            format!("{}{}({})", call.name, form.suffix, arguments.collect::<Vec<_>>().join(", "))
        })
        .collect();
    let (open, close) = if form.list { ("[", "]") } else { ("", "") };
    format!("{}{open}{}{close}{}", form.open, calls.join(", "), form.close.unwrap_or_default())
}
