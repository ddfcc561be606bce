//! Calls of the client's own tools.

use serde_json::json;
use toolwright_core::ContentBlock;
use toolwright_core::model::{CallResult, Message, ModelResponse, RawToolCall, RequestTool};
use toolwright_core::outcome::Outcome;
use toolwright_core::session::CallId;

use crate::run::{ClientRunOptions, ResolvedTool, RunConfig, RunState, Step};
use toolwright_core::canonical::ContentHash;

fn call(id: &str, name: &str) -> RawToolCall {
    RawToolCall { id: id.into(), name: name.into(), arguments: "{}".into() }
}

fn resolve(call: &RawToolCall) -> Option<ResolvedTool> {
    Some(ResolvedTool { wire_name: call.name.clone(), definition: ContentHash::of_value(&json!(1)) })
}

fn begun() -> RunState {
    let tool = RequestTool { name: "look".into(), parameters: json!({}), ..RequestTool::default() };
    let client = ClientRunOptions { tools: vec![tool], ..ClientRunOptions::default() };
    let config = RunConfig { client, ..RunConfig::new("p/m", "") };
    let mut state = RunState::new(config, vec![Message::user("q")]);
    let calls = vec![call("a", "look"), call("b", "own"), call("c", "look")];
    state.on_model(ModelResponse { calls, ..ModelResponse::default() }, &resolve).expect("an answer");
    state
}

fn ids(calls: &[RawToolCall]) -> Vec<&str> {
    calls.iter().map(|call| call.id.as_str()).collect()
}

#[test]
fn client_calls_wait_while_others_run() {
    let mut state = begun();
    let Step::CallTools(batch) = state.step() else { panic!("{:?}", state.step()) };
    assert_eq!(batch.calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["b"]);
    let mut outcome = Outcome::failed(
        CallId::new("b"),
        toolwright_core::ToolError::new(toolwright_core::error::ErrorKind::InternalError, "x"),
    );
    (outcome.ok, outcome.error) = (true, None);
    outcome.content = vec![ContentBlock::text("ran")];
    state.on_tools(vec![outcome]).expect("it waits");
    assert!(matches!(state.step(), Step::AwaitDispatch(held) if held.len() == 2));
    assert_eq!(ids(&state.client_calls()), ["a", "c"]);
    // Permission to run does not make them run here.
    state.dispatch();
    state.add_messages(vec![Message::user("and now?")]).expect("calls wait");
    let mut state = RunState::from_json(state.to_json().expect("json")).expect("saved");
    assert_eq!(ids(&state.client_calls()), ["a", "c"]);
    let result = CallResult { call_id: "c".into(), content: vec![ContentBlock::text("seen")], ..CallResult::default() };
    state.answer_client(vec![result]).expect("they wait");
    assert!(matches!(state.step(), Step::CallModel(_)));
    let [.., Message::Tool { results }, Message::User { .. }] = state.messages() else {
        panic!("{:?}", state.messages())
    };
    let ended: Vec<_> = results.iter().map(|result| (result.call_id.as_str(), result.is_error)).collect();
    assert_eq!(ended, [("a", true), ("b", false), ("c", false)]);
    assert!(state.answer_client(Vec::new()).is_err(), "each call is answered once");
}

#[test]
fn client_tools_hide_those_of_their_name() {
    let shown = |name: &str, description: &str| RequestTool {
        name: name.into(),
        description: description.into(),
        ..RequestTool::default()
    };
    let client = ClientRunOptions { tools: vec![shown("a", "client's")], ..ClientRunOptions::default() };
    let both = client.with_tools(&[shown("a", "ours"), shown("b", "ours")]);
    let both: Vec<_> = both.iter().map(|tool| (tool.name.as_str(), tool.description.as_str())).collect();
    assert_eq!(both, [("b", "ours"), ("a", "client's")]);
}
