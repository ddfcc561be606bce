//! Enforces that a manual is read before its tool is called.

use toolwright_core::call::ValidCall;
use toolwright_core::context::{INFO_ID, unread};
use toolwright_core::error::ToolError;

use super::{Executor, RunContext};

impl Executor {
    /// Refuses a call whose tool's manual the session has not read. Where manuals cannot be read, none is demanded.
    pub(super) fn manual(&self, call: &ValidCall, run: &RunContext) -> Result<(), ToolError> {
        let (entry, manuals) = (&call.entry, &self.options.services.manuals);
        if !entry.definition().manual_required || manuals.was_read(&run.session.id, entry.tool.hash()) {
            return Ok(());
        }
        run.snapshot.get(INFO_ID).map_or(Ok(()), |info| Err(unread(entry, info)))
    }
}
