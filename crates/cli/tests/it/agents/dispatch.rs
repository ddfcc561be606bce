//! When the calls of a run start, and what mends them, against the scripted model server.

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Fault, Script, Turn, WireApi};

use crate::agents::agent::{configure, ended, report, repository, run_id, start, todo_script, with_model};
use crate::command_line::cli::stderr;
use crate::support::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn dispatch_does_not_change_the_result() {
    for api in WireApi::ALL {
        let fixture = repository();
        configure(&fixture, api);
        let (server, variables) = with_model(api, todo_script()).await;
        let arguments = ["run", "count the TODOs", "--policy", "workspace", "--dispatch", "streaming", "--json"];
        let output = ended(start(&fixture, &variables, &arguments)).await;
        assert!(output.status.success(), "{api:?}: {} {:?}", stderr(&output), server.failures());
        assert_eq!(report(&output)["calls"].as_array().map(Vec::len), Some(3), "{api:?}");
        assert_eq!(fixture.read("project/report.md"), "a.rs: 2\nb.rs: 1\n");
        assert_eq!(server.failures(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_answer_repeats_no_call() {
    let mut kept = 0;
    // Anthropic's blocks close one by one; other APIs may close all calls at the end.
    for frames in 1..18 {
        let fixture = Fixture::with("defaults:\n  dispatch: streaming\n");
        let calls =
            vec![("shell__bash", json!({"command": "echo one >> count"})), ("fs__glob", json!({"pattern": "*"}))];
        let script: Script =
            vec![Turn::text_and_calls("Looking.", calls).with_fault(Fault::CutAfter(frames)), Turn::text("Done.")]
                .into();
        let (server, variables) = with_model(WireApi::Anthropic, script).await;
        let output = ended(start(&fixture, &variables, &["run", "x", "--policy", "trusted", "--json"])).await;
        let ran = if fixture.path("project/count").exists() { fixture.read("project/count") } else { String::new() };
        assert!(ran.len() <= "one\n".len(), "{frames}: {ran}");
        let report = report(&output);
        // What was started is in the report, and the run goes on from it; else it fails as ever.
        let reported = report["calls"].as_array().expect("calls").len();
        assert_eq!((reported > 0, output.status.success()), (!ran.is_empty(), !ran.is_empty()), "{frames}: {report}");
        assert_eq!(server.failures(), Vec::<String>::new(), "{frames}");
        kept += usize::from(reported == 1);
    }
    assert!(kept > 0, "no cut fell between the two calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn manual_dispatch_prints_calls_until_resumed() {
    let fixture = repository();
    let (server, variables) = with_model(WireApi::OpenAi, todo_script()).await;
    let begin = ["run", "count the TODOs", "--policy", "workspace", "--dispatch", "manual", "--json"];
    let output = ended(start(&fixture, &variables, &begin)).await;
    let held = report(&output);
    assert_eq!((output.status.code(), &held["status"]), (Some(4), &json!("suspended")), "{}", stderr(&output));
    let tools: Vec<&Value> = held["held"].as_array().expect("held").iter().map(|call| &call["tool"]).collect();
    assert_eq!((tools, &held["calls"]), (vec![&json!("fs__grep"), &json!("fs__glob")], &json!([])));
    let id = held["run"].as_str().expect("the report names the run");
    assert_eq!(id, run_id(&stderr(&output)));
    let resume = ["run", "--resume", id, "--policy", "workspace", "--json"];
    let second = report(&ended(start(&fixture, &variables, &resume)).await);
    assert_eq!((&second["held"][0]["tool"], second["calls"].as_array().map(Vec::len)), (&json!("fs__write"), Some(2)));
    assert!(!fixture.path("project/report.md").exists());
    let output = ended(start(&fixture, &variables, &resume)).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert_eq!(fixture.read("project/report.md"), "a.rs: 2\nb.rs: 1\n");
    let chat = ended(start(&fixture, &variables, &["chat", "--policy", "ask", "--dispatch", "manual"])).await;
    assert_eq!(chat.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configured_model_repairs_arguments() {
    let fixture = Fixture::with("defaults:\n  repair_model: openai/m\n");
    fixture.write("project/a.rs", "// TODO one\n");
    let mended = || {
        Turn::text("{\"pattern\": \"TODO\"}")
            .expecting("schema, errors and arguments are shown", |asked| {
                let text = asked.last_user_text();
                text.contains("fs__grep") && text.contains("\"patern\"") && text.contains("is missing")
            })
            .expecting("no tools are", |asked| asked.tool_names().is_empty())
    };
    let script: Script = vec![
        Turn::calls(vec![("fs__grep", json!({"patern": "TODO"}))]),
        mended(),
        Turn::text("One.").expecting("the result and a note are there", |asked| {
            let text = asked.last_result_text();
            text.contains("a.rs") && text.contains("the call ran with {\"pattern\":\"TODO\"}")
        }),
        mended(),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let output = ended(start(&fixture, &variables, &["run", "x", "--policy", "ask"])).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert!(stderr(&output).contains("the arguments of fs__grep were repaired by openai/m"), "{}", stderr(&output));
    let output = ended(start(&fixture, &variables, &["call", "fs__grep", "{\"patern\": \"TODO\"}", "--json"])).await;
    let outcome: Value = serde_json::from_slice(&output.stdout).expect("json");
    assert_eq!((&outcome["ok"], &outcome["provenance"]["repair"]["end"]), (&json!(true), &json!("accepted")));
    assert_eq!(server.failures(), Vec::<String>::new());
}
