//! Tests: answers that stream, break off or are cut, and calls that wait for permission.

use super::*;

fn under(dispatch: Dispatch, limits: Limits) -> RunState {
    RunState::new(RunConfig { dispatch, ..run_config(limits) }, vec![Message::user("task")])
}

fn written(id: &str, arguments: &str) -> RawToolCall {
    RawToolCall { id: id.into(), name: "read".into(), arguments: arguments.into() }
}

/// Streams the calls and starts those of the given indices.
fn stream(state: &mut RunState, calls: &[(&str, &str)], start: &[usize]) -> Vec<CallId> {
    let mut ids = Vec::new();
    for (index, (id, arguments)) in calls.iter().enumerate() {
        let call = state.on_call(written(id, arguments), &resolve).expect("waits for the model").expect("may start");
        if start.contains(&index) {
            state.start(&call.id).expect("is known");
            reload(state);
        }
        ids.push(call.id);
    }
    ids
}

fn batch(state: &RunState) -> (Vec<String>, Vec<String>) {
    let Step::CallTools(batch) = state.step() else { panic!("{:?}", state.step()) };
    let text = |id: &CallId| id.to_string();
    (batch.calls.iter().map(|call| text(&call.id)).collect(), batch.started.iter().map(text).collect())
}

#[test]
fn a_started_call_keeps_its_place() {
    let mut state = under(Dispatch::Streaming, Limits::default());
    let ids = stream(&mut state, &[("a", "{}"), ("a", "{\"n\":1}"), ("", "{}")], &[1]);
    assert_eq!(ids.iter().map(CallId::as_str).collect::<Vec<_>>(), ["a", "call_1_2", "call_1_3"]);
    model(&mut state, response("", &[("a", "read", "{}"), ("a", "read", "{\"n\":1}"), ("", "read", "{}")]));
    assert_eq!(batch(&state), (vec!["a".into(), "call_1_3".into()], vec!["call_1_2".into()]));
    let outcomes = ["call_1_3", "call_1_2", "a"].map(|id| done(&CallId::new(id), id));
    state.on_tools(outcomes.into()).expect("all three");
    let messages = request(&state).messages;
    let Message::Tool { results } = &messages[2] else { panic!("{messages:?}") };
    assert_eq!(results.iter().map(|result| result.call_id.as_str()).collect::<Vec<_>>(), ["a", "call_1_2", "call_1_3"]);
}

#[test]
fn a_broken_answer_keeps_only_its_started_calls() {
    let mut state = under(Dispatch::Streaming, Limits::default());
    stream(&mut state, &[("a", "{}"), ("b", "{}")], &[0]);
    let mut error = ModelError::new(ModelErrorKind::BadResponse, "cut");
    error.partial = Some(Box::new(response("looking", &[("a", "read", "{}"), ("b", "read", "{}")])));
    state.on_model_error(&error).expect("waits for the model");
    reload(&mut state);
    assert_eq!(batch(&state), (Vec::new(), vec!["a".to_owned()]));
    state.on_tools(vec![done(&CallId::new("a"), "found")]).expect("it ran");
    let messages = request(&state).messages;
    assert!(
        matches!(&messages[1], Message::Assistant { text, calls, opaque } if text == "looking" && calls.len() == 1 && opaque.len() == 1)
    );
    let Message::Tool { results } = &messages[2] else { panic!("{messages:?}") };
    let text = toolwright_core::content::joined_text(&results[0].content);
    assert!(results.len() == 1 && text.contains("found") && text.contains("was lost"), "{text}");
    assert_eq!((state.turns(), state.report().usage.input_tokens), (1, 10));
}

#[test]
fn a_broken_answer_without_started_calls_fails() {
    let mut state = under(Dispatch::Streaming, Limits::default());
    stream(&mut state, &[("a", "{}")], &[]);
    state.on_model_error(&ModelError::new(ModelErrorKind::BadResponse, "cut")).expect("waits for the model");
    assert_eq!(state.report().status, Status::Failure);
    assert!(state.reopen());
    assert_eq!(request(&state).messages.len(), 1);
}

#[test]
fn a_cancel_answers_started_calls() {
    let mut state = under(Dispatch::Streaming, Limits::default());
    stream(&mut state, &[("a", "{}"), ("b", "{}")], &[0]);
    state.cancel(CancelCause::User);
    assert_eq!((state.report().status, state.report().calls.len()), (Status::Cancelled, 1));
    assert_eq!(state.messages().len(), 3);
}

#[test]
fn limits_and_last_turns_start_nothing() {
    let mut state = under(Dispatch::Streaming, Limits { calls: Some(1), ..Limits::default() });
    assert!(state.on_call(written("a", "{}"), &resolve).expect("model").is_some());
    assert!(state.on_call(written("b", "{}"), &resolve).expect("model").is_none());
    let mut last = under(Dispatch::Streaming, turns(1));
    assert!(last.on_call(written("a", "{}"), &resolve).expect("model").is_none());
    assert!(last.start(&CallId::new("zzz")).is_err());
    let mut plain = begin(Limits::default());
    assert!(plain.on_call(written("a", "{}"), &resolve).expect("model").is_none());
}

#[test]
fn manual_calls_wait_for_dispatch_or_outcomes() {
    let mut state = under(Dispatch::Manual, Limits::default());
    model(&mut state, response("", &[("a", "read", "{\"n\":1}"), ("b", "read", "{}")]));
    reload(&mut state);
    let Step::AwaitDispatch(held) = state.step() else { panic!("{:?}", state.step()) };
    assert_eq!(held.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let report = state.report();
    assert_eq!((report.status, report.held[0].tool.as_str()), (Status::Suspended, "fs__read"));
    assert_eq!(report.to_json()["held"][0]["arguments"], json!({"n": 1}));
    state.on_tools(vec![done(&CallId::new("a"), "from elsewhere")]).expect("the caller ran it");
    assert!(state.dispatch());
    assert_eq!(batch(&state), (vec!["b".to_owned()], Vec::new()));
    assert!(!state.dispatch());
    state.on_tools(vec![done(&CallId::new("b"), "x")]).expect("ran");
    assert_eq!(request(&state).messages.len(), 3);
}

fn cut(text: &str, calls: &[(&str, &str, &str)]) -> ModelResponse {
    ModelResponse { stop: StopReason::MaxTokens, ..response(text, calls) }
}

#[test]
fn an_answer_cut_before_calls_gets_a_notice() {
    let mut state = begin(Limits::default());
    model(&mut state, cut("", &[]));
    let text = text_of(request(&state).messages.last().expect("message"));
    assert!(text.contains("cut at its token limit") && text.contains("shorter") && !text.contains("empty"), "{text}");

    let mut shorter = state.clone();
    model(&mut shorter, response("", &[("a", "fs__read", "{}")]));
    answer(&mut shorter, "read");
    model(&mut shorter, cut(" ", &[]));
    assert!(matches!(shorter.step(), Step::CallModel(_)), "progress earns another word");

    model(&mut state, cut("", &[]));
    let end = result(&state);
    assert!(end.status == Status::Partial && end.reason.is_some_and(|why| why.contains("cut at its token limit")));
}

#[test]
fn an_answer_cut_after_calls_gets_a_notice() {
    let mut state = begin(Limits::default());
    model(&mut state, cut("", &[("a", "fs__read", "{}"), ("b", "fs__read", "{}")]));
    answer(&mut state, "read");
    let texts: Vec<String> =
        last_results(&state).iter().map(|result| toolwright_core::content::joined_text(&result.content)).collect();
    assert!(texts[0] == "read" && texts[1].contains("cut at its token limit"), "{texts:?}");

    let mut refused = begin(Limits { calls: Some(1), ..Limits::default() });
    model(&mut refused, cut("", &[("a", "fs__read", "{}"), ("b", "fs__read", "{}")]));
    answer(&mut refused, "read");
    assert!(text_of(&refused.messages()[2]).contains("cut at its token limit"), "also after a refused call");
}

#[test]
fn an_answer_beside_calls_counts_once_all_succeed() {
    // Whether the first and the second of the calls succeed.
    for (ok, counts) in [([true, true], true), ([true, false], false), ([false, true], false)] {
        let mut state = RunState::new(run_config(Limits::default()), vec![Message::user("task")]);
        let calls = [("a", "fs__read", "{}"), ("b", "fs__read", r#"{"path": "b"}"#)];
        model(&mut state, ModelResponse { is_final: true, ..response("Done.", &calls) });
        assert!(matches!(state.step(), Step::CallTools(_)));
        let ended = ["a", "b"].into_iter().zip(ok).map(|(id, ok)| match ok {
            true => done(&CallId::new(id), "text"),
            false => Outcome::failed(CallId::new(id), ToolError::new(ErrorKind::ExecutionError, "no such file")),
        });
        state.on_tools(ended.collect()).expect("tools");
        if !counts {
            assert!(matches!(state.step(), Step::CallModel(_)), "{ok:?}: the model hears of it");
            assert!(last_results(&state).iter().any(|result| result.is_error), "{ok:?}");
            model(&mut state, response("It failed.", &[]));
        }
        let ended = result(&state);
        let answer = if counts { "Done." } else { "It failed." };
        assert_eq!((ended.status, ended.answer.as_str()), (Status::Success, answer), "{ok:?}");
    }
}
