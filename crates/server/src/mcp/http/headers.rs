//! What the headers of a request say.

use axum::http::{HeaderMap, HeaderName, header};

use crate::mcp::protocol::{LEGACY_VERSIONS, StandardHeaders};

pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The protocol version, if it is said.
pub(super) fn version(headers: &HeaderMap) -> Option<&str> {
    text(headers, &VERSION)
}

/// Whether the headers leave a request to the generation with sessions.
pub(super) fn may_be_legacy(headers: &HeaderMap) -> bool {
    version(headers).is_none_or(|version| LEGACY_VERSIONS.contains(&version))
}

/// The W3C trace context.
pub(super) fn traceparent(headers: &HeaderMap) -> Option<&str> {
    text(headers, &TRACEPARENT)
}

/// Whether the body is said to be JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    text(headers, &header::CONTENT_TYPE).is_some_and(|value| media_type(value) == "application/json")
}

/// The headers that repeat the body.
pub(super) fn standard(headers: &HeaderMap) -> StandardHeaders {
    let owned = |name| text(headers, name).map(str::to_owned);
    StandardHeaders { version: owned(&VERSION), method: owned(&METHOD), name: owned(&NAME) }
}

/// A header's text; one that is sent twice counts as absent.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok().map(str::trim),
        _ => None,
    }
}

fn media_type(value: &str) -> String {
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The forms of answer that a client takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepts {
    pub(super) json: bool,
    pub(super) events: bool,
}

impl Accepts {
    /// `None` when it takes neither. A client that does not say takes both.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut accepts = Self { json: false, events: false };
        if !headers.contains_key(header::ACCEPT) {
            return Some(Self { json: true, events: true });
        }
        for value in headers.get_all(header::ACCEPT) {
            for item in value.to_str().unwrap_or_default().split(',').map(media_type) {
                accepts.json |= ["application/json", "application/*", "*/*"].contains(&item.as_str());
                accepts.events |= ["text/event-stream", "text/*", "*/*"].contains(&item.as_str());
            }
        }
        (accepts.json || accepts.events).then_some(accepts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn accepted_forms() {
        for (accept, expect) in [
            (None, Some((true, true))),
            (Some("application/json, text/event-stream"), Some((true, true))),
            (Some("*/*;q=0.1"), Some((true, true))),
            (Some("Application/JSON"), Some((true, false))),
            (Some("text/event-stream"), Some((false, true))),
            (Some("text/html"), None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            }
            let expect = expect.map(|(json, events)| Accepts { json, events });
            assert_eq!(Accepts::of(&headers), expect, "{accept:?}");
        }
    }
}
