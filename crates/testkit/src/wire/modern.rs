//! The rules of 2026-07-28: what a request must carry, and what every result carries.

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Answer, META, MODERN, Request, RpcError};

/// Methods whose results say how long they may be kept.
const CACHEABLE: [&str; 6] =
    ["server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"];

/// Checks `_meta` and, on HTTP, that the headers say the same as the body. Returns the client's
/// capabilities.
pub(super) fn check(request: &Request, headers: Option<&HeaderMap>) -> Result<Value, RpcError> {
    let required = |key: &str| {
        request
            .meta(&format!("{META}{key}"))
            .ok_or_else(|| RpcError::new(RpcError::INVALID_PARAMS, format!("params._meta lacks {META}{key}")))
    };
    let (version, capabilities) = (required("protocolVersion")?, required("clientCapabilities")?);
    if let Some(headers) = headers {
        agree(headers, "mcp-protocol-version", version.as_str())?;
        agree(headers, "mcp-method", Some(&request.method))?;
        match request.method.as_str() {
            "tools/call" | "prompts/get" => agree(headers, "mcp-name", Some(request.text("name")))?,
            "resources/read" => agree(headers, "mcp-name", Some(request.text("uri")))?,
            _ => {}
        }
    }
    if version != MODERN {
        return Err(RpcError::new(RpcError::UNSUPPORTED_VERSION, "unsupported protocol version")
            .with_data(json!({"supported": [MODERN], "requested": version})));
    }
    Ok(capabilities.clone())
}

fn agree(headers: &HeaderMap, name: &str, body: Option<&str>) -> Result<(), RpcError> {
    let header = headers.get(name).and_then(|value| value.to_str().ok()).map(decode);
    if header.is_some() && header.flatten().as_deref() == body {
        return Ok(());
    }
    Err(RpcError::new(RpcError::HEADER_MISMATCH, format!("the header {name} does not say what the body says")))
}

/// Header values that are not plain ASCII come as `=?base64?…?=`.
fn decode(value: &str) -> Option<String> {
    let value = value.trim_matches([' ', '\t']);
    let Some(encoded) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(value.to_owned());
    };
    String::from_utf8(STANDARD.decode(encoded).ok()?).ok()
}

pub(super) fn server_info(name: &str) -> Value {
    json!({"name": name, "version": env!("CARGO_PKG_VERSION")})
}

pub(super) fn discover(capabilities: &Value) -> Value {
    json!({"supportedVersions": [MODERN], "capabilities": capabilities})
}

/// Adds what the generation asks of every result; what the server set itself stays.
pub(super) fn finish(server_name: &str, request: &Request, mut result: Value) -> Answer {
    if let Some(fields) = result.as_object_mut() {
        let kind = fields.entry("resultType").or_insert_with(|| json!("complete"));
        if *kind == "complete" && CACHEABLE.contains(&request.method.as_str()) {
            fields.entry("ttlMs").or_insert_with(|| json!(0));
            fields.entry("cacheScope").or_insert_with(|| json!("private"));
        }
        let meta = fields.entry("_meta").or_insert_with(|| json!({}));
        meta[format!("{META}serverInfo")] = server_info(server_name);
    }
    Answer::Result(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values() {
        let check = |value: &str, expect: Option<&str>| assert_eq!(decode(value).as_deref(), expect, "{value}");
        check("  tools/call\t", Some("tools/call"));
        check("=?base64?SGVsbG8=?=", Some("Hello"));
        check("=?base64?SGVsbG8?=", None);
        check("=?base64?SGVs!!!bG8=?=", None);
        check("=?base64?SGVsbG8=", Some("=?base64?SGVsbG8="));
    }
}
