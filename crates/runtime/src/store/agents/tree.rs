//! Trees of agents. The transaction that makes a decision also writes its result.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, TransactionBehavior, params};
use toolwright_core::agents::{
    AgentAllowance, AgentNode, AgentTree, NewAgent, RequestEstimate, Spending, TreeError, TreeLimit, admit, afford,
    nearest_limits, time_left,
};
use toolwright_core::store::StoreError;

use crate::store::owner::Owner;
use crate::store::{SqliteStore, json_column, now_ms, one_more, split_page, to_json};

const COLUMNS: &str =
    "id, parent, name, limits, ended_ms IS NULL, pid, boot, started, tokens, cost_usd, held_tokens, held_usd, until_ms";

/// An owned [`RequestEstimate`], for the thread.
struct OwnedRequestEstimate {
    model: String,
    tokens: u64,
    cost_usd: Option<f64>,
}

#[async_trait]
impl AgentTree for SqliteStore {
    async fn begin_agent(&self, new: NewAgent) -> Result<AgentAllowance, TreeError> {
        let limits = to_json(&new.limits)?;
        let begun: Result<AgentAllowance, TreeLimit> = self.thread.run("begin an agent", move |db| {
            let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let root = root_of(&transaction, new.parent.as_deref())?.unwrap_or_else(|| new.id.to_string());
            if new.starts_task && new.parent.is_none() {
                let forget = "DELETE FROM agents WHERE root = ?1 AND (ended_ms IS NOT NULL OR id = ?1)";
                transaction.prepare_cached(forget)?.execute(params![root])?;
            }
            let (mut tree, now) = (tree(&transaction, &root)?, now_ms().cast_unsigned());
            if let Err(limit) = admit(&tree, &new, now) {
                return Ok(Err(limit));
            }
            let earlier_spending = tree.iter().find(|node| node.id == new.id).map(|node| node.spent);
            let spent = earlier_spending.unwrap_or_default();
            let this = Owner::current();
            let enter = "INSERT INTO agents (id, root, parent, name, limits, pid, boot, started, begun_ms, until_ms) \
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) \
                         ON CONFLICT (id) DO UPDATE SET pid = ?6, boot = ?7, started = ?8, limits = ?5, ended_ms = NULL, \
                         held_tokens = 0, held_usd = 0, until_ms = ?10";
            let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let until_ms = new.time_left.map(|left| now.saturating_add(millis(left)).min(i64::MAX.cast_unsigned()));
            transaction.prepare_cached(enter)?.execute(params![
                new.id,
                root,
                new.parent,
                new.name,
                limits,
                this.pid,
                this.boot,
                this.started,
                now.cast_signed(),
                until_ms.map(u64::cast_signed)
            ])?;
            transaction.commit()?;
            let NewAgent { id, parent, name, limits, .. } = new;
            let time = time_left(&tree, parent.as_deref(), now);
            if earlier_spending.is_none() {
                let held = Spending::default();
                tree.push(AgentNode { id: Arc::clone(&id), parent, name, limits, live: true, spent, held, until_ms });
            }
            Ok(Ok(AgentAllowance { spent, limits: nearest_limits(&tree, &id), time }))
        }).await?;
        Ok(begun?)
    }

    async fn charge_agent(
        &self,
        id: &str,
        spent: Spending,
        held: Spending,
        more: Option<RequestEstimate<'_>>,
    ) -> Result<(), TreeError> {
        let id = id.to_owned();
        let more = more.map(|more| OwnedRequestEstimate {
            model: more.model.to_owned(),
            tokens: more.tokens,
            cost_usd: more.cost_usd,
        });
        let charged: Result<(), TreeLimit> = self
            .thread
            .run("charge an agent", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                charge(&transaction, &id, spent, held)?;
                let mut refused = Ok(());
                if let Some(OwnedRequestEstimate { model, tokens, cost_usd }) = &more {
                    let root = root_of(&transaction, Some(&id))?.unwrap_or_else(|| id.clone());
                    let tree = tree(&transaction, &root)?;
                    refused =
                        afford(&tree, Some(&id), &RequestEstimate { model, tokens: *tokens, cost_usd: *cost_usd });
                    if refused.is_ok() {
                        let mut held = held;
                        held.add(Spending { tokens: *tokens, cost_usd: cost_usd.unwrap_or_default() });
                        charge(&transaction, &id, spent, held)?;
                    }
                }
                transaction.commit()?;
                Ok(refused)
            })
            .await?;
        Ok(charged?)
    }

    async fn end_agent(&self, id: &str, spent: Spending) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.thread
            .run("end an agent", move |db| {
                charge(db, &id, spent, Spending::default())?;
                let end = "UPDATE agents SET ended_ms = ?2 WHERE id = ?1 AND pid = ?3";
                db.prepare_cached(end)?.execute(params![id, now_ms(), Owner::current().pid]).map(drop)
            })
            .await
    }

    async fn agents_of(&self, id: &str) -> Result<Vec<AgentNode>, StoreError> {
        let id = id.to_owned();
        self.thread
            .run("read a tree of agents", move |db| {
                let root = root_of(db, Some(&id))?;
                root.map_or_else(|| Ok(Vec::new()), |root| tree(db, &root))
            })
            .await
    }
}

/// Some of the root runs, the newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRoots {
    /// Their ids.
    pub ids: Vec<String>,
    /// Their total number.
    pub total: u64,
    /// The id after which further ones follow, if there are any.
    pub next: Option<String>,
}

impl SqliteStore {
    /// Returns the root runs of agent trees, the newest first: at most `limit`, after the one with the id `after`.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn agent_roots(&self, after: Option<&str>, limit: usize) -> Result<AgentRoots, StoreError> {
        let after = after.map(str::to_owned);
        self.thread
            .run("list the trees of agents", move |db| {
                let count = "SELECT count(*) FROM agents WHERE parent IS NULL";
                let total: i64 = db.prepare_cached(count)?.query_row([], |row| row.get(0))?;
                let sql = "SELECT id FROM agents WHERE parent IS NULL AND (?1 IS NULL \
                           OR (begun_ms, rowid) < (SELECT begun_ms, rowid FROM agents WHERE id = ?1)) \
                           ORDER BY begun_ms DESC, rowid DESC LIMIT ?2";
                let mut statement = db.prepare_cached(sql)?;
                let rows = statement.query_map(params![after, one_more(limit)], |row| row.get(0))?;
                let mut ids: Vec<String> = rows.collect::<rusqlite::Result<_>>()?;
                let next = split_page(&mut ids, limit, String::clone);
                Ok(AgentRoots { ids, total: total.cast_unsigned(), next })
            })
            .await
    }
}

fn root_of(db: &Connection, id: Option<&str>) -> rusqlite::Result<Option<String>> {
    db.prepare_cached("SELECT root FROM agents WHERE id = ?1")?.query_row([id], |row| row.get(0)).optional()
}

fn tree(db: &Connection, root: &str) -> rusqlite::Result<Vec<AgentNode>> {
    let sql = format!("SELECT {COLUMNS} FROM agents WHERE root = ?1 ORDER BY rowid");
    db.prepare_cached(&sql)?.query_map([root], node)?.collect()
}

fn node(row: &Row<'_>) -> rusqlite::Result<AgentNode> {
    let owner = Owner { pid: row.get(5)?, boot: row.get(6)?, started: row.get(7)? };
    let has_not_ended: bool = row.get(4)?;
    let spending = |tokens: i64, cost_usd: f64| Spending { tokens: tokens.cast_unsigned(), cost_usd };
    // An agent whose process died holds no room.
    let live = has_not_ended && (owner == *Owner::current() || owner.is_alive());
    let held = if live { spending(row.get(10)?, row.get(11)?) } else { Spending::default() };
    Ok(AgentNode {
        id: row.get::<_, String>(0)?.into(),
        parent: row.get::<_, Option<String>>(1)?.map(Into::into),
        name: row.get(2)?,
        limits: json_column(row, 3)?,
        live,
        spent: spending(row.get(8)?, row.get(9)?),
        held,
        until_ms: row.get::<_, Option<i64>>(12)?.map(i64::cast_unsigned),
    })
}

fn charge(db: &Connection, id: &str, spent: Spending, held: Spending) -> rusqlite::Result<()> {
    let tokens = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
    let set = "UPDATE agents SET tokens = ?2, cost_usd = ?3, held_tokens = ?4, held_usd = ?5 WHERE id = ?1";
    let values = params![id, tokens(spent.tokens), spent.cost_usd, tokens(held.tokens), held.cost_usd];
    db.prepare_cached(set)?.execute(values).map(drop)
}
