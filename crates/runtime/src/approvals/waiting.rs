//! Waits for the answer to a question in the inbox.

use std::sync::Arc;
use std::time::Duration;

use toolwright_core::approval::{InboxStore, Kept, QuestionState};
use toolwright_core::context::Clock;
use toolwright_core::store::StoreError;

/// How often the store is asked whether there is an answer.
const LOOK: Duration = Duration::from_millis(250);

/// How a question ended.
pub(super) enum Ended<A> {
    /// With this answer.
    Answered(A),
    /// Nobody answered in time.
    Expired,
    /// It was taken back.
    Withdrawn,
}

/// An id that people can type: the kind and eight hex digits.
pub(crate) fn new_id(kind: &str) -> String {
    let digits = uuid::Uuid::new_v4().simple().to_string();
    format!("{kind}_{}", digits.get(..8).unwrap_or(&digits))
}

/// A new question.
pub(super) fn kept<Q, A>(kind: &str, request: Q, clock: &dyn Clock, expiry: Duration) -> Kept<Q, A> {
    let created_ms = clock.wall_ms();
    let expiry = u64::try_from(expiry.as_millis()).unwrap_or(u64::MAX);
    Kept {
        id: new_id(kind),
        request,
        created_ms,
        expires_ms: created_ms.saturating_add(expiry),
        state: QuestionState::Pending,
        decision: None,
        decided_by: None,
    }
}

/// A question that somebody waits for; dropped, it is withdrawn.
pub(super) struct Pending<'a> {
    store: &'a Arc<dyn InboxStore>,
    id: &'a str,
    is_open: bool,
}

impl<'a> Pending<'a> {
    /// The question with this id, which is about to be put into the store: whoever waits for that may be dropped when it
    /// is there already.
    pub(super) fn new(store: &'a Arc<dyn InboxStore>, id: &'a str) -> Self {
        Self { store, id, is_open: true }
    }

    /// Waits until it is answered or `expiry` is over. `look` says how it stands.
    ///
    /// # Errors
    /// The store cannot say.
    pub(super) async fn ended<Q, A, F>(
        mut self,
        expiry: Duration,
        look: impl Fn() -> F + Send,
    ) -> Result<Ended<A>, StoreError>
    where
        Q: Send,
        A: Send,
        F: Future<Output = Result<Option<Kept<Q, A>>, StoreError>> + Send,
    {
        let mut expired = std::pin::pin!(tokio::time::sleep(expiry));
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = &mut expired => self.store.close_question(self.id, QuestionState::Expired).await?,
            }
            // Closed or not: an answer that came before counts.
            let Some(found) = look().await? else {
                return Err(StoreError::NotFound(format!("question {}", self.id)));
            };
            let ended = match (found.state, found.decision) {
                (QuestionState::Pending, _) => continue,
                (QuestionState::Approved | QuestionState::Denied, Some(answer)) => Ended::Answered(answer),
                (QuestionState::Expired, _) => Ended::Expired,
                (QuestionState::Withdrawn | QuestionState::Approved | QuestionState::Denied, _) => Ended::Withdrawn,
            };
            self.is_open = false;
            return Ok(ended);
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (store, id) = (Arc::clone(self.store), self.id.to_owned());
        // Else it expires by itself.
        runtime.spawn(async move { store.close_question(&id, QuestionState::Withdrawn).await });
    }
}
