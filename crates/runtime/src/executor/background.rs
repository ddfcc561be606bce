//! Delivers a call's result: awaited, as a job, or step by step.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::Value;
use toolwright_core::call::ValidCall;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::context::PartialSink;
use toolwright_core::definition::{Mode, ToolDefinition};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Partial;
use toolwright_core::job::{JobRecord, JobState, Turns};
use toolwright_core::operation::{Lineage, Op, OpKind, Origin};
use toolwright_core::outcome::{Outcome, STANDS_IN, ToolOutput};
use toolwright_core::redact::shown_arguments;
use toolwright_core::session::CallId;

use super::admission::Admitted;
use super::call_record::{ApprovalAnswer, CallRecord, journal, name_tool};
use super::job_messages::{awaited, known, left, started, step_output};
use super::limits::Limits;
use super::panics::{Panic, catch_panic};
use super::pipeline::{CallState, Destination, EarlyExit, validated};
use super::slot::Held;
use super::stage::Stage;
use super::{Executor, RunContext};
use crate::jobs::{Begun, JobEvents, JobManager, Live};
use crate::queue::Priority;
use crate::store::jobs::{Admission, JobPlan, JobStep, NewJob};

/// What a job does to its end.
type Work = BoxFuture<'static, Outcome>;

/// The wait of a call for leave to run, which becomes the job's own.
pub(super) type Asking = BoxFuture<'static, JobAdmission>;

/// The decision whether a job may run.
pub(super) struct JobAdmission {
    pub(super) admitted: Result<Admitted, EarlyExit>,
    /// What a person said, where one was asked.
    pub(super) said: ApprovalAnswer,
}

impl From<Result<Admitted, EarlyExit>> for JobAdmission {
    fn from(admitted: Result<Admitted, EarlyExit>) -> Self {
        Self { admitted, said: ApprovalAnswer::default() }
    }
}

/// How a job gets from its commit to its tool.
pub(super) enum JobStart {
    /// It may run.
    Admitted(Admitted),
    /// A person is still to be asked, for this reason.
    AwaitsApproval(Asking, String),
}

/// How long a job that nothing was dispatched of waits before it tries again for a slot or lock.
const AGAIN: Duration = Duration::from_secs(1);
/// Time of a stateful job's whole life; each of its steps has the tool's own.
const STATEFUL_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Whether calls may become jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Promotion {
    /// Where their tool, their time or a person makes them ones.
    #[default]
    May,
    /// Nobody could do anything with a job's id: they are awaited, whatever comes.
    Never,
}

impl Executor {
    /// Carries an admitted call out the way its tool's results come back. Without jobs in the application, every result
    /// is awaited.
    pub(super) fn deliver(self: Arc<Self>, it: Box<CallState>, admitted: Admitted) -> Work {
        let mode = match it.call.entry.definition().mode {
            Mode::Direct if it.run.background_after == Some(Duration::ZERO) => Mode::Background,
            mode => mode,
        };
        let jobs = self.options.jobs.clone().filter(|_| it.run.promotion == Promotion::May);
        match (jobs, mode) {
            (None, _) => self.carry_out(it, admitted).boxed(),
            (Some(jobs), Mode::Direct) => self.await_or_promote(jobs, it, admitted).boxed(),
            (Some(_), _) => async move {
                let how = JobStart::Admitted(admitted);
                let started = self.start_job(Arc::clone(&it.call), how, &it.run, &it.record.op).await;
                self.conclude(it, started).await
            }
            .boxed(),
        }
    }

    /// Starts a call as a job. Its caller gets the id, or the first partial result of a stateful tool.
    pub(super) async fn start_job(
        self: &Arc<Self>,
        call: Arc<ValidCall>,
        how: JobStart,
        run: &RunContext,
        op: &Op,
    ) -> Result<ToolOutput, EarlyExit> {
        let Some(jobs) = &self.options.jobs else {
            return Err(ToolError::new(ErrorKind::InternalError, "there are no jobs here").into());
        };
        let (admission, reason, leave): (_, _, Asking) = match how {
            JobStart::Admitted(admitted) => {
                (admission(admitted), None, Box::pin(async move { JobAdmission::from(Ok(admitted)) }))
            }
            JobStart::AwaitsApproval(asking, reason) => (Admission::Awaited, Some(reason), asking),
        };
        let mut new = self.new_job(&call, admission, JobState::Pending, run);
        new.plan.reason = reason;
        let entry = Arc::clone(&call.entry);
        let told = self.told(&new.record, &op.inside());
        let job = match jobs.begin(new, Cancel::new(), told).await.map_err(ToolError::from)? {
            Begun::New(job) => job,
            Begun::Known(id) => {
                let record = jobs.record(&id).await.map_err(ToolError::from)?;
                return Ok(known(&record, entry.definition(), run.follows));
            }
        };
        let (id, definition, stepwise) = (&job.id, entry.definition(), entry.definition().mode == Mode::Stateful);
        self.launch(jobs, &job, call, leave, run, op);
        match admission {
            Admission::Awaited => Ok(awaited(id, definition, run.follows)),
            _ if stepwise => self.first_step(jobs, &job, definition, run).await,
            _ => Ok(started(id, definition, JobState::Pending, run.follows)),
        }
    }

    /// Starts a job of this process once it is admitted: an operation inside `op`, with its own cancellation token.
    pub(super) fn launch(
        self: &Arc<Self>,
        jobs: &Arc<JobManager>,
        job: &Arc<Live>,
        call: Arc<ValidCall>,
        leave: Asking,
        run: &RunContext,
        op: &Op,
    ) {
        let log = Arc::clone(&job.log);
        let stepwise = call.entry.definition().mode == Mode::Stateful;
        let limit = Limits::of(&call.entry, run, &self.options).absolute;
        let mut run = RunContext {
            lineage: op.inside(),
            cancel: job.cancel.clone(),
            partials: Some(Arc::new(move |_| Arc::clone(&log))),
            became: None,
            journal: Some((Arc::clone(job) as _, job.id.as_str().into())),
            priority: Priority::Background,
            origin: Origin::Job,
            started_before: 0,
            inner: None,
            timeout: if stepwise { Some(STATEFUL_LIFE) } else { run.timeout },
            // Its outcome is no part of this turn.
            budget: None,
            ..run.clone()
        };
        let turns =
            JobTurns { executor: Arc::clone(self), job: Arc::clone(job), call: Arc::clone(&call), run: run.clone() };
        run.job = Some(Arc::new(turns));
        let mut call_record = self.open_record(&call, &run);
        call_record.kind = OpKind::Job;
        call_record.decided_by = "job".into();
        let executor = Arc::clone(self);
        let id = call.id.clone();
        let mut it = Box::new(CallState { call, run: Arc::new(run), record: call_record });
        let work = async move {
            let mut asking = leave;
            let clock = Arc::clone(&executor.options.services.clock);
            let began = clock.now();
            let leave = tokio::select! {
                biased;
                leave = catch_panic(asking.as_mut()) => {
                    leave.unwrap_or_else(|panicked| Err(it.record.blame(&panicked, &it.call.entry)).into())
                }
                cause = it.run.cancel.cancelled() => JobAdmission {
                    admitted: Err(ToolError::canceled(cause).into()),
                    said: ApprovalAnswer { word: None, took: clock.now().saturating_duration_since(began) },
                },
            };
            // A question that was not answered is withdrawn before anything else.
            drop(asking);
            it.record.approval = leave.said;
            match leave.admitted {
                Ok(admitted) => executor.carry_out(it, admitted).await,
                Err(stop) => executor.conclude(it, Err(stop)).await,
            }
        };
        match limit.filter(|_| stepwise) {
            Some(limit) => follow(jobs, job, id, within_steps(work.boxed(), Arc::clone(job), limit).boxed()),
            None => follow(jobs, job, id, work.boxed()),
        }
    }

    /// A call's turn. A job waits for it as long as need be: nothing was dispatched, and nobody waits for it.
    pub(super) async fn slot_in_time(
        &self,
        call: &ValidCall,
        run: &RunContext,
        call_record: &mut CallRecord,
    ) -> Result<Held, ToolError> {
        loop {
            match self.take_slot(call, run, call_record).await {
                Err(error) if run.job.is_some() && error.kind() == ErrorKind::LimitExceeded && error.is_retryable() => {
                }
                turn => return turn,
            }
            tokio::select! {
                () = tokio::time::sleep(AGAIN) => {}
                cause = run.cancel.cancelled() => return Err(ToolError::canceled(cause)),
            }
        }
    }

    /// Awaits a call, unless a person or its time makes a job of it: then it goes on as it is, and its caller gets
    /// the id.
    async fn await_or_promote(
        self: Arc<Self>,
        jobs: Arc<JobManager>,
        it: Box<CallState>,
        admitted: Admitted,
    ) -> Outcome {
        let kept = Kept { call: Arc::clone(&it.call), run: Arc::clone(&it.run), op: it.record.op.clone() };
        let Kept { call, run, .. } = &kept;
        let after = run.background_after.or_else(|| self.background_after(call));
        let mut work: Work = Arc::clone(&self).carry_out(it, admitted).boxed();
        let promotable = jobs.promotable(&run.session.id, call);
        let in_time = async {
            match after {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        };
        let by = tokio::select! {
            biased;
            outcome = &mut work => return outcome,
            () = promotable.wanted() => "user",
            () = in_time => "auto_background_after",
        };
        if run.cancel.is_cancelled() {
            return work.await;
        }
        self.promote(&jobs, &kept, work, (admitted, by)).boxed().await
    }

    /// Makes a call that is being awaited a job, for this reason. It is awaited on where that fails.
    async fn promote(
        &self,
        jobs: &Arc<JobManager>,
        kept: &Kept,
        work: Work,
        (admitted, by): (Admitted, &'static str),
    ) -> Outcome {
        let Kept { call, run, op } = kept;
        let mut new = self.new_job(call, admission(admitted), JobState::Running, run);
        // A resumed run finds this call's end in its journal.
        new.run = None;
        let told = self.told(&new.record, &op.inside());
        // A job outlives what cancels its caller. Until it is kept the tool waits, where it runs within this call.
        run.cancel.leave_parent();
        let job = match jobs.begin(new, run.cancel.clone(), told).await {
            Ok(Begun::New(job)) => job,
            Ok(Begun::Known(_)) | Err(_) => {
                tracing::warn!(tool = %call.entry.id(), "a call could not be made a job; it is awaited");
                run.cancel.join_parent();
                return work.await;
            }
        };
        if let Some(became) = &run.became {
            became.job(&job);
        }
        job.told.promoted(op.clone(), &call.id, by);
        follow(jobs, &job, call.id.clone(), work);
        self.promised(call, &job, run).await
    }

    /// The end, for its caller, of a call that goes on as a job. Event and ledger have it once: when it is over.
    async fn promised(&self, call: &ValidCall, job: &Live, run: &RunContext) -> Outcome {
        let entry = &call.entry;
        let output = started(&job.id, entry.definition(), JobState::Running, run.follows);
        let mut outcome = self.shaped(call, Ok(output), run, Destination::ToTurn).await;
        name_tool(&mut outcome, entry);
        outcome.validated = validated(call);
        journal(&outcome, run).await;
        outcome
    }

    fn background_after(&self, call: &ValidCall) -> Option<Duration> {
        let entry = &call.entry;
        // A call that awaits others is long by nature: only its own definition puts a time to it.
        let general = self.options.auto_background_after.filter(|_| !entry.provider.awaits_others(entry.id()));
        entry.definition().auto_background_after.or(general)
    }

    /// The first result of a stateful job: its first partial one, or its end.
    async fn first_step(
        &self,
        jobs: &JobManager,
        job: &Arc<Live>,
        definition: &ToolDefinition,
        run: &RunContext,
    ) -> Result<ToolOutput, EarlyExit> {
        // Until there is an id to tell, the job is its caller's: the call goes on, cancelled, if nobody waits for it.
        let settled = tokio::select! {
            state = job.settled() => state,
            cause = run.cancel.cancelled() => {
                job.cancel.cancel(cause);
                job.settled().await
            }
        };
        let record = jobs.record(&job.id).await.map_err(ToolError::from)?;
        if settled == JobState::Pending {
            // Left to another process before its first step.
            return Ok(left(&record, definition));
        }
        if settled.is_over() {
            // Told by this very result.
            jobs.store().jobs_told(std::slice::from_ref(&job.id)).await.map_err(ToolError::from)?;
        }
        Ok(step_output(&record, definition, run.follows)?)
    }

    /// How observers hear of a job, an operation of its own in `lineage`.
    pub(super) fn told(&self, job: &JobRecord, lineage: &Lineage) -> JobEvents {
        JobEvents::new(self.begin(lineage), job, &self.options.services)
    }

    fn new_job(&self, call: &ValidCall, admission: Admission, state: JobState, run: &RunContext) -> NewJob {
        let (definition, session) = (call.entry.definition(), &run.session);
        let services = &self.options.services;
        let record = JobRecord {
            id: new_id(definition.id.name()),
            tool: definition.id.clone(),
            arguments: shown_arguments(&call.entry, &call.arguments, &*services.redactor),
            state,
            session: session.id.clone(),
            principal: session.principal.id.clone(),
            call: call.id.clone(),
            owner: None,
            attempts: u32::from(state == JobState::Running),
            created_ms: services.clock.wall_ms(),
            ended_ms: None,
            outcome: None,
        };
        let plan = JobPlan {
            definition: call.entry.tool.hash(),
            source: Some(call.entry.provider.defined_in().to_owned()),
            arguments: call.arguments.clone(),
            unvalidated: call.unvalidated,
            principal: session.principal.clone(),
            root: session.root.clone(),
            agent: session.agent.clone(),
            results_for: run.results_for,
            admission,
            reason: None,
        };
        let run = run.journal.as_ref().map(|(_, run)| run.to_string());
        NewJob { record, run, resumable: call.entry.is_repeatable(), plan }
    }
}

/// What a call that may become a job leaves with whoever awaits it.
struct Kept {
    call: Arc<ValidCall>,
    run: Arc<RunContext>,
    op: Op,
}

/// Follows a job's work to its end, on a task of its own.
fn follow(jobs: &Arc<JobManager>, job: &Arc<Live>, call: CallId, mut work: Work) {
    let (jobs, job) = (Arc::clone(jobs), Arc::clone(job));
    tokio::spawn(async move {
        let outcome =
            catch_panic(work.as_mut()).await.unwrap_or_else(|panicked| Outcome::failed(call, panicked.error("a job")));
        let cause = outcome.error.as_ref().and_then(ToolError::cancel_cause);
        let again = !job.was_dispatched() || job.resumable;
        let step = if cause == Some(CancelCause::Shutdown) && again {
            JobStep::Released
        } else {
            JobStep::Ended(JobState::of(&outcome), outcome)
        };
        jobs.leave(&job, step).await;
    });
}

/// The steps of one stateful job.
struct JobTurns {
    executor: Arc<Executor>,
    job: Arc<Live>,
    call: Arc<ValidCall>,
    run: RunContext,
}

#[async_trait]
impl Turns for JobTurns {
    async fn pause(&self, output: ToolOutput) -> Result<Value, ToolError> {
        let intercepted = catch_panic(pin!(self.executor.intercept_output(&self.call.entry, output, &self.run))).await;
        let blame = |panicked: Panic| Err(panicked.error(Stage::Interceptors.whose()));
        let mut output = intercepted.unwrap_or_else(blame)?;
        if output.structured.is_none() {
            // Words on the way to a result, which is what the tool's schema is for.
            output.extras.insert(STANDS_IN.into(), "step".into());
        }
        let partial = self.executor.shaped(&self.call, Ok(output), &self.run, Destination::WithCall).await;
        self.job.pause(partial).await
    }
}

/// The job that a call has become, if it has: where its progress and its end go.
#[derive(Clone, Default)]
pub struct PromotedTo(Arc<OnceLock<Arc<Live>>>);

impl PromotedTo {
    /// Whether the call has become one.
    pub(super) fn is_job(&self) -> bool {
        self.0.get().is_some()
    }

    fn job(&self, job: &Arc<Live>) {
        // Set once, by who waits for the call.
        let _ = self.0.set(Arc::clone(job));
    }
}

/// Where a call's progress goes: to its caller, or to the log of the job that it has become.
pub(super) struct Progress {
    became: Option<PromotedTo>,
    caller: Option<Arc<dyn PartialSink>>,
}

impl Progress {
    /// That of the call `id` under these terms.
    pub(super) fn of(id: &CallId, run: &RunContext) -> Self {
        Self { became: run.became.clone(), caller: run.partials.as_ref().map(|make| make(id)) }
    }
}

impl PartialSink for Progress {
    fn send(&self, partial: Partial) {
        match (self.became.as_ref().and_then(|became| became.0.get()), &self.caller) {
            (Some(job), _) => job.log.send(partial),
            (None, Some(caller)) => caller.send(partial),
            (None, None) => {}
        }
    }
}

/// Ends the work of a stateful job when one of its steps takes longer than `limit`; a wait for input is no step.
async fn within_steps(mut work: Work, job: Arc<Live>, limit: Duration) -> Outcome {
    let mut state = job.state();
    loop {
        let runs = *state.borrow_and_update() == JobState::Running;
        tokio::select! {
            outcome = &mut work => return outcome,
            () = tokio::time::sleep(limit), if runs => {
                job.cancel.cancel(CancelCause::Deadline);
                return work.await;
            }
            Ok(()) = state.changed() => {}
        }
    }
}

fn admission(admitted: Admitted) -> Admission {
    match admitted {
        Admitted::Allowed(_) => Admission::Allowed,
        Admitted::Approved(_) => Admission::Approved,
    }
}

/// `name_<8 hex>`, a name for files too.
fn new_id(name: &str) -> String {
    let safe: String = name.chars().take(40).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let number = uuid::Uuid::new_v4().as_u64_pair().0;
    format!("{safe}_{:08x}", number >> 32)
}
