//! Stores runs, so that they can be resumed.

use async_trait::async_trait;
use rusqlite::{OptionalExtension as _, TransactionBehavior, params};
use serde_json::Value;
use toolwright_core::outcome::Outcome;
use toolwright_core::session::CallId;
use toolwright_core::store::{Claim, RunStore, SavedRun, StoreError};

use crate::store::SqliteStore;
use crate::store::owner::Owner;
use crate::store::{from_json, now_ms, to_json};

impl SqliteStore {
    async fn save(&self, run: &str, state: &Value, new_step: bool) -> Result<(), StoreError> {
        let (run, state) = (run.to_owned(), to_json(state)?);
        self.thread
            .run("save a run", move |db| {
                let transaction = db.transaction()?;
                let enter = "INSERT OR REPLACE INTO runs (id, state, saved_ms) VALUES (?1, ?2, ?3)";
                transaction.prepare_cached(enter)?.execute(params![run, state, now_ms()])?;
                if new_step {
                    transaction.prepare_cached("DELETE FROM run_calls WHERE run = ?1")?.execute(params![run])?;
                }
                transaction.commit()
            })
            .await
    }
}

#[async_trait]
impl RunStore for SqliteStore {
    async fn claim(&self, run: &str) -> Result<Claim, StoreError> {
        let run = run.to_owned();
        self.thread
            .run("claim a run", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let holder = transaction
                    .prepare_cached("SELECT pid, boot, started FROM run_claims WHERE run = ?1")?
                    .query_row(params![run], |row| {
                        Ok(Owner { pid: row.get(0)?, boot: row.get(1)?, started: row.get(2)? })
                    })
                    .optional()?;
                let this = Owner::current();
                if let Some(holder) = holder.filter(|holder| holder != this && holder.is_alive()) {
                    return Ok(Claim::TakenBy(format!("process {}", holder.pid)));
                }
                let enter = "INSERT OR REPLACE INTO run_claims (run, pid, boot, started) VALUES (?1, ?2, ?3, ?4)";
                let values = params![run, this.pid, this.boot, this.started];
                transaction.prepare_cached(enter)?.execute(values)?;
                transaction.commit()?;
                Ok(Claim::Held)
            })
            .await
    }

    async fn release(&self, run: &str) -> Result<(), StoreError> {
        let run = run.to_owned();
        self.thread
            .run("release a run", move |db| {
                let sql = "DELETE FROM run_claims WHERE run = ?1 AND pid = ?2";
                db.prepare_cached(sql)?.execute(params![run, Owner::current().pid]).map(drop)
            })
            .await
    }

    async fn save_run(&self, run: &str, state: &Value) -> Result<(), StoreError> {
        self.save(run, state, true).await
    }

    async fn save_during_step(&self, run: &str, state: &Value) -> Result<(), StoreError> {
        self.save(run, state, false).await
    }

    async fn run(&self, run: &str) -> Result<Option<SavedRun>, StoreError> {
        let run = run.to_owned();
        let found: Option<(String, Vec<(String, Option<String>)>)> = self
            .thread
            .run("read a run", move |db| {
                let sql = "SELECT state FROM runs WHERE id = ?1";
                let state: Option<String> =
                    db.prepare_cached(sql)?.query_row(params![run], |row| row.get(0)).optional()?;
                let calls = db
                    .prepare_cached("SELECT call, outcome FROM run_calls WHERE run = ?1 ORDER BY rowid")?
                    .query_map(params![run], |row| Ok((row.get(0)?, row.get(1)?)))?
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(state.map(|state| (state, calls)))
            })
            .await?;
        let Some((state, calls)) = found else { return Ok(None) };
        let calls = calls
            .into_iter()
            .map(|(call, outcome)| Ok((CallId::new(call), outcome.map(|text| from_json(&text)).transpose()?)))
            .collect::<Result<_, StoreError>>()?;
        Ok(Some(SavedRun { state: from_json(&state)?, calls }))
    }

    async fn call_dispatched(&self, run: &str, call: &CallId) -> Result<(), StoreError> {
        let (run, call) = (run.to_owned(), call.as_str().to_owned());
        self.thread
            .run("note a dispatch", move |db| {
                let sql = "INSERT OR REPLACE INTO run_calls (run, call) VALUES (?1, ?2)";
                db.prepare_cached(sql)?.execute(params![run, call]).map(drop)
            })
            .await
    }

    async fn call_finished(&self, run: &str, outcome: &Outcome) -> Result<(), StoreError> {
        let (run, call, text) = (run.to_owned(), outcome.call_id.as_str().to_owned(), to_json(outcome)?);
        self.thread
            .run("note an outcome", move |db| {
                let sql = "INSERT OR REPLACE INTO run_calls (run, call, outcome) VALUES (?1, ?2, ?3)";
                db.prepare_cached(sql)?.execute(params![run, call, text]).map(drop)
            })
            .await
    }
}
