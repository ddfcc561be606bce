//! Property tests: the history stays legal under all events.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use toolwright_core::output::OutputReaders;

/// A random event from model, tools, people or the clock.
#[derive(Debug, Clone)]
pub(super) enum RandomEvent {
    Calls(Vec<(String, String, String)>, String),
    Text(String, bool),
    Failure,
    /// The result of each call to run: 0 fails, 1 succeeds, 2 is pending, 3 continues.
    Tools(Vec<u8>),
    Decisions(Vec<u8>),
    Cancel,
    Elapsed(u64),
    Fit(usize),
    /// The driver makes room before it asks the model.
    Room,
    /// The API reports that the conversation does not fit.
    Overflow,
    /// The result of each call of a compaction: 0 fails, 1 continues, others succeed.
    Compacted(Vec<u8>),
    Reopen,
    Continue,
}

pub(super) fn random_event() -> impl Strategy<Value = RandomEvent> {
    let id = prop_oneof![Just(String::new()), "[ab]", "call_[12]_[12]"];
    let name =
        prop_oneof![Just("read".to_owned()), Just("fs__read".to_owned()), Just(HANDOFF.to_owned()), "\\PC{0,70}"];
    let arguments = prop_oneof![Just("{}".to_owned()), Just("{\"a\":1}".to_owned()), "\\PC{0,12}"];
    let calls = proptest::collection::vec((id, name, arguments), 1..5);
    prop_oneof![
        6 => (calls, "[x ]{0,2}").prop_map(|(calls, text)| RandomEvent::Calls(calls, text)),
        2 => ("[x ]{0,2}", any::<bool>()).prop_map(|(text, cut)| RandomEvent::Text(text, cut)),
        1 => Just(RandomEvent::Failure),
        8 => proptest::collection::vec(0u8..4, 5).prop_map(RandomEvent::Tools),
        3 => proptest::collection::vec(0u8..5, 5).prop_map(RandomEvent::Decisions),
        1 => Just(RandomEvent::Cancel),
        1 => (0u64..400).prop_map(RandomEvent::Elapsed),
        1 => (0usize..200).prop_map(RandomEvent::Fit),
        6 => Just(RandomEvent::Room),
        1 => Just(RandomEvent::Overflow),
        6 => proptest::collection::vec(0u8..6, 3).prop_map(RandomEvent::Compacted),
        2 => Just(RandomEvent::Reopen),
        2 => Just(RandomEvent::Continue),
    ]
}

pub(super) fn apply(state: &mut RunState, event: RandomEvent) {
    match (event, state.step()) {
        (RandomEvent::Calls(calls, text), Step::CallModel(_)) => {
            let calls: Vec<_> =
                calls.iter().map(|(id, name, args)| (id.as_str(), name.as_str(), args.as_str())).collect();
            state.on_model(response(&text, &calls), &resolve).expect("calls");
        }
        (RandomEvent::Text(text, cut), Step::CallModel(_)) => {
            let stop = if cut { StopReason::MaxTokens } else { StopReason::End };
            state.on_model(ModelResponse { stop, ..response(&text, &[]) }, &resolve).expect("text");
        }
        (RandomEvent::Failure, Step::CallModel(_)) => {
            state.on_model_error(&ModelError::new(ModelErrorKind::Unavailable, "down")).expect("failure");
        }
        (RandomEvent::Tools(fates), Step::CallTools(batch)) => {
            let outcomes: Vec<_> = batch
                .calls
                .iter()
                .zip(fates.iter().cycle())
                .filter_map(|(call, fate)| match fate {
                    0 => Some(Outcome::failed(call.id.clone(), ToolError::new(ErrorKind::Timeout, "slow"))),
                    1 if call.name == HANDOFF => Some(handed_over(&call.id, "It is done.")),
                    1 => Some(done(&call.id, &"four".repeat(200))),
                    2 => Some(pending(&call.id)),
                    _ => None,
                })
                .collect();
            assert_eq!(state.on_tools(outcomes.clone()).is_ok(), !outcomes.is_empty());
        }
        (RandomEvent::Decisions(decisions), Step::AwaitApproval(asked)) => {
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
        (RandomEvent::Cancel, _) => state.cancel(CancelCause::User),
        (RandomEvent::Elapsed(millis), _) => state.on_elapsed(Duration::from_millis(millis)),
        (RandomEvent::Fit(budget), _) => {
            state.fit_context(budget);
        }
        (RandomEvent::Room, _) => make_room(state),
        (RandomEvent::Overflow, Step::CallModel(_)) => {
            state.on_overflow(0);
        }
        (RandomEvent::Compacted(fates), Step::Compact(calls)) => {
            let facts = json!({"facts": [{"key": "code", "value": "4711", "category": "other"}]});
            let outcomes: Vec<_> = calls
                .iter()
                .zip(fates.iter().cycle())
                .filter_map(|(call, fate)| match fate {
                    0 => Some(Outcome::failed(call.id.clone(), ToolError::new(ErrorKind::Timeout, "slow"))),
                    1 => None,
                    _ if call.id.as_str().ends_with("summary") => {
                        let summary = json!({"summary": "It went on.", "key_points": []});
                        Some(Outcome { structured: Some(summary), ..done(&call.id, "") })
                    }
                    _ => Some(Outcome { structured: Some(facts.clone()), ..done(&call.id, "") }),
                })
                .collect();
            state.on_compacted(outcomes, Usage::default()).expect("compacted");
        }
        (RandomEvent::Reopen, _) => {
            state.reopen();
        }
        (RandomEvent::Continue, Step::Done(_)) => {
            state.continue_with(vec![ContentBlock::text("next")]).expect("continue")
        }
        _ => {}
    }
}

/// Makes room as the driver does, without a store.
fn make_room(state: &mut RunState) {
    let EvictionPlan { truncate, summarize, mut full } = state.plan_room(0);
    let evicted =
        |position| Evicted { position, texts: vec!["session-1/2".into()], files: Vec::new(), is_repeatable: false };
    let readers = OutputReaders { read: Some("output__read".into()), ..OutputReaders::default() };
    truncate.into_iter().map(evicted).for_each(|evicted| state.evict(evicted, &readers));
    if let Some(range) = summarize {
        let tools = MemoryTools { summarize: "s".into(), extract: "f".into(), window: None };
        if !state.begin_compaction(range, CompactionSources::default(), &tools, 0) {
            state.postpone_compaction();
            let plan = state.plan_without_model(0);
            plan.truncate.into_iter().map(evicted).for_each(|evicted| state.evict(evicted, &readers));
            full = plan.full;
        }
    }
    if full {
        state.force_final("full");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_history_stays_legal_whatever_happens(
        events in proptest::collection::vec(random_event(), 0..40), turns in 0u32..6, calls in proptest::option::of(0u32..8),
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

#[test]
fn the_history_stays_legal_in_a_small_window() {
    let config = ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() };
    let (events, made) = (proptest::collection::vec(random_event(), 200..400), std::cell::Cell::new((0, 0)));
    let ran = TestRunner::new(config).run(&(events, 500usize..1200), |(events, window)| {
        let run_config = RunConfig { window: Some(window), ..run_config(turns(100)) };
        let mut state = RunState::new(run_config, vec![Message::user("task")]);
        for event in events {
            let before = state.clone();
            apply(&mut state, event);
            if state == before {
                continue;
            }
            legal(&state);
            prop_assert_eq!(text_of(&state.messages()[0]), text_of(&before.messages()[0]), "the first message stays");
            reload(&mut state);
        }
        let done = state.compactions();
        made.set((made.get().0 + done.summarized, made.get().1 + done.failed));
        Ok(())
    });
    ran.expect("legal");
    assert!(made.get().0 > 20 && made.get().1 > 5, "{made:?}: little was compacted");
}
