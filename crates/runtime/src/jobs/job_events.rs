//! Events of a job that this process runs.

use std::sync::Arc;

use toolwright_core::context::{Clock, Redactor, Services};
use toolwright_core::error::ToolError;
use toolwright_core::event::{Attention, Event, EventSink};
use toolwright_core::job::{JobRecord, JobState};
use toolwright_core::operation::Op;
use toolwright_core::tool_id::ToolId;

use toolwright_core::session::{CallId, SessionId};

use crate::store::jobs::JobStep;

/// A job as observers hear of it: each of its states once it is committed, and before anybody who waits for it.
pub(crate) struct JobEvents {
    events: Arc<dyn EventSink>,
    redactor: Arc<dyn Redactor>,
    clock: Arc<dyn Clock>,
    op: Op,
    session: SessionId,
    job: String,
    tool: ToolId,
    created_ms: u64,
}

impl JobEvents {
    /// Of a job that is the operation `op`.
    pub(crate) fn new(op: Op, job: &JobRecord, services: &Services) -> Self {
        Self {
            events: Arc::clone(&services.events),
            redactor: Arc::clone(&services.redactor),
            clock: Arc::clone(&services.clock),
            op,
            session: job.session.clone(),
            job: job.id.clone(),
            tool: job.tool.clone(),
            created_ms: job.created_ms,
        }
    }

    /// This process has it from now on.
    pub(super) fn started(&self, state: JobState) {
        self.events.tell(|| Event::JobStarted {
            op: self.op.clone(),
            session: self.session.clone(),
            job: self.job.clone(),
            tool: self.tool.clone(),
        });
        if state != JobState::Pending {
            self.events.tell(|| self.changed(state));
        }
    }

    /// It was the running call `call`, the operation `op`.
    pub(crate) fn promoted(&self, op: Op, call: &CallId, by: &str) {
        self.events.tell(|| Event::JobPromoted {
            op,
            session: self.session.clone(),
            job: self.job.clone(),
            call: call.clone(),
            tool: self.tool.clone(),
            by: by.to_owned(),
        });
    }

    /// The event of a step towards `state`, to be emitted once it is committed; `None` where nobody observes.
    pub(super) fn of_step(&self, step: &JobStep, state: JobState) -> Option<Event> {
        (self.events.attention() > Attention::Nothing).then(|| match step {
            JobStep::Ended(state, outcome) => self.finished(*state, outcome.error.as_ref()),
            _ => self.changed(state),
        })
    }

    /// It is over, and how was not kept.
    pub(super) fn lost(&self, state: JobState) {
        self.events.tell(|| self.finished(state, None));
    }

    pub(super) fn emit(&self, event: Option<Event>) {
        if let Some(event) = event {
            self.events.emit(event);
        }
    }

    fn changed(&self, state: JobState) -> Event {
        Event::JobChanged {
            op: self.op.clone(),
            session: self.session.clone(),
            job: self.job.clone(),
            tool: self.tool.clone(),
            state,
        }
    }

    fn finished(&self, state: JobState, error: Option<&ToolError>) -> Event {
        Event::JobFinished {
            op: self.op.clone(),
            session: self.session.clone(),
            job: self.job.clone(),
            tool: self.tool.clone(),
            state,
            error: error.map(ToolError::kind),
            message: error.map(|error| self.redactor.redact(error.message()).into_owned()),
            latency_us: self.clock.wall_ms().saturating_sub(self.created_ms).saturating_mul(1000),
        }
    }
}
