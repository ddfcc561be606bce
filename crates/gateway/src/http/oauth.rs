//! That there is no OAuth here, in a form that clients of MCP understand.
//!
//! They ask before they connect, or once they were answered 401: for metadata (RFC 8414, RFC 9728, OpenID Connect), with
//! the path of the server before or after, and then at the addresses that hold where there is no metadata. The SDKs for
//! TypeScript and Python read an OAuth error there, and show what it says.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::api::respond;

/// What metadata is called, below `/.well-known/`.
const METADATA: [&str; 3] = ["oauth-authorization-server", "oauth-protected-resource", "openid-configuration"];
/// Where clients go on without metadata.
const USUAL: [&str; 3] = ["/register", "/authorize", "/token"];

/// Whether a client looks for OAuth at this path.
pub(super) fn is_asked_for(path: &str) -> bool {
    let is_metadata = |rest: &str| METADATA.iter().any(|name| rest.split('/').next() == Some(*name));
    USUAL.contains(&path) || path.split_once("/.well-known/").is_some_and(|(_, rest)| is_metadata(rest))
}

/// The answer.
pub(super) fn none() -> Response {
    let why = "this server has no OAuth; where it needs a token, send it as `Authorization: Bearer TOKEN`";
    respond(StatusCode::NOT_FOUND, &json!({"error": "not_found", "error_description": why}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paths_of_oauth_are_known_with_the_servers_path_and_without() {
        for (path, expect) in [
            ("/.well-known/oauth-authorization-server", true),
            ("/.well-known/oauth-authorization-server/mcp", true),
            ("/.well-known/oauth-protected-resource/mcp/small", true),
            ("/.well-known/openid-configuration", true),
            ("/mcp/.well-known/openid-configuration", true),
            ("/register", true),
            ("/token", true),
            ("/.well-known/oauth-authorization-serverx", false),
            ("/.well-known/security.txt", false),
            ("/register/x", false),
            ("/mcp/register", false),
            ("/api/token", false),
        ] {
            assert_eq!(is_asked_for(path), expect, "{path}");
        }
    }
}
