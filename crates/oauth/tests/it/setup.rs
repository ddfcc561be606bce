//! An authorization server on a real socket, and what it was asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use url::Url;

/// What an authorization server was asked, and how it answers.
#[derive(Default)]
pub(super) struct ServerFixture {
    pub(super) base: String,
    /// Forms of token requests, with `Authorization`.
    pub(super) tokens: Mutex<Vec<HashMap<String, String>>>,
    pub(super) registrations: Mutex<Vec<Value>>,
    pub(super) logins: Mutex<Vec<HashMap<String, String>>>,
    pub(super) given: AtomicUsize,
    /// `expires_in` of tokens.
    pub(super) lifetime: Option<u64>,
    /// Status and body in answer to refresh tokens, in place of another token.
    pub(super) refuses_refresh: Mutex<Option<(u16, Value)>>,
    /// Whether the first client that registered is known no more.
    pub(super) forgets: AtomicBool,
    /// Whether it registers no more clients.
    pub(super) is_closed: AtomicBool,
    /// Pause before an answer of the token endpoint.
    pub(super) pause: Duration,
    /// The authorization server that the resource names; its own where none is said.
    pub(super) issuer: Option<String>,
    /// Status instead of its own metadata where it is looked for first; 0 gives it.
    pub(super) no_server_metadata: AtomicU16,
    /// Status instead of the resource's metadata; 0 gives it.
    pub(super) no_metadata: AtomicU16,
    /// Status of its revocation endpoint; it has none where none is said.
    pub(super) revocation: Option<u16>,
    /// What its metadata says of proofs in place of what it usually does.
    pub(super) auth_methods: Option<Value>,
    /// What it gives a client that registers besides an id, in place of what it usually does.
    pub(super) registered: Option<Value>,
    /// Forms that were sent there, with `Authorization`.
    pub(super) revoked: Mutex<Vec<HashMap<String, String>>>,
    /// Members of its answers that are other than usual.
    pub(super) says: AnswerOverrides,
    /// Whether the resource's challenge says nothing.
    pub(super) is_silent: bool,
    /// Pause before its own metadata where it is looked for first.
    pub(super) metadata_pause: Duration,
    /// How often that was looked for there.
    pub(super) looked_for: AtomicUsize,
    /// Status in place of tokens; 0 gives them.
    pub(super) no_tokens: AtomicU16,
}

/// Members of answers that are other than usual.
#[derive(Default)]
pub(super) struct AnswerOverrides {
    /// Of the resource's metadata.
    pub(super) resource: Value,
    /// Of its own metadata.
    pub(super) server: Value,
    /// Of its tokens.
    pub(super) token: Value,
}

/// An answer with members that are other than usual.
fn with(mut usual: Value, says: &Value) -> Value {
    for (name, value) in says.as_object().into_iter().flatten() {
        usual[name] = value.clone();
    }
    usual
}

impl ServerFixture {
    pub(super) async fn start(change: impl FnOnce(&mut Self)) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let mut setup = Self { base, ..Self::default() };
        change(&mut setup);
        let setup = Arc::new(setup);
        let routes = Router::new()
            .route("/mcp", post(challenge))
            .route("/.well-known/oauth-protected-resource/mcp", get(resource))
            .route("/.well-known/oauth-protected-resource", get(resource_at_root))
            .route("/.well-known/oauth-authorization-server", get(server_first))
            .route("/.well-known/openid-configuration", get(server))
            .route("/authorize", get(authorize))
            .route("/register", post(register))
            .route("/token", post(token))
            .route("/revoke", post(revoke))
            .with_state(Arc::clone(&setup));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        setup
    }

    pub(super) fn asked(&self, grant: &str) -> Vec<HashMap<String, String>> {
        let tokens = self.tokens.lock().expect("tokens");
        tokens.iter().filter(|form| form["grant_type"] == grant).cloned().collect()
    }

    fn knows(&self, client: Option<&String>) -> bool {
        !self.forgets.load(Ordering::SeqCst) || client.is_none_or(|client| client != "registered")
    }

    pub(super) fn refuses_refresh(&self, status: u16, body: Value) {
        *self.refuses_refresh.lock().expect("refusal") = Some((status, body));
    }
}

type FixtureState = State<Arc<ServerFixture>>;

async fn challenge(State(setup): FixtureState) -> Response {
    if setup.is_silent {
        return (StatusCode::UNAUTHORIZED, [("WWW-Authenticate", "Bearer")]).into_response();
    }
    let header =
        format!("Bearer resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\", scope=\"read\"", setup.base);
    (StatusCode::UNAUTHORIZED, [("WWW-Authenticate", header)]).into_response()
}

async fn resource(State(setup): FixtureState) -> Response {
    match setup.no_metadata.load(Ordering::SeqCst) {
        0 => resource_at_root(State(setup)).await.into_response(),
        status => page(status),
    }
}

async fn resource_at_root(State(setup): FixtureState) -> Json<Value> {
    let issuer = setup.issuer.as_ref().unwrap_or(&setup.base);
    let metadata = json!({"resource": format!("{}/mcp", setup.base), "authorization_servers": [issuer]});
    Json(with(metadata, &setup.says.resource))
}

/// What a site for people says of an address.
fn page(status: u16) -> Response {
    (StatusCode::from_u16(status).expect("a status"), Html("<!doctype html>")).into_response()
}

async fn server_first(State(setup): FixtureState) -> Response {
    setup.looked_for.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(setup.metadata_pause).await;
    match setup.no_server_metadata.load(Ordering::SeqCst) {
        0 => server(State(setup)).await.into_response(),
        status => page(status),
    }
}

async fn server(State(setup): FixtureState) -> Json<Value> {
    let at = |path: &str| format!("{}{path}", setup.base);
    let mut metadata = json!({
        "issuer": setup.base,
        "authorization_endpoint": at("/authorize"),
        "token_endpoint": at("/token"),
        "registration_endpoint": at("/register"),
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
        "authorization_response_iss_parameter_supported": true,
    });
    if let Some(methods) = &setup.auth_methods {
        metadata["token_endpoint_auth_methods_supported"] = methods.clone();
    }
    if setup.is_closed.load(Ordering::SeqCst) {
        metadata["registration_endpoint"] = Value::Null;
    }
    if setup.revocation.is_some() {
        metadata["revocation_endpoint"] = json!(at("/revoke"));
    }
    Json(with(metadata, &setup.says.server))
}

async fn revoke(
    State(setup): FixtureState,
    headers: HeaderMap,
    Form(mut form): Form<HashMap<String, String>>,
) -> (StatusCode, Json<Value>) {
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    form.insert("Authorization".into(), authorization.to_owned());
    setup.revoked.lock().expect("revoked").push(form);
    let status = setup.revocation.and_then(|status| StatusCode::from_u16(status).ok()).expect("it has one");
    let answer = if status.is_success() { json!({}) } else { json!({"error": "unsupported_token_type"}) };
    (status, Json(answer))
}

async fn authorize(State(setup): FixtureState, Query(query): Query<HashMap<String, String>>) -> Response {
    if !setup.knows(query.get("client_id")) {
        // It must not send back there (RFC 6749 section 4.1.2.1).
        return (StatusCode::BAD_REQUEST, Json(json!({"error": "invalid_client"}))).into_response();
    }
    let back = Url::parse_with_params(
        &query["redirect_uri"],
        [
            ("code", "the-code"),
            ("state", &query["state"]),
            ("iss", setup.says.server["issuer"].as_str().unwrap_or(&setup.base)),
        ],
    );
    setup.logins.lock().expect("logins").push(query);
    Redirect::to(back.expect("a URL").as_str()).into_response()
}

async fn register(State(setup): FixtureState, Json(metadata): Json<Value>) -> (StatusCode, Json<Value>) {
    let mut registrations = setup.registrations.lock().expect("registrations");
    registrations.push(metadata);
    let id =
        if registrations.len() == 1 { "registered".to_owned() } else { format!("registered-{}", registrations.len()) };
    let mut given = setup.registered.clone().unwrap_or_else(|| json!({"token_endpoint_auth_method": "none"}));
    given["client_id"] = json!(id);
    (StatusCode::CREATED, Json(given))
}

async fn token(
    State(setup): FixtureState,
    headers: HeaderMap,
    Form(mut form): Form<HashMap<String, String>>,
) -> (StatusCode, Json<Value>) {
    tokio::time::sleep(setup.pause).await;
    let refused =
        setup.refuses_refresh.lock().expect("refusal").clone().filter(|_| form["grant_type"] == "refresh_token");
    let known = setup.knows(form.get("client_id"));
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    form.insert("Authorization".into(), authorization.to_owned());
    setup.tokens.lock().expect("tokens").push(form);
    if !known {
        return (StatusCode::UNAUTHORIZED, Json(json!({"error": "invalid_client"})));
    }
    if let Some((status, body)) = refused {
        return (StatusCode::from_u16(status).expect("a status"), Json(body));
    }
    if let status @ 1.. = setup.no_tokens.load(Ordering::SeqCst) {
        return (StatusCode::from_u16(status).expect("a status"), Json(Value::Null));
    }
    let number = setup.given.fetch_add(1, Ordering::SeqCst) + 1;
    let mut answer = json!({"access_token": format!("t{number}"), "token_type": "Bearer"});
    answer["refresh_token"] = json!(format!("r{number}"));
    if let Some(lifetime) = setup.lifetime {
        answer["expires_in"] = json!(lifetime);
    }
    (StatusCode::OK, Json(with(answer, &setup.says.token)))
}
