//! Stores what principals have spent of their budgets: one row each, with its period.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use toolwright_core::error::ToolError;
use toolwright_core::model::ModelSpending;
use toolwright_core::store::{BudgetStore, BudgetedRequest, StoreError};

use crate::store::SqliteStore;

fn spent(db: &Connection, owner: &str, period: &str) -> rusqlite::Result<ModelSpending> {
    let sql = "SELECT requests, tokens, cost_usd FROM budgets WHERE owner = ?1 AND period = ?2";
    let read = |row: &rusqlite::Row<'_>| {
        let tokens: i64 = row.get(1)?;
        Ok(ModelSpending {
            requests: row.get(0)?,
            tokens: u64::try_from(tokens).unwrap_or_default(),
            cost_usd: row.get(2)?,
        })
    };
    Ok(db.prepare_cached(sql)?.query_row(params![owner, period], read).optional()?.unwrap_or_default())
}

fn keep(db: &Connection, owner: &str, period: &str, spent: ModelSpending) -> rusqlite::Result<()> {
    let tokens = i64::try_from(spent.tokens).unwrap_or(i64::MAX);
    let sql = "INSERT OR REPLACE INTO budgets (owner, period, requests, tokens, cost_usd) VALUES (?1, ?2, ?3, ?4, ?5)";
    db.prepare_cached(sql)?.execute(params![owner, period, spent.requests, tokens, spent.cost_usd]).map(drop)
}

#[async_trait]
impl BudgetStore for SqliteStore {
    async fn reserve_budget(&self, request: BudgetedRequest) -> Result<Result<ModelSpending, ToolError>, StoreError> {
        self.thread
            .run("reserve of a budget", move |db| {
                let BudgetedRequest { owner, period, bounds, model, tokens, cost_usd } = &request;
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let mut now = spent(&transaction, owner, period)?;
                let reserved = bounds.reserve(&mut now, model, *tokens, *cost_usd);
                if reserved.is_ok() {
                    let earlier = "DELETE FROM budgets WHERE owner = ?1 AND period < ?2";
                    transaction.prepare_cached(earlier)?.execute(params![owner, period])?;
                    keep(&transaction, owner, period, now)?;
                }
                transaction.commit()?;
                Ok(reserved)
            })
            .await
    }

    async fn budget_spent(&self, owner: &str, period: &str) -> Result<ModelSpending, StoreError> {
        let (owner, period) = (owner.to_owned(), period.to_owned());
        self.thread.run("read a budget", move |db| spent(db, &owner, &period)).await
    }

    async fn settle_budget(
        &self,
        owner: &str,
        period: &str,
        reserved: ModelSpending,
        used: ModelSpending,
    ) -> Result<(), StoreError> {
        let (owner, period) = (owner.to_owned(), period.to_owned());
        self.thread
            .run("settle a budget", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let mut now = spent(&transaction, &owner, &period)?;
                now.settle(reserved, used);
                keep(&transaction, &owner, &period, now)?;
                transaction.commit()
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use toolwright_core::model::{Bound, ModelBounds};

    use super::*;

    #[tokio::test]
    async fn budgets_outlive_their_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let bounds = ModelBounds {
            requests: Bound::new(9, "requests"),
            tokens: Bound::new(100, "tokens"),
            cost_usd: Some(Bound::new(1.0, "cost")),
        };
        let request = |owner: &str, period: &str, tokens| BudgetedRequest {
            owner: owner.into(),
            period: period.into(),
            bounds: bounds.clone(),
            model: "p/m".into(),
            tokens,
            cost_usd: Some(0.25),
        };
        let store = SqliteStore::open(folder.path()).expect("a store");
        let reserved = store.reserve_budget(request("a", "2026-11", 80)).await.expect("kept").expect("room");
        let other = SqliteStore::open(folder.path()).expect("the same store");
        let refused = other.reserve_budget(request("a", "2026-11", 30)).await.expect("read").expect_err("reserved");
        assert!(refused.message().contains("tokens"), "{refused}");
        assert!(other.reserve_budget(request("b", "2026-11", 30)).await.expect("kept").is_ok(), "another's");
        let used = ModelSpending { requests: 1, tokens: 10, cost_usd: 0.1 };
        other.settle_budget("a", "2026-11", reserved, used).await.expect("settled");
        assert_eq!(store.budget_spent("a", "2026-11").await.expect("read"), used);
        assert!(store.reserve_budget(request("a", "2026-11", 90)).await.expect("kept").is_ok());
        assert!(store.reserve_budget(request("a", "2026-11", 1)).await.expect("read").is_err());
        assert!(store.reserve_budget(request("a", "2026-12", 90)).await.expect("kept").is_ok(), "the next period");
    }
}
