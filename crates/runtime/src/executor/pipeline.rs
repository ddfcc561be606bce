//! Takes one checked call to its result, in this order: interceptors, guards, policy, approval, cache, slot, lock, run,
//! cap, budget, ledger. Every call has exactly one outcome, whatever a stage does.
//!
//! Futures are pinned before they are awaited, because awaiting by value copies them first.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, TryFutureExt as _};
use toolwright_core::approval::{ApprovalRequest, DecisionPending, SKIPPED_TEXT};
use toolwright_core::call::{Rejection, ValidCall};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::Entry;
use toolwright_core::content::ContentBlock;
use toolwright_core::definition::Mode;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::{Event, EventDetail, EventSink};
use toolwright_core::operation::Op;
use toolwright_core::outcome::{Outcome, STANDS_IN, ToolOutput, Validated};
use toolwright_core::session::CallId;

use super::admission::{Admitted, JobStart, Judgement};
use super::call_record::CallRecord;
use super::{Executor, Promotion, RunContext};
use crate::jobs::JobManager;
use crate::outputs::cache::CacheSlot;

/// How a call ended before its tool had an output.
pub(super) enum EarlyExit {
    /// An error is its result.
    Failed(ToolError),
    /// An interceptor gave a result instead of the tool.
    Answered(Box<ToolOutput>),
    /// A person skipped the call: it gets a neutral result.
    Skipped,
    /// A person must decide, later.
    Pending(Box<ApprovalRequest>),
}

impl From<ToolError> for EarlyExit {
    fn from(error: ToolError) -> Self {
        Self::Failed(error)
    }
}

/// The destination of an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    /// Into the turn of the call's caller.
    ToTurn,
    /// Like `ToTurn`, unless the call has become a job: a job's outcome goes into no turn.
    WithCall,
}

/// A call in progress, with its context and record. Many futures hold it, so it is boxed to keep them small.
pub(super) struct CallState {
    /// Has one owner until the call is admitted, and is then never changed.
    pub(super) call: Arc<ValidCall>,
    pub(super) run: Arc<RunContext>,
    pub(super) record: CallRecord,
}

/// Lets the waiter of a call turn it into a job.
pub(super) struct PromotableCall {
    pub(super) call: Arc<ValidCall>,
    pub(super) run: Arc<RunContext>,
    pub(super) op: Op,
}

impl Executor {
    /// Runs a checked call under its own cancel token. If its caller stops waiting, the call is cancelled but still
    /// runs to its end.
    pub(super) fn run_one(self: &Arc<Self>, call: ValidCall, run: &RunContext) -> Detached {
        let (executor, run) = (Arc::clone(self), Arc::new(run.for_one_call()));
        let (record, cancel) = (self.open_record(&call, &run), run.cancel.clone());
        let call_state = Box::new(CallState { call: Arc::new(call), run, record });
        Detached::new(cancel, executor.admit_and_run(call_state).boxed())
    }

    /// Ends a call that the check has rejected.
    pub(super) fn reject_one(self: &Arc<Self>, rejection: Rejection, run: &RunContext) -> Detached {
        let (executor, run) = (Arc::clone(self), run.for_one_call());
        Detached::new(run.cancel.clone(), async move { executor.reject(rejection, &run).await }.boxed())
    }

    /// Admits the call, then awaits it or starts it as a job. Without jobs in the application every call is awaited.
    async fn admit_and_run(self: Arc<Self>, mut call_state: Box<CallState>) -> Outcome {
        let judged = catch_panic(pin!(self.admission(&mut call_state))).await;
        let admitted = match judged
            .unwrap_or_else(|panicked| Err(call_state.record.panic_exit(&panicked, &call_state.call.entry)))
        {
            Ok(Judgement::Admitted(admitted)) => admitted,
            Ok(Judgement::Asks(request)) => return self.ask_later(call_state, request).boxed().await,
            Err(stop) => return self.conclude(call_state, Err(stop)).await,
        };
        let is_awaited = call_state.call.entry.definition().mode == Mode::Direct
            && call_state.run.background_after != Some(Duration::ZERO);
        match self.options.jobs.as_ref().filter(|_| call_state.run.promotion == Promotion::May) {
            None => self.run_admitted(call_state, admitted).boxed().await,
            Some(jobs) if is_awaited => {
                let jobs = Arc::clone(jobs);
                self.await_or_promote(&jobs, call_state, admitted).boxed().await
            }
            Some(_) => {
                let how = JobStart::Admitted(admitted);
                let started = self
                    .start_job(Arc::clone(&call_state.call), how, &call_state.run, &call_state.record.op)
                    .boxed()
                    .await;
                self.conclude(call_state, started).await
            }
        }
    }

    /// Awaits a call. If a person wants it, or the call takes too long, it continues as a job and its caller gets the
    /// job's id.
    async fn await_or_promote(
        self: Arc<Self>,
        jobs: &Arc<JobManager>,
        call_state: Box<CallState>,
        admitted: Admitted,
    ) -> Outcome {
        let promotable_call = PromotableCall {
            call: Arc::clone(&call_state.call),
            run: Arc::clone(&call_state.run),
            op: call_state.record.op.clone(),
        };
        let in_flight = call_state.record.in_flight();
        let promotable = in_flight.as_ref().map(|call| call.promotable());
        let after = promotable_call.run.background_after.or_else(|| self.background_after(&promotable_call.call));
        let mut work = Arc::clone(&self).run_admitted(call_state, admitted).boxed();
        let promotion = async {
            match &promotable {
                Some(promotable) => promotable.promotion_requested().await,
                None => std::future::pending().await,
            }
        };
        let in_time = async {
            match after {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        };
        let by = tokio::select! {
            biased;
            outcome = &mut work => return outcome,
            () = promotion => "user",
            () = in_time => "auto_background_after",
        };
        if promotable_call.run.cancel.is_cancelled() {
            return work.await;
        }
        self.promote(jobs, &promotable_call, work, (admitted, by)).boxed().await
    }

    /// Runs an admitted call to its end. Owns all its data, so it can outlive the turn that made the call.
    pub(super) async fn run_admitted(self: Arc<Self>, mut call_state: Box<CallState>, admitted: Admitted) -> Outcome {
        let performed = catch_panic(pin!(self.perform(&mut call_state, admitted))).await;
        let performed =
            performed.unwrap_or_else(|panicked| Err(call_state.record.panic_exit(&panicked, &call_state.call.entry)));
        self.conclude(call_state, performed).await
    }

    /// Gets the output of an admitted call from the cache, or from its tool once it has a slot.
    async fn perform(
        self: &Arc<Self>,
        call_state: &mut CallState,
        admitted: Admitted,
    ) -> Result<ToolOutput, EarlyExit> {
        let CallState { call, run, record } = call_state;
        record.scope = admitted.scope();
        record.stage = Stage::Cache;
        let is_approved = matches!(admitted, Admitted::Approved(_));
        let cache = self.options.cache.as_ref().filter(|_| !is_approved);
        let place = cache.and_then(|cache| Some((cache, CacheSlot::of(call, &run.session)?)));
        if let Some((cache, place)) = &place
            && let Some(output) = cache.get(&place.key, place.ttl).await
        {
            record.cached = true;
            let (op, id, tool) = (&record.op, &call.id, call.entry.id());
            self.options.services.events.emit_routine(|| Event::CacheHit {
                op: op.clone(),
                call: id.clone(),
                tool: tool.clone(),
            });
            return Ok(output.with_extra("cached", true));
        }
        record.stage = Stage::Slot;
        let held = pin!(self.slot_in_time(call, run, record)).await?;
        let (files, writing) = self.follow_files(call, run).boxed().await?;
        record.stage = Stage::Run;
        // Boxed because thousands of calls may wait in the queue before this stage.
        let ran = self.run_tool(call, held, run, record).boxed().await;
        if let Some(writing) = writing {
            self.end_writing(writing, call, run).boxed().await;
        }
        let output = ran.map_err(|error| {
            let request = DecisionPending::of(&error).cloned();
            match request {
                Some(request) => EarlyExit::Pending(Box::new(ApprovalRequest { call_id: call.id.clone(), ..request })),
                None => EarlyExit::Failed(error),
            }
        })?;
        let output = match files.is_empty() {
            true => output,
            false => self.with_files(output, files, call, run).boxed().await,
        };
        record.stage = Stage::Interceptors;
        let output = pin!(self.intercept_output(&call.entry, output, run)).await?;
        record.stage = Stage::Cache;
        // Not cached if the credentials have changed meanwhile, because the output may belong to either.
        if let Some((cache, place)) =
            place.filter(|(_, place)| !output.is_error && place.matches_credentials(call, &run.session))
        {
            cache.put(&place.key, place.ttl, &output).await;
        }
        Ok(output)
    }

    /// Makes the outcome, reports it to observers and writes it to the ledger.
    pub(super) async fn conclude(
        &self,
        mut call_state: Box<CallState>,
        performed: Result<ToolOutput, EarlyExit>,
    ) -> Outcome {
        call_state.record.stage = Stage::Shaping;
        let state_write = match &performed {
            Ok(output) => Self::account_for(&call_state.call, output, &call_state.run),
            Err(EarlyExit::Answered(output)) => Self::account_for(&call_state.call, output, &call_state.run),
            Err(_) => None,
        };
        let shaped =
            catch_panic(pin!(self.shape(&call_state.call, performed, &call_state.run, Destination::WithCall))).await;
        let mut outcome = shaped.unwrap_or_else(|panicked| {
            Outcome::failed(call_state.call.id.clone(), panicked.error(call_state.record.stage.code_owner()))
        });
        outcome.validated = validated(&call_state.call);
        if let Some(state_write) = state_write {
            self.keep(state_write, &call_state.call, &mut outcome, &call_state.run).boxed().await;
        }
        pin!(self.finish(&mut outcome, Some(&call_state.call.entry), &mut call_state.record, &call_state.run)).await;
        outcome
    }

    pub(super) async fn shape(
        &self,
        call: &ValidCall,
        performed: Result<ToolOutput, EarlyExit>,
        run: &RunContext,
        destination: Destination,
    ) -> Outcome {
        let (id, entry) = (call.id.clone(), &call.entry);
        let outcome = match performed {
            Ok(output) => pin!(self.limit_output(id, output, entry, run)).await,
            Err(EarlyExit::Answered(output)) => self.limit_output(id, *output, entry, run).boxed().await,
            Err(EarlyExit::Failed(error)) => {
                self.limit_error_text(Outcome::failed(id, error), entry, run).boxed().await
            }
            Err(EarlyExit::Skipped) => placeholder_outcome(id),
            Err(EarlyExit::Pending(request)) => Outcome {
                pending: Some(request),
                ..Outcome::failed(id, ToolError::new(ErrorKind::Denied, "a person has not decided yet"))
            },
        };
        if run.budget.is_none() || (destination == Destination::WithCall && run.is_job()) {
            outcome
        } else {
            self.fit_into_conversation(outcome, entry, run).boxed().await
        }
    }
}

/// Returns whether a schema has validated the call's arguments.
pub(super) fn validated(call: &ValidCall) -> Validated {
    Validated(call.unvalidated.is_none())
}

fn placeholder_outcome(id: CallId) -> Outcome {
    let mut outcome = Outcome::failed(id, ToolError::new(ErrorKind::Denied, "skipped"));
    outcome.ok = true;
    outcome.error = None;
    outcome.content = vec![ContentBlock::text(SKIPPED_TEXT)];
    outcome.extras.insert(STANDS_IN.into(), "skipped".into());
    outcome
}

/// A call with a waiting caller. If it is dropped before its end, it is cancelled and continues on a task of its own
/// until it has ended and is in the ledger.
pub(super) struct Detached {
    call: Option<BoxFuture<'static, Outcome>>,
    cancel: Cancel,
    has_begun: bool,
}

impl Detached {
    /// Wraps a call that ends properly once `cancel` fires.
    fn new(cancel: Cancel, call: BoxFuture<'static, Outcome>) -> Self {
        Self { call: Some(call), cancel, has_begun: false }
    }
}

impl Future for Detached {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.has_begun = true;
        let Some(call) = self.call.as_mut() else { return Poll::Pending };
        let ended = call.as_mut().poll(context);
        if ended.is_ready() {
            self.call = None;
        }
        ended
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        let Some(call) = self.call.take().filter(|_| self.has_begun) else { return };
        // This does not cancel a call that is becoming a job or has become one.
        self.cancel.cancel_as_parent(CancelCause::CallerGone);
        // Without a runtime the process is ending.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(call);
        }
    }
}

/// The stage that a call has reached. A panic is reported as the fault of the stage's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    #[default]
    Begin,
    Interceptors,
    Guards,
    Policy,
    Cache,
    Slot,
    Run,
    Shaping,
}

impl Stage {
    /// Returns whose code runs in the stage.
    pub(super) fn code_owner(self) -> &'static str {
        match self {
            Self::Begin | Self::Slot => "the executor",
            Self::Interceptors => "an interceptor",
            Self::Guards => "a guard",
            Self::Policy => "the policy, the approver or the scope of the tool",
            Self::Cache => "the response cache",
            Self::Run => "the provider of the tool",
            Self::Shaping => "the shaping of the result",
        }
    }
}

impl CallRecord {
    /// Ends a call whose present stage panicked.
    pub(super) fn panic_exit(&self, panicked: &Panic, entry: &Entry) -> EarlyExit {
        let error = panicked.error(self.stage.code_owner());
        tracing::error!(tool = %entry.id(), "{error}");
        EarlyExit::Failed(error)
    }
}

/// A panic, in words.
#[derive(Debug)]
pub(super) struct Panic(String);

impl From<Box<dyn Any + Send>> for Panic {
    fn from(payload: Box<dyn Any + Send>) -> Self {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        Self(text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it said nothing".into()))
    }
}

impl Panic {
    /// Returns its message.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Returns the panic as a call's error; `who` names the code at fault.
    pub(super) fn error(&self, who: &str) -> ToolError {
        ToolError::new(ErrorKind::InternalError, format!("{who} panicked: {}; this is a fault of its code", self.0))
            .with_model_message("internal error")
    }
}

/// Runs code that may panic.
pub(super) fn catch_panic_sync<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(Panic::from)
}

/// Awaits a future that may panic, by reference: a future that is passed by value is copied each time.
pub(super) fn catch_panic<T>(
    work: Pin<&mut (impl Future<Output = T> + ?Sized)>,
) -> impl Future<Output = Result<T, Panic>> {
    AssertUnwindSafe(work).catch_unwind().map_err(Panic::from)
}

/// An event sink whose panics do not reach the emitter.
pub(super) struct PanicSafeEvents(pub(super) Arc<dyn EventSink>);

impl EventSink for PanicSafeEvents {
    fn emit(&self, event: Event) {
        self.emit_shared(Arc::new(event));
    }

    fn emit_shared(&self, event: Arc<Event>) {
        if let Err(panicked) = catch_panic_sync(|| self.0.emit_shared(event)) {
            tracing::error!("an observer of events panicked: {}", panicked.0);
        }
    }

    fn event_detail(&self) -> EventDetail {
        catch_panic_sync(|| self.0.event_detail()).unwrap_or(EventDetail::Nothing)
    }

    fn dropped(&self) -> u64 {
        self.0.dropped()
    }
}
