//! Gives tools and commands access to jobs of all processes. Processes send each other requests through the store.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::time::Instant;
use toolwright_core::agents::{check_name, child_session};
use toolwright_core::cancel::CancelCause;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::job::{JobFilter, JobLogSlice, JobPage, JobRecord, JobScope, JobState, Jobs};
use toolwright_core::outcome::Outcome;
use toolwright_core::store::{Author, LogMessage, MessageKind, NewRow, SessionLog as _, StoreError};

use super::{JobManager, LogFiles, log};
use crate::store::jobs::{JobRequest, LEASE_MS};

/// Interval between checks of another process's job.
const POLL: Duration = Duration::from_millis(200);
/// How long the owner of a job may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// The most unread messages of an agent that are returned to their authors.
const MAX_RETURNED: usize = 100;

#[async_trait]
impl Jobs for JobManager {
    async fn page(
        &self,
        scope: JobScope<'_>,
        listed: JobFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<JobPage, StoreError> {
        let of = match scope {
            JobScope::All => None,
            JobScope::Of(session) => Some((&session.id, &*session.principal.id)),
        };
        self.store.jobs(of, listed, after, limit).await
    }

    async fn get(&self, scope: JobScope<'_>, id: &str) -> Result<JobRecord, StoreError> {
        let job = self.store.job(id).await?;
        if scope.has(&job) { Ok(job) } else { Err(StoreError::NotFound(format!("job {id}"))) }
    }

    async fn wait(&self, scope: JobScope<'_>, id: &str, limit: Duration) -> Result<JobRecord, StoreError> {
        let until = Instant::now() + limit;
        let rests = |job: &JobRecord| job.state.is_over() || job.state == JobState::WaitingInput;
        loop {
            let job = self.get(scope, id).await?;
            let left = until.saturating_duration_since(Instant::now());
            if rests(&job) || left.is_zero() {
                return Ok(job);
            }
            match self.find(id) {
                // After a time-out, the current record is read once more.
                Some(live) => drop(tokio::time::timeout(left, live.wait_until_settled()).await),
                None => tokio::time::sleep(POLL.min(left)).await,
            }
        }
    }

    async fn read(&self, scope: JobScope<'_>, id: &str, offset: i64, lines: usize) -> Result<JobLogSlice, StoreError> {
        let job = self.get(scope, id).await?;
        let files = LogFiles::of(&self.logs, &job.id);
        let result = job.outcome.as_ref().map(Outcome::model_text).unwrap_or_default();
        let read = tokio::task::spawn_blocking(move || files.read(&result, offset, lines)).await;
        let read = read.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        read.map_err(|error| StoreError::failed(format!("read the log of job {id}"), error))
    }

    async fn send(&self, scope: JobScope<'_>, id: &str, input: Value) -> Result<(), StoreError> {
        let job = self.get(scope, id).await?;
        match job.state {
            JobState::WaitingInput => self.ask(&job, JobRequest::Send(input)).await,
            JobState::Running if is_agent(&job) => self.message_agent(&job, input).await,
            state => Err(StoreError::Refused(format!("job {id} does not wait for input: it is {state}"))),
        }
    }

    async fn stop(&self, scope: JobScope<'_>, id: &str) -> Result<(), StoreError> {
        let job = self.get(scope, id).await?;
        if job.state.is_over() {
            return Ok(());
        }
        if job.owner.is_none() {
            let error = ToolError::new(ErrorKind::Canceled, "stopped before another process took it over");
            let outcome = Outcome::failed(job.call.clone(), error);
            if self.store.end_abandoned(id, JobState::Cancelled, &outcome).await? {
                return Ok(());
            }
        }
        self.ask(&job, JobRequest::Stop).await
    }
}

/// Returns whether the job is the run of an agent.
fn is_agent(job: &JobRecord) -> bool {
    job.tool.namespace() == "agent" && check_name(job.tool.name()).is_ok()
}

impl JobManager {
    /// Writes a message to the agent that runs as this job, which reads it before its next request.
    async fn message_agent(&self, job: &JobRecord, input: Value) -> Result<(), StoreError> {
        let text = match input {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let to = child_session(job.tool.name(), &job.session, &job.call);
        let caller = Some("your caller".to_owned());
        let author = Author { session: Some(job.session.clone()), agent: caller, call: None };
        let message = LogMessage { kind: MessageKind::Group, subject: job.id.clone(), text, data: Value::Null };
        let seq = self.store.append(NewRow::message(&to, &job.principal, author, message)).await?.seq;
        // Messages that the agent did not read before its end are returned then; later ones are refused here.
        if self.store.job(&job.id).await?.state.is_over() && self.store.cursor(&to, to.as_str()).await? < seq {
            self.store.withdraw(&to, MessageKind::Group, &job.id).await?;
            return Err(StoreError::Refused(format!("job {} has ended, and did not read the message", job.id)));
        }
        Ok(())
    }

    /// Tells the authors of messages to the agent of an ended job which messages it did not read.
    pub(super) async fn return_unread(&self, id: &str) -> Result<(), StoreError> {
        let job = self.store.job(id).await?;
        if !is_agent(&job) {
            return Ok(());
        }
        let agent = child_session(job.tool.name(), &job.session, &job.call);
        let read = self.store.cursor(&agent, agent.as_str()).await?;
        for row in self.store.messages(&agent, read, MAX_RETURNED).await? {
            let (Some(message), Some(author)) = (row.message(), &row.author.session) else { continue };
            if message.kind != MessageKind::Group {
                continue;
            }
            let text = format!("It did not read your message to job {id}: {}", message.text);
            let (kind, subject) = (MessageKind::Child, job.tool.name().to_owned());
            let message = LogMessage { kind, subject, text, data: Value::Null };
            self.store.append(NewRow::message(author, &row.principal, Author::default(), message)).await?;
        }
        self.store.withdraw(&agent, MessageKind::Group, id).await
    }

    /// Sends a request to the owner of the job: directly in this process, else through the store.
    async fn ask(&self, job: &JobRecord, request: JobRequest) -> Result<(), StoreError> {
        if self.find(&job.id).is_some() {
            return self.handle_request(&job.id, request).await;
        }
        let unreachable = |why: &str| StoreError::Refused(format!("{}: {why}", job.line()));
        if !job.owner.is_some_and(|owner| owner.alive) {
            return Err(unreachable("nobody can be asked"));
        }
        let number = self.store.ask_owner(&job.id, &request).await?;
        let until = Instant::now() + ANSWER_WAIT;
        while Instant::now() < until {
            tokio::time::sleep(POLL).await;
            match self.store.answer_to(number).await? {
                Some(done) if done.is_empty() => return Ok(()),
                Some(why) => return Err(StoreError::Refused(why)),
                None if self.store.job(&job.id).await?.state.is_over() => return Ok(()),
                None => {}
            }
        }
        self.store.answer_request(number, "nobody waits for it any more").await?;
        Err(unreachable("its process did not answer"))
    }
}

/// How often requests are checked. It also renews the lease several times in its life.
const PERIOD: Duration = Duration::from_millis(500);
const _: () = assert!(PERIOD.as_millis() * 3 <= LEASE_MS.unsigned_abs() as u128);
/// Interval between log clean-ups.
const SWEEP: Duration = Duration::from_secs(3600);
/// The limit on all logs together, in bytes. Logs of this process's jobs are kept: each is bounded itself.
const MAX_LOGS: u64 = 256 << 20;

impl JobManager {
    /// Starts the upkeep task once; it ends with the manager.
    pub(super) fn keep(self: &Arc<Self>) {
        if self.keeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let jobs = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut swept: Option<Instant> = None;
            let mut ticks = tokio::time::interval(PERIOD);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(jobs) = Weak::upgrade(&jobs) else { return };
                if swept.is_none_or(|at| at.elapsed() > SWEEP) {
                    swept = Some(Instant::now());
                    tokio::spawn(jobs.sweep_logs());
                }
                if jobs.count() > 0
                    && let Err(error) = jobs.handle_requests().await
                {
                    tracing::warn!("jobs could not be attended to: {error}");
                }
            }
        });
    }

    async fn handle_requests(&self) -> Result<(), StoreError> {
        self.retry_commits().await;
        self.store.renew_lease().await?;
        for (number, id, request) in self.store.open_requests().await? {
            let answer = match self.handle_request(&id, request).await {
                Ok(()) => String::new(),
                Err(error) => error.to_string(),
            };
            self.store.answer_request(number, &answer).await?;
        }
        Ok(())
    }

    /// Removes the logs of jobs whose rows are gone, and the oldest beyond the limit.
    fn sweep_logs(&self) -> impl Future<Output = ()> + Send + use<> {
        let (store, dir) = (Arc::clone(&self.store), self.logs.clone());
        let live: HashSet<String> = self.live().keys().cloned().collect();
        async move {
            let of = dir.clone();
            let Ok(jobs) = tokio::task::spawn_blocking(move || log::jobs_in(&of)).await else { return };
            let gone = store.no_jobs(&jobs).await.unwrap_or_else(|error| {
                tracing::warn!("the logs of jobs could not be looked over: {error}");
                Vec::new()
            });
            let gone = gone.into_iter().filter(|job| !live.contains(job)).collect();
            let swept = tokio::task::spawn_blocking(move || log::sweep(&dir, &gone, &live, MAX_LOGS)).await;
            if let Err(error) = swept {
                tracing::warn!("the logs of jobs were not looked over to the end: {error}");
            }
        }
    }

    /// Executes a request for a job of this process.
    async fn handle_request(&self, id: &str, request: JobRequest) -> Result<(), StoreError> {
        let Some(live) = self.find(id) else {
            return Err(StoreError::Refused(format!("job {id} has just ended")));
        };
        match request {
            JobRequest::Stop => {
                live.cancel.cancel(CancelCause::User);
                Ok(())
            }
            JobRequest::Send(input) => live.send(input).await,
        }
    }
}
