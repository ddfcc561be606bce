//! Tests: each transition of the state machine.

use super::*;

#[test]
fn a_run_answers_its_task() {
    let mut state = begin(Limits::default());
    let first = request(&state);
    assert_eq!((first.system.as_str(), first.messages.len(), first.max_tokens), ("be brief", 1, Some(100)));
    model(&mut state, response("looking", &[("a", "fs__read", r#"{"path": "x"}"#), ("b", "nope", "{}")]));
    let ids = ids(&state);
    state.on_tools(vec![done(&ids[1], "two")]).expect("part");
    reload(&mut state);
    assert!(matches!(state.step(), Step::CallTools(batch) if batch.calls.len() == 1), "the other one stays to run");
    state.on_tools(vec![done(&ids[0], "one")]).expect("rest");
    assert_eq!(last_results(&state).iter().map(|r| r.call_id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    model(&mut state, response("the answer", &[]));
    assert_eq!(result(&state), RunResult { status: Status::Success, answer: "the answer".into(), reason: None });
    let report = state.report();
    assert_eq!((report.turns, report.calls.len(), report.usage.input_tokens), (2, 2, 20));
    let value = report.to_json();
    let keys: Vec<_> = value.as_object().expect("object").keys().map(String::as_str).collect();
    assert_eq!(keys, ["status", "answer", "turns", "calls", "usage", "cost_usd"]);
    assert_eq!(value["calls"][0]["tool"], "fs:read@1.0.0");
    assert_eq!(value["calls"][0]["arguments"], json!({"path": "x"}));
}

#[test]
fn replayed_calls_are_legal_and_run_as_written() {
    for (written, wire) in
        [("read", "fs__read"), (" fs__read", "fs__read"), ("get file!", "get_file_"), ("", "_"), ("9x", "_9x")]
    {
        for (arguments, replayed) in [
            (r#" {"b": 1.0, "a": "é"} "#, r#" {"b": 1.0, "a": "é"} "#),
            ("", "{}"),
            ("null", "{}"),
            (r#""""#, "{}"),
            (r#""{\"a\": 1}""#, r#"{"a":1}"#),
            (r#"{'a': 1, "b": [2"#, r#"{"a":1,"b":[2]}"#),
            ("a is 1", r#"{"unparsed":"a is 1"}"#),
            ("[1]", r#"{"unparsed":"[1]"}"#),
        ] {
            let mut state = begin(Limits::default());
            model(&mut state, response("", &[("a", written, arguments)]));
            let Step::CallTools(batch) = state.step() else { panic!("no calls") };
            assert_eq!(batch.calls[0].name, written);
            assert_eq!(batch.calls[0].arguments, toolwright_core::RawArguments::Text(arguments.to_owned()));
            answer(&mut state, "x");
            let Message::Assistant { calls, opaque, .. } = &request(&state).messages[1] else { panic!("no calls") };
            assert_eq!((calls[0].name.as_str(), calls[0].arguments.as_str()), (wire, replayed));
            assert_eq!(opaque.len(), 1);
        }
    }
}

#[test]
fn ids_are_made_unique_deterministically() {
    let mut state = begin(Limits::default());
    let calls: Vec<_> = ["", "a", "a", " ", "call_1_1"].iter().map(|id| (*id, "read", "{}")).collect();
    model(&mut state, response("", &calls));
    assert_eq!(
        ids(&state).iter().map(CallId::as_str).collect::<Vec<_>>(),
        ["call_1_1", "a", "call_1_3", "call_1_4", "call_1_5"]
    );
    answer(&mut state, "x");
    model(&mut state, response("", &[("a", "read", "{}")]));
    assert_eq!(ids(&state)[0].as_str(), "call_2_1", "an id of an earlier turn is taken too");
}

#[test]
fn results_without_content_are_marked() {
    for (content, structured, expect) in [
        (vec![], None, "(no output)"),
        (vec![ContentBlock::text(" ")], None, "(no output)"),
        (vec![], Some(json!({"n": 1})), r#"{"n":1}"#),
        (vec![ContentBlock::text("x")], Some(json!(1)), "x"),
    ] {
        let mut state = begin(Limits::default());
        model(&mut state, response("", &[("a", "read", "{}")]));
        let outcome = Outcome { content, structured, ..done(&CallId::new("a"), "") };
        state.on_tools(vec![outcome]).expect("tools");
        assert_eq!(toolwright_core::content::joined_text(&last_results(&state)[0].content), expect);
    }
}

#[test]
fn a_pending_call_waits_and_others_are_kept() {
    for (decision, runs, is_error, text) in [
        (ApprovalDecision::Approve, true, false, "ran"),
        (ApprovalDecision::Always, true, false, "ran"),
        (ApprovalDecision::Deny { reason: "not today".into() }, false, true, "(tool failed: denied: not today)"),
        (ApprovalDecision::Skip, false, false, "skipped by the user"),
    ] {
        let mut state = begin(Limits::default());
        model(&mut state, response("", &[("a", "read", "{}"), ("b", "read", "{}")]));
        let (a, b) = (CallId::new("a"), CallId::new("b"));
        state.on_tools(vec![pending(&a), done(&b, "kept")]).expect("tools");
        reload(&mut state);
        assert!(matches!(state.step(), Step::AwaitApproval(asked) if asked.len() == 1 && asked[0].call_id == a));
        assert_eq!(
            (state.report().status, state.report().calls.len(), state.report().pending.len()),
            (Status::Suspended, 1, 1)
        );
        state.on_approvals(vec![(a.clone(), ApprovalDecision::Later)]).expect("later");
        assert!(matches!(state.step(), Step::AwaitApproval(_)));
        state.on_approvals(vec![(a.clone(), decision.clone())]).expect("decided");
        reload(&mut state);
        if runs {
            let Step::CallTools(batch) = state.step() else { panic!("{:?}", state.step()) };
            assert_eq!((batch.calls.len(), &batch.calls[0].id, &batch.grants[0].decision), (1, &a, &decision));
            state.on_tools(vec![done(&a, "ran")]).expect("tools");
        }
        legal(&state);
        let results = last_results(&state);
        assert_eq!(
            (results[0].is_error, text_of(&Message::Tool { results: results.clone() }).contains(text)),
            (is_error, true),
            "{results:?}"
        );
        assert_eq!(results[1].content, [ContentBlock::text("kept")]);
    }
}

#[test]
fn a_pending_call_can_be_asked_about_again() {
    let mut state = begin(Limits::default());
    model(&mut state, response("", &[("a", "read", "{}")]));
    state.on_tools(vec![pending(&CallId::new("a"))]).expect("tools");
    state.ask_again();
    assert!(matches!(state.step(), Step::CallTools(batch) if batch.grants.is_empty()));
}

#[test]
fn the_turn_limit_warns_then_ends_partially() {
    let mut state = begin(turns(3));
    for turn in 1..=3 {
        let asked = request(&state);
        let notice = text_of(asked.messages.last().expect("message"));
        assert_eq!(notice.contains("Two turns are left"), turn == 2, "{notice}");
        assert_eq!(notice.contains("last turn"), turn == 3, "{notice}");
        assert_eq!(asked.tool_choice == ToolChoice::None, turn == 3);
        model(&mut state, response(&format!("step {turn}"), &[("x", "read", &format!(r#"{{"n": {turn}}}"#))]));
        if turn < 3 {
            answer(&mut state, "r");
        }
    }
    let end = result(&state);
    assert_eq!((end.status, end.answer.as_str()), (Status::Partial, "step 3"));
    assert_eq!(end.reason.as_deref(), Some("the limit of 3 turns was reached"));
    assert_eq!(state.report().calls[2].error.as_ref().expect("refused").kind, ErrorKind::LimitExceeded);
}

#[test]
fn an_answer_in_the_last_turn_succeeds() {
    let mut state = begin(turns(0));
    model(&mut state, response("done", &[]));
    assert_eq!(result(&state).status, Status::Success);
}

#[test]
fn calls_over_the_limit_do_not_run() {
    let mut state = begin(Limits { calls: Some(2), ..Limits::default() });
    model(&mut state, response("", &[("a", "read", "{}"), ("b", "read", "{}"), ("c", "read", "{}")]));
    assert_eq!(ids(&state).len(), 2);
    answer(&mut state, "r");
    assert!(last_results(&state)[2].is_error);
    assert_eq!(request(&state).tool_choice, ToolChoice::None);
    model(&mut state, response("", &[("d", "read", "{}")]));
    let end = result(&state);
    assert_eq!((end.status, end.reason.as_deref()), (Status::Partial, Some("the limit of 2 calls was reached")));
    assert!(end.answer.contains("Calls made: 4, of which failed: 2"), "{}", end.answer);
}

#[test]
fn tokens_and_time_end_a_run() {
    let mut state = begin(Limits { tokens: Some(15), ..Limits::default() });
    model(&mut state, response("", &[("a", "read", "{}")]));
    answer(&mut state, "r");
    assert_eq!(result(&state).reason.as_deref(), Some("the limit of 15 tokens was reached"));

    let mut state = begin(Limits { time: Some(Duration::from_secs(2)), ..Limits::default() });
    model(&mut state, response("", &[("a", "read", "{}")]));
    state.on_elapsed(Duration::from_millis(1999));
    reload(&mut state);
    assert_eq!(state.time_left(), Some(Duration::from_millis(1)));
    state.on_elapsed(Duration::from_millis(1));
    legal(&state);
    let end = result(&state);
    assert_eq!((end.status, end.reason.as_deref()), (Status::Partial, Some("the time limit of 2s was reached")));
    assert!(last_results(&state)[0].is_error);
}

#[test]
fn one_notice_warns_of_token_and_time_limits() {
    // The turns after which there is a notice.
    let notices = |limits: Limits, elapsed: u64, turns: usize| -> Vec<usize> {
        let mut state = begin(limits);
        let mut notices = Vec::new();
        for turn in 1..=turns {
            let arguments = format!("{{\"n\": {turn}}}");
            model(&mut state, response("", &[("a", "read", &arguments)]));
            state.on_elapsed(Duration::from_millis(elapsed));
            answer(&mut state, &format!("r{turn}"));
            reload(&mut state);
            if text_of(request(&state).messages.last().expect("message")).contains("Four fifths of the") {
                notices.push(turn);
            }
        }
        notices
    };
    // Each turn takes 15 tokens.
    let tokens = |tokens: u64| Limits { tokens: Some(tokens), ..Limits::default() };
    assert_eq!(notices(tokens(200), 0, 13), [11]);
    assert_eq!(notices(tokens(200), 0, 10), [0; 0]);
    let second = Limits { time: Some(Duration::from_secs(1)), ..Limits::default() };
    assert_eq!(notices(second.clone(), 150, 5), [0; 0]);
    assert_eq!(notices(second, 160, 6), [5]);
}

#[test]
fn the_loop_guard_warns_then_stops() {
    let mut state = begin(Limits::default());
    for turn in 1..=4 {
        // A different key order does not make a different call, and equal calls in a turn count once.
        let arguments = if turn % 2 == 0 { r#"{"a":1,"b":2}"# } else { r#"{"b":2, "a":1}"# };
        model(&mut state, response("", &[("", "read", arguments), ("", "fs__read", arguments)]));
        answer(&mut state, "same");
        let warned = last_results(&state).iter().filter(|result| result.content.len() == 2).count();
        assert_eq!(warned, if turn == 3 { 2 } else { 0 }, "turn {turn}");
    }
    let end = result(&state);
    assert_eq!(end.status, Status::Partial);
    assert!(end.reason.expect("reason").contains("loop guard"));
}

#[test]
fn alternating_calls_are_a_loop_progress_is_not() {
    let run = |outputs: &dyn Fn(usize) -> (String, String)| -> usize {
        let mut state = begin(Limits::default());
        for turn in 0..12 {
            let (arguments, output) = outputs(turn);
            model(&mut state, response("", &[("", "read", &arguments)]));
            answer(&mut state, &output);
            if matches!(state.step(), Step::Done(_)) {
                return turn;
            }
        }
        12
    };
    let check = |turn: usize| (format!(r#"{{"n":{}}}"#, turn % 2), "same".to_owned());
    assert_eq!(run(&check), 7, "two calls without progress");
    let edit_and_test = |turn: usize| {
        if turn.is_multiple_of(2) {
            ("{}".to_owned(), "ok".to_owned())
        } else {
            (format!(r#"{{"n":{turn}}}"#), "ok".to_owned())
        }
    };
    assert_eq!(run(&edit_and_test), 12, "the same test after each edit");
    assert_eq!(run(&|turn| ("{}".to_owned(), turn.to_string())), 12, "results that change");
}

#[test]
fn an_empty_answer_gets_one_corrective_turn() {
    let mut state = begin(Limits::default());
    model(&mut state, response("  ", &[]));
    assert!(text_of(request(&state).messages.last().expect("message")).contains("empty"));
    let mut corrected = state.clone();
    model(&mut corrected, response("fine", &[]));
    assert_eq!(result(&corrected).status, Status::Success);
    model(&mut state, response("", &[]));
    assert_eq!(result(&state).status, Status::Failure);
}

#[test]
fn the_stop_reason_decides_the_status() {
    for (stop, text, status) in [
        (StopReason::End, "x", Status::Success),
        (StopReason::Other("pause".into()), "x", Status::Success),
        (StopReason::MaxTokens, "x", Status::Partial),
        (StopReason::Refusal, "x", Status::Failure),
        (StopReason::Refusal, "", Status::Failure),
    ] {
        let mut state = begin(Limits::default());
        model(&mut state, ModelResponse { stop: stop.clone(), ..response(text, &[]) });
        assert_eq!(result(&state).status, status, "{stop:?}");
    }
}

#[test]
fn a_failed_model_request_fails_the_run() {
    let mut state = begin(Limits::default());
    state.on_model_error(&ModelError::new(ModelErrorKind::Auth, "the key is refused")).expect("error");
    let end = result(&state);
    assert_eq!((end.status, end.answer.contains("the key is refused")), (Status::Failure, true));
}

#[test]
fn a_cancel_leaves_no_call_without_a_result() {
    for (cause, status) in [
        (CancelCause::User, Status::Cancelled),
        (CancelCause::Shutdown, Status::Cancelled),
        (CancelCause::RunLimit, Status::Partial),
    ] {
        let mut state = begin(Limits::default());
        model(&mut state, response("", &[("a", "read", "{}"), ("b", "read", "{}"), ("c", "read", "{}")]));
        state.on_tools(vec![done(&CallId::new("b"), "kept"), pending(&CallId::new("c"))]).expect("tools");
        state.cancel(cause);
        legal(&state);
        reload(&mut state);
        assert_eq!(result(&state).status, status);
        assert_eq!(last_results(&state).iter().map(|r| r.is_error).collect::<Vec<_>>(), [true, false, true]);
        let before = state.clone();
        state.cancel(CancelCause::User);
        assert_eq!(state, before, "what is over stays as it is");
        state.continue_with(vec![ContentBlock::text("go on")]).expect("continue");
        assert_eq!(request(&state).messages.len(), 4);
    }
}

#[test]
fn an_interrupted_model_request_is_repeated() {
    type Interrupt = fn(&mut RunState);
    let cancelled: Interrupt = |state| state.cancel(CancelCause::User);
    let stopped: Interrupt = |state| state.cancel(CancelCause::Shutdown);
    let failed: Interrupt =
        |state| state.on_model_error(&ModelError::new(ModelErrorKind::Unavailable, "down")).expect("error");
    for interrupt in [cancelled, stopped, failed] {
        // With three turns there is a notice before the second.
        let mut state = begin(turns(3));
        model(&mut state, response("", &[("a", "read", "{}")]));
        answer(&mut state, "r");
        state.on_elapsed(Duration::from_secs(1));
        let before = state.clone();
        interrupt(&mut state);
        reload(&mut state);
        assert!(state.is_over() && state.reopen());
        assert_eq!(state, before);
        assert!(!state.reopen(), "it is open");
    }
}

#[test]
fn a_run_interrupted_during_calls_continues() {
    let mut state = begin(turns(3));
    model(&mut state, response("", &[("a", "read", "{}"), ("b", "read", "{}")]));
    state.on_tools(vec![done(&CallId::new("b"), "kept")]).expect("tools");
    state.cancel(CancelCause::User);
    reload(&mut state);
    assert!(state.reopen());
    legal(&state);
    assert_eq!(last_results(&state).iter().map(|r| r.is_error).collect::<Vec<_>>(), [true, false]);
    assert!(text_of(request(&state).messages.last().expect("message")).contains("Two turns are left"));
    model(&mut state, response("done", &[]));
    assert_eq!((result(&state).status, state.report().turns, state.report().calls.len()), (Status::Success, 2, 2));
}

#[test]
fn usage_before_an_interruption_stays_counted() {
    let mut state = begin(Limits { tokens: Some(15), time: Some(Duration::from_secs(2)), ..Limits::default() });
    model(&mut state, response("", &[("a", "read", "{}")]));
    state.on_elapsed(Duration::from_secs(1));
    state.cancel(CancelCause::User);
    assert!(state.reopen());
    assert_eq!(state.time_left(), Some(Duration::from_secs(1)));
    assert_eq!(result(&state).reason.as_deref(), Some("the limit of 15 tokens was reached"));
}

#[test]
fn a_finished_run_stays_ended() {
    let ended = |limits: Limits, end: &dyn Fn(&mut RunState)| {
        let mut state = begin(limits);
        end(&mut state);
        let before = state.clone();
        assert!(state.is_over() && !state.reopen());
        assert_eq!(state, before);
    };
    ended(Limits::default(), &|state| model(state, response("x", &[])));
    ended(Limits::default(), &|state| {
        model(state, ModelResponse { stop: StopReason::Refusal, ..response("", &[]) });
    });
    ended(turns(1), &|state| model(state, response("", &[("a", "read", "{}")])));
    let time = Some(Duration::from_secs(1));
    ended(Limits { time, ..Limits::default() }, &|state| state.on_elapsed(Duration::from_secs(1)));
}

#[test]
fn a_continued_conversation_has_fresh_counters() {
    let mut state = begin(turns(3));
    model(&mut state, response("", &[("a", "read", "{}")]));
    answer(&mut state, "r");
    model(&mut state, response("one", &[]));
    state.continue_with(vec![ContentBlock::text("next")]).expect("continue");
    assert_eq!(
        (state.turns(), request(&state).messages.len()),
        (0, 6),
        "a notice of the task before stays in the history"
    );
    model(&mut state, response("two", &[]));
    let report = state.report();
    assert_eq!((report.answer.as_str(), report.turns, report.calls.len()), ("two", 1, 0));
}

#[test]
fn illegal_transitions_are_refused_and_change_nothing() {
    let fresh = begin(Limits::default());
    let mut called = fresh.clone();
    model(&mut called, response("", &[("a", "read", "{}")]));
    let mut over = fresh.clone();
    model(&mut over, response("x", &[]));
    let a = || CallId::new("a");
    type Try = fn(&mut RunState, CallId) -> Result<(), TransitionError>;
    let on_model: Try = |state, _| state.on_model(response("x", &[]), &resolve);
    let on_error: Try = |state, _| state.on_model_error(&ModelError::new(ModelErrorKind::Auth, "x"));
    let on_tools: Try = |state, id| state.on_tools(vec![done(&id, "x")]);
    let twice: Try = |state, id| state.on_tools(vec![done(&id, "x"), done(&id, "x")]);
    let none: Try = |state, _| state.on_tools(vec![]);
    let other: Try = |state, _| state.on_tools(vec![done(&CallId::new("z"), "x")]);
    let approve: Try = |state, id| state.on_approvals(vec![(id, ApprovalDecision::Approve)]);
    let go_on: Try = |state, _| state.continue_with(vec![ContentBlock::text("x")]);
    for (name, state, transitions) in [
        ("fresh", &fresh, vec![on_tools, approve, go_on]),
        ("called", &called, vec![on_model, on_error, twice, none, other, approve, go_on]),
        ("over", &over, vec![on_model, on_error, on_tools, approve]),
    ] {
        for (index, transition) in transitions.into_iter().enumerate() {
            let mut tried = state.clone();
            assert!(transition(&mut tried, a()).is_err(), "{name} {index}");
            assert_eq!(&tried, state, "{name} {index}");
        }
    }
}

#[test]
fn a_state_of_another_version_is_refused() {
    let mut saved = begin(Limits::default()).to_json().expect("save");
    saved["version"] = json!(2);
    assert!(matches!(RunState::from_json(saved), Err(LoadError::Version(Some(2)))));
    assert!(matches!(RunState::from_json(json!({})), Err(LoadError::Version(None))));
    assert!(matches!(RunState::from_json(json!({"version": 1})), Err(LoadError::Damaged(_))));
}

#[test]
fn fitting_removes_only_the_oldest_results() {
    let mut state = begin(Limits::default());
    for turn in 0..4 {
        model(&mut state, response("", &[("", "read", &format!(r#"{{"n":{turn}}}"#))]));
        answer(&mut state, &format!("{turn}{}", "x".repeat(4000)));
    }
    let before = state.context_tokens();
    assert_eq!(state.fit_context(before), 0);
    assert_eq!(state.fit_context(before - 1), 2);
    legal(&state);
    assert!(state.context_tokens() < before * 3 / 4);
    let results: Vec<_> =
        request(&state).messages.iter().filter(|m| matches!(m, Message::Tool { .. })).map(text_of).collect();
    assert!(results[0].starts_with("[toolwright removed this result, about 1005 tokens"), "{}", results[0]);
    assert!(results[1].starts_with('[') && results[2].starts_with('2') && results[3].starts_with('3'));
    assert_eq!(state.fit_context(1), 1, "what the model has not seen stays");
    assert_eq!(state.fit_context(1), 0);
}
