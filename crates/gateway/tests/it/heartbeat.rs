//! Calls that take long, and clients that would give them up.

use std::time::Duration;

use serde_json::{Value, json};

use crate::stdio::Client;
use crate::support::{Events, Fixture, call, rpc};

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
