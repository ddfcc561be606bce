//! Jobs of dead processes: their owners, how they are resolved, and their open questions.

use std::path::PathBuf;

use rusqlite::{Connection, OptionalExtension as _, Row, TransactionBehavior, params};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::job::JobState;
use toolwright_core::outcome::Outcome;
use toolwright_core::session::{CallId, SessionId};
use toolwright_core::store::StoreError;

use super::{COLUMNS, FROM, QUESTIONS, Startable, TakenJob, end, record, tool, withdraw};
use crate::store::SqliteStore;
use crate::store::owner::{self, renew};
use crate::store::tables::{json_column, now_ms, to_json, unreadable};

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

    /// Settles the jobs of dead processes: what was not dispatched, or may be dispatched again, is anybody's to
    /// start; the rest is lost. Returns how many were lost.
    pub(crate) async fn settle_jobs(&self) -> Result<usize, StoreError> {
        self.thread
            .run("settle the jobs of dead processes", |db| {
                let gone = owner::gone(db)?;
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
    }

    /// At most `limit` jobs that anybody may start, the oldest first, from behind the row `after`; those of one session,
    /// or all. One that cannot be read is ended.
    pub(crate) async fn startable_jobs(
        &self,
        of: Option<&SessionId>,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Startable>, StoreError> {
        let of = of.map(|session| session.as_str().to_owned());
        self.thread
            .run("look for jobs to start", move |db| {
                let rows: Vec<(String, rusqlite::Result<Startable>)> = db
                    .prepare_cached(
                        "SELECT rowid, id, tool, CASE WHEN json_valid(plan) THEN plan ->> 'definition' END, \
                         CASE WHEN json_valid(plan) THEN plan ->> 'source' END, \
                         CASE WHEN json_valid(plan) THEN plan ->> 'root' END FROM jobs WHERE ended_ms IS NULL AND state = 'pending' AND owner IS NULL AND rowid > ?1 \
                         AND (?2 IS NULL OR session = ?2) ORDER BY rowid LIMIT ?3",
                    )?
                    .query_map(params![after, of, i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
                        Ok((row.get(1)?, startable(row)))
                    })?
                    .collect::<Result<_, _>>()?;
                let mut jobs = Vec::with_capacity(rows.len());
                for (id, read) in rows {
                    match read {
                        Ok(job) => jobs.push(job),
                        Err(error) => give_up(db, &id, &error)?,
                    }
                }
                Ok(jobs)
            })
            .await
    }

    /// Takes those of these jobs that are still anybody's. One that cannot be read is ended, and not taken.
    pub(crate) async fn take_jobs(&self, ids: Vec<String>) -> Result<Vec<TakenJob>, StoreError> {
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
                        Ok(TakenJob { record: record(row)?, resumable: row.get(13)?, plan: json_column(row, 14)? })
                    });
                    match read.optional() {
                        Ok(None) => {}
                        Ok(Some(job)) => {
                            let sql = "UPDATE jobs SET owner = ?2 WHERE id = ?1";
                            transaction.prepare_cached(sql)?.execute(params![id, owner])?;
                            taken.push(job);
                        }
                        Err(error) if is_unreadable(&error) => give_up(&transaction, &id, &error)?,
                        Err(error) => return Err(error),
                    }
                }
                transaction.commit()?;
                Ok(taken)
            })
            .await
    }

    /// Ends a job that nobody has, and withdraws what a person was asked about it.
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
    }

    /// The ids of the questions that were asked about a job's call, the newest first: none where another job has a
    /// call of the same name, so that no answer is taken for another's.
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

    /// Withdraws what a person was asked about a job and has not answered.
    pub(crate) async fn withdraw_questions(&self, job: &str) -> Result<(), StoreError> {
        let job = job.to_owned();
        self.thread.run("withdraw the questions about a job", move |db| withdraw(db, &job)).await
    }

    /// Those of `ids` of which there is no job any more.
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

/// A row of a job that anybody may start.
fn startable(row: &Row<'_>) -> rusqlite::Result<Startable> {
    let hash: String = row.get(3)?;
    let definition = serde_json::from_value(hash.into()).map_err(|error| unreadable(3, error))?;
    let root = row.get::<_, Option<String>>(5)?.map(PathBuf::from);
    Ok(Startable { row: row.get(0)?, id: row.get(1)?, tool: tool(row, 2)?, definition, source: row.get(4)?, root })
}

/// Whether it is the row that cannot be read, and not the store.
fn is_unreadable(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType};
    matches!(error, FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..))
}

/// Ends a job that cannot be read, and so cannot be run.
fn give_up(db: &Connection, id: &str, why: &rusqlite::Error) -> rusqlite::Result<()> {
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
