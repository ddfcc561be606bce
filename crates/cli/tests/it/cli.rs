//! The program as it is run: contracts of its output, and exit codes.

use std::io::Write as _;
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

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", String::from_utf8_lossy(&output.stdout), stderr(output)))
}

/// The program must end with this code and say these words on standard error.
fn fails(fixture: &Fixture, arguments: &[&str], code: i32, words: &[&str]) {
    let output = run(fixture, arguments);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{arguments:?}: {word:?} is not in: {said}");
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
fn mended_arguments_are_told_with_their_fault() {
    let fixture = Fixture::new();
    let output = run(&fixture, &["call", "shell__bash", "{\"command\": echo ran}"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().next(), Some("ran"));
    let said = stderr(&output);
    assert!(said.starts_with("warning: the arguments are no valid JSON: ") && said.contains("mended"), "{said}");
    assert_eq!(stderr(&run(&fixture, &["call", "shell__bash", "{\"command\": \"echo ran\"}"])), "");
}

#[test]
fn a_failed_tool_is_told_by_its_last_line() {
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
fn completions_are_json_where_json_was_asked_for() {
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
fn init_add_and_remove_keep_comments() {
    let fixture = Fixture::new();
    ok(&fixture, &["init"]);
    fails(&fixture, &["init"], 2, &["left as it is"]);
    let before = fixture.read("project/toolwright.yaml");
    ok(&fixture, &["add", "git", "--env", "A=1", "--", "uvx", "mcp-server-git", "-v"]);
    ok(&fixture, &["add", "tickets", "--url", "https://h/mcp", "--header", "Authorization: Bearer ${TICKETS}"]);
    let text = fixture.read("project/toolwright.yaml");
    assert!(text.contains("    args: [\"mcp-server-git\", \"-v\"]") && text.contains("Bearer ${TICKETS}"), "{text}");
    fails(&fixture, &["add", "git", "--", "x"], 2, &["there already"]);
    let shown: Value = serde_json::from_str(&ok(&fixture, &["config", "show"])).expect("json");
    assert_eq!(shown["mcp_servers"]["git"]["args"], json!(["mcp-server-git", "-v"]));
    ok(&fixture, &["remove", "git"]);
    ok(&fixture, &["remove", "tickets"]);
    assert_eq!(fixture.read("project/toolwright.yaml"), before);
    fails(&fixture, &["remove", "git"], 3, &["is called `git`", "toolwright.yaml"]);
}

#[test]
fn remove_takes_out_whatever_was_written() {
    let text = "mcpServers:\n  both: {command: x}\nopenapi:\n  # the shop\n  shop:\n    document: shop.json\nrestTools:\n  both:\n    description: x\n    url: https://h/x\n  issue:\n    description: x\n    url: https://h/x\ncatalogues:\n  acme:\n    url: https://h/x\n    keys: [k]\nllmTools:\n  word:\n    description: x\n    prompt: x\n";
    let fixture = Fixture::with(text);
    fails(&fixture, &["remove", "both"], 2, &["mcpServers.both or restTools.both"]);
    fails(&fixture, &["remove", "shopp"], 3, &["is called `shopp`", "did you mean `shop`?"]);
    for name in ["shop", "restTools.both", "acme", "word"] {
        ok(&fixture, &["remove", name]);
    }
    assert_eq!(
        fixture.read("project/toolwright.yaml"),
        "mcpServers:\n  both: {command: x}\nopenapi:\nrestTools:\n  issue:\n    description: x\n    url: https://h/x\ncatalogues:\nllmTools:\n"
    );
    ok(&fixture, &["remove", "issue"]);
}

#[test]
fn what_is_not_there_ends_with_one_code() {
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
fn a_name_that_is_no_tool_is_told_without_those_of_other_sources() {
    let slow = toolwright_testkit::bin("misbehaving-mcp");
    let fixture = Fixture::with(&format!(
        "mcpServers:\n  slow: {{command: {0}, args: [--slow-start, '4000']}}\n  other: {{command: {0}}}\n",
        slow.display()
    ));
    let said = stderr(&run(&fixture, &["call", "other__ecoh", "{}"]));
    assert!(said.contains("other__echo") && !said.contains("starting"), "{said}");
}

#[test]
fn an_address_to_listen_at_is_written_with_its_port() {
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
fn add_refuses_what_could_never_work() {
    let fixture = Fixture::new();
    for (arguments, words) in [
        (&["add", "", "--", "x"][..], "no name"),
        (&["add", "a\u{202e}b", "--", "x"], "no name"),
        (&["add", "a\nb", "--", "x"], "no name"),
        (&["add", "y", "--url", "notaurl"], "https://host/mcp"),
        (&["add", "y", "--url", "file:///etc/passwd"], "https://host/mcp"),
        (&["add", "y", "--", ""], "after `--`"),
        (&["add", "y"], "its address with --url"),
        (&["import", "mcp-json", "--prefix", "x"], "--prefix is for `import openapi`"),
    ] {
        fails(&fixture, arguments, 2, &[words]);
        assert!(!fixture.path("project/toolwright.yaml").exists(), "{arguments:?}");
    }
    ok(&fixture, &["add", "y", "--url", "${URL}"]);
}

#[test]
fn failures_are_json_where_json_was_asked_for() {
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
fn limits_of_nothing_are_refused() {
    let fixture = Fixture::new();
    fails(&fixture, &["call", "fs__read", "--timeout", "0s"], 2, &["no time at all"]);
    fails(&fixture, &["run", "x", "--window", "0"], 2, &["--window"]);
}

#[test]
fn import_leaves_toolwright_itself_out() {
    let fixture = Fixture::with("server:\n  http: 127.0.0.1:9117\n");
    let file = fixture.write(
        "x.json",
        r#"{"mcpServers": {
            "a": {"command": "/opt/bin/toolwright", "args": ["serve", "--stdio"]},
            "b": {"type": "http", "url": "http://127.0.0.1:7117/mcp"},
            "c": {"type": "http", "url": "http://localhost:9117/mcp"},
            "d": {"type": "http", "url": "http://localhost:9118/mcp"}
        }}"#,
    );
    let output = run(&fixture, &["import", "claude-code", file.to_str().expect("path"), "--json"]);
    let imported = json_of(&output);
    assert_eq!(imported["servers"], json!({"d": {"url": "http://localhost:9118/mcp"}}));
    let notes: Vec<&str> = imported["notes"].as_array().expect("notes").iter().filter_map(Value::as_str).collect();
    let expect = ["a", "b", "c"].map(|name| format!("{name}: left out: it is Toolwright itself"));
    assert_eq!(notes, expect);
}

#[test]
fn import_shows_no_secret() {
    let fixture = Fixture::new();
    let file = fixture.write(
        "x.json",
        r#"{"mcpServers": {
            "a": {"command": "x", "args": ["--token", "tok-1111", "--header", "X-Any: head-1111"], "env": {"PLAIN": "env-1111"}},
            "b": {"url": "https://me:pw-1111@h/mcp?k=query-1111#frag-1111", "headers": {"X-Any": "head-2222"}}
        }}"#,
    );
    for extra in [&["--dry-run"][..], &["--json", "--dry-run"]] {
        let arguments = [&["import", "mcp-json", file.to_str().expect("path")][..], extra].concat();
        let output = run(&fixture, &arguments);
        let all = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        assert!(all.contains("[secret]") && !all.contains("-1111") && !all.contains("-2222"), "{all}");
    }
}

#[test]
fn import_previews_and_writes_with_secrets_masked() {
    let fixture = Fixture::with("# mine\nmcpServers:\n  filesystem:\n    command: x\n");
    let file = crate::support::data_file("claude_desktop_config.json");
    let file = file.to_str().expect("path");
    let preview = run(&fixture, &["import", "claude-desktop", file, "--dry-run"]);
    let said = stderr(&preview);
    assert!(
        said.contains("would add github") && said.contains("filesystem: left out") && !said.contains("ghp_literal"),
        "{said}"
    );
    assert_eq!(fixture.read("project/toolwright.yaml"), "# mine\nmcpServers:\n  filesystem:\n    command: x\n");
    let written = json_of(&run(&fixture, &["import", "claude-desktop", file, "--json"]));
    assert_eq!(
        (&written["written"], &written["servers"]["github"]["env"]["GITHUB_TOKEN"]),
        (&json!(true), &json!("${GITHUB_TOKEN}"))
    );
    let again = json_of(&run(&fixture, &["import", "claude-desktop", file, "--json"]));
    assert_eq!((&again["written"], &again["servers"]), (&json!(false), &json!({})));
    let text = fixture.read("project/toolwright.yaml");
    assert!(text.starts_with("# mine\n") && text.contains("GITHUB_TOKEN: \"${GITHUB_TOKEN}\""), "{text}");
    assert!(!text.contains("ghp_literal"), "{text}");
    fails(&fixture, &["import", "codex"], 2, &["config.toml"]);
}

#[test]
fn an_imported_secret_is_kept_apart_and_works() {
    let fixture = Fixture::new();
    let server = "import sys\nwhile line := sys.stdin.readline(): pass\n";
    fixture.write("project/server.py", server);
    let entry = json!({"command": "python3", "args": ["server.py"], "env": {"API_TOKEN": "tok-1111"}});
    let file = fixture.write("x.json", &json!({"mcpServers": {"a": entry}}).to_string());
    let file = file.to_str().expect("path");
    let preview = stderr(&run(&fixture, &["import", "mcp-json", file, "--dry-run"]));
    assert!(preview.contains("API_TOKEN would be kept in") && !preview.contains("tok-1111"), "{preview}");
    assert!(!fixture.path("home/.config").exists());
    let written = json_of(&run(&fixture, &["import", "mcp-json", file, "--json"]));
    assert_eq!(written["secrets"]["variables"], json!(["API_TOKEN"]));
    let (kept, text) = ("home/.config/toolwright/secrets.env", fixture.read("project/toolwright.yaml"));
    assert!(text.contains("API_TOKEN: \"${API_TOKEN}\"") && !text.contains("tok-1111"), "{text}");
    assert!(fixture.read(kept).contains("API_TOKEN=tok-1111\n"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(fixture.path(kept)).expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    // The configuration finds it, and a variable of the environment counts before it.
    assert!(!stderr(&run(&fixture, &["config", "show"])).contains("is not set"));
    // Another secret of that name has another.
    let other = entry.to_string().replace("tok-1111", "tok-2222");
    let file = fixture.write("y.json", &format!("{{\"mcpServers\": {{\"b\": {other}}}}}"));
    let written = json_of(&run(&fixture, &["import", "mcp-json", file.to_str().expect("path"), "--json"]));
    assert_eq!(written["secrets"]["variables"], json!(["API_TOKEN_2"]));
    let text = fixture.read(kept);
    assert!(text.contains("API_TOKEN=tok-1111\n") && text.contains("API_TOKEN_2=tok-2222\n"), "{text}");
}

#[test]
fn a_server_gets_the_secret_that_was_kept() {
    let fixture = Fixture::new();
    let script = "import os, pathlib\npathlib.Path('seen').write_text(os.environ.get('API_TOKEN', 'none'))\n";
    fixture.write("project/server.py", script);
    ok(&fixture, &["add", "a", "--env", "API_TOKEN=tok-3333", "--", "python3", "server.py"]);
    assert!(!fixture.read("project/toolwright.yaml").contains("tok-3333"));
    run(&fixture, &["--config", "toolwright.yaml", "tools", "ls"]);
    assert_eq!(fixture.read("project/seen"), "tok-3333");
}

#[test]
fn a_removed_server_takes_its_secret_along() {
    let fixture = Fixture::new();
    let add = |name: &str, more: &[&str]| {
        ok(
            &fixture,
            &[&["add", name, "--env", "API_TOKEN=tok-1", "--env", "OPENAI_API_KEY=tok-2"], more, &["--", "x"]].concat(),
        );
    };
    let kept = || fixture.read("home/.config/toolwright/secrets.env");
    add("a", &["--env", "OWN_TOKEN=tok-3"]);
    add("b", &[]);
    let said = stderr(&run(&fixture, &["remove", "a"]));
    assert!(said.contains("OWN_TOKEN are removed from") && !said.contains("API_TOKEN"), "{said}");
    assert!(kept().contains("API_TOKEN=tok-1\n") && !kept().contains("tok-3"), "{}", kept());
    // Another project names it too.
    fixture.write("other/toolwright.yaml", "mcpServers:\n  c: {command: x, env: {API_TOKEN: '${API_TOKEN}'}}\n");
    assert!(json_of(&run(&fixture, &["remove", "b", "--json"]))["secrets"].is_null());
    assert!(kept().contains("API_TOKEN=tok-1\n"));
    add("b", &[]);
    fixture.write("other/toolwright.yaml", "mcpServers: {}\n");
    let removed = json_of(&run(&fixture, &["remove", "b", "--json"]));
    // The key of a model counts without being named.
    assert_eq!(removed["secrets"]["variables"], json!(["API_TOKEN"]));
    assert!(kept().contains("OPENAI_API_KEY=tok-2\n") && !kept().contains("tok-1"), "{}", kept());
}

#[test]
fn secrets_in_a_repository_are_warned_of() {
    let fixture = Fixture::new();
    std::fs::create_dir_all(fixture.path("project/.git")).expect("folder");
    let add = ["add", "a", "--header", "Authorization: Bearer tok-1111", "--url", "https://h.example/mcp"];
    assert!(!stderr(&run(&fixture, &add)).contains("git repository"));
    let inline = [
        "add",
        "b",
        "--header",
        "Authorization: Bearer tok-1111",
        "--inline-secrets",
        "--url",
        "https://h.example/mcp",
    ];
    let said = stderr(&run(&fixture, &inline));
    assert!(said.contains("lies in the git repository") && !said.contains("tok-1111"), "{said}");
    let text = fixture.read("project/toolwright.yaml");
    assert!(text.contains("Bearer ${A_AUTHORIZATION}") && text.contains("Bearer tok-1111"), "{text}");
}

#[test]
fn the_users_own_configuration_is_written() {
    let fixture = Fixture::new();
    let file = fixture.write("x.json", r#"{"mcpServers": {"b": {"command": "y"}}}"#);
    ok(&fixture, &["add", "a", "--user", "--", "x"]);
    ok(&fixture, &["import", "mcp-json", file.to_str().expect("path"), "--user"]);
    let text = fixture.read("home/.config/toolwright/toolwright.yaml");
    assert!(text.contains("  a:\n    command: x\n") && text.contains("  b:\n    command: y\n"), "{text}");
    assert!(!fixture.path("project/toolwright.yaml").exists());
}

#[test]
fn doctor_tells_well_from_ill() {
    let fixture = Fixture::new();
    let well = json_of(&run(&fixture, &["doctor", "--json"]));
    assert_eq!(well["providers"][0]["name"], "builtin");
    fixture.write("project/toolwright.yaml", "mcpServers:\n  gone:\n    command: no-such-program-anywhere\n  unset:\n    command: x\n    env: {A: \"${NOT_SET}\"}\ncluster: {a: 1}\n");
    let output = run(&fixture, &["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let ill = json_of(&output);
    let gone = ill["providers"]
        .as_array()
        .expect("providers")
        .iter()
        .find(|provider| provider["name"] == "gone")
        .expect("gone");
    assert!(gone["error"].as_str().is_some_and(|error| error.contains("no-such-program-anywhere")), "{gone}");
    let problems = ill["problems"].to_string();
    assert!(problems.contains("NOT_SET") && problems.contains("not supported by this version"), "{problems}");
}

#[test]
fn doctor_knows_its_own_server_from_a_stranger_on_the_port() {
    for (answer, well) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", true),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", false),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let mut request = [0; 1024];
            let read = std::io::Read::read(&mut stream, &mut request).expect("request");
            assert!(request[..read].starts_with(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:"));
            stream.write_all(answer.as_bytes()).expect("answer");
            // It stays open: nobody may wait for the end.
            let _ = stream.shutdown(std::net::Shutdown::Write);
            std::thread::sleep(std::time::Duration::from_secs(20));
            drop(listener);
        });
        let fixture = Fixture::with(&format!("server:\n  http: {address}\n"));
        let report = json_of(&run(&fixture, &["doctor", "--json"]));
        assert_eq!(report["ok"], json!(well), "{report}");
        assert_eq!(report["findings"].to_string().contains("taken by another program"), !well, "{report}");
    }
}

#[test]
fn one_bad_server_leaves_the_tools_of_the_rest() {
    let fixture = Fixture::with("mcpServers:\n  gone:\n    command: no-such-program-anywhere\n");
    let output = run(&fixture, &["tools", "ls"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("fs__read"));
    assert!(stderr(&output).contains("gone"), "{}", stderr(&output));
    let deaf = Fixture::with("mcpServers:\n  deaf:\n    url: http://127.0.0.1:1/mcp\n");
    let said = stderr(&run(&deaf, &["tools", "ls"]));
    assert!(said.contains("deaf") && !said.contains("rmcp"), "told once, in our words: {said}");
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
fn a_terminal_gets_colours_and_nobody_else_does() {
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
fn a_tool_of_a_disabled_or_broken_entry_says_so() {
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
fn a_command_does_not_inherit_the_keys_that_the_configuration_names() {
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
fn import_openapi_previews_and_writes() {
    let fixture = Fixture::new();
    let operation = |id: &str, tag: &str| json!({"operationId": id, "tags": [tag], "responses": {}});
    let document = json!({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://shop.example"}], "paths": {
        "/orders": {"get": operation("orders/list", "orders"), "post": operation("orders/add", "orders")},
        "/{id}": {"get": operation("item", "items"), "trace": {}}}});
    fixture.write("project/my shop.json", &document.to_string());
    let command = ["import", "openapi", "my shop.json"];
    let preview = json_of(&run(&fixture, &[&command[..], &["--dry-run", "--json"]].concat()));
    let keys: Vec<&String> = preview.as_object().expect("object").keys().collect();
    assert_eq!((keys.len(), &preview["operations"]), (3, &json!(4)), "{keys:?}");
    assert_eq!(
        preview["imported"][0],
        json!({"id": "my-shop:orders_list@0.0.0", "wire_name": "my-shop__orders_list", "method": "GET", "path": "/orders"})
    );
    let refused = &preview["refused"][0];
    assert_eq!(
        (refused.as_object().map(serde_json::Map::len), &refused["operation"]),
        (Some(2), &json!("TRACE /{id}"))
    );
    assert!(refused["reason"].as_str().is_some_and(|reason| reason.contains("TRACE")), "{preview}");
    assert!(!fixture.path("project/toolwright.yaml").exists());
    let shown = ok(&fixture, &[&command[..], &["--dry-run", "--tag", "orders"]].concat());
    assert_eq!(shown, "my-shop__orders_list  GET /orders\nmy-shop__orders_add  POST /orders\n");

    let options = ["--prefix", "shop", "--tag", "orders", "--method", "get"];
    ok(&fixture, &[&command[..], &options].concat());
    let written = fixture.read("project/toolwright.yaml");
    assert_eq!(
        written,
        "openapi:\n  shop:\n    document: \"my shop.json\"\n    tags: [\"orders\"]\n    methods: [\"get\"]\n"
    );
    let listed: Value =
        serde_json::from_str(&ok(&fixture, &["tools", "ls", "--namespace", "shop", "--json"])).expect("json");
    assert_eq!((listed.as_array().map(Vec::len), &listed[0]["wire_name"]), (Some(1), &json!("shop__orders_list")));
    let again = ["`shop` is there already", "toolwright remove shop", "--prefix"];
    fails(&fixture, &[&command[..], &options].concat(), 2, &again);
    ok(&fixture, &["remove", "shop"]);
    ok(&fixture, &[&command[..], &options].concat());
    // A namespace that the configuration would leave the entry out for is refused, and nothing is written.
    fixture.write(
        "project/toolwright.yaml",
        "mcpServers:\n  git: {command: none}\nopenapi:\n  first: {document: my shop.json, prefix: second}\n",
    );
    for (prefix, why) in [
        ("git", "the namespace `git` is another's"),
        ("second", "the namespace `second` is another's"),
        ("fs", "the namespace `fs` is another's"),
        ("builtin", "the namespace `builtin` is another's"),
        ("Shop!", "Shop!"),
    ] {
        fails(&fixture, &[&command[..], &["--prefix", prefix]].concat(), 2, &[why, "--prefix"]);
    }
    assert!(!fixture.read("project/toolwright.yaml").contains("Shop"));
    fails(&fixture, &["import", "openapi"], 2, &["FILE|URL"]);
    fails(&fixture, &["import", "openapi", "none.json"], 2, &["none.json", "cannot be read"]);
    fails(&fixture, &["import", "openapi", "http://127.0.0.1:1/x.json"], 2, &["refused", "web.allowed_hosts"]);
}

#[test]
fn an_import_of_nothing_says_why_and_fails() {
    let fixture = Fixture::new();
    let operation = json!({"get": {"operationId": "orders", "tags": ["orders"], "responses": {}}});
    let version3 = json!({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://shop.example"}], "paths": {"/orders": operation}});
    let version2 =
        json!({"swagger": "2.0", "info": {"title": "Shop", "version": "1"}, "paths": {"/orders": operation}});
    fixture.write("project/3.json", &version3.to_string());
    fixture.write("project/2.json", &version2.to_string());
    fixture.write("project/empty.json", "{\"openapi\": \"3.1.0\", \"info\": {\"title\": \"x\", \"version\": \"1\"}}");
    for (arguments, words) in [
        (&["2.json", "--prefix", "a"][..], "Swagger 2.0, of which nothing is imported"),
        (
            &["3.json", "--prefix", "a", "--tag", "ordrs"],
            "tags: `ordrs`: no operation of the document has such a tag; did you mean `orders`?",
        ),
        (
            &["3.json", "--prefix", "a", "--method", "gett"],
            "methods: `gett`: no operation of the document has such a method; did you mean `GET`?",
        ),
        (&["empty.json", "--prefix", "a"], "the document has no operations"),
    ] {
        for (more, code) in [(&[][..], 2), (&["--dry-run"], 0)] {
            let arguments = [&["import", "openapi"], arguments, more].concat();
            let output = run(&fixture, &arguments);
            let told = stderr(&output);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
            assert!(told.contains(words) && told.contains("nothing to add"), "{arguments:?}: {told}");
            let output = run(&fixture, &[&arguments[..], &["--json"]].concat());
            let answer = json_of(&output);
            assert_eq!((output.status.code(), &answer["imported"]), (Some(code), &json!([])), "{answer}");
            assert!(answer["operations"].is_number() && answer["refused"].is_array(), "{answer}");
            assert!(stderr(&output).contains(words) || words.contains("no operations"), "{}", stderr(&output));
        }
    }
    assert!(!fixture.path("project/toolwright.yaml").exists());
}

/// Tools of a document that is grouped are in namespaces of their own, which a process that has not listed does not know.
#[test]
fn grouped_operations_are_found_by_a_process_that_has_not_listed_them() {
    let fixture = Fixture::new();
    let operation = |id: &str, tag: &str| json!({"operationId": id, "tags": [tag], "responses": {}});
    let document = json!({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "http://127.0.0.1:1"}],
        "paths": {"/orders": {"get": operation("list", "Orders"), "post": operation("add", "orders")}}});
    fixture.write("project/shop.json", &document.to_string());
    fixture.write(
        "project/toolwright.yaml",
        "openapi:\n  shop: {document: shop.json, group_by: tag, operations: {add: {enabled: false}}}\n  7z: {document: shop.json}\n",
    );
    for tool in ["shop-orders__list", "shop-orders:list@0.0.0", "_7z__list"] {
        let called = run(&fixture, &["call", tool, "{}"]);
        let said = stderr(&called);
        assert!(said.contains("127.0.0.1") && !said.contains("unknown_tool"), "{tool}: {said}");
    }
    fails(&fixture, &["call", "shop-orders__add", "{}"], 3, &["unknown_tool", "it is disabled"]);
}

#[test]
fn what_is_known_of_a_catalogue_is_forgotten_on_demand() {
    let fixture = Fixture::new();
    fails(&fixture, &["catalogue", "forget", "acme"], 1, &["nothing is known of a catalogue acme"]);
}

#[test]
fn help_is_short_and_help_of_a_command_is_whole() {
    let fixture = Fixture::new();
    let (short, whole) = (ok(&fixture, &["call", "--help"]), ok(&fixture, &["help", "call"]));
    assert!(short.contains("Examples:") && !short.contains("Exit codes:") && !short.contains("--state-dir"), "{short}");
    for word in ["Examples:", "Exit codes:", "--state-dir", "only a deny rule holds it back"] {
        assert!(whole.contains(word), "{word}: {whole}");
    }
    assert_eq!(ok(&fixture, &["call", "-h"]), short);
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
fn a_listing_in_a_pipe_has_a_head_and_whole_columns() {
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
fn a_catalogue_without_a_model_says_what_is_missing() {
    let output = run(&Fixture::new(), &["tools", "ls"]);
    assert!(stderr(&output).contains("not listed: the llm__ tools"), "{}", stderr(&output));
}
