//! Runs calls as jobs: from their start, after they have taken long, or step by step.

mod driven;
mod recovery;
mod rights;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::Value;
use toolwright_core::agents::{TreeError, child_session};
use toolwright_core::call::ValidCall;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::ProviderKind;
use toolwright_core::content::ContentBlock;
use toolwright_core::definition::{Mode, ToolDefinition};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::job::{JobFollower, JobNotice, JobRecord, JobState, Turns, note};
use toolwright_core::operation::{CallOrigin, Lineage, Op, OpKind};
use toolwright_core::outcome::{JOB_META, Outcome, STANDS_IN, ToolOutput};
use toolwright_core::redact::shown_arguments;
use toolwright_core::session::CallId;
use toolwright_core::store::{MessageKind, SessionLog as _};

use super::admission::{Admitted, JobAdmission, JobStart, PendingAdmission};
use super::call_record::{ApprovalAnswer, journal, name_tool};
use super::context::CallTimeLimits;
use super::pipeline::{CallState, Destination, EarlyExit, Panic, PromotableCall, Stage, catch_panic, validated};
use super::{Executor, RunContext};

pub use self::driven::DrivenRun;
pub(super) use self::driven::DrivenRuns;
pub use self::recovery::RecoveryOptions;
use crate::jobs::{JobBeginning, JobEvents, JobManager, LiveJob};
use crate::models::ReservedAgent;
use crate::queue::Priority;
use crate::store::jobs::{Admission, JobPlan, JobRights, JobStep, NewJob};

/// The work of a job.
type JobFuture = BoxFuture<'static, Outcome>;

/// The limit on a stateful job's total time; each of its steps has the tool's own limit.
const STATEFUL_LIFE: Duration = Duration::from_secs(24 * 3600);

impl Executor {
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
        let reserved = match &how {
            JobStart::Admitted(_) => reserve(&call, run).await?,
            JobStart::AwaitsApproval(..) => None,
        };
        let (admission, reason, leave): (_, _, PendingAdmission) = match how {
            JobStart::Admitted(admitted) => {
                (admission(admitted), None, Box::pin(async move { JobAdmission::from(Ok(admitted)) }))
            }
            JobStart::AwaitsApproval(asking, reason) => (Admission::Awaited, Some(reason), asking),
        };
        let mut new = self.new_job(&call, admission, JobState::Pending, run);
        new.plan.reason = reason;
        let entry = Arc::clone(&call.entry);
        let events = self.job_events(&new.record, &op.inside());
        let begun = jobs.begin(new, Cancel::new(), events).await.map_err(ToolError::from);
        let job = match begun {
            Ok(JobBeginning::New(job)) => job,
            Err(error) => {
                release(reserved).await;
                return Err(error.into());
            }
            Ok(JobBeginning::Known(id)) => {
                release(reserved).await;
                let record = jobs.record(&id).await.map_err(ToolError::from)?;
                return Ok(existing_output(&record, entry.definition(), run.follows));
            }
        };
        let (id, definition, stepwise) = (&job.id, entry.definition(), entry.definition().mode == Mode::Stateful);
        self.launch(jobs, &job, call, (leave, reserved), run, op);
        match admission {
            Admission::Awaited => Ok(awaiting_approval(id, definition, run.approver.answer_timeout(), run.follows)),
            _ if stepwise => self.first_step(jobs, &job, definition, run).await,
            _ => Ok(started(id, definition, JobState::Pending, run.follows)),
        }
    }

    /// Starts an admitted job of this process: an operation inside `op`, with its own cancel token. The place that its
    /// agent reserved is free once it has ended.
    pub(super) fn launch(
        self: &Arc<Self>,
        jobs: &Arc<JobManager>,
        job: &Arc<LiveJob>,
        call: Arc<ValidCall>,
        (leave, reserved): (PendingAdmission, Option<ReservedAgent>),
        run: &RunContext,
        op: &Op,
    ) {
        let log = Arc::clone(&job.log);
        let stepwise = call.entry.definition().mode == Mode::Stateful;
        let limit = CallTimeLimits::of(&call.entry, run, &self.options).absolute;
        let mut run = RunContext {
            lineage: op.inside(),
            cancel: job.cancel.clone(),
            partials: Some(Arc::new(move |_| Arc::clone(&log))),
            became: None,
            journal: Some((Arc::clone(job) as _, job.id.as_str().into())),
            priority: Priority::Background,
            origin: CallOrigin::Job,
            started_before: 0,
            excluded: Arc::default(),
            inner: None,
            timeout: if stepwise { Some(STATEFUL_LIFE) } else { run.timeout },
            // Its outcome is not part of this turn.
            budget: None,
            usage: run.usage.as_ref().map(|usage| usage.of_job(&call.id).unwrap_or_else(|| Arc::clone(usage))),
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
        let mut call_state = Box::new(CallState { call, run: Arc::new(run), record: call_record });
        let work = async move {
            let mut asking = leave;
            let clock = Arc::clone(&executor.options.services.clock);
            let began = clock.now();
            let leave = tokio::select! {
                biased;
                leave = catch_panic(asking.as_mut()) => {
                    leave.unwrap_or_else(|panicked| Err(call_state.record.panic_exit(&panicked, &call_state.call.entry)).into())
                }
                cause = call_state.run.cancel.cancelled() => JobAdmission {
                    admitted: Err(ToolError::canceled(cause).into()),
                    answer: ApprovalAnswer { word: None, took: clock.now().saturating_duration_since(began) },
                },
            };
            // First withdraws a question that was not answered.
            drop(asking);
            call_state.record.approval = leave.answer;
            let outcome = match leave.admitted {
                Ok(admitted) => executor.run_admitted(call_state, admitted).await,
                Err(stop) => executor.conclude(call_state, Err(stop)).await,
            };
            release(reserved).await;
            outcome
        };
        match limit.filter(|_| stepwise) {
            Some(limit) => follow(jobs, job, id, within_steps(work.boxed(), Arc::clone(job), limit).boxed()),
            None => follow(jobs, job, id, work.boxed()),
        }
    }

    /// Turns a call that is being awaited into a job, for this reason. If that fails, it is still awaited.
    pub(super) async fn promote(
        &self,
        jobs: &Arc<JobManager>,
        promotable: &PromotableCall,
        work: JobFuture,
        (admitted, by): (Admitted, &'static str),
    ) -> Outcome {
        let PromotableCall { call, run, op } = promotable;
        let mut new = self.new_job(call, admission(admitted), JobState::Running, run);
        // A resumed run finds the end of this call in its journal.
        new.record.run = None;
        let events = self.job_events(&new.record, &op.inside());
        // A job outlives the cancellation of its caller. Until it is stored, a tool that runs within this call waits.
        run.cancel.leave_parent();
        let job = match jobs.begin(new, run.cancel.clone(), events).await {
            Ok(JobBeginning::New(job)) => job,
            Ok(JobBeginning::Known(_)) | Err(_) => {
                tracing::warn!(tool = %call.entry.id(), "a call could not be made a job; it is awaited");
                run.cancel.join_parent();
                return work.await;
            }
        };
        if let Some(became) = &run.became {
            became.set(&job);
        }
        if let Some(turn) = &run.turn {
            turn.release();
        }
        job.events.promoted(op.clone(), &call.id, by);
        follow(jobs, &job, call.id.clone(), work);
        self.await_job_end(call, &job, run).await
    }

    /// Returns the end that the caller gets of a call that continues as a job. It is reported and recorded once, when
    /// the job is over.
    async fn await_job_end(&self, call: &ValidCall, job: &LiveJob, run: &RunContext) -> Outcome {
        let entry = &call.entry;
        let output = started(&job.id, entry.definition(), JobState::Running, run.follows);
        let mut outcome = self.shape(call, Ok(output), run, Destination::ToTurn).await;
        name_tool(&mut outcome, entry);
        outcome.validated = validated(call);
        journal(&outcome, run).await;
        outcome
    }

    pub(super) fn background_after(&self, call: &ValidCall) -> Option<Duration> {
        let entry = &call.entry;
        // A call that awaits others takes long by nature: only its own definition sets a time for it.
        let general = self.options.defaults.auto_background_after.filter(|_| !call.awaits_others());
        entry.definition().auto_background_after.or(general)
    }

    /// Returns the first result of a stateful job: its first partial one, or its end.
    async fn first_step(
        &self,
        jobs: &JobManager,
        job: &Arc<LiveJob>,
        definition: &ToolDefinition,
        run: &RunContext,
    ) -> Result<ToolOutput, EarlyExit> {
        // Until its id is returned, the job belongs to its caller: if nobody waits for the call, it is cancelled.
        let settled = tokio::select! {
            state = job.wait_until_settled() => state,
            cause = run.cancel.cancelled() => {
                job.cancel.cancel(cause);
                job.wait_until_settled().await
            }
        };
        let record = jobs.record(&job.id).await.map_err(ToolError::from)?;
        if settled == JobState::Pending {
            // The job was left to another process before its first step.
            return Ok(released_output(&record, definition));
        }
        if settled.is_over() {
            // This result already tells the caller.
            let withdrawn = jobs.store().withdraw(&record.session, MessageKind::Job, &record.id).await;
            withdrawn.map_err(ToolError::from)?;
        }
        Ok(step_output(&record, definition, run.follows)?)
    }

    /// Returns the events of a job, which is its own operation in `lineage`.
    pub(super) fn job_events(&self, job: &JobRecord, lineage: &Lineage) -> JobEvents {
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
            run: run.journal.as_ref().map(|(_, run)| run.to_string()),
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
            meta: call.meta.clone(),
            route: call.provenance.route.clone(),
            tainted: call.provenance.tainted.clone(),
            unvalidated: call.unvalidated,
            principal: session.principal.clone(),
            root: session.root.clone(),
            agent: session.agent.clone(),
            results_for: run.results_for,
            terms: JobRights::of(run, call),
            admission,
            reason: None,
        };
        NewJob { record, resumable: call.entry.is_resumable(), plan }
    }
}

/// Reserves the place of an agent in the tree of the run that starts it as a job. Another tool needs none.
async fn reserve(call: &ValidCall, run: &RunContext) -> Result<Option<ReservedAgent>, ToolError> {
    let (entry, above) = (&call.entry, run.agent_budget.as_ref());
    let Some(above) = above.filter(|_| entry.provider.kind() == ProviderKind::Agent) else { return Ok(None) };
    let name = entry.id().name();
    let id = child_session(name, &run.session.id, &call.id);
    above.reserve_agent(id.as_str().into(), name).await.map_err(|error| match error {
        TreeError::Limit(limit) => limit.into(),
        TreeError::Store(error) => error.into(),
    })
}

async fn release(reserved: Option<ReservedAgent>) {
    if let Some(reserved) = reserved
        && let Err(error) = reserved.release().await
    {
        tracing::warn!("the place of an agent was not freed: {error}");
    }
}

/// Follows a job's work to its end, on its own task.
fn follow(jobs: &Arc<JobManager>, job: &Arc<LiveJob>, call: CallId, mut work: JobFuture) {
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
        jobs.end_or_release(&job, step).await;
    });
}

/// The steps of one stateful job.
struct JobTurns {
    executor: Arc<Executor>,
    job: Arc<LiveJob>,
    call: Arc<ValidCall>,
    run: RunContext,
}

#[async_trait]
impl Turns for JobTurns {
    async fn pause(&self, output: ToolOutput) -> Result<Value, ToolError> {
        let intercepted = catch_panic(pin!(self.executor.intercept_output(&self.call.entry, output, &self.run))).await;
        let blame = |panicked: Panic| Err(panicked.error(Stage::Interceptors.code_owner()));
        let mut output = intercepted.unwrap_or_else(blame)?;
        if output.structured.is_none() {
            // The text of a step is not the result for which the tool's schema is.
            output.extras.insert(STANDS_IN.into(), "step".into());
        }
        let partial = self.executor.shape(&self.call, Ok(output), &self.run, Destination::WithCall).await;
        self.job.pause(partial).await
    }

    fn is_stepwise(&self) -> bool {
        self.call.entry.definition().mode == Mode::Stateful
    }
}

/// Ends the work of a stateful job if one of its steps takes longer than `limit`. Waits for input do not count.
async fn within_steps(mut work: JobFuture, job: Arc<LiveJob>, limit: Duration) -> Outcome {
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

/// Returns `name_<8 hex>`, which is also a valid file name.
fn new_id(name: &str) -> String {
    let safe: String = name.chars().take(40).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let number = uuid::Uuid::new_v4().as_u64_pair().0;
    format!("{safe}_{:08x}", number >> 32)
}

/// Key of the notice inside a tool's own structured result.
const NOTICE_KEY: &str = "toolwright";

/// Returns the result of a call that continues as a job.
pub(super) fn started(id: &str, definition: &ToolDefinition, state: JobState, follows: JobFollower) -> ToolOutput {
    notice_output(JobNotice::started(id, &definition.id, state, follows), id, definition, state)
}

/// Returns the result of a call that waits for approval as a job, and has not started.
pub(super) fn awaiting_approval(
    id: &str,
    definition: &ToolDefinition,
    wait: Duration,
    follows: JobFollower,
) -> ToolOutput {
    let notice = JobNotice::awaiting_approval(id, &definition.id, wait, follows);
    notice_output(notice, id, definition, JobState::Pending).with_extra(STANDS_IN, "approval")
}

/// Returns the result of a call that already has a job.
pub(super) fn existing_output(job: &JobRecord, definition: &ToolDefinition, follows: JobFollower) -> ToolOutput {
    if job.state.is_over() {
        return released_output(job, definition);
    }
    started(&job.id, definition, job.state, follows)
}

/// Returns the current result of a call whose job was left to another process.
pub(super) fn released_output(job: &JobRecord, definition: &ToolDefinition) -> ToolOutput {
    let next = "job__wait gives its result, if it has one.".to_owned();
    notice_output(JobNotice { status: "job", message: job.line(), next }, &job.id, definition, job.state)
}

/// Returns the notice as a result. A tool's output schema applies only to its own results, so clients find the notice
/// in `_meta`.
fn notice_output(notice: JobNotice, id: &str, definition: &ToolDefinition, state: JobState) -> ToolOutput {
    let note = notice.attach_to(note(id, &definition.id, state));
    let mut output = ToolOutput::text(notice.text());
    if definition.output_schema.is_none() {
        output.structured = Some(note.clone());
    }
    output.extras.insert(STANDS_IN.into(), "job".into());
    output.meta.insert(JOB_META.into(), note);
    output
}

/// Returns a step of a job as the result of the call that waited for it.
fn step_output(job: &JobRecord, definition: &ToolDefinition, follows: JobFollower) -> Result<ToolOutput, ToolError> {
    let Some(outcome) = job.outcome.clone() else {
        return Err(ToolError::new(ErrorKind::InternalError, job.line()));
    };
    if let Some(error) = outcome.error {
        return Err(error);
    }
    let Outcome { content, structured, meta, extras, .. } = outcome;
    let mut output = ToolOutput { content, structured, meta, extras, ..ToolOutput::default() };
    if job.state == JobState::WaitingInput {
        let notice = JobNotice::started(&job.id, &job.tool, job.state, follows);
        output.content.push(ContentBlock::text(notice.text()));
        let note = notice.attach_to(job.note());
        match &mut output.structured {
            _ if definition.output_schema.is_some() => {}
            Some(Value::Object(own)) => drop(own.insert(NOTICE_KEY.into(), note.clone())),
            Some(_) => {}
            none => *none = Some(note.clone()),
        }
        output.meta.insert(JOB_META.into(), note);
    }
    Ok(output)
}
