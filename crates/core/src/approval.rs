//! Asking a person. The question is complete: tool, resolved arguments, effects; the answer binds to
//! the definition's hash.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::canonical::ContentHash;
use crate::definition::Effects;
use crate::name::ToolId;
use crate::session::{CallId, SessionId};

/// What a model reads in place of the result of a call that a person left out.
pub const SKIPPED_TEXT: &str = "This call was skipped by the user and did not run. Carry on without it.";

/// One question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// The call that waits.
    pub call_id: CallId,
    /// Its session.
    pub session: SessionId,
    /// The tool.
    pub tool: ToolId,
    /// The definition the answer binds to.
    pub definition: ContentHash,
    /// The fully resolved arguments, secrets redacted by the asker's sink.
    pub arguments: Value,
    /// What the tool may do.
    pub effects: Effects,
    /// The policy's reason to ask.
    pub reason: String,
}

impl ApprovalRequest {
    /// What `always` covers: a tool that may destroy and reach anywhere takes free-form input, so its
    /// standing approval holds for these very arguments only (SPEC section 8).
    #[must_use]
    pub fn always_covers(&self) -> AlwaysCovers {
        if self.effects.destructive && self.effects.open_world { AlwaysCovers::ThisCall } else { AlwaysCovers::Tool }
    }

    /// The key under which `always` is remembered.
    #[must_use]
    pub fn standing_key(&self) -> ContentHash {
        match self.always_covers() {
            AlwaysCovers::Tool => self.definition,
            AlwaysCovers::ThisCall => {
                ContentHash::of_value(&json!({"definition": self.definition, "arguments": self.arguments}))
            }
        }
    }
}

/// How far `always` reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlwaysCovers {
    /// Every call of this definition.
    Tool,
    /// Calls of this definition with equal arguments.
    ThisCall,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "decision")]
pub enum ApprovalDecision {
    /// Run it, this once.
    Approve,
    /// Run it, and do not ask again in this session for what [`ApprovalRequest::always_covers`].
    Always,
    /// Do not run it.
    Deny {
        /// Why, for operator and model.
        reason: String,
    },
    /// Do not run it, without blame: the model gets a neutral result.
    Skip,
    /// Nobody can answer now; the run is to be suspended and the question kept.
    Later,
}

/// Somebody who can answer. An answer takes as long as a person takes; dropping the future withdraws
/// the question.
#[async_trait]
pub trait Approver: Send + Sync {
    /// Asks. Must not fail: an approver that cannot reach anybody denies with the reason and the remedy.
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision;
}

/// Denies everything, for runs without anybody to ask.
#[derive(Debug, Clone)]
pub struct NoApprover {
    /// What to say; name the flag or setting that would allow the call.
    pub remedy: String,
}

#[async_trait]
impl Approver for NoApprover {
    async fn ask(&self, _request: &ApprovalRequest) -> ApprovalDecision {
        ApprovalDecision::Deny { reason: self.remedy.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_on_a_free_form_tool_covers_equal_arguments_only() {
        let request = |effects: Effects, command: &str| ApprovalRequest {
            call_id: CallId::new("c"),
            session: SessionId::new("s"),
            tool: ToolId::parse("x:t@1.0.0").expect("id"),
            definition: ContentHash::of_bytes(b"d"),
            arguments: json!({"command": command}),
            effects,
            reason: String::new(),
        };
        let key = |effects, command| request(effects, command).standing_key();
        assert_eq!(key(Effects::WRITE, "a"), key(Effects::WRITE, "b"));
        assert_ne!(key(Effects::UNKNOWN, "a"), key(Effects::UNKNOWN, "b"));
        assert_eq!(key(Effects::UNKNOWN, "a"), key(Effects::UNKNOWN, "a"));
        assert_ne!(key(Effects::UNKNOWN, "a"), key(Effects::WRITE, "a"));
    }
}
