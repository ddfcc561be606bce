//! Agents that start agents, from the command line: sums, limits, approvals and interruptions through three levels.

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use toolwright_testkit::model_server::{RecordedRequest, Reply, Script, ScriptedModel, Turn, WireApi};

use crate::agents::agent::{ended, report, run_id, start, with_model};
use crate::command_line::cli::{ok, stderr};
use crate::serving::gateway::Gateway;
use crate::support::{Fixture, signal, until};

/// Agents a, b and c; each starts the next, and c runs a command.
const CHAIN: &str = "models:
  openai/m: {prices: {input: 10, output: 100}}
agents:
  a: {description: Starts b., prompt: You are a.}
  b: {description: Starts c., prompt: You are b.}
  c: {description: Works., prompt: You are c.}
";

fn who(asked: &RecordedRequest) -> &'static str {
    let system = asked.system();
    ["a", "b", "c"].into_iter().find(|name| system.contains(&format!("You are {name}."))).unwrap_or("root")
}

fn starts(agent: &str, task: &str) -> Reply {
    let call = json!({"reason": "it is asked for", "task": task});
    Reply::text_and_calls("", vec![(&*format!("agent__{agent}"), call)])
}

/// The chain, where c runs `command`. Each answers by what is in its own conversation, so that it can go on in another
/// process.
async fn chain(command: &'static str) -> (ScriptedModel, [(&'static str, String); 3], Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let turn = Turn::computed(move |asked| {
        count.fetch_add(1, Ordering::SeqCst);
        let has_result = !asked.last_results().is_empty();
        match (who(asked), has_result) {
            (name, true) => Reply::text(format!("{name} is done.")),
            ("root", false) => starts("a", "go on"),
            ("a", false) => starts("b", "go on"),
            ("b", false) => starts("c", "go on"),
            (_, false) => Reply::text_and_calls("", vec![("shell__bash", json!({"command": command}))]),
        }
    });
    let (server, variables) = with_model(WireApi::OpenAi, Script::from(vec![turn]).repeating()).await;
    (server, variables, asked)
}

fn trace(fixture: &Fixture) -> Value {
    serde_json::from_str(&ok(fixture, &["trace", "last", "--json"])).expect("JSON")
}

/// The first operation that began an agent.
fn agent_of(ops: &Value) -> Value {
    let ops = ops.as_array().expect("operations");
    ops.iter().find(|op| op["agent"].is_object()).cloned().unwrap_or_else(|| panic!("no agent in {ops:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn costs_of_three_levels_roll_up() {
    let fixture = Fixture::with(CHAIN);
    let (server, variables, asked) = chain("echo once >> count").await;
    let output = ended(start(&fixture, &variables, &["run", "go", "--policy", "trusted", "--json"])).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    let report = report(&output);
    assert_eq!((&report["answer"], asked.load(Ordering::SeqCst)), (&json!("root is done."), 8));
    assert_eq!(fixture.read("project/count"), "once\n");
    let trace = trace(&fixture);
    assert_eq!(trace["totals"]["usage"], report["usage"], "agents count in the run's usage");
    assert_eq!((&trace["totals"]["model_calls"], &trace["totals"]["tool_calls"]), (&json!(8), &json!(4)));
    let a = agent_of(&trace["turns"][0]["ops"]);
    let b = agent_of(&a["children"]);
    let c = agent_of(&b["children"]);
    let requests = [&a, &b, &c].map(|op| op["agent"]["totals"]["model_calls"].clone());
    assert_eq!(requests, [6, 4, 2].map(|count| json!(count)));
    let cost = |op: &Value| op["agent"]["totals"]["cost_usd"].as_f64().expect("a cost");
    let whole = trace["totals"]["cost_usd"].as_f64().expect("a cost");
    assert!(whole > cost(&a) && cost(&a) > cost(&b) && cost(&b) > cost(&c) && cost(&c) > 0.0, "{trace}");
    let drawn = ok(&fixture, &["trace", "last"]);
    assert!(drawn.contains("run a_") && drawn.contains("6 requests"), "{drawn}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_looping_run_stops_at_the_limit() {
    let fixture =
        Fixture::with("defaults: {agents: {agents: 5}}\nagents:\n  a: {description: Starts., prompt: You are a.}\n");
    let parts = AtomicUsize::new(0);
    let turn = Turn::computed(move |asked| match who(asked) {
        "a" => Reply::text("a is done."),
        _ if asked.last_result_text().contains("5 agents were started below this run") => Reply::text("I see."),
        // Equal calls would end by the loop guard.
        _ => starts("a", &format!("part {}", parts.fetch_add(1, Ordering::SeqCst))),
    });
    let (server, variables) = with_model(WireApi::OpenAi, Script::from(vec![turn]).repeating()).await;
    let output = ended(start(&fixture, &variables, &["run", "go", "--policy", "trusted", "--json"])).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    let calls = report(&output)["calls"].as_array().cloned().expect("calls");
    let started = calls.iter().filter(|call| call["ok"] == true).count();
    assert_eq!((started, calls.len()), (5, 6));
    assert_eq!(calls[5]["error"]["kind"], "limit_exceeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_answers_for_depth_three() {
    let fixture = Fixture::with(CHAIN);
    let (server, variables, _) = chain("echo once >> count").await;
    let run = start(&fixture, &variables, &["run", "go", "--ask", "inbox", "--json"]);
    let listed = || -> Value { serde_json::from_str(&ok(&fixture, &["approvals", "ls", "--json"])).expect("JSON") };
    until("somebody is asked", || listed().get(0).is_some());
    let question = listed()[0].clone();
    assert_eq!(question["tool"], "shell:bash@1.0.0");
    let path: Vec<&Value> = question["agents"].as_array().expect("agents").iter().map(|step| &step["agent"]).collect();
    assert_eq!(path, [&json!("a"), &json!("b"), &json!("c")], "{question}");
    assert_eq!(question["agents"][2]["reason"], "it is asked for");
    assert!(ok(&fixture, &["approvals", "ls"]).contains("a (it is asked for) > b"));
    ok(&fixture, &["approvals", "approve", question["id"].as_str().expect("an id")]);
    let output = ended(run).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert_eq!(fixture.read("project/count"), "once\n");
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_every_level() {
    let fixture = Fixture::with(CHAIN);
    let (_server, variables, asked) = chain("echo $$ > pid; exec sleep 60").await;
    let child = start(&fixture, &variables, &["run", "go", "--policy", "trusted", "--json"]);
    until("the command runs", || std::fs::read_to_string(fixture.path("project/pid")).is_ok_and(|pid| pid.len() > 1));
    signal(child.id(), "INT");
    let output = ended(child).await;
    assert_eq!((output.status.code(), asked.load(Ordering::SeqCst)), (Some(130), 4), "{}", stderr(&output));
    let pid = fixture.read("project/pid");
    until("the command is gone", || !std::path::Path::new(&format!("/proc/{}", pid.trim())).exists());
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_resumes_in_its_agents() {
    // Killed while the command of the innermost agent runs: its effect is not known, and it does not run again.
    let fixture = Fixture::with(CHAIN);
    let (server, variables, asked) = chain("echo once >> count; sleep 60").await;
    let mut child = start(&fixture, &variables, &["run", "go", "--policy", "trusted", "--json"]);
    until("the command runs", || fixture.path("project/count").exists());
    child.kill().expect("kill");
    let id = run_id(&stderr(&ended(child).await));
    assert_eq!(asked.load(Ordering::SeqCst), 4);
    let output = ended(start(&fixture, &variables, &["run", "--resume", &id, "--policy", "trusted", "--json"])).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert_eq!((report(&output)["answer"].clone(), asked.load(Ordering::SeqCst)), (json!("root is done."), 8));
    assert_eq!(fixture.read("project/count"), "once\n");
    let last = server.requests().into_iter().find(|asked| {
        let body = asked.body.to_string();
        body.contains("You are c.") && body.contains("may or may not have taken effect")
    });
    assert!(last.is_some(), "the innermost agent was told that the effect of its call is not known");
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_can_be_called_by_their_owner() {
    let fixture = Fixture::with(&format!("{CHAIN}defaults: {{agents: {{agents: 9}}}}\n"));
    let (server, variables, asked) = chain("echo once >> count").await;
    let call = ["call", "agent__c", "reason=it is asked for", "task=go on", "--json"];
    // Nobody can be asked, and what the owner may do its agent may not.
    let output = ended(start(&fixture, &variables, &call)).await;
    let printed: Value = serde_json::from_slice(&output.stdout).expect("json");
    let text = printed["text"].as_str().expect("a text");
    assert!(text.starts_with("c is done.") && text.contains("1 denied"), "{text} {:?}", server.failures());
    assert!(!fixture.path("project/count").exists());
    let second = ended(start(&fixture, &variables, &call)).await;
    assert!(second.status.success(), "{}", stderr(&second));
    assert_eq!(asked.load(Ordering::SeqCst), 4, "each call is a run of its own");
}

/// Messages of a gateway until the answer of a request, which is the last.
fn messages_until_answer(gateway: &mut Gateway, id: u64) -> Vec<Value> {
    let (_, output) = gateway.streams.as_mut().expect("streams");
    let mut all = Vec::new();
    while all.last().is_none_or(|message: &Value| message["id"] != id) {
        let mut line = String::new();
        assert!(output.read_line(&mut line).expect("read") > 0, "the gateway closed its output");
        all.push(serde_json::from_str(&line).expect("JSON"));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_follow_cancel_and_defer_agents() {
    let fixture = Fixture::with(
        "models: {default: openai/m}\nagents: {reader: {description: Reads., prompt: You read., policy: trusted}}\n",
    );
    fixture.write("project/a.txt", "42");
    let waits = json!({"command": "echo $$ > pid; sleep 60; echo once > after"});
    let script: Script = vec![
        Turn::calls(vec![("fs__read", json!({"path": "a.txt"}))]),
        Turn::text("It says 42."),
        Turn::calls(vec![("shell__bash", waits), ("fs__write", json!({"path": "after", "content": "too late"}))]),
        Turn::text("It is read as a task."),
    ]
    .into();
    let (model, variables) = with_model(WireApi::OpenAi, script).await;
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut gateway = Gateway::start_with(&fixture, &["--stdio"], &variables);
    gateway.handshake();
    gateway.has_tool("agent__reader", true);
    let call = |more: Value| {
        let mut call = json!({"name": "agent__reader", "arguments": {"reason": "it is asked for", "task": "read it"}});
        call.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        call
    };
    let id = gateway.send("tools/call", call(json!({"_meta": {"progressToken": "p"}})));
    let all = messages_until_answer(&mut gateway, id);
    let (answer, messages) = all.split_last().expect("an answer");
    assert_eq!(answer["result"]["content"][0]["text"], "It says 42.", "{answer}");
    let progress: Vec<&str> = messages.iter().filter_map(|message| message["params"]["message"].as_str()).collect();
    for expect in ["reader, turn 1: asks the model", "reader, turn 1: fs__read", "reader, turn 2: asks the model"] {
        assert!(progress.contains(&expect), "{expect} is not in {progress:?}");
    }
    let id = gateway.send("tools/call", call(json!({})));
    until("the command runs", || std::fs::read_to_string(fixture.path("project/pid")).is_ok_and(|pid| pid.len() > 1));
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    let (input, _) = gateway.streams.as_mut().expect("streams");
    writeln!(input, "{cancel}").expect("write");
    let process = format!("/proc/{}", fixture.read("project/pid").trim());
    until("the command is gone", || !std::path::Path::new(&process).exists());
    until("the agent has ended", || {
        let calls = trace(&fixture)["turns"][0]["ops"].as_array().cloned().unwrap_or_default();
        calls.last().is_some_and(|agent| {
            let begun = [&agent["children"][1], &agent["children"][2]];
            begun.into_iter().chain([agent]).all(|call| call["status"] == "canceled")
        })
    });
    assert!(!fixture.path("project/after").exists(), "nothing runs after a cancel");
    assert_eq!(model.requests().len(), 3, "nothing is asked after a cancel");
    let created = gateway.ask("tools/call", call(json!({"task": {}})));
    let task = created["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned();
    let result = gateway.ask("tasks/result", json!({"taskId": task}));
    assert_eq!(result["result"]["content"][0]["text"], "It is read as a task.", "{result}");
    assert!(model.failures().is_empty(), "{:?}", model.failures());
}
