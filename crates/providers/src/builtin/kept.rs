//! Reads values that a tool keeps in the session log, and changes them without losing concurrent writes.

use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::SessionId;
use toolwright_core::store::{Author, LogEntry, NewRow, StoreError, ValueAt, Written};

/// How often a change is made anew because somebody else wrote first.
const MAX_ATTEMPTS: usize = 20;

/// The values of a session under a path.
pub(super) struct KeptValues<'a> {
    context: &'a ToolContext,
    session: SessionId,
    root: &'static str,
}

impl<'a> KeptValues<'a> {
    /// Those of the call's own session.
    pub(super) fn of_session(context: &'a ToolContext, root: &'static str) -> Self {
        Self { context, session: context.session.id.clone(), root }
    }

    /// Those that stand elsewhere, of the same principal.
    pub(super) fn at(session: SessionId, context: &'a ToolContext, root: &'static str) -> Self {
        Self { context, session, root }
    }

    /// What stands there.
    pub(super) async fn read(&self) -> Result<ValueAt, StoreError> {
        let rows = self.context.services.log.values(&self.session, self.root).await?;
        Ok(ValueAt::of(rows, self.root))
    }

    /// Changes what stands there: `change` says what to write and what to return. All of it is written, or nothing. It is
    /// asked again where somebody else wrote meanwhile. `Err` of `change` writes nothing.
    pub(super) async fn change<T, E>(
        &self,
        change: impl Fn(&ValueAt) -> Result<(Vec<Written>, T), E>,
    ) -> Result<Result<(T, ValueAt), E>, StoreError> {
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

    fn row(&self, written: Written) -> NewRow {
        let session = &self.context.session;
        NewRow {
            session: self.session.clone(),
            principal: session.principal.id.clone(),
            author: Author::call(session, &self.context.call_id),
            entry: LogEntry::Value(Written { taint: self.context.taint.clone(), ..written }),
            once: None,
        }
    }
}

/// What a quota refuses is an answer that the model can act on.
pub(super) fn refused_as_failure(result: Result<ToolOutput, StoreError>) -> Result<ToolOutput, ToolError> {
    match result {
        Ok(output) => Ok(output),
        Err(StoreError::Quota(why) | StoreError::Refused(why)) => Ok(ToolOutput::failure(why)),
        Err(error) => Err(error.into()),
    }
}
