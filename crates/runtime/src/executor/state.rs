//! Stores outputs of calls in the state, and notes the taint of outputs and written files, and the files that woken
//! runs write.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use toolwright_core::call::ValidCall;
use toolwright_core::catalogue::{CallScope, ProviderKind};
use toolwright_core::content::ContentBlock;
use toolwright_core::error::{ToolError, Unsupported};
use toolwright_core::event::Event;
use toolwright_core::outcome::{NOT_KEPT, Outcome, STANDS_IN, ToolOutput};
use toolwright_core::output::{TOOL_OUTPUT, json_bytes};
use toolwright_core::session::SessionId;
use toolwright_core::store::{
    Author, FILES, FileNotes, FileTaint, FileUse, LogEntry, MAX_ROW_BYTES, NewRow, STATE, StoreError, StoredOutput,
    WRITES, WriteNote, WrittenValue, files_mailbox, log_path, state_path,
};
use toolwright_core::taint::{Taint, of_all};

use serde::Deserialize as _;

use super::run::idempotency_key;
use super::{Executor, RunContext};
use crate::state::read_stored;

/// The size, in bytes, above which the log stores only a value's handle. A row counts more than its data.
const MAX_IN_LOG: usize = MAX_ROW_BYTES - 4096;

/// An output that will be written to the state.
pub(super) struct StateWrite {
    path: String,
    value: Value,
    /// Set if the tool has stored the output itself.
    stored: Option<StoredOutput>,
    taint: Taint,
}

/// The files that a running call of a woken run may write.
pub(super) struct Writing {
    note: WriteNote,
    places: Vec<PathBuf>,
}

impl Executor {
    /// Returns the output to write to the state, if any. Reports its taint to the outer call.
    pub(super) fn account_for(call: &ValidCall, output: &ToolOutput, run: &RunContext) -> Option<StateWrite> {
        if !is_kept(call, run) {
            return None;
        }
        let mut taint = Self::output_taint(call, run);
        taint.add(&output.taint);
        if let Some(outer) = &run.inner {
            outer.note_taint(&taint);
        }
        Self::state_write(call, output, &taint)
    }

    /// Returns the untrusted tools from which the output of a call derives, including those of its inner calls.
    fn output_taint(call: &ValidCall, run: &RunContext) -> Taint {
        let mut taint = of_all(&call.provenance.tainted);
        let query = run.query(call, CallScope::Anywhere);
        if run.policy.taints(&query, call.entry.provider.kind()) {
            taint.add(&Taint::of(call.entry.id()));
        }
        taint.add(&run.inner_taint.so_far());
        taint
    }

    /// Returns the taint of the files that a call will use, and what [`Self::end_writing`] needs. Notes the files that
    /// it may write before it has an effect.
    ///
    /// # Errors
    /// Errors of the store, if the arguments are tainted or a taint note is not written: such a call does not run.
    /// Without a session log, nothing is followed.
    pub(super) async fn follow_files(
        &self,
        call: &ValidCall,
        run: &RunContext,
    ) -> Result<(FileTaint, Option<Writing>), ToolError> {
        let may_write = !call.entry.definition().effects.read_only;
        if !(may_write || is_kept(call, run)) || !call.provenance.route.is_tool() {
            return Ok((FileTaint::default(), None));
        }
        let usage = call.entry.provider.files(call.entry.id(), &call.arguments, &run.session);
        let found = self.judge_files(&usage, call, run).await?;
        let writing = if may_write { self.begin_writing(&usage, call, run).await } else { None };
        Ok((found, writing))
    }

    async fn judge_files(&self, usage: &FileUse, call: &ValidCall, run: &RunContext) -> Result<FileTaint, ToolError> {
        let argument_taint = of_all(&call.provenance.tainted);
        if !usage.needs_notes(is_kept(call, run), &argument_taint) {
            return Ok(FileTaint::default());
        }
        let mailbox = files_mailbox(&run.session.principal);
        let rows = match self.options.services.log.values(&mailbox, FILES).await {
            Ok(rows) => rows,
            Err(StoreError::Unsupported(_)) => return Ok(FileTaint::default()),
            // `ledger.mode` decides whether calls wait for a failing store.
            Err(error) if argument_taint.is_empty() => {
                tracing::warn!(tool = %call.entry.id(), "which files are tainted cannot be read: {error}");
                return Ok(FileTaint::default());
            }
            Err(error) => return Err(error.into()),
        };
        let mut found = FileNotes::of(rows).judge(usage, &call.arguments, &argument_taint);
        self.note_files(&mailbox, std::mem::take(&mut found.before), call, run).await?;
        Ok(found)
    }

    /// Notes the files that a call begins to write, if its run was woken, so that triggers can count hops.
    async fn begin_writing(&self, usage: &FileUse, call: &ValidCall, run: &RunContext) -> Option<Writing> {
        let hops = run.hops.load(Ordering::Relaxed);
        if hops == 0 {
            return None;
        }
        let mut places: Vec<PathBuf> = usage.written().into_iter().map(PathBuf::from).collect();
        // A server does not say what it writes.
        if places.is_empty() && call.entry.provider.kind() == ProviderKind::Mcp {
            places.push(run.session.root.canonicalize().unwrap_or_else(|_| run.session.root.clone()));
        }
        if places.is_empty() {
            return None;
        }
        let note = WriteNote { hops, since_ms: self.options.services.clock.wall_ms(), until_ms: None };
        let writing = Writing { note, places };
        self.note_writing(&writing, call, run).await;
        Some(writing)
    }

    /// Notes that a call no longer writes these files.
    pub(super) async fn end_writing(&self, mut writing: Writing, call: &ValidCall, run: &RunContext) {
        writing.note.until_ms = Some(self.options.services.clock.wall_ms());
        self.note_writing(&writing, call, run).await;
    }

    async fn note_writing(&self, writing: &Writing, call: &ValidCall, run: &RunContext) {
        let notes = writing.places.iter().map(|place| writing.note.at(place)).collect();
        if let Err(error) = self.note_files(&SessionId::new(WRITES), notes, call, run).await {
            tracing::warn!(tool = %call.entry.id(), "what a woken run writes was not noted: {error}");
        }
    }

    /// Returns the output of a call with the taint of the files that it read. Notes the files that it replaced as
    /// clean, if it succeeded.
    pub(super) async fn with_files(
        &self,
        mut output: ToolOutput,
        files: FileTaint,
        call: &ValidCall,
        run: &RunContext,
    ) -> ToolOutput {
        output.taint.add(&files.read);
        if !output.is_error
            && !files.after.is_empty()
            && let Err(error) = self.note_files(&files_mailbox(&run.session.principal), files.after, call, run).await
        {
            tracing::warn!(tool = %call.entry.id(), "a file that was replaced counts as tainted still: {error}");
        }
        output
    }

    async fn note_files(
        &self,
        mailbox: &SessionId,
        notes: Vec<WrittenValue>,
        call: &ValidCall,
        run: &RunContext,
    ) -> Result<(), StoreError> {
        for written in notes {
            let row = NewRow {
                session: mailbox.clone(),
                principal: run.session.principal.id.clone(),
                author: Author::call(&run.session, &call.id),
                entry: LogEntry::Value(written),
                once: None,
            };
            self.options.services.log.append(row).await?;
        }
        Ok(())
    }

    /// Returns the output to write to the state, before it is cut for a conversation; `None` if the call writes no
    /// path.
    fn state_write(call: &ValidCall, output: &ToolOutput, taint: &Taint) -> Option<StateWrite> {
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
        let append_result = match output {
            Ok(output) => {
                let instance = call.meta.instance.clone();
                let written =
                    WrittenValue { path, instance, method: call.meta.output_method, data: value, taint, output };
                let row = NewRow::value(session, &call.id, written.clone()).once(idempotency_key(call, run));
                match (services.log.append(row).await, &run.variables) {
                    // Without a log, only the run holds the value.
                    (Err(StoreError::Unsupported(Unsupported(_))), Some(variables)) => {
                        variables.write(&written);
                        Ok(())
                    }
                    (appended, _) => appended.map(drop),
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = append_result {
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
