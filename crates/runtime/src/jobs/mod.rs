//! Jobs: calls that continue after their caller was answered. The store keeps them, so that a crash loses none.
//!
//! A job is committed before its id is returned, as `running` before its tool is called, and with its outcome before
//! that is reported. One process owns it and renews a lease for all its jobs. Other processes write requests about a
//! job into the store, which its owner checks twice a second.

mod live;
mod log;
mod requests;
mod trigger_files;
mod trigger_runner;
pub mod triggers;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::job::{JobRecord, JobState};
use toolwright_core::outcome::Outcome;
use toolwright_core::store::StoreError;

use crate::store::SqliteStore;
use crate::store::jobs::{ClaimedJob, JobStep, NewJob};

pub(crate) use live::{JobEvents, LiveJob};
use log::{JobLog, LogFiles};

/// The most jobs of one process at once.
const MAX_LIVE: usize = 10_000;

/// The jobs of this process, and access to those of others. Shared by `Arc`.
pub struct JobManager {
    store: Arc<SqliteStore>,
    logs: PathBuf,
    live: Mutex<HashMap<String, Arc<LiveJob>>>,
    keeping: AtomicBool,
    closed: AtomicBool,
    /// Ends of jobs that could not be committed yet.
    unkept: Mutex<Vec<(Arc<LiveJob>, JobStep)>>,
    /// Whether this process has ever had a job.
    begun: watch::Sender<bool>,
    /// Changes when a job of this process ends.
    ended: watch::Sender<u64>,
}

impl std::fmt::Debug for JobManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobManager").field("live", &self.live().len()).finish_non_exhaustive()
    }
}

/// The result of beginning a job.
pub(crate) enum JobBeginning {
    /// A new job of this process.
    New(Arc<LiveJob>),
    /// The id of the job that the call already has.
    Known(String),
}

impl JobManager {
    /// Creates the manager of the jobs in `store`. Their logs are in the folder `jobs` of `state_dir`.
    #[must_use]
    pub fn new(store: Arc<SqliteStore>, state_dir: &Path) -> Arc<Self> {
        Arc::new(Self {
            store,
            logs: state_dir.join("jobs"),
            live: Mutex::default(),
            keeping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            unkept: Mutex::default(),
            begun: watch::Sender::new(false),
            ended: watch::Sender::new(0),
        })
    }

    /// Returns how many jobs this process has.
    #[must_use]
    pub fn count(&self) -> usize {
        self.live().len()
    }

    /// Settles the jobs of dead processes: any process may start those that may run again; the others become `unknown`.
    /// Returns how many became `unknown`.
    ///
    /// # Errors
    /// [`StoreError`] of the store.
    pub async fn settle(&self) -> Result<usize, StoreError> {
        self.store.settle_jobs().await
    }

    /// Ends the jobs of this process within `grace`. Jobs that were not dispatched or may run again are released for
    /// other processes; the others are cancelled. A job that does not end becomes `unknown` after this process.
    pub async fn shut_down(&self, grace: Duration) {
        self.closed.store(true, Ordering::Release);
        let live: Vec<Arc<LiveJob>> = self.live().values().cloned().collect();
        for job in &live {
            job.cancel.cancel(CancelCause::Shutdown);
        }
        let mut ended = self.ended.subscribe();
        let all_left = async { while self.count() > 0 && ended.changed().await.is_ok() {} };
        if tokio::time::timeout(grace, all_left).await.is_err() {
            tracing::warn!("{} jobs did not end within {grace:?}", self.count());
        }
    }

    /// Waits for the first job of this process; `false` if there will be none.
    pub fn first(&self) -> impl Future<Output = bool> + Send + use<> {
        let mut begun = self.begun.subscribe();
        async move { begun.wait_for(|begun| *begun).await.is_ok() }
    }

    /// Waits until this process has no jobs.
    pub async fn all_ended(&self) {
        let mut ended = self.ended.subscribe();
        while self.count() > 0 && ended.changed().await.is_ok() {}
    }

    /// Waits until ending this process would lose no work. Does not wait for jobs that another process may start or
    /// repeat, or that wait for input.
    pub async fn wait_until_safe_to_exit(&self) {
        loop {
            let at_stake = self.live().values().find(|job| job.would_lose_work()).cloned();
            let Some(job) = at_stake else { return };
            job.wait_until_settled().await;
        }
    }

    /// Commits a new job of this process. `cancel` ends it, and `events` reports it to observers.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        job: NewJob,
        cancel: Cancel,
        events: JobEvents,
    ) -> Result<JobBeginning, StoreError> {
        if self.is_closed() {
            return Err(StoreError::Refused("no job begins any more: the program is shutting down".into()));
        }
        if self.count() >= MAX_LIVE {
            return Err(StoreError::Quota(format!(
                "{MAX_LIVE} jobs are under way, which is the limit; try again later"
            )));
        }
        let (id, state, resumable) = (job.record.id.clone(), job.record.state, job.resumable);
        // Registered before the row exists, so that the row is never seen without its owner.
        let live = self.enter(id.clone(), state, cancel, resumable, events);
        if self.is_closed() {
            live.cancel.cancel(CancelCause::Shutdown);
        }
        match self.store.create_job(job).await {
            Ok(created) if created == id => {
                self.keep();
                live.events.started(state);
                Ok(JobBeginning::New(live))
            }
            Ok(existing_id) => {
                self.live().remove(&id);
                Ok(JobBeginning::Known(existing_id))
            }
            Err(error) => {
                self.live().remove(&id);
                Err(error)
            }
        }
    }

    /// Takes those of these jobs that still have no owner.
    pub(crate) async fn take(
        self: &Arc<Self>,
        ids: Vec<String>,
        events_of: impl Fn(&JobRecord) -> JobEvents,
    ) -> Result<Vec<(ClaimedJob, Arc<LiveJob>)>, StoreError> {
        let taken = self.store.take_jobs(ids).await?;
        self.keep();
        let entered = |job: ClaimedJob| {
            let (id, events) = (job.record.id.clone(), events_of(&job.record));
            let live = self.enter(id, JobState::Pending, Cancel::new(), job.resumable, events);
            live.events.started(JobState::Pending);
            (job, live)
        };
        Ok(taken.into_iter().map(entered).collect())
    }

    /// Ends a job of this process or releases it. If the state cannot be committed, it is retried later. If this
    /// process ends first, the job is settled as that of a dead process.
    pub(crate) async fn end_or_release(&self, live: &Arc<LiveJob>, step: JobStep) {
        if let Err(step) = self.try_leave(live, step).await {
            self.lock_unsaved().push((Arc::clone(live), step));
        }
    }

    /// Commits the ends that could not be committed before.
    async fn retry_commits(&self) {
        let unkept = std::mem::take(&mut *self.lock_unsaved());
        for (live, step) in unkept {
            self.end_or_release(&live, step).await;
        }
    }

    async fn try_leave(&self, live: &LiveJob, step: JobStep) -> Result<(), JobStep> {
        let state = match &step {
            JobStep::Ended(state, _) => *state,
            _ => JobState::Pending,
        };
        match live.step(&step, state).await {
            Ok(()) => {
                live.mark_released(state);
                if matches!(step, JobStep::Ended(..))
                    && let Err(error) = self.return_unread(&live.id).await
                {
                    tracing::warn!(job = live.id, "messages that an agent did not read were not sent back: {error}");
                }
            }
            // It is over, or another process owns it.
            Err(StoreError::NotFound(_)) => {
                live.events.end_not_stored(JobState::Unknown);
                live.mark_released(JobState::Unknown);
            }
            Err(error) => {
                tracing::error!(job = live.id, "the end of a job is not kept yet: {error}");
                return Err(step);
            }
        }
        self.live().remove(&live.id);
        self.ended.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Returns whether it is shutting down, and takes no jobs of others.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn store(&self) -> &Arc<SqliteStore> {
        &self.store
    }

    /// Returns the current record of a job.
    pub(crate) async fn record(&self, id: &str) -> Result<JobRecord, StoreError> {
        self.store.job(id).await
    }

    /// Ends a job without an owner.
    pub(crate) async fn abandon(&self, id: &str, outcome: &Outcome, state: JobState) -> Result<(), StoreError> {
        self.store.end_abandoned(id, state, outcome).await.map(drop)
    }

    fn enter(&self, id: String, state: JobState, cancel: Cancel, resumable: bool, events: JobEvents) -> Arc<LiveJob> {
        let log = JobLog::new(LogFiles::of(&self.logs, &id));
        let live = Arc::new(LiveJob::new(id.clone(), state, cancel, resumable, log, events, &self.store));
        self.live().insert(id, Arc::clone(&live));
        self.begun.send_if_modified(|begun| !std::mem::replace(begun, true));
        live
    }

    fn find(&self, id: &str) -> Option<Arc<LiveJob>> {
        self.live().get(id).cloned()
    }

    fn lock_unsaved(&self) -> MutexGuard<'_, Vec<(Arc<LiveJob>, JobStep)>> {
        self.unkept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> MutexGuard<'_, HashMap<String, Arc<LiveJob>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
