//! Reads and changes values of a tool in the session log without losing concurrent writes.

use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::SessionId;
use toolwright_core::store::{Author, LogEntry, NewRow, StoreError, VersionedValue, WrittenValue};

/// How often a change is retried after a concurrent write.
const MAX_ATTEMPTS: usize = 20;

/// The values of a session under a path.
pub(super) struct SessionSubtree<'a> {
    context: &'a ToolContext,
    session: SessionId,
    root: &'static str,
}

impl<'a> SessionSubtree<'a> {
    /// The values of the call's own session.
    pub(super) fn of_session(context: &'a ToolContext, root: &'static str) -> Self {
        Self { context, session: context.session.id.clone(), root }
    }

    /// The values of another session of the same principal.
    pub(super) fn at(session: SessionId, context: &'a ToolContext, root: &'static str) -> Self {
        Self { context, session, root }
    }

    /// Returns the values.
    pub(super) async fn read(&self) -> Result<VersionedValue, StoreError> {
        let rows = self.context.services.log.values(&self.session, self.root).await?;
        Ok(VersionedValue::of(rows, self.root))
    }

    /// Changes the values: `change` returns what to write and what to return. Everything is written, or nothing.
    /// `change` is called again after a concurrent write. If it returns `Err`, nothing is written.
    pub(super) async fn change<T, E>(
        &self,
        change: impl Fn(&VersionedValue) -> Result<(Vec<WrittenValue>, T), E>,
    ) -> Result<Result<(T, VersionedValue), E>, StoreError> {
        for _ in 0..MAX_ATTEMPTS {
            let standing = self.read().await?;
            let (written, value) = match change(&standing) {
                Ok(changed) => changed,
                Err(refused) => return Ok(Err(refused)),
            };
            let rows: Vec<NewRow> = written.into_iter().map(|written| self.row(written)).collect();
            if rows.is_empty() || self.context.services.log.append_values(rows, self.root, standing.seq).await? {
                return Ok(Ok((value, standing)));
            }
        }
        Err(StoreError::Refused("Others write here all the time. Nothing was changed; try again.".into()))
    }

    fn row(&self, written: WrittenValue) -> NewRow {
        let session = &self.context.session;
        NewRow {
            session: self.session.clone(),
            principal: session.principal.id.clone(),
            author: Author::call(session, &self.context.call_id),
            entry: LogEntry::Value(WrittenValue { taint: self.context.taint.clone(), ..written }),
            once: None,
        }
    }
}

/// Turns an exceeded quota into a failure that the model can act on.
pub(super) fn refused_as_failure(result: Result<ToolOutput, StoreError>) -> Result<ToolOutput, ToolError> {
    match result {
        Ok(output) => Ok(output),
        Err(StoreError::Quota(why) | StoreError::Refused(why)) => Ok(ToolOutput::failure(why)),
        Err(error) => Err(error.into()),
    }
}
