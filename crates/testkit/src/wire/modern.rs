//! The rules of 2026-07-28: what a request must carry, arguments in headers (`x-mcp-header`) among it, and what every
//! result carries.

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Answer, Era, META, MODERN, Request, RpcError, Server};

/// Methods whose results state a cache lifetime.
const CACHEABLE: [&str; 6] =
    ["server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"];

/// Checks `_meta` and, on HTTP, that the headers agree with the body. Returns the client's capabilities.
pub(super) fn check(request: &Request, headers: Option<&HeaderMap>, server: &dyn Server) -> Result<Value, RpcError> {
    let required = |key: &str| {
        request
            .meta(&format!("{META}{key}"))
            .ok_or_else(|| RpcError::invalid(format!("params._meta lacks {META}{key}")))
    };
    let (version, capabilities) = (required("protocolVersion")?, required("clientCapabilities")?);
    if let Some(headers) = headers {
        agree(headers, "mcp-protocol-version", version.as_str())?;
        agree(headers, "mcp-method", Some(&request.method))?;
        match request.method.as_str() {
            "tools/call" => {
                agree(headers, "mcp-name", Some(request.text("name")))?;
                if let Some(schema) = server.input_schema(request.text("name")) {
                    check_param_headers(headers, &schema, request.params.get("arguments"))?;
                }
            }
            "prompts/get" => agree(headers, "mcp-name", Some(request.text("name")))?,
            "resources/read" => agree(headers, "mcp-name", Some(request.text("uri")))?,
            "tasks/get" | "tasks/update" | "tasks/cancel" => agree(headers, "mcp-name", Some(request.text("taskId")))?,
            _ => {}
        }
    }
    if version != MODERN {
        return Err(RpcError::new(RpcError::UNSUPPORTED_VERSION, "unsupported protocol version")
            .with_data(json!({"supported": [MODERN], "requested": version})));
    }
    Ok(capabilities.clone())
}

pub(super) fn server_info(name: &str) -> Value {
    json!({"name": name, "version": env!("CARGO_PKG_VERSION")})
}

pub(super) fn discover(server: &dyn Server) -> Value {
    let mut result = json!({"supportedVersions": [MODERN], "capabilities": server.capabilities(Era::Modern)});
    if let Some(instructions) = server.instructions() {
        result["instructions"] = json!(instructions);
    }
    result
}

/// Adds the required fields of every result; fields set by the server stay.
pub(super) fn finish(server: &dyn Server, request: &Request, mut result: Value) -> Answer {
    if let Some(fields) = result.as_object_mut() {
        let kind = fields.entry("resultType").or_insert_with(|| json!("complete"));
        if *kind == "complete" && CACHEABLE.contains(&request.method.as_str()) {
            let (ttl, scope) = server.caching(&request.method);
            fields.entry("ttlMs").or_insert_with(|| json!(ttl));
            fields.entry("cacheScope").or_insert_with(|| json!(scope));
        }
        let meta = fields.entry("_meta").or_insert_with(|| json!({}));
        meta[format!("{META}serverInfo")] = server_info(server.name());
    }
    Answer::Result(result)
}

/// The deepest level of nested objects that is searched for annotations.
const MAX_DEPTH: usize = 16;

/// Checks that a header agrees with the body.
fn agree(headers: &HeaderMap, name: &str, body: Option<&str>) -> Result<(), RpcError> {
    let mut values = headers.get_all(name).iter();
    let header = values.next().and_then(|value| value.to_str().ok()).map(decode);
    let alone = values.next().is_none();
    if alone && header.is_some() == body.is_some() && header.flatten().as_deref() == body {
        return Ok(());
    }
    Err(RpcError::new(RpcError::HEADER_MISMATCH, format!("the header {name} does not say what the body says")))
}

/// Checks every argument whose schema names a header: both must be present or both absent.
fn check_param_headers(headers: &HeaderMap, schema: &Value, arguments: Option<&Value>) -> Result<(), RpcError> {
    walk(headers, schema, arguments, 0)
}

fn walk(headers: &HeaderMap, schema: &Value, value: Option<&Value>, depth: usize) -> Result<(), RpcError> {
    if depth > MAX_DEPTH {
        return Ok(());
    }
    for (name, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let value = value.and_then(|value| value.get(name));
        if let Some(header) = schema.get("x-mcp-header").and_then(Value::as_str) {
            let body = match value {
                Some(Value::String(text)) => Some(text.clone()),
                Some(scalar @ (Value::Bool(_) | Value::Number(_))) => Some(scalar.to_string()),
                _ => None,
            };
            agree(headers, &format!("mcp-param-{}", header.to_ascii_lowercase()), body.as_deref())?;
        }
        walk(headers, schema, value, depth + 1)?;
    }
    Ok(())
}

/// Decodes a header value; values that are not plain ASCII come as `=?base64?…?=`.
fn decode(value: &str) -> Option<String> {
    let value = value.trim_matches([' ', '\t']);
    let Some(encoded) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(value.to_owned());
    };
    String::from_utf8(STANDARD.decode(encoded).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    #[test]
    fn arguments_and_headers_agree() {
        let schema = json!({"properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "plain": {"type": "string"},
            "deep": {"type": "object", "properties": {"level": {"type": "integer", "x-mcp-header": "Level"}}},
        }});
        let check = |pairs: &[(&'static str, &'static str)], arguments: Value, expect: bool| {
            let headers = pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            assert_eq!(
                check_param_headers(&headers, &schema, Some(&arguments)).is_ok(),
                expect,
                "{pairs:?} {arguments}"
            );
        };
        check(&[], json!({"plain": "x"}), true);
        check(&[("mcp-param-region", "eu")], json!({"region": "eu"}), true);
        check(&[("mcp-param-region", "=?base64?ZXU=?=")], json!({"region": "eu"}), true);
        check(&[("mcp-param-region", "us")], json!({"region": "eu"}), false);
        check(&[("mcp-param-region", "eu"), ("mcp-param-region", "us")], json!({"region": "eu"}), false);
        check(&[], json!({"region": "eu"}), false);
        check(&[("mcp-param-region", "eu")], json!({}), false);
        check(&[("mcp-param-region", "eu")], json!({"region": null}), false);
        check(&[("mcp-param-level", "3")], json!({"deep": {"level": 3}}), true);
        check(&[], json!({"deep": {"level": 3}}), false);
    }
}
