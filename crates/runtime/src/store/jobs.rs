//! Jobs.

use async_trait::async_trait;
use rusqlite::{OptionalExtension as _, params};
use toolwright_core::outcome::Outcome;
use toolwright_core::store::{JobRecord, JobState, JobStore, StoreError};

use super::SqliteStore;
use super::tables;
use super::tables::{job_from_row, to_json};

#[async_trait]
impl JobStore for SqliteStore {
    async fn create_job(&self, job: &JobRecord) -> Result<(), StoreError> {
        let job = job.clone();
        let arguments = to_json(&job.arguments)?;
        let state = to_json(&job.state)?;
        self.thread
            .run("create a job", move |db| {
                db.execute(
                    "INSERT INTO jobs (id, tool, arguments, state, created_ms, session) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    params![job.id, job.tool.as_str(), arguments, state, job.created_ms.cast_signed(), job.session.as_str()],
                )
                .map(drop)
            })
            .await
    }

    async fn set_job_state(&self, id: &str, state: JobState, outcome: Option<&Outcome>) -> Result<(), StoreError> {
        let (name, key) = (id.to_owned(), id.to_owned());
        let (state, outcome) = (to_json(&state)?, outcome.map(to_json).transpose()?);
        let changed = self
            .thread
            .run("change a job", move |db| {
                db.execute(
                    "UPDATE jobs SET state = ?2, outcome = COALESCE(?3, outcome) WHERE id = ?1",
                    params![key, state, outcome],
                )
            })
            .await?;
        if changed == 0 { Err(StoreError::NotFound(format!("job {name}"))) } else { Ok(()) }
    }

    async fn job(&self, id: &str) -> Result<JobRecord, StoreError> {
        let (name, key) = (id.to_owned(), id.to_owned());
        self.thread
            .run("read a job", move |db| {
                db.query_row(&format!("{} WHERE id = ?1", tables::SELECT_JOB), params![key], job_from_row).optional()
            })
            .await?
            .ok_or_else(|| StoreError::NotFound(format!("job {name}")))
    }

    async fn jobs(&self, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        self.thread
            .run("list jobs", move |db| {
                let sql = format!("{} ORDER BY created_ms DESC, rowid DESC LIMIT ?1", tables::SELECT_JOB);
                db.prepare_cached(&sql)?
                    .query_map(params![u32::try_from(limit.min(10_000)).unwrap_or(10_000)], job_from_row)?
                    .collect()
            })
            .await
    }
}
