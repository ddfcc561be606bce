//! Records how a call was written, and how the check changed it. Outcomes, events and the ledger carry the record.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::definition::NoSchemaMode;
use crate::identity::name_table::NameMatch;
use crate::identity::session::CallId;
use crate::identity::taint::TaintedArgument;
use crate::model::{CallMeta, Route};
use crate::schema::Violation;
use crate::secret::Redactor;

/// A call as written.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Its id.
    pub id: CallId,
    /// The tool's name as written.
    pub name: String,
    /// Its arguments as written.
    pub arguments: RawArguments,
    /// Meta fields given beside the arguments, as in a plan or a composed answer. Meta fields among
    /// the arguments are moved here by the check.
    pub meta: CallMeta,
}

impl ToolCall {
    /// A call without meta fields besides its arguments.
    #[must_use]
    pub fn new(id: CallId, name: impl Into<String>, arguments: RawArguments) -> Self {
        Self { id, name: name.into(), arguments, meta: CallMeta::default() }
    }

    /// The call with these meta fields.
    #[must_use]
    pub fn with_meta(self, meta: CallMeta) -> Self {
        Self { meta, ..self }
    }
}

/// Arguments as they arrived.
#[derive(Debug, Clone, PartialEq)]
pub enum RawArguments {
    /// Text that should be JSON, as from model APIs.
    Text(String),
    /// A parsed value, as from MCP and the command line.
    Value(Value),
    /// A value with references already replaced, except at the holes.
    Resolved(Value, Vec<PendingReference>),
}

/// A place without a value yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingReference {
    /// JSON Pointer to the place, which holds the reference until it is replaced.
    pub path: String,
    /// The reference as written.
    pub reference: String,
}

/// Changes to a call between its written form and its run. None by default.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// How the name was matched.
    #[serde(skip_serializing_if = "is_default")]
    pub matched: NameMatch,
    /// Who runs it.
    #[serde(skip_serializing_if = "Route::is_tool")]
    pub route: Route,
    /// It was inside a call of `tools__call`.
    #[serde(skip_serializing_if = "is_default")]
    pub carried: bool,
    /// The arguments were absent, null or an empty text, and became `{}`.
    #[serde(skip_serializing_if = "is_default")]
    pub emptied: bool,
    /// They were JSON inside a JSON string.
    #[serde(skip_serializing_if = "is_default")]
    pub unwrapped: bool,
    /// They were repaired JSON.
    #[serde(skip_serializing_if = "is_default")]
    pub repaired: bool,
    /// The fault of the arguments' text; not stored.
    #[serde(skip)]
    pub fault: Option<String>,
    /// If the text ended too early: JSON Pointer to the innermost open container. For a tool of
    /// [`WHOLE_ITEMS`](crate::call::arguments::WHOLE_ITEMS), the incomplete item was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// JSON Pointers to the references that were replaced, and to escaped texts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resolved: Vec<String>,
    /// Places of the arguments whose values came from untrusted tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tainted: Vec<TaintedArgument>,
    /// Defaults of the schema were added.
    #[serde(skip_serializing_if = "is_default")]
    pub defaulted: bool,
    /// JSON Pointers to the values that did not fit and were given a form that does, or left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub coerced: Vec<String>,
    /// An input guard replaced them.
    #[serde(skip_serializing_if = "is_default")]
    pub rewritten: bool,
    /// How the call may run if no schema validated its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unvalidated: Option<NoSchemaMode>,
    /// A model was asked to repair them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<Box<RepairRecord>>,
}

impl Provenance {
    /// Whether the call runs as written.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Redacts secrets.
    #[must_use]
    pub fn redacted(&self, redactor: &dyn Redactor) -> Self {
        let repair = self.repair.as_ref().map(|record| Box::new(record.redacted(redactor)));
        Self { repair, ..self.clone() }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// How an attempt to have a model repair the arguments ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairOutcome {
    /// The candidate is valid; the call continues with it.
    Accepted,
    /// The candidate is not valid either, in these ways.
    Rejected(Vec<Violation>),
    /// There is no candidate; the reason.
    Failed(String),
}

/// The record of the only attempt to have a model repair the arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RepairRecord {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The model asked, `provider/model`.
    pub model: String,
    /// The arguments before, a text if they were no JSON.
    pub original: Value,
    /// Violations of the arguments.
    pub errors: Vec<Violation>,
    /// The model's replacement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Value>,
    /// How it ended.
    pub end: RepairOutcome,
}

impl RepairRecord {
    /// The record without secrets.
    #[must_use]
    pub fn redacted(&self, redactor: &dyn Redactor) -> Self {
        let clean = |violations: &[Violation]| -> Vec<Violation> {
            let message = |violation: &Violation| redactor.redact(&violation.message).into_owned();
            violations.iter().map(|violation| Violation { message: message(violation), ..violation.clone() }).collect()
        };
        Self {
            attempt: self.attempt,
            model: self.model.clone(),
            original: redactor.redact_value(&self.original),
            errors: clean(&self.errors),
            candidate: self.candidate.as_ref().map(|candidate| redactor.redact_value(candidate)),
            end: match &self.end {
                RepairOutcome::Accepted => RepairOutcome::Accepted,
                RepairOutcome::Rejected(errors) => RepairOutcome::Rejected(clean(errors)),
                RepairOutcome::Failed(why) => RepairOutcome::Failed(redactor.redact(why).into_owned()),
            },
        }
    }
}
