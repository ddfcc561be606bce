//! Measures how well queries find the tools that they need: ranks a catalogue as `pick` does but without its cut-off,
//! and sums up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolwright_core::Snapshot;
use toolwright_search::ranking_metrics::{complete, ndcg, percentile, recall};
use toolwright_search::{
    HYBRID_DEPTH, Hybrid, PickConfig, PickInput, PickOptions, PickRun, SemanticQuery, SnapshotIndex, ToolVectors,
    Vectors,
};

use super::tasks::Query;

/// The number of ranks that the figures use.
const DEPTH: usize = 10;
/// Queries that are answered before times are measured.
const WARM_UP: usize = 50;

/// How tools are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scorer {
    /// The share of the query's words that a tool contains.
    Keyword,
    /// BM25 over the fields of a tool.
    Bm25,
    /// Cosine of sentence embeddings.
    Embedding,
    /// BM25 and embeddings, weighted.
    Hybrid,
    /// Words, and meaning if there are embeddings.
    Auto,
}

/// Ranks a catalogue.
pub struct Ranker {
    snapshot: Snapshot,
    index: SnapshotIndex,
    scorer: Scorer,
    meaning: Option<CatalogueVectors>,
    /// The time for building the lexical index.
    index_time: Duration,
}

/// The vectors of the catalogue's tools.
struct CatalogueVectors {
    source: ToolVectors,
    vectors: Arc<Vectors>,
    /// The time for computing them.
    time: Duration,
}

impl Ranker {
    /// Creates one for `snapshot`, with sentence embeddings if there are any.
    ///
    /// # Errors
    /// The scorer needs embeddings, and there are none or they cannot be computed.
    pub async fn new(snapshot: Snapshot, scorer: Scorer, embeddings: Option<ToolVectors>) -> Result<Self, String> {
        if matches!(scorer, Scorer::Embedding | Scorer::Hybrid) && embeddings.is_none() {
            return Err("this scorer needs sentence embeddings: name their directory with --embeddings".to_owned());
        }
        let start = Instant::now();
        let index = SnapshotIndex::default();
        let _ = index.lexical(&snapshot);
        let index_time = start.elapsed();
        let meaning = match embeddings {
            Some(source) => {
                let start = Instant::now();
                let vectors = source.of(snapshot.list()).await.map_err(|error| error.to_string())?;
                Some(CatalogueVectors { source, vectors, time: start.elapsed() })
            }
            None => None,
        };
        Ok(Self { snapshot, index, scorer, meaning, index_time })
    }

    /// Measures how well the queries find their tools: of all of them, and of both halves.
    ///
    /// # Errors
    /// A query's vector cannot be computed.
    pub async fn measure(&self, queries: &[Query]) -> Result<(Figures, [Figures; 2]), String> {
        for Query { text, .. } in queries.iter().take(WARM_UP) {
            self.rank(text, self.embed(text).await?.as_deref(), DEPTH);
        }
        let (mut tally, mut halves) = (Tally::default(), [Tally::default(), Tally::default()]);
        for Query { half, text, relevant } in queries {
            let is_new = self.meaning.as_ref().is_some_and(|meaning| !meaning.source.remembers(text));
            let start = Instant::now();
            let vector = self.embed(text).await?;
            let embedded = Instant::now();
            let ranked = self.rank(text, vector.as_deref(), DEPTH);
            let (embedding, ranking) = (embedded - start, embedded.elapsed());
            for tally in [&mut tally, &mut halves[*half]] {
                tally.add(&ranked, relevant, is_new.then_some(embedding), ranking);
            }
        }
        let figures = Figures {
            tools: self.tools(),
            index_time: self.index_time,
            index_bytes: self.index.lexical(&self.snapshot).bytes()
                + self.meaning.as_ref().map_or(0, |meaning| meaning.vectors.bytes()),
            vectors_time: self.meaning.as_ref().map(|meaning| meaning.time),
            ..tally.figures()
        };
        Ok((figures, halves.map(Tally::figures)))
    }

    /// Returns the number of tools.
    fn tools(&self) -> usize {
        self.snapshot.list().len()
    }

    /// Returns the vector of a query, if there are embeddings.
    async fn embed(&self, query: &str) -> Result<Option<Arc<[f32]>>, String> {
        match &self.meaning {
            Some(meaning) => meaning.source.query(query).await.map(Some).map_err(|error| error.to_string()),
            None => Ok(None),
        }
    }

    /// Returns the positions of the first `limit` tools for `query`, best first. There is no cut-off: tools without any
    /// match come last, in registration order.
    fn rank(&self, query: &str, vector: Option<&[f32]>, limit: usize) -> Vec<usize> {
        let config = PickConfig { max_candidates: limit, min_score: 0.0, allow_unsafe: true, ..PickConfig::default() };
        let options = PickOptions { config, ..PickOptions::default() };
        let query = PickInput::from(query);
        let picking = PickRun::begin(&query, &self.snapshot, &self.index, &options);
        let (enough, any) = (picking.enough(), |_| true);
        let meaning = self.meaning.as_ref().zip(vector);
        let ranked = match (self.scorer, meaning) {
            (Scorer::Keyword, _) => picking.by_keyword(enough, &any),
            (Scorer::Embedding, Some((meaning, vector))) => meaning.vectors.rank(vector, enough, &any),
            (Scorer::Hybrid, Some((meaning, vector))) => {
                let near = meaning.vectors.rank(vector, HYBRID_DEPTH, &any);
                picking.by_hybrid(Hybrid::default(), &near, enough, &any).0
            }
            (Scorer::Auto, meaning) => {
                let meaning = meaning.map(|(meaning, query)| SemanticQuery { vectors: &meaning.vectors, query });
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

/// Sums over queries.
#[derive(Debug, Default)]
struct Tally {
    sums: Figures,
    times: Vec<f64>,
    embed_times: Vec<f64>,
}

/// The measured figures. Shares are from 0 to 1, times of a query in microseconds.
#[derive(Debug, Default)]
pub struct Figures {
    /// The number of queries.
    pub queries: usize,
    /// The number of tools.
    pub tools: usize,
    /// Recall at each of [`DEPTHS`].
    pub recall: [f64; DEPTHS.len()],
    /// NDCG at 10.
    pub ndcg: f64,
    /// The share of queries with all of their tools among the first 5.
    pub complete: f64,
    /// The median time of a query.
    pub p50: f64,
    /// The 99th percentile of a query's time.
    pub p99: f64,
    /// The median time of a query's vector.
    pub embed_p50: f64,
    /// The time for the lexical index.
    pub index_time: Duration,
    /// The size of the lexical index and the vectors, in bytes.
    pub index_bytes: usize,
    /// The time for the tools' vectors, if there are embeddings.
    pub vectors_time: Option<Duration>,
}

/// The depths of recall.
pub const DEPTHS: [usize; 4] = [1, 3, 5, 10];

impl Tally {
    fn add(&mut self, ranked: &[usize], relevant: &[usize], embedding: Option<Duration>, ranking: Duration) {
        let sums = &mut self.sums;
        sums.queries += 1;
        for (sum, k) in sums.recall.iter_mut().zip(DEPTHS) {
            *sum += recall(ranked, relevant, k);
        }
        sums.ndcg += ndcg(ranked, relevant, 10);
        sums.complete += f64::from(u8::from(complete(ranked, relevant, 5)));
        self.times.push(ranking.as_secs_f64() * 1e6);
        // A cached vector takes no time.
        self.embed_times.extend(embedding.map(|time| time.as_secs_f64() * 1e6));
    }

    fn figures(mut self) -> Figures {
        self.times.sort_unstable_by(f64::total_cmp);
        self.embed_times.sort_unstable_by(f64::total_cmp);
        let mean = |sum: f64| sum / self.sums.queries.max(1) as f64;
        Figures {
            recall: self.sums.recall.map(mean),
            ndcg: mean(self.sums.ndcg),
            complete: mean(self.sums.complete),
            p50: percentile(&self.times, 0.5),
            p99: percentile(&self.times, 0.99),
            embed_p50: percentile(&self.embed_times, 0.5),
            ..self.sums
        }
    }
}

impl Figures {
    /// Returns the figures that depend only on the rankings.
    #[must_use]
    pub fn quality(&self) -> Value {
        let [r1, r3, r5, r10] = self.recall;
        json!({
            "n": self.queries,
            "recall@1": r1,
            "recall@3": r3,
            "recall@5": r5,
            "recall@10": r10,
            "ndcg@10": self.ndcg,
            "complete@5": self.complete,
        })
    }

    /// Returns all figures.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut figures = self.quality();
        figures["tools"] = self.tools.into();
        figures["p50_us"] = tenths(self.p50).into();
        figures["p99_us"] = tenths(self.p99).into();
        figures["index_ms"] = tenths(milliseconds(self.index_time)).into();
        figures["index_bytes"] = self.index_bytes.into();
        if let Some(time) = self.vectors_time {
            figures["vectors_ms"] = tenths(milliseconds(time)).into();
            figures["embed_p50_us"] = tenths(self.embed_p50).into();
        }
        figures
    }
}

/// Returns a time in milliseconds.
#[must_use]
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Rounds to one decimal.
fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
