//! Caps the size of results: larger ones are stored and replaced by a handle.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize as _;
use serde_json::Value;
use toolwright_core::arguments::Provenance;
use toolwright_core::catalogue::{CallScope, Entry};
use toolwright_core::content::ContentBlock;
use toolwright_core::context::Redactor;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::{Outcome, ToolOutput, Validated};
use toolwright_core::output::{
    CUT_BYTES, DEFAULT_MAX_BYTES, EXTRACT_ID, GREP_ID, READ_ID, Readers, ResultsFor, TOOL_OUTPUT, add_note,
    client_max_bytes, countable, countable_text, cut_message, head_and_tail, json_bytes, stored_message, stored_note,
    text_bytes,
};
use toolwright_core::passthrough::METHOD_RESULT;
use toolwright_core::policy::{Effect, Policy, PolicyQuery, UserRequest};
use toolwright_core::session::{CallId, Session};
use toolwright_core::store::StoredOutput;

use super::{Executor, RunContext};

/// Why what is over a cap is not kept where nobody could read it.
const NO_READER: &str = "no tool that reads stored outputs is open here. Ask for less at a time";

impl Executor {
    /// The cap on the text of a tool's results, in bytes: what is configured comes before what depends on whom they are
    /// for.
    #[must_use]
    pub fn max_output(&self, entry: &Entry, results_for: ResultsFor) -> usize {
        let definition = entry.definition();
        definition.max_output.or(self.options.max_output).unwrap_or_else(|| match results_for {
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
        let ToolOutput { content, structured, is_error, meta, extras } = output;
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
        let limit = self.options.max_whole;
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
