//! What a model, or a command that it has run, must not reach.

use std::process::Command;

use serde_json::json;
use toolwright::Toolwright;
use toolwright::app::CallOptions;
use toolwright::config::LoadOptions;
use toolwright::core::{CallId, Profile, RawArguments, ToolCall};

use crate::command_line::cli::{program, stderr};
use crate::support::Fixture;

#[tokio::test]
async fn workspace_profile_asks_before_configuration_writes() {
    let fixture = Fixture::with("defaults: {}\n");
    let given = fixture.write("project/conf/mine.yaml", "defaults: {}\n");
    let options = LoadOptions {
        cwd: fixture.project(),
        root: Some(fixture.project()),
        config: Some(given),
        state_dir: Some(fixture.path("project/state")),
        ..LoadOptions::default()
    };
    let app = Toolwright::load(options).await.expect("opens");
    let write = async |path: &str| {
        let arguments = RawArguments::Value(json!({"path": path, "content": "x"}));
        let call = ToolCall::new(CallId::new("c"), "fs__write", arguments);
        app.call_with(call, CallOptions::new(Profile::Workspace)).await
    };
    let all = ["toolwright.yaml", ".mcp.json", "conf/mine.yaml", "conf/../.git/hooks/pre-commit", "state/x"];
    for path in all {
        let outcome = write(path).await;
        let kind = outcome.error.as_ref().map(|error| error.kind().as_str());
        assert_eq!(kind, Some("denied"), "{path}: {}", outcome.text());
    }
    assert!(!fixture.path("project/.mcp.json").exists());
    assert_eq!(fixture.read("project/conf/mine.yaml"), "defaults: {}\n");
    let outcome = write("conf/notes.md").await;
    assert!(outcome.ok, "{}", outcome.text());
    app.shut_down().await;
}

#[test]
fn file_tools_cannot_read_the_secrets_file() {
    let fixture = Fixture::new();
    fixture.write("home/.config/toolwright/secrets.env", "API_TOKEN=tok-1111\n");
    fixture.write("home/.config/toolwright/notes.env", "API_TOKEN=other\n");
    let home = fixture.path("home").display().to_string();
    let call = |tool: &str, arguments: &serde_json::Value| {
        let arguments = arguments.to_string();
        let output =
            program(&fixture).args(["--root", &home, "call", tool, &arguments, "--json"]).output().expect("runs");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output))
    };
    let folder = ".config/toolwright";
    let read = call("fs__read", &json!({"path": format!("{folder}/secrets.env")}));
    assert!(read.contains("\"ok\":false") || read.contains("\"ok\": false"), "{read}");
    for (tool, arguments) in [
        ("fs__read", json!({"path": format!("{folder}/notes.env")})),
        ("fs__grep", json!({"pattern": "API_TOKEN", "path": folder, "hidden": true})),
        ("fs__glob", json!({"pattern": "**/*.env", "path": folder, "hidden": true})),
        ("fs__tree", json!({"path": folder, "hidden": true})),
    ] {
        let answer = call(tool, &arguments);
        assert!(answer.contains("notes.env") || answer.contains("other"), "{tool}: {answer}");
        assert!(!answer.contains("secrets.env") && !answer.contains("tok-1111"), "{tool}: {answer}");
    }
    assert!(!read.contains("tok-1111"), "{read}");
}

/// The program as a user without privileges, whom the kernel does not let read everything.
#[cfg(target_os = "linux")]
fn as_plain_user(fixture: &Fixture) -> Command {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
    let me = std::fs::metadata("/proc/self").expect("proc").uid();
    let plain = program(fixture);
    if me != 0 {
        return plain;
    }
    // The test's own folder, and the program in it, where anybody reaches them.
    for folder in ["", "home", "project"] {
        std::fs::set_permissions(fixture.path(folder), PermissionsExt::from_mode(0o777)).expect("mode");
    }
    std::fs::copy(plain.get_program(), fixture.path("toolwright")).expect("copied");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(fixture.path("toolwright"));
    command.current_dir(fixture.project()).env_clear().envs(plain.get_envs().filter_map(|(k, v)| Some((k, v?))));
    command
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_cannot_read_its_parents_environment() {
    let fixture = Fixture::new();
    let seconds = format!("600.{}", std::process::id());
    // Above the command is its watcher, above that the gateway. What it leaves running must end all the same.
    let above = "setsid sleep SECONDS & for pid in $PPID $(grep PPid /proc/$PPID/status | cut -f2); do \
                 cat /proc/$pid/environ || echo unreadable; done";
    let arguments = json!({"command": above.replace("SECONDS", &seconds)}).to_string();
    let output = as_plain_user(&fixture)
        .env("OPENAI_API_KEY", "key-of-ours")
        .args(["call", "shell__bash", &arguments])
        .output()
        .expect("the program runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", stderr(&output));
    assert!(!printed.contains("key-of-ours"), "{printed}");
    assert_eq!(printed.matches("unreadable").count(), 2, "{printed}");
    let processes = std::fs::read_dir("/proc").expect("proc").flatten();
    let mut commands = processes.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
    assert!(!commands.any(|command| command == format!("sleep\0{seconds}\0")), "it was left behind");
}
