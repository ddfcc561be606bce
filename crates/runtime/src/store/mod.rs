//! The embedded store: one SQLite file (WAL) in the state directory, shared by all of a user's Toolwright processes.
//! Only this folder contains SQL.

pub(crate) mod agents;
pub(crate) mod caches;
mod database;
mod inbox;
pub(crate) mod jobs;
mod ledger;
mod memory;
mod objects;
mod owner;
mod pins;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rusqlite::Row;
use rusqlite::types::Type;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use toolwright_core::store::StoreError;

use self::database::{Retention, StoreThread};

pub use self::memory::StoredMemory;

/// The file's name in the state directory.
const FILE: &str = "toolwright.sqlite3";
/// The path of a database in memory.
const MEMORY: &str = ":memory:";
/// How long to wait while another process holds the file.
const BUSY: Duration = Duration::from_secs(10);

/// The embedded store. Opened at first use, on its own thread. Each write is committed before its future completes,
/// except in the ledger: begun operations are in a journal first, and their ends are written in batches at most 50 ms old.
#[derive(Debug)]
pub struct SqliteStore {
    thread: StoreThread,
    path: PathBuf,
    /// Changes when this process writes a message.
    mail: watch::Sender<u64>,
    /// Notified of the values that this process writes.
    watchers: agents::Watchers,
}

/// Returns whether the database at this path is in memory.
fn is_in_memory(path: &Path) -> bool {
    path == Path::new(MEMORY)
}

impl SqliteStore {
    /// Opens the store in `state_dir`, which is created as private (0700) if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be created, or the file is clearly not a complete database; it is left unchanged. A file
    /// that cannot be opened for another reason fails the first operation.
    pub fn open(state_dir: &Path) -> Result<Arc<Self>, StoreError> {
        crate::private_dir(state_dir)
            .map_err(|error| StoreError::failed(format!("make the state directory {}", state_dir.display()), error))?;
        let path = state_dir.join(FILE);
        database::check(&path)?;
        let thread = StoreThread::start(path.clone(), Retention::default())?;
        Ok(Arc::new(Self { thread, path, mail: watch::Sender::new(0), watchers: agents::Watchers::default() }))
    }

    /// Creates a store in memory, for this process alone. It is empty and ends when it is dropped.
    ///
    /// # Errors
    /// Its thread cannot be started.
    pub fn in_memory() -> Result<Arc<Self>, StoreError> {
        let path = PathBuf::from(MEMORY);
        let thread = StoreThread::start(path.clone(), Retention::default())?;
        Ok(Arc::new(Self { thread, path, mail: watch::Sender::new(0), watchers: agents::Watchers::default() }))
    }

    /// Writes pending data. If SQLite's write-ahead log is long (512 KiB), the file is closed too, so that the next
    /// process reads less when it opens it. Later operations open it again.
    ///
    /// # Errors
    /// Its thread has ended, or another process holds the file; pending data is then written when that process releases
    /// it.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.thread.close().await
    }

    /// Returns the path of the file; `:memory:` without one.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn json_column<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> rusqlite::Result<T> {
    serde_json::from_str(&row.get::<_, String>(index)?).map_err(|error| unreadable(index, error))
}

fn unreadable(index: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(error))
}

/// Returns the number of rows to request: one more than `limit` shows whether there are more.
fn one_more(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}

/// Keeps `limit` of these rows. Returns the cursor of the rest, if there is any.
fn split_page<T, C>(rows: &mut Vec<T>, limit: usize, cursor: impl FnOnce(&T) -> C) -> Option<C> {
    let more = rows.len() > limit;
    rows.truncate(limit);
    rows.last().filter(|_| more).map(cursor)
}

/// Returns the milliseconds since the epoch.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn to_json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::failed("write a value as JSON", error))
}

fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::failed("read a stored value", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::params;
    use serde_json::json;
    use toolwright_core::approval::{AlwaysScope, StandingApproval};
    use toolwright_core::arguments::Provenance;
    use toolwright_core::canonical::ContentHash;
    use toolwright_core::error::{ErrorKind, ToolError};
    use toolwright_core::exposure::ExposureRecord;
    use toolwright_core::model::Usage;
    use toolwright_core::operation::{Lineage, Op, OpId, OpKind};
    use toolwright_core::outcome::Outcome;
    use toolwright_core::pins::{PinSource, PinUpdate};
    use toolwright_core::session::{CallId, SessionId};
    use toolwright_core::store::{
        ApprovalStore as _, Claim, LedgerEntry, LedgerStore as _, ManifestCache as _, PinDecision, PinStore as _,
        PinWrite, RunStore as _,
    };
    use toolwright_core::tool_id::ToolId;

    fn tool() -> ToolId {
        ToolId::parse("x:t@1.0.0").expect("id")
    }

    fn entry(status: &str) -> LedgerEntry {
        let op = Op { id: OpId::new(u64::MAX), lineage: Lineage { parent: Some(OpId::new(7)), ..Lineage::named("s") } };
        LedgerEntry {
            call: Some(CallId::new("c")),
            status: status.to_owned().into(),
            latency_us: 2,
            wait_us: 1,
            characters_in: 3,
            characters_out: 4,
            validated: true,
            decided_by: "profile ask".into(),
            approval: Some("always".into()),
            provenance: Provenance { repaired: true, ..Provenance::default() },
            tools: Some(ExposureRecord { shown: 3, ..ExposureRecord::default() }),
            ..LedgerEntry::new(
                op,
                now_ms().cast_unsigned(),
                SessionId::new("s"),
                "owner".into(),
                OpKind::Tool,
                "x:t@1.0.0".into(),
            )
        }
    }

    fn test_approval(key: ContentHash) -> StandingApproval {
        let (id, scope, principal) = ("always_00000001".into(), "s".into(), "owner".into());
        let covers = AlwaysScope::Tool;
        StandingApproval {
            id,
            scope,
            principal,
            tool: tool(),
            key,
            covers,
            arguments: None,
            asker: None,
            created_ms: 1,
        }
    }

    #[tokio::test]
    async fn closing_includes_a_long_write_log() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        let log = dir.path().join("toolwright.sqlite3-wal");
        store.set_manifest("short", &json!({})).await.expect("set");
        store.close().await.expect("closed");
        assert!(log.exists(), "a short one is soon read");
        store.set_manifest("long", &json!({"text": "x".repeat(600_000)})).await.expect("set");
        store.close().await.expect("closed");
        assert!(!log.exists());
        assert!(store.manifest("long").await.expect("read").is_some(), "it opens the file again");
        assert!(store.manifest("short").await.expect("read").is_some());
    }

    #[tokio::test]
    async fn all_data_survives_a_reopen() {
        let dir = tempfile::tempdir().expect("dir");
        let hash = ContentHash::of_bytes(b"x");
        {
            let store = SqliteStore::open(dir.path()).expect("open");
            store.note_pins(&source(), vec![noted(PinUpdate::Pin, "x")]).await.expect("pin");
            store.set_manifest("k", &json!({"tools": []})).await.expect("manifest");
            store.approve_always(&test_approval(hash)).await.expect("approval");
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
        let pins = store.pins(Some(&source())).await.expect("pins");
        assert_eq!(pins[0].approved.as_ref().map(|mark| (mark.hash, mark.by.as_str())), Some((hash, "first use")));
        assert_eq!(store.manifest("k").await.expect("manifest"), Some(json!({"tools": []})));
        assert!(store.is_approved("s", &tool(), hash).await.expect("approved"));
        assert_eq!(store.list_standing(9).await.expect("standing"), [test_approval(hash)]);
        assert!(!store.is_approved("s", &tool(), ContentHash::of_bytes(b"y")).await.expect("hash is part of it"));
        assert!(!store.is_approved("t", &tool(), hash).await.expect("the scope is part of it"));
        store
            .approve_always(&StandingApproval { id: "always_00000002".into(), ..test_approval(hash) })
            .await
            .expect("again");
        assert_eq!(store.list_standing(9).await.expect("standing").len(), 1, "said twice it stands once");
        assert!(!store.revoke("always_00000002").await.expect("revoke"));
        assert!(store.revoke("always_00000001").await.expect("revoke"));
        assert!(!store.is_approved("s", &tool(), hash).await.expect("revoked"));
        let run = store.run("r").await.expect("run").expect("saved");
        assert_eq!(run.state, json!({"step": 1}));
        let calls: Vec<_> = run.calls.iter().map(|(id, outcome)| (id.as_str(), outcome.is_some())).collect();
        assert_eq!(calls, [("a", false), ("b", true)]);
        let totals = store.totals().await.expect("totals");
        assert_eq!((totals.tool_calls, totals.tool_failures, totals.model_calls), (2, 1, 0));
        let traces = store.find_traces("last").await.expect("traces");
        let entries = store.operations(&traces[0], 9).await.expect("operations");
        let written: Vec<_> = entries.iter().map(|written| LedgerEntry { at_ms: 0, ..written.clone() }).collect();
        assert_eq!(written, ["ok", "timeout"].map(|status| LedgerEntry { at_ms: 0, ..entry(status) }));
        store.save_during_step("r", &json!({"step": 1, "amid": true})).await.expect("run");
        let amid = store.run("r").await.expect("run").expect("saved");
        assert_eq!((&amid.state["amid"], amid.calls.len()), (&json!(true), 2), "amid a step its journal stays");
        store.save_run("r", &json!({"step": 2})).await.expect("run");
        assert!(store.run("r").await.expect("run").expect("saved").calls.is_empty(), "a new step starts a new journal");
    }

    #[tokio::test]
    async fn overflowing_sums_are_kept_at_the_largest() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        let largest = i64::MAX.cast_unsigned();
        let check = async |expect: u64| {
            store.flush().await.expect("flush");
            let traces = store.find_traces("last").await.expect("traces");
            let usage = traces[0].sums.usage;
            let sums = [
                usage.input_tokens,
                usage.output_tokens,
                usage.cached_tokens,
                usage.cache_written_tokens,
                usage.reasoning_tokens,
            ];
            assert_eq!(sums, [expect; 5]);
            store.operations(&traces[0], 99).await.expect("operations")
        };
        let append = |tokens: u64| {
            let usage = Usage {
                input_tokens: tokens,
                output_tokens: tokens,
                cached_tokens: tokens,
                cache_written_tokens: tokens,
                reasoning_tokens: tokens,
            };
            store.append(LedgerEntry { usage, kind: OpKind::Model, ..entry("ok") });
        };
        append(7);
        check(7).await;
        // In one batch, and one by one.
        (0..12).for_each(|_| append(largest));
        check(largest).await;
        for tokens in [1, largest, u64::MAX] {
            append(tokens);
            let rows = check(largest).await;
            assert_eq!(rows.last().expect("a row").usage.input_tokens, tokens.min(largest));
        }
        // A sum that was not an integer before sums were bounded.
        store.thread.run("test", |db| db.execute("UPDATE traces SET input_tokens = 1.1e20", [])).await.expect("set");
        check(largest).await;
    }

    fn source() -> PinSource {
        PinSource { provider: "p".into(), scope: "/project/toolwright.yaml".into() }
    }

    fn noted(note: PinUpdate, text: &str) -> PinWrite {
        let (hash, contract) = (ContentHash::of_bytes(text.as_bytes()), json!(text));
        PinWrite { tool: "t".into(), renamed: None, id: tool(), note, hash, contract }
    }

    #[tokio::test]
    async fn a_pin_holds_until_another_decision() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        let hash = |text: &str| ContentHash::of_bytes(text.as_bytes());
        let check = async |expect: Option<(Option<&str>, Option<&str>)>, decisions: u64| {
            let pins = store.pins(None).await.expect("pins");
            let have = pins
                .first()
                .map(|pin| (pin.approved.as_ref().map(|mark| mark.hash), pin.waiting.as_ref().map(|mark| mark.hash)));
            assert_eq!(have, expect.map(|(approved, waiting)| (approved.map(hash), waiting.map(hash))));
            let contracts = store.pin_contracts(&source(), &["t".into(), "gone".into()]).await.expect("contracts");
            let expect = expect.unwrap_or_default();
            let have = (contracts[0].approved.clone(), contracts[0].waiting.clone());
            assert_eq!(have, (expect.0.map(|text| json!(text)), expect.1.map(|text| json!(text))));
            assert_eq!(contracts[1], toolwright_core::store::PinContracts::default());
            assert_eq!(store.pin_decisions().await.expect("decisions"), decisions);
        };
        let note = async |what: PinUpdate, text: &str| {
            store.note_pins(&source(), vec![noted(what, text)]).await.expect("noted")
        };
        let decide =
            async |decision: PinDecision| store.decide_pin(&source(), "t", decision, "me").await.expect("decided");
        check(None, 0).await;
        note(PinUpdate::Pin, "a").await;
        note(PinUpdate::Pin, "b").await;
        check(Some((Some("a"), None)), 0).await;
        note(PinUpdate::Wait, "b").await;
        check(Some((Some("a"), Some("b"))), 0).await;
        assert!(!decide(PinDecision::Approve(Some(hash("c")))).await, "only what was looked at");
        note(PinUpdate::Settle, "x").await;
        check(Some((Some("a"), Some("b"))), 0).await;
        assert!(decide(PinDecision::Approve(Some(hash("b")))).await);
        check(Some((Some("b"), None)), 1).await;
        assert!(!decide(PinDecision::Approve(None)).await, "nothing waits");
        note(PinUpdate::Wait, "c").await;
        note(PinUpdate::Settle, "b").await;
        check(Some((Some("b"), None)), 1).await;
        assert!(decide(PinDecision::Revoke).await && !decide(PinDecision::Revoke).await);
        check(Some((None, Some("b"))), 2).await;
        assert!(decide(PinDecision::Forget).await);
        check(None, 3).await;
        note(PinUpdate::Wait, "a").await;
        check(Some((None, Some("a"))), 3).await;
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
    async fn data_unused_for_thirty_days_is_deleted() {
        let dir = tempfile::tempdir().expect("dir");
        {
            let store = SqliteStore::open(dir.path()).expect("open");
            for run in ["old", "new"] {
                store.save_run(run, &json!({})).await.expect("run");
                store.call_dispatched(run, &CallId::new("c")).await.expect("dispatch");
            }
            let month_ago = now_ms() - 31 * 24 * 3600 * 1000;
            let age = move |db: &mut rusqlite::Connection| {
                db.execute("UPDATE upkeep SET at_ms = ?1", [month_ago])?;
                db.execute("UPDATE runs SET saved_ms = ?1 WHERE id = 'old'", [month_ago]).map(drop)
            };
            store.thread.run("age a run", age).await.expect("aged");
        }
        let store = SqliteStore::open(dir.path()).expect("open");
        for _ in 0..500 {
            if store.run("old").await.expect("read").is_none() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(store.run("old").await.expect("read").is_none());
        assert_eq!(store.run("new").await.expect("read").expect("kept").calls.len(), 1);
    }

    #[tokio::test]
    async fn processes_share_the_file() {
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

    /// For SQLite, several stores in one process are like several processes: each has its own connection.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn concurrent_ledger_writers_lose_nothing() {
        const EACH: u64 = 3000;
        let dir = tempfile::tempdir().expect("dir");
        let stores: Vec<_> = (0..3).map(|_| SqliteStore::open(dir.path()).expect("open")).collect();
        let writers = stores.iter().enumerate().map(|(n, store)| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                for m in 0..EACH {
                    // New traces all the time, because each batch reads before it writes.
                    store.append(LedgerEntry { session: SessionId::new(format!("{n}-{m}")), ..entry("ok") });
                    if m % 20 == 0 {
                        store.flush().await.expect("flush");
                    }
                }
                store.flush().await.expect("flush");
            })
        });
        for writer in futures_util::future::join_all(writers).await {
            writer.expect("written");
        }
        assert_eq!(stores.iter().map(|store| store.condition().lost).sum::<u64>(), 0);
        assert_eq!(stores[0].totals().await.expect("totals").tool_calls, 3 * EACH);
    }

    #[tokio::test]
    async fn entries_wait_while_another_process_holds_the_file() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        let without_wait = |db: &mut rusqlite::Connection| db.busy_timeout(std::time::Duration::ZERO);
        store.thread.run("do not wait for locks", without_wait).await.expect("set");
        let other = rusqlite::Connection::open(store.path()).expect("open");
        other.execute_batch("BEGIN IMMEDIATE").expect("held");
        store.append(entry("ok"));
        let error = store.flush().await.expect_err("held").to_string();
        assert!(error.contains("database is locked; entries wait"), "{error}");
        store.append(entry("ok"));
        assert_eq!(store.totals().await.expect("reading needs no lock").tool_calls, 0);
        other.execute_batch("COMMIT").expect("let go");
        while store.flush().await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!((store.totals().await.expect("totals").tool_calls, store.condition().lost), (2, 0));
    }

    #[tokio::test]
    async fn panics_in_store_work_are_contained() {
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("open");
        let error = store.thread.run::<()>("panic", |_| panic!("in the store")).await.expect_err("panicked");
        assert!(error.to_string().contains("panicked"), "{error}");
        store.append(entry("ok"));
        store.flush().await.expect("goes on");
        assert_eq!(store.totals().await.expect("totals").tool_calls, 1);
    }

    #[tokio::test]
    async fn many_open_a_new_file_at_once() {
        for _ in 0..20 {
            let dir = tempfile::tempdir().expect("dir");
            let stores: Vec<_> = (0..8).map(|_| SqliteStore::open(dir.path()).expect("open")).collect();
            for flushed in futures_util::future::join_all(stores.iter().map(|store| store.flush())).await {
                flushed.expect("opened");
            }
        }
    }

    #[tokio::test]
    async fn stores_in_memory_share_nothing() {
        let (one, other) = (SqliteStore::in_memory().expect("open"), SqliteStore::in_memory().expect("open"));
        one.set_manifest("k", &json!(1)).await.expect("set");
        one.append(entry("ok"));
        one.close().await.expect("closed");
        assert_eq!(one.manifest("k").await.expect("read"), Some(json!(1)), "closing keeps what is in it");
        assert_eq!(one.totals().await.expect("totals").tool_calls, 1);
        assert_eq!(other.manifest("k").await.expect("read"), None);
        assert!(!Path::new(MEMORY).exists());
    }

    #[tokio::test]
    async fn a_broken_file_fails_with_its_path() {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::write(dir.path().join(FILE), b"this is not a database, it only looks like one").expect("write");
        let error = SqliteStore::open(dir.path()).expect_err("broken");
        assert!(error.to_string().contains(FILE), "{error}");
    }
}
