//! `call`: one process after the other, on one workspace root.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::Stdio;

use serde_json::json;

use crate::command_line::cli::{fails, json_of, ok, program, run, stderr};
use crate::support::Fixture;

#[test]
fn a_stored_output_outlives_its_call() {
    let fixture = Fixture::new();
    let line = "0123456789abcdef\n";
    fixture.write("project/big.txt", &line.repeat(40_000));
    let reported = run(&fixture, &["call", "shell__bash", r#"{"command": "cat big.txt"}"#, "--max-output", "12288"]);
    let reported = stderr(&reported);
    let (_, rest) = reported.split_once("handle=").unwrap_or_else(|| panic!("no handle in {reported}"));
    let handle: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
    let read = json!({"handle": handle, "offset": 300_000, "limit": 400}).to_string();
    let part = ok(&fixture, &["call", "output__read", &read]);
    assert!(part.contains(line), "{handle}: {part}");
}

/// Answers requests, one a connection, and gives the idempotency key of each.
fn keys_of(listener: &TcpListener, requests: usize) -> Vec<String> {
    let mut keys = Vec::new();
    for stream in listener.incoming().take(requests) {
        let mut stream = stream.expect("connection");
        let lines = BufReader::new(stream.try_clone().expect("stream")).lines().map_while(Result::ok);
        for line in lines.take_while(|line| !line.is_empty()) {
            if let Some((_, key)) =
                line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("idempotency-key"))
            {
                keys.push(key.trim().to_owned());
            }
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").expect("answer");
    }
    keys
}

#[test]
fn calls_of_a_session_have_own_keys() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("port");
    let url = format!("http://{}/orders", listener.local_addr().expect("address"));
    let fixture = Fixture::with(&format!(
        "restTools:\n  order:\n    description: x\n    method: POST\n    url: {url}\n    allow_private: true\n"
    ));
    let server = std::thread::spawn(move || keys_of(&listener, 2));
    for _ in 0..2 {
        ok(&fixture, &["call", "rest__order", "{}"]);
    }
    let keys = server.join().expect("server");
    assert!(keys.len() == 2 && keys[0] != keys[1], "{keys:?}");
}

#[test]
fn call_has_its_contract_in_all_three_spellings() {
    let fixture = Fixture::new();
    fixture.write("project/a.txt", "hello\n");
    for arguments in [&["{\"path\": \"a.txt\"}"][..], &["path=a.txt"]] {
        let mut all = vec!["call", "fs__read", "--json"];
        all.extend(arguments);
        let output = run(&fixture, &all);
        let outcome = json_of(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(
            (&outcome["ok"], &outcome["namespace"], &outcome["kind"]),
            (&json!(true), &json!("fs"), &json!("builtin"))
        );
        assert!(outcome["text"].as_str().is_some_and(|text| text.contains("hello")), "{outcome}");
        assert!(
            outcome["content"][0]["type"] == "text" && outcome["latency_ms"].is_u64() && outcome["extras"].is_object()
        );
    }
    let mut child = program(&fixture)
        .args(["call", "fs__read", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("spawn");
    child.stdin.take().expect("stdin").write_all(b"{\"path\": \"a.txt\"}").expect("write");
    let output = child.wait_with_output().expect("ends");
    assert!(String::from_utf8_lossy(&output.stdout).contains("hello"));
}

#[test]
fn repaired_arguments_are_reported_with_their_fault() {
    let fixture = Fixture::new();
    let output = run(&fixture, &["call", "shell__bash", "{\"command\": echo ran}"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().next(), Some("ran"));
    let said = stderr(&output);
    assert!(said.starts_with("warning: the arguments are not valid JSON: ") && said.contains("repaired"), "{said}");
    assert_eq!(stderr(&run(&fixture, &["call", "shell__bash", "{\"command\": \"echo ran\"}"])), "");
}

#[test]
fn a_failed_tool_shows_its_last_line() {
    let fixture = Fixture::new();
    for lines in ["1", "2000"] {
        let command = format!("echo this went wrong; seq {lines}; exit 3");
        let output = run(&fixture, &["call", "shell__bash", &json!({"command": command}).to_string()]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("this went wrong\n1\n"));
        assert_eq!(stderr(&output).trim(), "error: execution_error: exit code 3");
    }
}

#[cfg(unix)]
#[test]
fn a_cancelled_call_ends_with_130() {
    let fixture = Fixture::new();
    let child = program(&fixture)
        .args(["call", "shell__bash", "{\"command\": \"touch begun; sleep 60\"}"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("spawn");
    crate::support::until("the call begins", || fixture.path("project/begun").exists());
    crate::support::signal(child.id(), "INT");
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
}

#[test]
fn a_call_prints_the_whole_result() {
    let fixture = Fixture::new();
    let command = json!({"command": "seq 1 30000"}).to_string();
    let whole = ok(&fixture, &["call", "shell__bash", &command]);
    assert_eq!(whole.lines().filter(|line| line.parse::<u32>().is_ok()).count(), 30_000);
    let printed = json_of(&run(&fixture, &["call", "shell__bash", &command, "--json"]));
    assert!(printed.get("truncated").is_none() && printed["text"].as_str().is_some_and(|text| text.len() > 160_000));
    let cut = run(&fixture, &["call", "shell__bash", &command, "--max-output", "4000", "--json"]);
    let printed = json_of(&cut);
    assert_eq!(
        (&printed["truncated"], printed["extras"]["tool_output"]["bytes"].as_u64()),
        (&json!(true), Some(168_894))
    );
    assert!(printed["text"].as_str().is_some_and(|text| text.len() <= 4000), "{printed}");
    let cut = run(&fixture, &["call", "shell__bash", &command, "--max-output", "4000"]);
    assert!(cut.stdout.len() <= 4001 && stderr(&cut).contains("--max-output"), "{}", stderr(&cut));
}

#[test]
fn unknown_names_get_suggestions_from_their_source() {
    let slow = toolwright_testkit::bin("misbehaving-mcp");
    let fixture = Fixture::with(&format!(
        "mcpServers:\n  slow: {{command: {0}, args: [--slow-start, '4000']}}\n  other: {{command: {0}}}\n",
        slow.display()
    ));
    let said = stderr(&run(&fixture, &["call", "other__ecoh", "{}"]));
    assert!(said.contains("other__echo") && !said.contains("starting"), "{said}");
}

#[test]
fn tools_of_unusable_entries_give_the_reason() {
    let fixture = Fixture::with(
        "mcp_servers:\n  off: {command: x, disabled: true}\n  half: {command: x, url: 'http://h/'}\nrest_tools:\n  \
         blocked: {description: d, url: 'https://h/${NOT_SET}'}\n  idle: {description: d, url: 'https://h/', enabled: false}\n",
    );
    for (tool, words) in [
        ("off__x", &["server off is disabled in the configuration"][..]),
        ("half__x", &["server half was left out", "both `command` and `url`"]),
        ("rest__blocked", &["REST tool blocked was left out", "NOT_SET is not set"]),
        ("rest__idle", &["REST tool idle is disabled in the configuration"]),
    ] {
        fails(&fixture, &["call", tool, "{}"], 3, &[&["unknown_tool"], words].concat());
    }
}

#[test]
fn a_command_does_not_inherit_configured_keys() {
    let fixture = Fixture::with(
        "server:\n  token: ${GATE}\nmodels:\n  endpoints:\n    mine: {api: openai_chat, base_url: 'http://h/v1', \
         api_key: '${MINE}'}\n",
    );
    let mut command = program(&fixture);
    command.env("GATE", "gate-value").env("MINE", "mine-value").env("OTHER", "other-value");
    let printenv = "{\"command\": \"env\"}";
    let output = command.args(["call", "shell__bash", printenv]).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("OTHER=other-value"), "{said} {}", stderr(&output));
    assert!(!said.contains("GATE=") && !said.contains("MINE="), "{said}");
}

#[test]
fn the_owner_reads_no_manual_first() {
    let server = toolwright_testkit::bin("misbehaving-mcp");
    let echo = json!({"manualRequired": true, "documentation": "All there is to know."});
    let file = json!({"mcpServers": {"t": {"command": server, "tools": {"echo": echo}}}});
    let fixture = Fixture::with(&file.to_string());
    assert!(ok(&fixture, &["call", "t__echo", "text=hello"]).contains("hello"));
    for arguments in [&["name=t__echo"][..], &[r#"{"name": "t__echo"}"#]] {
        let manual = ok(&fixture, &[&["call", "job__info"], arguments].concat());
        assert!(manual.contains("All there is to know."), "{arguments:?}: {manual}");
    }
}

#[test]
fn missing_tools_give_the_reason() {
    let keyless = "models: {default: openai/gpt-5-mini}\n";
    for (file, arguments, expect) in [
        ("{}\n", &["tools", "ls"][..], "the llm__ tools, as no model is set"),
        (
            keyless,
            &["tools", "ls"],
            "the llm__ tools, as openai/gpt-5-mini cannot be asked: model `openai/gpt-5-mini` has no key",
        ),
        ("{}\n", &["call", "web__search", "query=x"], "name an engine under `web.search`"),
        ("{}\n", &["call", "agent__todo", "{}"], "add `todo` to `defaults.agent_tools`"),
    ] {
        let said = stderr(&run(&Fixture::with(file), arguments));
        let line = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(line.contains(expect), "{arguments:?}: {said}");
    }
}
