//! Decides the order of model requests and their retries, and interprets a provider's rate limits.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ModelError, ModelErrorKind, Usage};
use crate::backoff::{Backoff, share};
use crate::duration;
use crate::setting::TimeSpan;

/// Priority of a request in a model's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelPriority {
    /// A request that has waited and failed before.
    Retry,
    /// Somebody waits for the answer.
    #[default]
    Interactive,
    /// Work on the side.
    Background,
    /// Not urgent, like measurements.
    Low,
}

/// One limit of a provider, as reported in its response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateLimitWindow {
    /// The total.
    pub limit: Option<u64>,
    /// The remaining amount.
    pub remaining: Option<u64>,
    /// Milliseconds until it is full again.
    pub reset_ms: Option<u64>,
}

/// The limits in a response's headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests.
    pub requests: RateLimitWindow,
    /// Tokens of any kind.
    pub tokens: RateLimitWindow,
    /// Input tokens.
    pub input_tokens: RateLimitWindow,
    /// Tokens answered.
    pub output_tokens: RateLimitWindow,
}

/// A notice about the transport of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestProgress {
    /// It waits in this queue.
    Waits {
        /// The queue's name.
        queue: Arc<str>,
    },
    /// An attempt begins.
    Began {
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Time in the queue, in microseconds.
        waited_us: u64,
    },
    /// It is sent without these parts: the model, its API or its server lacks them, or its configuration changes them.
    Lost(Vec<&'static str>),
    /// The first bytes of an answer arrived: the request is not sent again from here on.
    FirstByte,
    /// The provider reported its limits.
    Limits(RateLimits),
    /// The provider has probably shortened the request: it read far fewer tokens than were sent.
    Shortened {
        /// Tokens that were sent, estimated.
        sent: u64,
        /// Tokens that the provider reports as read.
        read: u64,
    },
    /// An attempt failed and will be repeated. The last failure is the request's own and not reported here.
    Failed {
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Kind.
        kind: ModelErrorKind,
        /// The message for the operator.
        message: String,
        /// Whether it never reached the provider.
        unsent: bool,
        /// Its usage.
        usage: Usage,
        /// Its duration, in microseconds.
        latency_us: u64,
        /// Milliseconds until the next attempt.
        again_in_ms: u64,
    },
}

/// When a request is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetryConfig {
    /// Attempts in all; 1 turns retries off.
    #[schemars(range(min = 1, max = 10))]
    pub attempts: u32,
    /// The longest wait that a provider may ask for. If it asks for a longer one, the request fails.
    #[serde(with = "duration::required")]
    #[schemars(with = "TimeSpan")]
    pub longest_wait: Duration,
}

/// Bound on refused forms of one request, besides its attempts, while the client finds out what a server accepts
/// ([`ModelError::is_retried_differently`]).
pub const MAX_REFUSED_FORMS: u32 = 6;

impl RetryConfig {
    /// Maximal number of times that one request is sent.
    #[must_use]
    pub fn most_requests(self) -> u32 {
        self.attempts.max(1).saturating_add(MAX_REFUSED_FORMS)
    }
}

impl Default for RetryConfig {
    /// 4 attempts, 60 seconds.
    fn default() -> Self {
        Self { attempts: 4, longest_wait: Duration::from_secs(60) }
    }
}

/// The waits of our own choice.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), most: Duration::from_secs(8) };

/// Returns the delay before repeating a request that failed at `attempt`, counted from 1. `None` to give up:
/// a retry cannot help, an answer had begun (`streamed`), or the attempts are used up. `seed` is
/// random: it spreads concurrent retries over half of our own delay, or over a tenth after a delay
/// that the provider requested.
#[must_use]
pub fn retry(error: &ModelError, attempt: u32, streamed: bool, config: RetryConfig, seed: u64) -> Option<Duration> {
    let may = error.should_retry.unwrap_or_else(|| error.kind.is_retryable());
    if streamed || !may || attempt >= config.attempts {
        return None;
    }
    let own = BACKOFF.spread(attempt, seed);
    match error.retry_after_ms.map(Duration::from_millis) {
        Some(server_wait) if server_wait > config.longest_wait => None,
        Some(server_wait) => Some(own.max(server_wait + share(server_wait / 10, seed))),
        None => Some(own),
    }
}

/// Returns how long to hold further requests, by a provider's limits; `None` while something is left.
///
/// Limits refill continuously and providers report when they are full again, so a request is allowed much earlier:
/// after its share of that time. For tokens, the wait is for a tenth of the limit. A wait that is too short costs one
/// refused request, which reports the right wait.
#[must_use]
pub fn pause(limits: &RateLimits) -> Option<Duration> {
    let wait = |allowance: RateLimitWindow, parts: u64| {
        let reset = allowance.reset_ms.filter(|_| allowance.remaining == Some(0))?;
        Some(Duration::from_millis(reset.div_ceil(parts.max(1))))
    };
    let tokens = [limits.tokens, limits.input_tokens, limits.output_tokens];
    let tokens = tokens.into_iter().filter_map(|allowance| wait(allowance, 10));
    wait(limits.requests, limits.requests.limit.unwrap_or(1)).into_iter().chain(tokens).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_wait_within_bounds() {
        use ModelErrorKind::*;
        let config = RetryConfig { attempts: 3, longest_wait: Duration::from_secs(20) };
        // (kind, the provider's hint, requested wait, attempt, streamed) -> shortest and longest wait
        let check = |kind, should_retry, retry_after_ms, attempt, streamed, expect: Option<(u64, u64)>| {
            let error = ModelError { retry_after_ms, should_retry, ..ModelError::new(kind, "") };
            let wait = |seed| retry(&error, attempt, streamed, config, seed).map(|wait| wait.as_millis() as u64);
            let waits = || (0..5000).filter_map(wait);
            assert_eq!(
                waits().min().zip(waits().max()),
                expect,
                "{kind:?} {should_retry:?} {retry_after_ms:?} {attempt}"
            );
        };
        check(Unavailable, None, None, 1, false, Some((250, 500)));
        check(Unavailable, None, None, 2, false, Some((500, 1000)));
        check(Unavailable, None, None, 3, false, None);
        check(Unavailable, None, None, 1, true, None);
        check(RateLimit, None, Some(3000), 1, false, Some((3000, 3300)));
        check(RateLimit, None, Some(10), 1, false, Some((250, 500)));
        check(RateLimit, None, Some(20_000), 1, false, Some((20_000, 22_000)));
        check(RateLimit, None, Some(20_001), 1, false, None);
        check(RateLimit, Some(false), None, 1, false, None);
        check(Invalid, Some(true), None, 1, false, Some((250, 500)));
        for kind in [Auth, Quota, ContextOverflow, ContentFilter, Invalid, BadResponse, Canceled, Unsupported] {
            check(kind, None, Some(1), 1, false, None);
        }
    }

    #[test]
    fn exhausted_limit_pauses_for_part_of_reset() {
        let check = |requests: (u64, u64, u64), tokens: (u64, u64, u64), expect: Option<u64>| {
            let of = |(limit, remaining, reset_ms)| RateLimitWindow {
                limit: Some(limit),
                remaining: Some(remaining),
                reset_ms: Some(reset_ms),
            };
            let limits = RateLimits { requests: of(requests), tokens: of(tokens), ..RateLimits::default() };
            assert_eq!(pause(&limits), expect.map(Duration::from_millis), "{requests:?} {tokens:?}");
        };
        check((60, 1, 59_000), (1000, 10, 60_000), None);
        check((60, 0, 60_000), (1000, 10, 60_000), Some(1000));
        check((60, 0, 60_000), (1000, 0, 60_000), Some(6000));
        check((0, 0, 60_000), (1, 1, 0), Some(60_000));
        assert_eq!(pause(&RateLimits::default()), None);
    }
}
