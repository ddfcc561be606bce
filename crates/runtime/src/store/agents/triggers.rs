//! Stores triggers, and offers their firings.

use std::path::Path;

use rusqlite::{OptionalExtension as _, Row, TransactionBehavior, params};
use toolwright_core::session::SessionId;
use toolwright_core::store::{StoreError, WRITES, WriteNotes};
use toolwright_core::trigger::{DueSlots, MAX_TRIGGERS, Trigger};

use super::firings::{FiringOffer, offer};
use super::mailbox::set_cursor;
use super::session_log;
use crate::store::SqliteStore;
use crate::store::owner;
use crate::store::{json_column, to_json};

/// Most notes on written files that are read: the newest.
const MAX_NOTES: u32 = 4_096;

pub(super) const COLUMNS: &str = "id, config, target, rights, creator, created_ms, cursor";

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
                let sql = "SELECT created_ms, cursor, seen FROM triggers WHERE id = ?1 AND config = ?2";
                let installed: Option<(i64, i64, Option<String>)> = transaction
                    .query_row(sql, params![trigger.id, config], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                    .optional()?;
                let mut files = None;
                if let Some((created, cursor, seen)) = installed {
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

    /// Returns a trigger.
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
        due: DueSlots,
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

    /// Returns the newest notes on files that woken runs wrote.
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

    /// Commits a firing for changed files, and their state for the next process that watches; neither if too many
    /// firings wait. `hops` counts the messages and file changes before this one.
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
                let files_seen =
                    db.query_row("SELECT seen FROM triggers WHERE id = ?1", [id], |row| row.get(0)).optional()?;
                Ok(files_seen.flatten())
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

    /// Commits a firing for a message of a mailbox; for a queue, only if no reader has taken it. All messages up to it
    /// count as read. Without a payload, nothing fires. If too many firings wait, nothing is committed.
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
                    let is_taken = !is_queue || transaction.execute(take, params![seq.cast_signed(), id])? > 0;
                    let hops = "SELECT hops FROM session_log WHERE seq = ?1";
                    let hops: Option<u32> =
                        transaction.query_row(hops, [seq.cast_signed()], |row| row.get(0)).optional()?;
                    if is_taken
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

    /// Makes this process the trigger's watcher if it has none. Returns whether this process is the watcher.
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
}

/// Reads a row of [`COLUMNS`].
pub(super) fn trigger(row: &Row<'_>) -> rusqlite::Result<Trigger> {
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
