//! Decides whether a call may run, and with which arguments: by interceptors, guards, policy, and a person if the
//! policy asks.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolwright_core::approval::{
    AlwaysScope, AnswerSource, ApprovalDecision, ApprovalRequest, EXPIRED, StandingApproval,
};
use toolwright_core::call::ValidCall;
use toolwright_core::cancel::Cancel;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{CallScope, Entry};
use toolwright_core::context::{INFO_ID, unread};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::{Event, RefusedCall};
use toolwright_core::operation::Op;
use toolwright_core::outcome::{Outcome, STANDS_IN, ToolOutput};
use toolwright_core::policy::{Decision, Effect};
use toolwright_core::redact::shown_arguments;

use super::call_record::{ApprovalAnswer, CallRecord};
use super::context::rewrite;
use super::pipeline::{CallState, EarlyExit, Stage};
use super::{Executor, GuardBinding, GuardContext, GuardMode, GuardVerdict, InterceptorDecision, RunContext};
use crate::approvals::new_id;

/// How long an interceptor may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The message to the model if policy asks but nobody can be asked.
const UNASKED: &str = "denied: the call needs a person's approval, and nobody can be asked";

/// The wait of a call for approval, which becomes the job's own.
pub(super) type PendingAdmission = BoxFuture<'static, JobAdmission>;

/// The decision whether a job may run.
pub(super) struct JobAdmission {
    pub(super) admitted: Result<Admitted, EarlyExit>,
    /// A person's answer, if one was asked.
    pub(super) answer: ApprovalAnswer,
}

impl From<Result<Admitted, EarlyExit>> for JobAdmission {
    fn from(admitted: Result<Admitted, EarlyExit>) -> Self {
        Self { admitted, answer: ApprovalAnswer::default() }
    }
}

/// How a job starts after its commit.
pub(super) enum JobStart {
    /// It may run.
    Admitted(Admitted),
    /// A person must still be asked, for this reason.
    AwaitsApproval(PendingAdmission, String),
}

/// Whether an earlier `always` answers the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EarlierAnswer {
    Counts,
    /// A guard asked about this very call.
    Ignored,
}

/// How a call was admitted, and the resources that policy saw it touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admitted {
    /// Policy allows it.
    Allowed(CallScope),
    /// Policy asked, and the call was approved, now or before.
    Approved(CallScope),
}

impl Admitted {
    pub(super) fn scope(self) -> CallScope {
        let (Self::Allowed(scope) | Self::Approved(scope)) = self;
        scope
    }
}

/// The decision of policy and earlier answers about a call.
pub(super) enum Judgement {
    /// It may run.
    Admitted(Admitted),
    /// A person must approve it first.
    Asks(Box<ApprovalRequest>),
}

impl Judgement {
    /// Returns the scope of the call that policy was given.
    pub(super) fn scope(&self) -> CallScope {
        match self {
            Self::Admitted(admitted) => admitted.scope(),
            Self::Asks(request) => request.scope,
        }
    }
}

impl Executor {
    /// Decides whether the call may run, and with which arguments. Asks the person here, unless the call waits for the
    /// answer as a job.
    pub(super) async fn admission(self: &Arc<Self>, call_state: &mut CallState) -> Result<Judgement, EarlyExit> {
        let CallState { call, run, record } = call_state;
        self.in_flight.is_open()?;
        refuse(call, run)?;
        self.unread_manual(call, run)?;
        self.ready_recordings(run).await;
        // A call that cannot run needs no approval.
        self.models_of(&call.entry, run)?;
        record.stage = Stage::Interceptors;
        pin!(self.intercept(call, run)).await?;
        record.stage = Stage::Guards;
        let guard_asks = pin!(self.guards(call, run, record)).await?;
        if call.provenance.rewritten {
            record.provenance = call.provenance.redacted(&*self.options.services.redactor);
        }
        record.stage = Stage::Policy;
        let judged = self.judge(call, guard_asks, run, record).await?;
        if let (Judgement::Asks(_), Some(turn)) = (&judged, &run.turn) {
            // Later calls do not wait for a person's answer about this one.
            turn.leave_order();
        }
        let judged = match judged {
            Judgement::Asks(request) if !self.asks_later(run) => {
                match self.ask_person(call, *request, run, record).boxed().await {
                    Err(EarlyExit::Pending(request)) if let Some(otherwise) = run.approver.fallback_approver() => {
                        (record.refused, record.approval) = (None, ApprovalAnswer::default());
                        Arc::make_mut(run).approver = otherwise;
                        if self.asks_later(run) {
                            Judgement::Asks(request)
                        } else {
                            Judgement::Admitted(self.ask_person(call, *request, run, record).boxed().await?)
                        }
                    }
                    asked => Judgement::Admitted(asked?),
                }
            }
            judged => judged,
        };
        if !call.provenance.is_plain() {
            record.ran_with = Some(shown_arguments(&call.entry, &call.arguments, &*self.options.services.redactor));
        }
        Ok(judged)
    }

    /// Refuses a call if the session has not read its tool's manual. If manuals cannot be read, none is required.
    fn unread_manual(&self, call: &ValidCall, run: &RunContext) -> Result<(), ToolError> {
        let (entry, manuals) = (&call.entry, &self.options.services.manuals);
        if !entry.definition().manual_required || manuals.was_read(&run.session.id, entry.tool.hash()) {
            return Ok(());
        }
        run.snapshot.get(INFO_ID).map_or(Ok(()), |info| Err(unread(entry, info)))
    }

    /// Asks the policy, and looks for an earlier `always` if the policy asks. Asks no person.
    pub(super) async fn judge(
        &self,
        call: &ValidCall,
        guard_asks: Option<String>,
        run: &RunContext,
        record: &mut CallRecord,
    ) -> Result<Judgement, EarlyExit> {
        let scope = call.entry.provider.scope(call.entry.id(), &call.arguments, &run.session);
        let query = run.query(call, scope);
        let mut decision = run.policy.decide(&query);
        let mut standing = EarlierAnswer::Counts;
        if let Some(reason) = guard_asks {
            standing = EarlierAnswer::Ignored;
            if decision.effect == Effect::Allow {
                decision = Decision { effect: Effect::Ask, rule: "guard".into(), reason };
            }
        }
        record.decided_by = decision.rule.clone();
        match decision.effect {
            Effect::Allow => return Ok(Judgement::Admitted(Admitted::Allowed(scope))),
            Effect::Deny => {
                record.refused = Some(self.refused(call));
                return Err(denied(&call.entry, &decision.reason).into());
            }
            Effect::Ask => {}
        }
        let redactor = &*self.options.services.redactor;
        let request = ApprovalRequest {
            call_id: call.id.clone(),
            run: run.lineage.run.clone(),
            session: run.session.id.clone(),
            principal: run.session.principal.id.clone(),
            tool: call.entry.id().clone(),
            definition: call.entry.tool.hash(),
            arguments: shown_arguments(&call.entry, &call.arguments, redactor),
            binds_to: Some(ContentHash::of_value(&call.arguments)),
            // The effects that a third-party tool declares must not widen an `always`.
            effects: run.policy.effects_if_trusted(&query),
            scope,
            reason: redactor.redact(&decision.reason).into_owned(),
            tainted: call.provenance.tainted.clone(),
            named: run.request.as_ref().map(|words| words.places(&call.arguments)).unwrap_or_default(),
            asker: run.asker.as_deref().map(str::to_owned),
            agents: run.agents.to_vec(),
        };
        // If the store cannot answer, nothing counts as approved and the person is asked again.
        let approvals = &self.options.approvals;
        let mut reaches = [Some(request.always_covers()), Some(AlwaysScope::ThisCall)];
        if reaches[0] == reaches[1] {
            reaches[1] = None;
        }
        for covers in reaches.into_iter().flatten().filter(|_| standing == EarlierAnswer::Counts) {
            let key = request.approval_key(covers);
            if approvals.is_approved(run.session.id.as_str(), &request.tool, key).await.unwrap_or(false) {
                record.approval.word = Some("always");
                return Ok(Judgement::Admitted(Admitted::Approved(scope)));
            }
        }
        Ok(Judgement::Asks(Box::new(request)))
    }

    /// Asks the run's approver and follows the answer.
    pub(super) async fn ask_person(
        &self,
        call: &ValidCall,
        request: ApprovalRequest,
        run: &RunContext,
        record: &mut CallRecord,
    ) -> Result<Admitted, EarlyExit> {
        let scope = request.scope;
        let answer = self.answer(call, request, run, &record.op, &mut record.approval).await;
        if answer.is_err() {
            record.refused = Some(self.refused(call));
        }
        answer.map(|()| Admitted::Approved(scope))
    }

    /// Returns whether calls of this run wait for a person's answer as jobs, so that their caller need not wait. Calls
    /// of agents that wait themselves do not.
    fn asks_later(&self, run: &RunContext) -> bool {
        self.options.jobs.is_some()
            && run.agents.is_empty()
            && run.job.is_none()
            && run.approver.answers() == AnswerSource::Elsewhere
    }

    /// Turns the call into a job that asks the person, and runs if approved. The caller gets the job's id.
    pub(super) async fn ask_later(
        self: &Arc<Self>,
        call_state: Box<CallState>,
        request: Box<ApprovalRequest>,
    ) -> Outcome {
        let CallState { call, run, record } = &*call_state;
        let (executor, asked_call) = (Arc::clone(self), Arc::clone(call));
        // The job's own token ends the wait; the caller's token would end it with the caller.
        let without_cancel = RunContext { cancel: Cancel::new(), ..(**run).clone() };
        let (op, reason, scope) = (record.op.clone(), request.reason.clone(), request.scope);
        let asking = async move {
            let mut approval = ApprovalAnswer::default();
            let answer = executor.answer(&asked_call, *request, &without_cancel, &op, &mut approval).await;
            JobAdmission { admitted: answer.map(|()| Admitted::Approved(scope)), answer: approval }
        };
        let how = JobStart::AwaitsApproval(Box::pin(asking), reason);
        let started = self.start_job(Arc::clone(call), how, run, &record.op).await;
        self.conclude(call_state, started).await
    }

    fn refused(&self, call: &ValidCall) -> RefusedCall {
        let arguments = shown_arguments(&call.entry, &call.arguments, &*self.options.services.redactor);
        RefusedCall { name: call.entry.wire_name.clone(), arguments }
    }

    async fn answer(
        &self,
        call: &ValidCall,
        request: ApprovalRequest,
        run: &RunContext,
        op: &Op,
        approval: &mut ApprovalAnswer,
    ) -> Result<(), EarlyExit> {
        let events = &self.options.services.events;
        events.emit(Event::ApprovalRequested {
            op: op.clone(),
            call: call.id.clone(),
            tool: request.tool.clone(),
            reason: request.reason.clone(),
        });
        let asked_at = self.options.services.clock.now();
        let answer = tokio::select! {
            answer = tokio::time::timeout(run.approver.answer_timeout(), run.approver.ask(&request)) => {
                Ok(answer.unwrap_or_else(|_| ApprovalDecision::Deny { reason: EXPIRED.to_owned() }))
            }
            cause = run.cancel.cancelled() => Err(ToolError::canceled(cause)),
        };
        approval.took = self.options.services.clock.now().saturating_duration_since(asked_at);
        let answer = answer?;
        let word = match &answer {
            ApprovalDecision::Approve => "approve",
            ApprovalDecision::Always => "always",
            ApprovalDecision::AlwaysThese => "always_these",
            ApprovalDecision::Deny { .. } => "deny",
            ApprovalDecision::Skip => "skip",
            ApprovalDecision::Later => "later",
        };
        approval.word = Some(word);
        events.emit(Event::ApprovalDecided {
            op: op.clone(),
            call: call.id.clone(),
            tool: request.tool.clone(),
            decision: word.into(),
        });
        match answer {
            ApprovalDecision::Approve => Ok(()),
            ApprovalDecision::Always => {
                self.remember(&request, request.always_covers()).await;
                Ok(())
            }
            ApprovalDecision::AlwaysThese => {
                self.remember(&request, AlwaysScope::ThisCall).await;
                Ok(())
            }
            ApprovalDecision::Deny { reason } if run.approver.answers() == AnswerSource::Nobody => {
                // Only the operator is told what would allow the call.
                Err(denied(&call.entry, &reason).with_model_message(UNASKED).into())
            }
            ApprovalDecision::Deny { reason } => Err(denied(&call.entry, &reason).into()),
            ApprovalDecision::Skip => Err(EarlyExit::Skipped),
            ApprovalDecision::Later => Err(EarlyExit::Pending(Box::new(request))),
        }
    }

    /// Stores an `always`. The present call runs even if storing fails.
    async fn remember(&self, request: &ApprovalRequest, covers: AlwaysScope) {
        let now_ms = self.options.services.clock.wall_ms();
        let standing = StandingApproval::of(request, covers, new_id("always"), now_ms);
        if let Err(error) = self.options.approvals.approve_always(&standing).await {
            tracing::warn!(tool = %request.tool, "`always` was not kept: {error}");
        }
    }
}

/// Refuses a call that cannot run, regardless of policy.
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

fn denied(entry: &Entry, reason: &str) -> ToolError {
    ToolError::new(ErrorKind::Denied, format!("{} was denied: {reason}", entry.id()))
        .with_model_message(format!("denied: {reason}"))
}

impl Executor {
    /// Calls every interceptor in order, until one skips the call.
    async fn intercept(&self, call: &mut Arc<ValidCall>, run: &RunContext) -> Result<(), EarlyExit> {
        for interceptor in &self.options.interceptors {
            match answer_in_time(interceptor.name(), run, interceptor.before(call, run)).await? {
                InterceptorDecision::Continue => {}
                InterceptorDecision::Skip(mut output) => {
                    // A text result from an interceptor is not checked against the tool's output schema.
                    if output.structured.is_none() {
                        output.extras.entry(STANDS_IN).or_insert_with(|| "skipped".into());
                    }
                    return Err(EarlyExit::Answered(Box::new(output.with_extra("skipped_by", interceptor.name()))));
                }
                InterceptorDecision::Override(arguments) => {
                    rewrite(Arc::make_mut(call), arguments, &format!("interceptor {}", interceptor.name()))?;
                }
            }
        }
        Ok(())
    }

    /// Passes an output to every interceptor, the last registered first.
    pub(super) async fn intercept_output(
        &self,
        tool: &Entry,
        mut output: ToolOutput,
        run: &RunContext,
    ) -> Result<ToolOutput, ToolError> {
        for interceptor in self.options.interceptors.iter().rev() {
            if let Some(mut other) =
                answer_in_time(interceptor.name(), run, interceptor.after(tool, &output, run)).await?
            {
                // A placeholder whose text was replaced is still a placeholder.
                if let Some(what) = output.extras.remove(STANDS_IN).filter(|_| other.structured.is_none()) {
                    other.extras.entry(STANDS_IN).or_insert(what);
                }
                output = other.with_extra("overridden_by", interceptor.name());
            }
        }
        Ok(output)
    }

    /// Calls every guard that is bound to the call, in order. The first denial ends the call; otherwise the first
    /// reason to ask is returned. A guard that fails or times out denies.
    async fn guards(
        self: &Arc<Self>,
        call: &mut Arc<ValidCall>,
        run: &RunContext,
        record: &CallRecord,
    ) -> Result<Option<String>, ToolError> {
        let mut ask = None;
        if run.guarded == GuardMode::No {
            return Ok(ask);
        }
        for binding in &self.options.guards {
            if !binding.is_asked(call, run) {
                continue;
            }
            match self.judgement(binding, call, run, &record.op).await? {
                GuardVerdict::Allow => {}
                GuardVerdict::Deny(reason) => return Err(denied(&call.entry, &reason)),
                GuardVerdict::Ask(reason) => ask = ask.or(Some(reason)),
                GuardVerdict::Rewrite(arguments) => {
                    rewrite(Arc::make_mut(call), arguments, &format!("guard {}", binding.name))?
                }
            }
        }
        Ok(ask)
    }

    /// Returns one guard's verdict, and records it in the ledger as an operation inside the call.
    async fn judgement(
        self: &Arc<Self>,
        binding: &GuardBinding,
        call: &ValidCall,
        run: &RunContext,
        parent: &Op,
    ) -> Result<GuardVerdict, ToolError> {
        let op = self.begin(&parent.inside());
        let started = self.options.services.clock.now();
        let inner_run = RunContext {
            lineage: op.inside(),
            guarded: GuardMode::No,
            journal: None,
            timeout: None,
            partials: None,
            budget: None,
            order: None,
            turn: None,
            ..run.clone()
        };
        let context = GuardContext { executor: self, run: inner_run };
        let judged = tokio::select! {
            biased;
            judged = binding.guard.judge(call, &context) => judged,
            cause = run.cancel.cancelled() => return Err(ToolError::canceled(cause)),
            () = tokio::time::sleep(binding.timeout) => {
                Err(format!("no answer within {}", toolwright_core::duration::format(binding.timeout)))
            }
        };
        let status = judged.as_ref().map_or("error", GuardVerdict::as_str);
        self.record_guard(op, &binding.name, status, started, run);
        judged.map_err(|why| denied(&call.entry, &format!("guard {} could not judge it: {why}", binding.name)))
    }
}

/// What an interceptor says in time, unless the call is cancelled.
async fn answer_in_time<T>(name: &str, run: &RunContext, decision: impl Future<Output = T>) -> Result<T, ToolError> {
    tokio::select! {
        biased;
        answer = decision => Ok(answer),
        // A stopped call may still have an output to check, as long as that does not wait.
        cause = run.cancel.cancelled() => Err(ToolError::canceled(cause)),
        () = tokio::time::sleep(LIMIT) => {
            let message = format!("interceptor {name} did not answer within {LIMIT:?}");
            Err(ToolError::new(ErrorKind::InternalError, message).with_model_message("internal error"))
        }
    }
}
