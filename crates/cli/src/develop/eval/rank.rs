//! Ranks a catalogue for a query as `pick` does, without the cut-off.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use toolwright::app::embedder;
use toolwright::core::Snapshot;
use toolwright::search::{
    HYBRID_DEPTH, Hybrid, Meaning, PickInput, PickOptions, Picking, SearchIndex, ToolVectors, Vectors,
};

use crate::exit::Failure;

/// A scorer by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ScorerName {
    /// The share of the query's words that a tool has.
    Keyword,
    /// BM25 over the fields of a tool.
    Bm25,
    /// Cosine of sentence embeddings.
    Embedding,
    /// BM25 and embeddings, weighted.
    Hybrid,
    /// Words, and meaning where there are embeddings.
    Auto,
}

/// Ranks a catalogue.
pub(super) struct Ranker {
    snapshot: Snapshot,
    index: SearchIndex,
    scorer: ScorerName,
    meaning: Option<CatalogueVectors>,
    /// What making the lexical index took.
    pub(super) index_time: Duration,
}

/// The vectors of the catalogue's tools.
pub(super) struct CatalogueVectors {
    source: ToolVectors,
    vectors: Arc<Vectors>,
    /// What making them took.
    pub(super) time: Duration,
}

impl Ranker {
    /// One for `snapshot`, with the sentence-transformer of a directory if there is one. The vectors that it makes of
    /// tools are kept in the directory `kept`, as those of `pick` are: a large catalogue takes it minutes.
    pub(super) async fn new(
        snapshot: Snapshot,
        scorer: ScorerName,
        embeddings: Option<&Path>,
        kept: &Path,
    ) -> Result<Self, Failure> {
        if matches!(scorer, ScorerName::Embedding | ScorerName::Hybrid) && embeddings.is_none() {
            return Err(Failure::usage(
                "this scorer needs sentence embeddings: name their directory with --embeddings",
            ));
        }
        let start = Instant::now();
        let index = SearchIndex::default();
        let _ = index.lexical(&snapshot);
        let index_time = start.elapsed();
        let meaning = match embeddings {
            Some(path) => Some(CatalogueVectors::new(path, kept, &snapshot).await?),
            None => None,
        };
        Ok(Self { snapshot, index, scorer, meaning, index_time })
    }

    /// How many tools there are.
    pub(super) fn tools(&self) -> usize {
        self.snapshot.list().len()
    }

    /// Bytes of the lexical index and of the vectors.
    pub(super) fn bytes(&self) -> usize {
        self.index.lexical(&self.snapshot).bytes() + self.meaning.as_ref().map_or(0, |meaning| meaning.vectors.bytes())
    }

    pub(super) fn meaning(&self) -> Option<&CatalogueVectors> {
        self.meaning.as_ref()
    }

    /// The vector of a query, where there are embeddings.
    pub(super) async fn embed(&self, query: &str) -> Result<Option<Arc<[f32]>>, Failure> {
        match &self.meaning {
            Some(meaning) => meaning.source.query(query).await.map(Some).map_err(Failure::failed),
            None => Ok(None),
        }
    }

    /// Positions of the first `limit` tools for `query`, best first. There is no cut: what nothing speaks for comes
    /// last, in the order of registration.
    pub(super) fn rank(&self, query: &str, vector: Option<&[f32]>, limit: usize) -> Vec<usize> {
        let options =
            PickOptions { max_candidates: limit, min_score: 0.0, allow_unsafe: true, ..PickOptions::default() };
        let query = PickInput::from(query);
        let picking = Picking::begin(&query, &self.snapshot, &self.index, &options);
        let (enough, any) = (picking.enough(), |_| true);
        let meaning = self.meaning.as_ref().zip(vector);
        let ranked = match (self.scorer, meaning) {
            (ScorerName::Keyword, _) => picking.by_keyword(enough, &any),
            (ScorerName::Embedding, Some((meaning, vector))) => meaning.vectors.rank(vector, enough, &any),
            (ScorerName::Hybrid, Some((meaning, vector))) => {
                let near = meaning.vectors.rank(vector, HYBRID_DEPTH, &any);
                picking.by_hybrid(Hybrid::default(), &near, enough, &any).0
            }
            (ScorerName::Auto, meaning) => {
                let meaning = meaning.map(|(meaning, query)| Meaning { vectors: &meaning.vectors, query });
                picking.by_all(meaning, enough, &any)
            }
            _ => picking.by_bm25(enough, &any),
        };
        let mut first: Vec<usize> = picking.order(&ranked).take(limit).map(|ranked| ranked.index).collect();
        if first.len() < limit {
            let others: Vec<usize> = (0..self.tools()).filter(|position| !first.contains(position)).collect();
            first.extend(others.into_iter().take(limit - first.len()));
        }
        first
    }
}

impl CatalogueVectors {
    async fn new(path: &Path, kept: &Path, snapshot: &Snapshot) -> Result<Self, Failure> {
        let embedder = embedder(path).await.map_err(Failure::usage)?;
        let start = Instant::now();
        let source = ToolVectors::new(embedder, Some(kept));
        let vectors = source.of(snapshot.list()).await.map_err(Failure::failed)?;
        Ok(Self { source, vectors, time: start.elapsed() })
    }
}
