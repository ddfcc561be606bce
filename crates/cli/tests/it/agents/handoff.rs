//! Agents that hand the conversation to other agents, and what those get of it.

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Script, Turn, WireApi};

use crate::agents::agent::{ended, report, start, with_model};
use crate::command_line::cli::stderr;
use crate::support::Fixture;

/// Triage hands to billing, which may use files, and to legal, which may hand back.
fn office() -> Fixture {
    let to = "destinations: [{agent: billing, history: user_messages}, {agent: legal, may_return: true}]";
    let fixture = Fixture::with(&format!(
        "agents:\n  triage: {{description: Takes all., prompt: You sort., tools: [], policy: ask, router: {{{to}}}}}\n  \
         billing: {{description: Settles bills., prompt: You settle., tools: [fs__read]}}\n  \
         legal: {{description: Knows law., prompt: You know law.}}\n"
    ));
    fixture.write("project/bill.txt", "42 EUR");
    fixture
}

async fn handed(script: Script) -> Value {
    let fixture = office();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let output = ended(start(&fixture, &variables, &["run", "--agent", "triage", "What do I owe?", "--json"])).await;
    assert!(server.failures().is_empty(), "{:?} {}", server.failures(), stderr(&output));
    report(&output)
}

fn reports(text: &str) -> Vec<(&'static str, Value)> {
    vec![("agent__final_report", json!({"status": "success", "format": "markdown", "content": text}))]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_destination_answers_the_user() {
    let first = json!({"agent": "billing", "message": "It is about a bill."});
    let second = json!({"agent": "legal"});
    let script: Script = vec![
        Turn::calls(vec![("router__handoff-to", first), ("router__handoff-to", second)])
            .expecting("the destinations are listed", |asked| {
                let tools = asked.body["tools"].to_string();
                tools.contains("- billing: Settles bills.") && tools.contains("- legal: Knows law.")
            })
            .expecting("it has no other tools", |asked| {
                let mut names = asked.tool_names();
                names.sort();
                names == ["agent__final_report", "router__handoff-to"]
            }),
        Turn::calls(vec![("fs__read", json!({"path": "bill.txt"}))])
            .expecting("it has its own prompt", |asked| asked.body.to_string().contains("You settle."))
            .expecting("the request is there", |asked| asked.last_user_text().ends_with("What do I owe?"))
            .expecting("the message is there", |asked| asked.last_user_text().contains("It is about a bill.")),
        Turn::calls(reports("42 EUR."))
            .expecting("it has its own tools", |asked| asked.last_result_text().contains("42")),
    ]
    .into();
    let report = handed(script).await;
    assert_eq!((&report["status"], &report["answer"]), (&json!("success"), &json!("42 EUR.")), "{report}");
    let calls = report["calls"].as_array().expect("calls");
    assert_eq!(calls.iter().map(|call| call["ok"] == true).collect::<Vec<_>>(), [true, false], "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn destinations_out_of_reach_are_not_listed() {
    let fixture = office();
    let script: Script = vec![
        Turn::calls(vec![("agent__triage", json!({"reason": "It sorts.", "task": "What do I owe?"}))]),
        Turn::calls(reports("Nothing.")).expecting("it has no destination", |asked| {
            asked.body.to_string().contains("You sort.") && !asked.body.to_string().contains("router__handoff-to")
        }),
        Turn::calls(reports("It said: nothing.")),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let words = ["run", "--tools", "agent__triage", "--policy", "trusted", "What do I owe?", "--json"];
    let output = ended(start(&fixture, &variables, &words)).await;
    assert!(server.failures().is_empty(), "{:?} {}", server.failures(), stderr(&output));
    assert_eq!(report(&output)["answer"], "It said: nothing.");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_hand_off_leaves_the_valid_one() {
    let to = |agent: &str| ("router__handoff-to", json!({"agent": agent}));
    let script: Script = vec![
        Turn::calls(vec![to("biling"), to("billing")]),
        Turn::calls(vec![("fs__read", json!({"path": "bill.txt"}))]),
        Turn::calls(reports("42 EUR.")),
    ]
    .into();
    let report = handed(script).await;
    assert_eq!((&report["status"], &report["answer"]), (&json!("success"), &json!("42 EUR.")), "{report}");
    assert_eq!(report["calls"][0]["error"]["kind"], "invalid_parameters", "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_may_get_a_summary() {
    let fixture = Fixture::with(
        "agents:\n  triage: {description: Takes all., prompt: You sort., policy: ask, \
         router: {destinations: [{agent: billing, history: summary}]}}\n  \
         billing: {description: Settles bills., prompt: You settle.}\n",
    );
    fixture.write("project/bill.txt", "a very long bill");
    let script: Script = vec![
        Turn::calls(vec![("fs__read", json!({"path": "bill.txt"}))]),
        Turn::calls(vec![("router__handoff-to", json!({"agent": "billing"}))]),
        Turn::text(r#"{"summary": "There is a bill.", "key_points": []}"#)
            .expecting("the conversation is summarised", |asked| asked.body.to_string().contains("a very long bill")),
        Turn::calls(reports("42 EUR.")).expecting("only the summary is there", |asked| {
            let task = asked.last_user_text();
            task.contains("There is a bill.") && !task.contains("very long") && task.ends_with("What do I owe?")
        }),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let output = ended(start(&fixture, &variables, &["run", "--agent", "triage", "What do I owe?", "--json"])).await;
    assert!(server.failures().is_empty(), "{:?} {}", server.failures(), stderr(&output));
    assert_eq!(report(&output)["answer"], "42 EUR.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_destination_may_return_the_request() {
    let script: Script = vec![
        Turn::calls(vec![("router__handoff-to", json!({"agent": "legal"}))]),
        Turn::calls(vec![("router__handoff-to", json!({"agent": "triage", "message": "No law in it."}))])
            .expecting("it may hand it back", |asked| asked.body["tools"].to_string().contains("- triage:")),
        Turn::calls(reports("Nothing.")).expecting("it has the request again", |asked| {
            asked.last_result_text().contains("legal hands the request back: No law in it.")
        }),
    ]
    .into();
    let report = handed(script).await;
    assert_eq!((&report["status"], &report["answer"]), (&json!("success"), &json!("Nothing.")), "{report}");
}
