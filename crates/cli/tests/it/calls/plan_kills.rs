//! Plans that are killed at every boundary: each effect happens at most once, and approvals hold.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright::core::approval::ApprovalDecision;
use toolwright::core::inbox::{InboxStore as _, QuestionState};
use toolwright::runtime::SqliteStore;

use crate::agents::agent::{ended, report, start};
use crate::calls::kill_points::Stop;
use crate::command_line::cli::{ok, stderr};
use crate::support::Fixture;

/// Twenty calls: commands that leave a line each, and searches that wait for them. What the second command prints is too long
/// for the session's log: it is a stored output. An activity runs the third.
fn twenty() -> Value {
    let call = |n: usize| match n % 4 {
        0 => {
            let more = if n == 4 { "; head -c 300000 /dev/zero | tr '\\0' x" } else { "" };
            let command = format!("echo once >> count{n}{more}");
            let tool = if n == 8 { "schema__run" } else { "shell__bash" };
            json!({"_tool": tool, "_outputPath": format!("v{n}"), "command": command})
        }
        _ => {
            json!({"_tool": "fs__glob", "_outputPath": format!("v{n}"), "pattern": format!("†state.v{} && \"*.txt\"", n - 1)})
        }
    };
    (0..20).map(call).collect()
}

/// Kills the plan at its `nth` write, and goes on with it: before and after it is approved, before each call is dispatched and
/// is in the ledger, and between its effect, what it leaves under its path, and its outcome. Returns whether there is such a
/// write.
async fn kill_at(nth: u32) -> bool {
    let run = "{type: object, properties: {command: {type: string}, _activity: {const: shell__bash}}}";
    let fixture = Fixture::with(&format!("schemaTools: {{run: {run}}}\n"));
    fixture.write("project/a.txt", "");
    fixture.write("project/plan.json", &twenty().to_string());
    let stop = Stop::before(&fixture, nth, &["runs", "run_calls", "begun", "session_log"]).await;
    let from_file = ["plan", "run", "plan.json", "--json"];
    let mut child = start(&fixture, &[], &from_file);
    // What it prints is more than a pipe holds.
    let mut stdout = child.stdout.take().expect("a pipe");
    let printed = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes)
    });
    let is_stopped = stop.reached(|| child.try_wait().expect("looked").is_some()).await;
    child.kill().expect("killed");
    let mut output = ended(child).await;
    output.stdout = printed.join().expect("joins").expect("read");
    stop.clear();
    if is_stopped {
        let stderr_text = stderr(&output);
        let id = stderr_text.split("plan run ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let again: Vec<&str> = match id {
            // Nobody is there to be asked: what was approved before counts.
            Some(id) => vec!["plan", "run", id, "--policy", "ask", "--json"],
            // Nothing has run yet.
            None => from_file.to_vec(),
        };
        output = ended(start(&fixture, &[], &again)).await;
    }
    let ran = report(&output);
    let calls = ran["calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 20, "{nth}");
    for (n, call) in calls.iter().enumerate() {
        let done = std::fs::read_to_string(fixture.path(&format!("project/count{n}"))).unwrap_or_default();
        let why = call["error"]["message"].as_str().unwrap_or_default();
        match n % 4 {
            0 => assert!(
                done == "once\n" || (done.is_empty() && why.contains("may or may not")),
                "{nth}: {done:?} {call}"
            ),
            // It runs if and only if it has the value that it waits for.
            _ => assert!(call["ok"] == calls[n - 1]["ok"] && (call["ok"] == true || !why.is_empty()), "{nth}: {ran}"),
        }
    }
    // Nothing fails but commands whose ends were lost, and searches that wait for them.
    let lost = calls.iter().step_by(4).filter(|call| call["ok"] == false).count();
    assert!((ran["status"] == "success") == (lost == 0), "{nth}: {ran}");
    is_stopped
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_plan_repeats_no_effect() {
    for nth in (1..).step_by(4) {
        let kills = tokio::join!(kill_at(nth), kill_at(nth + 1), kill_at(nth + 2), kill_at(nth + 3));
        if kills != (true, true, true, true) {
            assert!(nth > 40, "it is stopped {nth} times");
            return;
        }
    }
}

/// Kills a plan whose command a person approves in the inbox, at its `nth` write or while it is asked about, and goes on with it.
/// Returns whether there is such a write.
async fn kill_asked_at(nth: Option<u32>) -> bool {
    let fixture = Fixture::new();
    let plan = json!([
        {"_tool": "shell__bash", "_outputPath": "ran", "command": "echo once >> count"},
        {"_tool": "fs__glob", "pattern": "†state.ran && \"*\""},
    ]);
    fixture.write("project/plan.json", &plan.to_string());
    let saved = ok(&fixture, &["plan", "save", "plan.json"]);
    let resume = ["plan", "run", saved.trim(), "--policy", "ask", "--ask", "inbox", "--json"];
    let store = SqliteStore::open(&fixture.state_dir()).expect("the store");
    let approve = {
        let store = Arc::clone(&store);
        async move {
            loop {
                for question in store.questions(Some(QuestionState::Pending), 9).await.unwrap_or_default() {
                    // It may be withdrawn meanwhile.
                    let _ = store.answer(&question.id, &ApprovalDecision::Approve, "owner").await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let stop = Stop::before(&fixture, nth.unwrap_or(u32::MAX), &["runs", "run_calls", "begun", "session_log"]).await;
    let mut child = start(&fixture, &[], &resume);
    let (is_stopped, approving) = if nth.is_some() {
        let approving = tokio::spawn(approve);
        (stop.reached(|| child.try_wait().expect("looked").is_some()).await, approving)
    } else {
        let pending = || store.questions(Some(QuestionState::Pending), 9);
        while pending().await.expect("read").is_empty() {
            assert!(child.try_wait().expect("looked").is_none(), "it ended, and nobody was asked");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        (true, tokio::spawn(approve))
    };
    child.kill().expect("killed");
    let mut output = ended(child).await;
    stop.clear();
    if is_stopped {
        output = ended(start(&fixture, &[], &resume)).await;
    }
    approving.abort();
    let ran = report(&output);
    let done = std::fs::read_to_string(fixture.path("project/count")).unwrap_or_default();
    let why = ran["calls"][0]["error"]["message"].as_str().unwrap_or_default();
    assert!(done == "once\n" || (done.is_empty() && why.contains("may or may not")), "{nth:?}: {done:?} {ran}");
    assert_eq!(ran["calls"][0]["ok"], ran["calls"][1]["ok"], "{nth:?}: {ran}");
    is_stopped
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_plan_keeps_its_approvals() {
    assert!(kill_asked_at(None).await);
    for nth in (1..).step_by(4) {
        let kill = |more: u32| kill_asked_at(Some(nth + more));
        if tokio::join!(kill(0), kill(1), kill(2), kill(3)) != (true, true, true, true) {
            assert!(nth > 4, "it is stopped {nth} times");
            return;
        }
    }
}
