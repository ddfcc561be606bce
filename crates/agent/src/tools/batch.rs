//! `agent__batch`: runs several calls in parallel as one call.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::arguments::read_object;
use toolwright_core::catalogue::CallScope;
use toolwright_core::content::ContentBlock;
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::indirect_call::carried;
use toolwright_core::name_table::Resolution;
use toolwright_core::outcome::{Outcome, ToolOutput};
use toolwright_core::session::Session;
use toolwright_core::{CallId, Effects, RawArguments, Snapshot, Tool, ToolCall, ToolDefinition};

use super::{BATCH_ID, FINAL_REPORT_ID, TASK_STATUS_ID, define, share, whole_items};

/// Items of one batch.
const MAX_ITEMS: usize = 50;
/// Characters of an id and of a tool's name that are repeated in the result.
const MAX_ID: usize = 64;
const MAX_NAME: usize = 100;
/// Its items have limits of their own, and wait for slots and people; this one only ends what none of these does.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// The tool.
pub(super) struct Batch {
    pub(super) effects: Effects,
}

/// One call of a batch.
struct Item {
    id: String,
    /// The tool as it was written.
    tool: String,
    /// The call, or why there is none.
    call: Result<ToolCall, String>,
}

#[async_trait]
impl Tool for Batch {
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
        let shown = json!({
            "type": "object",
            "properties": {"items": {"type": "array", "items": item, "minItems": 1, "maxItems": MAX_ITEMS}},
            "required": ["items"],
        });
        // No type: a list that came as a text is read here, where half an item is not taken for a whole one.
        let list = json!({"minItems": 1, "maxItems": MAX_ITEMS});
        let taken = json!({
            "type": "object",
            "properties": {"items": list, "calls": list},
            "anyOf": [{"required": ["items"]}, {"required": ["calls"]}],
        });
        let description = "Runs several tools at once and gives their results in order: [{id, tool, ok, output or error}]. \
            An item that fails does not keep the others from running.";
        let mut definition = define(BATCH_ID, description, shown, taken);
        definition.effects = self.effects;
        definition.timeout = Some(TIMEOUT);
        whole_items(&mut definition);
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Some(snapshot) = context.calls.snapshot() else {
            return Err(ToolError::new(ErrorKind::InternalError, "a batch cannot make calls here"));
        };
        let items = plan(&written(&arguments)?, &context.call_id, snapshot);
        let calls = items.iter().filter_map(|item| item.call.as_ref().ok().cloned()).collect();
        let outcomes = context
            .calls
            .run(calls)
            .await
            .map_err(|error| ToolError::new(ErrorKind::InternalError, format!("a batch cannot run: {error}")))?;
        let mut outcomes = outcomes.into_iter();
        let results = items.into_iter().map(|item| item.ended(&mut outcomes)).collect();
        let results = share::fit(results, context).await;
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
    /// Its result: that of the next outcome, if it came to a call.
    fn ended(self, outcomes: &mut impl Iterator<Item = Outcome>) -> share::ItemResult {
        let (ok, text) = match self.call {
            Err(why) => (false, format!("(tool failed: {why})")),
            Ok(_) => match outcomes.next() {
                Some(outcome) => (outcome.ok, said(&outcome)),
                None => (false, "(tool failed: its outcome was lost)".into()),
            },
        };
        share::ItemResult { id: self.id, tool: self.tool, ok, text }
    }
}

/// What an outcome says to a model.
fn said(outcome: &Outcome) -> String {
    let text = outcome.model_text();
    match &outcome.structured {
        Some(structured) if text.trim().is_empty() => structured.to_string(),
        _ if text.trim().is_empty() => "(no output)".into(),
        _ => text,
    }
}

/// The items as they were written: a list, or a text that is one.
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

/// The calls of a batch, under ids inside that of the batch.
fn plan(written: &[Value], batch: &CallId, snapshot: &Snapshot) -> Vec<Item> {
    let mut taken = HashSet::new();
    written
        .iter()
        .enumerate()
        .map(|(index, item)| {
            let none = Map::new();
            let members = item.as_object().unwrap_or(&none);
            let either = |one: &str, other: &str| members.get(one).or_else(|| members.get(other));
            let id = unique(&id_of(members.get("id")), index + 1, &mut taken);
            let tool = either("tool", "name").and_then(Value::as_str).unwrap_or_default().trim();
            let call_id = CallId::new(format!("{batch}.{}", index + 1));
            let call = call(call_id, tool, either("parameters", "arguments"), snapshot);
            Item { id, tool: tool.chars().take(MAX_NAME).collect(), call }
        })
        .collect()
}

/// An id as it was written; empty if there is none.
fn id_of(written: Option<&Value>) -> String {
    match written {
        Some(Value::String(id)) => id.trim().chars().take(MAX_ID).collect(),
        Some(Value::Number(id)) => id.to_string(),
        _ => String::new(),
    }
}

/// The id where it is new, else one made of the item's place, from 1.
fn unique(id: &str, place: usize, taken: &mut HashSet<String>) -> String {
    let mut found = if id.is_empty() { place.to_string() } else { id.to_owned() };
    while !taken.insert(found.clone()) {
        found = format!("{found}_{place}");
    }
    found
}

/// The call that an item stands for.
fn call(id: CallId, tool: &str, parameters: Option<&Value>, snapshot: &Snapshot) -> Result<ToolCall, String> {
    if tool.is_empty() {
        return Err("the item is not {id, tool, parameters}: it names no `tool`".into());
    }
    let parameters = match parameters {
        Some(Value::String(text)) => read_object(text).unwrap_or_else(|| Value::from(text.as_str())),
        Some(value) => value.clone(),
        None => Value::Null,
    };
    // References were replaced when the batch was checked; what came in their place is no reference.
    let call = ToolCall { id, name: tool.to_owned(), arguments: RawArguments::Resolved(parameters, Vec::new()) };
    let means = |name: &str| match snapshot.resolve(name) {
        Resolution::Found(index, _) => snapshot.list().get(index).map(|entry| entry.id().as_str()),
        Resolution::Unknown(_) => None,
    };
    let inside = carried(&call, snapshot);
    match means(inside.as_ref().map_or(tool, |inside| &inside.name)) {
        Some(BATCH_ID) => Err("a batch cannot hold another batch: put its items into this one".into()),
        Some(FINAL_REPORT_ID | TASK_STATUS_ID) => Err(format!("{tool} cannot be part of a batch: call it by itself")),
        _ => Ok(call),
    }
}
