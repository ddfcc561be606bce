//! The inbox: questions whether calls may run, and forms of tools' sources, kept until they are answered, possibly in
//! another process.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::approval::{ApprovalDecision, ApprovalRequest};
use crate::error::{StoreError, Unsupported};
use crate::identity::session::SessionId;
use crate::identity::taint;

/// A question in the inbox, with its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboxItem<Q, A> {
    /// Its id, for people to type: `ask_` or `form_`, and eight hex digits.
    pub id: String,
    /// The question, for display.
    pub request: Q,
    /// Creation time, in milliseconds since the epoch.
    pub created_ms: u64,
    /// Expiry, in milliseconds since the epoch.
    pub expires_ms: u64,
    /// Its state.
    pub state: QuestionState,
    /// The answer, if any.
    pub decision: Option<A>,
    /// The name given with the answer.
    pub decided_by: Option<String>,
}

/// A question whether a call may run.
pub type Question = InboxItem<ApprovalRequest, ApprovalDecision>;

/// A question of a tool's source.
pub type FormQuestion = InboxItem<FormRequest, FormReply>;

/// A question of a running call's source to a person: MCP's elicitation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FormRequest {
    /// The call's session.
    pub session: SessionId,
    /// The principal that the call is made for.
    pub principal: String,
    /// The tool whose source asks, without its version.
    pub source: String,
    /// The source's message, without secrets.
    pub message: String,
    /// The requested action.
    pub wants: RequestedAction,
}

/// The action requested from a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestedAction {
    /// Fill this in: a JSON Schema of one flat object.
    Form(Value),
    /// Open this address; Toolwright does not open it.
    Page(String),
}

/// A person's answer to a source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum FormReply {
    /// The form was filled in, or the page was opened. The values are for the source alone: they are removed from
    /// the inbox once the source's call has them or has ended.
    Accept {
        /// The values, by the names of the fields.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        content: Map<String, Value>,
    },
    /// The person does not want to.
    Decline,
}

impl FormReply {
    /// Its MCP name.
    #[must_use]
    pub fn action(&self) -> &'static str {
        match self {
            Self::Accept { .. } => "accept",
            Self::Decline => "decline",
        }
    }
}

impl<Q, A> InboxItem<Q, A> {
    /// Returns `decided_by` if that answer settled the question.
    #[must_use]
    pub fn settled_by(&self) -> Option<&str> {
        matches!(self.state, QuestionState::Approved | QuestionState::Denied)
            .then_some(self.decided_by.as_deref())
            .flatten()
    }
}

impl Question {
    /// Formats the question for programs: an element of `approvals ls --json` and of `GET /api/approvals`. Times are in
    /// milliseconds since the epoch.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let request = &self.request;
        json!({
            "id": self.id,
            "kind": "call",
            "tool": request.tool,
            "arguments": request.arguments,
            "effects": request.effects,
            "scope": request.scope,
            "tainted": request.tainted,
            "untrusted": taint::in_words(&request.tainted),
            "named": request.named,
            "reason": request.reason,
            "asker": request.asker,
            "agents": request.agents,
            "always_covers": request.always_covers(),
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

impl FormQuestion {
    /// Formats the question for programs, like questions about calls. The answer's values are omitted; `schema` or
    /// `address` is null once it is settled.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let request = &self.request;
        let (kind, key, action) = match &request.wants {
            RequestedAction::Form(schema) => ("form", "schema", schema.clone()),
            RequestedAction::Page(address) => ("page", "address", address.as_str().into()),
        };
        // Settled questions keep only the message.
        let action = if self.state == QuestionState::Pending { action } else { Value::Null };
        json!({
            "id": self.id,
            "kind": kind,
            "tool": request.source,
            "message": request.message,
            key: action,
            "session": request.session,
            "principal": request.principal,
            "created": self.created_ms,
            "expires": self.expires_ms,
            "state": self.state,
            "decision": self.decision.as_ref().map(|reply| json!({"decision": reply.action()})),
            "decided_by": self.decided_by,
        })
    }
}

/// State of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionState {
    /// Not answered yet.
    Pending,
    /// Answered: the call may run, or the values were given.
    Approved,
    /// Answered with a refusal.
    Denied,
    /// Not answered in time.
    Expired,
    /// Not awaited any more, or the asking process was gone before the answer.
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

    /// Parses the name of a state.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Pending, Self::Approved, Self::Denied, Self::Expired, Self::Withdrawn]
            .into_iter()
            .find(|state| state.as_str() == name)
    }
}

/// Result of answering a question `K`.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerStatus<K = Question> {
    /// It counts: it is the first, and in time.
    Accepted,
    /// Too late: the question already has this state.
    AlreadySettled(Box<K>),
    /// The question does not exist.
    Unknown,
}

/// A question of either kind.
#[derive(Debug, Clone, PartialEq)]
pub enum AnyQuestion {
    /// Whether a call may run.
    Call(Box<Question>),
    /// A question of a source.
    Form(Box<FormQuestion>),
}

impl AnyQuestion {
    /// Formats the question for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Call(question) => question.to_json(),
            Self::Form(question) => question.to_json(),
        }
    }
}

/// A part of the inbox.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InboxPage {
    /// A page of questions.
    pub questions: Vec<AnyQuestion>,
    /// Number of questions in total.
    pub total: u64,
    /// The cursor of the next page, if any.
    pub next: Option<String>,
}

/// Stores questions. Every method commits before it returns.
#[async_trait]
pub trait InboxStore: Send + Sync {
    /// Stores a new question and, in the same step, settles those that earlier processes of its run asked about the
    /// same call: returns an untaken answer to the same question and stores nothing, and withdraws pending ones.
    async fn put_question(&self, _question: &Question) -> Result<Option<ApprovalDecision>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Returns a question's current state.
    async fn question(&self, _id: &str) -> Result<Option<Question>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Returns the current state of a question, for the process that waits for its answer and polls every second or
    /// more often. If that process stops polling for some seconds and has ended, the question counts as withdrawn,
    /// except for a job's question, which another process may take over. A store that does not track the asker returns
    /// the question.
    async fn take_question(&self, id: &str) -> Result<Option<Question>, StoreError> {
        self.question(id).await
    }
    /// Returns questions in this state, or in all, newest first, at most `limit`.
    async fn questions(&self, _state: Option<QuestionState>, _limit: usize) -> Result<Vec<Question>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Answers a pending, unexpired question. The first of several answers counts, from whichever process.
    async fn answer(&self, _id: &str, _decision: &ApprovalDecision, _by: &str) -> Result<AnswerStatus, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Stores a new question of a source. Once settled, only the beginning of its message is kept. Fails with
    /// [`StoreError::Quota`] if too many wait. The number of unanswered ones that are kept is bounded.
    async fn put_form(&self, _form: &FormQuestion) -> Result<(), StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Returns the current state of a source's question.
    async fn form(&self, _id: &str) -> Result<Option<FormQuestion>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Returns questions of both kinds in this state, or in all, newest first, at most `limit`, after the id `after`.
    async fn inbox(
        &self,
        _state: Option<QuestionState>,
        _after: Option<&str>,
        _limit: usize,
    ) -> Result<InboxPage, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Like [`InboxStore::questions`], for questions of sources.
    async fn forms(&self, _state: Option<QuestionState>, _limit: usize) -> Result<Vec<FormQuestion>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Like [`InboxStore::answer`]. The caller has checked the values.
    async fn answer_form(
        &self,
        _id: &str,
        _reply: &FormReply,
        _by: &str,
    ) -> Result<AnswerStatus<FormQuestion>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Like [`InboxStore::take_question`] for a source's question: the answer's values are returned once
    /// and deleted.
    async fn take_form(&self, _id: &str) -> Result<Option<FormQuestion>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Closes a pending question of either kind because nobody waits for the answer. Settled questions do not change;
    /// but with `Withdrawn`, an answer that was not taken no longer counts, and the values given to a source are
    /// removed.
    async fn close_question(&self, _id: &str, _state: QuestionState) -> Result<(), StoreError> {
        Err(Unsupported("the inbox").into())
    }
}
