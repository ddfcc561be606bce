//! Calls as a tag that is named as the tool: `<name key="value">body</name>`, or `[/name]`, lines of
//! `@@key=value`, a body and `[name/]`. A backslash before the slash of an end tag makes it text.

use serde_json::{Map, Value};
use toolwright_core::model::RequestTool;

use super::PastCall;
use super::scan::whitespace_len;
use super::typing::{self, Schema};
use super::{AcceptedCalls, CallReader, MAX_NAME, ReaderInput, Step, call};
use crate::table::format::Markup;

/// The longest tag with attributes, in bytes.
const MAX_TAG: usize = 64 << 10;
/// The body's default name.
const BODY: &str = "content";

/// Reads the tag, then waits for its end.
#[derive(Debug)]
pub(super) struct MarkupReader {
    form: Markup,
    tag: Option<Tag>,
    /// Position from which the end is searched.
    search: usize,
}

#[derive(Debug, Default)]
struct Tag {
    name: String,
    attributes: Vec<(String, String)>,
    /// Start of the body.
    len: usize,
    /// Whether there is no body.
    closed: bool,
}

impl MarkupReader {
    pub(super) fn new(form: Markup) -> Self {
        Self { form, tag: None, search: 0 }
    }
}

impl CallReader for MarkupReader {
    fn read_len(&self) -> usize {
        self.search
    }

    fn step(&mut self, head: usize, view: ReaderInput<'_>) -> Step {
        let form = self.form;
        let tag = match &self.tag {
            Some(tag) => tag,
            None => match tag(form, head, view) {
                Ok(tag) => &*self.tag.insert(tag),
                Err(step) => return step,
            },
        };
        let certain = form == Markup::Bracket || view.knows(&tag.name);
        let done = |body: Option<&str>, len: usize| {
            // The tag of an unknown tool, and its body, must have lines of their own.
            let apart = body.is_none_or(|body| body.is_empty() || body.starts_with(['\r', '\n']));
            match view.text[len..].trim_start_matches([' ', '\t', '\r']).bytes().next() {
                _ if certain => done(form, tag, body, len, view),
                None if apart && !view.ended => Step::More,
                None | Some(b'\n') if apart => done(form, tag, body, len, view),
                _ => Step::Fail,
            }
        };
        if tag.closed {
            return done(None, tag.len);
        }
        let end = end_tag(form, &tag.name);
        let bytes = view.text.as_bytes();
        let from = self.search.max(tag.len).min(bytes.len());
        match memchr::memmem::find(&bytes[from..], end.as_bytes()).map(|at| from + at) {
            Some(at) => done(Some(&view.text[tag.len..at]), at + end.len()),
            None => {
                self.search = (bytes.len() + 1).saturating_sub(end.len());
                view.wait()
            }
        }
    }
}

/// The tag that ends a call of `name`.
fn end_tag(form: Markup, name: &str) -> String {
    match form {
        Markup::Xml => format!("</{name}>"),
        Markup::Bracket => format!("[{name}/]"),
    }
}

/// Escapes the tag as text of a body.
fn escaped(form: Markup, name: &str) -> (String, String) {
    match form {
        Markup::Xml => ("<".to_owned(), format!("/{name}>")),
        Markup::Bracket => (format!("[{name}"), "/]".to_owned()),
    }
}

/// `body` with a backslash more in every end tag in it.
fn escape(form: Markup, name: &str, body: &str) -> String {
    let (open, close) = escaped(form, name);
    rewrite_backslashes(body, &open, &close, |slashes| format!("\\{slashes}"))
}

fn unescape(form: Markup, name: &str, body: &str) -> String {
    let (open, close) = escaped(form, name);
    rewrite_backslashes(body, &open, &close, |slashes| slashes[1.min(slashes.len())..].to_owned())
}

/// Changes the backslashes between `open` and `close`.
fn rewrite_backslashes(body: &str, open: &str, close: &str, change: impl Fn(&str) -> String) -> String {
    let mut out = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.find(close) {
        let before = &rest[..at];
        let bare = before.trim_end_matches('\\');
        if bare.ends_with(open) {
            out.push_str(bare);
            out.push_str(&change(&before[bare.len()..]));
        } else {
            out.push_str(before);
        }
        out.push_str(close);
        rest = &rest[at + close.len()..];
    }
    out.push_str(rest);
    out
}

fn is_tag(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.' | ':')
}

/// The opening tag.
fn tag(form: Markup, head: usize, view: ReaderInput<'_>) -> Result<Tag, Step> {
    let rest = &view.text[head..];
    let len = rest.find(|c| !is_tag(c)).unwrap_or(rest.len());
    let name = &rest[..len];
    if len > MAX_NAME || !(name.is_empty() || name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')) {
        return Err(Step::Fail);
    }
    if len == rest.len() {
        return Err(view.wait());
    }
    // Other tags are common in text.
    let certain = form == Markup::Bracket || view.alone;
    if len == 0 || !(view.knows(name) || (certain && view.trust == AcceptedCalls::Any)) {
        return Err(Step::Fail);
    }
    let mut tag = Tag { name: name.to_owned(), len: head + len, ..Tag::default() };
    match form {
        Markup::Bracket => match rest[len..].strip_prefix(']') {
            Some(_) => tag.len += 1,
            None => return Err(Step::Fail),
        },
        Markup::Xml => attributes(&mut tag, view)?,
    }
    Ok(tag)
}

/// The attributes up to the end of the tag.
fn attributes(tag: &mut Tag, view: ReaderInput<'_>) -> Result<(), Step> {
    let cut = |tag: &Tag| if view.text.len() - tag.len > MAX_TAG { Step::Fail } else { view.wait() };
    let mut at = tag.len;
    loop {
        at += whitespace_len(&view.text[at..]);
        let rest = &view.text[at..];
        if rest.starts_with('>') {
            tag.len = at + 1;
            return Ok(());
        }
        if rest.starts_with("/>") {
            tag.len = at + 2;
            tag.closed = true;
            return Ok(());
        }
        let len = rest.find(|c| !is_tag(c)).unwrap_or(rest.len());
        let value = rest[len..].trim_ascii_start();
        if rest == "/" || value.is_empty() {
            return Err(cut(tag));
        }
        let Some(value) = value.strip_prefix('=').filter(|_| len > 0) else { return Err(Step::Fail) };
        let value = value.trim_ascii_start();
        let Some(quote) = value.chars().next() else { return Err(cut(tag)) };
        if quote != '"' && quote != '\'' {
            return Err(Step::Fail);
        }
        let Some(end) = value[1..].find(quote) else { return Err(cut(tag)) };
        tag.attributes.push((rest[..len].to_owned(), decode(&value[1..=end])));
        at = view.text.len() - value.len() + end + 2;
    }
}

const ENTITIES: [(&str, &str); 9] = [
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&quot;", "\""),
    ("&apos;", "'"),
    ("&#9;", "\t"),
    ("&#10;", "\n"),
    ("&#13;", "\r"),
    ("&#32;", " "),
    ("&amp;", "&"),
];

/// Decodes entities, in one pass.
fn decode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let found = ENTITIES.iter().find(|(entity, _)| rest.starts_with(entity));
        let (entity, plain) = found.copied().unwrap_or(("&", "&"));
        out.push_str(plain);
        rest = &rest[entity.len()..];
    }
    out + rest
}

/// Encodes characters that an attribute or a line cannot hold.
fn encode(form: Markup, text: &str) -> String {
    // Encode only ambiguous text, so that code stays readable.
    let clear = decode(text) == text && !text.contains(['\n', '\r']);
    let ends = text.trim_matches([' ', '\t']).len() < text.len();
    if form == Markup::Bracket && clear && !ends {
        return text.to_owned();
    }
    let mut out = text.replace('&', "&amp;").replace('\n', "&#10;").replace('\r', "&#13;");
    match form {
        Markup::Xml => out = out.replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;"),
        Markup::Bracket if ends => out = out.replace(' ', "&#32;").replace('\t', "&#9;"),
        Markup::Bracket => {}
    }
    out
}

/// The call.
fn done(form: Markup, tag: &Tag, body: Option<&str>, len: usize, view: ReaderInput<'_>) -> Step {
    let schema = Schema::of_tool(view.tools, &tag.name);
    let mut arguments = Map::new();
    let mut set = |key: &str, text: &str| {
        arguments.insert(key.to_owned(), typing::value(schema.and_then(|schema| schema.member(key)), text));
    };
    for (key, value) in &tag.attributes {
        set(key, value);
    }
    let mut rest = body.unwrap_or_default();
    if form == Markup::Bracket {
        while let Some((key, value, after)) = line(rest) {
            set(key, &decode(value));
            rest = after;
        }
    }
    if !rest.trim_ascii().is_empty() {
        let text = unescape(form, &tag.name, unpadded(rest));
        let text = match text.strip_prefix('\\') {
            Some(text) if form == Markup::Bracket && looks_like_key_value(text) => text.to_owned(),
            _ => text,
        };
        let key = body_argument(&tag.name, view, &arguments);
        if !arguments.contains_key(&key) {
            let value = typing::value(schema.and_then(|schema| schema.member(&key)), &text);
            arguments.insert(key, value);
        }
    }
    Step::Done { len, calls: vec![call(&tag.name, Value::Object(arguments).to_string())] }
}

/// Splits off a line `@@key=value`.
fn line(text: &str) -> Option<(&str, &str, &str)> {
    let text = text.trim_start_matches(['\r', '\n']);
    let (line, after) = text.strip_prefix("@@")?.split_at(text.find('\n').map_or(text.len() - 2, |end| end - 2));
    let (key, value) = line.split_once('=')?;
    Some((key.trim(), value.trim_matches([' ', '\t', '\r']), after))
}

/// Whether a body looks like `@@key=value`, or is such a body escaped with a backslash.
fn looks_like_key_value(body: &str) -> bool {
    body.trim_start_matches(['\\', '\r', '\n']).starts_with("@@")
}

/// A body without the line breaks next to its tags.
fn unpadded(body: &str) -> &str {
    let line = if body.starts_with("\r\n") { "\r\n" } else { "\n" };
    let body = body.strip_prefix(line).unwrap_or(body);
    body.strip_suffix(line).unwrap_or(body)
}

/// Returns the argument for the body: the one that the tool names, else the first missing one.
fn body_argument(name: &str, view: ReaderInput<'_>, given: &Map<String, Value>) -> String {
    let named = view.tools.iter().find(|tool| tool.name == name).and_then(|tool| tool.body_argument.clone());
    named.unwrap_or_else(|| {
        let members = Schema::of_tool(view.tools, name).map(Schema::members).unwrap_or_default();
        let free = members.into_iter().find(|member| !given.contains_key(*member));
        free.unwrap_or(BODY).to_owned()
    })
}

/// Writes a call, with the argument that is read from the body as its body.
pub(crate) fn write(form: Markup, call: &PastCall<'_>, tools: &[RequestTool]) -> String {
    let view = ReaderInput { text: "", ended: true, tools, trust: AcceptedCalls::Any, alone: true, stops: &[] };
    let named = body_argument(call.name, view, &Map::new());
    let bodied = call.arguments.get(&named).and_then(Value::as_str).filter(|body| !body.trim_ascii().is_empty());
    let mut head = String::new();
    for (key, value) in call.arguments.iter().filter(|(key, _)| bodied.is_none() || **key != named) {
        let text = encode(form, &value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        head += &match form {
            Markup::Xml => format!(" {key}=\"{text}\""),
            Markup::Bracket => format!("@@{key}={text}\n"),
        };
    }
    let name = call.name;
    match (form, bodied.map(|body| escape(form, name, body))) {
        (Markup::Xml, None) => format!("<{name}{head}/>"),
        (Markup::Xml, Some(body)) => format!("<{name}{head}>\n{body}\n</{name}>"),
        (Markup::Bracket, None) => format!("[/{name}]\n{head}[{name}/]"),
        (Markup::Bracket, Some(body)) => {
            let guard = if looks_like_key_value(&body) { "\\" } else { "" };
            format!("[/{name}]\n{head}{guard}{body}\n[{name}/]")
        }
    }
}
