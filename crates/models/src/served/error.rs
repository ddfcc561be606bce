//! Failures in the form of each API.

use serde_json::{Value, json};

use super::{RequestError, ServedApi};

/// Why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is wrong.
    Invalid,
    /// The key is missing or wrong.
    Unauthorized,
    /// The key does not open this.
    Forbidden,
    /// The object does not exist.
    NotFound,
    /// The state of the thing does not allow it.
    Conflict,
    /// It is too long.
    TooLarge,
    /// A limit or budget is reached.
    RateLimited,
    /// The server is full or ends.
    Overloaded,
    /// The server or the model behind it failed.
    Internal,
}

impl Fault {
    /// The HTTP status.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Conflict => 409,
            Self::TooLarge => 413,
            Self::RateLimited => 429,
            Self::Overloaded => 503,
            Self::Internal => 500,
        }
    }

    /// Returns its type in the API.
    #[must_use]
    pub fn kind(self, api: ServedApi) -> &'static str {
        let is_anthropic = api == ServedApi::Messages;
        match self {
            Self::NotFound if is_anthropic => "not_found_error",
            Self::TooLarge if is_anthropic => "request_too_large",
            Self::Invalid | Self::NotFound | Self::Conflict | Self::TooLarge => "invalid_request_error",
            Self::Unauthorized => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::RateLimited => "rate_limit_error",
            Self::Overloaded if is_anthropic => "overloaded_error",
            Self::Internal if is_anthropic => "api_error",
            Self::Overloaded | Self::Internal => "server_error",
        }
    }
}

/// The body of a refusal, as `api` has it.
#[must_use]
pub fn error_body(api: ServedApi, fault: Fault, message: &str, field: Option<&str>) -> Value {
    let kind = fault.kind(api);
    if api == ServedApi::Messages {
        let mut error = json!({"type": kind, "message": message});
        // The tool runners of the API's own SDKs always send it, and continue without it after such an error.
        if (fault, field) == (Fault::Invalid, Some("thread")) {
            error["details"] = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
        }
        return json!({"type": "error", "error": error, "request_id": null});
    }
    let code = match fault {
        Fault::NotFound if field == Some("model") => Some("model_not_found"),
        Fault::Unauthorized => Some("invalid_api_key"),
        Fault::RateLimited => Some("rate_limit_exceeded"),
        _ => None,
    };
    json!({"error": {"message": message, "type": kind, "param": field, "code": code}})
}

impl RequestError {
    /// The body of the refusal.
    #[must_use]
    pub fn body(&self, api: ServedApi) -> Value {
        error_body(api, Fault::Invalid, &self.to_string(), Some(&self.field))
    }
}
