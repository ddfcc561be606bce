//! Stores jobs, their owners, and requests between processes about them, and settles the jobs of dead processes.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, Row, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolwright_core::approval::AgentStep;
use toolwright_core::canonical::ContentHash;
use toolwright_core::definition::NoSchemaMode;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::job::{JobFilter, JobOwner, JobPage, JobRecord, JobState};
use toolwright_core::model::{CallMeta, Route};
use toolwright_core::outcome::Outcome;
use toolwright_core::output::ResultAudience;
use toolwright_core::policy::{Policy, UserRequest};
use toolwright_core::session::{CallId, Principal, SessionId};
use toolwright_core::store::StoreError;
use toolwright_core::taint::TaintedArgument;
use toolwright_core::tool_id::ToolId;

use super::SqliteStore;
use super::owner::{self, Owner, renew};
use super::{from_json, json_column, now_ms, one_more, split_page, to_json, unreadable};

pub(crate) use super::owner::LEASE_MS;

/// The most rows of a list.
const MAX_LIST: usize = 10_000;

const COLUMNS: &str = "jobs.id, tool, arguments, state, session, principal, call, attempts, created_ms, ended_ms, \
                       pid, boot, started, run";
const FROM: &str = "FROM jobs LEFT JOIN job_owners ON job_owners.id = jobs.owner";

/// Selects the questions about the job ?1: those about its call since the job's start, if no other job had a call of
/// the same name in that time.
const QUESTIONS: &str = "SELECT inbox.id FROM inbox JOIN jobs ON jobs.id = ?1 AND inbox.session = jobs.session \
    AND inbox.created_ms >= jobs.created_ms AND json_valid(request) AND request ->> 'call_id' = jobs.call \
    AND request ->> 'tool' = jobs.tool WHERE NOT EXISTS (SELECT 1 FROM jobs AS other WHERE other.session = jobs.session \
    AND other.call = jobs.call AND other.id <> jobs.id \
    AND (other.ended_ms IS NULL OR other.ended_ms >= jobs.created_ms))";

/// The rights of a run and its place among agents. Principal, roles and workspace root are stored separately.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct JobRights {
    /// The id of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
    /// Its policy, followed by those that enclose it.
    pub(crate) policies: Vec<Policy>,
    /// The tools that the job's calls may use; `None`: it makes no calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tools: Option<Vec<ToolId>>,
    /// The user's own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<Arc<UserRequest>>,
    /// The agents from the root run to the caller.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) agents: Vec<AgentStep>,
    /// The run that pays for what the job starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) paying_run: Option<String>,
    /// The model of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// The agent or user that asked for the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) asker: Option<String>,
}

/// The data that a job needs to run, in this process or a later one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JobPlan {
    /// The definition under which it was admitted.
    pub(crate) definition: ContentHash,
    /// The origin of its tool's provider, see
    /// [`Provider::defined_in`](toolwright_core::catalogue::Provider::defined_in): another project may have a different
    /// server with the same name and definition. `None`: it was stored before this field existed.
    #[serde(default)]
    pub(crate) source: Option<String>,
    /// The unredacted arguments.
    pub(crate) arguments: Value,
    /// The metadata of the call.
    #[serde(default, skip_serializing_if = "CallMeta::is_empty")]
    pub(crate) meta: CallMeta,
    /// The kind of executor of the call.
    #[serde(default, skip_serializing_if = "Route::is_tool")]
    pub(crate) route: Route,
    /// The places of the arguments whose values derive from untrusted tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tainted: Vec<TaintedArgument>,
    /// How the arguments may run without validation.
    pub(crate) unvalidated: Option<NoSchemaMode>,
    /// The principal on whose behalf it runs.
    pub(crate) principal: Principal,
    /// The workspace root.
    pub(crate) root: PathBuf,
    /// The agent of the session.
    pub(crate) agent: Option<String>,
    /// The recipient of its result.
    pub(crate) results_for: ResultAudience,
    /// The terms of the run that began it.
    pub(crate) terms: JobRights,
    /// The policy's decision.
    pub(crate) admission: Admission,
    /// The reason why a person must be asked, if any.
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// How a job was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Admission {
    /// Policy allowed it.
    Allowed,
    /// A person approved it.
    Approved,
    /// A person must still be asked.
    Awaited,
}

/// A job that is about to begin.
#[derive(Debug)]
pub(crate) struct NewJob {
    pub(crate) record: JobRecord,
    /// Whether it may be dispatched again if its effect is unknown.
    pub(crate) resumable: bool,
    pub(crate) plan: JobPlan,
}

/// A job without an owner that this process has taken.
#[derive(Debug)]
pub(crate) struct ClaimedJob {
    pub(crate) record: JobRecord,
    pub(crate) resumable: bool,
    pub(crate) plan: JobPlan,
}

/// A job that any process may start.
#[derive(Debug)]
pub(crate) struct Startable {
    /// Its row number.
    pub(crate) row: i64,
    pub(crate) id: String,
    pub(crate) session: SessionId,
    pub(crate) tool: ToolId,
    /// The definition under which it was admitted.
    pub(crate) definition: ContentHash,
    /// See [`JobPlan::source`].
    pub(crate) source: Option<String>,
    /// Its workspace root.
    pub(crate) root: Option<PathBuf>,
}

/// A request to the owner of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobRequest {
    Stop,
    Send(Value),
}

/// A job's next state.
#[derive(Debug)]
pub(crate) enum JobStep {
    /// It is about to be dispatched.
    Dispatched,
    /// It continues with its input.
    Continued,
    /// It waits for input, with a partial result.
    Paused(Outcome),
    /// It is over.
    Ended(JobState, Outcome),
    /// Any process may start it.
    Released,
}

impl SqliteStore {
    /// Commits a new job of this process. Returns its id, or that of an existing job of the same call in the same run.
    pub(crate) async fn create_job(&self, job: NewJob) -> Result<String, StoreError> {
        let (arguments, plan) = (to_json(&job.record.arguments)?, to_json(&job.plan)?);
        self.thread
            .run("create a job", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let NewJob { record, resumable, .. } = &job;
                let existing_id = transaction
                    .prepare_cached("SELECT id FROM jobs WHERE run = ?1 AND call = ?2")?
                    .query_row(params![record.run, record.call.as_str()], |row| row.get::<_, String>(0))
                    .optional()?;
                if let Some(id) = existing_id {
                    return Ok(id);
                }
                let owner = owner::number(&transaction)?;
                // The process may have had no jobs for a while.
                renew(&transaction, owner)?;
                transaction
                    .prepare_cached(
                        "INSERT INTO jobs (id, tool, arguments, state, session, principal, call, run, owner, attempts, \
                         created_ms, resumable, plan) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
                    )?
                    .execute(params![
                        record.id,
                        record.tool.as_str(),
                        arguments,
                        record.state.as_str(),
                        record.session.as_str(),
                        record.principal,
                        record.call.as_str(),
                        record.run,
                        owner,
                        record.attempts,
                        record.created_ms.cast_signed(),
                        resumable,
                        plan,
                    ])?;
                transaction.commit()?;
                Ok(record.id.clone())
            })
            .await
    }

    /// Commits a job's next state. Fails with "not found" if another process has taken the job.
    pub(crate) async fn step_job(&self, id: &str, step: &JobStep) -> Result<(), StoreError> {
        let key = id.to_owned();
        let (state, outcome) = match step {
            JobStep::Dispatched | JobStep::Continued => (JobState::Running, None),
            JobStep::Paused(outcome) => (JobState::WaitingInput, Some(to_json(outcome)?)),
            JobStep::Ended(state, outcome) => (*state, Some(to_json(outcome)?)),
            JobStep::Released => (JobState::Pending, None),
        };
        let attempt = u8::from(matches!(step, JobStep::Dispatched));
        let ended = matches!(step, JobStep::Ended(..)).then(now_ms);
        let is_over = matches!(step, JobStep::Ended(..) | JobStep::Released);
        let changed = self
            .thread
            .run("change a job", move |db| {
                let owner = owner::number(db)?;
                db.prepare_cached(
                    "UPDATE jobs SET state = ?2, outcome = COALESCE(?3, outcome), attempts = attempts + ?4, \
                     ended_ms = ?5, plan = CASE WHEN ?5 IS NULL THEN plan END, owner = CASE WHEN ?6 THEN NULL ELSE owner END \
                     WHERE id = ?1 AND owner = ?7 AND ended_ms IS NULL",
                )?
                .execute(params![key, state.as_str(), outcome, attempt, ended, is_over, owner])
            })
            .await?;
        if changed == 0 {
            return Err(not_found(id));
        }
        if ended.is_some() {
            self.wake_mail_waiters();
        }
        Ok(())
    }

    /// Returns one job, with its outcome.
    pub(crate) async fn job(&self, id: &str) -> Result<JobRecord, StoreError> {
        let key = id.to_owned();
        let found = self
            .thread
            .run("read a job", move |db| {
                db.prepare_cached(&format!("SELECT {COLUMNS}, outcome {FROM} WHERE jobs.id = ?1"))?
                    .query_row([key], |row| Ok((record(row)?, row.get::<_, Option<String>>(14)?)))
                    .optional()
            })
            .await?;
        let (mut record, outcome) = found.ok_or_else(|| not_found(id))?;
        record.outcome = outcome.map(|text| from_json(&text)).transpose()?;
        Ok(record)
    }

    /// Returns jobs without outcomes, the newest first; of one session and principal, or all; after the one with the id
    /// `after`.
    pub(crate) async fn jobs(
        &self,
        of: Option<(&SessionId, &str)>,
        listed: JobFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<JobPage, StoreError> {
        let (after, limit) = (after.map(str::to_owned), limit.clamp(1, MAX_LIST));
        let (session, principal) = match of {
            Some((session, principal)) => (Some(session.as_str().to_owned()), Some(principal.to_owned())),
            None => (None, None),
        };
        // Exactly the jobs that are over have an end time.
        let which = match listed {
            JobFilter::All => "",
            JobFilter::Open => "AND ended_ms IS NULL",
        };
        self.thread
            .run("list jobs", move |db| {
                let of = format!("WHERE (?1 IS NULL OR session = ?1) AND (?2 IS NULL OR principal = ?2) {which}");
                let count = format!("SELECT count(*) FROM jobs {of}");
                let total: i64 = db.prepare_cached(&count)?.query_row(params![session, principal], |row| row.get(0))?;
                let sql = format!(
                    "SELECT {COLUMNS} {FROM} {of} AND (?3 IS NULL \
                     OR (created_ms, jobs.rowid) < (SELECT created_ms, rowid FROM jobs WHERE id = ?3)) \
                     ORDER BY created_ms DESC, jobs.rowid DESC LIMIT ?4"
                );
                let mut statement = db.prepare_cached(&sql)?;
                let rows = statement.query_map(params![session, principal, after, one_more(limit)], record)?;
                let mut jobs = rows.collect::<rusqlite::Result<Vec<_>>>()?;
                let next = split_page(&mut jobs, limit, |job| job.id.clone());
                Ok(JobPage { jobs, total: total.cast_unsigned(), next })
            })
            .await
    }

    /// Stores a request to the owner of a job. Returns the request's number.
    pub(crate) async fn ask_owner(&self, job: &str, request: &JobRequest) -> Result<i64, StoreError> {
        let (job, request) = (job.to_owned(), to_json(request)?);
        self.thread
            .run("ask for something about a job", move |db| {
                let sql = "INSERT INTO job_requests (job, request, asked_ms) VALUES (?1, ?2, ?3)";
                db.execute(sql, params![job, request, now_ms()])?;
                Ok(db.last_insert_rowid())
            })
            .await
    }

    /// Returns the unanswered requests for jobs of this process.
    pub(crate) async fn open_requests(&self) -> Result<Vec<(i64, String, JobRequest)>, StoreError> {
        self.thread
            .run("look for requests about jobs", |db| {
                let owner = owner::number(db)?;
                db.prepare_cached(
                    "SELECT job_requests.id, job, request FROM job_requests JOIN jobs ON jobs.id = job \
                     WHERE answer IS NULL AND owner = ?1 ORDER BY job_requests.id LIMIT 256",
                )?
                .query_map([owner], |row| Ok((row.get(0)?, row.get(1)?, json_column(row, 2)?)))?
                .collect()
            })
            .await
    }

    /// Answers a request; an empty text means success.
    pub(crate) async fn answer_request(&self, request: i64, answer: &str) -> Result<(), StoreError> {
        let answer = answer.to_owned();
        self.thread
            .run("answer a request about a job", move |db| {
                db.execute("UPDATE job_requests SET answer = ?2 WHERE id = ?1", params![request, answer]).map(drop)
            })
            .await
    }

    /// Returns the answer to a request, once it exists.
    pub(crate) async fn answer_to(&self, request: i64) -> Result<Option<String>, StoreError> {
        self.thread
            .run("look for an answer about a job", move |db| {
                let sql = "SELECT answer FROM job_requests WHERE id = ?1";
                let answer: Option<Option<String>> = db.query_row(sql, [request], |row| row.get(0)).optional()?;
                Ok(answer.flatten())
            })
            .await
    }
}

/// Ends a job without an owner. Returns whether it was still open.
fn end(db: &Connection, id: &str, state: JobState, outcome: &str) -> rusqlite::Result<bool> {
    let sql = "UPDATE jobs SET state = ?2, outcome = ?3, ended_ms = ?4, plan = NULL \
               WHERE id = ?1 AND owner IS NULL AND ended_ms IS NULL";
    let ended = db.prepare_cached(sql)?.execute(params![id, state.as_str(), outcome, now_ms()])? > 0;
    if ended {
        withdraw(db, id)?;
    }
    Ok(ended)
}

fn withdraw(db: &Connection, job: &str) -> rusqlite::Result<()> {
    let sql = format!("UPDATE inbox SET state = 'withdrawn' WHERE state = 'pending' AND id IN ({QUESTIONS})");
    db.prepare_cached(&sql)?.execute([job]).map(drop)
}

fn not_found(id: &str) -> StoreError {
    let quoted_id: String = id.chars().take(100).collect();
    StoreError::NotFound(format!("job {quoted_id}"))
}

/// Reads a row of [`COLUMNS`].
fn record(row: &Row<'_>) -> rusqlite::Result<JobRecord> {
    let owner = match row.get::<_, Option<u32>>(10)? {
        Some(pid) => {
            let owner = Owner { pid, boot: row.get(11)?, started: row.get(12)? };
            Some(JobOwner { pid, alive: owner == *Owner::current() || owner.is_alive() })
        }
        None => None,
    };
    let state: String = row.get(3)?;
    let unknown = || unreadable(3, std::io::Error::other(format!("no state of a job: {state}")));
    Ok(JobRecord {
        id: row.get(0)?,
        tool: tool(row, 1)?,
        arguments: json_column(row, 2)?,
        state: JobState::parse(&state).ok_or_else(unknown)?,
        session: SessionId::new(row.get::<_, String>(4)?),
        principal: row.get(5)?,
        call: CallId::new(row.get::<_, String>(6)?),
        run: row.get(13)?,
        owner,
        attempts: row.get(7)?,
        created_ms: row.get::<_, i64>(8)?.cast_unsigned(),
        ended_ms: row.get::<_, Option<i64>>(9)?.map(i64::cast_unsigned),
        outcome: None,
    })
}

fn tool(row: &Row<'_>, index: usize) -> rusqlite::Result<ToolId> {
    ToolId::parse(&row.get::<_, String>(index)?).map_err(|error| unreadable(index, error))
}

impl SqliteStore {
    /// Renews this process's lease.
    pub(crate) async fn renew_lease(&self) -> Result<(), StoreError> {
        self.thread
            .run("renew the lease of jobs", |db| {
                let owner = owner::number(db)?;
                renew(db, owner)
            })
            .await
    }

    /// Settles the jobs of dead processes. Jobs that were not dispatched, or may be dispatched again, can be started by
    /// any process; the others are lost. Returns how many were lost.
    pub(crate) async fn settle_jobs(&self) -> Result<usize, StoreError> {
        self.thread
            .run("settle the jobs of dead processes", |db| {
                let gone = owner::dead_owners(db)?;
                if gone.is_empty() {
                    return Ok(0);
                }
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let mut lost = 0;
                for owner in gone {
                    transaction.execute(
                        "UPDATE jobs SET state = 'pending', owner = NULL WHERE owner = ?1 AND ended_ms IS NULL \
                         AND (resumable OR state = 'pending')",
                        [owner],
                    )?;
                    lost += transaction.execute(
                        "UPDATE jobs SET state = 'unknown', owner = NULL, plan = NULL, ended_ms = ?2 \
                         WHERE owner = ?1 AND ended_ms IS NULL",
                        [owner, now_ms()],
                    )?;
                    transaction.execute("DELETE FROM job_owners WHERE id = ?1", [owner])?;
                }
                transaction.commit()?;
                Ok(lost)
            })
            .await
            .inspect(|_| self.wake_mail_waiters())
    }

    /// Returns at most `limit` jobs that any process may start, the oldest first, after the row `after`; of one
    /// session, or all. Ends unreadable ones.
    pub(crate) async fn startable_jobs(
        &self,
        of: Option<&[SessionId]>,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Startable>, StoreError> {
        let of = of.map(|sessions| to_json(&sessions)).transpose()?;
        self.thread
            .run("look for jobs to start", move |db| {
                let rows: Vec<(String, rusqlite::Result<Startable>)> = db
                    .prepare_cached(
                        "SELECT rowid, id, tool, CASE WHEN json_valid(plan) THEN plan ->> 'definition' END, \
                         CASE WHEN json_valid(plan) THEN plan ->> 'source' END, \
                         CASE WHEN json_valid(plan) THEN plan ->> 'root' END, session FROM jobs \
                         WHERE ended_ms IS NULL AND state = 'pending' AND owner IS NULL AND rowid > ?1 \
                         AND (?2 IS NULL OR session IN (SELECT value FROM json_each(?2))) ORDER BY rowid LIMIT ?3",
                    )?
                    .query_map(params![after, of, i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
                        Ok((row.get(1)?, startable(row)))
                    })?
                    .collect::<Result<_, _>>()?;
                let mut jobs = Vec::with_capacity(rows.len());
                for (id, read) in rows {
                    match read {
                        Ok(job) => jobs.push(job),
                        Err(error) => end_unreadable(db, &id, &error)?,
                    }
                }
                Ok(jobs)
            })
            .await
    }

    /// Takes those of these jobs that have no owner. Unreadable ones are ended, and not taken.
    pub(crate) async fn take_jobs(&self, ids: Vec<String>) -> Result<Vec<ClaimedJob>, StoreError> {
        self.thread
            .run("take jobs", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let owner = owner::number(&transaction)?;
                renew(&transaction, owner)?;
                let mut taken = Vec::with_capacity(ids.len());
                for id in ids {
                    let sql = format!(
                        "SELECT {COLUMNS}, resumable, plan {FROM} WHERE jobs.id = ?1 AND owner IS NULL AND ended_ms IS NULL"
                    );
                    let read = transaction.prepare_cached(&sql)?.query_row([&id], |row| {
                        Ok(ClaimedJob { record: record(row)?, resumable: row.get(14)?, plan: json_column(row, 15)? })
                    });
                    match read.optional() {
                        Ok(None) => {}
                        Ok(Some(job)) => {
                            let sql = "UPDATE jobs SET owner = ?2 WHERE id = ?1";
                            transaction.prepare_cached(sql)?.execute(params![id, owner])?;
                            taken.push(job);
                        }
                        Err(error) if is_unreadable(&error) => end_unreadable(&transaction, &id, &error)?,
                        Err(error) => return Err(error),
                    }
                }
                transaction.commit()?;
                Ok(taken)
            })
            .await
    }

    /// Ends a job without an owner, and withdraws the questions about it.
    pub(crate) async fn end_abandoned(&self, id: &str, state: JobState, outcome: &Outcome) -> Result<bool, StoreError> {
        let (id, outcome) = (id.to_owned(), to_json(outcome)?);
        self.thread
            .run("end a job that nobody has", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let ended = end(&transaction, &id, state, &outcome)?;
                transaction.commit()?;
                Ok(ended)
            })
            .await
            .inspect(|_| self.wake_mail_waiters())
    }

    /// Returns the ids of the questions about a job's call, the newest first. None if another job has a call of the
    /// same name, so that no answer is used for the wrong job.
    pub(crate) async fn questions_of_job(&self, id: &str) -> Result<Vec<String>, StoreError> {
        let id = id.to_owned();
        self.thread
            .run("look for the questions about a job", move |db| {
                db.prepare_cached(&format!("{QUESTIONS} ORDER BY inbox.created_ms DESC, inbox.rowid DESC LIMIT 16"))?
                    .query_map([id], |row| row.get(0))?
                    .collect()
            })
            .await
    }

    /// Withdraws the unanswered questions about a job.
    pub(crate) async fn withdraw_questions(&self, job: &str) -> Result<(), StoreError> {
        let job = job.to_owned();
        self.thread.run("withdraw the questions about a job", move |db| withdraw(db, &job)).await
    }

    /// Returns those of `ids` that no longer name a job.
    pub(crate) async fn no_jobs(&self, ids: &[String]) -> Result<Vec<String>, StoreError> {
        let ids = to_json(&ids)?;
        self.thread
            .run("look for jobs that are gone", move |db| {
                db.prepare_cached("SELECT value FROM json_each(?1) WHERE value NOT IN (SELECT id FROM jobs)")?
                    .query_map([ids], |row| row.get(0))?
                    .collect()
            })
            .await
    }
}

/// Reads a row of a job that any process may start.
fn startable(row: &Row<'_>) -> rusqlite::Result<Startable> {
    let hash: String = row.get(3)?;
    let definition = serde_json::from_value(hash.into()).map_err(|error| unreadable(3, error))?;
    let root = row.get::<_, Option<String>>(5)?.map(PathBuf::from);
    let session = SessionId::new(row.get::<_, String>(6)?);
    let (row, id, tool, source) = (row.get(0)?, row.get(1)?, tool(row, 2)?, row.get(4)?);
    Ok(Startable { row, id, session, tool, definition, source, root })
}

/// Returns whether only the row is unreadable, and not the store.
fn is_unreadable(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType};
    matches!(error, FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..))
}

/// Ends a job that is unreadable, and so cannot run.
fn end_unreadable(db: &Connection, id: &str, why: &rusqlite::Error) -> rusqlite::Result<()> {
    let attempts: i64 = db.query_row("SELECT attempts FROM jobs WHERE id = ?1", [id], |row| row.get(0)).unwrap_or(1);
    let call: String = db.query_row("SELECT call FROM jobs WHERE id = ?1", [id], |row| row.get(0)).unwrap_or_default();
    let (state, ran) = match attempts {
        0 => (JobState::Error, "nothing of it ran"),
        _ => (JobState::Unknown, "it was not run again"),
    };
    tracing::error!(job = id, "a job cannot be read: {why}");
    let error = ToolError::new(ErrorKind::InternalError, format!("job {id} cannot be read, so {ran}: {why}"));
    let outcome = serde_json::to_string(&Outcome::failed(CallId::new(call), error))
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    end(db, id, state, &outcome).map(drop)
}
