//! The response cache. It is in the store, which all processes of a user share; recent entries are also in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use toolwright_core::call::ValidCall;
use toolwright_core::canonical::ContentHash;
use toolwright_core::context::Clock;
use toolwright_core::definition::Mode;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::store::StoreError;

use crate::store::SqliteStore;
use crate::store::caches::{CacheBounds, CachedResponse};

/// Namespaces whose tools depend on state that is not part of the key: files, processes, notes and jobs.
const NEVER: [&str; 4] = ["fs", "shell", "memory", "job"];

/// The largest cached output, in bytes of JSON.
const MAX_OUTPUT: usize = 256 << 10;
/// The limits of the store.
const STORED: CacheBounds = CacheBounds { entries: 5000, bytes: 64 << 20 };
/// The limits of memory.
const IN_MEMORY: CacheBounds = CacheBounds { entries: 256, bytes: 8 << 20 };

/// Caches successful outputs of tools that have a `cache_ttl`.
#[async_trait]
pub trait ResponseCache: Send + Sync {
    /// Returns an entry that has not expired, neither by its lifetime when it was stored nor by the tool's `ttl` now.
    async fn get(&self, key: &ContentHash, ttl: Duration) -> Option<ToolOutput>;
    /// Stores an entry.
    async fn put(&self, key: &ContentHash, ttl: Duration, output: &ToolOutput);
}

/// The cache key of an output.
pub(crate) struct CacheSlot {
    pub(crate) key: ContentHash,
    pub(crate) ttl: Duration,
    /// The credentials in the key.
    credentials: Option<ContentHash>,
}

impl CacheSlot {
    /// Returns the key of a call's output; `None` for a call whose output is never cached: no lifetime, not safe, not
    /// validated, or with an output that is not complete at once. Two equal concurrent calls both run.
    pub(crate) fn of(call: &ValidCall, session: &Session) -> Option<Self> {
        let (entry, definition) = (&call.entry, call.entry.definition());
        let ttl = definition.cache_ttl?;
        let is_plain = definition.safe
            && definition.mode == Mode::Direct
            && !call.awaits_others()
            && call.provenance.route.is_tool();
        if call.unvalidated.is_some() || !is_plain || NEVER.contains(&definition.id.namespace()) {
            return None;
        }
        let credentials = entry.provider.credential_scope(&session.principal);
        let key = ContentHash::of_value(&json!({
            "tool": definition.id,
            "definition": entry.tool.hash(),
            "arguments": call.arguments,
            "instance": entry.provider.name(),
            "principal": session.principal.id,
            "credentials": credentials,
            "root": session.root,
        }));
        Some(Self { key, ttl, credentials })
    }

    /// Returns whether the call's credentials still equal those of the key.
    pub(crate) fn matches_credentials(&self, call: &ValidCall, session: &Session) -> bool {
        call.entry.provider.credential_scope(&session.principal) == self.credentials
    }
}

/// The outputs that may be served again. If the store fails, the cache acts as empty and calls still run.
pub struct Responses {
    store: Arc<SqliteStore>,
    clock: Arc<dyn Clock>,
    memory: Mutex<Memory>,
    stored: CacheBounds,
}

impl std::fmt::Debug for Responses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Responses").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Responses {
    /// Creates a cache in `store`: 5,000 entries of at most 256 KiB each and 64 MiB together; the oldest are dropped.
    /// `clock` decides when an entry expires.
    #[must_use]
    pub fn new(store: Arc<SqliteStore>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::within(store, clock, STORED, IN_MEMORY)
    }

    fn within(store: Arc<SqliteStore>, clock: Arc<dyn Clock>, stored: CacheBounds, room: CacheBounds) -> Arc<Self> {
        let memory = Mutex::new(Memory { room, entries: HashMap::new(), bytes: 0, uses: 0 });
        Arc::new(Self { store, clock, memory, stored })
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn stored(&self, key: &ContentHash, now: u64, ttl: Duration) -> Result<Option<Entry>, StoreError> {
        let Some(stored_response) = self.store.response(key).await? else { return Ok(None) };
        let life = CacheLifetime { saved_ms: stored_response.saved_ms, expires_ms: stored_response.expires_ms };
        if !life.holds(now, ttl) {
            return Ok(None);
        }
        let bytes = stored_response.output.len();
        let output = serde_json::from_str(&stored_response.output)
            .map_err(|error| StoreError::failed("read a kept response", error))?;
        Ok(Some(Entry { output, bytes, life, used: 0 }))
    }
}

#[async_trait]
impl ResponseCache for Responses {
    async fn get(&self, key: &ContentHash, ttl: Duration) -> Option<ToolOutput> {
        let now = self.clock.wall_ms();
        if let Some(output) = self.memory().get(key, now, ttl) {
            return Some(output);
        }
        match self.stored(key, now, ttl).await {
            Ok(entry) => {
                let entry = entry?;
                let output = entry.output.clone();
                self.memory().put(*key, entry);
                Some(output)
            }
            Err(error) => {
                tracing::warn!("a kept response was not read: {error}");
                None
            }
        }
    }

    async fn put(&self, key: &ContentHash, ttl: Duration, output: &ToolOutput) {
        let json = match serde_json::to_string(output) {
            Ok(json) if json.len() <= MAX_OUTPUT => json,
            Ok(_) => return,
            Err(error) => return tracing::warn!("a response was not kept: {error}"),
        };
        let saved_ms = self.clock.wall_ms();
        let expires_ms = saved_ms.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        // SQLite's integers are signed.
        let life = CacheLifetime { saved_ms, expires_ms: expires_ms.min(i64::MAX as u64) };
        self.memory().put(*key, Entry { output: output.clone(), bytes: json.len(), life, used: 0 });
        let cached_response = CachedResponse { output: json, saved_ms: life.saved_ms, expires_ms: life.expires_ms };
        if let Err(error) = self.store.keep_response(key, cached_response, self.stored).await {
            tracing::warn!("a response was not kept: {error}");
        }
    }
}

/// The time span in which an output may be served.
#[derive(Debug, Clone, Copy)]
struct CacheLifetime {
    saved_ms: u64,
    expires_ms: u64,
}

impl CacheLifetime {
    /// Returns whether it may be served now, by its stored lifetime and by the present `ttl`. An entry from the future
    /// may not.
    fn holds(self, now: u64, ttl: Duration) -> bool {
        let age = now.checked_sub(self.saved_ms);
        now < self.expires_ms && age.is_some_and(|age| u128::from(age) < ttl.as_millis())
    }
}

struct Entry {
    output: ToolOutput,
    bytes: usize,
    life: CacheLifetime,
    /// The number of the last use.
    used: u64,
}

/// The most recently used outputs.
struct Memory {
    room: CacheBounds,
    entries: HashMap<ContentHash, Entry>,
    bytes: u64,
    uses: u64,
}

impl Memory {
    fn get(&mut self, key: &ContentHash, now: u64, ttl: Duration) -> Option<ToolOutput> {
        let entry = self.entries.get_mut(key)?;
        if !entry.life.holds(now, ttl) {
            self.remove(*key);
            return None;
        }
        self.uses += 1;
        entry.used = self.uses;
        Some(entry.output.clone())
    }

    fn put(&mut self, key: ContentHash, entry: Entry) {
        self.uses += 1;
        self.remove(key);
        self.bytes += entry.bytes as u64;
        self.entries.insert(key, Entry { used: self.uses, ..entry });
        while self.entries.len() as u64 > self.room.entries || self.bytes > self.room.bytes {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key);
            let Some(oldest) = oldest else { return };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, key: ContentHash) {
        if let Some(gone) = self.entries.remove(&key) {
            self.bytes -= gone.bytes as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use toolwright_testkit::FakeClock;

    use super::*;

    fn key(n: usize) -> ContentHash {
        ContentHash::of_bytes(n.to_string().as_bytes())
    }

    const MINUTE: Duration = Duration::from_secs(60);

    struct Fixture {
        dir: tempfile::TempDir,
        clock: Arc<FakeClock>,
        stored: CacheBounds,
        room: CacheBounds,
    }

    impl Fixture {
        fn new(stored: CacheBounds, room: CacheBounds) -> Self {
            let clock = Arc::new(FakeClock::at(1_000_000));
            Self { dir: tempfile::tempdir().expect("dir"), clock, stored, room }
        }

        /// Opens the cache as another process would, with nothing in memory.
        fn open(&self) -> Arc<Responses> {
            let store = SqliteStore::open(self.dir.path()).expect("store");
            Responses::within(store, Arc::clone(&self.clock) as _, self.stored, self.room)
        }

        fn pass(&self, millis: u64) {
            self.clock.pass(Duration::from_millis(millis));
        }
    }

    #[tokio::test]
    async fn an_output_is_served_until_it_expires() {
        let fixture = Fixture::new(STORED, IN_MEMORY);
        let (writer, reader) = (fixture.open(), fixture.open());
        let output = ToolOutput::text("x").with_extra("status", 200);
        writer.put(&key(1), MINUTE, &output).await;
        fixture.pass(59_999);
        assert_eq!(reader.get(&key(1), MINUTE).await, Some(output.clone()), "from the store");
        assert_eq!(reader.get(&key(1), MINUTE).await, Some(output.clone()), "from memory");
        assert_eq!(reader.get(&key(2), MINUTE).await, None);
        assert_eq!(fixture.open().get(&key(1), Duration::from_secs(59)).await, None, "it is to be kept less long now");
        fixture.pass(1);
        for cache in [writer, reader, fixture.open()] {
            assert_eq!(cache.get(&key(1), 2 * MINUTE).await, None, "it was to be kept no longer");
        }
    }

    #[tokio::test]
    async fn cached_results_expire_when_the_clock_jumps() {
        let fixture = Fixture::new(STORED, IN_MEMORY);
        let cache = fixture.open();
        cache.put(&key(1), MINUTE, &ToolOutput::text("x")).await;
        fixture.clock.rewind(Duration::from_millis(1));
        assert_eq!(cache.get(&key(1), MINUTE).await, None);
    }

    #[tokio::test]
    async fn the_store_drops_oldest_memory_drops_least_used() {
        let fixture =
            Fixture::new(CacheBounds { entries: 3, bytes: 10_000 }, CacheBounds { entries: 2, bytes: 10_000 });
        let cache = fixture.open();
        for n in 0..5 {
            cache.put(&key(n), MINUTE, &ToolOutput::text(n.to_string())).await;
            fixture.pass(1);
        }
        let fresh = fixture.open();
        let mut there = Vec::new();
        for n in 0..5 {
            there.push(fresh.get(&key(n), MINUTE).await.is_some());
        }
        assert_eq!(there, [false, false, true, true, true]);
        assert!(cache.memory().entries.len() == 2 && cache.memory().get(&key(3), 1_000_010, MINUTE).is_some());
        cache.memory().put(
            key(9),
            Entry {
                used: 0,
                bytes: 1,
                life: CacheLifetime { saved_ms: 0, expires_ms: 1 },
                output: ToolOutput::default(),
            },
        );
        assert!(cache.memory().entries.contains_key(&key(3)), "it was used after the other");
    }

    #[tokio::test]
    async fn neither_store_nor_memory_grows_past_its_bytes() {
        let fixture =
            Fixture::new(CacheBounds { entries: 100, bytes: 3000 }, CacheBounds { entries: 100, bytes: 3000 });
        let cache = fixture.open();
        for n in 0..20 {
            cache.put(&key(n), MINUTE, &ToolOutput::text("y".repeat(500))).await;
        }
        assert!(cache.memory().bytes <= 3000 && cache.memory().entries.len() >= 4);
        let fresh = fixture.open();
        assert!(fresh.get(&key(0), MINUTE).await.is_none() && fresh.get(&key(19), MINUTE).await.is_some());
        cache.put(&key(99), MINUTE, &ToolOutput::text("z".repeat(MAX_OUTPUT))).await;
        assert!(cache.get(&key(99), MINUTE).await.is_none(), "one that is too large is not kept");
    }
}
