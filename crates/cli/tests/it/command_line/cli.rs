//! The program as it is run: contracts of its output, and exit codes.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::Fixture;

/// The program in a folder of its own.
pub(crate) fn program(fixture: &Fixture) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolwright"));
    command
        .current_dir(fixture.project())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", fixture.path("home"))
        .stdin(Stdio::null());
    command
}

pub(crate) fn run(fixture: &Fixture, arguments: &[&str]) -> Output {
    program(fixture).args(arguments).output().expect("the program runs")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn ok(fixture: &Fixture, arguments: &[&str]) -> String {
    let output = run(fixture, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).expect("text")
}

pub(crate) fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", String::from_utf8_lossy(&output.stdout), stderr(output)))
}

/// The program must end with this code and say these words on standard error.
pub(crate) fn fails(fixture: &Fixture, arguments: &[&str], code: i32, words: &[&str]) {
    let output = run(fixture, arguments);
    let stderr_text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr_text}");
    for word in words {
        assert!(stderr_text.contains(word), "{arguments:?}: {word:?} is not in: {stderr_text}");
    }
}

#[test]
fn tools_ls_has_its_contract() {
    let fixture = Fixture::new();
    let listed: Value = serde_json::from_str(&ok(&fixture, &["tools", "ls", "--json"])).expect("json");
    let tools = listed.as_array().expect("an array");
    let read = tools.iter().find(|tool| tool["wire_name"] == "fs__read").expect("fs__read");
    let keys: Vec<&str> = read.as_object().expect("object").keys().map(String::as_str).collect();
    assert_eq!(keys, ["id", "wire_name", "description", "parameters", "tags", "safe", "effects", "provider"]);
    assert_eq!((&read["id"], &read["effects"]["read_only"]), (&json!("fs:read@1.0.0"), &json!(true)));
    for name in ["fs__write", "fs__edit", "fs__glob", "fs__grep", "fs__tree", "shell__bash", "web__fetch"] {
        assert!(tools.iter().any(|tool| tool["wire_name"] == name), "{name}");
    }
    let only: Value =
        serde_json::from_str(&ok(&fixture, &["tools", "ls", "--namespace", "web", "--json"])).expect("json");
    assert_eq!(only.as_array().map(Vec::len), Some(1));
}

#[test]
fn tools_search_has_its_contract() {
    let fixture = Fixture::new();
    let found: Value =
        serde_json::from_str(&ok(&fixture, &["tools", "search", "fs__read", "--limit", "2", "--json"])).expect("json");
    assert_eq!(found[0]["wire_name"], "fs__read");
    assert_eq!(found[0]["score"], json!(100.0));
    let keys: Vec<&str> = found[0].as_object().expect("object").keys().map(String::as_str).collect();
    assert_eq!(keys, ["id", "wire_name", "score", "reason"]);
    assert!(found.as_array().is_some_and(|hits| hits.len() <= 2));
    let similar: Value = serde_json::from_str(&ok(&fixture, &["tools", "search", "fecth", "--json"])).expect("json");
    assert_eq!((&similar[0]["wire_name"], &similar[0]["reason"]), (&json!("web__fetch"), &json!("similar words")));
    assert!(
        similar[0]["id"].is_string() && similar[0]["score"].as_f64().is_some_and(|score| score < 10.0),
        "{similar}"
    );
}

#[test]
fn tools_show_names_a_tool_or_the_nearest() {
    let fixture = Fixture::new();
    assert!(ok(&fixture, &["tools", "show", "fs__read"]).contains("fs:read@1.0.0"));
    let shown: Value =
        serde_json::from_str(&ok(&fixture, &["tools", "show", "fs:read@1.0.0", "--json"])).expect("json");
    assert_eq!(shown["definition"]["id"], "fs:read@1.0.0");
    fails(&fixture, &["tools", "show", "fs__raed"], 3, &["fs__raed", "did you mean fs__read"]);
}

#[test]
fn every_failure_has_its_exit_code() {
    let fixture =
        Fixture::with("policy:\n  rules:\n    - effect: deny\n      tool: fs:write\n      reason: it is frozen\n");
    fails(&fixture, &["call", "fs__read", "{}"], 1, &["invalid_parameters", "path"]);
    fails(&fixture, &["call", "fs__read", "{\"path\":"], 1, &["invalid_parameters", "not JSON"]);
    fails(&fixture, &["call", "fs__read", "path=missing.txt"], 1, &["execution_error"]);
    fails(
        &fixture,
        &["call", "shell__bash", "{\"command\": \"sleep 30\"}", "--timeout", "200ms"],
        1,
        &["longer than 200ms"],
    );
    fails(&fixture, &["call", "fs__raed", "{}"], 3, &["unknown_tool", "fs__read"]);
    fails(&fixture, &["call", "fs__write", "{\"path\": \"x\", \"content\": \"y\"}"], 4, &["denied", "it is frozen"]);
    fails(&fixture, &["call", "fs__read", "path=/etc/hostname"], 4, &["not_permitted"]);
    fails(&fixture, &["call", "fs__read", "path=a", "path"], 2, &["key=value"]);
    fails(&fixture, &["call"], 2, &["Usage"]);
    fails(&fixture, &["frobnicate"], 2, &["unrecognized subcommand"]);
    fails(&fixture, &["tools", "ls", "--config", "none.yaml"], 2, &["none.yaml"]);
    fails(&fixture, &["run", "x"], 2, &["--policy"]);
    fails(&fixture, &["serve", "--http", "0.0.0.0:0"], 2, &["token"]);
    fails(&Fixture::with("defualts: {}\n"), &["tools", "ls"], 2, &["toolwright.yaml:1", "did you mean `defaults`"]);
    let rejected = run(&fixture, &["call", "fs__raed", "--json"]);
    let outcome = json_of(&rejected);
    assert_eq!(
        (&outcome["ok"], &outcome["error"]["kind"], &outcome["namespace"]),
        (&json!(false), &json!("unknown_tool"), &json!(""))
    );
}

#[test]
fn help_documents_the_exit_codes_and_every_command() {
    let help = ok(&Fixture::new(), &["--help"]);
    let whole = ok(&Fixture::new(), &["help"]);
    assert!(whole.contains("Exit codes:") && whole.contains("130"), "{whole}");
    for word in [
        "Start:",
        "Use:",
        "Operate:",
        "Develop:",
        "serve",
        "run",
        "chat",
        "call",
        "tools",
        "init",
        "add",
        "remove",
        "import",
        "doctor",
        "config",
        "completions",
    ] {
        assert!(help.contains(word), "{word}");
    }
    assert!(ok(&Fixture::new(), &["--version"]).starts_with("toolwright "));
}

#[test]
fn completions_are_written_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = ok(&Fixture::new(), &["completions", shell]);
        assert!(script.contains("toolwright") && script.contains("doctor"), "{shell}");
    }
}

#[test]
fn completions_are_json_when_json_was_requested() {
    let printed = json_of(&run(&Fixture::new(), &["completions", "bash", "--json"]));
    assert_eq!(printed["shell"], "bash");
    assert!(printed["script"].as_str().is_some_and(|script| script.contains("complete")), "{printed}");
}

#[test]
fn config_commands_print_json() {
    let fixture = Fixture::with("mcpServers:\n  a:\n    command: x\n    env: {API_KEY: literal-secret}\n");
    let schema: Value = serde_json::from_str(&ok(&fixture, &["config", "schema"])).expect("json");
    assert!(schema["properties"]["mcpServers"].is_object());
    let shown = ok(&fixture, &["config", "show"]);
    assert!(shown.contains("\"command\"") && !shown.contains("literal-secret"), "{shown}");
}

#[test]
fn missing_things_share_one_exit_code() {
    let fixture = Fixture::with("mcpServers:\n  tickets: {url: http://127.0.0.1:1/mcp}\n");
    for (arguments, words) in [
        (&["tools", "show", "fs__raed"][..], &["fs__read"][..]),
        (&["jobs", "read", "bash_00000000"], &["toolwright jobs ls"]),
        (&["jobs", "show", "bash_00000000"], &["toolwright jobs ls"]),
        (&["trace", "nothing"], &["toolwright trace"]),
        (&["approvals", "approve", "none"], &["approvals ls"]),
        (&["approvals", "answer", "none", "a=b"], &["approvals ls"]),
        (&["approvals", "revoke", "none"], &["none"]),
        (&["pins", "show", "none"], &["pins ls"]),
        (&["mcp", "login", "ticket"], &["did you mean `tickets`?"]),
        (&["remove", "ticket"], &["did you mean `tickets`?"]),
        (&["run", "--resume", "run-none", "--policy", "trusted"], &["run-none"]),
    ] {
        fails(&fixture, arguments, 3, words);
        let output = run(&fixture, &[arguments, &["--json"]].concat());
        let kind = if arguments[0] == "tools" { "unknown_tool" } else { "not_found" };
        assert_eq!(json_of(&output)["error"]["kind"], kind, "{arguments:?}");
    }
}

#[test]
fn listening_needs_an_address_with_port() {
    let fixture = Fixture::new();
    for (written, example) in [
        ("127.0.0.1", "like 127.0.0.1:7117"),
        ("::1", "like [::1]:7117"),
        (":7118", "like 127.0.0.1:7118"),
        ("localhost:7118", "like 127.0.0.1:7118"),
        ("x", "like 127.0.0.1:7117"),
    ] {
        fails(&fixture, &["serve", "--http", written], 2, &[example]);
    }
}

#[test]
fn failures_are_json_when_json_was_requested() {
    let fixture = Fixture::new();
    fixture.write("project/bad.yaml", "defualts: {}\n");
    for (arguments, code, kind) in [
        (&["tools", "show", "fs__raed"][..], 3, "unknown_tool"),
        (&["tools", "ls", "--config", "bad.yaml"], 2, "usage"),
        (&["config", "show", "--config", "bad.yaml"], 2, "usage"),
        (&["run", "x"], 2, "usage"),
        (&["run", "x", "--policy", "ask"], 2, "usage"),
        (&["init", "--config", "bad.yaml"], 2, "usage"),
        (&["add", "y", "--url", "notaurl"], 2, "usage"),
        (&["remove", "none"], 3, "not_found"),
        (&["import", "codex"], 2, "usage"),
        (&["serve", "--http", "0.0.0.0:0"], 2, "usage"),
        (&["call", "fs__read", "path=a", "path"], 2, "usage"),
        (&["call"], 2, "usage"),
        (&["frobnicate"], 2, "usage"),
    ] {
        let output =
            program(&fixture).args(arguments).arg("--json").env("OLLAMA_HOST", "127.0.0.1:1").output().expect("runs");
        let error = &json_of(&output)["error"];
        assert_eq!((output.status.code(), &error["kind"]), (Some(code), &json!(kind)), "{arguments:?}");
        let message = error["message"].as_str().expect("a message");
        let first = message.lines().next().unwrap_or_default();
        assert!(!first.is_empty() && stderr(&output).contains(first), "{arguments:?}: {message}");
    }
    let version = json_of(&run(&fixture, &["--version", "--json"]));
    assert_eq!(version, json!({"name": "toolwright", "version": env!("CARGO_PKG_VERSION")}));
    let plain = run(&fixture, &["tools", "show", "fs__raed"]);
    assert!(plain.stdout.is_empty());
}

#[test]
fn zero_limits_are_refused() {
    let fixture = Fixture::new();
    fails(&fixture, &["call", "fs__read", "--timeout", "0s"], 2, &["no time at all"]);
    fails(&fixture, &["run", "x", "--window", "0"], 2, &["--window"]);
}

#[test]
fn one_bad_server_leaves_other_tools() {
    let fixture = Fixture::with("mcpServers:\n  gone:\n    command: no-such-program-anywhere\n");
    let output = run(&fixture, &["tools", "ls"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("fs__read"));
    assert!(stderr(&output).contains("gone"), "{}", stderr(&output));
    let deaf = Fixture::with("mcpServers:\n  deaf:\n    url: http://127.0.0.1:1/mcp\n");
    let stderr_text = stderr(&run(&deaf, &["tools", "ls"]));
    assert!(stderr_text.contains("deaf") && !stderr_text.contains("rmcp"), "told once, in our words: {stderr_text}");
    fails(&fixture, &["call", "gone__x", "{}"], 3, &["gone", "down"]);
}

#[test]
fn secrets_are_never_printed() {
    let fixture = Fixture::with(
        "mcpServers:\n  leaky:\n    command: sh\n    args: [-c, 'echo \"my token is $T\" >&2; exit 1']\n    env: {T: \"${SECRET_TOKEN}\"}\n  literal:\n    command: sh\n    args: [-c, 'echo \"my token is $A_TOKEN\" >&2; exit 1']\n    env: {A_TOKEN: tok-literal-9}\n",
    );
    for arguments in
        [&["tools", "ls"][..], &["doctor"], &["doctor", "--json"], &["call", "leaky__x"], &["-vvv", "tools", "ls"]]
    {
        let output = program(&fixture).args(arguments).env("SECRET_TOKEN", "tok-123456789").output().expect("runs");
        let all = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        assert!(all.contains("leaky") && !all.contains("tok-123456789"), "{arguments:?}: {all}");
        assert!(!all.contains("tok-literal-9"), "{arguments:?}: {all}");
    }
    let output = program(&fixture)
        .args(["call", "shell__bash", "command=echo $SECRET_TOKEN"])
        .env("SECRET_TOKEN", "tok-123456789")
        .output()
        .expect("runs");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("tok-123456789"));
}

#[cfg(target_os = "linux")]
#[test]
fn only_terminals_get_colours() {
    let fixture = Fixture::new();
    let plain = ok(&fixture, &["tools", "ls"]);
    assert!(!plain.contains('\u{1b}'));
    // util-linux gives a command a terminal; without it there is nothing to test with.
    let command = format!("{} tools ls", env!("CARGO_BIN_EXE_toolwright"));
    let mut script = Command::new("script");
    script
        .args(["-qec", &command, "/dev/null"])
        .current_dir(fixture.project())
        .env("HOME", fixture.path("home"))
        .env("TERM", "xterm-256color");
    if let Ok(output) = script.stdin(Stdio::null()).output() {
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(shown.contains("\u{1b}[1mfs__read"), "{shown}");
    }
}

#[test]
fn a_catalogue_is_forgotten_on_demand() {
    let fixture = Fixture::new();
    fails(&fixture, &["catalogue", "forget", "acme"], 1, &["nothing is known of a catalogue acme"]);
}

#[test]
fn help_is_short_or_whole() {
    let fixture = Fixture::new();
    let (short, whole) = (ok(&fixture, &["call", "--help"]), ok(&fixture, &["help", "call"]));
    assert!(short.contains("Examples:") && !short.contains("Exit codes:") && !short.contains("--state-dir"), "{short}");
    for word in ["Examples:", "Exit codes:", "--state-dir", "only a deny rule stops it"] {
        assert!(whole.contains(word), "{word}: {whole}");
    }
    assert_eq!(ok(&fixture, &["call", "-h"]), short);
}

#[test]
fn a_piped_listing_has_whole_columns() {
    let listed = ok(&Fixture::new(), &["tools", "ls"]);
    let (head, rows) = listed.split_once('\n').expect("a head");
    assert_eq!(head.split_whitespace().collect::<Vec<_>>(), ["TOOL", "EFFECTS", "TOKENS", "DESCRIPTION"]);
    let read = rows.lines().find(|row| row.starts_with("fs__read ")).expect("fs__read");
    assert_eq!(read.split_whitespace().nth(1), Some("reads"), "{read}");
    assert!(!listed.contains('…') && !listed.contains('\u{1b}'), "{listed}");
    let at = head.find("DESCRIPTION").expect("the last column");
    assert!(rows.lines().all(|row| row.is_char_boundary(at) && row[..at].ends_with("  ")), "{listed}");
}

#[test]
fn listing_without_model_names_missing_tools() {
    let output = run(&Fixture::new(), &["tools", "ls"]);
    assert!(stderr(&output).contains("not listed: the llm__ tools"), "{}", stderr(&output));
}
