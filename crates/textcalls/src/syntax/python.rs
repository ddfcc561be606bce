//! Calls in Python syntax: `[name(key="value", …), …]`, and a name with an object with unquoted keys,
//! `call:name{key:<|"|>text<|"|>}`. Both use the same literals.

use serde_json::{Map, Number, Value};
use toolwright_core::model::RawToolCall;

use super::scan::{PrefixMatch, Scan, ScanStop, begins, whitespace_len};
use super::typing::Schema;
use super::{AcceptedCalls, CallReader, MAX_NAME, PastCall, ReaderInput, Step, call, is_name};
use crate::table::format::{Braces, Pythonic};

/// Finds the closing brackets, then reads the calls in them.
#[derive(Debug)]
pub(super) struct PythonicReader {
    form: &'static Pythonic,
    value: Option<(usize, Scan)>,
    end: Option<usize>,
}

impl PythonicReader {
    pub(super) fn new(form: &'static Pythonic) -> Self {
        Self { form, value: None, end: None }
    }
}

impl CallReader for PythonicReader {
    fn read_len(&self) -> usize {
        self.value.as_ref().map_or(0, |(_, scan)| scan.at())
    }

    fn step(&mut self, head: usize, view: ReaderInput<'_>) -> Step {
        let (form, text) = (self.form, view.text);
        if self.value.is_none() {
            let start = head + whitespace_len(&text[head..]);
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
            // Brackets without a name and a parenthesis inside are text.
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
        let end = match self.end.map_or_else(|| scan.run(text), ScanStop::End) {
            ScanStop::End(end) => *self.end.insert(end),
            _ => return view.wait(),
        };
        let len = match form.close {
            None => end,
            Some(close) => {
                let at = end + whitespace_len(&text[end..]);
                match begins(&text[at..], close) {
                    PrefixMatch::Yes => at + close.len(),
                    PrefixMatch::Perhaps => return view.wait(),
                    PrefixMatch::No => return Step::Fail,
                }
            }
        };
        let source = &text[start..end];
        let source = if form.list { &source[1..source.len() - 1] } else { source };
        let Some(calls) = read(source, form, view).filter(|calls| !calls.is_empty()) else { return Step::Fail };
        if form.open.is_empty() && view.trust == AcceptedCalls::Known {
            let rest = &text[len..];
            if !calls.iter().all(|call| view.may_call(&call.name)) || whitespace_len(rest) < rest.len() {
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
fn read(source: &str, form: &Pythonic, view: ReaderInput<'_>) -> Option<Vec<RawToolCall>> {
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

/// Reads arguments up to the parenthesis. A positional one is the tool's next parameter.
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
        if !reader.take(",") && !reader.next_is(')') {
            return None;
        }
    }
}

/// Writes calls as the model was trained on them.
pub(crate) fn write(form: &Pythonic, calls: &[PastCall<'_>]) -> String {
    let calls: Vec<String> = calls
        .iter()
        .map(|call| {
            let arguments = call.arguments.iter().map(|(key, value)| format!("{key}={}", write_literal(value)));
            format!("{}{}({})", call.name, form.suffix, arguments.collect::<Vec<_>>().join(", "))
        })
        .collect();
    let (open, close) = if form.list { ("[", "]") } else { ("", "") };
    format!("{}{open}{}{close}{}", form.open, calls.join(", "), form.close.unwrap_or_default())
}

/// End markers inside texts that are tried as the end.
const MAX_TRIES: usize = 8;

/// Waits for an end that makes sense of the object.
#[derive(Debug)]
pub(super) struct BracesReader {
    form: &'static Braces,
    /// Position from which the end is searched.
    search: usize,
    tries: usize,
}

impl BracesReader {
    pub(super) fn new(form: &'static Braces) -> Self {
        Self { form, search: 0, tries: 0 }
    }
}

impl CallReader for BracesReader {
    fn read_len(&self) -> usize {
        self.search
    }

    fn step(&mut self, head: usize, view: ReaderInput<'_>) -> Step {
        let form = self.form;
        let rest = &view.text[head..];
        let len = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let body = head + len;
        match rest[len..].bytes().next() {
            None if len <= MAX_NAME => return view.wait(),
            Some(b'{') if len > 0 && len <= MAX_NAME => {}
            _ => return Step::Fail,
        }
        let bytes = view.text.as_bytes();
        let mut from = self.search.max(body);
        while let Some(end) = memchr::memmem::find(&bytes[from..], form.close.as_bytes()).map(|at| from + at) {
            let mut reader = Reader::quoted(view.text[body..end].trim_ascii_end(), form.quote);
            if let Some(arguments) = reader.value().filter(|_| reader.is_done()) {
                let calls = vec![call(&rest[..len], arguments.to_string())];
                return Step::Done { len: end + form.close.len(), calls };
            }
            self.tries += 1;
            if self.tries > MAX_TRIES {
                return Step::Fail;
            }
            from = end + form.close.len();
        }
        self.search = (bytes.len() + 1).saturating_sub(form.close.len()).max(from);
        view.wait()
    }
}

/// Writes a call as the model was trained on it.
pub(crate) fn write_braces(form: &Braces, call: &PastCall<'_>) -> String {
    let arguments = Value::Object(call.arguments.clone());
    format!("{}{}{}{}", form.open, call.name, value(form, &arguments), form.close)
}

fn value(form: &Braces, written: &Value) -> String {
    let join = |items: Vec<String>| items.join(",");
    match written {
        Value::String(text) => format!("{}{text}{}", form.quote, form.quote),
        Value::Array(items) => format!("[{}]", join(items.iter().map(|item| value(form, item)).collect())),
        Value::Object(members) => {
            let members = members.iter().map(|(key, item)| format!("{key}:{}", value(form, item)));
            format!("{{{}}}", join(members.collect()))
        }
        other => other.to_string(),
    }
}

/// The deepest nesting of containers.
const MAX_DEPTH: usize = 64;

/// Reads literals off a text.
#[derive(Debug)]
struct Reader<'a> {
    rest: &'a str,
    depth: usize,
    /// A quotation mark of the format, besides the usual ones.
    quote: Option<&'a str>,
}

impl<'a> Reader<'a> {
    /// Reads `text`.
    fn new(text: &'a str) -> Self {
        Self { rest: text, depth: 0, quote: None }
    }

    /// Reads `text` with texts in `quote`s and unquoted keys.
    fn quoted(text: &'a str, quote: &'a str) -> Self {
        Self { rest: text, depth: 0, quote: Some(quote) }
    }

    /// Skips white space.
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Whether everything is read.
    fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    /// Whether `next` is next.
    fn next_is(&self, next: char) -> bool {
        self.rest.starts_with(next)
    }

    /// Skips `next`, if it is next. Returns whether it was.
    fn take(&mut self, next: &str) -> bool {
        self.rest.strip_prefix(next).map(|rest| self.rest = rest).is_some()
    }

    /// Reads the longest possible word.
    fn word(&mut self, of: impl Fn(char) -> bool) -> &'a str {
        let (word, rest) = self.rest.split_at(self.rest.find(|c| !of(c)).unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    /// A name and the `=` after it.
    fn keyword(&mut self) -> Option<&'a str> {
        let before = self.rest;
        let word = self.word(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
        self.space();
        if !word.is_empty() && !self.rest.starts_with("==") && self.take("=") {
            self.space();
            return Some(word);
        }
        self.rest = before;
        None
    }

    /// A value.
    fn value(&mut self) -> Option<Value> {
        self.space();
        if let Some(quote) = self.quote
            && self.take(quote)
        {
            return self.until(quote).map(Value::from);
        }
        match self.rest.chars().next()? {
            '{' => self.nested(Self::object),
            '[' => self.nested(|reader| reader.array('[', ']')),
            '(' => self.nested(|reader| reader.array('(', ')')),
            '"' | '\'' => self.text().map(Value::from),
            _ => self.bare(),
        }
    }

    fn until(&mut self, end: &str) -> Option<&'a str> {
        let (text, rest) = self.rest.split_once(end)?;
        self.rest = rest;
        Some(text)
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Option<Value>) -> Option<Value> {
        self.depth += 1;
        let value = if self.depth > MAX_DEPTH { None } else { read(self) };
        self.depth -= 1;
        value
    }

    fn array(&mut self, open: char, close: char) -> Option<Value> {
        self.rest = self.rest.strip_prefix(open)?;
        let mut items = Vec::new();
        loop {
            self.space();
            if let Some(rest) = self.rest.strip_prefix(close) {
                self.rest = rest;
                return Some(items.into());
            }
            items.push(self.value()?);
            self.space();
            if !self.take(",") && !self.rest.starts_with(close) {
                return None;
            }
        }
    }

    /// An object. Keys are texts, or bare if the format has a quotation mark.
    fn object(&mut self) -> Option<Value> {
        self.rest = self.rest.strip_prefix('{')?;
        let mut members = Map::new();
        loop {
            self.space();
            if self.take("}") {
                return Some(members.into());
            }
            let marked = self.quote.filter(|quote| self.rest.starts_with(quote));
            let key = match self.quote {
                Some(quote) if marked.is_some() => {
                    self.take(quote);
                    self.until(quote)?.to_owned()
                }
                _ if self.rest.starts_with(['"', '\'']) => self.text()?,
                Some(_) => self.word(|c| !matches!(c, ':' | '}' | ',' | '{')).trim().to_owned(),
                None => return None,
            };
            self.space();
            if key.is_empty() || !self.take(":") {
                return None;
            }
            members.insert(key, self.value()?);
            self.space();
            if !self.take(",") && !self.rest.starts_with('}') {
                return None;
            }
        }
    }

    /// Reads a text, or several consecutive ones, which Python joins.
    fn text(&mut self) -> Option<String> {
        let mut text = String::new();
        loop {
            let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| self.rest.starts_with(quote))?;
            self.rest = &self.rest[quote.len()..];
            self.piece(quote, &mut text)?;
            let after = self.rest.trim_start();
            if !after.starts_with(['"', '\'']) {
                return Some(text);
            }
            self.rest = after;
        }
    }

    fn piece(&mut self, quote: &str, text: &mut String) -> Option<()> {
        loop {
            let at = self.rest.find([quote.chars().next()?, '\\'])?;
            text.push_str(&self.rest[..at]);
            self.rest = &self.rest[at..];
            if self.take(quote) {
                return Some(());
            }
            let first = self.rest.chars().next()?;
            self.rest = &self.rest[first.len_utf8()..];
            if first == '\\' { self.escape(text)? } else { text.push(first) }
        }
    }

    /// Reads an escape after a backslash. An unknown one is kept, as in Python.
    fn escape(&mut self, text: &mut String) -> Option<()> {
        let escape = self.rest.chars().next()?;
        self.rest = &self.rest[escape.len_utf8()..];
        let digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        match escape {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            '0' => text.push('\0'),
            '\n' => {}
            '\\' | '\'' | '"' | '/' => text.push(escape),
            'x' | 'u' | 'U' => {
                let code = self.hex(digits)?;
                text.push(match code {
                    0xd800..0xdc00 if self.take("\\u") => {
                        let low = self.hex(4).filter(|low| (0xdc00..0xe000).contains(low))?;
                        char::from_u32(0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00))?
                    }
                    code => char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER),
                });
            }
            other => text.extend(['\\', other]),
        }
        Some(())
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let code = u32::from_str_radix(self.rest.get(..digits)?, 16).ok()?;
        self.rest = &self.rest[digits..];
        Some(code)
    }

    /// Reads a number or a constant; any other word is a text if the format has its own quotation mark.
    fn bare(&mut self) -> Option<Value> {
        let word = self.word(|c| !matches!(c, ',' | ')' | ']' | '}' | '(' | '[' | '{' | '\n')).trim();
        match word {
            "" => None,
            "true" | "True" => Some(true.into()),
            "false" | "False" => Some(false.into()),
            "null" | "None" => Some(Value::Null),
            _ => number(word).map(Value::Number).or_else(|| self.quote.map(|_| word.into())),
        }
    }
}

/// Reads a JSON number, or a Python one: `+1`, `1_000`, `.5`, `1.`, `0x1f`.
fn number(word: &str) -> Option<Number> {
    if let Ok(number) = serde_json::from_str(word) {
        return Some(number);
    }
    let plain = word.replace('_', "");
    let plain = plain.strip_prefix('+').unwrap_or(&plain);
    if let Some(hex) = plain.strip_prefix("0x") {
        return i64::from_str_radix(hex, 16).ok().map(Number::from);
    }
    if !plain.ends_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    match plain.parse::<i64>() {
        Ok(whole) => Some(whole.into()),
        Err(_) => Number::from_f64(plain.parse().ok()?),
    }
}

/// `value` as Python writes it.
fn write_literal(value: &Value) -> String {
    let join = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(items) => format!("[{}]", join(items.iter().map(write_literal).collect())),
        Value::Object(members) => {
            let members =
                members.iter().map(|(key, value)| format!("{}: {}", Value::from(key.as_str()), write_literal(value)));
            format!("{{{}}}", join(members.collect()))
        }
        // JSON's escapes are Python's too.
        plain => plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn literals_are_values() {
        let check = |text: &str, expect: Option<Value>| assert_eq!(Reader::new(text).value(), expect, "{text}");
        check("'it\\'s'", Some(json!("it's")));
        check(r#""a\nb\x41é\q""#, Some(json!("a\nbAé\\q")));
        check("'a' \"b\"", Some(json!("ab")));
        check("\"\"\"say \"hi\" \"\"\"", Some(json!("say \"hi\" ")));
        check("''", Some(json!("")));
        check("{'a': [1, -2.5, None], \"b\": (True, false)}", Some(json!({"a": [1, -2.5, null], "b": [true, false]})));
        check("1_000", Some(json!(1000)));
        check(".5", Some(json!(0.5)));
        check("word", None);
        check("{a: 1}", None);
        check("[1", None);
    }

    #[test]
    fn texts_may_have_marks_of_their_own() {
        let mut reader = Reader::quoted("{a:|q|x, \"y\"|q|,b:{c:[1,true]},d:|q||q|,e:bare word}", "|q|");
        assert_eq!(reader.value(), Some(json!({"a": "x, \"y\"", "b": {"c": [1, true]}, "d": "", "e": "bare word"})));
    }
}
