//! Random behaviour of everybody involved; the history stays legal.

use proptest::prelude::*;

use super::*;

/// One random thing that model, tools, people or the clock do.
#[derive(Debug, Clone)]
enum Happening {
    Calls(Vec<(String, String, String)>, String),
    Text(String, bool),
    Failure,
    /// Each call to run: 0 fails, 1 succeeds, 2 is pending, 3 is not told yet.
    Tools(Vec<u8>),
    Decisions(Vec<u8>),
    Cancel,
    Elapsed(u64),
    Fit(usize),
    Reopen,
    Continue,
}

fn happening() -> impl Strategy<Value = Happening> {
    let id = prop_oneof![Just(String::new()), "[ab]", "call_[12]_[12]"];
    let name = prop_oneof![Just("read".to_owned()), Just("fs__read".to_owned()), "\\PC{0,70}"];
    let arguments = prop_oneof![Just("{}".to_owned()), Just("{\"a\":1}".to_owned()), "\\PC{0,12}"];
    let calls = proptest::collection::vec((id, name, arguments), 1..5);
    prop_oneof![
        6 => (calls, "[x ]{0,2}").prop_map(|(calls, text)| Happening::Calls(calls, text)),
        2 => ("[x ]{0,2}", any::<bool>()).prop_map(|(text, cut)| Happening::Text(text, cut)),
        1 => Just(Happening::Failure),
        8 => proptest::collection::vec(0u8..4, 5).prop_map(Happening::Tools),
        3 => proptest::collection::vec(0u8..5, 5).prop_map(Happening::Decisions),
        1 => Just(Happening::Cancel),
        1 => (0u64..400).prop_map(Happening::Elapsed),
        1 => (0usize..200).prop_map(Happening::Fit),
        2 => Just(Happening::Reopen),
        2 => Just(Happening::Continue),
    ]
}

fn apply(state: &mut RunState, event: Happening) {
    match (event, state.step()) {
        (Happening::Calls(calls, text), Step::CallModel(_)) => {
            let calls: Vec<_> =
                calls.iter().map(|(id, name, args)| (id.as_str(), name.as_str(), args.as_str())).collect();
            state.on_model(response(&text, &calls), &resolve).expect("calls");
        }
        (Happening::Text(text, cut), Step::CallModel(_)) => {
            let stop = if cut { StopReason::MaxTokens } else { StopReason::End };
            state.on_model(ModelResponse { stop, ..response(&text, &[]) }, &resolve).expect("text");
        }
        (Happening::Failure, Step::CallModel(_)) => {
            state.on_model_error(&ModelError::new(ModelErrorKind::Unavailable, "down")).expect("failure");
        }
        (Happening::Tools(fates), Step::CallTools(batch)) => {
            let outcomes: Vec<_> = batch
                .calls
                .iter()
                .zip(fates.iter().cycle())
                .filter_map(|(call, fate)| match fate {
                    0 => Some(Outcome::failed(call.id.clone(), ToolError::new(ErrorKind::Timeout, "slow"))),
                    1 => Some(done(&call.id, "")),
                    2 => Some(pending(&call.id)),
                    _ => None,
                })
                .collect();
            assert_eq!(state.on_tools(outcomes.clone()).is_ok(), !outcomes.is_empty());
        }
        (Happening::Decisions(decisions), Step::AwaitApproval(asked)) => {
            let decide = |n: &u8| match n {
                0 => ApprovalDecision::Approve,
                1 => ApprovalDecision::Always,
                2 => ApprovalDecision::Deny { reason: "no".into() },
                3 => ApprovalDecision::Skip,
                _ => ApprovalDecision::Later,
            };
            let decisions =
                asked.iter().zip(decisions.iter().cycle()).map(|(asked, n)| (asked.call_id.clone(), decide(n)));
            state.on_approvals(decisions.collect()).expect("decisions");
        }
        (Happening::Cancel, _) => state.cancel(CancelCause::User),
        (Happening::Elapsed(millis), _) => state.on_elapsed(Duration::from_millis(millis)),
        (Happening::Fit(budget), _) => {
            state.fit_context(budget);
        }
        (Happening::Reopen, _) => {
            state.reopen();
        }
        (Happening::Continue, Step::Done(_)) => {
            state.continue_with(vec![ContentBlock::text("next")]).expect("continue")
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_history_stays_legal_whatever_happens(
        events in proptest::collection::vec(happening(), 0..40), turns in 0u32..6, calls in proptest::option::of(0u32..8),
    ) {
        let mut state = begin(Limits { turns, calls, time: Some(Duration::from_secs(1)), tokens: Some(100) });
        for event in events {
            apply(&mut state, event);
            legal(&state);
            reload(&mut state);
        }
        state.cancel(CancelCause::Shutdown);
        legal(&state);
        prop_assert!(matches!(state.step(), Step::Done(_)));
    }
}
