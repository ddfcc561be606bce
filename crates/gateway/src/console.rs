//! The web console: its files and its sign-in endpoint. The pages use the HTTP API alone, with a token that they get
//! for the one-time token in their address. The token stands in the address's fragment, which browsers send to nobody.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use toolwright_core::json::canonical::ContentHash;

use crate::http::page_tokens::PageTokens;
use crate::http::{ApiError, respond};

/// The largest sign-in body, in bytes.
const MAX_BODY: usize = 1024;

/// The path at which a page exchanges the one-time token of its address for a page token.
const SESSION: &str = "/console/session";
/// Everything loads from this origin, and the page contains no inline script.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Each file: its name below `/console/`, its content type and its content.
const FILES: &[(&str, &str, &str)] = &[
    ("app.js", JS, include_str!("../console/app.js")),
    ("api.js", JS, include_str!("../console/api.js")),
    ("ui.js", JS, include_str!("../console/ui.js")),
    ("form.js", JS, include_str!("../console/form.js")),
    ("pages/overview.js", JS, include_str!("../console/pages/overview.js")),
    ("pages/tools.js", JS, include_str!("../console/pages/tools.js")),
    ("pages/runs.js", JS, include_str!("../console/pages/runs.js")),
    ("pages/approvals.js", JS, include_str!("../console/pages/approvals.js")),
    ("pages/jobs.js", JS, include_str!("../console/pages/jobs.js")),
    ("pages/costs.js", JS, include_str!("../console/pages/costs.js")),
    ("pages/chat.js", JS, include_str!("../console/pages/chat.js")),
    ("pages/agents.js", JS, include_str!("../console/pages/agents.js")),
    ("pages/triggers.js", JS, include_str!("../console/pages/triggers.js")),
    ("pages/policy.js", JS, include_str!("../console/pages/policy.js")),
    ("pages/pins.js", JS, include_str!("../console/pages/pins.js")),
    ("vendor/preact.js", JS, include_str!("../console/vendor/preact.js")),
    ("vendor/hooks.js", JS, include_str!("../console/vendor/hooks.js")),
    ("vendor/htm.js", JS, include_str!("../console/vendor/htm.js")),
    ("style.css", "text/css; charset=utf-8", include_str!("../console/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("../console/icon.svg")),
];
/// A hash of all files, used as a path segment so that browsers may cache each version forever.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let all: Vec<u8> = FILES.iter().flat_map(|(.., text)| text.bytes()).collect();
    format!("v-{:.16}", ContentHash::of_bytes(&all).to_hex())
});
/// The page, with links to the versioned folder.
static PAGE: LazyLock<String> =
    LazyLock::new(|| include_str!("../console/index.html").replace("/console/", &format!("/console/{}/", *VERSION)));
/// The `ETag` of each file by name; the page has the empty name.
static TAGS: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    let all = FILES.iter().map(|(name, _, text)| (*name, *text)).chain([("", PAGE.as_str())]);
    all.map(|(name, text)| (name, format!("\"{}\"", ContentHash::of_bytes(text.as_bytes())))).collect()
});
/// `Cache-Control`: the page is always revalidated; files with a version in their address are kept.
const ASK: &str = "no-cache";
const KEEP: &str = "private, max-age=31536000, immutable";
const HTML: &str = "text/html; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// Returns the routes of the console.
pub(crate) fn router(pages: Arc<PageTokens>) -> Router {
    Router::new()
        .route("/", get(|headers: HeaderMap| async move { file(&headers, "", HTML, PAGE.as_str(), ASK) }))
        .route(SESSION, post(sign_in))
        .route("/console/{*name}", get(named))
        .with_state(pages)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignIn {
    token: String,
}

/// Handles `POST /console/session`.
async fn sign_in(State(pages): State<Arc<PageTokens>>, body: Bytes) -> Response {
    let sign_in = (body.len() <= MAX_BODY).then(|| serde_json::from_slice::<SignIn>(&body).ok()).flatten();
    let Some(SignIn { token }) = sign_in else {
        return ApiError::bad_request("send {\"token\": TOKEN}").into_response();
    };
    match pages.sign_in(&token) {
        Some(token) => respond(StatusCode::OK, &json!({"token": token})),
        None => ApiError::unauthorized(
            "this address was used already, or is of another start of the server; `toolwright console` makes a new one",
        )
        .into_response(),
    }
}

async fn named(Path(path): Path<String>, headers: HeaderMap) -> Response {
    let versioned = path.strip_prefix(VERSION.as_str()).and_then(|rest| rest.strip_prefix('/'));
    let (name, cache) = versioned.map_or((path.as_str(), ASK), |name| (name, KEEP));
    match FILES.iter().find(|(file, ..)| *file == name) {
        Some((name, kind, text)) => file(&headers, name, kind, text, cache),
        None => ApiError::not_found("the console has no such file").into_response(),
    }
}

/// Returns a file, or 304 if the browser has it.
fn file(headers: &HeaderMap, name: &str, kind: &str, text: &'static str, cache: &str) -> Response {
    let tag = TAGS.get(name).map(String::as_str).unwrap_or_default();
    let is_unchanged = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == tag.as_bytes());
    let mut response = if is_unchanged { StatusCode::NOT_MODIFIED.into_response() } else { text.into_response() };
    let fixed: [(HeaderName, &str); 6] = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, cache),
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    for (name, value) in fixed {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    }
    if let Ok(tag) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assets_are_small() {
        let bytes: usize = FILES.iter().map(|(.., text)| text.len()).sum::<usize>() + PAGE.len();
        assert!(bytes < 300_000, "{bytes} bytes, uncompressed");
    }
}
