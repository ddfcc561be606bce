//! Asking a client's user: the bytes of the question, and what each answer does.

use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolwright_core::session::PeerProcess;
use toolwright_gateway::{Elicitation, LookUpPeer, Token};
use toolwright_testkit::FakeApprover;

use crate::protocol::stdio::Client;
use crate::support::{Events, Fixture, Http, LEGACY, LONG, asks_always, body, call, rpc};

/// A gateway whose policy asks about everything, with a client that is asked for so long.
async fn asking(expiry: Duration) -> Fixture {
    Fixture::with(|options| {
        options.policy = asks_always();
        options.elicitation = Elicitation::WherePossible { expiry };
    })
    .await
}

fn introduction(version: &str, capabilities: Value) -> Value {
    rpc(0, "initialize", json!({"protocolVersion": version, "capabilities": capabilities}))
}

/// What a client reads for its call of `test__echo`.
fn question(id: &str) -> Value {
    let decision = json!({
        "type": "string",
        "title": "Decision",
        "description": "approve, or no choice: this once; always: do not ask again for this tool in this session; deny: do not run it",
        "enum": ["approve", "always", "deny"],
    });
    json!({
        "jsonrpc": "2.0",
        "id": id,
        "method": "elicitation/create",
        "params": {
            "message": "May test:echo run with these arguments?\n\n{\n  \"text\": \"a\"\n}\n\nAsked because one never knows.",
            "requestedSchema": {"type": "object", "properties": {"decision": decision}},
        },
    })
}

fn answer(id: &str, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

/// Each answer of a user, and what the model reads then.
fn answers() -> [(Value, bool, &'static str); 6] {
    let accept = |decision: &str| json!({"action": "accept", "content": {"decision": decision}});
    [
        (accept("approve"), true, "a"),
        (accept("always"), true, "a"),
        (accept("deny"), false, "denied: the user said no"),
        (json!({"action": "decline"}), false, "denied: the user said no"),
        (json!({"action": "cancel"}), false, "denied: the user dismissed the question"),
        (json!({"action": "accept", "content": {}}), true, "a"),
    ]
}

/// As long as a person takes at least to read a question.
async fn read() {
    tokio::time::sleep(Duration::from_millis(320)).await;
}

#[tokio::test]
async fn a_self_dismissed_question_waits_in_the_inbox() {
    let refused = json!({"jsonrpc": "2.0", "error": {"code": -32601, "message": "no such method"}});
    let said = |action: &str| json!({"jsonrpc": "2.0", "result": {"action": action}});
    let (fixture, _) = Fixture::with_jobs(|options, _| {
        options.policy = asks_always();
        options.elicitation = Elicitation::WherePossible { expiry: LONG };
        options.approver = Arc::new(FakeApprover::unavailable());
    })
    .await;
    let mut client = Client::of(&fixture);
    client.ask(&introduction(LEGACY, json!({"elicitation": {}}))).await;
    for (n, mut response) in (1..).zip([said("cancel"), said("decline"), refused]) {
        response["id"] = client.ask(&call(n, "test__echo", json!({"text": "a"}))).await["id"].clone();
        let answer = client.ask(&response).await;
        let reported = &answer["result"]["structuredContent"];
        assert_eq!((&reported["status"], &reported["state"]), (&json!("approval"), &json!("pending")), "{answer}");
        assert!(text(&answer).contains("`toolwright approvals`") && reported["next"].is_string(), "{answer}");
    }
    client.end().await;
}

fn text(response: &Value) -> &str {
    response["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn over_stdio_the_call_follows_the_answer() {
    let fixture = asking(LONG).await;
    let mut client = Client::of(&fixture);
    client.ask(&introduction(LEGACY, json!({"elicitation": {}}))).await;
    for (n, (result, ok, reported)) in (1..).zip(answers()) {
        let asked = client.ask(&call(n, "test__echo", json!({"text": "a"}))).await;
        let id = format!("ask-{}", n - 1);
        assert_eq!(asked, question(&id));
        // Neither blocks the connection nor counts for another question.
        client.send(&answer("ask-99", json!({"action": "accept", "content": {"decision": "approve"}}))).await;
        assert_eq!(client.ask(&rpc(100, "ping", json!({}))).await["result"], json!({}));
        read().await;
        let response = client.ask(&answer(&id, result.clone())).await;
        assert_eq!((&response["id"], response["result"]["isError"] != true), (&json!(n), ok), "{result}: {response}");
        assert!(text(&response).contains(reported), "{result}: {response}");
    }
    client.end().await;
}

#[tokio::test]
async fn two_questions_can_be_open_together() {
    let fixture = asking(LONG).await;
    let mut client = Client::of(&fixture);
    client.ask(&introduction("2025-06-18", json!({"elicitation": {}}))).await;
    let first = client.ask(&call(1, "test__echo", json!({"text": "a"}))).await;
    let second = client.ask(&call(2, "test__echo", json!({"text": "b"}))).await;
    assert!(first["params"]["message"].to_string().contains("\\\"a\\\"") && first["id"] != second["id"]);
    let approve = json!({"action": "accept", "content": {"decision": "approve"}});
    let id = |question: &Value| question["id"].as_str().expect("an id").to_owned();
    let answered = client.ask(&answer(&id(&second), approve)).await;
    assert_eq!((&answered["id"], text(&answered)), (&json!(2), "b"));
    let answered = client.ask(&answer(&id(&first), json!({"action": "decline"}))).await;
    assert_eq!((&answered["id"], &answered["result"]["isError"]), (&json!(1), &json!(true)));
    client.end().await;
}

#[tokio::test]
async fn an_unanswered_question_expires_and_is_cancelled() {
    let fixture = asking(Duration::from_millis(50)).await;
    let mut client = Client::of(&fixture);
    client.ask(&introduction(LEGACY, json!({"elicitation": {"form": {}}}))).await;
    let asked = client.ask(&call(1, "test__echo", json!({"text": "a"}))).await;
    let cancelled = client.next().await;
    assert_eq!(
        (&cancelled["method"], &cancelled["params"]["requestId"]),
        (&json!("notifications/cancelled"), &asked["id"])
    );
    let response = client.next().await;
    assert!(text(&response).contains("denied: expired"), "{response}");
    client.end().await;
}

#[tokio::test]
async fn clients_that_cannot_be_asked_are_not() {
    for (version, capabilities) in
        [(LEGACY, json!({})), (LEGACY, json!({"elicitation": {"url": {}}})), ("2025-03-26", json!({"elicitation": {}}))]
    {
        let fixture = asking(LONG).await;
        let mut client = Client::of(&fixture);
        client.ask(&introduction(version, capabilities.clone())).await;
        let response = client.ask(&call(1, "test__echo", json!({"text": "a"}))).await;
        assert!(text(&response).contains("nobody can be asked"), "{version} {capabilities}: {response}");
        client.end().await;
    }
    // One that says it can, and then cannot.
    let fixture = asking(LONG).await;
    let mut client = Client::of(&fixture);
    client.ask(&introduction(LEGACY, json!({"elicitation": {}}))).await;
    client.ask(&call(1, "test__echo", json!({"text": "a"}))).await;
    let error = json!({"jsonrpc": "2.0", "id": "ask-0", "error": {"code": -32601, "message": "no such method"}});
    let response = client.ask(&error).await;
    assert!(text(&response).contains("nobody can be asked"), "{response}");
    client.end().await;
}

async fn session(http: &Http) -> String {
    let begin = introduction(LEGACY, json!({"elicitation": {}}));
    let response = http.post("/mcp", &begin).send().await.expect("response");
    response.headers()["mcp-session-id"].to_str().expect("text").to_owned()
}

#[tokio::test]
async fn over_http_a_calls_stream_carries_its_question() {
    let fixture = asking(LONG).await;
    let http = fixture.http().await;
    let mine = session(&http).await;
    let others = session(&http).await;
    for (n, (result, ok, reported)) in (1..).zip(answers()) {
        let mut events = Events::of(http.in_session(&mine, "/mcp", &call(n, "test__echo", json!({"text": "a"})))).await;
        let id = format!("ask-{}", n - 1);
        assert_eq!(events.next().await.expect("a question"), question(&id));
        let approve = answer(&id, json!({"action": "accept", "content": {"decision": "approve"}}));
        for (sent, status) in [(http.in_session(&others, "/mcp", &approve), 202), (http.post("/mcp", &approve), 400)] {
            assert_eq!(sent.send().await.expect("response").status(), status, "another's answer counts for nothing");
        }
        read().await;
        let sent = http.in_session(&mine, "/mcp", &answer(&id, result.clone())).send().await.expect("response");
        assert_eq!(sent.status(), 202);
        let response = events.next().await.expect("the result");
        assert_eq!((&response["id"], response["result"]["isError"] != true), (&json!(n), ok), "{result}: {response}");
        assert!(text(&response).contains(reported), "{result}: {response}");
        assert!(events.next().await.is_none());
    }
    // Without events there is nowhere to ask.
    let plain = http.client.post(format!("http://{}/mcp", http.addr)).timeout(LONG);
    let plain = plain.header("accept", "application/json").header("content-type", "application/json");
    let plain = plain.header("mcp-session-id", mine).body(call(9, "test__echo", json!({"text": "a"})).to_string());
    let response = body(plain, 200).await;
    assert!(text(&response).contains("nobody can be asked"), "{response}");
}

#[tokio::test]
async fn callers_without_authority_are_not_asked() {
    let others: [(LookUpPeer, &str, bool); 6] = [
        (|_, _| PeerProcess::Owners, "", true),
        (|_, _| PeerProcess::Owners, "t", true),
        (|_, _| PeerProcess::Unknown, "", false),
        (|_, _| PeerProcess::Unknown, "t", true),
        (|_, _| PeerProcess::Nested, "", false),
        (|_, _| PeerProcess::Nested, "t", false),
    ];
    for (look_up_peer, token, is_asked) in others {
        let fixture = asking(LONG).await;
        let http = fixture.http_with(|options| {
            options.api_token = Token::new("t");
            options.look_up_peer = look_up_peer;
        });
        let http = http.await;
        let http = if token.is_empty() { http } else { http.with_token(token) };
        let mine = session(&http).await;
        let request = http.in_session(&mine, "/mcp", &call(1, "test__echo", json!({"text": "a"})));
        if is_asked {
            let asked = Events::of(request).await.next().await.expect("a question");
            assert_eq!(asked["method"], "elicitation/create", "{token}");
        } else {
            let response = body(request, 200).await;
            assert!(text(&response).contains("nobody can be asked"), "{token}: {response}");
        }
    }
}
