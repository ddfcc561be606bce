//! The one task that renews the lease of this process's jobs and answers what others ask about them.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use toolwright_core::cancel::CancelCause;
use toolwright_core::store::StoreError;

use super::JobManager;
use crate::store::jobs::{JobRequest, LEASE_MS};

/// How often it looks: three times in a lease's life or more, and twice a second for requests.
const PERIOD: Duration = Duration::from_millis(500);
const _: () = assert!(PERIOD.as_millis() * 3 <= LEASE_MS.unsigned_abs() as u128);
/// How long the logs of jobs are kept, as their rows are.
const KEEP_LOGS: Duration = Duration::from_secs(30 * 24 * 3600);

impl JobManager {
    /// Begins to keep, once; it ends with the manager.
    pub(super) fn keep(self: &Arc<Self>) {
        if self.keeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let logs = self.logs.clone();
        tokio::task::spawn_blocking(move || remove_old(&logs));
        let jobs = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PERIOD);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(jobs) = Weak::upgrade(&jobs) else { return };
                if jobs.count() > 0
                    && let Err(error) = jobs.attend().await
                {
                    tracing::warn!("jobs could not be attended to: {error}");
                }
            }
        });
    }

    async fn attend(&self) -> Result<(), StoreError> {
        self.store.renew_lease().await?;
        for (number, id, request) in self.store.asked().await? {
            let answer = match self.obey(&id, request).await {
                Ok(()) => String::new(),
                Err(error) => error.to_string(),
            };
            self.store.answer_request(number, &answer).await?;
        }
        Ok(())
    }

    /// Does to a job of this process what is asked.
    pub(super) async fn obey(&self, id: &str, request: JobRequest) -> Result<(), StoreError> {
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

fn remove_old(logs: &Path) {
    // Nothing was written there yet, or what cannot be read cannot be removed either.
    let Ok(files) = std::fs::read_dir(logs) else { return };
    let now = SystemTime::now();
    for file in files.flatten() {
        let age = file.metadata().and_then(|meta| meta.modified()).map(|at| now.duration_since(at).unwrap_or_default());
        if age.is_ok_and(|age| age > KEEP_LOGS) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}
