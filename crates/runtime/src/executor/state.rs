//! Writes the outputs of calls to their paths in the state, and tracks the taint of these outputs and of the files that
//! calls write.

use serde_json::{Value, json};
use toolwright_core::call::ValidCall;
use toolwright_core::catalogue::CallScope;
use toolwright_core::content::ContentBlock;
use toolwright_core::error::{ToolError, Unsupported};
use toolwright_core::event::Event;
use toolwright_core::outcome::{NOT_KEPT, Outcome, STANDS_IN, ToolOutput};
use toolwright_core::output::{TOOL_OUTPUT, json_bytes};
use toolwright_core::store::{
    Author, FILES, FileNotes, FileTaint, LogEntry, MAX_ROW_BYTES, NewRow, STATE, StoreError, StoredOutput, Written,
    files_mailbox, log_path, state_path,
};
use toolwright_core::taint::{Taint, of_all};

use serde::Deserialize as _;

use super::admission::query;
use super::run::idempotency_key;
use super::{Executor, RunContext};
use crate::state::read_stored;

/// The size, in bytes, from which the log stores only a value's handle. A row counts more than its data.
const MAX_IN_LOG: usize = MAX_ROW_BYTES - 4096;

/// An output that will be written to the state.
pub(super) struct StateWrite {
    path: String,
    value: Value,
    /// Set if the tool has stored the output itself.
    stored: Option<StoredOutput>,
    taint: Taint,
}

impl Executor {
    /// Returns what must be written to the state. Reports the output's taint to the outer call.
    pub(super) fn account_for(call: &ValidCall, output: &ToolOutput, run: &RunContext) -> Option<StateWrite> {
        if !is_kept(call, run) {
            return None;
        }
        let mut taint = Self::output_taint(call, run);
        taint.add(&output.taint);
        if let Some(outer) = &run.inner {
            outer.note_taint(&taint);
        }
        Self::to_keep(call, output, &taint)
    }

    /// Returns the untrusted tools from which the output of a call derives, including those of its inner calls.
    fn output_taint(call: &ValidCall, run: &RunContext) -> Taint {
        let mut taint = of_all(&call.provenance.tainted);
        let query = query(call, CallScope::Anywhere, run);
        if run.policy.taints(&query, call.entry.provider.kind()) {
            taint.add(&Taint::of(call.entry.id()));
        }
        taint.add(&run.inner_taint.so_far());
        taint
    }

    /// Returns the taint of the files that a call is about to use. Files that it may write are recorded before it has
    /// an effect.
    ///
    /// # Errors
    /// Errors of the store for tainted arguments: a call that cannot be tracked does not run. Without a session log
    /// nothing is tracked.
    pub(super) async fn follow_files(&self, call: &ValidCall, run: &RunContext) -> Result<FileTaint, ToolError> {
        let (given, is_kept) = (of_all(&call.provenance.tainted), is_kept(call, run));
        let may_matter = is_kept || !call.entry.definition().effects.read_only;
        if !may_matter || !call.provenance.route.is_tool() {
            return Ok(FileTaint::default());
        }
        let usage = call.entry.provider.files(call.entry.id(), &call.arguments, &run.session);
        if !usage.needs_notes(is_kept, &given) {
            return Ok(FileTaint::default());
        }
        let rows = match self.options.services.log.values(&files_mailbox(&run.session.principal), FILES).await {
            Ok(rows) => rows,
            Err(StoreError::Unsupported(_)) => return Ok(FileTaint::default()),
            // `ledger.mode` decides whether calls wait for a failing store.
            Err(error) if given.is_empty() => {
                tracing::warn!(tool = %call.entry.id(), "which files are tainted cannot be read: {error}");
                return Ok(FileTaint::default());
            }
            Err(error) => return Err(error.into()),
        };
        let mut found = FileNotes::of(rows).judge(&usage, &call.arguments, &given);
        self.note_files(std::mem::take(&mut found.before), call, run).await?;
        Ok(found)
    }

    /// Returns the output of a call with the taint of the files that it read. Files that it replaced are clean from now
    /// on.
    pub(super) async fn with_files(
        &self,
        mut output: ToolOutput,
        files: FileTaint,
        call: &ValidCall,
        run: &RunContext,
    ) -> ToolOutput {
        output.taint.add(&files.read);
        if !output.is_error
            && let Err(error) = self.note_files(files.after, call, run).await
        {
            tracing::warn!(tool = %call.entry.id(), "a file that was replaced counts as tainted still: {error}");
        }
        output
    }

    async fn note_files(&self, notes: Vec<Written>, call: &ValidCall, run: &RunContext) -> Result<(), StoreError> {
        for written in notes {
            let row = NewRow {
                session: files_mailbox(&run.session.principal),
                principal: run.session.principal.id.clone(),
                author: Author::call(&run.session, &call.id),
                entry: LogEntry::Value(written),
                once: None,
            };
            self.options.services.log.append(row).await?;
        }
        Ok(())
    }

    /// Returns what must be kept of an output, before it is cut for a conversation; `None` if the call writes no path.
    fn to_keep(call: &ValidCall, output: &ToolOutput, taint: &Taint) -> Option<StateWrite> {
        let path = state_path(call.meta.output_path.as_deref()?)?;
        let stored = output.extras.get(TOOL_OUTPUT).and_then(|note| StoredOutput::deserialize(note).ok());
        let value = if stored.is_some() { Value::Null } else { output.value() };
        Some(StateWrite { path: log_path(STATE, path), value, stored, taint: taint.clone() })
    }

    /// Writes an output to the state, once for each call of a run, before the outcome is reported. Failed calls and
    /// placeholders write nothing.
    pub(super) async fn keep(&self, write: StateWrite, call: &ValidCall, outcome: &mut Outcome, run: &RunContext) {
        if !outcome.ok || outcome.pending.is_some() || outcome.extras.contains_key(STANDS_IN) {
            return;
        }
        let services = &self.options.services;
        let StateWrite { path, mut value, stored, taint } = write;
        let session = &run.session;
        let output = match stored {
            Some(stored) => {
                // References to an output that is too large to be read get its handle.
                value = match read_stored(&*services.outputs, &session.id, &stored.handle).await {
                    Ok(value) => value,
                    Err(_) => json!({"output": stored.handle}),
                };
                Ok(Some(stored.handle))
            }
            None if json_bytes(&value) > MAX_IN_LOG => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                services.outputs.put(&session.id, text.as_bytes()).await.map(|stored| Some(stored.handle))
            }
            None => Ok(None),
        };
        let kept = match output {
            Ok(output) => {
                let instance = call.meta.instance.clone();
                let written = Written { path, instance, method: call.meta.output_method, data: value, taint, output };
                let row = NewRow::value(session, &call.id, written.clone()).once(idempotency_key(call, run));
                match (services.log.append(row).await, &run.variables) {
                    // Without a log only the run knows the value.
                    (Err(StoreError::Unsupported(Unsupported(_))), Some(variables)) => {
                        variables.write(&written);
                        Ok(())
                    }
                    (appended, _) => appended.map(drop),
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            let path = call.meta.output_path.as_deref().unwrap_or_default();
            let message = format!("the result was not kept under {path}: {error}");
            services.events.emit(Event::Warning { code: NOT_KEPT.into(), message: message.clone() });
            outcome.content.push(ContentBlock::text(format!("[toolwright notice] {message}")));
            outcome.extras.insert(NOT_KEPT.into(), message.into());
        }
    }
}

/// Returns whether the output of the call is kept: by the state, or by its outer call.
fn is_kept(call: &ValidCall, run: &RunContext) -> bool {
    run.inner.is_some() || call.meta.output_path.is_some()
}
