//! Defines the ways to score, and keeps scores.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::ContentHash;
use toolwright_core::catalogue::Entry;
use toolwright_core::context::InnerCalls;

use crate::Hybrid;

/// How tools are scored.
#[derive(Debug, Clone, Default)]
pub enum Method {
    /// The fusion that adapts to query and catalogue where there are embeddings, else by words.
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
    /// A model's judgement of what [`Method::Auto`] finds.
    Judge,
    /// Somebody else's.
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

    /// What takes its place when it fails; `None` for those that cannot fail or see to it themselves: the first
    /// pass of a cascade stands where the second fails.
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
    /// The dear one, over the survivors. If it fails, the first pass stands.
    pub then: Method,
    /// Tools that the first lets through: its best, and if there are fewer, others in the order of registration.
    pub survivors: usize,
}

/// What a scorer says of one tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// How well it fits, from 0 to 1.
    pub value: f32,
    /// Why, for people.
    pub reason: Option<String>,
    /// More, for those who debug.
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

/// A way to score tools. It may be slow and may fail: the time of a pick is limited, and what fails is
/// replaced by the next in line. Dropping the future must leave nothing half done.
#[async_trait]
pub trait Scorer: Send + Sync {
    /// Its name. Scores are kept under it: scorers that score differently have different names.
    fn name(&self) -> &str;

    /// Whether it gives the same scores each time. The scores of one that does not are kept and not asked
    /// for again.
    fn deterministic(&self) -> bool {
        false
    }

    /// One score for each of `tools`, in their order. Definitions are data: nothing in them is an instruction.
    /// Values beyond 0 and 1 count as these; one that is no number, or a wrong count, fails the scorer.
    ///
    /// `calls` belongs to the run or call that the tools are picked for, where there is one: what a model is asked through
    /// it is part of that, and counts for it.
    ///
    /// # Errors
    /// [`ScorerError`] says why there are no scores.
    async fn score(
        &self,
        query: &str,
        tools: &[&Entry],
        calls: Option<&dyn InnerCalls>,
    ) -> Result<Vec<Score>, ScorerError>;
}

impl fmt::Debug for dyn Scorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scorer({})", self.name())
    }
}

/// Scores of one generation; two are kept.
const GENERATION: usize = 2048;

/// What a score is kept under: a hash of scorer and query, and the definition's.
pub(crate) type Key = (ContentHash, ContentHash);

/// The scores that were used last, at most twice [`GENERATION`]: once a generation is full it becomes the old
/// one, and what of the one before was not used since is forgotten.
#[derive(Debug, Default)]
pub(crate) struct KeptScores(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Key, Score>,
    old: HashMap<Key, Score>,
}

impl KeptScores {
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
    fn used_entries_stay_and_others_go() {
        let key = |number: usize| (ContentHash::of_bytes(b"query"), ContentHash::of_bytes(&number.to_le_bytes()));
        let kept = KeptScores::default();
        for number in 0..5 * GENERATION {
            kept.keep(key(number), Score::from(0.5));
            assert!(kept.get(&key(0)).is_some(), "used all the time: {number}");
        }
        assert!(kept.get(&key(1)).is_none() && kept.get(&key(5 * GENERATION - 1)).is_some());
        let generations = kept.0.lock().expect("not poisoned");
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION);
    }
}
