//! Several messages at once, as clients of 2025-03-26 may send them.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::protocol::stdio::Client;
use crate::support::{Fixture, Http, LEGACY, body, call, rpc, soon};

const BATCHING: &str = "2025-03-26";

fn initialize(version: &str) -> Value {
    rpc(0, "initialize", json!({"protocolVersion": version, "capabilities": {}}))
}

fn cancelled(id: i64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
}

fn with_progress(mut call: Value) -> Value {
    call["params"]["_meta"] = json!({"progressToken": 5});
    call
}

/// The answers of a batch by their ids, whatever their order.
fn by_id(answers: &Value) -> Vec<(&Value, &Value)> {
    let mut all: Vec<_> = answers.as_array().expect("an array").iter().map(|one| (&one["id"], one)).collect();
    all.sort_by_key(|(id, _)| id.as_i64());
    all
}

/// A session of this revision.
async fn session(http: &Http, version: &str) -> String {
    let response = http.post("/mcp", &initialize(version)).send().await.expect("response");
    response.headers()["mcp-session-id"].to_str().expect("text").to_owned()
}

/// In a session, without the header that 2025-03-26 does not have.
fn send(http: &Http, session: &str, batch: &Value) -> RequestBuilder {
    http.post("/mcp", batch).header("mcp-session-id", session)
}

#[tokio::test]
async fn a_batch_over_stdio_gets_one_array() {
    let fixture = Fixture::new().await;
    let mut client = Client::of(&fixture);
    client.ask(&initialize(BATCHING)).await;
    let answers = client.ask(&json!([rpc(1, "ping", json!({})), rpc(2, "nothing", json!({}))])).await;
    assert_eq!(answers[0], json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
    assert_eq!((&answers[1]["id"], &answers[1]["error"]["code"]), (&json!(2), &json!(-32601)));

    // What runs is waited for, and does not hold up what comes after the batch.
    let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let batch = json!([call(3, "test__wait", json!({})), note, call(4, "test__echo", json!({"text": "a"}))]);
    client.send(&batch).await;
    soon(&fixture.watch.started).await;
    assert_eq!(client.ask(&rpc(5, "ping", json!({}))).await["id"], 5);
    client.send(&json!([cancelled(3)])).await;
    let answers = client.next().await;
    assert_eq!((by_id(&answers).len(), &answers[0]["id"]), (1, &json!(4)), "what was cancelled is not answered");
    assert_eq!(answers[0]["result"]["content"][0]["text"], "a");

    let batch = json!([with_progress(call(6, "test__progress", json!({}))), rpc(7, "ping", json!({}))]);
    let answers = client.ask(&batch).await;
    let ids: Vec<_> = by_id(&answers).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, [&json!(6), &json!(7)], "nothing is said before the answers");

    for (batch, code) in [
        (json!([]), -32600),
        (json!(vec![rpc(8, "ping", json!({})); 65]), -32600),
        (json!([5]), -32600),
        (json!([initialize(BATCHING)]), -32600),
        (json!([rpc(8, "server/discover", json!({}))]), -32600),
    ] {
        let answer = client.ask(&batch).await;
        let error = if answer.is_array() { &answer[0]["error"] } else { &answer["error"] };
        assert_eq!(error["code"], code, "{answer}");
        assert_eq!(answer.is_array(), batch.as_array().expect("an array").len() == 1, "{answer}");
    }
    // The end of the input lets a batch end as it lets calls.
    client.send(&json!([call(9, "test__sleep", json!({"text": "50"}))])).await;
    assert_eq!(client.last().await[0]["id"], 9);
}

#[tokio::test]
async fn batches_are_refused_under_other_revisions() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let batch = json!([call(1, "test__wait", json!({}))]);
    for version in [LEGACY, "2025-06-18", "2024-11-05"] {
        let mut client = Client::of(&fixture);
        assert_eq!(client.ask(&batch).await["error"]["code"], -32600, "nothing is agreed on");
        client.ask(&initialize(version)).await;
        assert_eq!(client.ask(&batch).await["error"]["code"], -32600, "{version}");
        client.end().await;
        let session = session(&http, version).await;
        assert_eq!(body(send(&http, &session, &batch), 400).await["error"]["code"], -32600, "{version}");
        let claimed = send(&http, &session, &batch).header("mcp-protocol-version", BATCHING);
        assert_eq!(body(claimed, 400).await["error"]["code"], -32600, "{version}");
    }
    let session = session(&http, BATCHING).await;
    let denied = send(&http, &session, &batch).header("mcp-protocol-version", LEGACY);
    assert_eq!(body(denied, 400).await["error"]["code"], -32600);
    assert_eq!(body(http.post("/mcp", &batch), 400).await["error"]["code"], -32600, "it has no session");
    assert!(fixture.watch.cause.lock().expect("lock").is_none(), "nothing ran");
}

#[tokio::test]
async fn a_batch_over_http_gets_one_array() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let session = session(&http, BATCHING).await;
    let echo = call(2, "test__echo", json!({"text": "a"}));
    let batch = json!([rpc(1, "tools/list", json!({})), echo, {"jsonrpc": "2.0", "method": "x"}, 5]);
    for (version, accept) in [(None, "*/*"), (Some(BATCHING), "*/*"), (None, "application/json")] {
        let mut request =
            http.client.request(Method::POST, format!("http://{}/mcp", http.addr)).body(batch.to_string());
        for (name, value) in
            [("mcp-session-id", Some(&*session)), ("mcp-protocol-version", version), ("accept", Some(accept))]
        {
            request = value.into_iter().fold(request, |request, value| request.header(name, value));
        }
        let answers = body(request.header("content-type", "application/json"), 200).await;
        let answers = by_id(&answers);
        let [(_, broken), (_, list), (_, echo)] = answers[..] else { panic!("{answers:?}") };
        assert_eq!((broken.get("id"), &broken["error"]["code"]), (None, &json!(-32600)));
        assert!(list["result"]["tools"].is_array());
        assert_eq!(echo["result"]["content"][0]["text"], "a");
    }

    let mut events_only = send(&http, &session, &batch).build().expect("request");
    events_only.headers_mut().insert("accept", "text/event-stream".parse().expect("a value"));
    let text = http.client.execute(events_only).await.expect("response").text().await.expect("text");
    assert!(text.starts_with("data: [{") && text.matches("data: ").count() == 1, "{text}");

    // Nothing to answer: 202 without a body.
    let running = send(&http, &session, &json!([call(6, "test__wait", json!({}))])).send();
    let running = tokio::spawn(running);
    soon(&fixture.watch.started).await;
    let answer = json!({"jsonrpc": "2.0", "id": "ask-0", "result": {}});
    for batch in [json!([cancelled(6), cancelled(7)]), json!([answer])] {
        let response = send(&http, &session, &batch).send().await.expect("response");
        assert_eq!(response.status(), 202);
        assert_eq!(response.text().await.expect("body"), "");
    }
    let response = running.await.expect("task").expect("response");
    assert_eq!(response.status(), 202, "it was cancelled");

    for (batch, is_array) in [(json!([]), false), (json!([1, 2]), true)] {
        let answer = body(send(&http, &session, &batch), 400).await;
        let error = if is_array { &answer[1]["error"] } else { &answer["error"] };
        assert_eq!(error["code"], -32600, "{answer}");
    }
    let introduced = body(send(&http, &session, &json!([initialize(BATCHING)])), 200).await;
    assert_eq!((&introduced[0]["id"], &introduced[0]["error"]["code"]), (&json!(0), &json!(-32600)));
}

#[tokio::test]
async fn calls_of_a_batch_count_as_calls() {
    let fixture = Fixture::with(|options| options.max_calls = 1).await;
    let http = fixture.http().await;
    let session = session(&http, BATCHING).await;
    let batch = json!([
        call(1, "test__sleep", json!({"text": "50"})),
        call(2, "test__echo", json!({"text": "a"})),
        rpc(3, "ping", json!({})),
    ]);
    let answers = body(send(&http, &session, &batch), 200).await;
    let codes: Vec<_> = by_id(&answers).into_iter().map(|(_, one)| one["error"]["code"].as_i64()).collect();
    // The second finds no free call.
    assert_eq!(codes, [None, Some(-32000), None]);
}
