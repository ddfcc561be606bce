//! `bench`, through the program, over scripted models.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright::Toolwright;
use toolwright::config::LoadOptions;
use toolwright_eval::bench::shipped_cases;
use toolwright_testkit::model_server::{RecordedRequest, Reply, Script, ScriptedModel, Turn, WireApi};

use crate::agents::agent::{configure, ended, report, start, with_model};
use crate::command_line::cli::{ok, program, run, stderr};
use crate::support::{Fixture, signal, until};

/// Cases of one tool; the right answer stands in the request.
pub(crate) fn cases(count: usize, more: &str) -> String {
    let mut text = "tool: llm:classify\ncases:\n".to_owned();
    for index in 0..count {
        let right = index % 3;
        text.push_str(&format!(
            "  - id: c{index}\n    input: {{request: 'case {index}: wants {right}', suggestions: [a, b, c]}}\n    checks:\n      \
             - exact: {{path: /selected_index, equals: {right}}}\n{more}"
        ));
    }
    text
}

pub(crate) const RUBRIC: &str = "      - rubric: {path: /reasoning, task: give a reason, criteria: [sense], min: 50}\n";

pub(crate) fn classified(index: u64) -> Reply {
    Reply::text(json!({"reasoning": "r", "selected_index": index, "confidence": 0.9}).to_string())
}

/// `good` is right, `bad` always says 0, `broken` writes no JSON, `down` and `locked` do not answer; who is asked to judge
/// gives 80.
pub(crate) fn answer(asked: &RecordedRequest) -> Reply {
    let said = asked.last_user_text();
    let right = said.split("wants ").nth(1).and_then(|rest| rest[..1].parse().ok()).unwrap_or(0);
    match asked.model() {
        model if model.ends_with("bad") => classified(0),
        model if model.ends_with("broken") => Reply::text("I would rather not."),
        model if model.ends_with("down") => Reply::error(503, "come back later"),
        model if model.ends_with("locked") => Reply::error(401, "no such key"),
        _ if said.contains("<answer>") => {
            Reply::text(json!({"feedback": "f", "breakdown": {"sense": 80}, "score": 80}).to_string())
        }
        _ => classified(right),
    }
}

pub(crate) fn script() -> Script {
    Script::from(vec![Turn::computed(answer)]).repeating()
}

/// A project whose models cost something; requests that fail are not made again.
pub(crate) const PRICED: &str = "models:\n  openai: {prices: {input: 100000, output: 0}, retry: {attempts: 1}}\n  openai/dear: {prices: \
                      {input: 300000, output: 0}}\n  openai/judge: {prices: {input: 50000, output: 0}}\n";

pub(crate) struct BenchFixture {
    pub(crate) fixture: Fixture,
    pub(crate) server: ScriptedModel,
    pub(crate) variables: [(&'static str, String); 3],
}

impl BenchFixture {
    pub(crate) async fn new(config: &str, script: Script, cases: &str) -> Self {
        let (server, variables) = with_model(WireApi::OpenAi, script).await;
        let fixture = Fixture::with(config);
        fixture.write("project/cases.yaml", cases);
        Self { fixture, server, variables }
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        let arguments = [&["bench", "--cases", "cases.yaml"], arguments].concat();
        ended(start(&self.fixture, &self.variables, &arguments)).await
    }

    pub(crate) async fn rows(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.run(&[&["--json", "--full"], arguments].concat()).await;
        assert!(output.status.success(), "{}", stderr(&output));
        report(&output).as_array().expect("rows").clone()
    }

    pub(crate) fn asked(&self, model: &str) -> usize {
        self.server.requests().iter().filter(|request| request.body["model"] == model).count()
    }

    /// The one file of measurements.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        let folder = self.fixture.path("home/.local/state/toolwright/bench");
        let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.find(|path| path.extension().is_some_and(|end| end == "jsonl"))
    }

    /// Its lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = self.file().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn of<'r>(rows: &'r [Value], model: &str) -> &'r Value {
    rows.iter().find(|row| row["model"] == model).unwrap_or_else(|| panic!("no {model} in {rows:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_measured_over_every_api() {
    for api in WireApi::ALL {
        let (_server, variables) = with_model(api, script()).await;
        let fixture = Fixture::new();
        configure(&fixture, api);
        fixture.write("project/cases.yaml", &cases(3, ""));
        let provider = match api {
            WireApi::OpenAi => "openai",
            WireApi::Anthropic => "anthropic",
            WireApi::Gemini => "gemini",
            WireApi::Responses => "mine",
            WireApi::Ollama => "ollama",
        };
        let models = format!("{provider}/bad,{provider}/good");
        let arguments = ["bench", "--cases", "cases.yaml", "--models", &models, "--json"];
        let output = ended(start(&fixture, &variables, &arguments)).await;
        assert!(output.status.success(), "{api:?}: {}", stderr(&output));
        let rows = report(&output);
        let found: Vec<(&Value, &Value)> =
            rows.as_array().expect("rows").iter().map(|row| (&row["model"], &row["score"])).collect();
        let (good, bad) = (json!(format!("{provider}/good")), json!(format!("{provider}/bad")));
        assert_eq!(found, [(&good, &json!(100.0)), (&bad, &json!(33.33))], "{api:?}");
        let members: Vec<&str> = rows[0].as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(members, ["tool", "model", "score", "cost", "latency_ms"]);
        assert_eq!(rows[0]["tool"], "llm:classify@1.0.0");
        // A server on this machine without a key costs nothing; of others nothing is known.
        assert_eq!(rows[0]["cost"], if api == WireApi::Ollama { json!(0.0) } else { Value::Null }, "{api:?}");
        assert!(rows[0]["latency_ms"].as_f64() > Some(0.0), "{api:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_bench_continues_to_equal_report() {
    let slow = || Script::from(vec![Turn::computed(answer).with_delay(Duration::from_millis(40))]).repeating();
    let models = ["--models", "openai/good,openai/bad", "--repeat", "2", "--no-compat"];
    let whole = BenchFixture::new(PRICED, script(), &cases(5, "")).await;
    let expect = whole.rows(&[&models[..], &["--max-cost", "10000"]].concat()).await;

    let setup = BenchFixture::new(PRICED, slow(), &cases(5, "")).await;
    let arguments =
        [&["bench", "--cases", "cases.yaml", "--concurrency", "2", "--max-cost", "10000", "--json"], &models[..]]
            .concat();
    let mut child = start(&setup.fixture, &setup.variables, &arguments);
    until("some calls are measured", || setup.lines().len() > 4);
    child.kill().expect("SIGKILL");
    child.wait().expect("ends");
    let before = setup.lines().len() - 1;
    assert!(before < 20, "it was killed too late");
    let file = setup.file().expect("the file");
    let mut torn = std::fs::read(&file).expect("lines");
    torn.extend(b"{\"key\":\"0123\",\"tool\":\"llm:cl");
    std::fs::write(&file, torn).expect("torn");
    let got = setup.rows(&[&models[..], &["--max-cost", "10000"]].concat()).await;
    // How long a call took is not the same twice.
    let untimed = |rows: &[Value]| {
        let mut rows = rows.to_vec();
        for row in &mut rows {
            for key in ["latency_ms", "p50_ms", "p95_ms"] {
                row[key] = Value::Null;
            }
        }
        rows
    };
    assert_eq!(untimed(&got), untimed(&expect));
    let made = setup.server.requests().len();
    assert!((20..=22).contains(&made), "{made} requests for 20 calls of which 2 at most were under way");
    let again = setup.rows(&[&models[..], &["--max-cost", "10000"]].concat()).await;
    assert_eq!((again, setup.server.requests().len()), (got, made), "what was measured is not measured again");
    setup.rows(&[&models[..], &["--max-cost", "10000", "--fresh"]].concat()).await;
    assert_eq!(setup.server.requests().len(), made + 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_stays_within_its_cost_limit() {
    let setup = BenchFixture::new(PRICED, script(), &cases(90, "")).await;
    // A call costs a dollar; the room for it is that of its prompt, some tens of dollars.
    let capped = ["--models", "openai/good", "--json", "--full", "--max-cost"];
    let output = setup.run(&[&capped[..], &["90"]].concat()).await;
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("the bound is reached"), "{}", stderr(&output));
    let row = &report(&output)[0];
    let (done, cost) = (row["done"].as_u64().expect("a count"), row["cost"].as_f64().expect("a cost"));
    assert!(done > 0 && done < 90 && cost <= 90.0, "{row}");
    assert_eq!((setup.asked("good") as u64, row["partial"] == true), (done, true));
    let output = setup.run(&[&capped[..], &["90"]].concat()).await;
    assert_eq!((output.status.code(), setup.asked("good") as u64), (Some(1), done), "it counts what was spent before");
    let output = setup.run(&[&capped[..], &["1000"]].concat()).await;
    assert_eq!((output.status.code(), setup.asked("good")), (Some(0), 90), "{}", stderr(&output));

    let setup = BenchFixture::new("models: {openai: {retry: {attempts: 1}}}\n", script(), &cases(9, "")).await;
    let output = setup.run(&["--models", "openai/good", "--max-cost", "1"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("the price of openai/good is not known"), "{}", stderr(&output));
    let output = setup.run(&["--models", "openai/good", "--max-requests", "4"]).await;
    // A call may take more requests than one, where the API refuses the form of the first.
    assert_eq!((output.status.code(), setup.asked("good")), (Some(1), 4), "{}", stderr(&output));
    assert!(stderr(&output).contains("4 of 4 requests are made, and a call takes 1 at least"), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_judge_is_separate_and_costed_apart() {
    let config = PRICED.replace("models:\n", "models:\n  default: openai/good\n");
    let setup = BenchFixture::new(&config, script(), &cases(2, RUBRIC)).await;
    let output = setup.run(&["--models", "openai/good", "--max-cost", "1000"]).await;
    assert!(output.status.success() && stderr(&output).contains("2 rubrics are left out"), "{}", stderr(&output));
    let output = setup.run(&["--models", "openai/good,openai/judge", "--judge", "openai/judge"]).await;
    assert_eq!((output.status.code(), setup.asked("judge")), (Some(2), 0));
    assert!(stderr(&output).contains("--self-judge"), "{}", stderr(&output));
    let rows = setup.rows(&["--models", "openai/good", "--judge", "openai/judge", "--max-cost", "1000"]).await;
    let row = &rows[0];
    assert_eq!((&row["score"], &row["judge"]), (&json!(90.0), &json!("openai/judge")), "right, and 80 of 100");
    assert_eq!((&row["cost"], &row["judge_cost"]), (&json!(2.0), &json!(1.0)));
    assert_eq!(setup.asked("judge"), 2);
    let rows = setup.rows(&["--models", "openai/good", "--self-judge", "--max-cost", "1000"]).await;
    assert_eq!((&rows[0]["judge"], &rows[0]["judge_cost"]), (&json!("openai/good"), &json!(2.0)));

    // A judge that does not answer says nothing of the model.
    let output = setup
        .run(&["--models", "openai/good", "--judge", "openai/down", "--max-cost", "1000", "--json", "--full"])
        .await;
    let row = &report(&output)[0];
    assert_eq!((output.status.code(), &row["done"], &row["score"]), (Some(1), &json!(0), &Value::Null));
    assert!(stderr(&output).contains("the judge openai/down gave no score"), "{}", stderr(&output));
}

/// The cases that stand in the documentation are cases.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_the_documentation_is_measured() {
    let text = include_str!("../../../../../docs/bench.md");
    let (_, rest) = text.split_once("## Cases").expect("a section of cases");
    let (_, rest) = rest.split_once("```yaml\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    let judge = |asked: &RecordedRequest| match asked.last_user_text().contains("<answer>") {
        true => Reply::text(r#"{"feedback": "f", "breakdown": {"accuracy": 80}, "score": 80}"#),
        false => answer(asked),
    };
    let setup = BenchFixture::new(PRICED, Script::from(vec![Turn::computed(judge)]).repeating(), example).await;
    let arguments = ["--models", "openai/good", "--judge", "openai/judge", "--max-cost", "100000", "--json", "--full"];
    let output = setup.run(&arguments).await;
    let row = &report(&output)[0];
    assert_eq!((output.status.code(), &row["done"]), (Some(0), &json!(3)), "{row} {}", stderr(&output));
    assert_eq!(setup.asked("judge"), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_suite_have_a_place() {
    let check = async |text: &str, code: i32, expect: &str| {
        let setup = BenchFixture::new("", script(), text).await;
        let output = setup.run(&["--models", "openai/good"]).await;
        assert!(output.status.code() == Some(code) && stderr(&output).contains(expect), "{text}: {}", stderr(&output));
        assert_eq!(setup.server.requests().len(), 0);
    };
    let case = "cases:\n  - input: {request: r, suggestions: [a, b]}\n";
    let summarize = "cases:\n  - input: {content: c}\n    mode: loud\n";
    check(
        &format!("tool: llm:classify\nmode: strict\n{case}"),
        2,
        "cases.yaml:2: mode: llm:classify@1.0.0 has no modes; leave it out",
    )
    .await;
    check(
        &format!("tool: llm:summarize\n\n{summarize}"),
        2,
        "cases.yaml:5: cases[0].mode: llm:summarize@1.0.0 has no mode `loud`; its modes: strict, balanced; write one of",
    )
    .await;
    check(&format!("repeat: 1\ntool: fs:read\n{case}"), 2, "cases.yaml:2: tool: fs:read@1.0.0 asks no model; ").await;
    check(&format!("repeat: 1\ntool: llm:clasify\n{case}"), 3, "cases.yaml:2: tool: no tool is called `llm:clasify`")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreached_models_are_not_measured() {
    let setup = BenchFixture::new(PRICED, script(), &cases(6, "")).await;
    let models = "openai/good,openai/broken,openai/down,openai/locked";
    let output = setup.run(&["--models", models, "--json", "--full", "--max-cost", "1000", "--concurrency", "1"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let rows = report(&output);
    let rows = rows.as_array().expect("rows");
    let figures = |model: &str| {
        let row = of(rows, model);
        (row["score"].clone(), row["done"].clone(), row["failed"].clone())
    };
    assert_eq!(figures("openai/good"), (json!(100.0), json!(6), json!(0)));
    assert_eq!(figures("openai/broken"), (json!(0.0), json!(6), json!(6)), "no valid result is the model's failure");
    assert_eq!(figures("openai/down"), (Value::Null, json!(0), json!(0)));
    assert_eq!(figures("openai/locked"), (Value::Null, json!(0), json!(0)));
    assert_eq!((setup.asked("down"), setup.asked("locked")), (5, 1), "a refused key is refused each time");
    assert!(of(rows, "openai/down")["missing"].as_str().is_some_and(|why| why.contains("come back later")));
    assert!(stderr(&output).contains("openai/locked is not asked any more"), "{}", stderr(&output));
    let made = setup.asked("good");
    setup.run(&["--models", models, "--max-cost", "1000", "--concurrency", "1"]).await;
    assert_eq!((setup.asked("good"), setup.asked("locked")), (made, 2), "only these are tried again");
}

#[tokio::test(flavor = "multi_thread")]
async fn earlier_measurements_decide_which_models_run() {
    let setup = BenchFixture::new(PRICED, script(), &cases(3, "")).await;
    let models = ["--models", "openai/dear,openai/good,openai/bad", "--max-cost", "10000"];
    let html = setup.fixture.path("project/out/page.html");
    let output =
        setup.run(&[&models[..], &["--html", "out/page.html", "--compat", "toolwright-compat.json"]].concat()).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.lines().count() == 4 && table.contains("openai/dear"), "{table}");
    let page = std::fs::read_to_string(html).expect("the page");
    assert!(page.contains("<svg") && page.contains("openai/dear"));
    let compat: Value = serde_json::from_str(&setup.fixture.read("project/toolwright-compat.json")).expect("json");
    let found = &compat["llm:classify@1.0.0"];
    assert_eq!(found["recommended"], json!(["openai/good", "openai/dear"]), "cheapest first: {compat}");
    assert_eq!(found["scores"]["openai/bad"], json!(0.333));

    let listed = |model: &str, score: &str| {
        let mut command = program(&setup.fixture);
        command.args(["tools", "ls", "--json", "--model", model, "--min-score", score]);
        let output = command.envs(setup.variables.iter().map(|(name, value)| (*name, value))).output().expect("runs");
        let tools: Vec<Value> =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
        tools.iter().map(|tool| (tool["wire_name"].clone(), tool["score"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(listed("openai/good", "0.9"), [(json!("llm__classify"), json!(1.0))]);
    assert_eq!(listed("openai/bad", "0.3"), [(json!("llm__classify"), json!(0.333))]);
    assert_eq!((listed("openai/bad", "0.9").len(), listed("openai/other", "0").len()), (0, 0));

    let arguments = r#"{"request": "wants 1", "suggestions": ["a", "b"]}"#;
    let called = ended(start(&setup.fixture, &setup.variables, &["call", "llm__classify", arguments, "--json"])).await;
    assert_eq!(report(&called)["extras"]["model"], "openai/good", "{}", stderr(&called));

    let read =
        ended(start(&setup.fixture, &setup.variables, &["bench", "--compat", "toolwright-compat.json", "--json"]))
            .await;
    let rows = report(&read);
    let shown: Vec<(&Value, &Value, &Value)> =
        rows.as_array().expect("rows").iter().map(|row| (&row["model"], &row["score"], &row["cost"])).collect();
    assert_eq!(shown[2], (&json!("openai/bad"), &json!(33.3), &json!(3.0)), "{rows}");

    // A later run of another model adds to what is there, and what it says counts without a restart.
    let options = LoadOptions {
        cwd: setup.fixture.project(),
        state_dir: Some(setup.fixture.path("state")),
        ..LoadOptions::default()
    };
    let app = Toolwright::open(options, setup.fixture.load(), Box::new(|_| None)).await.expect("opens");
    let fit = |app: &Toolwright| app.models_for("llm:classify@1.0.0", 0.8);
    assert_eq!(fit(&app), ["openai/good", "openai/dear"]);
    let output =
        setup.run(&["--models", "openai/judge", "--max-cost", "10000", "--compat", "toolwright-compat.json"]).await;
    assert!(output.status.success(), "{}", stderr(&output));
    app.reload().await.expect("reloads");
    assert_eq!(fit(&app), ["openai/judge", "openai/good", "openai/dear"]);
    setup.fixture.write(
        "project/toolwright.yaml",
        &format!("{PRICED}  openai/mine: {{tool_compat: {{'llm:classify@1.0.0': 0.85}}}}\n"),
    );
    let reloaded = app.reload().await.expect("reloads");
    assert!(reloaded.needs_restart.is_empty() && reloaded.problems.is_empty(), "{reloaded:?}");
    assert_eq!(fit(&app).last().map(String::as_str), Some("openai/mine"));
    setup.fixture.write("project/toolwright-compat.json", "{");
    let reloaded = app.reload().await.expect("reloads");
    assert!(reloaded.problems.iter().any(|problem| problem.message.contains("no compat file")), "{reloaded:?}");
    assert_eq!(fit(&app), ["openai/mine"]);
    app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_bench_reports_partially() {
    let slow = Script::from(vec![Turn::computed(answer).with_delay(Duration::from_millis(100))]).repeating();
    let setup = BenchFixture::new(PRICED, slow, &cases(40, "")).await;
    let arguments = [
        "bench",
        "--cases",
        "cases.yaml",
        "--models",
        "openai/good",
        "--max-cost",
        "10000",
        "--concurrency",
        "2",
        "--json",
    ];
    let child = start(&setup.fixture, &setup.variables, &arguments);
    until("some calls are measured", || setup.lines().len() > 3);
    signal(child.id(), "INT");
    let output = ended(child).await;
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("finishing what runs") && said.contains("partial: it was stopped"), "{said}");
    assert_eq!(report(&output)[0]["score"], 100.0);
    let (lines, made) = (setup.lines().len() - 1, setup.server.requests().len());
    assert_eq!(lines, made, "what ran was finished and counted");
    assert!(
        !setup.fixture.path("home/.local/state/toolwright/models/compat.json").exists(),
        "half a measurement recommends nobody"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_errors_precede_model_requests() {
    let setup = BenchFixture::new("", script(), &cases(1, "")).await;
    let check = |cases: &str, arguments: &[&str], code: i32, expect: &str| {
        setup.fixture.write("project/odd.yaml", cases);
        let mut command = program(&setup.fixture);
        command.args([&["bench", "--cases", "odd.yaml"], arguments].concat());
        let output = command.envs(setup.variables.iter().map(|(name, value)| (*name, value))).output().expect("runs");
        assert_eq!(output.status.code(), Some(code), "{cases} {arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expect), "{cases} {arguments:?}: {}", stderr(&output));
    };
    let one = |tool: &str, input: &str| format!("tool: {tool}\ncases:\n  - input: {input}\n");
    check("tool: llm:classify\ncases: 3\n", &[], 2, "odd.yaml:2");
    check(&one("llm:nothing", "{}"), &[], 3, "odd.yaml:1: ");
    check(&one("fs__read", "{path: a}"), &[], 2, "fs:read@1.0.0 asks no model");
    check(&one("llm:classify", "{request: x}"), &[], 2, "odd.yaml:3: cases[0].input: the input of case");
    check(
        "tool: llm:classify\nmode: loud\ncases:\n  - input: {request: x, suggestions: [a]}\n",
        &[],
        2,
        "odd.yaml:2: mode: llm:classify@1.0.0 has no modes",
    );
    let good = one("llm:classify", "{request: x, suggestions: [a]}");
    setup.fixture.write("project/second.yaml", "tool: llm:classify\ncases: 4\n");
    check("tool: llm:classify\ncases: 3\n", &["--cases", "second.yaml"], 2, "second.yaml:2");
    check(&one("llm:classify", "{request: x}"), &[], 2, "cases[0].input: the input of case");
    check(&good, &["--html", "./odd.yaml"], 2, "--cases and --html are both ./odd.yaml");
    check(&good, &["--out", "x.html", "--html", "../project/x.html"], 2, "--out and --html are both");
    check(&good, &["--models", "nowhere/x,openai"], 2, "nowhere/x cannot be asked");
    check(&good, &["--tools", "llm:s*"], 2, "there is nothing to measure");
    check(&good, &["--max-cost", "much"], 2, "US dollars");
    setup.fixture.write("project/notes.txt", "mine\n");
    check(&good, &["--models", "openai/good", "--out", "notes.txt", "--fresh"], 2, "no file of measurements");
    assert_eq!((setup.fixture.read("project/notes.txt").as_str(), setup.server.requests().len()), ("mine\n", 0));
}

/// The least that a schema takes.
fn filled(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].get(0).or_else(|| schema["anyOf"].get(0).filter(|_| schema["type"].is_null())) {
        return if first.is_object() { filled(first) } else { first.clone() };
    }
    match schema["type"].as_str().or_else(|| schema["type"][0].as_str()) {
        Some("object") => {
            let members = schema["properties"].as_object().into_iter().flatten();
            members.map(|(name, schema)| (name.clone(), filled(schema))).collect::<serde_json::Map<_, _>>().into()
        }
        Some("array") => json!([]),
        Some("number" | "integer") => schema["minimum"].as_f64().map_or_else(|| json!(0), |least| json!(least as i64)),
        Some("boolean") => json!(false),
        _ => json!("some text"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_cases_run_as_they_are() {
    let answer = |asked: &RecordedRequest| {
        Reply::text(filled(&asked.body["response_format"]["json_schema"]["schema"]).to_string())
    };
    let setup = BenchFixture::new("", Script::from(vec![Turn::computed(answer)]).repeating(), "").await;
    let models = ["bench", "--models", "openai/good", "--judge", "openai/judge", "--max-requests", "10000"];
    let arguments = [&models[..], &["--json", "--full", "--no-compat"]].concat();
    let output = ended(start(&setup.fixture, &setup.variables, &arguments)).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let suites = shipped_cases().expect("cases");
    let cases: usize = suites.iter().map(|suite| suite.cases.len()).sum();
    let rows = report(&output);
    let rows = rows.as_array().expect("rows");
    assert_eq!(rows.len(), 6, "{rows:?}");
    for row in rows {
        assert!(row["score"].is_number() && row["done"] == row["calls"] && row["done"].as_u64() >= Some(12), "{row}");
    }
    let lines = setup.lines();
    assert_eq!((lines[0].as_str(), lines.len() - 1), ("{\"bench\":1}", cases));
    for line in &lines[1..] {
        let line: Value = serde_json::from_str(line).expect("json");
        assert!(line["score"].is_number() && line["done"] == true, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_recording_needs_no_slash() {
    let setup = BenchFixture::new("", script(), &cases(1, "")).await;
    let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/replay/recorded.jsonl");
    setup.fixture.write("project/rec.jsonl", &std::fs::read_to_string(recorded).expect("a recording"));
    for model in ["replay:rec.jsonl", "replay:./rec.jsonl"] {
        let output = setup.run(&["--models", model]).await;
        let said = stderr(&output);
        // What is asked is not in it, which the measurement finds.
        assert!(output.status.code() != Some(2) && !said.contains("cannot be asked"), "{model}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_other_settings_is_remeasured() {
    let setup = BenchFixture::new("", script(), &cases(2, "")).await;
    let models = ["--models", "openai/good", "--max-requests", "1000"];
    for (config, asked) in [
        ("", 2),
        ("models: {openai/good: {timeouts: {answer: 30m}}}\n", 2),
        ("models: {openai/good: {top_p: 0.5}}\n", 4),
        ("models: {openai/good: {effort: low}}\n", 6),
        ("", 6),
    ] {
        setup.fixture.write("project/toolwright.yaml", config);
        let output = setup.run(&models).await;
        assert_eq!((output.status.code(), setup.asked("good")), (Some(0), asked), "{config}: {}", stderr(&output));
    }
}

#[test]
fn configuration_and_doctor_describe_measured_models() {
    let old = json!({"llm:classify@1.0.0": {
        "recommended": ["p/m"], "scores": {"p/m": 1.0}, "measured": {"p/m": {"calls": 1, "latency_ms": 1, "contract": "old"}},
    }});
    let text = "llm: {compat: measured.json}\nmodels:\n  p/m: {tool_compat: {'llm:score@1.0.0': 0.5}}\n";
    let fixture = Fixture::with(text);
    fixture.write("project/measured.json", &old.to_string());
    let said = String::from_utf8_lossy(&run(&fixture, &["doctor"]).stdout).into_owned();
    assert!(said.contains("llm:classify@1.0.0 has changed since p/m was measured"), "{said}");
    let listed = |endpoint: &str| {
        fixture.write("project/toolwright.yaml", &format!("llm: {{compat: measured.json}}\nmodels:\n{endpoint}"));
        ok(&fixture, &["tools", "ls"]).contains("llm__classify")
    };
    let known = "  endpoints: {p: {api: ollama, base_url: 'http://127.0.0.1:1'}}\n";
    assert_eq!(
        [listed(known), listed("  default: nowhere/x\n")],
        [true, false],
        "where a recommended model can be asked"
    );
    fixture.write("project/toolwright.yaml", text);
    let config = fixture.load();
    assert_eq!(config.compat.compat.recommended("llm:classify@1.0.0"), ["p/m"]);
    assert_eq!(config.compat.compat.score("p/m", "llm:score@1.0.0"), Some(0.5));
    for (wrong, expect) in [
        ("p: {tool_compat: {'llm:score@1.0.0': 0.5}}", "`p` is no model but a provider"),
        ("p/m: {tool_compat: {score: 0.5}}", "`score` is no tool id"),
        ("p/m: {tool_compat: {'llm:score@1.0.0': 95}}", "95 is not within 0 and 1"),
    ] {
        let config = Fixture::with(&format!("models:\n  {wrong}\n")).load();
        let problems: Vec<String> = config.problems.iter().map(ToString::to_string).collect();
        assert!(problems.iter().any(|problem| problem.contains(expect)), "{wrong}: {problems:?}");
        assert!(config.is_unusable(), "{wrong}");
    }
}
