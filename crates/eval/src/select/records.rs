//! Files of records: JSON or JSON lines.

use std::fmt;

use serde_json::{Map, Value};
use toolwright_core::json::fault;

/// The kind of records in a file.
#[derive(Debug, Clone, Copy)]
pub struct RecordKind {
    /// The name of one record.
    pub one: &'static str,
    /// The member of an object that contains the list.
    pub list: &'static str,
    /// An object without a list but with one of these members is itself a record; so is one whose members are not all
    /// objects.
    pub marks: &'static [&'static str],
}

/// The members with a tool's schema, in the names of MCP, Anthropic and the OpenAI APIs.
pub const SCHEMA: [&str; 3] = ["parameters", "inputSchema", "input_schema"];

/// Tools.
pub const TOOLS: RecordKind = RecordKind { one: "tool", list: "tools", marks: &["name", "function"] };

/// The place of a record, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordLocation {
    /// On this line, from 1.
    Line(usize),
    /// In a list, from 1.
    Nth(&'static str, usize),
    /// Under this member of an object.
    Member(String),
}

impl fmt::Display for RecordLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(number) => write!(f, "line {number}"),
            Self::Nth(one, number) => write!(f, "{one} {number}"),
            Self::Member(name) => write!(f, "`{name}`"),
        }
    }
}

/// Returns the records of a text, in its order: of a list, of JSON lines, or of an object with a list, with one record
/// per member, or that is itself a record.
///
/// # Errors
/// The reason why it has none.
pub fn records(text: &str, kind: RecordKind) -> Result<Vec<(RecordLocation, Value)>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let numbered = |list: Vec<Value>| {
        let places = (1..).map(|number| RecordLocation::Nth(kind.one, number));
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
                None => Ok(object.into_iter().map(|(name, record)| (RecordLocation::Member(name), record)).collect()),
            };
        }
        Ok(_) => return Err(format!("it is neither a list of {} nor an object", kind.list)),
        Err(error) => error,
    };
    let mut list = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str(line) {
            Ok(record) => list.push((RecordLocation::Line(number), record)),
            // If a text does not even begin with lines of JSON, the error of the whole is more helpful.
            Err(_) if list.is_empty() => return Err(format!("it is not JSON: {}", fault(&whole))),
            Err(error) => return Err(format!("line {number}: it is not JSON: {}", fault(&error))),
        }
    }
    Ok(list)
}

/// Takes the members of a record, one at a time. `null` means absent.
pub struct RecordFields(pub Map<String, Value>);

impl RecordFields {
    /// Creates it from a record.
    ///
    /// # Errors
    /// The value is not an object.
    pub fn of(record: Value) -> Result<Self, String> {
        match record {
            Value::Object(members) => Ok(Self(members)),
            _ => Err("it is not an object".into()),
        }
    }

    /// Takes the value of the first of `keys` that has one.
    pub fn value(&mut self, keys: &[&str]) -> Option<Value> {
        keys.iter().find_map(|key| self.0.get_mut(*key).map(Value::take).filter(|value| !value.is_null()))
    }

    /// Takes a text; a number counts as text, as written.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.value(&[key]) {
            Some(value) => text(value).map(Some).ok_or_else(|| format!("its `{key}` is not a text")),
            None => Ok(None),
        }
    }

    /// Takes a list; empty if absent.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn list(&mut self, key: &str) -> Result<Vec<Value>, String> {
        match self.value(&[key]) {
            Some(Value::Array(list)) => Ok(list),
            None => Ok(Vec::new()),
            Some(_) => Err(format!("its `{key}` is not a list")),
        }
    }

    /// Takes a list of texts, or one text; empty if absent.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn texts(&mut self, key: &str) -> Result<Vec<String>, String> {
        self.value(&[key]).map_or(Ok(Vec::new()), |list| texts(key, list))
    }

    /// Takes a boolean.
    ///
    /// # Errors
    /// The value is of another type.
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

/// Returns the texts in the value `list` of `key`, which is a list or a single text.
///
/// # Errors
/// The value is of another type.
pub fn texts(key: &str, list: Value) -> Result<Vec<String>, String> {
    match list {
        Value::Array(list) => {
            let texts: Option<_> = list.into_iter().map(text).collect();
            texts.ok_or_else(|| format!("its `{key}` holds what is not a text"))
        }
        one => text(one).map(|text| vec![text]).ok_or_else(|| format!("its `{key}` is not a list")),
    }
}

/// Records of a file that were adjusted: their number, and the first ones.
#[derive(Debug, Default)]
pub struct AdjustedRecords {
    count: usize,
    first: Vec<String>,
}

impl AdjustedRecords {
    /// The most examples that are kept.
    const MAX_NAMED: usize = 5;

    /// Counts a record.
    pub fn add(&mut self, example: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < Self::MAX_NAMED {
            self.first.push(example());
        }
    }

    /// Describes them in one line: `what` was adjusted, how many, and the first; `None` if there are none.
    #[must_use]
    pub fn in_words(&self, what: &str) -> Option<String> {
        let more = if self.count > self.first.len() { ", …" } else { "" };
        (self.count > 0).then(|| format!("{what}: {} ({}{more})", self.count, self.first.join(", ")))
    }
}
