//! Persons who log in, and what is said where nobody does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::HeaderMap;
use serde_json::json;
use toolwright_net::{Authorizer as _, Retry};
use toolwright_oauth::{CredentialStore, OAuth, OAuthOptions};

use super::people::{ClosingBrowser, Pastes};
use super::setup::ServerFixture;
use super::{bearer, parts, person, refusal};

#[tokio::test]
async fn one_login_serves_every_process() {
    let setup = ServerFixture::start(|_| {}).await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = CredentialStore::folder(folder.path());
    let state = person(parts(&setup, &store)).login(&["write".into()]).await.expect("logged in");
    assert_eq!(state.token.expect("a token").scopes, ["write", "read"]);

    let login = setup.logins.lock().expect("logins")[0].clone();
    assert_eq!(login["resource"], format!("{}/mcp", setup.base));
    assert_eq!((&*login["scope"], &*login["code_challenge_method"]), ("write read", "S256"));
    let registration = setup.registrations.lock().expect("registrations")[0].clone();
    assert_eq!(registration["redirect_uris"], json!([login["redirect_uri"]]));
    assert_eq!(registration["application_type"], "native");
    let form = &setup.asked("authorization_code")[0];
    assert_eq!(
        (&*form["code"], &*form["client_id"], &*form["redirect_uri"]),
        ("the-code", "registered", &*login["redirect_uri"])
    );
    assert_eq!(form["resource"], login["resource"]);

    // Another process, with nobody there.
    let other = OAuth::new(parts(&setup, &store));
    let headers = other.headers().await.expect("headers");
    assert_eq!(bearer(&headers), Some("Bearer t1"), "it finds what the login left");
    // A second login uses the registration.
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    assert_eq!(setup.registrations.lock().expect("registrations").len(), 1);
    // Who holds the old token takes the new one, without asking anybody.
    assert_eq!(other.on_challenge(refusal(401, "Bearer"), headers).await, Ok(Retry::Yes));
    assert_eq!(bearer(&other.headers().await.expect("headers")), Some("Bearer t2"));
    assert!(other.logout().await.expect("logged out").removed);
    assert_eq!(OAuth::new(parts(&setup, &store)).login_state().await.expect("a state").token, None);
}

#[tokio::test]
async fn missing_metadata_does_not_change_the_server() {
    let elsewhere = ServerFixture::start(|_| {}).await;
    let setup = ServerFixture::start(|setup| setup.issuer = Some(elsewhere.base.clone())).await;
    let store = CredentialStore::memory();
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    for (status, expect) in [(503, "503"), (403, "403"), (401, "401"), (404, "is gone"), (410, "is gone")] {
        setup.no_metadata.store(status, Ordering::SeqCst);
        let error = person(parts(&setup, &store)).login(&[]).await.expect_err("no login").to_string();
        assert!(error.contains(expect), "{status}: {error}");
    }
    assert!(setup.logins.lock().expect("logins").is_empty() && setup.tokens.lock().expect("tokens").is_empty());
}

#[tokio::test]
async fn refused_metadata_is_sought_elsewhere() {
    for (status, found) in [(403, true), (401, true), (400, true), (404, true), (503, false), (429, false)] {
        let setup = ServerFixture::start(|_| {}).await;
        setup.no_server_metadata.store(status, Ordering::SeqCst);
        let login = person(parts(&setup, &CredentialStore::memory())).login(&[]).await;
        assert_eq!(login.is_ok(), found, "{status}: {login:?}");
    }
}

#[tokio::test]
async fn an_address_can_be_pasted() {
    let setup = ServerFixture::start(|_| {}).await;
    let oauth =
        OAuth::new(OAuthOptions { consent: Some(Arc::new(Pastes)), ..parts(&setup, &CredentialStore::memory()) });
    oauth.login(&[]).await.expect("logged in");
    assert_eq!(setup.asked("authorization_code").len(), 1);
}

#[tokio::test]
async fn abandoned_logins_keep_refreshed_tokens() {
    let setup = ServerFixture::start(|_| {}).await;
    let store = CredentialStore::memory();
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    let gives_up = OAuth::new(OAuthOptions { consent: Some(Arc::new(ClosingBrowser)), ..parts(&setup, &store) });
    gives_up.login_state().await.expect("it has read what is kept");
    let other = OAuth::new(parts(&setup, &store));
    let sent = other.headers().await.expect("headers");
    assert_eq!(other.on_challenge(refusal(401, "Bearer"), sent).await, Ok(Retry::Yes));
    gives_up.login(&[]).await.expect_err("given up");
    let third = OAuth::new(parts(&setup, &store));
    let sent = third.headers().await.expect("headers");
    assert_eq!(bearer(&sent), Some("Bearer t2"));
    assert_eq!(third.on_challenge(refusal(401, "Bearer"), sent).await, Ok(Retry::Yes));
    let refreshes: Vec<_> = setup.asked("refresh_token").iter().map(|form| form["refresh_token"].clone()).collect();
    assert_eq!(refreshes, ["r1", "r2"], "a refresh token is good for one refresh");
}

#[tokio::test]
async fn extra_scopes_are_remembered_for_login() {
    let setup = ServerFixture::start(|_| {}).await;
    let store = CredentialStore::memory();
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    let oauth = OAuth::new(parts(&setup, &store));
    let sent = oauth.headers().await.expect("headers");
    let wants = refusal(403, "Bearer error=\"insufficient_scope\", scope=\"write\"");
    let error = oauth.on_challenge(wants.clone(), sent.clone()).await.expect_err("nobody is there");
    assert!(error.contains("write") && error.contains("mcp login srv"), "{error}");
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    assert_eq!(setup.logins.lock().expect("logins")[1]["scope"], "read write", "old and new together");

    // Now it was given, so asking again changes nothing.
    let oauth = person(parts(&setup, &store));
    let sent = oauth.headers().await.expect("headers");
    let error = oauth.on_challenge(wants, sent.clone()).await.expect_err("it goes nowhere");
    assert!(error.contains("has the scopes"), "{error}");
    let forbidden = refusal(403, "Bearer error=\"access_denied\"");
    assert_eq!(oauth.on_challenge(forbidden, sent).await, Ok(Retry::No));
    assert_eq!(setup.logins.lock().expect("logins").len(), 2);
}

#[tokio::test]
async fn missing_logins_name_the_remedy() {
    let setup = ServerFixture::start(|_| {}).await;
    let oauth = OAuth::new(parts(&setup, &CredentialStore::memory()));
    for (header, expect) in
        [("Bearer scope=\"read\"", "the scopes `read`"), ("Basic realm=\"x\"", "headers.Authorization")]
    {
        let error = oauth.on_challenge(refusal(401, header), HeaderMap::new()).await.expect_err("nobody is there");
        assert!(error.contains(expect) && error.contains("toolwright mcp login srv"), "{error}");
    }
    assert!(setup.tokens.lock().expect("tokens").is_empty());
}
