//! Tests: final reports, the task status, and forced last turns.

use toolwright_core::store::todo::{REMIND_AFTER, TODO_ID, TodoList};

use super::*;
use crate::report::{Format, ReportConfig};
use crate::tools::{AgentTools, FINAL_REPORT_ID, TASK_STATUS_ID};

const REPORT: &str = "agent__final_report";

/// Resolves the agent's tools in addition to those of [`super::resolve`].
fn resolve(call: &RawToolCall) -> Option<ResolvedTool> {
    let own = call.name.starts_with("agent__");
    let own = own.then(|| ResolvedTool { wire_name: call.name.clone(), definition: ContentHash::of_bytes(b"own") });
    own.or_else(|| super::resolve(call))
}

fn model(state: &mut RunState, response: ModelResponse) {
    reload(state);
    state.on_model(response, &resolve).expect("model");
    legal(state);
}

fn reporting(limits: Limits, report: Option<ReportConfig>) -> RunState {
    let agent_tools = AgentTools { report, task_status: true, ..AgentTools::default() };
    RunState::new(RunConfig { agent_tools, ..run_config(limits) }, vec![Message::user("task")])
}

fn json_report() -> Option<ReportConfig> {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    Some(ReportConfig::by_schema(schema).expect("schema"))
}

/// Returns the outcome of the tool for `arguments`.
fn reported(id: &str, arguments: Value, config: Option<&ReportConfig>) -> Outcome {
    let id = CallId::new(id);
    let mut outcome = match FinalReport::accept(&arguments, config) {
        Ok(report) => Outcome { structured: Some(json!(report)), ..done(&id, "accepted") },
        Err(why) => Outcome::failed(id, ToolError::new(ErrorKind::ExecutionError, why)),
    };
    outcome.tool = ToolId::try_parse(FINAL_REPORT_ID);
    outcome
}

fn status(id: &str, value: Value) -> Outcome {
    let id = CallId::new(id);
    Outcome { structured: Some(value), tool: ToolId::try_parse(TASK_STATUS_ID), ..done(&id, "noted") }
}

#[test]
fn a_report_ends_the_run_after_its_siblings() {
    let mut state = reporting(Limits::default(), None);
    model(&mut state, response("", &[("a", "fs__read", "{}"), ("b", REPORT, "{}"), ("c", REPORT, "{}")]));
    state.on_tools(vec![reported("b", json!({"status": "partial", "content": "half"}), None)]).expect("report");
    reload(&mut state);
    assert!(!state.is_over(), "its siblings run");
    assert_eq!(state.report().final_report, None);
    let rest = vec![done(&CallId::new("a"), "x"), reported("c", json!({"content": "second"}), None)];
    state.on_tools(rest).expect("siblings");
    reload(&mut state);
    legal(&state);
    let report = state.report();
    assert_eq!((report.status, report.answer.as_str()), (Status::Partial, "half"));
    assert_eq!(report.calls.iter().map(|call| call.ok).collect::<Vec<_>>(), [true, true, false], "one report counts");
    let value = report.to_json();
    assert_eq!(
        (&value["status"], &value["format"], &value["content"]),
        (&json!("partial"), &json!("text"), &json!("half"))
    );
    state.continue_with(vec![ContentBlock::text("go on")]).expect("continue");
    assert_eq!(state.report().final_report, None, "the next task has its own");
}

#[test]
fn reports_of_any_status_can_be_withdrawn() {
    for (written, turns, expect) in [("success", 9, true), ("failure", 9, true), ("partial", 1, false)] {
        let mut state = reporting(Limits { turns, ..Limits::default() }, None);
        model(&mut state, response("", &[("a", REPORT, "{}")]));
        state.on_tools(vec![reported("a", json!({"status": written, "content": "x"}), None)]).expect("report");
        assert!(state.is_over() && !state.is_interrupted(), "{written}");
        assert_eq!(state.take_back("Agents still run.".into()), expect, "{written}");
        assert_eq!((state.waits_for_model(), state.report().final_report.is_some()), (expect, !expect), "{written}");
    }
}

#[test]
fn a_rejected_report_ends_nothing() {
    let config = json_report();
    let mut state = reporting(Limits::default(), config.clone());
    model(&mut state, response("", &[("a", REPORT, "{}")]));
    state.on_tools(vec![reported("a", json!({"content_json": {"n": "x"}}), config.as_ref())]).expect("told");
    assert_eq!(request(&state).tool_choice, ToolChoice::Auto);
    model(&mut state, response("", &[("b", REPORT, "{}")]));
    let right = json!({"status": "success", "format": "json", "content_json": {"n": 7}, "metadata": {"k": 1}});
    state.on_tools(vec![reported("b", right, config.as_ref())]).expect("report");
    let value = state.report().to_json();
    assert_eq!((&value["content_json"], &value["metadata"]), (&json!({"n": 7}), &json!({"k": 1})));
    assert_eq!(value["status"], "success");
}

#[test]
fn a_text_answer_is_accepted_as_a_report() {
    for (format, text, expect) in [
        (Format::Markdown, "# Done", Some(json!("# Done"))),
        (Format::Json, "```json\n{\"n\": 1}\n```", Some(json!({"n": 1}))),
        (Format::Json, "It is done.", None),
    ] {
        let config = if format == Format::Json { json_report() } else { Some(ReportConfig::in_format(format)) };
        let mut state = reporting(Limits::default(), config);
        model(&mut state, response(text, &[]));
        if let Some(expect) = expect {
            let report = state.report().final_report.expect("adopted");
            assert_eq!(report.content_json.unwrap_or_else(|| json!(report.content)), expect);
            assert_eq!((result(&state).status, report.warnings.len()), (Status::Success, 1));
            continue;
        }
        assert!(text_of(request(&state).messages.last().expect("notice")).contains(REPORT), "told what to do");
        model(&mut state, response(text, &[]));
        let ended = result(&state);
        assert_eq!((ended.status, ended.answer.as_str()), (Status::Partial, text));
    }
}

#[test]
fn the_last_turn_is_for_the_report_alone() {
    let config = json_report();
    let mut state = reporting(turns(1), config.clone());
    assert!(state.is_last_turn());
    assert_eq!(request(&state).tool_choice, ToolChoice::Tool(REPORT.into()));
    model(&mut state, response("", &[("a", "fs__read", "{}"), ("b", REPORT, "{}")]));
    assert_eq!(ids(&state), [CallId::new("b")], "work is refused");
    let mut rejected = state.clone();
    state.on_tools(vec![reported("b", json!({"content_json": {"n": 1}}), config.as_ref())]).expect("report");
    assert_eq!(result(&state).status, Status::Success);
    rejected.on_tools(vec![reported("b", json!({}), config.as_ref())]).expect("no report");
    assert_eq!(result(&rejected).status, Status::Partial);
}

#[test]
fn a_completed_task_has_one_more_turn() {
    let value = |status: &str, ready: bool, more: bool| json!({"status": status, "ready_for_final_report": ready, "need_to_run_more_tools": more});
    for (value, last) in [
        (value("completed", true, false), true),
        (value("completed", true, true), false),
        (value("completed", false, false), false),
        (value("in-progress", true, false), false),
        (json!({"status": "completed"}), false),
    ] {
        let mut state = reporting(Limits::default(), None);
        model(&mut state, response("", &[("a", "agent__task_status", "{}"), ("b", "fs__read", "{}")]));
        state.on_tools(vec![status("a", value.clone()), done(&CallId::new("b"), "x")]).expect("tools");
        reload(&mut state);
        assert_eq!(state.is_last_turn(), last, "{value}");
        assert_eq!(request(&state).tool_choice == ToolChoice::None, last);
        model(&mut state, response("all done", &[]));
        assert_eq!(result(&state).status, Status::Success);
    }
}

#[test]
fn a_last_turn_is_forced_once_per_task() {
    let mut state = begin(Limits::default());
    state.force_final("The conversation is full");
    state.force_final("Something else");
    reload(&mut state);
    let asked = request(&state);
    assert_eq!((asked.tool_choice, asked.messages.len()), (ToolChoice::None, 2));
    assert!(text_of(&asked.messages[1]).contains("The conversation is full: calls no longer run"));

    let mut state = begin(Limits::default());
    model(&mut state, response("", &[("a", "read", "{}")]));
    state.force_final("The conversation is full");
    assert_eq!(ids(&state).len(), 1, "what is under way ends");
    answer(&mut state, "x");
    assert!(state.is_last_turn());
    model(&mut state, response("", &[("b", "read", "{}")]));
    let ended = result(&state);
    assert_eq!(ended.status, Status::Partial);
    assert!(ended.reason.is_some_and(|reason| reason.contains("The conversation is full")));
    state.force_final("too late");
    assert!(state.is_over());
    state.continue_with(vec![ContentBlock::text("go on")]).expect("continue");
    assert!(!state.is_last_turn(), "it holds for one task");
}

#[test]
fn open_todo_lists_are_shown_again() {
    let list = |status: &str| TodoList::of_value(Some(json!({"1": {"text": "test it", "status": status}})));
    let mut state = begin(turns(100));
    assert!(state.is_todo_due(), "its session may have a list");
    state.show_todo(&TodoList::default());
    assert!(!state.is_todo_due());
    model(&mut state, response("", &[("todo", "fs__read", "{}")]));
    let changed = Outcome { tool: ToolId::try_parse(TODO_ID), ..done(&CallId::new("todo"), "") };
    state.on_tools(vec![changed]).expect("changed");
    for n in 0..REMIND_AFTER {
        assert!(!state.is_todo_due(), "after {n}");
        model(&mut state, response("", &[(&format!("c{n}"), "fs__read", &format!("{{\"n\":{n}}}"))]));
        answer(&mut state, &n.to_string());
    }
    assert!(state.is_todo_due());
    reload(&mut state);
    state.show_todo(&list("in_progress"));
    let last = state.messages().last().map(|message| format!("{message:?}")).unwrap_or_default();
    assert!(last.contains("The to-do list of this session:\\n[>] 1: test it"), "{last}");
    assert!(!state.is_todo_due());
    let count = state.messages().len();
    state.show_todo(&list("done"));
    assert_eq!(state.messages().len(), count, "nothing is left to do");
}
