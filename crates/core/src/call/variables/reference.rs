//! References as written: their grammar, and the variables that they name.

use serde_json::Value;

use super::VariableKind;
use crate::json::pointer;

/// First character of a reference.
pub const MARK: char = '†';
/// Terms of one reference; more make it plain text.
const MAX_TERMS: usize = 16;

pub(super) enum Term<'a> {
    Variable(VariableKind, Vec<&'a str>),
    Literal(Value),
}

/// Alternatives, each a chain of gates that ends with its value.
pub(super) type Reference<'a> = Vec<Vec<Term<'a>>>;

pub(super) fn parse(text: &str) -> Option<Reference<'_>> {
    let text = text.trim();
    if !text.starts_with(MARK) {
        return None;
    }
    let alternatives = terms(text);
    if alternatives.iter().map(Vec::len).sum::<usize>() > MAX_TERMS {
        return None;
    }
    alternatives.into_iter().map(|terms| terms.into_iter().map(|term| parse_term(term.trim())).collect()).collect()
}

/// Splits a reference into terms at `||`, and each of these at `&&`. Separators inside a string literal do not count.
fn terms(text: &str) -> Vec<Vec<&str>> {
    let bytes = text.as_bytes();
    let (mut all, mut terms) = (Vec::new(), Vec::new());
    let (mut start, mut at, mut quoted) = (0, 0, false);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if quoted => at += 1,
            b'"' if quoted || !text[start..at].trim_start().starts_with(MARK) => quoted = !quoted,
            b'|' | b'&' if !quoted && bytes.get(at + 1) == Some(byte) => {
                terms.push(&text[start..at]);
                if *byte == b'|' {
                    all.push(std::mem::take(&mut terms));
                }
                at += 1;
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    terms.push(&text[start..]);
    all.push(terms);
    all
}

fn parse_term(term: &str) -> Option<Term<'_>> {
    let Some(variable) = term.strip_prefix(MARK) else {
        return serde_json::from_str(term).ok().map(Term::Literal);
    };
    let (kind, path) = variable.split_once('.')?;
    let legal = |step: &&str| !step.is_empty() && !step.contains(char::is_whitespace);
    let path: Vec<&str> = path.split('.').flat_map(steps).collect();
    path.iter().all(legal).then_some(Term::Variable(VariableKind::parse(kind)?, path))
}

/// The place that a scope grants: `state`, `input` or `scratch`, or a path in one, perhaps as a reference to it. The path of
/// the whole is empty.
#[must_use]
pub fn scope(text: &str) -> Option<(VariableKind, Vec<&str>)> {
    let text = text.trim();
    let text = text.strip_prefix(MARK).unwrap_or(text);
    match parse_term(&format!("{MARK}{text}")) {
        Some(Term::Variable(kind, _)) => {
            let (_, path) = text.split_once('.')?;
            Some((kind, path.split('.').flat_map(steps).collect()))
        }
        _ => Some((VariableKind::parse(text)?, Vec::new())),
    }
}

/// The steps of `name[0][1]`: the name, and the numbers of the items. Any other text is one step.
fn steps(text: &str) -> impl Iterator<Item = &str> {
    let is_item = |item: &str| !item.is_empty() && item.bytes().all(|byte| byte.is_ascii_digit());
    let (name, items) = match text.split_once('[') {
        Some((name, items)) if !name.is_empty() && items.ends_with(']') => (name, &items[..items.len() - 1]),
        _ => (text, ""),
    };
    let (name, items) = if items.split("][").all(is_item) { (name, items) } else { (text, "") };
    std::iter::once(name).chain(items.split("][").filter(|item| !item.is_empty()))
}

/// A reference in arguments, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedReference {
    /// JSON Pointer to its place.
    pub path: String,
    /// Its alternatives, each with all variables that it needs.
    pub alternatives: Vec<Vec<NamedVariable>>,
    /// Whether it is a single variable, whose value replaces the text unchanged.
    pub is_plain: bool,
}

/// A variable that a reference names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedVariable {
    /// The store of the variable.
    pub kind: VariableKind,
    /// Its path.
    pub path: Vec<String>,
}

/// Returns the references in `value`, in order.
#[must_use]
pub fn named_references(value: &Value) -> Vec<NamedReference> {
    let mut found = Vec::new();
    look(value, &mut String::new(), &mut found);
    found
}

/// Whether a text begins like a reference, `†state.`, `†input[` or the like, but is none: it would stay text.
#[must_use]
pub fn is_malformed(text: &str) -> bool {
    let Some(rest) = text.strip_prefix(MARK) else { return false };
    let kind = rest.split(['.', '[']).next().unwrap_or_default();
    VariableKind::parse(kind).is_some() && parse(text).is_none()
}

/// Returns the variables of a reference as written; none for plain text.
#[must_use]
pub fn referenced_variables(reference: &str) -> Vec<NamedVariable> {
    named(&parse(reference).unwrap_or_default()).into_iter().flatten().collect()
}

fn named(reference: &Reference<'_>) -> Vec<Vec<NamedVariable>> {
    let variable = |term: &Term<'_>| match term {
        Term::Variable(kind, path) => {
            Some(NamedVariable { kind: *kind, path: path.iter().map(|step| (*step).to_owned()).collect() })
        }
        Term::Literal(_) => None,
    };
    reference.iter().map(|terms| terms.iter().filter_map(variable).collect()).collect()
}

fn look(value: &Value, path: &mut String, found: &mut Vec<NamedReference>) {
    let length = path.len();
    match value {
        Value::String(text) if text.starts_with(MARK) && !text[MARK.len_utf8()..].starts_with(MARK) => {
            if let Some(reference) = parse(text) {
                let is_plain = matches!(&*reference, [one] if matches!(&**one, [Term::Variable(..)]));
                found.push(NamedReference { path: path.clone(), alternatives: named(&reference), is_plain });
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointer::push(path, &index.to_string());
                look(item, path, found);
                path.truncate(length);
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                pointer::push(path, name);
                look(member, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}
