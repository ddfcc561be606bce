//! Hand-off: the destination's answer is the run's, one agent answers, and every API accepts each conversation.

use std::sync::Arc;

use proptest::prelude::*;
use toolwright_core::agents::handoff::Handoff;
use toolwright_core::agents::{AgentConfig, History};
use toolwright_core::model::RequestTool;
use toolwright_models::{Api, encode};
use toolwright_testkit::model_server::WireApi;

use super::legality::{apply, random_event};
use super::*;
use crate::report::ReportConfig;

const APIS: [(WireApi, Api); 5] = [
    (WireApi::OpenAi, Api::OpenAiChat),
    (WireApi::Responses, Api::OpenAiResponses),
    (WireApi::Anthropic, Api::Anthropic),
    (WireApi::Gemini, Api::Gemini),
    (WireApi::Ollama, Api::Ollama),
];

/// Returns an answer of the model with the reasoning data that this API requires back.
fn with_reasoning(message: Message, api: Api) -> Message {
    let data = match api {
        Api::OpenAiResponses => json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}),
        Api::Anthropic => json!({"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmF0dXJl"}),
        _ => return message,
    };
    match message {
        Message::Assistant { text, calls, opaque } if !opaque.is_empty() => {
            Message::Assistant { text, calls, opaque: vec![OpaqueData { api: api.as_str().into(), data }] }
        }
        other => other,
    }
}

/// An agent with two destinations.
fn triage() -> RunConfig {
    let router = serde_json::from_value(json!({"destinations": ["billing", "legal"]})).expect("destinations");
    let agent = AgentConfig { router, ..AgentConfig::default() };
    RunConfig { agent: Some(Arc::new(agent)), ..run_config(turns(5)) }
}

/// Returns the reasons why an API would refuse the conversation.
fn refusals(messages: &[Message]) -> Vec<String> {
    let tool = |name: &str| RequestTool {
        name: name.to_owned(),
        description: "A tool".into(),
        parameters: json!({"type": "object", "properties": {}}),
        ..RequestTool::default()
    };
    let asked = |api: Api| ModelRequest {
        system: "be brief".into(),
        messages: messages.iter().cloned().map(|message| with_reasoning(message, api)).collect(),
        tools: [tool("fs__read"), tool(HANDOFF)].into(),
        max_tokens: Some(100),
        ..ModelRequest::default()
    };
    let refusal = |(wire, api): (WireApi, Api)| {
        let encoded = encode(api, &asked(api), "m");
        let body = encoded.body();
        wire.check(&body).err().map(|why| format!("{wire:?}: {why}\n{body:#}"))
    };
    APIS.into_iter().filter_map(refusal).collect()
}

#[test]
fn the_destinations_answer_is_the_runs() {
    let mut state = begin(turns(5));
    state.on_model(response("", &[("1", "read", "{}"), ("2", HANDOFF, "{}")]), &resolve).expect("calls");
    let Step::CallTools(batch) = state.step() else { panic!("{:?}", state.step()) };
    let outcomes = vec![done(&batch.calls[0].id, "four"), handed_over(&batch.calls[1].id, "Refunded.")];
    state.on_tools(outcomes).expect("outcomes");
    let Step::Done(result) = state.step() else { panic!("{:?}", state.step()) };
    assert_eq!((result.status, result.answer.as_str()), (Status::Success, "Refunded."));
}

#[test]
fn a_handed_back_request_continues() {
    let mut state = begin(turns(5));
    state.on_model(response("", &[("1", HANDOFF, "{}")]), &resolve).expect("calls");
    let Step::CallTools(batch) = state.step() else { panic!("{:?}", state.step()) };
    let back = Outcome { structured: None, ..handed_over(&batch.calls[0].id, "Not for me.") };
    state.on_tools(vec![back]).expect("outcome");
    assert!(state.waits_for_model(), "{:?}", state.step());
}

#[test]
fn the_first_of_several_hand_offs_counts() {
    for dispatch in [Dispatch::TurnEnd, Dispatch::Streaming, Dispatch::Manual] {
        let config = RunConfig { dispatch, ..triage() };
        let mut state = RunState::new(config, vec![Message::user("task")]);
        let calls =
            [("1", HANDOFF, r#"{"agent":"billing"}"#), ("2", HANDOFF, r#"{"agent":"legal"}"#), ("3", "read", "{}")];
        let answer = response("", &calls);
        if dispatch == Dispatch::Streaming {
            for call in &answer.calls {
                let starts = state.on_call(call.clone(), &resolve).expect("streams");
                assert_eq!(starts.is_some(), call.id != "2", "{call:?}");
                starts.into_iter().for_each(|call| state.start(&call.id).expect("starts"));
            }
        }
        state.on_model(answer, &resolve).expect("calls");
        state.dispatch();
        let Step::CallTools(batch) = state.step() else { panic!("{:?}", state.step()) };
        let mut ids: Vec<CallId> = batch.calls.iter().map(|call| call.id.clone()).chain(batch.started).collect();
        ids.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        assert_eq!(ids, [CallId::new("1"), CallId::new("3")], "{dispatch:?}");
        state.on_tools(vec![handed_over(&ids[0], "Refunded."), done(&ids[1], "four")]).expect("outcomes");
        let Some(Message::Tool { results }) = state.messages().last() else { panic!("no results") };
        assert_eq!(results.len(), 3, "each call has its answer");
        assert!(
            results[1].is_error
                && text_of(&Message::Tool { results: vec![results[1].clone()] }).contains("first hand-off")
        );
        assert_eq!(state.report().answer, "Refunded.");
    }
}

#[test]
fn valid_handoffs_count_before_invalid_ones() {
    for dispatch in [Dispatch::TurnEnd, Dispatch::Streaming] {
        let mut state = RunState::new(RunConfig { dispatch, ..triage() }, vec![Message::user("task")]);
        let answer = response("", &[("1", HANDOFF, r#"{"agent":"biling"}"#), ("2", HANDOFF, r#"{"agent":"billing"}"#)]);
        if dispatch == Dispatch::Streaming {
            // What is invalid the driver does not start.
            answer.calls.iter().for_each(|call| drop(state.on_call(call.clone(), &resolve).expect("streams")));
        }
        state.on_model(answer, &resolve).expect("calls");
        let Step::CallTools(batch) = state.step() else { panic!("{:?}", state.step()) };
        assert_eq!(batch.calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["2"]);
        state.on_tools(vec![handed_over(&batch.calls[0].id, "Refunded.")]).expect("outcome");
        let report = state.report();
        assert_eq!((report.status, report.answer.as_str()), (Status::Success, "Refunded."));
        let error = report.calls[0].error.as_ref().expect("it was refused");
        assert_eq!((error.kind, &*error.message), (ErrorKind::InvalidParameters, "there is no destination `biling`"));
    }
}

#[test]
fn the_destinations_report_ends_the_run() {
    let mut config = run_config(turns(5));
    config.agent_tools.report = Some(ReportConfig::default());
    let mut state = RunState::new(config, vec![Message::user("task")]);
    state.on_model(response("", &[("1", HANDOFF, "{}")]), &resolve).expect("calls");
    let Step::CallTools(batch) = state.step() else { panic!("{:?}", state.step()) };
    state.on_tools(vec![handed_over(&batch.calls[0].id, "Refunded.")]).expect("outcome");
    assert_eq!(state.report().final_report.and_then(|report| report.content).as_deref(), Some("Refunded."));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn handed_over_conversations_fit_every_api(events in proptest::collection::vec(random_event(), 0..30)) {
        let mut state = begin(turns(20));
        for event in events {
            apply(&mut state, event);
            if let Step::CallModel(request) = state.step() {
                prop_assert!(refusals(&request.messages).is_empty(), "{:#?}", refusals(&request.messages));
            }
            if let Step::CallTools(batch) = state.step() {
                let handoffs = batch.calls.iter().filter(|call| call.name == HANDOFF).count();
                prop_assert!(handoffs < 2, "{batch:?}");
            }
        }
        let conversation = state.conversation();
        for history in [History::All, History::UserMessages, History::Last, History::Summary] {
            for may_return in [true, false] {
                let task = Handoff { from: "a", message: "", history, may_return }.task(&conversation, None);
                prop_assert!(task.contains("The user's request:"), "{task}");
                let destination = RunState::new(run_config(turns(5)), vec![Message::user(task)]);
                prop_assert!(refusals(destination.messages()).is_empty(), "{:#?}", refusals(destination.messages()));
            }
        }
    }
}
