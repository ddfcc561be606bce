//! The two generations of the protocol: how a request shows its generation, and the required fields of a modern
//! request.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::message::{self, Request, RpcError};

pub(crate) use toolwright_mcp::revision::Level;
pub(crate) use toolwright_mcp::revision::{
    BATCHING, CLIENT_INFO, Era, LEGACY_VERSIONS, MODERN_VERSIONS, SERVER_INFO, negotiate,
};

/// Prefix of the `_meta` keys that the protocol owns.
const PROTOCOL_PREFIX: &str = "io.modelcontextprotocol/";

/// Returns the `_meta` of a request without the keys that the protocol owns.
pub(crate) fn own_meta(params: Option<&RawValue>) -> Map<String, Value> {
    #[derive(Deserialize)]
    struct WithMeta {
        #[serde(default, rename = "_meta")]
        meta: Map<String, Value>,
    }
    // Most requests have no `_meta`, so nothing is parsed.
    let Some(raw) = params.filter(|raw| raw.get().contains("\"_meta\"")) else { return Map::new() };
    let Ok(WithMeta { mut meta }) = message::read(raw) else { return Map::new() };
    meta.retain(|key, _| {
        !key.starts_with(PROTOCOL_PREFIX) && !["progressToken", "traceparent", "tracestate"].contains(&key.as_str())
    });
    meta
}

/// Returns the client info of a modern request as JSON; empty if it has none.
pub(crate) fn client_info(params: Option<&RawValue>) -> String {
    #[derive(Deserialize)]
    struct WithMeta {
        #[serde(rename = "_meta")]
        meta: HashMap<String, Box<RawValue>>,
    }
    let read = params.and_then(|raw| message::read::<WithMeta>(raw).ok());
    read.and_then(|read| read.meta.get(CLIENT_INFO).map(|info| info.get().to_owned())).unwrap_or_default()
}

/// The generation of a request. `header` is `MCP-Protocol-Version`, which only HTTP has. Any value except a legacy
/// revision counts as modern, so that the client learns the supported revisions.
pub(crate) fn era_of(request: &Request, header: Option<&str>) -> Era {
    let modern = header.is_some_and(|version| !LEGACY_VERSIONS.contains(&version))
        || request.params.meta.protocol_version.is_some()
        || matches!(request.method.as_str(), "server/discover" | "subscriptions/listen");
    if modern { Era::Modern } else { Era::Legacy }
}

/// The headers that a modern HTTP request repeats from its body (2026-07-28, "Standard headers").
#[derive(Debug, Default)]
pub(crate) struct StandardHeaders {
    pub(crate) version: Option<String>,
    pub(crate) method: Option<String>,
    pub(crate) name: Option<String>,
}

/// Checks the required fields of a modern request, in the order of the specification: `_meta`, headers (`None` on
/// stdio), version.
///
/// # Errors
/// The JSON-RPC error to answer with.
pub(crate) fn check_modern(request: &Request, headers: Option<&StandardHeaders>) -> Result<(), RpcError> {
    let meta = &request.params.meta;
    let missing = |key: &str| RpcError::invalid_params(format!("`_meta` lacks io.modelcontextprotocol/{key}"));
    let version = meta.protocol_version.as_deref().ok_or_else(|| missing("protocolVersion"))?;
    if meta.client_capabilities.is_none() {
        return Err(missing("clientCapabilities"));
    }
    if let Some(headers) = headers {
        check_headers(request, version, headers)?;
    }
    if MODERN_VERSIONS.contains(&version) {
        return Ok(());
    }
    let data = json!({"supported": MODERN_VERSIONS, "requested": version});
    let error = RpcError::new(RpcError::UNSUPPORTED_VERSION, "this protocol version is not served statelessly");
    Err(RpcError { data: Some(Box::new(data)), ..error })
}

fn check_headers(request: &Request, version: &str, headers: &StandardHeaders) -> Result<(), RpcError> {
    let expect = |header: &str, found: Option<&str>, expected: &str| {
        if found == Some(expected) {
            return Ok(());
        }
        let found = found.map_or("absent".to_owned(), |value| format!("`{value}`"));
        let message = format!("header {header} must be `{expected}` as in the body, but is {found}");
        Err(RpcError::new(RpcError::HEADER_MISMATCH, message))
    };
    expect("MCP-Protocol-Version", headers.version.as_deref(), version)?;
    expect("Mcp-Method", headers.method.as_deref(), &request.method)?;
    let name = match request.method.as_str() {
        "tools/call" | "prompts/get" => request.params.name.as_deref(),
        "resources/read" => request.params.uri.as_deref(),
        method if method.starts_with("tasks/") => request.params.task_id.as_deref(),
        _ => None,
    };
    let Some(name) = name else { return Ok(()) };
    let sent = headers.name.as_deref().map(decode_header).transpose()?;
    expect("Mcp-Name", sent.as_deref(), name)
}

/// Returns a header value, or the decoded text inside `=?base64?…?=`.
fn decode_header(value: &str) -> Result<String, RpcError> {
    let Some(encoded) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Ok(value.to_owned());
    };
    BASE64
        .decode(encoded)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| RpcError::new(RpcError::HEADER_MISMATCH, "a header's =?base64?…?= does not decode"))
}

#[cfg(test)]
mod tests {
    use super::super::message::{Message, parse};
    use super::*;

    fn request(method: &str, params: &Value) -> Request {
        let text = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        match parse(text.as_bytes()) {
            Ok(Message::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    fn meta(version: &str) -> Value {
        json!({"_meta": {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        }})
    }

    #[test]
    fn meta_beyond_the_protocol_is_passed_on() {
        let params = json!({"_meta": {"progressToken": 1, "traceparent": "x", "io.modelcontextprotocol/logLevel": "info", "vendor/a": [1]}});
        let raw = serde_json::value::to_raw_value(&params).expect("raw");
        assert_eq!(Value::Object(own_meta(Some(&raw))), json!({"vendor/a": [1]}));
        let broken = serde_json::value::to_raw_value(&json!({"_meta": 5})).expect("raw");
        assert!(own_meta(Some(&broken)).is_empty() && own_meta(None).is_empty());
    }

    #[test]
    fn the_request_shows_its_protocol_generation() {
        let none = json!({});
        for (method, params, header, era) in [
            ("tools/list", &none, None, Era::Legacy),
            ("tools/list", &none, Some("2025-06-18"), Era::Legacy),
            ("tools/list", &none, Some("2026-07-28"), Era::Modern),
            ("tools/list", &none, Some("v999"), Era::Modern),
            ("tools/list", &meta("2026-07-28"), None, Era::Modern),
            ("server/discover", &none, None, Era::Modern),
            ("initialize", &json!({"protocolVersion": "2025-11-25"}), None, Era::Legacy),
        ] {
            assert_eq!(era_of(&request(method, params), header), era, "{method} {header:?}");
        }
        assert_eq!((negotiate(Some("2024-11-05")), negotiate(Some("2099-01-01"))), ("2024-11-05", "2025-11-25"));
    }

    fn check(params: &Value, headers: Option<[Option<&str>; 3]>, expect: Option<i64>) {
        let headers = headers.map(|[version, method, name]| StandardHeaders {
            version: version.map(Into::into),
            method: method.map(Into::into),
            name: name.map(Into::into),
        });
        let outcome = check_modern(&request("tools/call", params), headers.as_ref());
        assert_eq!(outcome.err().map(|error| error.code), expect, "{params} {headers:?}");
    }

    #[test]
    fn a_modern_request_is_checked_step_by_step() {
        let with_name = |version: &str, name: &str| {
            let mut params = meta(version);
            params["name"] = json!(name);
            params
        };
        let good = with_name("2026-07-28", "a");
        let v = Some("2026-07-28");
        check(&json!({}), None, Some(RpcError::INVALID_PARAMS));
        check(&good, None, None);
        check(&with_name("2025-11-25", "a"), None, Some(RpcError::UNSUPPORTED_VERSION));
        check(&good, Some([v, Some("tools/call"), Some("a")]), None);
        check(&good, Some([None, Some("tools/call"), Some("a")]), Some(RpcError::HEADER_MISMATCH));
        check(&good, Some([v, Some("TOOLS/CALL"), Some("a")]), Some(RpcError::HEADER_MISMATCH));
        check(&good, Some([v, Some("tools/call"), None]), Some(RpcError::HEADER_MISMATCH));
        check(&good, Some([v, Some("tools/call"), Some("b")]), Some(RpcError::HEADER_MISMATCH));
        check(&with_name("2026-07-28", "ü"), Some([v, Some("tools/call"), Some("=?base64?w7w=?=")]), None);
        check(&good, Some([v, Some("tools/call"), Some("=?base64?!?=")]), Some(RpcError::HEADER_MISMATCH));
        let unknown = with_name("v999", "a");
        check(&unknown, Some([Some("v999"), Some("tools/call"), Some("a")]), Some(RpcError::UNSUPPORTED_VERSION));
        check(&unknown, Some([v, Some("tools/call"), Some("a")]), Some(RpcError::HEADER_MISMATCH));
    }
}
