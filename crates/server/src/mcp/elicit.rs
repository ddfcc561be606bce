//! Asking a client's user about a call, by `elicitation/create` (MCP 2025-06-18 and 2025-11-25), in the stream of the
//! call's own request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use toolwright_core::approval::{AlwaysCovers, ApprovalDecision, ApprovalRequest, Approver, EXPIRED};
use toolwright_core::output::head_and_tail;

use super::message::{Id, Response, notification, request};

/// Revisions whose clients may have it.
const VERSIONS: [&str; 2] = ["2025-06-18", "2025-11-25"];
/// Bytes of arguments that are shown; nobody reads more before an answer.
const MAX_SHOWN: usize = 4000;
/// What the executor waits longer than the question stands.
const SLACK: Duration = Duration::from_secs(5);

/// What a session's client is asked, and whether it can be.
#[derive(Debug, Default)]
pub(crate) struct Elicitations {
    capable: AtomicBool,
    asked: AtomicU64,
    open: Mutex<HashMap<Id, oneshot::Sender<Response>>>,
}

impl Elicitations {
    /// Notes what the client said of itself when it introduced itself under this revision.
    pub(crate) fn introduced(&self, version: &str, capabilities: Option<&Map<String, Value>>) {
        let elicitation = capabilities.and_then(|all| all.get("elicitation")).and_then(Value::as_object);
        // Without any mode, forms are meant.
        let forms = elicitation.is_some_and(|modes| modes.is_empty() || modes.contains_key("form"));
        self.capable.store(forms && VERSIONS.contains(&version), Ordering::Relaxed);
    }

    pub(crate) fn is_capable(&self) -> bool {
        self.capable.load(Ordering::Relaxed)
    }

    /// Takes a client's response. What was not asked, or no longer matters, is dropped.
    pub(crate) fn settle(&self, response: Response) {
        if let Some(waiting) = response.id.as_ref().and_then(|id| self.lock().remove(id)) {
            // Whoever asked may have gone meanwhile.
            let _ = waiting.send(response);
        }
    }

    fn open(self: &Arc<Self>) -> (Open, oneshot::Receiver<Response>) {
        let id = Id::Text(format!("approval-{}", self.asked.fetch_add(1, Ordering::Relaxed)));
        let (settled, answer) = oneshot::channel();
        self.lock().insert(id.clone(), settled);
        (Open { all: Arc::clone(self), id }, answer)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Id, oneshot::Sender<Response>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question whose answer is awaited.
struct Open {
    all: Arc<Elicitations>,
    id: Id,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.all.lock().remove(&self.id);
    }
}

/// Asks the client's user; where the client cannot do that after all, asks otherwise.
pub(crate) struct ElicitApprover {
    pub(crate) session: Arc<Elicitations>,
    /// Where the response to the call's request goes.
    pub(crate) to: mpsc::Sender<Bytes>,
    pub(crate) expiry: Duration,
    pub(crate) otherwise: Arc<dyn Approver>,
}

#[async_trait]
impl Approver for ElicitApprover {
    async fn ask(&self, asked: &ApprovalRequest) -> ApprovalDecision {
        let (open, answer) = self.session.open();
        if self.to.send(request(&open.id, "elicitation/create", &question(asked))).await.is_err() {
            return self.otherwise.ask(asked).await;
        }
        let response = tokio::select! {
            response = answer => response.ok(),
            () = self.to.closed() => return denied("the client is gone, and had not answered"),
            () = tokio::time::sleep(self.expiry) => {
                let cancelled = json!({"requestId": open.id, "reason": "nobody answered in time"});
                // A client that does not read has no question to take back either.
                let _ = self.to.try_send(notification("notifications/cancelled", Some(&cancelled)));
                return denied(EXPIRED);
            }
        };
        match response {
            Some(Response { outcome: Ok(result), .. }) => decision(result),
            _ => self.otherwise.ask(asked).await,
        }
    }

    fn patience(&self) -> Duration {
        self.otherwise.patience().saturating_add(self.expiry).saturating_add(SLACK)
    }
}

fn denied(reason: &str) -> ApprovalDecision {
    ApprovalDecision::Deny { reason: reason.to_owned() }
}

/// The parameters of `elicitation/create`.
fn question(asked: &ApprovalRequest) -> Value {
    let arguments = head_and_tail(&format!("{:#}", asked.arguments), MAX_SHOWN);
    let tool = asked.tool.without_version();
    let message = format!("May {tool} run with these arguments?\n\n{arguments}\n\nAsked because {}.", asked.reason);
    let always = match asked.always_covers() {
        AlwaysCovers::Tool => "this tool in this session",
        AlwaysCovers::ToolInWorkspace => "this tool inside the workspace in this session",
        AlwaysCovers::ThisCall => "exactly these arguments in this session",
    };
    let decision = json!({
        "type": "string",
        "title": "Decision",
        "description": format!("approve: this once; always: do not ask again for {always}; deny: do not run it"),
        "enum": ["approve", "always", "deny"],
    });
    let schema = json!({"type": "object", "properties": {"decision": decision}, "required": ["decision"]});
    json!({"message": message, "requestedSchema": schema})
}

/// The answer in a client's result.
fn decision(result: Value) -> ApprovalDecision {
    #[derive(Deserialize)]
    struct Answer {
        action: String,
        #[serde(default)]
        content: Option<Map<String, Value>>,
    }
    let Ok(answer) = serde_json::from_value::<Answer>(result) else {
        return denied("the client's answer could not be read");
    };
    match (answer.action.as_str(), answer.content.as_ref().and_then(|content| content.get("decision")?.as_str())) {
        ("accept", Some("approve")) => ApprovalDecision::Approve,
        ("accept", Some("always")) => ApprovalDecision::Always,
        ("cancel", _) => denied("the user dismissed the question"),
        ("accept", Some("deny")) | ("decline", _) => denied("the user said no"),
        _ => denied("the client's answer could not be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_forms_of_the_revisions_that_have_them_are_asked() {
        for (version, capabilities, capable) in [
            ("2025-11-25", json!({"elicitation": {}}), true),
            ("2025-06-18", json!({"elicitation": {}}), true),
            ("2025-11-25", json!({"elicitation": {"form": {}, "url": {}}}), true),
            ("2025-11-25", json!({"elicitation": {"url": {}}}), false),
            ("2025-03-26", json!({"elicitation": {}}), false),
            ("2025-11-25", json!({"elicitation": true}), false),
            ("2025-11-25", json!({}), false),
        ] {
            let session = Elicitations::default();
            session.introduced(version, capabilities.as_object());
            assert_eq!(session.is_capable(), capable, "{version} {capabilities}");
        }
    }

    #[test]
    fn an_answer_runs_the_call_only_where_it_says_so() {
        for (result, expect) in [
            (json!({"action": "accept", "content": {"decision": "approve"}}), ApprovalDecision::Approve),
            (json!({"action": "accept", "content": {"decision": "always"}}), ApprovalDecision::Always),
            (json!({"action": "accept", "content": {"decision": "deny"}}), denied("the user said no")),
            (json!({"action": "decline", "content": {"decision": "approve"}}), denied("the user said no")),
            (json!({"action": "decline", "content": null}), denied("the user said no")),
            (json!({"action": "cancel"}), denied("the user dismissed the question")),
            (json!({"action": "accept"}), denied("the client's answer could not be read")),
            (
                json!({"action": "accept", "content": {"decision": "yes"}}),
                denied("the client's answer could not be read"),
            ),
            (json!("approve"), denied("the client's answer could not be read")),
        ] {
            assert_eq!(decision(result.clone()), expect, "{result}");
        }
    }
}
