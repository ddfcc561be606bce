//! The account.

use async_trait::async_trait;
use toolwright_core::store::{LedgerEntry, LedgerStore, LedgerTotals, StoreError};

use super::SqliteStore;

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
