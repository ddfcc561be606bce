//! The program is killed at every write that the runs of agents make, or ended in the middle of their work, and goes on
//! in another process: no call and no answered request is made again, and nothing is lost.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolwright::core::store::RunStore as _;
use toolwright::runtime::SqliteStore;
use toolwright_testkit::model_server::{RecordedRequest, Reply, Script, ScriptedModel, Turn, WireApi};

use crate::agents::agent::{ended, report, run_id, start, with_model};
use crate::calls::kill_points::Stop;
use crate::command_line::cli::{ok, stderr};
use crate::support::{Fixture, signal, until};

const UNKNOWN: &str = "may or may not have taken effect";

/// A run that comes to one command of one agent.
struct Case {
    config: &'static str,
    arguments: &'static [&'static str],
    answer: fn(&RecordedRequest) -> Reply,
    /// The tables whose writes it is stopped at. The ledger is not among them: nothing is decided by it.
    tables: &'static [&'static str],
    /// Requests of a run that nobody kills, and how many can be under way at once.
    requests: (RangeInclusive<usize>, usize),
    /// How often it is stopped at least.
    stops: u32,
}

fn is_worker(asked: &RecordedRequest) -> bool {
    asked.system().contains("You work.")
}

/// The worker runs one command.
fn work(asked: &RecordedRequest) -> Reply {
    match asked.last_results().is_empty() {
        true => Reply::calls(vec![("shell__bash", json!({"command": "echo once >> count"}))]),
        false => Reply::text("It is done."),
    }
}

fn begins(agent: &str) -> Reply {
    Reply::calls(vec![(format!("agent__{agent}"), json!({"reason": "it is asked for", "task": "go on"}))])
}

/// The id of the run, once it has said it.
fn id(said: &str) -> Option<&str> {
    said.split("--resume ").nth(1)?.split_whitespace().next()
}

impl Case {
    async fn model(&self) -> (ScriptedModel, [(&'static str, String); 3]) {
        let answer = self.answer;
        let turn = Turn::computed(answer);
        with_model(WireApi::OpenAi, Script::from(vec![turn]).repeating()).await
    }

    /// Kills the run at its `nth` write, and goes on with it. Returns whether there is such a write.
    async fn kill_at(&self, nth: u32) -> bool {
        let fixture = Fixture::with(self.config);
        let (server, variables) = self.model().await;
        let stop = Stop::before(&fixture, nth, self.tables).await;
        let usual = [self.arguments, &["--policy", "trusted", "--json"]].concat();
        let mut child = start(&fixture, &variables, &usual);
        let is_stopped = stop.reached(|| child.try_wait().expect("looked").is_some()).await;
        child.kill().expect("killed");
        let mut output = ended(child).await;
        stop.clear();
        let mut is_resumed = true;
        if is_stopped {
            let said = stderr(&output);
            let resume = ["run", "--resume", id(&said).unwrap_or("none"), "--policy", "trusted", "--json"];
            output = ended(start(&fixture, &variables, &resume)).await;
            // Nothing of it was saved: it is begun again.
            if output.status.code() == Some(3) {
                is_resumed = false;
                output = ended(start(&fixture, &variables, &usual)).await;
            }
        }
        let (said, report, requests) = (stderr(&output), report(&output), server.requests());
        let done = std::fs::read_to_string(fixture.path("project/count")).unwrap_or_default();
        let is_reported = requests.iter().any(|request| request.body.to_string().contains(UNKNOWN));
        assert!(done == "once\n" || (done.is_empty() && is_reported), "{nth}: {done:?} {said}");
        assert!(output.status.success() || is_reported, "{nth}: {said} {:?}", server.failures());
        assert!(report["answer"].as_str().is_some_and(|answer| answer.starts_with("It is done.")), "{nth}: {report}");
        let (all, at_once) = &self.requests;
        assert!((*all.start()..=all.end() + at_once).contains(&requests.len()), "{nth}: {} requests", requests.len());
        let counted = report["usage"]["input_tokens"].as_u64().expect("a number") / 10;
        let counted = usize::try_from(counted).expect("few");
        // What was answered and not saved may count, and no request counts twice.
        let counts = *all.start()..=requests.len();
        assert!(counts.contains(&counted), "{nth}: {counted} requests count: {report}");
        let left =
            [("agents", "ended_ms IS NULL"), ("jobs", "ended_ms IS NULL"), ("begun", "true"), ("run_claims", "true")];
        for (table, condition) in left.into_iter().filter(|_| is_resumed) {
            assert_eq!(stop.count(table, condition), 0, "{nth}: {table}");
        }
        is_stopped
    }

    async fn check(&self) {
        for nth in (1..).step_by(2) {
            let (one, other) = tokio::join!(self.kill_at(nth), self.kill_at(nth + 1));
            if !(one && other) {
                assert!(nth > self.stops, "it is stopped {nth} times");
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_killed_in_its_agent_continues() {
    let case = Case {
        config: "agents:\n  worker: {description: Works., prompt: You work.}\n",
        arguments: &["run", "go"],
        answer: |asked| match (is_worker(asked), asked.last_results().is_empty()) {
            (true, _) => work(asked),
            (false, true) => begins("worker"),
            (false, false) => Reply::text("It is done."),
        },
        tables: &["runs", "run_calls", "agents", "begun"],
        requests: (4..=4, 1),
        stops: 12,
    };
    case.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_killed_in_a_handoff_continues() {
    let case = Case {
        config: "agents:\n  front: {description: Chooses., prompt: You choose., router: {destinations: [worker]}}\n  \
                 worker: {description: Works., prompt: You work.}\n",
        arguments: &["run", "--agent", "front", "go"],
        answer: |asked| match is_worker(asked) {
            true => work(asked),
            false => Reply::calls(vec![("router__handoff-to", json!({"agent": "worker"}))]),
        },
        tables: &["runs", "run_calls"],
        requests: (3..=3, 1),
        stops: 6,
    };
    case.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_killed_with_its_agent_continues() {
    let case = Case {
        config: "agents:\n  worker: {description: Works., prompt: You work., background: true}\n",
        arguments: &["run", "go"],
        answer: |asked| {
            let is_reported = asked.last_user_text().contains("Background job");
            match (is_worker(asked), asked.last_results().is_empty()) {
                (true, _) => work(asked),
                (false, true) if !is_reported => begins("worker"),
                (false, _) if is_reported => Reply::text("It is done."),
                (false, _) => Reply::text("It goes on."),
            }
        },
        tables: &["runs", "run_calls", "jobs"],
        requests: (4..=5, 2),
        stops: 12,
    };
    case.check().await;
}

/// Kills `serve` at its `nth` write for a firing, and starts it again. Returns whether there is such a write.
async fn kill_firing_at(nth: u32) -> bool {
    let fixture = Fixture::with(
        "policy: {profile: trusted}\nagents:\n  worker: {description: Works., prompt: You work.}\n\
         triggers:\n  once: {type: timer, interval: 1d, immediate: true, prompt: go, agent: worker}\n",
    );
    let (server, variables) = with_model(WireApi::OpenAi, Script::from(vec![Turn::computed(work)]).repeating()).await;
    let stop = Stop::before(&fixture, nth, &["firings", "runs", "run_calls"]).await;
    let serve = ["serve", "--http", "127.0.0.1:0"];
    let is_done = || stop.count("firings", "state = 'done'") > 0;
    let mut first = start(&fixture, &variables, &serve);
    let is_stopped = stop.reached(is_done).await;
    first.kill().expect("killed");
    let said = stderr(&ended(first).await);
    stop.clear();
    let mut second = start(&fixture, &variables, &serve);
    until(&format!("{nth}: the firing is over, not only: {said}"), is_done);
    second.kill().expect("killed");
    let said = stderr(&ended(second).await);
    let done = std::fs::read_to_string(fixture.path("project/count")).unwrap_or_default();
    let requests = server.requests();
    let is_reported = requests.iter().any(|request| request.body.to_string().contains(UNKNOWN));
    assert!(done == "once\n" || (done.is_empty() && is_reported), "{nth}: {done:?} {said}");
    assert!((2..=3).contains(&requests.len()), "{nth}: {} requests", requests.len());
    assert_eq!(stop.count("firings", "true"), 1, "{nth}: a slot fires once");
    is_stopped
}

#[tokio::test(flavor = "multi_thread")]
async fn a_firing_killed_anywhere_runs_once() {
    for nth in (1..).step_by(2) {
        let (one, other) = tokio::join!(kill_firing_at(nth), kill_firing_at(nth + 1));
        if !(one && other) {
            assert!(nth > 6, "it is stopped {nth} times");
            return;
        }
    }
}

/// What a call gets as its result when the program ends.
const ENDING: &str = "shutting down";

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_firing_asks_its_question_again() {
    let fixture = Fixture::with(
        "policy: {profile: trusted}\nagents:\n  lead: {description: Leads., prompt: You lead.}\n  \
         worker: {description: Works., prompt: You work., policy: ask}\n\
         triggers:\n  once: {type: timer, interval: 1d, immediate: true, prompt: go, agent: lead}\n",
    );
    let turn = Turn::computed(|asked| match (is_worker(asked), asked.last_results().is_empty()) {
        (true, _) => work(asked),
        (false, true) => begins("worker"),
        (false, false) => Reply::text("It is done."),
    });
    let (server, variables) = with_model(WireApi::OpenAi, Script::from(vec![turn]).repeating()).await;
    let stop = Stop::before(&fixture, u32::MAX, &[]).await;
    let listed = || -> Value { serde_json::from_str(&ok(&fixture, &["approvals", "ls", "--json"])).expect("JSON") };
    let serve = ["serve", "--http", "127.0.0.1:0"];
    let first = start(&fixture, &variables, &serve);
    until("somebody is asked", || listed().get(0).is_some());
    signal(first.id(), "TERM");
    let said = stderr(&ended(first).await);
    assert_eq!(stop.count("firings", "state = 'done'"), 0, "{said}");
    let mut second = start(&fixture, &variables, &serve);
    until("somebody is asked again", || listed().get(0).is_some());
    ok(&fixture, &["approvals", "approve", listed()[0]["id"].as_str().expect("an id")]);
    until("the firing is over", || stop.count("firings", "state = 'done'") > 0);
    second.kill().expect("killed");
    let said = stderr(&ended(second).await);
    assert_eq!(fixture.read("project/count"), "once\n", "{said}");
    let requests = server.requests();
    assert!(!requests.iter().any(|request| request.body.to_string().contains(ENDING)), "{said}");
    assert_eq!(requests.len(), 4, "no answered request is made again");
    assert_eq!(stop.count("inbox", "expires_ms - created_ms < 7 * 24 * 3600 * 1000"), 0, "a person has a week");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_run_continues_in_its_agent() {
    let fixture = Fixture::with("agents:\n  worker: {description: Works., prompt: You work.}\n");
    let turn = Turn::computed(|asked| match (is_worker(asked), asked.last_results().is_empty()) {
        (true, true) => Reply::calls(vec![("shell__bash", json!({"command": "touch waiting; sleep 60"}))]),
        (false, true) => begins("worker"),
        _ => Reply::text("It is done."),
    });
    let (server, variables) = with_model(WireApi::OpenAi, Script::from(vec![turn]).repeating()).await;
    let child = start(&fixture, &variables, &["run", "go", "--policy", "trusted", "--json"]);
    until("the command runs", || fixture.path("project/waiting").exists());
    signal(child.id(), "TERM");
    let output = ended(child).await;
    let said = stderr(&output);
    assert_eq!((output.status.code(), &report(&output)["status"]), (Some(130), &json!("cancelled")), "{said}");
    let resume = ["run", "--resume", id(&said).expect("an id"), "--policy", "trusted", "--json"];
    let output = ended(start(&fixture, &variables, &resume)).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    let is_reported = |worker| {
        let requests: Vec<String> = server.requests().iter().map(|request| request.body.to_string()).collect();
        requests.iter().any(|request| request.contains("You work.") == worker && request.contains(ENDING))
    };
    assert_eq!((is_reported(true), is_reported(false)), (true, false), "the command ended, and the agent did not");
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_is_read_after_a_kill() {
    let fixture = Fixture::with(
        "policy: {profile: trusted}\nagents:\n  lead: {description: Leads., prompt: You lead.}\n  \
         worker: {description: Works., prompt: You work., background: true}\n",
    );
    let turn = Turn::computed(|asked| match (is_worker(asked), asked.last_results().is_empty()) {
        (true, true) => Reply::calls(vec![("shell__bash", json!({"command": "touch waiting; sleep 60"}))]),
        (true, false) => Reply::text("It is finished."),
        (false, true) if asked.last_user_text().ends_with("go") => begins("worker"),
        _ if asked.body.to_string().contains("It is finished.") => Reply::text("It is done."),
        _ => Reply::text("It goes on."),
    });
    let (server, variables) = with_model(WireApi::OpenAi, Script::from(vec![turn]).repeating()).await;
    let stop = Stop::before(&fixture, u32::MAX, &[]).await;
    let mut child = start(&fixture, &variables, &["run", "--agent", "lead", "go", "--json"]);
    until("it waits for its agent", || {
        fixture.path("project/waiting").exists() && stop.count("runs", "state LIKE '%\"answer\":\"It goes on.%'") > 0
    });
    child.kill().expect("killed");
    let said = stderr(&ended(child).await);
    stop.clear();
    let mut serve = start(&fixture, &variables, &["serve", "--http", "127.0.0.1:0"]);
    until("its agent has ended", || stop.count("jobs", "ended_ms IS NOT NULL") > 0);
    serve.kill().expect("killed");
    ended(serve).await;
    let output = ended(start(&fixture, &variables, &["run", "--resume", id(&said).expect("an id"), "--json"])).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert_eq!(report(&output)["answer"], "It is done.", "{}", stderr(&output));
}

/// Turns that call a tool, with so many bytes of text each: room is made before the last.
const STEPS: usize = 6;
const MESSAGE_LENGTH: usize = 2400;
/// Seconds for which a busy model asks to be left alone, far more than the test takes to kill who asked it.
const BUSY: u64 = 25;

/// What the models were asked, and whether the one that makes room is busy but for its first answer.
#[derive(Default)]
struct Models {
    steps: AtomicUsize,
    memory: Mutex<Vec<String>>,
    answers_all: AtomicBool,
}

impl Models {
    fn answer(&self, asked: &RecordedRequest) -> Reply {
        if asked.model() == "memory" {
            return self.remember(asked.last_user_text());
        }
        let step = self.steps.fetch_add(1, Ordering::SeqCst);
        if step >= STEPS {
            return Reply::text("Done.");
        }
        let command = json!({"command": format!("echo {step} >> count")});
        Reply::text_and_calls(
            format!("Step {step}. {}", "word ".repeat(MESSAGE_LENGTH / 5)),
            vec![("shell__bash", command)],
        )
    }

    fn remember(&self, text: String) -> Reply {
        let is_summary = !text.trim_start().starts_with("<text>");
        let is_first = {
            let mut memory = self.memory.lock().expect("no panic");
            memory.push(text);
            memory.len() == 1
        };
        if !is_first && !self.answers_all.load(Ordering::SeqCst) {
            let (status, code, message) = (503, String::new(), "busy".to_owned());
            return Reply::Error { status, code, message, retry_after: Some(BUSY) };
        }
        let made = if is_summary {
            json!({"summary": "Steps were made one by one.", "key_points": ["No step failed."]})
        } else {
            json!({"facts": [{"key": "gate", "value": "4711-K", "category": "decision"}]})
        };
        Reply::text(made.to_string())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_killed_in_compaction_repeats_no_request() {
    let fixture = Fixture::with("context: {model: openai/memory}\n");
    let models = Arc::new(Models::default());
    let says = Arc::clone(&models);
    let script = Script::from(vec![Turn::computed(move |asked| says.answer(asked))]).repeating();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let arguments = ["run", "go", "--policy", "trusted", "--json", "--tools", "shell:bash", "--window", "6000"];
    let mut child = start(&fixture, &variables, &arguments);
    let mut said = BufReader::new(child.stderr.take().expect("stderr")).lines().map_while(Result::ok);
    let id = run_id(&said.find(|line| line.contains("--resume ")).expect("the line with the id"));

    // The first answer is in the journal, and another is being waited for.
    let store = SqliteStore::open(&fixture.load().state_dir).expect("the store");
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let saved = store.run(&id).await.expect("reads");
        let calls = saved.map(|saved| saved.calls).unwrap_or_default();
        let compaction = calls.iter().filter(|(id, _)| id.to_string().starts_with("compaction-"));
        let (answered, open): (Vec<_>, Vec<_>) = compaction.partition(|(_, outcome)| outcome.is_some());
        if answered.len() == 1 && !open.is_empty() {
            break;
        }
        if Instant::now() >= end {
            child.kill().expect("kill");
            panic!("no room was made: {calls:?} {:?}", server.failures());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    child.kill().expect("kill");
    ended(child).await;
    models.answers_all.store(true, Ordering::SeqCst);

    let resumed = ended(start(&fixture, &variables, &["run", "--resume", &id, "--policy", "trusted", "--json"]));
    let output = tokio::time::timeout(Duration::from_secs(60), resumed).await.expect("the resumed run ends");
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert_eq!(report(&output)["answer"], "Done.");
    let steps: String = (0..STEPS).map(|step| format!("{step}\n")).collect();
    assert_eq!(fixture.read("project/count"), steps, "each step was made once");
    let asked = models.memory.lock().expect("no panic").clone();
    let times = |text: &String| asked.iter().filter(|other| *other == text).count();
    assert_eq!(times(&asked[0]), 1, "what was answered is not asked again");
    assert!(asked.iter().all(|text| times(text) <= 2), "what was not is asked once more, and no oftener");
    let last = server.requests().pop().expect("a request").body.to_string();
    assert!(last.contains("Steps were made one by one.") && last.contains("- gate: 4711-K"), "{last}");
}
