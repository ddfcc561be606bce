//! Several rankings made one, with fixed weights.

use std::collections::HashMap;

use super::Ranked;

/// The constant of reciprocal-rank fusion that its authors settled on (Cormack, Clarke, Büttcher, SIGIR 2009).
const K: f32 = 60.0;

/// Places of words, and places of meaning, that a hybrid puts together.
pub const HYBRID_DEPTH: usize = 1000;

/// What orders the tools. The score that is reported is the weighted mean in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fusion {
    /// The weighted mean of the scores.
    #[default]
    Mean,
    /// Reciprocal ranks, weighted.
    Ranks,
}

/// Words and meaning, and how they are put together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hybrid {
    /// Weight of the words.
    pub lexical: f32,
    /// Weight of the meaning.
    pub semantic: f32,
    /// What orders.
    pub fusion: Fusion,
}

impl Default for Hybrid {
    fn default() -> Self {
        Self { lexical: 0.4, semantic: 0.6, fusion: Fusion::Mean }
    }
}

/// Puts rankings, best first with scores from 0 to 1, together. A tool that a ranking leaves out has the score 0
/// and no rank there; ties go by position. Weights below 0 and those that are no numbers count as 0; their sum
/// need not be 1.
#[must_use]
pub fn combine(rankings: &[(f32, &[Ranked])], fusion: Fusion) -> Vec<Ranked> {
    let weight = |weight: f32| if weight.is_finite() { weight.max(0.0) } else { 0.0 };
    let total: f32 = rankings.iter().map(|(each, _)| weight(*each)).sum();
    let mut sums: HashMap<usize, (f32, f32)> = HashMap::new();
    for (each, ranking) in rankings {
        let share = if total > 0.0 { weight(*each) / total } else { 0.0 };
        for (rank, ranked) in (1_u16..=u16::MAX).chain(std::iter::repeat(u16::MAX)).zip(*ranking) {
            let (mean, ranks) = sums.entry(ranked.index).or_default();
            *mean += share * ranked.score;
            *ranks += share / (K + f32::from(rank));
        }
    }
    let mut order: Vec<(f32, Ranked)> = sums
        .into_iter()
        .map(|(index, (mean, ranks))| {
            let by = match fusion {
                Fusion::Mean => mean,
                Fusion::Ranks => ranks,
            };
            (by, Ranked { index, score: mean })
        })
        .collect();
    order.sort_unstable_by(|(a, at_a), (b, at_b)| b.total_cmp(a).then(at_a.index.cmp(&at_b.index)));
    order.into_iter().map(|(_, ranked)| ranked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(weights: [f32; 2], fusion: Fusion, expect: &[(usize, f32)]) {
        let ranked = |list: &[(usize, f32)]| -> Vec<Ranked> {
            list.iter().map(|&(index, score)| Ranked { index, score }).collect()
        };
        let (words, meaning) = (ranked(&[(3, 0.9), (1, 0.5)]), ranked(&[(1, 0.6), (2, 0.5), (3, 0.2)]));
        let both = combine(&[(weights[0], &words), (weights[1], &meaning)], fusion);
        let got: Vec<_> = both.iter().map(|ranked| (ranked.index, (ranked.score * 1e4).round() / 1e4)).collect();
        assert_eq!(got, expect, "{weights:?} {fusion:?}");
    }

    #[test]
    fn means_order_by_what_they_report() {
        check([0.4, 0.6], Fusion::Mean, &[(1, 0.56), (3, 0.48), (2, 0.3)]);
        check([4.0, 6.0], Fusion::Mean, &[(1, 0.56), (3, 0.48), (2, 0.3)]);
        check([1.0, 0.0], Fusion::Mean, &[(3, 0.9), (1, 0.5), (2, 0.0)]);
        check([f32::NAN, -1.0], Fusion::Mean, &[(1, 0.0), (2, 0.0), (3, 0.0)]);
    }

    #[test]
    fn ranks_order_and_means_are_reported() {
        check([0.5, 0.5], Fusion::Ranks, &[(1, 0.55), (3, 0.55), (2, 0.25)]);
        check([0.9, 0.1], Fusion::Ranks, &[(3, 0.83), (1, 0.51), (2, 0.05)]);
    }
}
