//! Stores tool lists of servers. Every configuration that has the server uses its list at the start. A list that
//! nobody has used for a long time is deleted.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde_json::Value;
use toolwright_core::store::{ManifestCache, StoreError};

use super::SqliteStore;
use super::tables::{from_json, now_ms, to_json};

/// How long ago the last use of a list may be noted, in milliseconds, before another is: not each is worth a write.
const NOTED_MS: i64 = 24 * 3600 * 1000;

/// A list, which is in use now.
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
