//! Asks a call's own user by elicitation whether the call may run.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::approval::{AlwaysScope, ApprovalDecision, ApprovalRequest, Approver, EXPIRED};
use toolwright_core::client::{CallClient, ClientRequest};
use toolwright_core::output::head_and_tail;
use toolwright_core::taint::in_words;

use crate::mcp::session::Asker;

const METHOD: &str = "elicitation/create";
/// Prefix of the keys of these questions. The rest of a key is random, so that a client cannot answer a question in
/// advance.
const KEY: &str = "approval-";
/// The most bytes of arguments that the question shows.
const MAX_SHOWN: usize = 4000;
/// How long the executor waits beyond the question's expiry.
const SLACK: Duration = Duration::from_secs(5);

/// A client that dismisses a question within this time has not shown it: some clients offer forms but dismiss each at
/// once.
const MIN_SEEN: Duration = Duration::from_millis(300);

/// Asks the user of a client that offers forms. If the client cannot ask after all, its user must not decide, or the
/// question was not shown, `fallback_approver` decides.
pub(crate) struct ClientApprover {
    pub(crate) asker: Asker,
    pub(crate) client: Arc<dyn CallClient>,
    pub(crate) expiry: Duration,
    pub(crate) fallback_approver: Arc<dyn Approver>,
}

#[async_trait]
impl Approver for ClientApprover {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        if !self.asker.can_decide().await {
            return ApprovalDecision::Later;
        }
        let key = Some(format!("{KEY}{}", uuid::Uuid::new_v4().simple()));
        let question = ClientRequest { key, method: METHOD.into(), params: question(request) };
        let since = tokio::time::Instant::now();
        match tokio::time::timeout(self.expiry, self.client.ask(vec![question])).await {
            Ok(Ok(answers)) => match answers.into_iter().next() {
                Some(Ok(answer)) => decision(answer, since.elapsed()),
                Some(Err(_)) | None => ApprovalDecision::Later,
            },
            Ok(Err(_)) => denied("the client disconnected before it answered"),
            Err(_) => denied(EXPIRED),
        }
    }

    fn fallback_approver(&self) -> Option<Arc<dyn Approver>> {
        Some(Arc::clone(&self.fallback_approver))
    }

    fn answer_timeout(&self) -> Duration {
        self.expiry.saturating_add(SLACK)
    }
}

fn denied(reason: &str) -> ApprovalDecision {
    ApprovalDecision::Deny { reason: reason.to_owned() }
}

/// Returns the parameters of `elicitation/create`.
fn question(request: &ApprovalRequest) -> Value {
    let arguments = head_and_tail(&format!("{:#}", request.arguments), MAX_SHOWN);
    let tool = request.tool.without_version();
    let tainted = in_words(&request.tainted).map(|what| format!("\n\nUntrusted: {what}.")).unwrap_or_default();
    let message =
        format!("May {tool} run with these arguments?\n\n{arguments}{tainted}\n\nAsked because {}.", request.reason);
    let always = match request.always_covers() {
        AlwaysScope::Tool => "this tool in this session".to_owned(),
        AlwaysScope::ToolForAsker => {
            format!("this tool on the wish of {} in this session", request.asker.as_deref().unwrap_or_default())
        }
        AlwaysScope::ToolInWorkspace => "this tool inside the workspace in this session".to_owned(),
        AlwaysScope::ThisCall => "exactly these arguments in this session".to_owned(),
    };
    let decision = json!({
        "type": "string",
        "title": "Decision",
        "description": format!("approve, or no choice: this once; always: do not ask again for {always}; deny: do not run it"),
        "enum": ["approve", "always", "deny"],
    });
    let schema = json!({"type": "object", "properties": {"decision": decision}});
    json!({"message": message, "requestedSchema": schema})
}

/// Returns the decision in a client's result that arrived after this time. Accepting without a choice approves this
/// call only.
fn decision(result: Value, after: Duration) -> ApprovalDecision {
    #[derive(Deserialize)]
    struct ElicitResult {
        action: String,
        #[serde(default)]
        content: Option<Map<String, Value>>,
    }
    let Ok(answer) = serde_json::from_value::<ElicitResult>(result) else {
        return denied("the client's answer could not be read");
    };
    let choice = answer.content.as_ref().and_then(|content| content.get("decision")).filter(|choice| !choice.is_null());
    match (answer.action.as_str(), choice.map(Value::as_str)) {
        ("accept", None | Some(Some("approve"))) => ApprovalDecision::Approve,
        ("accept", Some(Some("always"))) => ApprovalDecision::Always,
        ("cancel" | "decline", _) if after < MIN_SEEN => ApprovalDecision::Later,
        ("cancel", _) => denied("the user dismissed the question"),
        ("accept", Some(Some("deny"))) | ("decline", _) => denied("the user said no"),
        _ => denied("the client's answer could not be read"),
    }
}

#[cfg(test)]
mod tests {
    use toolwright_core::canonical::ContentHash;
    use toolwright_core::catalogue::CallScope;
    use toolwright_core::session::{CallId, SessionId};
    use toolwright_core::taint::{Taint, TaintedArgument};
    use toolwright_core::{Effects, ToolId};

    use super::*;

    #[test]
    fn only_an_accepted_form_lets_the_call_run() {
        for (result, expect) in [
            (json!({"action": "accept", "content": {"decision": "approve"}}), ApprovalDecision::Approve),
            (json!({"action": "accept", "content": {"decision": "always"}}), ApprovalDecision::Always),
            (json!({"action": "accept", "content": {"decision": "deny"}}), denied("the user said no")),
            (json!({"action": "decline", "content": {"decision": "approve"}}), denied("the user said no")),
            (json!({"action": "decline", "content": null}), denied("the user said no")),
            (json!({"action": "cancel"}), denied("the user dismissed the question")),
            (json!({"action": "accept"}), ApprovalDecision::Approve),
            (json!({"action": "accept", "content": {}}), ApprovalDecision::Approve),
            (json!({"action": "accept", "content": {"decision": null}}), ApprovalDecision::Approve),
            (
                json!({"action": "accept", "content": {"decision": "yes"}}),
                denied("the client's answer could not be read"),
            ),
            (json!({"action": "accept", "content": {"decision": 1}}), denied("the client's answer could not be read")),
            (json!("approve"), denied("the client's answer could not be read")),
        ] {
            assert_eq!(decision(result.clone(), MIN_SEEN), expect, "{result}");
        }
    }

    #[test]
    fn a_question_dismissed_at_once_is_unanswered() {
        let (at_once, later) = (MIN_SEEN / 2, MIN_SEEN);
        for action in ["cancel", "decline"] {
            assert_eq!(decision(json!({"action": action}), at_once), ApprovalDecision::Later);
            assert!(matches!(decision(json!({"action": action}), later), ApprovalDecision::Deny { .. }));
        }
        assert_eq!(decision(json!({"action": "accept"}), at_once), ApprovalDecision::Approve);
    }

    #[test]
    fn untrusted_arguments_are_named() {
        let tool = ToolId::parse("mail:send@1.0.0").expect("id");
        let asked = ApprovalRequest {
            call_id: CallId::new("c"),
            run: None,
            session: SessionId::new("s"),
            principal: "owner".into(),
            tool: tool.clone(),
            definition: ContentHash::of_value(&json!(1)),
            arguments: json!({"to": "a"}),
            binds_to: None,
            effects: Effects::default(),
            scope: CallScope::Anywhere,
            reason: "profile ask".into(),
            tainted: vec![TaintedArgument { path: "/to".into(), from: Taint::of(&tool) }],
            named: Vec::new(),
            asker: None,
            agents: Vec::new(),
        };
        let message = question(&asked)["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains("Untrusted: /to out of mail:send@1.0.0."), "{message}");
    }
}
