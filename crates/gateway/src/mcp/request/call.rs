//! Runs `tools/call`: from the client's parameters to a result. It also records output schemas that results have
//! violated.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use serde::Serialize;
use serde_json::{Map, Value};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::Entry;
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};
use toolwright_core::exposure::SEARCH_ID;
use toolwright_core::outcome::{Outcome, SCHEMA_MISMATCH, STANDS_IN};
use toolwright_core::output::TOOL_OUTPUT;
use toolwright_core::passthrough::RESULT_FIELDS;
use toolwright_core::session::CallId;
use toolwright_mcp::{convert, list_validation};
use toolwright_runtime::executor::CallerNames;

use super::PendingRequest;
use super::tasks::requested_ttl;
use crate::Gateway;
use crate::mcp::message::{ErrorAuthor, RpcError, to_json};
use crate::mcp::protocol::{Era, SERVER_INFO};
use crate::mcp::response::ResponseGuard;
use crate::mcp::session::{Caller, ClientState};
use crate::mcp::tools::output_schema;

/// Key in the `_meta` of a result that is marked as an error only because it is a placeholder ([`STANDS_IN`]).
pub(in crate::mcp) const STANDS_IN_META: &str = "toolwright/stands_in";

/// Key in the `_meta` of a failed call's result: the JSON-RPC error of its source.
const ERROR_META: &str = "toolwright/error";

/// Added to a placeholder that is marked as an error.
const CONTINUATION_NOTE: &str = "(Nothing has failed, though this result is marked as an error: the one that the tool's output \
                       schema is for comes later. Do not make this call again.)";

/// Key in the `_meta` of a result that violates its tool's output schema and is given as text: the violation.
const MISMATCH_META: &str = "toolwright/output_schema_mismatch";

/// Key of the gateway's own note inside a structured result.
const NOTE_KEY: &str = "toolwright";

impl Gateway {
    /// Starts a call of a tool.
    ///
    /// # Errors
    /// A JSON-RPC error where the tool is not the cause: no name, an unknown tool in the view, and the errors of
    /// [`Gateway::start`].
    pub(crate) fn start_call(
        self: &Arc<Self>,
        caller: &Caller,
        mut pending: PendingRequest,
    ) -> Result<ResponseGuard, RpcError> {
        let (era, params) = (pending.era, &mut pending.request.params);
        let written = params.name.take().ok_or_else(|| RpcError::invalid_params("tools/call needs a `name`"))?;
        let arguments = params.arguments.take().unwrap_or(Value::Null);
        let list = self.tools(&caller.view, &caller.session);
        pending.task = requested_ttl(era, params, &list, &written)?;
        let (named, meant) = (list.named(&written).cloned(), list.resolve_inner_call(&written, &arguments).cloned());
        let call = list.for_executor(&caller.view, &written, arguments);
        self.start(caller, pending, async move |work| {
            if let (Some(level), Some(entry)) = (work.level_asked(era), meant)
                && let Ok(provider) = work.provider(entry.provider.name())
            {
                Box::pin(work.send_level_once(&provider, level)).await;
            }
            let lists = Arc::clone(&list);
            let names: CallerNames = Arc::new(move |entry| lists.name_of(entry).map(str::to_owned));
            let outcome = match call {
                // Pinned, because awaiting a future by value copies it first.
                Ok((name, arguments)) => pin!(work.run_call(&list.snapshot, name, arguments, Some(names))).await?,
                Err(error) => Outcome::failed(CallId::new(&*written), error),
            };
            let ran = outcome.tool.as_ref().and_then(|id| list.snapshot.get(id.as_str()));
            if let Some(entry) = ran {
                work.note_links_in(entry.provider.name(), &outcome.content);
                work.gateway.note_broken_schema(entry, &outcome);
            }
            if let Some(error) = protocol_error(&outcome) {
                work.caller.client.refused(ran.map(|entry| entry.provider.name()), &error);
                return Err(error);
            }
            let schema = named.as_deref().and_then(output_schema);
            // A client that has listed the tools since then no longer expects the output schema.
            let hash = named.as_ref().map(|entry| entry.tool.hash());
            let schema = schema.filter(|_| !work.gateway.broken_output_schemas.is_known_to(hash, &work.caller.client));
            let result = CallResult::of(outcome, schema, era, &work.gateway.options.info);
            Ok(to_json(&match era {
                Era::Legacy => result.downgraded(work.caller.client.version()),
                Era::Modern => result,
            }))
        })
    }
}

/// Returns the JSON-RPC error for outcomes that need one: an unknown tool (MCP, "Error Handling"), and a source that
/// needs something only the client can do, such as declaring a capability or opening a page. An unknown name inside a
/// carried call stays a result, because the model must correct it and sees only results.
fn protocol_error(outcome: &Outcome) -> Option<RpcError> {
    let error = outcome.error.as_ref()?;
    if error.kind() == ErrorKind::UnknownTool && !outcome.provenance.carried {
        return Some(RpcError::invalid_params(error.message().to_owned()));
    }
    let for_client = [RpcError::MISSING_CAPABILITY, RpcError::PAGES_REQUIRED];
    error.protocol().filter(|upstream| for_client.contains(&upstream.code)).map(source_error)
}

/// Passes a source's error on unchanged.
pub(crate) fn source_error(error: &ProtocolError) -> RpcError {
    let data = error.data.clone().map(Box::new);
    RpcError { code: error.code, message: error.message.clone().into(), data, author: ErrorAuthor::Source }
}

/// `CallToolResult` of the specification.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
    content: Vec<ContentBlock>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<Value>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_error: bool,
    #[serde(rename = "_meta", skip_serializing_if = "Map::is_empty")]
    meta: Map<String, Value>,
    /// Fields of the source's result that this struct lacks.
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl CallResult {
    /// Creates the result of a tool that was listed to the client with this output schema.
    fn of(mut outcome: Outcome, schema: Option<&Value>, era: Era, info: &crate::ServerInfo) -> Self {
        let mut meta = outcome.meta;
        let stored = outcome.extras.remove(TOOL_OUTPUT);
        meta.extend(stored.clone().map(|note| (TOOL_OUTPUT.to_owned(), note)));
        // Programs read the code; the model reads the message in the content.
        if let Some(error) = outcome.error.as_ref().and_then(ToolError::protocol) {
            meta.insert(ERROR_META.into(), serde_json::to_value(error).unwrap_or_default());
        }
        if era == Era::Modern {
            // The gateway writes the response, so its own info is included.
            meta.insert(SERVER_INFO.into(), serde_json::to_value(info).unwrap_or_default());
        }
        let more = match outcome.extras.remove(RESULT_FIELDS) {
            Some(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        // The structured search result is for programs; some clients would show only that to the model.
        let structured = outcome.structured.filter(|_| outcome.tool.is_none_or(|id| id.as_str() != SEARCH_ID));
        let mut structured = match stored.filter(|_| schema.is_none() && outcome.ok) {
            Some(note) => with_storage_note(structured, note, &outcome.content),
            None => structured,
        };
        let mut content = outcome.content;
        let mismatch = outcome.extras.remove(SCHEMA_MISMATCH).filter(|_| outcome.ok);
        // SDK clients discard a result that violates its tool's output schema, unless it is an error without structured
        // content.
        let hidden = mismatch.is_some() && schema.is_some();
        if let Some(mismatch) = mismatch {
            broken(&mut content, structured.take(), &mismatch, hidden);
            meta.insert(MISMATCH_META.into(), mismatch);
        }
        if let Some(value) = structured.as_ref().filter(|value| !value.is_object())
            && era == Era::Legacy
            && !content.iter().any(|block| matches!(block, ContentBlock::Text { .. }))
        {
            // Programs of that generation get only text.
            content.push(ContentBlock::text(value.to_string()));
        }
        // A result of a tool with an output schema has structured content or is an error (MCP 2025-11-25, "Output
        // Schema"). SDK clients discard any other result, including the job's id.
        let stands_in = outcome.extras.get(STANDS_IN).filter(|_| schema.is_some() && structured.is_none() && !hidden);
        if let Some(what) = stands_in {
            if what != "skipped" {
                content.push(ContentBlock::text(CONTINUATION_NOTE));
            }
            meta.insert(STANDS_IN_META.into(), what.clone());
        }
        Self {
            result_type: (era == Era::Modern).then_some("complete"),
            content,
            is_error: !outcome.ok || hidden || stands_in.is_some(),
            structured_content: structured.map(|value| list_validation::structured(value, schema, era)),
            meta,
            more,
        }
    }

    /// Returns the same result for clients of this legacy revision.
    fn downgraded(mut self, version: &str) -> Self {
        convert::content(version, &mut self.content);
        if let Some(value) = self.structured_content.as_ref().filter(|_| !convert::has_structured(version))
            && self.content.is_empty()
        {
            self.content.push(ContentBlock::text(value.to_string()));
        }
        self
    }
}

/// Turns a result that violates its tool's output schema into text, with a note.
fn broken(content: &mut Vec<ContentBlock>, structured: Option<Value>, mismatch: &Value, is_marked: bool) {
    if let Some(value) = structured {
        let repeats_value = |block: &ContentBlock| match block {
            ContentBlock::Text { text, .. } => serde_json::from_str::<Value>(text).is_ok_and(|said| said == value),
            _ => false,
        };
        if !content.iter().any(repeats_value) {
            content.push(ContentBlock::text(value.to_string()));
        }
    }
    let part = |key: &str| mismatch.get(key).and_then(Value::as_str).unwrap_or_default();
    let marked = if is_marked { " Nothing has failed, though this result is marked as an error." } else { "" };
    content.push(ContentBlock::text(format!(
        "(The result is given as text: it is not what the tool's output schema says, at {}: {}.{marked})",
        part("path"),
        part("message"),
    )));
}

/// Adds the note that output was stored to the structured result of a tool without an output schema, because several
/// clients show only that. Without a structured result the note becomes one only if all content is text.
fn with_storage_note(structured: Option<Value>, mut note: Value, content: &[ContentBlock]) -> Option<Value> {
    note["message"] = joined_text(content).into();
    match structured {
        Some(Value::Object(mut own)) => {
            own.insert(NOTE_KEY.to_owned(), note);
            Some(Value::Object(own))
        }
        None if content.iter().all(|block| matches!(block, ContentBlock::Text { .. })) => Some(note),
        structured => structured,
    }
}

/// The most definitions that are remembered; further output schemas stay listed.
const MAX_BROKEN: usize = 4096;

/// Tools, by the hash of their definition, whose results have violated their output schemas. SDK clients discard a
/// result that violates the listed schema, so the gateway lists such a tool without its schema until the definition
/// changes.
#[derive(Default)]
pub(crate) struct BrokenOutputSchemas(Mutex<HashMap<ContentHash, u64>>);

impl BrokenOutputSchemas {
    /// Records a definition, and returns whether it is new.
    fn note(&self, definition: ContentHash) -> bool {
        let mut all = self.lock();
        if all.len() >= MAX_BROKEN || all.contains_key(&definition) {
            return false;
        }
        let number = all.len() as u64 + 1;
        all.insert(definition, number);
        true
    }

    /// Returns whether this definition is listed without its output schema.
    pub(crate) fn has(&self, definition: ContentHash) -> bool {
        self.lock().contains_key(&definition)
    }

    /// Returns the number of such definitions.
    pub(crate) fn count(&self) -> u64 {
        self.lock().len() as u64
    }

    /// Returns whether this client has listed the tools since this definition lost its output schema.
    pub(crate) fn is_known_to(&self, definition: Option<ContentHash>, client: &ClientState) -> bool {
        definition
            .and_then(|definition| self.lock().get(&definition).copied())
            .is_some_and(|n| n <= client.unannounced())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ContentHash, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gateway {
    /// Records the tool of a result that violated its output schema. Its list changes, and clients are notified.
    pub(crate) fn note_broken_schema(&self, entry: &Entry, outcome: &Outcome) {
        let is_broken = outcome.ok && outcome.extras.contains_key(SCHEMA_MISMATCH);
        if is_broken && self.broken_output_schemas.note(entry.tool.hash()) {
            self.lists.forget();
            self.options.catalogue.notify_watchers();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn outcome(error: ToolError) -> Outcome {
        Outcome::failed(CallId::new("c"), error)
    }

    #[test]
    fn errors_the_client_must_fix_are_protocol_errors() {
        let failed = |code| {
            let protocol = ProtocolError { code, message: "m".into(), data: Some(json!({"a": 1})) };
            outcome(ToolError::new(ErrorKind::ExecutionError, "x").with_protocol(protocol))
        };
        let error = protocol_error(&failed(-32021)).expect("passed on");
        assert_eq!((error.code, error.data), (-32021, Some(Box::new(json!({"a": 1})))));
        assert!(protocol_error(&failed(-32602)).is_none());
        let unknown = ToolError::new(ErrorKind::UnknownTool, "did you mean x?");
        assert_eq!(protocol_error(&outcome(unknown)).expect("error").code, RpcError::INVALID_PARAMS);
    }

    fn info() -> crate::ServerInfo {
        crate::ServerInfo { name: "s".into(), title: None, version: "1".into() }
    }

    #[test]
    fn a_result_keeps_all_fields_and_the_note() {
        let mut done = outcome(ToolError::new(ErrorKind::Timeout, "late"));
        done.meta.insert("k".into(), json!(1));
        done.extras.insert("tool_output".into(), json!({"handle": "h"}));
        done.extras.insert("exit_code".into(), json!(3));
        done.extras.insert(RESULT_FIELDS.into(), json!({"later": true}));
        done.structured = Some(json!({"a": [1]}));
        let legacy = serde_json::to_value(CallResult::of(done.clone(), None, Era::Legacy, &info())).expect("json");
        let text = json!([{"type": "text", "text": "(tool failed: late)"}]);
        let expect = json!({
            "content": text, "structuredContent": {"a": [1]}, "isError": true,
            "_meta": {"k": 1, "tool_output": {"handle": "h"}}, "later": true,
        });
        assert_eq!(legacy, expect);
        let modern = serde_json::to_value(CallResult::of(done, None, Era::Modern, &info())).expect("json");
        assert_eq!((&modern["resultType"], &modern["_meta"][SERVER_INFO]["name"]), (&json!("complete"), &json!("s")));
    }

    #[test]
    fn structured_results_become_text_for_old_clients() {
        for (version, expect) in
            [("2025-03-26", json!([{"type": "text", "text": "{\"a\":1}"}])), ("2025-06-18", json!([]))]
        {
            let mut done = outcome(ToolError::new(ErrorKind::Timeout, "x"));
            (done.ok, done.error, done.content, done.structured) = (true, None, Vec::new(), Some(json!({"a": 1})));
            let result = CallResult::of(done, None, Era::Legacy, &info()).downgraded(version);
            assert_eq!(serde_json::to_value(result).expect("json")["content"], expect, "{version}");
        }
    }

    #[test]
    fn a_placeholder_for_a_result_is_an_error() {
        let schema = json!({"type": "object"});
        let check = |what: Option<&str>, schema: Option<&Value>, structured: Option<Value>, expect: (bool, usize)| {
            let mut done = outcome(ToolError::new(ErrorKind::Timeout, "x"));
            (done.ok, done.error, done.structured) = (true, None, structured);
            done.extras.extend(what.map(|what| (STANDS_IN.to_owned(), what.into())));
            for era in [Era::Legacy, Era::Modern] {
                let result = serde_json::to_value(CallResult::of(done.clone(), schema, era, &info())).expect("json");
                let reported = result["content"].as_array().expect("content").len();
                assert_eq!((result["isError"] == true, reported), expect, "{result}");
            }
        };
        check(Some("job"), Some(&schema), None, (true, 2));
        check(Some("skipped"), Some(&schema), None, (true, 1));
        check(Some("job"), None, Some(json!({"job": "j"})), (false, 1));
        check(Some("step"), Some(&schema), Some(json!({})), (false, 1));
        // Results of a server that violates its own schema pass through.
        check(None, Some(&schema), None, (false, 1));
    }

    #[test]
    fn a_result_breaking_its_schema_becomes_text() {
        let schema = json!({"type": "object", "required": ["a"]});
        let mut done = outcome(ToolError::new(ErrorKind::Timeout, "x"));
        (done.ok, done.error, done.content) = (true, None, vec![ContentBlock::text("{\"b\": 1}")]);
        done.extras.insert(SCHEMA_MISMATCH.into(), json!({"path": "(root)", "message": "a is missing"}));
        for (structured, texts) in [(Some(json!({"b": 1})), 2), (Some(json!({"b": 2})), 3), (None, 2)] {
            done.structured = structured;
            for (schema, marked) in [(Some(&schema), true), (None, false)] {
                for era in [Era::Legacy, Era::Modern] {
                    let result =
                        serde_json::to_value(CallResult::of(done.clone(), schema, era, &info())).expect("json");
                    let content = result["content"].as_array().expect("content");
                    let notice = content[content.len() - 1]["text"].as_str().unwrap_or_default();
                    assert_eq!((content.len(), result.get("structuredContent")), (texts, None), "{result}");
                    assert_eq!((result["isError"] == true, notice.contains("Nothing has failed")), (marked, marked));
                    assert!(notice.contains("at (root): a is missing"), "{notice}");
                }
            }
        }
    }

    #[test]
    fn older_clients_get_non_objects_wrapped() {
        let schema = json!({"type": "array"});
        let mut done = outcome(ToolError::new(ErrorKind::Timeout, "x"));
        (done.ok, done.error, done.content, done.structured) = (true, None, Vec::new(), Some(json!([1])));
        let result =
            |era| serde_json::to_value(CallResult::of(done.clone(), Some(&schema), era, &info())).expect("json");
        let expect = json!({"content": [{"type": "text", "text": "[1]"}], "structuredContent": {"result": [1]}});
        assert_eq!(result(Era::Legacy), expect);
        let modern = result(Era::Modern);
        assert_eq!((&modern["structuredContent"], &modern["content"]), (&json!([1]), &json!([])));
    }
}
