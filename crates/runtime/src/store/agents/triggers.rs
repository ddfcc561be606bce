//! Stores triggers and their firings. A firing has one owner at a time: a process with a lease, as for jobs.

use std::collections::HashSet;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, TransactionBehavior, params};
use toolwright_core::session::SessionId;
use toolwright_core::store::{MAX_HOPS, NewRow, StoreError, WRITES, WriteNotes};
use toolwright_core::trigger::{Due, Firing, FiringState, MAX_TRIGGERS, MAX_WAITING, Overlap, Trigger, run_of};

use crate::store::SqliteStore;
use crate::store::agents::mailbox::set_cursor;
use crate::store::agents::session_log::{self, append_notice};
use crate::store::owner::{self, renew};
use crate::store::{json_column, now_ms, to_json, unreadable};

/// The most attempts at a firing whose processes die.
const MAX_ATTEMPTS: u32 = 5;
/// Notes on written files that are read, the newest.
const MAX_NOTES: u32 = 4_096;

const COLUMNS: &str = "id, config, target, rights, creator, created_ms, cursor";
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
    /// Installs a trigger, or replaces the one with its id. A trigger with an unchanged configuration keeps its cursor
    /// and its creation time. The messages of `mailbox` are kept until the trigger has read them.
    ///
    /// # Errors
    /// [`StoreError::Quota`] if its principal has the most triggers allowed.
    pub(crate) async fn install_trigger(
        &self,
        trigger: &Trigger,
        mailbox: Option<SessionId>,
    ) -> Result<Trigger, StoreError> {
        let (config, target) = (to_json(&trigger.config)?, to_json(&trigger.target)?);
        let (rights, creator) = (to_json(&trigger.rights)?, to_json(&trigger.creator)?);
        let mut trigger = trigger.clone();
        let principal = trigger.rights.principal.id.clone();
        let root = trigger.rights.root.to_string_lossy().into_owned();
        let installed = self
            .thread
            .run("install a trigger", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let others = "SELECT count(*) FROM triggers WHERE principal = ?1 AND id <> ?2";
                let others: u32 = transaction.query_row(others, params![principal, trigger.id], |row| row.get(0))?;
                if others as usize >= MAX_TRIGGERS {
                    return Ok(None);
                }
                let known = "SELECT created_ms, cursor, seen FROM triggers WHERE id = ?1 AND config = ?2";
                let known: Option<(i64, i64, Option<String>)> = transaction
                    .query_row(known, params![trigger.id, config], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                    .optional()?;
                let mut files = None;
                if let Some((created, cursor, seen)) = known {
                    (trigger.created_ms, trigger.cursor) = (created.cast_unsigned(), cursor.cast_unsigned());
                    files = seen;
                }
                transaction.execute(
                    "INSERT OR REPLACE INTO triggers (id, config, target, rights, principal, root, creator, created_ms, cursor, \
                     seen) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
                    params![
                        trigger.id,
                        config,
                        target,
                        rights,
                        principal,
                        root,
                        creator,
                        trigger.created_ms.cast_signed(),
                        trigger.cursor.cast_signed(),
                        files,
                    ],
                )?;
                let mailbox = mailbox.as_ref().map(SessionId::as_str);
                let others = "DELETE FROM session_log_cursors WHERE reader = ?1 AND mailbox IS NOT ?2";
                transaction.execute(others, params![trigger.id, mailbox])?;
                if let Some(mailbox) = mailbox {
                    set_cursor(&transaction, mailbox, &trigger.id, trigger.cursor, 0)?;
                }
                transaction.commit()?;
                Ok(Some(trigger))
            })
            .await?;
        installed.ok_or_else(|| {
            StoreError::Quota(format!(
                "there are {MAX_TRIGGERS} triggers already, which is the limit; remove one first: `toolwright triggers ls` \
                 lists them, and `job__stop` with a trigger's id removes it"
            ))
        })
    }

    /// Returns the triggers of one workspace or all, the oldest first.
    pub(crate) async fn triggers(&self, root: Option<&Path>) -> Result<Vec<Trigger>, StoreError> {
        let root = root.map(|root| root.to_string_lossy().into_owned());
        self.thread
            .run("list triggers", move |db| {
                let sql =
                    format!("SELECT {COLUMNS} FROM triggers WHERE ?1 IS NULL OR root = ?1 ORDER BY created_ms, id");
                db.prepare_cached(&sql)?.query_map([root], trigger)?.collect()
            })
            .await
    }

    /// One trigger.
    pub(crate) async fn trigger(&self, id: &str) -> Result<Option<Trigger>, StoreError> {
        let id = id.to_owned();
        self.thread
            .run("read a trigger", move |db| {
                let sql = format!("SELECT {COLUMNS} FROM triggers WHERE id = ?1");
                db.prepare_cached(&sql)?.query_row([id], trigger).optional()
            })
            .await
    }

    /// Removes a trigger, with its firings that have not begun.
    pub(crate) async fn remove_trigger(&self, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.thread
            .run("remove a trigger", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                transaction.execute("DELETE FROM firings WHERE trigger_id = ?1 AND state = 'pending'", [&id])?;
                transaction.execute("DELETE FROM session_log_cursors WHERE reader = ?1", [&id])?;
                let removed = transaction.execute("DELETE FROM triggers WHERE id = ?1", [&id])? > 0;
                transaction.commit()?;
                Ok(removed)
            })
            .await
    }

    /// Commits due slots and the time of this check, unless another process has checked meanwhile. `due_ms` gives each
    /// slot's start time. If too many firings wait, the cursor stays before the first slot without room, so that the
    /// next check finds it again; that slot is returned if this is the first check to leave it.
    pub(crate) async fn advance_trigger(
        &self,
        of: &Trigger,
        due: Due,
        due_ms: impl Fn(u64) -> u64 + Send + 'static,
    ) -> Result<Option<u64>, StoreError> {
        let (id, before) = (of.id.clone(), of.cursor);
        self.thread
            .run("note the slots of a trigger", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let is_unmoved = transaction
                    .prepare_cached("SELECT 1 FROM triggers WHERE id = ?1 AND cursor = ?2")?
                    .exists(params![id, before.cast_signed()])?;
                if !is_unmoved {
                    return Ok(None);
                }
                let (mut cursor, mut left) = (due.cursor, None);
                for slot in due.slots {
                    if offer(&transaction, &id, &slot.to_string(), due_ms(slot), None, 0)? == FiringOffer::Full {
                        cursor = slot.saturating_sub(1);
                        left = (cursor != before).then_some(slot);
                        break;
                    }
                }
                transaction
                    .prepare_cached("UPDATE triggers SET cursor = ?2 WHERE id = ?1")?
                    .execute(params![id, cursor.cast_signed()])?;
                transaction.commit()?;
                Ok(left)
            })
            .await
    }

    /// Commits a firing with a cause, to start now.
    pub(crate) async fn offer_firing(
        &self,
        id: &str,
        slot: &str,
        now_ms: u64,
        payload: Option<String>,
    ) -> Result<FiringOffer, StoreError> {
        let (id, slot) = (id.to_owned(), slot.to_owned());
        self.thread
            .run("note a firing", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let offered = offer(&transaction, &id, &slot, now_ms, payload.as_deref(), 0)?;
                transaction.commit()?;
                Ok(offered)
            })
            .await
    }

    /// What woken runs wrote of late.
    pub(crate) async fn write_notes(&self) -> Result<WriteNotes, StoreError> {
        self.thread
            .run("read what woken runs wrote", move |db| {
                let sql = format!(
                    "SELECT {} FROM session_log WHERE session = ?1 AND is_message = 0 ORDER BY seq DESC LIMIT {MAX_NOTES}",
                    session_log::COLUMNS
                );
                let rows = db.prepare_cached(&sql)?.query_map([WRITES], session_log::row)?.collect::<Result<_, _>>()?;
                Ok(WriteNotes::of(rows))
            })
            .await
    }

    /// Commits that files have changed, and how they are now: kept for the next process that watches them. Where too many
    /// firings wait, neither is kept. So many messages and changes led to this one.
    pub(crate) async fn offer_change(
        &self,
        id: &str,
        now_ms: u64,
        payload: String,
        seen: Option<String>,
        hops: u32,
    ) -> Result<FiringOffer, StoreError> {
        let id = id.to_owned();
        self.thread
            .run("note a change of files", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let offered = offer(&transaction, &id, &now_ms.to_string(), now_ms, Some(&payload), hops + 1)?;
                if offered != FiringOffer::Full {
                    transaction.execute("UPDATE triggers SET seen = ?2 WHERE id = ?1", params![id, seen])?;
                    transaction.commit()?;
                }
                Ok(offered)
            })
            .await
    }

    /// Returns the state of a trigger's files when they were last watched.
    pub(crate) async fn files_seen(&self, id: &str) -> Result<Option<String>, StoreError> {
        let id = id.to_owned();
        self.thread
            .run("read the files of a trigger", move |db| {
                let seen =
                    db.query_row("SELECT seen FROM triggers WHERE id = ?1", [id], |row| row.get(0)).optional()?;
                Ok(seen.flatten())
            })
            .await
    }

    /// Stores the state of a trigger's files.
    pub(crate) async fn keep_files_seen(&self, id: &str, seen: Option<String>) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.thread
            .run("keep the files of a trigger", move |db| {
                db.execute("UPDATE triggers SET seen = ?2 WHERE id = ?1", params![id, seen]).map(drop)
            })
            .await
    }

    /// Returns the number of the last row of the session log.
    pub(crate) async fn last_message(&self) -> Result<u64, StoreError> {
        self.thread
            .run("look for the last message", |db| {
                let last = db.query_row("SELECT ifnull(max(seq), 0) FROM session_log", [], |row| row.get::<_, i64>(0));
                last.map(i64::cast_unsigned)
            })
            .await
    }

    /// Commits that a message of a mailbox fires a trigger; for a queue, only if no reader has taken it. All messages
    /// up to it count as read. Without a payload it fires nothing.
    pub(crate) async fn offer_message(
        &self,
        id: &str,
        (mailbox, seq): (&SessionId, u64),
        is_queue: bool,
        now_ms: u64,
        payload: Option<String>,
    ) -> Result<(), StoreError> {
        let (id, mailbox) = (id.to_owned(), mailbox.as_str().to_owned());
        self.thread
            .run("note a message", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                if let Some(payload) = payload {
                    let take = "UPDATE session_log SET taken_by = ?2 WHERE seq = ?1 AND taken_by IS NULL";
                    let is_its = !is_queue || transaction.execute(take, params![seq.cast_signed(), id])? > 0;
                    let hops = "SELECT hops FROM session_log WHERE seq = ?1";
                    let hops: Option<u32> =
                        transaction.query_row(hops, [seq.cast_signed()], |row| row.get(0)).optional()?;
                    if is_its
                        && offer(&transaction, &id, &seq.to_string(), now_ms, Some(&payload), hops.unwrap_or(0))?
                            == FiringOffer::Full
                    {
                        return Ok(());
                    }
                }
                let sql = "UPDATE triggers SET cursor = ?2 WHERE id = ?1 AND cursor < ?2";
                transaction.execute(sql, params![id, seq.cast_signed()])?;
                // Messages that the trigger does not take from a queue stay for other readers.
                if !is_queue {
                    set_cursor(&transaction, &mailbox, &id, seq, 0)?;
                }
                transaction.commit()
            })
            .await
    }

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
        self.mail_came();
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
                let gone = serde_json::to_string(&owner::gone(db)?).unwrap_or_else(|_| "[]".into());
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
                let gone = owner::gone(db)?;
                db.prepare("SELECT id FROM job_owners WHERE runs_triggers")?
                    .query_map([], |row| row.get::<_, i64>(0))?
                    .collect::<Result<Vec<_>, _>>()
                    .map(|runners| runners.iter().any(|id| !gone.contains(id)))
            })
            .await
    }

    /// Returns whether this process watches for what fires this trigger. Becomes its watcher if there is none.
    pub(crate) async fn watch_trigger(&self, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.thread
            .run("take the watch of a trigger", move |db| {
                let this = owner::number(db)?;
                db.prepare_cached(
                    "UPDATE triggers SET watcher = ?2 WHERE id = ?1 AND (watcher IS NULL OR watcher = ?2)",
                )?
                .execute(params![id, this])
                .map(|taken| taken > 0)
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

/// Enters a firing, unless its slot is known or too many wait. So many messages and changes of files led to it: after too many
/// it has failed.
fn offer(
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

/// Reads a row of [`COLUMNS`].
fn trigger(row: &Row<'_>) -> rusqlite::Result<Trigger> {
    Ok(Trigger {
        id: row.get(0)?,
        config: json_column(row, 1)?,
        target: json_column(row, 2)?,
        rights: json_column(row, 3)?,
        creator: json_column(row, 4)?,
        created_ms: row.get::<_, i64>(5)?.cast_unsigned(),
        cursor: row.get::<_, i64>(6)?.cast_unsigned(),
    })
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
