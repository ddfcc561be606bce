//! Runs a tool within its timeout and cancels it gracefully.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use toolwright_core::call::ValidCall;
use toolwright_core::cancel::CancelCause;
use toolwright_core::client::AskingCall;
use toolwright_core::context::{PartialSink, ToolContext};
use toolwright_core::error::ToolError;
use toolwright_core::event::{Attention, Event};
use toolwright_core::job::NoTurns;
use toolwright_core::operation::Op;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::redact::shown_arguments;

use super::attempts::Attempts;
use super::background::Progress;
use super::call_record::{CallRecord, micros};
use super::elicitation_pause::PausingClient;
use super::limits::Limits;
use super::partials::Partials;
use super::slot::Held;
use super::tool_task::Running;
use super::usage::CallUsage;
use super::{Executor, RunContext};

/// How long a call that only waits for its source runs before those hear that it began who need not know it of each
/// ([`Attention::Brief`]): most have ended by then.
const TOLD_AFTER: Duration = Duration::from_millis(5);

impl Executor {
    /// Runs the tool: a panic stays there, and a tool that does not let go of its thread holds up nobody
    /// ([`Running`]). It takes along what the call holds.
    pub(super) async fn run_tool(
        self: &Arc<Self>,
        call: &Arc<ValidCall>,
        held: Held,
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
        // A call that waited for its turn may have become a job: its end is in the journal already.
        if let Some((journal, id)) = run.journal.as_ref().filter(|_| !run.is_job()) {
            // Without the note a crash could repeat an effect: no note, no dispatch.
            journal.call_dispatched(id, &call.id).await?;
        }
        self.enter_begun(call, run, record).await?;
        let limits = Limits::of(&call.entry, run, &self.options);
        let also = Progress::of(&call.id, run);
        let progress = Partials::new(&self.options.services, &record.op, &call.id, &call.entry, also);
        self.note_start(record);
        // What a tool does besides waiting is told of as a part of the call, and not before it.
        let mut untold = self.options.services.events.attention() == Attention::Brief
            && call.entry.provider.only_waits()
            && limits.allow(TOLD_AFTER);
        if !untold {
            self.report_start(call, run, &record.op, Duration::ZERO);
        }
        let entry = &call.entry;
        let mut attempts = Box::new(Attempts {
            context: self.context(call, &held, run, &limits, &progress, record),
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
        let mut running = Running::start(entry, work);
        let stopped = tokio::select! {
            biased;
            ended = &mut running => {
                record.ran(&progress);
                return ended;
            }
            cause = run.cancel.cancelled() => ToolError::canceled(cause),
            timeout = async {
                if untold {
                    tokio::time::sleep(TOLD_AFTER).await;
                    self.report_start(call, run, &record.op, progress.running_for());
                    untold = false;
                }
                limits.reached(entry, &progress).await
            } => {
                run.cancel.cancel(CancelCause::Deadline);
                timeout
            }
        };
        let grace = self.in_flight.grace(stopped.cancel_cause().unwrap_or(CancelCause::Deadline), self.options.grace);
        if untold {
            self.report_start(call, run, &record.op, progress.running_for());
        }
        // A tool may have to go on for its source to take the cancel.
        let told_and_ended = async { tokio::join!(entry.provider.cancel(&call.id), &mut running).1 };
        let ended = Box::pin(tokio::time::timeout(grace, told_and_ended)).await;
        record.ran(&progress);
        match ended {
            Ok(Ok(output)) => Ok(output.with_extra("stopped", stopped.kind().as_str())),
            Ok(Err(own)) => Err(last_word(stopped, own)),
            Err(_) => {
                running.abandon();
                Err(stopped)
            }
        }
    }

    /// Tells that a call began so long ago.
    fn report_start(&self, call: &ValidCall, run: &RunContext, op: &Op, ago: Duration) {
        let services = &self.options.services;
        services.events.tell_routine(|| Event::ToolStarted {
            op: op.clone(),
            session: run.session.id.clone(),
            call: call.id.clone(),
            tool: call.entry.id().clone(),
            wire_name: Arc::clone(call.entry.told_name()),
            provider: Arc::clone(call.entry.provider_name()),
            mcp: call.entry.provider.mcp_peer(),
            method: call.entry.method().map(Arc::from),
            origin: run.origin,
            model: run.model.as_deref().unwrap_or_default().to_owned(),
            attempt: 1,
            arguments: match services.events.attention() {
                Attention::Whole => shown_arguments(&call.entry, &call.arguments, &*services.redactor),
                _ => Value::Null,
            },
            provenance: call.provenance.redacted(&*services.redactor),
            after_us: micros(ago),
        });
    }

    fn context(
        self: &Arc<Self>,
        call: &ValidCall,
        held: &Held,
        run: &RunContext,
        limits: &Limits,
        progress: &Arc<Partials>,
        record: &CallRecord,
    ) -> ToolContext {
        let op = &record.op;
        let traceparent = op.traceparent();
        let asking = AskingCall {
            tool: call.entry.id().clone(),
            traceparent: Arc::clone(&traceparent),
            cancel: run.cancel.clone(),
            usage: run.usage.clone(),
        };
        let client = run.client.for_call(&asking).unwrap_or_else(|| Arc::clone(&run.client));
        let client = Arc::new(PausingClient {
            client,
            place: held.place.clone(),
            progress: Arc::clone(progress),
            tool: asking.tool,
            priority: run.priority,
            cancel: asking.cancel,
        });
        ToolContext {
            call_id: call.id.clone(),
            session: Arc::clone(&run.session),
            scope: record.scope,
            cancel: run.cancel.clone(),
            deadline: limits.absolute.and_then(|limit| Instant::now().checked_add(limit)),
            limit: limits.absolute,
            client,
            partials: Arc::clone(progress) as Arc<dyn PartialSink>,
            traceparent: Some(traceparent),
            max_output: self.cap_of(&call.entry, run),
            calls: self.inner_calls(call, run, op),
            turns: run.job.clone().unwrap_or_else(NoTurns::shared),
            services: Arc::clone(&self.options.services),
        }
    }
}

/// The same for every attempt at a call, also of a run that is resumed and of a job that another process takes up. A
/// call's id is unique among its siblings only.
fn idempotency_key(call: &ValidCall, run: &RunContext) -> String {
    if let (Some(_), Some((_, job))) = (&run.job, &run.journal) {
        return format!("{}:{job}:{}", run.session.id, call.id);
    }
    match run.lineage.parent {
        Some(parent) => format!("{}:{parent}:{}", run.session.id, call.id),
        None => [run.session.id.as_str(), ":", call.id.as_str()].concat(),
    }
}

/// What a tool had to say for itself when it was stopped is worth more than our word, if it stopped for our
/// reason; otherwise it is added.
fn last_word(stopped: ToolError, own: ToolError) -> ToolError {
    if own.kind() == stopped.kind() && own.cancel_cause() == stopped.cancel_cause() {
        own
    } else {
        stopped.with_last_words(&own)
    }
}
