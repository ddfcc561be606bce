//! Turns an output into an outcome: checked against the tool's output schema, and within its size limits and the
//! conversation's room.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize as _;
use serde_json::{Value, json};
use toolwright_core::arguments::Provenance;
use toolwright_core::catalogue::{CallScope, Entry, ProviderKind};
use toolwright_core::content::ContentBlock;
use toolwright_core::context::{EstimatedTokens, Redactor};
use toolwright_core::definition::OnOutputMismatch;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::outcome::{Outcome, SCHEMA_MISMATCH, STANDS_IN, ToolOutput, Validated};
use toolwright_core::output::{
    CUT_BYTES, DEFAULT_MAX_BYTES, EXTRACT_ID, GREP_ID, OutputReaders, READ_ID, ResultAudience, TOOL_OUTPUT, add_note,
    client_max_bytes, countable, countable_text, cut_message, head_and_tail, json_bytes, outputs_of_note,
    stored_message, stored_note, text_bytes,
};
use toolwright_core::passthrough::METHOD_RESULT;
use toolwright_core::policy::{Effect, Policy, PolicyQuery, UserRequest};
use toolwright_core::schema::wrapped;
use toolwright_core::session::{CallId, Session};
use toolwright_core::store::{StoreError, StoredOutput};

use super::{Executor, RunContext};
use crate::outputs::context_budget::{Compact, ContextBudget};

/// The message that replaces a result for which there is no room.
const EXCEEDED: &str = "context window budget exceeded";
/// The most files that the message about an oversized result names; its stored text names all.
const MAX_FILES: usize = 8;
/// Key in the extras of such an outcome, and code of the warning.
pub const BUDGET_EXCEEDED: &str = "context_budget_exceeded";

/// The reason why oversized output is not stored if no tool could read it.
const NO_READER: &str = "no tool that reads stored outputs is open here. Ask for less at a time";

impl Executor {
    /// Returns the limit on the text of a tool's results, in bytes. A configured limit overrides the default, which
    /// depends on the recipient of the results.
    #[must_use]
    pub fn max_output(&self, entry: &Entry, results_for: ResultAudience) -> usize {
        let definition = entry.definition();
        definition.max_output.or(self.options.defaults.tool_response_max_bytes).unwrap_or_else(|| match results_for {
            ResultAudience::Conversation => DEFAULT_MAX_BYTES,
            ResultAudience::Client => client_max_bytes(definition),
        })
    }

    /// Returns the same for a call under these terms, which may set a limit.
    pub(super) fn call_max_output(&self, entry: &Entry, run: &RunContext) -> usize {
        run.max_output.unwrap_or_else(|| self.max_output(entry, run.results_for))
    }

    /// Returns whether a call outside of a run can use a model to extract from a stored output.
    #[must_use]
    pub fn can_extract(&self) -> bool {
        self.options.services.extractor.as_ref().is_some_and(|extractor| extractor.has_model())
    }

    /// Turns an output into an outcome: checked against the tool's output schema, with its text and structured result
    /// within their limits.
    ///
    /// Text over the limit goes to the output store, and a message with its handle replaces it; other blocks pass. If
    /// the tool has stored its output itself, its text is a preview. The structured result of a tool with an output
    /// schema has its own limit; any other counts as text. A program reads the result of a protocol method, so it stays
    /// whole, or the call fails.
    pub(super) async fn limit_output(
        &self,
        id: CallId,
        output: ToolOutput,
        entry: &Entry,
        run: &RunContext,
    ) -> Outcome {
        let whole = output.extras.get(METHOD_RESULT).map(json_bytes);
        if let Some(error) = whole.and_then(|size| self.whole_value_error(size, "the result", entry)) {
            return Outcome::failed(id, error);
        }
        let mut output = match self.check_output_schema(output, entry) {
            Ok(output) => output,
            Err(error) => return Outcome::failed(id, error),
        };
        let max = self.call_max_output(entry, run);
        let mut error = None;
        if let Some(stored) = output.extras.get(TOOL_OUTPUT).and_then(|note| StoredOutput::deserialize(note).ok()) {
            describe_stored(&stored, &mut output, max, run);
        } else {
            let text = self.limit_text(&mut output, max, run).await;
            error = self.limit_structured(&mut output, text, entry, run).await;
        }
        let ToolOutput { content, structured, is_error, meta, extras, taint: _ } = output;
        let redactor = &*self.options.services.redactor;
        let reported = || ToolError::new(ErrorKind::ExecutionError, failure_text(&content, entry, redactor));
        let error = error.or_else(|| is_error.then(reported));
        Outcome {
            call_id: id,
            tool: None,
            kind: None,
            namespace: String::new(),
            ok: error.is_none(),
            content,
            structured,
            error,
            latency: Duration::ZERO,
            validated: Validated(false),
            provenance: Provenance::default(),
            ran_with: None,
            meta,
            extras,
            pending: None,
            is_left: false,
        }
    }

    /// Like [`Executor::limit_output`], for the text of an error, which may quote large data.
    pub(super) async fn limit_error_text(&self, mut outcome: Outcome, entry: &Entry, run: &RunContext) -> Outcome {
        let max = self.call_max_output(entry, run);
        if text_bytes(&outcome.content) > max {
            let content = std::mem::take(&mut outcome.content);
            let mut output = ToolOutput { content, ..ToolOutput::default() };
            self.limit_text(&mut output, max, run).await;
            outcome.content = output.content;
            outcome.extras.append(&mut output.extras);
        }
        outcome
    }

    /// Returns the error for a value of `size` bytes that must be passed on whole but is too large.
    fn whole_value_error(&self, size: usize, what: &str, entry: &Entry) -> Option<ToolError> {
        let limit = self.options.defaults.whole_result_max_bytes;
        let message = || {
            format!(
                "{what} of {} has {size} bytes, over the limit of {limit} bytes (defaults.whole_result_max_bytes): ask \
                 for less, or raise the limit",
                entry.id()
            )
        };
        (size > limit).then(|| ToolError::new(ErrorKind::ExecutionError, message()))
    }

    /// Removes text that is too large, and returns it.
    async fn limit_text(&self, output: &mut ToolOutput, max: usize, run: &RunContext) -> Option<String> {
        if text_bytes(&output.content) <= max {
            return None;
        }
        let text = countable_text(&output.content);
        let preview = self.stored(&text, max, output, run).await;
        output.content.retain(|block| countable(block).is_none());
        output.content.insert(0, ContentBlock::text(preview));
        Some(text)
    }

    /// Removes a structured result that is too large; `text` is the text removed before. An error if the tool promised
    /// a structured result.
    async fn limit_structured(
        &self,
        output: &mut ToolOutput,
        text: Option<String>,
        entry: &Entry,
        run: &RunContext,
    ) -> Option<ToolError> {
        let max = self.call_max_output(entry, run);
        let promised = entry.definition().output_schema.is_some();
        let size = json_bytes(output.structured.as_ref()?);
        let error = if promised { self.whole_value_error(size, "the structured result", entry) } else { None };
        if error.is_none() && (promised || size <= max) {
            // The model would otherwise get no content and no handle.
            if size > max && output.content.is_empty() {
                let whole = output.structured.as_ref().map(ToString::to_string).unwrap_or_default();
                let preview = self.stored(&whole, max, output, run).await;
                output.content.push(ContentBlock::text(preview));
            }
            return None;
        }
        let structured = output.structured.take()?;
        if let Some(error) = error {
            let preview = self.stored(&structured.to_string(), max, output, run).await;
            // The tool's text stays: it may be a message with the handle of stored text.
            output.content.insert(0, ContentBlock::text(format!("{}\n{preview}", error.for_model())));
            return Some(error);
        }
        // Servers often give the same data as text and structured; it is then stored already.
        let parsed_text = text.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        if parsed_text.as_ref() != Some(&structured) {
            let preview = self.stored(&structured.to_string(), max, output, run).await;
            output.content.push(ContentBlock::text(preview));
        }
        None
    }

    /// Stores text over its limit, and returns the message that replaces it.
    async fn stored(&self, text: &str, max: usize, output: &mut ToolOutput, run: &RunContext) -> String {
        let readers = output_readers(run);
        if readers.is_empty() {
            output.extras.insert(CUT_BYTES.to_owned(), text.len().into());
            return cut_message(text, max, NO_READER);
        }
        match self.options.services.outputs.put(&run.session.id, text.as_bytes()).await {
            Ok(stored) => {
                let mut note = stored_note(&stored);
                note["next"] = readers.advice(&stored.handle).into();
                add_note(&mut output.extras, TOOL_OUTPUT, note);
                stored_message(&stored, text, max, &readers)
            }
            Err(error) => {
                tracing::warn!("a large output was cut, not stored: {error}");
                output.extras.insert(CUT_BYTES.to_owned(), text.len().into());
                cut_message(text, max, &format!("{error}. Ask for less at a time"))
            }
        }
    }
}

/// Replaces the tool's text, a preview, with the message about the output that the tool has stored.
fn describe_stored(stored: &StoredOutput, output: &mut ToolOutput, max: usize, run: &RunContext) {
    let (preview, readers) = (countable_text(&output.content), output_readers(run));
    let shortened = if readers.is_empty() {
        cut_message(&preview, max, NO_READER)
    } else {
        stored_message(stored, &preview, max, &readers)
    };
    output.content.retain(|block| countable(block).is_none());
    output.content.insert(0, ContentBlock::text(shortened));
}

/// Returns the tools with which the caller can read stored outputs, by the caller's names.
#[must_use]
pub fn output_readers(run: &RunContext) -> OutputReaders {
    let open = |id: &str| {
        let entry = run.snapshot.get(id)?;
        let name = run.names.as_ref().map_or_else(|| Some(entry.wire_name.clone()), |names| names(entry))?;
        let may = run.session.principal.may_use(&entry.definition().allowed_roles) && !denies(entry, run);
        may.then_some(name)
    };
    OutputReaders { read: open(READ_ID), grep: open(GREP_ID), extract: open(EXTRACT_ID) }
}

fn denies(entry: &Entry, run: &RunContext) -> bool {
    denies_in(entry, &run.policy, &run.session, CallScope::Workspace, run.request.as_ref())
}

/// Returns whether policy denies a session's call of this tool without arguments, so that it is not shown.
#[must_use]
pub fn is_denied(entry: &Entry, policy: &Policy, session: &Session) -> bool {
    denies_in(entry, policy, session, CallScope::Anywhere, None)
}

fn denies_in(
    entry: &Entry,
    policy: &Policy,
    session: &Session,
    scope: CallScope,
    request: Option<&Arc<UserRequest>>,
) -> bool {
    let query = PolicyQuery {
        definition: entry.definition(),
        trust: entry.provider.trust(),
        principal: &session.principal,
        root: &session.root,
        scope,
        unvalidated: None,
        arguments: &Value::Object(serde_json::Map::new()),
        request,
        tainted: &[],
    };
    policy.decide(&query).effect == Effect::Deny
}

/// Returns a failure's message for the operator. It is redacted before it is cut, because a cut secret could not be
/// recognised.
fn failure_text(content: &[ContentBlock], entry: &Entry, redactor: &dyn Redactor) -> String {
    let text = toolwright_core::content::joined_text(content);
    if text.is_empty() {
        return format!("{} failed without saying why", entry.id());
    }
    head_and_tail(&redactor.redact(&text), 600)
}

impl Executor {
    /// Checks the structured result of a tool with an output schema. A violation is reported, and is an error if the
    /// definition says so. Failures and placeholders need not fit the schema, and text is not parsed to find a result.
    pub(super) fn check_output_schema(&self, mut output: ToolOutput, entry: &Entry) -> Result<ToolOutput, ToolError> {
        if output.is_error || output.extras.contains_key(STANDS_IN) {
            return Ok(output);
        }
        if entry.provider.kind() == ProviderKind::Mcp {
            output.structured = output.structured.map(|value| as_listed(value, entry));
        }
        let Some((path, why)) = mismatch(output.structured.as_ref(), entry) else { return Ok(output) };
        let message = format!("the result of {} breaks its output schema at {path}: {why}", entry.id());
        let services = &self.options.services;
        let redacted = services.redactor.redact(&message).into_owned();
        services.events.emit(Event::Warning { code: SCHEMA_MISMATCH.into(), message: redacted });
        if entry.definition().on_output_mismatch == OnOutputMismatch::Error {
            let model = format!("its result broke its output schema at {path}: {why}");
            return Err(ToolError::new(ErrorKind::ExecutionError, message).with_model_message(model));
        }
        output.extras.insert(SCHEMA_MISMATCH.into(), json!({"path": path, "message": why}));
        Ok(output)
    }
}

/// Puts a server's result into the form of its listed output schema. A server of both generations wraps non-object
/// schemas and results for the older one, but list and result may have come over different connections.
fn as_listed(value: Value, entry: &Entry) -> Value {
    let (Some(listed), Ok(Some(schema))) = (&entry.definition().output_schema, entry.tool.output_schema()) else {
        return value;
    };
    let is_object_wrapper = wrapped::is_object_wrapper(listed);
    if (wrapped::is_of_object(listed) && !is_object_wrapper) || schema.is_valid(&value) {
        return value;
    }
    let other =
        if is_object_wrapper { Some(wrapped::wrap_value(value.clone())) } else { wrapped::inside(&value).cloned() };
    other.filter(|other| schema.is_valid(other)).unwrap_or(value)
}

/// Returns the first place where a result violates its schema, and how. A schema that does not compile accepts
/// everything.
fn mismatch(structured: Option<&Value>, entry: &Entry) -> Option<(String, String)> {
    let schema = entry.tool.output_schema().ok()??;
    let Some(value) = structured else {
        return Some(("(root)".into(), "there is no structured result".into()));
    };
    if schema.is_valid(value) {
        return None;
    }
    let first = schema.violations(value).into_iter().next()?;
    let path = if first.path.is_empty() { "(root)".into() } else { first.path };
    Some((path, first.message))
}

impl Executor {
    /// Reserves room for an outcome in its run's conversation. If there is none, the outcome is stored, and a message
    /// with its handle replaces it. If the message does not fit even after older results were removed, an error
    /// replaces it. If handles cannot be used, older results are removed to make room for the whole outcome.
    pub(super) async fn fit_into_conversation(&self, mut outcome: Outcome, entry: &Entry, run: &RunContext) -> Outcome {
        let Some(budget) = run.budget.as_ref().filter(|_| outcome.pending.is_none()) else { return outcome };
        let needed = tokens(&outcome);
        if let Some(reserved) = budget.reserve(needed, Compact::No) {
            reserved.keep();
            return outcome;
        }
        let left = budget.free_tokens();
        let stored_outcome = self.store_whole(&mut outcome, run).await;
        if stored_outcome.is_empty()
            && let Some(reserved) = budget.reserve(needed, Compact::Yes)
        {
            reserved.keep();
            return outcome;
        }
        self.options.services.events.emit_with(|| Event::BudgetExceeded {
            session: run.session.id.clone(),
            call: outcome.call_id.clone(),
            tool: Some(entry.id().clone()),
            needed: needed as u64,
            left: left as u64,
            handle: stored_outcome.first().map(str::to_owned),
        });
        if !stored_outcome.is_empty() {
            let message = vec![ContentBlock::text(stored_outcome.message(&output_readers(run)))];
            if let Some(reserved) = budget.reserve(message.iter().map(ContentBlock::tokens).sum(), Compact::Yes) {
                reserved.keep();
                outcome.content = message;
                outcome.structured = None;
                return outcome;
            }
        }
        self.no_room(outcome, &stored_outcome, budget)
    }

    /// Stores everything of an outcome that a model would see and that is not stored yet: text, images and other files.
    /// If a part cannot be stored, the outcome counts as not stored.
    async fn store_whole(&self, outcome: &mut Outcome, run: &RunContext) -> StoredOutcome {
        if output_readers(run).is_empty() {
            return StoredOutcome::default();
        }
        match self.try_store_whole(outcome, run).await {
            Ok(stored_outcome) => stored_outcome,
            Err(error) => {
                tracing::warn!("a result that does not fit the conversation was not stored: {error}");
                StoredOutcome::default()
            }
        }
    }

    async fn try_store_whole(&self, outcome: &mut Outcome, run: &RunContext) -> Result<StoredOutcome, StoreError> {
        let (outputs, session) = (&self.options.services.outputs, &run.session.id);
        let mut stored_outcome = StoredOutcome::noted(outcome);
        let mut lines = Vec::new();
        for block in &outcome.content {
            let bytes = block.binary().and_then(|(data, media)| Some((BASE64_STANDARD.decode(data).ok()?, media)));
            let line = match bytes {
                Some((bytes, media)) => {
                    let handle = outputs.put_artifact(session, &bytes, media).await?.handle;
                    let line = format!("{} [kept as a file under the handle {handle}]", block.placeholder());
                    stored_outcome.files.push(handle);
                    line
                }
                None => block.placeholder(),
            };
            // The placeholder of a stored part contains its handle.
            if !stored_outcome.texts.iter().any(|stored| line.contains(&stored.handle)) {
                lines.push(line);
            }
        }
        let text = match &outcome.structured {
            Some(structured) if outcome.content.is_empty() => structured.to_string(),
            _ if lines.len() == stored_outcome.files.len() && lines.len() <= MAX_FILES => String::new(),
            _ => lines.join("\n"),
        };
        if !text.trim().is_empty() {
            let stored = outputs.put(session, text.as_bytes()).await?;
            let mut note = stored_note(&stored);
            note["reason"] = BUDGET_EXCEEDED.into();
            add_note(&mut outcome.extras, TOOL_OUTPUT, note);
            stored_outcome.texts.push(stored);
        }
        Ok(stored_outcome)
    }

    fn no_room(&self, mut outcome: Outcome, stored_outcome: &StoredOutcome, budget: &ContextBudget) -> Outcome {
        let error = ToolError::new(ErrorKind::ExecutionError, EXCEEDED);
        let stored_outcome =
            if stored_outcome.is_empty() { StoredOutcome::noted(&outcome).short() } else { stored_outcome.short() };
        let content = ContentBlock::text(format!("{}\n{stored_outcome}", error.for_model()));
        budget.take(content.tokens());
        let call = &outcome.call_id;
        let message = format!("the result of call {call} does not fit the context window: the next turn is the last");
        self.options.services.events.emit(Event::Warning { code: BUDGET_EXCEEDED.into(), message });
        outcome.extras.insert(BUDGET_EXCEEDED.into(), json!(true));
        Outcome { ok: false, content: vec![content], structured: None, error: Some(error), ..outcome }
    }
}

/// The stored parts of an outcome.
#[derive(Debug, Default)]
struct StoredOutcome {
    /// The handles of its text parts.
    texts: Vec<StoredOutput>,
    /// Handles of its images and other files.
    files: Vec<String>,
}

impl StoredOutcome {
    /// Returns the parts of an outcome that were stored before.
    fn noted(outcome: &Outcome) -> Self {
        let texts = outcome.extras.get(TOOL_OUTPUT).map(outputs_of_note).unwrap_or_default();
        Self { texts, files: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.files.is_empty()
    }

    fn first(&self) -> Option<&str> {
        self.texts.first().map(|stored| stored.handle.as_str()).or_else(|| self.files.first().map(String::as_str))
    }

    /// Returns the message that replaces the outcome in the conversation.
    fn message(&self, readers: &OutputReaders) -> String {
        let mut lines: Vec<String> = self.texts.iter().map(|stored| stored_message(stored, "", 0, readers)).collect();
        lines.extend(self.of_files());
        lines.join("\n")
    }

    /// Returns the shortest form of that message.
    fn short(&self) -> String {
        let text = |stored: &StoredOutput| {
            format!("Its result, {} bytes, is stored under the handle {}.", stored.bytes, stored.handle)
        };
        let mut lines: Vec<String> = self.texts.iter().map(text).collect();
        lines.extend(self.of_files());
        if lines.is_empty() { "Its result was not kept.".into() } else { lines.join("\n") }
    }

    fn of_files(&self) -> Option<String> {
        let named = self.files.get(..self.files.len().min(MAX_FILES)).filter(|named| !named.is_empty())?;
        let rest = self.files.len() - named.len();
        let rest = if rest == 0 { String::new() } else { format!(" and {rest} more files") };
        Some(format!("toolwright stored its images and other files under {}{rest}.", named.join(", ")))
    }
}

/// Estimates the tokens of what a model sees of an outcome.
fn tokens(outcome: &Outcome) -> usize {
    match &outcome.structured {
        Some(structured) if outcome.content.is_empty() => {
            EstimatedTokens::of_bytes(json_bytes(structured).min(DEFAULT_MAX_BYTES))
        }
        _ => outcome.content.iter().map(ContentBlock::tokens).sum(),
    }
}
