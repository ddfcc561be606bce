//! The task that renews the lease of this process's jobs and answers other processes' requests about them.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use toolwright_core::cancel::CancelCause;
use toolwright_core::store::StoreError;

use super::{JobManager, log};
use crate::store::jobs::{JobRequest, LEASE_MS};

/// How often it looks: three times in a lease's life or more, and twice a second for requests.
const PERIOD: Duration = Duration::from_millis(500);
const _: () = assert!(PERIOD.as_millis() * 3 <= LEASE_MS.unsigned_abs() as u128);
/// How often logs are looked over.
const SWEEP: Duration = Duration::from_secs(3600);
/// Bytes of all logs together. Those of the jobs that this process has are not cut: each has a bound of its own.
const MAX_LOGS: u64 = 256 << 20;

impl JobManager {
    /// Begins to keep, once; it ends with the manager.
    pub(super) fn keep(self: &Arc<Self>) {
        if self.keeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let jobs = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut swept: Option<Instant> = None;
            let mut ticks = tokio::time::interval(PERIOD);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(jobs) = Weak::upgrade(&jobs) else { return };
                if swept.is_none_or(|at| at.elapsed() > SWEEP) {
                    swept = Some(Instant::now());
                    tokio::spawn(jobs.sweep_logs());
                }
                if jobs.count() > 0
                    && let Err(error) = jobs.handle_requests().await
                {
                    tracing::warn!("jobs could not be attended to: {error}");
                }
            }
        });
    }

    async fn handle_requests(&self) -> Result<(), StoreError> {
        self.leave_again().await;
        self.store.renew_lease().await?;
        for (number, id, request) in self.store.asked().await? {
            let answer = match self.handle_request(&id, request).await {
                Ok(()) => String::new(),
                Err(error) => error.to_string(),
            };
            self.store.answer_request(number, &answer).await?;
        }
        Ok(())
    }

    /// Removes the logs of jobs whose rows are gone, and the oldest of what is too much.
    fn sweep_logs(&self) -> impl Future<Output = ()> + Send + use<> {
        let (store, dir) = (Arc::clone(&self.store), self.logs.clone());
        let live: HashSet<String> = self.live().keys().cloned().collect();
        async move {
            let of = dir.clone();
            let Ok(jobs) = tokio::task::spawn_blocking(move || log::jobs_in(&of)).await else { return };
            let gone = store.no_jobs(&jobs).await.unwrap_or_else(|error| {
                tracing::warn!("the logs of jobs could not be looked over: {error}");
                Vec::new()
            });
            let gone = gone.into_iter().filter(|job| !live.contains(job)).collect();
            let swept = tokio::task::spawn_blocking(move || log::sweep(&dir, &gone, &live, MAX_LOGS)).await;
            if let Err(error) = swept {
                tracing::warn!("the logs of jobs were not looked over to the end: {error}");
            }
        }
    }

    /// Does to a job of this process what is asked.
    pub(super) async fn handle_request(&self, id: &str, request: JobRequest) -> Result<(), StoreError> {
        let Some(live) = self.find(id) else {
            return Err(StoreError::Refused(format!("job {id} has just ended")));
        };
        match request {
            JobRequest::Stop => {
                live.cancel.cancel(CancelCause::User);
                Ok(())
            }
            JobRequest::Send(input) => live.send(input).await,
        }
    }
}
