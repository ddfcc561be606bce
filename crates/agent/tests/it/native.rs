//! Tools that the model's provider runs: which are declared, and what becomes of what they did.

use std::sync::Arc;

use serde_json::json;
use toolwright_agent::{Limits, RunOptions, Status};
use toolwright_core::model::{
    Artifact, Citation, Message, ModelResponse, NativeOutput, NativeTool, NativeUse, OpaqueData, StopReason,
};
use toolwright_core::policy::Rule;
use toolwright_core::{Effects, Policy, Profile, Tool};
use toolwright_providers::builtin::native::{self, NativeToolsConfig};
use toolwright_testkit::{FakeModel, FakeRequest};

use crate::fixture::{Counter, Fixture, begin, options};

/// An answer that is paused after a search, and its end.
fn answers() -> FakeModel {
    FakeModel::new(|FakeRequest { number, .. }| {
        let searched =
            NativeUse { tool: NativeTool::WebSearch, id: "ws_1".into(), input: json!({"query": "tide"}), ok: true };
        Ok(match number {
            0 => ModelResponse {
                opaque: vec![OpaqueData {
                    api: "anthropic".into(),
                    data: json!({"item": {"type": "server_tool_use"}}),
                }],
                stop: StopReason::Other("pause_turn".into()),
                native: NativeOutput { uses: vec![searched], ..NativeOutput::default() },
                ..ModelResponse::default()
            },
            _ => ModelResponse {
                native: NativeOutput {
                    citations: vec![Citation { title: "Tide".into(), url: Some("https://tide.example".into()) }],
                    artifacts: vec![Artifact {
                        media_type: "image/png".into(),
                        data: Some("iVBORw0KGgo=".into()),
                        name: "ig_1".into(),
                        path: None,
                    }],
                    ..NativeOutput::default()
                },
                ..ModelResponse::default()
            },
        })
    })
}

fn tools() -> Vec<Arc<dyn Tool>> {
    let config = json!({"web_search": {}, "code_execution": {}, "image_gen": {}});
    let config: NativeToolsConfig = serde_json::from_value(config).unwrap();
    let mut tools = native::tools(&config);
    tools.push(Counter::new("t:count@1.0.0", Effects::READ));
    tools
}

#[tokio::test]
async fn provider_tools_are_declared_recorded_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Fixture::new(dir.path(), Vec::new(), tools()).await;
    let model = Arc::new(answers().with_natives(&["native__web_search", "native__code_execution"]));
    let driver = fixture.driver.clone().with_model(Arc::clone(&model) as _);
    let policy = Policy { rules: vec![Rule::deny("native:code_execution")], ..Policy::of(Profile::Trusted) };
    let options = RunOptions { policy: Arc::new(policy), ..options() };
    let mut state = begin(Limits::default());
    let preview = driver.preview(state.config(), &options).await;
    let why: Vec<(&str, bool)> =
        preview.left_out.iter().map(|(tool, why)| (tool.as_str(), why.contains("policy denies"))).collect();
    assert_eq!(why, [("native__code_execution", true), ("media__image_gen", false)]);
    let prompt = driver.system_prompt("Base.", &[], state.config(), &options).text();
    assert!(prompt.contains("Search the web where") && !prompt.contains("Draw an image"), "{prompt}");

    let report = driver.run(&mut state, &options).await.unwrap();
    assert_eq!((report.status, report.turns), (Status::Success, 2), "{report:?}");
    let asked = model.asked();
    for (_, request) in &asked {
        let names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["native__web_search", "t__count"]);
    }
    // The paused answer goes back as it came, with nothing after it.
    assert!(matches!(asked[1].1.messages.last(), Some(Message::Assistant { opaque, .. }) if opaque.len() == 1));
    let written = report.to_json();
    assert_eq!(written["sources"], json!([{"title": "Tide", "url": "https://tide.example"}]));
    assert_eq!((&written["files"][0]["media_type"], &written["files"][0]["bytes"]), (&json!("image/png"), &json!(8)));
    let handle = written["files"][0]["handle"].as_str().unwrap();
    let kept = fixture.executor.services().outputs.open(&options.session.id, handle).await.unwrap();
    assert_eq!((kept.bytes, kept.binary.as_deref()), (8, Some("image/png")));
    let call = &report.calls[0];
    assert_eq!(
        (call.tool.as_str(), &call.arguments, call.ok),
        ("native:web_search@1.0.0", &json!({"query": "tide"}), true)
    );
    let rows = crate::turns::compaction::rows(&fixture.store).await;
    let mut names: Vec<&str> = rows.iter().map(|row| &*row.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["native:web_search@1.0.0", "test/m", "test/m"], "{rows:?}");
}

#[tokio::test]
async fn the_executor_runs_no_provider_tool() {
    let dir = tempfile::tempdir().unwrap();
    let script = vec![
        crate::fixture::Reply::Calls(vec![("1", "native__web_search", json!({}))]),
        crate::fixture::Reply::Text("done"),
    ];
    let fixture = Fixture::new(dir.path(), script, tools()).await;
    let mut state = begin(Limits::default());
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    let error = report.calls[0].error.as_ref().unwrap();
    assert!(error.message.contains("run by the model's own provider"), "{}", error.message);
}
