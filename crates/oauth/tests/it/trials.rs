//! Tokens that the server does not take, new as they are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use toolwright_core::catalogue::Provider as _;
use toolwright_mcp::client::{McpProvider, McpServerOptions, McpTransport};
use toolwright_net::{Authorizer as _, Retry};
use toolwright_oauth::{CredentialStore, Grant, OAuth};

use super::setup::ServerFixture;
use super::{bearer, deps, parts, person, refusal};

#[tokio::test]
async fn refusing_servers_get_no_further_tokens() {
    for is_client in [false, true] {
        // Its MCP server takes none.
        let setup = ServerFixture::start(|_| {}).await;
        let store = CredentialStore::memory();
        let mut parts = parts(&setup, &store);
        if is_client {
            parts.settings.grant = Grant::ClientCredentials;
            parts.settings.client_id = Some("me".into());
        } else {
            person(parts.clone()).login(&[]).await.expect("logged in");
        }
        let searches = setup.looked_for.load(Ordering::SeqCst);
        let transport = McpTransport::Http { url: format!("{}/mcp", setup.base), headers: BTreeMap::new() };
        let mut config = McpServerOptions::new("srv", transport);
        config.authorizer = Some(Arc::new(OAuth::new(parts)));
        let provider = McpProvider::new(config, deps());
        for _ in 0..10 {
            let error = provider.list().await.expect_err("refused").to_string();
            assert!(error.contains("just given") && !error.contains("headers.Authorization"), "{error}");
            assert!(error.contains("mcp logout srv") && error.contains("mcp login srv"), "{error}");
        }
        let got = if is_client { "client_credentials" } else { "refresh_token" };
        assert_eq!((setup.asked(got).len(), setup.given.load(Ordering::SeqCst)), (1, if is_client { 1 } else { 2 }));
        assert_eq!(setup.looked_for.load(Ordering::SeqCst) - searches, 1);
    }
}

#[tokio::test]
async fn accepted_tokens_refresh_when_refused_later() {
    let setup = ServerFixture::start(|_| {}).await;
    let store = CredentialStore::memory();
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    let oauth = OAuth::new(parts(&setup, &store));
    for expect in ["Bearer t1", "Bearer t2", "Bearer t3"] {
        let sent = oauth.headers().await.expect("headers");
        assert_eq!(bearer(&sent), Some(expect));
        oauth.accepted(&sent);
        assert_eq!(oauth.on_challenge(refusal(401, "Bearer"), sent).await, Ok(Retry::Yes));
    }
    // This one it does not take, in its own words.
    let words = "Bearer error=\"invalid_token\", error_description=\"the audience is another\"";
    let sent = oauth.headers().await.expect("headers");
    for _ in 0..3 {
        let error = oauth.on_challenge(refusal(401, words), sent.clone()).await.expect_err("refused");
        assert!(error.contains("(the audience is another)") && error.contains("mcp login srv"), "{error}");
    }
    assert_eq!(setup.asked("refresh_token").len(), 3);
    // A person's new login is used, and refreshed once the server has taken it.
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    assert_eq!(oauth.on_challenge(refusal(401, words), sent).await, Ok(Retry::Yes));
    let sent = oauth.headers().await.expect("headers");
    oauth.accepted(&sent);
    assert_eq!(oauth.on_challenge(refusal(401, words), sent).await, Ok(Retry::Yes));
    assert_eq!(setup.asked("refresh_token").len(), 4);
}

#[tokio::test]
async fn refused_ending_tokens_wait_for_refresh() {
    let setup = ServerFixture::start(|setup| setup.lifetime = Some(2)).await;
    let store = CredentialStore::memory();
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    let oauth = OAuth::new(parts(&setup, &store));
    let sent = oauth.headers().await.expect("headers");
    assert_eq!(oauth.on_challenge(refusal(401, "Bearer"), sent).await, Ok(Retry::Yes));
    let sent = oauth.headers().await.expect("headers");
    oauth.on_challenge(refusal(401, "Bearer"), sent).await.expect_err("refused");
    let refreshes = setup.asked("refresh_token").len();
    tokio::time::sleep(std::time::Duration::from_millis(2100)).await;
    let error = oauth.headers().await.expect_err("it has ended");
    assert!(error.contains("mcp login srv"), "{error}");
    assert_eq!(setup.asked("refresh_token").len(), refreshes);
}
