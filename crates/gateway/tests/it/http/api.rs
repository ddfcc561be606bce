//! The HTTP API over a real socket. Every answer is checked against the schema that the served OpenAPI document gives
//! for its operation and status, with no field that the schema does not know.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use toolwright_core::approval::AnswerSource;
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::{Health, ProviderKind};
use toolwright_core::policy::{Policy, Profile};
use toolwright_core::schema::CompiledSchema;
use toolwright_core::session::PeerProcess;
use toolwright_gateway::{ApiStores, LookUpPeer, Token};
use toolwright_runtime::{Inbox, InboxOptions, SqliteStore, SystemClock};
use toolwright_testkit::{FakeLedger, FakeList, FakeProvider};

use crate::support::{Fixture, Http, LONG, body, call, soon};

/// A server, and the document that it gave.
pub(crate) struct Api {
    pub(crate) fixture: Fixture,
    pub(crate) http: Http,
    document: Value,
}

impl Api {
    pub(crate) async fn of(fixture: Fixture, http: Http) -> Self {
        let document = body(http.request(Method::GET, "/api/openapi.json"), 200).await;
        Self { fixture, http, document }
    }

    pub(crate) async fn new() -> Self {
        let fixture = Fixture::new().await;
        let http = fixture.http().await;
        Self::of(fixture, http).await
    }

    /// With jobs, an inbox, and the policy that asks for all but reads.
    pub(crate) async fn asking(token: Option<&str>) -> (Self, Arc<SqliteStore>) {
        Self::asking_as(token, |_, _| PeerProcess::Owners).await
    }

    /// The same, where this is at the other end of connections.
    pub(crate) async fn asking_as(token: Option<&str>, look_up_peer: LookUpPeer) -> (Self, Arc<SqliteStore>) {
        let (fixture, store) = Fixture::with_jobs(|options, store| {
            let inbox = InboxOptions::new(Arc::clone(store) as _, Arc::new(SystemClock));
            options.approver = Arc::new(Inbox::new(InboxOptions { answers: AnswerSource::Elsewhere, ..inbox }));
            options.policy = Arc::new(Policy::of(Profile::Ask));
        })
        .await;
        let stores = ApiStores { inbox: Arc::clone(&store) as _, approvals: Arc::clone(&store) as _ };
        let http = fixture
            .http_with(|options| {
                options.stores = stores;
                options.token = token.and_then(Token::new);
                options.look_up_peer = look_up_peer;
            })
            .await;
        let http = if let Some(token) = token { http.with_token(token) } else { http };
        (Self::of(fixture, http).await, store)
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.http.request(Method::GET, path)
    }

    /// The answer to this request of the operation `template`, which its schema allows.
    pub(crate) async fn answer(
        &self,
        method: Method,
        template: &str,
        path: &str,
        sent: Option<Value>,
        status: u16,
    ) -> Value {
        let request = match sent {
            Some(body) => self.http.request(method.clone(), path).json(&body),
            None => self.http.request(method.clone(), path),
        };
        let answer = body(request, status).await;
        self.check(&method, template, status, &answer);
        answer
    }

    pub(crate) fn check(&self, method: &Method, template: &str, status: u16, answer: &Value) {
        let operation = &self.document["paths"][template][method.as_str().to_lowercase()];
        let responses = &operation["responses"];
        let reported = &responses[status.to_string()];
        let schema = &reported["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{method} {template} tells nothing of {status}");
        let mut components = self.document["components"].clone();
        close(&mut components["schemas"]);
        let whole = json!({"allOf": [schema], "components": components});
        let violations = CompiledSchema::compile(&whole).expect("compiles").violations(answer);
        assert!(violations.is_empty(), "{method} {template} {status}: {violations:?}\n{answer:#}");
    }

    /// The first question that waits.
    pub(crate) async fn question(&self) -> Value {
        loop {
            let questions = body(self.get("/api/approvals"), 200).await;
            self.check(&Method::GET, "/api/approvals", 200, &questions);
            if let Some(question) = questions["questions"].get(0) {
                return question.clone();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn call(&self, body: Value) -> Value {
        self.answer(Method::POST, "/api/call", "/api/call", Some(body), 200).await
    }
}

/// Lets no schema with properties take others, unless it says that it does.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.values_mut().for_each(close);
            if members.get("properties").is_some_and(Value::is_object) {
                members.entry("unevaluatedProperties").or_insert(json!(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

pub(crate) fn error_kind(answer: &Value) -> &str {
    answer["error"]["kind"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_body_may_reach_the_stated_limit() {
    let api = Api::new().await;
    let limit = 16 << 20;
    // A framework's own limit is 2 MiB.
    for bytes in [1 << 20, 3 << 20, limit] {
        let around = json!({"tool": "test__echo", "arguments": {"text": ""}}).to_string().len();
        let answer = api.call(json!({"tool": "test__echo", "arguments": {"text": "x".repeat(bytes - around)}})).await;
        assert_eq!(answer["ok"], true, "{bytes}");
    }
    let paths = api.document["paths"].as_object().expect("paths");
    let taking = paths.iter().filter(|(_, item)| item["post"]["requestBody"].is_object());
    for (path, _) in taking.filter(|(path, _)| !path.contains('{')) {
        let odd = api.http.post(path, &json!({"odd": "x".repeat(3 << 20)}));
        assert_eq!(error_kind(&body(odd, 400).await), "bad_request", "{path}");
    }
    let (session, _) = api.http.initialize("/mcp").await;
    let large = call(1, "test__echo", json!({"text": "x".repeat(3 << 20)}));
    let answer = body(api.http.in_session(&session, "/mcp", &large), 200).await;
    assert_ne!(answer["result"]["isError"], true);
    let too_large = api.http.post("/api/call", &json!({"tool": "x".repeat(limit)}));
    assert_eq!(error_kind(&body(too_large, 413).await), "too_large");
}

#[tokio::test]
async fn tools_are_listed_shown_and_found() {
    let api = Api::new().await;
    let all = api.answer(Method::GET, "/api/tools", "/api/tools", None, 200).await;
    let names: Vec<_> = all.as_array().expect("list").iter().map(|tool| tool["wire_name"].clone()).collect();
    assert!(names.contains(&json!("test__echo")) && names.contains(&json!("remote__Get_Thing")), "{names:?}");
    let some = api.answer(Method::GET, "/api/tools", "/api/tools?namespace=remote", None, 200).await;
    assert_eq!(some.as_array().expect("list").len(), 2);
    for (written, id) in
        [("test__echo", "test:echo@1.0.0"), ("test:echo@1.0.0", "test:echo@1.0.0"), ("echo", "test:echo@1.0.0")]
    {
        let path = format!("/api/tools/{written}");
        let shown = api.answer(Method::GET, "/api/tools/{id}", &path, None, 200).await;
        assert_eq!((&shown["id"], &shown["raw_name"]), (&json!(id), &json!("echo")), "{written}");
    }
    let unknown = api.answer(Method::GET, "/api/tools/{id}", "/api/tools/test__ecko", None, 404).await;
    assert_eq!(error_kind(&unknown), "unknown_tool");
    assert!(unknown["error"]["message"].as_str().expect("text").contains("did you mean test__echo?"), "{unknown}");
    let hits = api.answer(Method::GET, "/api/search", "/api/search?query=ech&limit=1", None, 200).await;
    assert_eq!((hits[0]["wire_name"].as_str(), hits.as_array().map(Vec::len)), (Some("test__echo"), Some(1)));
}

#[tokio::test]
async fn bad_requests_are_answered_in_one_shape() {
    let api = Api::new().await;
    let post = |text: &'static str| {
        api.http.request(Method::POST, "/api/call").header("content-type", "application/json").body(text)
    };
    for (request, status, kind, says) in [
        (api.get("/api/nothing"), 404, "not_found", "openapi.json"),
        (api.get("/api/call"), 405, "method_not_allowed", "no such method"),
        (api.get("/api/search"), 400, "bad_request", "query"),
        (api.get("/api/search?query=a&limit=0"), 400, "bad_request", "from 1 to"),
        (api.get("/api/tools?tga=x"), 400, "bad_request", "tga"),
        (post("{"), 400, "bad_request", "EOF"),
        (post("[]"), 400, "bad_request", "expected a map"),
        (post("{}"), 400, "bad_request", "missing field `tool`"),
        (post(r#"{"name": "test__echo"}"#), 400, "bad_request", "unknown field `name`"),
        (post(r#"{"tool": "test__echo", "timeout": "soon"}"#), 400, "bad_request", "timeout"),
        (api.http.request(Method::POST, "/api/call").body("{}"), 415, "unsupported_media_type", "application/json"),
        (api.get("/api/tools/%FF"), 400, "bad_request", "UTF-8"),
        (api.get("/api/jobs/%FF/output"), 400, "bad_request", "UTF-8"),
        (api.http.request(Method::POST, "/api/jobs/%FF/stop"), 400, "bad_request", "UTF-8"),
        (api.http.request(Method::DELETE, "/api/approvals/standing/%FF"), 400, "bad_request", "UTF-8"),
        (api.get("/api/approvals"), 501, "unsupported", "inbox"),
        (api.get("/api/jobs"), 404, "not_found", "no jobs"),
    ] {
        let answer = body(request, status).await;
        api.check(&Method::GET, "/api/tools", 400, &answer);
        assert_eq!(error_kind(&answer), kind, "{answer}");
        assert!(answer["error"]["message"].as_str().expect("text").contains(says), "{answer}");
    }
}

#[tokio::test]
async fn a_call_is_answered_like_the_command_line() {
    let api = Api::new().await;
    let mut done = api.call(json!({"tool": "test__echo", "arguments": {"text": "hello"}})).await;
    assert!(done["latency_ms"].take().is_u64());
    let link = json!({"type": "resource_link", "uri": "a:b", "name": "n", "later": [1]});
    let expect = json!({
        "ok": true, "status": "done", "content": [{"type": "text", "text": "hello"}, link], "text": "hello", "latency_ms": null,
        "kind": "native", "namespace": "test", "extras": {}, "structured": {"n": 1.5},
    });
    assert_eq!(done, expect);
    let mended = api.call(json!({"tool": "echo", "arguments": "{\"text\": \"hello\""})).await;
    assert_eq!((&mended["text"], mended["provenance"].is_object()), (&json!("hello"), true), "{mended}");
    for (asked, kind) in [
        (json!({"tool": "nothing"}), "unknown_tool"),
        (json!({"tool": "test__echo"}), "invalid_parameters"),
        (json!({"tool": "test__fail"}), "execution_error"),
        (json!({"tool": "test__wait", "timeout": "50ms"}), "timeout"),
    ] {
        let failed = api.call(asked.clone()).await;
        assert_eq!((&failed["ok"], error_kind(&failed)), (&json!(false), kind), "{asked} {failed}");
    }
}

#[tokio::test]
async fn calls_that_did_not_run_are_marked() {
    let (api, _store) = Api::asking(None).await;
    let asked = api.call(json!({"tool": "remote__other"})).await;
    assert_eq!((&asked["ok"], &asked["status"]), (&json!(true), &json!("approval")), "{asked}");
    assert!(asked["structured"]["job"].is_string(), "{asked}");
    for (call, status) in [
        (json!({"tool": "test__echo", "arguments": {"text": "x"}, "background": true}), "job"),
        (json!({"tool": "test__fail"}), "failed"),
        (json!({"tool": "test__echo", "arguments": {"text": "x"}}), "done"),
    ] {
        assert_eq!(api.call(call).await["status"], status);
    }
}

#[tokio::test]
async fn a_call_whose_client_is_gone_is_cancelled() {
    let api = Api::new().await;
    let request = api.http.request(Method::POST, "/api/call").json(&json!({"tool": "test__wait"}));
    let waiting = tokio::spawn(request.send());
    soon(&api.fixture.watch.started).await;
    waiting.abort();
    soon(&api.fixture.watch.cancelled).await;
    assert_eq!(*api.fixture.watch.cause.lock().expect("lock"), Some(CancelCause::CallerGone));
}

#[tokio::test]
async fn a_full_server_answers_503_with_retry_after() {
    let fixture = Fixture::with(|options| options.max_calls = 1).await;
    let http = fixture.http().await;
    let api = Api::of(fixture, http).await;
    let request = api.http.request(Method::POST, "/api/call").json(&json!({"tool": "test__wait"}));
    let waiting = tokio::spawn(request.send());
    soon(&api.fixture.watch.started).await;
    let refused = api.http.request(Method::POST, "/api/call").json(&json!({"tool": "test__wait"}));
    let refused = refused.send().await.expect("response");
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().ok()), (503, Some("1")));
    let answer: Value = refused.json().await.expect("json");
    api.check(&Method::POST, "/api/call", 503, &answer);
    assert_eq!(error_kind(&answer), "busy");
    // What needs no place is answered.
    body(api.get("/api/tools"), 200).await;
    waiting.abort();
}

/// Whatever comes instead of the answer, the document tells its status and its form for that operation.
#[tokio::test]
async fn the_document_names_the_refusals_of_each_operation() {
    let fixture = Fixture::with(|options| options.max_message = 1000).await;
    let http = fixture.http_with(|options| options.token = Token::new("s3cret")).await.with_token("s3cret");
    let api = Api::of(fixture, http).await;
    let check = async |method: Method, template: &str, status: u16, request: RequestBuilder| {
        let answer = request.send().await.expect("response");
        let kind =
            answer.headers()["content-type"].to_str().expect("text").split(';').next().unwrap_or_default().to_owned();
        assert_eq!(answer.status().as_u16(), status, "{method} {template}");
        let reported = &api.document["paths"][template][method.as_str().to_lowercase()]["responses"];
        assert!(
            reported[status.to_string()]["content"][&kind].is_object(),
            "{method} {template} {status} {kind}: {reported:#}"
        );
    };
    let operations = api.document["paths"].as_object().expect("paths").iter();
    let operations = operations.flat_map(|(path, item)| {
        item.as_object()
            .expect("operations")
            .iter()
            .map(move |(method, reported)| (path.clone(), method.to_uppercase(), reported))
    });
    for (template, method, reported) in operations {
        let method: Method = method.parse().expect("method");
        assert_eq!(reported["responses"].get("default"), None, "{template}");
        let path = template.replace("{id}", "none");
        let ask = || api.http.request(method.clone(), &path);
        check(method.clone(), &template, 403, ask().header("host", "evil.example")).await;
        if !template.starts_with("/api") {
            continue;
        }
        check(method.clone(), &template, 401, ask().bearer_auth("wrong")).await;
        check(method.clone(), &template, 413, ask().body("x".repeat(2000))).await;
        if method == Method::POST {
            check(method.clone(), &template, 415, ask().body("x")).await;
        }
        if reported.get("requestBody").is_some() {
            check(method.clone(), &template, 400, ask().header("content-type", "application/json").body("[]")).await;
        }
    }
}

#[tokio::test]
async fn the_document_names_503_for_every_operation() {
    let fixture = Fixture::new().await;
    let http = fixture.http_with(|options| options.max_connections = 1).await;
    let api = Api::of(fixture, http).await;
    let waiting = tokio::spawn(api.http.request(Method::POST, "/api/call").json(&json!({"tool": "test__wait"})).send());
    soon(&api.fixture.watch.started).await;
    let mut refused = String::new();
    let mut stream = tokio::net::TcpStream::connect(api.http.addr).await.expect("connected");
    stream.write_all(b"GET /api/tools HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("written");
    tokio::time::timeout(LONG, stream.read_to_string(&mut refused)).await.expect("in time").expect("answered");
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("\r\nretry-after: "), "{refused}");
    assert!(refused.contains("\r\ncontent-type: text/plain;"), "{refused}");
    for path in ["/health", "/ready", "/api/tools"] {
        let reported = &api.document["paths"][path]["get"]["responses"]["503"];
        assert_eq!(reported["content"]["text/plain"].is_object(), path == "/api/tools", "{reported:#}");
        assert_eq!(reported["headers"]["Retry-After"].is_object(), path != "/health", "{reported:#}");
    }
    waiting.abort();
}

#[tokio::test]
async fn only_probes_need_no_token() {
    let fixture = Fixture::new().await;
    let http = fixture.http_with(|options| options.token = Token::new("s3cret")).await;
    for path in ["/api/tools", "/api/openapi.json", "/api/nothing", "/api"] {
        let refused = http.request(Method::GET, path).send().await.expect("response");
        assert_eq!(
            (refused.status().as_u16(), refused.headers()["www-authenticate"].to_str().ok()),
            (401, Some("Bearer"))
        );
        assert_eq!(error_kind(&refused.json().await.expect("json")), "unauthorized", "{path}");
    }
    let foreign = body(http.request(Method::GET, "/api/tools").header("host", "evil.example"), 403).await;
    assert_eq!(error_kind(&foreign), "forbidden");
    body(http.request(Method::GET, "/api/tools").bearer_auth("s3cret"), 200).await;
    assert_eq!(body(http.request(Method::GET, "/ready"), 200).await["ready"], true);
    assert_eq!(http.request(Method::GET, "/health").send().await.expect("response").text().await.expect("text"), "ok");
}

#[tokio::test]
async fn jobs_are_started_followed_and_stopped() {
    let (api, _store) = Api::asking(Some("s3cret")).await;
    let jobs = "/api/jobs/{id}";
    let begun = api.call(json!({"tool": "test__sleep", "arguments": {"text": "20"}, "background": true})).await;
    let id = begun["structured"]["job"].as_str().expect("a job").to_owned();
    let done = api.answer(Method::GET, jobs, &format!("/api/jobs/{id}?wait=10s"), None, 200).await;
    assert_eq!((&done["state"], &done["outcome"]["text"]), (&json!("done"), &json!("slept")));
    let text = api.answer(Method::GET, "/api/jobs/{id}/output", &format!("/api/jobs/{id}/output"), None, 200).await;
    assert!(text["text"].as_str().expect("text").contains("slept"), "{text}");
    let begun = api.call(json!({"tool": "test__wait", "background": true})).await;
    let waits = begun["structured"]["job"].as_str().expect("a job").to_owned();
    let open = api.answer(Method::GET, "/api/jobs", "/api/jobs?open=true", None, 200).await;
    assert_eq!(open["total"], 1, "{open}");
    // The limit counts those that are open, and a newer one is over.
    let begun = api.call(json!({"tool": "test__sleep", "arguments": {"text": "1"}, "background": true})).await;
    let newer = begun["structured"]["job"].as_str().expect("a job").to_owned();
    api.answer(Method::GET, jobs, &format!("/api/jobs/{newer}?wait=10s"), None, 200).await;
    let open = api.answer(Method::GET, "/api/jobs", "/api/jobs?open=true&limit=1", None, 200).await;
    assert_eq!((&open["jobs"][0]["id"], &open["next"]), (&json!(waits), &Value::Null), "{open}");
    let part =
        async |after: &str| api.answer(Method::GET, "/api/jobs", &format!("/api/jobs?limit=2{after}"), None, 200).await;
    let first = part("").await;
    assert_eq!((&first["total"], &first["jobs"][0]["id"], &first["next"]), (&json!(3), &json!(newer), &json!(waits)));
    let rest = part(&format!("&after={waits}")).await;
    assert_eq!((&rest["total"], &rest["jobs"][0]["id"], &rest["next"]), (&json!(3), &json!(id), &Value::Null));
    let stop = |id: &str| format!("/api/jobs/{id}/stop");
    let stopped = api.answer(Method::POST, "/api/jobs/{id}/stop", &stop(&waits), None, 200).await;
    assert_eq!(stopped["state"], "cancelled");
    let send = Some(json!({"input": 1}));
    let refused = api.answer(Method::POST, "/api/jobs/{id}/send", &format!("/api/jobs/{id}/send"), send, 409).await;
    assert_eq!(error_kind(&refused), "conflict");
    let unknown = api.answer(Method::GET, jobs, "/api/jobs/nothing_00000000", None, 404).await;
    assert_eq!(error_kind(&unknown), "not_found");
}

#[tokio::test]
async fn an_unwritable_ledger_means_not_ready() {
    let (fixture, ()) = Fixture::build(|options, _| options.ledger = Arc::new(FakeLedger::full()), |_, ()| {}).await;
    let http = fixture.http().await;
    let api = Api::of(fixture, http).await;
    let answer = api.answer(Method::GET, "/ready", "/ready", None, 503).await;
    assert_eq!((&answer["ready"], &answer["state"]), (&json!(false), &json!("ledger_failed")));
    assert!(answer["reason"].as_str().is_some_and(|why| why.contains("log") && !why.contains("/state")), "{answer}");
}

#[tokio::test]
async fn providers_and_readiness_are_reported() {
    let api = Api::new().await;
    let providers = api.answer(Method::GET, "/api/providers", "/api/providers", None, 200).await;
    let remote = json!({"name": "remote", "kind": "mcp", "tools": 2, "state": "ready", "error": null, "withheld": []});
    assert!(providers.as_array().expect("list").contains(&remote), "{providers}");
    let ready = api.answer(Method::GET, "/ready", "/ready", None, 200).await;
    assert_eq!((&ready["state"], &ready["providers"]["failed"]), (&json!("ready"), &json!(0)));
    let request = api.http.request(Method::POST, "/api/call").json(&json!({"tool": "test__wait"}));
    let running = tokio::spawn(request.send());
    soon(&api.fixture.watch.started).await;
    let drained = {
        let gateway = Arc::clone(&api.fixture.gateway);
        tokio::spawn(async move { gateway.drain().await })
    };
    let draining = loop {
        let answer = api.get("/ready").send().await.expect("response");
        if answer.status() == 503 {
            break answer.json::<Value>().await.expect("json");
        }
    };
    api.check(&Method::GET, "/ready", 503, &draining);
    assert_eq!(draining["state"], "draining");
    let refused = api.http.request(Method::POST, "/api/call").json(&json!({"tool": "test__fail"}));
    assert_eq!(error_kind(&body(refused, 503).await), "shutting_down");
    tokio::time::timeout(LONG, drained).await.expect("in time").expect("task");
    let ended = running.await.expect("task").expect("response");
    assert_eq!(ended.status(), 503);
    assert_eq!(error_kind(&ended.json().await.expect("json")), "canceled");
}

#[tokio::test]
async fn one_unresponsive_source_does_not_delay_readiness() {
    let api = Api::new().await;
    let silent = FakeProvider::new("silent", ProviderKind::Mcp, Vec::new());
    silent.lists(FakeList::Hangs);
    let silent = silent.with(|source| source.health = Health::Starting);
    api.fixture.catalogue.add_provider(Arc::new(silent)).await.expect("added");
    let catalogue = Arc::clone(&api.fixture.catalogue);
    let _listing = tokio::spawn(async move { catalogue.refresh("silent").await });
    let ready = async {
        loop {
            let answer = api.get("/ready").send().await.expect("response");
            let status = answer.status().as_u16();
            let reported: Value = answer.json().await.expect("json");
            api.check(&Method::GET, "/ready", status, &reported);
            assert_eq!(reported["providers"]["starting"], 1, "{reported}");
            if status == 200 {
                return reported;
            }
            assert_eq!(reported["state"], "starting");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let reported = tokio::time::timeout(LONG, ready).await.expect("in time");
    assert_eq!((&reported["ready"], &reported["state"]), (&json!(true), &json!("ready")));
}
