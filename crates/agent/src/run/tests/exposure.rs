//! Tests: the list of shown tools only grows.

use proptest::prelude::*;
use toolwright_core::exposure::{ChosenExposure, Exposure, SEARCH_ID};

use super::*;

fn exposed(exposure: Exposure) -> RunState {
    let mut state = begin(Limits::default());
    state.expose(ChosenExposure { exposure, reason: "a test".into() }, String::new());
    state
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

/// Adds the model's search, which found `found`.
fn search(state: &mut RunState, found: &[&str]) {
    state.on_model(response("", &[("s", "fs__read", "{}")]), &resolve).expect("model");
    let id = state.runnable().next().expect("a call").id.clone();
    let outcome = Outcome {
        tool: Some(ToolId::parse(SEARCH_ID).expect("id")),
        structured: Some(json!({ "tools": found })),
        ..done(&id, &"a line about a tool\n".repeat(50))
    };
    state.on_tools(vec![outcome]).expect("tools");
}

fn last_result(state: &RunState) -> CallResult {
    match state.messages().last() {
        Some(Message::Tool { results }) => results[0].clone(),
        other => panic!("no results: {other:?}"),
    }
}

#[test]
fn the_exposure_decides_how_found_tools_are_loaded() {
    for (exposure, loads, loaded, text) in [
        (Exposure::Search, &[][..], &["fs__read"][..], "a line about a tool"),
        (Exposure::Deferred, &["a", "b"], &["fs__read"], "Found and loaded: a, b"),
        (Exposure::Pick, &[], &["fs__read", "a", "b"], "Found and loaded: a, b\na line about a tool"),
        (Exposure::Direct, &[], &[], "a line about a tool"),
    ] {
        let mut state = exposed(exposure);
        search(&mut state, &["a", "b"]);
        let result = last_result(&state);
        assert_eq!((result.loads, state.loaded(|_| true)), (names(loads), names(loaded).as_slice()), "{exposure}");
        assert!(result.content[0].as_text().is_some_and(|shown| shown.starts_with(text)), "{exposure}");
    }
}

#[test]
fn a_search_does_not_load_all_its_hits() {
    let mut state = exposed(Exposure::Pick);
    state.on_model(response("", &[("s", "fs__read", "{}")]), &resolve).expect("model");
    let id = state.runnable().next().expect("a call").id.clone();
    let outcome = Outcome {
        tool: Some(ToolId::parse(SEARCH_ID).expect("id")),
        structured: Some(json!({ "tools": ["a", "b", "c"] })),
        ..done(&id, "a(x) — one\nb() — two\nc() — three")
    };
    state.on_tools(vec![outcome]).expect("tools");
    assert_eq!(state.loaded(|_| true), names(&["fs__read", "a", "b"]));
    assert_eq!(last_result(&state).content[0].as_text(), Some("Found and loaded: a, b\nc() — three"));
}

#[test]
fn a_denied_call_loads_nothing() {
    for (kind, loaded) in [
        (ErrorKind::Denied, &[][..]),
        (ErrorKind::NotPermitted, &[]),
        (ErrorKind::InvalidParameters, &["fs__read"]),
        (ErrorKind::ExecutionError, &["fs__read"]),
    ] {
        let mut state = exposed(Exposure::Search);
        state.on_model(response("", &[("s", "fs__read", "{}")]), &resolve).expect("model");
        let id = state.runnable().next().expect("a call").id.clone();
        state.on_tools(vec![Outcome::failed(id, ToolError::new(kind, "no"))]).expect("tools");
        assert_eq!(state.loaded(|_| true), names(loaded), "{kind:?}");
    }
}

#[test]
fn loaded_tools_stay_when_their_result_is_evicted() {
    let mut state = exposed(Exposure::Deferred);
    search(&mut state, &["a_tool_of_some_name"; 100]);
    search(&mut state, &["b"]);
    assert_eq!(state.fit_context(10), 1);
    assert!(
        state.loaded_by_results().any(|name| name == "a_tool_of_some_name")
            && state.loaded_by_results().any(|name| name == "b")
    );
}

#[test]
fn a_saved_run_keeps_its_loaded_tools() {
    let mut state = exposed(Exposure::Search);
    state.load(names(&["b", "a", "b", "c"]));
    assert_eq!(state.order_tools(&["x", "b"]), names(&["x", "b"]));
    let mut state = RunState::from_json(state.to_json().expect("saves")).expect("loads");
    assert_eq!(state.loaded(|name| name != "a"), names(&["b", "c"]));
    assert_eq!(state.order_tools(&["c", "x"]), names(&["c", "x"]), "a new process begins a new order");
    assert_eq!(state.exposure().map(|choice| choice.exposure), Some(Exposure::Search));
    state.load((0..1000).map(|n| format!("t{n}")));
    assert!(state.loaded(|_| true).len() <= 200);
}

#[test]
fn tools_are_picked_by_the_last_texts() {
    let check = |messages: &[Message], expect: &[&str]| {
        let state = RunState::new(begin(Limits::default()).config().clone(), messages.to_vec());
        assert_eq!(state.recent_texts(), expect);
    };
    let model = |text: &str| Message::Assistant { text: text.into(), calls: Vec::new(), opaque: Vec::new() };
    let (ask, notice) = (Message::user("water it"), Message::user("[toolwright notice] two turns are left"));
    check(&[], &[]);
    check(std::slice::from_ref(&ask), &["water it"]);
    check(&[ask.clone(), model("first the can"), notice.clone()], &["water it", "first the can"]);
    check(&[ask.clone(), model("first the can"), model(" ")], &[]);
    check(&[ask.clone(), model(""), ask.clone(), notice], &["water it", "water it"]);
    check(&[ask.clone(), model("a"), model("b"), model("c"), model("d")], &["a", "b", "c", "d"]);
}

#[test]
fn the_index_follows_the_base_of_the_prompt() {
    let system = |state: &RunState| match state.step() {
        Step::CallModel(request) => request.system,
        step => panic!("{step:?}"),
    };
    let mut state = begin(Limits::default());
    assert_eq!(system(&state), "be brief");
    let before = state.context_tokens();
    state.expose(ChosenExposure { exposure: Exposure::Search, reason: String::new() }, "There is more.".into());
    assert_eq!(system(&state), "be brief\n\nThere is more.");
    assert!(state.context_tokens() > before);
}

proptest! {
    #[test]
    fn tools_are_only_ever_added_at_the_end(turns in proptest::collection::vec(proptest::collection::btree_set(0u8..12, 0..12), 1..8)) {
        let mut state = exposed(Exposure::Direct);
        let mut before: Vec<String> = Vec::new();
        for wanted in turns {
            let wanted: Vec<String> = wanted.iter().map(|n| format!("t{n}")).collect();
            let asked: Vec<&str> = wanted.iter().map(String::as_str).collect();
            let after = state.order_tools(&asked).to_vec();
            let stayed: Vec<String> = before.into_iter().filter(|name| wanted.contains(name)).collect();
            prop_assert_eq!(&after[..stayed.len()], &stayed[..]);
            let mut all = after.clone();
            let mut asked = wanted.clone();
            all.sort();
            asked.sort();
            prop_assert_eq!(all, asked);
            before = after;
        }
    }
}
