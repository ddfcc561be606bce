//! Resumes an interrupted run. A finished call does not run again, nor does a call whose effect is unknown.

use std::sync::Arc;

use toolwright_core::Snapshot;
use toolwright_core::catalogue::Entry;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::Outcome;
use toolwright_core::session::CallId;

use super::meter::used_by;
use super::{Driver, DriverError, RunOptions, tool_view};
use crate::report::RunReport;
use crate::run::{RunState, TurnCall};

/// What the journal knows of the calls in flight.
pub(super) type Journal = [(CallId, Option<Outcome>)];

impl Driver {
    /// Resumes a saved run: [`Driver::load`], then [`Driver::run`].
    ///
    /// # Errors
    /// As those two.
    pub async fn resume(&self, options: &RunOptions) -> Result<RunReport, DriverError> {
        let mut state = self.load(options).await?;
        self.run(&mut state, options).await
    }

    /// Loads a saved run with all that is known of the calls in flight when it stopped. A finished call
    /// keeps its outcome. One that was dispatched runs again only if its tool reads only or is
    /// idempotent, by hints that are trusted; otherwise its result says that its effect is unknown. One
    /// that was not dispatched is left to run. The catalogue should have its lists by now: a tool that
    /// is not in it is unknown. A run that was cancelled, or whose model could not be asked, is taken up
    /// again; see [`RunState::reopen`].
    ///
    /// From here to the end of [`Driver::run`] no other process can drive the run.
    ///
    /// # Errors
    /// [`DriverError`] when there is no such run, it cannot be read, or another process drives it.
    pub async fn load(&self, options: &RunOptions) -> Result<RunState, DriverError> {
        self.claim(options).await?;
        let loaded = self.load_claimed(options).await;
        if loaded.is_err() {
            self.release(options).await;
        }
        loaded
    }

    async fn load_claimed(&self, options: &RunOptions) -> Result<RunState, DriverError> {
        let not_found = || DriverError::NotFound(options.run_id.clone());
        let store = self.store.as_ref().ok_or_else(not_found)?;
        let saved = store.run(&options.run_id).await?.ok_or_else(not_found)?;
        let mut state = RunState::from_json(saved.state)?;
        state.reopen();
        state.answer_lost();
        let view = self.views.current(&self.catalogue, state.spec(), &options.session.principal);
        let snapshot = view.snapshot(super::exposed(&state), &self.finder);
        let known = |call| settled(call, &saved.calls, snapshot);
        let settled: Vec<Outcome> = state.to_run().filter_map(known).collect();
        if !settled.is_empty() {
            state.on_used(used_by(&settled));
            self.calls_ended(&mut state, settled, options)?;
        }
        self.take_up_compaction(&mut state, &saved.calls, options)?;
        // What nothing is known of did not come to run, or may run again.
        state.put_off_started();
        Ok(state)
    }
}

/// The outcome of a call that the journal knows of; `None` where it may run.
fn settled(call: &TurnCall, journal: &Journal, snapshot: &Snapshot) -> Option<Outcome> {
    let (_, finished) = journal.iter().find(|(id, _)| *id == call.id)?;
    if finished.is_some() {
        return finished.clone();
    }
    let entry = tool_view::meant(snapshot, &call.as_written());
    if entry.is_some_and(|entry| entry.is_repeatable()) {
        return None;
    }
    let message = format!(
        "unknown: the program stopped while {} ran; it may or may not have taken effect. Check before you call it again",
        call.wire_name
    );
    Some(failed(call, entry, ToolError::new(ErrorKind::ExecutionError, message)))
}

/// Outcomes for the calls whose tool is another by now: a call runs on the implementation whose schema
/// the model saw, or not at all.
pub(super) fn changed(state: &RunState, snapshot: &Snapshot) -> Vec<Outcome> {
    let changed = |call: &TurnCall| {
        let (seen, entry) = (call.definition?, tool_view::meant(snapshot, &call.as_written())?);
        (entry.tool.hash() != seen).then(|| {
            let message = format!("{} has changed since it was called: look at it and call it again", call.wire_name);
            failed(call, Some(entry), ToolError::new(ErrorKind::UnknownTool, message))
        })
    };
    state.to_run().filter_map(changed).collect()
}

fn failed(call: &TurnCall, entry: Option<&Arc<Entry>>, error: ToolError) -> Outcome {
    let mut outcome = Outcome::failed(call.id.clone(), error);
    outcome.tool = entry.map(|entry| entry.id().clone());
    outcome
}
