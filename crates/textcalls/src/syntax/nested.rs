//! Calls as tags inside tags, each behind a token of its own.

use serde_json::{Map, Value};

use super::PastCall;
use super::typing::{self, Schema};
use super::{MAX_NAME, Step, View, call, is_name};
use crate::format::Nested;

/// Tags inside tags that are followed.
const MAX_DEPTH: usize = 64;

/// How far it has been read.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// Where the end is looked for.
    search: usize,
}

/// A tag and what is in it.
#[derive(Debug, Default)]
struct Element {
    tag: String,
    text: String,
    children: Vec<Element>,
}

impl Block {
    /// How far it has been read.
    pub(crate) fn reach(&self) -> usize {
        self.search
    }

    /// Waits for the end, then reads it all.
    pub(crate) fn step(&mut self, form: &Nested, head: usize, view: View<'_>) -> Step {
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
        let (tag, value) = (member.tag.clone(), value(form, schema, member));
        object.insert(tag, value);
    }
    Value::Object(object)
}

fn value(form: &Nested, schema: Option<Schema<'_>>, element: Element) -> Value {
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
        return element.children.into_iter().map(|child| value(form, schema, child)).collect();
    }
    object(form, schema, element.children)
}

/// A call as it was trained.
pub(crate) fn write(form: &Nested, call: &PastCall<'_>) -> String {
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
