//! Ending in good order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::ProviderKind;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::ToolDefinition;
use toolwright_core::error::ToolError;
use toolwright_core::job::{JobScope, JobState, Jobs as _};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::tool::{StaticProvider, Tool};
use toolwright_core::tool_id::ToolId;
use toolwright_runtime::JobManager;

use crate::support::{Events, Fixture, LONG, body, call, rpc, soon};

#[tokio::test]
async fn an_idle_server_ends_at_once() {
    let (fixture, http, session) = Fixture::with_session().await;
    let mut stream = Events::of(http.request(reqwest::Method::GET, "/mcp").header("mcp-session-id", &session)).await;
    let silent = tokio::net::TcpStream::connect(http.addr).await.expect("connected");
    let began = Instant::now();
    fixture.shutdown.cancel(CancelCause::Shutdown);
    tokio::time::timeout(LONG, http.serving).await.expect("in time").expect("task").expect("served");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(stream.next().await, None);
    drop(silent);
}

#[tokio::test]
async fn a_running_call_is_cancelled_after_the_grace() {
    let fixture = Fixture::with(|options| options.server.shutdown_grace = Duration::from_millis(300)).await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let ask = |request: Value| tokio::spawn(body(http.in_session(&session, "/mcp", &request), 200));
    let waiting = ask(call(1, "test__wait", json!({})));
    soon(&fixture.watch.started).await;
    let short = ask(call(2, "test__sleep", json!({"text": "50"})));
    // Both are running: the second id is refused while it is in use.
    while body(http.in_session(&session, "/mcp", &call(2, "test__echo", json!({"text": "a"}))), 200).await["error"]
        .is_null()
    {}
    fixture.shutdown.cancel(CancelCause::Shutdown);
    assert_eq!(short.await.expect("answer")["result"]["content"][0]["text"], "slept");
    let cancelled = waiting.await.expect("answer");
    let text = cancelled["result"]["content"][0]["text"].as_str().expect("text").to_owned();
    assert!(text.contains("shutting down"), "{text}");
    assert_eq!(*fixture.watch.cause.lock().expect("lock"), Some(CancelCause::Shutdown));
    tokio::time::timeout(LONG, http.serving).await.expect("in time").expect("task").expect("served");
}

#[tokio::test]
async fn no_call_begins_once_draining_has() {
    let (fixture, http, session) = Fixture::with_session().await;
    fixture.gateway.drain().await;
    let refused = body(http.in_session(&session, "/mcp", &call(1, "test__echo", json!({"text": "a"}))), 503).await;
    assert!(refused["error"]["message"].as_str().expect("text").contains("shutting down"));
    body(http.in_session(&session, "/mcp", &rpc(2, "ping", json!({}))), 200).await;
}

#[tokio::test]
async fn repeatable_calls_become_jobs_on_shutdown() {
    let (fixture, store) =
        Fixture::with_jobs(|options, _| options.server.shutdown_grace = Duration::from_millis(50)).await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let waiting = call(1, "test__wait", json!({}));
    let waiting = tokio::spawn(body(http.in_session(&session, "/mcp", &waiting), 200));
    soon(&fixture.watch.started).await;
    let began = Instant::now();
    fixture.shutdown.cancel(CancelCause::Shutdown);
    let answer = waiting.await.expect("answer");
    let job = answer["result"]["structuredContent"]["job"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    tokio::time::timeout(LONG, http.serving).await.expect("in time").expect("task").expect("served");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // Whoever looks next finds it waiting to be started again.
    let next = JobManager::new(store, &std::env::temp_dir());
    let left = async {
        loop {
            let left = next.get(JobScope::All, &job).await.expect("the job");
            if left.state != JobState::Running {
                return left;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let left = tokio::time::timeout(LONG, left).await.expect("in time");
    assert_eq!((left.state, left.owner), (JobState::Pending, None));
}

#[tokio::test]
async fn a_draining_server_still_answers_probes() {
    let fixture = Fixture::with(|options| options.server.shutdown_grace = Duration::from_millis(500)).await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let slow = call(1, "test__sleep", json!({"text": "300"}));
    let slow = tokio::spawn(body(http.in_session(&session, "/mcp", &slow), 200));
    while body(http.in_session(&session, "/mcp", &call(1, "test__echo", json!({"text": "a"}))), 200).await["error"]
        .is_null()
    {}
    fixture.shutdown.cancel(CancelCause::Shutdown);
    while http.request(reqwest::Method::GET, "/ready").send().await.expect("a connection").status() != 503 {}
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let refused = http.post("/mcp", &rpc(0, "initialize", params)).send().await.expect("a connection");
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().ok()), (503, Some("1")));
    assert_eq!(slow.await.expect("answer")["result"]["content"][0]["text"], "slept");
    tokio::time::timeout(LONG, http.serving).await.expect("in time").expect("task").expect("served");
}

/// A tool that may not run twice, and waits until it is cancelled.
struct PayTool(Arc<Notify>);

#[async_trait]
impl Tool for PayTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::parse("shop:pay@1.0.0").expect("id");
        ToolDefinition::new(id, "Pays.".to_owned(), Some(json!({"type": "object"})))
    }

    async fn run(&self, _arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        self.0.notify_one();
        Err(ToolError::canceled(context.cancel.cancelled().await))
    }
}

#[tokio::test]
async fn only_repeatable_calls_answer_503_on_shutdown() {
    let fixture = Fixture::new().await;
    let paying = Arc::new(Notify::new());
    let tools = vec![Arc::new(PayTool(Arc::clone(&paying))) as Arc<dyn Tool>];
    fixture.add(Arc::new(StaticProvider::new("shop", ProviderKind::Native, tools).expect("tools"))).await;
    let http = fixture.http().await;
    let ask = |tool: &str| tokio::spawn(http.request(Method::POST, "/api/call").json(&json!({"tool": tool})).send());
    let (read, paid) = (ask("test__wait"), ask("shop__pay"));
    soon(&fixture.watch.started).await;
    soon(&paying).await;
    fixture.shutdown.cancel(CancelCause::Shutdown);
    for (call, status, later) in [(read, 503, Some("1")), (paid, 200, None)] {
        let answer = call.await.expect("task").expect("response");
        let reported = answer.headers().get("retry-after").map(|value| value.to_str().expect("text").to_owned());
        assert_eq!((answer.status().as_u16(), reported.as_deref()), (status, later));
        let outcome: Value = answer.json().await.expect("json");
        assert_eq!((&outcome["status"], &outcome["error"]["kind"]), (&json!("failed"), &json!("canceled")));
    }
    tokio::time::timeout(LONG, http.serving).await.expect("in time").expect("task").expect("served");
}
