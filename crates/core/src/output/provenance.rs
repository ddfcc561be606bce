//! Records how a call was written, and what changed before it ran. Outcomes, events and the ledger carry the record.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::definition::NoSchemaMode;
use crate::identity::name_table::NameMatch;
use crate::identity::session::CallId;
use crate::identity::taint::Tainted;
use crate::model::{CallMeta, Route};
use crate::schema::Violation;
use crate::secret::Redactor;

/// A call as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Its id.
    pub id: CallId,
    /// The tool's name as written.
    pub name: String,
    /// Its arguments as written.
    pub arguments: RawArguments,
    /// The meta fields that came beside the arguments, as in a plan or a composed answer. Those that stand among
    /// the arguments are lifted when the call is checked.
    pub meta: CallMeta,
}

impl ToolCall {
    /// A call without meta fields beside its arguments.
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
    /// Text that should be JSON, as model APIs give it.
    Text(String),
    /// Already a value, as MCP and the command line give it.
    Value(Value),
    /// A value whose references were replaced before: only those at the holes are references still.
    Resolved(Value, Vec<PendingReference>),
}

/// A place whose value is not there yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingReference {
    /// JSON Pointer to the place; the reference stands there until it is replaced.
    pub path: String,
    /// The reference as it was written.
    pub reference: String,
}

/// What was done to a call on the way from what was written to what runs. The default: nothing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// How the name was understood.
    #[serde(skip_serializing_if = "is_default")]
    pub matched: NameMatch,
    /// Who runs it.
    #[serde(skip_serializing_if = "Route::is_tool")]
    pub route: Route,
    /// It came inside a call of `tools__call`.
    #[serde(skip_serializing_if = "is_default")]
    pub carried: bool,
    /// The arguments were absent, null or an empty text, and became `{}`.
    #[serde(skip_serializing_if = "is_default")]
    pub emptied: bool,
    /// They were JSON inside a JSON string.
    #[serde(skip_serializing_if = "is_default")]
    pub unwrapped: bool,
    /// They were broken JSON and were mended.
    #[serde(skip_serializing_if = "is_default")]
    pub repaired: bool,
    /// What was wrong with the text where they were; not kept.
    #[serde(skip)]
    pub fault: Option<String>,
    /// The text ended too early: JSON Pointer to the innermost container that was open. For a tool of
    /// [`WHOLE_ITEMS`](crate::call::arguments::WHOLE_ITEMS), an item that it lay in was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// JSON Pointers to the references that were replaced, and to escaped texts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resolved: Vec<String>,
    /// The places of the arguments whose values came out of untrusted tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tainted: Vec<Tainted>,
    /// Defaults of the schema were added.
    #[serde(skip_serializing_if = "is_default")]
    pub defaulted: bool,
    /// JSON Pointers to the values that did not fit and were given a form that does, or left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub coerced: Vec<String>,
    /// An input guard put others in their place.
    #[serde(skip_serializing_if = "is_default")]
    pub rewritten: bool,
    /// How a call may run whose arguments no schema validated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unvalidated: Option<NoSchemaMode>,
    /// A model was asked to mend them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<Box<RepairRecord>>,
}

impl Provenance {
    /// Whether the call is as it was written.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Without secrets.
    #[must_use]
    pub fn redacted(&self, redactor: &dyn Redactor) -> Self {
        let repair = self.repair.as_ref().map(|record| Box::new(record.redacted(redactor)));
        Self { repair, ..self.clone() }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// How an attempt to have a model mend the arguments ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairEnd {
    /// The candidate is valid; the call goes on with it.
    Accepted,
    /// The candidate is not valid either, in these ways.
    Rejected(Vec<Violation>),
    /// There is no candidate: why.
    Failed(String),
}

/// The record of the one attempt to have a model mend the arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RepairRecord {
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// The model that was asked, `provider/model`.
    pub model: String,
    /// The arguments before, a text if they were no JSON.
    pub original: Value,
    /// What was wrong with them.
    pub errors: Vec<Violation>,
    /// What the model made of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Value>,
    /// How it ended.
    pub end: RepairEnd,
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
                RepairEnd::Accepted => RepairEnd::Accepted,
                RepairEnd::Rejected(errors) => RepairEnd::Rejected(clean(errors)),
                RepairEnd::Failed(why) => RepairEnd::Failed(redactor.redact(why).into_owned()),
            },
        }
    }
}
