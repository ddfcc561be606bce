//! The one executor. A call passes its stages in a fixed order: checked here (`checking.rs`), then through `pipeline.rs`.
//! A stage with no configuration passes through.

mod admission;
mod background;
mod call_record;
mod checking;
mod guards;
mod in_flight;
mod llm_call;
mod options;
mod pipeline;
mod recovery;
mod result;
mod run;
mod tool_context;

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use toolwright_core::call::{Rejection, ToolCall, ValidCall};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::context::Services;
use toolwright_core::model::{ModelError, ModelRequest, ModelResponse};
use toolwright_core::operation::{Lineage, Op};
use toolwright_core::outcome::Outcome;
use toolwright_core::plan::{Plan, Planned, plan};
use toolwright_core::session::Session;
use toolwright_core::store::LedgerStore;

use self::pipeline::PanicSafeEvents;
use crate::jobs::JobManager;
use crate::models::{ModelRequests, OnAnswer, RequestScope};
use crate::queue::{Queues, RootLocks};

pub use self::background::{PromotedTo, Promotion};
pub use self::checking::{CheckedCalls, RepairOptions};
pub use self::guards::{Before, GuardBinding, GuardContext, Guarded, InputGuard, Interceptor, ModelGuard, Verdict};
pub use self::llm_call::LlmTerms;
pub use self::options::{CallerNames, ExecutorOptions, PartialsFor, Recommends, RunContext};
pub use self::recovery::RecoveryOptions;
pub use self::result::{BUDGET_EXCEEDED, is_denied, readers};
pub use self::tool_context::NestedCallLimits;
pub use crate::budget::ContextBudget;
pub use crate::cache::ResponseCache;
pub use crate::models::{Asked, AuxiliaryRequests, ModelAsk, ModelCallRecord};

/// The one executor. Shared by `Arc`.
pub struct Executor {
    options: ExecutorOptions,
    models: Arc<ModelRequests>,
    locks: RootLocks,
    in_flight: Arc<in_flight::InFlight>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").finish_non_exhaustive()
    }
}

impl Executor {
    /// An executor. Observers of its services' events cannot break a call: one that panics is logged.
    #[must_use]
    pub fn new(mut options: ExecutorOptions) -> Arc<Self> {
        let events = Arc::new(PanicSafeEvents(Arc::clone(&options.services.events)));
        options.services = Arc::new(Services { events, ..(*options.services).clone() });
        let (services, ledger) = (Arc::clone(&options.services), Arc::clone(&options.ledger));
        let models = ModelRequests::new(services, ledger, std::mem::take(&mut options.prices));
        Arc::new(Self { options, models, locks: RootLocks::default(), in_flight: Arc::default() })
    }

    /// Begins an operation.
    #[must_use]
    pub fn begin(&self, lineage: &Lineage) -> Op {
        self.models.ids.begin(lineage)
    }

    /// What sends and records requests to models.
    #[must_use]
    pub fn models(&self) -> &Arc<ModelRequests> {
        &self.models
    }

    /// What running tools get.
    #[must_use]
    pub fn services(&self) -> &Arc<Services> {
        &self.options.services
    }

    /// The queues, for settings that name one.
    #[must_use]
    pub fn queues(&self) -> &Queues {
        &self.options.queues
    }

    /// The jobs, where there are any.
    #[must_use]
    pub fn jobs(&self) -> Option<&Arc<JobManager>> {
        self.options.jobs.as_ref()
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &Arc<dyn LedgerStore> {
        &self.options.ledger
    }

    /// Calls that may run in one turn.
    #[must_use]
    pub fn calls_per_turn(&self) -> usize {
        self.options.calls_per_turn
    }

    /// Checks, plans and executes the calls of one turn:
    /// one outcome a call, in call order, whatever happens.
    pub async fn run_calls(self: &Arc<Self>, calls: Vec<ToolCall>, run: &RunContext) -> Vec<Outcome> {
        let checked = pin!(self.check_calls(calls, &[], run)).await;
        pin!(self.run_checked(checked.calls, run)).await
    }

    /// Plans and executes the calls of one turn that [`Executor::check_calls`] has checked: the rest of
    /// [`Executor::run_calls`], for callers that keep what the check came to.
    pub async fn run_checked(
        self: &Arc<Self>,
        checked: Vec<Result<ValidCall, Box<Rejection>>>,
        run: &RunContext,
    ) -> Vec<Outcome> {
        let plan = match &run.inner {
            Some(bound) => plan(bound.apply(checked), usize::MAX, 0),
            None => plan(checked, self.options.calls_per_turn, run.started_before),
        };
        pin!(self.execute(plan, run)).await
    }

    /// Refuses calls from now on, and ends all waits for a slot or a lock; running calls go on.
    pub fn close(&self) {
        self.in_flight.close();
        self.options.queues.close(CancelCause::Shutdown);
        self.locks.close(CancelCause::Shutdown);
    }

    /// Ends in good order: refuses calls, fails those that wait, cancels those that run, gives them `grace` to
    /// stop by themselves, abandons the rest, and writes the ledger. May be called again.
    pub async fn shut_down(&self, grace: Duration) {
        self.close();
        let left = self.in_flight.stop(grace).await;
        if left > 0 {
            tracing::warn!("{left} calls did not end when they were cancelled");
        }
        if let Err(error) = self.options.ledger.flush().await {
            tracing::warn!("the ledger was not written to its end: {error}");
        }
    }

    /// Executes a plan: stages in turn, then what waits for values, as they come; calls that can run at
    /// once run in parallel; outcomes in call order. A rejected call skips to its end. Dropping the future
    /// cancels what runs, which ends in good order by itself.
    pub async fn execute(self: &Arc<Self>, plan: Plan, run: &RunContext) -> Vec<Outcome> {
        let mut calls: Vec<Option<Planned>> = plan.calls.into_iter().map(Some).collect();
        let mut outcomes: Vec<Option<Outcome>> = vec![None; calls.len()];
        let mut take = |index: usize| calls.get_mut(index).and_then(Option::take);
        for stage in plan.stages {
            let ready = stage.into_iter().filter_map(|index| Some((index, take(index)?))).collect();
            pin!(self.stage(ready, &mut outcomes, run)).await;
        }
        let pending = |index: usize| match take(index) {
            Some(Planned::Run(call)) => Some((index, *call)),
            _ => None,
        };
        let mut waiting: checking::Indexed<ValidCall> = plan.waiting.into_iter().filter_map(pending).collect();
        while !waiting.is_empty() {
            let (ready, rest) = checking::landed(waiting, run);
            pin!(self.stage(ready, &mut outcomes, run)).await;
            waiting = rest;
        }
        outcomes.into_iter().flatten().collect()
    }

    async fn stage(
        self: &Arc<Self>,
        mut ready: checking::Indexed<Planned>,
        outcomes: &mut [Option<Outcome>],
        run: &RunContext,
    ) {
        if ready.len() == 1
            && let Some((index, planned)) = ready.pop()
        {
            outcomes[index] = Some(self.one(planned, run).await);
            return;
        }
        let calls = ready.into_iter().map(|(index, planned)| async move { (index, self.one(planned, run).await) });
        for (index, outcome) in join_all(calls).await {
            outcomes[index] = Some(outcome);
        }
    }

    fn one(self: &Arc<Self>, planned: Planned, run: &RunContext) -> pipeline::Detached {
        match planned {
            Planned::Run(call) => self.run_one(*call, run),
            Planned::Reject(rejection) => self.reject_one(*rejection, run),
        }
    }

    /// Asks `model` as an operation in the lineage of `run`, until that is cancelled or for at most `limit`. What a
    /// background call asks goes behind what somebody waits for. Told and accounted for however it ends, each attempt.
    ///
    /// # Errors
    /// [`ModelError`] of the model client; `Canceled` and `Unavailable` for the two ends.
    pub async fn ask_model(
        &self,
        model: &str,
        request: &ModelRequest,
        limit: Option<Duration>,
        run: &RunContext,
    ) -> Result<ModelResponse, ModelError> {
        self.ask_hearing(model, request, limit, run, &|_| {}).await
    }

    /// [`Executor::ask_model`], whose answer `on_answer` has first, to learn its secrets.
    async fn ask_hearing(
        &self,
        model: &str,
        request: &ModelRequest,
        limit: Option<Duration>,
        run: &RunContext,
        on_answer: OnAnswer<'_>,
    ) -> Result<ModelResponse, ModelError> {
        let priority = request.priority.max(run.priority.into());
        let room = if run.llm.requests.is_endless() { &request.room } else { &run.llm.requests };
        let request = if priority == request.priority && *room == request.room {
            Cow::Borrowed(request)
        } else {
            Cow::Owned(ModelRequest { priority, room: room.clone(), ..request.clone() })
        };
        let scope = RequestScope { lineage: &run.lineage, session: &run.session, limit, cancel: &run.cancel };
        let answer = self.models.ask(scope, model, &request, on_answer).await;
        if let Some(recorder) = &run.usage {
            recorder.record(model, answer.as_ref().map_or_else(|error| error.usage, |answer| answer.usage));
        }
        answer
    }

    /// [`Executor::ask_model`] in this lineage and on behalf of this session.
    ///
    /// # Errors
    /// As [`Executor::ask_model`].
    pub async fn ask_as(
        &self,
        lineage: &Lineage,
        session: &Session,
        model: &str,
        request: &ModelRequest,
        limit: Option<Duration>,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        self.models.ask(RequestScope { lineage, session, limit, cancel }, model, request, &|_| {}).await
    }
}
