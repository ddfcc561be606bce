//! Asking through the inbox: the question is kept in the store, and whoever looks there answers it, in this
//! process or another.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use toolwright_core::approval::{
    Answers, ApprovalDecision, ApprovalRequest, Approver, EXPIRED, EXPIRY, InboxStore, Question, QuestionState,
};
use toolwright_core::context::Clock;
use toolwright_core::store::StoreError;

/// How often the store is asked whether there is an answer.
const LOOK: Duration = Duration::from_millis(250);
/// How long after its expiry a question may still be closed in good order.
const SLACK: Duration = Duration::from_secs(5);

/// What an [`Inbox`] is made of.
#[derive(Clone)]
pub struct InboxParts {
    /// Where questions are kept.
    pub store: Arc<dyn InboxStore>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// How long a question stands.
    pub expiry: Duration,
    /// Whether whoever makes a call waits for its answer ([`Answers::Here`]), or gets the id of a job that does.
    pub answers: Answers,
    /// Is told of each question once it is kept. Must not block.
    pub told: Arc<dyn Fn(&Question) + Send + Sync>,
}

impl InboxParts {
    /// An inbox over a store, whose questions stand as long as the contract says, and that tells nobody.
    #[must_use]
    pub fn new(store: Arc<dyn InboxStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, expiry: EXPIRY, answers: Answers::Elsewhere, told: Arc::new(|_| {}) }
    }
}

/// The approver that asks through the inbox. An answer belongs to one question, and so to one call with these
/// arguments and this definition; no other call inherits it.
#[derive(Clone)]
pub struct Inbox(InboxParts);

impl Inbox {
    /// An approver over these parts.
    #[must_use]
    pub fn new(parts: InboxParts) -> Self {
        Self(parts)
    }

    async fn answer(&self, request: &ApprovalRequest) -> Result<ApprovalDecision, StoreError> {
        let question = self.question(request);
        self.0.store.put_question(&question).await?;
        let pending = Pending { store: &self.0.store, id: Some(question.id.clone()) };
        (self.0.told)(&question);
        let mut expired = std::pin::pin!(tokio::time::sleep(self.0.expiry));
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = &mut expired => {
                    self.0.store.close_question(&question.id, QuestionState::Expired).await?;
                }
            }
            // Closed or not: an answer that came before counts.
            let Some(found) = self.0.store.question(&question.id).await? else {
                return Err(StoreError::NotFound(format!("question {}", question.id)));
            };
            match (found.state, found.decision) {
                (QuestionState::Pending, _) => {}
                (QuestionState::Approved | QuestionState::Denied, Some(decision)) => {
                    pending.settled();
                    return Ok(decision);
                }
                (QuestionState::Expired, _) => {
                    pending.settled();
                    return Ok(ApprovalDecision::Deny { reason: EXPIRED.to_owned() });
                }
                (QuestionState::Withdrawn | QuestionState::Approved | QuestionState::Denied, _) => {
                    pending.settled();
                    return Ok(ApprovalDecision::Deny { reason: "the question was withdrawn".to_owned() });
                }
            }
        }
    }

    fn question(&self, request: &ApprovalRequest) -> Question {
        let created_ms = self.0.clock.wall_ms();
        let expiry = u64::try_from(self.0.expiry.as_millis()).unwrap_or(u64::MAX);
        Question {
            id: new_id("ask"),
            request: request.clone().only_shown(),
            created_ms,
            expires_ms: created_ms.saturating_add(expiry),
            state: QuestionState::Pending,
            decision: None,
            decided_by: None,
        }
    }
}

/// An id that people can type: the kind and eight hex digits.
pub(crate) fn new_id(kind: &str) -> String {
    let digits = uuid::Uuid::new_v4().simple().to_string();
    format!("{kind}_{}", digits.get(..8).unwrap_or(&digits))
}

#[async_trait]
impl Approver for Inbox {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        self.answer(request).await.unwrap_or_else(|error| {
            let reason = format!("{}; and nobody could be asked: {error}", request.reason);
            ApprovalDecision::Deny { reason }
        })
    }

    fn answers(&self) -> Answers {
        self.0.answers
    }

    fn patience(&self) -> Duration {
        self.0.expiry.saturating_add(SLACK)
    }
}

/// A question that somebody waits for; dropped, it is withdrawn.
struct Pending<'a> {
    store: &'a Arc<dyn InboxStore>,
    id: Option<String>,
}

impl Pending<'_> {
    fn settled(mut self) {
        self.id = None;
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id.take(), tokio::runtime::Handle::try_current()) else { return };
        let store = Arc::clone(self.store);
        // Else it expires by itself.
        runtime.spawn(async move { store.close_question(&id, QuestionState::Withdrawn).await });
    }
}
