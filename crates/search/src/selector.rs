//! Runs scorers in order until one returns a ranking.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use crate::{
    Cascade, HYBRID_DEPTH, Hybrid, Method, PickInput, PickOptions, PickRun, Picked, Provenance, Ranked, Ranking, Score,
    Scorer, ScorerNote, SemanticQuery, SnapshotIndex, Vectors, judge,
};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};
use toolwright_core::context::NestedCalls;
use toolwright_core::embedding::EmbeddingError;
use toolwright_core::{ContentHash, Entry, Snapshot, duration};

use super::ToolVectors;
use super::pick::scorer::ScoreCache;

const NO_EMBEDDINGS: &str = "no embeddings are set: see selection.embeddings";
/// Factor for the meaning of an earlier turn, per turn; as for its words.
const DECAY: f32 = 0.5;
/// Number of cached indexes: agents and views with different tool lists alternate.
const MAX_INDEXES: usize = 16;

/// Source of tools' vectors.
#[async_trait]
pub trait VectorSource: Send + Sync {
    /// Returns the vectors of the current embedding model; `None` without one. Called when a pick needs them.
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

/// Picks the right few tools for a query. Shared; caches scores between picks.
#[derive(Default)]
pub struct Selector {
    vectors: Option<Arc<dyn VectorSource>>,
    judge: Option<Arc<dyn Scorer>>,
    scores: ScoreCache,
    /// Indexes of recently used snapshots, latest last.
    indexes: std::sync::Mutex<VecDeque<(Weak<Snapshot>, Arc<SnapshotIndex>)>>,
    /// Held by the single background build of vectors.
    building: Arc<Mutex<()>>,
}

/// A pick in progress.
struct PickPass<'a> {
    picking: PickRun<'a>,
    snapshot: &'a Arc<Snapshot>,
    limit: TimeLimit,
    calls: Option<&'a dyn NestedCalls>,
}

/// Deadline of a pick, and its time limit.
#[derive(Clone, Copy)]
struct TimeLimit(Option<(Instant, Duration)>);

impl TimeLimit {
    fn from_now(limit: Option<Duration>) -> Self {
        Self(limit.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit))))
    }

    fn is_over(self) -> bool {
        self.0.is_some_and(|(end, _)| Instant::now() >= end)
    }

    /// The outcome of `work`, or that there was no time for it.
    async fn hold<T>(self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let Some((end, limit)) = self.0 else { return work.await };
        let timed_out = |_| Err(format!("scoring took longer than {}", duration::format(limit)));
        timeout_at(end, work).await.unwrap_or_else(timed_out)
    }
}

/// The tools that a pass looks at.
enum CandidateSet {
    Candidates,
    These(HashSet<usize>),
}

impl CandidateSet {
    fn has(&self, picking: &PickRun<'_>, position: usize) -> bool {
        match self {
            Self::Candidates => picking.is_candidate(position),
            Self::These(positions) => positions.contains(&position),
        }
    }
}

impl Selector {
    /// A selector without embeddings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds embeddings, for [`Method::Auto`], [`Method::Embedding`] and [`Method::Hybrid`].
    #[must_use]
    pub fn with_vectors(self, vectors: Arc<dyn VectorSource>) -> Self {
        Self { vectors: Some(vectors), ..self }
    }

    /// Adds a scorer for [`Method::Judge`]: the `ModelJudge` of the runtime.
    #[must_use]
    pub fn with_judge(self, judge: Arc<dyn Scorer>) -> Self {
        Self { judge: Some(judge), ..self }
    }

    /// Picks tools of `snapshot` for `query`. A scorer that fails is replaced by its fallback, and so is one that
    /// exceeds [`PickOptions::timeout`], which covers all waiting of a pick: the results available
    /// by then count, such as words alone or the first pass of a cascade. If there are none, because the
    /// scorer is [`Method::Custom`] or the index is not built yet, tools come in registration order. The
    /// provenance says so. The future may be dropped at any time; index and vectors are built nevertheless.
    pub async fn pick(
        &self,
        query: impl Into<PickInput<'_>>,
        snapshot: &Arc<Snapshot>,
        options: &PickOptions,
    ) -> Picked {
        let query = query.into();
        let limit = TimeLimit::from_now(options.timeout);
        let index = self.index_of(snapshot);
        let indexed = limit.hold(make(&index, snapshot)).await;
        let calls = query.calls();
        let pass = PickPass { picking: PickRun::begin(&query, snapshot, &index, options), snapshot, limit, calls };
        let mut provenance = Provenance::default();
        let ranking = match indexed {
            Ok(()) => {
                let (scorer, enough) = (options.scorer.clone(), pass.picking.enough());
                self.rank(scorer, &pass, &CandidateSet::Candidates, enough, &mut provenance).await
            }
            Err(why) => {
                provenance.fell_back.push((options.scorer.name().to_owned(), why.clone()));
                Err(why)
            }
        };
        let goes_by_words = !matches!(options.scorer, Method::Embedding | Method::Custom(_));
        match ranking {
            Ok(ranking) => {
                let picked = pass.picking.finish(ranking, provenance);
                // Nothing matches as written: maybe it is mistyped.
                match picked.picks.is_empty() && goes_by_words && options.config.min_score > 0.0 {
                    true => Self::by_spelling(&query, snapshot, &index, options, picked),
                    false => picked,
                }
            }
            Err(why) => pass.picking.in_order(&why, provenance),
        }
    }

    /// Returns matches of the corrected query, or else the earlier result.
    fn by_spelling(
        query: &PickInput<'_>,
        snapshot: &Snapshot,
        index: &SnapshotIndex,
        options: &PickOptions,
        before: Picked,
    ) -> Picked {
        let picking = PickRun::begin(query, snapshot, index, options);
        let order = picking.by_spelling(picking.enough(), &|position| picking.is_candidate(position));
        let reason = || Some("its words are spelt like those of the query".to_owned());
        let note = |ranked: &Ranked| (ranked.index, ScorerNote { reason: reason(), details: None });
        let notes = order.iter().map(note).collect();
        let ranking = Ranking { scorer: before.provenance.scorer.clone(), order, by_words: false, notes };
        picking.finish(ranking, before.provenance)
    }

    /// Returns the index of a snapshot. A new one reuses data of the largest other one.
    fn index_of(&self, snapshot: &Arc<Snapshot>) -> Arc<SnapshotIndex> {
        let same = Arc::downgrade(snapshot);
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match indexes.iter().position(|(of, _)| of.ptr_eq(&same)).and_then(|place| indexes.remove(place)) {
            Some((_, index)) => index,
            None => {
                let largest = indexes.iter().max_by_key(|(_, index)| index.known_tools());
                Arc::new(largest.map_or_else(SnapshotIndex::default, |(_, index)| index.following()))
            }
        };
        indexes.retain(|(of, _)| of.strong_count() > 0);
        if indexes.len() == MAX_INDEXES {
            indexes.pop_front();
        }
        indexes.push_back((same, Arc::clone(&index)));
        index
    }

    /// Ranks by `method` or its fallback; an error if there is no time for that.
    fn rank<'a>(
        &'a self,
        mut method: Method,
        pass: &'a PickPass<'_>,
        candidates: &'a CandidateSet,
        limit: usize,
        provenance: &'a mut Provenance,
    ) -> BoxFuture<'a, Result<Ranking, String>> {
        Box::pin(async move {
            loop {
                let why = match self.attempt(&method, pass, candidates, limit, provenance).await {
                    Ok(ranking) => return Ok(ranking),
                    Err(why) => why,
                };
                provenance.fell_back.push((method.name().to_owned(), why.clone()));
                // A custom scorer does not use words, so it has no partial result.
                let is_over = matches!(method, Method::Custom(_)) && pass.limit.is_over();
                match method.fallback().filter(|_| !is_over) {
                    Some(next) => method = next,
                    None => return Err(why),
                }
            }
        })
    }

    async fn attempt(
        &self,
        method: &Method,
        pass: &PickPass<'_>,
        candidates: &CandidateSet,
        limit: usize,
        provenance: &mut Provenance,
    ) -> Result<Ranking, String> {
        let picking = &pass.picking;
        let keep = |position: usize| candidates.has(picking, position);
        let ranking = |order| Ranking { scorer: method.name().to_owned(), order, ..Ranking::default() };
        match method {
            Method::Keyword => Ok(ranking(picking.by_keyword(limit, &keep))),
            Method::Bm25 => Ok(ranking(picking.by_bm25(limit, &keep))),
            Method::Auto => {
                // Without embeddings only words count.
                let both = self.query_vectors(pass).await.unwrap_or_else(|why| {
                    provenance.fell_back.push((Method::Embedding.name().to_owned(), why));
                    None
                });
                let meaning = both.as_ref().map(|(tools, query)| SemanticQuery { vectors: tools, query });
                let by_words = meaning.is_none();
                Ok(Ranking { by_words, ..ranking(picking.by_all(meaning, limit, &keep)) })
            }
            Method::Embedding => {
                let (tools, query) = self.query_vectors(pass).await?.ok_or(NO_EMBEDDINGS)?;
                let order = tools.rank(&query, limit, &keep);
                let note = |ranked: &Ranked| {
                    let reason = Some(format!("like the query in meaning by {:.2}", ranked.score));
                    (ranked.index, ScorerNote { reason, details: None })
                };
                let notes = order.iter().map(note).collect();
                Ok(Ranking { notes, ..ranking(order) })
            }
            Method::Hybrid(hybrid) => {
                let (tools, query) = self.query_vectors(pass).await?.ok_or(NO_EMBEDDINGS)?;
                Ok(hybrid_ranking(*hybrid, picking, &tools.rank(&query, HYBRID_DEPTH, &keep), limit, &keep))
            }
            Method::Judge => {
                let survivors = picking.enough().max(judge::MAX_JUDGED);
                let cascade = Cascade { first: Method::Auto, then: Method::Judge, survivors };
                self.rank_cascade(&cascade, pass, candidates, provenance).await
            }
            Method::Cascade(cascade) => self.rank_cascade(cascade, pass, candidates, provenance).await,
            Method::Custom(scorer) => {
                let positions: Vec<usize> = picking.candidates().filter(|position| keep(*position)).collect();
                self.by_scorer(&**scorer, pass, &positions).await
            }
        }
    }

    /// Applies the second pass to the survivors of the first; on failure the first counts.
    async fn rank_cascade(
        &self,
        cascade: &Cascade,
        pass: &PickPass<'_>,
        candidates: &CandidateSet,
        provenance: &mut Provenance,
    ) -> Result<Ranking, String> {
        let Cascade { first, then, survivors } = cascade;
        let picking = &pass.picking;
        let first = self.rank(first.clone(), pass, candidates, (*survivors).max(picking.enough()), provenance).await?;
        let mut positions: Vec<usize> = first.order.iter().map(|ranked| ranked.index).take(*survivors).collect();
        let ranked: HashSet<usize> = positions.iter().copied().collect();
        let others =
            picking.candidates().filter(|position| candidates.has(picking, *position) && !ranked.contains(position));
        positions.extend(others.take(survivors.saturating_sub(positions.len())));
        let second = match (then, &self.judge) {
            (Method::Judge, None) => Err("no model is set that could judge: see selection.judge_model".to_owned()),
            (Method::Judge, Some(judge)) => {
                let asked = &positions[..positions.len().min(judge::MAX_JUDGED)];
                let ranking = self.by_scorer(&**judge, pass, asked).await;
                ranking.map(|judged| with_unjudged(judged, &first, *survivors))
            }
            _ => {
                let candidates = CandidateSet::These(positions.into_iter().collect());
                Box::pin(self.attempt(then, pass, &candidates, picking.enough(), provenance)).await
            }
        };
        Ok(second.unwrap_or_else(|why| {
            provenance.fell_back.push((then.name().to_owned(), why));
            first
        }))
    }

    /// Returns the vectors of the tools and of the query, if there is an embedding model.
    async fn query_vectors(&self, pass: &PickPass<'_>) -> Result<Option<(Arc<Vectors>, Arc<[f32]>)>, String> {
        let Some(source) = &self.vectors else { return Ok(None) };
        let both = async {
            let Some(vectors) = source.tool_vectors().await? else { return Ok(None) };
            let tools = self.of_tools(&vectors, pass.snapshot).await?;
            Ok(Some((tools, query_vector(&vectors, &pass.picking.turns()).await?)))
        };
        pass.limit.hold(async { both.await.map_err(|error: EmbeddingError| error.message) }).await
    }

    /// Returns the vectors of tools. One build continues in the background when its caller is gone, so that a later
    /// pick has more of them; further builds would only wait for it.
    async fn of_tools(
        &self,
        vectors: &Arc<ToolVectors>,
        snapshot: &Arc<Snapshot>,
    ) -> Result<Arc<Vectors>, EmbeddingError> {
        let Ok(building) = Arc::clone(&self.building).try_lock_owned() else {
            return vectors.of_snapshot(snapshot).await;
        };
        let (vectors, snapshot) = (Arc::clone(vectors), Arc::clone(snapshot));
        let build = tokio::spawn(async move {
            let _building = building;
            vectors.of_snapshot(&snapshot).await
        });
        build.await.unwrap_or_else(|error| {
            let message = "the vectors of the tools could not be computed".to_owned();
            Err(EmbeddingError { message, source: Some(Box::new(error)) })
        })
    }

    /// Ranks by a custom scorer, with cached scores where possible.
    async fn by_scorer(
        &self,
        scorer: &dyn Scorer,
        pass: &PickPass<'_>,
        positions: &[usize],
    ) -> Result<Ranking, String> {
        let picking = &pass.picking;
        let entries = pass.snapshot.list();
        let asked = ContentHash::of_bytes(format!("{}\0{}", scorer.name(), picking.query()).as_bytes());
        let key = |position: usize| (asked, entries[position].tool.hash());
        let is_kept = !scorer.deterministic();
        let mut scores: HashMap<usize, Score> = HashMap::new();
        if is_kept {
            scores.extend(positions.iter().filter_map(|&position| Some((position, self.scores.get(&key(position))?))));
        }
        let missing: Vec<usize> = positions.iter().copied().filter(|position| !scores.contains_key(position)).collect();
        if !missing.is_empty() {
            let tools: Vec<&Entry> = missing.iter().map(|&position| &*entries[position]).collect();
            let scoring = scorer.score(picking.query(), &tools, pass.calls);
            let given = pass.limit.hold(async { scoring.await.map_err(|error| error.to_string()) }).await?;
            if given.len() != missing.len() {
                return Err(format!("it gave {} scores for {} tools", given.len(), missing.len()));
            }
            if given.iter().any(|score| score.value.is_nan()) {
                return Err("it gave a score that is no number".into());
            }
            for (&position, score) in missing.iter().zip(&given) {
                if is_kept {
                    self.scores.keep(key(position), score.clone());
                }
            }
            scores.extend(missing.into_iter().zip(given));
        }
        let mut ranking = Ranking { scorer: scorer.name().to_owned(), ..Ranking::default() };
        for (index, score) in scores {
            let reason = score.reason.or_else(|| Some(format!("{} gives it {:.2}", scorer.name(), score.value)));
            ranking.order.push(Ranked { index, score: score.value.clamp(0.0, 1.0) });
            ranking.notes.insert(index, ScorerNote { reason, details: score.details });
        }
        ranking.order.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.index.cmp(&b.index)));
        Ok(ranking)
    }
}

/// Makes the lexical index, off the async workers.
async fn make(index: &Arc<SnapshotIndex>, snapshot: &Arc<Snapshot>) -> Result<(), String> {
    if index.is_ready() {
        return Ok(());
    }
    let (index, snapshot) = (Arc::clone(index), Arc::clone(snapshot));
    let indexed = spawn_blocking(move || {
        index.lexical(&snapshot);
    });
    indexed.await.map_err(|error| format!("the tools could not be indexed: {error}"))
}

/// Appends the unjudged tools to the judged ones, in the order of the first pass.
fn with_unjudged(judged: Ranking, first: &Ranking, survivors: usize) -> Ranking {
    let mut ranking = Ranking { scorer: Method::Judge.name().to_owned(), ..judged };
    for (place, ranked) in (1..).zip(first.order.iter().take(survivors)).skip(judge::MAX_JUDGED) {
        let reason = Some(format!("not judged; in place {place} by {}", first.scorer));
        ranking.order.push(*ranked);
        ranking.notes.insert(ranked.index, ScorerNote { reason, details: None });
    }
    ranking
}

/// Returns the normalised sum of the turns' vectors. Each turn is embedded separately, so that the
/// next pick has all but the new one cached.
async fn query_vector(vectors: &ToolVectors, turns: &[&str]) -> Result<Arc<[f32]>, EmbeddingError> {
    let Some((last, before)) = turns.split_last() else { return vectors.query("").await };
    let last = vectors.query(last).await?;
    if before.is_empty() {
        return Ok(last);
    }
    let mut sum = last.to_vec();
    let mut weight = 1.0;
    for turn in before.iter().rev() {
        weight *= DECAY;
        let earlier = vectors.query(turn).await?;
        sum.iter_mut().zip(&*earlier).for_each(|(sum, number)| *sum += weight * number);
    }
    let length = sum.iter().map(|number| number * number).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    sum.iter_mut().for_each(|number| *number /= length);
    Ok(sum.into())
}

/// Words and meaning, weighted.
fn hybrid_ranking(
    hybrid: Hybrid,
    picking: &PickRun<'_>,
    meaning: &[Ranked],
    limit: usize,
    keep: &dyn Fn(usize) -> bool,
) -> Ranking {
    let (order, words) = picking.by_hybrid(hybrid, meaning, limit, keep);
    let score = |ranking: &[Ranked], index| ranking.iter().find(|ranked| ranked.index == index).map(|it| it.score);
    let note = |ranked: &Ranked| {
        let (words, meaning) = (score(&words, ranked.index), score(meaning, ranked.index));
        let reason = match (words, meaning) {
            (None, Some(meaning)) => Some(format!("like the query in meaning by {meaning:.2}")),
            // The words themselves say more.
            _ => None,
        };
        (ranked.index, ScorerNote { reason, details: Some(json!({"bm25": words, "cosine": meaning})) })
    };
    let notes = order.iter().map(note).collect();
    Ranking { scorer: Method::Hybrid(hybrid).name().to_owned(), order, notes, ..Ranking::default() }
}
