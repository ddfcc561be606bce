//! Saves runs and resumes interrupted ones. Finished calls do not run again, nor do calls with an unknown effect.

use std::sync::Arc;

use toolwright_core::Snapshot;
use toolwright_core::call::{Caller, check};
use toolwright_core::catalogue::Entry;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::Outcome;
use toolwright_core::redact::shown_arguments;
use toolwright_core::session::CallId;
use toolwright_core::store::{Claim, RunStore, SavedRun};

use super::run_calls::usage_of;
use super::{Driver, DriverError, RunOptions, tool_view};
use crate::report::RunReport;
use crate::run::{RunState, TurnCall};

/// The calls in flight when a run stopped, with the outcomes of those that had finished.
pub(super) type Journal = [(CallId, Option<Outcome>)];

/// Whether a run existed before.
pub(crate) enum RunStart {
    /// It was saved, and continues.
    Before,
    /// It is new.
    Now,
}

impl Driver {
    /// Resumes a saved run: [`Driver::load`], then [`Driver::run`].
    ///
    /// # Errors
    /// As for these two.
    pub async fn resume(&self, options: &RunOptions) -> Result<RunReport, DriverError> {
        let mut state = self.load(options).await?;
        self.run(&mut state, options).await
    }

    /// Loads a saved run and settles the calls in flight when it stopped. A finished call keeps its outcome. A
    /// dispatched call runs again only if trusted hints declare its tool read-only or idempotent; otherwise its result
    /// says that its effect is unknown. A call that was not dispatched will run. List the catalogue first, because
    /// other tools are unknown. Reopens a run that was cancelled or whose model could not be asked, see
    /// [`RunState::reopen`].
    ///
    /// From here to the end of [`Driver::run`] no other process can drive the run.
    ///
    /// # Errors
    /// [`DriverError`] if the run does not exist, cannot be read, or is driven by another process.
    pub async fn load(&self, options: &RunOptions) -> Result<RunState, DriverError> {
        match self.claim_and_load(options).await? {
            Some(state) => Ok(state),
            None => {
                self.release(options).await;
                Err(DriverError::NotFound(options.run_id.clone()))
            }
        }
    }

    /// Like [`Driver::load`], or the state from `begin` if no such run was saved.
    ///
    /// # Errors
    /// As [`Driver::load`], except for a run that was not saved.
    pub(crate) async fn load_or_begin(
        &self,
        options: &RunOptions,
        begin: impl FnOnce() -> RunState,
    ) -> Result<(RunState, RunStart), DriverError> {
        let saved = self.claim_and_load(options).await?;
        Ok(saved.map_or_else(|| (begin(), RunStart::Now), |state| (state, RunStart::Before)))
    }

    /// Claims a run and loads it; `None` if it was not saved. It stays claimed unless this fails.
    async fn claim_and_load(&self, options: &RunOptions) -> Result<Option<RunState>, DriverError> {
        let saved = async {
            match &self.store {
                Some(store) => store.run(&options.run_id).await,
                None => Ok(None),
            }
        };
        // The store reads right behind the claim: one wait for both.
        let (claimed, saved) = tokio::join!(self.claim(options), saved);
        claimed?;
        let loaded = match saved {
            Ok(Some(saved)) => self.settle_in_flight_calls(saved, options).await.map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error.into()),
        };
        if loaded.is_err() {
            self.release(options).await;
        }
        loaded
    }

    /// The state of a saved run, with the calls in flight settled.
    async fn settle_in_flight_calls(&self, saved: SavedRun, options: &RunOptions) -> Result<RunState, DriverError> {
        let mut state = RunState::from_json(saved.state)?;
        state.reopen();
        state.keep_started_calls(None);
        let view = self.view(state.config(), options);
        let snapshot = self.snapshot(&state, &view);
        let mut settled: Vec<Outcome> =
            state.runnable().filter_map(|call| journal_outcome(call, &saved.calls, snapshot)).collect();
        let is_cut = |ended: &&mut Outcome| saved.calls.iter().any(|(id, end)| *id == ended.call_id && end.is_none());
        let mut cut = settled.iter_mut().filter(is_cut).peekable();
        if cut.peek().is_some() {
            let variables = self.variables(&state, options).await?;
            let caller = Caller { principal: &options.session.principal, variables: Some(&*variables) };
            for ended in cut {
                let Some(call) = state.runnable().find(|call| call.id == ended.call_id) else { continue };
                // Writes that would change the values it read have waited for it.
                if let Ok(call) = check(call.as_written(), snapshot, caller)
                    && call.pending.is_empty()
                {
                    let redactor = &*self.executor.services().redactor;
                    ended.ran_with = Some(shown_arguments(&call.entry, &call.arguments, redactor));
                }
            }
        }
        if !settled.is_empty() {
            let (usage, cost) = usage_of(&settled);
            state.on_used(usage, cost);
            self.calls_ended(&mut state, settled, options)?;
        }
        self.resume_compaction(&mut state, &saved.calls, options)?;
        // The others did not run, or may run again.
        state.requeue_started(|_| true);
        Ok(state)
    }

    /// Keeps other processes from driving the run.
    pub(super) async fn claim(&self, options: &RunOptions) -> Result<(), DriverError> {
        let Some(store) = &self.store else { return Ok(()) };
        match store.claim(&options.run_id).await? {
            Claim::Held => Ok(()),
            Claim::TakenBy(driver) => Err(DriverError::Taken { run: options.run_id.clone(), driver }),
        }
    }

    pub(super) async fn release(&self, options: &RunOptions) {
        if let Some(store) = &self.store {
            // A remaining claim blocks only other processes, and only until this one ends.
            let _ = store.release(&options.run_id).await;
        }
    }

    pub(super) async fn save(&self, state: &RunState, options: &RunOptions) -> Result<(), DriverError> {
        self.saving(state, options)?.await
    }

    /// Saves the present state, starting at the first poll. Later writes to the store come after it.
    pub(super) fn saving<'a>(
        &'a self,
        state: &RunState,
        options: &'a RunOptions,
    ) -> Result<impl Future<Output = Result<(), DriverError>> + Send + use<'a>, DriverError> {
        let store = self.store.as_deref();
        let saved = store.map(|store| state.to_json().map(|saved| (store, saved))).transpose()?;
        // The journal of running calls must survive the save, and results of a plan are read from it.
        let keeps_journal = state.has_started() || state.ends_with_plan();
        Ok(async move {
            match saved {
                Some((store, saved)) if keeps_journal => store.save_during_step(&options.run_id, &saved).await?,
                Some((store, saved)) => store.save_run(&options.run_id, &saved).await?,
                None => {}
            }
            Ok(())
        })
    }

    /// Returns where the executor records the run's calls.
    pub(super) fn journal(&self, options: &RunOptions) -> Option<(Arc<dyn RunStore>, Arc<str>)> {
        self.store.as_ref().map(|store| (Arc::clone(store), Arc::clone(&options.run_id)))
    }
}

/// Returns the outcome of a call by the journal; `None` if it may run.
fn journal_outcome(call: &TurnCall, journal: &Journal, snapshot: &Snapshot) -> Option<Outcome> {
    let (_, finished) = journal.iter().find(|(id, _)| *id == call.id)?;
    if finished.is_some() {
        return finished.clone();
    }
    let entry = tool_view::called_entry(snapshot, &call.as_written());
    if entry.is_some_and(|entry| entry.is_resumable()) {
        return None;
    }
    let message = format!(
        "unknown: the program stopped while {} ran; it may or may not have taken effect. Check before you call it again",
        call.wire_name
    );
    Some(failed(call, entry, ToolError::new(ErrorKind::ExecutionError, message)))
}

/// Returns outcomes for calls whose tool has changed: a call runs only on the definition that the model saw.
pub(super) fn changed_tools(state: &RunState, snapshot: &Snapshot) -> Vec<Outcome> {
    let changed = |call: &TurnCall| {
        let (hash_then, entry) = (call.definition?, tool_view::called_entry(snapshot, &call.as_written())?);
        (entry.tool.hash() != hash_then).then(|| {
            let message = format!("{} has changed since it was called: look at it and call it again", call.wire_name);
            failed(call, Some(entry), ToolError::new(ErrorKind::UnknownTool, message))
        })
    };
    state.runnable().filter_map(changed).collect()
}

fn failed(call: &TurnCall, entry: Option<&Arc<Entry>>, error: ToolError) -> Outcome {
    let mut outcome = Outcome::failed(call.id.clone(), error);
    outcome.tool = entry.map(|entry| entry.id().clone());
    outcome
}
