//! Streamable HTTP of 2026-07-28: every request stands alone.

use serde_json::{Value, json};
use toolwright_core::cancel::CancelCause;

use crate::support::{Events, Fixture, Http, MODERN, body, rpc, soon};

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
async fn a_subscription_is_granted_told_and_ended() {
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
