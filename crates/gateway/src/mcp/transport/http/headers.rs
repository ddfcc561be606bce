//! The headers of a request.

use axum::http::{HeaderMap, HeaderName, header};
use serde_json::{Map, Value};
use toolwright_mcp::headers::{SentHeader, may_be_marked, mirrored};

use crate::Gateway;
use crate::mcp::message::{Request, RpcError};
use crate::mcp::protocol::{LEGACY_VERSIONS, StandardHeaders};
use crate::mcp::session::Caller;

pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Returns the protocol version, if the header has one.
pub(super) fn version(headers: &HeaderMap) -> Option<&str> {
    text(headers, &VERSION)
}

/// Returns whether the headers allow a request of the generation with sessions.
pub(super) fn may_be_legacy(headers: &HeaderMap) -> bool {
    version(headers).is_none_or(|version| LEGACY_VERSIONS.contains(&version))
}

/// Copies the W3C trace context of the headers to a request without its own.
pub(super) fn add_traceparent(headers: &HeaderMap, request: &mut Request) {
    if request.params.meta.traceparent.is_none() {
        request.params.meta.traceparent = text(headers, &TRACEPARENT).map(Into::into);
    }
}

/// Returns whether the content type is JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    text(headers, &header::CONTENT_TYPE).is_some_and(|value| media_type(value) == "application/json")
}

/// Returns the headers that repeat values of the body.
pub(super) fn standard(headers: &HeaderMap) -> StandardHeaders {
    let owned = |name| text(headers, name).map(str::to_owned);
    StandardHeaders { version: owned(&VERSION), method: owned(&METHOD), name: owned(&NAME) }
}

/// Returns a header's text; a header that occurs twice counts as absent.
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

/// The response formats that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepts {
    pub(super) json: bool,
    pub(super) events: bool,
}

impl Accepts {
    /// Reads the `Accept` header; `None` if it accepts neither format. A request without the header accepts both.
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

/// Checks that the call parameters repeated in the headers of a modern request equal those of the body, because a proxy
/// may have allowed the request by its headers.
///
/// # Errors
/// The JSON-RPC error to answer with.
pub(super) fn check_mirrored(
    gateway: &Gateway,
    caller: &Caller,
    request: &Request,
    headers: &HeaderMap,
) -> Result<(), RpcError> {
    let Some(name) = request.params.name.as_deref().filter(|_| request.method == "tools/call") else { return Ok(()) };
    let list = gateway.tools(&caller.view, &caller.session);
    let Some(entry) = list.resolve(name) else { return Ok(()) };
    let Some(schema) = entry.definition().parameters.as_ref().filter(|schema| may_be_marked(schema)) else {
        return Ok(());
    };
    // Clients ignore a tool with invalid header marks, or send no headers for it.
    let Ok(parameters) = mirrored(schema) else { return Ok(()) };
    let none = Map::new();
    let arguments = request.params.arguments.as_ref().and_then(Value::as_object).unwrap_or(&none);
    for parameter in parameters {
        parameter
            .check(arguments, sent(headers, &parameter.header))
            .map_err(|why| RpcError::new(RpcError::HEADER_MISMATCH, why))?;
    }
    Ok(())
}

fn sent<'a>(headers: &'a HeaderMap, name: &str) -> SentHeader<'a> {
    let Ok(name) = HeaderName::try_from(name) else { return SentHeader::Absent };
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => SentHeader::Absent,
        (Some(value), None) => value.to_str().map_or(SentHeader::Unreadable, SentHeader::Once),
        (Some(_), Some(_)) => SentHeader::Unreadable,
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
