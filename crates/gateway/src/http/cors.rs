//! What a browser lets a page of another origin do here (CORS, in the Fetch standard): call, and read the answers. Only
//! for origins that are listed. Nothing is allowed with cookies or the like: a page has to send the token itself.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

/// Methods that something here has.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
/// Headers of answers that a page may read beyond those that it always may.
const EXPOSED: HeaderValue = HeaderValue::from_static("Mcp-Session-Id, Retry-After, WWW-Authenticate");
/// Seconds for which a browser need not ask again.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
/// Headers that a page may send, beside those of MCP.
const TAKEN: [&str; 7] =
    ["accept", "authorization", "content-type", "last-event-id", "traceparent", "tracestate", "baggage"];
/// What MCP's headers begin with: `Mcp-Session-Id`, `Mcp-Protocol-Version`, `Mcp-Param-…`.
const OF_MCP: &str = "mcp-";
/// Names of headers that are allowed at once.
const MAX_NAMES: usize = 64;

/// Whether a browser asks by this what it may send.
pub(super) fn is_preflight(request: &Request<Body>) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to a page that may call: of the headers that it wants to send, those that mean something here.
pub(super) fn permit(asked: &HeaderMap, page: &HeaderValue) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    if let Some(names) = HeaderValue::from_str(&taken(asked).join(", ")).ok().filter(|names| !names.is_empty()) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
    }
    share(&mut response, page.clone());
    response
}

/// Lets a page read an answer.
pub(super) fn share(response: &mut Response, page: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, page);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    // No cache may give it to a page of another origin.
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
}

/// The names among those that a page wants to send which it may. `*` would not mean `Authorization`.
fn taken(asked: &HeaderMap) -> Vec<String> {
    let lists = asked.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS).iter().filter_map(|list| list.to_str().ok());
    lists
        .flat_map(|list| list.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .filter(|name| TAKEN.contains(&name.as_str()) || name.as_str().starts_with(OF_MCP))
        .take(MAX_NAMES)
        .map(|name| name.to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_may_send_what_means_something_here() {
        for (asked, expect) in [
            ("authorization,content-type, mcp-session-id", "authorization, content-type, mcp-session-id"),
            ("Mcp-Param-Region, x-evil, cookie", "mcp-param-region"),
            ("", ""),
            ("a b, :", ""),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCESS_CONTROL_REQUEST_HEADERS, HeaderValue::from_static(asked));
            assert_eq!(taken(&headers).join(", "), expect, "{asked}");
        }
    }
}
