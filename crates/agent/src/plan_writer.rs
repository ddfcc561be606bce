//! Lets a model write a plan: builds the request, reads the answer, and returns faults to the model.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolwright_core::RunInput;
use toolwright_core::arguments::read_object;
use toolwright_core::catalogue::{Entry, Snapshot};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::call_meta::{INSTANCE, OUTPUT_PATH, TOOL};
use toolwright_core::model::{CallResult, Message, ModelRequest, ModelResponse, RequestTool, StopReason, ToolChoice};
use toolwright_core::output::head_and_tail;
use toolwright_core::plan::{IssueKind, PlanDocument, PlanIssue, issue};
use toolwright_core::session::Principal;

use crate::driver::tool_view;
use crate::run::{instance_field, show_field};

/// The most bytes of an output schema in its tool's description.
const MAX_OUTPUT_SCHEMA: usize = 1000;
/// The most faults that the model is shown.
const MAX_FAULTS: usize = 40;

/// The most calls whose results the model is shown.
const MAX_SHOWN_RESULTS: usize = 200;
/// The planner's instruction for many inputs.
const REPEATED: &str = "\nA plan without any `_instance` is repeated for each input: write it once.";

/// The planner's instructions.
const PLANNER: &str = "You plan the whole work on a request before any of it is done. Answer with tool calls alone: all calls that \
the request needs, in one answer. Nothing runs before the plan is whole, and you will not see results in between.\n\
A call whose result another call needs has an `_outputPath`: a short name. In another call the text `†state.NAME` or \
`†state.NAME.field` or `†state.NAME.0.field`, as a whole argument, stands for that result or a part of it. `†state.a || †state.b` falls back. Write \
the reference also where an argument is not a text. Never invent a value that a call returns.";

/// Returns the request for a plan of work on `request` and `input`, with those of the tools that `principal` may use.
#[must_use]
pub fn plan_request(
    request: &str,
    tools: &Snapshot,
    which: &[String],
    principal: &Principal,
    input: &RunInput,
) -> ModelRequest {
    let usable = tool_view::usable_tools(tools, principal);
    let planned_entries = usable.filter(|entry| which.is_empty() || entry.is_named_by(which));
    let planned_tools = planned_entries.map(|entry| planned_tool(entry, input));
    let many = if input.instances.is_empty() { "" } else { REPEATED };
    let input = input.in_words().map(|words| format!("\n\n{words}{many}")).unwrap_or_default();
    ModelRequest {
        system: format!("{PLANNER}{input}"),
        messages: vec![Message::user(request)],
        tools: planned_tools.collect::<Arc<[_]>>(),
        tool_choice: ToolChoice::Required,
        ..ModelRequest::default()
    }
}

fn planned_tool(entry: &Entry, input: &RunInput) -> RequestTool {
    let mut tool = RequestTool { strict: Some(false), ..tool_view::request_tool(entry) };
    show_for_plan(&mut tool, entry.definition().output_schema.as_ref());
    if !input.instances.is_empty() && !entry.targets_run() {
        show_field(&mut tool, INSTANCE, instance_field(input));
    }
    tool
}

/// Adds to a tool's definition the path of its result as a parameter, and what it returns.
fn show_for_plan(tool: &mut RequestTool, output: Option<&Value>) {
    show_field(tool, OUTPUT_PATH, json!({"type": "string", "description": "Names the result for other calls."}));
    if let Some(output) = output {
        let _ = write!(tool.description, "\nReturns: {}", head_and_tail(&output.to_string(), MAX_OUTPUT_SCHEMA));
    }
}

/// Reads the plan in a model's answer: its calls, or a plan written as text.
///
/// # Errors
/// The faults of its form.
pub fn read_plan(response: &ModelResponse) -> Result<PlanDocument, Vec<PlanIssue>> {
    let fault = |path: String, message: &str| issue(path, IssueKind::Parse, message);
    if response.stop == StopReason::MaxTokens {
        // The missing part may be what would make the rest valid.
        return Err(vec![fault(String::new(), "the answer was cut at its token limit; write a shorter plan")]);
    }
    if response.calls.is_empty() {
        let text = response.text.as_str();
        return match text.find('[').zip(text.rfind(']')).filter(|(from, to)| from < to) {
            Some((from, to)) => PlanDocument::parse(&text[from..=to]),
            None => Err(vec![fault(String::new(), "the answer calls no tool; answer with the calls of the plan")]),
        };
    }
    let mut faults = Vec::new();
    let mut written = Vec::with_capacity(response.calls.len());
    for (index, call) in response.calls.iter().enumerate() {
        let mut members = Map::new();
        members.insert(TOOL.into(), call.name.as_str().into());
        match read_object(&call.arguments) {
            Some(Value::Object(arguments)) => {
                members.extend(arguments.into_iter().filter(|(name, _)| name != TOOL));
            }
            _ if call.arguments.trim().is_empty() => {}
            _ => faults.push(fault(format!("/{index}"), "the arguments are not one JSON object; write them again")),
        }
        written.push(Value::Object(members));
    }
    if faults.is_empty() { PlanDocument::of_value(written.into()) } else { Err(faults) }
}

/// Returns the request with the answer and its faults added: the model's only chance to correct the plan.
#[must_use]
pub fn correction_request(request: &ModelRequest, answer: ModelResponse, faults: &[PlanIssue]) -> ModelRequest {
    let mut messages = request.messages.clone();
    let listed: Vec<String> = faults.iter().take(MAX_FAULTS).map(ToString::to_string).collect();
    let notice = format!(
        "[toolwright notice] The plan is not valid, and no call ran. The number in a path is the call, counted from 0:\n{}\nAnswer with all calls of the corrected plan.",
        listed.join("\n")
    );
    let results: Vec<CallResult> = answer
        .calls
        .iter()
        .enumerate()
        .map(|(index, call)| CallResult {
            call_id: call.id.clone(),
            name: call.name.clone(),
            content: vec![ContentBlock::text(match index {
                0 => notice.as_str(),
                _ => "It did not run.",
            })],
            is_error: true,
            loads: Vec::new(),
        })
        .collect();
    let ModelResponse { text, calls, opaque, .. } = answer;
    let has_text = !text.trim().is_empty();
    if !calls.is_empty() || has_text {
        messages.push(Message::Assistant { text, calls, opaque });
    }
    messages.push(if results.is_empty() { Message::user(notice) } else { Message::Tool { results } });
    ModelRequest { messages, ..request.clone() }
}

/// Returns the request for the rest of a plan: its calls with their results.
#[must_use]
pub fn replan_request(calls: &[Value], state: &Value) -> String {
    let is_reported = |call: &&Value| calls.len() <= MAX_SHOWN_RESULTS || call["became"] != "done";
    let mut lines: Vec<String> =
        calls.iter().filter(is_reported).take(MAX_SHOWN_RESULTS).map(Value::to_string).collect();
    if lines.len() < calls.len() {
        lines.push(format!("({} more calls)", calls.len() - lines.len()));
    }
    let paths: Vec<&str> = state.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    format!(
        "[toolwright notice] A plan has run, and some of its calls failed. Write a plan for what is not done, in another way where that helps; do not repeat calls \
         that succeeded.\nIts calls and their outcomes:\n{}\nAvailable results: {}",
        lines.join("\n"),
        if paths.is_empty() { "none".to_owned() } else { format!("†state.{}", paths.join(", †state.")) }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolwright_core::model::RawToolCall;

    fn answer(text: &str, calls: &[(&str, &str)]) -> ModelResponse {
        let calls = calls.iter().enumerate().map(|(index, (name, arguments))| RawToolCall {
            id: format!("c{index}"),
            name: (*name).to_owned(),
            arguments: (*arguments).to_owned(),
        });
        ModelResponse { text: text.to_owned(), calls: calls.collect(), ..ModelResponse::default() }
    }

    #[test]
    fn calls_and_text_are_read_as_plans() {
        let calls = answer("", &[("a", r#"{"_outputPath": "x", "q": 1}"#), ("b", r#"{"q": "†state.x"}"#)]);
        let expect = json!([{"_tool": "a", "_outputPath": "x", "q": 1}, {"_tool": "b", "q": "†state.x"}]);
        assert_eq!(read_plan(&calls).expect("a plan").to_value(), expect);
        let text = answer(&format!("Here:\n```json\n{expect}\n```"), &[]);
        assert_eq!(read_plan(&text).expect("a plan").to_value(), expect);
        assert_eq!(read_plan(&answer("No.", &[])).expect_err("no plan")[0].kind, IssueKind::Parse);
        let faults = read_plan(&answer("", &[("a", ""), ("b", "no")])).expect_err("no plan");
        assert_eq!(faults.iter().map(|fault| &*fault.path).collect::<Vec<_>>(), ["/1"]);
        let cut = ModelResponse { stop: StopReason::MaxTokens, ..calls };
        assert!(read_plan(&cut).expect_err("no plan")[0].message.contains("cut"));
    }

    #[test]
    fn each_call_of_a_faulty_plan_is_answered() {
        let faulty = answer("", &[("a", "{}"), ("b", "{}")]);
        let faults = read_plan(&answer("", &[])).expect_err("no plan");
        let asked = correction_request(&ModelRequest::default(), faulty, &faults);
        let [Message::Assistant { calls, .. }, Message::Tool { results }] = &asked.messages[..] else {
            panic!("{:?}", asked.messages)
        };
        assert_eq!(calls.len(), results.len());
        assert!(results[0].content[0].as_text().is_some_and(|text| text.contains("calls no tool")));
        let asked = correction_request(&ModelRequest::default(), answer("", &[]), &faults);
        assert_eq!(asked.messages.len(), 1);
    }
}
