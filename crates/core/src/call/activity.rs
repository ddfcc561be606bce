//! The call inside a call: an activity runs it with the arguments of the call around it, and it is checked and judged like
//! any other.

use super::{Caller, RawArguments, Rejection, ToolCall, ValidCall, check};
use crate::catalogue::Snapshot;
use crate::identity::session::CallId;
use crate::identity::taint::as_whole;
use crate::model::Route;
use crate::policy::Decision;

impl ValidCall {
    /// Returns the call of the activity that runs this call, if any. References are already replaced in it.
    #[must_use]
    pub fn activity_call(&self) -> Option<ToolCall> {
        let Route::Activity(activity) = &self.provenance.route else { return None };
        let arguments = RawArguments::Resolved(self.arguments.clone(), self.pending.clone());
        Some(ToolCall::new(CallId::new(format!("{}.activity", self.id)), activity.as_str(), arguments))
    }

    /// Checks the call of the activity that runs this call against the activity's schema; `None` without an activity.
    #[must_use]
    pub fn check_activity(&self, snapshot: &Snapshot, caller: Caller<'_>) -> Option<Result<Self, Box<Rejection>>> {
        let mut checked = check(self.activity_call()?, snapshot, caller);
        if let Ok(inner) = &mut checked {
            inner.provenance.tainted.extend(as_whole(&self.provenance.tainted));
        }
        Some(checked)
    }

    /// Decides about the call before it runs: the stricter of the decisions on the call and on its activity's call.
    ///
    /// # Errors
    /// The [`Rejection`] of its activity's call.
    pub fn judge(
        &self,
        snapshot: &Snapshot,
        caller: Caller<'_>,
        decide: impl Fn(&Self) -> Decision,
    ) -> Result<Decision, Box<Rejection>> {
        let own = decide(self);
        let Some(inner) = self.check_activity(snapshot, caller).transpose()? else { return Ok(own) };
        let within = decide(&inner);
        if own.effect.strictness() > within.effect.strictness() {
            return Ok(own);
        }
        Ok(Decision { reason: format!("{} runs it: {}", inner.entry.wire_name, within.reason), ..within })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::catalogue::declared::DeclaredTools;
    use crate::catalogue::{Listing, ProviderKind, RegisteredTool};
    use crate::definition::{Effects, ToolDefinition};
    use crate::identity::session::Principal;
    use crate::policy::{Effect, Policy, PolicyQuery, Profile};
    use crate::testing::{definition, listing, of_kind, own};

    /// A snapshot with reading and writing activities, one of a server, and declared tools.
    fn snapshot(tools: &[(&str, Value)]) -> Snapshot {
        let provider = Arc::new(DeclaredTools::new("schemas", tools.iter().map(|(name, schema)| (*name, schema))));
        let tools = provider.tools().to_vec();
        let parameters = json!({
            "type": "object",
            "properties": {"text": {"type": "string"}, "times": {"type": "integer", "default": 1}},
            "required": ["text"],
            "additionalProperties": false,
        });
        let act =
            |id: &str, effects| own(ToolDefinition { effects, parameters: Some(parameters.clone()), ..definition(id) });
        let itself = ToolDefinition { activity: Some("act__itself".into()), ..definition("act:itself@1.0.0") };
        let foreign = ToolDefinition { effects: Effects::READ, ..definition("mail:look@0.0.0") };
        Snapshot::build(&[
            Listing { provider, tools, error: None, withheld: Vec::new() },
            listing(
                "own",
                vec![
                    act("act:read@1.0.0", Effects::READ),
                    act("act:send@1.0.0", Effects::UNKNOWN),
                    own(ToolDefinition { effects: Effects::WRITE, ..itself }),
                ],
            ),
            of_kind("mail", ProviderKind::Mcp, vec![RegisteredTool::foreign(foreign, "look")]),
        ])
    }

    fn with(fields: Value) -> Value {
        let mut schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
        schema["properties"].as_object_mut().expect("object").extend(fields.as_object().expect("object").clone());
        schema
    }

    #[test]
    fn a_tool_has_the_effects_of_its_activity() {
        let activity = |name: &str| with(json!({"_activity": {"const": name}}));
        let tools = [
            ("put", activity("act__send"), Effects::UNKNOWN, false),
            ("look", activity("act__read"), Effects::READ, true),
            ("send", with(json!({})), Effects::UNKNOWN, false),
            ("read", with(json!({})), Effects::READ, true),
            ("lost", activity("act__gone"), Effects::UNKNOWN, false),
            ("nested", activity("schema__put"), Effects::UNKNOWN, false),
            ("mailed", activity("mail__look"), Effects::UNKNOWN, false),
            ("chosen", with(json!({"_activity": {"enum": ["act__read", ""]}})), Effects::UNKNOWN, false),
            ("latent", with(json!({})), Effects::READ, true),
            ("forced", activity(""), Effects::READ, true),
            // A delegated run is resumable.
            ("delegated", with(json!({"_delegate": {"const": "anonymous"}})), Effects::UNKNOWN, true),
            ("undelegated", with(json!({"_delegate": {"const": ""}})), Effects::READ, true),
        ];
        let declared: Vec<_> = tools.iter().map(|(name, schema, ..)| (*name, schema.clone())).collect();
        let snapshot = snapshot(&declared);
        let check = |position: usize, name: &str, effects: Effects, is_repeated: bool| {
            let entry = &snapshot.list()[position];
            assert_eq!(
                (entry.effects(), entry.is_repeatable(), entry.is_resumable()),
                (effects, is_repeated, is_repeated),
                "{name}"
            );
        };
        for (position, (name, _, effects, is_repeated)) in tools.iter().enumerate() {
            check(position, name, *effects, *is_repeated);
        }
        check(tools.len() + 2, "itself", Effects::WRITE, true);
        let itself = snapshot.with(&snapshot.list()[0].provider, &[]);
        assert_eq!(itself.list()[0].effects(), Effects::UNKNOWN);
    }

    #[test]
    fn an_activity_is_judged_by_its_schema() {
        let put = with(json!({"_activity": {"const": "act__send"}}));
        let look = with(json!({"_activity": {"const": "act__read"}}));
        let snapshot = snapshot(&[("put", put), ("look", look), ("none", with(json!({"_output": {}})))]);
        let (owner, policy) = (Principal::owner(), Policy::of(Profile::Ask));
        let caller = Caller::of(&owner);
        let judged = |tool: &str, arguments: Value| {
            let call = ToolCall::new(CallId::new("c"), tool, RawArguments::Value(arguments));
            let call = check(call, &snapshot, caller).expect("valid");
            let decide = |call: &ValidCall| {
                policy.decide(&PolicyQuery {
                    definition: call.entry.definition(),
                    trust: call.entry.provider.trust(),
                    principal: &owner,
                    root: std::path::Path::new("/w"),
                    scope: crate::definition::CallScope::Anywhere,
                    unvalidated: None,
                    arguments: &call.arguments,
                    request: None,
                    tainted: &call.provenance.tainted,
                })
            };
            let inner = call.check_activity(&snapshot, caller).map(|inner| inner.map(|inner| inner.arguments));
            let effect = call.judge(&snapshot, caller, decide).map(|decision| decision.effect).ok();
            (effect, inner.and_then(Result::ok))
        };
        let filled = Some(json!({"text": "x", "times": 1}));
        assert_eq!(judged("schema__put", json!({"text": "x"})), (Some(Effect::Ask), filled.clone()));
        assert_eq!(judged("schema__look", json!({"text": "x"})), (Some(Effect::Allow), filled));
        assert_eq!(judged("schema__put", json!({})), (None, None));
        assert_eq!(judged("schema__none", json!({"_output": 1})), (Some(Effect::Allow), None));
    }
}
