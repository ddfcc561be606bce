//! The rules of 2026-07-28 for requests and results.

use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::param_headers::{self, agree};
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
                    param_headers::check(headers, &schema, request.params.get("arguments"))?;
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
