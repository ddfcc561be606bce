//! `serve` on both transports, hot reload with a real file, and a clean end.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolwright::Toolwright;
use toolwright::app::watch;
use toolwright::config::LoadOptions;
use toolwright::providers::catalogue::SigningKey;

use crate::command_line::cli::{ok, run, stderr};
use crate::serving::gateway::{Gateway, api_token, got, posted, posted_to};
use crate::serving::views::Client;
use crate::support::{Fixture, signal, until};

fn server(extra: &str) -> String {
    format!("    command: {}\n{extra}", toolwright_testkit::bin("misbehaving-mcp").display())
}

#[test]
fn stdio_lists_and_calls() {
    let fixture = Fixture::with(&format!("mcpServers:\n  odd:\n{}", server("")));
    fixture.write("project/a.txt", "hello\n");
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    assert!(gateway.output_text().contains("toolwright: ready stdio "), "{}", gateway.output_text());
    gateway.handshake();
    gateway.has_tool("odd__echo", true);
    let result = gateway.ask("tools/call", json!({"name": "fs__read", "arguments": {"path": "a.txt"}}));
    assert!(result["result"]["content"][0]["text"].as_str().is_some_and(|text| text.contains("hello")), "{result}");
    let echo = gateway.ask("tools/call", json!({"name": "odd__echo", "arguments": {"text": "hi"}}));
    assert!(echo["result"].to_string().contains("hi"), "{echo}");
}

#[test]
fn pipelined_calls_take_turns_in_order() {
    let fixture = Fixture::new();
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    gateway.handshake();
    let mut pairs = Vec::new();
    for n in 0..20 {
        let call = |name: &str, arguments: Value| json!({"name": name, "arguments": arguments});
        let written = call("fs__write", json!({"path": "a.txt", "content": format!("<{n}>\n")}));
        gateway.send("tools/call", written);
        pairs.push((n, gateway.send("tools/call", call("fs__read", json!({"path": "a.txt"})))));
    }
    let mut answers = gateway.answers(2 * pairs.len());
    for (n, id) in pairs {
        let read = answers.remove(&id).expect("answered")["result"]["content"][0]["text"].to_string();
        assert!(read.contains(&format!("<{n}>")), "{n}: {read}");
    }
}

#[test]
fn stdio_search_lists_finders_and_pinned_tools() {
    let fixture = Fixture::with(&format!("selection:\n  pinned: [fs:read]\nmcpServers:\n  odd:\n{}", server("")));
    fixture.write("project/a.txt", "hello\n");
    let mut gateway =
        Gateway::start(&fixture, &["--stdio", "--expose", "search", "--policy", "ask", "--ask", "nobody"]);
    gateway.handshake();
    let shown = ["tools__search", "tools__describe", "tools__call", "fs__read", "output__read", "output__grep"];
    assert_eq!(gateway.tool_names(), shown);
    let query = json!({"query": "return a text", "namespace": "odd"});
    let text = |result: &Value| result["result"]["content"][0]["text"].as_str().unwrap_or_default().to_owned();
    until("the server's tools are found", || {
        text(&gateway.ask("tools/call", json!({"name": "tools__search", "arguments": query}))).contains("odd__echo(")
    });
    let mut inside = |name: &str, arguments: Value| {
        let carried = json!({"name": name, "arguments": arguments});
        text(&gateway.ask("tools/call", json!({"name": "tools__call", "arguments": carried})))
    };
    assert!(inside("fs__read", json!({"path": "a.txt"})).contains("hello"));
    let denied = inside("fs__write", json!({"path": "b.txt", "content": "x"}));
    assert_eq!(denied, "(tool failed: denied: the call needs a person's approval, and nobody can be asked)");
    assert!(!fixture.path("project/b.txt").exists());
}

#[test]
fn http_lists_by_address_then_by_option() {
    let fixture = Fixture::new();
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0", "--expose", "search"]);
    let said = gateway.output_text();
    let address = said.split("ready http://").nth(1).and_then(|rest| rest.split("/mcp").next()).expect("address");
    for (query, searching) in [("", true), ("?expose=search", true), ("?expose=direct", false)] {
        let (status, answer) = post_to(&format!("/mcp{query}"), address, address, "");
        assert_eq!((status, answer.contains("tools__search finds them")), (200, searching), "{query}: {answer}");
    }
    let (status, answer) = post_to("/mcp?expose=all", address, address, "");
    assert!(status == 400 && answer.contains("`direct` or `search`"), "{answer}");
}

#[test]
fn a_cold_start_reports_the_final_count() {
    let fixture = Fixture::with(&format!("mcpServers:\n  odd:\n{}", server("")));
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    gateway.handshake();
    gateway.has_tool("odd__echo", true);
    let count = gateway.tool_names().len();
    gateway.says(&format!("\ntoolwright: {count} tools"));
}

#[test]
fn the_first_list_waits_for_servers_bounded() {
    let script = format!("sleep 1; exec {}", toolwright_testkit::bin("misbehaving-mcp").display());
    let servers = |mute: &str| format!("mcpServers:\n  odd: {{command: sh, args: [-c, {script:?}]}}\n{mute}");
    let fixture = Fixture::with(&servers("  mute: {command: sleep, args: ['60']}\n"));
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    gateway.handshake();
    let early = gateway.ask("tools/call", json!({"name": "mute__echo", "arguments": {"text": "hi"}}));
    let why = "no tool is called `mute__echo` (provider mute is still starting, and its tools are not known yet)";
    // By then the other one may have listed a tool of nearly this name.
    assert!(early["error"]["message"].as_str().is_some_and(|said| said.starts_with(why)), "{early}");
    assert!(gateway.tool_names().contains(&"odd__echo".to_owned()), "{}", gateway.output_text());
    drop(gateway);
    let fixture = Fixture::with(&servers(""));
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0", "--policy", "client"]);
    let called = posted(&fixture, &gateway.address(), &json!({"tool": "odd__echo", "arguments": {"text": "hi"}}));
    assert_eq!((&called["ok"], &called["text"]), (&json!(true), &json!("hi")), "{called}");
}

#[test]
fn end_of_input_ends_stdio_with_0() {
    let fixture = Fixture::with(&format!("mcpServers:\n  odd:\n{}", server("")));
    fixture.write("project/a.txt", "hello\n");
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    gateway.handshake();
    gateway.has_tool("odd__echo", true);
    let result = gateway.ask("tools/call", json!({"name": "fs__read", "arguments": {"path": "a.txt"}}));
    assert!(result["result"].to_string().contains("hello"), "{result}");
    let processes = children(gateway.child.id());
    let (input, mut output) = gateway.streams.take().expect("streams");
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("read");
    assert_eq!(rest, "", "nothing more was asked");
    assert_eq!(gateway.child.wait().expect("wait").code(), Some(0), "{}", gateway.output_text());
    ends_with_line(&gateway, " tools\n");
    let is_gone = |id: &u32| !std::path::Path::new(&format!("/proc/{id}")).exists();
    until("its servers have ended", || processes.iter().all(is_gone));
}

/// Its lines end with these words: the end of a server is nothing to tell.
fn ends_with_line(gateway: &Gateway, words: &str) {
    // What it has written by then is read by another thread.
    std::thread::sleep(Duration::from_millis(200));
    assert!(gateway.output_text().ends_with(words), "{}", gateway.output_text());
}

#[test]
fn the_first_lines_name_profile_and_token() {
    let fixture = Fixture::with("views:\n  free: {allow: [fs__read], profile: trusted}\n");
    let first = |arguments: &[&str]| {
        let gateway = Gateway::start(&fixture, arguments);
        gateway.output_text().split("toolwright: ready").next().expect("lines").to_owned()
    };
    let http = first(&["--http", "127.0.0.1:0"]);
    assert!(http.starts_with("toolwright: profile ask: tools that only read run unasked"), "{http}");
    assert!(http.contains("at /mcp/free: profile trusted: every tool runs unasked"), "{http}");
    assert!(http.contains("home/.local/state/toolwright/api-token"), "{http}");
    let token = api_token(&fixture);
    assert!(token.len() == 64 && !http.contains(&token), "{http}");
    let stdio = first(&["--stdio"]);
    assert!(stdio.starts_with("toolwright: profile client: every tool runs unasked"), "{stdio}");
    assert!(!stdio.contains("api-token"), "{stdio}");
    let given = first(&["--http", "127.0.0.1:0", "--policy", "workspace"]);
    assert!(given.starts_with("toolwright: profile workspace: "), "{given}");
    assert_eq!(api_token(&fixture), token, "the next server has the same");
}

#[test]
fn http_gives_no_shell_unasked() {
    let fixture = Fixture::new();
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0"]);
    let address = gateway.address();
    let call = json!({"tool": "shell__bash", "arguments": {"command": "touch done"}});
    let refused = posted_to(&address, "/api/call", "", &call);
    assert_eq!(refused["error"]["kind"], "unauthorized", "{refused}");
    let waits = posted(&fixture, &address, &call);
    assert_eq!(waits["status"], "approval", "{waits}");
    let client = Client::of(&address, "/mcp");
    let waits = client.call("shell__bash", &json!({"command": "touch done"}));
    assert!(waits.contains("needs a person's approval, and has not run"), "{waits}");
    fixture.write("project/a.txt", "hello\n");
    assert!(client.call("fs__read", &json!({"path": "a.txt"})).contains("hello"));
    assert!(!fixture.path("project/done").exists());
}

#[test]
fn servers_left_out_are_listed_with_remedies() {
    let fixture = Fixture::with("mcp_servers:\n  gone: {command: cat, env: {X: \"${NO_SUCH_VARIABLE}\"}}\n");
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0"]);
    let providers = got(&fixture, &gateway.address(), "/api/providers");
    let gone = providers.as_array().and_then(|all| all.iter().find(|one| one["name"] == "gone")).expect("it is listed");
    let error = gone["error"].as_str().unwrap_or_default();
    assert!(gone["state"] == "failed" && error.contains("set NO_SUCH_VARIABLE"), "{gone}");
}

#[test]
fn an_always_approval_writes_the_shown_rule() {
    let fixture = Fixture::with(
        "policy:\n  rules:\n    # never\n    - {effect: deny, tool: \"fs:write\", when: \"args.path == 'no.txt'\"}\n    - effect: ask\n      tool: fs:write\n",
    );
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0"]);
    let address = gateway.address();
    let write = |path: &str| {
        posted(&fixture, &address, &json!({"tool": "fs__write", "arguments": {"path": path, "content": "hi\n"}}))
    };
    assert_eq!(write("a.txt")["status"], "approval");
    let waiting = || got(&fixture, &address, "/api/approvals")["questions"][0]["id"].as_str().map(str::to_owned);
    until("it asks", || waiting().is_some());
    let shown = got(&fixture, &address, &format!("/api/approvals/{}", waiting().expect("an id")));
    let (changes, always) = (&shown["prospect"]["changes"], &shown["prospect"]["always"]);
    assert_eq!(changes, "--- a.txt\n+++ a.txt\n@@ -1,0 +1,1 @@\n+hi\n", "{shown}");
    let rule =
        "- effect: allow\n  tool: fs:write\n  when: workspace.inside\n  reason: \"A person approved it for always.\"\n";
    assert_eq!(always["rule"], rule, "{shown}");
    let token = format!("authorization: Bearer {}\r\n", api_token(&fixture));
    let draft = json!({"draft": always["draft"], "base": always["base"]});
    let saved = posted_to(&address, "/api/policy/save", &token, &draft);
    assert_eq!((&saved["diff"], &saved["in_force"]), (&always["diff"], &json!(true)), "{saved}");
    until("the rule decides", || write("b.txt")["status"] == "done");
    assert_eq!(write("no.txt")["error"]["kind"], "denied");
}

#[test]
fn a_shell_that_toolwright_started_does_not_approve() {
    let fixture = Fixture::new();
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0"]);
    let address = gateway.address();
    let waits =
        posted(&fixture, &address, &json!({"tool": "fs__write", "arguments": {"path": "a.txt", "content": "1"}}));
    assert_eq!(waits["status"], "approval", "{waits}");
    let listed = || -> Value { serde_json::from_str(&ok(&fixture, &["approvals", "ls", "--json"])).expect("JSON") };
    until("it asks", || listed().get(0).is_some());
    let id = listed()[0]["id"].as_str().expect("an id").to_owned();
    // Each without the mark of the environment, in a session of its own.
    let bare = "exec setsid --wait env -i HOME=\"$HOME\" PATH=\"$PATH\"";
    let binary = env!("CARGO_BIN_EXE_toolwright");
    let body = r#"{"decision":"approve"}"#;
    let head = format!(
        "POST /api/approvals/{id} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        api_token(&fixture),
        body.len(),
    );
    fixture.write("project/request", &format!("{head}{body}"));
    let over_http = format!("exec 3<>/dev/tcp/{}; cat request >&3; cat <&3", address.replace(':', "/"));
    for (script, refused) in [
        (format!("{bare} {binary} approvals approve {id} 2>&1"), "cannot approve"),
        (format!("cp {binary} other; {bare} ./other approvals deny {id} 2>&1"), "cannot approve"),
        (format!("{bare} {binary} jobs send job_1 x 2>&1"), "cannot answer for a job"),
        (format!("{bare} {binary} pins approve x 2>&1"), "cannot approve definitions"),
        (format!("{bare} bash -c '{over_http}'"), "403 Forbidden"),
    ] {
        let output = run(&fixture, &["call", "shell__bash", &json!({"command": script}).to_string(), "--json"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains(refused), "{script}: {said} {}", stderr(&output));
    }
    assert_eq!(listed()[0]["state"], "pending");
    ok(&fixture, &["approvals", "approve", &id]);
    until("it has run", || fixture.path("project/a.txt").exists());
}

#[test]
fn killing_watchers_does_not_allow_approval() {
    let fixture = Fixture::new();
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0"]);
    let write = json!({"tool": "fs__write", "arguments": {"path": "a.txt", "content": "1"}});
    assert_eq!(posted(&fixture, &gateway.address(), &write)["status"], "approval");
    let listed = || -> Value { serde_json::from_str(&ok(&fixture, &["approvals", "ls", "--json"])).expect("JSON") };
    until("it asks", || listed().get(0).is_some());
    let id = listed()[0]["id"].as_str().expect("an id").to_owned();
    // Both watchers are stopped first, so that neither acts for the other.
    fixture.write(
        "project/escape.sh",
        &format!(
            "kill -STOP $1 $2; kill -9 $1 $2\n{} approvals approve {id} > said 2>&1\necho ended >> said\n",
            env!("CARGO_BIN_EXE_toolwright")
        ),
    );
    let command = "W=$PPID; G=$(awk '/^PPid/{print $2}' /proc/$W/status); \
                   setsid env -i HOME=\"$HOME\" PATH=\"$PATH\" bash escape.sh $G $W & wait";
    run(&fixture, &["call", "shell__bash", &json!({"command": command}).to_string()]);
    let said = || std::fs::read_to_string(fixture.path("project/said")).unwrap_or_default();
    until("it has tried", || said().ends_with("ended\n"));
    assert!(said().contains("cannot approve"), "{}", said());
    assert_eq!(listed()[0]["state"], "pending");
}

#[test]
fn http_announces_and_ends_on_sigterm() {
    let fixture = Fixture::new();
    let mut gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0"]);
    let said = gateway.output_text();
    let ready =
        said.lines().find(|line| line.starts_with("toolwright: ready http://127.0.0.1:")).expect("the ready line");
    assert!(ready.ends_with(" tools") && ready.contains("/mcp "), "{ready}");
    gateway.says("VS Code");
    assert!(gateway.output_text().contains("claude mcp add") && gateway.output_text().contains("Cursor"));
    let begun = Instant::now();
    signal(gateway.child.id(), "TERM");
    let status = gateway.child.wait().expect("ends");
    assert_eq!(status.code(), Some(0), "{}", gateway.output_text());
    assert!(!gateway.output_text().contains("shutting down"), "{}", gateway.output_text());
    // The promise is one second; a loaded test machine gets some more.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn json_readiness_is_one_line() {
    let fixture = Fixture::new();
    let mut gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0", "--json"]);
    let (_, output) = gateway.streams.as_mut().expect("streams");
    let mut line = String::new();
    output.read_line(&mut line).expect("read");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(ready["ready"], format!("http://{}/mcp", gateway.address()));
    assert!(ready["tools"].as_u64().is_some_and(|tools| tools > 0), "{ready}");
}

/// One POST of an MCP request: the status and the whole answer, as they came over the wire.
fn post(address: &str, host: &str, header: &str) -> (u16, String) {
    post_to("/mcp", address, host, header)
}

fn post_to(path: &str, address: &str, host: &str, header: &str) -> (u16, String) {
    let client =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}).to_string();
    let mut stream = TcpStream::connect(address).expect("connect");
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{header}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    let status = answer.split_whitespace().nth(1).and_then(|code| code.parse().ok()).expect("a status line");
    (status, answer)
}

#[test]
fn http_checks_host_origin_and_token() {
    let fixture = Fixture::with("server:\n  token: ${T}\n");
    let mut gateway = Gateway::start_with(&fixture, &["--http", "127.0.0.1:0"], &[("T", "tok-123456789")]);
    let said = gateway.output_text();
    let address =
        said.split("ready http://").nth(1).and_then(|rest| rest.split("/mcp").next()).expect("address").to_owned();
    let token = "Authorization: Bearer tok-123456789\r\n";
    let (status, answer) = post(&address, &address, token);
    assert!(status == 200 && answer.contains("serverInfo"), "{answer}");
    assert_eq!(post(&address, &address, "").0, 401);
    assert_eq!(post(&address, &address, "Authorization: Bearer wrong\r\n").0, 401);
    assert_eq!(post(&address, "evil.example", token).0, 403);
    assert_eq!(post(&address, &address, &format!("{token}Origin: https://evil.example\r\n")).0, 403);
    gateway.says("TOOLWRIGHT_TOKEN");
    assert!(!gateway.output_text().contains("tok-123456789"));
    gateway.child.kill().expect("kill");
}

#[test]
fn hot_reload_adds_keeps_and_removes() {
    let counter = |name: &str, rest: &str| format!("  {name}:\n{}", server(rest));
    let fixture = Fixture::with(&format!("mcpServers:\n{}", counter("kept", "")));
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    gateway.handshake();
    gateway.has_tool("kept__echo", true);
    let process = children(gateway.child.id());
    fixture.write("project/toolwright.yaml", &format!("mcpServers:\n{}{}", counter("kept", ""), counter("fresh", "")));
    gateway.has_tool("fresh__echo", true);
    gateway.says("added fresh");
    assert!(
        process.iter().all(|id| children(gateway.child.id()).contains(id)),
        "an unchanged server keeps its process"
    );
    fixture.write("project/toolwright.yaml", "mcpServers: [\n");
    gateway.says("the running configuration is kept");
    gateway.has_tool("kept__echo", true);
    fixture.write(
        "project/toolwright.yaml",
        &format!(
            "mcpServers:\n{}policy:\n  rules:\n    - effect: deny\n      tool: fs:read\n",
            counter("fresh", "    tools_denied: [echo]\n")
        ),
    );
    gateway.has_tool("kept__echo", false);
    gateway.has_tool("fresh__echo", false);
    gateway.says("replaced fresh");
    until("the removed server's process ends", || process.iter().all(|id| !children(gateway.child.id()).contains(id)));
    let denied = gateway.ask("tools/call", json!({"name": "fs__read", "arguments": {"path": "x"}}));
    assert!(denied.to_string().contains("rule 1"), "{denied}");
}

#[tokio::test]
async fn early_changes_are_read_once() {
    let fixture = Fixture::with("defaults: {calls_per_turn: 7}\n");
    for written in [None, Some("defaults: {calls_per_turn: 8}\n"), Some("defaults: [\n")] {
        let options = LoadOptions { cwd: fixture.project(), ..LoadOptions::default() };
        let app = Toolwright::open(options, fixture.load(), Box::new(|_| None)).await.expect("opens");
        let before = app.config();
        if let Some(text) = written {
            fixture.write("project/fresh.yaml", text);
            std::fs::rename(fixture.path("project/fresh.yaml"), fixture.path("project/toolwright.yaml"))
                .expect("renamed");
            fixture.approve();
        }
        let reports = Arc::new(Mutex::new(Vec::new()));
        let (watched, sink) = (Arc::clone(&app), Arc::clone(&reports));
        let watching =
            tokio::spawn(watch(watched, move |reloaded| sink.lock().expect("reports").push(reloaded.is_ok())));
        if let Some(text) = written {
            let is_sound = !text.contains('[');
            while reports.lock().expect("reports").is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(*reports.lock().expect("reports"), [is_sound], "{text}");
            assert_eq!(Arc::ptr_eq(&before, &app.config()), !is_sound, "{text}");
        } else {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(Arc::ptr_eq(&before, &app.config()) && reports.lock().expect("reports").is_empty());
        }
        watching.abort();
        app.shut_down().await;
    }
}

#[cfg(unix)]
#[test]
fn linked_and_new_configurations_reload() {
    let with = |name: &str| format!("mcpServers:\n  {name}:\n{}", server(""));
    let fixture = Fixture::new();
    fixture.write("elsewhere/real.yaml", &with("first"));
    std::os::unix::fs::symlink("../elsewhere/real.yaml", fixture.path("project/toolwright.yaml")).expect("link");
    fixture.approve();
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    // Files are watched from soon after the start; a server that runs says that it is past.
    gateway.handshake();
    gateway.has_tool("first__echo", true);
    fixture.write("elsewhere/real.yaml", &with("second"));
    gateway.says("added second");
    fixture.write("elsewhere/other.yaml", &with("third"));
    std::os::unix::fs::symlink("../elsewhere/other.yaml", fixture.path("project/fresh")).expect("link");
    std::fs::rename(fixture.path("project/fresh"), fixture.path("project/toolwright.yaml")).expect("rename");
    fixture.approve();
    gateway.says("added third");
    fixture.write("elsewhere/other.yaml", &with("fourth"));
    gateway.says("added fourth");
    fixture.write("home/.config/toolwright/toolwright.yaml", &with("standing"));
    gateway.says("added standing");
}

#[test]
fn a_call_finishes_on_a_removed_server() {
    let fixture = Fixture::with(&format!("mcpServers:\n  odd:\n{}", server("")));
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    gateway.handshake();
    gateway.has_tool("odd__slow", true);
    let call = gateway.send("tools/call", json!({"name": "odd__slow", "arguments": {"ms": 1500}}));
    std::thread::sleep(Duration::from_millis(200));
    fixture.write("project/toolwright.yaml", "mcpServers: {}\n");
    gateway.says("removed odd");
    let result = gateway.answer(call);
    assert!(result["result"]["isError"] != json!(true) && result["result"]["content"].is_array(), "{result}");
    until("its process ends", || children(gateway.child.id()).is_empty());
}

#[test]
fn a_name_may_change_its_source_kind() {
    let fixture = Fixture::with(&format!("mcpServers:\n  odd:\n{}", server("")));
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    gateway.handshake();
    gateway.has_tool("odd__echo", true);
    let key = SigningKey::read(SigningKey::generate().expect("key").as_bytes()).expect("read").public();
    let entry = format!("catalogues:\n  odd: {{url: 'http://example.test/c.json', keys: ['{key}']}}\n");
    fixture.write("project/toolwright.yaml", &entry);
    gateway.says("replaced odd");
    // It cannot be fetched, and says so, so it is there.
    gateway.says("catalogue odd: ");
    assert!(!gateway.output_text().contains("removed odd"), "{}", gateway.output_text());
}

#[test]
fn one_failing_server_is_reported_and_hides_nothing() {
    let fixture = Fixture::with("mcpServers:\n  gone:\n    command: no-such-program-anywhere\n");
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    gateway.handshake();
    gateway.has_tool("fs__read", true);
    gateway.says("gone: ");
    gateway.says("no-such-program-anywhere");
}

/// Process ids of all descendants, from `/proc`; empty elsewhere.
fn children(of: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let mut parents = vec![of];
    while let Some(parent) = parents.pop() {
        let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in list.split_whitespace().filter_map(|id| id.parse().ok()) {
                all.push(child);
                parents.push(child);
            }
        }
    }
    all
}

#[cfg(unix)]
#[test]
fn running_calls_get_the_shutdown_time() {
    for (grace, ok) in [("10s", true), ("500ms", false)] {
        let fixture = Fixture::with(&format!("server: {{shutdown_grace: {grace}}}\n"));
        let mut gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0", "--policy", "client"]);
        let address = gateway.address();
        let call = json!({"tool": "shell__bash", "arguments": {"command": "touch begun; sleep 3; echo whole"}});
        let answer = std::thread::scope(|scope| {
            let caller = scope.spawn(|| posted(&fixture, &address, &call));
            until("it runs", || fixture.path("project/begun").exists());
            signal(gateway.child.id(), "TERM");
            caller.join().expect("an answer")
        });
        assert_eq!(answer["ok"], ok, "{grace}: {answer}");
        assert_eq!(answer["text"].as_str().is_some_and(|text| text.contains("whole")), ok, "{grace}: {answer}");
        until("it ends", || gateway.child.try_wait().expect("waited for").is_some());
    }
}

/// Begins a job of `call`, ends the gateway with a signal once `runs` says that the job runs, and shows what it left.
#[cfg(unix)]
fn left_behind(fixture: &Fixture, mut call: Value, runs: impl FnOnce()) -> Value {
    let mut gateway = Gateway::start(fixture, &["--http", "127.0.0.1:0", "--policy", "client"]);
    call["background"] = true.into();
    let answer = posted(fixture, &gateway.address(), &call);
    let id = answer["structured"]["job"].as_str().unwrap_or_else(|| panic!("no job in {answer}"));
    runs();
    signal(gateway.child.id(), "TERM");
    until("it ends", || gateway.child.try_wait().expect("waited for").is_some());
    serde_json::from_str(&ok(fixture, &["jobs", "show", id, "--json"])).expect("json")
}

#[cfg(unix)]
#[test]
fn unrepeatable_jobs_get_the_shutdown_time() {
    for (grace, state) in [("10s", "done"), ("500ms", "cancelled")] {
        let fixture = Fixture::with(&format!("server: {{shutdown_grace: {grace}}}\n"));
        let call = json!({"tool": "shell__bash", "arguments": {"command": "touch begun; sleep 3; echo whole"}});
        let job = left_behind(&fixture, call, || until("it runs", || fixture.path("project/begun").exists()));
        assert_eq!(job["state"], state, "{grace}: {job}");
    }
}

#[cfg(unix)]
#[test]
fn repeatable_jobs_are_left_at_shutdown() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", silent.local_addr().expect("its address"));
    let rest = format!("restTools:\n  slow: {{description: x, method: GET, url: '{url}', allow_private: true}}\n");
    let fixture = Fixture::with(&format!("server: {{shutdown_grace: 10m}}\n{rest}"));
    let mut asked = None;
    let job =
        left_behind(&fixture, json!({"tool": "rest__slow"}), || asked = Some(silent.accept().expect("it is asked")));
    assert_eq!((&job["state"], &job["attempts"]), (&json!("pending"), &json!(1)), "{job}");
}

#[cfg(unix)]
#[test]
fn a_job_continues_in_its_own_project() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", silent.local_addr().expect("its address"));
    let rest = format!("restTools:\n  slow: {{description: x, method: GET, url: '{url}', allow_private: true}}\n");
    let fixture = Fixture::with(&rest);
    let mut first = None;
    left_behind(&fixture, json!({"tool": "rest__slow"}), || first = Some(silent.accept().expect("it is asked")));
    fixture.write("other/toolwright.yaml", &rest);
    let (other, here) = (fixture.path("other"), fixture.path("project/toolwright.yaml"));
    let (other, here) = (other.to_str().expect("text"), here.to_str().expect("text"));
    silent.set_nonblocking(true).expect("a listener");
    let elsewhere = Gateway::start(&fixture, &["--http", "127.0.0.1:0", "--root", other, "--config", here]);
    // It looks for jobs each second.
    std::thread::sleep(Duration::from_secs(3));
    assert!(silent.accept().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "another root");
    drop(elsewhere);
    let _own = Gateway::start(&fixture, &["--http", "127.0.0.1:0"]);
    until("its own project takes it up", || silent.accept().is_ok());
}
