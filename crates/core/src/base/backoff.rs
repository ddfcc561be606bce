//! Growing pauses between attempts.

use std::time::Duration;

/// Pauses that begin with `first` and double up to `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub most: Duration,
}

impl Backoff {
    /// Returns the pause after so many failures in a row: zero for zero failures.
    #[must_use]
    pub fn pause(self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
        self.first.saturating_mul(2_u32.saturating_pow(doublings)).min(self.most)
    }

    /// Returns the same, spread over its upper half by `seed`, so that those who failed together do not come back
    /// together.
    #[must_use]
    pub fn spread(self, failures: u32, seed: u64) -> Duration {
        let half = self.pause(failures) / 2;
        half + share(half, seed)
    }
}

/// Returns the part of `whole`, from nothing to all of it, that `seed` picks. Seeds that follow each other pick parts far
/// apart.
#[must_use]
pub fn share(whole: Duration, seed: u64) -> Duration {
    let steps = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as u32;
    whole.saturating_mul(steps) / 1023
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let backoff = Backoff { first: Duration::from_secs(2), most: Duration::from_secs(15) };
        for (failures, expect) in [(0, 0), (1, 2), (2, 4), (3, 8), (4, 15), (40, 15), (u32::MAX, 15)] {
            assert_eq!(backoff.pause(failures), Duration::from_secs(expect), "{failures}");
        }
    }

    #[test]
    fn seeds_spread_pauses_over_their_upper_half() {
        let backoff = Backoff { first: Duration::from_millis(200), most: Duration::from_secs(5) };
        for failures in 0..40 {
            let spread = || (0..5000).map(|seed| backoff.spread(failures, seed));
            let full = backoff.pause(failures);
            assert_eq!(spread().min().zip(spread().max()), Some((full / 2, full)), "{failures}");
        }
        assert_ne!(backoff.spread(1, 1), backoff.spread(1, 2));
    }
}
