//! The driver: does what the state machine says, and saves it between every two steps.

mod grants;
mod model;
mod resume;
mod text;
mod view;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::approval::Approver;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::Snapshot;
use toolwright_core::event::Event;
use toolwright_core::model::ModelClient;
use toolwright_core::outcome::Outcome;
use toolwright_core::policy::Policy;
use toolwright_core::session::Session;
use toolwright_core::store::{Claim, RunStore, StoreError};
use toolwright_runtime::{Catalogue, Executor, RunContext};

use crate::prompt::system_prompt;
use crate::report::RunReport;
use crate::run::{LoadError, RunState, Step, ToolBatch, TransitionError};
use grants::Granted;
use view::View;

/// Takes the whole exchange, record by record, secrets redacted: `{type, turn, …}` with the types
/// `request`, `response`, `model_error`, `outcomes` and `report`. Must not block for long.
pub trait Transcript: Send + Sync {
    /// One record.
    fn record(&self, record: Value);
}

impl<F: Fn(Value) + Send + Sync> Transcript for F {
    fn record(&self, record: Value) {
        self(record);
    }
}

/// On whose behalf and under what terms a run goes.
#[derive(Clone)]
pub struct RunOptions {
    /// Its name in the store.
    pub run_id: Arc<str>,
    /// Its session. A resumed run needs the session id that it had before: handles of stored outputs
    /// follow it.
    pub session: Arc<Session>,
    /// Decides for every call.
    pub policy: Arc<Policy>,
    /// Answers where the policy asks.
    pub approver: Arc<dyn Approver>,
    /// Ends the run.
    pub cancel: Cancel,
    /// Takes the whole exchange.
    pub transcript: Option<Arc<dyn Transcript>>,
}

impl fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOptions")
            .field("run_id", &self.run_id)
            .field("session", &self.session.id)
            .finish_non_exhaustive()
    }
}

/// Why a run could not go on. What was saved can be resumed.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The state could not be saved or read. The run stops here: going on would make the saved state a
    /// lie, and a later resume would repeat calls.
    #[error("the run cannot be kept: {0}")]
    Store(#[from] StoreError),
    /// There is no such run.
    #[error("no run `{0}` was saved")]
    NotFound(Arc<str>),
    /// Another process drives it: two would repeat each other's calls.
    #[error("run `{run}` is being driven by {driver}: wait for it to end, or stop it")]
    Taken {
        /// The run.
        run: Arc<str>,
        /// Who drives it, in words.
        driver: String,
    },
    /// The saved state cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The state cannot be written as JSON.
    #[error("the state of the run cannot be saved: {0}")]
    Save(#[from] serde_json::Error),
    /// A fault of Toolwright: an outcome that nobody waited for.
    #[error(transparent)]
    Transition(#[from] TransitionError),
}

/// Runs agents. Cheap to clone.
#[derive(Clone)]
pub struct Driver {
    executor: Arc<Executor>,
    catalogue: Arc<Catalogue>,
    model: Arc<dyn ModelClient>,
    store: Option<Arc<dyn RunStore>>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("executor", &self.executor).finish_non_exhaustive()
    }
}

impl Driver {
    /// A driver. Events, clock and redactor are those of the executor's services; without a store, runs
    /// cannot be resumed.
    #[must_use]
    pub fn new(
        executor: Arc<Executor>,
        catalogue: Arc<Catalogue>,
        model: Arc<dyn ModelClient>,
        store: Option<Arc<dyn RunStore>>,
    ) -> Self {
        Self { executor, catalogue, model, store }
    }

    /// The system prompt for a run with these options on the catalogue as it is now, with the tools that
    /// the globs `tools` let through; see [`crate::RunSpec::tools`].
    #[must_use]
    pub fn system_prompt(&self, base: &str, tools: &[String], options: &RunOptions) -> String {
        let snapshot = View::of(tools).current(&self.catalogue);
        let tools: Vec<_> = view::shown(&snapshot, &options.session.principal).cloned().collect();
        system_prompt(base, &options.session.root, &tools)
    }

    /// Runs until the task is done, or a person is needed who cannot answer now (status `suspended`).
    /// A resumed run that waits for a person asks again; decisions made meanwhile go in beforehand, by
    /// [`RunState::on_approvals`]. For the next message of a conversation, use [`RunState::continue_with`] and run again.
    ///
    /// While it lasts, no other process can drive the run.
    ///
    /// # Errors
    /// [`DriverError`] when the state cannot be saved, or another process drives the run. Failures of tools
    /// and models are no errors: they are in the report.
    pub async fn run(&self, state: &mut RunState, options: &RunOptions) -> Result<RunReport, DriverError> {
        self.claim(options).await?;
        let report = self.drive(state, options).await;
        self.release(options).await;
        report
    }

    async fn drive(&self, state: &mut RunState, options: &RunOptions) -> Result<RunReport, DriverError> {
        let clock = &self.executor.services().clock;
        let mut view = View::of(&state.spec().tools);
        let mut snapshot = view.current(&self.catalogue);
        let changed = resume::changed(state, &snapshot);
        if !changed.is_empty() {
            self.calls_ended(state, changed, options)?;
        }
        let mut asked = false;
        let mut since = clock.now();
        loop {
            let now = clock.now();
            state.on_elapsed(now.saturating_duration_since(since));
            since = now;
            if let Some(cause) = options.cancel.cause() {
                state.cancel(cause);
            }
            self.make_room(state, options, &snapshot);
            self.save(state, options).await?;
            let cancel = options.cancel.child();
            let left = state.time_left();
            match state.step() {
                Step::CallModel(request) => {
                    snapshot = view.current(&self.catalogue);
                    bounded(left, &cancel, self.ask_model(state, request, &snapshot, options, &cancel)).await?;
                }
                Step::CallTools(batch) => {
                    let outcomes = bounded(left, &cancel, self.run_calls(batch, &snapshot, options, &cancel)).await;
                    self.calls_ended(state, outcomes, options)?;
                    asked = true;
                }
                // Who was asked while the calls ran has said `later`.
                Step::AwaitApproval(_) if asked => return Ok(self.report(state, options)),
                Step::AwaitApproval(_) => state.ask_again(),
                Step::Done(_) => return Ok(self.report(state, options)),
            }
        }
    }

    /// Runs the calls of a turn, whatever they are, through the executor.
    async fn run_calls(
        &self,
        batch: ToolBatch,
        snapshot: &Snapshot,
        options: &RunOptions,
        cancel: &Cancel,
    ) -> Vec<Outcome> {
        let approver: Arc<dyn Approver> = if batch.grants.is_empty() {
            Arc::clone(&options.approver)
        } else {
            Arc::new(Granted::new(batch.grants, Arc::clone(&options.approver)))
        };
        let run = RunContext {
            session: Arc::clone(&options.session),
            cancel: cancel.clone(),
            policy: Arc::clone(&options.policy),
            approver,
            partials: None,
            timeout: None,
            traceparent: None,
            journal: self.store.as_ref().map(|store| (Arc::clone(store), Arc::clone(&options.run_id))),
        };
        self.executor.run_calls(batch.calls, snapshot, &run).await
    }

    /// Tells transcript and state how calls ended.
    fn calls_ended(
        &self,
        state: &mut RunState,
        outcomes: Vec<Outcome>,
        options: &RunOptions,
    ) -> Result<(), TransitionError> {
        self.record(options, || json!({"type": "outcomes", "turn": state.turns(), "outcomes": outcomes}));
        state.on_tools(outcomes)
    }

    /// Makes room in the conversation before the model is asked, where its window is known.
    fn make_room(&self, state: &mut RunState, options: &RunOptions, snapshot: &Snapshot) {
        let Some(window) = state.spec().window else { return };
        let answer = state.spec().max_tokens.unwrap_or(0) as usize;
        let tools = view::schema_tokens(snapshot, &options.session.principal);
        self.trim(state, window.saturating_sub(answer).saturating_sub(tools));
    }

    /// Makes room down to `budget` tokens and tells the operator. Returns how many results were removed.
    fn trim(&self, state: &mut RunState, budget: usize) -> usize {
        let removed = state.fit_context(budget);
        if removed > 0 {
            let message = format!("{removed} older tool results were removed from the conversation to make room");
            self.executor.services().events.emit(Event::Warning { code: "context_trimmed".into(), message });
        }
        removed
    }

    async fn claim(&self, options: &RunOptions) -> Result<(), DriverError> {
        let Some(store) = &self.store else { return Ok(()) };
        match store.claim(&options.run_id).await? {
            Claim::Held => Ok(()),
            Claim::TakenBy(driver) => Err(DriverError::Taken { run: options.run_id.clone(), driver }),
        }
    }

    async fn release(&self, options: &RunOptions) {
        if let Some(store) = &self.store {
            // A claim that stays keeps only others out, and only until this process ends.
            let _ = store.release(&options.run_id).await;
        }
    }

    async fn save(&self, state: &RunState, options: &RunOptions) -> Result<(), DriverError> {
        if let Some(store) = &self.store {
            store.save_run(&options.run_id, &state.to_json()?).await?;
        }
        Ok(())
    }

    fn report(&self, state: &RunState, options: &RunOptions) -> RunReport {
        let report = state.report().redacted(&*self.executor.services().redactor);
        self.record(options, || json!({"type": "report", "report": report.to_json()}));
        report
    }

    fn record(&self, options: &RunOptions, record: impl FnOnce() -> Value) {
        if let Some(transcript) = &options.transcript {
            transcript.record(self.executor.services().redactor.redact_value(&record()));
        }
    }
}

/// Awaits `action`; when `left` is over, cancels it and awaits its end.
async fn bounded<T>(left: Option<Duration>, cancel: &Cancel, action: impl Future<Output = T>) -> T {
    let Some(left) = left else { return action.await };
    let mut action = std::pin::pin!(action);
    tokio::select! {
        done = &mut action => done,
        () = tokio::time::sleep(left) => {
            cancel.cancel(CancelCause::RunLimit);
            action.await
        }
    }
}
