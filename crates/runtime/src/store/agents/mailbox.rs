//! Mailboxes: how far they are read, which mailboxes get their messages, and the hops before a message.

use rusqlite::{Connection, OptionalExtension as _, params};
use toolwright_core::session::SessionId;
use toolwright_core::store::{LogRow, MAX_WAITING};

use crate::store::agents::session_log::{COLUMNS, MAX_READ, limit_of, row};
use crate::store::now_ms;

/// The most calls of one reader whose channel reads are remembered; a run has fewer in progress at once.
const MAX_CALLS: usize = 64;

/// Returns SQL for the last message of mailbox `of` that no reader needs: all readers for whom messages wait have read
/// it or, if there are no such readers, any reader has.
pub(super) fn read_up_to(of: &str) -> String {
    format!(
        "ifnull((SELECT coalesce(min(seq) FILTER (WHERE is_waited_for), max(seq)) FROM session_log_readers \
         WHERE session_log_readers.mailbox = {of}), 0)"
    )
}

/// Returns the last message that a reader of a mailbox has read.
pub(super) fn cursor(db: &Connection, mailbox: &str, reader: &str) -> rusqlite::Result<u64> {
    let sql = "SELECT seq FROM session_log_cursors WHERE mailbox = ?1 AND reader = ?2";
    let seq: Option<i64> = db.prepare_cached(sql)?.query_row([mailbox, reader], |row| row.get(0)).optional()?;
    Ok(seq.unwrap_or_default().cast_unsigned())
}

/// Records that a reader of a mailbox has read up to `seq`. For a session's own mailbox, `since` is where its present
/// work began.
pub(super) fn set_cursor(db: &Connection, mailbox: &str, reader: &str, seq: u64, since: u64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO session_log_cursors VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (mailbox, reader) DO UPDATE SET \
               seq = max(seq, excluded.seq), at_ms = excluded.at_ms, since = max(since, excluded.since)";
    db.prepare_cached(sql)?
        .execute(params![mailbox, reader, seq.cast_signed(), now_ms(), since.cast_signed()])
        .map(drop)
}

/// Returns the number of messages and file changes that led to the current work of a session or run: the maximum over
/// its firing, its read messages and those of its root run. Persons, clocks and ended jobs count 0.
pub(super) fn hops(db: &Connection, of: Option<&str>) -> rusqlite::Result<u32> {
    let Some(of) = of else { return Ok(0) };
    let sql = "WITH above(id) AS (SELECT ?1 UNION SELECT root FROM agents WHERE id = ?1) \
               SELECT max(ifnull((SELECT max(hops) FROM firings WHERE hops > 0 AND run IN above), 0), \
               ifnull((SELECT max(hops) FROM session_log_cursors AS read CROSS JOIN session_log ON session = mailbox \
               WHERE mailbox IN above AND reader = mailbox AND is_message = 1 AND session_log.seq > since \
               AND session_log.seq <= read.seq), 0))";
    db.prepare_cached(sql)?.query_row([of], |row| row.get(0))
}

/// Returns the messages that a call takes from a queue, or has already taken.
pub(super) fn take_queued(
    db: &Connection,
    mailbox: &str,
    reader: &str,
    call: &str,
    limit: usize,
) -> rusqlite::Result<Vec<LogRow>> {
    let by = format!("{reader} {call}");
    let sql =
        format!("SELECT {COLUMNS} FROM session_log WHERE session = ?1 AND is_message AND taken_by = ?2 ORDER BY seq");
    let already_taken: Vec<LogRow> =
        db.prepare_cached(&sql)?.query_map([mailbox, &by], row)?.collect::<rusqlite::Result<_>>()?;
    if !already_taken.is_empty() {
        return Ok(already_taken);
    }
    let sql = format!(
        "UPDATE session_log SET taken_by = ?2 WHERE seq IN (SELECT seq FROM session_log WHERE session = ?1 \
         AND is_message AND taken_by IS NULL AND author IS NOT ?3 ORDER BY seq LIMIT ?4) RETURNING {COLUMNS}"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let taken = statement.query_map(params![mailbox, by, reader, limit_of(limit)], row)?;
    let mut taken: Vec<LogRow> = taken.collect::<rusqlite::Result<_>>()?;
    taken.sort_by_key(|row| row.seq);
    Ok(taken)
}

/// Returns the messages of others after the reader's cursor, or those that this call has already read.
pub(super) fn read_broadcast(
    db: &Connection,
    mailbox: &str,
    reader: &str,
    call: &str,
    limit: usize,
) -> rusqlite::Result<Vec<LogRow>> {
    let sql = "SELECT first, last FROM session_log_reads WHERE mailbox = ?1 AND reader = ?2 AND call = ?3";
    let earlier_read: Option<(i64, i64)> =
        db.prepare_cached(sql)?.query_row([mailbox, reader, call], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let (first, last) = match earlier_read {
        Some(range) => range,
        None => (cursor(db, mailbox, reader)?.cast_signed(), i64::MAX),
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM session_log WHERE session = ?1 AND is_message = 1 AND seq > ?3 AND seq <= ?4 \
         AND taken_by IS NULL AND author IS NOT ?2 ORDER BY seq LIMIT ?5"
    );
    let rows: Vec<LogRow> = db
        .prepare_cached(&sql)?
        .query_map(params![mailbox, reader, first, last, limit_of(limit)], row)?
        .collect::<rusqlite::Result<_>>()?;
    if earlier_read.is_some() {
        return Ok(rows);
    }
    let end = match rows.last() {
        Some(row) if rows.len() >= limit.min(MAX_READ) => row.seq.cast_signed(),
        // The reader's own messages are skipped.
        _ => db
            .prepare_cached("SELECT ifnull(max(seq), 0) FROM session_log WHERE session = ?1 AND is_message")?
            .query_row([mailbox], |row| row.get(0))?,
    };
    set_cursor(db, mailbox, reader, end.cast_unsigned(), 0)?;
    if !rows.is_empty() {
        db.prepare_cached("INSERT INTO session_log_reads VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?.execute(params![
            mailbox,
            reader,
            call,
            first,
            end,
            now_ms()
        ])?;
        let old = "DELETE FROM session_log_reads WHERE mailbox = ?1 AND reader = ?2 AND last < (SELECT last FROM \
                   session_log_reads WHERE mailbox = ?1 AND reader = ?2 ORDER BY last DESC LIMIT 1 OFFSET ?3)";
        db.prepare_cached(old)?.execute(params![mailbox, reader, limit_of(MAX_CALLS - 1)])?;
    }
    Ok(rows)
}

/// Copies a message to the mailboxes wired to its own, except those of its author and of the session at the root of the
/// author's tree. Returns the full mailboxes.
pub(super) fn forward(db: &Connection, seq: i64) -> rusqlite::Result<Vec<SessionId>> {
    let readers: Vec<(String, bool)> = db
        .prepare_cached(&format!(
            "SELECT reader, ?2 <= (SELECT count(*) FROM session_log AS own WHERE own.session = reader AND own.is_message \
             AND own.taken_by IS NULL AND own.seq > {}) \
             FROM session_log JOIN wires ON mailbox = session WHERE seq = ?1 AND is_message AND author IS NOT reader \
             AND (SELECT agents.root FROM agents WHERE agents.id = author) IS NOT reader",
            read_up_to("wires.reader")
        ))?
        .query_map([seq, MAX_WAITING.cast_signed()], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut full = Vec::new();
    for (reader, is_full) in readers {
        if is_full {
            full.push(SessionId::new(reader));
            continue;
        }
        db.prepare_cached(
            "INSERT INTO session_log (session, principal, at_ms, author, agent, call, is_message, kind, name, text, data, bytes, \
             hops) SELECT ?2, principal, at_ms, author, agent, call, is_message, kind, name, text, data, bytes, hops FROM session_log \
             WHERE seq = ?1",
        )?
        .execute(params![seq, reader])?;
    }
    Ok(full)
}
