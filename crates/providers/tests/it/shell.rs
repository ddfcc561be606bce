//! `shell:bash` and `shell:python` with real processes, and the built-in provider as a whole.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::json;
use toolwright_core::cancel::CancelCause;
use toolwright_core::content::joined_text;
use toolwright_core::event::Partial;
use toolwright_core::sandbox::SandboxProfile;
use toolwright_core::schema::CompiledSchema;
use toolwright_core::store::{OutputStore, OutputWriter, StoreError, StoredOutput};
use toolwright_core::{ErrorKind, Provider as _, SessionId};
use toolwright_providers::builtin::{BuiltinOptions, ShellConfig, provider, tools};

use crate::files::workspace::Workspace;
use crate::processes::{peak_memory, pids_with, unique_sleep, wait_for_count};

#[tokio::test]
async fn a_command_returns_what_a_terminal_would_show() {
    let ws = Workspace::new();
    ws.put("sub/file", "");
    for (command, expect) in [
        ("echo a; echo b >&2; echo c", "a\nb\nc\n"),
        ("true", "(no output)"),
        ("pwd -P | xargs basename", "ws\n"),
        ("cat", "(no output)"),
        ("printf '%s' \"$0\"", "bash"),
    ] {
        assert_eq!(ws.ok("shell:bash", json!({"command": command})).await, expect, "{command}");
    }
    assert_eq!(ws.ok("shell:bash", json!({"command": "ls", "cwd": "sub"})).await, "file\n");
    let missing = json!({"command": "ls", "cwd": "gone"});
    ws.fails("shell:bash", missing, ErrorKind::ExecutionError, &["working directory", "cwd"]).await;
}

#[tokio::test]
async fn sessions_keep_folder_and_environment() {
    let ws = Workspace::new();
    ws.put("sub/deep/file", "");
    let bash = |command: &str, name: &str| json!({"command": command, "session": name});
    for (call, expect) in [
        (bash("cd sub; export A='x y' PATH=\"$PATH:/z\"; B=2; unset HOME; exit 3", "one"), "exit code 3"),
        (
            bash("ls; echo \"$A ${B-gone} ${HOME-gone} ${PATH##*:} $# ${TOOLWRIGHT_SESSION-none}\"", "one"),
            "deep\nx y gone gone /z 0 none\n",
        ),
        (bash("cd deep; exec true", "one"), "(no output)\n[toolwright: session `one` stays as it was"),
        (bash("ls", "one"), "deep\n"),
        (bash("echo ${A-none}; ls", "two"), "none\nsub\n"),
        (json!({"command": "ls", "session": "one", "cwd": "sub/deep"}), "file\n"),
        (bash("pwd | xargs basename", "one"), "deep\n"),
    ] {
        let output = ws.call("shell:bash", call.clone()).await.expect("runs");
        let text = output.content.iter().filter_map(|block| block.as_text()).collect::<Vec<_>>().join("\n");
        assert!(text.starts_with(expect), "{call}: {text}");
    }
    let python = |code: &str| json!({"code": code, "session": "one", "args": ["x"]});
    for (call, expect) in [
        (python("import os\nos.chdir('sub'); os.environ['A'] = 'é\\udcff'; del os.environ['PATH']"), "(no output)"),
        (
            python(
                "from __future__ import annotations\nimport os, sys\nprint(os.listdir(), ascii(os.environ['A']), 'PATH' in os.environ, sys.argv[1:])",
            ),
            "['deep'] '\\xe9\\udcff' False ['x']\n",
        ),
        (
            python("import os\nos.chdir('deep')\n1/0"),
            "Traceback (most recent call last):\n  File \"<code>\", line 3, in <module>\nZeroDivisionError",
        ),
        (python("import os, sys\nprint(os.listdir()); sys.exit(4)"), "['file']\nexit code 4"),
    ] {
        let output = ws.call("shell:python", call.clone()).await.expect("runs");
        assert!(joined_text(&output.content).starts_with(expect), "{call}: {}", joined_text(&output.content));
    }
}

#[tokio::test]
async fn a_session_leaves_no_link_elsewhere() {
    let ws = Workspace::with(|_| BuiltinOptions {
        shell: ShellConfig { bash: SandboxProfile::Workspace, ..ShellConfig::default() },
        ..BuiltinOptions::default()
    });
    std::fs::write(ws.outer.path().join("secret"), "export SECRET=1\n").expect("file");
    let link = "trap - EXIT; ln -s \"$PWD/../secret\" \"$TOOLWRIGHT_SESSION_END\"";
    let call = |command: &str| ws.call("shell:bash", json!({"command": command, "session": "s"}));
    call(link).await.expect("runs");
    let seen = call("echo ${SECRET-none}").await.expect("runs");
    assert!(joined_text(&seen.content).starts_with("none"), "{}", joined_text(&seen.content));
    // What was left to be loaded is loaded in the sandbox only.
    call("export LD_PRELOAD=/nowhere.so; export KEPT=1").await.expect("runs");
    let seen = call("echo $KEPT 2>/dev/null").await.expect("runs");
    assert!(joined_text(&seen.content).contains('1'), "{}", joined_text(&seen.content));
}

#[tokio::test]
async fn a_failed_command_reports_its_exit() {
    let ws = Workspace::new();
    for (command, text, code) in [
        ("echo oops; exit 3", "oops\nexit code 3", json!(3)),
        ("printf oops; exit 3", "oops\nexit code 3", json!(3)),
        ("kill -9 $$", "killed by signal 9", json!(null)),
    ] {
        let output = ws.call("shell:bash", json!({"command": command})).await.expect("runs");
        assert!(output.is_error, "{command}");
        assert_eq!((joined_text(&output.content).as_str(), &output.extras["exit_code"]), (text, &code));
    }
}

#[tokio::test]
async fn timeouts_kill_the_tree_and_keep_output() {
    let ws = Workspace::new();
    let seconds = unique_sleep();
    let command = format!("echo begun; setsid sleep {seconds} & sleep {seconds}");
    let error = ws.call("shell:bash", json!({"command": command, "timeout_ms": 1000})).await.expect_err("times out");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("longer than 1s"), "{error}");
    assert!(error.for_model().contains("begun"), "{}", error.for_model());
    assert!(pids_with(&seconds).is_empty());
}

#[tokio::test]
async fn the_deadline_of_the_call_counts_too() {
    let mut ws = Workspace::new();
    // Some of the limit is gone when the command starts; what is told is the limit that was set.
    ws.context.limit = Some(Duration::from_millis(400));
    ws.context.deadline = Some(Instant::now() + Duration::from_millis(300));
    let words = ["longer than 400ms", "were killed"];
    ws.fails("shell:bash", json!({"command": "sleep 60"}), ErrorKind::Timeout, &words).await;
}

#[tokio::test]
async fn silence_is_distinguished_from_a_timeout() {
    let ws = Workspace::new();
    let seconds = unique_sleep();
    let command = json!({"command": format!("echo begun; sleep {seconds}")});
    let stop = async {
        wait_for_count(&seconds, 1).await;
        ws.context.cancel.cancel(CancelCause::Deadline);
    };
    let (ended, ()) = tokio::join!(ws.call("shell:bash", command), stop);
    let error = ended.expect_err("stopped");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("printed nothing for too long"), "{error}");
    assert!(error.for_model().contains("begun"), "{}", error.for_model());
}

#[tokio::test]
async fn cancel_and_abandonment_kill_the_tree() {
    let ws = Workspace::new();
    let seconds = unique_sleep();
    let command = json!({"command": format!("setsid sleep {seconds} & sleep {seconds}")});
    let cancel = async {
        wait_for_count(&seconds, 2).await;
        ws.context.cancel.cancel(CancelCause::Sibling);
    };
    let (ended, ()) = tokio::join!(ws.call("shell:bash", command), cancel);
    let error = ended.expect_err("cancelled");
    assert_eq!((error.kind(), error.cancel_cause()), (ErrorKind::Canceled, Some(CancelCause::Sibling)));
    assert!(pids_with(&seconds).is_empty());

    let ws = Workspace::new();
    let seconds = unique_sleep();
    let command = json!({"command": format!("setsid sleep {seconds} & sleep {seconds}")});
    tokio::select! {
        _ = ws.call("shell:bash", command) => panic!("runs for ten minutes"),
        () = wait_for_count(&seconds, 2) => {}
    }
    wait_for_count(&seconds, 0).await;
}

#[tokio::test]
async fn background_processes_do_not_delay_results() {
    let ws = Workspace::new();
    let seconds = unique_sleep();
    let text = ws.ok("shell:bash", json!({"command": format!("sleep {seconds} & echo done")})).await;
    assert_eq!(text, "done\n");
    assert!(pids_with(&seconds).is_empty());
}

#[tokio::test]
async fn progress_is_reported_while_it_runs() {
    let ws = Workspace::new();
    ws.ok("shell:bash", json!({"command": "echo first; sleep 0.5; echo second"})).await;
    let reports = ws.reports.0.lock().expect("lock");
    assert_eq!(reports.first(), Some(&Partial::Text("first\n".into())));
}

/// Keeps outputs as files and their size, like the program's own store, and refuses what is over its quota.
struct Files {
    folder: tempfile::TempDir,
    quota: u64,
}

struct Growing {
    file: std::fs::File,
    name: String,
    quota: u64,
    bytes: u64,
}

#[async_trait]
impl OutputWriter for Growing {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.bytes += bytes.len() as u64;
        if self.bytes > self.quota {
            return Err(StoreError::Quota("the store is full".to_owned()));
        }
        std::io::Write::write_all(&mut self.file, bytes).map_err(|error| StoreError::failed("write", error))
    }
    async fn finish(self: Box<Self>) -> Result<StoredOutput, StoreError> {
        Ok(StoredOutput { handle: self.name, bytes: self.bytes, lines: 1, tokens: self.bytes / 4 })
    }
}

#[async_trait]
impl OutputStore for Files {
    async fn writer(&self, _session: &SessionId) -> Result<Box<dyn OutputWriter>, StoreError> {
        let name = "only".to_owned();
        let file = std::fs::File::create(self.folder.path().join(&name)).expect("file");
        Ok(Box::new(Growing { file, name, quota: self.quota, bytes: 0 }))
    }
}

fn with_store(quota: u64) -> (Workspace, std::path::PathBuf) {
    let mut ws = Workspace::new();
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("only");
    ws.services().outputs = Arc::new(Files { folder, quota });
    (ws, file)
}

#[tokio::test]
async fn long_output_is_stored_whole() {
    // Lines, one line without end, bytes that are no text.
    for (command, bytes, ends) in [
        ("seq 1 100000", 588_895, ["1\n2\n", "99999\n100000\n"]),
        ("printf begin; head -c 3000000 /dev/zero | tr '\\0' x; printf end", 3_000_008, ["beginxxx", "xxxend"]),
        (
            "printf begin; head -c 100000 /dev/zero | tr '\\0' '\\377'; printf end",
            100_008,
            ["begin\u{fffd}", "\u{fffd}end"],
        ),
    ] {
        let (ws, file) = with_store(u64::MAX);
        let output = ws.call("shell:bash", json!({"command": command})).await.expect("runs");
        let text = joined_text(&output.content);
        assert!(text.len() <= ws.context.max_output, "{command}: {}", text.len());
        assert!(text.contains(ends[0]) && text.ends_with(ends[1]), "{text}");
        assert!(text.contains(&format!("of {bytes} bytes here")), "{text}");
        assert_eq!(output.extras["tool_output"]["bytes"], json!(bytes), "{command}");
        assert_eq!(output.extras["tool_output"]["handle"], json!("only"));
        let plain = tokio::process::Command::new("bash").args(["-c", command]).output().await.expect("runs");
        assert!(std::fs::read(file).expect("stored") == plain.stdout, "{command}");
    }
}

#[tokio::test]
async fn failures_with_long_output_keep_exit_codes() {
    let (ws, _) = with_store(u64::MAX);
    let output = ws.call("shell:bash", json!({"command": "seq 1 100000; exit 3"})).await.expect("runs");
    let text = joined_text(&output.content);
    assert!(output.is_error && text.ends_with("100000\nexit code 3") && text.len() <= ws.context.max_output, "{text}");
    assert_eq!((&output.extras["exit_code"], &output.extras["bytes"]), (&json!(3), &json!(588_895)));

    let command = json!({"command": "seq 1 100000; sleep 60", "timeout_ms": 1500});
    let error = ws.call("shell:bash", command).await.expect_err("times out");
    let said = error.for_model();
    assert!(said.contains("All 588895 bytes are stored") && said.contains("100000") && said.len() < 5000, "{said}");
}

#[tokio::test]
async fn failing_stores_lose_the_middle_of_output() {
    for quota in [0, 100_000] {
        let (ws, _) = with_store(quota);
        let output = ws.call("shell:bash", json!({"command": "seq 1 100000"})).await.expect("runs");
        let text = joined_text(&output.content);
        assert!(text.starts_with("1\n2\n") && text.ends_with("100000\n"), "{text}");
        assert!(text.contains("of 588895 bytes here, since they could not be stored: the store is full"), "{text}");
        assert!(!output.extras.contains_key("tool_output") && output.extras["bytes"] == json!(588_895));
    }
}

#[tokio::test]
async fn a_flood_stays_out_of_memory() {
    // In a process of its own, whose memory is its own.
    let mut child = tokio::process::Command::new(std::env::current_exe().expect("test binary"));
    child.args(["--exact", "shell::store_a_flood", "--nocapture"]).env(FLOOD, "200000000");
    assert!(child.status().await.expect("runs").success());
}

/// Bytes of the flood. By hand: `TOOLWRIGHT_TEST_FLOOD=5000000000 cargo test … store_a_flood -- --nocapture`
const FLOOD: &str = "TOOLWRIGHT_TEST_FLOOD";

#[tokio::test]
async fn store_a_flood() {
    let Some(bytes) = std::env::var(FLOOD).ok().and_then(|bytes| bytes.parse::<u64>().ok()) else { return };
    let (ws, file) = with_store(u64::MAX);
    let before = peak_memory();
    let command = json!({"command": format!("head -c {bytes} /dev/zero"), "timeout_ms": 30_000});
    let output = ws.call("shell:bash", command).await.expect("runs");
    assert_eq!(output.extras["tool_output"]["bytes"], json!(bytes));
    assert_eq!(std::fs::metadata(file).expect("stored").len(), bytes);
    let peak = peak_memory();
    println!("{bytes} bytes: {before} MiB before, {peak} MiB at most");
    assert!(peak < 100, "{peak} MiB");
}

#[tokio::test]
async fn python_runs_and_prints() {
    let ws = Workspace::new();
    ws.put("json.py", "raise SystemExit('shadowed')");
    ws.put("data.txt", "in the workspace");
    for (arguments, expect) in [
        (json!({"code": "print(6 * 7)"}), "42\n"),
        (json!({"code": "import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')"}), "a\nb\nc\n"),
        (json!({"code": "x = 1"}), "(no output)"),
        (json!({"code": "import json; print(json.dumps({}))"}), "{}\n"),
        (
            json!({"code": "import sys; print(sys.argv[1:], sys.stdin.read())", "args": ["a b", "c"], "stdin": "typed"}),
            "['a b', 'c'] typed\n",
        ),
        (json!({"code": "print(open('data.txt').read())"}), "in the workspace\n"),
        (json!({"code": "print('grüße 🦀')"}), "grüße 🦀\n"),
        (
            json!({"code": "import os; os.makedirs('d'); open('d/f', 'w').write('x'); print(os.listdir('d'))"}),
            "['f']\n",
        ),
        (json!({"code": "print(1)", "stdin": "x".repeat(1_000_000)}), "1\n"),
    ] {
        assert_eq!(ws.ok("shell:python", arguments.clone()).await, expect, "{arguments}");
    }
    let output =
        ws.call("shell:python", json!({"code": "print('so far')\nraise ValueError('no')"})).await.expect("runs");
    let text = joined_text(&output.content);
    assert!(output.is_error && text.starts_with("so far\n") && text.contains("ValueError: no"), "{text}");
    assert!(text.ends_with("exit code 1"), "{text}");
    assert_eq!(output.extras["sandbox"]["profile"], json!("workspace"));

    let slow = json!({"code": "import time\nprint('begun')\ntime.sleep(60)", "timeout_ms": 1500});
    let error = ws.call("shell:python", slow).await.expect_err("times out");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.for_model().contains("It had printed: begun"), "{}", error.for_model());
    let long = json!({"code": format!("print('{}')", "x".repeat(200_000))});
    ws.fails("shell:python", long, ErrorKind::InvalidParameters, &["`code`", "200009 bytes", "fs__write"]).await;
}

#[tokio::test]
async fn python_runs_in_every_profile() {
    for profile in SandboxProfile::ALL {
        let shell = ShellConfig { python: profile, bash: profile, ..ShellConfig::default() };
        let ws = Workspace::with(|_| BuiltinOptions { shell, ..BuiltinOptions::default() });
        ws.put("file", "text");
        let code = "import ctypes, json, sqlite3, ssl, tempfile\nwith tempfile.NamedTemporaryFile() as f: f.write(b'x')\nprint('ok')";
        assert_eq!(ws.ok("shell:python", json!({"code": code})).await, "ok\n", "{profile}");
        let reads = ws.call("shell:python", json!({"code": format!("open('{}/file')", ws.path("").display())})).await;
        let output = reads.expect("runs");
        let complete = output.extras["sandbox"]["not_enforced"] == json!([]);
        assert!(!output.is_error || (profile == SandboxProfile::Pure && complete), "{profile} {output:?}");
        assert_eq!(output.extras["sandbox"]["profile"], json!(profile));
        assert_eq!(ws.ok("shell:bash", json!({"command": "echo hello | tr a-z A-Z"})).await, "HELLO\n", "{profile}");
    }
}

#[tokio::test]
async fn toolwright_keys_are_not_inherited() {
    let ws = Workspace::new();
    // Variables that the test process surely has: the rule is what is tested, not the names.
    let environment = ws.ok("shell:bash", json!({"command": "env"})).await;
    assert!(environment.contains("PATH="));
    let withheld = vec!["PAT?".to_owned(), "CARGO*".to_owned()];
    let tools = tools(&BuiltinOptions { withheld_env: withheld, ..BuiltinOptions::default() });
    let bash = tools.iter().find(|tool| tool.definition().id.name() == "bash").expect("bash");
    let arguments = json!({"command": "/usr/bin/env", "timeout_ms": 10_000});
    let output = bash.run(arguments, &ws.context).await.expect("runs");
    assert!(!joined_text(&output.content).contains("CARGO_MANIFEST_DIR="));
    let default = BuiltinOptions::default().withheld_env;
    assert!(default.contains(&"TOOLWRIGHT_*".to_owned()) && default.contains(&"OPENAI_API_KEY".to_owned()));
}

#[tokio::test]
async fn every_definition_is_complete() {
    let provider = provider(&BuiltinOptions::default(), []).expect("registers");
    assert_eq!(provider.name(), "builtin");
    let listed = provider.list().await.expect("lists");
    let ids: Vec<_> = listed.iter().map(|tool| tool.definition().id.as_str()).collect();
    let expect = "fs:read fs:write fs:edit fs:multi_edit fs:glob fs:grep fs:tree fs:json_read fs:json_write \
                  fs:notebook_read fs:notebook_edit shell:bash shell:python job:list job:status job:wait \
                  job:read job:send job:stop job:info output:read output:grep output:extract \
                  memory:scratchpad memory:search trigger:timer trigger:schedule \
                  trigger:channel trigger:file trigger:webhook agent:todo agent:ask_user memory:files";
    assert_eq!(ids, expect.split(' ').map(|id| format!("{id}@1.0.0")).collect::<Vec<_>>());
    for tool in &listed {
        let definition = tool.definition();
        assert!(definition.title.is_some() && definition.description.len() > 40, "{}", definition.id);
        let schema = definition.parameters.as_ref().expect("schema");
        let compiled = CompiledSchema::compile(schema).expect("compiles");
        assert!(!definition.examples.is_empty());
        for example in &definition.examples {
            assert_eq!(compiled.violations(example), [], "{}", definition.id);
        }
        for (name, property) in schema["properties"].as_object().expect("object") {
            assert!(property["description"].is_string(), "{} {name}", definition.id);
        }
        let reads = "fs:read fs:glob fs:grep fs:tree fs:json_read fs:notebook_read job:list job:status job:wait job:read job:info output:read \
                     output:grep output:extract memory:scratchpad memory:search agent:todo agent:ask_user";
        let reads: Vec<_> = reads.split(' ').collect();
        assert_eq!(definition.effects.read_only, reads.contains(&definition.id.without_version()), "{}", definition.id);
    }
}

#[test]
fn every_tool_has_manual_examples_and_timeout() {
    let channels = serde_json::from_value(json!({"news": {}})).expect("channels");
    let options = BuiltinOptions { groups: true, channels, ..BuiltinOptions::default() };
    for tool in tools(&options) {
        let definition = tool.definition();
        assert!(definition.documentation.is_some_and(|text| text.len() > 80), "{}", definition.id);
        assert!(definition.timeout.is_some() && !definition.examples.is_empty(), "{}", definition.id);
        let schema = CompiledSchema::compile(&definition.parameters.expect("a schema")).expect("compiles");
        for example in &definition.examples {
            assert!(schema.is_valid(example), "{}: {example}", definition.id);
        }
    }
}
