//! Replaces the references in arguments by the values of their variables.

use serde_json::Value;

use super::reference::{MARK, Reference, Term, parse};
use super::{KnownValue, VariableReader};
use crate::identity::taint::{Taint, TaintedArgument};
use crate::json::pointer;
use crate::output::provenance::PendingReference;
use crate::schema::Violation;

/// Bound on the values of one call's references, in bytes: a short reference can name a large value.
const MAX_VALUES: usize = 16 << 20;
/// Bound on the reported references of one call, and on the characters of each.
pub(super) const MAX_COMPLAINTS: usize = 12;
pub(crate) const MAX_QUOTE: usize = 80;

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
    pub tainted: Vec<TaintedArgument>,
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
            self.tainted.push(TaintedArgument { path: path.to_owned(), from: taint });
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
            (LookupResult::Value(put), Some(place)) => {
                *place = put.value;
                found.note(&hole.path, put.taint);
            }
            (LookupResult::Closed, Some(_)) => {
                leave_out(value, &hole.path);
                found.note(&hole.path, Taint::default());
            }
            (LookupResult::Pending, Some(_)) => found.pending.push(hole.clone()),
            (LookupResult::Absent, Some(_)) => found.missing.push(hole.clone()),
            (LookupResult::TooLarge, Some(_)) => found.oversized.push(hole.clone()),
        }
    }
    found
}

enum LookupResult {
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
    fn evaluate(&mut self, reference: &Reference<'_>, completeness: Completeness) -> LookupResult {
        let mut last = LookupResult::Absent;
        for alternative in reference {
            last = self.chain(alternative, completeness);
            match &last {
                // An alternative that may still get a value takes precedence over later ones.
                LookupResult::Pending | LookupResult::TooLarge => return last,
                LookupResult::Value(known) if stands(&known.value) => return last,
                _ => {}
            }
        }
        last
    }

    fn chain(&mut self, terms: &[Term<'_>], completeness: Completeness) -> LookupResult {
        let Some((last, gates)) = terms.split_last() else { return LookupResult::Absent };
        for gate in gates {
            match self.worth(gate, completeness) {
                LookupResult::Value(known) if stands(&known.value) => {}
                blocked @ (LookupResult::Pending | LookupResult::TooLarge) => return blocked,
                // The call that writes the gate failed, so its value is unknown.
                _ if self.is_lost(gate) => return LookupResult::Absent,
                _ => return LookupResult::Closed,
            }
        }
        self.worth(last, completeness)
    }

    fn is_lost(&self, term: &Term<'_>) -> bool {
        let VariableReader { variables, instance } = self.reader;
        matches!(term, Term::Variable(kind, path) if variables.is_lost(*kind, path, instance))
    }

    fn worth(&mut self, term: &Term<'_>, completeness: Completeness) -> LookupResult {
        let (kind, path) = match term {
            Term::Literal(value) => {
                return LookupResult::Value(KnownValue { value: value.clone(), taint: Taint::default() });
            }
            Term::Variable(kind, path) => (kind, path),
        };
        if self.room == 0 {
            return LookupResult::TooLarge;
        }
        match self.reader.variables.get(*kind, path, self.reader.instance) {
            Some(variable) => {
                self.room = self.room.saturating_sub(size(&variable.value));
                if self.room == 0 { LookupResult::TooLarge } else { LookupResult::Value(variable) }
            }
            None if kind.may_come() && completeness == Completeness::Open => LookupResult::Pending,
            None => LookupResult::Absent,
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
            LookupResult::Value(put) => {
                *value = put.value;
                self.found.note(&self.path, put.taint);
            }
            LookupResult::Closed => {
                self.found.note(&self.path, Taint::default());
                return MemberOutcome::LeftOut;
            }
            LookupResult::Pending => self.found.pending.push(hole(&self.path)),
            LookupResult::Absent => self.found.missing.push(hole(&self.path)),
            LookupResult::TooLarge => self.found.oversized.push(hole(&self.path)),
        }
        MemberOutcome::Stays
    }
}
