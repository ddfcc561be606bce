//! What each API says, row by row.

use super::*;
use ModelErrorKind::*;

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
