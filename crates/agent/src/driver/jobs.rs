//! Reports finished background jobs to the model, and resumes a run that has already answered.

use toolwright_core::store::StoreError;

use super::meter::Meter;
use super::{Driver, DriverError, RunOptions};
use crate::run::RunState;

impl Driver {
    /// Puts the news of jobs into the conversation before the model is asked.
    pub(super) async fn report_jobs(&self, state: &mut RunState, options: &RunOptions) -> Result<(), StoreError> {
        let jobs = &self.executor.services().jobs;
        let news = jobs.untold(&options.session.id).await?;
        state.report_jobs(&news);
        Ok(())
    }

    /// Notes what the model was told, after that was saved: what is lost in between is not told again, since the
    /// saved state has it.
    pub(super) async fn note_told(&self, state: &mut RunState) -> Result<(), StoreError> {
        if !state.reported_jobs().is_empty() {
            self.executor.services().jobs.told(state.reported_jobs()).await?;
            state.forget_reported_jobs();
        }
        Ok(())
    }

    /// Waits for the jobs of a run that has given its answer, as long as the driver waits for any, and lets the
    /// model see how they ended. Returns whether it is to be asked again.
    pub(super) async fn woken(
        &self,
        state: &mut RunState,
        meter: &Meter,
        options: &RunOptions,
    ) -> Result<bool, DriverError> {
        let Some(limit) = self.job_wait.filter(|_| state.can_wake()) else { return Ok(false) };
        let limit = state.time_left().map_or(limit, |left| left.min(limit));
        let jobs = &self.executor.services().jobs;
        let ended = tokio::select! {
            ended = jobs.awaited(&options.session.id, limit) => ended,
            _ = options.cancel.cancelled() => false,
        };
        if ended {
            // What they used may leave no other turn.
            self.take_used(state, meter, options).await?;
            state.wake(&jobs.untold(&options.session.id).await?);
        }
        Ok(state.waits_for_model())
    }
}
