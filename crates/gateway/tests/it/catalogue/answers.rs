//! What sources say reaches their clients as each revision has it, whatever the transport.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use reqwest::Method;
use serde_json::json;
use toolwright_core::catalogue::SourceNotice;
use toolwright_core::client::Roots;

use crate::protocol::stdio::Client;
use crate::sources::{Source, two_sources};
use crate::support::{Events, Fixture, LEGACY, LONG, body, call, rpc};

#[tokio::test]
async fn a_servers_error_never_becomes_a_transport_error() {
    let fixture = Fixture::new().await;
    let source = Source::new("alpha");
    fixture.add_listed(source.provider()).await;
    let http = fixture.http().await;
    let said = |code| json!({"code": code, "message": "not for you", "data": {"limit": 3}});
    for (code, modern) in [(-32000, 200), (-32601, 404), (-32002, 200), (7, 200), (-32602, 400), (-32021, 400)] {
        source.own_error.store(code, Ordering::Relaxed);
        let expect = Some(said(code));
        for (path, name) in [("/mcp/alpha", "hello"), ("/mcp", "alpha__hello")] {
            let get = json!({"name": name});
            let (session, _) = http.initialize(path).await;
            let legacy = body(http.in_session(&session, path, &rpc(1, "prompts/get", get.clone())), 200).await;
            assert_eq!(legacy.get("error"), expect.as_ref(), "{path} {code}");
            if path == "/mcp/alpha" {
                let answer = body(http.modern(path, json!(1), "prompts/get", get), modern).await;
                assert_eq!(answer.get("error"), expect.as_ref(), "{path} {code}");
            }
        }
    }
}

#[tokio::test]
async fn a_refused_call_keeps_its_servers_error() {
    let fixture = Fixture::new().await;
    let source = Source::new("alpha");
    fixture.add_listed(source.provider()).await;
    source.own_error.store(-32099, Ordering::Relaxed);
    let http = fixture.http().await;
    for (path, name) in [("/mcp/alpha", "log"), ("/mcp", "alpha__log")] {
        let (session, _) = http.initialize(path).await;
        let legacy = body(http.in_session(&session, path, &call(1, name, json!({}))), 200).await;
        let asked = json!({"name": name, "arguments": {}});
        let modern = body(http.modern(path, json!(1), "tools/call", asked), 200).await;
        for answer in [legacy, modern] {
            let result = &answer["result"];
            let said = json!({"code": -32099, "message": "not for you", "data": {"limit": 3}});
            assert_eq!((&result["isError"], &result["_meta"]["toolwright/error"]), (&json!(true), &said), "{answer}");
            assert_eq!(result["content"][0]["text"], "(tool failed: no)");
        }
    }
}

#[tokio::test]
async fn template_arguments_reach_their_server_unchanged() {
    let fixture = Fixture::new().await;
    let beta = Source::new("beta");
    fixture.add_listed(Source::new("alpha").provider()).await;
    fixture.add_listed(beta.provider()).await;
    let http = fixture.http().await;
    let uri = "toolwright-resource://beta/beta://a%2Fb/data";
    let read = body(http.modern("/mcp", json!(1), "resources/read", json!({"uri": uri})), 200).await;
    assert_eq!(read["result"]["contents"][0], json!({"uri": uri, "text": "beta"}));
    assert_eq!(beta.taken(), [("resources/read".to_owned(), json!({"uri": "beta://a%2Fb/data"}))]);
}

#[tokio::test]
async fn a_subscription_covers_resources_below_it() {
    let (fixture, sources) = two_sources().await;
    let http = fixture.http().await;
    let shown = "toolwright-resource://beta/both://same";
    for (path, source, followed, reported, heard) in [
        ("/mcp/alpha", &sources[0], "alpha://one", "alpha://one/a.txt", "alpha://one/a.txt"),
        ("/mcp", &sources[0], "alpha://one", "alpha://one?page=2", "alpha://one?page=2"),
        ("/mcp", &sources[1], shown, "both://same/a", "toolwright-resource://beta/both://same/a"),
    ] {
        let subscribe = json!({"uri": followed});
        let (session, _) = http.initialize(path).await;
        let stream = http.request(Method::GET, path).header("mcp-session-id", &session);
        let mut session_hears = Events::of(stream.header("mcp-protocol-version", LEGACY)).await;
        body(http.in_session(&session, path, &rpc(1, "resources/subscribe", subscribe)), 200).await;
        let filter = json!({"notifications": {"resourceSubscriptions": [followed]}});
        let mut modern_hears = Events::of(http.modern(path, json!(1), "subscriptions/listen", filter)).await;
        modern_hears.next().await.expect("acknowledged");
        for uri in [&*format!("{}beside", followed.replace(shown, "both://same")), reported] {
            source.send_notice(SourceNotice::ResourceUpdated { uri: uri.into() });
        }
        for events in [&mut session_hears, &mut modern_hears] {
            let note = events.next().await.expect("a note");
            assert_eq!(
                (&note["method"], &note["params"]["uri"]),
                (&json!("notifications/resources/updated"), &json!(heard))
            );
        }
    }
}

#[tokio::test]
async fn a_notification_is_never_answered() {
    let (fixture, http, session) = Fixture::with_session().await;
    let mut client = Client::of(&fixture);
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": {}}))).await;
    for params in [json!({"level": 3}), json!({"name": {}}), json!({"requestId": {}}), json!([1])] {
        for method in ["notifications/x", "notifications/cancelled"] {
            let note = json!({"jsonrpc": "2.0", "method": method, "params": params});
            let taken = http.in_session(&session, "/mcp", &note).send().await.expect("a response");
            assert_eq!((taken.status().as_u16(), taken.text().await.expect("a body").len()), (202, 0), "{note}");
            client.send(&note).await;
        }
        let unknown = rpc(1, "own/method", params);
        assert_eq!(body(http.in_session(&session, "/mcp", &unknown), 200).await["error"]["code"], -32601, "{unknown}");
        let answer = client.ask(&unknown).await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32601)), "{unknown}");
    }
    let broken = rpc(2, "tools/call", json!({"name": {}}));
    assert_eq!(client.ask(&broken).await["error"]["code"], -32602);
}

#[tokio::test]
async fn older_clients_get_only_known_content() {
    let fixture = Fixture::new().await;
    let source = Source::new("alpha");
    fixture.add_listed(source.provider()).await;
    let link = json!({"type": "resource_link", "uri": "a:b", "name": "n", "later": [1]});
    let instead = json!({"type": "text", "text": "[link to n: a:b]"});
    *source.prompt.lock().expect("lock") = json!([{"role": "user", "content": link}]);
    for (version, expect) in
        [("2024-11-05", &instead), ("2025-03-26", &instead), ("2025-06-18", &link), (LEGACY, &link)]
    {
        let mut client = Client::of(&fixture);
        client.ask(&rpc(0, "initialize", json!({"protocolVersion": version, "capabilities": {}}))).await;
        let called = client.ask(&call(1, "test__echo", json!({"text": "hi"}))).await;
        assert_eq!(called["result"]["content"], json!([{"type": "text", "text": "hi"}, expect]), "{version}");
        let prompt = client.ask(&rpc(2, "prompts/get", json!({"name": "alpha__hello"}))).await;
        assert_eq!(prompt["result"]["messages"], json!([{"role": "user", "content": expect}]), "{version}");
        client.end().await;
    }
}

#[tokio::test]
async fn the_stdio_clients_roots_reach_sources() {
    let roots = Arc::new(Roots::default());
    let fixture = Fixture::with(|options| options.roots = Some(Arc::clone(&roots))).await;
    for (offers, folders) in [(true, json!([{"uri": "file:///one"}])), (false, json!([]))] {
        roots.expect_client();
        let mut client = Client::of(&fixture);
        let capabilities = if offers { json!({"roots": {"listChanged": true}}) } else { json!({}) };
        client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": capabilities}))).await;
        let reported = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        client.send(&reported).await;
        if offers {
            let asked = client.next().await;
            assert_eq!(asked["method"], "roots/list");
            client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": folders}})).await;
        }
        let known = tokio::time::timeout(LONG, roots.known()).await.expect("told");
        assert_eq!(known, Some(json!({"roots": folders})));
        if offers {
            let before = roots.version();
            client.send(&json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})).await;
            let asked = client.next().await;
            client
                .send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": [{"uri": "file:///two"}]}}))
                .await;
            tokio::time::timeout(LONG, roots.newer_than(before)).await.expect("told");
            assert_eq!(roots.known().await, Some(json!({"roots": [{"uri": "file:///two"}]})));
        }
        client.end().await;
    }
}
