//! Background jobs of a run: each end is told once, and wakes a run that has given its answer.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_agent::{Limits, ReportConfig, RunConfig, RunState, Status};
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::definition::Mode;
use toolwright_core::model::Message;
use toolwright_core::{Effects, Tool, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput};

use crate::fixture::{Fixture, Reply, begin, begin_with, options};
use crate::turns::resume::FaultyStore;

const WAIT: Duration = Duration::from_secs(20);

/// Takes a while in the background.
#[derive(Default)]
struct SlowTool(AtomicUsize);

#[async_trait]
impl Tool for SlowTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::parse("t:delay@1.0.0").unwrap();
        let mut definition = ToolDefinition::new(id, "Takes a while.", Some(json!({"type": "object"})));
        definition.mode = Mode::Background;
        definition.effects = Effects::UNKNOWN;
        definition
    }

    async fn run(&self, _arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(60)).await;
        Ok(ToolOutput::text("found it"))
    }
}

fn script() -> Vec<Reply> {
    vec![
        Reply::Calls(vec![("a", "t__delay", json!({}))]),
        Reply::Text("I have begun."),
        Reply::Text("It was found."),
        Reply::Text("Still there."),
    ]
}

async fn fixture(dir: &Path, slow_tool: &Arc<SlowTool>) -> Fixture {
    Fixture::new(dir, script(), vec![Arc::clone(slow_tool) as _]).await
}

fn notices(state: &RunState) -> Vec<String> {
    let text = |message: &Message| match message {
        Message::User { content } => Some(joined_text(content)),
        _ => None,
    };
    state
        .messages()
        .iter()
        .filter_map(text)
        .filter(|text| text.starts_with("[toolwright notice] Background job"))
        .collect()
}

#[tokio::test]
async fn an_answered_run_waits_for_its_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let slow_tool = Arc::new(SlowTool::default());
    let fixture = fixture(dir.path(), &slow_tool).await;
    let mut state = begin(Limits::default());
    let report = fixture.driver.clone().with_job_wait(WAIT).run(&mut state, &options()).await.unwrap();
    assert_eq!((report.status, report.answer.as_str()), (Status::Success, "It was found."));
    let reported = notices(&state);
    assert!(
        reported.len() == 1 && reported[0].ends_with("of t:delay@1.0.0 is done. Its result:\nfound it"),
        "{reported:?}"
    );
    assert_eq!(slow_tool.0.load(Ordering::SeqCst), 1);
    let requests = fixture.requests();
    assert!(requests[1].contains("continues as background job") && requests[2].contains("found it"), "{requests:?}");
}

#[tokio::test]
async fn a_report_stays_when_a_job_ends() {
    let dir = tempfile::tempdir().unwrap();
    let report = json!({"status": "success", "format": "text", "content": "It has begun."});
    let script = vec![
        Reply::Calls(vec![("a", "t__delay", json!({}))]),
        Reply::Calls(vec![("b", "agent__final_report", report)]),
        Reply::Text("It was found."),
    ];
    let fixture = Fixture::new(dir.path(), script, vec![Arc::new(SlowTool::default()) as _]).await;
    let mut config = RunConfig::new("test/m", "sys");
    config.agent_tools.report = Some(ReportConfig::default());
    let mut state = begin_with(config);
    let driver = fixture.driver.clone().with_job_wait(WAIT);
    for when in ["before the job ends", "after it"] {
        let report = driver.run(&mut state, &options()).await.unwrap();
        let report = report.final_report.and_then(|report| report.content);
        assert_eq!(report.as_deref(), Some("It has begun."), "{when}");
        assert!(fixture.executor.services().log.wait(&options().session.id, 0, WAIT).await.unwrap());
    }
    assert_eq!(fixture.requests().len(), 2);
}

#[tokio::test]
async fn without_a_wait_jobs_are_reported_later() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = fixture(dir.path(), &Arc::default()).await;
    let mut state = begin(Limits::default());
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!(report.answer, "I have begun.");
    assert!(notices(&state).is_empty());
    assert!(fixture.executor.services().log.wait(&options().session.id, 0, WAIT).await.unwrap());
    state.continue_with(vec![ContentBlock::text("and now?")]).unwrap();
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!((report.answer.as_str(), notices(&state).len()), ("It was found.", 1));
    state.continue_with(vec![ContentBlock::text("and now?")]).unwrap();
    fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!(notices(&state).len(), 1, "it is never repeated");
}

#[tokio::test]
async fn a_job_is_reported_once_despite_crashes() {
    for written in [true, false] {
        for breaks_at in 1..=6 {
            let dir = tempfile::tempdir().unwrap();
            let slow_tool = Arc::new(SlowTool::default());
            let tools = || vec![Arc::clone(&slow_tool) as Arc<dyn Tool>];
            let broken =
                Fixture::with_store(dir.path(), script(), tools(), |store| FaultyStore::new(store, breaks_at, written))
                    .await;
            let mut state = begin(Limits::default());
            let outcome = broken.driver.clone().with_job_wait(WAIT).run(&mut state, &options()).await;
            drop(broken);
            let fixture = fixture(dir.path(), &slow_tool).await;
            if outcome.is_err() {
                state = match fixture.driver.load(&options()).await {
                    Ok(state) => state,
                    // Nothing was saved: the run never began.
                    Err(_) => begin(Limits::default()),
                };
                fixture.driver.clone().with_job_wait(WAIT).run(&mut state, &options()).await.unwrap();
            }
            let reported = notices(&state);
            assert_eq!(reported.len(), 1, "broken at {breaks_at}, written: {written}: {reported:?}");
            assert_eq!(slow_tool.0.load(Ordering::SeqCst), 1, "broken at {breaks_at}, written: {written}");
        }
    }
}
