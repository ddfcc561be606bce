//! A headless run asks the inbox, and another process answers.

use std::time::Duration;

use serde_json::{Value, json};
use toolwright_testkit::model_server::WireApi;

use crate::agents::agent::{ended, report, repository, start, todo_script, with_model};
use crate::calls::arguments::answers;
use crate::command_line::cli::{ok, run, stderr};
use crate::command_line::width::{at_terminal, too_wide};
use crate::serving::gateway::{Gateway, sent};
use crate::support::{Fixture, until};

async fn question(fixture: &Fixture) -> Value {
    for _ in 0..200 {
        let listed: Value = serde_json::from_str(&ok(fixture, &["approvals", "ls", "--json"])).expect("JSON");
        if let Some(question) = listed.as_array().expect("a list").first() {
            return question.clone();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("nobody was asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_terminal_waits_for_the_inbox() {
    for (verb, more, state, written) in
        [("approve", &["--always"][..], "approved", true), ("deny", &["--reason", "not now"][..], "denied", false)]
    {
        let fixture = repository();
        let (_model, variables) = with_model(WireApi::OpenAi, todo_script()).await;
        let run = start(&fixture, &variables, &["run", "--ask", "inbox", "--json", "count the TODOs"]);
        let question = question(&fixture).await;
        let keys: Vec<&str> = question.as_object().expect("an object").keys().map(String::as_str).collect();
        let contract = ["id", "tool", "arguments", "reason", "session", "created", "expires", "state"];
        assert!(contract.iter().all(|key| keys.contains(key)), "{question}");
        assert_eq!((&question["tool"], &question["state"]), (&json!("fs:write@1.0.0"), &json!("pending")));
        assert_eq!(question["arguments"]["path"], "report.md");
        let id = question["id"].as_str().expect("an id");
        let (lines, code) = answers(&fixture, &[&["approvals", verb, id, "--json"][..], more].concat(), "");
        assert_eq!((lines, code), (vec![json!({"id": id, "state": state})], 0));
        let (lines, code) = answers(&fixture, &["approvals", "deny", id, "--json"], "");
        assert_eq!(code, 1, "{lines:?}");
        assert!(lines[0].to_string().contains("by owner already"), "{lines:?}");
        let output = ended(run).await;
        assert!(stderr(&output).contains(&format!("toolwright approvals approve {id}")), "{}", stderr(&output));
        assert_eq!(fixture.path("project/report.md").exists(), written);
        assert_eq!(report(&output).to_string().contains("not now"), !written, "{}", report(&output));
        let all: Value = serde_json::from_str(&ok(&fixture, &["approvals", "ls", "--all", "--json"])).expect("JSON");
        assert_eq!((&all[0]["id"], &all[0]["state"]), (&json!(id), &json!(state)));
        assert_eq!(ok(&fixture, &["approvals", "ls", "--json"]).trim(), "[]");
        let standing: Value =
            serde_json::from_str(&ok(&fixture, &["approvals", "ls", "--standing", "--json"])).expect("JSON");
        assert_eq!(standing.as_array().map(Vec::len), Some(usize::from(written)), "{standing}");
        if let Some(id) = standing[0]["id"].as_str() {
            ok(&fixture, &["approvals", "revoke", id]);
            assert_eq!(answers(&fixture, &["approvals", "revoke", id, "--json"], "").1, 3);
        }
    }
}

/// A project with a server that asks a person for a name and an address.
fn asking_fixture() -> Fixture {
    let server = toolwright_testkit::bin("conformance-fixture");
    Fixture::with(&format!("mcpServers:\n  fx:\n    command: {}\n", server.display()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_answers_a_servers_form() {
    let right: &[&str] = &["username=ann", "email=ann@example.org"];
    let whole = r#"{"username": "ann", "email": "ann@example.org"}"#;
    for (words, code, says) in [
        (right, 0, "action=accept, content={\"username\":\"ann\",\"email\":\"ann@example.org\"}"),
        (&[whole], 0, "action=accept, content={\"username\":\"ann\",\"email\":\"ann@example.org\"}"),
        (&[], 0, "action=decline"),
    ] {
        let fixture = asking_fixture();
        let call = ["call", "fx__test_elicitation", "message=Who are you?", "--ask", "inbox", "--json"];
        let waiting = start(&fixture, &[], &call);
        let question = question(&fixture).await;
        let id = question["id"].as_str().expect("an id");
        assert_eq!((&question["kind"], &question["tool"]), (&json!("form"), &json!("fx:test_elicitation")));
        assert_eq!(question["message"], "Who are you?", "{question}");
        assert!(question["schema"]["properties"]["email"].is_object(), "{question}");
        for wrong in [&["username=ann"][..], &["username=ann", "email=e", "more=1"], &["ann"], &["{]"]] {
            let (lines, code) = answers(&fixture, &[&["approvals", "answer", id], wrong, &["--json"]].concat(), "");
            assert_eq!(code, 2, "{wrong:?}: {lines:?}");
        }
        assert_eq!(answers(&fixture, &["approvals", "approve", id, "--json"], "").1, 2, "it is no call");
        let verb: &[&str] = if words.is_empty() { &["approvals", "deny", id] } else { &["approvals", "answer", id] };
        let (lines, found) = answers(&fixture, &[verb, words, &["--json"]].concat(), "");
        let state = if words.is_empty() { "denied" } else { "approved" };
        assert_eq!((lines, found), (vec![json!({"id": id, "state": state})], code));
        let output = ended(waiting).await;
        assert!(stderr(&output).contains(&format!("answer {id} or deny {id}")), "{}", stderr(&output));
        let printed: Value = serde_json::from_slice(&output.stdout).expect("json");
        assert!(printed["text"].as_str().is_some_and(|text| text.contains(says)), "{printed}");
        let all = ok(&fixture, &["approvals", "ls", "--all", "--json"]);
        assert!(!all.contains("ann@"), "what was filled in is not kept: {all}");
    }
}

#[test]
fn answers_for_departed_callers_say_so() {
    let fixture = asking_fixture();
    ok(&fixture, &["tools", "show", "fx__test_elicitation"]);
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0", "--policy", "client", "--ask", "inbox"]);
    let address = gateway.address();
    let _waiting =
        sent(&fixture, &address, &json!({"tool": "fx__test_elicitation", "arguments": {"message": "Who are you?"}}));
    let listed = || -> Value { serde_json::from_str(&ok(&fixture, &["approvals", "ls", "--json"])).expect("JSON") };
    until("somebody is asked", || listed().get(0).is_some());
    let id = listed()[0]["id"].as_str().expect("an id").to_owned();
    // Killed, and without a word.
    drop(gateway);
    until("nothing waits", || listed() == json!([]));
    for arguments in
        [&["approvals", "answer", &id, "username=ann", "email=ann@example.org"][..], &["approvals", "deny", &id]]
    {
        let output = run(&fixture, arguments);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("is withdrawn already: this answer came too late"), "{}", stderr(&output));
    }
}

#[test]
fn a_question_is_a_row_with_its_arguments() {
    let fixture = Fixture::new();
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0", "--policy", "ask", "--ask", "inbox"]);
    let address = gateway.address();
    let content = format!("{}end", "word ".repeat(60));
    let _waiting =
        sent(&fixture, &address, &json!({"tool": "fs__write", "arguments": {"path": "a.txt", "content": content}}));
    until("it waits", || ok(&fixture, &["approvals", "ls"]).contains("fs:write"));
    let (_, said) = at_terminal(&fixture, &["approvals", "ls"]).ended_whole();
    assert!(said.starts_with("ID") && said.contains("STATE") && said.contains("word end\""), "{said}");
    assert_eq!(too_wide(&said), Vec::<String>::new(), "{said}");
}
