//! The best of many scores.

use std::cmp::Reverse;

use super::super::Ranked;
use super::interner::number;

/// Keeps the `limit` best of what is offered in any order; of equals, the first by position.
pub(in crate::select) struct Best {
    limit: usize,
    /// What is below it is not among the best.
    floor: f32,
    kept: Vec<Key>,
}

impl Best {
    pub(in crate::select) fn new(limit: usize) -> Self {
        Self { limit, floor: 0.0, kept: Vec::new() }
    }

    /// Whether something of this score may be among the best.
    pub(in crate::select) fn wants(&self, score: f32) -> bool {
        score >= self.floor
    }

    pub(in crate::select) fn offer(&mut self, ranked: Ranked) {
        if !self.wants(ranked.score) {
            return;
        }
        self.kept.push(Key::of(ranked));
        if self.kept.len() >= self.limit.saturating_mul(2).max(64) {
            self.cut();
            self.floor = self.kept.last().map_or(f32::INFINITY, |last| last.ranked().score);
        }
    }

    /// The best, best first.
    pub(in crate::select) fn into_sorted(mut self) -> Vec<Ranked> {
        self.cut();
        self.kept.sort_unstable_by_key(|key| Reverse(*key));
        self.kept.into_iter().map(Key::ranked).collect()
    }

    /// The best, in no order.
    pub(in crate::select) fn into_unsorted(mut self) -> impl Iterator<Item = Ranked> + Clone {
        self.cut();
        self.kept.into_iter().map(Key::ranked)
    }

    /// Leaves the best, of which the least stands last.
    fn cut(&mut self) {
        if let Some(last) = self.limit.checked_sub(1).filter(|&last| last < self.kept.len()) {
            self.kept.select_nth_unstable_by_key(last, |key| Reverse(*key));
        }
        self.kept.truncate(self.limit);
    }
}

/// A score, and the complement of its position, in one number that is the greater the better it is: the bits of
/// numbers from 0 on are in the order of these numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

impl Key {
    fn of(Ranked { index, score }: Ranked) -> Self {
        // What is added makes 0 of -0.
        Self(u64::from((score + 0.0).to_bits()) << 32 | u64::from(!number(index)))
    }

    fn ranked(self) -> Ranked {
        // Each half has 32 bits.
        #[expect(clippy::cast_possible_truncation, reason = "see above")]
        let (score, position) = ((self.0 >> 32) as u32, self.0 as u32);
        Ranked { index: !position as usize, score: f32::from_bits(score) }
    }
}
