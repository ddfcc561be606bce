//! The driver: executes the steps of the state machine and saves the state between them.

mod artifacts;
mod compaction;
mod context;
mod grants;
mod jobs;
mod meter;
mod model;
mod request_tools;
mod resume;
mod room;
mod streaming;
mod text;
pub(crate) mod tool_view;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::approval::Approver;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::{Entry, Snapshot};
use toolwright_core::client::CallClient;
use toolwright_core::event::Event;
use toolwright_core::model::{ModelClient, Usage};
use toolwright_core::name_table::Resolution;
use toolwright_core::operation::{Lineage, Op, OpId, Origin};
use toolwright_core::outcome::Outcome;
use toolwright_core::policy::Policy;
use toolwright_core::redact::shown_arguments;
use toolwright_core::select::Exposure;
use toolwright_core::session::{CallId, Session};
use toolwright_core::store::{Claim, RunStore, StoreError};
use toolwright_core::variables::Variables;
use toolwright_runtime::{Catalogue, Executor, RunContext, ToolFinder};

use crate::prompt::system_prompt;
use crate::report::{RunReport, Status};
use crate::run::{LoadError, RunSpec, RunState, Step, ToolBatch, TransitionError};
use compaction::ShippedTools;
use context::RoomMade;
use grants::Granted;
use meter::Meter;
use model::ModelTools;
use request_tools::RequestTools;
use room::Room;
use streaming::InFlightCalls;
use tool_view::{ToolView, ToolViewCache};

/// Takes the whole exchange, record by record, secrets redacted: `{type, turn, …}` with the types
/// `request`, `response`, `model_error`, `outcomes`, `room` and `report`. Must not block for long.
pub trait Transcript: Send + Sync {
    /// One record.
    fn record(&self, record: Value);
}

impl<F: Fn(Value) + Send + Sync> Transcript for F {
    fn record(&self, record: Value) {
        self(record);
    }
}

/// Options of a run.
#[derive(Clone)]
pub struct RunOptions {
    /// The id of the run in the store.
    pub run_id: Arc<str>,
    /// The session. A resumed run needs its earlier session id, because handles of stored outputs belong to it.
    pub session: Arc<Session>,
    /// The policy that decides about every call.
    pub policy: Arc<Policy>,
    /// Answers when the policy asks.
    pub approver: Arc<dyn Approver>,
    /// Answers requests of the tools' sources.
    pub client: Arc<dyn CallClient>,
    /// Cancels the run.
    pub cancel: Cancel,
    /// The values of references in arguments; without it, references are not resolved. They are not saved with the
    /// run, so a resumed run needs them again.
    pub variables: Option<Arc<dyn Variables>>,
    /// Receives every message of the run.
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

impl RunOptions {
    /// The run as an operation, the same when it is resumed: one trace, and its root.
    fn op(&self) -> Op {
        let lineage = Lineage { run: Some(Arc::clone(&self.run_id)), ..Lineage::named(&self.run_id) };
        // Half of a hash is one too.
        let half = u64::try_from(lineage.trace.get() >> 64).unwrap_or_default();
        lineage.begin(OpId::new(half))
    }

    /// Where the operations of a turn belong.
    fn lineage(&self, turn: u32) -> Lineage {
        Lineage { turn, ..self.op().inside() }
    }
}

/// Why a run could not continue. The saved state can be resumed.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The state could not be saved or read. The run stops here: otherwise the saved state would be wrong,
    /// and a later resume would repeat calls.
    #[error("the run cannot be kept: {0}")]
    Store(#[from] StoreError),
    /// There is no such run.
    #[error("no run `{0}` was saved")]
    NotFound(Arc<str>),
    /// Another process drives the run. Two drivers would repeat each other's calls.
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
    /// A bug in Toolwright: an outcome for a call that was not pending.
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
    views: Arc<ToolViewCache>,
    finder: ToolFinder,
    job_wait: Option<Duration>,
    shipped: Arc<ShippedTools>,
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
        Self {
            executor,
            catalogue,
            model,
            store,
            views: Arc::default(),
            finder: ToolFinder::default(),
            job_wait: None,
            shipped: Arc::default(),
        }
    }

    /// Finds tools with `finder` if not all of them are shown. Default: lexical search.
    #[must_use]
    pub fn with_finder(self, finder: ToolFinder) -> Self {
        // Views hold what finds in them.
        Self { finder, views: Arc::default(), ..self }
    }

    /// After the answer of a run, waits up to this time for its background jobs and shows the model their results.
    /// Without it, the results are shown before the next message of the user.
    #[must_use]
    pub fn with_job_wait(self, limit: Duration) -> Self {
        Self { job_wait: Some(limit), ..self }
    }

    /// The system prompt for a run as `spec` says, but for its own, with these options on the catalogue as it is
    /// now. It tells of the tools that are shown from the beginning; what there is to find is added when the run
    /// begins.
    #[must_use]
    pub fn system_prompt(&self, base: &str, spec: &RunSpec, options: &RunOptions) -> String {
        let view = self.views.current(&self.catalogue, spec, &options.session.principal);
        let all = self.choice(spec, &view).exposure == Exposure::Direct;
        let is_shown = |entry: &&Arc<Entry>| all || entry.is_named_by(&spec.pinned);
        let own = view.own(&spec.agent_tools);
        let tools: Vec<_> = view.open.iter().filter(is_shown).chain(own).cloned().collect();
        system_prompt(base, &options.session.root, &tools)
    }

    /// Runs until the task is done, or a person is needed who cannot answer now, or calls wait for a word
    /// to run ([`crate::Dispatch::Manual`]); both have the status `suspended`. A resumed run that waits for
    /// a person asks again; decisions made meanwhile go in beforehand, by [`RunState::on_approvals`] and
    /// [`RunState::dispatch`]. For the next message of a conversation, use [`RunState::continue_with`] and run again.
    ///
    /// While it lasts, no other process can drive the run.
    ///
    /// # Errors
    /// [`DriverError`] when the state cannot be saved, or another process drives the run. Failures of tools
    /// and models are no errors: they are in the report.
    pub async fn run(&self, state: &mut RunState, options: &RunOptions) -> Result<RunReport, DriverError> {
        self.claim(options).await?;
        let services = self.executor.services();
        let started = services.clock.now();
        services.events.tell(|| Event::RunStarted {
            op: options.op(),
            session: options.session.id.clone(),
            agent: options.session.agent.clone(),
            model: state.spec().model.clone(),
        });
        // Of a model that cannot be asked the first request says so.
        let _ = self.model.ready(&state.spec().model).await;
        let report = self.drive(state, options).await;
        services.events.tell(|| Event::RunFinished {
            op: options.op(),
            session: options.session.id.clone(),
            agent: options.session.agent.clone(),
            ok: report.as_ref().is_ok_and(|report| report.status == Status::Success),
            status: report.as_ref().map_or("failure", |report| report.status.as_str()).to_owned(),
            latency_us: u64::try_from(services.clock.now().saturating_duration_since(started).as_micros())
                .unwrap_or(u64::MAX),
            usage: report.as_ref().map(|report| report.usage).unwrap_or_default(),
        });
        self.release(options).await;
        report
    }

    async fn drive(&self, state: &mut RunState, options: &RunOptions) -> Result<RunReport, DriverError> {
        let clock = &self.executor.services().clock;
        let current = |state: &RunState| self.views.current(&self.catalogue, state.spec(), &options.session.principal);
        let meaning = |state: &RunState, view: &ToolView| Arc::clone(view.snapshot(exposed(state), &self.finder));
        let mut snapshot = meaning(state, &current(state));
        let changed = resume::changed(state, &snapshot);
        if !changed.is_empty() {
            self.calls_ended(state, changed, options)?;
        }
        let meter = Arc::new(Meter::default());
        let mut in_flight = InFlightCalls::under(options.cancel.child(), Room::of(state, 0), &meter);
        let mut asked = false;
        let mut since = clock.now();
        loop {
            if in_flight.is_empty() {
                // Jobs of earlier turns. What started calls use is told with their outcomes, by which it is known again
                // after a crash.
                state.on_used(meter.take());
            }
            if in_flight.cancel.cause().is_some() && !in_flight.is_empty() {
                let outcomes = in_flight.land().await;
                state.on_used(meter.take());
                self.landed(state, outcomes, options)?;
            }
            let now = clock.now();
            state.on_elapsed(now.saturating_duration_since(since));
            since = now;
            if let Some(cause) = options.cancel.cause() {
                state.cancel(cause);
            }
            let shown = if state.waits_for_model() {
                self.report_jobs(state, options).await?;
                let view = current(state);
                let mut shown = self.show(state, &view, &options.session).await;
                snapshot = meaning(state, &view);
                if self.make_room(state, &shown, &snapshot, options).await == RoomMade::Room {
                    // What was stored can be read from now on, and a last turn has few tools.
                    shown = self.show(state, &view, &options.session).await;
                }
                Some(shown)
            } else {
                None
            };
            self.save(state, options).await?;
            self.note_told(state).await?;
            let left = state.time_left();
            match state.step() {
                Step::CallModel(mut request) => {
                    let cancel = options.cancel.child();
                    let RequestTools { tools, showing } = shown.unwrap_or_default();
                    request.tools = tools;
                    let shown_tools = ModelTools { snapshot: &snapshot, showing };
                    let room = Room::of(state, showing.tokens);
                    in_flight = bounded(
                        left,
                        &cancel,
                        self.ask_model(
                            state,
                            request,
                            shown_tools,
                            options,
                            InFlightCalls::under(cancel.clone(), room, &meter),
                        ),
                    )
                    .await?;
                }
                Step::CallTools(batch) => {
                    // What was started before is under the same token, so that one limit ends all.
                    let cancel = if in_flight.is_empty() { options.cancel.child() } else { in_flight.cancel.clone() };
                    let outcomes = self.run_calls(state, batch, &snapshot, options, &mut in_flight, &cancel);
                    let outcomes = bounded(left, &cancel, outcomes).await?;
                    state.on_used(meter.take());
                    self.landed(state, outcomes, options)?;
                    asked = true;
                }
                Step::Compact(calls) => {
                    let cancel = options.cancel.child();
                    bounded(left, &cancel, self.compact(state, calls, options, &cancel)).await?;
                }
                // Who was asked while the calls ran has said `later`.
                Step::AwaitApproval(_) if asked => return self.ended(state, &meter, options).await,
                Step::AwaitApproval(_) => state.ask_again(),
                Step::Done(_) if self.woken(state, &meter, options).await? => {}
                Step::AwaitDispatch(_) | Step::Done(_) => return self.ended(state, &meter, options).await,
            }
        }
    }

    /// The report of a run that goes no further here, with all that its jobs have used so far.
    async fn ended(&self, state: &mut RunState, meter: &Meter, options: &RunOptions) -> Result<RunReport, DriverError> {
        self.take_used(state, meter, options).await?;
        Ok(self.report(state, options))
    }

    /// Counts what jobs have used since this was last asked, and saves it.
    async fn take_used(&self, state: &mut RunState, meter: &Meter, options: &RunOptions) -> Result<(), DriverError> {
        let used = meter.take();
        if used == Usage::default() {
            return Ok(());
        }
        state.on_used(used);
        self.save(state, options).await
    }

    /// Runs the calls of a turn, whatever they are, through the executor, beside those that were started.
    /// What the check made of them is saved before they run.
    async fn run_calls(
        &self,
        state: &mut RunState,
        batch: ToolBatch,
        snapshot: &Arc<Snapshot>,
        options: &RunOptions,
        in_flight: &mut InFlightCalls,
        cancel: &Cancel,
    ) -> Result<Vec<Outcome>, DriverError> {
        let mut run = self.run_context(state, snapshot, options, cancel, in_flight);
        run.started_before = in_flight.len();
        in_flight.room.holds(state);
        if !batch.grants.is_empty() {
            run.approver = Arc::new(Granted::new(batch.grants, run.approver));
        }
        let running = async {
            // What mending takes is told with what it made.
            let unmetered = RunContext { usage: None, ..run.clone() };
            let checked = self.executor.check_calls(batch.calls, &batch.mended, &unmetered).await;
            if state.on_checked(checked.usage, checked.mended()) {
                self.save(state, options).await?;
            }
            Ok::<_, DriverError>(self.executor.run_checked(checked.calls, &run).await)
        };
        let (outcomes, landed) = tokio::join!(running, in_flight.land());
        let mut outcomes = outcomes?;
        outcomes.extend(landed);
        let told = |id: &CallId| outcomes.iter().any(|outcome| outcome.call_id == *id);
        let lost: Vec<Outcome> = batch.started.into_iter().filter(|id| !told(id)).map(streaming::lost).collect();
        outcomes.extend(lost);
        artifacts::keep(&mut outcomes, &*self.executor.services().outputs, &options.session.id).await;
        Ok(outcomes)
    }

    fn run_context(
        &self,
        state: &RunState,
        snapshot: &Arc<Snapshot>,
        options: &RunOptions,
        cancel: &Cancel,
        in_flight: &InFlightCalls,
    ) -> RunContext {
        RunContext {
            budget: in_flight.room.budget.clone(),
            lineage: options.lineage(state.turns()),
            origin: Origin::Agent,
            model: Some(state.spec().model.as_str().into()),
            cancel: cancel.clone(),
            client: Arc::clone(&options.client),
            request: Some(Arc::new(state.request())),
            variables: options.variables.clone(),
            journal: self.store.as_ref().map(|store| (Arc::clone(store), Arc::clone(&options.run_id))),
            usage: Some(Arc::clone(&in_flight.meter) as _),
            ..RunContext::new(
                Arc::clone(&options.session),
                Arc::clone(snapshot),
                Arc::clone(&options.policy),
                Arc::clone(&options.approver),
            )
        }
    }

    /// As [`Driver::calls_ended`]; a started call that a guard had a question about runs with its turn.
    fn landed(
        &self,
        state: &mut RunState,
        outcomes: Vec<Outcome>,
        options: &RunOptions,
    ) -> Result<(), TransitionError> {
        let (put_off, ended): (Vec<_>, Vec<_>) =
            outcomes.into_iter().partition(|outcome| outcome.pending.is_some() && state.is_started(&outcome.call_id));
        put_off.iter().for_each(|outcome| state.put_off(&outcome.call_id));
        if ended.is_empty() { Ok(()) } else { self.calls_ended(state, ended, options) }
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
        let Some(store) = &self.store else { return Ok(()) };
        let saved = state.to_json()?;
        // The journal of calls that are under way must outlive the save.
        if state.has_started() {
            store.save_amid(&options.run_id, &saved).await?;
        } else {
            store.save_run(&options.run_id, &saved).await?;
        }
        Ok(())
    }

    fn report(&self, state: &RunState, options: &RunOptions) -> RunReport {
        let redactor = &*self.executor.services().redactor;
        let (mut report, snapshot) = (state.report(), self.catalogue.snapshot());
        for call in &mut report.calls {
            if let Some(entry) = snapshot.get(&call.tool) {
                call.arguments = shown_arguments(entry, &call.arguments, redactor);
            }
        }
        for call in &mut report.held {
            if let Resolution::Found(index, _) = snapshot.resolve(&call.tool)
                && let Some(entry) = snapshot.list().get(index)
            {
                call.arguments = shown_arguments(entry, &call.arguments, redactor);
            }
        }
        let report = report.redacted(redactor);
        self.record(options, || json!({"type": "report", "report": report.to_json()}));
        report
    }

    fn record(&self, options: &RunOptions, record: impl FnOnce() -> Value) {
        if let Some(transcript) = &options.transcript {
            transcript.record(self.executor.services().redactor.redact_value(&record()));
        }
    }
}

fn exposed(state: &RunState) -> Option<Exposure> {
    state.exposure().map(|choice| choice.exposure)
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
