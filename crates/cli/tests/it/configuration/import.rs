//! Import from each client's own format.

use std::path::Path;

use serde_json::{Value, json};
use toolwright::import::Source;

use crate::support::{Fixture, data_file};

fn check(source: Source, file: &str, servers: &Value, notes: &[&str]) {
    let imported = source.read(&data_file(file), Path::new("/home/me/demo")).expect(file);
    let got: Value = imported.servers.iter().map(|(name, entry)| json!([name, entry])).collect();
    assert_eq!(&got, servers, "{file}");
    assert_eq!(imported.notes.len(), notes.len(), "{:?}", imported.notes);
    for (note, words) in imported.notes.iter().zip(notes) {
        assert!(note.contains(words), "{words:?} is not in {note:?}");
    }
    // What was imported is a configuration without faults.
    let text = toolwright::import::edit::add_servers("", &imported.servers).expect("edit");
    let fixture = ["KEY", "TOKEN", "PERPLEXITY_KEY", "DOCS_TOKEN", "FIGMA_TOKEN"]
        .iter()
        .fold(Fixture::with(&text), |fixture, name| fixture.set(name, "v"));
    assert!(fixture.load().problems.is_empty(), "{:?}", fixture.load().problems);
}

#[test]
fn claude_desktop() {
    check(
        Source::ClaudeDesktop,
        "claude_desktop_config.json",
        &json!([
            ["filesystem", {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/Desktop"]}],
            ["github", {
                "enabled": false,
                "command": "docker",
                "args": ["run", "-i", "--rm", "-e", "GITHUB_TOKEN", "ghcr.io/github/github-mcp-server"],
                "env": {"GITHUB_TOKEN": "ghp_literal_0123"},
            }],
        ]),
        &["github: its list of tools that run without asking is not imported"],
    );
}

#[test]
fn claude_code_with_the_project_first() {
    check(
        Source::ClaudeCode,
        "claude.json",
        &json!([["db", {"command": "project-db", "args": ["--ro"]}], ["sentry", {"url": "https://mcp.sentry.dev/mcp", "enabled": false}]]),
        &[],
    );
}

#[test]
fn cursor() {
    check(
        Source::Cursor,
        "cursor_mcp.json",
        &json!([
            ["local", {"command": "python", "args": ["${workspaceFolder}/server.py"], "env": {"KEY": "${env:KEY}"}}],
            ["remote", {"url": "https://h/mcp", "headers": {"Authorization": "Bearer ${env:TOKEN}"}}],
        ]),
        &[
            "local: `${workspaceFolder}` is filled in with Toolwright's workspace root",
            "local: `envFile` is not imported: write the variables of that file under `env`",
        ],
    );
}

#[test]
fn vscode_with_comments_and_inputs() {
    check(
        Source::Vscode,
        "vscode_mcp.json",
        &json!([
            ["perplexity", {"command": "npx", "args": ["-y", "server-perplexity-ask"], "env": {"PERPLEXITY_API_KEY": "${PERPLEXITY_KEY}"}}],
            ["fetch", {"url": "https://h/mcp"}],
        ]),
        &["perplexity: it asks for an input; set the variable PERPLEXITY_KEY instead"],
    );
}

#[test]
fn codex() {
    check(
        Source::Codex,
        "codex_config.toml",
        &json!([
            ["docs", {
                "command": "npx",
                "args": ["-y", "docs-mcp"],
                "env": {"MODE": "ro", "DOCS_TOKEN": "${DOCS_TOKEN}"},
                "request_timeout": "45s",
                "connect_timeout": "20s",
                "tools_allowed": ["search"],
                "tools_denied": ["delete"],
            }],
            ["figma", {
                "enabled": false,
                "url": "https://mcp.figma.com/mcp",
                "headers": {"Authorization": "Bearer ${FIGMA_TOKEN}", "X-Region": "us"},
            }],
        ]),
        &[],
    );
}

#[test]
fn codex_settings_of_single_tools() {
    check(
        Source::Codex,
        "codex_tools.toml",
        &json!([["serena", {
            "command": "uvx",
            "args": ["serena"],
            "env": {"KEY": "${KEY}", "TOKEN": "${TOKEN}"},
            "tools_denied": ["shell", "*", "forget"],
        }]]),
        &[
            "codex asks before `*`: to keep that, write {effect: ask, tool: \"serena:*\"}",
            "codex runs `replace_content` without asking: that is not imported",
            "codex asks before `write_memory`",
            "`tools.write_memory.output_token_limit` is not imported",
        ],
    );
}

#[test]
fn gemini_with_its_limits_of_tools() {
    check(
        Source::Gemini,
        "gemini_settings.json",
        &json!([
            ["files", {
                "command": "npx",
                "args": ["-y", "files-mcp"],
                "env": {"API_KEY": "${KEY}", "URL": "https://h/${KEY}/x?price=5$"},
                "request_timeout": "30s",
                "tools_allowed": ["read", "list"],
                "tools_denied": ["delete"],
            }],
            ["none", {"url": "https://h/mcp", "tools_denied": ["*"]}],
            ["both", {"url": "https://h/http"}],
            ["near", {"url": "https://h/near", "headers": {"A": "1"}}],
            ["off", {"command": "x", "enabled": false}],
        ]),
        &[
            "files: its `timeout` 30000 is read as 30s",
            "files: its permission to run tools without asking",
            "both: Gemini CLI uses its `httpUrl`, so its `url` is not imported",
            "both: Gemini CLI uses its `httpUrl`, so its `command` is not imported",
            "near: Gemini CLI uses its `url`, so its `command` is not imported",
        ],
    );
}

#[test]
fn opencode_of_both_versions() {
    check(
        Source::Opencode,
        "opencode.jsonc",
        &json!([
            ["local", {"command": "npx", "args": ["-y", "a-mcp"], "env": {"KEY": "${env:KEY}"}}],
            ["remote", {"enabled": false, "url": "https://h/mcp", "headers": {"X-Key": "${env:TOKEN}"}}],
            ["secret", {"command": "x", "env": {"A": "{file:~/.key}"}}],
        ]),
        &["`tools` is not imported: if it limits tools", "secret: `{file:~/.key}` names a file"],
    );
    let second = json!([["everything", {"enabled": false, "command": "npx", "args": ["everything"]}]]);
    check(Source::Opencode, "opencode_v2.json", &second, &[]);
}

#[test]
fn windsurf() {
    check(
        Source::Windsurf,
        "windsurf_mcp_config.json",
        &json!([
            ["git", {"command": "uvx", "args": ["mcp-server-git"], "env": {"TOKEN": "${env:TOKEN}"}, "tools_denied": ["push"]}],
            ["far", {"enabled": false, "url": "https://h/mcp"}],
        ]),
        &["far: its list of tools that run without asking is not imported"],
    );
}

#[test]
fn limits_of_pasted_entries_apply() {
    for (entry, allowed, denied) in [
        (json!({"includeTools": ["a"], "excludeTools": ["b"]}), &["a"][..], &["b"][..]),
        (json!({"enabledTools": ["a"], "disabledTools": ["b"]}), &["a"], &["b"]),
        (json!({"includeTools": []}), &[], &["*"]),
        (json!({"toolsAllowed": ["a"], "toolsDenied": ["b"], "disabledTools": ["c"]}), &["a"], &["b", "c"]),
    ] {
        let mut entry = entry;
        entry["command"] = "x".into();
        let config = Fixture::with(&json!({"mcpServers": {"s": entry}}).to_string()).load();
        assert!(config.problems.is_empty(), "{:?}", config.problems);
        let settings = &config.servers[0].config;
        assert_eq!(
            (&settings.tools_allowed[..], &settings.tools_denied[..]),
            (&owned(allowed)[..], &owned(denied)[..])
        );
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn each_client_has_its_default_file() {
    for (source, file) in [
        (Source::Codex, "project/.codex/config.toml"),
        (Source::Gemini, "home/.gemini/settings.json"),
        (Source::Opencode, "project/opencode.jsonc"),
        (Source::Opencode, "home/.config/opencode/opencode.json"),
        (Source::Windsurf, "home/.codeium/windsurf/mcp_config.json"),
    ] {
        let fixture = Fixture::new();
        fixture.write(file, "{}");
        assert_eq!(source.find(&fixture.project(), &|name| fixture.variable(name)).expect(file), fixture.path(file));
    }
}

#[test]
fn zed() {
    check(
        Source::Zed,
        "zed_settings.json",
        &json!([["nested", {"command": "node", "args": ["server.js"]}], ["flat", {"command": "uvx", "args": ["mcp-server-git"]}]]),
        &["extension: `settings` is not imported", "extension: left out"],
    );
}

#[test]
fn other_transports_are_carried_over() {
    let fixture = Fixture::new();
    for kind in ["sse", "ws"] {
        let entry = json!({"mcpServers": {"old": {"type": kind, "url": format!("{kind}://h/x")}}});
        let file = fixture.write("x.json", &entry.to_string());
        let imported = Source::McpJson.read(&file, &fixture.project()).expect("read");
        assert!(imported.notes.is_empty(), "{:?}", imported.notes);
        assert_eq!(imported.servers[0].1["type"], kind);
    }
}

#[test]
fn imports_carry_every_known_key() {
    let fixture = Fixture::new();
    let entry = json!({"command": "x", "timeout": 2, "lazy": true, "toolsCache": {"search": "5m"}, "trusted": true, "icon": "i"});
    let file = fixture.write("x.json", &json!({"mcpServers": {"w": entry}}).to_string());
    let imported = Source::McpJson.read(&file, &fixture.project()).expect("read");
    let expect = json!({"command": "x", "request_timeout": "2s", "lazy": true, "tools_cache": {"search": "5m"}});
    assert_eq!(imported.servers, [("w".to_owned(), expect)]);
    let notes = ["`timeout` 2 is read as 2s", "`trusted` is not imported", "`icon` is not imported"];
    assert_eq!(imported.notes.len(), notes.len(), "{:?}", imported.notes);
    for (note, words) in imported.notes.iter().zip(notes) {
        assert!(note.contains(words), "{words:?} is not in {note:?}");
    }
    let own = json!({"mcpServers": {"w": {"command": "x", "timeout": 2, "requestTimeout": "5s"}}});
    let file = fixture.write("x.json", &own.to_string());
    let imported = Source::McpJson.read(&file, &fixture.project()).expect("read");
    assert_eq!(imported.servers[0].1["request_timeout"], "5s");
}

#[test]
fn missing_and_broken_imports_are_reported() {
    let fixture = Fixture::new();
    let missing = Source::Codex.find(&fixture.project(), &|name| fixture.variable(name)).expect_err("nothing there");
    assert!(missing.to_string().contains(".codex/config.toml"), "{missing}");
    let broken = fixture.write("project/.mcp.json", "{\"mcpServers\": [");
    let error = Source::McpJson.read(&broken, &fixture.project()).expect_err("broken");
    assert!(error.to_string().contains("not valid"), "{error}");
    let empty = fixture.write("project/empty.json", "{}");
    let error = Source::McpJson.read(&empty, &fixture.project()).expect_err("empty");
    assert!(error.to_string().contains("mcpServers"), "{error}");
    fixture.write("home/.cursor/mcp.json", "{\"mcpServers\": {}}");
    assert_eq!(
        Source::Cursor.find(&fixture.project(), &|name| fixture.variable(name)).expect("home"),
        fixture.path("home/.cursor/mcp.json")
    );
}
