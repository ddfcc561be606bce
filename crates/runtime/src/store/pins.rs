//! Pinned definitions.

use async_trait::async_trait;
use rusqlite::{OptionalExtension as _, params};
use toolwright_core::canonical::ContentHash;
use toolwright_core::name::ToolId;
use toolwright_core::store::{PinStore, StoreError};

use super::SqliteStore;
use super::tables::from_json;

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
