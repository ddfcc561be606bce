//! The driver: executes the steps of the state machine and saves the state between them.

mod children;
mod compaction;
mod eviction;
mod mail;
mod model;
mod options;
mod plan;
mod resume;
mod run_calls;
pub(crate) mod tool_view;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::agents::prompt::{Prompt, PromptInput, assemble, is_always_shown};
use toolwright_core::agents::{AgentLimits, AgentTree};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::Entry;
use toolwright_core::event::{Event, EventSink, NoEvents};
use toolwright_core::exposure::Exposure;
use toolwright_core::model::{ModelClient, PriceTable};
use toolwright_core::name_table::Resolution;
use toolwright_core::redact::shown_arguments;
use toolwright_core::store::todo::TODO_ID;
use toolwright_core::store::{LogRow, RunStore};
use toolwright_core::variables::Variables;
use toolwright_runtime::{Catalogue, Executor, RunContext, RunVariables};
use toolwright_search::ToolFinder;

use crate::report::{RunReport, Status};
use crate::run::{RunConfig, RunState, Step};
pub use options::{DriverError, PromptPreview, RunOptions, RunWatcher, Transcript};
pub(crate) use resume::RunStart;
use run_calls::{InFlightCalls, TurnBudget, UsageMeter};
pub(crate) use tool_view::ToolViewCache;
use tool_view::{RequestTools, with_instances};

/// What a run reads of its session before its first turn.
pub(crate) struct OpenedSession {
    variables: Arc<dyn Variables>,
    /// The last message that the conversation has.
    last_notice: u64,
    /// The messages behind it.
    unread: Vec<LogRow>,
    /// The messages and file changes that led to the run's work.
    hops: u32,
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
    agents: Option<(Arc<dyn AgentTree>, AgentLimits)>,
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
            agents: None,
        }
    }

    /// Keeps the agents that runs start in `tree`, under these limits where a run has none of its own. Without it,
    /// nothing limits how many there are.
    #[must_use]
    pub fn with_agents(self, tree: Arc<dyn AgentTree>, limits: AgentLimits) -> Self {
        Self { agents: Some((tree, limits)), ..self }
    }

    /// Shares what it shows models with drivers of the same catalogue.
    #[must_use]
    pub(crate) fn with_views(self, views: Arc<ToolViewCache>) -> Self {
        Self { views, ..self }
    }

    /// Keeps its runs in `store`.
    #[must_use]
    pub fn with_store(self, store: Arc<dyn RunStore>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// Asks models by `model`.
    #[must_use]
    pub fn with_model(self, model: Arc<dyn ModelClient>) -> Self {
        Self { model, ..self }
    }

    /// Finds tools with `finder` if not all of them are shown. Default: lexical search.
    #[must_use]
    pub fn with_finder(self, finder: ToolFinder) -> Self {
        // Views hold the finder.
        Self { finder, views: Arc::default(), ..self }
    }

    /// After the answer of a run, waits up to this time for its background jobs and shows the model their results.
    /// Without it, the results are shown before the next message of the user.
    #[must_use]
    pub fn with_job_wait(self, limit: Duration) -> Self {
        Self { job_wait: Some(limit), ..self }
    }

    /// The system prompt, beginning with `base` and ending with `hints`, for a run with this specification and these options
    /// on the catalogue as it is now. It describes the tools that are shown from the beginning; a line about hidden tools is
    /// added when the run begins.
    #[must_use]
    pub fn system_prompt(&self, base: &str, hints: &[String], config: &RunConfig, options: &RunOptions) -> Prompt {
        let view = self.view(config, options);
        let all = self.choice(config, &view).exposure == Exposure::Direct;
        let is_shown = |entry: &&Arc<Entry>| all || entry.is_named_by(&config.pinned) || is_always_shown(entry);
        let own = view.own(&config.agent_tools);
        let natives = self.natives(config, &view, options, !view.usable.is_empty()).declared;
        let declared: Vec<_> = view.usable.iter().filter(is_shown).chain(own).chain(&natives).cloned().collect();
        let (root, usable, window) = (&*options.session.root, &*view.usable, config.window);
        assemble(&PromptInput { base, root, declared: &declared, usable, window, hints })
    }

    /// The first request of a run with this specification, as far as it does not depend on the task.
    pub async fn preview(&self, config: &RunConfig, options: &RunOptions) -> PromptPreview {
        let mut state = RunState::new(config.clone(), Vec::new());
        let view = self.view(config, options);
        let request_tools = self.request_tools(&mut state, &view, options, None).await;
        let RequestTools { tools, left_out, .. } = request_tools;
        PromptPreview { prompt: state.prompt(), exposure: state.exposure().cloned(), tools, left_out }
    }

    /// Runs until the task is done, or a person is needed who cannot answer now, or calls wait for permission
    /// to run ([`crate::Dispatch::Manual`]); both have the status `suspended`. A resumed run that waits for
    /// a person asks again; apply decisions made meanwhile beforehand, with [`RunState::on_approvals`] and
    /// [`RunState::dispatch`]. For the next message of a conversation, use [`RunState::continue_with`] and run again.
    ///
    /// Meanwhile no other process can drive the run.
    ///
    /// # Errors
    /// [`DriverError`] when the state cannot be saved, or another process drives the run. Failures of tools
    /// and models are no errors: they are in the report.
    pub async fn run(&self, state: &mut RunState, options: &RunOptions) -> Result<RunReport, DriverError> {
        // The store reads for the run right behind the claim: one wait for both.
        let (claimed, opened) = tokio::join!(self.claim(options), self.open_session(state, options));
        claimed?;
        self.run_exclusively(state, options, Some(opened)).await
    }

    /// [`Driver::run`] of a run that no other process can drive until it ends. Opens its session unless that is done.
    pub(crate) async fn run_exclusively(
        &self,
        state: &mut RunState,
        options: &RunOptions,
        opened: Option<Result<OpenedSession, DriverError>>,
    ) -> Result<RunReport, DriverError> {
        state.limit_time(None);
        let opened = async {
            match opened {
                Some(opened) => opened,
                None => self.open_session(state, options).await,
            }
        };
        // One follows the other into the store without a wait between them.
        let (agent_budget, opened) = tokio::join!(self.begin_agent_budget(state, options), opened);
        let (agent_budget, OpenedSession { variables, last_notice, unread, hops }) = match (agent_budget, opened) {
            (Ok(agent_budget), Ok(opened)) => (agent_budget, opened),
            (Err(error), _) => {
                self.release(options).await;
                return Err(error);
            }
            (Ok(agent_budget), Err(error)) => {
                self.end_agent_budget(agent_budget.as_deref(), options).await;
                self.release(options).await;
                return Err(error);
            }
        };
        let hops = Arc::new(AtomicU32::new(hops));
        let options = &RunOptions { agent_budget, variables: Some(variables), hops, ..options.clone() };
        if state.woken_by_messages_after().is_none() {
            state.skip_messages_until(last_notice);
        }
        state.limit_time(options.agent_budget.as_ref().and_then(|agent_budget| agent_budget.time()));
        let services = self.executor.services();
        for manual in state.config().system.manuals() {
            services.manuals.read(&options.session.id, *manual);
        }
        let started = services.clock.now();
        let events: &dyn EventSink = if options.is_part() { &NoEvents } else { &*services.events };
        events.emit_with(|| Event::RunStarted {
            op: options.op(),
            session: options.session.id.clone(),
            agent: options.session.agent.clone(),
            model: state.config().model.clone(),
        });
        // If the model cannot be asked, the first request fails and says why.
        let _ = self.model.ready(&state.config().model).await;
        let report = self.drive(state, options, unread).await;
        events.emit_with(|| Event::RunFinished {
            op: options.op(),
            session: options.session.id.clone(),
            agent: options.session.agent.clone(),
            ok: report.as_ref().is_ok_and(|report| report.status == Status::Success),
            status: report.as_ref().map_or("failure", |report| report.status.as_str()).to_owned(),
            latency_us: u64::try_from(services.clock.now().saturating_duration_since(started).as_micros())
                .unwrap_or(u64::MAX),
            usage: report.as_ref().map(|report| report.usage).unwrap_or_default(),
        });
        tokio::join!(self.end_agent_budget(options.agent_budget.as_deref(), options), self.release(options));
        report
    }

    /// Reads what the first turn of a run needs of its session.
    async fn open_session(&self, state: &RunState, options: &RunOptions) -> Result<OpenedSession, DriverError> {
        let (variables, last_notice, unread, hops) = tokio::join!(
            self.variables(state, options),
            self.last_notice(state, options),
            self.unread(state, options),
            self.executor.services().log.hops(&options.session.id),
        );
        Ok(OpenedSession { variables: variables?, last_notice: last_notice?, unread: unread?, hops: hops? })
    }

    /// What the references of the run stand for.
    async fn variables(&self, state: &RunState, options: &RunOptions) -> Result<Arc<dyn Variables>, DriverError> {
        if let Some(variables) = &options.variables {
            return Ok(Arc::clone(variables));
        }
        let services = self.executor.services();
        let own = &state.config().input;
        // An agent that was given nothing itself works on what its caller was given.
        let inherited = options.parent.as_ref().filter(|_| own.is_empty()).and_then(|parent| parent.variables.as_ref());
        let input = inherited.map_or_else(|| own.clone(), |variables| variables.given());
        Ok(RunVariables::open(&*services.log, &*services.outputs, &options.session.id, input).await?)
    }

    /// Drives the run to its end. `unread` are the messages that its first turn tells.
    async fn drive(
        &self,
        state: &mut RunState,
        options: &RunOptions,
        unread: Vec<LogRow>,
    ) -> Result<RunReport, DriverError> {
        let clock = &self.executor.services().clock;
        let mut snapshot = Arc::clone(self.snapshot(state, &self.view(state.config(), options)));
        let changed = resume::changed_tools(state, &snapshot);
        if !changed.is_empty() {
            self.calls_ended(state, changed, options)?;
        }
        let meter = UsageMeter::of(options, self.prices(), state.used_by_jobs());
        let mut in_flight = InFlightCalls::new(options.cancel.child(), TurnBudget::of(state, 0), &meter);
        let _driven = (!options.is_part()).then(|| {
            let run = self.call_context(state, &snapshot, options, &options.cancel, &in_flight);
            self.executor.drive(Arc::clone(&options.run_id), RunContext { order: None, ..run })
        });
        let mut opened = Some(unread);
        let mut asked = false;
        let mut noted = (0, 0);
        let mut since = clock.now();
        loop {
            let unread = opened.take();
            if in_flight.is_empty() {
                // The usage of earlier turns' jobs. That of started calls is recorded with their outcomes, which a
                // resume knows too.
                meter.count(state);
            }
            if in_flight.cancel.cause().is_some() && !in_flight.is_empty() {
                let outcomes = in_flight.join().await;
                meter.count(state);
                self.started_ended(state, outcomes, options)?;
            }
            let now = clock.now();
            state.on_elapsed(now.saturating_duration_since(since));
            since = now;
            match options.cancel.cause() {
                Some(CancelCause::Shutdown) if !state.is_over() => {
                    return self.release_run(state, &meter, options).await;
                }
                Some(cause) => state.cancel(cause),
                None => {}
            }
            let mut request_tools = RequestTools::default();
            if state.waits_for_model() {
                let unread = match unread {
                    Some(unread) => unread,
                    None => self.unread(state, options).await?,
                };
                let mail = self.mail(state, unread, &meter, options).await?;
                meter.count(state);
                state.add_session_messages(&mail);
                if let Some(agent_budget) = &options.agent_budget {
                    state.warn(&agent_budget.near_limits().await?);
                }
                if state.is_todo_due() && snapshot.get(TODO_ID).is_some() {
                    state.show_todo(&self.todo(options).await?);
                }
                let view = self.view(state.config(), options);
                request_tools = self.request_tools(state, &view, options, Some(&meter)).await;
                for (tool, why) in request_tools.left_out.iter().filter(|_| state.turns() == 0) {
                    self.warn("native_tool_left_out", format!("{tool} is not declared: {why}"));
                }
                snapshot = Arc::clone(self.snapshot(state, &view));
                if self.make_room(state, &request_tools, &snapshot, options).await {
                    // Stored outputs can be read from now on, and a last turn has few tools.
                    request_tools = self.request_tools(state, &view, options, Some(&meter)).await;
                }
            }
            let saving = self.saving(state, options)?;
            let position = (state.last_notice(), state.woken_by_messages_after().unwrap_or_default());
            let has_new_mail = std::mem::replace(&mut noted, position) != position;
            let saving = async {
                saving.await?;
                if has_new_mail { Ok(self.note_mail(position, options).await?) } else { Ok(()) }
            };
            let left = state.time_left();
            let step = state.step();
            // A model is asked meanwhile, or the store read: what comes of it is written behind the state.
            let saving = match &step {
                Step::CallModel(_) | Step::Done(_) => Some(saving),
                _ => {
                    saving.await?;
                    None
                }
            };
            match step {
                Step::CallModel(mut request) => {
                    self.report_progress(state, options, || "asks the model".to_owned());
                    let cancel = options.cancel.child();
                    let RequestTools { tools, exposure_record, note, .. } = request_tools;
                    let tools = with_instances(tools, &state.config().input, &snapshot);
                    request.tools = match &state.config().client {
                        client if client.tools.is_empty() => tools,
                        client => client.with_tools(&tools).into(),
                    };
                    let budget = TurnBudget::of(state, exposure_record.tokens);
                    let starting = InFlightCalls::new(cancel.clone(), budget, &meter);
                    let asking = self.ask_model(state, request, &snapshot, (exposure_record, note), options, starting);
                    let saved = async { if let Some(saving) = saving { saving.await } else { Ok(()) } };
                    (in_flight, ()) = tokio::try_join!(bounded(left, &cancel, asking), saved)?;
                }
                Step::CallTools(batch) => {
                    self.report_progress(state, options, || children::called(&batch));
                    // Calls that were started before share the token, so that one limit ends all.
                    let cancel = if in_flight.is_empty() { options.cancel.child() } else { in_flight.cancel.clone() };
                    let outcomes = self.run_calls(state, batch, &snapshot, options, &mut in_flight, &cancel);
                    let outcomes = bounded(left, &cancel, outcomes).await?;
                    meter.count(state);
                    let is_left = outcomes.iter().any(|outcome| outcome.is_left);
                    self.started_ended(state, outcomes, options)?;
                    if is_left {
                        return self.release_run(state, &meter, options).await;
                    }
                    asked = true;
                }
                Step::Compact(calls) => {
                    let cancel = options.cancel.child();
                    bounded(left, &cancel, self.compact(state, calls, options, &cancel)).await?;
                }
                // The approver, asked while the calls ran, has answered `later`.
                Step::AwaitApproval(_) if asked => return self.ended(state, &meter, options).await,
                Step::AwaitApproval(_) => state.ask_again(),
                Step::AwaitDispatch(_) => return self.ended(state, &meter, options).await,
                Step::Done(_) => {
                    let saved = async { if let Some(saving) = saving { saving.await } else { Ok(()) } };
                    let has_jobs = options.agent_budget.is_some() || self.job_wait.is_some();
                    let open = async { if has_jobs { Ok(self.open_jobs(options).await?) } else { Ok(Vec::new()) } };
                    let ((), open, unread) =
                        tokio::try_join!(saved, open, self.unread_messages_after_answer(state, options))?;
                    if !self.settle_children(state, &open, &unread, options).await?
                        && !self.continue_with_mail(state, &meter, (open, unread), options).await?
                    {
                        return self.ended(state, &meter, options).await;
                    }
                }
            }
        }
    }

    /// Leaves a run to the next process, because the program ends: it is saved with its open calls. Its report says that
    /// it was cancelled.
    async fn release_run(
        &self,
        state: &mut RunState,
        meter: &UsageMeter,
        options: &RunOptions,
    ) -> Result<RunReport, DriverError> {
        meter.count(state);
        self.save(state, options).await?;
        options.cancel.cancel(CancelCause::Shutdown);
        state.cancel(CancelCause::Shutdown);
        Ok(self.report(state, options))
    }

    /// The report of a run that ends or suspends, with the usage of its jobs so far.
    async fn ended(
        &self,
        state: &mut RunState,
        meter: &UsageMeter,
        options: &RunOptions,
    ) -> Result<RunReport, DriverError> {
        self.take_used(state, meter, options).await?;
        Ok(self.report(state, options))
    }

    /// Adds the jobs' usage since the last time, and saves it.
    async fn take_used(
        &self,
        state: &mut RunState,
        meter: &UsageMeter,
        options: &RunOptions,
    ) -> Result<(), DriverError> {
        if meter.count(state) { self.save(state, options).await } else { Ok(()) }
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
        self.decide_held_calls(&mut report, state, options);
        let report = report.redacted(redactor);
        self.record(options, || json!({"type": "report", "report": report.to_json()}));
        report
    }

    /// What models cost.
    fn prices(&self) -> &PriceTable {
        self.executor.models().prices()
    }

    fn record(&self, options: &RunOptions, record: impl FnOnce() -> Value) {
        if let Some(transcript) = &options.transcript {
            transcript.record(self.executor.services().redactor.redact_value(&record()));
        }
    }
}

/// Awaits `action`; after `left`, cancels it and awaits its end.
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
