//! Streams of calls over HTTP: progress of silent calls, and streams that are resumed.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use toolwright_core::catalogue::SourceNotice;

use crate::protocol::stdio::Client;
use crate::sources::Source;
use crate::support::{Events, Fixture, Http, call, rpc};

const EVERY: Duration = Duration::from_millis(20);

fn long(id: i64) -> Value {
    let mut request = call(id, "test__sleep", json!({"text": "300"}));
    request["params"]["_meta"] = json!({"progressToken": "t"});
    request
}

/// What is said before the answer: that the call goes on, by numbers that grow.
fn check(messages: &[Value]) {
    let (answer, before) = messages.split_last().expect("an answer");
    assert_eq!(answer["result"]["content"][0]["text"], "slept", "{answer}");
    assert!(before.len() >= 2, "{before:?}");
    let number = |message: &Value| {
        assert_eq!(message["method"], "notifications/progress", "{message}");
        assert_eq!(message["params"]["progressToken"], "t", "{message}");
        message["params"]["progress"].as_f64().expect("a number")
    };
    let numbers: Vec<f64> = before.iter().map(number).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
}

#[tokio::test]
async fn a_silent_call_sends_progress_to_every_client() {
    let fixture = Fixture::with(|options| options.heartbeat = EVERY).await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    check(&Events::of(http.in_session(&session, "/mcp", &long(1))).await.rest().await);

    let params = long(1)["params"].take();
    check(&Events::of(http.modern("/mcp", json!(1), "tools/call", params)).await.rest().await);

    let mut client = Client::of(&fixture);
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": "2025-06-18", "capabilities": {}}))).await;
    client.send(&long(7)).await;
    let mut messages = vec![client.next().await];
    while messages.last().is_some_and(|message| message["id"] != 7) {
        messages.push(client.next().await);
    }
    check(&messages);
    // Nothing comes after it.
    assert_eq!(client.ask(&rpc(8, "ping", json!({}))).await["id"], 8);
}

#[tokio::test]
async fn a_call_without_a_token_is_answered_alone() {
    let fixture = Fixture::with(|options| options.heartbeat = EVERY).await;
    let mut client = Client::of(&fixture);
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": "2025-06-18", "capabilities": {}}))).await;
    let answer = client.ask(&call(1, "test__sleep", json!({"text": "100"}))).await;
    assert_eq!(answer["id"], 1, "{answer}");
}

/// The stream after this event.
fn after(http: &Http, session: &str, last: &str) -> RequestBuilder {
    let request = http.request(Method::GET, "/mcp").header("mcp-session-id", session);
    request.header("mcp-protocol-version", "2025-11-25").header("last-event-id", last)
}

fn stream(http: &Http, session: &str) -> RequestBuilder {
    http.request(Method::GET, "/mcp").header("mcp-session-id", session).header("mcp-protocol-version", "2025-11-25")
}

#[tokio::test]
async fn a_broken_connection_still_gets_its_answer() {
    let fixture = Fixture::new().await;
    let http = fixture.http_with(|options| options.keep_alive = Duration::from_millis(100)).await;
    let (session, _) = http.initialize("/mcp").await;
    let request = call(7, "test__sleep", json!({"text": "1500"}));
    let mut broken = Events::of(http.in_session(&session, "/mcp", &request)).await;
    let first = broken.id().await;
    drop(broken);
    // While it runs, and again after it has ended: what was sent last may have been lost.
    for _ in 0..2 {
        let mut rest = Events::of(after(&http, &session, &first)).await;
        let answer = rest.next().await.expect("the answer");
        assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!(7), &json!("slept")));
        let last = rest.last_id.clone().expect("an id");
        assert_eq!(rest.next().await, None, "the stream is over");
        assert!(Events::of(after(&http, &session, &last)).await.rest().await.is_empty(), "it has had all");
    }
    let (other, _) = http.initialize("/mcp").await;
    for (session, last) in [(&other, first.as_str()), (&session, "a99-0"), (&session, "a1-99"), (&session, "nonsense")]
    {
        let refused = after(&http, session, last).send().await.expect("a response");
        assert_eq!(refused.status(), 400, "{last}");
    }
    // Its request is over, and its id may be used again.
    let again = call(7, "test__echo", json!({"text": "a"}));
    let again = crate::support::body(http.in_session(&session, "/mcp", &again), 200).await;
    assert_eq!(again["result"]["content"][0]["text"], "a");
}

#[tokio::test]
async fn questions_asked_meanwhile_arrive_after_resuming() {
    let fixture = Fixture::new().await;
    fixture.add_listed(Source::new("alpha").provider()).await;
    let http = fixture.http_with(|options| options.keep_alive = Duration::from_millis(100)).await;
    let (session, _) = http.initialize_with("/mcp", json!({"roots": {}})).await;
    let rounds = json!([[{"method": "roots/list", "params": {}}]]);
    let request = call(1, "alpha__ask", json!({"rounds": rounds}));
    let mut events = Events::of(http.in_session(&session, "/mcp", &request)).await;
    let first = events.id().await;
    drop(events);
    let mut events = Events::of(after(&http, &session, &first)).await;
    let question = events.next().await.expect("a question");
    assert_eq!(question["method"], "roots/list");
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}});
    assert_eq!(http.in_session(&session, "/mcp", &answer).send().await.expect("a response").status(), 202);
    let result = events.next().await.expect("a result");
    assert_eq!(result["result"]["content"][0]["text"], r#"[{"roots":[]}]"#);
}

#[tokio::test]
async fn notices_between_connections_arrive_exactly_once() {
    let fixture = Fixture::new().await;
    let alpha = Source::new("alpha");
    fixture.add_listed(alpha.provider()).await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let mut first = Events::of(stream(&http, &session)).await;
    first.id().await;
    let methods = |said: &[Value]| -> Vec<String> {
        said.iter().map(|one| one["method"].as_str().expect("a method").to_owned()).collect()
    };
    alpha.send_notice(SourceNotice::PromptsChanged);
    let heard = first.next().await.expect("a notice");
    assert_eq!(methods(&[heard]), ["notifications/prompts/list_changed"]);
    let last = first.last_id.clone().expect("an id");
    drop(first);
    alpha.send_notice(SourceNotice::ResourcesChanged);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut second = Events::of(after(&http, &session, &last)).await;
    alpha.send_notice(SourceNotice::PromptsChanged);
    let heard = [second.next().await.expect("a notice"), second.next().await.expect("a notice")];
    assert_eq!(methods(&heard), ["notifications/resources/list_changed", "notifications/prompts/list_changed"]);
    // Whoever begins anew gives the old one up, and a name of it begins anew too.
    let mut third = Events::of(stream(&http, &session)).await;
    third.id().await;
    assert_eq!(second.next().await, None);
    let mut fourth = Events::of(after(&http, &session, &last)).await;
    let id = fourth.id().await;
    assert!(id.ends_with("-0") && !last.starts_with(id.trim_end_matches("-0")), "{id} after {last}");
    alpha.send_notice(SourceNotice::PromptsChanged);
    assert_eq!(methods(&[fourth.next().await.expect("a notice")]), ["notifications/prompts/list_changed"]);
}

#[tokio::test]
async fn other_revisions_get_events_without_ids() {
    let fixture = Fixture::new().await;
    let http = fixture.http_with(|options| options.keep_alive = Duration::from_millis(50)).await;
    let info = json!({"name": "t", "version": "1"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info});
    let response = http.post("/mcp", &rpc(0, "initialize", params)).send().await.expect("response");
    let session = response.headers()["mcp-session-id"].to_str().expect("text").to_owned();
    let slow = json!({"text": "200"});
    let older = http.post("/mcp", &call(1, "test__sleep", slow.clone())).header("mcp-session-id", &session);
    let newer = http.modern("/mcp", json!(1), "tools/call", json!({"name": "test__sleep", "arguments": slow}));
    for request in [older, newer] {
        let mut events = Events::of(request).await;
        assert_eq!(events.next().await.expect("an answer")["id"], 1);
        assert_eq!(events.last_id, None);
    }
}
