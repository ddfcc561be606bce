//! Which log messages sources are told to send.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::sources::Source;
use crate::support::{Events, Fixture, LEGACY, body, call, messages, rpc};

const LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// That a source was told this level.
fn told(level: &str) -> (String, Value) {
    ("logging/setLevel".to_owned(), json!({"level": level}))
}

#[tokio::test]
async fn older_servers_get_a_requests_log_level_first() {
    let fixture = Fixture::new().await;
    let alpha = Source::new("alpha");
    fixture.add_listed(alpha.clone()).await;
    let http = fixture.http().await;
    for (level, expect) in
        [(None, None), (Some("warning"), Some("warning")), (Some("alert"), None), (Some("debug"), Some("debug"))]
    {
        let mut params = json!({"name": "log", "arguments": {}});
        if let Some(level) = level {
            params["_meta"][LEVEL] = json!(level);
        }
        messages(http.modern("/mcp/alpha", json!(1), "tools/call", params)).await;
        let mut expect: Vec<_> = expect.map(told).into_iter().collect();
        expect.push(("log".to_owned(), json!({})));
        assert_eq!(alpha.taken(), expect, "{level:?}: the least severe that anybody wants");
    }
}

/// Another source in the place of one, or beside it.
async fn comes(fixture: &Fixture, name: &'static str) -> Arc<Source> {
    // There may be none of the name.
    let _ = fixture.catalogue.remove_provider(name).await;
    let source = Source::new(name);
    fixture.add_listed(source.clone()).await;
    source
}

#[tokio::test]
async fn a_later_source_gets_the_sessions_log_level() {
    let fixture = Fixture::new().await;
    comes(&fixture, "alpha").await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let set = rpc(1, "logging/setLevel", json!({"level": "warning"}));
    assert_eq!(body(http.in_session(&session, "/mcp", &set), 200).await["result"], json!({}));
    let stream = http.request(Method::GET, "/mcp").header("mcp-session-id", &session);
    let _events = Events::of(stream.header("mcp-protocol-version", LEGACY)).await;
    for name in ["alpha", "beta"] {
        let source = comes(&fixture, name).await;
        for _ in 0..500 {
            if source.times("logging/setLevel") > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(source.taken().first(), Some(&told("warning")), "{name}");
    }
}

#[tokio::test]
async fn the_next_call_sends_the_sessions_log_level() {
    let fixture = Fixture::new().await;
    comes(&fixture, "alpha").await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let called = async || {
        let answer = body(http.in_session(&session, "/mcp", &call(2, "alpha__meta", json!({}))), 200).await;
        assert!(answer["result"].is_object() && answer["result"]["isError"] != true, "{answer}");
    };
    let set = rpc(1, "logging/setLevel", json!({"level": "error"}));
    assert_eq!(body(http.in_session(&session, "/mcp", &set), 200).await["result"], json!({}));
    let again = comes(&fixture, "alpha").await;
    let meta = || ("meta".to_owned(), json!({}));
    called().await;
    assert_eq!(again.taken(), [told("error"), meta()]);
    called().await;
    assert_eq!(again.taken(), [meta()], "it knows");
}
