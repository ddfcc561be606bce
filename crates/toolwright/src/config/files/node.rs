//! A configuration file as a tree with the place of every value, and its problems.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

use crate::jsonc::without_comments;

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) at: SourceLocation,
    pub(crate) data: Data,
}

/// The kind and content of a value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Data {
    Null,
    Bool(bool),
    /// With its spelling: `1.10` is a version if text is expected.
    Number(Number, String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Member>),
}

/// A member of a mapping.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Member {
    pub(crate) key: String,
    pub(crate) at: SourceLocation,
    pub(crate) value: Node,
}

impl Node {
    /// Parses YAML, which includes JSON; JSON may also have comments. An empty text is an empty mapping.
    pub(crate) fn parse(text: &str, file: &Arc<Path>) -> Result<Self, Problem> {
        let json = json_without_comments(text);
        let text = json.as_deref().unwrap_or(text);
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self { at: SourceLocation { file: Arc::clone(file), line: 1 }, data: Data::Map(Vec::new()) });
        }
        // `yes` and `no` are text, because they are valid names of environment variables. An anchor may be used any
        // number of times (`<<: *defaults`), because its expansion is limited.
        let options = serde_saphyr::options! {
            strict_booleans: true,
            budget: serde_saphyr::budget! { enforce_alias_anchor_ratio: false },
        };
        let raw: Spanned<Raw> =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| syntax(&error, file))?;
        Ok(located(raw, text, file))
    }

    /// Converts a value that is not from a file; all of it has the place `at`.
    pub(crate) fn of_value(value: &Value, at: &SourceLocation) -> Self {
        let data = match value {
            Value::Null => Data::Null,
            Value::Bool(value) => Data::Bool(*value),
            Value::Number(number) => Data::Number(number.clone(), number.to_string()),
            Value::String(text) => Data::Text(text.clone()),
            Value::Array(items) => Data::List(items.iter().map(|item| Self::of_value(item, at)).collect()),
            Value::Object(map) => {
                let member = |(key, value): (&String, &Value)| {
                    let value = Self::of_value(value, at);
                    Member { key: key.clone(), at: at.clone(), value }
                };
                Data::Map(map.iter().map(member).collect())
            }
        };
        Self { at: at.clone(), data }
    }

    /// Returns the name of its kind.
    pub(crate) fn kind(&self) -> &'static str {
        match self.data {
            Data::Null => "nothing",
            Data::Bool(_) => "a boolean",
            Data::Number(..) => "a number",
            Data::Text(_) => "text",
            Data::List(_) => "a list",
            Data::Map(_) => "a mapping",
        }
    }

    /// Returns its members, if it is a mapping.
    pub(crate) fn members(&self) -> &[Member] {
        match &self.data {
            Data::Map(members) => members,
            _ => &[],
        }
    }

    /// Returns the member of that name.
    pub(crate) fn get(&self, key: &str) -> Option<&Member> {
        self.members().iter().find(|member| member.key == key)
    }

    /// Returns its text, if it is a string.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.data {
            Data::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the text of the member of that name.
    pub(crate) fn text_of(&self, key: &str) -> Option<&str> {
        self.get(key)?.value.text()
    }

    /// Returns the place of a section's key, or of this node if it is not set.
    pub(crate) fn place(&self, section: &str, key: &str) -> &SourceLocation {
        self.get(section).and_then(|section| section.value.get(key)).map_or(&self.at, |member| &member.at)
    }

    /// Sets the member of that name.
    pub(crate) fn set(&mut self, key: &str, data: Data) {
        let Data::Map(members) = &mut self.data else { return };
        match members.iter_mut().find(|member| member.key == key) {
            Some(member) => member.value.data = data,
            None => {
                let value = Self { at: self.at.clone(), data };
                members.push(Member { key: key.to_owned(), at: self.at.clone(), value });
            }
        }
    }

    /// Removes the member of that name.
    pub(crate) fn take(&mut self, key: &str) -> Option<Member> {
        let Data::Map(members) = &mut self.data else { return None };
        let index = members.iter().position(|member| member.key == key)?;
        Some(members.remove(index))
    }

    /// Returns the value without places.
    pub(crate) fn to_value(&self) -> Value {
        match &self.data {
            Data::Null => Value::Null,
            Data::Bool(value) => Value::Bool(*value),
            Data::Number(number, _) => Value::Number(number.clone()),
            Data::Text(text) => Value::String(text.clone()),
            Data::List(items) => items.iter().map(Self::to_value).collect(),
            Data::Map(members) => {
                members.iter().map(|m| (m.key.clone(), m.value.to_value())).collect::<Map<_, _>>().into()
            }
        }
    }
}

/// Removes the comments from the text of a JSON object. In YAML, which begins differently, slashes are text.
fn json_without_comments(text: &str) -> Option<String> {
    if !text.trim_start().starts_with(['{', '/']) {
        return None;
    }
    let plain = without_comments(text);
    let first = plain.trim_start().strip_prefix('{')?.trim_start();
    first.starts_with(['"', '}']).then_some(plain)
}

fn syntax(error: &serde_saphyr::Error, file: &Arc<Path>) -> Problem {
    let line = error.location().map_or(0, |location| u32::try_from(location.line()).unwrap_or(0));
    let full = error.without_snippet().to_string();
    let message = full.lines().next().unwrap_or_default().to_owned();
    let at = SourceLocation { file: Arc::clone(file), line };
    if let serde_saphyr::Error::DuplicateMappingKey { key, .. } = error.without_snippet() {
        let key = key.as_deref().unwrap_or("this key");
        return Problem::new(Severity::Error, &at, "", format!("`{key}` is written twice"), "keep one");
    }
    Problem::new(
        Severity::Error,
        &at,
        "",
        format!("this is not valid YAML or JSON: {message}"),
        "mend the syntax here or just above; text with `: `, `#`, `{` or a leading `*` needs quotes",
    )
}

/// The parsed value before files and spellings are added.
enum Raw {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Number::from_f64(value).map_or_else(|| Raw::Text(value.to_string()), Raw::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Raw, E> {
        Ok(Raw::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Raw::Map(members))
    }
}

fn located(raw: Spanned<Raw>, text: &str, file: &Arc<Path>) -> Node {
    let at = |location: serde_saphyr::Location| SourceLocation {
        file: Arc::clone(file),
        line: u32::try_from(location.line()).unwrap_or(0),
    };
    let here = at(raw.referenced);
    let data = match raw.value {
        Raw::Null => Data::Null,
        Raw::Bool(value) => Data::Bool(value),
        Raw::Number(number) => {
            let written = spelling(text, raw.defined).map_or_else(|| number.to_string(), str::to_owned);
            Data::Number(number, written)
        }
        Raw::Text(value) => Data::Text(value),
        Raw::List(items) => Data::List(items.into_iter().map(|item| located(item, text, file)).collect()),
        Raw::Map(members) => Data::Map(
            members
                .into_iter()
                .map(|(key, value)| Member {
                    at: at(key.referenced),
                    key: key.value,
                    value: located(value, text, file),
                })
                .collect(),
        ),
    };
    Node { at: here, data }
}

fn spelling(text: &str, location: serde_saphyr::Location) -> Option<&str> {
    let start = usize::try_from(location.span().byte_offset()?).ok()?;
    let length = usize::try_from(location.span().byte_len()?).ok()?;
    let written = text.get(start..start.checked_add(length)?)?.trim();
    (!written.is_empty()).then_some(written)
}

/// The effect of a problem on the rest of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing is lost.
    Warning,
    /// The affected entry (a server, a REST tool, …) is left out; the rest works.
    EntryDisabled,
    /// The configuration cannot be used: commands end with exit code 2, and a running gateway keeps its present one.
    Error,
}

/// The place of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// The file.
    pub file: Arc<Path>,
    /// Line, from 1; 0 if unknown.
    pub line: u32,
}

/// A problem. `Display` is `file:line: severity: field: message. Remedy.`
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Its effect on the rest.
    pub severity: Severity,
    /// The file, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Dotted path of the field (`mcp_servers.github.command`); empty for the whole file.
    pub field: String,
    /// The error.
    pub message: String,
    /// The remedy.
    pub remedy: String,
}

impl Problem {
    /// Creates a problem at a place.
    pub fn new(
        severity: Severity,
        at: &SourceLocation,
        field: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            file: Some(at.file.to_path_buf()),
            line: (at.line > 0).then_some(at.line),
            field: field.into(),
            message: message.into(),
            remedy: remedy.into(),
        }
    }

    /// Creates a problem of a whole file.
    pub fn with_file(severity: Severity, file: &Path, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            severity,
            file: Some(file.to_owned()),
            line: None,
            field: String::new(),
            message: message.into(),
            remedy: remedy.into(),
        }
    }
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::EntryDisabled => "entry left out",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if let Some(line) = self.line {
                write!(f, "{line}:")?;
            }
            f.write_str(" ")?;
        }
        write!(f, "{}: ", self.severity.word())?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(text: &str) -> Result<Node, Problem> {
        Node::parse(text, &Arc::from(Path::new("t.yaml")))
    }

    #[test]
    fn one_anchor_may_be_used_in_many_places() {
        let mut text = String::from("x: &x {a: 1}\nall:\n");
        for _ in 0..500 {
            text.push_str("- {<<: *x, b: 2}\n");
        }
        let node = parse(&text).expect("yaml").to_value();
        assert_eq!(
            node["all"].as_array().map(|all| (all.len(), all[499].clone())),
            Some((500, json!({"a": 1, "b": 2})))
        );
    }

    #[test]
    fn places_and_spellings_are_kept() {
        let node = parse("a: 1\nb:\n  - x\n  - c: 1.10\n    d: yes\n").expect("yaml");
        assert_eq!(node.to_value(), json!({"a": 1, "b": ["x", {"c": 1.1, "d": "yes"}]}));
        let b = node.get("b").expect("b");
        assert_eq!(b.at.line, 2);
        let Data::List(items) = &b.value.data else { panic!("list") };
        let c = items[1].get("c").expect("c");
        assert_eq!(
            (c.at.line, &c.value.data),
            (4, &Data::Number(Number::from_f64(1.1).expect("finite"), "1.10".into()))
        );
    }

    #[test]
    fn json_with_tabs_and_empty_files_parse() {
        assert_eq!(parse("{\n\t\"mcpServers\": {\"a\": {\"command\": \"x\"}}\n}").expect("json").members().len(), 1);
        assert_eq!(parse("# nothing\n\n").expect("empty").members().len(), 0);
        for text in
            ["// mine\n{\"a\": 1}", "{\n// mine\n\"a\": 1, /* or\n2 */ }", "{a: http://x/y}", "{\"a\": http://x/y}"]
        {
            assert_eq!(parse(text).unwrap_or_else(|problem| panic!("{text}: {problem}")).members().len(), 1, "{text}");
        }
        let broken = parse("{\n// mine\n\"a\": [\n}").expect_err("broken");
        assert!(broken.to_string().contains("not valid YAML or JSON"), "{broken}");
    }

    #[test]
    fn a_syntax_error_has_its_line() {
        let problem = parse("a: 1\nb: [1, 2\nc: 3\n").expect_err("broken");
        assert!(problem.line.is_some_and(|line| line >= 2), "{problem}");
        assert!(problem.to_string().contains("not valid YAML"), "{problem}");
        assert!(parse("a: 1\na: 2\n").expect_err("twice").to_string().contains("`a` is written twice; keep one"));
    }
}
