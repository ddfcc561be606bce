//! Runs an admitted call: its slot and lock, its limits, its attempts. A stopped tool gets time to end.

use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use toolwright_core::backoff::Backoff;
use toolwright_core::call::ValidCall;
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::{CallScope, Entry, ProviderCall};
use toolwright_core::context::ToolContext;
use toolwright_core::definition::Concurrency;
use toolwright_core::duration;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::{Event, EventDetail, EventSink};
use toolwright_core::model::Route;
use toolwright_core::operation::Op;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::redact::shown_arguments;
use toolwright_core::session::CallId;
use toolwright_core::tool_id::ToolId;

use super::call_record::{CallRecord, CallUsage};
use super::context::{CallProgress, CallTimeLimits, Progress, routed};
use super::llm_call::LlmCall;
use super::pipeline::{Panic, catch_panic_sync};
use super::{Executor, RunContext};
use crate::models::micros;
use crate::queue::{HeldTurn, PausableSlot, PriorityQueue, SharedUse, WaitBounds, WorkspaceTurn};

/// How long a job waits before it tries again to get a slot or lock.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long a call that only waits for its source runs before observers with [`EventDetail::Brief`] are told of its
/// start. Most calls end earlier.
const REPORT_AFTER: Duration = Duration::from_millis(5);

impl Executor {
    /// Runs the tool, which keeps the call's slot and lock until it has ended. See [`RunningTool`] for panics and tools
    /// that block their thread.
    pub(super) async fn run_tool(
        self: &Arc<Self>,
        call: &Arc<ValidCall>,
        held: HeldSlots,
        run: &RunContext,
        record: &mut CallRecord,
    ) -> Result<ToolOutput, ToolError> {
        if let Some(cause) = run.cancel.cause() {
            return Err(ToolError::canceled(cause));
        }
        let metered = CallUsage::of(call, run);
        let run = metered.as_ref().map_or(run, |(_, run)| run);
        record.used = metered.as_ref().map(|(used, _)| Arc::clone(used));
        let models = self.by_model(call, run, &record.op)?;
        // The end of a call that became a job while it waited is already in the journal.
        if let Some((journal, id)) = run.journal.as_ref().filter(|_| !run.is_job()) {
            // Dispatch requires the journal entry: without it, a resume after a crash could repeat an effect.
            journal.call_dispatched(id, &call.id).await?;
        }
        self.enter_begun(call, run, record).await?;
        let limits = CallTimeLimits::of(&call.entry, run, &self.options);
        let also = Progress::of(&call.id, run);
        let progress = CallProgress::new(&self.options.services, &record.op, &call.id, &call.entry, also);
        self.note_start(record);
        // Only the start of a call that does nothing but wait may be reported late; other tools first report parts of
        // the call.
        let mut unreported = self.options.services.events.event_detail() == EventDetail::Brief
            && call.entry.provider.is_io_bound()
            && limits.allow(REPORT_AFTER);
        if !unreported {
            self.report_start(call, run, &record.op, Duration::ZERO);
        }
        let entry = &call.entry;
        let mut attempts = Box::new(Attempts {
            context: self.tool_context(call, held.place.as_ref(), run, &limits, &progress, (&record.op, record.scope)),
            idempotency_key: idempotency_key(call, run),
            call: Arc::clone(call),
            progress: Arc::clone(&progress),
            models,
            retries: limits.retries,
            seed: record.op.id.get(),
        });
        let work = Box::pin(async move {
            let _held = held;
            pin!(attempts.run()).await
        });
        let mut running = RunningTool::start(entry, work);
        let stopped = tokio::select! {
            biased;
            ended = &mut running => {
                record.copy_attempts(&progress);
                return ended;
            }
            cause = run.cancel.cancelled() => ToolError::canceled(cause),
            timeout = async {
                if unreported {
                    tokio::time::sleep(REPORT_AFTER).await;
                    self.report_start(call, run, &record.op, progress.running_for());
                    unreported = false;
                }
                limits.wait_for_limit(entry, &progress).await
            } => {
                run.cancel.cancel(CancelCause::Deadline);
                timeout
            }
        };
        let grace = self.in_flight.grace(stopped.cancel_cause().unwrap_or(CancelCause::Deadline), self.options.grace);
        if unreported {
            self.report_start(call, run, &record.op, progress.running_for());
        }
        // The tool may have to keep running until its source has processed the cancel.
        let cancelled_and_ended = async { tokio::join!(entry.provider.cancel(&call.id), &mut running).1 };
        let ended = Box::pin(tokio::time::timeout(grace, cancelled_and_ended)).await;
        record.copy_attempts(&progress);
        match ended {
            Ok(Ok(output)) => Ok(output.with_extra("stopped", stopped.kind().as_str())),
            Ok(Err(own)) => Err(last_word(stopped, own)),
            Err(_) => {
                running.abandon();
                Err(stopped)
            }
        }
    }

    /// Reports that a call began `ago`.
    fn report_start(&self, call: &ValidCall, run: &RunContext, op: &Op, ago: Duration) {
        let services = &self.options.services;
        services.events.emit_routine(|| Event::ToolStarted {
            op: op.clone(),
            session: run.session.id.clone(),
            call: call.id.clone(),
            tool: call.entry.id().clone(),
            wire_name: Arc::clone(call.entry.shared_wire_name()),
            provider: Arc::clone(call.entry.provider_name()),
            mcp: call.entry.provider.mcp_peer(),
            method: call.entry.method().map(Arc::from),
            origin: run.origin,
            model: run.model.as_deref().unwrap_or_default().to_owned(),
            attempt: 1,
            arguments: match services.events.event_detail() {
                EventDetail::Whole => shown_arguments(&call.entry, &call.arguments, &*services.redactor),
                _ => Value::Null,
            },
            provenance: call.provenance.redacted(&*services.redactor),
            after_us: micros(ago),
        });
    }
}

/// Returns the key of all attempts at a call, also in a resumed run or in a job that another process takes over. A
/// call's id is unique only among its siblings.
pub(super) fn idempotency_key(call: &ValidCall, run: &RunContext) -> String {
    if let (Some(_), Some((_, job))) = (&run.job, &run.journal) {
        return format!("{}:{job}:{}", run.session.id, call.id);
    }
    match run.lineage.parent {
        Some(parent) => format!("{}:{parent}:{}", run.session.id, call.id),
        None => [run.session.id.as_str(), ":", call.id.as_str()].concat(),
    }
}

/// Returns the error of a stopped tool: its own if it stopped for our reason, else ours with its own appended.
fn last_word(stopped: ToolError, own: ToolError) -> ToolError {
    if own.kind() == stopped.kind() && own.cancel_cause() == stopped.cancel_cause() {
        own
    } else {
        stopped.with_last_message(&own)
    }
}

/// Resources that a running call holds until it has ended.
#[derive(Debug, Default)]
pub(super) struct HeldSlots {
    /// Includes the lock of an exclusive call, unless the call went to the background.
    _turn: Option<HeldTurn>,
    /// Released while the call only waits for its client.
    place: Option<Arc<PausableSlot>>,
}

impl Executor {
    /// Waits for the call's slot and lock. A job waits without a limit, because no caller waits for it.
    pub(super) async fn slot_in_time(
        &self,
        call: &ValidCall,
        run: &RunContext,
        record: &mut CallRecord,
    ) -> Result<HeldSlots, ToolError> {
        loop {
            match self.take_slot(call, run, record).await {
                Err(error) if run.job.is_some() && error.kind() == ErrorKind::LimitExceeded && error.is_retryable() => {
                }
                turn => return turn,
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY_PAUSE) => {}
                cause = run.cancel.cancelled() => return Err(ToolError::canceled(cause)),
            }
        }
    }

    /// Waits for the call's turn in the workspace, and then for its slot, so that calls waiting for the lock hold no
    /// slot. The running tool holds both until it has ended, even if its caller has gone; in the background it holds no
    /// lock. A tool that awaits other calls gets neither, because those calls may need them.
    async fn take_slot(
        &self,
        call: &ValidCall,
        run: &RunContext,
        record: &mut CallRecord,
    ) -> Result<HeldSlots, ToolError> {
        let turn = HeldTurn(run.turn.clone().unwrap_or_default());
        let (definition, provider) = (call.entry.definition(), &call.entry.provider);
        if call.awaits_others() || !call.provenance.route.is_tool() {
            return Ok(HeldSlots::default());
        }
        let peer = provider.peer(call.entry.id()).map(|peer| format!("{} ({peer})", provider.name()));
        let queue = definition.queue.as_deref();
        let queue = self.options.queues.queue_of(queue, peer.as_deref().unwrap_or(provider.name()))?;
        match definition.concurrency {
            Concurrency::Safe if record.scope == CallScope::Anywhere => turn.0.leave_order(),
            Concurrency::Safe => self.await_turn(SharedUse::Reads, &turn.0, &queue, call, run, record).await?,
            Concurrency::Ordered => self.await_turn(SharedUse::Ordered, &turn.0, &queue, call, run, record).await?,
            Concurrency::Exclusive => self.await_turn(SharedUse::Writes, &turn.0, &queue, call, run, record).await?,
        }
        let wait = Wait::of(self, call, record);
        let taken = queue.take(call.entry.id(), run.priority, &run.cancel, |queue| wait.begins(queue)).await;
        let (slot, _) = wait.ended(taken, record)?;
        if run.job.is_some() || run.is_job() {
            turn.0.release();
        }
        Ok(HeldSlots { _turn: Some(turn), place: Some(PausableSlot::new(queue, slot)) })
    }

    /// Waits for the call's turn in the workspace, and takes the workspace lock for an exclusive call. The wait is
    /// limited to the call's own time limit or its queue's wait limit, whichever is longer.
    async fn await_turn(
        &self,
        usage: SharedUse,
        turn: &WorkspaceTurn,
        queue: &PriorityQueue,
        call: &ValidCall,
        run: &RunContext,
        record: &mut CallRecord,
    ) -> Result<(), ToolError> {
        let absolute =
            CallTimeLimits::of(&call.entry, run, &self.options).absolute.unwrap_or(self.options.defaults.tool_timeout);
        let (bounds, began) = (queue.bounds(), Instant::now());
        let limit = absolute.max(bounds.limit);
        if usage != SharedUse::Writes {
            turn.note(usage);
        }
        let wait = Wait::of(self, call, record);
        let entered = async {
            wait.until_next(turn.after_others(usage), limit, run).await?;
            if usage == SharedUse::Writes {
                let lock = self.locks.of(&run.session.root);
                let on_wait = |name: &str| {
                    turn.note(usage);
                    wait.begins(name);
                };
                let bounds = WaitBounds { limit: limit.saturating_sub(began.elapsed()), ..bounds };
                turn.hold(lock.take(bounds, call.entry.id(), run.priority, &run.cancel, on_wait).await?);
                turn.note(usage);
            }
            Ok(())
        };
        let entered = entered.await;
        wait.ended(entered, record)
    }
}

/// A wait of a call, which is reported to observers if it takes any time.
struct Wait<'a> {
    events: &'a Arc<dyn EventSink>,
    op: Op,
    call: &'a ValidCall,
    /// The name of the resource that the call waits for, and the start of the wait.
    begun: OnceLock<(String, Instant)>,
}

impl<'a> Wait<'a> {
    fn of(executor: &'a Executor, call: &'a ValidCall, record: &CallRecord) -> Self {
        Self { events: &executor.options.services.events, op: record.op.clone(), call, begun: OnceLock::new() }
    }

    fn begins(&self, queue: &str) {
        if self.begun.set((queue.to_owned(), Instant::now())).is_ok() {
            self.events.emit_routine(|| {
                let (op, call, tool) = self.ids();
                Event::ToolWait { op, call, tool, queue: queue.to_owned() }
            });
        }
    }

    fn ids(&self) -> (Op, CallId, ToolId) {
        (self.op.clone(), self.call.id.clone(), self.call.entry.id().clone())
    }

    /// Waits for the calls before this one.
    async fn until_next(
        &self,
        next: impl Future<Output = ()>,
        limit: Duration,
        run: &RunContext,
    ) -> Result<(), ToolError> {
        let mut next = pin!(next);
        tokio::select! {
            biased;
            () = &mut next => return Ok(()),
            () = std::future::ready(()) => self.begins("order"),
        }
        tokio::select! {
            biased;
            () = next => Ok(()),
            cause = run.cancel.cancelled() => Err(ToolError::canceled(cause).retryable()),
            () = tokio::time::sleep(limit) => Err(ToolError::new(ErrorKind::LimitExceeded, format!(
                "the calls that came before {} on its connection did not end within {}",
                self.call.entry.id(), duration::format(limit),
            )).retryable()),
        }
    }

    fn ended<T>(mut self, taken: Result<T, ToolError>, record: &mut CallRecord) -> Result<T, ToolError> {
        if let Some((queue, since)) = self.begun.take() {
            let (waited, ok) = (since.elapsed(), taken.is_ok());
            record.waited += waited;
            self.events.emit_end(ok, || {
                let (op, call, tool) = self.ids();
                Event::ToolWaited { op, call, tool, queue, ok, wait_us: micros(waited) }
            });
        }
        taken
    }
}

/// The pauses between attempts.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(200), most: Duration::from_secs(5) };

/// The data with which each attempt is dispatched.
pub(super) struct Attempts {
    pub(super) call: Arc<ValidCall>,
    pub(super) context: ToolContext,
    pub(super) progress: Arc<CallProgress>,
    /// The models of an LLM-backed tool.
    pub(super) models: Option<Box<LlmCall>>,
    /// How often it may be retried.
    pub(super) retries: u32,
    /// Sent with each attempt.
    idempotency_key: String,
    /// Seed that spreads the pauses of calls that failed together.
    pub(super) seed: u64,
}

impl Attempts {
    /// Runs the call. A tool that asks models tries them in order.
    pub(super) async fn run(&mut self) -> Result<ToolOutput, ToolError> {
        match self.models.take() {
            Some(models) => Box::pin(models.run(self)).await,
            None => pin!(self.repeated()).await,
        }
    }

    /// Runs the call until it succeeds, must not be retried, or is cancelled.
    pub(super) async fn repeated(&self) -> Result<ToolOutput, ToolError> {
        for failed in 0..self.retries {
            match self.dispatch().await {
                Err(error) if is_safe_to_retry(&error, &self.call.entry) => {
                    tracing::debug!(tool = %self.call.entry.id(), "attempt {} failed: {error}", failed + 1);
                    tokio::select! {
                        cause = self.context.cancel.cancelled() => {
                            return Err(ToolError::canceled(cause).with_last_message(&error));
                        }
                        () = tokio::time::sleep(pause(failed, self.seed)) => {}
                    }
                }
                ended => return ended,
            }
        }
        pin!(self.dispatch()).await
    }

    /// Runs the tool. This is the only place that does.
    #[expect(clippy::disallowed_methods, reason = "this is the one executor")]
    async fn dispatch(&self) -> Result<ToolOutput, ToolError> {
        // A call that its author has answered never runs.
        if self.call.provenance.route != Route::Latent {
            self.progress.note_attempt();
        }
        if !self.call.provenance.route.is_tool()
            && let Some(ended) = Box::pin(routed(&self.call, &self.context)).await
        {
            return ended;
        }
        let entry = &self.call.entry;
        let request = ProviderCall {
            tool: entry.id(),
            raw_name: entry.tool.raw_name(),
            source_hash: entry.tool.source_hash(),
            arguments: self.call.arguments.clone(),
            idempotency_key: &self.idempotency_key,
        };
        entry.provider.call(request, &self.context).await
    }
}

/// Returns whether a retry cannot repeat an effect: nothing was dispatched, or a trusted provider declares the tool
/// read-only or idempotent.
fn is_safe_to_retry(error: &ToolError, entry: &Entry) -> bool {
    let is_lost = matches!(error.kind(), ErrorKind::TransportError | ErrorKind::Timeout);
    error.is_retryable() || (is_lost && entry.is_repeatable())
}

/// Returns the pause after so many failed attempts and one more. The same seed gives other shares after each.
fn pause(failed: u32, seed: u64) -> Duration {
    BACKOFF.spread(failed.saturating_add(1), seed.wrapping_add(failed.into()))
}

/// The result of a tool.
type ToolResult = Result<ToolOutput, ToolError>;

/// A running tool. A panic is contained and becomes the call's error.
pub(super) struct RunningTool<'e> {
    entry: &'e Entry,
    place: ToolFuture,
}

enum ToolFuture {
    /// Runs on its own task, so that a tool that blocks its thread delays no other call.
    Task(JoinHandle<ToolResult>),
    /// Runs inside the call, for a tool that only waits: saves a task and a task switch.
    Call(BoxFuture<'static, ToolResult>),
}

impl<'e> RunningTool<'e> {
    /// Starts `work`, which runs the tool of `entry`. It is boxed because spawning copies a future twice.
    pub(super) fn start(entry: &'e Entry, work: BoxFuture<'static, ToolResult>) -> Self {
        let place =
            if entry.provider.is_io_bound() { ToolFuture::Call(work) } else { ToolFuture::Task(tokio::spawn(work)) };
        Self { entry, place }
    }

    /// Ends the tool at its next await.
    pub(super) fn abandon(self) {
        match self.place {
            ToolFuture::Task(task) => task.abort(),
            ToolFuture::Call(work) => drop_contained(work),
        }
    }

    fn panicked(&self, panicked: &Panic) -> ToolError {
        panicked.error(self.entry.id().as_str()).with_model_message("internal error of the tool")
    }
}

/// Drops a tool's future. A panic while dropping is only logged.
fn drop_contained(work: BoxFuture<'static, ToolResult>) {
    if let Err(panicked) = catch_panic_sync(|| drop(work)) {
        tracing::error!("a tool panicked when it was dropped: {}", panicked.text());
    }
}

impl Future for RunningTool<'_> {
    type Output = ToolResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ToolResult> {
        let died = match &mut self.place {
            ToolFuture::Task(task) => match ready!(Pin::new(task).poll(context)) {
                Ok(ended) => return Poll::Ready(ended),
                Err(error) => error.try_into_panic().map(Panic::from),
            },
            ToolFuture::Call(work) => match catch_panic_sync(|| work.as_mut().poll(context)) {
                Ok(ended) => return ended,
                Err(panicked) => {
                    drop_contained(std::mem::replace(work, Box::pin(std::future::pending())));
                    Ok(panicked)
                }
            },
        };
        Poll::Ready(Err(match died {
            Ok(panicked) => self.panicked(&panicked),
            // Only the end of the runtime aborts it early.
            Err(error) => ToolError::new(ErrorKind::Canceled, "the runtime is ending").with_source(error),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_are_bounded_and_are_spread() {
        for failed in 0..40 {
            let full = Duration::from_millis(200).saturating_mul(1 << failed.min(16)).min(Duration::from_secs(5));
            for seed in 0..100 {
                assert!((full / 2..=full).contains(&pause(failed, seed)), "{failed} {seed}");
            }
        }
        assert_ne!(pause(0, 1), pause(0, 2));
    }
}
