//! Standing approvals.

use async_trait::async_trait;
use rusqlite::{OptionalExtension as _, Row, params};
use toolwright_core::approval::Standing;
use toolwright_core::canonical::ContentHash;
use toolwright_core::store::{ApprovalStore, StoreError};
use toolwright_core::tool_id::ToolId;

use super::SqliteStore;
use super::tables::{from_json, now_ms, to_json};

#[async_trait]
impl ApprovalStore for SqliteStore {
    async fn is_approved(&self, scope: &str, tool: &ToolId, key: ContentHash) -> Result<bool, StoreError> {
        let (scope, tool, hash) = (scope.to_owned(), tool.to_string(), key.to_hex());
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

    async fn approve_always(&self, standing: &Standing) -> Result<(), StoreError> {
        let (scope, tool, hash) = (standing.scope.clone(), standing.tool.to_string(), standing.key.to_hex());
        let (id, standing) = (standing.id.clone(), to_json(standing)?);
        self.thread
            .run("store an approval", move |db| {
                db.execute(
                    "INSERT INTO approvals (scope, tool, hash, saved_ms, id, standing) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                     ON CONFLICT (scope, tool, hash) DO UPDATE SET saved_ms = ?4",
                    params![scope, tool, hash, now_ms(), id, standing],
                )
                .map(drop)
            })
            .await
    }

    async fn standing(&self, limit: usize) -> Result<Vec<Standing>, StoreError> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let rows: Vec<String> = self
            .thread
            .run("list standing approvals", move |db| {
                db.prepare_cached("SELECT standing FROM approvals ORDER BY saved_ms DESC, rowid DESC LIMIT ?1")?
                    .query_map(params![limit], |row: &Row<'_>| row.get(0))?
                    .collect()
            })
            .await?;
        rows.iter().map(|row| from_json(row)).collect()
    }

    async fn revoke(&self, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.thread
            .run("revoke an approval", move |db| db.execute("DELETE FROM approvals WHERE id = ?1", params![id]))
            .await
            .map(|gone| gone > 0)
    }
}
