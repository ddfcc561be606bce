//! Files of records: JSON or JSON lines.

use std::fmt;

use serde_json::{Map, Value};
use toolwright_core::json::fault;

/// What a file holds many of.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// One of them, in words.
    pub one: &'static str,
    /// The member of an object that lists them.
    pub list: &'static str,
    /// An object without a list but with one of these members is itself a record, as is one that does not hold
    /// objects only.
    pub marks: &'static [&'static str],
}

/// What holds the schema of a tool, in the words of MCP, Anthropic and the OpenAI APIs.
pub const SCHEMA: [&str; 3] = ["parameters", "inputSchema", "input_schema"];

/// Tools.
pub const TOOLS: Kind = Kind { one: "tool", list: "tools", marks: &["name", "function"] };

/// Where a record stands, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On this line, from 1.
    Line(usize),
    /// In a list, from 1.
    Nth(&'static str, usize),
    /// Under this member of an object.
    Member(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(number) => write!(f, "line {number}"),
            Self::Nth(one, number) => write!(f, "{one} {number}"),
            Self::Member(name) => write!(f, "`{name}`"),
        }
    }
}

/// The records of a text, in its order: of a list, of an object with a list, with one record a member or that
/// is itself a record, or of JSON lines.
///
/// # Errors
/// Why it has none.
pub fn records(text: &str, kind: Kind) -> Result<Vec<(Place, Value)>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let numbered = |list: Vec<Value>| {
        let places = (1..).map(|number| Place::Nth(kind.one, number));
        Ok(places.zip(list).collect())
    };
    let is_record = |object: &Map<String, Value>| {
        kind.marks.iter().any(|mark| object.contains_key(*mark)) || !object.values().all(Value::is_object)
    };
    let whole = match serde_json::from_str(text) {
        Ok(Value::Array(list)) => return numbered(list),
        Ok(Value::Object(mut object)) => {
            return match object.get_mut(kind.list).map(Value::take) {
                Some(Value::Array(list)) => numbered(list),
                Some(_) => Err(format!("its `{}` is not a list", kind.list)),
                None if is_record(&object) => numbered(vec![object.into()]),
                None => Ok(object.into_iter().map(|(name, record)| (Place::Member(name), record)).collect()),
            };
        }
        Ok(_) => return Err(format!("it is neither a list of {} nor an object", kind.list)),
        Err(error) => error,
    };
    let mut list = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str(line) {
            Ok(record) => list.push((Place::Line(number), record)),
            // Of a text that does not even begin with lines of JSON, what is wrong with it as a whole says more.
            Err(_) if list.is_empty() => return Err(format!("it is not JSON: {}", fault(&whole))),
            Err(error) => return Err(format!("line {number}: it is not JSON: {}", fault(&error))),
        }
    }
    Ok(list)
}

/// Takes the members of a record, one at a time. `null` is absence.
pub struct Members(pub Map<String, Value>);

impl Members {
    /// The members of a record.
    ///
    /// # Errors
    /// It is something else.
    pub fn of(record: Value) -> Result<Self, String> {
        match record {
            Value::Object(members) => Ok(Self(members)),
            _ => Err("it is not an object".into()),
        }
    }

    /// Any value under the first of `keys` that has one.
    pub fn value(&mut self, keys: &[&str]) -> Option<Value> {
        keys.iter().find_map(|key| self.0.get_mut(*key).map(Value::take).filter(|value| !value.is_null()))
    }

    /// A text; a number is one too, as it is written.
    ///
    /// # Errors
    /// It is something else.
    pub fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.value(&[key]) {
            Some(value) => text(value).map(Some).ok_or_else(|| format!("its `{key}` is not a text")),
            None => Ok(None),
        }
    }

    /// A list; empty when absent.
    ///
    /// # Errors
    /// It is something else.
    pub fn list(&mut self, key: &str) -> Result<Vec<Value>, String> {
        match self.value(&[key]) {
            Some(Value::Array(list)) => Ok(list),
            None => Ok(Vec::new()),
            Some(_) => Err(format!("its `{key}` is not a list")),
        }
    }

    /// A list of texts, or one text; empty when absent.
    ///
    /// # Errors
    /// It is something else.
    pub fn texts(&mut self, key: &str) -> Result<Vec<String>, String> {
        self.value(&[key]).map_or(Ok(Vec::new()), |list| texts(key, list))
    }

    /// A truth value.
    ///
    /// # Errors
    /// It is something else.
    pub fn flag(&mut self, key: &str) -> Result<Option<bool>, String> {
        match self.value(&[key]) {
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            None => Ok(None),
            Some(_) => Err(format!("its `{key}` is neither true nor false")),
        }
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The texts that `list`, found under `key`, holds; or the one that it is.
///
/// # Errors
/// It is something else.
pub fn texts(key: &str, list: Value) -> Result<Vec<String>, String> {
    match list {
        Value::Array(list) => {
            let texts: Option<_> = list.into_iter().map(text).collect();
            texts.ok_or_else(|| format!("its `{key}` holds what is not a text"))
        }
        one => text(one).map(|text| vec![text]).ok_or_else(|| format!("its `{key}` is not a list")),
    }
}

/// Records of a file that are taken otherwise than they are written: how many, and the first of them.
#[derive(Debug, Default)]
pub struct AdjustedRecords {
    count: usize,
    first: Vec<String>,
}

impl AdjustedRecords {
    /// Examples that are kept.
    const MAX_NAMED: usize = 5;

    /// Counts one.
    pub fn add(&mut self, example: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < Self::MAX_NAMED {
            self.first.push(example());
        }
    }

    /// In one line: `what` of them, how many, and the first; `None` where there are none.
    #[must_use]
    pub fn in_words(&self, what: &str) -> Option<String> {
        let more = if self.count > self.first.len() { ", …" } else { "" };
        (self.count > 0).then(|| format!("{what}: {} ({}{more})", self.count, self.first.join(", ")))
    }
}
