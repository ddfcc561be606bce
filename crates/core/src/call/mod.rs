//! Turns a call as a model wrote it into a call that may run: resolves the name, reads and validates the arguments.
//! Pure; nothing runs here.

pub mod activity;
pub mod arguments;
mod check;
pub mod indirect_call;
pub mod meta;
pub mod model_repair;
pub mod plan;
pub mod redact;
pub mod run_input;
pub mod variables;

use self::variables::{PendingReference, Variables};
use crate::catalogue::Entry;
use crate::definition::NoSchemaMode;
use crate::error::ToolError;
use crate::identity::session::{CallId, Principal};
use crate::schema::Violation;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

pub(crate) use self::check::unknown;
pub use self::check::{PendingCall, check, missing, resolve_pending};
pub use self::meta::CallMeta;
pub use crate::output::provenance::{Provenance, RawArguments, ToolCall};

/// A call that may run, on the implementation of one snapshot.
#[derive(Debug, Clone)]
pub struct ValidCall {
    /// Its id.
    pub id: CallId,
    /// The tool, pinned to the snapshot that the caller saw.
    pub entry: Arc<Entry>,
    /// Arguments: an object, valid under the tool's schema unless `pending` or `unvalidated` say otherwise.
    pub arguments: Value,
    /// The meta fields.
    pub meta: CallMeta,
    /// The changes made to name and arguments.
    pub provenance: Provenance,
    /// References without a value yet: the rest is valid, and the call must pass [`resolve_pending`]
    /// before it runs.
    pub pending: Vec<PendingReference>,
    /// How the call may run if no schema validated its arguments.
    pub unvalidated: Option<NoSchemaMode>,
}

/// A call that the check refused. Its error is returned in the place of a result.
#[derive(Debug, Clone)]
pub struct Rejection {
    /// The call.
    pub call_id: CallId,
    /// The tool's name as written.
    pub name: String,
    /// Its arguments as far as they were understood: a text if they were not JSON; null if they were not
    /// examined.
    pub arguments: Value,
    /// The tool, if it was found.
    pub entry: Option<Arc<Entry>>,
    /// Why.
    pub error: ToolError,
    /// The meta fields, as far as they were understood.
    pub meta: CallMeta,
    /// Violations of the schema, if they are the reason.
    pub violations: Vec<Violation>,
    /// The changes made to name and arguments before the rejection.
    pub provenance: Provenance,
    /// References left in the arguments because they had no value.
    pub pending: Vec<PendingReference>,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// The caller of a checked call.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// The principal whose roles apply.
    pub principal: &'a Principal,
    /// Values of references; without it, text is never a reference.
    pub variables: Option<&'a dyn Variables>,
}

impl<'a> Caller<'a> {
    /// A principal without variables.
    #[must_use]
    pub fn of(principal: &'a Principal) -> Self {
        Self { principal, variables: None }
    }
}
