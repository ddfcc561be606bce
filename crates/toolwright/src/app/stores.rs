//! Gives access to the data in an instance's state directory: runs, questions, approvals, jobs and pins.

use std::sync::Arc;
use std::time::Duration;

use toolwright_core::approval::{AnswerSource, Approver, EXPIRY, NoApprover};
use toolwright_core::inbox::{FormQuestion, InboxStore, Question};
use toolwright_core::pins::{Pin, PinSource};
use toolwright_core::session::{Session, SessionId};
use toolwright_core::store::{ApprovalStore, ObjectStore, PinStore, RunStore, StoreError};
use toolwright_core::{Policy, Profile};
use toolwright_runtime::{FormInbox, FormInboxOptions, Inbox, InboxOptions, JobManager, RecoveryOptions, RunContext};

use super::Toolwright;
use crate::error::Error;

/// How long questions of a firing, a group member or a job taken over wait for a person, who may be away.
pub(super) const QUESTION_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often other processes' decisions about pins are looked for.
const POLL: Duration = Duration::from_secs(1);

impl Toolwright {
    /// Returns the saved runs.
    #[must_use]
    pub fn runs(&self) -> Arc<dyn RunStore> {
        Arc::clone(&self.store) as _
    }

    /// Returns the objects that clients of model APIs refer to by id.
    #[must_use]
    pub(crate) fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.store) as _
    }

    /// Returns the questions that wait for a person.
    #[must_use]
    pub fn inbox(&self) -> Arc<dyn InboxStore> {
        Arc::clone(&self.store) as _
    }

    /// Returns the standing approvals.
    #[must_use]
    pub fn approvals(&self) -> Arc<dyn ApprovalStore> {
        Arc::clone(&self.store) as _
    }

    /// Forgets the last accepted version of a catalogue, so that an older one is accepted the next time. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn forget_catalogue(&self, name: &str) -> Result<bool, Error> {
        Ok(toolwright_providers::catalogue::forget(&*self.store, name).await?)
    }

    /// Creates an approver that asks through the inbox. It calls `on_question` with each question once the inbox has
    /// stored it. With [`AnswerSource::Elsewhere`] jobs wait for the answer instead of calls.
    #[must_use]
    pub fn ask_inbox(&self, answers: AnswerSource, on_question: impl Fn(&Question) + Send + Sync + 'static) -> Inbox {
        self.ask_inbox_for(EXPIRY, answers, on_question)
    }

    /// Like [`Toolwright::ask_inbox`], with this expiry of questions unless `defaults.approval_time` is set.
    pub(crate) fn ask_inbox_for(
        &self,
        usual: Duration,
        answers: AnswerSource,
        on_question: impl Fn(&Question) + Send + Sync + 'static,
    ) -> Inbox {
        let expiry = self.config().sections.defaults.approval_time.unwrap_or(usual);
        let parts = InboxOptions::new(self.inbox(), Arc::clone(&self.executor.services().clock));
        Inbox::new(InboxOptions { answers, expiry, on_question: Arc::new(on_question), ..parts })
    }

    /// Creates an inbox for the forms of tools' sources. It calls `on_form` with each form once the inbox has stored
    /// it. Calls wait for the answers.
    #[must_use]
    pub fn ask_forms(&self, on_form: impl Fn(&FormQuestion) + Send + Sync + 'static) -> FormInbox {
        let parts = FormInboxOptions::new(self.inbox(), Arc::clone(&self.executor.services().clock));
        FormInbox::new(FormInboxOptions { on_question: Arc::new(on_form), ..parts })
    }

    /// Returns the job manager.
    #[must_use]
    pub fn jobs(&self) -> &Arc<JobManager> {
        &self.jobs
    }

    /// From now on, takes over jobs of dead processes, and offers the job tools once there is a job. For long-lived
    /// processes. If such a job still needs a person's decision, the inbox asks for it.
    pub fn recover_jobs(self: &Arc<Self>) {
        self.follow_jobs(None);
    }

    /// Like [`Toolwright::recover_jobs`], for the jobs of one session only: for processes that end with that session.
    pub fn recover_jobs_of(self: &Arc<Self>, session: SessionId) {
        self.follow_jobs(Some(session));
    }

    /// Offers the job tools once there is a job.
    pub(crate) fn offer_jobs_after_first(&self) {
        let (first, catalogue) = (self.jobs.first(), Arc::downgrade(&self.catalogue));
        tokio::spawn(async move {
            if first.await
                && let Some(catalogue) = catalogue.upgrade()
            {
                catalogue.offer_jobs().await;
            }
        });
    }

    fn follow_jobs(self: &Arc<Self>, session: Option<SessionId>) {
        self.offer_jobs_after_first();
        // A process of one session has its person; jobs of others, like those of firings, may have to wait for one.
        let usual = if session.is_some() { EXPIRY } else { QUESTION_TIMEOUT };
        let app = Arc::downgrade(self);
        let context = move |session: Session, snapshot| {
            let (policy, approver): (_, Arc<dyn Approver>) = match app.upgrade() {
                Some(app) => {
                    let inbox = app.ask_inbox_for(usual, AnswerSource::Here, |_| ());
                    (app.config().policy(None, Profile::Ask), Arc::new(inbox))
                }
                None => (Policy::of(Profile::Ask), Arc::new(NoApprover { remedy: "the program is ending".into() })),
            };
            RunContext::new(Arc::new(session), snapshot, Arc::new(policy), approver)
        };
        let (catalogue, root) = (Arc::clone(&self.catalogue), self.config().root.clone());
        self.executor.recover_jobs(RecoveryOptions { catalogue, root, session, context: Arc::new(context) });
    }

    /// Returns the pinned definitions of all third-party sources in the state directory.
    #[must_use]
    pub fn pins(&self) -> Arc<dyn PinStore> {
        Arc::clone(&self.store) as _
    }

    /// Returns the pins of the configured sources, see [`Toolwright::pins_of`].
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn pins_in_force(&self) -> Result<Vec<Pin>, Error> {
        Ok(self.configured_pins().await?)
    }

    /// Like [`Toolwright::pins_in_force`], with the error of the store.
    pub(super) async fn configured_pins(&self) -> Result<Vec<Pin>, StoreError> {
        let sources = self.catalogue.sources();
        self.pins_in_store(sources.iter().map(|provider| PinSource::of(&**provider)).collect()).await
    }

    /// Returns the pins of these sources, by provider and tool. Each pin belongs to one source, and so does a decision
    /// about it.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn pins_of(&self, sources: Vec<PinSource>) -> Result<Vec<Pin>, Error> {
        Ok(self.pins_in_store(sources).await?)
    }

    async fn pins_in_store(&self, mut sources: Vec<PinSource>) -> Result<Vec<Pin>, StoreError> {
        sources.sort();
        sources.dedup();
        let mut all = Vec::new();
        for source in sources {
            let pins = self.store.pins(Some(&source)).await?;
            all.extend(pins.into_iter().map(|pin| Pin { source: source.clone(), ..pin }));
        }
        Ok(all)
    }

    /// From now on, applies decisions about pins by any process. For long-lived processes.
    pub fn follow_pins(self: &Arc<Self>) {
        let (pins, catalogue) = (Arc::clone(&self.pins), Arc::downgrade(&self.catalogue));
        tokio::spawn(async move {
            let mut last_seen = None;
            loop {
                tokio::time::sleep(POLL).await;
                let Some(catalogue) = catalogue.upgrade() else { return };
                let decisions = pins.decisions().await;
                if decisions.is_some() && decisions != last_seen {
                    catalogue.recheck_pins().await;
                    last_seen = decisions;
                }
            }
        });
    }
}
