//! Recordings of runs with a secret: they do not hold it, and can be played.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_agent::{Driver, Limits, RunConfig, RunReport, RunState, Status};
use toolwright_core::model::{
    Message, ModelClient, ModelError, ModelErrorKind, ModelResponse, RawToolCall, StopReason,
};
use toolwright_core::{Effects, Services, Tool, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput};
use toolwright_models::{Endpoints, HttpModelClient, Models};
use toolwright_runtime::executor::ExecutorOptions;
use toolwright_runtime::{Catalogue, Executor, SecretRedactor, SqliteStore, SystemClock};
use toolwright_testkit::{FakeEvents, FakeModel};

use crate::fixture::{options, provider, run_config};

const SECRET: &str = "tiger-4711-x";

/// Answers in this order.
fn says(answers: impl Into<VecDeque<ModelResponse>>) -> Arc<FakeModel> {
    let answers = Mutex::new(answers.into());
    Arc::new(FakeModel::new(move |_| {
        let next = answers.lock().unwrap().pop_front();
        next.ok_or_else(|| ModelError::new(ModelErrorKind::Invalid, "nothing is left to say"))
    }))
}

struct Login;

#[async_trait]
impl Tool for Login {
    fn definition(&self) -> ToolDefinition {
        let pin = json!({"type": "string", "format": "password"});
        let schema = json!({"type": "object", "properties": {"pin": pin}, "required": ["pin"]});
        let mut definition = ToolDefinition::new(ToolId::parse("t:login@1.0.0").unwrap(), "Logs in.", Some(schema));
        definition.effects = Effects::WRITE;
        definition
    }

    async fn run(&self, arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::text(format!("You are in, and your pin is {}.", arguments["pin"].as_str().unwrap_or("none"))))
    }
}

/// One run with this model; what it asks is recorded in `record`.
async fn run(client: impl FnOnce(&Arc<SecretRedactor>) -> Arc<dyn ModelClient>, id: &str, record: &Path) -> RunReport {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let log = Arc::new(FakeEvents::default());
    let redactor = Arc::new(SecretRedactor::default());
    let model = client(&redactor);
    let services = Services {
        events: log.clone(),
        model: model.clone(),
        redactor: redactor.clone(),
        ..Services::none(Arc::new(SystemClock))
    };
    let executor = Executor::new(ExecutorOptions::new(Arc::new(services), store.clone(), store.clone()));
    executor.models().recorder().start(record).unwrap();
    let catalogue = Catalogue::new(log.clone(), redactor, Duration::from_secs(5));
    catalogue.add_provider(provider("test", vec![Arc::new(Login)])).await.unwrap();
    catalogue.refresh("test").await;
    let driver = Driver::new(executor, catalogue, model, Some(store));
    let config = RunConfig { model: id.to_owned(), ..run_config(Limits::default()) };
    let task = Message::user(format!("Log in with {SECRET}."));
    driver.run(&mut RunState::new(config, vec![task]), &options()).await.unwrap()
}

/// The model calls the tool with these arguments, as text; whether they can be read as JSON, mended or not. Then no
/// secret is recorded, and the recording can be played.
async fn check(arguments: &str, is_readable: bool) {
    let call = RawToolCall { id: "c1".into(), name: "t__login".into(), arguments: arguments.into() };
    let calls = ModelResponse { calls: vec![call], stop: StopReason::ToolCalls, ..ModelResponse::default() };
    let done = ModelResponse { text: format!("Done with {SECRET}."), ..ModelResponse::default() };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.jsonl");
    let says = says([calls, done]);
    let report = run(|_| says, "test/m", &file).await;
    // A run whose only call could not be read is no success.
    let status = if report.calls[0].ok { Status::Success } else { Status::Partial };
    assert_eq!(report.status, status, "{arguments}: {report:?}");
    let recording = std::fs::read_to_string(&file).unwrap();
    assert_eq!(recording.lines().count(), 2, "{arguments}: {recording}");
    if !is_readable {
        // Which part is secret nobody can tell: all of it goes, but what else was said of it stays.
        assert!(recording.contains(r#""arguments":"\"[secret]\"""#), "{arguments}: {recording}");
        return;
    }
    assert!(!recording.contains(SECRET), "{arguments}: {recording}");
    assert!(recording.contains("Log in with [secret]."), "{arguments}: {recording}");
    let http = HttpModelClient::new(Endpoints::default());
    let player =
        |redactor: &Arc<SecretRedactor>| -> Arc<dyn ModelClient> { Arc::new(Models::new(http, redactor.clone())) };
    let report = run(player, &format!("replay:{}", file.display()), &dir.path().join("again.jsonl")).await;
    assert_eq!((report.status, &*report.answer), (status, "Done with [secret]."), "{arguments}: {report:?}");
}

#[tokio::test]
async fn a_recording_holds_no_learned_secret_and_plays() {
    check(&json!({"pin": SECRET}).to_string(), true).await;
    check(&format!("{{pin: '{SECRET}'}}"), true).await;
    check(&format!(r#"{{"pin": "{SECRET}", "n": 1e999}}"#), false).await;
}
