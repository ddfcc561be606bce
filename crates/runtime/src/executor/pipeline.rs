//! One call from its check to its result, in this order: interceptors, guards, policy, approval,
//! cache, slot, lock, timeout, run, cap, budget, ledger. Whatever a stage does, the call has one outcome.
//!
//! Futures are pinned where they are awaited: one that is awaited by value is copied first.

use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt as _;
use toolwright_core::approval::{ApprovalRequest, SKIPPED_TEXT};
use toolwright_core::call::{Rejection, ValidCall};
use toolwright_core::content::ContentBlock;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::outcome::{Outcome, STANDS_IN, ToolOutput, Validated};
use toolwright_core::redact::shown_arguments;
use toolwright_core::session::CallId;

use super::admission::{Admitted, Judged};
use super::call_record::{ApprovalAnswer, CallRecord};
use super::detached::Detached;
use super::panics::catch_panic;
use super::stage::Stage;
use super::{Executor, RunContext};

/// How a call ended before its tool had an output.
pub(super) enum EarlyExit {
    /// An error is its result.
    Failed(ToolError),
    /// An interceptor gave a result in the tool's place.
    Answered(Box<ToolOutput>),
    /// A person said to leave it out: a neutral result.
    Skipped,
    /// A person must decide, later.
    Pending(Box<ApprovalRequest>),
}

/// Where an outcome goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    /// Into the turn of the call's caller.
    ToTurn,
    /// There too, unless the call has become a job: that one's goes into no turn.
    WithCall,
}

impl From<ToolError> for EarlyExit {
    fn from(error: ToolError) -> Self {
        Self::Failed(error)
    }
}

/// A call on its way, under its terms, with its record. It passes through many futures, none of which should be as
/// large as it is: they hold it by its box.
pub(super) struct CallState {
    /// Nobody else has it until it is admitted; then nothing changes it.
    pub(super) call: Arc<ValidCall>,
    pub(super) run: Arc<RunContext>,
    pub(super) record: CallRecord,
}

impl Executor {
    /// Runs a checked call. It has a token of its own under the run's, and goes on to its end, cancelled, if its
    /// caller does not wait for it.
    pub(super) fn run_one(self: &Arc<Self>, call: ValidCall, run: &RunContext) -> Detached {
        let (executor, run) = (Arc::clone(self), Arc::new(run.of_one_call()));
        let (record, cancel) = (self.open_record(&call, &run), run.cancel.clone());
        let it = Box::new(CallState { call: Arc::new(call), run, record });
        Detached::new(cancel, executor.whole(it).boxed())
    }

    /// The end of a call that never came to run.
    pub(super) fn reject_one(self: &Arc<Self>, rejection: Rejection, run: &RunContext) -> Detached {
        let (executor, run) = (Arc::clone(self), run.of_one_call());
        Detached::new(run.cancel.clone(), async move { executor.reject(rejection, &run).await }.boxed())
    }

    async fn whole(self: Arc<Self>, mut it: Box<CallState>) -> Outcome {
        let admission = catch_panic(pin!(self.admission(&mut it))).await;
        match admission.unwrap_or_else(|panicked| Err(it.record.blame(&panicked, &it.call.entry))) {
            Ok(Judged::Admitted(admitted)) => self.deliver(it, admitted).await,
            Ok(Judged::Asks(request)) => self.ask_later(it, request).boxed().await,
            Err(stop) => self.conclude(it, Err(stop)).await,
        }
    }

    /// Whether the call may run, and with which arguments. A person is asked here unless the call is to wait for
    /// the answer as a job.
    async fn admission(self: &Arc<Self>, it: &mut CallState) -> Result<Judged, EarlyExit> {
        let CallState { call, run, record } = it;
        self.in_flight.is_open()?;
        refuse(call, run)?;
        self.manual(call, run)?;
        self.ready_recordings(run).await;
        // Nobody is asked about a call that cannot run.
        self.models_of(&call.entry, run)?;
        record.stage = Stage::Interceptors;
        pin!(self.intercept(Arc::make_mut(call), run)).await?;
        record.stage = Stage::Guards;
        let guard_asks = pin!(self.guards(Arc::make_mut(call), run, record)).await?;
        if call.provenance.rewritten {
            record.provenance = call.provenance.redacted(&*self.options.services.redactor);
        }
        record.stage = Stage::Policy;
        let judged = match self.judge(call, guard_asks, run, record).await? {
            Judged::Asks(request) if !self.asks_later(run) => {
                match self.ask_person(call, *request, run, record).boxed().await {
                    Err(EarlyExit::Pending(request)) if let Some(otherwise) = run.approver.otherwise() => {
                        (record.refused, record.approval) = (None, ApprovalAnswer::default());
                        Arc::make_mut(run).approver = otherwise;
                        if self.asks_later(run) {
                            Judged::Asks(request)
                        } else {
                            Judged::Admitted(self.ask_person(call, *request, run, record).boxed().await?)
                        }
                    }
                    asked => Judged::Admitted(asked?),
                }
            }
            judged => judged,
        };
        if !call.provenance.is_plain() {
            record.ran_with = Some(shown_arguments(&call.entry, &call.arguments, &*self.options.services.redactor));
        }
        Ok(judged)
    }

    /// Runs an admitted call to its end. Owns all it needs, so that it can go on without the turn that made it.
    pub(super) async fn carry_out(self: Arc<Self>, mut it: Box<CallState>, admitted: Admitted) -> Outcome {
        let performed = catch_panic(pin!(self.perform(&mut it, admitted))).await;
        let performed = performed.unwrap_or_else(|panicked| Err(it.record.blame(&panicked, &it.call.entry)));
        self.conclude(it, performed).await
    }

    /// What an admitted call says: from the cache, or in its turn from its tool.
    async fn perform(self: &Arc<Self>, it: &mut CallState, admitted: Admitted) -> Result<ToolOutput, EarlyExit> {
        let CallState { call, run, record } = it;
        record.scope = admitted.scope();
        record.stage = Stage::Cache;
        let cached = pin!(self.cached(call, admitted, run)).await;
        if let Some(output) = cached.hit {
            record.cached = true;
            let (op, id, tool) = (&record.op, &call.id, call.entry.id());
            self.options.services.events.tell_routine(|| Event::CacheHit {
                op: op.clone(),
                call: id.clone(),
                tool: tool.clone(),
            });
            return Ok(output);
        }
        record.stage = Stage::Slot;
        let held = pin!(self.slot_in_time(call, run, record)).await?;
        record.stage = Stage::Run;
        // Boxed: thousands of calls may wait in the queue, and later stages need not be held.
        let output = self.run_tool(call, held, run, record).boxed().await?;
        record.stage = Stage::Interceptors;
        let output = pin!(self.intercept_output(&call.entry, output, run)).await?;
        record.stage = Stage::Cache;
        pin!(self.keep(cached.place, call, run, &output)).await;
        Ok(output)
    }

    /// Makes the outcome: capped, within the budget, reported to observers and written to the ledger.
    pub(super) async fn conclude(&self, mut it: Box<CallState>, performed: Result<ToolOutput, EarlyExit>) -> Outcome {
        it.record.stage = Stage::Shaping;
        let shaped = catch_panic(pin!(self.shaped(&it.call, performed, &it.run, Destination::WithCall))).await;
        let mut outcome = shaped
            .unwrap_or_else(|panicked| Outcome::failed(it.call.id.clone(), panicked.error(it.record.stage.whose())));
        outcome.validated = validated(&it.call);
        pin!(self.finish(&mut outcome, Some(&it.call.entry), &mut it.record, &it.run)).await;
        outcome
    }

    pub(super) async fn shaped(
        &self,
        call: &ValidCall,
        performed: Result<ToolOutput, EarlyExit>,
        run: &RunContext,
        destination: Destination,
    ) -> Outcome {
        let (id, entry) = (call.id.clone(), &call.entry);
        let outcome = match performed {
            Ok(output) => pin!(self.cap(id, output, entry, run)).await,
            Err(EarlyExit::Answered(output)) => self.cap(id, *output, entry, run).boxed().await,
            Err(EarlyExit::Failed(error)) => self.cap_failure(Outcome::failed(id, error), entry, run).boxed().await,
            Err(EarlyExit::Skipped) => neutral(id),
            Err(EarlyExit::Pending(request)) => Outcome {
                pending: Some(request),
                ..Outcome::failed(id, ToolError::new(ErrorKind::Denied, "a person has not decided yet"))
            },
        };
        if run.budget.is_none() || (destination == Destination::WithCall && run.is_job()) {
            outcome
        } else {
            self.fit(outcome, entry, run).boxed().await
        }
    }
}

/// Whether a schema has validated the call's arguments.
pub(super) fn validated(call: &ValidCall) -> Validated {
    Validated(call.unvalidated.is_none())
}

/// What can be refused without asking anybody.
fn refuse(call: &ValidCall, run: &RunContext) -> Result<(), ToolError> {
    if let Some(cause) = run.cancel.cause() {
        return Err(ToolError::canceled(cause));
    }
    if call.entry.definition().provider_native.is_some() {
        let message = format!("{} is run by the model's own provider, not here", call.entry.id());
        return Err(ToolError::new(ErrorKind::NotPermitted, message));
    }
    if let Some(hole) = call.pending.first() {
        let message = format!("the value of {} at {} is not there yet", hole.reference, hole.path);
        return Err(ToolError::new(ErrorKind::InvalidParameters, message));
    }
    Ok(())
}

fn neutral(id: CallId) -> Outcome {
    let mut outcome = Outcome::failed(id, ToolError::new(ErrorKind::Denied, "skipped"));
    outcome.ok = true;
    outcome.error = None;
    outcome.content = vec![ContentBlock::text(SKIPPED_TEXT)];
    outcome.extras.insert(STANDS_IN.into(), "skipped".into());
    outcome
}
