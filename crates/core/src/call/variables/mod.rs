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

mod reference;
mod resolve;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::run_input::RunInput;
use crate::catalogue::DefinitionOrigin;
use crate::identity::taint::Taint;
use crate::store::WrittenValue;

pub use self::reference::{
    MARK, NamedReference, NamedVariable, is_malformed, named_references, referenced_variables, scope,
};
pub(crate) use self::resolve::MAX_QUOTE;
pub use self::resolve::{Completeness, ResolvedArguments, resolve, resolve_at};
pub use crate::output::provenance::PendingReference;

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
        let value = path.iter().try_fold(self.0.get(kind.as_str())?, |value, step| child_value(value, step))?;
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
pub fn child_value<'a>(value: &'a Value, step: &str) -> Option<&'a Value> {
    match value {
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        other => other.get(step),
    }
}

/// Whether the paths are equal, or one is above the other.
#[must_use]
pub fn overlap(one: &[&str], other: &[&str]) -> bool {
    one.iter().zip(other).all(|(one, other)| one == other)
}
