//! Secrets of every source planted in real flows: no sink has them, and whoever is to have them does.
//!
//! What must hold real values is not looked at: results on the standard output of `call`, and what lets a run or a job
//! go on after a crash (the tables `runs`, `run_calls`, `responses`, and plans of jobs; readable by the user alone).

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Turn, WireApi};

use crate::agents::agent::{ended, run_id, start, with_model};
use crate::command_line::cli::{program, stderr};
use crate::serving::gateway::Gateway;
use crate::support::{Fixture, until};

/// From a variable, in a header.
const HEADER: &str = "hdr-7f3a9c51e2";
/// From a variable, in a query.
const QUERY: &str = "qry 5d/81+b0c4";
/// The same as an address has it.
const QUERY_ENCODED: &str = "qry%205d%2F81%2Bb0c4";
/// The argument of a parameter with `format: password`.
const PASSWORD: &str = "corr\"ect-horse";
/// An argument of a parameter with `writeOnly: true`, too short to be known anywhere else.
const PIN: &str = "4711";
/// What a tool says, of a shape that is known.
const SHAPED: &str = "ghp_0123456789abcdefghijABCDEFGHIJ456789";
/// The model's key.
const KEY: &str = "sk-test-0123456789";

const CONFIG: &str = "\
rest_tools:
  login:
    description: Logs in.
    url: '${BASE}/login'
    method: POST
    headers: {X-Token: '${HEADER_TOKEN}'}
    query: {key: '${QUERY_KEY}'}
    body: {user: '${parameters.user}', password: '${parameters.password}', pin: '${parameters.pin}'}
    allow_private: true
    parameters:
      type: object
      properties:
        user: {type: string}
        password: {type: string, format: password}
        pin: {type: string, writeOnly: true}
      required: [password]
  broken:
    description: Always fails.
    url: '${BASE}/broken'
    method: POST
    headers: {X-Token: '${HEADER_TOKEN}'}
    body: {password: '${parameters.password}'}
    allow_private: true
    parameters:
      type: object
      properties: {password: {type: string, format: password}}
";

/// A server that answers with what it was sent, and keeps it.
struct Echo {
    url: String,
    seen: Arc<Mutex<String>>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let seen = Arc::new(Mutex::new(String::new()));
        let into = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut asked = Vec::new();
                let mut piece = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut piece) {
                    asked.extend_from_slice(&piece[..length]);
                    let text = String::from_utf8_lossy(&asked);
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let head = head.to_ascii_lowercase();
                    let length =
                        head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
                    if body.len() >= length.unwrap_or(0) {
                        break;
                    }
                }
                let text = String::from_utf8_lossy(&asked).into_owned();
                into.lock().expect("seen").push_str(&text);
                let status = if text.contains("/broken") { "500 Broken" } else { "200 OK" };
                let body = format!("{text}\n{SHAPED}");
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        Self { url, seen }
    }

    fn variables(&self) -> [(&'static str, String); 3] {
        [("BASE", self.url.clone()), ("HEADER_TOKEN", HEADER.to_owned()), ("QUERY_KEY", QUERY.to_owned())]
    }

    fn was_sent(&self, what: &str) -> bool {
        self.seen.lock().expect("seen").contains(what)
    }
}

#[track_caller]
fn is_clean(sink: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let quoted = json!(PASSWORD).to_string();
    // JSON in a text in JSON.
    let twice = json!(quoted.trim_matches('"')).to_string();
    for secret in
        [HEADER, QUERY, QUERY_ENCODED, PASSWORD, quoted.trim_matches('"'), twice.trim_matches('"'), SHAPED, KEY]
    {
        if let Some(at) = text.find(secret) {
            let around: String = text[..at].chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect();
            panic!("{sink} has {secret:?} after: {around}");
        }
    }
    for fixture in [format!("\"pin\":\"{PIN}\""), format!("\"pin\": \"{PIN}\""), format!("pin={PIN}")] {
        assert!(!text.contains(&fixture), "{sink} has {fixture}");
    }
}

/// Every file of the state, but for stored outputs, which are results.
fn check_state_files(dir: &Path) {
    for entry in std::fs::read_dir(dir).expect("state").flatten() {
        if entry.path().is_file() {
            is_clean(&entry.path().display().to_string(), &std::fs::read(entry.path()).expect("file"));
        }
    }
}

fn call(fixture: &Fixture, echo: &Echo, arguments: &[&str]) -> Output {
    fixture.approve_in(&fixture.path("project/state"));
    let mut command = program(fixture);
    command.args(["--state-dir", "state"]).args(arguments).envs(echo.variables());
    command.output().expect("the program runs")
}

#[test]
fn calls_leave_no_secret_in_any_sink() {
    let (fixture, echo) = (Fixture::with(CONFIG), Echo::start());
    let good = json!({"user": "u", "password": PASSWORD, "pin": PIN}).to_string();
    let output = call(&fixture, &echo, &["-vvv", "call", "rest__login", &good]);
    assert!(output.status.success(), "{}", stderr(&output));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains(SHAPED), "the caller gets the tool's own result: {printed}");
    for sent in [HEADER, &json!(PASSWORD).to_string(), PIN] {
        assert!(echo.was_sent(sent), "the tool did not get {sent}");
    }
    let stderr_text = stderr(&output);
    assert!(stderr_text.contains("[VRB] tool request -> rest__login"), "{stderr_text}");
    is_clean("standard error", &output.stderr);

    let wrong = json!({"user": 1, "password": PASSWORD, "pin": PIN, "more": true}).to_string();
    let broken = json!({"password": PASSWORD}).to_string();
    let no_object = json!([PASSWORD]).to_string();
    for (tool, arguments) in [("rest__broken", &broken), ("rest__login", &wrong), ("rest__login", &no_object)] {
        for format in ["text", "json"] {
            let output = call(&fixture, &echo, &["-vvv", "--log-format", format, "call", tool, arguments]);
            let stderr_text = stderr(&output);
            if tool == "rest__broken" {
                assert!(stderr_text.contains("tool response <- rest__broken"), "{stderr_text}");
            }
            is_clean(&format!("standard error of {tool} {arguments}"), &output.stderr);
        }
    }
    for arguments in [
        &["trace", "--json"][..],
        &["trace"],
        &["trace", "last"],
        &["trace", "last", "--json"],
        &["tools", "ls", "--json"],
        &["config", "show", "--json"],
        &["doctor", "--json"],
    ] {
        let output = call(&fixture, &echo, &[&["-vvv"], arguments].concat());
        is_clean(&format!("standard output of {arguments:?}"), &output.stdout);
        is_clean(&format!("standard error of {arguments:?}"), &output.stderr);
    }
    check_state_files(&fixture.path("project/state"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_leaves_no_secret_in_any_sink() {
    let (fixture, echo) = (Fixture::with(CONFIG), Echo::start());
    let arguments = json!({"user": "u", "password": PASSWORD, "pin": PIN});
    let script = vec![
        Turn::text_and_calls(
            format!("With {HEADER} I log in."),
            vec![("rest__login", arguments.clone()), ("rest__broken", json!({"password": PASSWORD}))],
        ),
        Turn::text(format!("It said {SHAPED} to {PASSWORD}."))
            .expecting("the model gets real results", |asked| asked.last_result_text().contains(SHAPED)),
    ];
    let (server, model) = with_model(WireApi::OpenAi, script.into()).await;
    let variables: Vec<_> = model.into_iter().chain(echo.variables()).collect();
    let child = start(
        &fixture,
        &variables,
        &["-vvv", "run", "log in", "--policy", "trusted", "--json", "--transcript", "t.jsonl"],
    );
    let output = ended(child).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert_eq!(server.failures(), Vec::<String>::new());
    assert!(echo.was_sent(&json!(PASSWORD).to_string()), "the tool got the real value");
    is_clean("standard error", &output.stderr);
    is_clean("the report", &output.stdout);
    is_clean("the transcript", fixture.read("project/t.jsonl").as_bytes());

    let run = run_id(&stderr(&output));
    let shown = |arguments: &[&str]| {
        let mut command = program(&fixture);
        command.args(arguments).envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
        command.output().expect("the program runs")
    };
    let traced = shown(&["trace", &run, "--json"]);
    is_clean("the trace", &traced.stdout);
    let trace: Value = serde_json::from_slice(&traced.stdout).expect("json");
    assert_eq!(
        (&trace["run"], &trace["totals"]["tool_calls"], &trace["totals"]["failures"]),
        (&json!(run), &json!(2), &json!(1)),
        "{trace}"
    );
    let names: Vec<&str> =
        trace["turns"][0]["ops"].as_array().expect("ops").iter().filter_map(|op| op["name"].as_str()).collect();
    assert_eq!(names.len(), 3, "a request and two calls: {names:?}");
    is_clean("the drawn trace", &shown(&["-vvv", "trace", "last"]).stdout);
}

/// What a client gets of one HTTP request.
fn exchange(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.write_all(request.as_bytes()).expect("request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answer");
    answer
}

fn call_over_http(address: &str, arguments: &Value) -> String {
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "rest__login", "arguments": arguments, "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}}});
    let body = call.to_string();
    exchange(
        address,
        &format!(
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: tools/call\r\nMcp-Name: rest__login\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ),
    )
}

/// What the program prints, which has no secret.
#[track_caller]
fn clean(fixture: &Fixture, echo: &Echo, arguments: &[&str]) -> Value {
    let output = call(fixture, echo, arguments);
    is_clean(&format!("standard output of {arguments:?}"), &output.stdout);
    is_clean(&format!("standard error of {arguments:?}"), &output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {}", stderr(&output)))
}

#[test]
fn a_gateway_asks_about_calls_without_their_secrets() {
    let (fixture, echo) = (Fixture::with(CONFIG), Echo::start());
    let variables = echo.variables();
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    fixture.approve_in(&fixture.path("project/state"));
    let serve = ["--state-dir", "state", "-vvv", "--http", "127.0.0.1:0", "--policy", "ask", "--ask", "inbox"];
    let gateway = Gateway::start_with(&fixture, &serve, &variables);
    let address = gateway.address();
    let arguments = |password: &str| json!({"user": "u", "password": password, "pin": PIN});
    let asked = |count: usize| {
        let listed = clean(&fixture, &echo, &["approvals", "ls", "--json"]);
        assert_eq!(listed.as_array().map(Vec::len), Some(count), "{listed}");
        listed[0].clone()
    };
    let done = |count: usize| {
        until("the jobs are done", || {
            let jobs = clean(&fixture, &echo, &["jobs", "ls", "--json"]);
            jobs.as_array().is_some_and(|jobs| jobs.iter().filter(|job| job["state"] == "done").count() == count)
        });
    };

    let reported = call_over_http(&address, &arguments(PASSWORD));
    assert!(reported.contains("needs a person's approval, and has not run"), "{reported}");
    is_clean("the answer to the client", reported.as_bytes());
    until("it asks", || clean(&fixture, &echo, &["approvals", "ls", "--json"]) != json!([]));
    let question = asked(1);
    let shown = json!({"user": "u", "password": "[secret]", "pin": "[secret]"});
    assert_eq!(question["arguments"], shown);
    let job = clean(&fixture, &echo, &["jobs", "ls", "--json"])[0]["id"].as_str().expect("an id").to_owned();
    clean(&fixture, &echo, &["jobs", "show", &job, "--json"]);
    clean(&fixture, &echo, &["approvals", "approve", question["id"].as_str().expect("an id"), "--always", "--json"]);
    done(1);
    assert!(echo.was_sent(&json!(PASSWORD).to_string()), "the tool got the real value");

    clean(&fixture, &echo, &["approvals", "ls", "--all", "--json"]);
    assert_eq!(clean(&fixture, &echo, &["approvals", "ls", "--standing", "--json"])[0]["arguments"], shown);
    let other = call_over_http(&address, &arguments("another"));
    assert!(
        other.contains("needs a person's approval, and has not run"),
        "`always` is for the real arguments: {other}"
    );
    let again = call_over_http(&address, &arguments(PASSWORD));
    assert!(again.contains("HTTP/1.1 200") && again.contains(SHAPED), "nobody is asked: {again}");

    let head = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let metrics = exchange(&address, &head);
    assert!(metrics.contains("toolwright_tool_calls_total"), "{metrics}");
    is_clean("/metrics", metrics.as_bytes());
    is_clean("what the gateway says", gateway.output_text().as_bytes());
}

#[test]
fn jobs_are_listed_and_shown_without_secrets() {
    let (fixture, echo) = (Fixture::with(CONFIG), Echo::start());
    let arguments = json!({"password": PASSWORD}).to_string();
    for (tool, state) in [("rest__login", "done"), ("rest__broken", "error")] {
        let output = call(&fixture, &echo, &["-vvv", "call", "--background", "--json", tool, &arguments]);
        is_clean(&format!("standard error of {tool}"), &output.stderr);
        let jobs = clean(&fixture, &echo, &["jobs", "ls", "--json"]);
        is_clean("the drawn list of jobs", &call(&fixture, &echo, &["jobs", "ls"]).stdout);
        let job = jobs.as_array().expect("a list").iter().find(|job| job["state"] == state);
        let id = job.and_then(|job| job["id"].as_str()).unwrap_or_else(|| panic!("no job is {state}: {jobs}"));
        let output = call(&fixture, &echo, &["jobs", "show", id, "--json"]);
        let mut shown: Value = serde_json::from_slice(&output.stdout).expect("json");
        assert_eq!(shown["arguments"], json!({"password": "[secret]"}));
        assert_eq!(shown["outcome"]["error"]["message"].is_string(), state == "error", "{shown}");
        // What the tool itself said.
        shown["outcome"]["content"].take();
        shown["outcome"]["text"].take();
        is_clean("a job", shown.to_string().as_bytes());
    }
    assert!(echo.was_sent(&json!(PASSWORD).to_string()), "the tool got the real value");
}
