//! Makes the outcome of an output: checked against the tool's output schema, within its caps and the room of the
//! conversation.

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
    CUT_BYTES, DEFAULT_MAX_BYTES, EXTRACT_ID, GREP_ID, READ_ID, Readers, ResultsFor, TOOL_OUTPUT, add_note,
    client_max_bytes, countable, countable_text, cut_message, head_and_tail, json_bytes, noted_outputs, stored_message,
    stored_note, text_bytes,
};
use toolwright_core::passthrough::METHOD_RESULT;
use toolwright_core::policy::{Effect, Policy, PolicyQuery, UserRequest};
use toolwright_core::schema::wrapped;
use toolwright_core::session::{CallId, Session};
use toolwright_core::store::{StoreError, StoredOutput};

use super::{Executor, RunContext};
use crate::outputs::budget::{Compact, ContextBudget};

/// The message that replaces a result for which there is no room at all.
const EXCEEDED: &str = "context window budget exceeded";
/// Files of a result that are named where it does not fit; the text that is stored of it names all.
const MAX_FILES: usize = 8;
/// Set in the extras of such an outcome, and code of the warning.
pub const BUDGET_EXCEEDED: &str = "context_budget_exceeded";

/// Why what is over a cap is not kept where nobody could read it.
const NO_READER: &str = "no tool that reads stored outputs is open here. Ask for less at a time";

impl Executor {
    /// The cap on the text of a tool's results, in bytes: what is configured comes before what depends on whom they are
    /// for.
    #[must_use]
    pub fn max_output(&self, entry: &Entry, results_for: ResultsFor) -> usize {
        let definition = entry.definition();
        definition.max_output.or(self.options.defaults.tool_response_max_bytes).unwrap_or_else(|| match results_for {
            ResultsFor::Conversation => DEFAULT_MAX_BYTES,
            ResultsFor::Client => client_max_bytes(definition),
        })
    }

    /// The same for a call under these terms, whose maker may have set one.
    pub(super) fn cap_of(&self, entry: &Entry, run: &RunContext) -> usize {
        run.max_output.unwrap_or_else(|| self.max_output(entry, run.results_for))
    }

    /// Whether a call that no run makes can have a model extract from a stored output.
    #[must_use]
    pub fn can_extract(&self) -> bool {
        self.options.services.extractor.as_ref().is_some_and(|extractor| extractor.has_model())
    }

    /// The outcome of an output: checked against the tool's output schema, its text and structured result within
    /// their caps.
    ///
    /// Text over the cap goes to the output store and a message with its handle takes its place; other blocks pass.
    /// Of what the tool has stored itself, its text is a preview. The structured result of a tool with an output schema
    /// stays whole up to its own cap; another one counts as text.
    /// The result of a protocol's method is the protocol's own and is read by a program: it stays whole, or the call
    /// fails.
    pub(super) async fn cap(&self, id: CallId, output: ToolOutput, entry: &Entry, run: &RunContext) -> Outcome {
        let whole = output.extras.get(METHOD_RESULT).map(json_bytes);
        if let Some(error) = whole.and_then(|size| self.over_whole(size, "the result", entry)) {
            return Outcome::failed(id, error);
        }
        let mut output = match self.conform(output, entry) {
            Ok(output) => output,
            Err(error) => return Outcome::failed(id, error),
        };
        let max = self.cap_of(entry, run);
        let mut error = None;
        if let Some(stored) = output.extras.get(TOOL_OUTPUT).and_then(|note| StoredOutput::deserialize(note).ok()) {
            describe_stored(&stored, &mut output, max, run);
        } else {
            let text = self.cap_text(&mut output, max, run).await;
            error = self.cap_structured(&mut output, text, entry, run).await;
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
        }
    }

    /// As [`Executor::cap`], of what an error tells the model: a tool may quote anything in it.
    pub(super) async fn cap_failure(&self, mut outcome: Outcome, entry: &Entry, run: &RunContext) -> Outcome {
        let max = self.cap_of(entry, run);
        if text_bytes(&outcome.content) > max {
            let content = std::mem::take(&mut outcome.content);
            let mut output = ToolOutput { content, ..ToolOutput::default() };
            self.cap_text(&mut output, max, run).await;
            outcome.content = output.content;
            outcome.extras.append(&mut output.extras);
        }
        outcome
    }

    /// Why a value of `size` bytes that goes on whole or not at all does not go on.
    fn over_whole(&self, size: usize, what: &str, entry: &Entry) -> Option<ToolError> {
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

    /// Takes out text that is too large, and returns it.
    async fn cap_text(&self, output: &mut ToolOutput, max: usize, run: &RunContext) -> Option<String> {
        if text_bytes(&output.content) <= max {
            return None;
        }
        let text = countable_text(&output.content);
        let shown = self.stored(&text, max, output, run).await;
        output.content.retain(|block| countable(block).is_none());
        output.content.insert(0, ContentBlock::text(shown));
        Some(text)
    }

    /// Takes out a structured result that is too large; `text` is what was taken out before. An error where the tool
    /// promised one.
    async fn cap_structured(
        &self,
        output: &mut ToolOutput,
        text: Option<String>,
        entry: &Entry,
        run: &RunContext,
    ) -> Option<ToolError> {
        let max = self.cap_of(entry, run);
        let promised = entry.definition().output_schema.is_some();
        let size = json_bytes(output.structured.as_ref()?);
        let error = if promised { self.over_whole(size, "the structured result", entry) } else { None };
        if error.is_none() && (promised || size <= max) {
            // A model has nothing else to go by, and no handle yet.
            if size > max && output.content.is_empty() {
                let whole = output.structured.as_ref().map(ToString::to_string).unwrap_or_default();
                let shown = self.stored(&whole, max, output, run).await;
                output.content.push(ContentBlock::text(shown));
            }
            return None;
        }
        let structured = output.structured.take()?;
        if let Some(error) = error {
            let shown = self.stored(&structured.to_string(), max, output, run).await;
            // What the tool says in words stays: its text may be stored too, under a handle that stands in it.
            output.content.insert(0, ContentBlock::text(format!("{}\n{shown}", error.for_model())));
            return Some(error);
        }
        // Servers often say the same twice: then it is in the store already.
        let said = text.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        if said.as_ref() != Some(&structured) {
            let shown = self.stored(&structured.to_string(), max, output, run).await;
            output.content.push(ContentBlock::text(shown));
        }
        None
    }

    /// Stores a text that is over its cap, and what is said in its place.
    async fn stored(&self, text: &str, max: usize, output: &mut ToolOutput, run: &RunContext) -> String {
        let readers = readers(run);
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

/// Puts the message about an output that its tool has stored in the place of the tool's text, a preview.
fn describe_stored(stored: &StoredOutput, output: &mut ToolOutput, max: usize, run: &RunContext) {
    let (preview, readers) = (countable_text(&output.content), readers(run));
    let shown = if readers.is_empty() {
        cut_message(&preview, max, NO_READER)
    } else {
        stored_message(stored, &preview, max, &readers)
    };
    output.content.retain(|block| countable(block).is_none());
    output.content.insert(0, ContentBlock::text(shown));
}

/// The tools by which the caller can go on with what is stored, by the names that it has for them.
#[must_use]
pub fn readers(run: &RunContext) -> Readers {
    let open = |id: &str| {
        let entry = run.snapshot.get(id)?;
        let name = run.names.as_ref().map_or_else(|| Some(entry.wire_name.clone()), |names| names(entry))?;
        let may = run.session.principal.may_use(&entry.definition().allowed_roles) && !denies(entry, run);
        may.then_some(name)
    };
    Readers { read: open(READ_ID), grep: open(GREP_ID), extract: open(EXTRACT_ID) }
}

fn denies(entry: &Entry, run: &RunContext) -> bool {
    denies_in(entry, &run.policy, &run.session, CallScope::Workspace, run.request.as_ref())
}

/// Whether policy denies a session's call of this entry without arguments: it is not shown then.
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

/// The operator's message about a failure. Redacted before it is cut: of a secret that is cut through, nothing could
/// tell the rest.
fn failure_text(content: &[ContentBlock], entry: &Entry, redactor: &dyn Redactor) -> String {
    let text = toolwright_core::content::joined_text(content);
    if text.is_empty() {
        return format!("{} failed without saying why", entry.id());
    }
    head_and_tail(&redactor.redact(&text), 600)
}

impl Executor {
    /// Checks the structured result of a tool with an output schema. What breaks it is told; it is an error where
    /// the definition says so. A failure need not fit the schema, nor what stands in the place of a result; text is not
    /// parsed to find one in it.
    pub(super) fn conform(&self, mut output: ToolOutput, entry: &Entry) -> Result<ToolOutput, ToolError> {
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

/// A server's result in the form of the output schema that it listed. One that speaks both generations puts what is no
/// object inside one for the older, schema and result alike; but the list may have come over one connection and the
/// result over another.
fn as_listed(value: Value, entry: &Entry) -> Value {
    let (Some(listed), Ok(Some(schema))) = (&entry.definition().output_schema, entry.tool.output_schema()) else {
        return value;
    };
    let is_around = wrapped::is_around(listed);
    if (wrapped::is_of_object(listed) && !is_around) || schema.is_valid(&value) {
        return value;
    }
    let other = if is_around { Some(wrapped::around(value.clone())) } else { wrapped::inside(&value).cloned() };
    other.filter(|other| schema.is_valid(other)).unwrap_or(value)
}

/// The first place where a result breaks its schema, and how. A schema that does not compile is broken by nothing.
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
    /// Reserves room for an outcome in the conversation of its run. One for which there is none is stored, and its
    /// handle takes its place; if that does not fit either, even when older results give way, an error does. Where no
    /// handle can be, older results give way to the whole.
    pub(super) async fn fit(&self, mut outcome: Outcome, entry: &Entry, run: &RunContext) -> Outcome {
        let Some(budget) = run.budget.as_ref().filter(|_| outcome.pending.is_none()) else { return outcome };
        let needed = tokens(&outcome);
        if let Some(reserved) = budget.reserve(needed, Compact::No) {
            reserved.keep();
            return outcome;
        }
        let left = budget.left();
        let kept = self.store_whole(&mut outcome, run).await;
        if kept.is_empty()
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
            handle: kept.first().map(str::to_owned),
        });
        if !kept.is_empty() {
            let message = vec![ContentBlock::text(kept.message(&readers(run)))];
            if let Some(reserved) = budget.reserve(message.iter().map(ContentBlock::tokens).sum(), Compact::Yes) {
                reserved.keep();
                outcome.content = message;
                outcome.structured = None;
                return outcome;
            }
        }
        self.no_room(outcome, &kept, budget)
    }

    /// Stores all of an outcome that a model would see, but for what is stored already: its text, its images and other
    /// files. What cannot be stored is not lost without a word: then the outcome counts as not stored.
    async fn store_whole(&self, outcome: &mut Outcome, run: &RunContext) -> StoredOutcome {
        if readers(run).is_empty() {
            return StoredOutcome::default();
        }
        match self.try_store_whole(outcome, run).await {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!("a result that does not fit the conversation was not stored: {error}");
                StoredOutcome::default()
            }
        }
    }

    async fn try_store_whole(&self, outcome: &mut Outcome, run: &RunContext) -> Result<StoredOutcome, StoreError> {
        let (outputs, session) = (&self.options.services.outputs, &run.session.id);
        let mut kept = StoredOutcome::noted(outcome);
        let mut lines = Vec::new();
        for block in &outcome.content {
            let bytes = block.binary().and_then(|(data, media)| Some((BASE64_STANDARD.decode(data).ok()?, media)));
            let line = match bytes {
                Some((bytes, media)) => {
                    let handle = outputs.put_artifact(session, &bytes, media).await?.handle;
                    let line = format!("{} [kept as a file under the handle {handle}]", block.placeholder());
                    kept.files.push(handle);
                    line
                }
                None => block.placeholder(),
            };
            // What stands in place of a stored part names its handle.
            if !kept.texts.iter().any(|stored| line.contains(&stored.handle)) {
                lines.push(line);
            }
        }
        let text = match &outcome.structured {
            Some(structured) if outcome.content.is_empty() => structured.to_string(),
            _ if lines.len() == kept.files.len() && lines.len() <= MAX_FILES => String::new(),
            _ => lines.join("\n"),
        };
        if !text.trim().is_empty() {
            let stored = outputs.put(session, text.as_bytes()).await?;
            let mut note = stored_note(&stored);
            note["reason"] = BUDGET_EXCEEDED.into();
            add_note(&mut outcome.extras, TOOL_OUTPUT, note);
            kept.texts.push(stored);
        }
        Ok(kept)
    }

    fn no_room(&self, mut outcome: Outcome, kept: &StoredOutcome, budget: &ContextBudget) -> Outcome {
        let error = ToolError::new(ErrorKind::ExecutionError, EXCEEDED);
        let kept = if kept.is_empty() { StoredOutcome::noted(&outcome).short() } else { kept.short() };
        let content = ContentBlock::text(format!("{}\n{kept}", error.for_model()));
        budget.take(content.tokens());
        let call = &outcome.call_id;
        let message = format!("the result of call {call} does not fit the context window: the next turn is the last");
        self.options.services.events.emit(Event::Warning { code: BUDGET_EXCEEDED.into(), message });
        outcome.extras.insert(BUDGET_EXCEEDED.into(), json!(true));
        Outcome { ok: false, content: vec![content], structured: None, error: Some(error), ..outcome }
    }
}

/// What is stored of an outcome.
#[derive(Debug, Default)]
struct StoredOutcome {
    /// Its text, in parts.
    texts: Vec<StoredOutput>,
    /// Handles of its images and other files.
    files: Vec<String>,
}

impl StoredOutcome {
    /// What was stored of an outcome before.
    fn noted(outcome: &Outcome) -> Self {
        let texts = outcome.extras.get(TOOL_OUTPUT).map(noted_outputs).unwrap_or_default();
        Self { texts, files: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.files.is_empty()
    }

    fn first(&self) -> Option<&str> {
        self.texts.first().map(|stored| stored.handle.as_str()).or_else(|| self.files.first().map(String::as_str))
    }

    /// What takes the place of the outcome in the conversation.
    fn message(&self, readers: &Readers) -> String {
        let mut lines: Vec<String> = self.texts.iter().map(|stored| stored_message(stored, "", 0, readers)).collect();
        lines.extend(self.of_files());
        lines.join("\n")
    }

    /// The same in as few words as there can be.
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

/// Estimated tokens of what a model sees of an outcome.
fn tokens(outcome: &Outcome) -> usize {
    match &outcome.structured {
        Some(structured) if outcome.content.is_empty() => {
            EstimatedTokens::of_bytes(json_bytes(structured).min(DEFAULT_MAX_BYTES))
        }
        _ => outcome.content.iter().map(ContentBlock::tokens).sum(),
    }
}
