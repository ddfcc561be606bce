//! Reads a provider's rate limits from the headers of a response.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use toolwright_core::model::{RateLimitWindow, RateLimits};

/// Maximal wait accepted from a header or message, in seconds: one day.
const LONGEST: f64 = 86_400.0;

/// Reads the limits in a response's headers: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` of OpenAI and
/// compatible servers, and `anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-…`. `None` without any.
pub(crate) fn limits<'h>(header: &dyn Fn(&str) -> Option<&'h str>, now: SystemTime) -> Option<RateLimits> {
    let count = |name: String| header(&name)?.trim().parse().ok();
    let openai = |what: &str| RateLimitWindow {
        limit: count(format!("x-ratelimit-limit-{what}")),
        remaining: count(format!("x-ratelimit-remaining-{what}")),
        reset_ms: header(&format!("x-ratelimit-reset-{what}")).and_then(span).and_then(millis),
    };
    let anthropic = |what: &str| RateLimitWindow {
        limit: count(format!("anthropic-ratelimit-{what}-limit")),
        remaining: count(format!("anthropic-ratelimit-{what}-remaining")),
        reset_ms: header(&format!("anthropic-ratelimit-{what}-reset"))
            .and_then(|at| at.trim().parse::<Timestamp>().ok())
            .and_then(|at| millis(SystemTime::from(at).duration_since(now).unwrap_or_default())),
    };
    let or = |first: RateLimitWindow, second: RateLimitWindow| {
        if first == RateLimitWindow::default() { second } else { first }
    };
    let limits = RateLimits {
        requests: or(openai("requests"), anthropic("requests")),
        tokens: or(openai("tokens"), anthropic("tokens")),
        input_tokens: anthropic("input-tokens"),
        output_tokens: anthropic("output-tokens"),
    };
    (limits != RateLimits::default()).then_some(limits)
}

/// A time as Go writes it (`12ms`, `1.5s`, `6m0s`, `1h2m3s`), or a plain number of seconds.
pub(crate) fn span(text: &str) -> Option<Duration> {
    let (seconds, rest) = leading_span(text.trim())?;
    rest.is_empty().then_some(seconds)
}

/// Splits off the duration at the start of `text`.
pub(crate) fn leading_span(text: &str) -> Option<(Duration, &str)> {
    let mut seconds = 0.0;
    let mut rest = text;
    let mut parts = 0;
    loop {
        // A dot that no digit follows ends a sentence.
        let digits = rest.char_indices().find(|&(at, char)| {
            let decimal = char == '.' && rest[at + 1..].starts_with(|next: char| next.is_ascii_digit());
            !char.is_ascii_digit() && !decimal
        });
        let (number, unit) = rest.split_at(digits.map_or(rest.len(), |(at, _)| at));
        let Ok(number) = number.parse::<f64>() else { break };
        let (factor, length) = match unit.as_bytes() {
            [b'm', b's', ..] => (0.001, 2),
            [b'h', ..] => (3600.0, 1),
            [b'm', ..] => (60.0, 1),
            [b's', ..] => (1.0, 1),
            _ if parts == 0 => (1.0, 0),
            _ => break,
        };
        seconds += number * factor;
        parts += 1;
        rest = &unit[length..];
        if length == 0 {
            break;
        }
    }
    (parts > 0).then(|| (Duration::from_secs_f64(seconds.min(LONGEST)), rest))
}

fn millis(span: Duration) -> Option<u64> {
    u64::try_from(span.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_timestamps_are_parsed() {
        for (text, expect) in [
            ("12ms", Some(12)),
            ("1s", Some(1000)),
            ("6m0s", Some(360_000)),
            ("2m59.56s", Some(179_560)),
            ("1h0m1.5s", Some(3_601_500)),
            ("7.66", Some(7660)),
            ("0", Some(0)),
            ("", None),
            ("soon", None),
            ("1d", None),
            ("5s later", None),
            ("9999999999999h", Some(86_400_000)),
            ("1..2s", None),
        ] {
            assert_eq!(span(text).map(|span| span.as_millis()), expect, "{text:?}");
        }
        assert_eq!(leading_span("26s."), Some((Duration::from_secs(26), ".")));
        assert_eq!(leading_span("15. Then"), Some((Duration::from_secs(15), ". Then")));
    }

    #[test]
    fn headers_of_each_kind() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_321_200);
        let read = |headers: &[(&str, &'static str)]| {
            let header = |name: &str| headers.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
            limits(&header, now)
        };
        let of = |limit, remaining, reset_ms| RateLimitWindow { limit, remaining, reset_ms };
        assert_eq!(read(&[("content-type", "x")]), None);
        let openai = read(&[
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", "1m0s"),
            ("x-ratelimit-remaining-tokens", "149984"),
            ("x-ratelimit-reset-tokens", "never"),
        ]);
        let expect = RateLimits {
            requests: of(Some(60), Some(0), Some(60_000)),
            tokens: of(None, Some(149_984), None),
            ..RateLimits::default()
        };
        assert_eq!(openai, Some(expect));
        let anthropic = read(&[
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "49"),
            ("anthropic-ratelimit-requests-reset", "2026-11-22T04:20:03Z"),
            ("anthropic-ratelimit-output-tokens-remaining", "0"),
            ("anthropic-ratelimit-output-tokens-reset", "2026-11-22T04:19:00.5+00:00"),
        ]);
        let expect = RateLimits {
            requests: of(Some(50), Some(49), Some(3000)),
            output_tokens: of(None, Some(0), Some(0)),
            ..RateLimits::default()
        };
        assert_eq!(anthropic, Some(expect));
    }
}
