//! What is said of failures and warnings, as a whole.

use serde_json::{Value, json};

use crate::command_line::cli::{ok, run, stderr};
use crate::serving::gateway::Gateway;
use crate::support::{Fixture, until};

/// Clauses that a line says twice.
fn repeated_clauses(said: &str) -> Vec<String> {
    let clauses = |line: &str| -> Vec<String> {
        // A schema has its types again and again.
        let line = line.split("; expected {").next().unwrap_or_default();
        let clauses = line.split([':', ';', '(', ')', ',']).map(|clause| clause.trim().to_lowercase());
        clauses.filter(|clause| clause.len() >= 5).collect()
    };
    let twice = |line: &str| {
        let all = clauses(line);
        let is_again = |at: usize| all[..at].contains(&all[at]);
        (0..all.len()).any(is_again).then(|| line.to_owned())
    };
    said.lines().filter_map(twice).collect()
}

#[test]
fn errors_repeat_nothing() {
    let fixture = Fixture::with(
        "mcpServers:\n  gone: {command: no-such-program-anywhere}\n  far: {url: 'http://127.0.0.1:1/mcp'}\n\
         openapi:\n  shop: {document: none.json}\n\
         policy:\n  rules:\n  - {effect: deny, tool: 'fs:write', reason: it is frozen}\n",
    );
    fixture.write("project/a.txt", "one\n");
    fixture.write("project/bad.json", "{");
    for arguments in [
        &["call", "gone__x"][..],
        &["call", "far__x"],
        &["call", "shop__x"],
        &["tools", "ls"],
        &["doctor"],
        &["call", "fs__read", "path=missing.txt"],
        &["call", "fs__read", "path=/etc/hostname"],
        &["call", "fs__read", "pth=a.txt"],
        &["call", "fs__read", "{\"path\":"],
        &["call", "fs__write", "path=a.txt", "content=x"],
        &["call", "fs__edit", "path=a.txt", "old_string=two", "new_string=x"],
        &["call", "web__fetch", "url=http://127.0.0.1:1/"],
        &["call", "web__fetch", "url=nonsense"],
        &["call", "web__fetch", "url=http://no-such-host.invalid/"],
        &["call", "shell__bash", "command=sleep 30", "--timeout", "200ms"],
        &["call", "shell__bash", "command=echo one; exit 3"],
        &["call", "output__read", "handle=none"],
        &["call", "job__wait", "id=none"],
        &["run", "x", "--policy", "trusted"],
        &["run", "x", "--policy", "trusted", "--model", "openai/gpt-5"],
        &["run", "x", "--policy", "trusted", "--model", "nobody"],
        &["run", "--resume", "run-none", "--policy", "trusted"],
        &["mcp", "login", "far"],
        &["import", "openapi", "none.json"],
        &["import", "openapi", "bad.json"],
        &["validate", "--schema", "bad.json", "{}"],
        &["encode", "--api", "openai-chat", "--tools", "bad.json"],
        &["pick", "x", "--catalogue", "bad.json"],
        &["bench", "--cases", "bad.json", "--models", "openai/x"],
        &["catalogue", "verify", "bad.json", "--key", "x"],
    ] {
        let output = run(&fixture, arguments);
        let said = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(repeated_clauses(&said), Vec::<String>::new(), "{arguments:?}: {said}");
    }
}

#[test]
fn gateway_warnings_have_one_prefix() {
    let fixture = Fixture::with("mcpServers:\n  gone: {command: no-such-program-anywhere}\n");
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0"]);
    gateway.says("no-such-program-anywhere");
    fixture.write("project/toolwright.yaml", "mcpServrs: {}\n");
    gateway.says("the running configuration is kept");
    let said = gateway.output_text();
    for line in said.lines().filter(|line| line.contains("no-such-program") || line.contains("is kept")) {
        assert!(line.starts_with("warning: ") || line.starts_with("error: "), "{said}");
    }
}

#[test]
fn the_same_tools_are_listed_everywhere() {
    let fixture = Fixture::new();
    let names = |output: &str| -> Vec<String> {
        let listed: Value = serde_json::from_str(output).expect("json");
        let tools = listed.as_array().expect("a list").iter();
        tools.map(|tool| tool["wire_name"].as_str().expect("a name").to_owned()).collect()
    };
    let listed = names(&ok(&fixture, &["tools", "ls", "--json"]));
    assert!(listed.iter().any(|name| name == "job__wait"), "{listed:?}");
    assert!(!listed.iter().any(|name| name == "output__extract"), "{listed:?}");
    let report: Value = serde_json::from_str(&ok(&fixture, &["doctor", "--json"])).expect("json");
    assert_eq!(report["tools"], listed.len());
    for (query, is_there) in [("job__wait", true), ("output__extract", false)] {
        let found = names(&ok(&fixture, &["tools", "search", query, "--json"]));
        assert_eq!(found.iter().any(|name| name == query), is_there, "{query}: {found:?}");
    }
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0"]);
    until("it is ready", || gateway.output_text().contains(&format!("{} tools", listed.len())));
    let said = stderr(&run(&fixture, &["tools", "ls"]));
    for left_out in ["not listed: output__extract", "not listed: the llm__ tools", "have the job__ tools once"] {
        assert!(said.contains(left_out), "{left_out}: {said}");
    }
}

#[test]
fn a_small_cap_shows_the_beginning() {
    let fixture = Fixture::new();
    let output = run(&fixture, &["call", "shell__bash", "command=seq 1 10000", "--max-output", "300"]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.starts_with("1\n2\n3\n") && shown.trim_end().len() <= 300 && shown.len() >= 290, "{shown}");
    let said = stderr(&output);
    assert!(said.contains("the first 300 of 48894 bytes") && !said.contains("output__extract"), "{said}");
    let handle = said.split("handle=").nth(1).and_then(|rest| rest.split(' ').next()).expect("a handle");
    let rest = ok(&fixture, &["call", "output__read", &format!("handle={handle}"), "offset=300"]);
    assert!(rest.contains("\n120\n"), "{rest}");
    let json = ok(&fixture, &["call", "shell__bash", "command=seq 1 10000", "--max-output", "300", "--json"]);
    let json: Value = serde_json::from_str(&json).expect("json");
    let text = json["text"].as_str().expect("text");
    assert!(text.contains("1\n2\n3\n") && !text.contains("output__extract"), "{text}");
}

#[test]
fn effects_are_listed_as_declared() {
    let listed = ok(&Fixture::new(), &["tools", "ls"]);
    let word =
        |tool: &str| listed.lines().find(|line| line.starts_with(tool)).and_then(|line| line.split_whitespace().nth(1));
    assert_eq!((word("fs__read "), word("fs__write ")), (Some("reads"), Some("destructive")), "{listed}");
}

#[test]
fn search_finds_every_job_tool() {
    let fixture = Fixture::new();
    let mut gateway = Gateway::start(&fixture, &["--stdio", "--expose", "search"]);
    gateway.handshake();
    let listed = gateway.tool_names();
    for name in ["job__wait", "job__read", "job__send", "job__stop", "output__read", "output__grep"] {
        assert!(listed.iter().any(|listed| listed == name), "{name}: {listed:?}");
    }
}

#[test]
fn unreadable_operations_are_reported() {
    let fixture = Fixture::with("openapi:\n  shop: {document: shop.json, operations_denied: [dull]}\n");
    let mut document = json!({"openapi": "3.1.0", "servers": [{"url": "https://shop.example"}], "paths": {
        "/orders": {"get": {"operationId": "list"}, "post": {"operationId": "dull"}}}});
    for n in 1..=12 {
        document["paths"][format!("/gone{n}")] = json!({"get": {"$ref": "gone.json"}});
    }
    fixture.write("project/shop.json", &document.to_string());
    let count = |said: &str| said.matches("` of shop could not be read: ").count();
    let meant = "not listed: `dull` of shop: its name is filtered out";
    let listed = stderr(&run(&fixture, &["tools", "ls"]));
    assert!(listed.contains(meant) && listed.contains("2 more of shop could not be read"), "{listed}");
    assert_eq!(count(&listed), 10, "{listed}");
    for arguments in [&["doctor"][..], &["doctor", "--json"], &["tools", "ls", "--json"]] {
        let output = run(&fixture, arguments);
        let said = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && count(&said) == 12, "{arguments:?}: {said}");
    }
    let shown = stderr(&run(&fixture, &["tools", "show", "shop__GET /gone3"]));
    assert!(shown.contains("has `GET /gone3`, but does not offer it: ") && shown.contains("gone.json"), "{shown}");
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0"]);
    gateway.says("2 more of shop could not be read");
    assert_eq!(count(&gateway.output_text()), 10, "{}", gateway.output_text());
}
