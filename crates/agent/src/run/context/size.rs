//! The size of a conversation in tokens: the estimate, its correction by reported counts, and the exact count.

use serde::{Deserialize, Serialize};
use toolwright_core::ContentBlock;
use toolwright_core::catalogue::shown_tokens;
use toolwright_core::context::EstimatedTokens;
use toolwright_core::model::{FRAME_TOKENS, Message, RequestTool};
use toolwright_core::output::json_bytes;

/// Estimates the tokens of system prompt and messages.
pub(super) fn conversation(system: &str, messages: &[Message]) -> usize {
    EstimatedTokens::of_text(system) + messages.iter().map(Message::tokens).sum::<usize>()
}

/// Returns by how much the estimate of results that were in no request yet may be too low. In dense texts (dumps,
/// tables) each digit and sign may be a token, and the estimate counts two as one.
pub(super) fn uncertainty(messages: &[Message]) -> usize {
    let unsent = messages.iter().rev().take_while(|message| !matches!(message, Message::Assistant { .. }));
    let results = unsent.filter_map(|message| match message {
        Message::Tool { results } => Some(results),
        _ => None,
    });
    let texts = results.flatten().flat_map(|result| &result.content).filter_map(ContentBlock::as_text);
    let is_sign = |c: &char| c.is_ascii() && !c.is_ascii_alphabetic() && !c.is_ascii_whitespace();
    texts.map(|text| text.chars().filter(is_sign).count() / 2).sum()
}

/// The parts of a request that give its exact size: its texts, and the tokens of everything else.
#[derive(Debug, Default)]
pub(crate) struct CountableRequest {
    /// The texts.
    pub(crate) texts: Vec<String>,
    /// Tokens of framing and of parts that no tokenizer counts: images, sound, and data that only the API reads.
    pub(crate) overhead: usize,
    /// The estimate of the whole.
    pub(crate) estimate: usize,
}

impl CountableRequest {
    /// Creates it; `tools` is the estimate of the definitions, including those that results have loaded.
    pub(super) fn of(system: &str, messages: &[Message], request_tools: &[RequestTool], tools: usize) -> Self {
        let mut all = Self { estimate: conversation(system, messages) + tools, ..Self::default() };
        all.text(system);
        for message in messages {
            all.overhead += FRAME_TOKENS;
            match message {
                Message::User { content } => all.content(content),
                Message::Assistant { text, calls, opaque } => {
                    all.text(text);
                    for call in calls {
                        all.overhead += FRAME_TOKENS;
                        all.text(&call.name);
                        all.text(&call.arguments);
                    }
                    let opaque = opaque.iter().map(|data| EstimatedTokens::of_bytes(json_bytes(&data.data)));
                    all.overhead += opaque.sum::<usize>();
                }
                Message::Tool { results } => {
                    for result in results {
                        all.overhead += FRAME_TOKENS;
                        all.content(&result.content);
                    }
                }
            }
        }
        let mut listed_tokens = 0;
        for tool in request_tools.iter().filter(|tool| !tool.is_deferred()) {
            listed_tokens += shown_tokens(tool);
            all.text(&tool.name);
            all.text(&tool.description);
            all.text(&tool.parameters.to_string());
        }
        all.overhead += tools.saturating_sub(listed_tokens);
        all
    }

    fn content(&mut self, content: &[ContentBlock]) {
        for block in content {
            match block {
                ContentBlock::Text { text, .. } => self.text(text),
                ContentBlock::Image { .. } | ContentBlock::Audio { .. } => self.overhead += block.tokens(),
                other => self.texts.push(other.placeholder()),
            }
        }
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.texts.push(text.to_owned());
        }
    }
}

/// Requests below this many estimated tokens are ignored, because an API's own additions weigh too much in them.
const MIN_REQUEST: usize = 1000;
/// Plausible ratios of a report to an estimate. Others do not count the whole request: some servers count only what
/// they have not cached. The lower bound is tight, because an estimate that is too low overruns the window.
const PLAUSIBLE: std::ops::RangeInclusive<f64> = 0.8..=3.0;
/// Plausible ratios of the tokenizer's count to an estimate.
const COUNTED: std::ops::RangeInclusive<f64> = 0.25..=6.0;
/// The part of a lower report that is applied at once; a higher one is applied whole. Dense results (dumps, tables)
/// recur, and the next one must fit.
const LOWER_REPORT_WEIGHT: f64 = 0.05;

/// How a model's token counts relate to estimates. Part of the saved run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct TokenCalibration {
    /// Ratio of reported to estimated tokens, which rises at once and falls slowly. For a model with a tokenizer, since
    /// its first count.
    #[serde(skip_serializing_if = "Option::is_none")]
    learned: Option<f64>,
    /// Ratio by the last count of the model's own tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    counted: Option<f64>,
    /// The estimate of the current request.
    #[serde(skip)]
    pub(super) asked: usize,
}

impl TokenCalibration {
    /// Takes the API's reported tokens of the current request.
    pub(super) fn learn(&mut self, reported: u64) {
        let estimate = std::mem::take(&mut self.asked);
        if estimate < MIN_REQUEST {
            return;
        }
        // Below 2^53 nothing is rounded.
        let ratio = reported as f64 / estimate as f64;
        if !PLAUSIBLE.contains(&ratio) {
            return;
        }
        self.learned = Some(match self.learned {
            Some(before) if ratio < before => before + (ratio - before) * LOWER_REPORT_WEIGHT,
            _ => ratio,
        });
    }

    /// Takes the tokenizer's count of an estimated conversation.
    pub(super) fn count(&mut self, exact: usize, estimate: usize) {
        if estimate > 0 {
            let ratio = exact as f64 / estimate as f64;
            // Earlier reports do not show how the count and the API differ.
            if self.counted.is_none() {
                self.learned = None;
            }
            self.counted = Some(ratio.clamp(*COUNTED.start(), *COUNTED.end()));
        }
    }

    /// Returns whether the tokenizer has counted.
    pub(super) fn is_exact(&self) -> bool {
        self.counted.is_some()
    }

    /// Returns the ratio. A tokenizer may miss what an API adds, so a higher report takes precedence.
    fn ratio(&self) -> f64 {
        match (self.counted, self.learned) {
            (Some(counted), Some(learned)) => counted.max(learned),
            (counted, learned) => counted.or(learned).unwrap_or(1.0),
        }
    }

    /// Returns the corrected value of an estimate.
    pub(super) fn tokens(&self, estimate: usize) -> usize {
        (estimate as f64 * self.ratio()).ceil() as usize
    }

    /// Returns the estimate whose corrected value is this many tokens.
    pub(super) fn estimate(&self, tokens: usize) -> usize {
        (tokens as f64 / self.ratio()) as usize
    }
}

#[cfg(test)]
mod tests {
    use toolwright_core::model::CallResult;

    use super::*;

    #[test]
    fn dense_results_are_uncertain_until_they_were_sent() {
        let result = |text: &str| CallResult { content: vec![ContentBlock::text(text)], ..CallResult::default() };
        let tool = Message::Tool { results: vec![result("plain words"), result("0123456789abcd{}")] };
        assert_eq!(uncertainty(&[tool.clone(), Message::user("a notice")]), 6);
        let answer = Message::Assistant { text: "Yes.".into(), calls: Vec::new(), opaque: Vec::new() };
        assert_eq!(uncertainty(&[tool, answer]), 0);
        assert_eq!(uncertainty(&[]), 0);
    }

    fn learned(reports: &[(usize, u64)]) -> TokenCalibration {
        let mut gauge = TokenCalibration::default();
        for (asked, reported) in reports {
            gauge.asked = *asked;
            gauge.learn(*reported);
        }
        gauge
    }

    #[test]
    fn higher_reports_apply_at_once_and_lower_slowly() {
        for (reports, expect) in [
            (&[][..], 1000),
            (&[(2000, 3000)], 1500),
            (&[(2000, 3000), (2000, 4000)], 2000),
            (&[(2000, 4000), (2000, 2000)], 1950),
            // Too small to be meaningful, only a part, and implausible.
            (&[(999, 2000)], 1000),
            (&[(2000, 3000), (2000, 999)], 1500),
            (&[(2000, 1590)], 1000),
            (&[(2000, 1600)], 800),
            (&[(2000, 6001)], 1000),
        ] {
            assert_eq!(learned(reports).tokens(1000), expect, "{reports:?}");
        }
    }

    #[test]
    fn a_report_counts_for_one_request_only() {
        let mut gauge = learned(&[(2000, 3000)]);
        gauge.learn(9000);
        assert_eq!(gauge.tokens(1000), 1500);
        assert_eq!(gauge.estimate(1500), 1000);
    }

    #[test]
    fn the_tokenizer_beats_what_was_learnt() {
        let mut gauge = learned(&[(2000, 3000)]);
        assert!(!gauge.is_exact());
        gauge.count(1200, 1000);
        let saved: TokenCalibration =
            serde_json::from_value(serde_json::to_value(&gauge).expect("json")).expect("gauge");
        assert_eq!((saved.is_exact(), saved.tokens(1000), saved), (true, 1200, gauge));
    }

    #[test]
    fn only_a_report_above_the_count_applies() {
        for (reported, expect) in [(2600, 1300), (2200, 1200)] {
            let mut gauge = TokenCalibration::default();
            gauge.count(1200, 1000);
            gauge.asked = 2000;
            gauge.learn(reported);
            gauge.count(1200, 1000);
            assert_eq!(gauge.tokens(1000), expect, "{reported}");
        }
    }
}
