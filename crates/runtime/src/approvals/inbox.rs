//! Asks for approval through the inbox: the store keeps the question, and this or another process answers it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use toolwright_core::approval::{
    Answers, ApprovalDecision, ApprovalRequest, Approver, EXPIRED, EXPIRY, InboxStore, Question,
};
use toolwright_core::context::Clock;
use toolwright_core::store::StoreError;

use super::waiting::{Ended, Pending, kept};

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
    /// Called with each question once the store has it. Must not block.
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
        let InboxParts { store, clock, expiry, told, .. } = &self.0;
        let question = kept("ask", request.clone().only_shown(), &**clock, *expiry);
        let pending = Pending::new(store, &question.id);
        store.put_question(&question).await?;
        told(&question);
        Ok(match pending.ended(*expiry, || store.take_question(&question.id)).await? {
            Ended::Answered(decision) => decision,
            Ended::Expired => ApprovalDecision::Deny { reason: EXPIRED.to_owned() },
            Ended::Withdrawn => ApprovalDecision::Deny { reason: "the question was withdrawn".to_owned() },
        })
    }
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
