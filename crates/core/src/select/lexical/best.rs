//! The best of many scores.

use std::cmp::Ordering;

use super::super::Ranked;

/// Keeps the `limit` best of what is offered in any order; of equals, the first by position.
pub(in crate::select) struct Best {
    limit: usize,
    /// What is below it is not among the best.
    floor: f32,
    kept: Vec<Ranked>,
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
        self.kept.push(ranked);
        if self.kept.len() >= self.limit.saturating_mul(2).max(64) {
            self.cut();
            self.floor = self.kept.last().map_or(f32::INFINITY, |last| last.score);
        }
    }

    /// The best, best first.
    pub(in crate::select) fn into_sorted(self) -> Vec<Ranked> {
        let mut best = self.into_unsorted();
        best.sort_unstable_by(order);
        best
    }

    /// The best, in no order.
    pub(in crate::select) fn into_unsorted(mut self) -> Vec<Ranked> {
        self.cut();
        self.kept
    }

    /// Leaves the best, of which the least stands last.
    fn cut(&mut self) {
        if let Some(last) = self.limit.checked_sub(1).filter(|&last| last < self.kept.len()) {
            self.kept.select_nth_unstable_by(last, order);
        }
        self.kept.truncate(self.limit);
    }
}

fn order(a: &Ranked, b: &Ranked) -> Ordering {
    b.score.total_cmp(&a.score).then(a.index.cmp(&b.index))
}
