//! The mailbox of a run over the death of its process, and notes over commands.
#![cfg(unix)]

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Recorded, Script, Turn, WireApi};

use crate::agents::agent::{ended, report, run_id, start, with_model};
use crate::command_line::cli::{ok, program, stderr};
use crate::support::{Fixture, until};

/// How often a request tells of a job's end.
fn reported(request: &Recorded) -> usize {
    request.body["messages"].to_string().matches("[toolwright notice] Background job").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_gets_each_job_notice_once() {
    let fixture = Fixture::new();
    fixture.write("project/toolwright.yaml", "defaults: {auto_background_after: 50ms}\n");
    let command = "touch begun; until test -e go; do sleep 0.05; done; echo 'the very end'";
    let script: Script = vec![
        Turn::calls(vec![("shell__bash", json!({"command": command}))]),
        Turn::text("It goes on."),
        Turn::text("Too late.").with_delay(Duration::from_secs(60)),
        Turn::text("It has ended.")
            .expecting("the result is there", |asked| asked.last_user_text().contains("the very end")),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let mut child = start(&fixture, &variables, &["run", "x", "--policy", "trusted"]);
    until("it has answered", || server.answered() == 2 && fixture.path("project/begun").exists());
    fixture.write("project/go", "");
    until("it was woken", || server.requests().len() == 3);
    child.kill().expect("kill");
    let id = run_id(&stderr(&ended(child).await));
    let output = ended(start(&fixture, &variables, &["run", "--resume", &id, "--policy", "trusted", "--json"])).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert_eq!(report(&output)["answer"], "It has ended.");
    let counts: Vec<usize> = server.requests().iter().map(reported).collect();
    assert_eq!((counts, server.failures()), (vec![0, 0, 1, 1], Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_wakes_an_idle_chat() {
    use std::io::Write as _;
    let fixture = Fixture::new();
    fixture.write("project/toolwright.yaml", "defaults: {auto_background_after: 50ms}\n");
    let command = "until test -e go; do sleep 0.05; done; echo 'the very end'";
    let script: Script = vec![
        Turn::calls(vec![("shell__bash", json!({"command": command}))]),
        Turn::text("It goes on."),
        Turn::text("It has ended.")
            .expecting("the result is there", |asked| asked.last_user_text().contains("the very end")),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let mut chat = program(&fixture);
    chat.args(["chat", "--policy", "trusted"]).envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
    let mut child = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn");
    let mut typed = child.stdin.take().expect("stdin");
    typed.write_all(b"go\n").expect("typed");
    until("it is idle", || server.answered() == 2);
    fixture.write("project/go", "");
    until("it was woken", || server.answered() == 3);
    typed.write_all(b"/exit\n").expect("typed");
    let output = ended(child).await;
    assert_eq!(String::from_utf8_lossy(&output.stdout), "It goes on.\nIt has ended.\n", "{}", stderr(&output));
    assert!(server.failures().is_empty(), "{:?}", server.failures());
}

#[test]
fn notes_are_kept_between_commands() {
    let fixture = Fixture::new();
    ok(&fixture, &["call", "memory__scratchpad", "op=set", "key=plan.next", "value=test"]);
    let reported: Value =
        serde_json::from_str(&ok(&fixture, &["call", "memory__scratchpad", "op=get", "key=plan", "--json"]))
            .expect("json");
    assert_eq!(reported["structured"], json!({"value": {"next": "test"}}));
}
