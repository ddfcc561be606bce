//! What a run ends with, and the other tools of the agent itself.

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Script, Turn, WireApi};

use crate::agents::agent::{ended, report, repository, start, with_model};
use crate::command_line::cli::stderr;
use crate::support::Fixture;

const SCHEMA: &str = r##"{"type": "object", "properties": {"todos": {"type": "integer"}}, "required": ["todos"]}"##;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_with_schema_valid_json() {
    for api in [WireApi::OpenAi, WireApi::Anthropic, WireApi::Gemini] {
        let fixture = repository();
        fixture.write("project/schema.json", SCHEMA);
        let said = |content: Value| json!({"status": "success", "format": "json", "content_json": content});
        let script: Script = vec![
            Turn::calls(vec![("agent__final_report", said(json!({"todos": "three"})))])
                .expecting("the report is shown", |asked| asked.tool_names().contains(&"agent__final_report".into())),
            Turn::calls(vec![("agent__final_report", said(json!({"todos": 3})))])
                .expecting("it was told what is wrong", |asked| asked.last_result_text().contains("/todos")),
        ]
        .into();
        let (server, variables) = with_model(api, script).await;
        let run = ["run", "count the TODOs", "--policy", "ask", "--json", "--output-schema", "schema.json"];
        let output = ended(start(&fixture, &variables, &run)).await;
        assert!(output.status.success(), "{api:?}: {} {:?}", stderr(&output), server.failures());
        let report = report(&output);
        assert_eq!((&report["status"], &report["format"]), (&json!("success"), &json!("json")));
        assert_eq!(report["content_json"], json!({"todos": 3}));
        assert_eq!(
            serde_json::from_str::<Value>(report["answer"].as_str().expect("text")).expect("json"),
            json!({"todos": 3})
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_report_status_is_the_exit_code() {
    for (status, code) in [("success", 0), ("failure", 1), ("partial", 1)] {
        let fixture = Fixture::new();
        let said = json!({"status": status, "format": "markdown", "content": "# What I found"});
        let script: Script = vec![Turn::calls(vec![("agent__final_report", said)])].into();
        let (_server, variables) = with_model(WireApi::OpenAi, script).await;
        let run = ["run", "look", "--policy", "ask", "--format", "markdown"];
        let output = ended(start(&fixture, &variables, &run)).await;
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "# What I found\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_text_is_printed_once() {
    let fixture = Fixture::new();
    let (_server, variables) = with_model(WireApi::OpenAi, vec![Turn::text("It is done.")].into()).await;
    let output = ended(start(&fixture, &variables, &["run", "do", "--policy", "ask", "--format", "text"])).await;
    assert_eq!(String::from_utf8_lossy(&output.stdout), "It is done.\n", "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_is_shown_if_configured_and_always_runs() {
    for (config, shown) in [("defaults: {agent_tools: [batch]}\n", true), ("", false)] {
        let fixture = repository();
        fixture.write("project/toolwright.yaml", config);
        let items = json!({"items": [
            {"id": "one", "tool": "fs__grep", "parameters": {"pattern": "TODO"}},
            {"id": "two", "tool": "fs__write", "parameters": {"path": "x", "content": "y"}},
        ]});
        let script: Script = vec![
            Turn::calls(vec![("agent__batch", items)]).expecting("it is shown as configured", move |asked| {
                asked.tool_names().contains(&"agent__batch".into()) == shown
            }),
            Turn::text("done").expecting("each item has its own answer", |asked| {
                let results: Value = serde_json::from_str(&asked.last_result_text()).unwrap_or_default();
                let denied = results[1]["error"].as_str().unwrap_or_default();
                results[0]["ok"] == true && results[1]["ok"] == false && denied.contains("denied")
            }),
        ]
        .into();
        let (server, variables) = with_model(WireApi::OpenAi, script).await;
        let output = ended(start(&fixture, &variables, &["run", "go", "--policy", "ask", "--json"])).await;
        assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
        assert!(!fixture.path("project/x").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_output_schema_is_a_usage_error() {
    let fixture = Fixture::new();
    fixture.write("project/broken.json", r#"{"type": "nonsense"}"#);
    fixture.write("project/schema.json", SCHEMA);
    for arguments in [
        &["--output-schema", "broken.json"][..],
        &["--output-schema", "nowhere.json"],
        &["--output-schema", "schema.json", "--format", "markdown"],
    ] {
        let run = [&["run", "x", "--policy", "ask"], arguments].concat();
        let output = ended(start(&fixture, &[], &run)).await;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
}
