//! OAuth against an authorization server on a real socket, looked at from its side.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use toolwright_core::Secret;
use toolwright_core::catalogue::Provider as _;
use toolwright_core::event::NoEvents;
use toolwright_core::session::Principal;
use toolwright_core::store::{ManifestCache, StoreError};
use toolwright_providers::mcp::{McpDeps, McpProvider, McpServerSpec, McpTransport};
use toolwright_providers::net::{Authorizer as _, Challenge, HttpOptions, Retry};
use toolwright_providers::oauth::{
    ClientProof, ClientSettings, Consent, CredentialStore, Grant, Logout, OAuth, OAuthParts, OAuthSettings, Revocation,
};
use url::Url;

/// What an authorization server was asked, and how it answers.
#[derive(Default)]
struct World {
    base: String,
    /// Forms of token requests, with `Authorization`.
    tokens: Mutex<Vec<HashMap<String, String>>>,
    registrations: Mutex<Vec<Value>>,
    logins: Mutex<Vec<HashMap<String, String>>>,
    given: AtomicUsize,
    /// `expires_in` of tokens.
    lifetime: Option<u64>,
    /// Status and body in answer to refresh tokens, in place of another token.
    refuses_refresh: Mutex<Option<(u16, Value)>>,
    /// Whether the first client that registered is known no more.
    forgets: AtomicBool,
    /// Whether it registers no more clients.
    is_closed: AtomicBool,
    /// Pause before an answer of the token endpoint.
    pause: Duration,
    /// The authorization server that the resource names; its own where none is said.
    issuer: Option<String>,
    /// Status instead of its own metadata where it is looked for first; 0 gives it.
    no_server_metadata: AtomicU16,
    /// Status instead of the resource's metadata; 0 gives it.
    no_metadata: AtomicU16,
    /// Status of its revocation endpoint; it has none where none is said.
    revocation: Option<u16>,
    /// Forms that were sent there, with `Authorization`.
    revoked: Mutex<Vec<HashMap<String, String>>>,
}

impl World {
    async fn start(change: impl FnOnce(&mut Self)) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let mut world = Self { base, ..Self::default() };
        change(&mut world);
        let world = Arc::new(world);
        let routes = Router::new()
            .route("/mcp", post(challenge))
            .route("/.well-known/oauth-protected-resource/mcp", get(resource))
            .route("/.well-known/oauth-authorization-server", get(server_first))
            .route("/.well-known/openid-configuration", get(server))
            .route("/authorize", get(authorize))
            .route("/register", post(register))
            .route("/token", post(token))
            .route("/revoke", post(revoke))
            .with_state(Arc::clone(&world));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        world
    }

    fn asked(&self, grant: &str) -> Vec<HashMap<String, String>> {
        let tokens = self.tokens.lock().expect("tokens");
        tokens.iter().filter(|form| form["grant_type"] == grant).cloned().collect()
    }

    fn knows(&self, client: Option<&String>) -> bool {
        !self.forgets.load(Ordering::SeqCst) || client.is_none_or(|client| client != "registered")
    }

    fn refuses_refresh(&self, status: u16, body: Value) {
        *self.refuses_refresh.lock().expect("refusal") = Some((status, body));
    }
}

type Shared = State<Arc<World>>;

async fn challenge(State(world): Shared) -> Response {
    let header =
        format!("Bearer resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\", scope=\"read\"", world.base);
    (StatusCode::UNAUTHORIZED, [("WWW-Authenticate", header)]).into_response()
}

async fn resource(State(world): Shared) -> Response {
    match world.no_metadata.load(Ordering::SeqCst) {
        0 => {
            let issuer = world.issuer.as_ref().unwrap_or(&world.base);
            Json(json!({"resource": format!("{}/mcp", world.base), "authorization_servers": [issuer]})).into_response()
        }
        status => StatusCode::from_u16(status).expect("a status").into_response(),
    }
}

async fn server_first(State(world): Shared) -> Response {
    match world.no_server_metadata.load(Ordering::SeqCst) {
        0 => server(State(world)).await.into_response(),
        status => StatusCode::from_u16(status).expect("a status").into_response(),
    }
}

async fn server(State(world): Shared) -> Json<Value> {
    let at = |path: &str| format!("{}{path}", world.base);
    let mut metadata = json!({
        "issuer": world.base,
        "authorization_endpoint": at("/authorize"),
        "token_endpoint": at("/token"),
        "registration_endpoint": at("/register"),
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
        "authorization_response_iss_parameter_supported": true,
    });
    if world.is_closed.load(Ordering::SeqCst) {
        metadata["registration_endpoint"] = Value::Null;
    }
    if world.revocation.is_some() {
        metadata["revocation_endpoint"] = json!(at("/revoke"));
    }
    Json(metadata)
}

async fn revoke(
    State(world): Shared,
    headers: HeaderMap,
    Form(mut form): Form<HashMap<String, String>>,
) -> (StatusCode, Json<Value>) {
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    form.insert("Authorization".into(), authorization.to_owned());
    world.revoked.lock().expect("revoked").push(form);
    let status = world.revocation.and_then(|status| StatusCode::from_u16(status).ok()).expect("it has one");
    let answer = if status.is_success() { json!({}) } else { json!({"error": "unsupported_token_type"}) };
    (status, Json(answer))
}

async fn authorize(State(world): Shared, Query(query): Query<HashMap<String, String>>) -> Response {
    if !world.knows(query.get("client_id")) {
        // It must not send back there (RFC 6749 section 4.1.2.1).
        return (StatusCode::BAD_REQUEST, Json(json!({"error": "invalid_client"}))).into_response();
    }
    let back = Url::parse_with_params(
        &query["redirect_uri"],
        [("code", "the-code"), ("state", &query["state"]), ("iss", &world.base)],
    );
    world.logins.lock().expect("logins").push(query);
    Redirect::to(back.expect("a URL").as_str()).into_response()
}

async fn register(State(world): Shared, Json(metadata): Json<Value>) -> (StatusCode, Json<Value>) {
    let mut registrations = world.registrations.lock().expect("registrations");
    registrations.push(metadata);
    let id =
        if registrations.len() == 1 { "registered".to_owned() } else { format!("registered-{}", registrations.len()) };
    (StatusCode::CREATED, Json(json!({"client_id": id, "token_endpoint_auth_method": "none"})))
}

async fn token(
    State(world): Shared,
    headers: HeaderMap,
    Form(mut form): Form<HashMap<String, String>>,
) -> (StatusCode, Json<Value>) {
    tokio::time::sleep(world.pause).await;
    let refused =
        world.refuses_refresh.lock().expect("refusal").clone().filter(|_| form["grant_type"] == "refresh_token");
    let known = world.knows(form.get("client_id"));
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    form.insert("Authorization".into(), authorization.to_owned());
    world.tokens.lock().expect("tokens").push(form);
    if !known {
        return (StatusCode::UNAUTHORIZED, Json(json!({"error": "invalid_client"})));
    }
    if let Some((status, body)) = refused {
        return (StatusCode::from_u16(status).expect("a status"), Json(body));
    }
    let number = world.given.fetch_add(1, Ordering::SeqCst) + 1;
    let mut answer = json!({"access_token": format!("t{number}"), "token_type": "Bearer"});
    answer["refresh_token"] = json!(format!("r{number}"));
    if let Some(lifetime) = world.lifetime {
        answer["expires_in"] = json!(lifetime);
    }
    (StatusCode::OK, Json(answer))
}

/// What a browser shows at an address.
async fn page_at(url: &Url) -> Result<reqwest::Response, String> {
    toolwright_providers::net::install_tls();
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    client.get(url.clone()).send().await.map_err(|error| error.to_string())
}

/// A browser whose person agrees.
struct Agrees;

#[async_trait]
impl Consent for Agrees {
    async fn visit(&self, url: &Url) -> Result<Option<Url>, String> {
        let page = page_at(url).await?;
        assert!(page.status().is_success(), "the page came back to us: {page:?}");
        Ok(None)
    }
}

/// A browser whose person closes the page.
struct GivesUp;

#[async_trait]
impl Consent for GivesUp {
    async fn visit(&self, _: &Url) -> Result<Option<Url>, String> {
        Err("the page was closed".to_owned())
    }
}

/// A browser whose person does not agree.
struct Denies;

#[async_trait]
impl Consent for Denies {
    async fn visit(&self, url: &Url) -> Result<Option<Url>, String> {
        let query: HashMap<_, _> = url.query_pairs().into_owned().collect();
        let issuer = format!("{}://{}", url.scheme(), url.authority());
        let answer = [("error", "access_denied"), ("state", &query["state"]), ("iss", &issuer)];
        Ok(Some(Url::parse_with_params(&query["redirect_uri"], answer).expect("a URL")))
    }
}

/// A browser whose person says the address, since it does not lead here.
struct Pastes;

#[async_trait]
impl Consent for Pastes {
    async fn visit(&self, url: &Url) -> Result<Option<Url>, String> {
        toolwright_providers::net::install_tls();
        let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build();
        let page = client.expect("a client").get(url.clone()).send().await.expect("a page");
        let location = page.headers()["location"].to_str().expect("text").to_owned();
        Ok(Some(Url::parse(&location).expect("a URL")))
    }
}

/// What one server's OAuth is made of.
fn parts(world: &World, store: &CredentialStore) -> OAuthParts {
    OAuthParts {
        server: "srv".into(),
        url: Url::parse(&format!("{}/mcp", world.base)).expect("a URL"),
        settings: OAuthSettings::default(),
        store: store.clone(),
        http: HttpOptions::default(),
        consent: None,
        secrets: None,
    }
}

fn person(parts: OAuthParts) -> OAuth {
    OAuth::new(OAuthParts { consent: Some(Arc::new(Agrees)), ..parts })
}

/// Surroundings of a provider that is never asked.
fn deps() -> McpDeps {
    struct Nothing;
    #[async_trait]
    impl ManifestCache for Nothing {
        async fn manifest(&self, _: &str) -> Result<Option<Value>, StoreError> {
            Ok(None)
        }
        async fn set_manifest(&self, _: &str, _: &Value) -> Result<(), StoreError> {
            Ok(())
        }
    }
    McpDeps { manifests: Arc::new(Nothing), events: Arc::new(NoEvents) }
}

fn refusal(status: u16, header: &str) -> Challenge {
    Challenge { status, authenticate: vec![header.to_owned()] }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get("authorization").map(|value| value.to_str().expect("text"))
}

#[tokio::test]
async fn a_person_logs_in_once_and_every_process_has_the_token() {
    let world = World::start(|_| {}).await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = CredentialStore::folder(folder.path());
    let state = person(parts(&world, &store)).login(&["write".into()]).await.expect("logged in");
    assert_eq!(state.token.expect("a token").scopes, ["write", "read"]);

    let login = world.logins.lock().expect("logins")[0].clone();
    assert_eq!(login["resource"], format!("{}/mcp", world.base));
    assert_eq!((&*login["scope"], &*login["code_challenge_method"]), ("write read", "S256"));
    let registration = world.registrations.lock().expect("registrations")[0].clone();
    assert_eq!(registration["redirect_uris"], json!([login["redirect_uri"]]));
    assert_eq!(registration["application_type"], "native");
    let form = &world.asked("authorization_code")[0];
    assert_eq!(
        (&*form["code"], &*form["client_id"], &*form["redirect_uri"]),
        ("the-code", "registered", &*login["redirect_uri"])
    );
    assert_eq!(form["resource"], login["resource"]);

    // Another process, with nobody there.
    let other = OAuth::new(parts(&world, &store));
    let headers = other.headers().await.expect("headers");
    assert_eq!(bearer(&headers), Some("Bearer t1"), "it finds what the login left");
    // A second login uses the registration.
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    assert_eq!(world.registrations.lock().expect("registrations").len(), 1);
    // Who holds the old token takes the new one, without asking anybody.
    assert_eq!(other.challenged(refusal(401, "Bearer"), headers).await, Ok(Retry::Yes));
    assert_eq!(bearer(&other.headers().await.expect("headers")), Some("Bearer t2"));
    assert!(other.logout().await.expect("logged out").removed);
    assert_eq!(OAuth::new(parts(&world, &store)).login_state().await.expect("a state").token, None);
}

#[tokio::test]
async fn the_authorization_server_is_not_another_one_because_the_metadata_cannot_be_had() {
    let elsewhere = World::start(|_| {}).await;
    let world = World::start(|world| world.issuer = Some(elsewhere.base.clone())).await;
    let store = CredentialStore::memory();
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    for (status, expect) in [(503, "503"), (403, "403"), (401, "401"), (404, "is gone"), (410, "is gone")] {
        world.no_metadata.store(status, Ordering::SeqCst);
        let error = person(parts(&world, &store)).login(&[]).await.expect_err("no login").to_string();
        assert!(error.contains(expect), "{status}: {error}");
    }
    assert!(world.logins.lock().expect("logins").is_empty() && world.tokens.lock().expect("tokens").is_empty());
}

#[tokio::test]
async fn metadata_that_is_refused_at_one_place_is_looked_for_at_the_next() {
    for (status, found) in [(403, true), (401, true), (400, true), (404, true), (503, false), (429, false)] {
        let world = World::start(|_| {}).await;
        world.no_server_metadata.store(status, Ordering::SeqCst);
        let login = person(parts(&world, &CredentialStore::memory())).login(&[]).await;
        assert_eq!(login.is_ok(), found, "{status}: {login:?}");
    }
}

#[tokio::test]
async fn an_address_can_be_pasted() {
    let world = World::start(|_| {}).await;
    let oauth = OAuth::new(OAuthParts { consent: Some(Arc::new(Pastes)), ..parts(&world, &CredentialStore::memory()) });
    oauth.login(&[]).await.expect("logged in");
    assert_eq!(world.asked("authorization_code").len(), 1);
}

#[tokio::test]
async fn a_token_is_renewed_before_its_end_in_one_flight() {
    let world = World::start(|world| {
        world.lifetime = Some(2);
        world.pause = Duration::from_millis(100);
    })
    .await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = CredentialStore::folder(folder.path());
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    // Two processes, each with ten calls at once, when the token has had its time.
    tokio::time::sleep(Duration::from_millis(2000)).await;
    let processes = [OAuth::new(parts(&world, &store)), OAuth::new(parts(&world, &store))];
    let calls = (0..20).map(|number| processes[number % 2].headers());
    for headers in futures_util::future::join_all(calls).await {
        assert_eq!(bearer(&headers.expect("headers")), Some("Bearer t2"));
    }
    let renewals = world.asked("refresh_token");
    assert_eq!(renewals.len(), 1, "one flight: {renewals:?}");
    assert_eq!(renewals[0]["refresh_token"], "r1");
    assert_eq!(renewals[0]["resource"], format!("{}/mcp", world.base));
}

#[tokio::test]
async fn a_renewal_outlives_the_call_that_asked_for_it() {
    let world = World::start(|world| {
        world.lifetime = Some(1);
        world.pause = Duration::from_millis(300);
    })
    .await;
    let store = CredentialStore::memory();
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    tokio::time::sleep(Duration::from_millis(1000)).await;
    let oauth = OAuth::new(parts(&world, &store));
    let given_up = tokio::time::timeout(Duration::from_millis(100), oauth.headers()).await;
    assert!(given_up.is_err(), "the caller does not wait for it");
    assert_eq!(bearer(&oauth.headers().await.expect("headers")), Some("Bearer t2"), "what was given out is not lost");
    assert_eq!(world.asked("refresh_token").len(), 1);
}

#[tokio::test]
async fn a_refused_token_is_renewed_and_a_refused_renewal_needs_a_person() {
    let world = World::start(|_| {}).await;
    let store = CredentialStore::memory();
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    let oauth = OAuth::new(parts(&world, &store));
    let sent = oauth.headers().await.expect("headers");
    assert_eq!(oauth.challenged(refusal(401, "Bearer error=\"invalid_token\""), sent).await, Ok(Retry::Yes));
    assert_eq!(bearer(&oauth.headers().await.expect("headers")), Some("Bearer t2"));

    let world = World::start(|_| {}).await;
    world.refuses_refresh(400, json!({"error": "invalid_grant"}));
    let store = CredentialStore::memory();
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    let oauth = OAuth::new(parts(&world, &store));
    let sent = oauth.headers().await.expect("headers");
    let error = oauth.challenged(refusal(401, "Bearer scope=\"more\""), sent).await.expect_err("nobody is there");
    assert!(error.contains("toolwright mcp login srv"), "{error}");
    assert_eq!(bearer(&oauth.headers().await.expect("headers")), None, "the old token is not sent again");
}

#[tokio::test]
async fn only_the_refresh_tokens_own_end_has_it_forgotten() {
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
            let world = World::start(|world| world.lifetime = lifetime).await;
            let store = CredentialStore::memory();
            person(parts(&world, &store)).login(&[]).await.expect("logged in");
            world.refuses_refresh(status, json!({"error": code}));
            let oauth = OAuth::new(parts(&world, &store));
            if lifetime.is_some() {
                tokio::time::sleep(Duration::from_millis(1000)).await;
            }
            let sent = oauth.headers().await;
            let told = match sent {
                Ok(sent) => oauth.challenged(refusal(401, "Bearer"), sent).await.expect_err("refused"),
                Err(told) => told,
            };
            assert!(told.contains(expect.unwrap_or("mcp login srv")), "{status} {code}: {told}");
            // What is kept serves another process once the fault has passed.
            *world.refuses_refresh.lock().expect("refusal") = None;
            let token = OAuth::new(parts(&world, &store)).login_state().await.expect("a state").token;
            assert_eq!(token.is_some_and(|token| token.renewable), expect.is_some(), "{status} {code} {lifetime:?}");
        }
    }
}

/// A browser whose person sees an error on the page and closes it, or reads on.
struct SeesErrors;

#[async_trait]
impl Consent for SeesErrors {
    async fn visit(&self, url: &Url) -> Result<Option<Url>, String> {
        let page = page_at(url).await?;
        if page.status().is_success() { Ok(None) } else { Err("it shows an error".to_owned()) }
    }
}

#[tokio::test]
async fn a_registration_that_the_authorization_server_has_forgotten_is_made_anew() {
    // The login page says so, to the person alone.
    let world = World::start(|_| {}).await;
    let store = CredentialStore::memory();
    let login = || async {
        OAuth::new(OAuthParts { consent: Some(Arc::new(SeesErrors)), ..parts(&world, &store) }).login(&[]).await
    };
    login().await.expect("logged in");
    world.forgets.store(true, Ordering::SeqCst);
    let error = login().await.expect_err("the page shows an error").to_string();
    assert!(error.contains("shows an error"), "{error}");
    let state = login().await.expect("as a new client");
    assert_eq!((state.client.as_deref(), world.asked("authorization_code").len()), (Some("registered-2"), 2));
    login().await.expect("the same again");
    assert_eq!(world.registrations.lock().expect("registrations").len(), 2);

    // The token endpoint says so when a token is renewed.
    let world = World::start(|_| {}).await;
    let store = CredentialStore::memory();
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    world.forgets.store(true, Ordering::SeqCst);
    let oauth = OAuth::new(parts(&world, &store));
    let sent = oauth.headers().await.expect("headers");
    let error = oauth.challenged(refusal(401, "Bearer"), sent).await.expect_err("nobody is there");
    assert!(error.contains("mcp login srv"), "{error}");
    let state = person(parts(&world, &store)).login(&[]).await.expect("as a new client");
    assert_eq!(state.client.as_deref(), Some("registered-2"));
}

#[tokio::test]
async fn a_configured_client_that_is_not_known_is_for_its_operator_to_mend() {
    let world = World::start(|_| {}).await;
    let store = CredentialStore::memory();
    let configured = || {
        let mut parts = parts(&world, &store);
        parts.settings.client.id = Some("ours".into());
        parts
    };
    person(configured()).login(&[]).await.expect("logged in");
    world.refuses_refresh(401, json!({"error": "invalid_client"}));
    let oauth = OAuth::new(configured());
    let sent = oauth.headers().await.expect("headers");
    let error = oauth.challenged(refusal(401, "Bearer"), sent).await.expect_err("refused");
    assert!(error.contains("invalid_client"), "{error}");
    let state = OAuth::new(configured()).login_state().await.expect("a state");
    assert!(state.token.is_some_and(|token| token.renewable));
}

#[tokio::test]
async fn a_client_that_may_not_renew_asks_anew_where_no_person_is_needed() {
    for code in ["unauthorized_client", "invalid_client"] {
        // Once because the token is at its end, once because the server refuses it.
        for lifetime in [Some(1), None] {
            let world = World::start(|world| world.lifetime = lifetime).await;
            world.refuses_refresh(400, json!({"error": code}));
            let mut parts = parts(&world, &CredentialStore::memory());
            parts.settings.grant = Grant::ClientCredentials;
            parts.settings.client.id = Some("me".into());
            let oauth = OAuth::new(parts);
            for expect in ["Bearer t1", "Bearer t2"] {
                let sent = oauth.headers().await.expect("headers");
                assert_eq!(oauth.challenged(refusal(401, "Bearer"), sent).await, Ok(Retry::Yes), "{code} {lifetime:?}");
                assert_eq!(bearer(&oauth.headers().await.expect("headers")), Some(expect), "{code} {lifetime:?}");
                if lifetime.is_some() {
                    tokio::time::sleep(Duration::from_millis(1100)).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_configured_client_that_may_not_renew_needs_a_login_which_is_said_or_begun() {
    let world = World::start(|world| world.lifetime = Some(1)).await;
    let store = CredentialStore::memory();
    let configured = || {
        let mut parts = parts(&world, &store);
        parts.settings.client.id = Some("ours".into());
        parts
    };
    person(configured()).login(&[]).await.expect("logged in");
    world.refuses_refresh(400, json!({"error": "unauthorized_client"}));
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let error = OAuth::new(configured()).headers().await.expect_err("nobody is there");
    assert!(error.contains("unauthorized_client") && error.contains("mcp login srv"), "{error}");
    let oauth = person(configured());
    let sent = oauth.headers().await.expect("the server is asked");
    assert_eq!(oauth.challenged(refusal(401, "Bearer"), sent).await, Ok(Retry::Yes));
    assert_eq!(world.logins.lock().expect("logins").len(), 2, "the person there was asked");
}

#[tokio::test]
async fn a_client_that_the_settings_do_not_name_any_more_renews_nothing() {
    let world = World::start(|world| world.lifetime = Some(1)).await;
    let store = CredentialStore::memory();
    let configured = |id: &str| {
        let mut parts = parts(&world, &store);
        parts.settings.client.id = Some(id.into());
        parts
    };
    person(configured("ours")).login(&[]).await.expect("logged in");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let oauth = OAuth::new(configured("new"));
    let sent = oauth.headers().await.expect("the server is asked");
    let error = oauth.challenged(refusal(401, "Bearer"), sent).await.expect_err("nobody is there");
    assert!(error.contains("mcp login srv"), "{error}");
    assert_eq!(world.asked("refresh_token").len(), 0);
}

#[tokio::test]
async fn a_login_that_is_given_up_keeps_what_another_process_renewed_meanwhile() {
    let world = World::start(|_| {}).await;
    let store = CredentialStore::memory();
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    let gives_up = OAuth::new(OAuthParts { consent: Some(Arc::new(GivesUp)), ..parts(&world, &store) });
    gives_up.login_state().await.expect("it has read what is kept");
    let other = OAuth::new(parts(&world, &store));
    let sent = other.headers().await.expect("headers");
    assert_eq!(other.challenged(refusal(401, "Bearer"), sent).await, Ok(Retry::Yes));
    gives_up.login(&[]).await.expect_err("given up");
    let third = OAuth::new(parts(&world, &store));
    let sent = third.headers().await.expect("headers");
    assert_eq!(bearer(&sent), Some("Bearer t2"));
    assert_eq!(third.challenged(refusal(401, "Bearer"), sent).await, Ok(Retry::Yes));
    let renewals: Vec<_> = world.asked("refresh_token").iter().map(|form| form["refresh_token"].clone()).collect();
    assert_eq!(renewals, ["r1", "r2"], "a refresh token is good for one renewal");
}

#[tokio::test]
async fn a_client_that_is_known_or_cannot_be_replaced_logs_in_again() {
    let world = World::start(|_| {}).await;
    let store = CredentialStore::memory();
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    // The page sends back that the person does not agree.
    let denies = OAuth::new(OAuthParts { consent: Some(Arc::new(Denies)), ..parts(&world, &store) });
    let error = denies.login(&[]).await.expect_err("denied").to_string();
    assert!(error.contains("access_denied"), "{error}");
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    assert_eq!(world.registrations.lock().expect("registrations").len(), 1);
    // The page sends nothing back, and nobody can register any more.
    let gives_up = OAuth::new(OAuthParts { consent: Some(Arc::new(GivesUp)), ..parts(&world, &store) });
    gives_up.login(&[]).await.expect_err("given up");
    world.is_closed.store(true, Ordering::SeqCst);
    let state = person(parts(&world, &store)).login(&[]).await.expect("as the client that there is");
    assert_eq!(state.client.as_deref(), Some("registered"));
}

#[tokio::test]
async fn what_the_server_wants_besides_is_remembered_for_the_next_login() {
    let world = World::start(|_| {}).await;
    let store = CredentialStore::memory();
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    let oauth = OAuth::new(parts(&world, &store));
    let sent = oauth.headers().await.expect("headers");
    let wants = refusal(403, "Bearer error=\"insufficient_scope\", scope=\"write\"");
    let error = oauth.challenged(wants.clone(), sent.clone()).await.expect_err("nobody is there");
    assert!(error.contains("write") && error.contains("mcp login srv"), "{error}");
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    assert_eq!(world.logins.lock().expect("logins")[1]["scope"], "read write", "old and new together");

    // Now it was given, so asking again changes nothing.
    let oauth = person(parts(&world, &store));
    let sent = oauth.headers().await.expect("headers");
    let error = oauth.challenged(wants, sent.clone()).await.expect_err("it goes nowhere");
    assert!(error.contains("has the scopes"), "{error}");
    let forbidden = refusal(403, "Bearer error=\"access_denied\"");
    assert_eq!(oauth.challenged(forbidden, sent).await, Ok(Retry::No));
    assert_eq!(world.logins.lock().expect("logins").len(), 2);
}

#[tokio::test]
async fn a_client_with_rights_of_its_own_asks_nobody() {
    let world = World::start(|_| {}).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let hear = Arc::clone(&told);
    let oauth = OAuth::new(OAuthParts {
        settings: OAuthSettings {
            grant: Grant::ClientCredentials,
            client: ClientSettings {
                id: Some("me".into()),
                proof: ClientProof::Secret(Secret::new("sesame")),
                metadata_url: None,
            },
            ..OAuthSettings::default()
        },
        secrets: Some(Arc::new(move |secret| hear.lock().expect("secrets").push(secret))),
        ..parts(&world, &CredentialStore::memory())
    });
    let sent = oauth.headers().await.expect("headers");
    assert_eq!(bearer(&sent), None);
    let challenge = refusal(401, "Bearer scope=\"read\"");
    assert_eq!(oauth.challenged(challenge, sent).await, Ok(Retry::Yes));
    assert_eq!(bearer(&oauth.headers().await.expect("headers")), Some("Bearer t1"));
    let form = &world.asked("client_credentials")[0];
    assert_eq!((&*form["Authorization"], &*form["scope"]), ("Basic bWU6c2VzYW1l", "read"));
    assert_eq!(*told.lock().expect("secrets"), ["t1", "r1"], "whoever redacts hears of each secret");
    assert!(!format!("{oauth:?}").contains("sesame"));
}

#[tokio::test]
async fn without_a_login_the_remedy_is_named_and_nothing_is_asked() {
    let world = World::start(|_| {}).await;
    let oauth = OAuth::new(parts(&world, &CredentialStore::memory()));
    for (header, expect) in
        [("Bearer scope=\"read\"", "the scopes `read`"), ("Basic realm=\"x\"", "headers.Authorization")]
    {
        let error = oauth.challenged(refusal(401, header), HeaderMap::new()).await.expect_err("nobody is there");
        assert!(error.contains(expect) && error.contains("toolwright mcp login srv"), "{error}");
    }
    assert!(world.tokens.lock().expect("tokens").is_empty());
}

#[tokio::test]
async fn a_logout_takes_the_token_back_where_the_server_lets_it_and_forgets_it_in_any_case() {
    for (revocation, expect) in [(Some(200), "Revoked"), (Some(400), "unsupported_token_type"), (None, "NotOffered")] {
        let world = World::start(|world| world.revocation = revocation).await;
        let store = CredentialStore::memory();
        person(parts(&world, &store)).login(&[]).await.expect("logged in");
        // Another process than the one that logged in.
        let other = OAuth::new(parts(&world, &store));
        let done = other.logout().await.expect("forgotten");
        let came_to = format!("{:?}", done.revocation);
        assert!(came_to.contains(expect) && !came_to.contains("r1"), "{came_to}");
        assert!(done.removed && other.login_state().await.expect("a state").token.is_none());
        let nothing = Logout { removed: false, revocation: Revocation::NoToken };
        assert_eq!(other.logout().await.expect("nothing"), nothing);
        let sent: Vec<_> = world.revoked.lock().expect("revoked").drain(..).collect();
        let sent: Vec<_> =
            sent.iter().map(|form| ["token", "token_type_hint", "client_id"].map(|key| &*form[key])).collect();
        let both = [["r1", "refresh_token", "registered"], ["t1", "access_token", "registered"]];
        // That one is refused says nothing of the other.
        let count = if revocation.is_some() { 2 } else { 0 };
        assert_eq!(sent, both[..count], "{revocation:?}");
    }
    // A client with a secret proves itself.
    let world = World::start(|world| world.revocation = Some(200)).await;
    let store = CredentialStore::memory();
    let with_secret = || {
        let mut parts = parts(&world, &store);
        parts.settings.grant = Grant::ClientCredentials;
        parts.settings.client = ClientSettings {
            id: Some("us".into()),
            proof: ClientProof::Secret(Secret::new("s")),
            ..ClientSettings::default()
        };
        parts
    };
    OAuth::new(with_secret()).login(&[]).await.expect("a token");
    assert_eq!(OAuth::new(with_secret()).logout().await.expect("forgotten").revocation, Revocation::Revoked);
    let sent = world.revoked.lock().expect("revoked")[0]["Authorization"].clone();
    assert_eq!(sent, "Basic dXM6cw==");
}

#[tokio::test]
async fn a_login_is_told_from_the_one_before_and_a_renewal_is_not() {
    let world = World::start(|_| {}).await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = CredentialStore::folder(folder.path());
    let open = || OAuth::new(parts(&world, &store));
    let scope = |oauth: OAuth| {
        let mut spec =
            McpServerSpec::new("srv", McpTransport::Http { url: world.base.clone(), headers: BTreeMap::new() });
        spec.authorizer = Some(Arc::new(oauth));
        McpProvider::new(spec, deps()).credential_scope(&Principal::owner())
    };
    let nobody = scope(open());
    assert_eq!(scope(open()), nobody);
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    let first = scope(open());
    // Renewed, it is the same person's.
    let oauth = open();
    let sent = oauth.headers().await.expect("headers");
    assert_eq!(oauth.challenged(refusal(401, "Bearer"), sent).await, Ok(Retry::Yes));
    assert_eq!((oauth.identity(), scope(oauth)), (open().identity(), first));
    // Another person's, who has the same client.
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    let second = scope(open());
    let oauth = open();
    oauth.logout().await.expect("logged out");
    assert_eq!((scope(oauth), scope(open())), (nobody, nobody));
    assert!(first != nobody && second != nobody && first != second);
}

#[tokio::test]
async fn a_login_in_another_process_is_followed_at_once() {
    let world = World::start(|_| {}).await;
    let folder = tempfile::tempdir().expect("a folder");
    // One store for each process.
    for open in [
        Box::new(|| CredentialStore::folder(folder.path())) as Box<dyn Fn() -> CredentialStore>,
        Box::new({
            let store = CredentialStore::memory();
            move || store.clone()
        }),
    ] {
        let first = person(parts(&world, &open()));
        first.login(&[]).await.expect("logged in");
        let one = (first.identity(), first.headers().await.expect("headers"));
        let second = person(parts(&world, &open()));
        assert_eq!((second.identity(), second.headers().await.expect("headers")), one);
        // Whoever logs in now is somebody else, for all that the first knows.
        second.login(&[]).await.expect("logged in");
        let other = (second.identity(), second.headers().await.expect("headers"));
        assert!(other.0 != one.0 && other.1 != one.1);
        assert_eq!(first.identity(), other.0, "results of the one are not served to the other");
        assert_eq!(first.headers().await.expect("headers"), other.1, "and calls go out as the other");
        second.logout().await.expect("logged out");
        assert_eq!((first.identity(), first.headers().await.expect("headers").len()), (String::new(), 0));
    }
}

#[tokio::test]
async fn entries_of_one_name_at_two_addresses_have_a_login_each() {
    let world = World::start(|world| world.revocation = Some(200)).await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = CredentialStore::folder(folder.path());
    person(parts(&world, &store)).login(&[]).await.expect("logged in");
    // Another project's entry of the same name.
    let mut theirs = parts(&world, &store);
    theirs.url.set_query(Some("project=2"));
    let theirs = || OAuth::new(theirs.clone());
    assert_eq!(theirs().login_state().await.expect("a state").token, None);
    let nothing = Logout { removed: false, revocation: Revocation::NoToken };
    assert_eq!(theirs().logout().await.expect("nothing"), nothing);
    assert!(OAuth::new(parts(&world, &store)).login_state().await.expect("a state").token.is_some());
    // What cannot be read cannot be revoked, and goes all the same.
    for file in std::fs::read_dir(folder.path()).expect("a folder").flatten() {
        std::fs::write(file.path(), "{").expect("written");
    }
    let done = OAuth::new(parts(&world, &store)).logout().await.expect("forgotten");
    let Revocation::Failed(reason) = &done.revocation else { panic!("{done:?}") };
    assert!(done.removed && reason.contains("cannot be read"), "{reason}");
    assert_eq!(OAuth::new(parts(&world, &store)).login_state().await.expect("a state").token, None);
    assert!(world.revoked.lock().expect("revoked").is_empty());
}
