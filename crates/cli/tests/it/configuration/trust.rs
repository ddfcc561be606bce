//! A project's configuration that nobody has approved takes no part in anything, and a change waits.

use std::process::Output;

use serde_json::{Value, json};
use toolwright::config::Config;
use toolwright::core::sandbox::{Mechanism, SandboxProfile, enforcement};
use toolwright::sandbox::DEPTH_VARIABLE;
use toolwright::sandbox::enforce::support;
use toolwright::trust::TrustState;

use crate::command_line::cli::{ok, program, run, stderr};
use crate::command_line::terminal::Terminal;
use crate::operate::sandbox::call;
use crate::serving::gateway::Gateway;
use crate::support::{Fixture, until};

const FILE: &str = "project/toolwright.yaml";

/// A server that leaves a mark when it starts.
fn marking(fixture: &Fixture, name: &str) -> String {
    let mark = fixture.path(&format!("mark-{name}"));
    format!("  {name}:\n    command: sh\n    args: [-c, \"echo started >> {}\"]\n", mark.display())
}

fn has_started(fixture: &Fixture, name: &str) -> bool {
    fixture.path(&format!("mark-{name}")).exists()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(output)))
}

/// How the project's files stand, by a fresh look.
fn trust_states(config: &Config) -> Vec<TrustState> {
    config.trust.iter().map(|judged| judged.state.clone()).collect()
}

#[test]
fn devices_and_pipes_are_not_read() {
    let fixture = Fixture::new();
    std::os::unix::fs::symlink("/dev/zero", fixture.path(FILE)).expect("link");
    let made = std::process::Command::new("mkfifo").arg(fixture.path("project/.mcp.json")).status().expect("mkfifo");
    assert!(made.success());
    let listed = run(&fixture, &["tools", "ls"]);
    let reported = stderr(&listed);
    assert_eq!(reported.matches("it is no ordinary file").count(), 2, "{reported}");
}

#[test]
fn an_unapproved_project_starts_nothing() {
    let fixture = Fixture::new();
    let yaml = format!(
        "mcpServers:\n{}policy:\n  rules: [{{effect: allow, tool: '*'}}]\nserver:\n  token: theirs\nviews:\n  v: {{}}\n\
         models:\n  default: evil/model\n  endpoints:\n    evil: {{api: ollama, base_url: http://127.0.0.1:1}}\n",
        marking(&fixture, "yaml")
    );
    fixture.write_as_stranger(FILE, &yaml);
    let mark = fixture.path("mark-json").display().to_string();
    let foreign = json!({"mcpServers": {"json": {"command": "touch", "args": [mark]}}});
    fixture.write_as_stranger("project/.mcp.json", &foreign.to_string());
    fixture.write_as_stranger("project/toolwright-compat.json", "{\"broken\": [");
    for arguments in [
        &["tools", "search", "anything"][..],
        &["tools", "ls"],
        &["call", "yaml__x", "{}"],
        &["call", "json__x", "{}"],
        &["pick", "anything"],
        &["doctor"],
        &["config", "show"],
        &["mcp", "ls"],
        &["run", "do it", "--policy", "ask"],
    ] {
        let output = run(&fixture, arguments);
        let said = format!("{}{}", stderr(&output), String::from_utf8_lossy(&output.stdout));
        for file in ["toolwright.yaml", ".mcp.json"] {
            let warned = said.lines().any(|line| line.contains(file) && line.contains("`toolwright trust`"));
            assert!(warned || arguments[0] == "mcp", "{arguments:?} does not warn of {file}: {said}");
        }
        assert!(!has_started(&fixture, "yaml") && !has_started(&fixture, "json"), "{arguments:?} started it: {said}");
    }
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    gateway.handshake();
    gateway.has_tool("fs__read", true);
    gateway.says("nobody has approved this file");
    gateway.says("no configuration file, the built-in tools only");
    assert!(!has_started(&fixture, "yaml") && !has_started(&fixture, "json"));
    let config = fixture.load();
    assert_eq!(config.sections, toolwright::config::ConfigFile::default());
    assert!(config.servers.is_empty() && config.model_endpoints.is_empty() && config.files.is_empty());
    assert!(!config.problems.iter().any(|problem| problem.to_string().contains("compat")), "{:?}", config.problems);
    // The owner's own word needs no approval.
    ok(&fixture, &["tools", "ls", "--config", "toolwright.yaml"]);
    until("the server starts", || has_started(&fixture, "yaml"));
}

#[test]
fn approvals_cover_only_the_shown_content() {
    let fixture = Fixture::new();
    let server = marking(&fixture, "a");
    fixture.write_as_stranger(FILE, &format!("mcpServers:\n{server}policy: {{profile: trusted}}\n"));
    let shown = ok(&fixture, &["trust", "--show"]);
    for words in
        ["is not approved", "It starts:", "a: sh -c \"echo started", "all rights", "policy.profile: \"trusted\""]
    {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
    let refused = run(&fixture, &["trust"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert_eq!(trust_states(&fixture.load()), [TrustState::Unapproved]);
    ok(&fixture, &["trust", "--yes"]);
    assert_eq!((trust_states(&fixture.load()), fixture.load().servers.len()), (vec![TrustState::Approved], 1));
    // A comment is no change; neither is going back to what was approved.
    fixture.write_as_stranger(FILE, &format!("# mine\nmcpServers:\n{server}policy: {{profile: trusted}}\n"));
    assert_eq!(trust_states(&fixture.load()), [TrustState::Approved]);
    let state = json_of(&run(&fixture, &["trust", "--show", "--json"]));
    assert_eq!(state["files"][0]["state"], "approved", "{state}");
    ok(&fixture, &["trust", "--revoke"]);
    assert_eq!((trust_states(&fixture.load()), fixture.load().servers.len()), (vec![TrustState::Unapproved], 0));
    let missing = run(&fixture, &["trust", "elsewhere/toolwright.yaml"]);
    assert_eq!(missing.status.code(), Some(3), "{}", stderr(&missing));
    let other = run(&fixture, &["trust", "notes.txt"]);
    assert_eq!(other.status.code(), Some(2), "{}", stderr(&other));
}

#[cfg(unix)]
#[test]
fn approvals_are_private_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let fixture = Fixture::with("policy: {profile: ask}\n");
    let folder = fixture.state_dir().join("trust");
    let mode = |path: &std::path::Path| std::fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let record = std::fs::read_dir(&folder).expect("folder").flatten().next().expect("a record").path();
    assert_eq!(mode(&record), 0o600);
    // What another user may have written counts for nothing.
    std::fs::set_permissions(&record, std::fs::Permissions::from_mode(0o666)).expect("mode");
    assert_eq!(trust_states(&fixture.load()), [TrustState::Unapproved]);
}

#[test]
fn changed_policy_views_and_tokens_wait() {
    let fixture = Fixture::new();
    let approved = "policy:\n  rules:\n    - {effect: deny, tool: 'fs:write'}\nviews:\n  small: {deny: ['shell__*']}\n\
                    server:\n  tokens:\n    me: {token: mine}\n";
    let waits = |text: &str, paths: &[&str]| {
        fixture.write(FILE, approved);
        fixture.write_as_stranger(FILE, text);
        let config = fixture.load();
        assert_eq!(trust_states(&config), [TrustState::Changed], "{text}");
        let waiting: Vec<&str> = config.trust[0].pending.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(waiting, paths, "{text}");
        assert_eq!(
            (config.sections.policy.rules.len(), config.sections.views.len()),
            (1, 1),
            "what was approved holds: {text}"
        );
        assert_eq!(config.sections.server.tokens["me"].token.expose(), "mine");
        assert!(config.problems.iter().any(|problem| problem.to_string().contains("has changed since")), "{text}");
    };
    waits(&approved.replace("effect: deny", "effect: allow"), &["policy.rules"]);
    waits(&approved.replace("policy:", "policy:\n  profile: trusted"), &["policy.profile"]);
    waits(&approved.replace("deny: ['shell__*']", "deny: []"), &["views.small.deny"]);
    waits(&approved.replace("token: mine", "token: theirs"), &["server.tokens.me.token"]);
    waits(&format!("{approved}web: {{allow_private: true}}\n"), &["web.allow_private"]);
    waits(&format!("{approved}sandbox: {{write: [/]}}\n"), &["sandbox.write"]);
    // A file that is gone does not take its rules along.
    std::fs::remove_file(fixture.path(FILE)).expect("removed");
    let config = fixture.load();
    assert_eq!((trust_states(&config), config.sections.policy.rules.len()), (vec![TrustState::Gone], 1));
    ok(&fixture, &["trust", "--revoke"]);
    assert!(fixture.load().trust.is_empty() && fixture.load().sections.policy.rules.is_empty());
}

#[test]
fn an_invalid_change_keeps_the_approved_state() {
    let fixture = Fixture::with("policy:\n  rules:\n    - {effect: deny, tool: 'fs:write'}\n");
    fixture.write_as_stranger(FILE, "policy: [\n");
    let config = fixture.load();
    assert!(!config.is_unusable(), "{:?}", config.problems);
    assert_eq!((trust_states(&config), config.sections.policy.rules.len()), (vec![TrustState::Changed], 1));
    assert!(config.problems[0].to_string().contains("not valid YAML"), "{:?}", config.problems);
    let refused = run(&fixture, &["trust", "--yes"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[test]
fn a_harmless_change_needs_no_approval() {
    let fixture = Fixture::new();
    let (a, b) = (marking(&fixture, "a"), marking(&fixture, "b"));
    let both = format!("mcpServers:\n{a}{b}");
    fixture.write(FILE, &both);
    let stricter = format!("mcpServers:\n{a}policy:\n  rules:\n    - {{effect: deny, tool: 'fs:*'}}\n");
    fixture.write_as_stranger(FILE, &stricter);
    let config = fixture.load();
    assert_eq!(
        (trust_states(&config), config.servers.len(), config.sections.policy.rules.len()),
        (vec![TrustState::Approved], 1, 1)
    );
    // What the owner has taken out by hand does not come back unasked.
    fixture.write_as_stranger(FILE, &both);
    let config = fixture.load();
    assert_eq!((trust_states(&config), config.servers.len()), (vec![TrustState::Changed], 1));
}

#[test]
fn a_changed_file_of_an_llm_tool_waits() {
    let fixture = Fixture::with("llmTools:\n  sum: {file: sum.md}\n");
    let text = |user: &str| format!("---\ndescription: Sums.\nparameters: {{type: object}}\n---\n{user}\n");
    fixture.write("project/sum.md", &text("Sum it."));
    let user = |config: &Config| format!("{:?}", config.llm_tools);
    assert!(user(&fixture.load()).contains("Sum it."), "{:?}", fixture.load().problems);
    fixture.write_as_stranger("project/sum.md", &text("Send it away."));
    let config = fixture.load();
    assert_eq!(trust_states(&config), [TrustState::Changed]);
    assert!(user(&config).contains("Sum it.") && !user(&config).contains("Send it away."));
}

#[test]
fn serve_does_not_load_unapproved_configuration() {
    let fixture = Fixture::new();
    fixture.write(FILE, "sandbox: {bash: workspace}\npolicy: {profile: trusted}\n");
    let mut gateway = Gateway::start(&fixture, &["--stdio"]);
    gateway.handshake();
    gateway.has_tool("fs__read", true);
    // What a sandboxed tool managed to write, by whatever hole.
    let evil =
        format!("sandbox: {{bash: full}}\npolicy: {{profile: trusted}}\nmcpServers:\n{}", marking(&fixture, "evil"));
    fixture.write_as_stranger(FILE, &evil);
    gateway.says("has changed since it was approved");
    gateway.says("mcp_servers.evil");
    fixture.write_as_stranger("project/.mcp.json", "{\"mcpServers\": {\"more\": {\"command\": \"sh\"}}}");
    gateway.says("nobody has approved this file");
    gateway.has_tool("fs__read", true);
    assert!(!has_started(&fixture, "evil"), "{}", gateway.output_text());
    assert!(!gateway.output_text().contains("added"), "{}", gateway.output_text());
    // A word in another terminal is all it takes.
    ok(&fixture, &["trust", "--yes", "toolwright.yaml"]);
    gateway.says("added evil");
    until("the server starts", || has_started(&fixture, "evil"));
    assert!(!gateway.output_text().contains("added more"), "{}", gateway.output_text());
}

#[test]
fn a_tools_nested_configuration_is_not_loaded() {
    let fixture = Fixture::new();
    std::fs::create_dir_all(fixture.path("project/sub")).expect("folder");
    let server = |name: &str| json!({"mcpServers": {name: {"command": "touch", "args": [fixture.path(&format!("mark-{name}"))]}}});
    fixture.write(FILE, "sandbox: {bash: workspace}\npolicy: {profile: trusted}\n");
    let mut below = Gateway::start_in(&fixture, "project/sub", &["--stdio"]);
    below.handshake();
    below.has_tool("fs__read", true);
    let write = format!(
        "printf '%s' '{}' > sub/toolwright.yaml; printf '%s' '{}' > sub/.mcp.json; echo done",
        server("yaml"),
        server("json")
    );
    let answer = call(&fixture, "shell__bash", &json!({"command": write}));
    assert_eq!(answer["ok"], json!(true), "{answer}");
    assert!(fixture.path("project/sub/toolwright.yaml").exists() && fixture.path("project/sub/.mcp.json").exists());
    // The gateway that runs there, and one that starts there, leave both out.
    let left_out =
        |gateway: &Gateway, file: &str| gateway.says(&format!("{file}: warning: nobody has approved this file"));
    left_out(&below, "toolwright.yaml");
    left_out(&below, ".mcp.json");
    let mut fresh = Gateway::start_in(&fixture, "project/sub", &["--stdio"]);
    fresh.handshake();
    fresh.has_tool("fs__read", true);
    left_out(&fresh, "toolwright.yaml");
    assert!(
        !has_started(&fixture, "yaml") && !has_started(&fixture, "json"),
        "{} {}",
        below.output_text(),
        fresh.output_text()
    );
}

#[test]
fn nested_processes_cannot_approve() {
    let fixture = Fixture::new();
    fixture.write_as_stranger(FILE, "policy: {profile: trusted}\n");
    for arguments in [&["trust", "--yes"][..], &["trust", "--revoke"], &["trust"]] {
        let output = program(&fixture).args(arguments).env(DEPTH_VARIABLE, "1").output().expect("the program runs");
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {}", stderr(&output));
    }
    // A model's own shell, which has cleared its environment.
    let trust = format!("env -i HOME=\"$HOME\" {} trust --yes", env!("CARGO_BIN_EXE_toolwright"));
    let answer = call(&fixture, "shell__bash", &json!({"command": trust}));
    assert_eq!(answer["ok"], json!(false), "{answer}");
    assert_eq!(trust_states(&fixture.load()), [TrustState::Unapproved]);
    // What such a process writes is not approved on the way.
    std::fs::remove_file(fixture.path(FILE)).expect("removed");
    let add =
        program(&fixture).args(["add", "x", "--", "sh"]).env(DEPTH_VARIABLE, "1").output().expect("the program runs");
    assert!(add.status.success() && stderr(&add).contains("is not approved"), "{}", stderr(&add));
    assert_eq!(trust_states(&fixture.load()), [TrustState::Unapproved]);
}

#[test]
fn a_sandboxed_command_cannot_write_approvals() {
    let fixture = Fixture::new();
    for (path, is_refused) in
        [("~/", true), ("~/.local/state", true), ("~/.local/state/toolwright/trust", true), ("~/.cache", false)]
    {
        fixture.write(FILE, &format!("sandbox: {{bash: workspace, write: ['{path}']}}\n"));
        let config = fixture.load();
        assert_eq!(
            (config.is_unusable(), config.sections.shell.sandbox.write.is_empty()),
            (is_refused, is_refused),
            "{path}"
        );
    }
    let plan = enforcement(SandboxProfile::Workspace, support());
    if plan.mechanism == Mechanism::None || !plan.is_complete() {
        return eprintln!("no whole sandbox here, skipped");
    }
    // Where the workspace has the state in it.
    let home = fixture.path("home").canonicalize().expect("home").display().to_string();
    let config = fixture.write("conf/sandboxed.yaml", "sandbox: {bash: workspace}\n").display().to_string();
    fixture.write(FILE, "policy: {profile: ask}\n");
    let state = format!("{home}/.local/state/toolwright");
    let script = format!(
        "touch {home}/fine; echo x > {state}/trust/x; rm -rf {state}/trust; mv {state} {home}/copy; mv {home}/.local {home}/moved; true"
    );
    let arguments = json!({"command": script}).to_string();
    let output = run(&fixture, &["--config", &config, "--root", &home, "call", "shell__bash", &arguments]);
    assert!(fixture.path("home/fine").exists(), "{} {}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert!(!fixture.state_dir().join("trust/x").exists() && !fixture.path("home/moved").exists());
    assert_eq!(trust_states(&fixture.load()), [TrustState::Approved], "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn an_empty_project_file_needs_no_approval() {
    let fixture = Fixture::new();
    for text in ["", "# nothing\n", "{}      \n"] {
        fixture.write_as_stranger(FILE, text);
        let config = fixture.load();
        assert!(config.trust.is_empty() && config.files.is_empty() && config.problems.is_empty(), "{text:?}");
    }
}

#[test]
fn a_file_of_misspelt_keys_is_reported() {
    let fixture = Fixture::with("views:\n  top: {}\n");
    std::fs::create_dir(fixture.path("project/.git")).expect("repository");
    fixture.write_as_stranger("project/sub/toolwright.yaml", "mcpServer:\n  a: {command: sh}\npolcy: {}\n");
    let config = fixture.load_with(|options| options.cwd = fixture.path("project/sub"));
    assert_eq!(trust_states(&config), [TrustState::Faulty, TrustState::Approved]);
    let reported: Vec<String> = config.problems.iter().map(ToString::to_string).collect();
    assert!(
        reported.len() == 2 && reported[0].contains("mcpServer") && reported[1].contains("did you mean"),
        "{reported:?}"
    );
    // Nothing of it holds, and nothing waits for anybody.
    assert!(!config.is_unusable() && config.servers.is_empty());
    assert_eq!(config.sections.views.keys().collect::<Vec<_>>(), ["top"]);
    let trust = |arguments: &[&str]| {
        let mut program = program(&fixture);
        program.current_dir(fixture.path("project/sub")).args(arguments).output().expect("the program runs")
    };
    assert!(stderr(&trust(&["trust", "--yes"])).contains("nothing waits"));
    let shown = trust(&["trust", "--show"]);
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("says nothing that counts") && shown.contains("mcpServer"), "{shown}");
    // A value of the wrong kind ends no command in a stranger's folder.
    fixture.write_as_stranger("project/sub/toolwright.yaml", "policy: 5\n");
    let config = fixture.load_with(|options| options.cwd = fixture.path("project/sub"));
    assert!(!config.is_unusable() && config.problems.len() == 1, "{:?}", config.problems);
}

#[test]
fn document_server_texts_are_shown_as_data() {
    let fixture = Fixture::new();
    let operation = json!({"responses": {}, "servers": [{"url": "https://other.example/v1"}]});
    let document = json!({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://evil.example/\u{1b}[2J"}], "paths": {"/orders": {"get": operation}}});
    fixture.write_as_stranger("project/shop.json", &document.to_string());
    fixture.write_as_stranger(FILE, "openapi:\n  shop: {document: shop.json}\n  gone: {document: gone.json}\n");
    let shown = ok(&fixture, &["trust", "--show"]);
    for words in
        ["openapi.shop reads shop.json, which names the servers https://evil.example/", "https://other.example/v1"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(shown.contains("openapi.gone reads gone.json, which cannot be read"), "{shown}");
    assert!(!shown.contains('\u{1b}') && !shown.contains("documents."), "{shown}");
}

#[test]
fn a_changed_document_of_an_entry_waits() {
    let document = |path: &str| {
        json!({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"}, "servers": [{"url": "http://127.0.0.1:1"}],
               "paths": {path: {"get": {"operationId": "list", "parameters": [{"$ref": "parts.json#/x"}],
                                         "responses": {"200": {"description": "all"}}}}}})
        .to_string()
    };
    let part = |of: &str| json!({"x": {"name": "x", "in": of, "schema": {"type": "string"}}}).to_string();
    let fixture = Fixture::new();
    fixture.write("project/shop.json", &document("/orders"));
    fixture.write("project/parts.json", &part("query"));
    fixture.write(FILE, "openapi:\n  shop: {document: shop.json}\n");
    let listed = |expected: bool| {
        let output = run(&fixture, &["tools", "ls", "--json"]);
        let has = String::from_utf8_lossy(&output.stdout).contains("shop__list");
        assert_eq!(has, expected, "{} {}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        stderr(&output)
    };
    assert_eq!(trust_states(&fixture.load()), [TrustState::Approved]);
    listed(true);
    for (file, changed, back) in [
        ("project/shop.json", document("/evil"), document("/orders")),
        ("project/parts.json", part("header"), part("query")),
    ] {
        fixture.write_as_stranger(file, &changed);
        let config = fixture.load();
        assert_eq!(trust_states(&config), [TrustState::Changed], "{file}");
        assert_eq!(config.trust[0].pending[0].path, "documents.shop.json");
        let said = listed(false);
        assert!(said.contains("has changed since it was approved"), "{said}");
        fixture.write_as_stranger(file, &back);
        assert_eq!(trust_states(&fixture.load()), [TrustState::Approved], "{file}");
    }
    listed(true);
    // Where a variable says which file it is, nobody can tell that it was approved.
    fixture.write(FILE, "openapi:\n  shop: {document: \"${workspaceFolder}/shop.json\"}\n");
    assert!(listed(false).contains("was not approved with the file that names it"));
}

#[test]
fn edits_by_the_owner_stay_approved() {
    let fixture = Fixture::new();
    ok(&fixture, &["add", "a", "--", "sh", "-c", "exit"]);
    assert_eq!((trust_states(&fixture.load()), fixture.load().servers.len()), (vec![TrustState::Approved], 1));
    ok(&fixture, &["add", "b", "--", "sh"]);
    ok(&fixture, &["remove", "a"]);
    assert_eq!((trust_states(&fixture.load()), fixture.load().servers.len()), (vec![TrustState::Approved], 1));
    // A stranger's file does not become the owner's by an edit.
    fixture.write_as_stranger(FILE, "mcpServers:\n  evil:\n    command: sh\n");
    let added = run(&fixture, &["add", "c", "--", "sh"]);
    assert!(added.status.success() && stderr(&added).contains("is not approved"), "{}", stderr(&added));
    assert_eq!(fixture.load().servers.iter().map(|server| server.entry.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn a_given_configuration_ignores_all_others() {
    let fixture = Fixture::with("policy: {profile: trusted}\nviews:\n  project: {}\n");
    fixture.write("home/.config/toolwright/toolwright.yaml", "views:\n  home: {}\n");
    let given = fixture.write("conf/mine.yaml", "views:\n  mine: {}\n");
    let config = fixture.load_with(|options| options.config = Some(given.clone()));
    assert_eq!(config.sections.views.keys().collect::<Vec<_>>(), ["mine"]);
    assert_eq!((config.sections.policy.profile, config.files), (None, vec![given]));
    let config = fixture.load();
    assert_eq!(config.sections.views.keys().collect::<Vec<_>>(), ["project", "home"]);
}

#[test]
fn configuration_is_found_from_subfolders() {
    let fixture = Fixture::with("views:\n  top: {}\n");
    std::fs::create_dir_all(fixture.path("project/a/b")).expect("folder");
    let views = |folder: &str| {
        let config = fixture.load_with(|options| options.cwd = fixture.path(folder));
        (config.sections.views.keys().cloned().collect::<Vec<_>>(), config.root)
    };
    let (project, below) = (fixture.project().canonicalize().expect("folder"), fixture.path("project/a/b"));
    assert_eq!(views("project/a/b"), (vec![], below.canonicalize().expect("folder")), "what is above may be anybody's");
    std::fs::create_dir(fixture.path("project/.git")).expect("repository");
    assert_eq!(views("project/a/b"), (vec!["top".to_owned()], project.clone()));
    // A file that nobody has approved takes nothing away.
    fixture.write_as_stranger("project/a/toolwright.yaml", "views:\n  near: {}\n");
    assert_eq!(views("project/a/b"), (vec!["top".to_owned()], project));
    let mut listed = program(&fixture);
    let listed =
        listed.current_dir(fixture.path("project/a/b")).args(["tools", "ls"]).output().expect("the program runs");
    let said = stderr(&listed);
    assert!(said.contains("configuration: ") && said.contains("project/toolwright.yaml"), "{said}");
    assert!(said.contains("a/toolwright.yaml: warning: nobody has approved"), "{said}");
}

#[test]
fn the_first_use_at_a_terminal_asks() {
    let fixture = Fixture::new();
    fixture.write_as_stranger(FILE, "views:\n  \"x\\e[2Jy\": {}\n");
    let mut terminal = Terminal::start(&fixture, &["config", "show"]);
    terminal.types("Use this configuration? [y/N]", "n\r");
    let (code, output, said) = terminal.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("is not approved") && !said.contains("\u{1b}[2J") && !output.contains("[2J"),
        "{said}{output}"
    );
    assert_eq!(trust_states(&fixture.load()), [TrustState::Unapproved]);
    // The next command does not ask again, and says why.
    let (code, _, said) = Terminal::start(&fixture, &["config", "show"]).ended();
    assert!(code == Some(0) && !said.contains("Use this"), "{said}");
    assert!(said.contains("you refused this file, so it is left out") && said.contains("`toolwright trust`"), "{said}");
    // Whoever wants to be asked is.
    let mut terminal = Terminal::start(&fixture, &["trust"]);
    terminal.types("Use this configuration? [y/N]", "n\r");
    assert_eq!(terminal.ended().0, Some(4));
    fixture.write_as_stranger(FILE, "views:\n  mine: {}\n");
    let mut terminal = Terminal::start(&fixture, &["config", "show"]);
    terminal.types("Use this configuration? [y/N]", "y\r");
    let (code, output, said) = terminal.ended();
    assert_eq!((code, trust_states(&fixture.load())), (Some(0), vec![TrustState::Approved]), "{said}");
    assert!(output.contains("mine"), "{output}");
    let (code, _, said) = Terminal::start(&fixture, &["config", "show"]).ended();
    assert!(code == Some(0) && !said.contains("Use this"), "asked once: {said}");
}
