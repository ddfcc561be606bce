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

#[test]
fn every_listed_tool_answers_in_both_generations() {
    let mut peer = Peer::start(PROGRAM, &[]);
    let list = peer.request(1, "tools/list", &json!({}));
    for tool in list["result"]["tools"].as_array().unwrap() {
        let name = &tool["name"];
        for message in [
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name}}),
            modern("tools/call", json!({"name": name})),
        ] {
            peer.send(&message);
            let answer = peer.answer(1);
            if name == "test_missing_capability" {
                assert_eq!(answer["error"]["data"], json!({"requiredCapabilities": {"sampling": {}}}));
            } else {
                assert!(answer["result"].is_object(), "{name}: {answer}");
            }
        }
    }
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
    assert_eq!(discovered["result"]["cacheScope"], "private");
    assert_eq!(ask("tools/list", json!({}))["result"]["resultType"], "complete");
    assert_eq!(ask("ping", json!({}))["error"]["code"], -32601);
    let question = ask("tools/call", json!({"name": "test_streaming_elicitation"}));
    assert_eq!(question["result"]["resultType"], "input_required");
    let given = json!({"name": "test_streaming_elicitation", "inputResponses": {"user_name": {"action": "accept"}}});
    assert_eq!(ask("tools/call", given)["result"]["resultType"], "complete");
}

#[test]
fn a_modern_subscription_hears_of_changes() {
    let mut peer = Peer::start(PROGRAM, &[]);
    let mut listen = modern("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    listen["id"] = json!("sub");
    peer.send(&listen);
    let acknowledged = peer.message();
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    peer.send(&modern("tools/call", json!({"name": "test_trigger_tool_change"})));
    let params = json!({"_meta": {"io.modelcontextprotocol/subscriptionId": "sub"}});
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": params});
    // The result and the notification travel on two streams of the same pipe: either may be first.
    let messages = [peer.message(), peer.message()];
    assert!(messages.contains(&changed), "{messages:?}");
}

#[test]
fn http_refuses_what_the_headers_or_the_meta_get_wrong() {
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
