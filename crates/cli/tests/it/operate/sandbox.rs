//! Sandbox settings, from the configuration to the process.

use serde_json::{Value, json};
use toolwright::config::Severity;
use toolwright::core::SandboxProfile;
use toolwright::core::sandbox::{Mechanism, enforcement};
use toolwright::sandbox::enforce::support;

use crate::command_line::cli::{ok, run, stderr};
use crate::configuration::config::broken;
use crate::support::Fixture;

#[test]
fn settings_are_read_and_faults_are_named() {
    let fixture = Fixture::with(
        "sandbox:\n  bash: workspace\n  strict: true\n  write: [~/.cache, cache, \"${OTHER}/x\"]\n  limits: {memory: 2000000000, cpu: 30s}\nmcpServers:\n  a: {command: x, sandbox: read-only}\n  b: {command: x}\n",
    )
    .set("OTHER", "/other");
    let config = fixture.load();
    assert_eq!(config.problems, []);
    let section = &config.sections.shell;
    assert_eq!((section.bash, section.python), (SandboxProfile::Workspace, SandboxProfile::Workspace));
    let root = config.root.clone();
    assert_eq!(
        config.sections.shell.sandbox.write,
        [fixture.path("home/.cache"), root.join("cache"), "/other/x".into()]
    );
    assert_eq!((section.sandbox.strict, section.sandbox.limits.memory), (true, Some(2_000_000_000)));
    let profiles: Vec<SandboxProfile> = config
        .servers
        .iter()
        .filter(|server| server.config.transport.url().is_none())
        .map(|server| server.config.sandbox)
        .collect();
    assert_eq!(profiles, [SandboxProfile::ReadOnly, SandboxProfile::Full]);

    broken("sandbox:\n  bash: readonly\n", 2, "sandbox.bash", Severity::Error, &["read-only", "workspace"]);
    broken("sandbox:\n  stict: true\n", 2, "sandbox.stict", Severity::Error, &["did you mean `strict`"]);
    let fixture = Fixture::with("sandbox:\n  write: [\"${NOT_SET}/x\", y]\n");
    let config = fixture.load();
    assert_eq!(config.problems.len(), 1);
    assert!(config.problems[0].to_string().contains("NOT_SET"), "{}", config.problems[0]);
    assert_eq!(config.sections.shell.sandbox.write, [config.root.join("y")]);
    let fixture = Fixture::with("mcpServers:\n  far: {url: \"http://127.0.0.1:1/mcp\", sandbox: pure}\n");
    let config = fixture.load();
    assert!(config.problems[0].to_string().contains("cannot be sandboxed"), "{:?}", config.problems);
}

pub(crate) fn call(fixture: &Fixture, tool: &str, arguments: &Value) -> Value {
    let output = run(fixture, &["call", tool, &arguments.to_string(), "--json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
}

#[test]
fn a_call_names_its_sandbox_profile() {
    let fixture = Fixture::with("sandbox:\n  bash: read-only\n");
    let plan = enforcement(SandboxProfile::ReadOnly, support());
    if plan.mechanism == Mechanism::None {
        return eprintln!("no sandbox here, skipped");
    }
    let bash = call(&fixture, "shell__bash", &json!({"command": "cat toolwright.yaml; echo x > new"}));
    assert!(!bash["ok"].as_bool().expect("ok") && !fixture.path("project/new").exists(), "{bash}");
    assert!(bash["text"].as_str().expect("text").contains("read-only"), "it reads: {bash}");
    assert_eq!(bash["extras"]["sandbox"], plan.to_json());

    let python = call(&fixture, "shell__python", &json!({"code": "open('made', 'w').write('x'); print(6 * 7)"}));
    assert_eq!((&python["ok"], &python["text"]), (&json!(true), &json!("42\n")), "{python}");
    assert!(fixture.path("project/made").exists());

    let report: Value = serde_json::from_str(&ok(&fixture, &["doctor", "--json"])).expect("json");
    let of: Vec<&str> = report["sandboxes"].as_array().expect("list").iter().filter_map(|s| s["of"].as_str()).collect();
    assert_eq!(of, ["shell__bash", "shell__python"]);
    assert_eq!(report["sandboxes"][0]["enforced"], plan.to_json()["enforced"]);
}

#[test]
fn new_protected_files_are_reported() {
    let fixture = Fixture::with("sandbox:\n  bash: workspace\n");
    let plan = enforcement(SandboxProfile::Workspace, support());
    if plan.mechanism == Mechanism::None {
        return eprintln!("no sandbox here, skipped");
    }
    fixture.write("project/sub/AGENTS.md", "mine\n");
    fixture.write("project/sub/CLAUDE.md", "mine\n");
    fixture.write("project/sub/.git/hooks/post-checkout", "mine\n");
    fixture.write("project/pkg/.github/workflows/ci.yml", "mine\n");
    let command = "mkdir -p sub/deep .github/workflows node_modules/x; echo x > CLAUDE.md; echo x > notes.md\n\
                   echo x > .github/workflows/ci.yml; echo x > sub/deep/toolwright.yaml; echo more >> sub/AGENTS.md\n\
                   echo x > node_modules/x/.npmrc; echo more >> sub/.git/hooks/post-checkout\n\
                   echo x > pkg/.github/workflows/more.yml";
    let output = run(&fixture, &["call", "shell__bash", &json!({"command": command}).to_string(), "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("json");
    let mut written: Vec<&str> =
        answer["extras"]["protected_written"].as_array().expect("list").iter().filter_map(Value::as_str).collect();
    written.sort_unstable();
    let expect = [
        ".github/workflows",
        "CLAUDE.md",
        "pkg/.github/workflows",
        "sub/.git/hooks/post-checkout",
        "sub/AGENTS.md",
        "sub/deep/toolwright.yaml",
    ];
    assert_eq!(written, expect);
    let quiet = call(&fixture, "shell__bash", &json!({"command": "cat CLAUDE.md > copy.md"}));
    assert!(quiet["extras"].get("protected_written").is_none(), "{quiet}");
}

#[test]
fn strict_refuses_what_is_not_wholly_enforced() {
    let fixture = Fixture::with("sandbox:\n  bash: workspace\n  strict: true\n");
    let complete = enforcement(SandboxProfile::Workspace, support()).is_complete();
    let bash = call(&fixture, "shell__bash", &json!({"command": "echo ran > ran"}));
    assert_eq!((bash["ok"] == json!(true), fixture.path("project/ran").exists()), (complete, complete), "{bash}");
    if !complete {
        let message = bash["error"]["message"].as_str().expect("message");
        assert!(message.contains("sandbox.strict") && message.contains("bubblewrap"), "{message}");
    }
}
