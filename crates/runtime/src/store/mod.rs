//! The embedded store: one SQLite file (WAL) in the state directory, shared by all of a user's
//! Toolwright processes. SQL is named only in this folder.

mod migrations;
mod owner;
mod tables;
mod thread;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{OptionalExtension as _, TransactionBehavior, params};
use serde_json::Value;
use toolwright_core::canonical::ContentHash;
use toolwright_core::name::ToolId;
use toolwright_core::outcome::Outcome;
use toolwright_core::session::CallId;
use toolwright_core::store::{
    ApprovalStore, Claim, JobRecord, JobState, JobStore, LedgerEntry, LedgerStore, LedgerTotals, ManifestCache,
    PinStore, RunStore, SavedRun, StoreError,
};

use self::owner::Owner;
use self::tables::{from_json, job_from_row, now_ms, to_json};
use self::thread::StoreThread;

/// The file's name in the state directory.
const FILE: &str = "toolwright.sqlite3";

/// The embedded store. Opened at its first use, on a thread of its own; each write is committed before
/// its future ends, but for the ledger, which is written in batches at most 50 ms old.
#[derive(Debug)]
pub struct SqliteStore {
    thread: StoreThread,
    path: PathBuf,
}

impl SqliteStore {
    /// The store in `state_dir`, which is made private (0700) if it is not there.
    ///
    /// # Errors
    /// When the directory cannot be made. A file that cannot be opened fails the first operation.
    pub fn open(state_dir: &Path) -> Result<Arc<Self>, StoreError> {
        crate::outputs::private_dir(state_dir)
            .map_err(|error| StoreError::failed(format!("make the state directory {}", state_dir.display()), error))?;
        let path = state_dir.join(FILE);
        let thread = StoreThread::start(path.clone())?;
        Ok(Arc::new(Self { thread, path }))
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn save(&self, run: &str, state: &Value, new_step: bool) -> Result<(), StoreError> {
        let (run, state) = (run.to_owned(), to_json(state)?);
        self.thread
            .run("save a run", move |db| {
                let transaction = db.transaction()?;
                transaction.execute(
                    "INSERT OR REPLACE INTO runs (id, state, saved_ms) VALUES (?1, ?2, ?3)",
                    params![run, state, now_ms()],
                )?;
                if new_step {
                    transaction.execute("DELETE FROM run_calls WHERE run = ?1", params![run])?;
                }
                transaction.commit()
            })
            .await
    }
}

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

#[async_trait]
impl LedgerStore for SqliteStore {
    fn append(&self, entry: LedgerEntry) {
        self.thread.append(entry);
    }

    async fn flush(&self) -> Result<(), StoreError> {
        // Whatever runs on the thread first writes the entries that were appended before it.
        self.thread.run("flush the ledger", |_| Ok(())).await
    }

    async fn totals(&self) -> Result<LedgerTotals, StoreError> {
        self.thread
            .run("total the ledger", |db| {
                db.query_row(
                    "SELECT COALESCE(SUM(kind = 'tool'), 0), COALESCE(SUM(kind = 'tool' AND status <> 'ok'), 0), \
                     COALESCE(SUM(kind = 'model'), 0) FROM ledger",
                    [],
                    |row| {
                        let count = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
                        Ok(LedgerTotals { tool_calls: count(0)?, tool_failures: count(1)?, model_calls: count(2)? })
                    },
                )
            })
            .await
    }
}

#[async_trait]
impl PinStore for SqliteStore {
    async fn pin(&self, provider: &str, tool: &ToolId) -> Result<Option<ContentHash>, StoreError> {
        let (provider, tool) = (provider.to_owned(), tool.to_string());
        let text: Option<String> = self
            .thread
            .run("read a pin", move |db| {
                db.query_row(
                    "SELECT hash FROM pins WHERE provider = ?1 AND tool = ?2",
                    params![provider, tool],
                    |row| row.get(0),
                )
                .optional()
            })
            .await?;
        text.map(|text| from_json(&format!("\"{text}\""))).transpose()
    }

    async fn set_pin(&self, provider: &str, tool: &ToolId, hash: ContentHash) -> Result<(), StoreError> {
        let (provider, tool, hash) = (provider.to_owned(), tool.to_string(), hash.to_hex());
        self.thread
            .run("set a pin", move |db| {
                db.execute(
                    "INSERT OR REPLACE INTO pins (provider, tool, hash) VALUES (?1, ?2, ?3)",
                    params![provider, tool, hash],
                )
                .map(drop)
            })
            .await
    }
}

#[async_trait]
impl ManifestCache for SqliteStore {
    async fn manifest(&self, key: &str) -> Result<Option<Value>, StoreError> {
        let key = key.to_owned();
        let text: Option<String> = self
            .thread
            .run("read a manifest", move |db| {
                db.query_row("SELECT manifest FROM manifests WHERE key = ?1", params![key], |row| row.get(0)).optional()
            })
            .await?;
        text.map(|text| from_json(&text)).transpose()
    }

    async fn set_manifest(&self, key: &str, manifest: &Value) -> Result<(), StoreError> {
        let (key, manifest) = (key.to_owned(), to_json(manifest)?);
        self.thread
            .run("store a manifest", move |db| {
                db.execute(
                    "INSERT OR REPLACE INTO manifests (key, manifest, saved_ms) VALUES (?1, ?2, ?3)",
                    params![key, manifest, now_ms()],
                )
                .map(drop)
            })
            .await
    }
}

#[async_trait]
impl ApprovalStore for SqliteStore {
    async fn is_approved(&self, scope: &str, tool: &ToolId, definition: ContentHash) -> Result<bool, StoreError> {
        let (scope, tool, hash) = (scope.to_owned(), tool.to_string(), definition.to_hex());
        self.thread
            .run("look up an approval", move |db| {
                db.query_row(
                    "SELECT 1 FROM approvals WHERE scope = ?1 AND tool = ?2 AND hash = ?3",
                    params![scope, tool, hash],
                    |_| Ok(()),
                )
                .optional()
            })
            .await
            .map(|row| row.is_some())
    }

    async fn approve_always(&self, scope: &str, tool: &ToolId, definition: ContentHash) -> Result<(), StoreError> {
        let (scope, tool, hash) = (scope.to_owned(), tool.to_string(), definition.to_hex());
        self.thread
            .run("store an approval", move |db| {
                db.execute(
                    "INSERT OR REPLACE INTO approvals (scope, tool, hash, saved_ms) VALUES (?1, ?2, ?3, ?4)",
                    params![scope, tool, hash, now_ms()],
                )
                .map(drop)
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
                    .query_row("SELECT pid, boot, started FROM run_claims WHERE run = ?1", params![run], |row| {
                        Ok(Owner { pid: row.get(0)?, boot: row.get(1)?, started: row.get(2)? })
                    })
                    .optional()?;
                let this = Owner::this();
                if let Some(holder) = holder.filter(|holder| holder != this && holder.is_alive()) {
                    return Ok(Claim::TakenBy(format!("process {}", holder.pid)));
                }
                transaction.execute(
                    "INSERT OR REPLACE INTO run_claims (run, pid, boot, started) VALUES (?1, ?2, ?3, ?4)",
                    params![run, this.pid, this.boot, this.started],
                )?;
                transaction.commit()?;
                Ok(Claim::Held)
            })
            .await
    }

    async fn release(&self, run: &str) -> Result<(), StoreError> {
        let run = run.to_owned();
        self.thread
            .run("release a run", move |db| {
                let pid = Owner::this().pid;
                db.execute("DELETE FROM run_claims WHERE run = ?1 AND pid = ?2", params![run, pid]).map(drop)
            })
            .await
    }

    async fn save_run(&self, run: &str, state: &Value) -> Result<(), StoreError> {
        self.save(run, state, true).await
    }

    async fn save_amid(&self, run: &str, state: &Value) -> Result<(), StoreError> {
        self.save(run, state, false).await
    }

    async fn run(&self, run: &str) -> Result<Option<SavedRun>, StoreError> {
        let run = run.to_owned();
        let found: Option<(String, Vec<(String, Option<String>)>)> = self
            .thread
            .run("read a run", move |db| {
                let state: Option<String> =
                    db.query_row("SELECT state FROM runs WHERE id = ?1", params![run], |row| row.get(0)).optional()?;
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
                db.execute("INSERT OR REPLACE INTO run_calls (run, call) VALUES (?1, ?2)", params![run, call]).map(drop)
            })
            .await
    }

    async fn call_finished(&self, run: &str, outcome: &Outcome) -> Result<(), StoreError> {
        let (run, call, text) = (run.to_owned(), outcome.call_id.as_str().to_owned(), to_json(outcome)?);
        self.thread
            .run("note an outcome", move |db| {
                db.execute(
                    "INSERT OR REPLACE INTO run_calls (run, call, outcome) VALUES (?1, ?2, ?3)",
                    params![run, call, text],
                )
                .map(drop)
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolwright_core::arguments::Provenance;
    use toolwright_core::error::{ErrorKind, ToolError};
    use toolwright_core::model::Usage;
    use toolwright_core::select::Showing;
    use toolwright_core::session::SessionId;

    fn tool() -> ToolId {
        ToolId::parse("x:t@1.0.0").expect("id")
    }

    fn entry(status: &str) -> LedgerEntry {
        LedgerEntry {
            at_ms: now_ms().cast_unsigned(),
            session: SessionId::new("s"),
            principal: "owner".into(),
            kind: "tool".into(),
            call: Some(CallId::new("c")),
            name: "x:t@1.0.0".into(),
            status: status.into(),
            latency_ms: 2,
            characters_in: 3,
            characters_out: 4,
            usage: Usage::default(),
            validated: true,
            decided_by: "profile ask".into(),
            provenance: Provenance { repaired: true, ..Provenance::default() },
            tools: Some(Showing { shown: 3, ..Showing::default() }),
        }
    }

    #[tokio::test]
    async fn everything_survives_a_reopen() {
        let dir = tempfile::tempdir().expect("dir");
        let hash = ContentHash::of_bytes(b"x");
        let job = JobRecord {
            id: "j_00000001".into(),
            tool: tool(),
            arguments: json!({"a": 1}),
            state: JobState::Running,
            created_ms: now_ms().cast_unsigned(),
            session: SessionId::new("s"),
        };
        {
            let store = SqliteStore::open(dir.path()).expect("open");
            store.create_job(&job).await.expect("job");
            store.set_job_state(&job.id, JobState::Done, None).await.expect("state");
            store.set_pin("p", &tool(), hash).await.expect("pin");
            store.set_manifest("k", &json!({"tools": []})).await.expect("manifest");
            store.approve_always("s", &tool(), hash).await.expect("approval");
            store.save_run("r", &json!({"step": 1})).await.expect("run");
            store.call_dispatched("r", &CallId::new("a")).await.expect("dispatch");
            store.call_dispatched("r", &CallId::new("b")).await.expect("dispatch");
            let outcome = Outcome::failed(CallId::new("b"), ToolError::new(ErrorKind::Timeout, "late"));
            store.call_finished("r", &outcome).await.expect("outcome");
            for status in ["ok", "timeout"] {
                store.append(entry(status));
            }
            store.flush().await.expect("flush");
        }
        let store = SqliteStore::open(dir.path()).expect("open");
        assert_eq!(store.job(&job.id).await.expect("job"), JobRecord { state: JobState::Done, ..job.clone() });
        assert_eq!(store.jobs(9).await.expect("jobs").len(), 1);
        assert!(matches!(store.job("nope").await, Err(StoreError::NotFound(_))));
        assert!(store.set_job_state("nope", JobState::Done, None).await.is_err());
        assert_eq!(store.pin("p", &tool()).await.expect("pin"), Some(hash));
        assert_eq!(store.manifest("k").await.expect("manifest"), Some(json!({"tools": []})));
        assert!(store.is_approved("s", &tool(), hash).await.expect("approved"));
        assert!(!store.is_approved("s", &tool(), ContentHash::of_bytes(b"y")).await.expect("hash is part of it"));
        let run = store.run("r").await.expect("run").expect("saved");
        assert_eq!(run.state, json!({"step": 1}));
        let calls: Vec<_> = run.calls.iter().map(|(id, outcome)| (id.as_str(), outcome.is_some())).collect();
        assert_eq!(calls, [("a", false), ("b", true)]);
        assert_eq!(
            store.totals().await.expect("totals"),
            LedgerTotals { tool_calls: 2, tool_failures: 1, model_calls: 0 }
        );
        let told = |db: &mut rusqlite::Connection| {
            db.query_row("SELECT provenance || tools FROM ledger LIMIT 1", [], |row| row.get::<_, String>(0))
        };
        let told = store.thread.run("read the ledger", told).await.expect("ledger");
        assert_eq!(told, r#"{"repaired":true}{"shown":3,"deferred":0,"excluded":0,"tokens":0}"#);
        store.save_amid("r", &json!({"step": 1, "amid": true})).await.expect("run");
        let amid = store.run("r").await.expect("run").expect("saved");
        assert_eq!((&amid.state["amid"], amid.calls.len()), (&json!(true), 2), "amid a step its journal stays");
        store.save_run("r", &json!({"step": 2})).await.expect("run");
        assert!(store.run("r").await.expect("run").expect("saved").calls.is_empty(), "a new step starts a new journal");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_run_is_driven_by_one_living_process() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        assert_eq!(store.claim("r").await.expect("claim"), Claim::Held);
        assert_eq!(store.claim("r").await.expect("claim"), Claim::Held, "one process is one owner");
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("spawn");
        let (pid, started) = (other.id(), owner::start_time(other.id()).expect("running"));
        let give = move |db: &mut rusqlite::Connection| {
            db.execute("UPDATE run_claims SET pid = ?1, started = ?2", params![pid, started]).map(drop)
        };
        store.thread.run("give it away", give).await.expect("given");
        assert_eq!(store.claim("r").await.expect("claim"), Claim::TakenBy(format!("process {pid}")));
        store.release("r").await.expect("not ours");
        assert_eq!(store.claim("r").await.expect("claim"), Claim::TakenBy(format!("process {pid}")));
        other.kill().expect("kill");
        other.wait().expect("wait");
        assert_eq!(store.claim("r").await.expect("claim"), Claim::Held, "the dead own nothing");
        store.release("r").await.expect("release");
    }

    #[tokio::test]
    async fn what_nobody_touched_for_thirty_days_goes() {
        let dir = tempfile::tempdir().expect("dir");
        {
            let store = SqliteStore::open(dir.path()).expect("open");
            for run in ["old", "new"] {
                store.save_run(run, &json!({})).await.expect("run");
                store.call_dispatched(run, &CallId::new("c")).await.expect("dispatch");
            }
            let month_ago = now_ms() - 31 * 24 * 3600 * 1000;
            let age = move |db: &mut rusqlite::Connection| {
                db.execute("UPDATE runs SET saved_ms = ?1 WHERE id = 'old'", [month_ago]).map(drop)
            };
            store.thread.run("age a run", age).await.expect("aged");
        }
        let store = SqliteStore::open(dir.path()).expect("open");
        assert!(store.run("old").await.expect("read").is_none());
        assert_eq!(store.run("new").await.expect("read").expect("kept").calls.len(), 1);
    }

    #[tokio::test]
    async fn processes_can_share_the_file() {
        let dir = tempfile::tempdir().expect("dir");
        let stores: Vec<_> = (0..4).map(|_| SqliteStore::open(dir.path()).expect("open")).collect();
        let writes = stores.iter().enumerate().flat_map(|(n, store)| {
            (0..25).map(move |m| async move { store.set_manifest(&format!("{n}-{m}"), &json!(m)).await })
        });
        for result in futures_util::future::join_all(writes).await {
            result.expect("written");
        }
        assert_eq!(stores[0].manifest("3-24").await.expect("read"), Some(json!(24)));
    }

    #[tokio::test]
    async fn a_new_file_can_be_opened_by_many_at_once() {
        for _ in 0..20 {
            let dir = tempfile::tempdir().expect("dir");
            let stores: Vec<_> = (0..8).map(|_| SqliteStore::open(dir.path()).expect("open")).collect();
            for flushed in futures_util::future::join_all(stores.iter().map(|store| store.flush())).await {
                flushed.expect("opened");
            }
        }
    }

    #[tokio::test]
    async fn a_broken_file_fails_with_its_path() {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::write(dir.path().join(FILE), b"this is not a database, it only looks like one").expect("write");
        let store = SqliteStore::open(dir.path()).expect("open");
        let error = store.flush().await.expect_err("broken");
        assert!(error.to_string().contains(FILE), "{error}");
    }
}
