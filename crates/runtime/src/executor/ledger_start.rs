//! Writes a call that may have an effect to the ledger before it runs.

use std::borrow::Cow;

use toolwright_core::call::ValidCall;
use toolwright_core::catalogue::CallScope;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::store::{LedgerEntry, LedgerMode, RUNNING};

use super::admission::query;
use super::call_record::{CallRecord, micros};
use super::{Executor, RunContext};

const REFUSED: &str = "the call was not made: it cannot be recorded, because the ledger of Toolwright cannot be written. \
                       Tell the user that whoever operates Toolwright must mend that; the log says what is wrong.";

impl Executor {
    /// Commits a row for the call, unless somebody whose word counts says that its tool only reads. Its end replaces the
    /// row; without an end it says that the outcome is unknown.
    pub(super) async fn enter_begun(
        &self,
        call: &ValidCall,
        run: &RunContext,
        record: &CallRecord,
    ) -> Result<(), ToolError> {
        let required = self.options.ledger_mode == LedgerMode::Required;
        if !required && run.policy.vouched_effects(&query(call, CallScope::Anywhere, run)).read_only {
            return Ok(());
        }
        let entry = LedgerEntry {
            call: Some(call.id.clone()),
            status: Cow::Borrowed(RUNNING),
            wait_us: micros(record.waited),
            characters_in: record.characters_in as u64,
            validated: call.unvalidated.is_none(),
            decided_by: record.decided_by.clone(),
            approval: record.approval.word.map(Cow::Borrowed),
            person_us: micros(record.approval.took),
            provenance: record.provenance.clone(),
            ..LedgerEntry::new(
                record.op.clone(),
                self.options.services.clock.wall_ms(),
                run.session.id.clone(),
                run.session.principal.id.as_str().into(),
                record.kind,
                call.entry.id().into(),
            )
        };
        let entered = tokio::select! {
            biased;
            entered = self.options.ledger.begin(entry) => entered,
            cause = run.cancel.cancelled() => return Err(ToolError::canceled(cause)),
        };
        match entered {
            // The store has told it.
            Err(error) if !required => tracing::debug!(tool = %call.entry.id(), "not entered as begun: {error}"),
            Err(error) => {
                let message = format!(
                    "the call was not made, because the ledger cannot be written: {error}; `defaults.ledger: required` \
                     refuses calls until it can"
                );
                let refused = ToolError::new(ErrorKind::LimitExceeded, message).with_model_message(REFUSED);
                return Err(refused.with_source(error).retryable());
            }
            Ok(()) => {}
        }
        Ok(())
    }
}
