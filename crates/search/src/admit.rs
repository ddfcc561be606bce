//! Which tools may be chosen at all.

use std::fmt;

use serde_json::Value;

use super::pick::PickOptions;
use toolwright_core::catalogue::Entry;
use toolwright_core::definition::{Mode, ToolDefinition};
use toolwright_core::session::Principal;

/// The capability under which a tool names what it needs of its surroundings: one name, or a list.
pub const REQUIRES: &str = "requires";

/// Why a tool was not even scored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exclusion {
    /// Its author marked it unsafe, and unsafe tools were not allowed.
    Unsafe,
    /// It is not of the namespace that was asked for.
    Namespace,
    /// It is for roles that the caller has none of.
    Roles(Vec<String>),
    /// It lacks a capability that was asked for.
    Capability(String),
    /// It needs something that its surroundings do not have.
    Context(String),
    /// Its definition takes more tokens than are left: this many.
    Budget(usize),
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsafe => write!(f, "it is marked unsafe"),
            Self::Namespace => write!(f, "it is of another namespace"),
            Self::Roles(roles) => write!(f, "it is only for {}", roles.join(" or ")),
            Self::Capability(name) => write!(f, "it lacks the capability {name}"),
            Self::Context(name) => write!(f, "it needs {name}, which is not there"),
            Self::Budget(tokens) => write!(f, "its definition takes {tokens} tokens, more than are left"),
        }
    }
}

/// Whether a tool is not for everybody: of all others nothing but [`filters`] can make [`excluded`] say anything.
pub(super) fn is_restricted(entry: &Entry) -> bool {
    let tool = entry.definition();
    !tool.safe || !tool.allowed_roles.is_empty()
}

/// Whether the options leave out tools that are for everybody.
pub(super) fn filters(options: &PickOptions) -> bool {
    let PickOptions { namespace, capabilities, context, budget, .. } = options;
    namespace.is_some() || !capabilities.is_empty() || context.is_some() || budget.is_some()
}

/// Why a tool is no candidate; `None` for one that is.
pub(super) fn excluded(entry: &Entry, options: &PickOptions, caller: &Principal) -> Option<Exclusion> {
    let tool = entry.definition();
    if options.namespace.as_deref().is_some_and(|namespace| tool.id.namespace() != namespace) {
        return Some(Exclusion::Namespace);
    }
    if !tool.safe && !options.allow_unsafe {
        return Some(Exclusion::Unsafe);
    }
    if !caller.may_use(&tool.allowed_roles) {
        return Some(Exclusion::Roles(tool.allowed_roles.clone()));
    }
    if let Some(lacking) = options.capabilities.iter().find(|name| !has(tool, name)) {
        return Some(Exclusion::Capability(lacking.clone()));
    }
    if let Some(context) = &options.context
        && let Some(missing) = needs(tool).find(|name| !context.iter().any(|there| there == name))
    {
        return Some(Exclusion::Context(missing.to_owned()));
    }
    let budget = options.budget?;
    let tokens = entry.tokens();
    (tokens > budget).then_some(Exclusion::Budget(tokens))
}

/// Whether it declares the capability: with any value but `null`, `false`, 0 and an empty one.
fn has(tool: &ToolDefinition, name: &str) -> bool {
    match tool.capabilities.get(name) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(members)) => !members.is_empty(),
    }
}

/// What it needs of its surroundings.
fn needs(tool: &ToolDefinition) -> impl Iterator<Item = &str> {
    let mode = match tool.mode {
        Mode::Direct => None,
        Mode::Background => Some("background"),
        Mode::Stateful => Some("stateful"),
    };
    let named = match tool.capabilities.get(REQUIRES) {
        Some(Value::Array(names)) => names.as_slice(),
        Some(name) => std::slice::from_ref(name),
        None => &[],
    };
    mode.into_iter().chain(named.iter().filter_map(Value::as_str))
}
