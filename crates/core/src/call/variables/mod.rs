//! References in arguments: a text that is wholly `†kind.path` stands for a value that the
//! caller keeps, and is replaced before validation.
//!
//! References exist only where the caller supplies [`Variables`], as an agent's run with state does, and
//! there for tools of our own unless it says otherwise. Everywhere else (clients of the MCP server,
//! `toolwright call`, tools of foreign servers) such a text is what it is and goes on as it was written.
//!
//! A reference is `†kind.path` with the kinds `state`, `input` and `scratch`; other such terms or JSON
//! literals may follow. `a || b` is `b` where there is no `a`, or only null or false; `a && b` is `b` where
//! there is an `a` that is neither, and else its place is left out (where the call failed that writes `a`, there is
//! no value instead); `&&` binds closer. An item of an array is a step of
//! its path, `a.0` or `a[0]`. Anything else that begins with `†` is plain text, and so is what follows the first mark of
//! `††`. Values are put in once and never looked through for references.
//!
//! A value keeps the untrusted tools that it came out of. Terms that only decide which value is put in do not count.

#[cfg(test)]
mod tests;

use serde_json::Value;

use super::run_input::RunInput;
use crate::catalogue::Origin;
use crate::json::pointer;
use crate::schema::Violation;
use crate::store::Written;

use crate::identity::taint::{Taint, Tainted};
pub use crate::output::provenance::PendingReference;

/// What a reference begins with.
pub const MARK: char = '†';
/// Terms of one reference; more make it plain text.
const MAX_TERMS: usize = 16;
/// What the values that references of one call ask for may take, in bytes: a few words ask for much.
const MAX_VALUES: usize = 16 << 20;
/// At most this many references are complained about for one call, each with so many characters.
const MAX_COMPLAINTS: usize = 12;
pub(crate) const MAX_QUOTE: usize = 80;

/// Where a value is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The log that calls write their output to. What is not there yet may still come.
    State,
    /// What the run was given. It never changes.
    Input,
    /// The session's notes. What is not there yet may still come.
    Scratch,
}

impl Kind {
    /// The kind as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Input => "input",
            Self::Scratch => "scratch",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::State, Self::Input, Self::Scratch].into_iter().find(|kind| kind.as_str() == text)
    }

    /// Whether a value that is not there may come while other calls run.
    fn may_come(self) -> bool {
        self != Self::Input
    }
}

/// A value, and the untrusted tools that it came out of.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownValue {
    /// The value.
    pub value: Value,
    /// The tools.
    pub taint: Taint,
}

/// The values that references stand for. Must not block.
pub trait Variables: Send + Sync {
    /// The value at `path`, as a call of an instance sees it; `None` if there is none now. Without a step it is the whole of
    /// the kind.
    fn get(&self, kind: Kind, path: &[&str], instance: Option<&str>) -> Option<KnownValue>;

    /// Whether there is no value at `path` because the call failed that writes it.
    fn is_lost(&self, _kind: Kind, _path: &[&str], _instance: Option<&str>) -> bool {
        false
    }

    /// The instances of a request over many inputs: a call can be for one of these alone.
    fn instances(&self) -> &[String] {
        &[]
    }

    /// What the run was given, for the runs that its calls start.
    fn given(&self) -> RunInput {
        RunInput::default()
    }

    /// Takes in a value that no log keeps. Where one does, it is told of by that.
    fn write(&self, _value: &Written) {}

    /// Whether references are replaced in arguments of tools of this origin. The default leaves those of
    /// foreign tools alone: their servers get what the model wrote.
    fn serve(&self, origin: Origin) -> bool {
        origin == Origin::Own
    }
}

/// Fixed values: an object with a member for each kind that has any.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Values(pub Value);

impl Variables for Values {
    fn get(&self, kind: Kind, path: &[&str], _instance: Option<&str>) -> Option<KnownValue> {
        let value = path.iter().try_fold(self.0.get(kind.as_str())?, |value, step| step_into(value, step))?;
        Some(KnownValue { value: value.clone(), taint: Taint::default() })
    }
}

/// Who reads: the values, and the instance that the call is for.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    /// The values.
    pub variables: &'a dyn Variables,
    /// The instance; none: all of them.
    pub instance: Option<&'a str>,
}

impl<'a> Reader<'a> {
    /// For all instances.
    #[must_use]
    pub fn of(variables: &'a dyn Variables) -> Self {
        Self { variables, instance: None }
    }
}

/// Variables without what stands at some paths of the state, above them and below them: the calls failed that write there.
pub struct Except<'a> {
    variables: &'a dyn Variables,
    places: Vec<(Vec<&'a str>, Option<&'a str>)>,
}

impl<'a> Except<'a> {
    /// Without these places: paths, each with the instance that it is written for.
    #[must_use]
    pub fn new(variables: &'a dyn Variables, places: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> Self {
        let place = |(path, instance): (&'a str, _)| (path.split('.').collect(), instance);
        Self { variables, places: places.into_iter().map(place).collect() }
    }
}

impl Variables for Except<'_> {
    fn get(&self, kind: Kind, path: &[&str], instance: Option<&str>) -> Option<KnownValue> {
        if self.is_lost(kind, path, instance) { None } else { self.variables.get(kind, path, instance) }
    }

    fn is_lost(&self, kind: Kind, path: &[&str], instance: Option<&str>) -> bool {
        let is_read = |written: &Option<&str>| written.is_none() || *written == instance;
        kind == Kind::State && self.places.iter().any(|(out, written)| is_read(written) && overlap(out, path))
    }

    fn instances(&self) -> &[String] {
        self.variables.instances()
    }

    fn given(&self) -> RunInput {
        self.variables.given()
    }

    fn serve(&self, origin: Origin) -> bool {
        self.variables.serve(origin)
    }
}

/// The member of an object, or the item of an array by its number.
#[must_use]
pub fn step_into<'a>(value: &'a Value, step: &str) -> Option<&'a Value> {
    match value {
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        other => other.get(step),
    }
}

/// Whether values that are not there may still come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// Other calls may still write them.
    Open,
    /// Nothing will write any more: what is not there counts as absent, so that `||` falls back.
    Closed,
}

/// Arguments after their references were replaced.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Resolved {
    /// JSON Pointers to the values that were put in, or left out behind a closed gate, and to texts that lost the mark of their
    /// escape.
    pub replaced: Vec<String>,
    /// Those of them whose values came out of untrusted tools.
    pub tainted: Vec<Tainted>,
    /// References that wait for a value.
    pub pending: Vec<PendingReference>,
    /// References that no value will ever come for.
    pub missing: Vec<PendingReference>,
    /// References whose value, with those before it, is more than one call takes: 16 MiB.
    pub oversized: Vec<PendingReference>,
}

impl Resolved {
    fn note(&mut self, path: &str, taint: Taint) {
        self.replaced.push(path.to_owned());
        if !taint.is_empty() {
            self.tainted.push(Tainted { path: path.to_owned(), from: taint });
        }
    }

    /// What is wrong with the references that will never be replaced, the first twelve.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let complain = |hole: &PendingReference, what: &str| {
            let reference: String = hole.reference.chars().take(MAX_QUOTE).collect();
            let message = format!("{what} the reference {reference}; write a value, or a reference to one");
            Violation { path: hole.path.clone(), keyword: "reference".into(), message }
        };
        let missing = self.missing.iter().map(|hole| complain(hole, "nothing is there for"));
        let oversized = self.oversized.iter().map(|hole| complain(hole, "there is too much for"));
        missing.chain(oversized).take(MAX_COMPLAINTS).collect()
    }
}

/// Replaces the references in `value`, each text looked at once.
pub fn resolve(value: &mut Value, reader: Reader<'_>) -> Resolved {
    let mut walk =
        Walk { values: Source { reader, room: MAX_VALUES }, path: String::new(), found: Resolved::default() };
    walk.visit(value);
    walk.found
}

/// Replaces the references at `holes`, and nothing else.
pub fn resolve_at(value: &mut Value, holes: &[PendingReference], reader: Reader<'_>, outlook: Outlook) -> Resolved {
    let mut found = Resolved::default();
    let mut values = Source { reader, room: MAX_VALUES };
    for hole in holes {
        let Some(reference) = parse(&hole.reference) else { continue };
        match (values.evaluate(&reference, outlook), value.pointer_mut(&hole.path)) {
            (_, None) => {}
            (Worth::Value(put), Some(place)) => {
                *place = put.value;
                found.note(&hole.path, put.taint);
            }
            (Worth::Closed, Some(_)) => {
                leave_out(value, &hole.path);
                found.note(&hole.path, Taint::default());
            }
            (Worth::Pending, Some(_)) => found.pending.push(hole.clone()),
            (Worth::Absent, Some(_)) => found.missing.push(hole.clone()),
            (Worth::TooLarge, Some(_)) => found.oversized.push(hole.clone()),
        }
    }
    found
}

enum Term<'a> {
    Variable(Kind, Vec<&'a str>),
    Literal(Value),
}

/// Alternatives, each a chain of gates that ends with its value.
type Reference<'a> = Vec<Vec<Term<'a>>>;

fn parse(text: &str) -> Option<Reference<'_>> {
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

/// The terms between `||`, and in each the terms between `&&`. What stands in a text of a JSON literal separates nothing.
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
    path.iter().all(legal).then_some(Term::Variable(Kind::parse(kind)?, path))
}

/// The place that a scope grants: `state`, `input` or `scratch`, or a path in one, perhaps as a reference to it. The path of
/// the whole is empty.
#[must_use]
pub fn scope(text: &str) -> Option<(Kind, Vec<&str>)> {
    let text = text.trim();
    let text = text.strip_prefix(MARK).unwrap_or(text);
    match parse_term(&format!("{MARK}{text}")) {
        Some(Term::Variable(kind, _)) => {
            let (_, path) = text.split_once('.')?;
            Some((kind, path.split('.').flat_map(steps).collect()))
        }
        _ => Some((Kind::parse(text)?, Vec::new())),
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

/// A reference in arguments, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedReference {
    /// JSON Pointer to its place.
    pub path: String,
    /// Its alternatives, each with all variables that it needs.
    pub alternatives: Vec<Vec<Named>>,
    /// Whether it is one variable and nothing else, whose value takes its place as it is.
    pub is_plain: bool,
}

/// A variable that a reference names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Where it is kept.
    pub kind: Kind,
    /// Its path.
    pub path: Vec<String>,
}

/// The references in `value`, in the order in which they stand.
#[must_use]
pub fn named_references(value: &Value) -> Vec<NamedReference> {
    let mut found = Vec::new();
    look(value, &mut String::new(), &mut found);
    found
}

/// Whether a text begins as a reference does, `†state.`, `†input[` or the like, and is none: it would stay text.
#[must_use]
pub fn is_malformed(text: &str) -> bool {
    let Some(rest) = text.strip_prefix(MARK) else { return false };
    let kind = rest.split(['.', '[']).next().unwrap_or_default();
    Kind::parse(kind).is_some() && parse(text).is_none()
}

/// The variables of a reference as it is written; none if it is plain text.
#[must_use]
pub fn mentioned(reference: &str) -> Vec<Named> {
    named(&parse(reference).unwrap_or_default()).into_iter().flatten().collect()
}

fn named(reference: &Reference<'_>) -> Vec<Vec<Named>> {
    let variable = |term: &Term<'_>| match term {
        Term::Variable(kind, path) => {
            Some(Named { kind: *kind, path: path.iter().map(|step| (*step).to_owned()).collect() })
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

enum Worth {
    Value(KnownValue),
    /// There is a value, and a gate before it is closed.
    Closed,
    Pending,
    Absent,
    TooLarge,
}

/// Where values come from, and how much may still come.
struct Source<'a> {
    reader: Reader<'a>,
    room: usize,
}

impl Source<'_> {
    fn evaluate(&mut self, reference: &Reference<'_>, outlook: Outlook) -> Worth {
        let mut last = Worth::Absent;
        for alternative in reference {
            last = self.chain(alternative, outlook);
            match &last {
                // An alternative that may yet have a value comes before those after it.
                Worth::Pending | Worth::TooLarge => return last,
                Worth::Value(known) if stands(&known.value) => return last,
                _ => {}
            }
        }
        last
    }

    fn chain(&mut self, terms: &[Term<'_>], outlook: Outlook) -> Worth {
        let Some((last, gates)) = terms.split_last() else { return Worth::Absent };
        for gate in gates {
            match self.worth(gate, outlook) {
                Worth::Value(known) if stands(&known.value) => {}
                blocked @ (Worth::Pending | Worth::TooLarge) => return blocked,
                // Nobody knows what the gate of a failed call would have let through.
                _ if self.is_lost(gate) => return Worth::Absent,
                _ => return Worth::Closed,
            }
        }
        self.worth(last, outlook)
    }

    fn is_lost(&self, term: &Term<'_>) -> bool {
        let Reader { variables, instance } = self.reader;
        matches!(term, Term::Variable(kind, path) if variables.is_lost(*kind, path, instance))
    }

    fn worth(&mut self, term: &Term<'_>, outlook: Outlook) -> Worth {
        let (kind, path) = match term {
            Term::Literal(value) => return Worth::Value(KnownValue { value: value.clone(), taint: Taint::default() }),
            Term::Variable(kind, path) => (kind, path),
        };
        if self.room == 0 {
            return Worth::TooLarge;
        }
        match self.reader.variables.get(*kind, path, self.reader.instance) {
            Some(known) => {
                self.room = self.room.saturating_sub(size(&known.value));
                if self.room == 0 { Worth::TooLarge } else { Worth::Value(known) }
            }
            None if kind.may_come() && outlook == Outlook::Open => Worth::Pending,
            None => Worth::Absent,
        }
    }
}

/// About what a value takes in memory, in bytes.
fn size(value: &Value) -> usize {
    let inside = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(members) => members.iter().map(|(name, member)| name.len() + size(member)).sum(),
        _ => 0,
    };
    inside + size_of::<Value>()
}

fn stands(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false))
}

/// Takes the value at `path` out of its object; in an array null takes its place, so that the others keep
/// theirs.
fn leave_out(value: &mut Value, path: &str) {
    if !pointer::remove_member(value, path)
        && let Some(place) = value.pointer_mut(path)
    {
        *place = Value::Null;
    }
}

struct Walk<'a> {
    values: Source<'a>,
    path: String,
    found: Resolved,
}

/// What becomes of a place.
#[derive(PartialEq)]
enum Place {
    Stays,
    LeftOut,
}

impl Walk<'_> {
    fn visit(&mut self, value: &mut Value) -> Place {
        let length = self.path.len();
        match value {
            Value::String(text) if text.starts_with(MARK) => return self.text(value),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    pointer::push(&mut self.path, &index.to_string());
                    if self.visit(item) == Place::LeftOut {
                        *item = Value::Null;
                    }
                    self.path.truncate(length);
                }
            }
            Value::Object(members) => members.retain(|name, member| {
                pointer::push(&mut self.path, name);
                let place = self.visit(member);
                self.path.truncate(length);
                place == Place::Stays
            }),
            _ => {}
        }
        Place::Stays
    }

    fn text(&mut self, value: &mut Value) -> Place {
        let Value::String(text) = value else { return Place::Stays };
        if text[MARK.len_utf8()..].starts_with(MARK) {
            text.drain(..MARK.len_utf8());
            self.found.note(&self.path, Taint::default());
            return Place::Stays;
        }
        let Some(reference) = parse(text) else { return Place::Stays };
        let hole = |path: &str| PendingReference { path: path.to_owned(), reference: text.clone() };
        match self.values.evaluate(&reference, Outlook::Open) {
            Worth::Value(put) => {
                *value = put.value;
                self.found.note(&self.path, put.taint);
            }
            Worth::Closed => {
                self.found.note(&self.path, Taint::default());
                return Place::LeftOut;
            }
            Worth::Pending => self.found.pending.push(hole(&self.path)),
            Worth::Absent => self.found.missing.push(hole(&self.path)),
            Worth::TooLarge => self.found.oversized.push(hole(&self.path)),
        }
        Place::Stays
    }
}

/// Whether one path is the other, or above it.
#[must_use]
pub fn overlap(one: &[&str], other: &[&str]) -> bool {
    one.iter().zip(other).all(|(one, other)| one == other)
}
