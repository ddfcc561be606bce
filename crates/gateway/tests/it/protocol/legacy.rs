//! Streamable HTTP up to 2025-11-25: sessions.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::{ProviderKind, WithheldTool};
use toolwright_core::policy::{Policy, Profile};
use toolwright_core::session::Principal;
use toolwright_testkit::{FakeList, FakeProvider};

use crate::support::{Events, Fixture, LONG, REMOTE_SAYS, WHOSE_TOOLS, body, call, rpc, soon};

#[tokio::test]
async fn a_session_lists_calls_and_ends() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let (session, result) = http.initialize("/mcp").await;
    assert_eq!(result["protocolVersion"], "2025-11-25");
    assert_eq!(
        result["capabilities"],
        json!({"tools": {"listChanged": true}, "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}})
    );
    assert_eq!(
        (&result["serverInfo"]["name"], &result["instructions"]),
        (
            &json!("toolwright"),
            &json!(format!("{WHOSE_TOOLS} test (8), remote (2), output (2)\n\nUse the tools.\n\n{REMOTE_SAYS}"))
        )
    );

    let ping = body(http.in_session(&session, "/mcp", &rpc(1, "ping", json!({}))), 200).await;
    assert_eq!(ping, json!({"jsonrpc": "2.0", "id": 1, "result": {}}));

    let list = body(http.in_session(&session, "/mcp", &rpc(2, "tools/list", json!({}))), 200).await;
    let names: Vec<&str> =
        list["result"]["tools"].as_array().expect("tools").iter().filter_map(|t| t["name"].as_str()).collect();
    let own = ["test__echo", "test__fail", "test__progress", "test__big", "test__sleep", "test__wait", "test__limited"];
    assert_eq!((&names[..7], names.len()), (&own[..], 12));
    let echo = json!({
        "name": "test__echo", "title": "T echo", "description": "The tool echo.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        "annotations": {"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false},
        "_meta": {"anthropic/maxResultSizeChars": 98_304},
    });
    assert_eq!(list["result"]["tools"][0], echo);
    assert_eq!(list["result"].as_object().expect("object").len(), 1, "nothing of the new generation");

    let deleted = http.in_session(&session, "/mcp", &Value::Null);
    let deleted = http.client.execute({
        let mut request = deleted.build().expect("request");
        *request.method_mut() = Method::DELETE;
        request
    });
    assert_eq!(deleted.await.expect("response").status(), 204);
    body(http.in_session(&session, "/mcp", &rpc(3, "ping", json!({}))), 404).await;
}

#[tokio::test]
async fn results_are_passed_on_untouched() {
    let (_fixture, http, session) = Fixture::with_session().await;
    let result = async |name: &str, arguments: Value| {
        body(http.in_session(&session, "/mcp", &call(7, name, arguments)), 200).await
    };
    let echo = json!({
        "content": [{"type": "text", "text": "hi"}, {"type": "resource_link", "uri": "a:b", "name": "n", "later": [1]}],
        "structuredContent": {"n": 1.5},
        "_meta": {"vendor/key": {"deep": [1, 2]}},
    });
    assert_eq!(result("test__echo", json!({"text": "hi"})).await["result"], echo);
    let failed = json!({"content": [{"type": "text", "text": "it did not work"}], "isError": true});
    assert_eq!(result("test__fail", json!({})).await["result"], failed);
    let invalid = result("test__echo", json!({"text": [1]})).await;
    assert_eq!(invalid["result"]["isError"], true);
    let text = invalid["result"]["content"][0]["text"].as_str().expect("text");
    assert!(text.starts_with("(tool failed: invalid arguments") && text.contains("/text"), "{text}");
    let big = result("test__big", json!({})).await;
    let note = &big["result"]["_meta"]["tool_output"];
    assert_eq!((&note["bytes"], &note["reason"]), (&json!(100_000), &json!("size_limit_exceeded")));
    let text = big["result"]["content"][0]["text"].as_str().expect("text");
    assert!(text.contains(note["handle"].as_str().expect("handle")) && text.len() < 20_000, "the cap applies here too");
    let unknown = result("test__ecko", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32602);
    assert!(unknown["error"]["message"].as_str().expect("text").contains("did you mean test__echo"), "{unknown}");
    let nameless = body(http.in_session(&session, "/mcp", &rpc(1, "tools/call", json!({}))), 200).await;
    assert_eq!(nameless["error"]["code"], -32602);
    let method = body(http.in_session(&session, "/mcp", &rpc(1, "prompts/list", json!({}))), 200).await;
    assert_eq!(method["error"]["code"], -32601);
}

#[tokio::test]
async fn policy_is_asked_and_can_be_swapped() {
    let (fixture, http, session) = Fixture::with_session().await;
    let mut deny = Policy::of(Profile::Client);
    deny.rules =
        serde_json::from_value(json!([{"effect": "deny", "tool": "test:*", "reason": "not today"}])).expect("rules");
    fixture.gateway.set_policy(deny.into());
    let denied = body(http.in_session(&session, "/mcp", &call(1, "test__echo", json!({"text": "a"}))), 200).await;
    assert_eq!(denied["result"]["isError"], true);
    assert!(denied["result"]["content"][0]["text"].as_str().expect("text").contains("not today"));
}

#[tokio::test]
async fn a_tool_for_other_roles_is_hidden() {
    let fixture = Fixture::new().await;
    let guest = Principal { id: "guest".into(), roles: vec![], owner: false };
    let http = fixture.http_with(|options| options.principal = guest).await;
    let (session, _) = http.initialize("/mcp").await;
    assert_eq!(count_tools(&http, &session).await, 11);
    let refused = body(http.in_session(&session, "/mcp", &call(1, "test__limited", json!({}))), 200).await;
    assert_eq!(refused["result"]["isError"], true);
    assert!(refused["result"]["content"][0]["text"].as_str().expect("text").contains("ops"));
}

#[tokio::test]
async fn progress_uses_the_clients_token() {
    let (_fixture, http, session) = Fixture::with_session().await;
    let mut request = call(3, "test__progress", json!({}));
    request["params"]["_meta"] = json!({"progressToken": "tok"});
    let messages = Events::of(http.in_session(&session, "/mcp", &request)).await.rest().await;
    let note = |params: Value| json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
    assert_eq!(messages[0], note(json!({"progressToken": "tok", "progress": 0.0, "total": 2.0})));
    assert_eq!(messages[1], note(json!({"progressToken": "tok", "progress": 1.0, "total": 2.0, "message": "half"})));
    assert_eq!(messages.len(), 4);
    assert_eq!(messages[3]["result"]["content"][0]["text"], "done");
    // Without a token there is nothing to send, and the answer is plain JSON.
    body(http.in_session(&session, "/mcp", &call(4, "test__progress", json!({}))), 200).await;
}

#[tokio::test]
async fn a_cancelled_call_stops_and_gets_no_answer() {
    let (fixture, http, session) = Fixture::with_session().await;
    let waiting = tokio::spawn(http.in_session(&session, "/mcp", &call(9, "test__wait", json!({}))).send());
    soon(&fixture.watch.started).await;
    let again = body(http.in_session(&session, "/mcp", &call(9, "test__echo", json!({"text": "a"}))), 200).await;
    assert_eq!(again["error"]["code"], -32600, "the id is in use");
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9, "reason": "x"}});
    assert_eq!(http.in_session(&session, "/mcp", &cancel).send().await.expect("response").status(), 202);
    soon(&fixture.watch.cancelled).await;
    assert_eq!(*fixture.watch.cause.lock().expect("lock"), Some(CancelCause::User));
    let response = waiting.await.expect("task").expect("response");
    assert_eq!((response.status().as_u16(), response.text().await.expect("body").as_str()), (202, ""));
}

#[tokio::test]
async fn a_lost_connection_does_not_cancel_the_call() {
    let (fixture, http, session) = Fixture::with_session().await;
    let waiting = tokio::spawn(http.in_session(&session, "/mcp", &call(9, "test__wait", json!({}))).send());
    soon(&fixture.watch.started).await;
    waiting.abort();
    assert!(waiting.await.is_err());
    let early = tokio::time::timeout(std::time::Duration::from_millis(100), fixture.watch.cancelled.notified()).await;
    assert!(early.is_err(), "the call goes on");
    let end = http.request(Method::DELETE, "/mcp").header("mcp-session-id", &session).send();
    assert_eq!(end.await.expect("response").status(), 204);
    soon(&fixture.watch.cancelled).await;
}

#[tokio::test]
async fn the_sessions_stream_carries_list_changes() {
    let (fixture, http, session) = Fixture::with_session().await;
    let get = || http.request(Method::GET, "/mcp").header("mcp-session-id", &session);
    let mut first = Events::of(get()).await;
    fixture.foreign.set(&["Get.Thing", "other", "third"]);
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    assert_eq!(first.next().await, Some(changed.clone()));
    // A second stream takes over.
    let mut second = Events::of(get()).await;
    assert_eq!(first.next().await, None);
    fixture.foreign.set(&["Get.Thing"]);
    assert_eq!(second.next().await, Some(changed.clone()));
    drop(second);
    // What changed while no stream was open is told when one is opened.
    body(http.in_session(&session, "/mcp", &rpc(1, "tools/list", json!({}))), 200).await;
    fixture.foreign.set(&[]);
    let mut list = count_tools(&http, &session).await;
    while list != 10 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        list = count_tools(&http, &session).await;
    }
    let mut third = Events::of(get()).await;
    fixture.foreign.set(&["back"]);
    assert_eq!(third.next().await, Some(changed));
    let end =
        tokio::time::timeout(LONG, http.request(Method::DELETE, "/mcp").header("mcp-session-id", &session).send());
    assert_eq!(end.await.expect("in time").expect("response").status(), 204);
    assert_eq!(third.next().await, None, "the stream ends with its session");
}

#[tokio::test]
async fn sessions_belong_to_their_view() {
    let (_fixture, http, session) = Fixture::with_session().await;
    body(http.in_session(&session, "/mcp/remote", &rpc(1, "ping", json!({}))), 404).await;
    body(http.in_session("nonsense", "/mcp", &rpc(1, "ping", json!({}))), 404).await;
    let missing = body(http.post("/mcp", &rpc(1, "ping", json!({}))), 400).await;
    assert!(missing["error"]["message"].as_str().expect("text").contains("initialize"));
}

#[tokio::test]
async fn one_provider_is_served_under_its_own_names() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    let (session, result) = http.initialize("/mcp/remote").await;
    assert_eq!(result["instructions"], "Be gentle.");
    let list = body(http.in_session(&session, "/mcp/remote", &rpc(1, "tools/list", json!({}))), 200).await;
    let tool = json!({
        "name": "Get.Thing", "description": "Foreign.",
        "inputSchema": {"type": "object", "x-later": {"b": 1, "a": 2}, "properties": {}},
        "annotations": {"readOnlyHint": true, "later": 1}, "icons": [], "_meta": {"k": [1], "anthropic/maxResultSizeChars": 98_304},
    });
    assert_eq!(list["result"]["tools"][0].to_string(), tool.to_string(), "order of keys included");
    assert_eq!(list["result"]["tools"].as_array().map(Vec::len), Some(2));
    let ran = body(http.in_session(&session, "/mcp/remote", &call(2, "Get.Thing", json!({}))), 200).await;
    assert_eq!(ran["result"]["content"][0]["text"], "Get.Thing ran");
    for foreign_to_it in ["test__echo", "remote__Get_Thing", "get.thing"] {
        let unknown = body(http.in_session(&session, "/mcp/remote", &call(3, foreign_to_it, json!({}))), 200).await;
        assert_eq!(unknown["error"]["code"], -32602, "{foreign_to_it}");
    }
    let near = body(http.in_session(&session, "/mcp/remote", &call(3, "Get.Thin", json!({}))), 200).await;
    assert!(near["error"]["message"].as_str().expect("text").contains("did you mean Get.Thing"), "{near}");
    let missing = http.post("/mcp/nobody", &rpc(1, "ping", json!({}))).send().await.expect("response");
    assert_eq!(missing.status(), 404);
    assert!(missing.text().await.expect("text").contains("test, remote"));
}

/// A server that is down, of which it is known what it had.
fn down() -> FakeProvider {
    let source = FakeProvider::new("down", ProviderKind::Mcp, Vec::new());
    source.lists(FakeList::Fails("it ended with exit status 3"));
    source.with(|source| source.withheld = vec![WithheldTool::new("drop.it", "filtered by tools_denied")])
}

#[tokio::test]
async fn an_unknown_tool_of_a_provider_is_explained() {
    let fixture = Fixture::new().await;
    fixture.add(Arc::new(down())).await;
    let http = fixture.http().await;
    for (path, prefix) in [("/mcp/down", ""), ("/mcp", "down__")] {
        let (session, _) = http.initialize(path).await;
        for (name, why) in [
            ("echo", "(provider down is down: it ended with exit status 3)"),
            ("drop.it", "(provider down has `drop.it`, but does not offer it: filtered by tools_denied)"),
        ] {
            let asked = call(1, &format!("{prefix}{name}"), json!({}));
            let refused = body(http.in_session(&session, path, &asked), 200).await;
            assert_eq!(refused["error"]["code"], -32602, "{refused}");
            assert!(refused["error"]["message"].as_str().expect("text").contains(why), "{path}: {refused}");
        }
    }
}

async fn count_tools(http: &crate::support::Http, session: &str) -> usize {
    let list = body(http.in_session(session, "/mcp", &rpc(1, "tools/list", json!({}))), 200).await;
    list["result"]["tools"].as_array().map_or(0, Vec::len)
}
