//! Clients that registered or are configured, and what becomes of one that is not known.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use toolwright_core::Secret;
use toolwright_net::{Authorizer as _, Retry};
use toolwright_oauth::{ClientProof, CredentialStore, Grant, OAuth, OAuthConfig, OAuthOptions};

use super::people::{ClosingBrowser, Denies, SeesErrors};
use super::setup::ServerFixture;
use super::{bearer, parts, person, refusal};

/// A client that the settings name.
fn configured(setup: &ServerFixture, store: &CredentialStore, id: &str) -> OAuthOptions {
    let mut parts = parts(setup, store);
    parts.settings.client_id = Some(id.into());
    parts
}

/// `Authorization`, `client_id` and `client_secret` of what a login asked the token endpoint.
fn proof(setup: &ServerFixture) -> [Option<String>; 3] {
    let form = setup.asked("authorization_code").remove(0);
    ["Authorization", "client_id", "client_secret"].map(|name| form.get(name).filter(|text| !text.is_empty()).cloned())
}

#[tokio::test]
async fn secrets_default_to_http_basic() {
    let text = |text: &str| Some(text.to_owned());
    for methods in [json!(null), json!([])] {
        let silent = |registered: Option<serde_json::Value>| {
            let methods = methods.clone();
            ServerFixture::start(move |setup| (setup.auth_methods, setup.registered) = (Some(methods), registered))
        };
        // One that registers says so, and is as good as its word (RFC 8414 section 2, RFC 6749 section 2.3.1).
        let setup =
            silent(Some(json!({"client_secret": "se same", "token_endpoint_auth_method": "client_secret_basic"})))
                .await;
        person(parts(&setup, &CredentialStore::memory())).login(&[]).await.expect("logged in");
        let asked = setup.registrations.lock().expect("registrations")[0]["token_endpoint_auth_method"].clone();
        assert_eq!(asked, "client_secret_basic");
        assert_eq!(proof(&setup), [text("Basic cmVnaXN0ZXJlZDpzZStzYW1l"), None, None]);
        // One that got no secret has none to show.
        let setup = silent(Some(json!({}))).await;
        person(parts(&setup, &CredentialStore::memory())).login(&[]).await.expect("logged in");
        assert_eq!(proof(&setup), [None, text("registered"), None]);
        // One that is configured, without a secret and with one.
        let setup = silent(None).await;
        person(configured(&setup, &CredentialStore::memory(), "me")).login(&[]).await.expect("logged in");
        assert_eq!(proof(&setup), [None, text("me"), None]);
        let setup = silent(None).await;
        let mut confidential = configured(&setup, &CredentialStore::memory(), "me");
        confidential.settings.proof = ClientProof::Secret(Secret::new("sesame"));
        person(confidential).login(&[]).await.expect("logged in");
        assert_eq!(proof(&setup), [text("Basic bWU6c2VzYW1l"), None, None]);
    }
}

#[tokio::test]
async fn registered_clients_show_their_secret() {
    let setup = ServerFixture::start(|setup| setup.registered = Some(json!({"client_secret": "sesame"}))).await;
    person(parts(&setup, &CredentialStore::memory())).login(&[]).await.expect("logged in");
    assert_eq!(setup.registrations.lock().expect("registrations")[0]["token_endpoint_auth_method"], "none");
    assert_eq!(proof(&setup)[0].as_deref(), Some("Basic cmVnaXN0ZXJlZDpzZXNhbWU="));
}

#[tokio::test]
async fn forgotten_registrations_are_repeated() {
    // The login page says so, to the person alone.
    let setup = ServerFixture::start(|_| {}).await;
    let store = CredentialStore::memory();
    let login = || async {
        OAuth::new(OAuthOptions { consent: Some(Arc::new(SeesErrors)), ..parts(&setup, &store) }).login(&[]).await
    };
    login().await.expect("logged in");
    setup.forgets.store(true, Ordering::SeqCst);
    let error = login().await.expect_err("the page shows an error").to_string();
    assert!(error.contains("shows an error"), "{error}");
    let state = login().await.expect("as a new client");
    assert_eq!((state.client.as_deref(), setup.asked("authorization_code").len()), (Some("registered-2"), 2));
    login().await.expect("the same again");
    assert_eq!(setup.registrations.lock().expect("registrations").len(), 2);

    // The token endpoint says so when a token is refreshed.
    let setup = ServerFixture::start(|_| {}).await;
    let store = CredentialStore::memory();
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    setup.forgets.store(true, Ordering::SeqCst);
    let oauth = OAuth::new(parts(&setup, &store));
    let sent = oauth.headers().await.expect("headers");
    let error = oauth.on_challenge(refusal(401, "Bearer"), sent).await.expect_err("nobody is there");
    assert!(error.contains("mcp login srv"), "{error}");
    let state = person(parts(&setup, &store)).login(&[]).await.expect("as a new client");
    assert_eq!(state.client.as_deref(), Some("registered-2"));
}

#[tokio::test]
async fn unknown_configured_clients_need_the_operator() {
    let setup = ServerFixture::start(|_| {}).await;
    let store = CredentialStore::memory();
    let configured = || configured(&setup, &store, "ours");
    person(configured()).login(&[]).await.expect("logged in");
    setup.refuses_refresh(401, json!({"error": "invalid_client"}));
    let oauth = OAuth::new(configured());
    let sent = oauth.headers().await.expect("headers");
    let error = oauth.on_challenge(refusal(401, "Bearer"), sent).await.expect_err("refused");
    assert!(error.contains("invalid_client"), "{error}");
    let state = OAuth::new(configured()).login_state().await.expect("a state");
    assert!(state.token.is_some_and(|token| token.renewable));
}

#[tokio::test]
async fn clients_without_refresh_log_in_again() {
    for code in ["unauthorized_client", "invalid_client"] {
        // Once because the token is at its end, once because the server refuses it.
        for lifetime in [Some(1), None] {
            let setup = ServerFixture::start(|setup| setup.lifetime = lifetime).await;
            setup.refuses_refresh(400, json!({"error": code}));
            let mut parts = configured(&setup, &CredentialStore::memory(), "me");
            parts.settings.grant = Grant::ClientCredentials;
            let oauth = OAuth::new(parts);
            for expect in ["Bearer t1", "Bearer t2"] {
                let sent = oauth.headers().await.expect("headers");
                assert_eq!(
                    oauth.on_challenge(refusal(401, "Bearer"), sent).await,
                    Ok(Retry::Yes),
                    "{code} {lifetime:?}"
                );
                let headers = oauth.headers().await.expect("headers");
                assert_eq!(bearer(&headers), Some(expect), "{code} {lifetime:?}");
                oauth.accepted(&headers);
                if lifetime.is_some() {
                    tokio::time::sleep(Duration::from_millis(1100)).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn configured_clients_without_refresh_need_logins() {
    let setup = ServerFixture::start(|setup| setup.lifetime = Some(1)).await;
    let store = CredentialStore::memory();
    let configured = || configured(&setup, &store, "ours");
    person(configured()).login(&[]).await.expect("logged in");
    setup.refuses_refresh(400, json!({"error": "unauthorized_client"}));
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let error = OAuth::new(configured()).headers().await.expect_err("nobody is there");
    assert!(error.contains("unauthorized_client") && error.contains("mcp login srv"), "{error}");
    let oauth = person(configured());
    let sent = oauth.headers().await.expect("the server is asked");
    assert_eq!(oauth.on_challenge(refusal(401, "Bearer"), sent).await, Ok(Retry::Yes));
    assert_eq!(setup.logins.lock().expect("logins").len(), 2, "the person there was asked");
}

#[tokio::test]
async fn clients_no_longer_configured_refresh_nothing() {
    let setup = ServerFixture::start(|setup| setup.lifetime = Some(1)).await;
    let store = CredentialStore::memory();
    let configured = |id: &str| configured(&setup, &store, id);
    person(configured("ours")).login(&[]).await.expect("logged in");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let oauth = OAuth::new(configured("new"));
    let sent = oauth.headers().await.expect("the server is asked");
    let error = oauth.on_challenge(refusal(401, "Bearer"), sent).await.expect_err("nobody is there");
    assert!(error.contains("mcp login srv"), "{error}");
    assert_eq!(setup.asked("refresh_token").len(), 0);
}

#[tokio::test]
async fn known_clients_log_in_again() {
    let setup = ServerFixture::start(|_| {}).await;
    let store = CredentialStore::memory();
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    // The page sends back that the person does not agree.
    let denies = OAuth::new(OAuthOptions { consent: Some(Arc::new(Denies)), ..parts(&setup, &store) });
    let error = denies.login(&[]).await.expect_err("denied").to_string();
    assert!(error.contains("access_denied"), "{error}");
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    assert_eq!(setup.registrations.lock().expect("registrations").len(), 1);
    // The page sends nothing back, and nobody can register any more.
    let gives_up = OAuth::new(OAuthOptions { consent: Some(Arc::new(ClosingBrowser)), ..parts(&setup, &store) });
    gives_up.login(&[]).await.expect_err("given up");
    setup.is_closed.store(true, Ordering::SeqCst);
    let state = person(parts(&setup, &store)).login(&[]).await.expect("as the client that there is");
    assert_eq!(state.client.as_deref(), Some("registered"));
}

#[tokio::test]
async fn clients_with_own_rights_are_not_asked() {
    let setup = ServerFixture::start(|_| {}).await;
    let reported = Arc::new(Mutex::new(Vec::new()));
    let hear = Arc::clone(&reported);
    let oauth = OAuth::new(OAuthOptions {
        settings: OAuthConfig {
            grant: Grant::ClientCredentials,
            client_id: Some("me".into()),
            proof: ClientProof::Secret(Secret::new("sesame")),
            ..OAuthConfig::default()
        },
        secrets: Some(Arc::new(move |secret| hear.lock().expect("secrets").push(secret))),
        ..parts(&setup, &CredentialStore::memory())
    });
    let sent = oauth.headers().await.expect("headers");
    assert_eq!(bearer(&sent), None);
    let challenge = refusal(401, "Bearer scope=\"read\"");
    assert_eq!(oauth.on_challenge(challenge, sent).await, Ok(Retry::Yes));
    assert_eq!(bearer(&oauth.headers().await.expect("headers")), Some("Bearer t1"));
    let form = &setup.asked("client_credentials")[0];
    assert_eq!((&*form["Authorization"], &*form["scope"]), ("Basic bWU6c2VzYW1l", "read"));
    assert_eq!(*reported.lock().expect("secrets"), ["t1", "r1"], "whoever redacts hears of each secret");
    assert!(!format!("{oauth:?}").contains("sesame"));
}
