//! Keeps the outputs of calls under their paths in the state, and where they came from.

use serde_json::{Value, json};
use toolwright_core::call::ValidCall;
use toolwright_core::catalogue::CallScope;
use toolwright_core::content::ContentBlock;
use toolwright_core::error::Unsupported;
use toolwright_core::event::Event;
use toolwright_core::outcome::{NOT_KEPT, Outcome, STANDS_IN, ToolOutput};
use toolwright_core::output::{TOOL_OUTPUT, json_bytes};
use toolwright_core::store::{MAX_ROW_BYTES, NewRow, STATE, StoreError, StoredOutput, Written, log_path, state_path};
use toolwright_core::taint::{Taint, of_all};

use serde::Deserialize as _;

use super::admission::query;
use super::run::idempotency_key;
use super::{Executor, RunContext};
use crate::state::read_stored;

/// Bytes of a value from which on the log has only the handle of a stored output: a row counts more than its data.
const MAX_IN_LOG: usize = MAX_ROW_BYTES - 4096;

/// An output on its way to the state.
pub(super) struct StateWrite {
    path: String,
    value: Value,
    /// It was stored by its tool already.
    stored: Option<StoredOutput>,
    taint: Taint,
}

impl Executor {
    /// What is to be kept of an output. Tells the call that made this one where its output came from.
    pub(super) fn account_for(call: &ValidCall, output: &ToolOutput, run: &RunContext) -> Option<StateWrite> {
        if run.inner.is_none() && call.meta.output_path.is_none() {
            return None;
        }
        let mut taint = Self::output_taint(call, run);
        taint.add(&output.taint);
        if let Some(outer) = &run.inner {
            outer.note_taint(&taint);
        }
        Self::to_keep(call, output, &taint)
    }

    /// The untrusted tools that the output of a call came out of, those of calls that it made among them.
    fn output_taint(call: &ValidCall, run: &RunContext) -> Taint {
        let mut taint = of_all(&call.provenance.tainted);
        let query = query(call, CallScope::Anywhere, run);
        if run.policy.taints(&query, call.entry.provider.kind()) {
            taint.add(&Taint::of(call.entry.id()));
        }
        taint.add(&run.inner_taint.so_far());
        taint
    }

    /// What is to be kept of an output, before it is cut for a conversation; `None` where the call has no path.
    fn to_keep(call: &ValidCall, output: &ToolOutput, taint: &Taint) -> Option<StateWrite> {
        let path = state_path(call.meta.output_path.as_deref()?)?;
        let stored = output.extras.get(TOOL_OUTPUT).and_then(|note| StoredOutput::deserialize(note).ok());
        let value = if stored.is_some() { Value::Null } else { output.value() };
        Some(StateWrite { path: log_path(STATE, path), value, stored, taint: taint.clone() })
    }

    /// Writes an output to the state, once for each call of a run, and before anybody hears of the outcome. A failed call
    /// writes nothing, nor does what stands in the place of a result.
    pub(super) async fn keep(&self, write: StateWrite, call: &ValidCall, outcome: &mut Outcome, run: &RunContext) {
        if !outcome.ok || outcome.pending.is_some() || outcome.extras.contains_key(STANDS_IN) {
            return;
        }
        let services = &self.options.services;
        let StateWrite { path, mut value, stored, taint } = write;
        let session = &run.session;
        let output = match stored {
            Some(stored) => {
                // Of one that is too large to be read, references get the handle.
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
                    // Without a log the run alone knows it.
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
