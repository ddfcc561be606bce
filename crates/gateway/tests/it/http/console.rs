//! The web console: its files and sign-in, and what its pages read of the ledger and of events.

use std::sync::Arc;

use futures_util::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};
use toolwright_core::event::{Event, EventSink as _};
use toolwright_gateway::Token;
use toolwright_runtime::EventHub;

use crate::http::api::{Api, error_kind};
use crate::support::{Fixture, body};

#[tokio::test]
async fn pages_come_from_the_server_alone() {
    let http = Fixture::new().await.http().await;
    let page = http.request(Method::GET, "/").send().await.expect("answers");
    let policy = page.headers()["content-security-policy"].to_str().expect("text").to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'") && !policy.contains("unsafe"), "{policy}");
    let tag = page.headers()["etag"].clone();
    let text = page.text().await.expect("text");
    let files: Vec<&str> = text.split('"').filter(|part| part.starts_with("/console/")).collect();
    assert!(files.len() >= 4, "{text}");
    for file in files {
        let answer = http.request(Method::GET, file).send().await.expect("answers");
        assert_eq!(answer.status(), 200, "{file}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff", "{file}");
        assert!(answer.headers()["cache-control"].to_str().is_ok_and(|cache| cache.contains("immutable")), "{file}");
    }
    let known = http.request(Method::GET, "/").header("if-none-match", tag).send().await.expect("answers");
    assert_eq!(known.status(), 304);
    let none = body(http.request(Method::GET, "/console/none.js"), 404).await;
    assert_eq!(error_kind(&none), "not_found");
}

#[tokio::test]
async fn a_page_signs_in_once_with_a_link() {
    let http = Fixture::new().await.http_with(|options| options.token = Token::new("t")).await;
    let refused = body(http.request(Method::POST, "/api/console"), 401).await;
    assert_eq!(error_kind(&refused), "unauthorized");
    let link = body(http.request(Method::POST, "/api/console").bearer_auth("t"), 200).await;
    let token = link["path"].as_str().and_then(|path| path.strip_prefix("/#token=")).expect("a fragment").to_owned();
    let tools = |token: &str| http.request(Method::GET, "/api/tools").bearer_auth(token);
    body(tools(&token), 401).await;
    let sign_in = || http.request(Method::POST, "/console/session").json(&json!({"token": token}));
    let page = body(sign_in(), 200).await;
    body(tools(page["token"].as_str().expect("a token")), 200).await;
    let again = body(sign_in(), 401).await;
    assert!(again["error"]["message"].as_str().is_some_and(|why| why.contains("toolwright console")), "{again}");
    body(http.request(Method::POST, "/console/session").json(&json!({"word": "t"})), 400).await;
}

#[tokio::test]
async fn traces_and_sums_include_calls() {
    let (api, _store) = Api::asking(None).await;
    api.call(json!({"tool": "test__echo", "arguments": {"text": "hello"}})).await;
    api.call(json!({"tool": "test__echo", "arguments": {}})).await;
    let get = async |template: &str, path: &str| api.answer(Method::GET, template, path, None, 200).await;
    let listed = get("/api/traces", "/api/traces?limit=1").await;
    let first = (&listed["traces"][0]["tool_calls"], &listed["total"], &listed["next"]);
    assert_eq!(first, (&json!(2), &json!(1), &Value::Null), "{listed}");
    assert_eq!(get("/api/traces", "/api/traces?after=1.1").await["traces"], json!([]));
    let trace = get("/api/traces/{id}", "/api/traces/last").await;
    let status: Vec<&Value> =
        trace["turns"][0]["ops"].as_array().expect("operations").iter().map(|op| &op["status"]).collect();
    assert_eq!(status, ["ok", "invalid_parameters"], "{trace}");
    let last = get("/api/traces/{id}", "/api/traces/last?last=1").await;
    let whole = (&last["left_out"], &last["totals"], &last["turns"][0]["ops"][0]);
    assert_eq!(whole, (&json!(1), &trace["totals"], &trace["turns"][0]["ops"][1]), "{last}");
    let op = trace["turns"][0]["ops"][0]["op"].as_str().expect("an id");
    let template = "/api/traces/{id}/operations/{op}";
    let one = get(template, &format!("/api/traces/last/operations/{op}")).await;
    assert_eq!(one["arguments"], r#"{"text":"hello"}"#, "{one}");
    assert!(one["result"].as_str().is_some_and(|text| text.contains("hello")), "{one}");
    api.answer(Method::GET, template, "/api/traces/last/operations/0", None, 404).await;
    let sums = get("/api/usage", "/api/usage?by=tool").await;
    assert_eq!((&sums["rows"][0]["name"], &sums["rows"][0]["failures"]), (&json!("test:echo@1.0.0"), &json!(1)));
    assert_eq!(get("/api/usage", "/api/usage?by=day&since_ms=99999999999999").await["rows"], json!([]));
    api.answer(Method::GET, "/api/traces/{id}", "/api/traces/none", None, 404).await;
    let [small, large] =
        [get("/api/tokens", "/api/tokens?api=anthropic").await, get("/api/tokens", "/api/tokens").await];
    assert!(small["tokens"].as_u64() > Some(0) && small["tokens"] != large["tokens"], "{small} {large}");
    let sum = |rows: &Value| rows.as_array().expect("rows").iter().filter_map(|row| row["tools"].as_u64()).sum::<u64>();
    let all = (sum(&small["providers"]), small["tools"].as_array().map(|rows| rows.len() as u64));
    assert_eq!((Some(all.0), &small["model"]), (all.1, &Value::Null), "{small}");
    assert_eq!(get("/api/me", "/api/me").await["changes"], true);
    for wrong in [
        "/api/traces?limit=0",
        "/api/traces?after=x",
        "/api/traces/last?last=0",
        "/api/usage?by=colour",
        "/api/tokens?api=x",
    ] {
        body(api.get(wrong), 400).await;
    }
}

#[tokio::test]
async fn events_continue_after_a_break() {
    let hub = Arc::new(EventHub::default());
    let http = Fixture::new().await.http_with(|options| options.events = Some(Arc::clone(&hub))).await;
    let follow = async |after: Option<&str>, message: &str| {
        let request = http.request(Method::GET, "/api/events");
        let request = if let Some(after) = after { request.header("last-event-id", after) } else { request };
        let answer = request.send().await.expect("answers");
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        hub.emit(Event::Warning { code: "test".into(), message: message.into() });
        let (mut text, mut chunks) = (String::new(), answer.bytes_stream());
        while !text.contains(message) {
            text.push_str(&String::from_utf8_lossy(&chunks.next().await.expect("goes on").expect("bytes")));
        }
        text
    };
    let first = follow(None, "one").await;
    assert!(first.contains("id: 1\n") && first.contains("warning"), "{first}");
    let next = follow(Some("1"), "two").await;
    assert!(next.contains("id: 2\n") && !next.contains("id: 1\n"), "{next}");
}
