//! One call from its check to its result, in the order of SPEC section 8: interceptors, guards, policy, approval,
//! cache, slot, lock, timeout, run, cap, budget, ledger. Whatever a stage does, the call has one outcome.

use std::sync::Arc;

use futures_util::FutureExt as _;
use toolwright_core::approval::{ApprovalRequest, SKIPPED_TEXT};
use toolwright_core::call::{Rejection, ValidCall};
use toolwright_core::content::ContentBlock;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::outcome::{Outcome, ToolOutput, Validated};
use toolwright_core::redact::shown_arguments;
use toolwright_core::session::CallId;

use super::account::Account;
use super::admission::{Admitted, Judged};
use super::attended::Attended;
use super::background::Became;
use super::contained::contained;
use super::stage::Stage;
use super::{Executor, RunContext};

/// How a call ended before its tool had an output.
pub(super) enum Stop {
    /// An error is its result.
    Failed(ToolError),
    /// An interceptor gave a result in the tool's place.
    Answered(Box<ToolOutput>),
    /// A person said to leave it out: a neutral result.
    Skipped,
    /// A person must decide, later.
    Pending(Box<ApprovalRequest>),
}

impl From<ToolError> for Stop {
    fn from(error: ToolError) -> Self {
        Self::Failed(error)
    }
}

impl Executor {
    /// Runs a checked call. It has a token of its own under the run's, and goes on to its end, cancelled, if its
    /// caller does not wait for it.
    pub(super) fn run_one(self: &Arc<Self>, call: ValidCall, run: &RunContext) -> Attended {
        let (executor, run) = (Arc::clone(self), run.of_one_call());
        Attended::new(run.cancel.clone(), executor.whole(call, run).boxed())
    }

    /// The end of a call that never came to run.
    pub(super) fn reject_one(self: &Arc<Self>, rejection: Rejection, run: &RunContext) -> Attended {
        let (executor, run) = (Arc::clone(self), run.of_one_call());
        Attended::new(run.cancel.clone(), async move { executor.reject(rejection, &run).await }.boxed())
    }

    async fn whole(self: Arc<Self>, mut call: ValidCall, run: RunContext) -> Outcome {
        let mut account = self.open_account(&call, &run);
        let admission = contained(self.admission(&mut call, &run, &mut account)).await;
        match admission.unwrap_or_else(|panicked| Err(account.blame(&panicked, &call.entry))) {
            Ok(Judged::Admitted(admitted)) => self.deliver(call, admitted, run, account).await,
            Ok(Judged::Asks(request)) => self.ask_later(call, request, run, account).boxed().await,
            Err(stop) => self.conclude(End::of(&call), Err(stop), &run, account).boxed().await,
        }
    }

    /// Whether the call may run, and with which arguments. A person is asked here unless the call is to wait for
    /// the answer as a job.
    async fn admission(
        self: &Arc<Self>,
        call: &mut ValidCall,
        run: &RunContext,
        account: &mut Account,
    ) -> Result<Judged, Stop> {
        self.in_flight.is_open()?;
        refuse(call, run)?;
        self.manual(call, run)?;
        account.stage = Stage::Interceptors;
        self.intercept(call, run).await?;
        account.stage = Stage::Guards;
        let guard_asks = self.guards(call, run, account).await?;
        if call.provenance.rewritten {
            account.provenance = call.provenance.redacted(&*self.options.services.redactor);
        }
        account.stage = Stage::Policy;
        let judged = match self.judge(call, guard_asks, run, account).await? {
            Judged::Asks(request) if !self.asks_later(run) => {
                Judged::Admitted(self.ask_person(call, *request, run, account).await?)
            }
            judged => judged,
        };
        if !call.provenance.is_plain() {
            account.ran_with = Some(shown_arguments(&call.entry, &call.arguments, &*self.options.services.redactor));
        }
        Ok(judged)
    }

    /// Runs an admitted call to its end. Owns all it needs, so that it can go on without the turn that made it.
    pub(super) async fn carry_out(
        self: Arc<Self>,
        call: ValidCall,
        admitted: Admitted,
        run: RunContext,
        mut account: Account,
    ) -> Outcome {
        let end = End::of(&call);
        let performed = contained(self.perform(call, admitted, &run, &mut account)).await;
        let performed = performed.unwrap_or_else(|panicked| Err(account.blame(&panicked, &end.entry)));
        // Boxed, as the run is: thousands of calls may wait in line, and what comes later need not.
        self.conclude(end, performed, &run, account).boxed().await
    }

    /// What an admitted call says: from the cache, or in its turn from its tool.
    async fn perform(
        self: &Arc<Self>,
        call: ValidCall,
        admitted: Admitted,
        run: &RunContext,
        account: &mut Account,
    ) -> Result<ToolOutput, Stop> {
        account.stage = Stage::Cache;
        let cached = self.cached(&call, admitted, run).await;
        if let Some(output) = cached.hit {
            account.cached = true;
            let (op, id, tool) = (&account.op, &call.id, call.entry.id());
            self.options.services.events.tell(|| Event::CacheHit {
                op: op.clone(),
                call: id.clone(),
                tool: tool.clone(),
            });
            return Ok(output);
        }
        account.stage = Stage::Turn;
        let held = self.turn_in_time(&call, run, account).await?;
        account.stage = Stage::Run;
        let entry = Arc::clone(&call.entry);
        let output = self.run_tool(call, held, run, account).boxed().await?;
        account.stage = Stage::Interceptors;
        let output = self.intercept_output(&entry, output, run).await?;
        account.stage = Stage::Cache;
        self.keep(cached.place, &output).await;
        Ok(output)
    }

    /// Makes the outcome: capped, within the budget, told and in the account.
    pub(super) async fn conclude(
        &self,
        end: End,
        performed: Result<ToolOutput, Stop>,
        run: &RunContext,
        mut account: Account,
    ) -> Outcome {
        account.stage = Stage::Shaping;
        let id = end.id.clone();
        let shaped = contained(self.shaped(&end, performed, run)).await;
        let mut outcome = shaped.unwrap_or_else(|panicked| Outcome::failed(id, panicked.error(account.stage.whose())));
        outcome.validated = end.validated;
        self.finish(outcome, Some(&end.entry), account, run).await
    }

    pub(super) async fn shaped(&self, end: &End, performed: Result<ToolOutput, Stop>, run: &RunContext) -> Outcome {
        let id = end.id.clone();
        let outcome = match performed {
            Ok(output) => self.cap(id, output, &end.entry, run).await,
            Err(Stop::Answered(output)) => self.cap(id, *output, &end.entry, run).await,
            Err(Stop::Failed(error)) => self.cap_failure(Outcome::failed(id, error), &end.entry, run).await,
            Err(Stop::Skipped) => neutral(id),
            Err(Stop::Pending(request)) => Outcome {
                pending: Some(*request),
                ..Outcome::failed(id, ToolError::new(ErrorKind::Denied, "a person has not decided yet"))
            },
        };
        // A job's outcome goes into no turn.
        let is_job = run.became.as_ref().is_some_and(Became::is_job);
        if run.budget.is_none() || is_job { outcome } else { self.fit(outcome, &end.entry, run).boxed().await }
    }
}

/// What the end of a call needs of it.
pub(super) struct End {
    pub(super) id: CallId,
    pub(super) entry: Arc<toolwright_core::Entry>,
    pub(super) validated: Validated,
}

impl End {
    pub(super) fn of(call: &ValidCall) -> Self {
        let validated = Validated(call.unvalidated.is_none());
        Self { id: call.id.clone(), entry: Arc::clone(&call.entry), validated }
    }
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
    outcome
}
