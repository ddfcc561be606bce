//! Running a tool: on a task of its own, within its time, cancelled in good order.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;
use toolwright_core::call::ValidCall;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::{Entry, ProviderCall};
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::operation::Op;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::redact::{StreamRedactor, shown_arguments};

use super::partials::Partials;
use super::turn::Held;
use super::{Executor, RunContext};

impl Executor {
    /// Runs the tool on a task of its own, so that a panic stays there and a dropped caller still lets
    /// the tool see its cancellation.
    pub(super) async fn run_tool(
        self: &Arc<Self>,
        call: ValidCall,
        held: Held,
        run: &RunContext,
        op: &Op,
    ) -> Result<ToolOutput, ToolError> {
        if let Some((journal, id)) = &run.journal {
            // Without the note a crash could repeat an effect: no note, no dispatch.
            journal.call_dispatched(id, &call.id).await?;
        }
        let services = &self.options.services;
        services.events.tell(|| Event::ToolStarted {
            op: op.clone(),
            session: run.session.id.clone(),
            call: call.id.clone(),
            tool: call.entry.id().clone(),
            wire_name: call.entry.wire_name.clone(),
            provider: call.entry.provider.name().to_owned(),
            mcp: call.entry.provider.mcp_peer(),
            origin: run.origin,
            model: run.model.as_deref().unwrap_or_default().to_owned(),
            attempt: 1,
            arguments: shown_arguments(&call.entry, &call.arguments, &*services.redactor),
            provenance: call.provenance.redacted(&*services.redactor),
        });
        let limit = run.timeout.or(call.entry.definition().timeout).unwrap_or(self.options.timeout);
        let cancel = run.cancel.child();
        let context = self.context(&call, run, &cancel, limit, op);
        let entry = Arc::clone(&call.entry);
        let id = call.id.clone();
        let mut task = tokio::spawn(async move {
            let _held = held;
            dispatch(call, context).await
        });
        let abandon = AbandonOnDrop(Some((cancel.clone(), task.abort_handle(), self.options.grace)));
        let stopped = tokio::select! {
            joined = &mut task => {
                abandon.disarm();
                return joined.unwrap_or_else(|error| Err(panicked(&entry, error)));
            }
            cause = run.cancel.cancelled() => ToolError::canceled(cause),
            () = tokio::time::sleep(limit) => {
                cancel.cancel(CancelCause::Deadline);
                timed_out(&entry, limit)
            }
        };
        abandon.disarm();
        let told_and_ended = async {
            entry.provider.cancel(&id).await;
            (&mut task).await
        };
        match tokio::time::timeout(self.options.grace, told_and_ended).await {
            // What it had to say for itself is worth more than our word, if it stopped for our reason.
            Ok(Ok(Err(own))) if own.kind() == stopped.kind() => Err(own),
            Ok(Ok(Ok(output))) => Ok(output.with_extra("stopped", stopped.kind().as_str())),
            Ok(_) => Err(stopped),
            Err(_) => {
                task.abort();
                Err(stopped)
            }
        }
    }

    fn context(
        self: &Arc<Self>,
        call: &ValidCall,
        run: &RunContext,
        cancel: &Cancel,
        limit: Duration,
        op: &Op,
    ) -> ToolContext {
        let partials = Arc::new(Partials {
            services: Arc::clone(&self.options.services),
            op: op.clone(),
            call: call.id.clone(),
            entry: Arc::clone(&call.entry),
            text: Mutex::new(StreamRedactor::new(Arc::clone(&self.options.services.redactor))),
            also: run.partials.as_ref().map(|make| make(&call.id)),
        });
        ToolContext {
            call_id: call.id.clone(),
            session: Arc::clone(&run.session),
            cancel: cancel.clone(),
            deadline: Instant::now().checked_add(limit),
            limit: Some(limit),
            partials,
            traceparent: Some(op.traceparent().into()),
            max_output: self.max_output(&call.entry),
            calls: self.inner_calls(call, run, cancel, op),
            services: Arc::clone(&self.options.services),
        }
    }
}

/// The only place that runs a tool.
#[expect(clippy::disallowed_methods, reason = "this is the one executor")]
async fn dispatch(call: ValidCall, context: ToolContext) -> Result<ToolOutput, ToolError> {
    let ValidCall { id, entry, arguments, .. } = call;
    // A call id is unique within its conversation only.
    let idempotency_key = format!("{}:{id}", context.session.id);
    let (tool, raw_name) = (entry.id(), entry.tool.raw_name());
    let request = ProviderCall { tool, raw_name, arguments, idempotency_key: &idempotency_key };
    entry.provider.call(request, &context).await
}

/// Cancels the call when its caller is dropped before it ended, and abandons it after the grace period.
struct AbandonOnDrop(Option<(Cancel, AbortHandle, Duration)>);

impl AbandonOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        let Some((cancel, task, grace)) = self.0.take() else { return };
        cancel.cancel(CancelCause::User);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    tokio::time::sleep(grace).await;
                    task.abort();
                });
            }
            // The runtime itself is ending.
            Err(_) => task.abort(),
        }
    }
}

fn timed_out(entry: &Entry, limit: Duration) -> ToolError {
    let limit = toolwright_core::duration::format(limit);
    ToolError::new(ErrorKind::Timeout, format!("{} did not finish within {limit}", entry.id()))
        .with_model_message(format!("timeout after {limit}"))
}

fn panicked(entry: &Entry, error: tokio::task::JoinError) -> ToolError {
    ToolError::new(ErrorKind::InternalError, format!("{} panicked; this is a fault of the tool", entry.id()))
        .with_model_message("internal error of the tool")
        .with_source(error)
}
