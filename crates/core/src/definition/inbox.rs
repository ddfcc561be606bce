//! Defines the inbox: approvals of calls and forms of tools' sources, kept until somebody answers them, perhaps in
//! another process.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::approval::{ApprovalDecision, ApprovalRequest};
use crate::error::{StoreError, Unsupported};
use crate::identity::session::SessionId;
use crate::identity::taint;

/// Something that is asked, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboxItem<Q, A> {
    /// Its id, for people to type: `ask_` or `form_`, and eight hex digits.
    pub id: String,
    /// What is asked, as it is shown.
    pub request: Q,
    /// When it was asked, in milliseconds since the epoch.
    pub created_ms: u64,
    /// When it expires, in the same.
    pub expires_ms: u64,
    /// How it stands.
    pub state: QuestionState,
    /// The answer, once there is one.
    pub decision: Option<A>,
    /// Who gave it.
    pub decided_by: Option<String>,
}

/// Whether a call may run.
pub type Question = InboxItem<ApprovalRequest, ApprovalDecision>;

/// What a tool's source wants to know.
pub type FormQuestion = InboxItem<FormRequest, FormReply>;

/// What the source of a running call wants of a person: MCP's elicitation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FormRequest {
    /// The call's session.
    pub session: SessionId,
    /// On whose behalf the call is made.
    pub principal: String,
    /// The tool whose source asks, without its version.
    pub source: String,
    /// Why, in the words of the source, without secrets.
    pub message: String,
    /// What.
    pub wants: Wants,
}

/// What a person is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wants {
    /// Fill this in: a JSON Schema of one flat object.
    Form(Value),
    /// Go to this address, which nobody opens for them.
    Page(String),
}

/// A person's answer to a source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum FormReply {
    /// This is filled in, or the page was opened. What was filled in is for the source alone: it is left out of the
    /// inbox as soon as the source's call has it, or is gone.
    Accept {
        /// The values, by the names of the fields.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        content: Map<String, Value>,
    },
    /// The person does not want to.
    Decline,
}

impl FormReply {
    /// The word for it, as MCP has it.
    #[must_use]
    pub fn action(&self) -> &'static str {
        match self {
            Self::Accept { .. } => "accept",
            Self::Decline => "decline",
        }
    }
}

impl<Q, A> InboxItem<Q, A> {
    /// Whose word settled it; `None` where none did, though somebody may have given one in vain.
    #[must_use]
    pub fn settled_by(&self) -> Option<&str> {
        matches!(self.state, QuestionState::Approved | QuestionState::Denied)
            .then_some(self.decided_by.as_deref())
            .flatten()
    }
}

impl Question {
    /// The question as programs are shown it: an element of `approvals ls --json` and of `GET /api/approvals`. Times
    /// are in milliseconds since the epoch.
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
    /// The question as programs are shown it, beside those about calls. What was filled in is not shown; `schema` or
    /// `address`, what is wanted, is null once it is settled.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let request = &self.request;
        let (kind, key, wanted) = match &request.wants {
            Wants::Form(schema) => ("form", "schema", schema.clone()),
            Wants::Page(address) => ("page", "address", address.as_str().into()),
        };
        // Of what is settled it is not kept.
        let wanted = if self.state == QuestionState::Pending { wanted } else { Value::Null };
        json!({
            "id": self.id,
            "kind": kind,
            "tool": request.source,
            "message": request.message,
            key: wanted,
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

/// How a question stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionState {
    /// Nobody has answered it.
    Pending,
    /// It was answered with leave to run, or with what was asked for.
    Approved,
    /// It was answered otherwise.
    Denied,
    /// Nobody answered it in time.
    Expired,
    /// Whoever asked no longer waits, or was gone before it had the answer.
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

/// What became of an answer to a question `K`.
#[derive(Debug, Clone, PartialEq)]
pub enum Answered<K = Question> {
    /// It counts: it is the first, and in time.
    Counts,
    /// It does not: the question stands like this already.
    TooLate(Box<K>),
    /// There is no such question.
    Unknown,
}

/// A question of either kind.
#[derive(Debug, Clone, PartialEq)]
pub enum AnyQuestion {
    /// Whether a call may run.
    Call(Box<Question>),
    /// What a source wants to know.
    Form(Box<FormQuestion>),
}

impl AnyQuestion {
    /// The question as programs are shown it.
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
    /// Some of the questions.
    pub questions: Vec<AnyQuestion>,
    /// How many there are in all.
    pub total: u64,
    /// The id behind which the others are, where there are others.
    pub next: Option<String>,
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
    /// A question as it stands now, for whoever waits for its answer, which is to look every second or more often: who
    /// has not looked for some seconds and has ended counts as gone, and what was asked as withdrawn, unless it is of a
    /// job, which another process may take up. A store that does not know who asks gives the question.
    async fn take_question(&self, id: &str) -> Result<Option<Question>, StoreError> {
        self.question(id).await
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
    /// Keeps a new question of a source, until it is settled: then what it asks is left out, but for the beginning of
    /// its message. What waits is bounded, and so is how many are kept that nobody answered.
    async fn put_form(&self, _form: &FormQuestion) -> Result<(), StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// A source's question as it stands now.
    async fn form(&self, _id: &str) -> Result<Option<FormQuestion>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Questions of both kinds in this state, or in all, newest first, at most `limit`, behind the one with the id `after`.
    async fn inbox(
        &self,
        _state: Option<QuestionState>,
        _after: Option<&str>,
        _limit: usize,
    ) -> Result<InboxPage, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// As [`InboxStore::questions`].
    async fn forms(&self, _state: Option<QuestionState>, _limit: usize) -> Result<Vec<FormQuestion>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// As [`InboxStore::answer`]. The values are not looked at: whoever answers has checked them.
    async fn answer_form(
        &self,
        _id: &str,
        _reply: &FormReply,
        _by: &str,
    ) -> Result<Answered<FormQuestion>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// A source's question as it stands now, for its call, as [`InboxStore::take_question`]: the values that it was
    /// answered with are given out, and kept no longer.
    async fn take_form(&self, _id: &str) -> Result<Option<FormQuestion>, StoreError> {
        Err(Unsupported("the inbox").into())
    }
    /// Notes that nobody waits for the answer any more, of whichever kind. What is no longer pending stays as it is; but
    /// with `Withdrawn` an answer that was not taken counts no more, and what a source's question was answered with is
    /// kept no longer.
    async fn close_question(&self, _id: &str, _state: QuestionState) -> Result<(), StoreError> {
        Err(Unsupported("the inbox").into())
    }
}
