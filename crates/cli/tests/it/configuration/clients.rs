//! What a client of `serve` is told when it starts, and what it reads of calls that go on.

use serde_json::{Value, json};

use crate::command_line::cli::ok;
use crate::serving::gateway::Gateway;
use crate::support::{Fixture, until};

#[test]
fn a_hanging_server_delays_instructions_briefly() {
    let fixture = Fixture::with("mcpServers:\n  mute: {command: sleep, args: ['600']}\n");
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    gateway.handshake();
    assert!(gateway.tool_names().contains(&"fs__read".to_owned()));
}

#[test]
fn a_second_start_serves_the_cached_list() {
    let program = toolwright_testkit::bin("misbehaving-mcp");
    let script = |fixture: &Fixture| {
        let once = fixture.path("once");
        format!("if [ -e {0} ]; then exec sleep 600; fi; touch {0}; exec {1}", once.display(), program.display())
    };
    let fixture = Fixture::new();
    let config = format!("mcpServers:\n  odd: {{command: sh, args: [-c, {:?}]}}\n", script(&fixture));
    fixture.write("project/toolwright.yaml", &config);
    let first = {
        let mut gateway = Gateway::start(&fixture, &["--stdio"]);
        gateway.handshake();
        gateway.has_tool("odd__echo", true);
        gateway.tool_names()
    };
    // It never answers again.
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    gateway.handshake();
    assert_eq!(gateway.tool_names(), first);
    let unknown = gateway.ask("tools/call", json!({"name": "odd__nothing", "arguments": {}}));
    let reported = unknown["error"]["message"].as_str().unwrap_or_default();
    assert!(!reported.contains("still starting"), "its tools are known: {unknown}");
}

#[test]
fn a_waiting_job_is_followed_without_id() {
    let fixture = Fixture::new();
    let mut gateway = Gateway::start(&fixture, &["--stdio", "--policy", "ask"]);
    gateway.handshake();
    let mut called = |name: &str, arguments: Value| {
        let result = gateway.ask("tools/call", json!({"name": name, "arguments": arguments}))["result"].clone();
        let text = result["content"].as_array().into_iter().flatten().filter_map(|block| block["text"].as_str());
        (text.collect::<Vec<_>>().join("\n"), result["structuredContent"].clone())
    };
    for (decision, ran) in [("approve", true), ("deny", false)] {
        let (text, structured) = called("shell__bash", json!({"command": "echo one; echo two"}));
        let id = structured["job"].as_str().unwrap_or_else(|| panic!("{structured}")).to_owned();
        assert!(!text.contains(&id), "a model could approve by it: {text}");
        for words in ["needs a person's approval, and has not run", "`toolwright approvals`", "job__wait"] {
            let reported = format!("{} {}", structured["message"], structured["next"]);
            assert!(text.contains(words) && reported.contains(words), "{words}: {text}\n{structured}");
        }
        let (text, structured) = called("job__wait", json!({"timeout": 0}));
        assert!(text.contains("It has not begun.") && structured["next"].to_string().contains("not begun"), "{text}");
        let asked: Value = serde_json::from_str(&ok(&fixture, &["approvals", "ls", "--json"])).expect("JSON");
        ok(&fixture, &["approvals", decision, asked[0]["id"].as_str().expect("an id")]);
        let (text, structured) = called("job__wait", json!({}));
        assert_eq!(structured["job"], id, "{structured}");
        let result = structured["result"].to_string();
        if ran {
            assert!(text.contains("one\ntwo") && result.contains("one\\ntwo"), "{text}\n{structured}");
        } else {
            assert!(text.contains("denied") && result.contains("denied"), "{text}\n{structured}");
        }
    }
    until("nothing waits", || ok(&fixture, &["approvals", "ls", "--json"]).trim() == "[]");
}
