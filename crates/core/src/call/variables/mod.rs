//! References in arguments: a text of the form `†kind.path` is replaced before validation with a value that the
//! caller keeps.
//!
//! References exist only if the caller supplies [`Variables`], as an agent's run with state does, and
//! by default only for our own tools. Elsewhere (clients of the MCP server,
//! `toolwright call`, tools of foreign servers) such a text is passed on as written.
//!
//! A reference is `†kind.path` with the kinds `state`, `input` and `scratch`; other such terms or JSON
//! literals may follow. `a || b` is `b` if `a` is missing, null or false. `a && b` is `b` if
//! `a` is neither; otherwise its place is left out (if the call that writes `a` failed, the value is missing
//! instead). `&&` binds closer. An item of an array is a step of
//! its path, `a.0` or `a[0]`. Any other text that begins with `†` is plain text, and so is the rest of a text after the
//! first mark of `††`. Replaced values are not searched for references.
//!
//! A value keeps the untrusted tools that it came from. Terms that only decide which value is used do not count.

#[cfg(test)]
mod tests;

use serde_json::Value;

use super::run_input::RunInput;
use crate::catalogue::DefinitionOrigin;
use crate::json::pointer;
use crate::schema::Violation;
use crate::store::WrittenValue;

use crate::identity::taint::{Taint, Tainted};
pub use crate::output::provenance::PendingReference;

/// First character of a reference.
pub const MARK: char = '†';
/// Terms of one reference; more make it plain text.
const MAX_TERMS: usize = 16;
/// Bound on the values of one call's references, in bytes: a short reference can name a large value.
const MAX_VALUES: usize = 16 << 20;
/// Bound on the reported references of one call, and on the characters of each.
const MAX_COMPLAINTS: usize = 12;
pub(crate) const MAX_QUOTE: usize = 80;

/// The store of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariableKind {
    /// Outputs written by calls. A missing value may still come.
    State,
    /// The run's input. It never changes.
    Input,
    /// The session's notes. A missing value may still come.
    Scratch,
}

impl VariableKind {
    /// Returns its written form.
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

    /// Whether a missing value may still come while other calls run.
    fn may_come(self) -> bool {
        self != Self::Input
    }
}

/// A value with the untrusted tools that it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownValue {
    /// The value.
    pub value: Value,
    /// The tools.
    pub taint: Taint,
}

/// Values of references. Must not block.
pub trait Variables: Send + Sync {
    /// Returns the value at `path` as seen by a call of an instance; `None` if there is none now. An empty path is the
    /// whole kind.
    fn get(&self, kind: VariableKind, path: &[&str], instance: Option<&str>) -> Option<KnownValue>;

    /// Whether the value at `path` is missing because the call that writes it failed.
    fn is_lost(&self, _kind: VariableKind, _path: &[&str], _instance: Option<&str>) -> bool {
        false
    }

    /// The instances of a request over many inputs: a call may belong to a single one.
    fn instances(&self) -> &[String] {
        &[]
    }

    /// Returns the run's input, for child runs.
    fn given(&self) -> RunInput {
        RunInput::default()
    }

    /// Adds a value that no log keeps. A log reports its own values.
    fn write(&self, _value: &WrittenValue) {}

    /// Whether references are replaced in arguments of tools of this origin. By default not in those of
    /// foreign tools: their servers get what the model wrote.
    fn serve(&self, origin: DefinitionOrigin) -> bool {
        origin == DefinitionOrigin::Own
    }
}

/// Fixed values: an object with a member for each kind that has any.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Values(pub Value);

impl Variables for Values {
    fn get(&self, kind: VariableKind, path: &[&str], _instance: Option<&str>) -> Option<KnownValue> {
        let value = path.iter().try_fold(self.0.get(kind.as_str())?, |value, step| step_into(value, step))?;
        Some(KnownValue { value: value.clone(), taint: Taint::default() })
    }
}

/// The reader of values: the variables, and the call's instance.
#[derive(Clone, Copy)]
pub struct VariableReader<'a> {
    /// The values.
    pub variables: &'a dyn Variables,
    /// The instance; `None` for all instances.
    pub instance: Option<&'a str>,
}

impl<'a> VariableReader<'a> {
    /// A reader for all instances.
    #[must_use]
    pub fn of(variables: &'a dyn Variables) -> Self {
        Self { variables, instance: None }
    }
}

/// Variables without some paths of the state, and everything above and below them, because the calls that write them
/// failed.
pub struct ExceptPaths<'a> {
    variables: &'a dyn Variables,
    places: Vec<(Vec<&'a str>, Option<&'a str>)>,
}

impl<'a> ExceptPaths<'a> {
    /// Hides these places: paths, each with the instance that it is written for.
    #[must_use]
    pub fn new(variables: &'a dyn Variables, places: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> Self {
        let place = |(path, instance): (&'a str, _)| (path.split('.').collect(), instance);
        Self { variables, places: places.into_iter().map(place).collect() }
    }
}

impl Variables for ExceptPaths<'_> {
    fn get(&self, kind: VariableKind, path: &[&str], instance: Option<&str>) -> Option<KnownValue> {
        if self.is_lost(kind, path, instance) { None } else { self.variables.get(kind, path, instance) }
    }

    fn is_lost(&self, kind: VariableKind, path: &[&str], instance: Option<&str>) -> bool {
        let is_read = |written: &Option<&str>| written.is_none() || *written == instance;
        kind == VariableKind::State && self.places.iter().any(|(out, written)| is_read(written) && overlap(out, path))
    }

    fn instances(&self) -> &[String] {
        self.variables.instances()
    }

    fn given(&self) -> RunInput {
        self.variables.given()
    }

    fn serve(&self, origin: DefinitionOrigin) -> bool {
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

/// Whether missing values may still come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// Other calls may still write them.
    Open,
    /// Nothing will write any more: missing values count as absent, so that `||` falls back.
    Closed,
}

/// Arguments after their references were replaced.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResolvedArguments {
    /// JSON Pointers to values that were replaced, left out behind a closed gate, or had an escape
    /// mark removed.
    pub replaced: Vec<String>,
    /// Replaced places whose values came from untrusted tools.
    pub tainted: Vec<Tainted>,
    /// References that wait for a value.
    pub pending: Vec<PendingReference>,
    /// References that will never have a value.
    pub missing: Vec<PendingReference>,
    /// References whose values exceed the bound of one call, 16 MiB.
    pub oversized: Vec<PendingReference>,
}

impl ResolvedArguments {
    fn note(&mut self, path: &str, taint: Taint) {
        self.replaced.push(path.to_owned());
        if !taint.is_empty() {
            self.tainted.push(Tainted { path: path.to_owned(), from: taint });
        }
    }

    /// Returns violations for the references that will never be replaced, the first twelve.
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

/// Replaces the references in `value`; each text is read once.
pub fn resolve(value: &mut Value, reader: VariableReader<'_>) -> ResolvedArguments {
    let mut walk = ArgumentWalk {
        values: ValueSource { reader, room: MAX_VALUES },
        path: String::new(),
        found: ResolvedArguments::default(),
    };
    walk.visit(value);
    walk.found
}

/// Replaces only the references at `holes`.
pub fn resolve_at(
    value: &mut Value,
    holes: &[PendingReference],
    reader: VariableReader<'_>,
    completeness: Completeness,
) -> ResolvedArguments {
    let mut found = ResolvedArguments::default();
    let mut values = ValueSource { reader, room: MAX_VALUES };
    for hole in holes {
        let Some(reference) = parse(&hole.reference) else { continue };
        match (values.evaluate(&reference, completeness), value.pointer_mut(&hole.path)) {
            (_, None) => {}
            (LookedUp::Value(put), Some(place)) => {
                *place = put.value;
                found.note(&hole.path, put.taint);
            }
            (LookedUp::Closed, Some(_)) => {
                leave_out(value, &hole.path);
                found.note(&hole.path, Taint::default());
            }
            (LookedUp::Pending, Some(_)) => found.pending.push(hole.clone()),
            (LookedUp::Absent, Some(_)) => found.missing.push(hole.clone()),
            (LookedUp::TooLarge, Some(_)) => found.oversized.push(hole.clone()),
        }
    }
    found
}

enum Term<'a> {
    Variable(VariableKind, Vec<&'a str>),
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
pub fn mentioned(reference: &str) -> Vec<NamedVariable> {
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

enum LookedUp {
    Value(KnownValue),
    /// The gate of a value is closed.
    Closed,
    Pending,
    Absent,
    TooLarge,
}

/// The source of values, and whether more may come.
struct ValueSource<'a> {
    reader: VariableReader<'a>,
    room: usize,
}

impl ValueSource<'_> {
    fn evaluate(&mut self, reference: &Reference<'_>, completeness: Completeness) -> LookedUp {
        let mut last = LookedUp::Absent;
        for alternative in reference {
            last = self.chain(alternative, completeness);
            match &last {
                // An alternative that may still get a value takes precedence over later ones.
                LookedUp::Pending | LookedUp::TooLarge => return last,
                LookedUp::Value(known) if stands(&known.value) => return last,
                _ => {}
            }
        }
        last
    }

    fn chain(&mut self, terms: &[Term<'_>], completeness: Completeness) -> LookedUp {
        let Some((last, gates)) = terms.split_last() else { return LookedUp::Absent };
        for gate in gates {
            match self.worth(gate, completeness) {
                LookedUp::Value(known) if stands(&known.value) => {}
                blocked @ (LookedUp::Pending | LookedUp::TooLarge) => return blocked,
                // The call that writes the gate failed, so its value is unknown.
                _ if self.is_lost(gate) => return LookedUp::Absent,
                _ => return LookedUp::Closed,
            }
        }
        self.worth(last, completeness)
    }

    fn is_lost(&self, term: &Term<'_>) -> bool {
        let VariableReader { variables, instance } = self.reader;
        matches!(term, Term::Variable(kind, path) if variables.is_lost(*kind, path, instance))
    }

    fn worth(&mut self, term: &Term<'_>, completeness: Completeness) -> LookedUp {
        let (kind, path) = match term {
            Term::Literal(value) => {
                return LookedUp::Value(KnownValue { value: value.clone(), taint: Taint::default() });
            }
            Term::Variable(kind, path) => (kind, path),
        };
        if self.room == 0 {
            return LookedUp::TooLarge;
        }
        match self.reader.variables.get(*kind, path, self.reader.instance) {
            Some(known) => {
                self.room = self.room.saturating_sub(size(&known.value));
                if self.room == 0 { LookedUp::TooLarge } else { LookedUp::Value(known) }
            }
            None if kind.may_come() && completeness == Completeness::Open => LookedUp::Pending,
            None => LookedUp::Absent,
        }
    }
}

/// Estimates the memory of a value, in bytes.
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

/// Removes the value at `path` from its object; in an array it becomes null, so that other items keep their
/// indices.
fn leave_out(value: &mut Value, path: &str) {
    if !pointer::remove_member(value, path)
        && let Some(place) = value.pointer_mut(path)
    {
        *place = Value::Null;
    }
}

struct ArgumentWalk<'a> {
    values: ValueSource<'a>,
    path: String,
    found: ResolvedArguments,
}

/// The result for a place.
#[derive(PartialEq)]
enum MemberOutcome {
    Stays,
    LeftOut,
}

impl ArgumentWalk<'_> {
    fn visit(&mut self, value: &mut Value) -> MemberOutcome {
        let length = self.path.len();
        match value {
            Value::String(text) if text.starts_with(MARK) => return self.text(value),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    pointer::push(&mut self.path, &index.to_string());
                    if self.visit(item) == MemberOutcome::LeftOut {
                        *item = Value::Null;
                    }
                    self.path.truncate(length);
                }
            }
            Value::Object(members) => members.retain(|name, member| {
                pointer::push(&mut self.path, name);
                let place = self.visit(member);
                self.path.truncate(length);
                place == MemberOutcome::Stays
            }),
            _ => {}
        }
        MemberOutcome::Stays
    }

    fn text(&mut self, value: &mut Value) -> MemberOutcome {
        let Value::String(text) = value else { return MemberOutcome::Stays };
        if text[MARK.len_utf8()..].starts_with(MARK) {
            text.drain(..MARK.len_utf8());
            self.found.note(&self.path, Taint::default());
            return MemberOutcome::Stays;
        }
        let Some(reference) = parse(text) else { return MemberOutcome::Stays };
        let hole = |path: &str| PendingReference { path: path.to_owned(), reference: text.clone() };
        match self.values.evaluate(&reference, Completeness::Open) {
            LookedUp::Value(put) => {
                *value = put.value;
                self.found.note(&self.path, put.taint);
            }
            LookedUp::Closed => {
                self.found.note(&self.path, Taint::default());
                return MemberOutcome::LeftOut;
            }
            LookedUp::Pending => self.found.pending.push(hole(&self.path)),
            LookedUp::Absent => self.found.missing.push(hole(&self.path)),
            LookedUp::TooLarge => self.found.oversized.push(hole(&self.path)),
        }
        MemberOutcome::Stays
    }
}

/// Whether the paths are equal, or one is above the other.
#[must_use]
pub fn overlap(one: &[&str], other: &[&str]) -> bool {
    one.iter().zip(other).all(|(one, other)| one == other)
}
