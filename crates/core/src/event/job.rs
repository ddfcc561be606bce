//! Jobs: calls that continue after their caller got an answer. A job has an id, is kept in the
//! store, and belongs to the principal and the session that made the call.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cancel::CancelCause;
use crate::duration::iso;
use crate::error::StoreError;
use crate::error::{ErrorKind, ToolError, Unsupported};
use crate::identity::session::{CallId, Session, SessionId};
use crate::identity::tool_id::ToolId;
use crate::output::outcome::{Outcome, ToolOutput};

/// The tools that follow jobs.
pub const JOB_IDS: [&str; 6] =
    ["job:list@1.0.0", "job:status@1.0.0", "job:wait@1.0.0", "job:read@1.0.0", "job:send@1.0.0", "job:stop@1.0.0"];

/// Tools that job messages suggest as the next step.
pub const JOB_NEXT_IDS: [&str; 4] = ["job:wait@1.0.0", "job:read@1.0.0", "job:send@1.0.0", "job:stop@1.0.0"];

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Not dispatched yet, without effects.
    Pending,
    /// Running.
    Running,
    /// A stateful job that waits to be continued.
    WaitingInput,
    /// Finished well.
    Done,
    /// Finished badly.
    Error,
    /// Stopped.
    Cancelled,
    /// Its process died while it ran: its effect is unknown. It is never run again.
    Unknown,
}

impl JobState {
    /// Every state, in the order above.
    pub const ALL: [Self; 7] =
        [Self::Pending, Self::Running, Self::WaitingInput, Self::Done, Self::Error, Self::Cancelled, Self::Unknown];

    /// Returns its stored form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::WaitingInput => "waiting_input",
            Self::Done => "done",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }

    /// Parses the output of [`JobState::as_str`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Whether the state is final.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Error | Self::Cancelled | Self::Unknown)
    }

    /// Returns the final state of a job whose call ended with this outcome.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Self {
        match &outcome.error {
            None => Self::Done,
            Some(error) if error.kind() != ErrorKind::Canceled => Self::Error,
            // It was not stopped by anybody.
            Some(error) if error.cancel_cause() == Some(CancelCause::Deadline) => Self::Error,
            Some(_) => Self::Cancelled,
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The process that a job is with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOwner {
    /// Its process id.
    pub pid: u32,
    /// Whether the process is alive.
    pub alive: bool,
}

/// A job, as shown to everybody who may see it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobRecord {
    /// `name_<8 hex>`.
    pub id: String,
    /// Tool.
    pub tool: ToolId,
    /// Arguments, redacted.
    pub arguments: Value,
    /// State.
    pub state: JobState,
    /// Session it belongs to.
    pub session: SessionId,
    /// Principal it belongs to.
    pub principal: String,
    /// The call that began it.
    pub call: CallId,
    /// The run that made the call, if it began as a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The process that runs it, unless it has ended or is not claimed.
    pub owner: Option<JobOwner>,
    /// Number of dispatches.
    pub attempts: u32,
    /// Milliseconds since the epoch.
    pub created_ms: u64,
    /// Milliseconds since the epoch, once it has ended.
    pub ended_ms: Option<u64>,
    /// Its outcome; for a job that waits for input, its latest partial result. Lists omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

impl JobRecord {
    /// The job as a note in tool results: `{job, tool, state}`.
    #[must_use]
    pub fn note(&self) -> Value {
        note(&self.id, &self.tool, self.state)
    }

    /// The job as programs are shown it, without its outcome: an element of `jobs ls --json` and of `GET /api/jobs`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "tool": self.tool,
            "state": self.state,
            "created": iso(self.created_ms),
            "owner": self.owner,
            "session": self.session,
            "principal": self.principal,
            "arguments": self.arguments,
            "attempts": self.attempts,
            "ended": self.ended_ms.map(iso),
        })
    }

    /// Like [`JobRecord::to_json`], with the `outcome` (`null` until there is one).
    #[must_use]
    pub fn to_whole_json(&self) -> Value {
        let mut value = self.to_json();
        value["outcome"] = self.outcome.as_ref().map(Outcome::to_json).into();
        value
    }

    /// Describes the job in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let more = match self.state {
            JobState::Unknown => ": its process ended while it ran, and it may or may not have taken effect",
            JobState::WaitingInput => ": continue it with job__send, or stop it",
            JobState::Running | JobState::Pending if self.owner.is_some_and(|owner| !owner.alive) => {
                ": its process has ended; another process takes it over or reports it as lost"
            }
            _ => "",
        };
        format!("{} ({}) is {}{more}", self.id, self.tool, self.state)
    }

    /// Suggests the next step for whoever waits for the job.
    #[must_use]
    pub fn next(&self) -> &'static str {
        match self.state {
            JobState::Pending => {
                "It has not begun. If it waits for a person's approval, a person gives that with `toolwright approvals`: tell \
                 the user, and wait with job__wait."
            }
            JobState::Running => {
                "Wait with job__wait, see what it wrote so far with job__read, or end it with job__stop."
            }
            JobState::WaitingInput => "Continue it with job__send, or end it with job__stop.",
            JobState::Done => "This is its result.",
            JobState::Error | JobState::Cancelled => "It has no result.",
            JobState::Unknown => "Check what it did before you call the tool again.",
        }
    }

    /// The message to a conversation once the job has ended or waits for input. It is marked as the application's own
    /// message; the tool's text in it is marked as data.
    #[must_use]
    pub fn message(&self) -> String {
        let head = format!("[toolwright notice] Background job {} of {} ", self.id, self.tool);
        let result = self.outcome.as_ref().map(Outcome::model_text).unwrap_or_default();
        let what = match self.state {
            JobState::Done => "is done. Its result:",
            JobState::Error => "failed:",
            JobState::Cancelled => "was stopped:",
            JobState::WaitingInput => "waits for input (job__send); so far it says:",
            JobState::Unknown => {
                "was lost: the process that ran it ended. It may or may not have taken effect, and was not run \
                 again. Check before you call the tool again."
            }
            JobState::Pending | JobState::Running => "continues.",
        };
        if result.is_empty() { format!("{head}{what}") } else { format!("{head}{what}\n{result}") }
    }
}

/// A job as a note in tool results.
#[must_use]
pub fn note(id: &str, tool: &ToolId, state: JobState) -> Value {
    json!({"job": id, "tool": tool.as_str(), "state": state})
}

/// Whether the caller has the job tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JobFollower {
    /// It has them, or will once there is a job.
    #[default]
    Itself,
    /// It has not: only its operator can.
    Operator,
}

/// The reply to a call without a result yet, equal in a result's text and structure: clients show their model one or
/// the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobNotice {
    /// Status of the call, as in [`Outcome::status`].
    pub status: &'static str,
    /// The message.
    pub message: String,
    /// The suggested next step.
    pub next: String,
}

impl JobNotice {
    /// Notice for a call that continues as a job.
    #[must_use]
    pub fn started(id: &str, tool: &ToolId, state: JobState, follows: JobFollower) -> Self {
        let (status, message) = match state {
            JobState::WaitingInput => ("step", format!("{tool} waits for input as job {id}.")),
            _ => ("job", format!("{tool} continues as background job {id}. It has no result yet.")),
        };
        let next = match (state, follows) {
            (JobState::WaitingInput, JobFollower::Itself) => {
                "Continue it with job__send, or end it with job__stop.".into()
            }
            (JobState::WaitingInput, JobFollower::Operator) => {
                format!("Only the operator can give it: toolwright jobs send {id}")
            }
            (_, JobFollower::Itself) => format!(
                "job__wait {{\"id\": \"{id}\"}} gives its result; within a run it comes by itself as a message. job__read \
                 shows what it wrote so far, job__stop ends it."
            ),
            (_, JobFollower::Operator) => format!(
                "Its result does not come here: the operator sees it with `toolwright jobs show {id}`. Do not make this \
                 call again."
            ),
        };
        Self { status, message, next }
    }

    /// Notice for a call that waits as a job for a person, at most so long. It tells the model who
    /// approves, but nothing that would let it approve by itself.
    #[must_use]
    pub fn awaiting_approval(id: &str, tool: &ToolId, wait: Duration, follows: JobFollower) -> Self {
        let message = format!(
            "{tool} needs a person's approval, and has not run. It runs once a person has approved it with `toolwright \
             approvals`; after {} without an answer it is denied.",
            crate::duration::format(wait)
        );
        let next = match follows {
            JobFollower::Itself => {
                "Tell the user that it waits for their approval. job__wait then gives its result, job__stop \
                                withdraws it. Do not make this call again."
                    .to_owned()
            }
            JobFollower::Operator => format!(
                "Tell the user that it waits for their approval. Its result does not come here: the operator sees it with \
                 `toolwright jobs show {id}`. Do not make this call again."
            ),
        };
        Self { status: "approval", message, next }
    }

    /// Formats it as text.
    #[must_use]
    pub fn text(&self) -> String {
        [&*self.message, &*self.next].join(" ")
    }

    /// Adds it to the job's note, as a structured result.
    #[must_use]
    pub fn attach_to(&self, mut note: Value) -> Value {
        note["status"] = self.status.into();
        note["message"] = self.message.as_str().into();
        note["next"] = self.next.as_str().into();
        note
    }
}

/// A set of jobs, by owner.
#[derive(Debug, Clone, Copy)]
pub enum JobScope<'a> {
    /// Everybody's, for the owner of the machine.
    All,
    /// Jobs of one session and its principal.
    Of(&'a Session),
}

impl JobScope<'_> {
    /// Whether a job belongs to the scope.
    #[must_use]
    pub fn has(&self, job: &JobRecord) -> bool {
        match self {
            Self::All => true,
            Self::Of(session) => job.session == session.id && job.principal == session.principal.id,
        }
    }
}

/// Lines of a job's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobLogSlice {
    /// The lines, joined.
    pub text: String,
    /// Number of the first, from 0.
    pub first: usize,
    /// Lines there are, so far.
    pub total: usize,
}

impl JobLogSlice {
    /// Formats the lines for programs, with the job as it was then: `jobs read --json`.
    #[must_use]
    pub fn to_json(&self, job: &JobRecord) -> Value {
        json!({"id": job.id, "state": job.state, "first": self.first, "total": self.total, "text": self.text})
    }
}

/// Filter of listed jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JobFilter {
    /// All jobs.
    #[default]
    All,
    /// Jobs in a state that is not final.
    Open,
}

/// A part of a list of jobs.
#[derive(Debug, Clone, Default)]
pub struct JobPage {
    /// A page of jobs.
    pub jobs: Vec<JobRecord>,
    /// Number of jobs in total.
    pub total: u64,
    /// The cursor of the next page, if any.
    pub next: Option<String>,
}

/// The jobs of the application, including those of its other processes.
#[async_trait]
pub trait Jobs: Send + Sync {
    /// Returns the `listed` jobs, newest first, at most `limit`, after the id `after`, without outcomes.
    async fn page(
        &self,
        _scope: JobScope<'_>,
        _listed: JobFilter,
        _after: Option<&str>,
        _limit: usize,
    ) -> Result<JobPage, StoreError> {
        Err(Unsupported("jobs").into())
    }

    /// Returns the `listed` jobs, newest first, at most `limit`, without outcomes.
    async fn list(&self, scope: JobScope<'_>, listed: JobFilter, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        Ok(self.page(scope, listed, None, limit).await?.jobs)
    }

    /// Returns a job.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], also for a job outside the scope.
    async fn get(&self, _scope: JobScope<'_>, _id: &str) -> Result<JobRecord, StoreError> {
        Err(Unsupported("jobs").into())
    }

    /// Waits until a job has ended or waits for input, at most `limit`, and returns its state.
    ///
    /// # Errors
    /// As [`Jobs::get`].
    async fn wait(&self, _scope: JobScope<'_>, _id: &str, _limit: Duration) -> Result<JobRecord, StoreError> {
        Err(Unsupported("jobs").into())
    }

    /// Reads a job's output and result: at most `lines` lines from line `offset`, counted from the
    /// end if negative.
    ///
    /// # Errors
    /// As [`Jobs::get`].
    async fn read(
        &self,
        _scope: JobScope<'_>,
        _id: &str,
        _offset: i64,
        _lines: usize,
    ) -> Result<JobLogSlice, StoreError> {
        Err(Unsupported("jobs").into())
    }

    /// Sends input to a job that waits for it, in whichever process it runs.
    ///
    /// # Errors
    /// As [`Jobs::get`]; [`StoreError::Refused`] when it does not wait for input or cannot be reached.
    async fn send(&self, _scope: JobScope<'_>, _id: &str, _input: Value) -> Result<(), StoreError> {
        Err(Unsupported("jobs").into())
    }

    /// Stops a job, in whichever process it runs. Does nothing if it has ended.
    ///
    /// # Errors
    /// As [`Jobs::send`].
    async fn stop(&self, _scope: JobScope<'_>, _id: &str) -> Result<(), StoreError> {
        Err(Unsupported("jobs").into())
    }
}

/// Without jobs.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoJobs;

impl Jobs for NoJobs {}

/// The turns of a stateful call.
#[async_trait]
pub trait Turns: Send + Sync {
    /// Sends a partial result and waits for input, which it returns. The call's time limit is suspended
    /// meanwhile.
    ///
    /// # Errors
    /// `canceled` when the job is stopped; `timeout` when no input comes for long; [`Unsupported`] if
    /// none is possible. A tool passes them on.
    async fn pause(&self, output: ToolOutput) -> Result<Value, ToolError>;

    /// Whether partial results are expected: the tool's mode is `stateful`.
    fn is_stepwise(&self) -> bool {
        false
    }
}

/// No input is possible.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTurns;

impl NoTurns {
    /// A shared instance.
    #[must_use]
    pub fn shared() -> Arc<dyn Turns> {
        static SHARED: LazyLock<Arc<dyn Turns>> = LazyLock::new(|| Arc::new(NoTurns));
        Arc::clone(&SHARED)
    }
}

#[async_trait]
impl Turns for NoTurns {
    async fn pause(&self, _output: ToolOutput) -> Result<Value, ToolError> {
        Err(Unsupported("continuing a call step by step").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: JobState) -> JobRecord {
        JobRecord {
            id: "build_00000001".into(),
            tool: ToolId::parse("x:build@1.0.0").expect("id"),
            arguments: json!({}),
            state,
            session: SessionId::new("s"),
            principal: "owner".into(),
            call: CallId::new("c"),
            run: None,
            owner: None,
            attempts: 1,
            created_ms: 0,
            ended_ms: None,
            outcome: Some(Outcome::failed(CallId::new("c"), ToolError::new(ErrorKind::Timeout, "late"))),
        }
    }

    #[test]
    fn states_are_written_and_read_back() {
        for state in JobState::ALL {
            assert_eq!(JobState::parse(state.as_str()), Some(state));
            assert_eq!(serde_json::to_value(state).expect("json"), state.as_str());
        }
        assert_eq!(JobState::parse("gone"), None);
    }

    #[test]
    fn job_message_names_sender_and_end() {
        for (state, part) in [
            (JobState::Done, "is done. Its result:\n(tool failed: late)"),
            (JobState::Error, "failed:\n(tool failed: late)"),
            (JobState::Cancelled, "was stopped"),
            (JobState::Unknown, "may or may not have taken effect"),
        ] {
            let message = record(state).message();
            assert!(
                message.starts_with("[toolwright notice] Background job build_00000001 of x:build@1.0.0 "),
                "{message}"
            );
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn approval_notice_names_no_id() {
        let tool = ToolId::parse("x:build@1.0.0").expect("id");
        let result =
            JobNotice::awaiting_approval("build_00000001", &tool, Duration::from_secs(600), JobFollower::Itself);
        for part in ["a person's approval", "`toolwright approvals`", "10m", "job__wait", "Do not make this call again"]
        {
            assert!(result.text().contains(part), "{part} in {}", result.text());
        }
        assert!(!result.text().contains("build_00000001"), "{}", result.text());
        let note = result.attach_to(note("build_00000001", &tool, JobState::Pending));
        assert_eq!((&note["job"], &note["status"]), (&json!("build_00000001"), &json!("approval")));
        assert_eq!(
            result.text(),
            format!("{} {}", note["message"].as_str().expect("m"), note["next"].as_str().expect("n"))
        );
    }

    #[test]
    fn jobs_of_other_sessions_are_hidden() {
        use crate::identity::session::Principal;
        let session = |id: &str, principal: &str| Session {
            id: SessionId::new(id),
            principal: Principal { id: principal.into(), roles: Vec::new(), owner: false },
            root: "/".into(),
            agent: None,
        };
        let job = record(JobState::Running);
        assert!(JobScope::All.has(&job));
        for (id, principal, seen) in [("s", "owner", true), ("s", "guest", false), ("t", "owner", false)] {
            assert_eq!(JobScope::Of(&session(id, principal)).has(&job), seen, "{id} {principal}");
        }
    }
}
