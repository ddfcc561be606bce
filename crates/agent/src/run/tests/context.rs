//! Tests: room in the context window.

use toolwright_core::call::ToolCall;
use toolwright_core::cancel::CancelCause;
use toolwright_core::job::{JobRecord, JobState};

use super::*;
use crate::run::{ContextOptions, SessionNotice};

/// Creates a run in a window of 4000 tokens with an answer of 100, so that a request may have 3700.
fn windowed(context: ContextOptions) -> RunState {
    let config = RunConfig { window: Some(4000), context, ..run_config(turns(100)) };
    RunState::new(config, vec![Message::user("the task")])
}

/// Adds another task, answered with about this many tokens of text.
fn chat(state: &mut RunState, asked: &str, tokens: usize) {
    state.on_model(response(&"four".repeat(tokens), &[]), &resolve).expect("answer");
    state.continue_with(vec![ContentBlock::text(asked)]).expect("next");
}

/// Returns the results of the models for the turns.
fn made(state: &RunState, summary: Option<&str>) -> Vec<Outcome> {
    let Step::Compact(calls) = state.step() else { panic!("{:?}", state.step()) };
    let outcome = |(n, call): (usize, ToolCall)| {
        let structured = match (n, summary) {
            (0, Some(summary)) => json!({"summary": summary, "key_points": []}),
            (0, None) => return Outcome::failed(call.id, ToolError::new(ErrorKind::ExecutionError, "no model")),
            _ => json!({"facts": [{"key": "code", "value": "4711", "category": "other"}]}),
        };
        Outcome { structured: Some(structured), ..done(&call.id, "") }
    };
    calls.into_iter().enumerate().map(outcome).collect()
}

fn compact(state: &mut RunState) -> EvictionPlan {
    let plan = state.plan_room(0);
    if let Some(range) = plan.summarize.clone() {
        let tools = MemoryTools { summarize: "s".into(), extract: "f".into(), window: None };
        assert!(state.begin_compaction(range, CompactionSources::default(), &tools, 0));
        *state = RunState::from_json(state.to_json().expect("saves")).expect("loads");
    }
    plan
}

fn texts(state: &RunState) -> Vec<String> {
    state.messages().iter().map(text_of).collect()
}

#[test]
fn first_message_task_and_last_turns_stay() {
    let mut state = windowed(ContextOptions::default());
    chat(&mut state, "second", 400);
    chat(&mut state, "third", 400);
    chat(&mut state, "fourth", 400);
    // The task is within the compacted range, and stays too.
    for call in ["1", "2", "3", "4", "5", "6"] {
        let arguments = format!("{{\"path\": \"{call}\"}}");
        state.on_model(response(&"four".repeat(400), &[(call, "fs__read", &arguments)]), &resolve).expect("calls");
        state.on_tools(vec![done(&CallId::new(call), "read")]).expect("tools");
    }
    let before = state.context_tokens();
    compact(&mut state);
    let ended = state.on_compacted(made(&state, Some("It was said.")), Usage::default()).expect("ended");
    assert!(
        matches!(ended, CompactionState::Done { tokens: (all, left), facts: 1, .. } if all == before && left < before / 2),
        "{ended:?}"
    );
    let texts = texts(&state);
    let record = texts.iter().position(|text| text.contains("It was said.")).expect("a record");
    // The task comes before the work on it.
    assert_eq!(texts[..2], ["the task".to_owned(), "fourth".into()]);
    assert_eq!(record, 2);
    assert!(texts[2].starts_with("[toolwright notice]") && texts[2].contains("- code: 4711"), "{}", texts[2]);
    assert!(!texts.iter().any(|text| text == "second" || text == "third"));
    // The user's earlier messages still apply, verbatim.
    assert!(texts[2].contains("<user>\nUser:\n  second\n\nUser:\n  third\n</user>"), "{}", texts[2]);
    // They are older than the task, and do not override it.
    assert!(texts[2].contains("All of it was said before the messages that stand above this one"), "{}", texts[2]);
    legal(&state);
    // An id of a removed call is not reused.
    state.on_model(response("", &[("1", "fs__read", "{}")]), &resolve).expect("calls");
    let Step::CallTools(batch) = state.step() else { panic!("no calls") };
    assert_ne!(batch.calls[0].id.as_str(), "1");
}

#[test]
fn notices_and_jobs_are_not_user_text() {
    let mut state = windowed(ContextOptions::default());
    chat(&mut state, "[toolwright notice] is what I read. What is it?", 400);
    let job = JobRecord {
        id: "job_1".into(),
        tool: ToolId::parse("x:y@1.0.0").expect("id"),
        arguments: json!({}),
        state: JobState::Done,
        session: SessionId::new("s"),
        principal: "p".into(),
        call: CallId::new("j"),
        run: None,
        owner: None,
        attempts: 1,
        created_ms: 0,
        ended_ms: None,
        outcome: Some(done(&CallId::new("j"), "Delete all.")),
    };
    state.add_session_messages(&[SessionNotice {
        seq: 7,
        kind: MessageKind::Job,
        text: job.message(),
        source: "job job_1".into(),
    }]);
    assert_eq!(state.last_notice(), 7);
    state.push_notice("[toolwright notice] Two turns are left.", None);
    reload(&mut state);
    for n in 0..4 {
        chat(&mut state, &format!("task {n}"), 760);
    }
    compact(&mut state);
    let Step::Compact(calls) = state.step() else { panic!("{:?}", state.step()) };
    let asked = format!("{:?}", calls[0].arguments);
    assert!(asked.contains("Result of job job_1:") && asked.contains("Toolwright:"), "{asked}");
    state.todo = TodoSeen::Ago(0);
    state.on_compacted(made(&state, Some("It was said.")), Usage::default()).expect("ended");
    assert_eq!(state.todo, TodoSeen::Never, "what the model saw of its list may be gone");
    let record = texts(&state).into_iter().find(|text| text.contains("It was said.")).expect("a record");
    assert!(record.contains("  [toolwright notice] is what I read."), "{record}");
    assert!(!record.contains("Delete all.") && !record.contains("Two turns are left"), "{record}");
}

#[test]
fn an_exact_count_has_no_uncertainty() {
    let mut state = windowed(ContextOptions::default());
    // Each sign might be a token: 2000 tokens by the estimate, and at most as many more.
    for (call, result) in [("1", "four".repeat(200)), ("2", "0".repeat(4000))] {
        state.on_model(response("", &[(call, "fs__read", "{}")]), &resolve).expect("calls");
        state.on_tools(vec![done(&CallId::new(call), &result)]).expect("tools");
    }
    let near = state.to_count(0, &[]).expect("what might be near is counted");
    assert!(state.plan_room(0) != EvictionPlan::default() && near.estimate <= 3330, "{}", near.estimate);
    state.on_counted(near.estimate, near.estimate);
    assert_eq!(state.plan_room(0), EvictionPlan::default());
}

#[test]
fn compaction_is_rare_and_facts_stay() {
    let mut state = windowed(ContextOptions::default());
    let mut rounds = 0;
    for n in 0..30 {
        chat(&mut state, &format!("task {n}"), 300);
        if compact(&mut state).summarize.is_some() {
            state.on_compacted(made(&state, Some("More was said.")), Usage::default()).expect("ended");
            rounds += 1;
        }
        assert!(state.context_tokens() <= 3700, "{n}: {}", state.context_tokens());
    }
    assert!((3..=6).contains(&rounds), "{rounds}");
    let texts = texts(&state);
    assert_eq!(texts.iter().filter(|text| text.contains("- code: 4711")).count(), 1);
    assert_eq!(state.compactions().summarized, rounds);
}

#[test]
fn a_failed_compaction_leaves_the_conversation_unchanged() {
    let mut state = windowed(ContextOptions::default());
    for n in 0..5 {
        chat(&mut state, &format!("task {n}"), 760);
    }
    let before = texts(&state);
    compact(&mut state);
    let used = Usage { input_tokens: 70, ..Usage::default() };
    let failed = state.on_compacted(made(&state, None), used).expect("ended");
    assert_eq!(failed, CompactionState::Failed("no model".into()));
    assert_eq!((texts(&state), state.compactions().failed), (before, 1));
    assert_eq!(state.report().usage.input_tokens, 70, "it was used all the same");
    // One more try before the run ends.
    assert!(compact(&mut state).summarize.is_some());
    assert_eq!(
        state.on_compacted(made(&state, None), used).expect("ended"),
        CompactionState::Failed("no model".into())
    );
    assert_eq!(state.plan_room(0), EvictionPlan { full: true, ..EvictionPlan::default() });
    // The next task starts afresh.
    chat(&mut state, "once more", 1);
    assert!(compact(&mut state).summarize.is_some());
    state.on_compacted(made(&state, Some("It was said.")), used).expect("ended");
    assert_eq!((state.plan_room(0), state.compactions().summarized), (EvictionPlan::default(), 1));
}

#[test]
fn an_early_failure_is_retried_after_an_answer() {
    let mut state = windowed(ContextOptions::default());
    for n in 0..5 {
        chat(&mut state, &format!("task {n}"), 690);
    }
    assert!(compact(&mut state).summarize.is_some());
    state.on_compacted(made(&state, None), Usage::default()).expect("ended");
    assert_eq!(state.plan_room(0), EvictionPlan::default());
    state.on_model(response("", &[("1", "fs__read", "{}")]), &resolve).expect("calls");
    state.on_tools(vec![done(&CallId::new("1"), "read")]).expect("tools");
    assert!(compact(&mut state).summarize.is_some());
}

#[test]
fn the_token_limit_holds_for_compaction() {
    let full = |tokens| {
        let limits = Limits { tokens: Some(tokens), ..turns(100) };
        let config = RunConfig { window: Some(4000), ..run_config(limits) };
        let mut state = RunState::new(config, vec![Message::user("the task")]);
        for n in 0..5 {
            chat(&mut state, &format!("task {n}"), 700);
        }
        state
    };
    // The remaining tokens are not enough, so it does not begin.
    let mut state = full(1000);
    let range = state.plan_room(0).summarize.expect("a range");
    let tools = MemoryTools { summarize: "s".into(), extract: "f".into(), window: None };
    assert!(!state.begin_compaction(range, CompactionSources::default(), &tools, 0));
    assert!(matches!(state.step(), Step::CallModel(_)));
    // It took more than was left, so the model is not asked again.
    let mut state = full(20_000);
    assert!(compact(&mut state).summarize.is_some());
    let used = Usage { input_tokens: 20_000, ..Usage::default() };
    let ended = state.on_compacted(made(&state, Some("It was said.")), used).expect("ended");
    assert!(matches!(ended, CompactionState::Done { .. }));
    let Step::Done(result) = state.step() else { panic!("{:?}", state.step()) };
    let why = (result.status, result.reason.as_deref());
    assert_eq!(why, (Status::Partial, Some("the limit of 20000 tokens was reached")));
}

#[test]
fn a_compaction_ends_with_the_run_and_restarts() {
    let mut state = windowed(ContextOptions::default());
    for n in 0..5 {
        chat(&mut state, &format!("task {n}"), 700);
    }
    assert!(compact(&mut state).summarize.is_some());
    let strange = vec![done(&CallId::new("x"), "")];
    assert!(matches!(state.on_compacted(strange, Usage::default()), Err(TransitionError::NoSuchCall { .. })));
    assert_eq!(state.plan_room(0), EvictionPlan::default(), "one at a time");
    state.cancel(CancelCause::User);
    assert!(matches!(state.on_compacted(Vec::new(), Usage::default()), Err(TransitionError::Illegal { .. })));
    assert!(state.reopen() && matches!(state.step(), Step::CallModel(_)));
    assert!(compact(&mut state).summarize.is_some());
}

#[test]
fn an_unexpected_overflow_lowers_the_limit() {
    let mut state = RunState::new(run_config(turns(100)), vec![Message::user("four".repeat(1000))]);
    assert_eq!((state.context_limit(), state.plan_room(0)), (None, EvictionPlan::default()));
    assert!(state.on_overflow(100));
    assert_eq!(state.context_limit(), Some((state.context_tokens() + 100) / 4 * 3));
    assert_eq!(state.plan_room(0), EvictionPlan { full: true, ..EvictionPlan::default() });
    state.force_final("full");
    assert!(!state.on_overflow(0), "the model is asked for the last time, and there is nothing to give up");
}

#[test]
fn estimates_are_corrected_by_reports() {
    let mut state = windowed(ContextOptions::default());
    chat(&mut state, "next", 1500);
    let limit = state.context_limit().expect("a limit");
    state.on_request(0);
    let asked = state.context_tokens() as u64;
    let usage = Usage { input_tokens: asked * 2, ..Usage::default() };
    state.on_model(ModelResponse { usage, ..response("done", &[]) }, &resolve).expect("answer");
    assert_eq!(state.context_limit(), Some(limit / 2));
    assert_eq!(state.in_tokens(100), 200);
    // The tokenizer's count overrides the estimate.
    state.on_counted(300, 200);
    assert_eq!(state.in_tokens(100), 150);
}

#[test]
fn the_limit_leaves_room_for_the_answer() {
    let limit = |max_tokens, answer| {
        let mut state = RunState::new(run_config(turns(100)), vec![Message::user("q")]);
        state.config.window = Some(200_000);
        state.config.max_tokens = max_tokens;
        state.expect_answer(answer);
        state.context_limit()
    };
    for (max_tokens, answer, expect) in [
        (Some(8192), None, 181_808),
        // The client adds reasoning tokens to the limit.
        (Some(8192), Some(8192 + 32_768), 149_040),
        (None, Some(32_768), 157_232),
        (None, None, 185_904),
    ] {
        assert_eq!(limit(max_tokens, answer), Some(expect), "{max_tokens:?} {answer:?}");
    }
}

#[test]
fn an_unchanged_read_returns_a_note() {
    let mut state = begin(turns(20));
    let text = "line of the file\n".repeat(40);
    let mut read = |arguments: &str, text: &str| {
        let id = format!("c{}", state.messages().len());
        model(&mut state, response("", &[(&id, "fs__read", arguments)]));
        state.on_tools(vec![done(&ids(&state)[0], text)]).expect("read");
        let Some(Message::Tool { results }) = state.messages().last() else { panic!("no result") };
        joined_text(&results[0].content).starts_with("[toolwright notice] Unchanged")
    };
    for (arguments, text, expect) in [
        (r#"{"path": "a"}"#, &*text, false),
        (r#"{ "path": "a" }"#, &text, true),
        (r#"{"path": "a"}"#, &text, true),
        (r#"{"path": "a", "offset": 1}"#, &text, false),
        (r#"{"path": "a"}"#, &format!("{text}more"), false),
        (r#"{"path": "a"}"#, &text, true),
        (r#"{"path": "b"}"#, "short", false),
        (r#"{"path": "b"}"#, "short", false),
    ] {
        assert_eq!(read(arguments, text), expect, "{arguments} {}", text.len());
    }
    for message in &mut state.messages {
        if let Message::Tool { results } = message {
            results.iter_mut().for_each(|result| result.content = vec![ContentBlock::text("evicted")]);
        }
    }
    model(&mut state, response("", &[("last", "fs__read", r#"{"path": "a"}"#)]));
    state.on_tools(vec![done(&ids(&state)[0], &text)]).expect("read");
    let Some(Message::Tool { results }) = state.messages().last() else { panic!("no result") };
    assert_eq!(joined_text(&results[0].content), text, "what gave way is read again");
}
