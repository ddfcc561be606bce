//! Searches the memory: passages of the store, ranked by words, by meaning, or by both.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use toolwright_core::canonical::ContentHash;
use toolwright_core::session::Session;
use toolwright_core::store::{FoundPassages, Memory, Passage, SearchMode, StoreError};
use toolwright_search::{
    Document, DocumentKey, LexicalIndex, Query, Ranked, Searchable, SemanticQuery, VectorSource, auto,
};

use super::SqliteStore;

/// Passages with words of the query that are ranked.
const MATCHING: usize = 200;
/// Newest passages that are also ranked by meaning.
const NEWEST: usize = 400;

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
        let mut seen = HashSet::new();
        passages.retain(|passage| seen.insert(passage.clone()));
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
