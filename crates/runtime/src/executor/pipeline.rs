//! The stages of one call, in the order of SPEC section 8:
//! guards, policy, approval, cache, slot, lock, timeout, run, cap, budget, ledger, result.

use std::sync::Arc;

use toolwright_core::approval::{ApprovalRequest, SKIPPED_TEXT};
use toolwright_core::call::ValidCall;
use toolwright_core::content::ContentBlock;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::outcome::{Outcome, ToolOutput, Validated};
use toolwright_core::redact::shown_arguments;
use toolwright_core::session::CallId;

use super::account::Account;
use super::admission::Admitted;
use super::{Executor, RunContext};

/// How a call ended before it had an output.
pub(super) enum Stop {
    /// An error is its result.
    Failed(ToolError),
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
    pub(super) async fn run_one(self: &Arc<Self>, call: ValidCall, run: &RunContext) -> Outcome {
        let entry = Arc::clone(&call.entry);
        let _in_flight = self.in_flight.enter(&entry.provider);
        let id = call.id.clone();
        let validated = Validated(call.unvalidated.is_none());
        let mut account = self.open_account(&call, run);
        let mut outcome = match self.stages(call, run, &mut account).await {
            Ok(output) => self.cap(id, output, &entry, run).await,
            Err(Stop::Failed(error)) => Outcome::failed(id, error),
            Err(Stop::Skipped) => neutral(id),
            Err(Stop::Pending(request)) => Outcome {
                pending: Some(*request),
                ..Outcome::failed(id, ToolError::new(ErrorKind::Denied, "a person has not decided yet"))
            },
        };
        outcome.validated = validated;
        if let Some(budget) = &self.options.budget {
            outcome = budget.admit(outcome).await;
        }
        self.finish(outcome, Some(&entry), account, run).await
    }

    /// Everything between a checked call and the tool's own output.
    async fn stages(
        self: &Arc<Self>,
        mut call: ValidCall,
        run: &RunContext,
        account: &mut Account,
    ) -> Result<ToolOutput, Stop> {
        refuse(&call, run)?;
        let guard_asks = self.guards(&mut call, run).await?;
        if call.provenance.rewritten {
            account.provenance = call.provenance.redacted(&*self.options.services.redactor);
        }
        let admitted = self.admit(&call, guard_asks, run, account).await?;
        if !call.provenance.is_plain() {
            account.ran_with = Some(shown_arguments(&call.entry, &call.arguments, &*self.options.services.redactor));
        }
        self.perform(call, admitted, run, account).await
    }

    /// A call that may run: from the cache, or in its turn.
    async fn perform(
        self: &Arc<Self>,
        call: ValidCall,
        admitted: Admitted,
        run: &RunContext,
        account: &mut Account,
    ) -> Result<ToolOutput, Stop> {
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
        let held = self.turn(&call, run, account).await?;
        account.attempts += 1;
        let output = self.run_tool(call, held, run, &account.op).await?;
        self.keep(cached.place, &output).await;
        Ok(output)
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
