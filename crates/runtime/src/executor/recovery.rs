//! Jobs that other processes left: taken up where that is safe (SPEC section 8, Jobs).

use std::sync::{Arc, Weak};
use std::time::Duration;

use toolwright_core::arguments::Provenance;
use toolwright_core::call::ValidCall;
use toolwright_core::catalogue::{Entry, Snapshot};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::job::{JobRecord, JobState};
use toolwright_core::operation::Lineage;
use toolwright_core::outcome::Outcome;
use toolwright_core::session::{CallId, Session};
use toolwright_core::store::StoreError;

use super::admission::Admitted;
use super::background::How;
use super::{Executor, RunContext};
use crate::catalogue::Catalogue;
use crate::jobs::{JobManager, Live};
use crate::store::jobs::{Admission, TakenJob};

/// How often it is looked for jobs that nobody has.
const PERIOD: Duration = Duration::from_secs(1);
/// Jobs that are taken at a time: the rest is for the next time, or for another process.
const BATCH: usize = 256;
/// Jobs of this process above which it takes no more.
const ENOUGH: usize = 1024;
/// How often a job is dispatched at most: one that ends its process each time must not go on for ever.
const MAX_ATTEMPTS: u32 = 100;

/// Under what terms a process takes up the jobs of others.
#[derive(Clone)]
pub struct RecoveryTerms {
    /// What their tools are. Only a job whose tool is there is taken, under the definition it was admitted under.
    pub catalogue: Arc<Catalogue>,
    /// The terms of a call of a session: they hold for calls that the job's tool makes, and where a person is
    /// still to be asked.
    pub context: Arc<dyn Fn(Session, Arc<Snapshot>) -> RunContext + Send + Sync>,
}

impl Executor {
    /// Takes up jobs that dead processes left, now and from now on, until the executor is gone.
    pub fn recover_jobs(self: &Arc<Self>, terms: RecoveryTerms) {
        let executor = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PERIOD);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(executor) = Weak::upgrade(&executor) else { return };
                let Some(jobs) = executor.options.jobs.clone() else { return };
                match executor.recover(&jobs, &terms).await {
                    Ok(0) => {}
                    Ok(lost) => {
                        tracing::warn!("{lost} jobs were lost with their process; `toolwright jobs ls` names them")
                    }
                    Err(error) => tracing::warn!("jobs of dead processes could not be looked for: {error}"),
                }
            }
        });
    }

    /// Settles what dead processes left and starts what may be. Returns how many jobs were lost.
    async fn recover(self: &Arc<Self>, jobs: &Arc<JobManager>, terms: &RecoveryTerms) -> Result<usize, StoreError> {
        let lost = jobs.settle().await?;
        if jobs.is_closed() || jobs.count() >= ENOUGH {
            return Ok(lost);
        }
        let snapshot = terms.catalogue.snapshot();
        let mut wanted = Vec::new();
        for (id, tool, definition) in jobs.store().startable_jobs(BATCH).await? {
            match snapshot.get(tool.as_str()) {
                Some(entry) if entry.tool.hash() == definition => wanted.push(id),
                Some(_) => changed(jobs, &id).await?,
                // Another process may have it.
                None => {}
            }
        }
        if wanted.is_empty() {
            return Ok(lost);
        }
        let told = |job: &JobRecord| self.told(job, &Lineage::named(job.session.as_str()));
        for (job, live) in jobs.take(wanted, told).await? {
            if let Some(entry) = snapshot.get(job.record.tool.as_str()) {
                self.resume(jobs, job, &live, entry, &snapshot, terms);
            }
        }
        Ok(lost)
    }

    fn resume(
        self: &Arc<Self>,
        jobs: &Arc<JobManager>,
        job: TakenJob,
        live: &Arc<Live>,
        entry: &Arc<Entry>,
        snapshot: &Arc<Snapshot>,
        terms: &RecoveryTerms,
    ) {
        let TakenJob { record, plan, .. } = job;
        let session = Session { id: record.session, principal: plan.principal, root: plan.root, agent: plan.agent };
        let run = (terms.context)(session, Arc::clone(snapshot));
        let call = ValidCall {
            id: record.call,
            entry: Arc::clone(entry),
            arguments: plan.arguments,
            provenance: Provenance { unvalidated: plan.unvalidated, ..Provenance::default() },
            pending: Vec::new(),
            unvalidated: plan.unvalidated,
        };
        let how = match plan.admission {
            Admission::Allowed => How::Admitted(Admitted::Allowed),
            Admission::Approved => How::Admitted(Admitted::Approved),
            Admission::Awaited => {
                let (executor, call, run) = (Arc::clone(self), call.clone(), run.clone());
                How::AwaitsApproval(Box::pin(async move {
                    let mut account = executor.open_account(&call, &run);
                    executor.admit(&call, None, &run, &mut account).await
                }))
            }
        };
        let how = if record.attempts < MAX_ATTEMPTS {
            how
        } else {
            let message = format!("it was started {MAX_ATTEMPTS} times, and its process died each time");
            How::AwaitsApproval(Box::pin(async { Err(ToolError::new(ErrorKind::LimitExceeded, message).into()) }))
        };
        let op = self.begin(&run.lineage);
        self.launch(jobs, live, call, how, &run, &op);
    }
}

/// A job whose tool is another by now: it is not run under a definition that nobody admitted.
async fn changed(jobs: &JobManager, id: &str) -> Result<(), StoreError> {
    let job = jobs.record(id).await?;
    let (state, message) = match job.attempts {
        0 => (JobState::Error, "its tool has changed before it could begin; nothing of it ran"),
        _ => (JobState::Unknown, "its process died while it ran and its tool has changed, so it was not run again"),
    };
    let error = ToolError::new(ErrorKind::ExecutionError, format!("{}: {message}", job.tool));
    jobs.abandon(id, &Outcome::failed(CallId::new(job.call.as_str()), error), state).await
}
