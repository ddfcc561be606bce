//! Results that do not fit the model's window, and what models are not shown.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_agent::{Limits, RunConfig, RunState, Status};
use toolwright_core::model::Message;
use toolwright_core::output::is_output_tool;
use toolwright_core::{ContentBlock, Effects, Tool, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput};
use toolwright_providers::builtin::{self, BuiltinOptions};

use crate::fixture::{Fixture, Reply, begin_with, options, run_config};

/// Gives the same content each time.
struct FixedContentTool(Vec<ContentBlock>);

#[async_trait]
impl Tool for FixedContentTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::parse("t:gives@1.0.0").unwrap();
        let mut definition = ToolDefinition::new(id, "Gives.", Some(json!({"type": "object"})));
        definition.effects = Effects::READ;
        definition
    }

    async fn run(&self, _arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput { content: self.0.clone(), ..ToolOutput::default() })
    }
}

fn calls(ids: &[&'static str]) -> Reply {
    Reply::Calls(ids.iter().map(|id| (*id, "t__gives", json!({"id": id}))).collect())
}

async fn fixture(dir: &std::path::Path, script: Vec<Reply>, content: Vec<ContentBlock>) -> Fixture {
    let mut tools = builtin::tools(&BuiltinOptions::default());
    tools.retain(|tool| is_output_tool(&tool.definition().id));
    tools.insert(0, Arc::new(FixedContentTool(content)));
    Fixture::new(dir, script, tools).await
}

fn windowed(window: usize) -> RunState {
    begin_with(RunConfig { window: Some(window), max_tokens: Some(100), ..run_config(Limits::default()) })
}

fn texts(state: &RunState) -> Vec<String> {
    let results = state.messages().iter().filter_map(|message| match message {
        Message::Tool { results } => Some(results),
        _ => None,
    });
    results.flatten().map(|result| toolwright_core::content::joined_text(&result.content)).collect()
}

#[tokio::test]
async fn a_result_without_room_has_a_handle() {
    let dir = tempfile::tempdir().unwrap();
    let content = vec![ContentBlock::text("x".repeat(8000))];
    // Two land at once: there is room for one.
    let fixture = fixture(dir.path(), vec![calls(&["1", "2"]), Reply::Text("done")], content).await;
    let mut state = windowed(4000);
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!(report.status, Status::Success);
    let texts = texts(&state);
    let (whole, handles): (Vec<_>, Vec<_>) = texts.iter().partition(|text| text.len() == 8000);
    assert_eq!((whole.len(), handles.len()), (1, 1));
    assert!(handles[0].contains("Handle: o") && handles[0].contains("output__read"), "{}", handles[0]);
    let shown = fixture.model.shown.lock().unwrap().clone();
    let names = |turn: usize| shown[turn].iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(0), ["t__gives"], "there is nothing to read yet");
    assert_eq!(names(1), ["t__gives", "output__read", "output__grep", "output__extract"]);
}

#[tokio::test]
async fn without_room_the_next_turn_is_the_last() {
    let refused = || vec![ContentBlock::text("x".repeat(8000))];
    for (last, status, reason) in [
        (Reply::Text("as far as I got"), Status::Partial, Some("no call succeeded: 1 failed")),
        (calls(&["2"]), Status::Partial, Some("the last turn was forced: Your context window is full")),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let fixture = fixture(dir.path(), vec![calls(&["1"]), last], refused()).await;
        let mut state = windowed(440);
        let report = fixture.driver.run(&mut state, &options()).await.unwrap();
        assert_eq!((report.status, report.reason.as_deref(), report.turns), (status, reason, 2));
        let first = &texts(&state)[0];
        assert!(
            first.starts_with("(tool failed: context window budget exceeded)\n")
                && first.contains("under the handle o"),
            "{first}"
        );
        let asked = &fixture.requests()[1];
        assert!(asked.contains(r#""tool_choice":"none""#) && asked.contains("Your context window is full"), "{asked}");
    }
}

#[tokio::test]
async fn hidden_binary_results_are_kept_as_files() {
    let dir = tempfile::tempdir().unwrap();
    let blob = ContentBlock::Resource {
        resource: json!({"uri": "a:b", "mimeType": "application/pdf", "blob": "AAEC"}),
        extra: serde_json::Map::new(),
    };
    let audio = serde_json::from_value(json!({"type": "audio", "data": "AAAA", "mimeType": "audio/wav"})).unwrap();
    let content = vec![
        ContentBlock::image("AAAA", "image/png"),
        ContentBlock::image("AAAA", "image/tiff"),
        blob,
        audio,
        ContentBlock::image("not base64", "image/tiff"),
    ];
    let fixture = fixture(dir.path(), vec![calls(&["1"]), Reply::Text("done")], content).await;
    let mut state = begin_with(run_config(Limits::default()));
    fixture.driver.run(&mut state, &options()).await.unwrap();
    let Some(Message::Tool { results }) = state.messages().iter().find(|m| matches!(m, Message::Tool { .. })) else {
        panic!("no results");
    };
    let content = &results[0].content;
    assert_eq!(content[0], ContentBlock::image("AAAA", "image/png"), "models are shown those");
    assert_eq!(content[4], ContentBlock::image("not base64", "image/tiff"));
    for (block, expect) in content[1..4].iter().zip([
        "[image, image/tiff, 3 bytes: ",
        "[resource a:b, application/pdf, 3 bytes: ",
        "[audio, audio/wav, 3 bytes: ",
    ]) {
        let text = block.as_text().unwrap();
        assert!(text.starts_with(expect) && text.contains("handle o"), "{text}");
        let handle = text.split("handle ").nth(1).unwrap().trim_end_matches(']');
        let outputs = &fixture.executor.services().outputs;
        assert_eq!(outputs.open(&options().session.id, handle).await.unwrap().bytes, 3);
    }
}
