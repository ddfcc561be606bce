//! `shell:bash` with real processes, and the built-in provider as a whole.

use std::time::{Duration, Instant};

use serde_json::json;
use toolwright_core::cancel::CancelCause;
use toolwright_core::content::joined_text;
use toolwright_core::event::Partial;
use toolwright_core::schema::CompiledSchema;
use toolwright_core::{ErrorKind, Provider as _};
use toolwright_providers::builtin::{BuiltinOptions, provider, tools};

use crate::process::{pids_with, unique_sleep, wait_for_count};
use crate::workspace::Workspace;

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
async fn a_failed_command_says_how_it_ended() {
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
async fn a_timeout_kills_the_tree_and_keeps_what_was_printed() {
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
async fn what_is_left_in_the_background_does_not_delay_the_result() {
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

#[tokio::test]
async fn output_without_end_is_bounded() {
    let ws = Workspace::new();
    let text = ws.ok("shell:bash", json!({"command": "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end"})).await;
    assert!(text.len() < 2_200_000 && text.ends_with("end\n"), "{}", text.len());
    assert!(text.contains("toolwright cut 17902853 of 20000005 bytes"), "{}", &text[1_048_000..1_049_000]);
}

#[tokio::test]
async fn keys_of_ours_are_not_inherited() {
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
    let expect = "fs:read fs:write fs:edit fs:glob fs:grep fs:tree shell:bash output:read output:grep output:extract";
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
        let reads = ["fs:read", "fs:glob", "fs:grep", "fs:tree", "output:read", "output:grep", "output:extract"];
        assert_eq!(definition.effects.read_only, reads.contains(&definition.id.without_version()), "{}", definition.id);
    }
}
