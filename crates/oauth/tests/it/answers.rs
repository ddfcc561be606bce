//! What is made of answers as servers write them, right and wrong.

use std::sync::atomic::Ordering;

use serde_json::json;
use toolwright_oauth::{CredentialStore, LoginState, OAuthConfig, OAuthError};

use super::setup::ServerFixture;
use super::{parts, person};

async fn login(setup: &ServerFixture) -> Result<LoginState, OAuthError> {
    person(parts(setup, &CredentialStore::memory())).login(&[]).await
}

#[tokio::test]
async fn pages_instead_of_metadata_are_skipped() {
    let setup = ServerFixture::start(|setup| setup.is_silent = true).await;
    setup.no_metadata.store(200, Ordering::SeqCst);
    setup.no_server_metadata.store(200, Ordering::SeqCst);
    login(&setup).await.expect("the metadata lies at the next places");
    // Where no place is left, it is said which one cannot be read.
    let setup = ServerFixture::start(|_| {}).await;
    setup.no_metadata.store(200, Ordering::SeqCst);
    let error = login(&setup).await.expect_err("no metadata").to_string();
    let place = format!("{}/.well-known/oauth-protected-resource/mcp cannot be read", setup.base);
    assert!(error.contains(&place), "{error}");
    assert!(setup.logins.lock().expect("logins").is_empty());
}

#[tokio::test]
async fn optional_members_of_answers_may_be_null() {
    let setup = ServerFixture::start(|setup| {
        setup.says.resource = json!({"scopes_supported": null});
        setup.says.server = json!({
            "scopes_supported": null,
            "revocation_endpoint": null,
            "token_endpoint_auth_methods_supported": null,
            "client_id_metadata_document_supported": null,
            "authorization_response_iss_parameter_supported": null,
        });
        setup.says.token =
            json!({"token_type": null, "expires_in": null, "refresh_token": null, "scope": null, "error": null});
        let client = json!({
            "client_secret": null, "client_secret_expires_at": null, "token_endpoint_auth_method": null,
        });
        setup.registered = Some(client);
    })
    .await;
    let token = login(&setup).await.expect("logged in").token.expect("a token");
    assert_eq!((token.expires_at, token.renewable, &*token.scopes), (None, false, &["read".to_owned()][..]));
    // A list that is needed is missing then, as if it had been left out.
    for (resource, server, expect) in [
        (json!({"authorization_servers": null}), json!({}), "names no authorization server"),
        (json!({}), json!({"code_challenge_methods_supported": null}), "PKCE"),
    ] {
        let setup = ServerFixture::start(|setup| (setup.says.resource, setup.says.server) = (resource, server)).await;
        let error = login(&setup).await.expect_err("no login").to_string();
        assert!(error.contains(expect), "{error}");
    }
}

#[tokio::test]
async fn fractional_lifetimes_and_scope_lists_are_read() {
    for lifetime in [json!(3600.5), json!(3600.0), json!("3600.5"), json!("3600")] {
        let says = json!({"expires_in": lifetime, "scope": ["a", "b c"]});
        let setup = ServerFixture::start(|setup| setup.says.token = says).await;
        let token = login(&setup).await.expect("logged in").token.expect("a token");
        assert!(token.expires_at.is_some(), "{lifetime} is an end");
        assert_eq!(token.scopes, ["a", "b", "c"]);
    }
}

#[tokio::test]
async fn unreadable_members_of_answers_are_named() {
    for (says, expect) in [
        (json!({"access_token": null}), "it has no `access_token`"),
        (json!({"scope": {"sesame": 1}}), "its `scope` cannot be an object"),
        (json!({"refresh_token": ["sesame"]}), "its `refresh_token` cannot be this list"),
    ] {
        let setup = ServerFixture::start(|setup| setup.says.token = says).await;
        let error = login(&setup).await.expect_err("no token").to_string();
        assert!(error.contains(expect) && !error.contains("sesame"), "{error}");
    }
    let setup = ServerFixture::start(|setup| setup.registered = Some(json!({"client_secret": 7}))).await;
    let error = login(&setup).await.expect_err("no client").to_string();
    assert!(error.contains("its `client_secret` cannot be this number"), "{error}");
    let setup = ServerFixture::start(|setup| {
        let says = json!({"client_secret": "s", "client_secret_expires_at": 0.0});
        setup.registered = Some(says);
    })
    .await;
    login(&setup).await.expect("a secret that does not end");
}

#[tokio::test]
async fn server_texts_lose_deceptive_characters() {
    let setup = ServerFixture::start(|setup| {
        setup.says.server = json!({"issuer": "https://a\u{202e}b\u{200b}c\u{1b}]0;d\u{7}\u{9b}e\u{e0041}f"});
    })
    .await;
    let error = login(&setup).await.expect_err("another issuer").to_string();
    assert!(error.contains("`https://a b c ]0;d e f`"), "{error:?}");
}

#[tokio::test]
async fn private_authorization_servers_are_refused_with_remedy() {
    let setup = ServerFixture::start(|setup| {
        let issuer = setup.base.replace("127.0.0.1", "localhost");
        setup.says.server = json!({"issuer": issuer});
        setup.issuer = Some(issuer);
    })
    .await;
    let error = login(&setup).await.expect_err("refused").to_string();
    assert!(error.contains("localhost") && error.contains("`oauth.allowed_hosts`"), "{error}");
    let mut allowed = parts(&setup, &CredentialStore::memory());
    allowed.settings = OAuthConfig { allowed_hosts: vec!["localhost".into()], ..OAuthConfig::default() };
    person(allowed).login(&[]).await.expect("logged in");
}
