//! The mailbox of a run: what the session log has for its conversation, and waiting for it.

use std::time::Duration;

use tokio::time::Instant;
use toolwright_core::cancel::CancelCause;
use toolwright_core::job::{JobRecord, JobScope, JobState, Listed};
use toolwright_core::store::todo::{TODO_ROOT, TodoList};
use toolwright_core::store::{LogMessage, MessageKind, StoreError, ValueAt};

use super::run_calls::Meter;
use super::{Driver, DriverError, RunOptions};
use crate::run::{Notice, RunState};

/// Messages that one turn tells.
const MAX_MAIL: usize = 16;
/// How often a run that waits looks whether there is something left to wait for.
const LOOK: Duration = Duration::from_secs(1);
/// How long one wait of a resident run takes.
const WAIT: Duration = Duration::from_secs(3600);
/// Jobs that are looked at for one that goes on.
const MAX_JOBS: usize = 1_000;

impl Driver {
    /// The messages of the session that the conversation does not have yet, oldest first, at most a few. What jobs used
    /// whose ends they tell is metered.
    pub(super) async fn mail(
        &self,
        state: &RunState,
        meter: &Meter,
        options: &RunOptions,
    ) -> Result<Vec<Notice>, StoreError> {
        let mail = self.notices(self.last_notice(state, options).await?, options).await?;
        for job in mail.iter().filter_map(|(_, job)| job.as_ref()) {
            if job.run.as_deref() == Some(&*options.run_id) {
                meter.job_ended(&state.spec().model, job);
            }
        }
        Ok(mail.into_iter().map(|(notice, _)| notice).collect())
    }

    /// The to-do list of the session.
    pub(super) async fn todo(&self, options: &RunOptions) -> Result<TodoList, StoreError> {
        match self.executor.services().log.values(&options.session.id, TODO_ROOT).await {
            Ok(rows) => Ok(TodoList::of_value(ValueAt::of(rows, TODO_ROOT).value)),
            // Without a log there is no list.
            Err(StoreError::Unsupported(_)) => Ok(TodoList::default()),
            Err(error) => Err(error),
        }
    }

    /// The messages of the session behind the number `after`, with the jobs whose ends they tell.
    async fn notices(&self, after: u64, options: &RunOptions) -> Result<Vec<(Notice, Option<JobRecord>)>, StoreError> {
        let rows = self.executor.services().log.messages(&options.session.id, after, MAX_MAIL).await?;
        let mut mail = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(message) = row.message() else { continue };
            let job = self.job(message).await?;
            let text = job.as_ref().map_or_else(|| message.notice(row.author.name()), JobRecord::message);
            mail.push((Notice { seq: row.seq, kind: message.kind, text, source: message.source() }, job));
        }
        Ok(mail)
    }

    /// Notes in the store what the saved state has told. Other runs of the session begin behind it, and what was told can be
    /// removed. If this is lost, the state still knows.
    pub(super) async fn note_last_notice(&self, seq: u64, options: &RunOptions) -> Result<(), StoreError> {
        let session = &options.session.id;
        self.executor.services().log.set_cursor(session, session.as_str(), seq).await
    }

    /// Lets a run that another started, and that has answered, go on where somebody has written to it meanwhile. Returns
    /// whether the model is asked again.
    pub(super) async fn heed(
        &self,
        state: &mut RunState,
        meter: &Meter,
        options: &RunOptions,
    ) -> Result<bool, StoreError> {
        if options.parent.is_none() || options.is_part() {
            return Ok(false);
        }
        let mail = self.mail(state, meter, options).await?;
        Ok(state.go_on(&mail))
    }

    /// Waits while jobs of a run go on that has answered, if the driver waits for jobs, until there is a message. Returns
    /// whether the model is asked again.
    pub(super) async fn wake(
        &self,
        state: &mut RunState,
        meter: &Meter,
        options: &RunOptions,
    ) -> Result<bool, DriverError> {
        let Some(limit) = self.job_wait.filter(|_| state.can_wake()) else { return Ok(false) };
        let until = Instant::now() + state.time_left().map_or(limit, |left| left.min(limit));
        loop {
            let mail = self.mail(state, meter, options).await?;
            if !mail.is_empty() {
                // The usage of what ended may leave no other turn.
                self.take_used(state, meter, options).await?;
                state.wake(&mail);
                return Ok(state.waits_for_model());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.has_open_jobs(options).await? {
                return Ok(false);
            }
            if self.wait_for_mail(state, options, left.min(LOOK)).await?.is_some() {
                return Ok(false);
            }
        }
    }

    /// Waits until messages have come that begin a new task of a run that has ended, and begins it: call
    /// [`Driver::run`] then. A run that has not ended is not waited for. A caller may go away at any time; nothing is lost.
    ///
    /// # Errors
    /// When the session log cannot be read.
    pub async fn receive(&self, state: &mut RunState, options: &RunOptions) -> Result<(), StoreError> {
        let log = &self.executor.services().log;
        let mut after = self.last_notice(state, options).await?;
        while state.is_over() {
            if log.wait(&options.session.id, after, WAIT).await? {
                let news: Vec<Notice> =
                    self.notices(after, options).await?.into_iter().map(|(notice, _)| notice).collect();
                if state.is_woken_by(&news) {
                    let meter = Meter::of(options, self.prices(), state.used_by_jobs());
                    state.receive(&self.mail(state, &meter, options).await?);
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
    async fn last_notice(&self, state: &RunState, options: &RunOptions) -> Result<u64, StoreError> {
        let session = &options.session.id;
        match state.last_notice() {
            0 => self.executor.services().log.cursor(session, session.as_str()).await,
            seq => Ok(seq),
        }
    }

    /// The job whose end a message tells, while its record is kept.
    async fn job(&self, message: &LogMessage) -> Result<Option<JobRecord>, StoreError> {
        if message.kind != MessageKind::Job {
            return Ok(None);
        }
        match self.executor.services().jobs.get(JobScope::All, &message.subject).await {
            Err(StoreError::NotFound(_)) => Ok(None),
            found => found.map(Some),
        }
    }

    async fn has_open_jobs(&self, options: &RunOptions) -> Result<bool, StoreError> {
        let scope = JobScope::Of(&options.session);
        let open = self.executor.services().jobs.list(scope, Listed::Open, MAX_JOBS).await;
        match open {
            Ok(open) => Ok(open.iter().any(|job| job.state != JobState::WaitingInput)),
            Err(StoreError::Unsupported(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
