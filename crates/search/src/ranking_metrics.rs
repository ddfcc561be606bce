//! Measures a ranking against the relevant entries. Both are lists of distinct positions in a catalogue.

/// The share of `relevant` among the first `k` of `ranked`; 0 if nothing is relevant.
#[must_use]
pub fn recall(ranked: &[usize], relevant: &[usize], k: usize) -> f64 {
    if relevant.is_empty() {
        return 0.0;
    }
    relevant.iter().filter(|position| first(ranked, k).contains(position)).count() as f64 / relevant.len() as f64
}

/// Whether all of `relevant` are among the first `k` of `ranked`.
#[must_use]
pub fn complete(ranked: &[usize], relevant: &[usize], k: usize) -> bool {
    relevant.iter().all(|position| first(ranked, k).contains(position))
}

/// Normalised discounted cumulative gain of the first `k` (Järvelin and Kekäläinen, 2002), with a gain of 1 for
/// relevant entries: the sum of 1 / log2(position + 1) over their positions, from 1, as a
/// share of the best possible ranking, which begins with up to `k` relevant entries. 0 if
/// nothing is relevant.
#[must_use]
pub fn ndcg(ranked: &[usize], relevant: &[usize], k: usize) -> f64 {
    let gain = |place: usize| ((place + 2) as f64).log2().recip();
    let ideal: f64 = (0..relevant.len().min(k)).map(gain).sum();
    let found = first(ranked, k).iter().enumerate().filter(|(_, position)| relevant.contains(position));
    if ideal > 0.0 { found.map(|(place, _)| gain(place)).sum::<f64>() / ideal } else { 0.0 }
}

/// The smallest value of `sorted` that at least `share` of them, from 0 to 1, do not exceed (nearest rank); 0 if
/// empty.
#[must_use]
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    // A share outside the range, or NaN, is clamped.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number within the slice")]
    let rank = (share.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

fn first(ranked: &[usize], k: usize) -> &[usize] {
    &ranked[..ranked.len().min(k)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recall_and_completeness_count_the_first() {
        for (ranked, relevant, k, share, all) in [
            (&[3, 1, 2][..], &[3][..], 1, 1.0, true),
            (&[3, 1, 2], &[2], 1, 0.0, false),
            (&[3, 1, 2], &[2], 3, 1.0, true),
            (&[3, 1, 2], &[2, 3, 9, 8], 3, 0.5, false),
            (&[3, 1], &[1, 3], 10, 1.0, true),
            (&[], &[1], 10, 0.0, false),
            (&[1], &[], 10, 0.0, true),
        ] {
            assert_eq!((recall(ranked, relevant, k), complete(ranked, relevant, k)), (share, all), "{ranked:?} {k}");
        }
    }

    #[test]
    fn gains_are_discounted_by_place_and_normalised() {
        // 1/log2(3) = 0.63093, 1/log2(4) = 0.5, 1/log2(5) = 0.43068
        for (ranked, relevant, k, expect) in [
            (&[7, 8, 9][..], &[7][..], 10, 1.0),
            (&[7, 8, 9], &[8], 10, 0.63093),
            (&[7, 8, 9], &[9], 10, 0.5),
            (&[7, 8, 9], &[9], 2, 0.0),
            (&[7, 8, 9], &[9, 7], 10, 1.5 / 1.63093),
            (&[7, 8, 9], &[9, 5], 10, 0.5 / 1.63093),
            // Two places cannot hold all three relevant entries.
            (&[7, 8, 9], &[7, 8, 5], 2, 1.0),
            (&[6, 5, 4, 3], &[5, 3], 10, (0.63093 + 0.43068) / 1.63093),
            (&[], &[1], 10, 0.0),
            (&[1], &[], 10, 0.0),
        ] {
            assert!((ndcg(ranked, relevant, k) - expect).abs() < 1e-5, "{ranked:?} {relevant:?} {k}");
        }
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let values = [1.0, 2.0, 3.0, 4.0];
        for (share, expect) in [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.99, 4.0), (1.0, 4.0), (7.0, 4.0)] {
            assert_eq!(percentile(&values, share), expect, "{share}");
        }
        assert_eq!((percentile(&[], 0.5), percentile(&values, f64::NAN)), (0.0, 1.0));
    }
}
