use serde_json::{Value, json};

use crate::peer::{HttpPeer, Peer};

const PROGRAM: &str = env!("CARGO_BIN_EXE_conformance-fixture");

fn modern(method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
        "progressToken": "p",
    });
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

/// Arguments that a tool cannot do without.
fn arguments(tool: &str) -> Value {
    match tool {
        "greet" => json!({"name": "Ada"}),
        "confirm_delete" => json!({"filename": "f"}),
        "test_elicitation" => json!({"message": "Who?"}),
        "test_sampling" => json!({"prompt": "Why?"}),
        "slow_compute" => json!({"seconds": 0}),
        _ => json!({}),
    }
}

#[test]
fn every_listed_tool_answers_in_both_generations() {
    let mut peer = Peer::start(PROGRAM, &[]);
    let list = peer.request(1, "tools/list", &json!({}));
    for tool in list["result"]["tools"].as_array().unwrap() {
        let name = tool["name"].as_str().unwrap();
        let params = json!({"name": name, "arguments": arguments(name)});
        for message in [
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params.clone()}),
            modern("tools/call", params.clone()),
        ] {
            peer.send(&message);
            let answer = peer.answer(1);
            match answer["error"]["code"].as_i64() {
                None => assert!(answer["result"].is_object(), "{name}: {answer}"),
                // The client offers elicitation, and nothing else.
                Some(-32021) => {
                    assert!(answer["error"]["data"]["requiredCapabilities"].is_object(), "{name}: {answer}")
                }
                Some(code) => assert_eq!((name, code), ("protocol_error_job", -32603), "{answer}"),
            }
        }
    }
}

#[test]
fn broken_arguments_are_an_error_result() {
    let mut peer = Peer::start(PROGRAM, &[]);
    let mut check = |params: Value, part: &str| {
        peer.send(&modern("tools/call", params.clone()));
        let answer = peer.answer(1);
        assert_eq!(answer["result"]["isError"], true, "{params}: {answer}");
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains(part), "{params}: {text}");
    };
    check(json!({"name": "greet"}), "\"name\" is a required property");
    check(json!({"name": "greet", "arguments": {"name": 7}}), "7 is not of type");
    check(json!({"name": "test_simple_text", "arguments": {"x": 1}}), "'x' was unexpected");
}

#[test]
fn a_legacy_client_is_asked_within_its_call() {
    let mut peer = Peer::start(PROGRAM, &[]);
    let capabilities = json!({"elicitation": {}, "sampling": {}, "roots": {}});
    peer.request(0, "initialize", &json!({"protocolVersion": "2025-11-25", "capabilities": capabilities}));
    peer.begin_call(7, "test_input_required_result_multiple_inputs", &json!({}));
    for (method, result) in [
        ("elicitation/create", json!({"action": "accept", "content": {"name": "Ada"}})),
        ("sampling/createMessage", json!({"role": "assistant", "content": {"type": "text", "text": "Hi"}})),
        ("roots/list", json!({"roots": []})),
    ] {
        let asked = peer.message();
        assert_eq!(asked["method"], method);
        peer.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": result}));
    }
    assert_eq!(peer.message()["result"]["content"][0]["text"], "Ada: Hi []");

    peer.begin_call(8, "test_elicitation", &json!({"message": "Who?"}));
    let asked = peer.message();
    let refusal = json!({"code": -1, "message": "not now"});
    peer.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": refusal}));
    let answer = peer.message();
    assert_eq!(answer["result"]["content"][0]["text"], "The client refused: not now");
}

#[test]
fn request_states_fit_their_own_request() {
    let mut peer = Peer::start(PROGRAM, &[]);
    let mut ask = |params: Value| {
        peer.send(&modern("tools/call", params));
        peer.answer(1)
    };
    let first = ask(json!({"name": "test_input_required_result_request_state"}));
    let state = first["result"]["requestState"].as_str().unwrap().to_owned();
    let responses = json!({"confirm": {"action": "accept", "content": {"ok": true}}});
    let mut retry = |name: &str, state: &str| {
        ask(json!({"name": name, "inputResponses": responses.clone(), "requestState": state}))
    };
    assert_eq!(retry("test_input_required_result_tampered_state", &state)["error"]["code"], -32602);
    assert_eq!(retry("test_input_required_result_request_state", "nonsense")["error"]["code"], -32602);
    let done = retry("test_input_required_result_request_state", &state);
    assert_eq!(done["result"]["content"][0]["text"], "state-ok, confirmed: true");
}

#[test]
fn lists_come_in_pages() {
    let mut peer = Peer::start(PROGRAM, &[]);
    let mut names = Vec::new();
    let mut params = json!({});
    loop {
        let result = peer.request(1, "prompts/list", &params)["result"].take();
        names.extend(result["prompts"].as_array().unwrap().iter().map(|prompt| prompt["name"].clone()));
        match result.get("nextCursor") {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => break,
        }
    }
    assert_eq!(names.len(), 5);
    assert_eq!(peer.request(1, "prompts/list", &json!({"cursor": "x"}))["error"]["code"], -32602);
}

#[test]
fn only_subscribers_are_notified_of_a_resource() {
    let mut peer = Peer::start(PROGRAM, &[]);
    peer.request(0, "initialize", &json!({"protocolVersion": "2025-11-25", "capabilities": {}}));
    let watched = json!({"uri": "test://watched-resource"});
    let mut update = |id: u64, before: &str| {
        peer.request(id, before, &watched);
        peer.begin_call(id + 1, "test_trigger_resource_update", &json!({}));
        let first = peer.message();
        if first.get("id").is_none() {
            peer.answer(id + 1);
        }
        first
    };
    let note = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": watched.clone()});
    assert_eq!(update(1, "resources/subscribe"), note);
    assert_eq!(update(3, "resources/unsubscribe")["id"], 4);
}

#[test]
fn a_lost_stream_is_resumed() {
    let peer = HttpPeer::start(PROGRAM, &["--legacy"]);
    let initialize =
        json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}});
    let response = peer.post(&[], &initialize);
    let session = response.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "test_reconnection"}});
    let cut = peer.post(&[("mcp-session-id", session)], &call);
    assert!(cut.contains("retry: 300") && !cut.contains("completed successfully"), "{cut}");
    let last = cut.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
    let rest = peer.get(&[("mcp-session-id", session), ("last-event-id", last)]);
    assert!(rest.contains("Reconnection test completed successfully."), "{rest}");
}

#[test]
fn modern_answers_carry_what_the_generation_asks() {
    let mut peer = Peer::start(PROGRAM, &[]);
    let mut ask = |method: &str, params: Value| {
        peer.send(&modern(method, params));
        peer.answer(1)
    };
    let discovered = ask("server/discover", json!({}));
    assert_eq!(discovered["result"]["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(discovered["result"]["cacheScope"], "public");
    assert_eq!(ask("tools/list", json!({}))["result"]["resultType"], "complete");
    assert_eq!(ask("ping", json!({}))["error"]["code"], -32601);
    let question = ask("tools/call", json!({"name": "test_streaming_elicitation"}));
    assert_eq!(question["result"]["resultType"], "input_required");
    let given = json!({"name": "test_streaming_elicitation", "inputResponses": {"user_name": {"action": "accept"}}});
    assert_eq!(ask("tools/call", given)["result"]["resultType"], "complete");
}

#[test]
fn a_modern_subscription_is_notified_of_changes() {
    let mut peer = Peer::start(PROGRAM, &[]);
    let mut listen = modern("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    listen["id"] = json!("sub");
    peer.send(&listen);
    let acknowledged = peer.message();
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    peer.send(&modern("tools/call", json!({"name": "test_trigger_tool_change"})));
    let params = json!({"_meta": {"io.modelcontextprotocol/subscriptionId": "sub"}});
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": params});
    assert_eq!(peer.message(), changed);
}

#[test]
fn http_refuses_wrong_headers_or_meta() {
    let peer = HttpPeer::start(PROGRAM, &[]);
    let version = ("mcp-protocol-version", "2026-07-28");
    let check = |headers: &[(&str, &str)], body: &Value, status: &str, code: Option<i64>| {
        let response = peer.post(headers, body);
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{headers:?}: {response}");
        let body: Value = serde_json::from_str(response.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!(body["error"]["code"].as_i64(), code, "{headers:?}: {body}");
    };
    let list = modern("tools/list", json!({}));
    let call = modern("tools/call", json!({"name": "test_simple_text"}));
    check(&[version, ("mcp-method", "tools/list")], &list, "200", None);
    check(&[version, ("mcp-method", "TOOLS/LIST")], &list, "400", Some(-32020));
    check(&[version], &list, "400", Some(-32020));
    check(&[version, ("mcp-method", "tools/call")], &call, "400", Some(-32020));
    check(&[version, ("mcp-method", "tools/call"), ("mcp-name", "test_simple_text")], &call, "200", None);
    check(&[("mcp-protocol-version", "v9"), ("mcp-method", "tools/list")], &list, "400", Some(-32020));
    let bare = json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}});
    check(&[version, ("mcp-method", "server/discover")], &bare, "400", Some(-32602));
    let mut future = modern("server/discover", json!({}));
    future["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("v9");
    check(&[("mcp-protocol-version", "v9"), ("mcp-method", "server/discover")], &future, "400", Some(-32022));
    check(&[version, ("mcp-method", "no/such")], &modern("no/such", json!({})), "404", Some(-32601));
    check(&[("host", "evil.example.com"), version, ("mcp-method", "tools/list")], &list, "403", Some(-32600));
    check(&[("origin", "http://evil.example.com"), version], &list, "403", Some(-32600));
}
