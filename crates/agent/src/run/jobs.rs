//! Reports background jobs in the conversation. Each report appears once, even if the run is saved and resumed in
//! between.

use toolwright_core::job::JobRecord;

use super::{Phase, RunState};
use crate::report::Status;

impl RunState {
    /// Tells the model, which is to be asked next, how jobs ended. A job that it was told of already is left out.
    pub fn report_jobs(&mut self, jobs: &[JobRecord]) {
        let Phase::Model { streamed, .. } = &self.phase else { return };
        if !streamed.is_empty() {
            return;
        }
        for job in jobs {
            if !self.reported_jobs.contains(&job.id) {
                self.tell(job.message(), Some(&job.id));
                self.reported_jobs.push(job.id.clone());
            }
        }
    }

    /// Whether news of a job could wake the run: it has given its answer, and its limits allow another turn.
    #[must_use]
    pub fn can_wake(&self) -> bool {
        let answered = matches!(&self.phase, Phase::Done { result, .. } if result.status == Status::Success);
        answered && self.spec.limits.exhausted(self.task.turns, &self.task.usage).is_none()
    }

    /// Goes on with an answered task because jobs of it ended. Counters and limits go on, too.
    pub fn wake(&mut self, jobs: &[JobRecord]) {
        let news = jobs.iter().any(|job| !self.reported_jobs.contains(&job.id));
        if news && self.can_wake() {
            self.ask_model();
            self.report_jobs(jobs);
        }
    }

    /// The jobs that the model was told of, for the store to note once the state is saved.
    #[must_use]
    pub fn reported_jobs(&self) -> &[String] {
        &self.reported_jobs
    }

    /// The store has noted them.
    pub fn forget_reported_jobs(&mut self) {
        self.reported_jobs.clear();
    }
}
