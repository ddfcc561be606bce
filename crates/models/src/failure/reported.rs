//! Reads the body of an error.

use std::time::Duration;

use serde_json::Value;

use crate::api::Api;
use crate::failure::limits::{leading_span, span};

/// Bound on quoted text of a failure, in characters.
const MAX_QUOTE: usize = 500;
/// Entries of `details` that are looked at.
const MAX_DETAILS: usize = 16;

/// Which quota was used up, where a provider says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Quota {
    /// One of a minute.
    Minute,
    /// One of a day.
    Day,
    /// One of nothing: it does not come back by waiting.
    None,
}

/// What the API wrote about its failure.
#[derive(Debug, Default)]
pub(super) struct Reported {
    pub(super) message: String,
    /// Its codes, in lower case and apart by a space: `type`, `code`, `status`, and those among the details.
    pub(super) codes: String,
    /// The HTTP status that a code names.
    pub(super) status: Option<u16>,
    /// Milliseconds to wait, by details or words.
    pub(super) wait_ms: Option<u64>,
    /// By the details.
    pub(super) quota: Option<Quota>,
}

impl Reported {
    /// A body that is a mere text.
    pub(super) fn text(text: &str) -> Self {
        Self { message: quote(text), ..Self::default() }
    }

    /// In a body: `{"error": {message, type, code, status, details}}`, `{"error": "…"}`, `{"message": "…"}`, or a
    /// list of one.
    pub(super) fn find(body: &Value) -> Option<Self> {
        let body = body.as_array().map_or(Some(body), |items| items.first())?;
        if let Some(error) = body.get("error") {
            return Some(Self::of(error));
        }
        body.get("message").or_else(|| body.get("detail")).map(Self::of)
    }

    pub(super) fn of(error: &Value) -> Self {
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
        if reported.quota.is_some() && says_none(&words) {
            reported.quota = Some(Quota::None);
        }
        reported
    }

    /// One of Google's `ErrorInfo`, `RetryInfo` and `QuotaFailure` (google.rpc), or Anthropic's `{error_code}`.
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

    pub(super) fn words(&self) -> String {
        format!("{} {}", self.codes, self.message.to_lowercase())
    }

    pub(super) fn describe(&self, api: Api, what: &str) -> String {
        let codes = if self.codes.is_empty() { String::new() } else { format!(" ({})", self.codes) };
        let message = if self.message.is_empty() { "no reason given" } else { &self.message };
        format!("the {api} API {what}: {message}{codes}")
    }
}

/// The wait that a message names: "Please retry in 26.4s.", "Please try again in 6m0s."
fn asked_wait(words: &str) -> Option<u64> {
    let after = ["retry in ", "try again in "].iter().find_map(|before| words.split_once(before))?.1;
    let (wait, rest) = leading_span(after)?;
    // "try again in 2 minutes": the number alone is not the time.
    let apart = rest.chars().next().is_none_or(|next| !next.is_alphanumeric() && !next.is_whitespace());
    apart.then(|| millis(wait)).flatten()
}

/// Gemini's "limit: 0" of a model that the account has no share of.
fn says_none(words: &str) -> bool {
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
