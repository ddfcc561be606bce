//! Tool lists of servers.

use async_trait::async_trait;
use rusqlite::{OptionalExtension as _, params};
use serde_json::Value;
use toolwright_core::store::{ManifestCache, StoreError};

use super::SqliteStore;
use super::tables::{from_json, now_ms, to_json};

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

    async fn remove_manifest(&self, key: &str) -> Result<bool, StoreError> {
        let key = key.to_owned();
        self.thread
            .run("remove a manifest", move |db| {
                db.execute("DELETE FROM manifests WHERE key = ?1", params![key]).map(|removed| removed > 0)
            })
            .await
    }
}
