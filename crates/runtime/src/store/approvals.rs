//! Standing approvals.

use async_trait::async_trait;
use rusqlite::{OptionalExtension as _, params};
use toolwright_core::canonical::ContentHash;
use toolwright_core::name::ToolId;
use toolwright_core::store::{ApprovalStore, StoreError};

use super::SqliteStore;
use super::tables::now_ms;

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
