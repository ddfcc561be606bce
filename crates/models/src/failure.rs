//! What an API says when it fails, by its own codes and words, as one of our kinds.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use toolwright_core::model::{ModelError, ModelErrorKind};

use crate::api::Api;

/// Bound on quoted text of a failure, in characters.
const MAX_QUOTE: usize = 500;

/// Wordings of a conversation that does not fit. The APIs have no common code for it.
const OVERFLOW: [&str; 8] = [
    "context_length_exceeded",
    "maximum context length",
    "context length",
    "context window",
    "prompt is too long",
    "too many tokens",
    "input is too long",
    "exceeds the available context",
];
/// Wordings of an account without credit.
const NO_CREDIT: [&str; 5] =
    ["insufficient_quota", "exceeded your current quota", "credit balance", "billing", "insufficient balance"];
/// Wordings of a refusing filter.
const FILTERED: [&str; 4] = ["content_filter", "content_policy", "content management policy", "responsible_ai"];

/// The error of an HTTP answer with `status` and `body`, which need not be JSON.
#[must_use]
pub fn from_status(api: Api, status: u16, body: &[u8]) -> ModelError {
    let json = serde_json::from_slice::<Value>(body).ok();
    let reported = json
        .as_ref()
        .and_then(Reported::find)
        .unwrap_or_else(|| Reported { message: quote(String::from_utf8_lossy(body).trim()), codes: String::new() });
    let words = reported.words();
    let kind = match status {
        401 | 403 if mentions(&words, &NO_CREDIT) => ModelErrorKind::Quota,
        401 | 403 => ModelErrorKind::Auth,
        402 => ModelErrorKind::Quota,
        408 | 500.. => ModelErrorKind::Unavailable,
        413 => ModelErrorKind::ContextOverflow,
        429 if mentions(&words, &NO_CREDIT) => ModelErrorKind::Quota,
        429 => ModelErrorKind::RateLimit,
        _ => refused(&words),
    };
    ModelError::new(kind, reported.describe(api, &format!("answered HTTP {status}")))
}

/// The error inside a stream: the value of its `error` field.
pub(crate) fn from_event(api: Api, error: &Value) -> ModelError {
    let reported = Reported::of(error);
    let words = reported.words();
    let any = |codes: &[&str]| mentions(&reported.codes, codes);
    let kind = if any(&["auth", "permission"]) {
        ModelErrorKind::Auth
    } else if mentions(&words, &NO_CREDIT) {
        ModelErrorKind::Quota
    } else if any(&["rate_limit", "429"]) {
        ModelErrorKind::RateLimit
    } else if any(&["invalid_request", "not_found", "context_length", "content_filter", "too_large"])
        || mentions(&words, &OVERFLOW)
    {
        refused(&words)
    } else {
        ModelErrorKind::Unavailable
    };
    ModelError::new(kind, reported.describe(api, "failed while answering"))
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

fn refused(words: &str) -> ModelErrorKind {
    if mentions(words, &OVERFLOW) {
        ModelErrorKind::ContextOverflow
    } else if mentions(words, &FILTERED) {
        ModelErrorKind::ContentFilter
    } else if mentions(words, &NO_CREDIT) {
        ModelErrorKind::Quota
    } else {
        ModelErrorKind::Invalid
    }
}

fn mentions(words: &str, any: &[&str]) -> bool {
    any.iter().any(|needle| words.contains(needle))
}

/// What the API wrote about its failure.
struct Reported {
    message: String,
    /// `type` and `code`, in lower case.
    codes: String,
}

impl Reported {
    /// In a body: `{"error": {message, type, code}}`, `{"error": "…"}`, `{"message": "…"}`, or a list of one.
    fn find(body: &Value) -> Option<Self> {
        let body = body.as_array().map_or(Some(body), |items| items.first())?;
        if let Some(error) = body.get("error") {
            return Some(Self::of(error));
        }
        body.get("message").or_else(|| body.get("detail")).map(Self::of)
    }

    fn of(error: &Value) -> Self {
        let message = match error {
            Value::String(text) => text.clone(),
            other => other.get("message").and_then(Value::as_str).map_or_else(|| other.to_string(), str::to_owned),
        };
        let codes: Vec<String> = ["type", "code"]
            .iter()
            .filter_map(|key| error.get(key))
            .filter_map(|code| code.as_str().map(str::to_lowercase).or_else(|| code.as_u64().map(|n| n.to_string())))
            .collect();
        Self { message: quote(&message), codes: codes.join(" ") }
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

fn quote(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_codes_give_kinds() {
        use ModelErrorKind::*;
        let check = |status: u16, body: &str, kind: ModelErrorKind| {
            let error = from_status(Api::OpenAiChat, status, body.as_bytes());
            assert_eq!(error.kind, kind, "{status} {body}: {error}");
        };
        check(
            401,
            r#"{"error":{"message":"Incorrect API key","type":"invalid_request_error","code":"invalid_api_key"}}"#,
            Auth,
        );
        check(403, r#"{"type":"error","error":{"type":"permission_error","message":"no"}}"#, Auth);
        check(429, r#"{"error":{"message":"slow down","type":"rate_limit_error","code":"rate_limit"}}"#, RateLimit);
        check(429, r#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#, Quota);
        check(
            400,
            r#"{"error":{"message":"This model's maximum context length is 8192 tokens","code":"context_length_exceeded"}}"#,
            ContextOverflow,
        );
        check(
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 200001 tokens"}}"#,
            ContextOverflow,
        );
        check(
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}"#,
            Quota,
        );
        check(400, r#"{"error":{"message":"filtered","code":"content_filter"}}"#, ContentFilter);
        check(400, r#"{"error":"registry.ollama.ai/library/x does not support tools"}"#, Invalid);
        check(404, r#"{"error":"model 'x' not found"}"#, Invalid);
        check(413, "too big", ContextOverflow);
        check(500, "<html>oops</html>", Unavailable);
        check(529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, Unavailable);
        check(402, "", Quota);
    }

    #[test]
    fn errors_inside_a_stream_give_kinds() {
        use ModelErrorKind::*;
        let check =
            |error: Value, kind: ModelErrorKind| assert_eq!(from_event(Api::Anthropic, &error).kind, kind, "{error}");
        check(serde_json::json!({"type": "overloaded_error", "message": "Overloaded"}), Unavailable);
        check(serde_json::json!({"type": "rate_limit_error", "message": "later"}), RateLimit);
        check(serde_json::json!({"type": "authentication_error", "message": "no"}), Auth);
        check(serde_json::json!({"type": "invalid_request_error", "message": "bad"}), Invalid);
        check(serde_json::json!("model runner has unexpectedly stopped"), Unavailable);
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
