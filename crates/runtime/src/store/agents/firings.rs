//! Stores the firings of triggers. A firing has one owner at a time: a process with a lease, as for jobs.

use std::collections::HashSet;
use std::path::Path;

use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params};
use toolwright_core::store::{MAX_HOPS, NewRow, StoreError};
use toolwright_core::trigger::{Firing, FiringState, MAX_WAITING, Overlap, Trigger, run_of};

use super::session_log::append_notice;
use super::triggers::{COLUMNS, trigger};
use crate::store::SqliteStore;
use crate::store::owner::{self, renew};
use crate::store::{now_ms, unreadable};

/// Most attempts at a firing whose processes die.
const MAX_ATTEMPTS: u32 = 5;

const FIRING: &str = "firings.trigger_id, slot, due_ms, state, payload, error";

/// The result of offering a firing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FiringOffer {
    /// It is stored and waits to be started.
    New,
    /// The trigger already has a firing with this slot.
    Known,
    /// Too many firings are waiting.
    Full,
    /// The trigger does not exist.
    NoTrigger,
}

impl SqliteStore {
    /// Puts a firing's message into a mailbox, and ends the firing, in one transaction.
    pub(crate) async fn deliver_firing(&self, firing: &Firing, row: NewRow) -> Result<(), StoreError> {
        let (id, slot, run) = (firing.trigger.clone(), firing.slot.clone(), firing.run_id());
        self.thread
            .run("deliver a firing", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let this = owner::number(&transaction)?;
                let is_ours = transaction
                    .prepare(
                        "SELECT 1 FROM firings WHERE trigger_id = ?1 AND slot = ?2 AND owner = ?3 AND ended_ms IS NULL",
                    )?
                    .exists(params![id, slot, this])?;
                if is_ours {
                    let refused = append_notice(&transaction, &row, &run)?.err();
                    let state = if refused.is_some() { FiringState::Failed } else { FiringState::Done };
                    transaction.execute(
                        "UPDATE firings SET state = ?3, error = ?4, ended_ms = ?5, owner = NULL, payload = NULL \
                         WHERE trigger_id = ?1 AND slot = ?2",
                        params![id, slot, state.as_str(), refused, now_ms()],
                    )?;
                }
                transaction.commit()
            })
            .await?;
        self.wake_mail_waiters();
        Ok(())
    }

    /// Returns the firings of one trigger or of all, the newest first.
    pub(crate) async fn firings(&self, of: Option<&str>, limit: usize) -> Result<Vec<Firing>, StoreError> {
        let of = of.map(str::to_owned);
        self.thread
            .run("list firings", move |db| {
                let sql = format!(
                    "SELECT {FIRING} FROM firings WHERE ?1 IS NULL OR trigger_id = ?1 ORDER BY due_ms DESC, rowid DESC LIMIT ?2"
                );
                let limit = i64::try_from(limit).unwrap_or(i64::MAX);
                db.prepare_cached(&sql)?.query_map(params![of, limit], firing)?.collect()
            })
            .await
    }

    /// Renews this process's lease as a runner of triggers, and releases the firings of dead processes.
    pub(crate) async fn keep_firings(&self) -> Result<(), StoreError> {
        self.thread
            .run("look after firings", |db| {
                let this = owner::number(db)?;
                renew(db, this)?;
                db.prepare_cached("UPDATE job_owners SET runs_triggers = 1 WHERE id = ?1 AND NOT runs_triggers")?
                    .execute([this])?;
                let gone = serde_json::to_string(&owner::dead_owners(db)?).unwrap_or_else(|_| "[]".into());
                db.prepare_cached(
                    "UPDATE firings SET owner = NULL WHERE owner IS NOT NULL AND ended_ms IS NULL \
                     AND (owner NOT IN (SELECT id FROM job_owners) OR owner IN (SELECT value FROM json_each(?1)))",
                )?
                .execute([&gone])?;
                db.prepare_cached(
                    "UPDATE triggers SET watcher = NULL WHERE watcher IS NOT NULL \
                     AND (watcher NOT IN (SELECT id FROM job_owners) OR watcher IN (SELECT value FROM json_each(?1)))",
                )?
                .execute([&gone])
                .map(drop)
            })
            .await
    }

    /// Records that this process no longer runs triggers.
    pub(crate) async fn leave_firings(&self) -> Result<(), StoreError> {
        self.thread
            .run("leave triggers to others", |db| {
                let this = owner::number(db)?;
                db.execute("UPDATE job_owners SET runs_triggers = 0 WHERE id = ?1", [this])?;
                db.execute("UPDATE triggers SET watcher = NULL WHERE watcher = ?1", [this]).map(drop)
            })
            .await
    }

    /// Returns whether a living process runs triggers.
    pub(crate) async fn has_runner(&self) -> Result<bool, StoreError> {
        self.thread
            .run("look for who runs triggers", |db| {
                let gone = owner::dead_owners(db)?;
                db.prepare("SELECT id FROM job_owners WHERE runs_triggers")?
                    .query_map([], |row| row.get::<_, i64>(0))?
                    .collect::<Result<Vec<_>, _>>()
                    .map(|runners| runners.iter().any(|id| !gone.contains(id)))
            })
            .await
    }

    /// Takes due firings of this workspace without an owner, the earliest first. A firing that overlaps with an earlier
    /// one is skipped or waits.
    pub(crate) async fn claim_firings(
        &self,
        root: &Path,
        now_ms: u64,
        limit: usize,
    ) -> Result<Vec<(Trigger, Firing)>, StoreError> {
        let root = root.to_string_lossy().into_owned();
        self.thread
            .run("take firings", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let claimed = claim(&transaction, &root, now_ms, limit)?;
                transaction.commit()?;
                Ok(claimed)
            })
            .await
    }

    /// Releases a firing of this process, unchanged.
    pub(crate) async fn leave_firing(&self, firing: &Firing) -> Result<(), StoreError> {
        let (id, slot) = (firing.trigger.clone(), firing.slot.clone());
        self.thread
            .run("leave a firing to others", move |db| {
                let this = owner::number(db)?;
                db.execute(
                    "UPDATE firings SET owner = NULL, attempts = attempts - 1 WHERE trigger_id = ?1 AND slot = ?2 AND owner = ?3",
                    params![id, slot, this],
                )
                .map(drop)
            })
            .await
    }

    /// Records the state of a firing of this process, with the reason. Fails with "not found" if another process has
    /// taken it.
    pub(crate) async fn set_firing(
        &self,
        firing: &Firing,
        state: FiringState,
        error: Option<String>,
    ) -> Result<(), StoreError> {
        let (id, slot) = (firing.trigger.clone(), firing.slot.clone());
        let is_over = matches!(state, FiringState::Done | FiringState::Failed | FiringState::Skipped);
        let changed = self
            .thread
            .run("change a firing", move |db| {
                let this = owner::number(db)?;
                db.prepare_cached(
                    "UPDATE firings SET state = ?3, error = ?4, ended_ms = CASE WHEN ?5 THEN ?6 END, \
                     owner = CASE WHEN ?5 THEN NULL ELSE owner END, payload = CASE WHEN ?5 THEN NULL ELSE payload END \
                     WHERE trigger_id = ?1 AND slot = ?2 AND owner = ?7 AND ended_ms IS NULL",
                )?
                .execute(params![id, slot, state.as_str(), error, is_over, now_ms(), this])
            })
            .await?;
        match changed {
            0 => Err(StoreError::NotFound(format!("firing {} of trigger {}", firing.slot, firing.trigger))),
            _ => Ok(()),
        }
    }
}

/// Stores a firing, unless its slot is known or [`MAX_WAITING`] firings of the trigger have not ended. `hops` counts
/// the messages and file changes that led to it; above [`MAX_HOPS`] it is stored as failed.
pub(super) fn offer(
    db: &Connection,
    id: &str,
    slot: &str,
    due_ms: u64,
    payload: Option<&str>,
    hops: u32,
) -> rusqlite::Result<FiringOffer> {
    if !db.prepare_cached("SELECT 1 FROM triggers WHERE id = ?1")?.exists([id])? {
        return Ok(FiringOffer::NoTrigger);
    }
    if db.prepare_cached("SELECT 1 FROM firings WHERE trigger_id = ?1 AND slot = ?2")?.exists(params![id, slot])? {
        return Ok(FiringOffer::Known);
    }
    let waiting = "SELECT count(*) FROM firings WHERE trigger_id = ?1 AND ended_ms IS NULL";
    let waiting: u32 = db.prepare_cached(waiting)?.query_row([id], |row| row.get(0))?;
    if waiting as usize >= MAX_WAITING {
        return Ok(FiringOffer::Full);
    }
    let looped = (hops > MAX_HOPS).then(|| {
        tracing::warn!("trigger {id}: runs wake each other in a loop: a change of files was refused");
        format!(
            "runs have woken each other {MAX_HOPS} times in a row without a word or a change from outside, so this change \
             started none: it may be a loop. Narrow the globs of the trigger so that they leave out what such runs write"
        )
    });
    let (state, ended) =
        if looped.is_some() { (FiringState::Failed, Some(now_ms())) } else { (FiringState::Pending, None) };
    db.prepare_cached(
        "INSERT INTO firings (trigger_id, slot, due_ms, state, payload, created_ms, run, hops, error, ended_ms) VALUES \
         (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?
    .execute(params![
        id,
        slot,
        due_ms.cast_signed(),
        state.as_str(),
        payload,
        now_ms(),
        run_of(id, slot),
        hops,
        looped,
        ended
    ])?;
    Ok(FiringOffer::New)
}

fn claim(db: &Transaction<'_>, root: &str, now: u64, limit: usize) -> rusqlite::Result<Vec<(Trigger, Firing)>> {
    let open: Vec<(String, String)> = db
        .prepare_cached(
            "SELECT trigger_id, slot FROM firings JOIN triggers ON triggers.id = trigger_id \
             WHERE ended_ms IS NULL AND owner IS NULL AND due_ms <= ?1 AND root = ?2 ORDER BY due_ms, firings.rowid",
        )?
        .query_map(params![now.cast_signed(), root], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let this = owner::number(db)?;
    renew(db, this)?;
    let (mut claimed, mut queued) = (Vec::new(), HashSet::new());
    for (id, slot) in open {
        if claimed.len() >= limit {
            break;
        }
        if queued.contains(&id) {
            continue;
        }
        let sql = format!("SELECT {COLUMNS} FROM triggers WHERE id = ?1");
        let trigger = db.prepare_cached(&sql)?.query_row([&id], trigger)?;
        let end = |state: &str, error: &str| {
            db.prepare_cached(
                "UPDATE firings SET state = ?3, error = ?4, ended_ms = ?5 WHERE trigger_id = ?1 AND slot = ?2",
            )?
            .execute(params![id, slot, state, error, now_ms()])
        };
        let (state, attempts): (String, u32) = db
            .prepare_cached("SELECT state, attempts FROM firings WHERE trigger_id = ?1 AND slot = ?2")?
            .query_row(params![id, slot], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if attempts >= MAX_ATTEMPTS {
            end("failed", "each process that ran it died over it")?;
            continue;
        }
        // A firing that began before a process died continues, regardless of other firings.
        let begins = state == "pending";
        if begins && trigger.config.overlap() != Overlap::Allow {
            let runs = db
                .prepare_cached(
                    "SELECT 1 FROM firings WHERE trigger_id = ?1 AND slot <> ?2 AND ended_ms IS NULL \
                     AND state IN ('claimed', 'fired')",
                )?
                .exists(params![id, slot])?;
            match trigger.config.overlap() {
                Overlap::Skip if runs => {
                    end("skipped", "an earlier firing runs")?;
                    continue;
                }
                Overlap::Queue if runs => {
                    queued.insert(id);
                    continue;
                }
                _ => {}
            }
        }
        let sql = format!(
            "UPDATE firings SET owner = ?3, attempts = attempts + 1, \
             state = CASE state WHEN 'pending' THEN 'claimed' ELSE state END \
             WHERE trigger_id = ?1 AND slot = ?2 RETURNING {FIRING}"
        );
        let firing = db.prepare_cached(&sql)?.query_row(params![id, slot, this], firing)?;
        claimed.push((trigger, firing));
    }
    Ok(claimed)
}

/// Reads a row of [`FIRING`].
fn firing(row: &Row<'_>) -> rusqlite::Result<Firing> {
    let state: String = row.get(3)?;
    let unknown = || unreadable(3, std::io::Error::other(format!("no state of a firing: {state}")));
    Ok(Firing {
        trigger: row.get(0)?,
        slot: row.get(1)?,
        due_ms: row.get::<_, i64>(2)?.cast_unsigned(),
        state: FiringState::parse(&state).ok_or_else(unknown)?,
        payload: row.get(4)?,
        error: row.get(5)?,
    })
}
