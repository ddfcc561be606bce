//! The `memory` tools: a scratchpad for each session, and a search over stored notes and messages.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::store::{NewRow, Passage, SCRATCH as ROOT, SearchMode, StoreError, VersionedValue, WrittenValue};
use toolwright_core::tool::Tool;

use super::refused_as_failure;
use crate::builtin::{define, parse};

/// The most characters of a key.
const MAX_KEY: usize = 200;
/// The most passages of one search.
const MAX_HITS: usize = 50;

/// Returns the tools of `memory`.
pub(super) fn tools() -> Vec<Arc<dyn Tool>> {
    vec![Arc::new(Scratchpad), Arc::new(Search)]
}

/// Notes of one session, by key.
struct Scratchpad;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Operation {
    Get,
    Set,
    Delete,
    List,
    Clear,
}

#[derive(Deserialize)]
struct Note {
    op: Operation,
    #[serde(default)]
    key: String,
    value: Option<Value>,
}

#[async_trait]
impl Tool for Scratchpad {
    fn definition(&self) -> ToolDefinition {
        // It changes only the session's own notes, so no approval is needed.
        let mut definition = define(
            "memory:scratchpad@1.0.0",
            "Scratchpad",
            "Keeps notes of this session by key. They stay when old messages leave the conversation.",
            Effects::READ,
            json!({
                "op": {"type": "string", "enum": ["get", "set", "delete", "list", "clear"], "description": "What to do."},
                "key": {"type": "string", "maxLength": MAX_KEY,
                        "description": "Names joined by dots, like `plan.next`. get without it returns all notes."},
                "value": {"description": "For set: any JSON value. It takes the place of what is there."},
            }),
            &["op"],
        );
        definition.concurrency = Concurrency::Ordered;
        definition.examples = vec![
            json!({"op": "set", "key": "plan.next", "value": "run the tests"}),
            json!({"op": "get", "key": "plan"}),
        ];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let note: Note = parse(arguments)?;
        refused_as_failure(note.apply(context).await)
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }
}

impl Note {
    async fn apply(self, context: &ToolContext) -> Result<ToolOutput, StoreError> {
        let path = match &*self.key {
            "" => ROOT.to_owned(),
            key => format!("{ROOT}.{key}"),
        };
        match (self.op, &*self.key, self.value) {
            (Operation::Set | Operation::Delete, "", _) => Ok(ToolOutput::failure("`key` is missing: say which note.")),
            (Operation::Set | Operation::Delete, key, _) if !is_key(key) => {
                Ok(ToolOutput::failure(format!("`{key}` is no key: it is names joined by dots, like `plan.next`.")))
            }
            (Operation::Set, _, None) => Ok(ToolOutput::failure("`value` is missing: say what to keep.")),
            (Operation::Set, key, Some(value)) => {
                keep(context, WrittenValue::set(path, value)).await?;
                Ok(done(format!("Kept `{key}`.")))
            }
            (Operation::Delete, key, _) => match read(context, &path).await?.value {
                None => missing(key, context).await,
                Some(_) => {
                    keep(context, WrittenValue::delete(path)).await?;
                    Ok(done(format!("Deleted `{key}`.")))
                }
            },
            (Operation::Clear, ..) => {
                keep(context, WrittenValue::delete(ROOT)).await?;
                Ok(done("The scratchpad is empty.".into()))
            }
            (Operation::List, ..) => list(context).await,
            (Operation::Get, "", _) => {
                let VersionedValue { value, taint, .. } = read(context, ROOT).await?;
                let notes = value.unwrap_or_else(|| json!({}));
                Ok(ToolOutput {
                    structured: Some(json!({"value": notes})),
                    taint,
                    ..ToolOutput::text(notes.to_string())
                })
            }
            (Operation::Get, key, _) => match read(context, &path).await? {
                VersionedValue { value: None, .. } => missing(key, context).await,
                VersionedValue { value: Some(value), taint, .. } => {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    Ok(ToolOutput { structured: Some(json!({"value": value})), taint, ..ToolOutput::text(text) })
                }
            },
        }
    }
}

fn is_key(key: &str) -> bool {
    !key.split('.').any(str::is_empty) && !key.chars().any(char::is_control)
}

fn done(message: String) -> ToolOutput {
    ToolOutput { structured: Some(json!({"message": message})), ..ToolOutput::text(message) }
}

/// Writes a value, replacing any earlier one.
async fn keep(context: &ToolContext, written: WrittenValue) -> Result<(), StoreError> {
    let written = WrittenValue { taint: context.taint.clone(), ..written };
    context.services.log.append(NewRow::value(&context.session, &context.call_id, written)).await.map(drop)
}

/// Returns the value at a path of the session's values.
async fn read(context: &ToolContext, path: &str) -> Result<VersionedValue, StoreError> {
    let rows = context.services.log.values(&context.session.id, path).await?;
    Ok(VersionedValue::of(rows, path))
}

async fn keys(context: &ToolContext) -> Result<Vec<String>, StoreError> {
    let notes = read(context, ROOT).await?.value;
    Ok(notes.as_ref().and_then(Value::as_object).map(|notes| notes.keys().cloned().collect()).unwrap_or_default())
}

async fn list(context: &ToolContext) -> Result<ToolOutput, StoreError> {
    let keys = keys(context).await?;
    let text = if keys.is_empty() { "The scratchpad is empty.".to_owned() } else { keys.join("\n") };
    Ok(ToolOutput { structured: Some(json!({"keys": keys})), ..ToolOutput::text(text) })
}

async fn missing(key: &str, context: &ToolContext) -> Result<ToolOutput, StoreError> {
    let keys = keys(context).await?;
    let there = if keys.is_empty() { "it is empty".to_owned() } else { format!("it has {}", keys.join(", ")) };
    Ok(ToolOutput::failure(format!("There is no `{key}` in the scratchpad: {there}.")))
}

/// Searches the memory of the session's principal.
struct Search;

#[derive(Deserialize)]
struct Query {
    query: String,
    #[serde(default)]
    mode: SearchMode,
    #[serde(default)]
    limit: usize,
}

#[async_trait]
impl Tool for Search {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "memory:search@1.0.0",
            "Search memory",
            "Searches what was said and kept before: earlier runs, scratchpads and channels of the same user. Says who said \
             what, where and when.",
            Effects::READ,
            json!({
                "query": {"type": "string", "minLength": 1, "maxLength": 2000, "description": "What to look for."},
                "mode": {"type": "string", "enum": ["text", "semantic", "hybrid"], "default": "hybrid",
                         "description": "By words, by meaning, or by both."},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_HITS, "default": 10,
                          "description": "Passages at most."},
            }),
            &["query"],
        );
        definition.concurrency = Concurrency::Ordered;
        definition.examples = vec![json!({"query": "why did the release fail", "limit": 5})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Query { query, mode, limit } = parse(arguments)?;
        let limit = limit.clamp(1, MAX_HITS);
        let found = match context.services.memory.search(&context.session, &query, mode, limit).await {
            Ok(found) => found,
            Err(error) => return refused_as_failure(Err(error)),
        };
        let mut lines: Vec<String> = found.passages.iter().map(Passage::line).collect();
        if lines.is_empty() {
            lines.push("Nothing was found.".into());
        }
        lines.extend(found.note.as_ref().map(|note| format!("[toolwright: {note}]")));
        let passages: Vec<Value> = found.passages.iter().map(Passage::to_json).collect();
        let structured = Some(json!({"passages": passages, "note": found.note}));
        Ok(ToolOutput { structured, ..ToolOutput::text(lines.join("\n\n")) })
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }
}
