//! MCP over a pair of streams.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;
use toolwright_core::cancel::CancelCause;
use toolwright_gateway::serve_connection;

use crate::support::{Fixture, LONG, body, call, rpc, soon};

pub(crate) struct Client {
    to: WriteHalf<DuplexStream>,
    from: Lines<BufReader<ReadHalf<DuplexStream>>>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Client {
    pub(crate) fn of(fixture: &Fixture) -> Self {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (input, output) = tokio::io::split(theirs);
        let serving =
            tokio::spawn(serve_connection(Arc::clone(&fixture.gateway), input, output, fixture.shutdown.clone()));
        let (from, to) = tokio::io::split(ours);
        Self { to, from: BufReader::new(from).lines(), serving }
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string()).await;
    }

    async fn send_text(&mut self, line: &str) {
        self.to.write_all(format!("{line}\n").as_bytes()).await.expect("written");
    }

    pub(crate) async fn next(&mut self) -> Value {
        serde_json::from_str(&self.next_text().await).expect("json")
    }

    async fn next_text(&mut self) -> String {
        let line = tokio::time::timeout(LONG, self.from.next_line()).await.expect("in time").expect("read");
        line.expect("a line")
    }

    pub(crate) async fn ask(&mut self, message: &Value) -> Value {
        self.send(message).await;
        self.next().await
    }

    /// Closes its end, and reads one message more.
    pub(crate) async fn last(mut self) -> Value {
        self.to.shutdown().await.expect("closed");
        let last = self.next().await;
        self.end().await;
        last
    }

    pub(crate) async fn end(self) {
        drop((self.to, self.from));
        tokio::time::timeout(LONG, self.serving).await.expect("in time").expect("task").expect("served");
    }
}

pub(crate) fn modern(id: i64, method: &str, mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    rpc(id, method, params)
}

#[tokio::test]
async fn both_generations_share_one_pipe() {
    let fixture = Fixture::new().await;
    let mut client = Client::of(&fixture);
    let discover = client.ask(&modern(1, "server/discover", json!({}))).await;
    assert_eq!(discover["result"]["supportedVersions"], json!(["2026-07-28"]));
    let initialize =
        client.ask(&rpc(2, "initialize", json!({"protocolVersion": "2024-11-05", "capabilities": {}}))).await;
    assert_eq!(initialize["result"]["protocolVersion"], "2024-11-05");
    assert_eq!(client.ask(&rpc(3, "ping", json!({}))).await["result"], json!({}));
    let legacy = client.ask(&call(4, "test__echo", json!({"text": "a"}))).await;
    assert!(legacy["result"].get("resultType").is_none() && legacy["result"]["content"][0]["text"] == "a");
    let params = json!({"name": "remote__Get_Thing", "arguments": {}});
    let new = client.ask(&modern(5, "tools/call", params)).await;
    assert_eq!(
        (&new["result"]["resultType"], &new["result"]["content"][0]["text"]),
        (&json!("complete"), &json!("Get.Thing ran"))
    );
    assert_eq!(client.ask(&modern(6, "ping", json!({}))).await["error"]["code"], -32601);
    assert_eq!(client.ask(&rpc(7, "server/discover", json!({}))).await["error"]["code"], -32602);
    client.end().await;
}

#[tokio::test]
async fn a_null_request_id_is_refused() {
    let fixture = Fixture::new().await;
    let mut client = Client::of(&fixture);
    let ping = json!({"jsonrpc": "2.0", "id": null, "method": "ping"});
    for answer in [client.ask(&ping).await, body(fixture.http().await.post("/mcp", &ping), 400).await] {
        assert_eq!((answer.get("id"), &answer["error"]["code"]), (None, &json!(-32600)), "{answer}");
    }
    client.end().await;
}

#[tokio::test]
async fn ids_and_tokens_keep_their_bytes() {
    const ID: &str = "340282366920938463463374607431768211455";
    let fixture = Fixture::new().await;
    let mut client = Client::of(&fixture);
    client.send_text(&format!(r#"{{"jsonrpc":"2.0","id":{ID},"method":"ping"}}"#)).await;
    assert_eq!(client.next_text().await, format!(r#"{{"jsonrpc":"2.0","id":{ID},"result":{{}}}}"#));
    let meta = format!(r#"{{"progressToken":{ID}}}"#);
    let call = format!(r#"{{"name":"test__progress","arguments":{{"text":""}},"_meta":{meta}}}"#);
    client.send_text(&format!(r#"{{"jsonrpc":"2.0","id":1e1,"method":"tools/call","params":{call}}}"#)).await;
    let progress = client.next_text().await;
    assert!(progress.contains(&format!(r#""progressToken":{ID},"#)), "{progress}");
    let answer = loop {
        let line = client.next_text().await;
        if !line.contains("progressToken") {
            break line;
        }
    };
    assert!(answer.starts_with(r#"{"jsonrpc":"2.0","id":1e1,"result""#), "{answer}");
    let meta =
        r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let listen = format!(r#"{{"notifications":{{"toolsListChanged":true}},"_meta":{meta}}}"#);
    client
        .send_text(&format!(r#"{{"jsonrpc":"2.0","id":{ID},"method":"subscriptions/listen","params":{listen}}}"#))
        .await;
    let granted = client.next_text().await;
    let named = format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{ID}}}"#);
    assert!(granted.contains("acknowledged") && granted.contains(&named), "{granted}");
    fixture.foreign.set(&["Other.Thing"]);
    let changed = client.next_text().await;
    assert!(changed.contains("tools/list_changed") && changed.contains(&named), "{changed}");
    client.end().await;
}

#[tokio::test]
async fn arguments_with_half_a_pair_reach_their_tool() {
    let fixture = Fixture::new().await;
    let mut client = Client::of(&fixture);
    let params = r#"{"name":"test__echo","arguments":{"text":"cut \ud83d"}}"#;
    client.send_text(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#)).await;
    assert_eq!(client.next().await["result"]["content"][0]["text"], "cut \u{fffd}");
    client.end().await;
}

#[tokio::test]
async fn calls_run_concurrently_with_progress_and_cancel() {
    let fixture = Fixture::new().await;
    let mut client = Client::of(&fixture);
    client.send(&call(1, "test__wait", json!({}))).await;
    soon(&fixture.watch.started).await;
    let mut progress = call(2, "test__progress", json!({}));
    progress["params"]["_meta"] = json!({"progressToken": 5});
    client.send(&progress).await;
    for step in 0..3 {
        let note = client.next().await;
        assert_eq!(
            (&note["params"]["progress"], &note["params"]["progressToken"]),
            (&json!(f64::from(step)), &json!(5))
        );
    }
    assert_eq!(client.next().await["id"], 2);
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})).await;
    soon(&fixture.watch.cancelled).await;
    assert_eq!(*fixture.watch.cause.lock().expect("lock"), Some(CancelCause::User));
    assert_eq!(client.ask(&rpc(3, "ping", json!({}))).await["id"], 3, "the cancelled call is not answered");
    client.end().await;
}

#[tokio::test]
async fn changes_are_sent_after_initialize_and_to_subscribers() {
    let fixture = Fixture::new().await;
    let mut client = Client::of(&fixture);
    let ack =
        client.ask(&modern(1, "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}))).await;
    assert_eq!(ack["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 1);
    fixture.foreign.set(&[]);
    let reported = client.next().await;
    assert_eq!(
        (&reported["method"], &reported["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"]),
        (&json!("notifications/tools/list_changed"), &json!(1))
    );
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})).await;
    client.ask(&rpc(2, "initialize", json!({"protocolVersion": "2025-11-25"}))).await;
    fixture.foreign.set(&["again"]);
    assert_eq!(client.next().await, json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
    assert_eq!(client.ask(&rpc(3, "ping", json!({}))).await["id"], 3, "the ended subscription is silent");
    client.end().await;
}

#[tokio::test]
async fn broken_lines_are_answered_and_reading_continues() {
    let fixture = Fixture::with(|options| options.max_message = 1000).await;
    let mut client = Client::of(&fixture);
    client.to.write_all(b"nonsense\n\n").await.expect("written");
    let refused = client.next().await;
    assert_eq!((&refused["error"]["code"], refused.get("id")), (&json!(-32700), None));
    let long = client.ask(&call(8, "test__echo", json!({"text": "x".repeat(2000)}))).await;
    assert_eq!((long.get("id"), &long["error"]["code"]), (None, &json!(-32600)));
    assert_eq!(client.ask(&rpc(9, "ping", json!({}))).await["id"], 9);
    client.end().await;
}

#[tokio::test]
async fn the_end_of_input_lets_calls_finish() {
    // Whose client is gone does not get all of it.
    let fixture = Fixture::with(|options| options.server.shutdown_grace = LONG * 100).await;
    let mut client = Client::of(&fixture);
    client.send(&call(1, "test__sleep", json!({"text": "50"}))).await;
    client.send(&call(2, "test__wait", json!({}))).await;
    client.to.shutdown().await.expect("closed");
    assert_eq!(client.next().await["result"]["content"][0]["text"], "slept");
    soon(&fixture.watch.cancelled).await;
    client.end().await;
}

#[tokio::test]
async fn a_connected_client_is_answered_during_shutdown() {
    let fixture = Fixture::with(|options| options.server.shutdown_grace = LONG * 100).await;
    let mut client = Client::of(&fixture);
    client.send(&call(1, "test__sleep", json!({"text": "2500"}))).await;
    client.send(&call(2, "test__wait", json!({}))).await;
    soon(&fixture.watch.started).await;
    fixture.shutdown.cancel(CancelCause::Shutdown);
    assert_eq!(client.ask(&rpc(3, "ping", json!({}))).await["id"], 3);
    assert_eq!(client.next().await["result"]["content"][0]["text"], "slept", "longer than one that is gone would get");
    client.to.shutdown().await.expect("closed");
    soon(&fixture.watch.cancelled).await;
    client.end().await;
}

#[tokio::test]
async fn shutdown_ends_the_connection_and_answers_what_ran() {
    let fixture = Fixture::new().await;
    let mut client = Client::of(&fixture);
    client.send(&call(1, "test__wait", json!({}))).await;
    soon(&fixture.watch.started).await;
    fixture.shutdown.cancel(CancelCause::Shutdown);
    let answer = client.next().await;
    assert!(answer["result"]["content"][0]["text"].as_str().expect("text").contains("shutting down"));
    client.end().await;
}
