//! Maps the codes and words of a failed request to a kind of error.
//!
//! The rules look at codes first, then at the HTTP status, and at words last. They are the same for all APIs:
//! gateways and compatible servers speak in each other's codes, and no code means two things.

pub(crate) mod limits;
mod reported;

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use toolwright_core::model::{ModelError, ModelErrorKind};

use crate::api::Api;
use reported::{Quota, Reported};

/// Wordings of a conversation that does not fit. Most APIs have no code for it.
const OVERFLOW: [&str; 16] = [
    "context_length_exceeded",
    "context length",
    "context window",
    "prompt is too long",
    "too many tokens",
    "input is too long",
    "exceed context limit",
    "exceeds the maximum number of tokens",
    "exceeds the available context",
    "request too large",
    // xAI, Kimi, GitHub Copilot, DashScope, Z.ai, Cerebras and others.
    "maximum prompt length",
    "exceeded model token limit",
    "prompt token count",
    "range of input length",
    "prompt exceeds max length",
    "reduce the length of the messages",
];
/// The one wording of [`OVERFLOW`] that servers say with a status of their own failure: Ollama and llama.cpp.
const OVERFLOW_OF_SERVER: [&str; 1] = ["exceeds the available context"];
/// Wordings of a wrong request that servers say with such a status: Ollama and llama.cpp.
const INVALID_OF_SERVER: [&str; 2] = ["invalid json schema in format", "failed to parse grammar"];
/// Wordings of an account without credit.
const NO_CREDIT: [&str; 6] = [
    "exceeded your current quota",
    "credit balance",
    "billing",
    "insufficient balance",
    "insufficient credit",
    "specified api usage limits",
];
/// Wordings of a refusing filter.
const FILTERED: [&str; 4] = ["content_filter", "content_policy", "content management policy", "responsible_ai"];

/// Parts of codes of a refused key.
const AUTH_CODES: [&str; 6] =
    ["authentic", "unauthorized", "invalid_api_key", "api_key_invalid", "permission", "forbidden"];
/// Parts of codes of an account without credit.
const QUOTA_CODES: [&str; 6] =
    ["insufficient_quota", "credit_balance", "billing", "spend_limit", "insufficient_balance", "payment_required"];
/// Parts of codes of too many requests.
const RATE_CODES: [&str; 3] = ["rate_limit", "resource_exhausted", "too_many_requests"];
/// Parts of codes of a conversation that does not fit.
const OVERFLOW_CODES: [&str; 3] = ["context_length_exceeded", "request_too_large", "model_max_prompt_tokens_exceeded"];
/// Parts of codes of a refusing filter. Those of a policy are OpenAI's: `bio_policy`, `content_policy_violation`.
const FILTER_CODES: [&str; 4] = ["content_filter", "_policy", "invalid_prompt", "responsibleaipolicy"];
/// Parts of codes of a wrong request.
const INVALID_CODES: [&str; 4] = ["invalid", "not_found", "failed_precondition", "unsupported"];

/// The error of an HTTP answer with `status` and `body`, which need not be JSON.
#[must_use]
pub fn from_status(api: Api, status: u16, body: &[u8]) -> ModelError {
    let json = serde_json::from_slice::<Value>(body).ok();
    let reported =
        json.as_ref().and_then(Reported::find).unwrap_or_else(|| Reported::text(String::from_utf8_lossy(body).trim()));
    reported.error(api, Some(status), &format!("answered HTTP {status}"))
}

/// The error inside a stream: the value of its `error` field.
pub(crate) fn from_event(api: Api, error: &Value) -> ModelError {
    let reported = Reported::of(error);
    reported.error(api, reported.status, "failed while answering")
}

/// The error in an event that is none of the API's: gateways and proxies answer in shapes of their own.
pub(crate) fn from_unknown(api: Api, data: &[u8]) -> Option<ModelError> {
    let body: Value = serde_json::from_slice(data).ok()?;
    if let Some(error) = body.get("error").filter(|error| !error.is_null()) {
        return Some(from_event(api, error));
    }
    let message = ["message", "detail"].iter().find_map(|key| body.get(key)?.as_str())?;
    let code = body.get("type").or_else(|| body.get("code")).cloned().unwrap_or_default();
    Some(from_event(api, &json!({"message": message, "code": code})))
}

/// Milliseconds to wait by `retry-after-ms`, else by `retry-after` (seconds, or a date as RFC 9110 has it).
#[must_use]
pub fn retry_after_ms(millis: Option<&str>, after: Option<&str>, now: SystemTime) -> Option<u64> {
    let number = |text: &str, unit: f64| {
        text.trim().parse::<f64>().ok().filter(|n| *n >= 0.0).map(|n| Duration::from_secs_f64((n * unit).min(1e9)))
    };
    let wait = millis.and_then(|text| number(text, 0.001)).or_else(|| {
        let text = after?;
        number(text, 1.0)
            .or_else(|| Some(httpdate::parse_http_date(text.trim()).ok()?.duration_since(now).unwrap_or_default()))
    })?;
    u64::try_from(wait.as_millis()).ok()
}

impl Reported {
    fn error(&self, api: Api, status: Option<u16>, what: &str) -> ModelError {
        let kind = self.kind(status);
        let retry_after_ms = self.wait_ms.filter(|_| kind.is_retryable());
        ModelError { retry_after_ms, ..ModelError::new(kind, self.describe(api, what)) }
    }

    fn kind(&self, status: Option<u16>) -> ModelErrorKind {
        let words = self.words();
        let coded = |parts: &[&str]| contains_any(&self.codes, parts);
        let in_words = |parts: &[&str]| contains_any(&words, parts);
        if coded(&QUOTA_CODES) {
            ModelErrorKind::Quota
        } else if coded(&AUTH_CODES) || matches!(status, Some(401 | 403)) {
            if in_words(&NO_CREDIT) { ModelErrorKind::Quota } else { ModelErrorKind::Auth }
        } else if coded(&OVERFLOW_CODES) || status == Some(413) {
            ModelErrorKind::ContextOverflow
        } else if coded(&FILTER_CODES) {
            ModelErrorKind::ContentFilter
        } else if coded(&RATE_CODES) || status == Some(429) {
            self.limited(&words)
        } else {
            match status {
                Some(402) => ModelErrorKind::Quota,
                Some(500..) | None if in_words(&OVERFLOW_OF_SERVER) => ModelErrorKind::ContextOverflow,
                Some(500..) | None if in_words(&INVALID_OF_SERVER) => ModelErrorKind::Invalid,
                Some(408 | 409 | 500..) => ModelErrorKind::Unavailable,
                None if !coded(&INVALID_CODES) && !in_words(&OVERFLOW) => {
                    if in_words(&NO_CREDIT) {
                        ModelErrorKind::Quota
                    } else {
                        ModelErrorKind::Unavailable
                    }
                }
                _ => refused(&words),
            }
        }
    }

    /// Which of the things that a provider calls a limit: one of a minute, one that no wait helps against, or one
    /// that this request alone is over.
    fn limited(&self, words: &str) -> ModelErrorKind {
        let known = contains_any(&self.codes, &RATE_CODES);
        if words.contains("request too large") {
            // More than the limit of a minute in one request: OpenAI says it with 429. A shorter one may do.
            return ModelErrorKind::ContextOverflow;
        }
        match self.quota {
            Some(Quota::Day | Quota::None) => ModelErrorKind::Quota,
            Some(Quota::Minute) => ModelErrorKind::RateLimit,
            None if !known && self.wait_ms.is_none() && contains_any(words, &NO_CREDIT) => ModelErrorKind::Quota,
            None => ModelErrorKind::RateLimit,
        }
    }
}

fn refused(words: &str) -> ModelErrorKind {
    if contains_any(words, &OVERFLOW) {
        ModelErrorKind::ContextOverflow
    } else if contains_any(words, &FILTERED) {
        ModelErrorKind::ContentFilter
    } else if contains_any(words, &NO_CREDIT) {
        ModelErrorKind::Quota
    } else {
        ModelErrorKind::Invalid
    }
}

fn contains_any(words: &str, any: &[&str]) -> bool {
    any.iter().any(|needle| words.contains(needle))
}

#[cfg(test)]
mod tests;
