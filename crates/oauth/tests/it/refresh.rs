//! Tokens that are refreshed, and refreshes that are refused.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::HeaderMap;
use serde_json::json;
use toolwright_net::{Authorizer as _, Retry};
use toolwright_oauth::{CredentialStore, Grant, OAuth};

use super::setup::ServerFixture;
use super::{bearer, parts, person, refusal};

#[tokio::test]
async fn tokens_refresh_early_and_once() {
    let setup = ServerFixture::start(|setup| {
        setup.lifetime = Some(2);
        setup.pause = Duration::from_millis(100);
    })
    .await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = CredentialStore::folder(folder.path());
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    // Two processes, each with ten calls at once, when the token has had its time.
    tokio::time::sleep(Duration::from_millis(2000)).await;
    let processes = [OAuth::new(parts(&setup, &store)), OAuth::new(parts(&setup, &store))];
    let calls = (0..20).map(|number| processes[number % 2].headers());
    for headers in futures_util::future::join_all(calls).await {
        assert_eq!(bearer(&headers.expect("headers")), Some("Bearer t2"));
    }
    let refreshes = setup.asked("refresh_token");
    assert_eq!(refreshes.len(), 1, "one flight: {refreshes:?}");
    assert_eq!(refreshes[0]["refresh_token"], "r1");
    assert_eq!(refreshes[0]["resource"], format!("{}/mcp", setup.base));
}

#[tokio::test]
async fn refreshes_outlive_their_call() {
    let setup = ServerFixture::start(|setup| {
        setup.lifetime = Some(1);
        setup.pause = Duration::from_millis(300);
    })
    .await;
    let store = CredentialStore::memory();
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    tokio::time::sleep(Duration::from_millis(1000)).await;
    let oauth = OAuth::new(parts(&setup, &store));
    let abandoned = tokio::time::timeout(Duration::from_millis(100), oauth.headers()).await;
    assert!(abandoned.is_err(), "the caller does not wait for it");
    assert_eq!(bearer(&oauth.headers().await.expect("headers")), Some("Bearer t2"), "what was given out is not lost");
    assert_eq!(setup.asked("refresh_token").len(), 1);
}

#[tokio::test]
async fn refused_refreshes_need_a_person() {
    let setup = ServerFixture::start(|_| {}).await;
    let store = CredentialStore::memory();
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    let oauth = OAuth::new(parts(&setup, &store));
    let sent = oauth.headers().await.expect("headers");
    assert_eq!(oauth.on_challenge(refusal(401, "Bearer error=\"invalid_token\""), sent).await, Ok(Retry::Yes));
    assert_eq!(bearer(&oauth.headers().await.expect("headers")), Some("Bearer t2"));

    let setup = ServerFixture::start(|_| {}).await;
    setup.refuses_refresh(400, json!({"error": "invalid_grant"}));
    let store = CredentialStore::memory();
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    let oauth = OAuth::new(parts(&setup, &store));
    let sent = oauth.headers().await.expect("headers");
    let error = oauth.on_challenge(refusal(401, "Bearer scope=\"more\""), sent).await.expect_err("nobody is there");
    assert!(error.contains("toolwright mcp login srv"), "{error}");
    assert_eq!(bearer(&oauth.headers().await.expect("headers")), None, "the old token is not sent again");
}

#[tokio::test]
async fn failing_requests_are_shared_by_all_waiting() {
    // Once the metadata, once the token.
    for is_metadata in [true, false] {
        let setup = ServerFixture::start(|setup| {
            (setup.metadata_pause, setup.pause) = (Duration::from_millis(100), Duration::from_millis(100));
        })
        .await;
        let failing = if is_metadata { &setup.no_server_metadata } else { &setup.no_tokens };
        failing.store(503, Ordering::SeqCst);
        let mut parts = parts(&setup, &CredentialStore::memory());
        parts.settings.grant = Grant::ClientCredentials;
        parts.settings.client_id = Some("me".into());
        let oauth = OAuth::new(parts);
        let calls = (0..5).map(|_| oauth.on_challenge(refusal(401, "Bearer"), HeaderMap::new()));
        for reported in futures_util::future::join_all(calls).await {
            let reported = reported.expect_err("no token");
            assert!(reported.contains("503"), "{reported}");
        }
        assert_eq!(setup.looked_for.load(Ordering::SeqCst), 1, "{is_metadata}");
        assert_eq!(setup.asked("client_credentials").len(), usize::from(!is_metadata));
        // A person who asks for a login does not hear of it.
        failing.store(0, Ordering::SeqCst);
        oauth.login(&[]).await.expect("a token");
    }
}

#[tokio::test]
async fn only_ended_refresh_tokens_are_forgotten() {
    for (status, code, expect) in [
        (400, "invalid_grant", None),
        (200, "bad_refresh_token", None),
        (500, "server_error", Some("try again later")),
        (500, "invalid_grant", Some("try again later")),
        (503, "temporarily_unavailable", Some("temporarily_unavailable")),
        (429, "slow_down", Some("429")),
        (400, "invalid_request", Some("mcp login srv")),
        (200, "bad_verification", Some("mcp login srv")),
    ] {
        // Once because the server refuses the token, once because it is at its end.
        for lifetime in [None, Some(1)] {
            let setup = ServerFixture::start(|setup| setup.lifetime = lifetime).await;
            let store = CredentialStore::memory();
            person(parts(&setup, &store)).login(&[]).await.expect("logged in");
            setup.refuses_refresh(status, json!({"error": code}));
            let oauth = OAuth::new(parts(&setup, &store));
            if lifetime.is_some() {
                tokio::time::sleep(Duration::from_millis(1000)).await;
            }
            let sent = oauth.headers().await;
            let reported = match sent {
                Ok(sent) => oauth.on_challenge(refusal(401, "Bearer"), sent).await.expect_err("refused"),
                Err(reported) => reported,
            };
            assert!(reported.contains(expect.unwrap_or("mcp login srv")), "{status} {code}: {reported}");
            // What is kept serves another process once the fault has passed.
            *setup.refuses_refresh.lock().expect("refusal") = None;
            let token = OAuth::new(parts(&setup, &store)).login_state().await.expect("a state").token;
            assert_eq!(token.is_some_and(|token| token.renewable), expect.is_some(), "{status} {code} {lifetime:?}");
        }
    }
}
