//! Defines the question to a person whether a call may run. It is complete: tool, resolved arguments, effects; the
//! answer binds to the hashes of the definition and of the real arguments, which a question never shows.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::definition::CallScope;
use crate::definition::Effects;
use crate::identity::session::{CallId, SessionId};
use crate::identity::taint::TaintedArgument;
use crate::identity::tool_id::ToolId;
use crate::json::canonical::ContentHash;

/// How long a question waits for an answer before the call is denied.
pub const EXPIRY: Duration = Duration::from_secs(600);

/// The reason for denying a call without an answer in time.
pub const EXPIRED: &str = "expired";

/// The result text of a call that a person skipped, for the model.
pub const SKIPPED_TEXT: &str = "This call was skipped by the user and did not run. Carry on without it.";

/// A question to a person about a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// The call that waits.
    pub call_id: CallId,
    /// The run that makes it, where an agent does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Arc<str>>,
    /// Its session.
    pub session: SessionId,
    /// The principal that the call is made for.
    pub principal: String,
    /// The tool.
    pub tool: ToolId,
    /// The definition the answer binds to.
    pub definition: ContentHash,
    /// The resolved arguments for display, without secrets.
    pub arguments: Value,
    /// The hash of the real arguments, which the answer is bound to. `None` in a copy for display: short secrets
    /// can be guessed from a hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binds_to: Option<ContentHash>,
    /// The tool's possible effects, unknown unless somebody other than the tool vouches for less.
    pub effects: Effects,
    /// The resources this call would touch.
    pub scope: CallScope,
    /// The policy's reason to ask.
    pub reason: String,
    /// Places of the arguments whose values came from untrusted tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tainted: Vec<TaintedArgument>,
    /// Places of the arguments whose values the user's own words name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<String>,
    /// The server on whose request the tool is called, for a sampling request of its tool. `always` for one server does
    /// not cover another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asker: Option<String>,
    /// The chain of agents that leads to the call, from the one that the root run started to the caller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentStep>,
}

/// An agent on the way from a run to a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStep {
    /// Its name.
    pub agent: String,
    /// Why it was started, in the words of the starting model.
    pub reason: String,
}

impl ApprovalRequest {
    /// Formats the chain of agents in one line, `researcher (find the price) > reader (look into the file)`; `None` if
    /// empty.
    #[must_use]
    pub fn agent_path(&self) -> Option<String> {
        let step = |step: &AgentStep| match step.reason.as_str() {
            "" => step.agent.clone(),
            reason => format!("{} ({reason})", step.agent),
        };
        let steps: Vec<String> = self.agents.iter().map(step).collect();
        (!steps.is_empty()).then(|| steps.join(" > "))
    }

    /// Returns what `always` covers. A destructive call that is not known to stay inside the workspace (a shell,
    /// a file that decides what runs) may do anything the next time: `always` covers
    /// only equal arguments.
    #[must_use]
    pub fn always_covers(&self) -> AlwaysScope {
        match self.scope {
            CallScope::Workspace => AlwaysScope::ToolInWorkspace,
            CallScope::Configuration => AlwaysScope::ThisCall,
            CallScope::Anywhere if self.effects.destructive => AlwaysScope::ThisCall,
            CallScope::Anywhere if self.asker.is_some() => AlwaysScope::ToolForAsker,
            CallScope::Anywhere => AlwaysScope::Tool,
        }
    }

    /// Returns a copy for display and storage that no decision can be bound to.
    #[must_use]
    pub fn for_display(self) -> Self {
        Self { binds_to: None, ..self }
    }

    /// The key of an `always` with this reach: different reaches have different keys.
    #[must_use]
    pub fn approval_key(&self, covers: AlwaysScope) -> ContentHash {
        let arguments = self.binds_to.filter(|_| covers == AlwaysScope::ThisCall);
        let mut key = json!({"definition": self.definition, "covers": covers, "arguments": arguments});
        if let Some(asker) = &self.asker {
            key["asker"] = asker.as_str().into();
        }
        ContentHash::of_value(&key)
    }
}

/// A call that cannot continue until a person has decided about an inner call. As the source of a [`ToolError`] it
/// makes the call wait for a person as if the question were its own.
///
/// [`ToolError`]: crate::ToolError
#[derive(Debug, thiserror::Error)]
#[error("a person must decide about {} first", self.0.tool)]
pub struct DecisionPending(pub Box<ApprovalRequest>);

impl DecisionPending {
    /// The question that a call with this error waits for, if that is all that failed.
    #[must_use]
    pub fn of<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e ApprovalRequest> {
        error.source()?.downcast_ref::<Self>().map(|awaits| &*awaits.0)
    }
}

/// The reach of `always`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlwaysScope {
    /// Every call of this definition that is not known to stay inside the workspace.
    Tool,
    /// Like `Tool`, on request of the same server ([`ApprovalRequest::asker`]).
    ToolForAsker,
    /// Calls of this definition that stay inside the workspace.
    ToolInWorkspace,
    /// Calls of this definition with equal arguments.
    ThisCall,
}

/// An answer to an approval question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "decision")]
pub enum ApprovalDecision {
    /// Run it, this once.
    Approve,
    /// Run the call, and do not ask again in this session for calls that [`ApprovalRequest::always_covers`].
    Always,
    /// Run it, and do not ask again in this session for equal arguments, even if [`Self::Always`] would reach further.
    AlwaysThese,
    /// Do not run it.
    Deny {
        /// Why, for operator and model.
        reason: String,
    },
    /// Do not run it, without blame: the model gets a neutral result.
    Skip,
    /// Nobody can answer now; suspend the run and keep the question.
    Later,
}

/// An earlier `always` in force: a row that can be listed and revoked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StandingApproval {
    /// Its id, for people to type: `always_` and eight hex digits.
    pub id: String,
    /// The session it applies to.
    pub scope: String,
    /// The principal that calls are made for.
    pub principal: String,
    /// The tool.
    pub tool: ToolId,
    /// Its key; see [`ApprovalRequest::approval_key`].
    pub key: ContentHash,
    /// Its reach.
    pub covers: AlwaysScope,
    /// The arguments it is bound to, secrets redacted; `None` for any arguments.
    pub arguments: Option<Value>,
    /// The server on whose request; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asker: Option<String>,
    /// Creation time, in milliseconds since the epoch.
    pub created_ms: u64,
}

impl StandingApproval {
    /// Builds the standing approval for `always` to this request. `id` is new.
    #[must_use]
    pub fn of(request: &ApprovalRequest, covers: AlwaysScope, id: String, now_ms: u64) -> Self {
        Self {
            id,
            scope: request.session.as_str().to_owned(),
            principal: request.principal.clone(),
            tool: request.tool.clone(),
            key: request.approval_key(covers),
            covers,
            arguments: (covers == AlwaysScope::ThisCall).then(|| request.arguments.clone()),
            asker: request.asker.clone(),
            created_ms: now_ms,
        }
    }
}

/// Who answers an approver's questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerSource {
    /// Somebody present, or nobody with an immediate decision.
    Here,
    /// Somebody who may look minutes later: a client that waits for the call's result should not wait for the answer.
    Elsewhere,
    /// Nobody: every question is denied at once.
    Nobody,
}

/// Asks for decisions. An answer may take as long as a person takes; dropping the future withdraws
/// the question.
#[async_trait]
pub trait Approver: Send + Sync {
    /// Asks. Must not fail: an approver that cannot reach anybody denies with the reason and the remedy.
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision;

    /// Returns who answers its questions.
    fn answers(&self) -> AnswerSource {
        AnswerSource::Here
    }

    /// Returns the approver to ask when this one answers [`ApprovalDecision::Later`] because nobody has seen the
    /// question.
    fn fallback_approver(&self) -> Option<Arc<dyn Approver>> {
        None
    }

    /// Time limit for an answer. Then the executor drops the question, and the call is denied as
    /// [`EXPIRED`].
    fn answer_timeout(&self) -> Duration {
        EXPIRY
    }
}

/// A function answers as itself.
#[async_trait]
impl<F: Fn(&ApprovalRequest) -> ApprovalDecision + Send + Sync> Approver for F {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        self(request)
    }
}

/// Denies everything, for runs without anybody to ask.
#[derive(Debug, Clone)]
pub struct NoApprover {
    /// Text after policy's reason; names the flag or setting that would allow the call.
    pub remedy: String,
}

#[async_trait]
impl Approver for NoApprover {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        ApprovalDecision::Deny { reason: format!("{}; {}", request.reason, self.remedy) }
    }

    fn answers(&self) -> AnswerSource {
        AnswerSource::Nobody
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_covers_only_the_same_scope() {
        let request = |effects: Effects, scope: CallScope, argument: &str, asker: Option<&str>| {
            let request = ApprovalRequest {
                call_id: CallId::new("c"),
                run: None,
                session: SessionId::new("s"),
                principal: "owner".into(),
                tool: ToolId::parse("x:t@1.0.0").expect("id"),
                definition: ContentHash::of_bytes(b"d"),
                arguments: json!({"path": crate::call::redact::MARK}),
                binds_to: Some(ContentHash::of_value(&json!({"path": argument}))),
                effects,
                scope,
                reason: String::new(),
                tainted: Vec::new(),
                named: Vec::new(),
                asker: asker.map(str::to_owned),
                agents: Vec::new(),
            };
            request.approval_key(request.always_covers())
        };
        let key = |effects, scope, argument: &str| request(effects, scope, argument, None);
        use CallScope::{Anywhere, Configuration, Workspace};
        let mild = Effects { destructive: false, ..Effects::UNKNOWN };
        assert_eq!(key(Effects::WRITE, Workspace, "a"), key(Effects::WRITE, Workspace, "b"));
        assert_ne!(key(Effects::WRITE, Workspace, "a"), key(Effects::WRITE, Anywhere, "a"));
        assert_ne!(key(Effects::WRITE, Anywhere, "a"), key(Effects::WRITE, Anywhere, "b"));
        assert_ne!(key(Effects::UNKNOWN, Anywhere, "a"), key(Effects::UNKNOWN, Anywhere, "b"));
        assert_eq!(key(Effects::UNKNOWN, Anywhere, "a"), key(Effects::UNKNOWN, Anywhere, "a"));
        assert_eq!(key(mild, Anywhere, "a"), key(mild, Anywhere, "b"));
        assert_ne!(key(mild, Configuration, "a"), key(mild, Configuration, "b"));
        let of = |asker, argument: &str| request(mild, Anywhere, argument, Some(asker));
        assert_eq!(of("one", "a"), of("one", "b"), "what one server asks");
        assert_ne!(of("one", "a"), of("two", "a"), "and what another does");
        assert_ne!(of("one", "a"), key(mild, Anywhere, "a"));
    }
}
