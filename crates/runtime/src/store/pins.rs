//! Stores pinned definitions.

use async_trait::async_trait;
use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use toolwright_core::canonical::ContentHash;
use toolwright_core::pins::{Pin, PinMark, PinSource, PinUpdate};
use toolwright_core::store::{PinContracts, PinDecision, PinStore, PinWrite, StoreError};
use toolwright_core::tool_id::ToolId;

use super::SqliteStore;
use super::{from_json, now_ms, to_json, unreadable};

/// A note with its definition as text.
struct PinRow {
    note: PinWrite,
    contract: String,
}

#[async_trait]
impl PinStore for SqliteStore {
    async fn pins(&self, source: Option<&PinSource>) -> Result<Vec<Pin>, StoreError> {
        let source = source.cloned();
        self.thread
            .run("read pins", move |db| {
                const COLUMNS: &str = "SELECT provider, scope, tool, id, hash, pinned_ms, pinned_by, next_hash, next_ms, next_tool \
                                       FROM pins";
                match source {
                    Some(PinSource { provider, scope }) => db
                        .prepare_cached(&format!("{COLUMNS} WHERE provider = ?1 AND scope = ?2 ORDER BY tool"))?
                        .query_map(params![provider, scope], pin)?
                        .collect(),
                    None => db
                        .prepare_cached(&format!("{COLUMNS} ORDER BY provider, scope, tool"))?
                        .query_map([], pin)?
                        .collect(),
                }
            })
            .await
    }

    async fn pin_contracts(&self, source: &PinSource, tools: &[String]) -> Result<Vec<PinContracts>, StoreError> {
        let (PinSource { provider, scope }, tools) = (source.clone(), tools.to_vec());
        let rows: Vec<Option<(Option<String>, Option<String>)>> = self
            .thread
            .run("read pinned definitions", move |db| {
                let mut row = db.prepare_cached(
                    "SELECT contract, next_contract FROM pins WHERE provider = ?1 AND scope = ?2 AND tool = ?3",
                )?;
                let mut contracts =
                    |tool| row.query_row(params![provider, scope, tool], |row| Ok((row.get(0)?, row.get(1)?)));
                tools.iter().map(|tool| contracts(tool).optional()).collect()
            })
            .await?;
        let value = |text: Option<String>| text.map(|text| from_json(&text)).transpose();
        rows.into_iter()
            .map(|row| {
                let (approved, waiting) = row.unwrap_or_default();
                Ok(PinContracts { approved: value(approved)?, waiting: value(waiting)? })
            })
            .collect()
    }

    async fn note_pins(&self, source: &PinSource, notes: Vec<PinWrite>) -> Result<(), StoreError> {
        let source = source.clone();
        let mut written = Vec::with_capacity(notes.len());
        for note in notes {
            written.push(PinRow { contract: to_json(&note.contract)?, note });
        }
        self.thread
            .run("note pins", move |db| {
                let transaction = db.transaction()?;
                for one in &written {
                    note(&transaction, &source, one)?;
                }
                transaction.commit()
            })
            .await
    }

    async fn decide_pin(
        &self,
        source: &PinSource,
        tool: &str,
        decision: PinDecision,
        by: &str,
    ) -> Result<bool, StoreError> {
        let (source, tool, by) = (source.clone(), tool.to_owned(), by.to_owned());
        self.thread
            .run("decide about a pin", move |db| {
                let transaction = db.transaction()?;
                let PinSource { provider, scope } = &source;
                let changed = match decision {
                    PinDecision::Approve(hash) => transaction.execute(
                        "UPDATE OR REPLACE pins SET tool = ifnull(next_tool, tool), hash = next_hash, \
                         contract = next_contract, pinned_ms = ?4, pinned_by = ?5, \
                         next_hash = NULL, next_contract = NULL, next_ms = NULL, next_tool = NULL \
                         WHERE provider = ?1 AND scope = ?2 AND tool = ?3 AND next_hash IS NOT NULL \
                         AND (?6 IS NULL OR next_hash = ?6)",
                        params![provider, scope, tool, now_ms(), by, hash.map(|hash| hash.to_hex())],
                    )?,
                    PinDecision::Revoke => transaction.execute(
                        "UPDATE pins SET next_ms = CASE WHEN next_hash IS NULL THEN ?4 ELSE next_ms END, \
                         next_contract = ifnull(next_contract, contract), next_hash = ifnull(next_hash, hash), \
                         hash = NULL, contract = NULL, pinned_ms = NULL, pinned_by = NULL \
                         WHERE provider = ?1 AND scope = ?2 AND tool = ?3 AND hash IS NOT NULL",
                        params![provider, scope, tool, now_ms()],
                    )?,
                    PinDecision::Forget => transaction.execute(
                        "DELETE FROM pins WHERE provider = ?1 AND scope = ?2 AND tool = ?3",
                        params![provider, scope, tool],
                    )?,
                };
                if changed > 0 {
                    transaction.execute("UPDATE pin_decisions SET number = number + 1", [])?;
                }
                transaction.commit()?;
                Ok(changed > 0)
            })
            .await
    }

    async fn pin_decisions(&self) -> Result<u64, StoreError> {
        let number: i64 = self
            .thread
            .run("look for decisions about pins", |db| {
                db.prepare_cached("SELECT number FROM pin_decisions")?.query_row([], |row| row.get(0))
            })
            .await?;
        Ok(number.cast_unsigned())
    }
}

fn note(db: &Transaction<'_>, source: &PinSource, PinRow { note, contract }: &PinRow) -> rusqlite::Result<()> {
    let PinSource { provider, scope } = source;
    let (tool, id, hash) = (&note.tool, note.id.as_str(), note.hash.to_hex());
    match note.note {
        PinUpdate::Nothing => Ok(()),
        PinUpdate::Pin => db
            .prepare_cached(
                "INSERT OR IGNORE INTO pins (provider, scope, tool, id, hash, contract, pinned_ms, pinned_by) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'first use')",
            )?
            .execute(params![provider, scope, tool, id, hash, contract, now_ms()])
            .map(drop),
        PinUpdate::Wait => db
            .prepare_cached(
                "INSERT INTO pins (provider, scope, tool, id, next_hash, next_contract, next_ms, next_tool) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (provider, scope, tool) \
                 DO UPDATE SET id = ?4, next_hash = ?5, next_contract = ?6, next_ms = ?7, next_tool = ?8",
            )?
            .execute(params![provider, scope, tool, id, hash, contract, now_ms(), note.renamed])
            .map(drop),
        PinUpdate::Settle => db
            .prepare_cached(
                "UPDATE pins SET next_hash = NULL, next_contract = NULL, next_ms = NULL, next_tool = NULL \
                 WHERE provider = ?1 AND scope = ?2 AND tool = ?3 AND hash = ?4",
            )?
            .execute(params![provider, scope, tool, hash])
            .map(drop),
    }
}

fn pin(row: &Row<'_>) -> rusqlite::Result<Pin> {
    let id: String = row.get(3)?;
    let approved = mark(row, 4, 5)?;
    let by: Option<String> = row.get(6)?;
    Ok(Pin {
        source: PinSource { provider: row.get(0)?, scope: row.get(1)? },
        tool: row.get(2)?,
        id: ToolId::parse(&id).map_err(|error| unreadable(3, error))?,
        approved: approved.map(|mark| PinMark { by: by.unwrap_or_default(), ..mark }),
        waiting: mark(row, 7, 8)?,
        renamed: row.get(9)?,
    })
}

/// Reads the hash and time in these columns.
fn mark(row: &Row<'_>, hash: usize, at: usize) -> rusqlite::Result<Option<PinMark>> {
    let Some(text) = row.get::<_, Option<String>>(hash)? else { return Ok(None) };
    let hash: ContentHash = serde_json::from_value(text.into()).map_err(|error| unreadable(hash, error))?;
    Ok(Some(PinMark { hash, at_ms: row.get::<_, i64>(at)?.cast_unsigned(), by: String::new() }))
}
