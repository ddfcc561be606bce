//! From what a model wrote to a call that may run: name, arguments, schema. Pure; nothing runs here.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::arguments::Fitted;
pub use crate::arguments::{Provenance, RawArguments};
use crate::catalogue::{Entry, Snapshot};
use crate::definition::NoSchemaMode;
use crate::error::{ErrorKind, ToolError};
use crate::names::{NameMatch, Resolution};
use crate::schema::{Violation, shape};
use crate::session::{CallId, Principal};

/// An expected shape that takes more bytes than this is not shown.
const MAX_SHAPE: usize = 300;

/// A call as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Its id.
    pub id: CallId,
    /// The tool's name as written.
    pub name: String,
    /// Its arguments as written.
    pub arguments: RawArguments,
}

/// A call that may run, on the implementation of one snapshot.
#[derive(Debug, Clone)]
pub struct ValidCall {
    /// Its id.
    pub id: CallId,
    /// The tool, pinned to the snapshot that the caller saw.
    pub entry: Arc<Entry>,
    /// Arguments: an object, valid under the tool's schema unless `unvalidated` says otherwise.
    pub arguments: Value,
    /// How the name was understood.
    pub matched: NameMatch,
    /// What was done to the arguments.
    pub provenance: Provenance,
    /// Set when no schema validated the arguments: how such a call may run.
    pub unvalidated: Option<NoSchemaMode>,
}

/// A call that may not run. It rejoins the others when results are shaped.
#[derive(Debug, Clone)]
pub struct Rejection {
    /// The call.
    pub call_id: CallId,
    /// The tool's name as it was written.
    pub name: String,
    /// Its arguments as far as they were understood; null if they were not.
    pub arguments: Value,
    /// The tool, if it was found.
    pub entry: Option<Arc<Entry>>,
    /// Why.
    pub error: ToolError,
    /// What is wrong with the arguments, if that is it.
    pub violations: Vec<Violation>,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// Checks one call against the snapshot that its author saw (SPEC section 6).
///
/// # Errors
/// A [`Rejection`] with both messages: unknown tool (with near names, or why it is missing), not
/// permitted to this principal, or invalid parameters with a path and a remedy for each.
pub fn check(call: ToolCall, snapshot: &Snapshot, principal: &Principal) -> Result<ValidCall, Box<Rejection>> {
    let (index, matched) = match snapshot.resolve(&call.name) {
        Resolution::Found(index, matched) => (index, matched),
        Resolution::Unknown(near) => return Err(unknown(&call, snapshot, &near)),
    };
    let entry = &snapshot.list()[index];
    let reject = |arguments: Value, error: ToolError, violations: Vec<Violation>| {
        let (call_id, name) = (call.id.clone(), call.name.clone());
        Box::new(Rejection { call_id, name, arguments, entry: Some(Arc::clone(entry)), error, violations })
    };
    if !principal.may_use(&entry.definition().allowed_roles) {
        let message = format!("{} is limited to the roles {}", entry.id(), entry.definition().allowed_roles.join(", "));
        return Err(reject(Value::Null, ToolError::new(ErrorKind::NotPermitted, message), Vec::new()));
    }
    let Fitted { arguments, provenance, violations } = Fitted::to(entry, call.arguments).map_err(|message| {
        let message = format!("the arguments of {} {message}", entry.wire_name);
        reject(Value::Null, ToolError::new(ErrorKind::InvalidParameters, message), Vec::new())
    })?;
    if !violations.is_empty() {
        // A bare name was a guess: arguments that do not fit say that it was a wrong one.
        if matched == NameMatch::Bare {
            return Err(unknown(
                &ToolCall { id: call.id.clone(), name: call.name, arguments: RawArguments::Value(arguments) },
                snapshot,
                std::slice::from_ref(&entry.wire_name),
            ));
        }
        return Err(reject(arguments, invalid(entry, &violations, provenance.repaired), violations));
    }
    let unvalidated = match entry.tool.schema() {
        Ok(Some(_)) => None,
        Ok(None) => Some(entry.definition().no_schema_mode.unwrap_or(NoSchemaMode::HumanApproval)),
        // A foreign schema that does not compile must not take the tool away; the audit says so.
        Err(_) => Some(entry.definition().no_schema_mode.unwrap_or(NoSchemaMode::Full)),
    };
    Ok(ValidCall { id: call.id, entry: Arc::clone(entry), arguments, matched, provenance, unvalidated })
}

fn unknown(call: &ToolCall, snapshot: &Snapshot, near: &[String]) -> Box<Rejection> {
    let name = call.name.trim();
    let shown: String = name.chars().take(100).collect();
    let hint = match near {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        many => format!("; did you mean one of {}?", many.join(", ")),
    };
    let why = snapshot.why_missing(name).map(|why| format!(" ({why})")).unwrap_or_default();
    let error = ToolError::new(ErrorKind::UnknownTool, format!("no tool is called `{shown}`{why}{hint}"))
        .with_model_message(format!("no tool is called `{shown}`{hint}"));
    let arguments = match &call.arguments {
        RawArguments::Value(value) => value.clone(),
        RawArguments::Text(text) => serde_json::from_str(text).unwrap_or_default(),
    };
    Box::new(Rejection { call_id: call.id.clone(), name: shown, arguments, entry: None, error, violations: Vec::new() })
}

fn invalid(entry: &Entry, violations: &[Violation], repaired: bool) -> ToolError {
    let list = violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let expected = entry.definition().parameters.as_ref().and_then(|schema| shape(schema, MAX_SHAPE));
    let expected = expected.map(|shape| format!("; expected {shape}")).unwrap_or_default();
    let mended =
        if repaired { "; the text was not JSON and had to be mended first: write one whole JSON object" } else { "" };
    let message = format!("invalid arguments for {}: {list}{expected}{mended}", entry.wire_name);
    ToolError::new(ErrorKind::InvalidParameters, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::RegisteredTool;
    use crate::definition::ToolDefinition;
    use crate::name::ToolId;
    use crate::testing::listing;
    use serde_json::json;

    fn snapshot() -> Snapshot {
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer", "default": 3}}, "required": ["path"]});
        let own = ToolDefinition::new(ToolId::parse("fs:read@1.0.0").expect("id"), "", Some(schema.clone()));
        let mut limited = ToolDefinition::new(ToolId::parse("fs:rm@1.0.0").expect("id"), "", Some(schema.clone()));
        limited.allowed_roles = vec!["ops".into()];
        let foreign = ToolDefinition::new(ToolId::parse("gh:get@0.0.0").expect("id"), "", Some(schema));
        let unschemed = ToolDefinition::new(ToolId::parse("gh:any@0.0.0").expect("id"), "", None);
        let broken =
            ToolDefinition::new(ToolId::parse("gh:broken@0.0.0").expect("id"), "", Some(json!({"type": "nonsense"})));
        let tools = vec![
            RegisteredTool::own(own).expect("own"),
            RegisteredTool::own(limited).expect("own"),
            RegisteredTool::foreign(foreign, "Get"),
            RegisteredTool::foreign(unschemed, "any"),
            RegisteredTool::foreign(broken, "broken"),
        ];
        Snapshot::build(&[listing("p", tools)])
    }

    fn run(name: &str, arguments: RawArguments) -> Result<ValidCall, Box<Rejection>> {
        let guest = Principal { id: "g".into(), roles: vec![], owner: false };
        check(ToolCall { id: CallId::new("c"), name: name.into(), arguments }, &snapshot(), &guest)
    }

    fn valid(name: &str, arguments: RawArguments, expect: Value) -> ValidCall {
        let call = run(name, arguments).expect("valid");
        assert_eq!(call.arguments, expect);
        call
    }

    fn rejected(name: &str, arguments: Value, kind: ErrorKind, fragment: &str) {
        let rejection = run(name, RawArguments::Value(arguments)).expect_err("rejected");
        assert_eq!(rejection.error.kind(), kind, "{rejection}");
        assert!(rejection.to_string().contains(fragment), "{rejection}");
    }

    #[test]
    fn every_lossless_form_of_arguments_is_taken() {
        let expect = json!({"path": "a", "n": 3});
        let text = |t: &str| RawArguments::Text(t.to_owned());
        assert!(valid("fs__read", RawArguments::Value(json!({"path": "a"})), expect.clone()).provenance.defaulted);
        valid("fs__read", text(r#" {"path": "a"} "#), expect.clone());
        assert!(valid("fs__read", text(r#""{\"path\": \"a\"}""#), expect).provenance.unwrapped);
        assert!(valid("gh__any", text(""), json!({})).provenance.emptied);
        assert!(valid("gh__any", RawArguments::Value(Value::Null), json!({})).provenance.emptied);
    }

    #[test]
    fn broken_and_mistyped_arguments_are_mended_and_it_is_said() {
        let text = |t: &str| RawArguments::Text(t.to_owned());
        let expect = json!({"path": "a", "n": 4});
        let call = valid("fs__read", text("```json\n{path: 'a', n: '4',}\n```"), expect.clone());
        assert_eq!((call.provenance.repaired, call.provenance.coerced), (true, vec!["/n".to_owned()]));
        assert!(valid("fs__read", text(r#"{"n": 4, "path": "a"#), expect.clone()).provenance.repaired);
        let doubly = valid("fs__read", text(r#""{'path': 'a', 'n': 4}""#), expect);
        assert!(doubly.provenance.unwrapped && doubly.provenance.repaired);
        let whole = valid("fs__read", text(r#"{"path": "3"}"#), json!({"path": "3", "n": 3}));
        assert!(!whole.provenance.repaired && whole.provenance.coerced.is_empty());
    }

    #[test]
    fn a_foreign_server_gets_what_the_model_wrote() {
        valid("gh__Get", RawArguments::Value(json!({"path": "a"})), json!({"path": "a"}));
    }

    #[test]
    fn tools_without_a_working_schema_say_so() {
        assert_eq!(
            run("gh__any", RawArguments::Value(json!({"x": 1}))).expect("valid").unvalidated,
            Some(NoSchemaMode::HumanApproval)
        );
        assert_eq!(
            run("gh__broken", RawArguments::Value(json!({}))).expect("valid").unvalidated,
            Some(NoSchemaMode::Full)
        );
        assert_eq!(run("fs__read", RawArguments::Value(json!({"path": "a"}))).expect("valid").unvalidated, None);
    }

    #[test]
    fn rejections_name_what_where_and_remedy() {
        rejected("fs__read", json!({}), ErrorKind::InvalidParameters, "\"path\" is missing");
        rejected("fs__read", json!({"path": []}), ErrorKind::InvalidParameters, "/path: expected string");
        rejected("fs__read", json!({}), ErrorKind::InvalidParameters, r#"expected {"path": string, "n"?: integer}"#);
        rejected("fs__read", json!([1]), ErrorKind::InvalidParameters, "not an array");
        rejected("fs__read", json!("x"), ErrorKind::InvalidParameters, "not a string");
        rejected("fs__raed", json!({}), ErrorKind::UnknownTool, "did you mean fs__read");
        rejected("fs__rm", json!({"path": "a"}), ErrorKind::NotPermitted, "ops");
        for text in ["read the file", "{\"path\":"] {
            let broken = run("fs__read", RawArguments::Text(text.into())).expect_err("broken");
            assert!(broken.to_string().contains("not JSON"), "{broken}");
        }
    }

    #[test]
    fn a_bare_name_counts_only_if_its_arguments_fit() {
        valid("read", RawArguments::Value(json!({"path": "a"})), json!({"path": "a", "n": 3}));
        rejected("read", json!({"other": 1}), ErrorKind::UnknownTool, "did you mean fs__read");
    }
}
