//! The inbox: questions that are kept until somebody answers them, perhaps in another process.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ApprovalDecision, ApprovalRequest};
use crate::error::Unsupported;
use crate::store::StoreError;

/// One question that is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Its id, for people to type: `ask_` and eight hex digits.
    pub id: String,
    /// What is asked, as it is shown.
    pub request: ApprovalRequest,
    /// When it was asked, in milliseconds since the epoch.
    pub created_ms: u64,
    /// When it expires, in the same.
    pub expires_ms: u64,
    /// How it stands.
    pub state: QuestionState,
    /// The answer, once there is one.
    pub decision: Option<ApprovalDecision>,
    /// Who gave it.
    pub decided_by: Option<String>,
}

impl Question {
    /// The question as programs are shown it: an element of `approvals ls --json` and of `GET /api/approvals`. Times
    /// are in milliseconds since the epoch.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let request = &self.request;
        json!({
            "id": self.id,
            "tool": request.tool,
            "arguments": request.arguments,
            "reason": request.reason,
            "session": request.session,
            "principal": request.principal,
            "created": self.created_ms,
            "expires": self.expires_ms,
            "state": self.state,
            "decision": self.decision,
            "decided_by": self.decided_by,
        })
    }
}

/// How a question stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionState {
    /// Nobody has answered it.
    Pending,
    /// It was answered with leave to run.
    Approved,
    /// It was answered otherwise.
    Denied,
    /// Nobody answered it in time.
    Expired,
    /// Whoever asked no longer waits.
    Withdrawn,
}

impl QuestionState {
    /// The state's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
        }
    }

    /// The state whose name this is.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Pending, Self::Approved, Self::Denied, Self::Expired, Self::Withdrawn]
            .into_iter()
            .find(|state| state.as_str() == name)
    }
}

/// What became of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Answered {
    /// It counts: it is the first, and in time.
    Counts,
    /// It does not: the question stands like this already.
    TooLate(Box<Question>),
    /// There is no such question.
    Unknown,
}

/// The questions that are kept. Every method commits before it returns.
#[async_trait]
pub trait InboxStore: Send + Sync {
    /// Keeps a new question.
    async fn put_question(&self, _question: &Question) -> Result<(), StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// A question as it stands now.
    async fn question(&self, _id: &str) -> Result<Option<Question>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Questions in this state, or in all, newest first, at most `limit`.
    async fn questions(&self, _state: Option<QuestionState>, _limit: usize) -> Result<Vec<Question>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Answers a question, if it is pending and has not expired. Of several answers the first counts, whatever
    /// the processes they come from.
    async fn answer(&self, _id: &str, _decision: &ApprovalDecision, _by: &str) -> Result<Answered, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Notes that nobody waits for the answer any more; what is no longer pending stays as it is.
    async fn close_question(&self, _id: &str, _state: QuestionState) -> Result<(), StoreError> {
        Err(Unsupported("the inbox").into())
    }
}
