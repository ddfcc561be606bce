//! Plans as written: a JSON array of calls.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::call::{CallMeta, RawArguments, ToolCall};
use crate::identity::session::CallId;
use crate::json::canonical::ContentHash;
use crate::json::{MAX_DEPTH, fault, nests_deeper, pointer, type_name};
use crate::model::call_meta::{INSTANCE, Method, OUTPUT_METHOD, OUTPUT_PATH, REASONING, TOOL};
use crate::store::state_path;

/// Calls of one plan.
pub const MAX_CALLS: usize = 200;
/// Bytes of a path that an output is written to.
const MAX_PATH: usize = 200;

/// A fault of a plan, at one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanIssue {
    /// JSON Pointer into the document.
    pub path: String,
    /// The kind of fault.
    pub kind: IssueKind,
    /// The fault and its remedy, in words that a model can act on.
    pub message: String,
    /// JSON Pointer to the input concerned, of many; `None` for all inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
}

impl fmt::Display for PlanIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, kind, message, item } = self;
        let item = item.as_ref().map(|item| format!(" for input {item}")).unwrap_or_default();
        write!(f, "{path} ({}){item}: {message}", kind.as_str())
    }
}

/// A sort of fault in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IssueKind {
    /// It is no array of calls.
    Parse,
    /// The tool does not exist.
    UnknownTool,
    /// Arguments do not fit the tool's schema.
    Schema,
    /// A reference to a value that nothing writes.
    Reference,
    /// A reference to a value of the wrong type.
    Type,
    /// Calls that wait for each other.
    Cycle,
    /// An output path that cannot be written.
    Path,
    /// The policy denies the call.
    Policy,
    /// It would cost too much.
    Cost,
}

impl IssueKind {
    /// Returns its wire form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::UnknownTool => "unknown_tool",
            Self::Schema => "schema",
            Self::Reference => "reference",
            Self::Type => "type",
            Self::Cycle => "cycle",
            Self::Path => "path",
            Self::Policy => "policy",
            Self::Cost => "cost",
        }
    }
}

/// A plan: calls whose arguments may refer to each other's outputs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanDocument {
    /// The calls, in written order.
    pub calls: Vec<PlanCall>,
    /// Faults of form in single calls; the check reports them with the others.
    pub(super) faults: Vec<PlanIssue>,
}

/// A call of a plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanCall {
    /// The tool's name as written.
    pub tool: String,
    /// The meta fields.
    pub meta: CallMeta,
    /// The arguments, with references.
    pub arguments: Map<String, Value>,
}

impl PlanDocument {
    /// Parses the text of a plan file.
    ///
    /// # Errors
    /// All faults of its form.
    pub fn parse(text: &str) -> Result<Self, Vec<PlanIssue>> {
        let value: Value = serde_json::from_str(text).map_err(|error| {
            vec![issue(
                "",
                IssueKind::Parse,
                format!("the plan is not JSON: {}; write one array of calls", fault(&error)),
            )]
        })?;
        Self::of_value(value)
    }

    /// Reads an array of calls `{"_tool": name, "_outputPath"?, "_outputMethod"?, ...arguments}`. Faults of form in
    /// single calls are kept for [`super::check_plan`].
    ///
    /// # Errors
    /// The reason why it is no array of calls.
    pub fn of_value(value: Value) -> Result<Self, Vec<PlanIssue>> {
        Self::read(value, MAX_CALLS)
    }

    /// Reads a saved plan, as repeated for many inputs or with calls replaced by others.
    ///
    /// # Errors
    /// As [`PlanDocument::of_value`], and faults of form in its calls.
    pub fn from_saved(value: Value) -> Result<Self, Vec<PlanIssue>> {
        let plan = Self::read(value, usize::MAX)?;
        if plan.faults.is_empty() { Ok(plan) } else { Err(plan.faults) }
    }

    fn read(value: Value, max: usize) -> Result<Self, Vec<PlanIssue>> {
        let parse = |message: String| vec![issue("", IssueKind::Parse, message)];
        if nests_deeper(&value, MAX_DEPTH) {
            return Err(parse(format!("the plan is nested deeper than {MAX_DEPTH} levels; flatten it")));
        }
        let Value::Array(items) = value else {
            return Err(parse(format!("a plan is an array of calls, not of type {}", type_name(&value))));
        };
        if items.is_empty() {
            return Err(parse("the plan has no calls; write at least one".into()));
        }
        if items.len() > max {
            return Err(parse(format!("the plan has {} calls; at most {max} are taken", items.len())));
        }
        let mut faults = Vec::new();
        let calls = items.into_iter().enumerate().map(|(index, item)| read_call(index, item, &mut faults)).collect();
        Ok(Self { calls, faults })
    }

    /// The plan as written.
    #[must_use]
    pub fn to_value(&self) -> Value {
        self.calls.iter().map(PlanCall::to_value).collect()
    }

    /// Hash that binds an approval to the plan.
    #[must_use]
    pub fn digest(&self) -> ContentHash {
        ContentHash::of_value(&self.to_value())
    }

    /// Returns the calls with ids from their positions: `call_0` is the first.
    #[must_use]
    pub fn tool_calls(&self) -> Vec<ToolCall> {
        self.calls.iter().enumerate().map(|(index, call)| call.tool_call(index)).collect()
    }
}

impl PlanCall {
    /// The call as written.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut written = Map::new();
        written.insert(TOOL.into(), self.tool.as_str().into());
        if let Value::Object(meta) = json!(self.meta) {
            written.extend(meta);
        }
        written.extend(self.arguments.iter().map(|(name, value)| (name.clone(), value.clone())));
        written.into()
    }

    /// The call for the check and the executor.
    #[must_use]
    pub fn tool_call(&self, index: usize) -> ToolCall {
        let arguments = RawArguments::Value(Value::Object(self.arguments.clone()));
        ToolCall::new(call_id(index), self.tool.as_str(), arguments).with_meta(self.meta.clone())
    }
}

/// The id of a plan's call.
#[must_use]
pub fn call_id(index: usize) -> CallId {
    CallId::new(format!("call_{index}"))
}

/// The place of a plan's call, by its id.
#[must_use]
pub fn call_index(id: &str) -> Option<usize> {
    id.strip_prefix("call_")?.parse().ok()
}

/// A fault, of all inputs.
#[must_use]
pub fn issue(path: impl Into<String>, kind: IssueKind, message: impl Into<String>) -> PlanIssue {
    PlanIssue { path: path.into(), kind, message: message.into(), item: None }
}

/// The pointer to a member of a call.
pub(super) fn at(index: usize, member: &str) -> String {
    let mut path = format!("/{index}");
    pointer::push(&mut path, member);
    path
}

fn read_call(index: usize, item: Value, issues: &mut Vec<PlanIssue>) -> PlanCall {
    let mut call = PlanCall::default();
    let Value::Object(mut members) = item else {
        let message = format!("a call is an object with `{TOOL}`, not of type {}", type_name(&item));
        issues.push(issue(format!("/{index}"), IssueKind::Parse, message));
        return call;
    };
    let mut text = |member: &str, issues: &mut Vec<PlanIssue>| match members.shift_remove(member) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(other) => {
            let message = format!("`{member}` must be a string, not of type {}", type_name(&other));
            issues.push(issue(at(index, member), IssueKind::Parse, message));
            None
        }
    };
    match text(TOOL, issues).map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()) {
        Some(name) => call.tool = name,
        None if issues.last().is_some_and(|issue| issue.path == at(index, TOOL)) => {}
        None => {
            let message = format!("the call names no tool; write its name under `{TOOL}`");
            issues.push(issue(at(index, TOOL), IssueKind::Parse, message));
        }
    }
    call.meta.reasoning = text(REASONING, issues);
    call.meta.instance = text(INSTANCE, issues);
    call.meta.output_path = text(OUTPUT_PATH, issues).and_then(|path| match output_path(&path) {
        Ok(path) => Some(path.to_owned()),
        Err(message) => {
            issues.push(issue(at(index, OUTPUT_PATH), IssueKind::Path, message));
            None
        }
    });
    if let Some(method) = text(OUTPUT_METHOD, issues) {
        match Method::parse(&method).filter(|method| *method != Method::Delete) {
            Some(method) => call.meta.output_method = method,
            None => {
                let message = format!("`{method}` is no method; take set, merge, assign, push or concat");
                issues.push(issue(at(index, OUTPUT_METHOD), IssueKind::Path, message));
            }
        }
    }
    call.arguments = members;
    call
}

/// Returns the denoted path: names joined by dots, optionally written as a reference.
fn output_path(written: &str) -> Result<&str, String> {
    state_path(written).filter(|path| path.len() <= MAX_PATH).ok_or_else(|| {
        let quoted_path: String = written.chars().take(80).collect();
        format!(
            "`{quoted_path}` is not a path; write names of at most {MAX_PATH} bytes joined by dots, like user.address"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(value: Value) -> Vec<(String, &'static str)> {
        let issues = PlanDocument::of_value(value).map_or_else(|issues| issues, |plan| plan.faults);
        issues.into_iter().map(|issue| (issue.path, issue.kind.as_str())).collect()
    }

    #[test]
    fn a_plan_is_read_and_written() {
        let written = json!([
            {"_tool": "a", "_reasoningForCall": "why", "_outputPath": "x.y", "_outputMethod": "push", "q": 1},
            {"_tool": "b", "_id": 2, "q": "†state.x.y"},
        ]);
        let plan = PlanDocument::of_value(written.clone()).expect("a plan");
        assert_eq!(plan.to_value(), written);
        assert_eq!(plan.calls[0].meta.output_path.as_deref(), Some("x.y"));
        assert_eq!(json!(plan.calls[1].arguments), json!({"_id": 2, "q": "†state.x.y"}));
        let calls = plan.tool_calls();
        assert_eq!((calls[1].id.as_str(), call_index("call_1"), call_index("x")), ("call_1", Some(1), None));
        let other = PlanDocument::parse(r#"[{"_tool": "a", "_outputPath": "†state.x"}]"#).expect("a plan");
        assert_eq!(other.calls[0].meta.output_path.as_deref(), Some("x"));
        assert_ne!(plan.digest(), other.digest());
    }

    #[test]
    fn faults_of_form_are_named_by_place() {
        assert_eq!(faults(json!({"_tool": "a"})), [(String::new(), "parse")]);
        assert_eq!(faults(json!([])), [(String::new(), "parse")]);
        assert_eq!(faults(json!(vec![json!({"_tool": "a"}); MAX_CALLS + 1])), [(String::new(), "parse")]);
        assert_eq!(
            faults(json!([1, {"_tool": 2}, {}, {"_tool": "a", "_outputPath": "a..b", "_outputMethod": "take"}])),
            [
                ("/0".into(), "parse"),
                ("/1/_tool".into(), "parse"),
                ("/2/_tool".into(), "parse"),
                ("/3/_outputPath".into(), "path"),
                ("/3/_outputMethod".into(), "path"),
            ]
        );
        let issues = PlanDocument::parse("[{").expect_err("no JSON");
        assert!(issues[0].to_string().contains("the plan is not JSON"), "{issues:?}");
    }
}
