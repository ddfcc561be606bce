//! Arguments that are also sent as headers (2026-07-28, `x-mcp-header`), and the encoding of header values.

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::RpcError;

/// The deepest level of nested objects that is searched for annotations.
const MAX_DEPTH: usize = 16;

/// Checks that a header agrees with the body.
pub(super) fn agree(headers: &HeaderMap, name: &str, body: Option<&str>) -> Result<(), RpcError> {
    let mut values = headers.get_all(name).iter();
    let header = values.next().and_then(|value| value.to_str().ok()).map(decode);
    let alone = values.next().is_none();
    if alone && header.is_some() == body.is_some() && header.flatten().as_deref() == body {
        return Ok(());
    }
    Err(RpcError::new(RpcError::HEADER_MISMATCH, format!("the header {name} does not say what the body says")))
}

/// Checks every argument whose schema names a header: both must be present or both absent.
pub(super) fn check(headers: &HeaderMap, schema: &Value, arguments: Option<&Value>) -> Result<(), RpcError> {
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
            assert_eq!(super::check(&headers, &schema, Some(&arguments)).is_ok(), expect, "{pairs:?} {arguments}");
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
