//! The program is killed while a model puts turns of a conversation together.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use toolwright::core::store::RunStore as _;
use toolwright::runtime::SqliteStore;
use toolwright_testkit::model_server::{RecordedRequest, Reply, Script, Turn, WireApi};

use crate::agents::agent::{ended, report, run_id, start, with_model};
use crate::command_line::cli::stderr;
use crate::support::Fixture;

/// Turns that call a tool, with so many bytes of text each: room is made before the last.
const STEPS: usize = 6;
const SAID: usize = 2400;
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
        Reply::text_and_calls(format!("Step {step}. {}", "word ".repeat(SAID / 5)), vec![("shell__bash", command)])
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
