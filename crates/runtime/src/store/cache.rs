//! Stores responses of the response cache.

use rusqlite::{Connection, OptionalExtension as _, params};
use toolwright_core::canonical::ContentHash;
use toolwright_core::store::StoreError;

use super::SqliteStore;

/// A response as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The output as JSON.
    pub(crate) output: String,
    /// When it came, in milliseconds since the epoch.
    pub(crate) saved_ms: u64,
    /// When it is over.
    pub(crate) expires_ms: u64,
}

/// How much is kept; what came first goes first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

impl SqliteStore {
    /// A response, over or not.
    pub(crate) async fn response(&self, key: &ContentHash) -> Result<Option<Kept>, StoreError> {
        let key = key.to_hex();
        self.thread
            .run("read a kept response", move |db| {
                let sql = "SELECT output, saved_ms, expires_ms FROM responses WHERE key = ?1";
                let mut select = db.prepare_cached(sql)?;
                let kept = |row: &rusqlite::Row<'_>| {
                    let millis = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
                    Ok(Kept { output: row.get(0)?, saved_ms: millis(1)?, expires_ms: millis(2)? })
                };
                select.query_row(params![key], kept).optional()
            })
            .await
    }

    /// Keeps a response, and forgets those that are over or too many.
    pub(crate) async fn keep_response(&self, key: &ContentHash, kept: Kept, room: Room) -> Result<(), StoreError> {
        let key = key.to_hex();
        self.thread
            .run("keep a response", move |db| {
                let transaction = db.transaction()?;
                let (now, bytes) = (kept.saved_ms.cast_signed(), kept.output.len() as u64);
                transaction.execute(
                    "INSERT OR REPLACE INTO responses (key, output, bytes, saved_ms, expires_ms) VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![key, kept.output, bytes.cast_signed(), now, kept.expires_ms.cast_signed()],
                )?;
                transaction.execute("DELETE FROM responses WHERE expires_ms <= ?1", [now])?;
                make_room(&transaction, room)?;
                transaction.commit()
            })
            .await
    }
}

/// Deletes the oldest responses until the others fit.
fn make_room(db: &Connection, room: Room) -> rusqlite::Result<()> {
    loop {
        let (entries, bytes) = db.query_row("SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM responses", [], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()))
        })?;
        let too_many = entries.saturating_sub(room.entries);
        // How many of the oldest make up the bytes is not known: a part goes, and it is looked at again.
        let surplus = if bytes > room.bytes { too_many.max(entries / 16 + 1) } else { too_many };
        if surplus == 0 || entries == 0 {
            return Ok(());
        }
        db.execute(
            "DELETE FROM responses WHERE key IN (SELECT key FROM responses ORDER BY saved_ms, rowid LIMIT ?1)",
            [surplus.cast_signed()],
        )?;
    }
}
