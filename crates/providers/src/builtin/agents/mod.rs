//! Tools of agents, a file a namespace: notes of their own, and what they share with other agents and runs. Most of it is
//! in the session log.

mod agent;
mod channel;
mod group;
mod memory;
mod memory_files;
mod trigger;

use std::sync::Arc;

use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::SessionId;
use toolwright_core::store::{Author, LogEntry, NewRow, StoreError, VersionedValue, WrittenValue};
use toolwright_core::tool::Tool;

use super::{BuiltinOptions, OptionalTool};

pub use agent::SkillTool;
pub use trigger::TriggerTool;

/// Returns the tools except optional ones. Those of `channel` and `group` are included only if there are channels and
/// groups.
pub(super) fn tools(options: &BuiltinOptions) -> Vec<Arc<dyn Tool>> {
    let mut tools = memory::tools();
    if options.groups || !options.channels.0.is_empty() {
        tools.extend(channel::tools(&options.channels));
    }
    if options.groups {
        tools.extend(group::tools(options));
    }
    tools.extend(trigger::tools(options));
    tools
}

/// Returns an optional tool.
pub(super) fn optional(tool: OptionalTool) -> Arc<dyn Tool> {
    match tool {
        OptionalTool::Todo => Arc::new(agent::Todo),
        OptionalTool::AskUser => Arc::new(agent::AskUser),
        OptionalTool::MemoryFiles => Arc::new(memory_files::MemoryFilesTool),
    }
}

/// How often a change is retried after a concurrent write.
const MAX_ATTEMPTS: usize = 20;

/// The values of a session under a path of its log, read and changed without losing concurrent writes.
struct SessionSubtree<'a> {
    context: &'a ToolContext,
    session: SessionId,
    root: &'static str,
}

impl<'a> SessionSubtree<'a> {
    /// The values of the call's own session.
    fn of_session(context: &'a ToolContext, root: &'static str) -> Self {
        Self { context, session: context.session.id.clone(), root }
    }

    /// The values of another session of the same principal.
    fn at(session: SessionId, context: &'a ToolContext, root: &'static str) -> Self {
        Self { context, session, root }
    }

    /// Returns the values.
    async fn read(&self) -> Result<VersionedValue, StoreError> {
        let rows = self.context.services.log.values(&self.session, self.root).await?;
        Ok(VersionedValue::of(rows, self.root))
    }

    /// Changes the values: `change` returns what to write and what to return. Everything is written, or nothing.
    /// `change` is called again after a concurrent write. If it returns `Err`, nothing is written.
    async fn change<T, E>(
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
fn refused_as_failure(result: Result<ToolOutput, StoreError>) -> Result<ToolOutput, ToolError> {
    match result {
        Ok(output) => Ok(output),
        Err(StoreError::Quota(why) | StoreError::Refused(why)) => Ok(ToolOutput::failure(why)),
        Err(error) => Err(error.into()),
    }
}
