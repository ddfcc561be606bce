//! Unwraps indirect calls: `tools__call` names another tool to call. The call is unwrapped first, so
//! that name, arguments, policy, approval, queue and ledger are the inner tool's; only [`Provenance`] shows the
//! wrapper.

use std::sync::Arc;

use serde_json::Value;

use super::arguments::{NotAnObject, read_arguments};
use super::variables::PendingReference;
use super::{CallMeta, Caller, Provenance, RawArguments, Rejection, ToolCall, ValidCall, check, unknown};
use crate::catalogue::{DefinitionOrigin, Entry, ProviderKind, Snapshot};
use crate::error::{ErrorKind, ToolError};
use crate::identity::name_table::{NameMatch, Resolution};
use crate::identity::session::CallId;
use crate::model::exposure::CALL_ID;
use crate::schema::{Violation, shorten};

/// The arguments of a carrier.
const MEMBERS: [&str; 2] = ["name", "arguments"];

/// Whether calls of this tool carry another call.
#[must_use]
pub fn is_carrier(entry: &Entry) -> bool {
    entry.id().as_str() == CALL_ID
        && entry.tool.origin() == DefinitionOrigin::Own
        && entry.provider.kind() == ProviderKind::Builtin
}

/// Returns the call that `call` carries through `tools__call`; `None` if it is an ordinary call, or its content cannot
/// be read.
#[must_use]
pub fn wrapped_call(call: &ToolCall, snapshot: &Snapshot) -> Option<ToolCall> {
    carrier(&call.name, snapshot)?;
    let WrappedCall { name, arguments, .. } = WrappedCall::of(call.arguments.clone()).ok()?;
    Some(ToolCall::new(call.id.clone(), name, arguments).with_meta(call.meta.clone()))
}

fn carrier<'a>(written: &str, snapshot: &'a Snapshot) -> Option<&'a Arc<Entry>> {
    let Resolution::Found(index, _) = snapshot.resolve(written) else { return None };
    snapshot.list().get(index).filter(|entry| is_carrier(entry))
}

/// Checks the call that a call of `carrier`, understood as `matched`, carries: one level deep.
pub(crate) fn check_carried(
    call: ToolCall,
    (carrier, matched): (&Arc<Entry>, NameMatch),
    snapshot: &Snapshot,
    caller: Caller<'_>,
) -> Result<ValidCall, Box<Rejection>> {
    let ToolCall { id, name, arguments, meta } = call;
    let WrappedCall { name, arguments, repaired } = match WrappedCall::of(arguments) {
        Ok(inside) if self::carrier(&inside.name, snapshot).is_none() => inside,
        Ok(inside) => return Err(rejected(id, name, (carrier, matched), self_call_error(&inside.name))),
        Err(NotAnObject { written, .. }) if matched.is_guess() => {
            let call = ToolCall { id, name, arguments: RawArguments::Value(written), meta };
            return Err(unknown(call, snapshot, std::slice::from_ref(&carrier.wire_name)));
        }
        Err(unreadable) => return Err(rejected(id, name, (carrier, matched), unreadable)),
    };
    let mut checked = check(ToolCall { id, name, arguments, meta }, snapshot, caller);
    let provenance = match &mut checked {
        Ok(call) => &mut call.provenance,
        Err(rejection) => &mut rejection.provenance,
    };
    provenance.carried = true;
    provenance.repaired |= repaired;
    checked
}

/// The arguments of a carrier, parsed.
struct WrappedCall {
    name: String,
    arguments: RawArguments,
    /// They were broken JSON.
    repaired: bool,
}

impl WrappedCall {
    /// Reads `{name, arguments}`. The arguments may have any form that denotes an object.
    fn of(raw: RawArguments) -> Result<Self, NotAnObject> {
        let holes = match &raw {
            RawArguments::Resolved(_, holes) => Some(holes.iter().filter_map(Self::hole).collect()),
            _ => None,
        };
        let mut read = Provenance::default();
        let written = read_arguments(raw, &mut read)?;
        let other = written.as_object().and_then(|members| members.keys().find(|key| !MEMBERS.contains(&key.as_str())));
        let problem = match (written.get("name").and_then(Value::as_str), other) {
            (None, _) => "need `name`, the name of the tool that is to run".to_owned(),
            (Some(name), None) => {
                let arguments = written.get("arguments").cloned().unwrap_or_default();
                let arguments = match holes {
                    Some(holes) => RawArguments::Resolved(arguments, holes),
                    None => RawArguments::Value(arguments),
                };
                return Ok(Self { name: name.to_owned(), arguments, repaired: read.repaired });
            }
            (Some(_), Some(other)) => {
                format!(
                    "are `name` and `arguments`: put {} inside `arguments`",
                    shorten(&Value::from(other.as_str()).to_string(), 100)
                )
            }
        };
        Err(NotAnObject { written, message: problem })
    }

    fn hole(hole: &PendingReference) -> Option<PendingReference> {
        let path = hole.path.strip_prefix("/arguments")?.to_owned();
        Some(PendingReference { path, reference: hole.reference.clone() })
    }
}

fn self_call_error(name: &str) -> NotAnObject {
    let message = "cannot name the tool itself: give the name of the tool that is to run".into();
    NotAnObject { written: Value::from(name), message }
}

fn rejected(
    call_id: CallId,
    name: String,
    (carrier, matched): (&Arc<Entry>, NameMatch),
    NotAnObject { written, message }: NotAnObject,
) -> Box<Rejection> {
    let error = format!("the arguments of {} {message}", carrier.wire_name);
    Box::new(Rejection {
        call_id,
        name,
        arguments: written,
        entry: Some(Arc::clone(carrier)),
        error: ToolError::new(ErrorKind::InvalidParameters, error),
        meta: CallMeta::default(),
        violations: vec![Violation { path: String::new(), keyword: "call".into(), message }],
        provenance: Provenance { matched, ..Provenance::default() },
        pending: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call::variables::Values;
    use crate::identity::session::Principal;
    use crate::testing::{definition, listing, listing_with_call_tool, own};

    fn snapshot() -> Snapshot {
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}, "required": ["path"]});
        let mut read = definition("fs:read@1.0.0");
        read.parameters = Some(schema);
        let mut remove = definition("fs:rm@1.0.0");
        remove.allowed_roles = vec!["ops".into()];
        Snapshot::build(&[listing("p", vec![own(read), own(remove)]), listing_with_call_tool()])
    }

    fn run(name: &str, arguments: RawArguments) -> Result<ValidCall, Box<Rejection>> {
        let guest = Principal { id: "g".into(), roles: vec![], owner: false };
        check(ToolCall::new(CallId::new("c"), name, arguments), &snapshot(), Caller::of(&guest))
    }

    fn valid(text: &str) -> ValidCall {
        let call = run("tools__call", RawArguments::Text(text.into())).expect(text);
        assert_eq!((call.entry.wire_name.as_str(), call.provenance.carried), ("fs__read", true), "{text}");
        call
    }

    fn rejected(text: &str, kind: ErrorKind, fragment: &str) -> Box<Rejection> {
        let rejection = run("tools__call", RawArguments::Text(text.into())).expect_err(text);
        assert_eq!(rejection.error.kind(), kind, "{rejection}");
        assert!(rejection.to_string().contains(fragment), "{rejection}");
        rejection
    }

    #[test]
    fn the_call_inside_is_what_is_checked() {
        for text in [
            r#"{"name": "fs__read", "arguments": {"path": "a"}}"#,
            r#"{"name": "fs__read", "arguments": "{\"path\": \"a\"}"}"#,
            r#"{"name": "fs:read@1.0.0", "arguments": {"path": "a"}}"#,
            r#"{"name": "read", "arguments": {"path": "a"}}"#,
            "{name: 'fs__read', arguments: {path: 'a'",
        ] {
            assert_eq!(valid(text).arguments, json!({"path": "a"}), "{text}");
        }
        let mended = valid(r#"{"name": "fs__read", "arguments": {"path": "a", "n": "4"}}"#);
        assert_eq!(
            (mended.arguments, mended.provenance.coerced),
            (json!({"path": "a", "n": 4}), vec!["/n".to_owned()])
        );
        assert!(!run("fs__read", RawArguments::Value(json!({"path": "a"}))).expect("plain").provenance.carried);
    }

    #[test]
    fn inner_call_errors_name_the_inner_tool() {
        let wrong = rejected(r#"{"name": "fs__read", "arguments": {}}"#, ErrorKind::InvalidParameters, "for fs__read");
        assert!(wrong.provenance.carried && wrong.entry.is_some_and(|entry| entry.wire_name == "fs__read"));
        rejected(r#"{"name": "fs__read"}"#, ErrorKind::InvalidParameters, "\"path\" is missing");
        rejected(r#"{"name": "fs__raed", "arguments": {}}"#, ErrorKind::UnknownTool, "did you mean fs__read");
        rejected(r#"{"name": "fs__rm", "arguments": {}}"#, ErrorKind::NotPermitted, "ops");
    }

    #[test]
    fn tools_call_needs_a_name_and_never_nests() {
        for (text, fragment) in [
            ("{}", "need `name`"),
            (r#"{"name": 3}"#, "need `name`"),
            ("[1]", "must be a JSON object"),
            ("call it", "are not JSON"),
            (r#"{"name": "fs__read", "path": "a"}"#, "put \"path\" inside `arguments`"),
            (r#"{"name": "tools__call", "arguments": {"name": "fs__read"}}"#, "cannot name the tool itself"),
            (r#"{"name": "tools:call@1.0.0"}"#, "cannot name the tool itself"),
        ] {
            let rejection = rejected(text, ErrorKind::InvalidParameters, fragment);
            assert!(rejection.to_string().starts_with("the arguments of tools__call "), "{rejection}");
        }
        let guess = run("call", RawArguments::Value(json!({"to": "a friend"}))).expect_err("a guess");
        assert_eq!(guess.error.kind(), ErrorKind::UnknownTool);
        assert!(run("call", RawArguments::Value(json!({"name": "fs__read", "arguments": {"path": "a"}}))).is_ok());
    }

    #[test]
    fn references_inside_are_those_of_the_call_inside() {
        let values = Values(json!({"input": {"path": "a"}}));
        let owner = Principal::owner();
        let check = |arguments| {
            let call = ToolCall::new(CallId::new("c"), "tools__call", arguments);
            check(call, &snapshot(), Caller { principal: &owner, variables: Some(&values) }).expect("valid")
        };
        let written = json!({"name": "fs__read", "arguments": {"path": "†input.path", "n": "†state.n"}});
        let first = check(RawArguments::Value(written.clone()));
        assert_eq!(first.arguments, json!({"path": "a", "n": "†state.n"}));
        assert_eq!(first.pending[0].path, "/n");
        let hole = PendingReference { path: "/arguments/n".into(), reference: "†state.n".into() };
        let again = check(RawArguments::Resolved(written, vec![hole]));
        assert_eq!((again.arguments["path"].as_str(), again.pending.len()), (Some("†input.path"), 1));
    }

    #[test]
    fn a_call_shows_what_it_carries() {
        let call = |name: &str, text: &str| ToolCall::new(CallId::new("c"), name, RawArguments::Text(text.into()));
        let text = r#"{"name": "fs__read", "arguments": {"path": 1}}"#;
        assert_eq!(wrapped_call(&call("tools.call", text), &snapshot()).expect("carries").name, "fs__read");
        assert!(wrapped_call(&call("fs__read", text), &snapshot()).is_none());
        assert!(wrapped_call(&call("tools__call", "{}"), &snapshot()).is_none());
    }
}
