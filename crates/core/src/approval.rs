//! Asking a person. The question is complete: tool, resolved arguments, effects; the answer binds to
//! the definition's hash.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::ContentHash;
use crate::definition::Effects;
use crate::name::ToolId;
use crate::session::{CallId, SessionId};

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

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "decision")]
pub enum ApprovalDecision {
    /// Run it, this once.
    Approve,
    /// Run it, and do not ask again for this definition in this session.
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
