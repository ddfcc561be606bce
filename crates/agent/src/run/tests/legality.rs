//! Property tests: the history stays legal whatever models, tools, people and clocks do.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::run::context::Repeat;
use toolwright_core::output::Readers;

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
    /// What the driver does before it asks the model.
    Room,
    /// The API says that the conversation does not fit.
    Overflow,
    /// Each call that turns are put together with: 0 fails, 1 is not told yet, others are told.
    Compacted(Vec<u8>),
    Pin,
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
        6 => Just(Happening::Room),
        1 => Just(Happening::Overflow),
        6 => proptest::collection::vec(0u8..6, 3).prop_map(Happening::Compacted),
        1 => Just(Happening::Pin),
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
                    1 => Some(done(&call.id, &"four".repeat(200))),
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
        (Happening::Room, _) => make_room(state),
        (Happening::Overflow, Step::CallModel(_)) => {
            state.on_overflow(0);
        }
        (Happening::Compacted(fates), Step::Compact(calls)) => {
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
        (Happening::Pin, _) => {
            state.pin("keep");
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

/// As the driver does, without a store.
fn make_room(state: &mut RunState) {
    let Plan { truncate, summarize, mut full } = state.plan_room(0);
    let evicted =
        |place| Evicted { place, texts: vec!["session-1/2".into()], files: Vec::new(), again: Repeat::MayNot };
    let readers = Readers { read: Some("output__read".into()), ..Readers::default() };
    truncate.into_iter().map(evicted).for_each(|gone| state.truncate(gone, &readers));
    if let Some(range) = summarize {
        let with = MemoryTools { summarize: "s".into(), extract: "f".into(), window: None };
        if !state.begin_compaction(range, CompactionSources::default(), &with, 0) {
            state.put_off_compaction();
            let without = state.plan_alone(0);
            without.truncate.into_iter().map(evicted).for_each(|gone| state.truncate(gone, &readers));
            full = without.full;
        }
    }
    if full {
        state.force_final("full");
    }
}

/// Messages that stay word for word, whatever is put together: of the first, and of each that is pinned.
fn kept(state: &RunState) -> (String, usize) {
    (text_of(&state.messages()[0]), state.messages().iter().filter(|message| text_of(message) == "keep").count())
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

#[test]
fn the_history_stays_legal_in_a_small_window() {
    let config = ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() };
    let (events, made) = (proptest::collection::vec(happening(), 200..400), std::cell::Cell::new((0, 0)));
    let ran = TestRunner::new(config).run(&(events, 500usize..1200), |(events, window)| {
        let spec = RunSpec { window: Some(window), ..spec(turns(100)) };
        let mut state = RunState::new(spec, vec![Message::user("task")]);
        for event in events {
            let before = state.clone();
            let adds = usize::from(matches!(event, Happening::Pin));
            apply(&mut state, event);
            if state == before {
                continue;
            }
            legal(&state);
            let ((first, pinned), (still, left)) = (kept(&before), kept(&state));
            prop_assert!(still == first && (pinned..=pinned + adds).contains(&left));
            reload(&mut state);
        }
        let done = state.compactions();
        made.set((made.get().0 + done.summarized, made.get().1 + done.failed));
        Ok(())
    });
    ran.expect("legal");
    assert!(made.get().0 > 20 && made.get().1 > 5, "{made:?}: little was put together");
}
