//! Stores the session log: values, messages, and how far each reader of a mailbox has read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, TransactionBehavior, params};
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;
use toolwright_core::session::{CallId, SessionId};
use toolwright_core::store::channel::{Delivery, mailbox_name};
use toolwright_core::store::{
    AppendedRow, Author, LogEntry, LogMessage, LogRow, MAX_HOPS, MAX_PRINCIPAL_BYTES, MAX_ROW_BYTES, MAX_SESSION_BYTES,
    MAX_WAITING, MessageKind, Method, NewRow, SessionLog, StoreError, ValueWatcher, WrittenValue, superseded_values,
};
use toolwright_core::taint::Taint;

use crate::store::agents::mailbox::{cursor, forward, hops, read_broadcast, read_up_to, set_cursor, take_queued};
use crate::store::{SqliteStore, json_column, now_ms, to_json, unreadable};

/// A mailbox, channel or memory: the log's data of one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mailbox {
    /// The session, or the address of a channel.
    pub session: String,
    /// The principal on whose behalf it was written.
    pub principal: String,
    /// The number of messages that were not taken.
    pub messages: u64,
    /// The number of values.
    pub values: u64,
    /// The time of the last write, in milliseconds since the epoch.
    pub last_ms: u64,
}

impl SqliteStore {
    /// Returns at most `limit` mailboxes, the last written first, and their total number.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn mailboxes(&self, limit: usize) -> Result<(Vec<Mailbox>, u64), StoreError> {
        self.thread
            .run("list mailboxes", move |db| {
                let count = "SELECT count(DISTINCT session) FROM session_log";
                let total: i64 = db.prepare_cached(count)?.query_row([], |row| row.get(0))?;
                let sql = "SELECT session, max(principal), sum(is_message AND taken_by IS NULL), sum(NOT is_message), max(at_ms) \
                           FROM session_log GROUP BY session ORDER BY max(at_ms) DESC, max(seq) DESC LIMIT ?1";
                let number = |row: &Row<'_>, at| row.get::<_, i64>(at).map(i64::cast_unsigned);
                let mailbox = |row: &Row<'_>| {
                    Ok(Mailbox {
                        session: row.get(0)?,
                        principal: row.get(1)?,
                        messages: number(row, 2)?,
                        values: number(row, 3)?,
                        last_ms: number(row, 4)?,
                    })
                };
                let limit = i64::try_from(limit).unwrap_or(i64::MAX);
                let rows = db.prepare_cached(sql)?.query_map([limit], mailbox)?.collect::<rusqlite::Result<_>>()?;
                Ok((rows, total.cast_unsigned()))
            })
            .await
    }
}

/// Bytes that a row counts in addition to its content.
const ROW_BYTES: usize = 128;
/// The most messages that one read returns.
pub(super) const MAX_READ: usize = 1_000;
/// Interval of checks for messages of other processes.
const POLL: Duration = Duration::from_secs(1);

/// The columns that [`row`] reads.
pub(super) const COLUMNS: &str =
    "seq, session, principal, at_ms, author, agent, call, is_message, kind, name, instance, text, data, taint, output";

/// Selects the values of session ?1 that determine the value at ?2.
const NEAR: &str = "session = ?1 AND NOT is_message AND (?2 IN ('', name) OR name = '' \
                    OR substr(name, 1, length(?2) + 1) = ?2 || '.' OR substr(?2, 1, length(name) + 1) = name || '.')";

/// The limit that refuses a row.
enum RowRefusal {
    Hops,
    Mailbox,
    Session,
    Principal,
}

#[async_trait]
impl SessionLog for SqliteStore {
    async fn append(&self, row: NewRow) -> Result<AppendedRow, StoreError> {
        let row = Arc::new(row);
        let (data, bytes) = stored(&row)?;
        let appending = Arc::clone(&row);
        let appended = self
            .thread
            .run("append to the session log", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let appended = append_in(&transaction, &appending, data, bytes, author_of(&appending))?;
                // Commits the removals that were made even if there is no room.
                transaction.commit()?;
                Ok(appended)
            })
            .await?;
        let appended = appended.map_err(|full| StoreError::Quota(full.describe(&row.session)))?;
        match &row.entry {
            LogEntry::Message(_) => self.wake_mail_waiters(),
            LogEntry::Value(value) => self.watchers.notify_watchers(&row.session, appended.seq, value),
        }
        Ok(appended)
    }

    async fn append_values(&self, rows: Vec<NewRow>, path: &str, seq: u64) -> Result<bool, StoreError> {
        let rows = rows.into_iter().map(|row| stored(&row).map(|stored| (row, stored)));
        let rows: Arc<Vec<(NewRow, (Option<String>, usize))>> = Arc::new(rows.collect::<Result<_, _>>()?);
        let Some((first, _)) = rows.first() else { return Ok(true) };
        let (session, path) = (first.session.clone(), path.to_owned());
        let appending = Arc::clone(&rows);
        let appended = self.thread.run("append values to the session log", move |db| {
            let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let sql = format!("SELECT ifnull(max(seq), 0) FROM session_log WHERE {NEAR}");
            let newest: i64 =
                transaction.prepare_cached(&sql)?.query_row([session.as_str(), &path], |row| row.get(0))?;
            if newest.cast_unsigned() != seq {
                return Ok(Ok(None));
            }
            let mut numbers = Vec::with_capacity(appending.len());
            for (row, (data, bytes)) in appending.iter() {
                match append_in(&transaction, row, data.clone(), *bytes, author_of(row))? {
                    Ok(appended) => numbers.push(appended.seq),
                    // Commits removals, unless a row has been written.
                    Err(full) => {
                        if numbers.is_empty() {
                            transaction.commit()?;
                        }
                        return Ok(Err(full));
                    }
                }
            }
            transaction.commit()?;
            Ok(Ok(Some(numbers)))
        });
        let appended = appended.await?.map_err(|full| StoreError::Quota(full.describe(&rows[0].0.session)))?;
        let Some(numbers) = appended else { return Ok(false) };
        for ((row, _), seq) in rows.iter().zip(numbers) {
            if let LogEntry::Value(value) = &row.entry {
                self.watchers.notify_watchers(&row.session, seq, value);
            }
        }
        Ok(true)
    }

    fn watch(&self, session: &SessionId, watcher: Weak<dyn ValueWatcher>) {
        self.watchers.add(session, watcher);
    }

    async fn messages(&self, session: &SessionId, after: u64, limit: usize) -> Result<Vec<LogRow>, StoreError> {
        let session = session.as_str().to_owned();
        self.thread.run("read messages", move |db| messages(db, &session, after, limit)).await
    }

    async fn unread(&self, session: &SessionId, after: u64, limit: usize) -> Result<Vec<LogRow>, StoreError> {
        let session = session.as_str().to_owned();
        self.thread
            .run("read messages", move |db| {
                let read_to = cursor(db, &session, &session)?;
                messages(db, &session, after.max(read_to), limit)
            })
            .await
    }

    async fn values(&self, session: &SessionId, path: &str) -> Result<Vec<LogRow>, StoreError> {
        let (session, path) = (session.as_str().to_owned(), path.to_owned());
        self.thread
            .run("read the values of a session", move |db| {
                let sql = format!("SELECT {COLUMNS} FROM session_log WHERE {NEAR} ORDER BY seq");
                db.prepare_cached(&sql)?.query_map([session, path], row)?.collect()
            })
            .await
    }

    async fn last_writer(&self, path: &str) -> Result<Option<SessionId>, StoreError> {
        let path = path.to_owned();
        let sql = "SELECT session FROM session_log WHERE NOT is_message AND (name = ?1 OR substr(name, 1, length(?1) + 1) = \
                   ?1 || '.') ORDER BY seq DESC LIMIT 1";
        self.thread
            .run("find the last writer", move |db| {
                let session: Option<String> = db.prepare_cached(sql)?.query_row([path], |row| row.get(0)).optional()?;
                Ok(session.map(SessionId::new))
            })
            .await
    }

    async fn cursor(&self, mailbox: &SessionId, reader: &str) -> Result<u64, StoreError> {
        let (mailbox, reader) = (mailbox.as_str().to_owned(), reader.to_owned());
        self.thread.run("read a cursor", move |db| cursor(db, &mailbox, &reader)).await
    }

    async fn set_cursor(&self, mailbox: &SessionId, seq: u64, since: u64) -> Result<(), StoreError> {
        let mailbox = mailbox.as_str().to_owned();
        self.thread.run("move a cursor", move |db| set_cursor(db, &mailbox, &mailbox, seq, since)).await
    }

    async fn take(
        &self,
        mailbox: &SessionId,
        delivery: Delivery,
        reader: &SessionId,
        call: &CallId,
        limit: usize,
    ) -> Result<Vec<LogRow>, StoreError> {
        let (mailbox, reader) = (mailbox.as_str().to_owned(), reader.as_str().to_owned());
        let call = call.as_str().to_owned();
        self.thread
            .run("read a channel", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let taken = match delivery {
                    Delivery::Queue => take_queued(&transaction, &mailbox, &reader, &call, limit),
                    Delivery::Broadcast => read_broadcast(&transaction, &mailbox, &reader, &call, limit),
                }?;
                transaction.commit()?;
                Ok(taken)
            })
            .await
    }

    async fn root(&self, session: &SessionId) -> Result<SessionId, StoreError> {
        let id = session.as_str().to_owned();
        let root = self.thread.run("look for the beginning of a tree of agents", move |db| {
            let sql = "SELECT root FROM agents WHERE id = ?1";
            db.prepare_cached(sql)?.query_row([id], |row| row.get::<_, String>(0)).optional()
        });
        Ok(root.await?.map_or_else(|| session.clone(), SessionId::new))
    }

    async fn hops(&self, session: &SessionId) -> Result<u32, StoreError> {
        let session = session.as_str().to_owned();
        self.thread.run("look for what led to a session's work", move |db| hops(db, Some(&session))).await
    }

    async fn wait(&self, mailbox: &SessionId, after: u64, limit: Duration) -> Result<bool, StoreError> {
        let until = Instant::now() + limit;
        let mut mail = self.mail.subscribe();
        loop {
            mail.mark_unchanged();
            if !self.messages(mailbox, after, 1).await?.is_empty() {
                return Ok(true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let _ = tokio::time::timeout(left.min(POLL), mail.changed()).await;
        }
    }

    async fn withdraw(&self, mailbox: &SessionId, kind: MessageKind, subject: &str) -> Result<(), StoreError> {
        let (mailbox, subject) = (mailbox.as_str().to_owned(), subject.to_owned());
        self.thread
            .run("withdraw a message", move |db| {
                let sql = "UPDATE session_log SET taken_by = session \
                           WHERE session = ?1 AND is_message AND kind = ?2 AND name = ?3 AND taken_by IS NULL";
                db.prepare_cached(sql)?.execute(params![mailbox, kind.as_str(), subject]).map(drop)
            })
            .await
    }
}

/// The watchers of values, by session.
#[derive(Default)]
pub(in crate::store) struct Watchers(Mutex<Vec<(SessionId, Weak<dyn ValueWatcher>)>>);

impl std::fmt::Debug for Watchers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watchers").field(&self.lock().len()).finish()
    }
}

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, Vec<(SessionId, Weak<dyn ValueWatcher>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, session: &SessionId, watcher: Weak<dyn ValueWatcher>) {
        let mut watchers = self.lock();
        if watchers.len() == watchers.capacity() {
            watchers.retain(|(_, watcher)| watcher.strong_count() > 0);
        }
        watchers.push((session.clone(), watcher));
    }

    fn notify_watchers(&self, session: &SessionId, seq: u64, value: &WrittenValue) {
        let mut watching = Vec::new();
        self.lock().retain(|(watched, watcher)| match watcher.upgrade() {
            Some(watcher) if watched == session => {
                watching.push(watcher);
                true
            }
            watcher => watcher.is_some(),
        });
        watching.iter().for_each(|watcher| watcher.written(seq, value));
    }
}

impl SqliteStore {
    /// Wakes the waiters for messages.
    pub(in crate::store) fn wake_mail_waiters(&self) {
        self.mail.send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl RowRefusal {
    fn describe(&self, session: &SessionId) -> String {
        let bytes = |bytes: u64| format!("{} MiB", bytes >> 20);
        let session = mailbox_name(session);
        match self {
            Self::Hops => format!(
                "agents have woken each other {MAX_HOPS} times in a row without a word from outside, so this message was not \
                 sent: it may be a loop. Do the rest yourself, or say in your answer what is left to do"
            ),
            Self::Mailbox => format!(
                "{session} is full: {MAX_WAITING} messages wait there to be read. Nothing was sent; send again when its readers \
                 have caught up"
            ),
            Self::Session => format!(
                "{session} keeps {} already, which is the limit. Nothing was written; delete what is not needed any more",
                bytes(MAX_SESSION_BYTES)
            ),
            Self::Principal => format!(
                "the sessions of this principal keep {} already, which is the limit. Nothing was written; delete what is not \
                 needed any more",
                bytes(MAX_PRINCIPAL_BYTES)
            ),
        }
    }
}

/// Returns the data of a row as stored, and the bytes that it counts.
fn stored(row: &NewRow) -> Result<(Option<String>, usize), StoreError> {
    let bytes = row.entry.bytes() + ROW_BYTES;
    if bytes > MAX_ROW_BYTES {
        return Err(StoreError::Quota(format!(
            "this has {bytes} bytes, and one entry may have {MAX_ROW_BYTES}: write it to a file and name that"
        )));
    }
    let data = match &row.entry {
        LogEntry::Value(WrittenValue { output: Some(handle), .. }) => Some(to_json(&json!({"output": handle}))?),
        LogEntry::Value(value) => Some(to_json(&value.data)?),
        LogEntry::Message(message) if message.data.is_null() => None,
        LogEntry::Message(message) => Some(to_json(&message.data)?),
    };
    Ok((data, bytes))
}

fn author_of(row: &NewRow) -> Option<&str> {
    row.author.session.as_ref().map(SessionId::as_str)
}

/// Appends a row within a transaction. `cause` is the session or run whose messages led to it.
fn append_in(
    db: &Connection,
    row: &NewRow,
    data: Option<String>,
    bytes: usize,
    cause: Option<&str>,
) -> rusqlite::Result<Result<AppendedRow, RowRefusal>> {
    if let Some(once) = &row.once {
        let sql = "SELECT seq FROM session_log WHERE session = ?1 AND once = ?2";
        let existing_seq: Option<i64> =
            db.prepare_cached(sql)?.query_row([row.session.as_str(), once], |row| row.get(0)).optional()?;
        if let Some(seq) = existing_seq {
            return Ok(Ok(AppendedRow { seq: seq.cast_unsigned(), ..AppendedRow::default() }));
        }
    }
    let is_message = matches!(row.entry, LogEntry::Message(_));
    let hops = if is_message { hops(db, cause)? + 1 } else { 0 };
    if hops > MAX_HOPS {
        tracing::warn!(
            to = row.session.as_str(),
            from = cause,
            "agents wake each other in a loop: a message was refused"
        );
        return Ok(Err(RowRefusal::Hops));
    }
    if let Err(full) = make_room(db, row, bytes)? {
        return Ok(Err(full));
    }
    insert(db, row, data, bytes, hops)?;
    let seq = db.last_insert_rowid();
    let missed = forward(db, seq)?;
    Ok(Ok(AppendedRow { seq: seq.cast_unsigned(), missed }))
}

/// Appends a message without data within a transaction. `cause` is the session or run whose messages led to it. The
/// error is an exceeded quota, as a message.
pub(in crate::store) fn append_notice(
    db: &Connection,
    row: &NewRow,
    cause: &str,
) -> rusqlite::Result<Result<AppendedRow, String>> {
    let appended = append_in(db, row, None, row.entry.bytes() + ROW_BYTES, Some(cause))?;
    Ok(appended.map_err(|full| full.describe(&row.session)))
}

/// Checks that a row of this many bytes is within the quotas, and removes unneeded rows if it is not.
fn make_room(db: &Connection, row: &NewRow, bytes: usize) -> rusqlite::Result<Result<(), RowRefusal>> {
    let session = row.session.as_str();
    if matches!(row.entry, LogEntry::Message(_)) {
        let sql = format!(
            "SELECT count(*) FROM (SELECT 1 FROM session_log WHERE session = ?1 AND is_message AND kind <> 'job' \
             AND taken_by IS NULL AND seq > {} LIMIT ?2)",
            read_up_to("?1")
        );
        let limit = MAX_WAITING.cast_signed();
        let waiting: i64 = db.prepare_cached(&sql)?.query_row(params![session, limit], |row| row.get(0))?;
        if waiting >= limit {
            return Ok(Err(RowRefusal::Mailbox));
        }
    }
    let bytes = bytes as u64;
    let is_over = |owner_key: &str, limit: u64| Ok::<_, rusqlite::Error>(size(db, owner_key)? + bytes > limit);
    // A deletion is allowed in a full session: the next row removes the deleted values.
    let deletes = matches!(&row.entry, LogEntry::Value(value) if value.method == Method::Delete);
    let limit = MAX_SESSION_BYTES + if deletes { MAX_ROW_BYTES as u64 } else { 0 };
    let owner_key = format!("s:{session}");
    if is_over(&owner_key, limit)? {
        prune(db, session)?;
        if is_over(&owner_key, limit)? {
            return Ok(Err(RowRefusal::Session));
        }
    }
    let owner_key = format!("p:{}", row.principal);
    while is_over(&owner_key, MAX_PRINCIPAL_BYTES)? {
        // Rows of other sessions are removed from the oldest, except waiting messages.
        let sql = format!(
            "DELETE FROM session_log WHERE seq IN (SELECT seq FROM session_log AS old WHERE principal = ?1 \
             AND session <> ?2 AND (NOT is_message OR taken_by IS NOT NULL OR seq <= {}) ORDER BY seq LIMIT 1024)",
            read_up_to("old.session")
        );
        if db.prepare_cached(&sql)?.execute([&*row.principal, session])? == 0 {
            return Ok(Err(RowRefusal::Principal));
        }
    }
    Ok(Ok(()))
}

fn size(db: &Connection, owner_key: &str) -> rusqlite::Result<u64> {
    let sql = "SELECT bytes FROM session_log_sizes WHERE whose = ?1";
    let bytes: Option<i64> = db.prepare_cached(sql)?.query_row([owner_key], |row| row.get(0)).optional()?;
    Ok(bytes.unwrap_or_default().cast_unsigned())
}

/// Removes messages that all readers of a mailbox have read, and values that were replaced later.
fn prune(db: &Connection, session: &str) -> rusqlite::Result<()> {
    let read = read_up_to("?1");
    db.prepare_cached(&format!(
        "DELETE FROM session_log WHERE session = ?1 AND is_message AND (taken_by IS NOT NULL OR seq <= {read})"
    ))?
    .execute([session])?;
    let values: Vec<(i64, String, Option<String>, Method)> = db
        .prepare_cached(
            "SELECT seq, name, instance, kind FROM session_log WHERE session = ?1 AND NOT is_message ORDER BY seq DESC",
        )?
        .query_map([session], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, method(row, 3)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut delete = db.prepare_cached("DELETE FROM session_log WHERE seq = ?1")?;
    for index in
        superseded_values(values.iter().map(|(_, path, instance, method)| (&**path, instance.as_deref(), *method)))
    {
        delete.execute([values[index].0])?;
    }
    Ok(())
}

fn insert(db: &Connection, row: &NewRow, data: Option<String>, bytes: usize, hops: u32) -> rusqlite::Result<()> {
    let NewRow { session, principal, author, entry, once } = row;
    let (is_message, kind, name, instance, text) = match entry {
        LogEntry::Value(value) => (false, value.method.as_str(), &value.path, value.instance.as_ref(), ""),
        LogEntry::Message(message) => (true, message.kind.as_str(), &message.subject, None, &*message.text),
    };
    let (taint, output) = match entry {
        LogEntry::Value(WrittenValue { taint, output, .. }) => {
            ((!taint.is_empty()).then(|| json!(taint).to_string()), output.as_deref())
        }
        LogEntry::Message(_) => (None, None),
    };
    db.prepare_cached(
        "INSERT INTO session_log (session, principal, at_ms, author, agent, call, is_message, kind, name, instance, text, \
         data, bytes, taint, output, once, hops) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
    )?
    .execute(params![
        session.as_str(),
        principal,
        now_ms(),
        author.session.as_ref().map(SessionId::as_str),
        author.agent,
        author.call.as_ref().map(CallId::as_str),
        is_message,
        kind,
        name,
        instance,
        text,
        data,
        i64::try_from(bytes).unwrap_or(i64::MAX),
        taint,
        output,
        once,
        hops,
    ])
    .map(drop)
}

fn messages(db: &Connection, session: &str, after: u64, limit: usize) -> rusqlite::Result<Vec<LogRow>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM session_log WHERE session = ?1 AND is_message AND seq > ?2 AND taken_by IS NULL \
         ORDER BY seq LIMIT ?3"
    );
    db.prepare_cached(&sql)?.query_map(params![session, after.cast_signed(), limit_of(limit)], row)?.collect()
}

pub(super) fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit.min(MAX_READ)).unwrap_or(i64::MAX)
}

fn method(row: &Row<'_>, index: usize) -> rusqlite::Result<Method> {
    let text: String = row.get(index)?;
    Method::parse(&text).ok_or_else(|| unreadable(index, std::io::Error::other(format!("no method: {text}"))))
}

/// Reads a row of [`COLUMNS`].
pub(super) fn row(row: &Row<'_>) -> rusqlite::Result<LogRow> {
    let data = match row.get_ref(12)? {
        rusqlite::types::ValueRef::Null => serde_json::Value::Null,
        _ => json_column(row, 12)?,
    };
    let entry = if row.get(7)? {
        let kind: String = row.get(8)?;
        let unknown = || unreadable(8, std::io::Error::other(format!("no kind of a message: {kind}")));
        LogEntry::Message(LogMessage {
            kind: MessageKind::parse(&kind).ok_or_else(unknown)?,
            subject: row.get(9)?,
            text: row.get(11)?,
            data,
        })
    } else {
        let taint = match row.get_ref(13)? {
            rusqlite::types::ValueRef::Null => Taint::default(),
            _ => json_column(row, 13)?,
        };
        let (path, instance, output) = (row.get(9)?, row.get(10)?, row.get(14)?);
        LogEntry::Value(WrittenValue { path, instance, method: method(row, 8)?, data, taint, output })
    };
    Ok(LogRow {
        seq: row.get::<_, i64>(0)?.cast_unsigned(),
        session: SessionId::new(row.get::<_, String>(1)?),
        principal: row.get(2)?,
        at_ms: row.get::<_, i64>(3)?.cast_unsigned(),
        author: Author {
            session: row.get::<_, Option<String>>(4)?.map(SessionId::new),
            agent: row.get(5)?,
            call: row.get::<_, Option<String>>(6)?.map(CallId::new),
        },
        entry,
    })
}
