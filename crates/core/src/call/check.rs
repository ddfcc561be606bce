//! Checks a call as it was written: resolves the name, reads, fits and validates the arguments, and rejects what does not
//! fit, with a remedy for each violation.

use super::arguments::{FittedArguments, NotAnObject};
use super::indirect_call::{check_carried, is_carrier};
use super::variables::{Completeness, ResolvedArguments, VariableReader, Variables, resolve_at};
use super::{Caller, Provenance, RawArguments, Rejection, ToolCall, ValidCall};
use crate::catalogue::{Entry, Snapshot};
use crate::definition::NoSchemaMode;
use crate::error::{ErrorKind, ToolError};
use crate::identity::name_table::Resolution;
use crate::identity::session::CallId;
use crate::model::call_meta::{INSTANCE, OUTPUT_PATH};
use crate::schema::{Violation, shape, shape_at, shorten};
use crate::store::state_path;
use serde_json::Value;
use std::sync::Arc;

/// Maximal bytes of an expected shape in a message; longer ones are omitted.
const MAX_SHAPE: usize = 300;
/// Characters of listed violations in one message.
const MAX_LIST: usize = 1500;

/// Checks one call against the snapshot that its author saw. A call of `tools__call` counts as a call of the named
/// tool; see [`super::indirect_call`].
///
/// # Errors
/// A [`Rejection`] whose error says what is wrong and how to fix it: unknown tool (with near names, or why it is missing), not
/// permitted to this principal, or invalid parameters with a path and a remedy for each.
pub fn check(call: ToolCall, snapshot: &Snapshot, caller: Caller<'_>) -> Result<ValidCall, Box<Rejection>> {
    let (index, matched) = match snapshot.resolve(&call.name) {
        Resolution::Found(index, matched) => (index, matched),
        Resolution::Unknown(near) => return Err(unknown(call, snapshot, &near)),
    };
    let entry = &snapshot.list()[index];
    if is_carrier(entry) {
        return check_carried(call, (entry, matched), snapshot, caller);
    }
    let ToolCall { id, name, arguments, mut meta } = call;
    let roles = &entry.definition().allowed_roles;
    let reject = |name, arguments, error, meta, violations, provenance, pending| {
        let (call_id, entry) = (id.clone(), Some(Arc::clone(entry)));
        Box::new(Rejection { call_id, name, arguments, entry, error, meta, violations, provenance, pending })
    };
    if !caller.principal.may_use(roles) {
        let message = format!("{} is limited to the roles {}", entry.id(), roles.join(", "));
        let error = ToolError::new(ErrorKind::NotPermitted, message);
        return Err(reject(name, Value::Null, error, meta, Vec::new(), Provenance::default(), Vec::new()));
    }
    // A guessed name is right only if the arguments say so.
    let guessed_wrong = |id: CallId, name: String, arguments: Value| {
        let call = ToolCall::new(id, name, RawArguments::Value(arguments));
        Err(unknown(call, snapshot, std::slice::from_ref(&entry.wire_name)))
    };
    let fitted = FittedArguments::to(entry, arguments, &mut meta, caller.variables);
    let FittedArguments { arguments, mut provenance, pending, mut violations } = match fitted {
        Ok(fitted) => fitted,
        Err(NotAnObject { written, .. }) if matched.is_guess() => return guessed_wrong(id, name, written),
        Err(NotAnObject { written, message }) => {
            let violation = Violation { path: String::new(), keyword: "parse".into(), message: message.clone() };
            let message = format!("the arguments of {} {message}", entry.wire_name);
            let error = ToolError::new(ErrorKind::InvalidParameters, message);
            let provenance = Provenance { matched, ..Provenance::default() };
            return Err(reject(name, written, error, meta, vec![violation], provenance, Vec::new()));
        }
    };
    provenance.matched = matched;
    match super::meta::route(entry, &meta, snapshot) {
        Ok(route) => {
            violations.extend(super::meta::check_output(entry, &mut meta, &route, &mut provenance));
            provenance.route = route;
        }
        Err(violation) => violations.push(violation),
    }
    violations.extend(meta.output_path.as_deref().and_then(no_path));
    violations.extend(unknown_instance(meta.instance.as_deref(), caller.variables));
    let validated = matches!(entry.tool.schema(), Ok(Some(_)));
    if matched.is_guess() && !(validated && violations.is_empty()) {
        return guessed_wrong(id, name, arguments);
    }
    if !violations.is_empty() {
        let error = invalid(entry, &violations, &provenance);
        return Err(reject(name, arguments, error, meta, violations, provenance, pending));
    }
    let unvalidated = match entry.tool.schema() {
        Ok(Some(_)) => None,
        Ok(None) => Some(entry.definition().no_schema_mode.unwrap_or(NoSchemaMode::HumanApproval)),
        // A foreign tool stays usable without a valid schema; the audit reports the schema.
        Err(_) => Some(entry.definition().no_schema_mode.unwrap_or(NoSchemaMode::Full)),
    };
    provenance.unvalidated = unvalidated;
    Ok(ValidCall { id, entry: Arc::clone(entry), arguments, meta, provenance, pending, unvalidated })
}

/// Names of instances that an error lists.
const MAX_INSTANCES: usize = 12;

/// Checks the output path as written.
fn no_path(written: &str) -> Option<Violation> {
    let message = || {
        let written = shorten(written, MAX_LIST / 10);
        format!("`{written}` is not a path; write names joined by dots, like user.address")
    };
    let violation = || Violation { path: format!("/{OUTPUT_PATH}"), keyword: "path".into(), message: message() };
    state_path(written).is_none().then(violation)
}

/// Checks that the request has the instance that the call names.
fn unknown_instance(instance: Option<&str>, variables: Option<&dyn Variables>) -> Option<Violation> {
    let instance_name = instance?;
    let instances = variables.map(Variables::instances).unwrap_or_default();
    if instances.iter().any(|name| name == instance_name) {
        return None;
    }
    let there = match instances {
        [] => "this request has no instances; leave it out".to_owned(),
        _ => {
            let more = if instances.len() > MAX_INSTANCES { ", …" } else { "" };
            let names = instances.iter().take(MAX_INSTANCES).map(String::as_str).collect::<Vec<_>>().join(", ");
            format!("use one of {names}{more}, or leave it out for all of them")
        }
    };
    let message = format!("there is no instance `{}`: {there}", shorten(instance_name, MAX_LIST / 10));
    Some(Violation { path: format!("/{INSTANCE}"), keyword: "instance".into(), message })
}

/// State of a pending call.
#[derive(Debug, Clone)]
pub enum PendingCall {
    /// It may run.
    Ready(ValidCall),
    /// Some value is still missing: the call, unchanged.
    Waits(ValidCall),
}

/// Replaces the pending references of a call, and validates the whole.
///
/// # Errors
/// A [`Rejection`] if a reference will never have a value, or the whole is not valid.
pub fn resolve_pending(
    mut call: ValidCall,
    variables: Option<&dyn Variables>,
    completeness: Completeness,
) -> Result<PendingCall, Box<Rejection>> {
    let mut arguments = call.arguments.clone();
    let found = match variables {
        Some(variables) => {
            let reader = VariableReader { variables, instance: call.meta.instance.as_deref() };
            resolve_at(&mut arguments, &call.pending, reader, completeness)
        }
        None => ResolvedArguments { missing: call.pending.clone(), ..ResolvedArguments::default() },
    };
    let mut violations = found.violations();
    if !found.pending.is_empty() && violations.is_empty() {
        return Ok(PendingCall::Waits(call));
    }
    call.provenance.resolved.extend(found.replaced);
    call.provenance.tainted.extend(found.tainted);
    if violations.is_empty() {
        let fitted = FittedArguments::whole(&call.entry, arguments, call.provenance, Vec::new());
        (arguments, call.provenance, violations) = (fitted.arguments, fitted.provenance, fitted.violations);
    }
    if violations.is_empty() {
        return Ok(PendingCall::Ready(ValidCall { arguments, pending: Vec::new(), ..call }));
    }
    Err(Box::new(Rejection {
        error: invalid(&call.entry, &violations, &call.provenance),
        call_id: call.id,
        name: call.entry.wire_name.clone(),
        arguments,
        entry: Some(call.entry),
        meta: call.meta,
        violations,
        provenance: call.provenance,
        pending: found.missing,
    }))
}

/// Returns the error for a wire name or id that does not resolve; `quoted_name` is the name its author knows. `none` makes
/// the message from the reason (empty if unknown), unless the tool is only unapproved.
pub fn missing(snapshot: &Snapshot, name: &str, quoted_name: &str, none: impl FnOnce(&str) -> String) -> ToolError {
    let why = snapshot.why_missing(name).map(|why| format!(" ({why})")).unwrap_or_default();
    if snapshot.is_unapproved(name) {
        // The reason quotes unapproved text, so the model does not get it.
        return ToolError::new(ErrorKind::NotPermitted, format!("`{quoted_name}` may not be called{why}"))
            .with_model_message(format!(
                "`{quoted_name}` may not be called: its definition waits for the operator's approval (`toolwright pins` \
                 shows it)"
            ));
    }
    ToolError::new(ErrorKind::UnknownTool, none(&why))
}

pub(crate) fn unknown(call: ToolCall, snapshot: &Snapshot, near: &[String]) -> Box<Rejection> {
    let name = call.name.trim();
    let quoted_name: String = name.chars().take(100).collect();
    let hint = match near {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        many => format!("; did you mean one of {}?", many.join(", ")),
    };
    let error = missing(snapshot, name, &quoted_name, |why| format!("no tool is called `{quoted_name}`{why}{hint}"));
    let arguments = match call.arguments {
        RawArguments::Value(value) | RawArguments::Resolved(value, _) => value,
        RawArguments::Text(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
    };
    Box::new(Rejection {
        call_id: call.id,
        name: quoted_name,
        arguments,
        entry: None,
        error,
        meta: call.meta,
        violations: Vec::new(),
        provenance: Provenance::default(),
        pending: Vec::new(),
    })
}

fn invalid(entry: &Entry, violations: &[Violation], provenance: &Provenance) -> ToolError {
    // A place is named once, and the arguments as a whole are named before.
    let mut place = "";
    let messages = violations.iter().map(|violation| {
        let is_named = std::mem::replace(&mut place, violation.path.as_str()) == violation.path;
        if is_named { violation.message.clone() } else { violation.to_string() }
    });
    let list = shorten(&messages.collect::<Vec<_>>().join("; "), MAX_LIST);
    let expected = entry.definition().parameters.as_ref().and_then(|schema| {
        let whole = shape(schema, MAX_SHAPE).map(|shape| format!("; expected {shape}"));
        whole.or_else(|| {
            let paths = violations.iter().map(|violation| &violation.path);
            let mut shapes = paths.filter_map(|path| Some((path, shape_at(schema, path, MAX_SHAPE)?)));
            shapes.next().map(|(path, shape)| format!("; expected at {path}: {shape}"))
        })
    });
    let expected = expected.unwrap_or_default();
    // A fault in the text may explain the violations.
    let mended = match &provenance.fault {
        Some(fault) => format!("not JSON at {fault}; write one whole JSON object. As repaired, "),
        None if provenance.repaired => "not JSON; write one whole JSON object. As repaired, ".to_owned(),
        None => String::new(),
    };
    let message = format!("invalid arguments for {}: {mended}{list}{expected}", entry.wire_name);
    ToolError::new(ErrorKind::InvalidParameters, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::variables::Values;
    use crate::catalogue::{Listing, RegisteredTool, UnapprovedTool};
    use crate::definition::ToolDefinition;
    use crate::identity::name_table::NameMatch;
    use crate::identity::session::Principal;
    use crate::identity::tool_id::ToolId;
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
        check(ToolCall::new(CallId::new("c"), name, arguments), &snapshot(), Caller::of(&guest))
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
    fn broken_arguments_are_repaired_and_recorded() {
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
    fn foreign_servers_get_arguments_unchanged() {
        valid("gh__Get", RawArguments::Value(json!({"path": "a"})), json!({"path": "a"}));
    }

    #[test]
    fn tools_without_a_usable_schema_are_marked() {
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
    fn model_learns_why_missing_not_unapproved_text() {
        let absent = vec![("off".into(), "server off is disabled".into())];
        let unapproved = vec![UnapprovedTool {
            provider: "gh".into(),
            raw_name: "Held".into(),
            shown_name: "Held".into(),
            why: "withheld: {+bad words+}".into(),
        }];
        let held = Listing {
            withheld: vec![crate::catalogue::WithheldTool::new("Held", "withheld: {+bad words+}")],
            error: Some("exit status 3".into()),
            ..listing("gh", Vec::new())
        };
        let snapshot = Snapshot::build(&[held]).with_absent(absent).with_unapproved(unapproved);
        let error = |name: &str| {
            let call = ToolCall::new(CallId::new("c"), name, RawArguments::Value(Value::Null));
            check(call, &snapshot, Caller::of(&Principal::owner())).expect_err("missing").error
        };
        let down = error("gh__x");
        assert_eq!(down.model_message(), "no tool is called `gh__x` (provider gh is down: exit status 3)");
        assert!(error("off__x").model_message().contains("server off is disabled"));
        let held = error("gh__held");
        assert_eq!(held.kind(), ErrorKind::NotPermitted);
        assert!(held.message().contains("bad words") && !held.model_message().contains("bad words"), "{held}");
        assert!(held.model_message().contains("operator's approval"), "{held:?}");
    }

    #[test]
    fn bare_name_needs_fitting_arguments() {
        let call = valid("read", RawArguments::Value(json!({"path": "a"})), json!({"path": "a", "n": 3}));
        assert_eq!(call.provenance.matched, NameMatch::Bare);
        rejected("read", json!({"other": 1}), ErrorKind::UnknownTool, "did you mean fs__read");
        rejected("fs.read", json!({"other": 1}), ErrorKind::UnknownTool, "did you mean fs__read");
        rejected("functions.fs__read", json!({"other": 1}), ErrorKind::InvalidParameters, "\"path\" is missing");
    }

    #[test]
    fn guessed_name_needs_arguments_its_schema_takes() {
        let guess = run("read", RawArguments::Text("no object".into())).expect_err("a guess");
        assert_eq!(guess.error.kind(), ErrorKind::UnknownTool, "{guess}");
        rejected("any", json!({"x": 1}), ErrorKind::UnknownTool, "did you mean gh__any");
        rejected("broken", json!({"x": 1}), ErrorKind::UnknownTool, "did you mean gh__broken");
    }

    #[test]
    fn left_out_null_gets_the_default() {
        let null = RawArguments::Value(json!({"path": "a", "n": null}));
        let call = valid("fs__read", null, json!({"path": "a", "n": 3}));
        assert!(call.provenance.defaulted && call.provenance.coerced == ["/n"]);
        let values = Values(json!({"state": {"n": null}}));
        let call = with_state("fs__read", json!({"path": "a", "n": "†state.n"}), &Values::default()).expect("waits");
        let Ok(PendingCall::Ready(landed)) = resolve_pending(call, Some(&values), Completeness::Open) else {
            panic!("lands")
        };
        assert_eq!(landed.arguments, json!({"path": "a", "n": 3}));
    }

    #[test]
    fn resolved_values_are_not_resolved_again() {
        let values = Values(json!({"state": {"text": "†state.secret", "secret": "s"}, "input": {"n": 7}}));
        let first =
            with_state("fs__read", json!({"path": "†state.text", "n": "†state.later"}), &values).expect("waits");
        assert_eq!(first.arguments["path"], "†state.secret");
        let again = RawArguments::Resolved(first.arguments.clone(), first.pending.clone());
        let call = ToolCall::new(CallId::new("c"), "fs__read", again);
        let owner = Principal::owner();
        let second = check(call, &snapshot(), Caller { principal: &owner, variables: Some(&values) }).expect("valid");
        assert_eq!((second.arguments, second.pending), (first.arguments, first.pending));
    }

    fn with_state(name: &str, arguments: Value, values: &Values) -> Result<ValidCall, Box<Rejection>> {
        let call = ToolCall::new(CallId::new("c"), name, RawArguments::Value(arguments));
        let owner = Principal::owner();
        check(call, &snapshot(), Caller { principal: &owner, variables: Some(values) })
    }

    #[test]
    fn references_are_replaced_before_validation() {
        let values = Values(json!({"input": {"path": "a", "n": "5"}}));
        let call = with_state("fs__read", json!({"path": "†input.path", "n": "†input.n"}), &values).expect("valid");
        assert_eq!(call.arguments, json!({"path": "a", "n": 5}));
        assert_eq!(
            (call.provenance.resolved, call.provenance.coerced),
            (vec!["/path".into(), "/n".into()], vec!["/n".to_owned()])
        );
        let float = Values(json!({"input": {"at": 48.85}}));
        let call = with_state("fs__read", json!({"path": "†input.at"}), &float).expect("valid");
        assert_eq!((&call.arguments["path"], call.provenance.coerced), (&json!("48.85"), vec!["/path".to_owned()]));
        assert!(with_state("fs__read", json!({"path": 48.85}), &float).is_err(), "a model may have written 48.850");
        assert!(with_state("fs__read", json!({"path": "a", "n": "†input.at"}), &float).is_err());
        let missing = with_state("fs__read", json!({"path": "†input.nowhere"}), &values).expect_err("missing");
        assert!(missing.to_string().contains("/path: nothing is there for the reference †input.nowhere"), "{missing}");
        let written = json!({"path": "†input.path"});
        assert_eq!(with_state("gh__Get", written.clone(), &values).expect("valid").arguments, written);
        valid("fs__read", RawArguments::Value(written), json!({"path": "†input.path", "n": 3}));
    }

    #[test]
    fn pending_call_is_validated_when_values_come() {
        let none = Values::default();
        let written = json!({"path": "a", "n": "†state.n"});
        let call = with_state("fs__read", written.clone(), &none).expect("passes with a hole");
        assert_eq!((call.arguments.clone(), call.pending.len()), (written, 1));
        assert!(with_state("fs__read", json!({"n": "†state.n"}), &none).is_err(), "the rest is validated at once");

        let landed = |state: Value, completeness| {
            resolve_pending(call.clone(), Some(&Values(json!({"state": state}))), completeness)
        };
        let Ok(PendingCall::Ready(ready)) = landed(json!({"n": "7"}), Completeness::Open) else { panic!("lands") };
        assert_eq!((ready.arguments, ready.pending.len()), (json!({"path": "a", "n": 7}), 0));
        assert!(matches!(landed(json!({}), Completeness::Open), Ok(PendingCall::Waits(_))));
        let never = landed(json!({}), Completeness::Closed).expect_err("never lands");
        assert!(never.to_string().contains("†state.n"), "{never}");
        let invalid = landed(json!({"n": "x"}), Completeness::Open).expect_err("invalid");
        assert!(invalid.to_string().contains("/n: expected integer"), "{invalid}");
    }

    #[test]
    fn deep_arguments_are_refused_first() {
        let mut deep = json!(1);
        for _ in 0..200 {
            deep = json!({"a": deep});
        }
        rejected("gh__any", deep, ErrorKind::InvalidParameters, "nested deeper than 126 levels");
    }
}
