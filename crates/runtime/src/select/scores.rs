//! Caches scores.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use toolwright_core::ContentHash;
use toolwright_core::select::Score;

/// Scores of one generation; two are kept.
const GENERATION: usize = 2048;

/// What a score is kept under: a hash of scorer and query, and the definition's.
pub(super) type Key = (ContentHash, ContentHash);

/// The scores that were used last, at most twice [`GENERATION`]: once a generation is full it becomes the old
/// one, and what of the one before was not used since is forgotten.
#[derive(Debug, Default)]
pub(super) struct KeptScores(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Key, Score>,
    old: HashMap<Key, Score>,
}

impl KeptScores {
    pub(super) fn get(&self, key: &Key) -> Option<Score> {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(score) = generations.young.get(key) {
            return Some(score.clone());
        }
        let score = generations.old.remove(key)?;
        generations.keep(*key, score.clone());
        Some(score)
    }

    pub(super) fn keep(&self, key: Key, score: Score) {
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
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_is_forgotten() {
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
