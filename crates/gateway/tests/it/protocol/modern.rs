//! Clients of 2026-07-28 in raw JSON-RPC, and clients of another implementation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, ClientConfig, Implementation, ProgressNotificationParam, ProtocolVersion};
use rmcp::service::{NotificationContext, PeerRequestOptions, RunningService, serve_client_with_lifecycle};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ClientLifecycleMode, RoleClient};
use serde_json::{Value, json};
use tokio::sync::Notify;
use toolwright_core::cancel::CancelCause;
use toolwright_gateway::serve_connection;

use crate::support::{Events, Fixture, Http, LONG, MODERN, body, rpc, soon};

#[tokio::test]
async fn discover_list_and_call_need_no_session() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let found = body(http.modern("/mcp", json!("d"), "server/discover", json!({})), 200).await;
    assert_eq!(found["id"], "d");
    let result = &found["result"];
    assert_eq!(result["supportedVersions"], json!([MODERN]));
    assert_eq!(
        result["capabilities"],
        json!({"tools": {"listChanged": true}, "extensions": {"io.modelcontextprotocol/tasks": {}}})
    );
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "toolwright");
    let list = body(http.modern("/mcp", json!(1), "tools/list", json!({})), 200).await;
    let fields = ["resultType", "ttlMs", "cacheScope"].map(|key| list["result"][key].clone());
    assert_eq!(fields, [json!("complete"), json!(0), json!("private")]);
    assert_eq!(list["result"]["tools"].as_array().map(Vec::len), Some(12));
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let params = json!({"name": "test__echo", "arguments": {"text": "hi"}, "_meta": {"traceparent": format!("00-{trace}-00f067aa0ba902b7-01")}});
    let called = body(http.modern("/mcp", json!(2), "tools/call", params), 200).await;
    assert_eq!(
        (&called["result"]["resultType"], &called["result"]["content"][0]["text"]),
        (&json!("complete"), &json!("hi"))
    );
    let passed_on = fixture.watch.traceparent.lock().expect("lock").clone().expect("a trace context");
    assert!(passed_on.starts_with(&format!("00-{trace}-")) && !passed_on.contains("00f067aa0ba902b7"), "{passed_on}");
}

async fn refused(http: &Http, method: &str, params: Value, status: u16, code: i64) -> Value {
    let error = body(http.modern("/mcp", json!(500), method, params), status).await;
    assert_eq!((&error["error"]["code"], &error["id"]), (&json!(code), &json!(500)), "{error}");
    error
}

#[tokio::test]
async fn errors_have_the_statuses_of_the_specification() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    for method in ["initialize", "ping", "logging/setLevel", "resources/subscribe", "unknown/method"] {
        refused(&http, method, json!({}), 404, -32601).await;
    }
    refused(&http, "tools/call", json!({"name": "nope", "arguments": {}}), 400, -32602).await;
    refused(&http, "tools/call", json!({}), 400, -32602).await;
    refused(&http, "subscriptions/listen", json!({}), 400, -32602).await;

    let bare = http.post("/mcp", &rpc(1, "server/discover", json!({}))).header("mcp-protocol-version", MODERN);
    assert_eq!(body(bare, 400).await["error"]["code"], -32602, "no _meta");
    let meta = |version: &str| json!({"_meta": {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}});
    let discover = |header: &str, version: &str| {
        http.post("/mcp", &rpc(1, "server/discover", meta(version)))
            .header("mcp-protocol-version", header)
            .header("mcp-method", "server/discover")
    };
    let unknown = body(discover("v999", "v999"), 400).await;
    assert_eq!(unknown["error"]["code"], -32022);
    assert_eq!(unknown["error"]["data"], json!({"supported": [MODERN], "requested": "v999"}));
    assert_eq!(body(discover(MODERN, "v999"), 400).await["error"]["code"], -32020);
    let twice = discover(MODERN, MODERN).header("mcp-method", "server/discover");
    assert_eq!(body(twice, 400).await["error"]["code"], -32020);
    let get = http.request(reqwest::Method::GET, "/mcp").header("mcp-protocol-version", MODERN).send().await;
    assert_eq!(get.expect("response").status(), 405);
}

#[tokio::test]
async fn closing_the_response_cancels_the_call() {
    let fixture = Fixture::new().await;
    let http = fixture.http_with(|options| options.keep_alive = std::time::Duration::from_millis(50)).await;
    for streaming in [false, true] {
        let request = http.modern("/mcp", json!(1), "tools/call", json!({"name": "test__wait", "arguments": {}}));
        if streaming {
            // Silent for longer than `keep_alive`, the call is answered with a stream.
            let events = Events::of(request).await;
            soon(&fixture.watch.started).await;
            drop(events);
        } else {
            let waiting = tokio::spawn(request.send());
            soon(&fixture.watch.started).await;
            waiting.abort();
        }
        soon(&fixture.watch.cancelled).await;
        assert_eq!(fixture.watch.cause.lock().expect("lock").take(), Some(CancelCause::User));
    }
}

#[tokio::test]
async fn a_silent_calls_stream_is_kept_alive() {
    let fixture = Fixture::new().await;
    let http = fixture.http_with(|options| options.keep_alive = std::time::Duration::from_millis(20)).await;
    let params = json!({"name": "test__sleep", "arguments": {"text": "100"}});
    let messages = Events::of(http.modern("/mcp", json!(1), "tools/call", params)).await.rest().await;
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0]["result"]["content"][0]["text"], "slept");
}

#[tokio::test]
async fn a_subscription_is_granted_notified_and_ended() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let listen = |id: &str, filter: Value| {
        http.modern("/mcp", json!(id), "subscriptions/listen", json!({"notifications": filter}))
    };
    let mut tools = Events::of(listen("s1", json!({"toolsListChanged": true, "promptsListChanged": true}))).await;
    let mut prompts = Events::of(listen("s2", json!({"promptsListChanged": true}))).await;
    let meta = |id: &str| json!({"io.modelcontextprotocol/subscriptionId": id});
    let granted = |id: &str, filter: Value| {
        let params = json!({"_meta": meta(id), "notifications": filter});
        json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})
    };
    assert_eq!(tools.next().await, Some(granted("s1", json!({"toolsListChanged": true}))));
    assert_eq!(prompts.next().await, Some(granted("s2", json!({}))));
    fixture.foreign.set(&[]);
    let params = json!({"_meta": meta("s1")});
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": params});
    assert_eq!(tools.next().await, Some(changed));
    fixture.shutdown.cancel(CancelCause::Shutdown);
    for (mut events, id) in [(tools, "s1"), (prompts, "s2")] {
        let last = events.next().await.expect("a result");
        assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!(id), &json!("complete")));
        assert_eq!(last["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id);
        assert_eq!(events.next().await, None);
    }
}

#[tokio::test]
async fn equal_catalogues_are_listed_in_equal_bytes() {
    let text = async || {
        let fixture = Fixture::new().await;
        let http = fixture.http().await;
        http.modern("/mcp", json!(1), "tools/list", json!({}))
            .send()
            .await
            .expect("response")
            .text()
            .await
            .expect("text")
    };
    assert_eq!(text().await, text().await);
}

#[tokio::test]
async fn names_are_shortened_and_still_callable() {
    let fixture = Fixture::with(|options| options.server.max_tool_name = 16).await;
    fixture.foreign.set(&["a_rather_long_tool_name"]);
    let http = fixture.http().await;
    let name = loop {
        let list = body(http.modern("/mcp", json!(1), "tools/list", json!({})), 200).await;
        let tools = list["result"]["tools"].as_array().expect("tools");
        let names = tools.iter().filter_map(|tool| tool["name"].as_str());
        let foreign: Vec<&str> =
            names.filter(|name| !name.starts_with("test__") && !name.starts_with("output__")).collect();
        if let [name] = foreign[..] {
            break name.to_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert!(name.len() <= 16, "{name}");
    for written in [name.as_str(), "remote__a_rather_long_tool_name"] {
        let called = body(http.modern("/mcp", json!(1), "tools/call", json!({"name": written})), 200).await;
        assert_eq!(called["result"]["content"][0]["text"], "a_rather_long_tool_name ran", "{written}");
    }
}

#[tokio::test]
async fn many_clients_call_at_once() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let calls = (0..100).map(|n| {
        let text = n.to_string();
        let request =
            http.modern("/mcp", json!(n), "tools/call", json!({"name": "test__echo", "arguments": {"text": text}}));
        async move { (body(request, 200).await, n) }
    });
    for (answer, n) in futures_util::future::join_all(calls).await {
        assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!(n), &json!(n.to_string())));
    }
}

#[derive(Default)]
struct Received {
    changed: Notify,
    progress: AtomicUsize,
}

#[derive(Clone, Default)]
struct Peer(Arc<Received>);

impl ClientHandler for Peer {
    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.0.changed.notify_one();
    }

    async fn on_progress(&self, _params: ProgressNotificationParam, _context: NotificationContext<RoleClient>) {
        self.0.progress.fetch_add(1, Ordering::Relaxed);
    }

    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(Default::default(), Implementation::new("peer", "1"))
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}

fn modes() -> [ClientLifecycleMode; 2] {
    [
        ClientLifecycleMode::Initialize,
        ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
    ]
}

async fn exercise(fixture: &Fixture, client: RunningService<RoleClient, Peer>, modern: bool) {
    let tools = client.list_all_tools().await.expect("tools");
    assert_eq!(tools.len(), 12);
    let arguments = json!({"text": "hi"}).as_object().expect("object").clone();
    let echo = CallToolRequestParams::new("test__echo").with_arguments(arguments);
    let result = client.peer().call_tool(echo).await.expect("result");
    assert_eq!(result.content[0].as_text().map(|text| text.text.as_str()), Some("hi"));
    assert_eq!(result.structured_content, Some(json!({"n": 1.5})));
    let failed = client.peer().call_tool(CallToolRequestParams::new("test__fail")).await.expect("result");
    assert_eq!(failed.is_error, Some(true));
    assert!(client.peer().call_tool(CallToolRequestParams::new("nothing")).await.is_err());

    client.peer().call_tool(CallToolRequestParams::new("test__progress")).await.expect("result");
    let heard = async {
        while client.service().0.progress.load(Ordering::Relaxed) < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, heard).await.expect("progress");

    let wait = rmcp::model::CallToolRequest::new(CallToolRequestParams::new("test__wait"));
    let options = PeerRequestOptions::no_options();
    let running = client.peer().send_cancellable_request(wait.into(), options).await.expect("sent");
    soon(&fixture.watch.started).await;
    running.cancel(Some("enough".into())).await.expect("cancelled");
    soon(&fixture.watch.cancelled).await;

    if !modern {
        fixture.foreign.set(&["one", "two", "three"]);
        soon(&client.service().0.changed).await;
        assert_eq!(client.list_all_tools().await.expect("tools").len(), 13);
    }
    tokio::time::timeout(LONG, client.cancel()).await.expect("in time").expect("ended");
}

#[tokio::test]
async fn rmcp_over_pipes() {
    for (modern, mode) in modes().into_iter().enumerate() {
        let fixture = Fixture::new().await;
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (input, output) = tokio::io::split(theirs);
        let serving =
            tokio::spawn(serve_connection(Arc::clone(&fixture.gateway), input, output, fixture.shutdown.clone()));
        let client = serve_client_with_lifecycle(Peer::default(), ours, mode).await.expect("connected");
        exercise(&fixture, client, modern == 1).await;
        tokio::time::timeout(LONG, serving).await.expect("in time").expect("task").expect("served");
    }
}

#[tokio::test]
async fn rmcp_over_http() {
    for (modern, mode) in modes().into_iter().enumerate() {
        let fixture = Fixture::new().await;
        let http = fixture.http().await;
        let config = StreamableHttpClientTransportConfig::with_uri(format!("http://{}/mcp", http.addr));
        let transport = StreamableHttpClientTransport::with_client(http.client.clone(), config);
        let client = serve_client_with_lifecycle(Peer::default(), transport, mode).await.expect("connected");
        exercise(&fixture, client, modern == 1).await;
    }
}
