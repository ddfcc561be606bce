//! Stores data that can be fetched again: servers' tool lists and cached responses.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde_json::Value;
use toolwright_core::canonical::ContentHash;
use toolwright_core::store::{ManifestCache, StoreError};

use super::SqliteStore;
use super::{from_json, now_ms, to_json};

/// The least age of a list's recorded last use, in milliseconds, before it is updated: not every use is worth a write.
const NOTED_MS: i64 = 24 * 3600 * 1000;

/// Returns a list, and records its use.
pub(super) fn used(db: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    let found = db
        .prepare_cached("SELECT manifest, saved_ms FROM manifests WHERE key = ?1")?
        .query_row(params![key], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))
        .optional()?;
    let Some((manifest, saved_ms)) = found else { return Ok(None) };
    let now = now_ms();
    if saved_ms < now - NOTED_MS
        && let Err(error) = db.execute("UPDATE manifests SET saved_ms = ?2 WHERE key = ?1", params![key, now])
    {
        tracing::debug!("that a tool list is in use was not noted: {error}");
    }
    Ok(Some(manifest))
}

#[async_trait]
impl ManifestCache for SqliteStore {
    async fn manifest(&self, key: &str) -> Result<Option<Value>, StoreError> {
        let key = key.to_owned();
        let text: Option<String> = self.thread.run("read a manifest", move |db| used(db, &key)).await?;
        text.map(|text| from_json(&text)).transpose()
    }

    async fn set_manifest(&self, key: &str, manifest: &Value) -> Result<(), StoreError> {
        let (key, manifest) = (key.to_owned(), to_json(manifest)?);
        self.thread
            .run("store a manifest", move |db| {
                db.prepare_cached("INSERT OR REPLACE INTO manifests (key, manifest, saved_ms) VALUES (?1, ?2, ?3)")?
                    .execute(params![key, manifest, now_ms()])
                    .map(drop)
            })
            .await
    }

    async fn remove_manifest(&self, key: &str) -> Result<bool, StoreError> {
        let key = key.to_owned();
        self.thread
            .run("remove a manifest", move |db| {
                db.execute("DELETE FROM manifests WHERE key = ?1", params![key]).map(|removed| removed > 0)
            })
            .await
    }
}

/// A stored response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CachedResponse {
    /// The output as JSON.
    pub(crate) output: String,
    /// The time of storing, in milliseconds since the epoch.
    pub(crate) saved_ms: u64,
    /// The time of expiry.
    pub(crate) expires_ms: u64,
}

/// The limits of the cache; the oldest entries are dropped first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheBounds {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

impl SqliteStore {
    /// Returns a response, expired or not.
    pub(crate) async fn response(&self, key: &ContentHash) -> Result<Option<CachedResponse>, StoreError> {
        let key = key.to_hex();
        self.thread
            .run("read a kept response", move |db| {
                let sql = "SELECT output, saved_ms, expires_ms FROM responses WHERE key = ?1";
                let mut select = db.prepare_cached(sql)?;
                let read_response = |row: &rusqlite::Row<'_>| {
                    let millis = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
                    Ok(CachedResponse { output: row.get(0)?, saved_ms: millis(1)?, expires_ms: millis(2)? })
                };
                select.query_row(params![key], read_response).optional()
            })
            .await
    }

    /// Stores a response, and drops expired ones and those beyond the limits.
    pub(crate) async fn keep_response(
        &self,
        key: &ContentHash,
        response: CachedResponse,
        room: CacheBounds,
    ) -> Result<(), StoreError> {
        let key = key.to_hex();
        self.thread
            .run("keep a response", move |db| {
                let transaction = db.transaction()?;
                let (now, bytes) = (response.saved_ms.cast_signed(), response.output.len() as u64);
                transaction.execute(
                    "INSERT OR REPLACE INTO responses (key, output, bytes, saved_ms, expires_ms) VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![key, response.output, bytes.cast_signed(), now, response.expires_ms.cast_signed()],
                )?;
                transaction.execute("DELETE FROM responses WHERE expires_ms <= ?1", [now])?;
                make_room(&transaction, room)?;
                transaction.commit()
            })
            .await
    }
}

/// Deletes the oldest responses until the others fit.
fn make_room(db: &Connection, room: CacheBounds) -> rusqlite::Result<()> {
    loop {
        let (entries, bytes) = db.query_row("SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM responses", [], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()))
        })?;
        let too_many = entries.saturating_sub(room.entries);
        // The number of old responses to delete for the bytes is not known, so a part is deleted and the size is
        // checked again.
        let surplus = if bytes > room.bytes { too_many.max(entries / 16 + 1) } else { too_many };
        if surplus == 0 || entries == 0 {
            return Ok(());
        }
        db.execute(
            "DELETE FROM responses WHERE key IN (SELECT key FROM responses ORDER BY saved_ms, rowid LIMIT ?1)",
            [surplus.cast_signed()],
        )?;
    }
}
