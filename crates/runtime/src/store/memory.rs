//! Searches the memory: passages of text in the session log and in saved runs, ranked by words, by meaning, or by both.
//!
//! The log is indexed as it is written. A run is saved many times, so its text is read only for a search.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};
use serde_json::Value;
use toolwright_core::canonical::ContentHash;
use toolwright_core::content::joined_text;
use toolwright_core::model::Message;
use toolwright_core::session::Session;
use toolwright_core::store::{FoundPassages, Memory, Passage, SearchMode, StoreError};
use toolwright_search::{
    Document, DocumentKey, LexicalIndex, Query, Ranked, Searchable, SemanticQuery, VectorSource, auto,
};

use super::{SqliteStore, now_ms};

/// Passages with words of the query that are ranked.
const MATCHING: usize = 200;
/// Newest passages that are also ranked by meaning.
const NEWEST: usize = 400;

/// Runs that one search reads at most, the newest first; the next search continues.
const MAX_RUNS: usize = 200;
/// Runs that are read before other requests get their turn.
const RUNS: usize = 4;
/// The most bytes of one passage that are searched.
const MAX_TEXT: usize = 8 << 10;
/// The most bytes of one passage that are shown.
const MAX_SHOWN: usize = 1_500;
/// The most passages kept of one run, the newest.
const MAX_OF_RUN: usize = 1_000;
/// The most passages kept of one principal's runs, the newest runs first.
const MAX_OF_PRINCIPAL: i64 = 20_000;
/// The most words of a query.
const MAX_WORDS: usize = 32;

/// Selects the log's rows, and the passages of runs, of the principal ?1, except the conversation of the session ?2.
const LOG: &str = "SELECT at_ms, ifnull(agent, ifnull(author, 'toolwright')), \
    CASE WHEN is_message THEN kind || ' ' || session_log.name ELSE session_log.name END || ' in ' || \
    CASE WHEN instr(session, 'channel/') = 1 THEN 'a channel' ELSE 'session ' || session END, \
    CASE WHEN is_message THEN session_log.text ELSE session_log.name || ' = ' || ifnull(session_log.data, '') END";
/// Rows that say something: a value that was deleted does not, nor does a note on a file.
const HAS_CONTENT_SQL: &str = "(session_log.is_message OR (session_log.data <> 'null' AND session <> 'file-writes'))";
const RUN: &str = "SELECT at_ms, who, 'run ' || run, run_passages.text";

const NO_EMBEDDINGS: &str = "ranked by words alone: no embeddings are set, see selection.embeddings";

/// The memory of one store.
pub struct StoredMemory {
    store: Arc<SqliteStore>,
    vectors: OnceLock<Arc<dyn VectorSource>>,
}

impl std::fmt::Debug for StoredMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredMemory").finish_non_exhaustive()
    }
}

impl StoredMemory {
    /// Creates the memory of the session log and the saved runs of `store`.
    #[must_use]
    pub fn new(store: Arc<SqliteStore>) -> Arc<Self> {
        Arc::new(Self { store, vectors: OnceLock::new() })
    }

    /// Returns the store that it searches.
    #[must_use]
    pub fn store(&self) -> &Arc<SqliteStore> {
        &self.store
    }

    /// Sets the source of text vectors. Only the first call counts.
    pub fn use_vectors(&self, source: Arc<dyn VectorSource>) {
        let _ = self.vectors.set(source);
    }

    /// Ranks by meaning, and by words too if `mode` says so. `Err`: why there are no vectors.
    async fn by_meaning(
        &self,
        session: &Session,
        query: &str,
        mode: SearchMode,
        limit: usize,
    ) -> Result<FoundPassages, NoVectorRanking> {
        let source = self.vectors.get().ok_or_else(|| NoVectorRanking::Vectors(NO_EMBEDDINGS.into()))?;
        let because = |error: toolwright_core::embedding::EmbeddingError| {
            NoVectorRanking::Vectors(format!("ranked by words alone: {error}"))
        };
        let vectors = source.tool_vectors().await.map_err(because)?;
        let vectors = vectors.ok_or_else(|| NoVectorRanking::Vectors(NO_EMBEDDINGS.into()))?;
        let mut passages = self.store.matching_passages(session, query, MATCHING).await?;
        passages.extend(self.store.newest_passages(session, NEWEST).await?);
        let mut distinct = HashSet::new();
        passages.retain(|passage| distinct.insert(passage.clone()));
        let texts: Vec<Text<'_>> = passages.iter().map(Text::of).collect();
        let of_texts = vectors.of(&texts).await.map_err(because)?;
        let of_query = vectors.query(query).await.map_err(because)?;
        let keep = |_: usize| true;
        let ranked: Vec<Ranked> = match mode {
            SearchMode::Semantic => of_texts.rank(&of_query, limit, &keep),
            SearchMode::Text | SearchMode::Hybrid => {
                let index = LexicalIndex::build(&texts, None);
                let meaning = SemanticQuery { vectors: &of_texts, query: &of_query };
                auto(&index, &Query::new(query), Some(meaning), limit, &keep)
            }
        };
        let passages = ranked.iter().filter_map(|one| passages.get(one.index).cloned()).collect();
        Ok(FoundPassages { passages, note: None })
    }
}

/// The reason why ranking by meaning is not possible.
enum NoVectorRanking {
    Vectors(String),
    Store(StoreError),
}

impl From<StoreError> for NoVectorRanking {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

#[async_trait]
impl Memory for StoredMemory {
    async fn search(
        &self,
        session: &Session,
        query: &str,
        mode: SearchMode,
        limit: usize,
    ) -> Result<FoundPassages, StoreError> {
        self.store.read_runs(&session.principal.id).await?;
        let note = match mode {
            SearchMode::Text => None,
            _ => match self.by_meaning(session, query, mode, limit).await {
                Ok(found) => return Ok(found),
                Err(NoVectorRanking::Store(error)) => return Err(error),
                Err(NoVectorRanking::Vectors(why)) => Some(why),
            },
        };
        Ok(FoundPassages { passages: self.store.matching_passages(session, query, limit).await?, note })
    }
}

/// A passage as a document of the search.
struct Text<'a> {
    passage: &'a Passage,
    key: DocumentKey,
}

impl<'a> Text<'a> {
    fn of(passage: &'a Passage) -> Self {
        let hash = ContentHash::of_bytes(passage.text.as_bytes());
        let half = |bytes: &[u8]| bytes.iter().take(8).fold(0, |sum: u64, byte| (sum << 8) | u64::from(*byte));
        let bytes = hash.as_bytes();
        Self { passage, key: DocumentKey(half(bytes), half(&bytes[8..])) }
    }
}

impl Searchable for Text<'_> {
    fn key(&self) -> DocumentKey {
        self.key
    }

    fn document(&self) -> Document<'_> {
        Document { description: &self.passage.text, ..Document::default() }
    }
}

impl SqliteStore {
    /// Returns the passages with words of `query` that the session's principal may see, the best first.
    async fn matching_passages(
        &self,
        session: &Session,
        query: &str,
        limit: usize,
    ) -> Result<Vec<Passage>, StoreError> {
        let Some(words) = words(query) else { return Ok(Vec::new()) };
        let (principal, session) = (session.principal.id.clone(), session.id.as_str().to_owned());
        self.thread
            .run("search the memory", move |db| {
                let log = format!(
                    "{LOG}, bm25(session_log_text) FROM session_log_text JOIN session_log ON seq = session_log_text.rowid \
                     WHERE session_log_text MATCH ?4 AND {HAS_CONTENT_SQL} AND principal = ?1 AND ?2 = ?2 ORDER BY 5 LIMIT ?3"
                );
                let run = format!(
                    "{RUN}, bm25(run_text) FROM run_text JOIN run_passages ON id = run_text.rowid \
                     WHERE run_text MATCH ?4 AND principal = ?1 AND session <> ?2 ORDER BY 5 LIMIT ?3"
                );
                let mut found: Vec<(f64, Passage)> = Vec::new();
                for sql in [log, run] {
                    let values = params![principal, session, i64::try_from(limit).unwrap_or(i64::MAX), words];
                    let mut statement = db.prepare_cached(&sql)?;
                    let rows = statement.query_map(values, |row| Ok((row.get(4)?, passage(row)?)))?;
                    found.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
                }
                // The best have the lowest rank.
                found.sort_by(|(a, _), (b, _)| a.total_cmp(b));
                Ok(found.into_iter().take(limit).map(|(_, passage)| passage).collect())
            })
            .await
    }

    /// Returns the newest passages that the session's principal may see.
    async fn newest_passages(&self, session: &Session, limit: usize) -> Result<Vec<Passage>, StoreError> {
        let (principal, session) = (session.principal.id.clone(), session.id.as_str().to_owned());
        self.thread
            .run("read the memory", move |db| {
                let sql = format!(
                    "SELECT * FROM ({LOG} FROM session_log WHERE principal = ?1 AND ?2 = ?2 AND bytes > 0 AND {HAS_CONTENT_SQL} ORDER BY seq DESC LIMIT ?3) \
                     UNION ALL SELECT * FROM ({RUN} FROM run_passages WHERE principal = ?1 AND session <> ?2 \
                     ORDER BY at_ms DESC, id DESC LIMIT ?3) ORDER BY 1 DESC LIMIT ?3"
                );
                let values = params![principal, session, i64::try_from(limit).unwrap_or(i64::MAX)];
                db.prepare_cached(&sql)?.query_map(values, passage)?.collect()
            })
            .await
    }

    /// Reads the text of the principal's runs that were saved since the last time.
    async fn read_runs(&self, principal: &str) -> Result<(), StoreError> {
        for _ in 0..MAX_RUNS.div_ceil(RUNS) {
            let principal = principal.to_owned();
            let read = self.thread.run("read the text of runs", move |db| read_runs(db, &principal)).await?;
            if read < RUNS {
                break;
            }
        }
        Ok(())
    }
}

/// Reads a few runs. Returns how many.
fn read_runs(db: &mut Connection, principal: &str) -> rusqlite::Result<usize> {
    let transaction = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    transaction.execute("DELETE FROM run_passages WHERE run NOT IN (SELECT id FROM runs)", [])?;
    transaction.execute("DELETE FROM runs_read WHERE run NOT IN (SELECT id FROM runs)", [])?;
    let runs: Vec<(String, i64, String, String)> = transaction
        .prepare_cached(
            "SELECT runs.id, saved_ms, state, min(session) FROM runs JOIN traces ON traces.run = runs.id \
             WHERE principal = ?1 AND NOT EXISTS \
             (SELECT 1 FROM runs_read WHERE runs_read.run = runs.id AND runs_read.saved_ms >= runs.saved_ms) \
             GROUP BY runs.id ORDER BY saved_ms DESC LIMIT ?2",
        )?
        .query_map(params![principal, i64::try_from(RUNS).unwrap_or(i64::MAX)], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    for (run, saved_ms, state, session) in &runs {
        transaction.prepare_cached("DELETE FROM run_passages WHERE run = ?1")?.execute([run])?;
        let mut insert = transaction.prepare_cached(
            "INSERT INTO run_passages (run, session, principal, who, at_ms, text) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        let texts = speakers_and_texts(state);
        for (who, text) in texts.into_iter().rev().take(MAX_OF_RUN).rev() {
            insert.execute(params![run, session, principal, who, saved_ms, cut(&text, MAX_TEXT)])?;
        }
        transaction
            .prepare_cached("INSERT OR REPLACE INTO runs_read VALUES (?1, ?2)")?
            .execute(params![run, (*saved_ms).min(now_ms())])?;
    }
    if !runs.is_empty() {
        let sql = "DELETE FROM run_passages WHERE id IN (SELECT id FROM run_passages WHERE principal = ?1 \
                   ORDER BY at_ms DESC, id DESC LIMIT -1 OFFSET ?2)";
        transaction.prepare_cached(sql)?.execute(params![principal, MAX_OF_PRINCIPAL])?;
    }
    transaction.commit()?;
    Ok(runs.len())
}

/// Returns the speakers and texts of a saved run; nothing if the state is unreadable.
fn speakers_and_texts(state: &str) -> Vec<(String, String)> {
    let messages = serde_json::from_str::<Value>(state)
        .ok()
        .and_then(|mut state| serde_json::from_value::<Vec<Message>>(state.get_mut("messages").map(Value::take)?).ok());
    let mut texts = Vec::new();
    for message in messages.unwrap_or_default() {
        match message {
            Message::User { content } => {
                let text = joined_text(&content);
                let who = if text.starts_with("[toolwright") { "toolwright" } else { "user" };
                texts.push((who.to_owned(), text));
            }
            Message::Assistant { text, .. } => texts.push(("assistant".to_owned(), text)),
            Message::Tool { results } => {
                texts.extend(results.into_iter().map(|result| (result.name, joined_text(&result.content))));
            }
        }
    }
    texts.retain(|(_, text)| !text.trim().is_empty());
    texts
}

/// Returns a full-text query that finds all of its words; `None` without words.
fn words(query: &str) -> Option<String> {
    let words: Vec<String> = query
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .take(MAX_WORDS)
        .map(|word| format!("\"{word}\""))
        .collect();
    (!words.is_empty()).then(|| words.join(" OR "))
}

fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

fn passage(row: &Row<'_>) -> rusqlite::Result<Passage> {
    let text: String = row.get(3)?;
    let excerpt = cut(&text, MAX_SHOWN);
    let more = if excerpt.len() < text.len() { " [cut]" } else { "" };
    Ok(Passage {
        at_ms: row.get::<_, i64>(0)?.cast_unsigned(),
        who: row.get(1)?,
        place: row.get(2)?,
        text: format!("{excerpt}{more}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_words_and_never_syntax() {
        for (query, expect) in [
            ("why did it fail", Some("\"why\" OR \"did\" OR \"it\" OR \"fail\"")),
            ("NEAR(a\" b*) -c", Some("\"NEAR\" OR \"a\" OR \"b\" OR \"c\"")),
            ("\u{fc}ber", Some("\"\u{fc}ber\"")),
            (" -*\" ", None),
        ] {
            assert_eq!(words(query).as_deref(), expect, "{query}");
        }
    }

    #[test]
    fn runs_name_the_speaker_of_each_text() {
        let state = serde_json::json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        ]});
        let message = serde_json::to_value(vec![Message::user("hi"), Message::user("[toolwright notice] x")]);
        let state = serde_json::json!({"messages": message.unwrap_or(state)}).to_string();
        assert_eq!(
            speakers_and_texts(&state),
            [("user".into(), "hi".into()), ("toolwright".into(), "[toolwright notice] x".into())]
        );
        assert!(speakers_and_texts("no state").is_empty());
    }
}
