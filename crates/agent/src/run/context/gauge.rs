//! Corrects estimated token counts by the model's reported counts.

use serde::{Deserialize, Serialize};

/// Requests below this many estimated tokens tell nothing: what an API adds by itself weighs too much in them.
const TELLING: usize = 1000;
/// What a report may be of an estimate. One beyond is none of the whole request: some servers count only what they have
/// not cached. Down, little is believed: who takes a conversation for smaller than it is overruns the window.
const PLAUSIBLE: std::ops::RangeInclusive<f64> = 0.8..=3.0;
/// What the tokenizer's count may be of one.
const COUNTED: std::ops::RangeInclusive<f64> = 0.25..=6.0;
/// The part of a lower report that is believed at once; of a higher one all is. Dense results (dumps, tables) come again: who
/// forgets them soon is refused with the next.
const DOWN: f64 = 0.05;

/// What was learnt of a model's counting. Part of the saved run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Gauge {
    /// Reported for estimated tokens: rises at once and falls slowly. Of a model that is counted, since it was for the first
    /// time.
    #[serde(skip_serializing_if = "Option::is_none")]
    learned: Option<f64>,
    /// By the model's own tokenizer, when it counted last.
    #[serde(skip_serializing_if = "Option::is_none")]
    counted: Option<f64>,
    /// The estimate of the request that is under way.
    #[serde(skip)]
    pub(super) asked: usize,
}

impl Gauge {
    /// The API has reported the tokens of the request that was asked.
    pub(super) fn learn(&mut self, reported: u64) {
        let asked = std::mem::take(&mut self.asked);
        if asked < TELLING {
            return;
        }
        // Below 2^53 nothing is rounded.
        let ratio = reported as f64 / asked as f64;
        if !PLAUSIBLE.contains(&ratio) {
            return;
        }
        self.learned = Some(match self.learned {
            Some(before) if ratio < before => before + (ratio - before) * DOWN,
            _ => ratio,
        });
    }

    /// The model's tokenizer has counted a conversation that was estimated.
    pub(super) fn count(&mut self, exact: usize, estimate: usize) {
        if estimate > 0 {
            let ratio = exact as f64 / estimate as f64;
            // What was reported before says nothing of how the count and the API differ.
            if self.counted.is_none() {
                self.learned = None;
            }
            self.counted = Some(ratio.clamp(*COUNTED.start(), *COUNTED.end()));
        }
    }

    /// Whether the last word is the tokenizer's.
    pub(super) fn is_exact(&self) -> bool {
        self.counted.is_some()
    }

    /// A tokenizer may miss what an API adds: then its reports go before.
    fn ratio(&self) -> f64 {
        match (self.counted, self.learned) {
            (Some(counted), Some(learned)) => counted.max(learned),
            (counted, learned) => counted.or(learned).unwrap_or(1.0),
        }
    }

    /// What an estimate comes to.
    pub(super) fn tokens(&self, estimate: usize) -> usize {
        (estimate as f64 * self.ratio()).ceil() as usize
    }

    /// The estimate that comes to so many tokens.
    pub(super) fn estimate(&self, tokens: usize) -> usize {
        (tokens as f64 / self.ratio()) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(reports: &[(usize, u64)]) -> Gauge {
        let mut gauge = Gauge::default();
        for (asked, reported) in reports {
            gauge.asked = *asked;
            gauge.learn(*reported);
        }
        gauge
    }

    #[test]
    fn reports_are_believed_upwards_at_once_and_downwards_slowly() {
        for (reports, expect) in [
            (&[][..], 1000),
            (&[(2000, 3000)], 1500),
            (&[(2000, 3000), (2000, 4000)], 2000),
            (&[(2000, 4000), (2000, 2000)], 1950),
            // Too small to tell, a part only, and beyond belief.
            (&[(999, 2000)], 1000),
            (&[(2000, 3000), (2000, 999)], 1500),
            (&[(2000, 1590)], 1000),
            (&[(2000, 1600)], 800),
            (&[(2000, 6001)], 1000),
        ] {
            assert_eq!(learnt(reports).tokens(1000), expect, "{reports:?}");
        }
    }

    #[test]
    fn a_report_counts_for_the_request_that_was_asked_alone() {
        let mut gauge = learnt(&[(2000, 3000)]);
        gauge.learn(9000);
        assert_eq!(gauge.tokens(1000), 1500);
        assert_eq!(gauge.estimate(1500), 1000);
    }

    #[test]
    fn the_tokenizer_beats_what_was_learnt_and_both_are_saved() {
        let mut gauge = learnt(&[(2000, 3000)]);
        assert!(!gauge.is_exact());
        gauge.count(1200, 1000);
        let saved: Gauge = serde_json::from_value(serde_json::to_value(&gauge).expect("json")).expect("gauge");
        assert_eq!((saved.is_exact(), saved.tokens(1000), saved), (true, 1200, gauge));
    }

    #[test]
    fn a_report_above_the_count_is_believed_and_one_below_is_not() {
        for (reported, expect) in [(2600, 1300), (2200, 1200)] {
            let mut gauge = Gauge::default();
            gauge.count(1200, 1000);
            gauge.asked = 2000;
            gauge.learn(reported);
            gauge.count(1200, 1000);
            assert_eq!(gauge.tokens(1000), expect, "{reported}");
        }
    }
}
