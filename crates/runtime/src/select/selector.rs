//! Scoring: one scorer after the other until one has an order to show.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde_json::json;
use toolwright_core::embedding::EmbeddingError;
use toolwright_core::select::{
    Cascade, HYBRID_DEPTH, Hybrid, Meaning, Method, Note, PickInput, PickOptions, Picked, Picking, Provenance, Ranked,
    Ranking, Score, Scorer, Vectors, judge,
};
use toolwright_core::{ContentHash, Entry, Snapshot, duration};

use super::ToolVectors;
use super::scores::KeptScores;

const NO_EMBEDDINGS: &str = "no embeddings are set: see selection.embeddings";

/// Where the vectors of tools come from.
#[async_trait]
pub trait VectorSource: Send + Sync {
    /// Those of the embedding model in use; `None` where there is none. Asked for when a pick needs them.
    ///
    /// # Errors
    /// Why the model cannot be used.
    async fn tool_vectors(&self) -> Result<Option<Arc<ToolVectors>>, EmbeddingError>;
}

#[async_trait]
impl VectorSource for Arc<ToolVectors> {
    async fn tool_vectors(&self) -> Result<Option<Arc<ToolVectors>>, EmbeddingError> {
        Ok(Some(Arc::clone(self)))
    }
}

/// Picks tools: the way from a query to the right few, whoever asks. Shared; keeps scores between picks.
#[derive(Default)]
pub struct Selector {
    vectors: Option<Arc<dyn VectorSource>>,
    judge: Option<Arc<dyn Scorer>>,
    kept: KeptScores,
}

/// The tools that a pass looks at.
enum Among {
    Candidates,
    These(HashSet<usize>),
}

impl Among {
    fn has(&self, picking: &Picking<'_>, position: usize) -> bool {
        match self {
            Self::Candidates => picking.is_candidate(position),
            Self::These(positions) => positions.contains(&position),
        }
    }
}

impl Selector {
    /// One that goes by words alone.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With embeddings, for [`Method::Auto`], [`Method::Embedding`] and [`Method::Hybrid`].
    #[must_use]
    pub fn with_vectors(self, vectors: Arc<dyn VectorSource>) -> Self {
        Self { vectors: Some(vectors), ..self }
    }

    /// With a scorer for [`Method::Judge`]: a [`super::ModelJudge`].
    #[must_use]
    pub fn with_judge(self, judge: Arc<dyn Scorer>) -> Self {
        Self { judge: Some(judge), ..self }
    }

    /// Makes what picks of `snapshot` by `method` will need, so that it does not count as the time of the first one:
    /// the lexical index and, where it goes by meaning, the vectors of the tools, which take seconds for a
    /// thousand. What fails will fail again when it is needed, and is told then.
    pub async fn prepare(&self, snapshot: &Snapshot, method: &Method) {
        let _ = snapshot.lexical();
        if method.uses_meaning()
            && let Ok(Some(vectors)) = self.tool_vectors().await
            && let Err(error) = vectors.of(snapshot.list()).await
        {
            tracing::debug!("vectors of tools: {}", error.message);
        }
    }

    /// Picks tools of `snapshot` for `query`. A scorer that fails is replaced by the next in line, and past
    /// [`PickOptions::timeout`] the tools come in the order of registration; the provenance says so. The future
    /// may be dropped at any time.
    pub async fn pick(&self, query: impl Into<PickInput<'_>>, snapshot: &Snapshot, options: &PickOptions) -> Picked {
        let query = query.into();
        let picking = Picking::begin(&query, snapshot, options);
        let mut provenance = Provenance::default();
        let ranking =
            self.rank(options.scorer.clone(), &picking, &Among::Candidates, picking.enough(), &mut provenance);
        let ranking = match options.timeout {
            Some(limit) => tokio::time::timeout(limit, ranking).await.map_err(|_| limit),
            None => Ok(ranking.await),
        };
        match ranking {
            Ok(ranking) => picking.finish(ranking, provenance),
            Err(limit) => {
                let why = format!("scoring took longer than {}", duration::format(limit));
                provenance.fell_back.push((options.scorer.name().to_owned(), why.clone()));
                picking.in_order(&why, provenance)
            }
        }
    }

    /// The order that `method` gives, or what takes its place.
    fn rank<'a>(
        &'a self,
        mut method: Method,
        picking: &'a Picking<'_>,
        among: &'a Among,
        limit: usize,
        provenance: &'a mut Provenance,
    ) -> BoxFuture<'a, Ranking> {
        Box::pin(async move {
            loop {
                let why = match self.attempt(&method, picking, among, limit, provenance).await {
                    Ok(ranking) => return ranking,
                    Err(why) => why,
                };
                provenance.fell_back.push((method.name().to_owned(), why));
                match method.fallback() {
                    Some(next) => method = next,
                    None => return Ranking::default(),
                }
            }
        })
    }

    async fn attempt(
        &self,
        method: &Method,
        picking: &Picking<'_>,
        among: &Among,
        limit: usize,
        provenance: &mut Provenance,
    ) -> Result<Ranking, String> {
        let keep = |position: usize| among.has(picking, position);
        let order = match method {
            Method::Keyword => picking.by_keyword(limit, &keep),
            Method::Bm25 => picking.by_bm25(limit, &keep),
            Method::Auto => return self.by_all(picking, among, limit).await,
            Method::Embedding => {
                let vectors = self.tool_vectors().await?.ok_or(NO_EMBEDDINGS)?;
                let order = by_meaning(&vectors, picking, among, limit).await?;
                let note = |ranked: &Ranked| {
                    let reason = Some(format!("like the query in meaning by {:.2}", ranked.score));
                    (ranked.index, Note { reason, details: None })
                };
                let notes = order.iter().map(note).collect();
                return Ok(Ranking { scorer: method.name().to_owned(), order, notes });
            }
            Method::Hybrid(hybrid) => {
                let vectors = self.tool_vectors().await?.ok_or(NO_EMBEDDINGS)?;
                return by_both(*hybrid, &vectors, picking, among, limit).await;
            }
            Method::Judge => {
                let cascade = Cascade { first: Method::Auto, then: Method::Judge, survivors: judge::MAX_JUDGED };
                return Ok(self.two_passes(&cascade, picking, among, provenance).await);
            }
            Method::Cascade(cascade) => return Ok(self.two_passes(cascade, picking, among, provenance).await),
            Method::Custom(scorer) => {
                let positions: Vec<usize> = picking.candidates().filter(|position| keep(*position)).collect();
                return self.by_scorer(&**scorer, picking, &positions, provenance).await;
            }
        };
        Ok(Ranking { scorer: method.name().to_owned(), order, ..Ranking::default() })
    }

    /// The second pass over what the first lets through; where it fails, the first.
    async fn two_passes(
        &self,
        cascade: &Cascade,
        picking: &Picking<'_>,
        among: &Among,
        provenance: &mut Provenance,
    ) -> Ranking {
        let Cascade { first, then, survivors } = cascade;
        let first = self.rank(first.clone(), picking, among, (*survivors).max(picking.enough()), provenance).await;
        let mut positions: Vec<usize> = first.order.iter().map(|ranked| ranked.index).take(*survivors).collect();
        let ranked: HashSet<usize> = positions.iter().copied().collect();
        let others =
            picking.candidates().filter(|position| among.has(picking, *position) && !ranked.contains(position));
        positions.extend(others.take(survivors.saturating_sub(positions.len())));
        let second = match (then, &self.judge) {
            (Method::Judge, None) => Err("no model is set that could judge: see selection.judge_model".to_owned()),
            (Method::Judge, Some(judge)) => {
                let ranking = self.by_scorer(&**judge, picking, &positions, provenance).await;
                ranking.map(|ranking| Ranking { scorer: then.name().to_owned(), ..ranking })
            }
            _ => {
                let among = Among::These(positions.into_iter().collect());
                Box::pin(self.attempt(then, picking, &among, picking.enough(), provenance)).await
            }
        };
        second.unwrap_or_else(|why| {
            provenance.fell_back.push((then.name().to_owned(), why));
            first
        })
    }

    /// The vectors of tools, if there is a model that makes them.
    async fn tool_vectors(&self) -> Result<Option<Arc<ToolVectors>>, String> {
        let Some(source) = &self.vectors else { return Ok(None) };
        source.tool_vectors().await.map_err(|error| error.message)
    }

    /// Words, and meaning where there are embeddings.
    async fn by_all(&self, picking: &Picking<'_>, among: &Among, limit: usize) -> Result<Ranking, String> {
        let (tools, query);
        let meaning = match self.tool_vectors().await? {
            Some(vectors) => {
                (tools, query) = both_meanings(&vectors, picking).await?;
                Some(Meaning { vectors: &tools, query: &query })
            }
            None => None,
        };
        let order = picking.by_all(meaning, limit, &|position| among.has(picking, position));
        Ok(Ranking { scorer: Method::Auto.name().to_owned(), order, ..Ranking::default() })
    }

    /// The order of somebody else's scores, which are asked for where they are not known.
    async fn by_scorer(
        &self,
        scorer: &dyn Scorer,
        picking: &Picking<'_>,
        positions: &[usize],
        provenance: &mut Provenance,
    ) -> Result<Ranking, String> {
        let entries = picking.snapshot().list();
        let asked = ContentHash::of_bytes(format!("{}\0{}", scorer.name(), picking.query()).as_bytes());
        let key = |position: usize| (asked, entries[position].tool.hash());
        let is_kept = !scorer.deterministic();
        let mut scores: HashMap<usize, Score> = HashMap::new();
        if is_kept {
            scores.extend(positions.iter().filter_map(|&position| Some((position, self.kept.get(&key(position))?))));
        }
        let missing: Vec<usize> = positions.iter().copied().filter(|position| !scores.contains_key(position)).collect();
        if !missing.is_empty() {
            let tools: Vec<&Entry> = missing.iter().map(|&position| &*entries[position]).collect();
            let answer = scorer.score(picking.query(), &tools).await.map_err(|error| error.to_string())?;
            provenance.usage.add(answer.usage);
            let given = answer.scores;
            if given.len() != missing.len() {
                return Err(format!("it gave {} scores for {} tools", given.len(), missing.len()));
            }
            if given.iter().any(|score| score.value.is_nan()) {
                return Err("it gave a score that is no number".into());
            }
            for (&position, score) in missing.iter().zip(&given) {
                if is_kept {
                    self.kept.keep(key(position), score.clone());
                }
            }
            scores.extend(missing.into_iter().zip(given));
        }
        let mut ranking = Ranking { scorer: scorer.name().to_owned(), ..Ranking::default() };
        for (index, score) in scores {
            ranking.order.push(Ranked { index, score: score.value.clamp(0.0, 1.0) });
            ranking.notes.insert(index, Note { reason: score.reason, details: score.details });
        }
        ranking.order.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.index.cmp(&b.index)));
        Ok(ranking)
    }
}

/// The tools whose meaning is near that of the query, by cosine; the first `limit`.
async fn by_meaning(
    vectors: &ToolVectors,
    picking: &Picking<'_>,
    among: &Among,
    limit: usize,
) -> Result<Vec<Ranked>, String> {
    let (tools, query) = both_meanings(vectors, picking).await?;
    Ok(tools.rank(&query, limit, &|position| among.has(picking, position)))
}

/// The vectors of the tools and of the query.
async fn both_meanings(vectors: &ToolVectors, picking: &Picking<'_>) -> Result<(Arc<Vectors>, Arc<[f32]>), String> {
    let tools = vectors.of(picking.snapshot().list()).await.map_err(|error| error.message)?;
    let query = vectors.query(picking.query()).await.map_err(|error| error.message)?;
    Ok((tools, query))
}

/// Words and meaning, weighted.
async fn by_both(
    hybrid: Hybrid,
    vectors: &ToolVectors,
    picking: &Picking<'_>,
    among: &Among,
    limit: usize,
) -> Result<Ranking, String> {
    let meaning = by_meaning(vectors, picking, among, HYBRID_DEPTH).await?;
    let (order, words) = picking.by_hybrid(hybrid, &meaning, limit, &|position| among.has(picking, position));
    let score = |ranking: &[Ranked], index| ranking.iter().find(|ranked| ranked.index == index).map(|it| it.score);
    let note = |ranked: &Ranked| {
        let (words, meaning) = (score(&words, ranked.index), score(&meaning, ranked.index));
        let reason = match (words, meaning) {
            (None, Some(meaning)) => Some(format!("like the query in meaning by {meaning:.2}")),
            // The words themselves say more.
            _ => None,
        };
        (ranked.index, Note { reason, details: Some(json!({"bm25": words, "cosine": meaning})) })
    };
    let notes = order.iter().map(note).collect();
    Ok(Ranking { scorer: Method::Hybrid(hybrid).name().to_owned(), order, notes })
}
