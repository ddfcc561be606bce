//! Plans that a model writes, and runs whose calls refer to inputs, to held calls and to each other.

use std::time::Duration;

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Reply, Script, Turn, WireApi};

use crate::agents::agent::{ended, report, run_id, start, with_model};
use crate::calls::plans::project;
use crate::command_line::cli::stderr;
use crate::support::{Fixture, until};

fn calls(written: &[(&str, Value)]) -> Turn {
    Turn::calls(written.iter().map(|(name, arguments)| (*name, arguments.clone())).collect::<Vec<_>>())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_repairs_its_plan_once() {
    for api in [WireApi::OpenAi, WireApi::Anthropic] {
        let fixture = project();
        let script: Script = vec![
            calls(&[
                ("fs__glob", json!({"pattern": "*.txt", "_outputPath": "found"})),
                ("fs__read", json!({"path": "†state.fund"})),
            ])
            .expecting("every tool takes a path for its result", |asked| {
                asked.body.to_string().contains("_outputPath") && asked.system().contains("You plan")
            }),
            calls(&[
                ("fs__glob", json!({"pattern": "*.txt", "_outputPath": "found"})),
                ("fs__read", json!({"path": "†state.found"})),
            ])
            .expecting("the fault is named by its place", |asked| {
                let text = asked.body.to_string();
                text.contains("/1/path") && text.contains("did you mean")
            }),
        ]
        .into();
        let (server, variables) = with_model(api, script).await;
        let made = ended(start(&fixture, &variables, &["plan", "make", "read the text"])).await;
        assert!(made.status.success(), "{} {:?}", stderr(&made), server.failures());
        let plan: Value = report(&made);
        assert_eq!(plan[1], json!({"_tool": "fs__read", "path": "†state.found"}));
        assert_eq!(server.failures(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_plan_calls_are_planned_again() {
    let fixture = Fixture::new();
    fixture.write("project/a.txt", "one\n");
    let plan = json!([
        {"_tool": "fs__glob", "_outputPath": "found", "pattern": "*.txt"},
        {"_tool": "fs__read", "_outputPath": "text", "path": "b.txt"},
    ]);
    fixture.write("project/plan.json", &plan.to_string());
    let script: Script = vec![
        calls(&[
            ("fs__glob", json!({"pattern": "†state.found", "_outputPath": "text"})),
            ("shell__bash", json!({"command": "echo once >> count"})),
        ])
        .expecting("what became of the calls is told", |asked| {
            let text = asked.last_user_text();
            text.contains("\"became\":\"done\"") && text.contains("failed") && text.contains("†state.found")
        }),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let output = ended(start(&fixture, &variables, &["plan", "run", "plan.json", "--repair", "--json"])).await;
    let ran = report(&output);
    assert_eq!(server.failures(), Vec::<String>::new());
    let seen: Vec<_> = ran["calls"].as_array().expect("calls").iter().map(|call| &call["ok"]).collect();
    let (yes, no) = (json!(true), json!(false));
    assert_eq!((&ran["status"], seen), (&json!("partial"), vec![&yes, &no, &yes, &no]), "{ran}");
    assert!(ran["state"]["text"].is_string(), "{ran}");
    // The approval of the first plan does not cover what the second adds, and nobody is there to be asked.
    assert_eq!(ran["calls"][3]["error"]["kind"], "denied", "{ran}");
    assert!(!fixture.path("project/count").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_repair_leaves_the_first_report() {
    let unknown = || calls(&[("fs__glob", json!({"pattern": "†state.nothing"}))]);
    let no_plan = || Turn::text("I cannot.");
    let cases: [(Script, &str); 2] = [
        (vec![unknown(), unknown()].into(), "no call of the plan writes"),
        (vec![no_plan(), no_plan()].into(), "no new plan for what failed"),
    ];
    for (script, why) in cases {
        let fixture = Fixture::new();
        let plan = json!([
            {"_tool": "shell__bash", "_outputPath": "ran", "command": "echo once >> count"},
            {"_tool": "fs__read", "path": "missing.txt"},
        ]);
        fixture.write("project/plan.json", &plan.to_string());
        let (_server, variables) = with_model(WireApi::OpenAi, script).await;
        let output = ended(start(&fixture, &variables, &["plan", "run", "plan.json", "--repair", "--json"])).await;
        let (ran, said) = (report(&output), stderr(&output));
        assert!(output.status.code() == Some(1) && said.contains(why), "{said}");
        let seen: Vec<_> = ran["calls"].as_array().expect("calls").iter().map(|call| &call["ok"]).collect();
        assert_eq!((&ran["status"], seen), (&json!("partial"), vec![&json!(true), &json!(false)]), "{ran}");
        assert_eq!((ran["state"]["ran"].is_null(), fixture.read("project/count").as_str()), (false, "once\n"));
    }
}

/// Two calls, of which the second uses the result of the first.
fn finds_and_uses() -> Turn {
    calls(&[
        ("fs__glob", json!({"pattern": "*.txt", "_outputPath": "found"})),
        ("fs__glob", json!({"pattern": "†state.found"})),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_a_plan_plans_first() {
    let fixture = Fixture::new();
    fixture.write("project/a.txt", "one\n");
    let script: Script = vec![
        finds_and_uses().expecting("it plans", |asked| asked.system().contains("You plan")),
        Turn::text("It says one.").expecting("both results are there", |asked| asked.last_results().len() == 2),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let output =
        ended(start(&fixture, &variables, &["run", "what does it say?", "--plan", "--policy", "ask", "--json"])).await;
    let ran = report(&output);
    assert!(output.status.success(), "{} {:?} {ran}", stderr(&output), server.failures());
    assert_eq!((&ran["answer"], ran["calls"].as_array().map(Vec::len)), (&json!("It says one."), Some(2)), "{ran}");
    assert_eq!(server.failures(), Vec::<String>::new());
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_over_its_cost_does_not_run() {
    let fixture = Fixture::with("defaults: {builtin_tools: {fs__glob: {cost_hint: 0.3}}}\n");
    let two = || calls(&[("fs__glob", json!({"pattern": "a"})), ("fs__glob", json!({"pattern": "b"}))]);
    let script: Script = vec![
        two(),
        two().expecting("the cost is told", |asked| {
            asked.body.to_string().contains("0.6000 USD, over the limit of 0.5 USD")
        }),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let arguments = ["run", "look", "--plan", "--policy", "ask", "--max-cost", "0.5"];
    let output = ended(start(&fixture, &variables, &arguments)).await;
    assert!(!output.status.success() && stderr(&output).contains("over the limit"), "{}", stderr(&output));
    assert_eq!(server.failures(), Vec::<String>::new());
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_on_the_run_are_for_no_instance() {
    let fixture = Fixture::new();
    let script: Script = vec![
        Turn::calls(vec![("agent__final_report", json!({"status": "success", "format": "json", "content_json": {}}))])
            .expecting("only tools that are for an input take one", |asked| {
                let takes = |name: &str| {
                    let tools = asked.body["tools"].as_array().into_iter().flatten();
                    let mut tools = tools.filter(|tool| tool["function"]["name"] == name);
                    tools.next().map(|tool| tool.to_string().contains("_instance"))
                };
                takes("agent__final_report") == Some(false) && takes("fs__glob") == Some(true)
            }),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let arguments = ["run", "x", "--policy", "ask", "--format", "json", "--input", "[{}, {}]", "--json"];
    ended(start(&fixture, &variables, &arguments)).await;
    assert_eq!(server.failures(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_continues_with_all_inputs() {
    let fixture = Fixture::new();
    let inputs: Vec<Value> = (0..101).map(|n| json!({"n": n})).collect();
    fixture.write("project/inputs.json", &json!(inputs).to_string());
    // The first answer does not come before the kill.
    let timed_out = Turn::text("Late.").with_delay(Duration::from_secs(3600));
    let script: Script = vec![
        timed_out,
        Turn::text("First.").expecting("the first hundred", |asked| asked.body.to_string().contains("100 inputs")),
        Turn::text("Second.").expecting("the rest", |asked| asked.body.to_string().contains("over 1 inputs")),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let begin = ["run", "x", "--policy", "ask", "--input", "inputs.json", "--json"];
    let mut child = start(&fixture, &variables, &begin);
    until("the model is asked", || server.requests().len() == 1);
    child.kill().expect("killed");
    let id = run_id(&stderr(&ended(child).await));
    let output = ended(start(&fixture, &variables, &["run", "--resume", &id, "--policy", "ask", "--json"])).await;
    let reports: Vec<Value> =
        serde_json::Deserializer::from_slice(&output.stdout).into_iter().collect::<Result<_, _>>().expect("JSON");
    let seen: Vec<_> = reports.iter().map(|report| (&report["run"], &report["answer"])).collect();
    let second = format!("{id}-2");
    assert_eq!(
        seen,
        [(&json!(id), &json!("First.")), (&json!(second), &json!("Second."))],
        "{} {:?}",
        stderr(&output),
        server.failures()
    );
    assert_eq!(server.failures(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_for_its_held_dependency() {
    let fixture = Fixture::new();
    fixture.write("project/a.txt", "one\n");
    let script: Script = vec![
        finds_and_uses(),
        Turn::text("Done.").expecting("the second found it too", |asked| asked.last_result_text().contains("a.txt")),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let begin = ["run", "x", "--plan", "--policy", "ask", "--dispatch", "manual", "--json"];
    let held = report(&ended(start(&fixture, &variables, &begin)).await);
    let id = held["run"].as_str().expect("an id");
    let go_on = async |call: &str| {
        let resume = ["run", "--resume", id, "--policy", "ask", "--call", call, "--json"];
        report(&ended(start(&fixture, &variables, &resume)).await)
    };
    for (arguments, why) in [
        (&["run", "--resume", id, "--policy", "ask", "--call", "call_7"][..], "held calls of"),
        (&["run", "x", "--policy", "ask", "--call", "call_0"], "--call"),
    ] {
        let output = ended(start(&fixture, &variables, arguments)).await;
        assert!(output.status.code() == Some(2) && stderr(&output).contains(why), "{}", stderr(&output));
    }
    let waits = go_on("call_1").await;
    assert_eq!(
        (waits["calls"].as_array().map(Vec::len), &waits["held"][0]["id"]),
        (Some(0), &json!("call_0")),
        "{waits}"
    );
    assert_eq!(go_on("call_0").await["answer"], "Done.", "{:?}", server.failures());
    assert_eq!(server.failures(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn references_reach_servers_only_where_allowed() {
    let server = toolwright_testkit::bin("misbehaving-mcp");
    for (allowed, agent, expect) in
        [(false, "false", "†input.word"), (true, "false", "hello"), (false, "true", "hello")]
    {
        let fixture = Fixture::with(&format!(
            "mcpServers: {{odd: {{command: {}}}}}\nagents: {{a: {{prompt: p, foreign_references: {agent}}}}}\n",
            json!(server)
        ));
        let script: Script = vec![calls(&[("odd__echo", json!({"text": "†input.word"}))]), Turn::text("Done.")].into();
        let (model, variables) = with_model(WireApi::OpenAi, script).await;
        let mut arguments =
            vec!["run", "x", "--agent", "a", "--policy", "trusted", "--json", "--input", r#"{"word": "hello"}"#];
        arguments.extend(allowed.then_some("--foreign-references"));
        let output = ended(start(&fixture, &variables, &arguments)).await;
        assert_eq!(report(&output)["answer"], "Done.", "{}", stderr(&output));
        let result = model.requests().last().expect("a request").body["messages"]
            .as_array()
            .expect("messages")
            .last()
            .expect("a result")
            .to_string();
        assert!(result.contains(expect), "{allowed}: {result}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn held_calls_run_one_by_one() {
    let fixture = Fixture::new();
    let turn = Reply::calls(vec![
        ("shell__bash", json!({"command": "echo a >> count"})),
        ("fs__glob", json!({"pattern": "*"})),
        ("fs__glob", json!({"patern": "*"})),
    ]);
    let script: Script = vec![Turn::computed(move |_| turn.clone()), Turn::text("Done.")].into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let begin = ["run", "x", "--policy", "ask", "--dispatch", "manual", "--json"];
    let held = report(&ended(start(&fixture, &variables, &begin)).await);
    let effects: Vec<_> =
        held["held"].as_array().expect("held").iter().map(|call| &call["verdict"]["effect"]).collect();
    assert_eq!(effects, [&json!("ask"), &json!("allow"), &json!("invalid")], "{held}");
    let (run, second) = (held["run"].as_str().expect("an id"), held["held"][1]["id"].as_str().expect("an id"));
    let one = ["run", "--resume", run, "--policy", "ask", "--call", second, "--json"];
    let left = report(&ended(start(&fixture, &variables, &one)).await);
    assert_eq!(
        (left["held"].as_array().map(Vec::len), left["calls"].as_array().map(Vec::len)),
        (Some(2), Some(1)),
        "{left}"
    );
    let output = ended(start(&fixture, &variables, &["run", "--resume", run, "--policy", "ask", "--json"])).await;
    assert_eq!(report(&output)["answer"], "Done.", "{} {:?}", stderr(&output), server.failures());
}
