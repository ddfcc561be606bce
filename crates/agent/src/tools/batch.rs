//! `agent__batch`: runs several calls in parallel as one call, and fits their results within one size limit.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::arguments::{WHOLE_ITEMS, read_object};
use toolwright_core::call::{Caller, check};
use toolwright_core::catalogue::CallScope;
use toolwright_core::content::ContentBlock;
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::indirect_call::wrapped_call;
use toolwright_core::name_table::Resolution;
use toolwright_core::outcome::{Outcome, ToolOutput};
use toolwright_core::output::head_and_tail;
use toolwright_core::plan::{IssueKind, PlanIssue, issue, issues_of};
use toolwright_core::policy::Effect;
use toolwright_core::session::Session;
use toolwright_core::{CallId, Effects, RawArguments, Snapshot, Tool, ToolCall, ToolDefinition};
use toolwright_runtime::executor::NestedContext;

use super::{BATCH_ID, FINAL_REPORT_ID, TASK_STATUS_ID, define};

/// Maximum items of a batch.
const MAX_ITEMS: usize = 50;
/// Maximum characters of an id and of a tool's name in the result.
const MAX_ID: usize = 64;
const MAX_NAME: usize = 100;
/// The time limit of a batch. Its items have limits of their own, and wait for slots and people.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// The tool.
pub(super) struct BatchTool {
    pub(super) effects: Effects,
}

/// The most faults that one answer names.
const MAX_FAULTS: usize = 40;

/// One call of a batch.
struct Item {
    id: String,
    /// The tool as written.
    tool: String,
    call: ToolCall,
}

#[async_trait]
impl Tool for BatchTool {
    fn definition(&self) -> ToolDefinition {
        let item = json!({
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "Names the item in the results"},
                "tool": {"type": "string"},
                "parameters": {"type": "object"},
            },
            "required": ["id", "tool", "parameters"],
        });
        let listed_schema = json!({
            "type": "object",
            "properties": {"items": {"type": "array", "items": item, "minItems": 1, "maxItems": MAX_ITEMS}},
            "required": ["items"],
        });
        // No type: a list may arrive as text, which is parsed here so that an incomplete item does not count as
        // complete. No property is required: Anthropic refuses an `anyOf` at the top level, and the error for a batch
        // without items says so.
        let list =
            json!({"description": "A list of items {id, tool, parameters}", "minItems": 1, "maxItems": MAX_ITEMS});
        let taken = json!({"type": "object", "properties": {"items": list, "calls": list}});
        let description = "Runs several tools at once and gives their results in order: [{id, tool, ok, output or error}]. \
            An item that fails does not keep the others from running. With an item that is not valid, none runs.";
        let mut definition = define(BATCH_ID, description, listed_schema, taken);
        definition.effects = self.effects;
        definition.timeout = Some(TIMEOUT);
        definition.capabilities.insert(WHOLE_ITEMS.into(), json!(true));
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Some(snapshot) = context.calls.snapshot() else {
            return Err(ToolError::new(ErrorKind::InternalError, "a batch cannot make calls here"));
        };
        let items = plan(&written(&arguments)?, snapshot, context).map_err(refused)?;
        let calls = items.iter().map(|item| item.call.clone()).collect();
        let outcomes = context
            .calls
            .run(calls)
            .await
            .map_err(|error| ToolError::new(ErrorKind::InternalError, format!("a batch cannot run: {error}")))?;
        let mut outcomes = outcomes.into_iter();
        let results = items.into_iter().map(|item| item.ended(&mut outcomes)).collect();
        let results = fit(results, context).await;
        Ok(ToolOutput { content: vec![ContentBlock::text(Value::Array(results).to_string())], ..ToolOutput::default() })
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }

    fn awaits_others(&self) -> bool {
        true
    }
}

impl Item {
    /// Returns its result from the next outcome.
    fn ended(self, outcomes: &mut impl Iterator<Item = Outcome>) -> BatchItemResult {
        let (ok, text) = match outcomes.next() {
            Some(outcome) => (outcome.ok, text_of(&outcome)),
            None => (false, "(tool failed: its outcome was lost)".into()),
        };
        BatchItemResult { id: self.id, tool: self.tool, ok, text }
    }
}

/// Returns the text of an outcome for a model.
fn text_of(outcome: &Outcome) -> String {
    let text = outcome.model_text();
    match &outcome.structured {
        Some(structured) if text.trim().is_empty() => structured.to_string(),
        _ if text.trim().is_empty() => "(no output)".into(),
        _ => text,
    }
}

/// Returns the written items: a list, or a text that contains one.
fn written(arguments: &Value) -> Result<Cow<'_, [Value]>, ToolError> {
    let items = arguments.get("items").or_else(|| arguments.get("calls"));
    let read = match items {
        Some(Value::Array(items)) => Some(Cow::Borrowed(items.as_slice())),
        Some(Value::String(text)) => serde_json::from_str(text).ok().map(Cow::Owned),
        _ => None,
    };
    let count = read.as_ref().map_or(0, |items| items.len());
    read.filter(|_| (1..=MAX_ITEMS).contains(&count)).ok_or_else(|| {
        let message = format!("`items` must be a list of 1 to {MAX_ITEMS} items {{id, tool, parameters}}");
        ToolError::new(ErrorKind::InvalidParameters, message)
    })
}

/// Returns the calls of a batch, with ids derived from the batch's. All are checked, and judged by the policy, before
/// any runs.
fn plan(written: &[Value], snapshot: &Snapshot, context: &ToolContext) -> Result<Vec<Item>, Vec<PlanIssue>> {
    let nested = NestedContext::of(context);
    let variables = nested.as_ref().and_then(|nested| nested.run.variables.as_deref());
    let caller = Caller { principal: &context.session.principal, variables };
    let denial = |call: &ToolCall| {
        let NestedContext { executor, run } = nested.as_ref()?;
        let decision = executor.verdict(call.clone(), run).ok()?;
        (decision.effect == Effect::Deny).then_some(decision.reason)
    };
    let (mut taken, mut faults) = (HashSet::new(), Vec::new());
    let mut items = Vec::with_capacity(written.len());
    for (index, item) in written.iter().enumerate() {
        let none = Map::new();
        let members = item.as_object().unwrap_or(&none);
        let either = |one: &str, other: &str| members.get(one).or_else(|| members.get(other));
        let id = unique(&id_of(members.get("id")), index + 1, &mut taken);
        let tool = either("tool", "name").and_then(Value::as_str).unwrap_or_default().trim();
        let call_id = CallId::new(format!("{}.{}", context.call_id, index + 1));
        let place = format!("/items/{index}");
        match call(call_id, tool, either("parameters", "arguments"), snapshot) {
            Ok(call) => {
                if let Err(rejection) = check(call.clone(), snapshot, caller) {
                    let inside = if rejection.provenance.carried { "/arguments" } else { "" };
                    let arguments = format!("{place}/parameters{inside}");
                    faults.extend(issues_of(&rejection, &place, &format!("{place}/tool"), &arguments));
                } else if let Some(reason) = denial(&call) {
                    faults.push(issue(
                        format!("{place}/tool"),
                        IssueKind::Policy,
                        format!("{tool} is denied: {reason}"),
                    ));
                }
                items.push(Item { id, tool: tool.chars().take(MAX_NAME).collect(), call });
            }
            Err(message) => faults.push(issue(place, IssueKind::Parse, message)),
        }
    }
    if faults.is_empty() { Ok(items) } else { Err(faults) }
}

/// Returns the error for a batch with faults.
fn refused(faults: Vec<PlanIssue>) -> ToolError {
    let mut lines: Vec<String> = faults.iter().take(MAX_FAULTS).map(ToString::to_string).collect();
    if faults.len() > MAX_FAULTS {
        lines.push(format!("and {} more", faults.len() - MAX_FAULTS));
    }
    let message = format!("nothing of the batch ran; mend this and send all items again:\n{}", lines.join("\n"));
    ToolError::new(ErrorKind::InvalidParameters, message)
}

/// Returns the written id; empty if there is none.
fn id_of(written: Option<&Value>) -> String {
    match written {
        Some(Value::String(id)) => id.trim().chars().take(MAX_ID).collect(),
        Some(Value::Number(id)) => id.to_string(),
        _ => String::new(),
    }
}

/// Returns the id if it is new, else one derived from the item's number.
fn unique(id: &str, number: usize, taken: &mut HashSet<String>) -> String {
    let mut found = if id.is_empty() { number.to_string() } else { id.to_owned() };
    while !taken.insert(found.clone()) {
        found = format!("{found}_{number}");
    }
    found
}

/// Returns the call of an item.
fn call(id: CallId, tool: &str, parameters: Option<&Value>, snapshot: &Snapshot) -> Result<ToolCall, String> {
    if tool.is_empty() {
        return Err("the item is not {id, tool, parameters}: it names no `tool`".into());
    }
    let parameters = match parameters {
        Some(Value::String(text)) => read_object(text).unwrap_or_else(|| Value::from(text.as_str())),
        Some(value) => value.clone(),
        None => Value::Null,
    };
    let call = ToolCall::new(id, tool.to_owned(), RawArguments::Value(parameters));
    let means = |name: &str| match snapshot.resolve(name) {
        Resolution::Found(index, _) => snapshot.list().get(index).map(|entry| entry.id().as_str()),
        Resolution::Unknown(_) => None,
    };
    let inside = wrapped_call(&call, snapshot);
    match means(inside.as_ref().map_or(tool, |inside| &inside.name)) {
        Some(BATCH_ID) => Err("a batch cannot hold another batch: put its items into this one".into()),
        Some(FINAL_REPORT_ID | TASK_STATUS_ID) => Err(format!("{tool} cannot be part of a batch: call it by itself")),
        _ => Ok(call),
    }
}

/// The result of one item.
struct BatchItemResult {
    id: String,
    tool: String,
    ok: bool,
    /// Output, or error.
    text: String,
}

impl BatchItemResult {
    fn into_json(self) -> Value {
        let Self { id, tool, ok, text } = self;
        if ok {
            json!({"id": id, "tool": tool, "ok": ok, "output": text})
        } else {
            json!({"id": id, "tool": tool, "ok": ok, "error": text})
        }
    }
}

/// Returns the results as JSON within the call's size limit. Texts over their share are stored and shortened, and name
/// the handle.
async fn fit(mut results: Vec<BatchItemResult>, context: &ToolContext) -> Vec<Value> {
    let sizes: Vec<usize> = results.iter().map(|result| escaped(&result.text)).collect();
    let around: usize = results.iter().map(|result| result.overhead_bytes()).sum();
    let share = share(&sizes, context.max_output.saturating_sub(around + 2));
    for (result, size) in results.iter_mut().zip(sizes) {
        if size > share {
            result.text = shortened(&result.text, share, context).await;
        }
    }
    results.into_iter().map(BatchItemResult::into_json).collect()
}

impl BatchItemResult {
    /// Returns the bytes of its JSON without the text, including a comma.
    fn overhead_bytes(&self) -> usize {
        escaped(&self.id) + escaped(&self.tool) + r#"{"id":"","ok":false,"output":"","tool":""},"#.len()
    }
}

/// Returns the largest size per text with which all fit into `room`. Large texts use what small ones leave.
fn share(sizes: &[usize], room: usize) -> usize {
    let mut sorted = sizes.to_vec();
    sorted.sort_unstable();
    let mut room = room;
    for (index, size) in sorted.iter().enumerate() {
        let fair = room / (sorted.len() - index);
        if *size > fair {
            return fair;
        }
        room -= size;
    }
    usize::MAX
}

/// Shortens `text` to about `max` bytes of JSON, with the handle of the stored whole.
async fn shortened(text: &str, max: usize, context: &ToolContext) -> String {
    let note = match context.services.outputs.put(&context.session.id, text.as_bytes()).await {
        Ok(stored) => {
            format!("\n[all {} bytes: output__read {{\"handle\": \"{}\"}}]", stored.bytes, stored.handle)
        }
        Err(error) => {
            tracing::warn!("a large result of a batch was cut, not stored: {error}");
            String::new()
        }
    };
    let mut room = max.saturating_sub(escaped(&note));
    loop {
        let cut = head_and_tail(text, room) + &note;
        let size = escaped(&cut);
        if size <= max || room == 0 {
            return cut;
        }
        // Escapes and the note about the cut take room too.
        room = room.saturating_sub((size - max).max(room / 8).max(1));
    }
}

/// Returns the bytes of `text` inside a JSON string.
fn escaped(text: &str) -> usize {
    let extra = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
        0..0x20 => 5,
        _ => 0,
    };
    text.len() + text.bytes().map(extra).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_schema_decides_the_item_type() {
        let definition = BatchTool { effects: Effects::READ }.definition();
        let shown = definition.shown_schema();
        assert_eq!(shown["properties"]["items"]["items"]["required"], json!(["id", "tool", "parameters"]));
        for schema in [shown, definition.parameters.unwrap()] {
            let refused = ["anyOf", "oneOf", "allOf"].iter().any(|keyword| schema.get(*keyword).is_some());
            assert!(schema["type"] == "object" && !refused, "{schema}");
        }
        let why = written(&json!({})).unwrap_err();
        assert!(why.message().contains("1 to 50 items {id, tool, parameters}"), "{why:?}");
    }

    #[test]
    fn large_results_share_what_small_ones_leave() {
        for (sizes, room, expect) in [
            (vec![10, 20], 100, usize::MAX),
            (vec![10, 1000], 100, 90),
            (vec![1000, 1000], 100, 50),
            (vec![5, 60, 60], 100, 47),
            (vec![], 0, usize::MAX),
            (vec![1], 0, 0),
        ] {
            assert_eq!(share(&sizes, room), expect, "{sizes:?} in {room}");
        }
    }

    proptest! {
        #[test]
        fn shares_are_within_the_room(sizes in proptest::collection::vec(0usize..5000, 0..60), room in 0usize..20_000) {
            let share = share(&sizes, room);
            prop_assert!(sizes.iter().map(|&size| size.min(share)).sum::<usize>() <= room);
        }

        #[test]
        fn escaped_sizes_are_those_of_the_json(text in "\\PC{0,40}|[\\x00-\\x1f\"\\\\]{0,20}") {
            prop_assert_eq!(escaped(&text) + 2, serde_json::to_string(&text).unwrap().len());
        }
    }
}
