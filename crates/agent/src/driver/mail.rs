//! The mailbox of a run: what the session log has for its conversation, and waiting for it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use toolwright_core::cancel::CancelCause;
use toolwright_core::job::{JobFilter, JobRecord, JobScope, JobState};
use toolwright_core::store::todo::{TODO_ROOT, TodoList};
use toolwright_core::store::{LogMessage, LogRow, MessageKind, StoreError};

use super::run_calls::UsageMeter;
use super::{Driver, DriverError, RunOptions};
use crate::run::{RunState, SessionNotice};

/// Messages that one turn tells.
const MAX_MAIL: usize = 16;
/// How often a run that waits looks whether there is something left to wait for.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long one wait of a resident run takes.
const WAIT: Duration = Duration::from_secs(3600);
/// Jobs that are looked at for one that goes on.
const MAX_JOBS: usize = 1_000;

impl Driver {
    /// The messages of the session that the conversation does not have yet, oldest first, at most [`MAX_MAIL`].
    pub(super) async fn unread(&self, state: &RunState, options: &RunOptions) -> Result<Vec<LogRow>, DriverError> {
        let log = &self.executor.services().log;
        Ok(log.unread(&options.session.id, state.last_notice(), MAX_MAIL).await?)
    }

    /// The unread messages of a run that has its answer; none if they cannot make it go on.
    pub(super) async fn unread_messages_after_answer(
        &self,
        state: &RunState,
        options: &RunOptions,
    ) -> Result<Vec<LogRow>, DriverError> {
        let can_go_on = options.has_own_session()
            || (self.job_wait.is_some() && state.can_wake())
            || Self::waits_for_children(state, options);
        if can_go_on { self.unread(state, options).await } else { Ok(Vec::new()) }
    }

    /// What unread messages tell. What jobs used whose ends they tell is metered.
    pub(super) async fn mail(
        &self,
        state: &RunState,
        unread: Vec<LogRow>,
        meter: &UsageMeter,
        options: &RunOptions,
    ) -> Result<Vec<SessionNotice>, StoreError> {
        let mail = self.notices(unread).await?;
        for job in mail.iter().filter_map(|(_, job)| job.as_ref()) {
            if job.run.as_deref() == Some(&*options.run_id) {
                meter.job_ended(&state.config().model, job);
            }
        }
        Ok(mail.into_iter().map(|(notice, _)| notice).collect())
    }

    /// The to-do list of the session.
    pub(super) async fn todo(&self, options: &RunOptions) -> Result<TodoList, StoreError> {
        match self.executor.services().log.values(&options.session.id, TODO_ROOT).await {
            Ok(rows) => Ok(TodoList::of_rows(rows)),
            // Without a log there is no list.
            Err(StoreError::Unsupported(_)) => Ok(TodoList::default()),
            Err(error) => Err(error),
        }
    }

    /// What messages tell, with the jobs whose ends they tell.
    async fn notices(&self, rows: Vec<LogRow>) -> Result<Vec<(SessionNotice, Option<JobRecord>)>, StoreError> {
        let mut mail = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(message) = row.message() else { continue };
            let job = self.job(message).await?;
            let text = job.as_ref().map_or_else(|| message.notice(row.author.name()), JobRecord::message);
            mail.push((SessionNotice { seq: row.seq, kind: message.kind, text, source: message.source() }, job));
        }
        Ok(mail)
    }

    /// Notes in the store what the saved state has told, and what its task follows from. Other runs of the session begin
    /// behind it, and what was told can be removed. If this is lost, the state still knows. Counts the hops anew.
    pub(super) async fn note_mail(&self, (seq, since): (u64, u64), options: &RunOptions) -> Result<(), StoreError> {
        let (log, session) = (&self.executor.services().log, &options.session.id);
        // One follows the other into the store without a wait between them.
        let (noted, hops) = tokio::join!(log.set_cursor(session, seq, since), log.hops(session));
        noted?;
        options.hops.store(hops?, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the model is asked again after its answer: somebody has written to a run that another started, or a message
    /// has come while jobs of the run went on, if the driver waits for them. `open` are its jobs and `unread` its messages
    /// as they were read before, the jobs first: the message of one that has ended since can be read.
    pub(super) async fn continue_with_mail(
        &self,
        state: &mut RunState,
        meter: &UsageMeter,
        (mut open, mut unread): (Vec<JobRecord>, Vec<LogRow>),
        options: &RunOptions,
    ) -> Result<bool, DriverError> {
        let may_be_written_to = options.has_own_session();
        let limit = self.job_wait.filter(|_| state.can_wake());
        if !may_be_written_to && limit.is_none() {
            return Ok(false);
        }
        if !self.agents_among(&open, options).is_empty() {
            // They were waited for meanwhile.
            unread = self.unread(state, options).await?;
        }
        let mut mail = self.mail(state, unread, meter, options).await?;
        if may_be_written_to && state.reopen_for_messages(&mail) {
            return Ok(true);
        }
        let Some(limit) = limit else { return Ok(false) };
        let until = Instant::now() + state.time_left().map_or(limit, |left| left.min(limit));
        while mail.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !open.iter().any(|job| job.state != JobState::WaitingInput) {
                return Ok(false);
            }
            if self.wait_for_mail(state, options, left.min(POLL_INTERVAL)).await?.is_some() {
                return Ok(false);
            }
            open = self.open_jobs(options).await?;
            unread = self.unread(state, options).await?;
            mail = self.mail(state, unread, meter, options).await?;
        }
        // The usage of what ended may leave no other turn.
        self.take_used(state, meter, options).await?;
        state.wake(&mail);
        Ok(state.waits_for_model())
    }

    /// Waits until messages have come that begin a new task of a run that has ended, and begins it: call
    /// [`Driver::run`] then. A run that has not ended is not waited for. A caller may go away at any time; nothing is lost.
    ///
    /// # Errors
    /// When the session log cannot be read.
    pub async fn receive(&self, state: &mut RunState, options: &RunOptions) -> Result<(), StoreError> {
        let (log, session) = (&self.executor.services().log, &options.session.id);
        let before = self.last_notice(state, options).await?;
        let mut after = before;
        while state.is_over() {
            if log.wait(session, after, WAIT).await? {
                let rows = log.messages(session, after, MAX_MAIL).await?;
                let news: Vec<SessionNotice> =
                    self.notices(rows).await?.into_iter().map(|(notice, _)| notice).collect();
                if state.is_woken_by(&news) {
                    let meter = UsageMeter::of(options, self.prices(), state.used_by_jobs());
                    let unread = log.unread(session, state.last_notice(), MAX_MAIL).await?;
                    state.receive(&self.mail(state, unread, &meter, options).await?);
                    state.skip_messages_until(before);
                    meter.count(state);
                    break;
                }
                after = news.last().map_or(after, |notice| notice.seq);
            }
        }
        Ok(())
    }

    /// Waits until the session has a message that the conversation does not have, at most `limit`. Returns why the run was
    /// cancelled, if it was.
    async fn wait_for_mail(
        &self,
        state: &RunState,
        options: &RunOptions,
        limit: Duration,
    ) -> Result<Option<CancelCause>, StoreError> {
        let after = self.last_notice(state, options).await?;
        tokio::select! {
            came = self.executor.services().log.wait(&options.session.id, after, limit) => came.map(|_| None),
            cause = options.cancel.cancelled() => Ok(Some(cause)),
        }
    }

    /// The number of the last message that the conversation has. A run that was told none begins where others of its
    /// session ended.
    pub(super) async fn last_notice(&self, state: &RunState, options: &RunOptions) -> Result<u64, StoreError> {
        let session = &options.session.id;
        match state.last_notice() {
            0 if !options.has_own_session() => self.executor.services().log.cursor(session, session.as_str()).await,
            seq => Ok(seq),
        }
    }

    /// The job whose end a message tells, while its record is kept.
    pub(super) async fn job(&self, message: &LogMessage) -> Result<Option<JobRecord>, StoreError> {
        if message.kind != MessageKind::Job {
            return Ok(None);
        }
        match self.executor.services().jobs.get(JobScope::All, &message.subject).await {
            Err(StoreError::NotFound(_)) => Ok(None),
            found => found.map(Some),
        }
    }

    /// The jobs of the session that have not ended.
    pub(super) async fn open_jobs(&self, options: &RunOptions) -> Result<Vec<JobRecord>, StoreError> {
        let scope = JobScope::Of(&options.session);
        match self.executor.services().jobs.list(scope, JobFilter::Open, MAX_JOBS).await {
            Err(StoreError::Unsupported(_)) => Ok(Vec::new()),
            open => open,
        }
    }
}
