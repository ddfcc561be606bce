//! Runs an agent as a child inside a running call. Policy, approver, client, cancel, lineage and usage are the
//! caller's. The child has its own session, tools and limits, none of them wider than the caller's.
//!
//! Its run is saved under an id that derives from its caller. If an interrupted call is made again, the run continues;
//! if the run has ended, its result is returned again.

use std::sync::Arc;

use toolwright_core::ErrorKind;
use toolwright_core::approval::DecisionPending;
use toolwright_core::cancel::{CancelCause, CancelOnDrop};
use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::{Policy, Session};
use toolwright_runtime::executor::NestedContext;
use toolwright_runtime::{Catalogue, RunContext};

use crate::driver::{Driver, DriverError, RunOptions, RunStart};
use crate::report::{RunReport, Status};
use crate::run::RunState;

/// The run of an agent inside a call.
pub(crate) struct ChildRun {
    /// The driver of the run, with its tools.
    pub(crate) driver: Arc<Driver>,
    /// The terms of the call, with the agent in its path of agents.
    pub(crate) parent: RunContext,
    /// The session of the run.
    pub(crate) session: Session,
    /// The policy of the run, within that of the caller.
    pub(crate) policy: Arc<Policy>,
}

impl ChildRun {
    /// Runs it to its end. `begin` creates its state if none is saved.
    ///
    /// # Errors
    /// `canceled` if the caller was; `limit_exceeded` if a limit of the tree forbids it; an error with
    /// [`DecisionPending`] as its source if it waits for a person; errors of the store.
    pub(crate) async fn run(
        self,
        context: &ToolContext,
        begin: impl FnOnce(&Driver, &RunOptions) -> RunState,
    ) -> Result<RunReport, ToolError> {
        let Self { driver, parent, session, policy } = self;
        let run_id: Arc<str> = session.id.as_str().into();
        let options = RunOptions {
            // A separate session has separate state.
            variables: parent.variables.clone().filter(|_| session.id == parent.session.id),
            progress: Some(Arc::clone(&context.partials)),
            ..RunOptions::new(
                run_id,
                Arc::new(session),
                policy,
                Arc::clone(&parent.approver),
                Arc::clone(&parent.client),
                parent.cancel.child(),
            )
        };
        let usage = parent.usage.clone();
        let agent_budget = parent.agent_budget.clone();
        let options = RunOptions { parent: Some(Arc::new(parent)), agent_budget, ..options };
        let (mut state, begun) = driver.load_or_begin(&options, || begin(&driver, &options)).await.map_err(failed)?;
        if let (RunStart::Before, Some(usage)) = (begun, usage) {
            // Usage from before the interruption is missing in the caller's sums.
            usage.resumed(&state.config().model, state.report().usage);
        }
        let cancel = options.cancel.clone();
        let cancel_on_drop = CancelOnDrop::new(&cancel);
        // On its own task, because agents are nested deeply and a thread's stack is limited.
        let running = tokio::spawn(async move {
            let report = driver.run_exclusively(&mut state, &options, None).await;
            (report, state)
        });
        let (report, state) = running
            .await
            .map_err(|error| ToolError::new(ErrorKind::InternalError, format!("an agent broke: {error}")))?;
        cancel_on_drop.disarm();
        let report = report.map_err(failed)?;
        match report.status {
            Status::Cancelled => Err(ToolError::canceled(cancel.cause().unwrap_or(CancelCause::CallerGone))),
            // The state has the complete questions; the report has them only for display.
            Status::Suspended => match state.report().pending.into_iter().next() {
                Some(request) => Err(ToolError::new(ErrorKind::Denied, "a person has not decided yet")
                    .with_source(DecisionPending(Box::new(request)))),
                None => Err(ToolError::new(ErrorKind::InternalError, "an agent was suspended, and nothing is asked")),
            },
            _ => Ok(report),
        }
    }
}

/// Returns the driver of runs with a fixed snapshot of tools.
pub(crate) fn driver(nested: NestedContext<'_>, tools: Arc<toolwright_core::Snapshot>) -> Driver {
    let executor = Arc::clone(nested.executor);
    let model = Arc::clone(&executor.services().model);
    Driver::new(executor, Catalogue::from_snapshot(tools), model, None)
}

fn failed(error: DriverError) -> ToolError {
    match error {
        DriverError::Limit(limit) => limit.into(),
        DriverError::Store(error) => error.into(),
        DriverError::ProgramEnds => ToolError::canceled(CancelCause::Shutdown),
        DriverError::Taken { .. } => ToolError::new(ErrorKind::LimitExceeded, error.to_string()).retryable(),
        _ => ToolError::new(ErrorKind::InternalError, error.to_string()),
    }
}
