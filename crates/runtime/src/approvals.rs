//! Asks a person through the inbox: to approve a call, or to fill in a form of a tool's source. The store keeps the
//! question, and any process may answer it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use toolwright_core::approval::{AnswerSource, ApprovalDecision, ApprovalRequest, Approver, EXPIRED, EXPIRY};
use toolwright_core::context::Clock;
use toolwright_core::inbox::{FormQuestion, FormReply, FormRequest, InboxItem, InboxStore, Question, QuestionState};
use toolwright_core::job::JobRecord;
use toolwright_core::store::StoreError;

use crate::store::SqliteStore;

/// How often the store is checked for an answer.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How long after its expiry a question may still be closed normally.
const SLACK: Duration = Duration::from_secs(5);

/// The parts of an [`Inbox`].
#[derive(Clone)]
pub struct InboxOptions {
    /// The store of questions.
    pub store: Arc<dyn InboxStore>,
    /// The clock for creation and expiry times.
    pub clock: Arc<dyn Clock>,
    /// How long a question stays open.
    pub expiry: Duration,
    /// Whether the caller waits for the answer ([`AnswerSource::Here`]), or gets the id of a job that waits.
    pub answers: AnswerSource,
    /// Called with each question once the store has it. Must not block.
    pub on_question: Arc<dyn Fn(&Question) + Send + Sync>,
}

impl InboxOptions {
    /// Creates options for a store with the default expiry and without notification.
    #[must_use]
    pub fn new(store: Arc<dyn InboxStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, expiry: EXPIRY, answers: AnswerSource::Elsewhere, on_question: Arc::new(|_| {}) }
    }
}

/// The approver that asks through the inbox. An answer applies to one question, and so to one call with its arguments
/// and definition; no other call inherits it.
#[derive(Clone)]
pub struct Inbox(InboxOptions);

impl Inbox {
    /// Creates an approver with these options.
    #[must_use]
    pub fn new(options: InboxOptions) -> Self {
        Self(options)
    }

    async fn answer(&self, request: &ApprovalRequest) -> Result<ApprovalDecision, StoreError> {
        let InboxOptions { store, clock, expiry, on_question, .. } = &self.0;
        let question = new_item("ask", request.clone().for_display(), &**clock, *expiry);
        let mut pending = PendingQuestion::new(store, &question.id);
        if let Some(decision) = store.put_question(&question).await? {
            pending.is_open = false;
            return Ok(decision);
        }
        on_question(&question);
        pending.ended(*expiry, || store.take_question(&question.id)).await.map(QuestionEnd::decision)
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

    fn answers(&self) -> AnswerSource {
        self.0.answers
    }

    fn answer_timeout(&self) -> Duration {
        self.0.expiry.saturating_add(SLACK)
    }
}

/// Asks about a job of another process. The question that the process left open stays open, and an answer given
/// meanwhile counts. A missing or withdrawn question is asked again.
pub(crate) struct ResumedQuestion {
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) job: JobRecord,
    /// The approver that asks again.
    pub(crate) now: Arc<dyn Approver>,
}

impl ResumedQuestion {
    async fn earlier_decision(&self, request: &ApprovalRequest) -> Result<Option<ApprovalDecision>, StoreError> {
        let store = Arc::clone(&self.store) as Arc<dyn InboxStore>;
        for id in self.store.questions_of_job(&self.job.id).await? {
            let Some(question) = store.take_question(&id).await? else { continue };
            if question.state == QuestionState::Withdrawn {
                continue;
            }
            let earlier = &question.request;
            if earlier.definition != request.definition || earlier.principal != request.principal {
                break;
            }
            let left = Duration::from_millis(question.expires_ms.saturating_sub(self.clock.wall_ms()));
            let ended = PendingQuestion::new(&store, &id).ended(left, || store.take_question(&id)).await?;
            return Ok(Some(ended.decision()));
        }
        // The question is asked again, so the old one must not be answered too.
        self.store.withdraw_questions(&self.job.id).await?;
        Ok(None)
    }
}

#[async_trait]
impl Approver for ResumedQuestion {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        match self.earlier_decision(request).await {
            Ok(Some(decision)) => decision,
            Ok(None) => self.now.ask(request).await,
            Err(error) => {
                let reason = format!("{}; and earlier questions cannot be looked up: {error}", request.reason);
                ApprovalDecision::Deny { reason }
            }
        }
    }

    fn answer_timeout(&self) -> Duration {
        self.now.answer_timeout()
    }
}

/// The parts of a [`FormInbox`].
#[derive(Clone)]
pub struct FormInboxOptions {
    /// The store of questions.
    pub store: Arc<dyn InboxStore>,
    /// The clock for creation and expiry times.
    pub clock: Arc<dyn Clock>,
    /// How long a question stays open.
    pub expiry: Duration,
    /// Called with each question once the store has it. Must not block.
    pub on_question: Arc<dyn Fn(&FormQuestion) + Send + Sync>,
}

impl FormInboxOptions {
    /// Creates options for a store with the expiry of approval questions and without notification.
    #[must_use]
    pub fn new(store: Arc<dyn InboxStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, expiry: EXPIRY, on_question: Arc::new(|_| {}) }
    }
}

/// Asks people to fill in forms through the inbox. The store keeps the question, and this or another process answers
/// it.
#[derive(Clone)]
pub struct FormInbox(FormInboxOptions);

impl FormInbox {
    /// Creates an inbox with these options.
    #[must_use]
    pub fn new(options: FormInboxOptions) -> Self {
        Self(options)
    }

    /// Asks, and waits for the answer; `None` if nobody answered in time. Dropping the future withdraws the question.
    ///
    /// # Errors
    /// The store cannot save the question or read its state.
    pub async fn ask(&self, request: FormRequest) -> Result<Option<FormReply>, StoreError> {
        let FormInboxOptions { store, clock, expiry, on_question } = &self.0;
        let question = new_item("form", request, &**clock, *expiry);
        let pending = PendingQuestion::new(store, &question.id);
        store.put_form(&question).await?;
        on_question(&question);
        match pending.ended(*expiry, || store.take_form(&question.id)).await? {
            QuestionEnd::Answered(reply) => Ok(Some(reply)),
            QuestionEnd::Expired | QuestionEnd::Withdrawn => Ok(None),
        }
    }
}

/// The end of a question.
enum QuestionEnd<A> {
    /// A person answered.
    Answered(A),
    /// Nobody answered in time.
    Expired,
    /// The question was withdrawn.
    Withdrawn,
}

impl QuestionEnd<ApprovalDecision> {
    /// Returns the decision about the call.
    fn decision(self) -> ApprovalDecision {
        let reason = match self {
            Self::Answered(decision) => return decision,
            Self::Expired => EXPIRED.to_owned(),
            Self::Withdrawn => "the question was withdrawn".to_owned(),
        };
        ApprovalDecision::Deny { reason }
    }
}

/// Returns an id that people can type: the kind and eight hex digits.
pub(crate) fn new_id(kind: &str) -> String {
    let digits = uuid::Uuid::new_v4().simple().to_string();
    format!("{kind}_{}", digits.get(..8).unwrap_or(&digits))
}

/// Creates a new question.
fn new_item<Q, A>(kind: &str, request: Q, clock: &dyn Clock, expiry: Duration) -> InboxItem<Q, A> {
    let created_ms = clock.wall_ms();
    let expiry = u64::try_from(expiry.as_millis()).unwrap_or(u64::MAX);
    InboxItem {
        id: new_id(kind),
        request,
        created_ms,
        expires_ms: created_ms.saturating_add(expiry),
        state: QuestionState::Pending,
        decision: None,
        decided_by: None,
    }
}

/// A question with a waiting caller. Dropping it withdraws the question.
struct PendingQuestion<'a> {
    store: &'a Arc<dyn InboxStore>,
    id: &'a str,
    is_open: bool,
}

impl<'a> PendingQuestion<'a> {
    /// Registers a question just before it is stored, so that it is withdrawn even if the caller is dropped while the
    /// store writes it.
    fn new(store: &'a Arc<dyn InboxStore>, id: &'a str) -> Self {
        Self { store, id, is_open: true }
    }

    /// Waits until it is answered or `expiry` has passed. `look` reads its current state.
    ///
    /// # Errors
    /// The store cannot read it.
    async fn ended<Q, A, F>(
        mut self,
        expiry: Duration,
        look: impl Fn() -> F + Send,
    ) -> Result<QuestionEnd<A>, StoreError>
    where
        Q: Send,
        A: Send,
        F: Future<Output = Result<Option<InboxItem<Q, A>>, StoreError>> + Send,
    {
        let mut expired = std::pin::pin!(tokio::time::sleep(expiry));
        loop {
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = &mut expired => self.store.close_question(self.id, QuestionState::Expired).await?,
            }
            // Read even after closing, because an earlier answer counts.
            let Some(found) = look().await? else {
                return Err(StoreError::NotFound(format!("question {}", self.id)));
            };
            let ended = match (found.state, found.decision) {
                (QuestionState::Pending, _) => continue,
                (QuestionState::Approved | QuestionState::Denied, Some(answer)) => QuestionEnd::Answered(answer),
                (QuestionState::Expired, _) => QuestionEnd::Expired,
                (QuestionState::Withdrawn | QuestionState::Approved | QuestionState::Denied, _) => {
                    QuestionEnd::Withdrawn
                }
            };
            self.is_open = false;
            return Ok(ended);
        }
    }
}

impl Drop for PendingQuestion<'_> {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (store, id) = (Arc::clone(self.store), self.id.to_owned());
        // Without a runtime the question expires by itself.
        runtime.spawn(async move { store.close_question(&id, QuestionState::Withdrawn).await });
    }
}
