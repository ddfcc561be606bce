//! `run` against the scripted model server, in each API.

use std::process::{Child, Output, Stdio};

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Reply, Script, ScriptedModel, Turn, WireApi};

use crate::command_line::cli::{program, stderr};
use crate::support::{Fixture, signal, until};

/// It must never be printed.
const KEY: &str = "sk-test-0123456789";

/// A model that counts the TODOs of a repository and writes a report.
pub(crate) fn todo_script() -> Script {
    vec![
        Turn::text_and_calls(
            "Looking.",
            vec![("fs__grep", json!({"pattern": "TODO"})), ("fs__glob", json!({"pattern": "*.rs"}))],
        )
        .expecting("the task is there", |asked| asked.last_user_text().contains("count the TODOs"))
        .expecting("the tools are shown", |asked| asked.tool_names().iter().any(|name| name == "fs__grep")),
        Turn::calls(vec![("fs__write", json!({"path": "report.md", "content": "a.rs: 2\nb.rs: 1\n"}))])
            .expecting("both results are there", |asked| asked.last_results().len() == 2)
            .expecting("the matches are there", |asked| asked.last_result_text().contains("a.rs")),
        Turn::text("Three TODOs; see report.md."),
    ]
    .into()
}

pub(crate) async fn with_model(api: WireApi, script: Script) -> (ScriptedModel, [(&'static str, String); 3]) {
    let server = ScriptedModel::start(script).await.expect("the scripted model");
    let url = server.base_url(api);
    let variables = match api {
        WireApi::OpenAi => {
            [("OPENAI_BASE_URL", url), ("OPENAI_MODEL", "m".to_owned()), ("OPENAI_API_KEY", KEY.to_owned())]
        }
        WireApi::Anthropic => {
            [("ANTHROPIC_BASE_URL", url), ("ANTHROPIC_MODEL", "m".to_owned()), ("ANTHROPIC_API_KEY", KEY.to_owned())]
        }
        WireApi::Gemini => {
            [("GOOGLE_GEMINI_BASE_URL", url), ("GEMINI_MODEL", "m".to_owned()), ("GEMINI_API_KEY", KEY.to_owned())]
        }
        // No variable of its own: `models.endpoints` names it.
        WireApi::Responses => [("RESPONSES_URL", url), ("UNUSED", String::new()), ("RESPONSES_KEY", KEY.to_owned())],
        WireApi::Ollama => [("OLLAMA_HOST", url), ("OLLAMA_MODEL", "m".to_owned()), ("UNUSED", KEY.to_owned())],
    };
    (server, variables)
}

pub(crate) fn start(fixture: &Fixture, variables: &[(&str, String)], arguments: &[&str]) -> Child {
    let mut command = program(fixture);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
    command.spawn().expect("the program runs")
}

pub(crate) async fn ended(child: Child) -> Output {
    tokio::task::spawn_blocking(|| child.wait_with_output()).await.expect("joins").expect("ends")
}

/// The id that `run` printed when it began.
pub(crate) fn run_id(said: &str) -> String {
    let rest = said.split("--resume ").nth(1).unwrap_or_else(|| panic!("no id in {said:?}"));
    rest.split_whitespace().next().expect("the id").to_owned()
}

pub(crate) fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(output)))
}

/// Names the model in the configuration where no variable of the environment can.
pub(crate) fn configure(fixture: &Fixture, api: WireApi) {
    if api == WireApi::Responses {
        fixture.write(
            "project/toolwright.yaml",
            "models:\n  default: mine/m\n  endpoints:\n    mine: {api: openai_responses, base_url: '${RESPONSES_URL}', \
             api_key: '${RESPONSES_KEY}'}\n",
        );
    }
}

pub(crate) fn repository() -> Fixture {
    let fixture = Fixture::new();
    fixture.write("project/a.rs", "// TODO one\n// TODO two\n");
    fixture.write("project/b.rs", "// TODO three\n");
    fixture
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_task_ends_well_in_every_api() {
    for api in WireApi::ALL {
        let fixture = repository();
        let (server, variables) = with_model(api, todo_script()).await;
        configure(&fixture, api);
        let arguments = ["run", "count the TODOs", "--policy", "workspace", "--json", "--transcript", "t.jsonl"];
        let child = start(&fixture, &variables, &arguments);
        let output = ended(child).await;
        assert!(output.status.success(), "{api:?}: {} {:?}", stderr(&output), server.failures());
        let report: Value = serde_json::from_slice(&output.stdout).expect("json");
        assert_eq!(
            (&report["status"], &report["answer"]),
            (&json!("success"), &json!("Three TODOs; see report.md.")),
            "{api:?}"
        );
        assert_eq!((report["turns"].as_u64(), report["calls"].as_array().map(Vec::len)), (Some(3), Some(3)));
        assert_eq!(report["calls"][2]["tool"], "fs:write@1.0.0");
        assert!(report["usage"]["input_tokens"].is_u64());
        assert_eq!(fixture.read("project/report.md"), "a.rs: 2\nb.rs: 1\n");
        let transcript = fixture.read("project/t.jsonl");
        let types: Vec<Value> =
            transcript.lines().map(|line| serde_json::from_str::<Value>(line).expect("json")["type"].clone()).collect();
        assert!(types.contains(&json!("request")) && types.last() == Some(&json!("report")), "{types:?}");
        let said = stderr(&output);
        assert!(said.contains("→ fs__grep") && said.contains("✓ fs__write"), "{said}");
        assert!(!said.contains(KEY) && !transcript.contains(KEY));
        assert_eq!(server.failures(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_questions_are_denied() {
    let fixture = repository();
    let script: Script = vec![
        Turn::calls(vec![("fs__write", json!({"path": "x", "content": "y"}))]),
        Turn::text("I could not write.")
            .expecting("the denial", |asked| asked.last_result_text().contains("nobody can be asked")),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let output = ended(start(&fixture, &variables, &["run", "write x", "--policy", "ask"])).await;
    assert_eq!((output.status.code(), server.failures()), (Some(1), Vec::new()), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "I could not write.\n");
    assert!(stderr(&output).contains("✗ fs__write") && stderr(&output).contains("--policy"), "{}", stderr(&output));
    assert!(!fixture.path("project/x").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_and_missing_models_exit_differently() {
    let fixture = Fixture::new();
    let (_server, variables) = with_model(WireApi::OpenAi, vec![Turn::error(400, "no such model")].into()).await;
    let output = ended(start(&fixture, &variables, &["run", "x", "--policy", "ask"])).await;
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("no such model"));
    let nothing = [("OLLAMA_HOST", "127.0.0.1:1".to_owned())];
    let output = ended(start(&fixture, &nothing, &["run", "x", "--policy", "ask"])).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("OPENAI_API_KEY") && stderr(&output).contains("ANTHROPIC_API_KEY"),
        "{}",
        stderr(&output)
    );
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn resuming_a_killed_run_repeats_no_call() {
    let fixture = Fixture::new();
    let script: Script = vec![
        Turn::calls(vec![("shell__bash", json!({"command": "echo once >> count"}))]),
        Turn::calls(vec![("shell__bash", json!({"command": "touch waiting; sleep 60"}))]),
        Turn::text("Done.")
            .expecting("the broken-off call says so", |asked| asked.last_result_text().contains("effect")),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let mut child = start(&fixture, &variables, &["run", "x", "--policy", "trusted"]);
    until("the second call runs", || fixture.path("project/waiting").exists());
    child.kill().expect("kill");
    let id = run_id(&stderr(&ended(child).await));
    let output = ended(start(&fixture, &variables, &["run", "--resume", &id, "--policy", "trusted", "--json"])).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert_eq!(fixture.read("project/count"), "once\n");
    let report: Value = serde_json::from_slice(&output.stdout).expect("json");
    assert_eq!(report["answer"], "Done.");
    let unknown = ended(start(&fixture, &variables, &["run", "--resume", "run-none", "--policy", "trusted"])).await;
    assert_eq!(unknown.status.code(), Some(3));
    assert!(stderr(&unknown).contains("run-none"));
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_exits_130_and_resumes() {
    let fixture = Fixture::new();
    let script: Script = vec![
        Turn::calls(vec![("shell__bash", json!({"command": "touch waiting; sleep 60"}))]),
        Turn::text("Went on.")
            .expecting("the call was cancelled", |asked| asked.last_result_text().contains("canceled")),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let child = start(&fixture, &variables, &["run", "x", "--policy", "trusted", "--json"]);
    until("the call runs", || fixture.path("project/waiting").exists());
    signal(child.id(), "INT");
    let output = ended(child).await;
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert_eq!(report(&output)["status"], "cancelled");

    let resume = ["run", "--resume", &run_id(&stderr(&output)), "--policy", "trusted", "--json"];
    let output = ended(start(&fixture, &variables, &resume)).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    let resumed = report(&output);
    assert_eq!((&resumed["answer"], resumed["turns"].as_u64()), (&json!("Went on."), Some(2)));
    let output = ended(start(&fixture, &variables, &resume)).await;
    assert_eq!(report(&output), resumed);
    assert!(stderr(&output).contains("has ended; this is its report") && !stderr(&output).contains("--resume"));
    assert_eq!((server.requests().len(), server.failures()), (2, Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_resumes_after_model_failure() {
    let fixture = Fixture::new();
    let (server, variables) =
        with_model(WireApi::OpenAi, vec![Turn::error(400, "not today"), Turn::text("Went on.")].into()).await;
    let output = ended(start(&fixture, &variables, &["run", "x", "--policy", "ask", "--json"])).await;
    assert_eq!((output.status.code(), &report(&output)["status"]), (Some(1), &json!("failure")));
    let resume = ["run", "--resume", &run_id(&stderr(&output)), "--policy", "ask", "--json"];
    let output = ended(start(&fixture, &variables, &resume)).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert_eq!(report(&output)["answer"], "Went on.");
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_running_run_cannot_be_resumed() {
    use std::io::{BufRead as _, BufReader};
    let fixture = Fixture::new();
    let script: Script = vec![
        Turn::calls(vec![(
            "shell__bash",
            json!({"command": "touch waiting; until test -e go; do sleep 0.05; done; echo once >> count"}),
        )]),
        Turn::text("Done."),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let mut child = start(&fixture, &variables, &["run", "x", "--policy", "trusted", "--json"]);
    let mut said = BufReader::new(child.stderr.take().expect("stderr")).lines().map_while(Result::ok);
    let id = run_id(&said.find(|line| line.contains("--resume ")).expect("the line with the id"));
    until("the call runs", || fixture.path("project/waiting").exists());
    let resume = ["run", "--resume", &id, "--policy", "trusted"];
    let beside = ended(start(&fixture, &variables, &resume)).await;
    assert_eq!(beside.status.code(), Some(1));
    let expect = format!("run `{id}` is being driven by process {}", child.id());
    assert!(stderr(&beside).contains(&expect), "{}", stderr(&beside));
    fixture.write("project/go", "");
    // The pipe is read to its end, so that the run can go on writing.
    let reported: Vec<String> = said.collect();
    let output = ended(child).await;
    assert!(output.status.success(), "{reported:?} {:?}", server.failures());
    assert_eq!((&report(&output)["answer"], fixture.read("project/count").as_str()), (&json!("Done."), "once\n"));
    assert_eq!(server.requests().len(), 2);
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_run_keeps_its_tools() {
    let fixture = Fixture::new();
    let only = |name: &'static str| {
        move |asked: &toolwright_testkit::model_server::RecordedRequest| asked.tool_names() == [name]
    };
    let script: Script = vec![
        Turn::calls(vec![("shell__bash", json!({"command": "touch waiting; sleep 60"}))])
            .expecting("only the shell is shown", only("shell__bash")),
        Turn::calls(vec![("fs__write", json!({"path": "escaped", "content": "x"}))])
            .expecting("still only the shell is shown", only("shell__bash")),
        Turn::text("Done."),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let child = start(&fixture, &variables, &["run", "x", "--policy", "trusted", "--tools", "shell:bash"]);
    until("the call runs", || fixture.path("project/waiting").exists());
    signal(child.id(), "INT");
    let id = run_id(&stderr(&ended(child).await));
    let output = ended(start(&fixture, &variables, &["run", "--resume", &id, "--policy", "trusted"])).await;
    // The call that was refused was the only one that was not cancelled.
    assert_eq!(output.status.code(), Some(1), "{} {:?}", stderr(&output), server.failures());
    assert_eq!((server.requests().len(), server.failures()), (3, Vec::new()));
    assert!(!fixture.path("project/escaped").exists(), "a tool outside its list ran");
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_known_tools_is_not_awaited() {
    let server = toolwright_testkit::bin("misbehaving-mcp");
    let script = format!("if test -e hang; then exec sleep 60; else exec {}; fi", server.display());
    let fixture = Fixture::with(&format!("mcpServers:\n  odd:\n    command: sh\n    args: [-c, {}]\n", json!(script)));
    let listed = crate::command_line::cli::run(&fixture, &["tools", "ls"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("odd__echo"), "{}", stderr(&listed));
    fixture.write("project/hang", "");
    let script = vec![
        Turn::text("Done.")
            .expecting("its tools are shown", |asked| asked.tool_names().iter().any(|n| n == "odd__echo")),
    ];
    let (model, variables) = with_model(WireApi::OpenAi, script.into()).await;
    let output = ended(start(&fixture, &variables, &["run", "x", "--policy", "trusted"])).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), model.failures());
    assert!(!stderr(&output).contains("still starting"), "{}", stderr(&output));
}

#[test]
fn a_hanging_server_is_named_and_limited() {
    let fixture = Fixture::with("mcpServers:\n  stuck:\n    command: sleep\n    args: [60]\n");
    let mut run = program(&fixture);
    run.env("OPENAI_BASE_URL", "http://127.0.0.1:1/v1").env("OPENAI_MODEL", "m").env("OPENAI_API_KEY", "k");
    let started = std::time::Instant::now();
    let output = run.args(["run", "x", "--policy", "ask", "--max-time", "1s"]).output().expect("runs");
    let said = stderr(&output);
    assert!(said.contains("stuck: still starting after 5s; its tools are missing"), "{said}");
    assert!(started.elapsed().as_secs() < 30, "{said}");
}

#[test]
fn resume_refuses_options_fixed_at_start() {
    let fixture = Fixture::new();
    for (flag, value) in [
        ("--model", "openai/m"),
        ("--effort", "low"),
        ("--system", "be rude"),
        ("--tools", "*"),
        ("--dispatch", "streaming"),
        ("--window", "1000"),
        ("--max-turns", "3"),
        ("--max-calls", "3"),
        ("--max-time", "1m"),
        ("--max-tokens", "3"),
    ] {
        let output = program(&fixture).args(["run", "--resume", "run-1", flag, value]).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{flag}");
        let said = stderr(&output);
        assert!(
            said.contains("--resume <ID>") && said.contains("cannot be used with") && said.contains(flag),
            "{said}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_keeps_the_conversation() {
    use std::io::Write as _;
    let fixture = Fixture::new();
    let (server, variables) = with_model(WireApi::Anthropic, Script::echo()).await;
    let mut command = program(&fixture);
    command.args(["chat", "--policy", "ask"]).envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn");
    child.stdin.take().expect("stdin").write_all(b"first\nsecond\n/exit\n").expect("write");
    let output = ended(child).await;
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "first\nsecond\n");
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_exits_with_its_last_status() {
    use std::io::Write as _;
    for (script, code) in [
        (vec![Turn::text("one"), Turn::error(400, "not today")], 1),
        (vec![Turn::error(400, "not today"), Turn::text("two")], 0),
    ] {
        let fixture = Fixture::new();
        let (_server, variables) = with_model(WireApi::OpenAi, script.into()).await;
        let mut command = program(&fixture);
        command.args(["chat", "--policy", "ask", "--json"]);
        command.envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("spawn");
        child.stdin.take().expect("stdin").write_all(b"first\nsecond\n").expect("write");
        let output = ended(child).await;
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        let reports = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
        assert_eq!(reports.filter(|report| report.as_ref().expect("json")["status"].is_string()).count(), 2);
    }
}

#[tokio::test]
async fn retries_are_traced_attempt_by_attempt() {
    let fixture = Fixture::with(
        "models:\n  \"openai/m\": { queue: { concurrent: 1 }, retry: { attempts: 2 }, prices: { input: 1, output: 1 } }\n",
    );
    let busy = || Reply::Error { status: 429, code: String::new(), message: "slow down".into(), retry_after: Some(0) };
    let script = vec![busy().into(), Turn::text("Done."), busy().into(), busy().into()];
    let (model, variables) = with_model(WireApi::OpenAi, script.into()).await;
    let run = ["run", "wait for it", "--policy", "ask", "--json"];
    let output = ended(start(&fixture, &variables, &run)).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let output = ended(start(&fixture, &variables, &["trace", "last", "--json"])).await;
    let trace: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let ops = trace["turns"].as_array().expect("turns").iter().flat_map(|turn| turn["ops"].as_array().expect("ops"));
    let rows: Vec<_> = ops.map(|op| json!([op["kind"], op["status"], op["attempts"]])).collect();
    assert_eq!(rows, [json!(["model", "rate_limit", 1]), json!(["model", "ok", 2])], "{trace}");
    assert_eq!(trace["totals"]["usage"]["input_tokens"].as_u64(), Some(10), "{trace}");

    let output = ended(start(&fixture, &variables, &run)).await;
    assert!(!output.status.success() && stderr(&output).contains("slow down"), "{}", stderr(&output));
    assert_eq!(model.requests().len(), 4, "two attempts a request, as is configured");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_failed_calls_is_partial() {
    // What is called, and what is said of it.
    for (tool, arguments, why) in [
        ("fs__read", json!({"path": "missing.txt"}), "no call succeeded: 1 failed"),
        ("fs__write", json!({"path": "b.txt", "content": "x"}), "no call succeeded: 1 denied"),
    ] {
        for json in [false, true] {
            let fixture = Fixture::new();
            let script = vec![Turn::calls(vec![(tool, arguments.clone())]), Turn::text("It is done.")].into();
            let (_server, variables) = with_model(WireApi::OpenAi, script).await;
            let arguments = ["run", "do it", "--policy", "ask", "--json"];
            let output = ended(start(&fixture, &variables, &arguments[..if json { 5 } else { 4 }])).await;
            assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
            if json {
                let report = report(&output);
                assert_eq!((&report["status"], &report["reason"]), (&json!("partial"), &json!(why)), "{report}");
                assert_eq!(report["answer"], "It is done.");
            } else {
                assert!(stderr(&output).contains(&format!("partial: {why} (")), "{}", stderr(&output));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_is_one_short_sentence() {
    let fixture = Fixture::new();
    let short = |text: &str| text.len() < 110 && !text.contains("--policy") && !text.contains('\n');
    let script = vec![
        Turn::calls(vec![("fs__write", json!({"path": "b.txt", "content": "x"}))]),
        Turn::text("No.").expecting("a short denial", move |asked| short(&asked.last_result_text())),
    ];
    let (server, variables) = with_model(WireApi::OpenAi, script.into()).await;
    let output = ended(start(&fixture, &variables, &["run", "write it", "--policy", "ask"])).await;
    assert_eq!(server.failures(), Vec::<String>::new());
    // The operator is told what helps.
    assert!(stderr(&output).contains("--ask inbox"), "{}", stderr(&output));
}

#[test]
fn an_unusable_model_is_reported_once() {
    // Nobody listens there: the port was taken, and is free again.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("a port").port();
    let fixture = Fixture::with("models: {openai: {retry: {attempts: 1}}, ollama: {retry: {attempts: 1}}}\n");
    for (variables, model, remedy) in [
        ([("OPENAI_BASE_URL", format!("http://127.0.0.1:{port}/v1"))], "openai/m", "OPENAI_BASE_URL"),
        ([("OLLAMA_HOST", format!("127.0.0.1:{port}"))], "ollama/m", "ollama serve"),
    ] {
        let child = start(&fixture, &variables, &["run", "x", "--policy", "ask", "--model", model]);
        let output = child.wait_with_output().expect("ends");
        let said = stderr(&output);
        assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]), "{said}");
        assert_eq!(said.matches("cannot be reached").count(), 1, "{said}");
        assert!(said.contains(remedy), "{said}");
    }
}
