use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::peer::{HttpPeer, Peer};

const PROGRAM: &str = env!("CARGO_BIN_EXE_misbehaving-mcp");

fn start(args: &[&str]) -> Peer {
    let mut peer = Peer::start(PROGRAM, args);
    let params =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
    let answer = peer.request(0, "initialize", &params);
    assert_eq!(answer["result"]["protocolVersion"], "2025-06-18");
    peer.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    peer
}

fn names(list: &Value) -> Vec<&str> {
    list["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap_or("?")).collect()
}

#[test]
fn flags_change_the_list() {
    let check = |args: &[&str], name: &str, times: usize| {
        let list = start(args).request(1, "tools/list", &json!({}));
        assert_eq!(names(&list).iter().filter(|listed| **listed == name).count(), times, "{args:?}");
    };
    check(&[], "echo", 1);
    check(&["--dup-names"], "echo", 2);
    check(&["--bad-tool"], "?", 1);
    check(&["--many", "3"], "many_0003", 1);
    check(&["--many", "3"], "many_0004", 0);
}

#[test]
fn discover_is_refused_ignored_or_answered() {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"_meta": meta});
    let check = |args: &[&str], part: &str, expect: &Value| {
        let answer = Peer::start(PROGRAM, args).request(1, "server/discover", &params);
        assert_eq!(answer.pointer(part), Some(expect), "{args:?}: {answer}");
    };
    check(&[], "/error/code", &json!(-32601));
    check(&["--modern"], "/result/supportedVersions/0", &json!("2026-07-28"));

    let mut peer = Peer::start(PROGRAM, &["--modern", "--silent-discover"]);
    peer.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": params}));
    for id in [2, 3] {
        peer.send(&json!({"jsonrpc": "2.0", "id": id, "method": "ping"}));
        assert_eq!(peer.message()["id"], id, "the discovery stays unanswered");
    }
}

#[test]
fn processes_end_as_their_flags_say() {
    let mut peer = start(&["--die-after-list"]);
    assert!(names(&peer.request(1, "tools/list", &json!({}))).contains(&"echo"));
    assert_eq!(peer.message(), Value::Null);
    assert_eq!(peer.end().code(), Some(3));

    let mut peer = start(&[]);
    peer.begin_call(1, "die", &json!({}));
    assert_eq!(peer.message(), Value::Null);
    assert_eq!(peer.end().code(), Some(3));

    assert_eq!(Peer::start(PROGRAM, &["--exit-at-once", "7"]).end().code(), Some(7));
    assert_eq!(start(&[]).end().code(), Some(0));
}

#[test]
fn slow_reports_progress_then_answers() {
    let mut peer = start(&[]);
    peer.begin_call(5, "slow", &json!({"ms": 20}));
    for step in 1..=10 {
        let params = json!({"progressToken": 5, "progress": step, "total": 10});
        assert_eq!(peer.message(), json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}));
    }
    assert_eq!(peer.message()["result"]["content"][0]["text"], "done at last");
}

#[test]
fn cancelled_calls_stay_unanswered() {
    let mut peer = start(&[]);
    let cancel = |id: u64| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    peer.begin_call(1, "observe_cancel", &json!({"ms": 60_000}));
    peer.begin_call(2, "hang", &json!({}));
    peer.begin_call(3, "ignore_cancel", &json!({"ms": 100}));
    for id in 1..=3 {
        peer.send(&cancel(id));
    }
    assert_eq!(peer.message()["id"], 3, "only this one answers");
    // Each call notes its cancel by itself, some time after it was sent.
    let mut ids = Vec::new();
    for id in 4..500 {
        peer.begin_call(id, "cancelled_ids", &json!({}));
        ids = peer.answer(id)["result"]["structuredContent"]["ids"].as_array().unwrap().clone();
        if ids.len() == 3 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    ids.sort_by_key(Value::as_u64);
    assert_eq!(ids, [json!(1), json!(2), json!(3)]);
}

#[test]
fn floods_have_the_size_asked_for() {
    let mut peer = start(&[]);
    assert_eq!(peer.call(1, "flood", &json!({"bytes": 100_000})).len(), 100_000);
    assert_eq!(peer.call(2, "stderr_flood", &json!({"bytes": 200_000})), "standard error is full of lines");
    peer.begin_call(3, "huge_line", &json!({}));
    assert!(peer.line().len() > 16 << 20);
}

#[test]
fn invalid_output_precedes_the_answer() {
    let mut peer = start(&[]);
    peer.begin_call(1, "garbage", &json!({}));
    let broken = (0..6).filter(|_| serde_json::from_slice::<Value>(&peer.line()).is_err()).count();
    assert_eq!(broken, 4);
    assert_eq!(peer.message()["result"]["content"][0]["text"], "that was garbage, this is the answer");
}

#[test]
fn a_changed_list_is_announced() {
    let mut peer = start(&[]);
    peer.begin_call(1, "change_list", &json!({}));
    assert_eq!(peer.message()["method"], "notifications/tools/list_changed");
    assert_eq!(peer.answer(1)["id"], 1);
    assert!(names(&peer.request(2, "tools/list", &json!({}))).contains(&"added_1"));
    assert_eq!(peer.call(3, "added_1", &json!({})), "added_1");
}

#[test]
fn the_counter_file_survives_a_killed_server() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("counter");
    let mut peer = start(&["--counter", file.to_str().unwrap()]);
    assert_eq!(peer.call(1, "counter", &json!({"label": "a"})), "counted");
    peer.begin_call(2, "counter", &json!({"label": "b", "then": "die"}));
    assert_eq!(peer.message(), Value::Null);
    let lines = fs::read_to_string(&file).unwrap();
    let labels: Vec<_> = lines.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(labels, ["a", "b"]);
}

#[test]
fn spawned_children_have_own_sessions() {
    let mut peer = start(&[]);
    peer.begin_call(1, "spawn_child", &json!({}));
    let pid = peer.answer(1)["result"]["structuredContent"]["pid"].as_u64().unwrap().to_string();
    assert!(peer.end().success());
    // pid (comm) state ppid pgrp session: the session leader's id is its own, once `setsid` has run.
    let is_leader = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().split(' ').nth(3) == Some(pid.as_str())
    };
    let leads = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        is_leader()
    });
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert!(leads);
}

#[test]
fn http_has_the_same_tools() {
    let peer = HttpPeer::start(PROGRAM, &["--bad-tool"]);
    let initialize =
        json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}});
    let response = peer.post(&[], &initialize);
    let session = response.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
    let call = |name: &str, arguments: Value| {
        let params = json!({"name": name, "arguments": arguments, "_meta": {"progressToken": "p"}});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        peer.post(&[("mcp-session-id", session)], &message)
    };
    let check = |response: &str, parts: &[&str]| {
        let mut rest = response;
        for part in parts {
            let at = rest.find(part).unwrap_or_else(|| panic!("no {part:?} in {rest}"));
            rest = &rest[at + part.len()..];
        }
    };
    check(&call("echo", json!({"text": "hi"})), &["200 OK", "application/json", r#""text":"hi""#]);
    check(
        &call("slow", json!({"ms": 10})),
        &[
            "text/event-stream",
            r#"data: {"jsonrpc":"2.0","method":"notifications/progress""#,
            r#""progress":10"#,
            "done at last",
        ],
    );
    check(&call("garbage", json!({})), &["text/event-stream", "Listening for your orders", "this is the answer"]);
    check(&peer.post(&[("mcp-session-id", "none")], &json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})), &["404"]);
}

#[test]
fn other_crates_find_the_binaries() {
    assert_eq!(toolwright_testkit::bin("misbehaving-mcp"), Path::new(PROGRAM));
}
