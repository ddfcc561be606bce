//! Background jobs: from the shell, from a second process, and through the `job` tools.

use std::io::BufReader;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright::Toolwright;
use toolwright::app::CallOptions;
use toolwright::async_trait;
use toolwright::config::LoadOptions;
use toolwright::core::catalogue::ProviderKind;
use toolwright::core::definition::Mode;
use toolwright::core::{
    CallId, Effects, Outcome, Profile, RawArguments, StaticProvider, Tool, ToolCall, ToolContext, ToolDefinition,
    ToolError, ToolId, ToolOutput,
};
use toolwright::telemetry::TextFormat;

use crate::command_line::cli::{ok, program, run, stderr};
use crate::support::{Fixture, until};

/// Starts a job with the shell; the program stays with it. Returns it and the job's id.
fn start(fixture: &Fixture, command: &str) -> (Child, String) {
    let arguments = json!({"command": command}).to_string();
    let mut child = program(fixture)
        .args(["call", "--background", "--json", "shell__bash", &arguments])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut reported = serde_json::Deserializer::from_reader(BufReader::new(child.stdout.take().expect("piped")));
    let outcome = <Value as serde::Deserialize>::deserialize(&mut reported).expect("printed at once");
    let id = outcome["structured"]["job"].as_str().unwrap_or_else(|| panic!("no job in {outcome}"));
    (child, id.to_owned())
}

fn listed(fixture: &Fixture, id: &str) -> Value {
    let list: Value = serde_json::from_str(&ok(fixture, &["jobs", "ls", "--json"])).expect("json");
    let job = list.as_array().expect("an array").iter().find(|job| job["id"] == id);
    job.unwrap_or_else(|| panic!("{id} is not in {list}")).clone()
}

#[test]
fn another_process_lists_reads_and_stops_jobs() {
    let fixture = Fixture::new();
    let (mut child, id) = start(&fixture, "echo begun; sleep 60");
    let job = listed(&fixture, &id);
    assert!(id.starts_with("bash_") && job["created"].as_str().is_some_and(|at| at.ends_with('Z')), "{job}");
    assert_eq!((&job["tool"], &job["owner"]["alive"]), (&json!("shell:bash@1.0.0"), &json!(true)), "{job}");
    until("it runs", || listed(&fixture, &id)["state"] == "running");
    let stopped = run(&fixture, &["jobs", "stop", "bash_00000000", &id, "--json"]);
    assert_eq!(stopped.status.code(), Some(3), "one of them is not there");
    let stopped: Value = serde_json::from_slice(&stopped.stdout).expect("json");
    assert!(stopped[0]["error"]["message"].is_string() && stopped[1]["state"] == "cancelled", "{stopped}");
    assert!(child.wait().expect("ended").success(), "the program stays no longer than its job");
    let shown: Value = serde_json::from_str(&ok(&fixture, &["jobs", "show", &id, "--json"])).expect("json");
    assert_eq!((&shown["state"], &shown["owner"]), (&json!("cancelled"), &Value::Null), "{shown}");
    let missing = run(&fixture, &["jobs", "show", "bash_00000000"]);
    assert!(!missing.status.success() && stderr(&missing).contains("toolwright jobs ls"), "{}", stderr(&missing));
}

#[test]
fn a_job_that_ends_keeps_its_result() {
    let fixture = Fixture::new();
    let (mut child, id) = start(&fixture, "echo one; echo two");
    assert!(child.wait().expect("ended").success());
    assert_eq!(listed(&fixture, &id)["state"], "done");
    let read: Value = serde_json::from_str(&ok(&fixture, &["jobs", "read", &id, "--json"])).expect("json");
    assert!(read["text"].as_str().is_some_and(|text| text.contains("one\ntwo")), "{read}");
}

#[test]
fn job_output_is_read_once() {
    let fixture = Fixture::new();
    let (mut child, id) = start(&fixture, "echo a; sleep 0.7; echo b >&2; echo c; sleep 0.7; printf d; exit 3");
    assert!(child.wait().is_ok());
    let read: Value = serde_json::from_str(&ok(&fixture, &["jobs", "read", &id, "--json"])).expect("json");
    let text = read["text"].as_str().expect("text");
    assert!(text.starts_with("a\nb\nc\nd\n") && text.matches('b').count() == 1, "{read}");
    assert_eq!(text.matches('\n').count(), 5, "the exit code comes behind it: {read}");
    assert_eq!(read["total"], 5, "{read}");
}

#[test]
fn oversized_job_output_is_read_once() {
    let fixture = Fixture::new();
    let lines = "x=$(head -c 3000 /dev/zero | tr '\\0' x); for n in 1 2 3 4 5 6; do echo \"$n: $x\"; sleep 0.3; done";
    let (mut child, id) = start(&fixture, lines);
    assert!(child.wait().is_ok());
    let read: Value = serde_json::from_str(&ok(&fixture, &["jobs", "read", &id, "--json"])).expect("json");
    let text = read["text"].as_str().expect("text");
    let long = text.lines().filter(|line| line.contains("xxx")).count();
    assert!(long == 6 && text.starts_with("1: xxx"), "{read}");
    assert!(text.contains("18") && text.contains("Handle: "), "what is said of the whole comes behind it: {read}");
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_job_is_reported_and_not_repeated() {
    let fixture = Fixture::new();
    let (mut child, id) = start(&fixture, "echo ran >> ran; sleep 60");
    until("it runs", || fixture.path("project/ran").exists());
    child.kill().expect("killed");
    child.wait().expect("ended");
    until("it is settled", || listed(&fixture, &id)["state"] == "unknown");
    let shown = run(&fixture, &["jobs", "show", &id]);
    assert!(stderr(&shown).contains("may or may not have taken effect"), "{}", stderr(&shown));
    assert_eq!(fixture.read("project/ran"), "ran\n");
}

struct SendingTool(&'static str);

#[async_trait]
impl Tool for SendingTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::format("t", self.0, "1.0.0").expect("id");
        let mut definition = ToolDefinition::new(id, "Short.", Some(json!({"type": "object"})));
        definition.effects = Effects::READ;
        match self.0 {
            "delay" => definition.mode = Mode::Background,
            "talk" => definition.mode = Mode::Stateful,
            _ => {
                definition.documentation = Some("All there is to know.".into());
                definition.manual_required = true;
            }
        }
        definition
    }

    async fn run(&self, _arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        if self.0 == "talk" {
            let input = context.turns.pause(ToolOutput::text("who are you?")).await?;
            return Ok(ToolOutput::text(format!("hello {input}")));
        }
        Ok(ToolOutput::text(format!("{} is done", self.0)))
    }
}

async fn app(fixture: &Fixture, tools: &[&'static str]) -> Arc<Toolwright> {
    let app = Toolwright::open(LoadOptions::default(), fixture.load(), Box::new(|_| None)).await.expect("opens");
    let tools = tools.iter().map(|name| Arc::new(SendingTool(name)) as Arc<dyn Tool>).collect();
    let provider = StaticProvider::new("t", ProviderKind::Native, tools).expect("provider");
    app.catalogue().add_provider(Arc::new(provider)).await.expect("added");
    app.catalogue().refresh("t").await;
    app
}

async fn call(app: &Toolwright, name: &str, arguments: Value) -> Outcome {
    let arguments = RawArguments::Value(arguments);
    let call = ToolCall::new(CallId::new("c"), name, arguments);
    app.call_with(call, CallOptions::new(Profile::Owner)).await
}

fn offered(app: &Toolwright, name: &str) -> bool {
    app.catalogue().snapshot().list().iter().any(|entry| entry.wire_name == name)
}

#[tokio::test]
async fn job_tools_appear_with_the_first_job() {
    let fixture = Fixture::new();
    let plain = app(&fixture, &[]).await;
    // Tools of the program have manuals, which `job__info` reads.
    assert!(!offered(&plain, "job__wait") && offered(&plain, "job__info"));
    let missing = call(&plain, "job__wait", json!({"id": "x"})).await;
    assert!(missing.error.is_some_and(|error| error.message().contains("background jobs")));
    let app = app(&fixture, &["delay", "talk"]).await;
    assert!(offered(&app, "job__wait"));
    let started = call(&app, "t__delay", json!({})).await;
    let id = started.structured.as_ref().and_then(|job| job["job"].as_str()).expect("a job").to_owned();
    let done = call(&app, "job__wait", json!({"id": id})).await;
    assert!(
        done.text().contains(&format!("{id} (t:delay@1.0.0) is done")) && done.text().contains("delay is done"),
        "{}",
        done.text()
    );
    let read = call(&app, "job__read", json!({"id": id})).await;
    assert_eq!(read.text(), "delay is done\n[lines 0 to 1 of 1; the job is done]");
    let asks = call(&app, "t__talk", json!({})).await;
    assert!(asks.text().starts_with("who are you?"), "{}", asks.text());
    let talk = asks.structured.as_ref().and_then(|job| job["job"].as_str()).expect("a job").to_owned();
    let list = call(&app, "job__list", json!({})).await;
    assert!(list.text().contains(&talk) && list.text().contains("waiting_input"), "{}", list.text());
    let answer = call(&app, "job__send", json!({"id": talk, "input": "me"})).await;
    assert!(answer.text().contains("hello \"me\""), "{}", answer.text());
    let stopped = call(&app, "job__stop", json!({"id": talk})).await;
    assert!(stopped.ok && stopped.text().contains("is done"), "{}", stopped.text());
    let unknown = call(&app, "job__status", json!({"id": "nope_00000000"})).await;
    assert!(!unknown.ok && unknown.text().contains("job__list"), "{}", unknown.text());
    app.shut_down().await;
}

#[tokio::test]
async fn metrics_count_jobs_by_state() {
    let fixture = Fixture::new();
    let app = app(&fixture, &["delay", "talk"]).await;
    let _counts_from_here = app.metrics();
    let started = call(&app, "t__delay", json!({})).await;
    let id = started.structured.as_ref().and_then(|job| job["job"].as_str()).expect("a job").to_owned();
    call(&app, "job__wait", json!({"id": id})).await;
    call(&app, "t__talk", json!({})).await;
    let shown = || app.metrics().text(TextFormat::Prometheus, &[]);
    let expect = ["toolwright_jobs_finished_total{state=\"done\"} 1", "toolwright_jobs{state=\"waiting_input\"} 1"];
    // The counter is an observer on a task of its own.
    for _ in 0..200 {
        if expect.iter().all(|line| shown().contains(line)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(expect.iter().all(|line| shown().contains(line)), "{}", shown());
    assert!(!shown().contains("toolwright_jobs{state=\"running\"} 1"), "{}", shown());
    app.shut_down().await;
}

#[tokio::test]
async fn a_required_manual_is_read_first() {
    let fixture = Fixture::new();
    let app = app(&fixture, &["studied"]).await;
    let blocked = call(&app, "t__studied", json!({})).await;
    assert!(blocked.text().contains("job__info") && !blocked.ok, "{}", blocked.text());
    let manual = call(&app, "job__info", json!({"name": "t__studied"})).await;
    assert!(manual.text().contains("All there is to know."), "{}", manual.text());
    assert_eq!(call(&app, "t__studied", json!({})).await.text(), "studied is done");
    app.shut_down().await;
}

#[tokio::test]
async fn an_open_instance_offers_job_tools_later() {
    let fixture = Fixture::new();
    let app = app(&fixture, &[]).await;
    app.recover_jobs();
    assert!(!offered(&app, "job__wait"));
    let arguments = RawArguments::Value(json!({"command": "true"}));
    let call = ToolCall::new(CallId::new("c"), "shell__bash", arguments);
    let options = CallOptions { background_after: Some(Duration::ZERO), ..CallOptions::new(Profile::Owner) };
    assert!(app.call_with(call, options).await.ok);
    let shown = async {
        while !offered(&app, "job__wait") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), shown).await.expect("offered");
    app.shut_down().await;
}
