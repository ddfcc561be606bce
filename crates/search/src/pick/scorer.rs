//! Scoring methods, and a cache of scores.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::ContentHash;
use toolwright_core::catalogue::Entry;
use toolwright_core::context::NestedCalls;

use crate::Hybrid;

/// A scoring method.
#[derive(Debug, Clone, Default)]
pub enum Method {
    /// Adaptive fusion of words and embeddings, if there are any; else words.
    #[default]
    Auto,
    /// The share of the query's words that a tool has.
    Keyword,
    /// BM25 over the fields of a tool.
    Bm25,
    /// Cosine of sentence embeddings.
    Embedding,
    /// BM25 and embeddings.
    Hybrid(Hybrid),
    /// A model's judgement of the results of [`Method::Auto`].
    Judge,
    /// A custom scorer.
    Custom(Arc<dyn Scorer>),
    /// A cheap one over all, a dear one over the survivors.
    Cascade(Arc<Cascade>),
}

impl Method {
    /// Its name in provenance and configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Auto => "auto",
            Self::Keyword => "keyword",
            Self::Bm25 => "bm25",
            Self::Embedding => "embedding",
            Self::Hybrid(_) => "hybrid",
            Self::Judge => "judge",
            Self::Custom(scorer) => scorer.name(),
            Self::Cascade(_) => "cascade",
        }
    }

    /// Whether it may ask a model.
    #[must_use]
    pub fn asks_model(&self) -> bool {
        match self {
            Self::Judge | Self::Custom(_) => true,
            Self::Cascade(cascade) => cascade.first.asks_model() || cascade.then.asks_model(),
            Self::Auto | Self::Keyword | Self::Bm25 | Self::Embedding | Self::Hybrid(_) => false,
        }
    }

    /// Returns its replacement on failure; `None` for methods that cannot fail or replace themselves: if the second
    /// pass of a cascade fails, the first one counts.
    #[must_use]
    pub fn fallback(&self) -> Option<Self> {
        match self {
            Self::Keyword | Self::Judge | Self::Cascade(_) => None,
            Self::Bm25 => Some(Self::Keyword),
            Self::Auto | Self::Embedding | Self::Hybrid(_) => Some(Self::Bm25),
            Self::Custom(_) => Some(Self::Auto),
        }
    }
}

/// Two passes.
#[derive(Debug, Clone)]
pub struct Cascade {
    /// The cheap one, over all.
    pub first: Method,
    /// The expensive method, for the survivors. If it fails, the first pass counts.
    pub then: Method,
    /// Number of tools that pass the first method: the best, filled up in registration order.
    pub survivors: usize,
}

/// A scorer's result for one tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// How well it fits, from 0 to 1.
    pub value: f32,
    /// Why, for people.
    pub reason: Option<String>,
    /// Debug details.
    pub details: Option<Value>,
}

impl From<f32> for Score {
    fn from(value: f32) -> Self {
        Self { value, ..Self::default() }
    }
}

/// Why there are no scores.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScorerError(pub String);

/// A way to score tools. It may be slow and may fail: picks have a time limit, and a failing method is
/// replaced by its fallback. Dropping the future must leave no partial state.
#[async_trait]
pub trait Scorer: Send + Sync {
    /// Its name, under which scores are cached: different scorers need different names.
    fn name(&self) -> &str;

    /// Whether it gives the same scores each time. Scores of other scorers are cached, not requested
    /// again.
    fn deterministic(&self) -> bool {
        false
    }

    /// Returns a score for each of `tools`, in their order. Definitions are data, never instructions.
    /// Scores are clamped to 0 to 1; NaN or a wrong count is a failure.
    ///
    /// `calls` belongs to the run or call that the tools are picked for, if any: model requests through it count for
    /// that.
    ///
    /// # Errors
    /// [`ScorerError`] says why there are no scores.
    async fn score(
        &self,
        query: &str,
        tools: &[&Entry],
        calls: Option<&dyn NestedCalls>,
    ) -> Result<Vec<Score>, ScorerError>;
}

impl fmt::Debug for dyn Scorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scorer({})", self.name())
    }
}

/// Scores of one generation; two generations are kept.
const GENERATION: usize = 2048;

/// Key of a cached score: a hash of scorer and query, and the definition's.
pub(crate) type Key = (ContentHash, ContentHash);

/// The most recently used scores, at most twice [`GENERATION`]: a full generation becomes the old
/// one, and unused scores of the previous old one are dropped.
#[derive(Debug, Default)]
pub(crate) struct ScoreCache(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Key, Score>,
    old: HashMap<Key, Score>,
}

impl ScoreCache {
    pub(crate) fn get(&self, key: &Key) -> Option<Score> {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(score) = generations.young.get(key) {
            return Some(score.clone());
        }
        let score = generations.old.remove(key)?;
        generations.keep(*key, score.clone());
        Some(score)
    }

    pub(crate) fn keep(&self, key: Key, score: Score) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keep(key, score);
    }
}

impl Generations {
    fn keep(&mut self, key: Key, score: Score) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, score);
    }
}

#[cfg(test)]
mod scores_tests {
    use super::*;

    #[test]
    fn used_entries_stay_and_others_are_removed() {
        let key = |number: usize| (ContentHash::of_bytes(b"query"), ContentHash::of_bytes(&number.to_le_bytes()));
        let kept = ScoreCache::default();
        for number in 0..5 * GENERATION {
            kept.keep(key(number), Score::from(0.5));
            assert!(kept.get(&key(0)).is_some(), "used all the time: {number}");
        }
        assert!(kept.get(&key(1)).is_none() && kept.get(&key(5 * GENERATION - 1)).is_some());
        let generations = kept.0.lock().expect("not poisoned");
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION);
    }
}
