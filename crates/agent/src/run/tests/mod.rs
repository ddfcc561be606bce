//! Tests of the state machine without a driver. They save and reload it between steps.

mod answers;
mod client;
mod context;
mod ending;
mod exposure;
mod flow;
mod handoff;
mod legality;

use serde_json::json;
use toolwright_core::agents::handoff::{HANDOFF, HANDOFF_ID};
use toolwright_core::canonical::ContentHash;
use toolwright_core::error::ToolError;
use toolwright_core::model::{
    CallResult, ModelError, ModelErrorKind, ModelResponse, OpaqueData, RawToolCall, StopReason, ToolChoice,
};
use toolwright_core::outcome::{Outcome, ToolOutput};
use toolwright_core::{ApprovalRequest, Effects, ErrorKind, SessionId, ToolId};

use super::*;

fn run_config(limits: Limits) -> RunConfig {
    RunConfig { max_tokens: Some(100), limits, ..RunConfig::new("test/m", "be brief") }
}

fn begin(limits: Limits) -> RunState {
    RunState::new(run_config(limits), vec![Message::user("task")])
}

fn turns(turns: u32) -> Limits {
    Limits { turns, ..Limits::default() }
}

/// Returns a response with these calls, each `(id, name, arguments)`.
fn response(text: &str, calls: &[(&str, &str, &str)]) -> ModelResponse {
    let call = |(id, name, arguments): &(&str, &str, &str)| RawToolCall {
        id: (*id).to_owned(),
        name: (*name).to_owned(),
        arguments: (*arguments).to_owned(),
    };
    ModelResponse {
        text: text.to_owned(),
        calls: calls.iter().map(call).collect(),
        stop: if calls.is_empty() { StopReason::End } else { StopReason::ToolCalls },
        usage: Usage { input_tokens: 10, output_tokens: 5, cached_tokens: 0, ..Usage::default() },
        opaque: vec![OpaqueData { api: "test".into(), data: json!({"signature": "s"}) }],
        ..ModelResponse::default()
    }
}

/// Resolves `fs__read`, also as `read`, and the hand-off.
fn resolve(call: &RawToolCall) -> Option<ResolvedTool> {
    if call.name == HANDOFF {
        return Some(ResolvedTool { wire_name: HANDOFF.into(), definition: ContentHash::of_bytes(b"v1") });
    }
    let known = call.name.trim() == "fs__read" || call.name == "read";
    known.then(|| ResolvedTool { wire_name: "fs__read".into(), definition: ContentHash::of_bytes(b"v1") })
}

/// Returns the outcome of a hand-off: the destination's report, which becomes the run's.
fn handed_over(id: &CallId, answer: &str) -> Outcome {
    let report = json!({"status": "success", "format": "text", "content": answer});
    Outcome { tool: ToolId::try_parse(HANDOFF_ID), structured: Some(report), ..done(id, answer) }
}

fn done(id: &CallId, text: &str) -> Outcome {
    Outcome {
        ok: true,
        error: None,
        content: ToolOutput::text(text).content,
        tool: ToolId::try_parse("fs:read@1.0.0"),
        ..Outcome::failed(id.clone(), ToolError::new(ErrorKind::InternalError, ""))
    }
}

fn pending(id: &CallId) -> Outcome {
    let request = ApprovalRequest {
        run: None,
        call_id: id.clone(),
        session: SessionId::new("s"),
        principal: "owner".into(),
        tool: ToolId::parse("fs:read@1.0.0").expect("id"),
        definition: ContentHash::of_bytes(b"v1"),
        arguments: json!({}),
        binds_to: Some(ContentHash::of_value(&json!({}))),
        effects: Effects::WRITE,
        scope: toolwright_core::catalogue::CallScope::Anywhere,
        reason: "it writes".into(),
        tainted: Vec::new(),
        named: Vec::new(),
        asker: None,
        agents: Vec::new(),
    };
    Outcome { pending: Some(Box::new(request)), ..done(id, "") }
}

/// Saves and loads the state; the next step must be the same to the byte.
fn reload(state: &mut RunState) {
    let saved = serde_json::to_string(state).expect("save");
    let loaded = RunState::from_json(serde_json::from_str(&saved).expect("json")).expect("load");
    assert_eq!(&loaded, state);
    assert_eq!(serde_json::to_string(&loaded).expect("save"), saved);
    assert_eq!(format!("{:?}", loaded.step()), format!("{:?}", state.step()));
    *state = loaded;
}

fn model(state: &mut RunState, response: ModelResponse) {
    reload(state);
    state.on_model(response, &resolve).expect("model");
    legal(state);
}

fn request(state: &RunState) -> ModelRequest {
    match state.step() {
        Step::CallModel(request) => request,
        other => panic!("the model is not asked: {other:?}"),
    }
}

fn ids(state: &RunState) -> Vec<CallId> {
    match state.step() {
        Step::CallTools(batch) => batch.calls.into_iter().map(|call| call.id).collect(),
        other => panic!("no calls: {other:?}"),
    }
}

/// Answers every call to run with the same text.
fn answer(state: &mut RunState, text: &str) {
    reload(state);
    let outcomes = ids(state).iter().map(|id| done(id, text)).collect();
    state.on_tools(outcomes).expect("tools");
    legal(state);
}

fn result(state: &RunState) -> RunResult {
    match state.step() {
        Step::Done(result) => result,
        other => panic!("not over: {other:?}"),
    }
}

fn last_results(state: &RunState) -> Vec<CallResult> {
    let is_results = |message: &&Message| matches!(message, Message::Tool { .. });
    match state.messages().iter().rfind(is_results) {
        Some(Message::Tool { results }) => results.clone(),
        _ => panic!("no results"),
    }
}

fn text_of(message: &Message) -> String {
    match message {
        Message::User { content } => toolwright_core::content::joined_text(content),
        Message::Assistant { text, .. } => text.clone(),
        Message::Tool { results } => {
            results.iter().map(|r| toolwright_core::content::joined_text(&r.content)).collect()
        }
    }
}

/// Checks unique ids, one result per call in call order right after it, arguments that are objects, legal names, and
/// nothing empty. While calls are open, only the last message lacks its results.
fn legal(state: &RunState) {
    let mut seen = std::collections::HashSet::new();
    let messages = state.messages();
    for (index, message) in messages.iter().enumerate() {
        match message {
            Message::Assistant { text, calls, .. } => {
                assert!(!text.trim().is_empty() || !calls.is_empty(), "an empty answer");
                for call in calls {
                    assert!(!call.id.trim().is_empty() && seen.insert(&call.id), "id {:?}", call.id);
                    assert!(serde_json::from_str::<serde_json::Map<String, Value>>(&call.arguments).is_ok());
                    assert!(!call.name.is_empty() && call.name.len() <= 64);
                    assert!(
                        call.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'),
                        "{}",
                        call.name
                    );
                }
                let open = index + 1 == messages.len() && matches!(state.phase, Phase::Calls { .. });
                if !calls.is_empty() && !open {
                    let Some(Message::Tool { results }) = messages.get(index + 1) else {
                        panic!("dangling calls: {messages:?}")
                    };
                    let pairs = |id: &String, name: &String| (id.clone(), name.clone());
                    let called: Vec<_> = calls.iter().map(|call| pairs(&call.id, &call.name)).collect();
                    let answered: Vec<_> = results.iter().map(|result| pairs(&result.call_id, &result.name)).collect();
                    assert_eq!(called, answered);
                }
            }
            Message::Tool { results } => {
                let before = index.checked_sub(1).and_then(|before| messages.get(before));
                assert!(matches!(before, Some(Message::Assistant { calls, .. }) if calls.len() == results.len()));
                assert!(results.iter().all(|result| !result.content.is_empty()));
            }
            Message::User { content } => assert!(!content.is_empty()),
        }
    }
}
