//! OAuth against an authorization server on a real socket, looked at from its side.
#![expect(clippy::expect_used, reason = "a test stops at its first surprise")]

mod accounts;
mod answers;
mod clients;
mod logins;
mod people;
mod refresh;
mod setup;
mod trials;

use std::sync::Arc;

use axum::http::HeaderMap;
use toolwright_core::event::NoEvents;
use toolwright_core::store::NoStore;
use toolwright_mcp::client::McpOptions;
use toolwright_net::{Challenge, HttpOptions};
use toolwright_oauth::{CredentialStore, OAuth, OAuthConfig, OAuthOptions};
use url::Url;

use people::ConsentingBrowser;
use setup::ServerFixture;

/// Parts of one server's OAuth.
fn parts(setup: &ServerFixture, store: &CredentialStore) -> OAuthOptions {
    OAuthOptions {
        server: "srv".into(),
        url: Url::parse(&format!("{}/mcp", setup.base)).expect("a URL"),
        settings: OAuthConfig::default(),
        store: store.clone(),
        http: HttpOptions::default(),
        consent: None,
        secrets: None,
    }
}

fn person(parts: OAuthOptions) -> OAuth {
    OAuth::new(OAuthOptions { consent: Some(Arc::new(ConsentingBrowser)), ..parts })
}

/// Surroundings of a provider that is never asked.
fn deps() -> McpOptions {
    McpOptions { manifests: Arc::new(NoStore), events: Arc::new(NoEvents), roots: Arc::default() }
}

fn refusal(status: u16, header: &str) -> Challenge {
    Challenge { status, authenticate: vec![header.to_owned()] }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get("authorization").map(|value| value.to_str().expect("text"))
}
