//! Asks a person through the inbox what a tool's source wants to know.

use std::sync::Arc;
use std::time::Duration;

use toolwright_core::approval::{EXPIRY, FormQuestion, FormReply, FormRequest, InboxStore};
use toolwright_core::context::Clock;
use toolwright_core::store::StoreError;

use super::waiting::{Ended, Pending, kept};

/// What a [`FormInbox`] is made of.
#[derive(Clone)]
pub struct FormInboxParts {
    /// Where questions are kept.
    pub store: Arc<dyn InboxStore>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// How long a question stands.
    pub expiry: Duration,
    /// Called with each question once the store has it. Must not block.
    pub told: Arc<dyn Fn(&FormQuestion) + Send + Sync>,
}

impl FormInboxParts {
    /// An inbox over a store, whose questions stand as long as those about calls, and that tells nobody.
    #[must_use]
    pub fn new(store: Arc<dyn InboxStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, expiry: EXPIRY, told: Arc::new(|_| {}) }
    }
}

/// Asks people through the inbox: the question is kept in the store, and whoever looks there answers it, in this process
/// or another.
#[derive(Clone)]
pub struct FormInbox(FormInboxParts);

impl FormInbox {
    /// An inbox over these parts.
    #[must_use]
    pub fn new(parts: FormInboxParts) -> Self {
        Self(parts)
    }

    /// Asks, and waits for the answer; `None` where nobody gave one in time. Dropping the future withdraws the question.
    ///
    /// # Errors
    /// The store cannot keep it, or say how it stands.
    pub async fn ask(&self, request: FormRequest) -> Result<Option<FormReply>, StoreError> {
        let FormInboxParts { store, clock, expiry, told } = &self.0;
        let question = kept("form", request, &**clock, *expiry);
        let pending = Pending::new(store, &question.id);
        store.put_form(&question).await?;
        told(&question);
        match pending.ended(*expiry, || store.take_form(&question.id)).await? {
            Ended::Answered(reply) => Ok(Some(reply)),
            Ended::Expired | Ended::Withdrawn => Ok(None),
        }
    }
}
