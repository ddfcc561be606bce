//! Classifies failed requests by codes and wording.
//!
//! The rules check codes first, then the HTTP status, then the wording. They are the same for all APIs:
//! gateways and compatible servers use each other's codes, and no code has two meanings.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use toolwright_core::model::{ModelError, ModelErrorKind};

use crate::api::Api;
use crate::rate_limits::{leading_span, span};

/// Wordings of a conversation that exceeds the context window. Most APIs have no code for it.
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
/// The wording of [`OVERFLOW`] that Ollama and llama.cpp use with a status 5xx.
const OVERFLOW_OF_SERVER: [&str; 1] = ["exceeds the available context"];
/// Wordings of an invalid request that Ollama and llama.cpp use with a status 5xx.
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
/// Wordings of a content filter.
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
/// Parts of codes from content filters. OpenAI's policy codes: `bio_policy`, `content_policy_violation`.
const FILTER_CODES: [&str; 4] = ["content_filter", "_policy", "invalid_prompt", "responsibleaipolicy"];
/// Parts of codes of a wrong request.
const INVALID_CODES: [&str; 4] = ["invalid", "not_found", "failed_precondition", "unsupported"];

/// The error of an HTTP response with `status` and `body`, which need not be JSON.
pub(crate) fn from_status(api: Api, status: u16, body: &[u8]) -> ModelError {
    let json = serde_json::from_slice::<Value>(body).ok();
    let reported = json
        .as_ref()
        .and_then(ErrorBody::find)
        .unwrap_or_else(|| ErrorBody::text(String::from_utf8_lossy(body).trim()));
    reported.error(api, Some(status), &format!("answered HTTP {status}"))
}

/// The error inside a stream: the value of its `error` field.
pub(crate) fn from_event(api: Api, error: &Value) -> ModelError {
    let reported = ErrorBody::of(error);
    reported.error(api, reported.status, "failed while answering")
}

/// The error in an event that is not of the API's form: gateways and proxies have forms of their own.
pub(crate) fn from_unknown(api: Api, data: &[u8]) -> Option<ModelError> {
    let body: Value = serde_json::from_slice(data).ok()?;
    if let Some(error) = body.get("error").filter(|error| !error.is_null()) {
        return Some(from_event(api, error));
    }
    let message = ["message", "detail"].iter().find_map(|key| body.get(key)?.as_str())?;
    let code = body.get("type").or_else(|| body.get("code")).cloned().unwrap_or_default();
    Some(from_event(api, &json!({"message": message, "code": code})))
}

/// Returns the milliseconds to wait by `retry-after-ms`, else by `retry-after` (seconds, or a date of RFC 9110).
pub(crate) fn retry_after_ms(millis: Option<&str>, after: Option<&str>, now: SystemTime) -> Option<u64> {
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

impl ErrorBody {
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

    /// The kind of limit: one per minute, one that does not reset by waiting, or one that this request alone exceeds.
    fn limited(&self, words: &str) -> ModelErrorKind {
        let known = contains_any(&self.codes, &RATE_CODES);
        if words.contains("request too large") {
            // One request exceeds the limit of a minute: OpenAI reports it with 429. A shorter request may succeed.
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

/// The longest quote of a provider's message, in characters.
const MAX_QUOTE: usize = 500;
/// Number of entries of `details` that are read.
const MAX_DETAILS: usize = 16;

/// The exhausted quota, if reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Quota {
    /// Per minute.
    Minute,
    /// Per day.
    Day,
    /// A quota of zero, which does not reset.
    None,
}

/// The error that the API reported.
#[derive(Debug, Default)]
struct ErrorBody {
    message: String,
    /// Its codes, in lower case and separated by spaces: `type`, `code`, `status`, and those in the details.
    codes: String,
    /// The HTTP status that a code names.
    status: Option<u16>,
    /// Milliseconds to wait, from the details or the message.
    wait_ms: Option<u64>,
    /// The quota from the details.
    quota: Option<Quota>,
}

impl ErrorBody {
    /// A body that is plain text.
    fn text(text: &str) -> Self {
        Self { message: quote(text), ..Self::default() }
    }

    /// Finds an error in a body: `{"error": {message, type, code, status, details}}`, `{"error": "…"}`, `{"message":
    /// "…"}`, or a list of one.
    fn find(body: &Value) -> Option<Self> {
        let body = body.as_array().map_or(Some(body), |items| items.first())?;
        if let Some(error) = body.get("error") {
            return Some(Self::of(error));
        }
        body.get("message").or_else(|| body.get("detail")).map(Self::of)
    }

    fn of(error: &Value) -> Self {
        let whole = match error {
            Value::String(text) => text.clone(),
            other => other.get("message").and_then(Value::as_str).map_or_else(|| other.to_string(), str::to_owned),
        };
        let written = ["type", "code", "status"].iter().filter_map(|key| error.get(key));
        let codes = written.filter_map(|code| {
            code.as_str().map(str::to_lowercase).or_else(|| code.as_u64().map(|number| number.to_string()))
        });
        let status = error.get("code").and_then(|code| code.as_u64().or_else(|| code.as_str()?.parse().ok()));
        let mut reported = Self {
            codes: codes.collect::<Vec<_>>().join(" "),
            status: status.and_then(|status| u16::try_from(status).ok()).filter(|status| (400..600).contains(status)),
            ..Self::text(&whole)
        };
        match error.get("details") {
            Some(Value::Array(details)) => details.iter().take(MAX_DETAILS).for_each(|detail| reported.detail(detail)),
            Some(detail) => reported.detail(detail),
            None => {}
        }
        let words = whole.to_lowercase();
        reported.wait_ms = reported.wait_ms.or_else(|| asked_wait(&words));
        if reported.quota.is_some() && is_zero_limit(&words) {
            reported.quota = Some(Quota::None);
        }
        reported
    }

    /// Reads a detail: Google's `ErrorInfo`, `RetryInfo` or `QuotaFailure` (google.rpc), or Anthropic's `{error_code}`.
    fn detail(&mut self, detail: &Value) {
        for code in ["reason", "error_code"].iter().filter_map(|key| detail.get(key)?.as_str()) {
            self.codes.push(' ');
            self.codes.push_str(&code.to_lowercase());
        }
        let wait = detail.get("retryDelay").and_then(Value::as_str).and_then(span);
        self.wait_ms = wait.and_then(millis).or(self.wait_ms);
        let violations = detail.get("violations").and_then(Value::as_array).into_iter().flatten();
        for violation in violations.take(MAX_DETAILS) {
            let id = violation.get("quotaId").and_then(Value::as_str).unwrap_or_default();
            let value = violation.get("quotaValue");
            let quota = if value.is_some_and(|value| value == "0" || value == 0) {
                Some(Quota::None)
            } else if id.contains("PerDay") {
                Some(Quota::Day)
            } else if id.contains("PerMinute") {
                Some(Quota::Minute)
            } else {
                None
            };
            self.quota = self.quota.max(quota);
        }
    }

    fn words(&self) -> String {
        format!("{} {}", self.codes, self.message.to_lowercase())
    }

    fn describe(&self, api: Api, what: &str) -> String {
        let codes = if self.codes.is_empty() { String::new() } else { format!(" ({})", self.codes) };
        let message = if self.message.is_empty() { "no reason given" } else { &self.message };
        format!("the {api} API {what}: {message}{codes}")
    }
}

/// Returns the wait stated in a message: "Please retry in 26.4s.", "Please try again in 6m0s."
fn asked_wait(words: &str) -> Option<u64> {
    let after = ["retry in ", "try again in "].iter().find_map(|before| words.split_once(before))?.1;
    let (wait, rest) = leading_span(after)?;
    // In "try again in 2 minutes" the number alone is not a duration.
    let apart = rest.chars().next().is_none_or(|next| !next.is_alphanumeric() && !next.is_whitespace());
    apart.then(|| millis(wait)).flatten()
}

/// Gemini's "limit: 0" of a model that the account has no share of.
fn is_zero_limit(words: &str) -> bool {
    let limits = words.match_indices("limit: 0").map(|(at, found)| &words[at + found.len()..]);
    limits.into_iter().any(|rest| !rest.starts_with(|next: char| next.is_ascii_digit() || next == '.'))
}

fn millis(wait: Duration) -> Option<u64> {
    u64::try_from(wait.as_millis()).ok()
}

fn quote(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ModelErrorKind::*;

    use super::*;

    /// Anything that a body should say: kind, and milliseconds to wait.
    fn check(api: Api, status: u16, body: &Value, kind: ModelErrorKind, wait_ms: Option<u64>) {
        let error = from_status(api, status, body.to_string().as_bytes());
        assert_eq!((error.kind, error.retry_after_ms), (kind, wait_ms), "{api} {status} {body}: {error}");
    }

    #[test]
    fn openai() {
        let row = |status: u16, kind_of: &str, code: &str, message: &str, kind| {
            let body = json!({"error": {"message": message, "type": kind_of, "param": null, "code": code}});
            for api in [Api::OpenAiChat, Api::OpenAiResponses] {
                check(api, status, &body, kind, None);
            }
        };
        row(401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided: sk-…", Auth);
        row(403, "invalid_request_error", "", "Country, region, or territory not supported", Auth);
        row(429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota", Quota);
        row(429, "", "credit_balance_exhausted", "Your credit balance is used up", Quota);
        let visit = "Rate limit reached for gpt-4 on requests per min. Limit: 3 / min. Visit \
                     https://platform.openai.com/account/billing to add a payment method.";
        row(429, "requests", "rate_limit_exceeded", visit, RateLimit);
        row(
            429,
            "tokens",
            "rate_limit_exceeded",
            "Request too large for gpt-4o: Limit 30000, Requested 34000",
            ContextOverflow,
        );
        row(400, "invalid_request_error", "context_length_exceeded", "maximum context length is 8192", ContextOverflow);
        row(400, "invalid_request_error", "content_policy_violation", "no", ContentFilter);
        row(400, "invalid_request_error", "invalid_prompt", "no", ContentFilter);
        row(400, "invalid_request_error", "bio_policy", "no", ContentFilter);
        row(400, "invalid_request_error", "unsupported_parameter", "Unsupported parameter: 'temperature'", Invalid);
        row(404, "invalid_request_error", "model_not_found", "The model does not exist", Invalid);
        row(422, "invalid_request_error", "", "unprocessable", Invalid);
        row(409, "", "conflict", "try later", Unavailable);
        row(408, "", "", "timeout", Unavailable);
        row(500, "server_error", "", "The server had an error", Unavailable);
        row(503, "server_error", "", "overloaded", Unavailable);
        let wait = json!({"error": {"message": "Please try again in 6m0s. Visit …", "code": "rate_limit_exceeded"}});
        check(Api::OpenAiChat, 429, &wait, RateLimit, Some(360_000));
    }

    #[test]
    fn anthropic() {
        let row = |status: u16, kind_of: &str, message: &str, kind| {
            let body = json!({"type": "error", "error": {"type": kind_of, "message": message}, "request_id": "req_1"});
            check(Api::Anthropic, status, &body, kind, None);
        };
        row(401, "authentication_error", "invalid x-api-key", Auth);
        row(403, "permission_error", "no", Auth);
        row(402, "billing_error", "pay", Quota);
        row(400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API", Quota);
        row(400, "invalid_request_error", "You have reached your specified API usage limits", Quota);
        row(429, "rate_limit_error", "Number of request tokens has exceeded your per-minute rate limit", RateLimit);
        row(400, "invalid_request_error", "prompt is too long: 200001 tokens > 200000 maximum", ContextOverflow);
        let both = "input length and `max_tokens` exceed context limit: 197000 + 8192 > 200000, decrease input length";
        row(400, "invalid_request_error", both, ContextOverflow);
        row(413, "request_too_large", "Request exceeds the maximum allowed number of bytes", ContextOverflow);
        row(400, "invalid_request_error", "messages: at least one message is required", Invalid);
        row(404, "not_found_error", "model: x", Invalid);
        row(409, "conflict_error", "again", Unavailable);
        row(500, "api_error", "Internal server error", Unavailable);
        row(504, "timeout_error", "timed out", Unavailable);
        row(529, "overloaded_error", "Overloaded", Unavailable);
        let spent = json!({"type": "error", "error": {"type": "rate_limit_error", "message": "monthly limit",
            "details": {"error_code": "enforced_spend_limit_reached"}}});
        check(Api::Anthropic, 429, &spent, Quota, None);
    }

    #[test]
    fn gemini() {
        let row = |code: u16, status: &str, message: &str, details: Value, kind, wait_ms| {
            let body = json!({"error": {"code": code, "message": message, "status": status, "details": details}});
            check(Api::Gemini, code, &body, kind, wait_ms);
            check(Api::Gemini, code, &json!([body]), kind, wait_ms);
        };
        let plan = "You exceeded your current quota, please check your plan and billing details.";
        let failure = |id: &str, value: &str| {
            json!({"@type": "type.googleapis.com/google.rpc.QuotaFailure",
                "violations": [{"quotaMetric": "m", "quotaId": id, "quotaValue": value}]})
        };
        let retry = |delay: &str| json!({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay});
        let minute = "GenerateRequestsPerMinutePerProjectPerModel-FreeTier";
        let day = "GenerateRequestsPerDayPerProjectPerModel-FreeTier";
        let exhausted = "RESOURCE_EXHAUSTED";
        row(429, exhausted, plan, json!([failure(minute, "15"), retry("26s")]), RateLimit, Some(26_000));
        row(429, exhausted, plan, json!([failure(minute, "15"), retry("15.002899939s")]), RateLimit, Some(15_002));
        row(429, exhausted, plan, json!([failure(day, "50"), retry("26s")]), Quota, None);
        row(429, exhausted, plan, json!([failure(minute, "0"), retry("26s")]), Quota, None);
        let none = format!("{plan} * Quota exceeded for metric: x, limit: 0 Please retry in 15.1s.");
        row(429, exhausted, &none, json!([failure(minute, ""), retry("15s")]), Quota, None);
        row(429, exhausted, &format!("{plan} Please retry in 15.5s."), json!([]), RateLimit, Some(15_500));
        row(429, exhausted, "Resource has been exhausted (e.g. check quota).", json!([]), RateLimit, None);
        let reason = json!([{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]);
        row(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", reason, Auth, None);
        row(403, "PERMISSION_DENIED", "Your API key doesn't have the required permissions.", json!([]), Auth, None);
        let free = "Gemini API free tier is not available in your country. Please enable billing on your project.";
        row(400, "FAILED_PRECONDITION", free, json!([]), Quota, None);
        let long = "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).";
        row(400, "INVALID_ARGUMENT", long, json!([]), ContextOverflow, None);
        row(400, "INVALID_ARGUMENT", "Invalid JSON payload received.", json!([]), Invalid, None);
        row(404, "NOT_FOUND", "models/x is not found", json!([]), Invalid, None);
        row(500, "INTERNAL", "An internal error has occurred", json!([]), Unavailable, None);
        row(503, "UNAVAILABLE", "The model is overloaded.", json!([]), Unavailable, None);
        row(504, "DEADLINE_EXCEEDED", "Deadline expired", json!([]), Unavailable, None);
    }

    #[test]
    fn ollama() {
        let row = |status: u16, message: &str, kind| check(Api::Ollama, status, &json!({"error": message}), kind, None);
        row(401, "unauthorized", Auth);
        row(429, "too many requests", RateLimit);
        row(400, "the prompt exceeds the available context size", ContextOverflow);
        row(500, "the request exceeds the available context size, try increasing it", ContextOverflow);
        row(400, "registry.ollama.ai/library/x does not support tools", Invalid);
        row(404, "model 'x' not found", Invalid);
        row(500, "model runner has unexpectedly stopped", Unavailable);
        row(500, "invalid JSON schema in format", Invalid);
        row(503, "server busy, please try again.  maximum pending requests exceeded", Unavailable);
    }

    #[test]
    fn servers_of_no_known_kind() {
        let row = |status: u16, body: &str, kind| {
            let error = from_status(Api::OpenAiChat, status, body.as_bytes());
            assert_eq!(error.kind, kind, "{status} {body}: {error}");
        };
        row(402, "", Quota);
        row(413, "too big", ContextOverflow);
        row(500, "<html>oops</html>", Unavailable);
        row(429, "slow down", RateLimit);
        row(429, r#"{"message": "you exceeded your current quota"}"#, Quota);
        row(429, r#"{"message": "you exceeded your current quota; retry in 3s"}"#, RateLimit);
        row(400, r#"{"error":{"message":"filtered","code":"content_filter"}}"#, ContentFilter);
        let xai = "This model's maximum prompt length is 131072 but the request contains 537812 tokens.";
        row(400, &format!(r#"{{"code":"Client specified an invalid argument","error":"{xai}"}}"#), ContextOverflow);
        for said in [
            "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)",
            "Range of input length should be [1, 98304]",
            "Prompt exceeds max length",
            "Please reduce the length of the messages or completion. Current length is 9025 while limit is 8192",
        ] {
            row(400, &format!(r#"{{"error":{{"message":"{said}","type":"invalid_request_error"}}}}"#), ContextOverflow);
        }
        let copilot = r#"{"error":{"message":"prompt token count of 59233 exceeds the limit of 12288","code":"model_max_prompt_tokens_exceeded"}}"#;
        row(400, copilot, ContextOverflow);
        let mistral = r#"{"detail":[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],"msg":"Extra inputs are not permitted","input":800}]}"#;
        row(422, mistral, Invalid);
        row(500, r#"{"error":{"message":"failed to parse grammar","code":500}}"#, Invalid);
    }

    #[test]
    fn errors_inside_a_stream_give_kinds() {
        let check =
            |error: Value, kind: ModelErrorKind| assert_eq!(from_event(Api::Anthropic, &error).kind, kind, "{error}");
        check(json!({"type": "overloaded_error", "message": "Overloaded"}), Unavailable);
        check(json!({"type": "rate_limit_error", "message": "later"}), RateLimit);
        check(json!({"type": "authentication_error", "message": "no"}), Auth);
        check(json!({"type": "invalid_request_error", "message": "bad"}), Invalid);
        check(json!({"code": "server_error", "message": "sorry"}), Unavailable);
        check(json!({"code": "misalignment_policy_violation", "message": "no"}), ContentFilter);
        check(json!({"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}), Unavailable);
        check(json!({"code": 429, "message": "slow down"}), RateLimit);
        check(json!({"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}), Invalid);
        check(json!("model runner has unexpectedly stopped"), Unavailable);
        check(json!("the request exceeds the available context size"), ContextOverflow);
    }

    #[test]
    fn retry_after_is_seconds_milliseconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(retry_after_ms(None, Some("2"), now), Some(2000));
        assert_eq!(retry_after_ms(Some("1500"), Some("9"), now), Some(1500));
        assert_eq!(retry_after_ms(None, Some("Sun, 06 Nov 1994 08:49:40 GMT"), now), Some(3000));
        assert_eq!(retry_after_ms(None, Some("soon"), now), None);
        assert_eq!(retry_after_ms(None, Some("inf"), now), Some(1_000_000_000_000));
    }
}
