//! Answers that nobody can read, over connections on which all answers come the same way; and a message of a gigabyte,
//! which is refused at the framing, in bounded memory, while other calls go on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use toolwright_core::cancel::CancelCause;
use toolwright_core::error::ErrorKind;
use toolwright_mcp::client::McpTransport;

use super::Fixture;
use super::http::Site;
use super::stdio::script;
use crate::processes::peak_memory;

/// What the server says to a message, if it is a request.
fn answer(message: &[u8]) -> Option<String> {
    let message: Value = serde_json::from_slice(message).expect("the client sends JSON");
    let (id, method) = (message.get("id")?, message["method"].as_str()?);
    let result = |result: Value| Some(json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
    match (method, message["params"]["name"].as_str()) {
        ("initialize", _) => result(json!({
            "protocolVersion": "2025-03-26", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"},
        })),
        ("tools/call", Some("nan")) => {
            Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"structuredContent":{{"x":NaN}}}}}}"#))
        }
        ("tools/call", Some("cut")) => Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"te"#)),
        ("tools/call", Some("cut batch")) => Some(format!(r#"[{{"jsonrpc":"2.0","id":{id},"result":{{"content":["#)),
        ("tools/call", Some("no result")) => Some(json!({"jsonrpc": "2.0", "id": id}).to_string()),
        ("tools/call", Some("large")) => result(json!({"content": [{"type": "text", "text": "x".repeat(200_000)}]})),
        ("tools/call", Some("hang")) => None,
        ("tools/call", _) => result(json!({"content": []})),
        _ => Some(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}}).to_string()),
    }
}

async fn web_socket() -> McpTransport {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = format!("ws://{}/", listener.local_addr().expect("address"));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut socket = tokio_tungstenite::accept_async(stream).await.expect("handshake");
            tokio::spawn(async move {
                while let Some(Ok(Message::Text(text))) = socket.next().await {
                    if let Some(answer) = answer(text.as_bytes()) {
                        socket.send(Message::text(answer)).await.expect("sent");
                    }
                }
            });
        }
    });
    McpTransport::WebSocket { url, headers: BTreeMap::new() }
}

async fn legacy_sse() -> McpTransport {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = format!("http://{}/sse", listener.local_addr().expect("address"));
    let (events, stream) = mpsc::unbounded_channel::<String>();
    events.send("event: endpoint\ndata: /m\n\n".into()).expect("open");
    let stream = Arc::new(Mutex::new(Some(stream)));
    let opened = move || {
        let stream = stream.lock().expect("stream").take();
        async move {
            let Some(stream) = stream else { return StatusCode::CONFLICT.into_response() };
            let events = futures_util::stream::unfold(stream, |mut stream| async move {
                Some((Ok::<_, std::io::Error>(stream.recv().await?), stream))
            });
            ([("content-type", "text/event-stream")], Body::from_stream(events)).into_response()
        }
    };
    let posted = move |body: Bytes| async move {
        if let Some(answer) = answer(&body) {
            events.send(format!("data: {answer}\n\n")).expect("open");
        }
        StatusCode::ACCEPTED
    };
    let app = axum::Router::new().route("/sse", get(opened)).route("/m", post(posted));
    tokio::spawn(async move { axum::serve(listener, app).await });
    McpTransport::Sse { url, headers: BTreeMap::new() }
}

#[tokio::test]
async fn an_unreadable_answer_fails_what_is_in_flight() {
    const BROKEN: &str = "the server's answer is not a valid message";
    const UNREADABLE: &str = "the server's answer cannot be read";
    for transport in [web_socket().await, legacy_sse().await] {
        let fixture = Fixture::new(transport, |_| {});
        for (tool, expect) in [("nan", BROKEN), ("cut", BROKEN), ("cut batch", BROKEN), ("no result", UNREADABLE)] {
            let error = fixture.call(tool, json!({})).await.expect_err(tool);
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, false), "{tool}: {error}");
            assert!(error.message().contains(&format!("{expect}: ")), "{tool}: {error}");
            fixture.call("plain", json!({})).await.expect("the connection goes on");
        }
        // Where two wait, nobody knows whose answer it was.
        let (waits, cut) = tokio::join!(fixture.call("hang", json!({})), fixture.call("cut", json!({})));
        for error in [waits.expect_err("hang"), cut.expect_err("cut")] {
            assert!(error.message().contains(&format!("{BROKEN}, or that to another request in flight: ")), "{error}");
        }
        fixture.call("plain", json!({})).await.expect("the connection goes on");
    }
}

#[tokio::test]
async fn oversized_answers_fail_each_call_clearly() {
    for transport in [web_socket().await, legacy_sse().await] {
        let fixture = Fixture::new(transport, |options| options.config.max_message_bytes = 100_000);
        let alone = fixture.call("large", json!({})).await.expect_err("too large");
        assert_eq!((alone.kind(), alone.is_retryable()), (ErrorKind::TransportError, false), "{alone}");
        assert_eq!(alone.message(), "MCP server srv: message over max_message_bytes (100000)");
    }
    for transport in [web_socket().await, legacy_sse().await] {
        let fixture = Fixture::new(transport, |options| options.config.max_message_bytes = 100_000);
        fixture.call("plain", json!({})).await.expect("output");
        let (waits, large) = tokio::join!(fixture.call("hang", json!({})), fixture.call("large", json!({})));
        for error in [waits.expect_err("it was cut off"), large.expect_err("too large")] {
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, false), "{error}");
            let text = "may be the answer to another request: message over max_message_bytes (100000)";
            assert!(error.message().contains(text), "{error}");
        }
    }
}

/// Bytes of each message. By hand: `TOOLWRIGHT_TEST_MCP_FLOOD=1000000000 cargo test … take_the_floods -- --nocapture`
const FLOOD: &str = "TOOLWRIGHT_TEST_MCP_FLOOD";

#[tokio::test]
async fn floods_of_messages_stay_out_of_memory() {
    // In a process of its own, whose memory is its own.
    let mut child = tokio::process::Command::new(std::env::current_exe().expect("test binary"));
    child.args(["--exact", "unreadable::take_the_floods", "--nocapture"]).env(FLOOD, "200000000");
    assert!(child.status().await.expect("runs").success());
}

#[tokio::test]
async fn take_the_floods() {
    let Some(bytes) = std::env::var(FLOOD).ok().and_then(|bytes| bytes.parse::<u64>().ok()) else { return };
    let site = Site::start("legacy").await;
    let (http, pipe) = (Fixture::new(site.transport(), |_| {}), script("plain").fixture(|_| {}));
    let floods = [
        (&pipe, "deluge", json!({"bytes": bytes})),
        (&pipe, "deluge", json!({"bytes": bytes, "id_last": true})),
        (&http, "deluge", json!({"bytes": bytes})),
        (&http, "deluge_stream", json!({"bytes": bytes})),
    ];
    for (fixture, tool, arguments) in floods {
        let shown = format!("{tool} {arguments}");
        let flood = async {
            let error = fixture.call(tool, arguments).await.expect_err(&shown);
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, false), "{shown}: {error}");
            assert!(error.message().contains("message over max_message_bytes"), "{shown}: {error}");
        };
        let other = if std::ptr::eq(fixture, &pipe) { &http } else { &pipe };
        let meanwhile = async {
            other
                .call(if std::ptr::eq(other, &http) { "plain" } else { "Echo.Args" }, json!({}))
                .await
                .expect("goes on");
        };
        tokio::join!(flood, meanwhile);
        println!("{shown}: {} MiB at most so far", peak_memory());
    }
    // With others in flight to the same server. They go on, but on pipes where the id comes last: nobody knows whose answer
    // it was.
    for (fixture, own, id_last) in [(&pipe, "deluge", true), (&pipe, "deluge", false), (&http, "deluge_stream", false)]
    {
        let hanging = || Fixture {
            world: fixture.world.clone(),
            provider: fixture.provider.clone(),
            cancel: Default::default(),
            roots: fixture.roots.clone(),
        };
        let others = [hanging(), hanging(), hanging()];
        let calls = futures_util::future::join_all(others.iter().map(|other| other.call("hang", json!({}))));
        let flood = async {
            let error = fixture.call(own, json!({"bytes": bytes, "id_last": id_last})).await.expect_err(own);
            assert!(error.message().contains("message over max_message_bytes"), "{own}: {error}");
            if !id_last {
                others.iter().for_each(|other| other.cancel.cancel(CancelCause::User));
            }
        };
        for ended in tokio::join!(calls, flood).0 {
            let error = ended.expect_err("given up, or failed");
            match id_last {
                true => assert!(error.message().contains("in the answer to this or another request"), "{error}"),
                false => assert_eq!(error.cancel_cause(), Some(CancelCause::User), "{own}: {error}"),
            }
        }
    }
    pipe.call("Echo.Args", json!({})).await.expect("the server on pipes is still there");
    http.call("plain", json!({})).await.expect("the server behind HTTP is still there");
    let peak = peak_memory();
    assert!(peak < 100, "{peak} MiB");
}
