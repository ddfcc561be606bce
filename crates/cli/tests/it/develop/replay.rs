//! Recordings made and played by the program: what a run and its tools asked of a model, without the model.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Fault, Script, Turn, WireApi};

use crate::agents::agent::{configure, ended, report, repository, start, todo_script, with_model};
use crate::command_line::cli::{program, run, stderr};
use crate::serving::gateway::Gateway;
use crate::support::Fixture;

const RUN: [&str; 5] = ["run", "count the TODOs", "--policy", "workspace", "--json"];
const CLASSIFY: &str = r#"{"request": "I want my money back", "suggestions": ["login", "refund"]}"#;

fn and<'a>(arguments: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [arguments, more].concat()
}

/// What a played run and the run that was recorded have in common.
fn same(report: &Value) -> Value {
    let calls = report["calls"].as_array().expect("calls").iter();
    let calls: Vec<_> = calls.map(|call| json!([call["tool"], call["arguments"], call["ok"]])).collect();
    json!([report["status"], report["answer"], report["turns"], report["usage"], calls])
}

/// How often the program said that it replays.
fn replay_notices(output: &Output, file: &str) -> usize {
    stderr(output).matches(&format!("[replayed from {file}]")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_run_plays_in_every_api() {
    // The files are not where tools look.
    for api in WireApi::ALL {
        let fixture = repository();
        configure(&fixture, api);
        let (server, variables) = with_model(api, todo_script()).await;
        let recorded = and(&RUN, &["--record", "../r.jsonl", "--transcript", "../t.jsonl"]);
        let output = ended(start(&fixture, &variables, &recorded)).await;
        assert!(output.status.success(), "{api:?}: {} {:?}", stderr(&output), server.failures());
        assert_eq!(replay_notices(&output, "../r.jsonl"), 0, "{api:?}");
        drop(server);
        let expect = same(&report(&output));
        let (recording, transcript) = (fixture.read("r.jsonl"), fixture.read("t.jsonl"));
        assert_eq!(recording.lines().count(), 3, "{api:?}: a line a request");
        // A transcript is played like a recording.
        for (name, text) in [("../r.jsonl", &recording), ("../t.jsonl", &transcript)] {
            let fixture = repository();
            fixture.write(name.trim_start_matches("../"), text);
            let id = format!("replay:{name}");
            let output = run(&fixture, &and(&RUN, &["--model", &id, "--record", "../again.jsonl"]));
            assert!(output.status.success(), "{api:?} {name}: {}", stderr(&output));
            assert_eq!((same(&report(&output)), replay_notices(&output, name)), (expect.clone(), 1), "{api:?} {name}");
            assert_eq!(fixture.read("project/report.md"), "a.rs: 2\nb.rs: 1\n", "{api:?}: tools run for real");
            let trace: Value =
                serde_json::from_slice(&run(&fixture, &["trace", "last", "--json"]).stdout).expect("json");
            let models: Vec<_> = operations(&trace).filter(|op| op["kind"] == "model").collect();
            assert_eq!(models.len(), 3, "{trace}");
            for op in models {
                assert_eq!((&op["name"], &op["cost_usd"]), (&json!(id), &json!(0.0)), "{op}");
                assert!(op["input_tokens"].as_u64().or(op["usage"]["input_tokens"].as_u64()) > Some(0), "{op}");
            }
            // What is recorded of a replay names it: nobody takes it for the model.
            let again = fixture.read("again.jsonl");
            assert!(again.lines().all(|line| line.contains(&id)) && again.lines().count() == 3, "{again}");
        }
    }
}

/// All operations of a trace, nested ones too.
fn operations(trace: &Value) -> impl Iterator<Item = &Value> {
    fn all<'a>(ops: &'a Value, found: &mut Vec<&'a Value>) {
        for op in ops.as_array().into_iter().flatten() {
            found.push(op);
            all(&op["ops"], found);
        }
    }
    let mut found = Vec::new();
    trace["turns"].as_array().into_iter().flatten().for_each(|turn| all(&turn["ops"], &mut found));
    found.into_iter()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_task_matches_only_loosely() {
    let fixture = repository();
    let (_server, variables) = with_model(WireApi::OpenAi, todo_script()).await;
    let output = ended(start(&fixture, &variables, &and(&RUN, &["--record", "r.jsonl"]))).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let other = ["run", "count the FIXMEs", "--policy", "workspace", "--json", "--model"];
    let output = run(&fixture, &and(&other, &["replay:r.jsonl"]));
    let reason = report(&output)["reason"].to_string();
    assert_eq!(output.status.code(), Some(1), "{reason}");
    let differs = "differs at messages[0].content[0].text: recorded `count the TODOs`, asked `count the FIXMEs`";
    assert!(reason.contains(differs), "{reason}");
    let output = run(&fixture, &and(&other, &["replay:r.jsonl?loose"]));
    assert_eq!(report(&output)["answer"], "Three TODOs; see report.md.", "{}", stderr(&output));
    assert_eq!(replay_notices(&output, "r.jsonl"), 1);
    // What is no recording is bad usage, before anything runs.
    for (model, part) in [("replay:none.jsonl", "cannot be read"), ("replay:", "names no recording")] {
        let output = run(&fixture, &and(&other, &[model]));
        assert_eq!(output.status.code(), Some(2), "{model}");
        assert!(stderr(&output).contains(part), "{model}: {}", stderr(&output));
    }
    let output = run(&fixture, &and(&RUN, &["--model", "replay:r.jsonl", "--record", "no/such/folder"]));
    assert!(output.status.code() == Some(2) && stderr(&output).contains("--record no/such/folder"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_model_requests_are_recorded_and_replayed() {
    let answer = r#"{"reasoning": "r", "selected_index": 1, "confidence": 0.9}"#;
    let script: Script = vec![
        Turn::calls(vec![("llm__classify", serde_json::from_str::<Value>(CLASSIFY).expect("json"))]),
        Turn::text(answer).expecting("the tool asks", |asked| asked.tool_names().is_empty()),
        Turn::text("It is a refund."),
        // The variant for small models is another prompt.
        Turn::text(answer).expecting("the tool asks", |asked| asked.tool_names().is_empty()),
    ]
    .into();
    let fixture = Fixture::with("models:\n  default: openai/gpt-nano\n");
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let task = ["run", "what is it?", "--policy", "trusted", "--json"];
    let output = ended(start(&fixture, &variables, &and(&task, &["--record", "r.jsonl"]))).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    let call = ["call", "llm__classify", CLASSIFY, "--json"];
    let output = ended(start(&fixture, &variables, &and(&call, &["--record", "c.jsonl"]))).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    let expect = report(&output);
    drop(server);
    assert_eq!(
        (fixture.read("project/r.jsonl").lines().count(), fixture.read("project/c.jsonl").lines().count()),
        (3, 1)
    );

    let played = Fixture::with("models:\n  default: replay:r.jsonl\n");
    played.write("project/r.jsonl", &fixture.read("project/r.jsonl"));
    played.write("project/c.jsonl", &fixture.read("project/c.jsonl"));
    let output = run(&played, &task);
    assert_eq!(report(&output)["answer"], "It is a refund.", "{}", stderr(&output));
    assert_eq!(replay_notices(&output, "r.jsonl"), 1, "the run and its tool are told once");
    let output = run(&played, &and(&call, &["--model", "replay:c.jsonl"]));
    let outcome = report(&output);
    assert_eq!(
        (&outcome["structured"], replay_notices(&output, "c.jsonl")),
        (&expect["structured"], 1),
        "{}",
        stderr(&output)
    );
    assert_eq!(outcome["extras"]["model"], "replay:c.jsonl");
    assert_eq!(outcome["extras"]["usage"]["input_tokens"], expect["extras"]["usage"]["input_tokens"]);

    // A server answers as often as it is asked.
    let mut gateway = Gateway::start(&played, &["--stdio", "--policy", "trusted", "--record", "../s.jsonl"]);
    gateway.handshake();
    for _ in 0..2 {
        let arguments: Value = serde_json::from_str(CLASSIFY).expect("json");
        let result = gateway.ask("tools/call", json!({"name": "llm__classify", "arguments": arguments}));
        assert_eq!(result["result"]["structuredContent"], expect["structured"], "{result}");
    }
    gateway.says("[replayed from r.jsonl]");
    assert_eq!(played.read("s.jsonl").lines().count(), 2, "it records what it is asked");
}

/// A tool whose first model fails in the way of `first`, and its second in that of `second`, if at all; recorded in a run
/// and played where there is no key and no server.
async fn check_fallback(first: Turn, second: Turn, answer: &str) {
    let config = "llmTools:\n  shout:\n    description: Shouts.\n    parameters: {type: object, properties: {text: {type: \
                  string}}, required: [text]}\n    user: \"Shout: {{ text }}\"\n    modelPreference: {preferredModel: \
                  openai/first, fallbackModels: [openai/second]}\n    variants:\n      - {id: s, providerMatch: [second], \
                  user: \"SHOUT {{ text }}\"}\nmodels: {openai: {retry: {attempts: 1}}}\n";
    let fixture = Fixture::with(config);
    let script: Script = vec![
        Turn::calls(vec![("llm__shout", json!({"text": "hey"}))]),
        first.expecting("the first model", |asked| asked.model().ends_with("first")),
        second.expecting("the second model", |asked| asked.model().ends_with("second")),
        Turn::text("Done."),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let task = ["run", "shout hey", "--policy", "trusted", "--json"];
    // A run whose only call failed is no success.
    let code = Some(i32::from(answer.contains("could not be asked")));
    let output =
        ended(start(&fixture, &variables, &and(&task, &["--record", "r.jsonl", "--transcript", "t.jsonl"]))).await;
    assert_eq!(output.status.code(), code, "{} {:?}", stderr(&output), server.failures());
    drop(server);
    let (expect, recording) = (report(&output), fixture.read("project/r.jsonl"));
    assert_eq!(recording.lines().count(), 4, "a line a request: {recording}");
    let models: Vec<Value> =
        recording.lines().map(|line| serde_json::from_str::<Value>(line).expect("json")["model"].take()).collect();
    assert_eq!(models[1..3], [json!("openai/first"), json!("openai/second")]);

    let played = Fixture::with(config);
    played.write("project/r.jsonl", &recording);
    let output = run(&played, &and(&task, &["--model", "replay:r.jsonl", "--transcript", "t.jsonl"]));
    assert_eq!(output.status.code(), code, "{}", stderr(&output));
    assert_eq!((same(&report(&output)), replay_notices(&output, "r.jsonl")), (same(&expect), 1), "{}", stderr(&output));
    // What the agent's model was told of the tool is what it was told then.
    let reported = |fixture: &Fixture| {
        let lines = fixture.read("project/t.jsonl");
        let mut requests = lines.lines().filter(|line| line.contains("\"type\":\"request\""));
        let last = requests.next_back().map(|line| serde_json::from_str::<Value>(line).expect("json"));
        last.expect("a request")["request"]["messages"].to_string()
    };
    assert!(reported(&fixture).contains(answer), "{}", reported(&fixture));
    assert_eq!(reported(&played), reported(&fixture));
    // The ledger has each attempt, with what it used, at no cost.
    let attempts = |fixture: &Fixture| {
        let trace: Value = serde_json::from_slice(&run(fixture, &["trace", "last", "--json"]).stdout).expect("json");
        let models = operations(&trace).filter(|op| op["kind"] == "model").cloned().collect::<Vec<_>>();
        models
            .iter()
            .map(|op| json!([op["status"], op["usage"], op["input_tokens"], op["output_tokens"]]))
            .collect::<Vec<_>>()
    };
    assert_eq!(attempts(&played), attempts(&fixture));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_fallback_is_played() {
    check_fallback(Turn::error(400, "not so"), Turn::text("HEY"), "HEY").await;
    check_fallback(
        Turn::text("half of it, and of what comes behind it").with_fault(Fault::CutAfter(3)),
        Turn::text("HEY"),
        "HEY",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_failed_sampling_is_played() {
    let reported = "openai/first: the model behind this tool could not be asked; openai/second: the model";
    check_fallback(Turn::error(400, "not so"), Turn::error(400, "neither"), reported).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_played_by_message() {
    let fixture = Fixture::new();
    let (_server, variables) = with_model(WireApi::OpenAi, vec![Turn::text("Hello."), Turn::text("Bye.")].into()).await;
    let chat = |fixture: &Fixture, variables: &[(&str, String)], more: &[&str]| {
        let mut command = program(fixture);
        command.args(["chat", "--policy", "ask"]).args(more);
        command.envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
        child.stdin.take().expect("stdin").write_all(b"hi\nthat is all\n").expect("said");
        child
    };
    let output = ended(chat(&fixture, &variables, &["--record", "r.jsonl"])).await;
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Hello.\nBye.\n", "{}", stderr(&output));
    let played = ended(chat(&fixture, &[], &["--model", "replay:r.jsonl"])).await;
    assert_eq!((&played.stdout, replay_notices(&played, "r.jsonl")), (&output.stdout, 1), "{}", stderr(&played));
}

#[tokio::test(flavor = "multi_thread")]
async fn recordings_are_private_and_without_secrets() {
    let secret = "sk-test-0123456789";
    let fixture = Fixture::new();
    let script: Script = vec![Turn::text(format!("Your key is {secret}."))].into();
    let (_server, variables) = with_model(WireApi::OpenAi, script).await;
    let task = format!("remember {secret}");
    let output = ended(start(&fixture, &variables, &["run", &task, "--policy", "ask", "--record", "r.jsonl"])).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let recording = fixture.read("project/r.jsonl");
    assert!(!recording.contains(secret) && recording.contains("remember [secret]"), "{recording}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(fixture.path("project/r.jsonl")).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

/// The recording that the examples have is played with what is installed here.
#[test]
fn the_example_plays() {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let fixture = Fixture::new();
    let play = |arguments: &[&str]| {
        let output = program(&fixture).current_dir(&root).args(arguments).output().expect("the program runs");
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        assert_eq!(replay_notices(&output, "examples/replay/recorded.jsonl"), 1, "{}", stderr(&output));
        report(&output)
    };
    let model = ["--model", "replay:examples/replay/recorded.jsonl", "--json"];
    let task = ["run", "count the TODOs", "--root", "examples/replay/project", "--tools", "fs__g*", "--policy", "ask"];
    let ran = play(&and(&task, &model));
    assert_eq!(ran["answer"], "There are three TODOs in two files, two of them in main.rs.");
    assert_eq!(play(&and(&["call", "llm__classify", CLASSIFY], &model))["structured"]["selected_index"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unrecorded_call_shows_the_closest_recording() {
    let classified = r#"{"reasoning": "r", "selected_index": 1, "confidence": 0.9}"#;
    let facts = r#"{"facts": [{"key": "birth", "value": "1815", "category": "time"}]}"#;
    let script: Script = [classified, facts, facts, classified].into_iter().map(Turn::text).collect::<Vec<_>>().into();
    let (_server, variables) = with_model(WireApi::OpenAi, script).await;
    let fixture = Fixture::new();
    let text = |text: &str| format!(r#"{{"text": "{text}"}}"#);
    let calls = [
        ("llm__classify", CLASSIFY.to_owned()),
        ("llm__fact-extract", text("Ada was born in 1815.")),
        ("llm__fact-extract", text("Charles was born in 1791.")),
        ("llm__classify", CLASSIFY.replace("money", "password")),
    ];
    for (tool, arguments) in &calls {
        let output = ended(start(&fixture, &variables, &["call", tool, arguments, "--record", "r.jsonl"])).await;
        assert!(output.status.success(), "{}", stderr(&output));
    }
    for (tool, arguments, line) in [
        ("llm__fact-extract", text("Charles was born in 1792."), 3),
        ("llm__fact-extract", text("Ada was born in 1816."), 2),
        ("llm__classify", CLASSIFY.replace("money", "coins"), 1),
        ("llm__classify", CLASSIFY.replace("money", "passport"), 4),
    ] {
        let output = run(&fixture, &["call", tool, &arguments, "--model", "replay:r.jsonl"]);
        let expect = format!("the nearest is on line {line}, ");
        assert!(!output.status.success() && stderr(&output).contains(&expect), "{arguments}: {}", stderr(&output));
    }
}
