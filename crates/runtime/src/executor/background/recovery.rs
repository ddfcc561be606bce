//! Resumes jobs of dead processes, if that is safe.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use toolwright_core::arguments::Provenance;
use toolwright_core::call::ValidCall;
use toolwright_core::catalogue::{Entry, Health, ProviderKind, Snapshot};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::job::{JobRecord, JobState};
use toolwright_core::operation::Lineage;
use toolwright_core::outcome::Outcome;
use toolwright_core::session::{CallId, Session, SessionId};
use toolwright_core::store::StoreError;

use super::driven::DrivenContext;
use crate::approvals::ResumedQuestion;
use crate::catalogue::Catalogue;
use crate::executor::admission::{Admitted, JobAdmission, Judgement, PendingAdmission};
use crate::executor::call_record::ApprovalAnswer;
use crate::executor::pipeline::catch_panic_sync;
use crate::executor::{Executor, RunContext};
use crate::jobs::{JobManager, LiveJob};
use crate::store::jobs::{Admission, ClaimedJob, JobRights, JobStep, Startable};

/// Interval between searches for jobs without an owner.
const PERIOD: Duration = Duration::from_secs(1);
/// The most jobs that are taken at once; others wait for the next search or another process.
const BATCH: usize = 256;
/// The most pages that one search reads. Later jobs wait until earlier ones are gone.
const PAGES: usize = 64;
/// The number of own jobs above which this process takes no more.
const MAX_OWN_JOBS: usize = 1024;
/// The most dispatches of a job: one that always kills its process must not be retried forever.
const MAX_ATTEMPTS: u32 = 100;
/// The reason why a job whose run is unknown does not continue.
const RUN_UNKNOWN: &str = "its process died, and it was not run again: the run that it is charged to is not known any more, so its \
    limits cannot be kept. Start it again if it is still needed";
/// The reason of an approval question if the job has not stored it.
const UNKNOWN_REASON: &str = "it waited for approval when the process that had it ended";

/// Which jobs of dead processes this process takes over, and how it runs them.
#[derive(Clone)]
pub struct RecoveryOptions {
    /// The tools. A job is taken over only if its tool is in the catalogue with the definition under which it was
    /// admitted.
    pub catalogue: Arc<Catalogue>,
    /// The workspace root of this process. Jobs of server tools are taken over only if it is the job's root, because
    /// these tools depend on it. Jobs of built-in tools run in the job's root.
    pub root: PathBuf,
    /// The session whose jobs are taken over, besides those of sessions whose runs this process drives; `None` for all
    /// sessions, in long-lived processes. With `Some`, agents of a session resume only while the session's run is
    /// driven.
    pub session: Option<SessionId>,
    /// Creates the context of a session's call if its run is not driven: for the calls of the job's tool, for current
    /// policy denials, and for questions to a person. The terms of the run that began the job restrict it further.
    pub context: Arc<dyn Fn(Session, Arc<Snapshot>) -> RunContext + Send + Sync>,
}

impl RecoveryOptions {
    /// Returns whether a tool is from the source for which a job was admitted, and not from another project's source of
    /// the same name.
    fn has(&self, entry: &Entry, source: Option<&str>, root: Option<&Path>) -> bool {
        use ProviderKind::{Catalogue, Mcp, OpenApi, Rest};
        let is_anywhere = !matches!(entry.provider.kind(), Mcp | Rest | Catalogue | OpenApi);
        source.is_none_or(|source| source == entry.provider.defined_in())
            && (is_anywhere || root.is_none_or(|root| root == self.root))
    }
}

impl Executor {
    /// Takes over jobs of dead processes, now and later, until the executor is dropped.
    pub fn recover_jobs(self: &Arc<Self>, options: RecoveryOptions) {
        let (executor, driven) = (Arc::downgrade(self), Arc::clone(&self.driven));
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PERIOD);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = driven.changed.notified() => {}
                }
                let Some(executor) = Weak::upgrade(&executor) else { return };
                let Some(jobs) = executor.options.jobs.clone() else { return };
                match executor.recover(&jobs, &options).await {
                    Ok(0) => {}
                    Ok(lost) => {
                        tracing::warn!("{lost} jobs were lost with their process; `toolwright jobs ls` names them")
                    }
                    Err(error) => tracing::warn!("jobs of dead processes could not be looked for: {error}"),
                }
            }
        });
    }

    /// Settles the jobs of dead processes and starts those that may run. Returns how many were lost.
    async fn recover(self: &Arc<Self>, jobs: &Arc<JobManager>, options: &RecoveryOptions) -> Result<usize, StoreError> {
        let lost = jobs.settle().await?;
        // A process that is ending takes no jobs: those that it has just released are for others.
        if jobs.is_closed() || self.in_flight.is_open().is_err() || jobs.count() >= MAX_OWN_JOBS {
            return Ok(lost);
        }
        let (restartable, others) =
            startable(jobs, options, &self.driven.sessions(), &options.catalogue.snapshot()).await?;
        self.end_changed_jobs(jobs, options, others).await?;
        if restartable.is_empty() {
            return Ok(lost);
        }
        let snapshot = options.catalogue.snapshot();
        let events_of = |job: &JobRecord| self.job_events(job, &Lineage::named(job.session.as_str()));
        for (job, live) in jobs.take(restartable, events_of).await? {
            match snapshot.get(job.record.tool.as_str()) {
                Some(entry)
                    if entry.tool.hash() == job.plan.definition
                        && options.has(entry, job.plan.source.as_deref(), Some(&job.plan.root)) =>
                {
                    self.resume(jobs, job, &live, entry, &snapshot, options).await;
                }
                // The tool has changed in this moment.
                _ => jobs.end_or_release(&live, JobStep::Released).await,
            }
        }
        Ok(lost)
    }

    /// Ends jobs whose tools have changed according to a current list of their providers. Cached lists do not count,
    /// because another process may have the definition under which the job was admitted.
    async fn end_changed_jobs(
        &self,
        jobs: &JobManager,
        options: &RecoveryOptions,
        changed: BTreeMap<String, Vec<Startable>>,
    ) -> Result<(), StoreError> {
        for (provider, others) in changed {
            options.catalogue.refresh(&provider).await;
            let snapshot = options.catalogue.snapshot();
            for job in others {
                let is_other = |entry: &&Arc<Entry>| {
                    entry.tool.hash() != job.definition
                        && options.has(entry, job.source.as_deref(), job.root.as_deref())
                        && entry.provider.health() == Health::Ready
                };
                if snapshot.get(job.tool.as_str()).is_some_and(|entry| is_other(&entry)) {
                    end_changed(jobs, &job.id).await?;
                }
            }
        }
        Ok(())
    }

    async fn resume(
        self: &Arc<Self>,
        jobs: &Arc<JobManager>,
        job: ClaimedJob,
        live: &Arc<LiveJob>,
        entry: &Arc<Entry>,
        snapshot: &Arc<Snapshot>,
        options: &RecoveryOptions,
    ) {
        let ClaimedJob { record, plan, .. } = job;
        let session =
            Session { id: record.session.clone(), principal: plan.principal, root: plan.root, agent: plan.agent };
        let run = match self.job_context(jobs, plan.terms, session, snapshot, options).await {
            Ok(Ok(run)) => run,
            Ok(Err(error)) => {
                let outcome = Outcome::failed(record.call, error);
                return jobs.end_or_release(live, JobStep::Ended(JobState::Error, outcome)).await;
            }
            Err(error) => {
                tracing::warn!(job = record.id, "the terms of a job could not be read: {error}");
                return jobs.end_or_release(live, JobStep::Released).await;
            }
        };
        // The result is limited for its original caller, as if no process had died.
        let run = RunContext { results_for: plan.results_for, ..run };
        let call = Arc::new(ValidCall {
            id: record.call.clone(),
            entry: Arc::clone(entry),
            arguments: plan.arguments,
            meta: plan.meta,
            provenance: Provenance {
                route: plan.route,
                tainted: plan.tainted,
                unvalidated: plan.unvalidated,
                ..Provenance::default()
            },
            pending: Vec::new(),
            unvalidated: plan.unvalidated,
        });
        let leave: PendingAdmission = if record.attempts < MAX_ATTEMPTS {
            let (executor, call, run, jobs) = (Arc::clone(self), Arc::clone(&call), run.clone(), Arc::clone(jobs));
            let (admission, reason) = (plan.admission, plan.reason);
            Box::pin(async move { executor.may_restart(&jobs, record, admission, reason, &call, &run).await })
        } else {
            let message = format!("it was started {MAX_ATTEMPTS} times, and its process died each time");
            Box::pin(async { Err(ToolError::new(ErrorKind::LimitExceeded, message).into()).into() })
        };
        let op = self.begin(&run.lineage);
        self.launch(jobs, live, call, (leave, None), &run, &op);
    }

    /// Returns the context of a taken job, or the reason why it cannot continue.
    async fn job_context(
        &self,
        jobs: &JobManager,
        terms: JobRights,
        session: Session,
        snapshot: &Arc<Snapshot>,
        options: &RecoveryOptions,
    ) -> Result<Result<RunContext, ToolError>, StoreError> {
        let run = match self.driven.get(&session.id, terms.run.as_deref()) {
            Some(DrivenContext::Own(run)) => return Ok(Ok(RunContext { request: terms.request, ..run })),
            Some(DrivenContext::Other(run)) => run,
            None => match catch_panic_sync(|| (options.context)(session, Arc::clone(snapshot))) {
                Ok(run) => run,
                Err(panicked) => return Ok(Err(panicked.error("what makes the terms of a job"))),
            },
        };
        let (tree, now_ms) = (Arc::clone(jobs.store()) as _, self.options.services.clock.wall_ms());
        let narrowed = terms.narrow(run, tree, self.models.prices(), now_ms).await?;
        Ok(narrowed.ok_or_else(|| ToolError::new(ErrorKind::LimitExceeded, RUN_UNKNOWN)))
    }

    /// Decides whether a taken job may run. Current policy denials apply. A job that was waiting for a person still
    /// waits, even if policy would now allow it, because a guard or a stricter policy may have asked.
    async fn may_restart(
        &self,
        jobs: &Arc<JobManager>,
        job: JobRecord,
        admission: Admission,
        reason: Option<String>,
        call: &ValidCall,
        run: &RunContext,
    ) -> JobAdmission {
        let mut call_record = self.open_record(call, run);
        let why = (admission == Admission::Awaited).then(|| reason.unwrap_or_else(|| UNKNOWN_REASON.to_owned()));
        let judged = self.judge(call, why, run, &mut call_record).await;
        let admitted = match (admission, judged) {
            (_, Err(stop)) => {
                // A denied call must not be approved any more.
                if let Err(error) = jobs.store().withdraw_questions(&job.id).await {
                    tracing::warn!(job = job.id, "the question about a job was not withdrawn: {error}");
                }
                Err(stop)
            }
            (Admission::Awaited, Ok(Judgement::Asks(request))) => {
                let approver = ResumedQuestion {
                    store: Arc::clone(jobs.store()),
                    clock: Arc::clone(&self.options.services.clock),
                    job,
                    now: Arc::clone(&run.approver),
                };
                let run = RunContext { approver: Arc::new(approver), ..run.clone() };
                self.ask_person(call, *request, &run, &mut call_record).await
            }
            (Admission::Awaited | Admission::Approved, Ok(judged)) => Ok(Admitted::Approved(judged.scope())),
            (Admission::Allowed, Ok(judged)) => Ok(Admitted::Allowed(judged.scope())),
        };
        let approval = if admission == Admission::Awaited { call_record.approval } else { ApprovalAnswer::default() };
        JobAdmission { admitted, answer: approval }
    }
}

/// Returns the jobs that this process may take, and those whose tools have changed here, by provider.
async fn startable(
    jobs: &JobManager,
    options: &RecoveryOptions,
    driven: &[SessionId],
    snapshot: &Snapshot,
) -> Result<(Vec<String>, BTreeMap<String, Vec<Startable>>), StoreError> {
    let (mut restartable, mut changed) = (Vec::new(), BTreeMap::<String, Vec<Startable>>::new());
    let mut after = 0;
    let of = options.session.as_ref().map(|session| [std::slice::from_ref(session), driven].concat());
    let waits = |job: &Startable, entry: &Entry| {
        of.is_some() && entry.provider.kind() == ProviderKind::Agent && !driven.contains(&job.session)
    };
    // Jobs of unknown tools must not hide the others.
    for _ in 0..PAGES {
        let page = jobs.store().startable_jobs(of.as_deref(), after, BATCH).await?;
        let Some(last) = page.last() else { break };
        after = last.row;
        for job in page {
            let is_of = |entry: &&Arc<Entry>| options.has(entry, job.source.as_deref(), job.root.as_deref());
            match snapshot.get(job.tool.as_str()).filter(is_of) {
                // It waits for the run that began it.
                Some(entry) if waits(&job, entry) => {}
                Some(entry) if entry.tool.hash() == job.definition => restartable.push(job.id),
                Some(entry) if entry.provider.health() == Health::Ready => {
                    changed.entry(entry.provider.name().to_owned()).or_default().push(job);
                }
                // Another process may have its tool.
                _ => {}
            }
        }
        if restartable.len() >= BATCH {
            break;
        }
    }
    Ok((restartable, changed))
}

/// Ends a job whose tool has changed, because nobody admitted the new definition.
async fn end_changed(jobs: &JobManager, id: &str) -> Result<(), StoreError> {
    let job = jobs.record(id).await?;
    let (state, message) = match job.attempts {
        0 => (JobState::Error, "its tool has changed before it could begin; nothing of it ran"),
        _ => (JobState::Unknown, "its process died while it ran and its tool has changed, so it was not run again"),
    };
    let error = ToolError::new(ErrorKind::ExecutionError, format!("{}: {message}", job.tool));
    jobs.abandon(id, &Outcome::failed(CallId::new(job.call.as_str()), error), state).await
}
