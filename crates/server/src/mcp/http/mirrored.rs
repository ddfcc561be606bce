//! Parameters of a call that are said again in headers (2026-07-28): both must say the same, since whoever stands
//! between may have let the request through by the headers.

use axum::http::{HeaderMap, HeaderName};
use serde_json::{Map, Value};
use toolwright_mcp::headers::{Sent, may_be_marked, mirrored};

use crate::Gateway;
use crate::mcp::call::Caller;
use crate::mcp::message::{Request, RpcError};

/// Checks a request of the modern generation.
///
/// # Errors
/// The JSON-RPC error to answer with.
pub(super) fn check(
    gateway: &Gateway,
    caller: &Caller,
    request: &Request,
    headers: &HeaderMap,
) -> Result<(), RpcError> {
    let Some(name) = request.params.name.as_deref().filter(|_| request.method == "tools/call") else { return Ok(()) };
    let list = gateway.tools(&caller.view, &caller.session);
    let Some(entry) = list.meant(name) else { return Ok(()) };
    let Some(schema) = entry.definition().parameters.as_ref().filter(|schema| may_be_marked(schema)) else {
        return Ok(());
    };
    // Clients leave out a tool whose marks make no sense, or send no headers for it.
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

fn sent<'a>(headers: &'a HeaderMap, name: &str) -> Sent<'a> {
    let Ok(name) = HeaderName::try_from(name) else { return Sent::Absent };
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Sent::Absent,
        (Some(value), None) => value.to_str().map_or(Sent::Unreadable, Sent::Once),
        (Some(_), Some(_)) => Sent::Unreadable,
    }
}
