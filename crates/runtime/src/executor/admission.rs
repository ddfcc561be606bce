//! May this call run? Policy decides, and where it asks, a person.

use std::borrow::Cow;

use toolwright_core::approval::{ApprovalDecision, ApprovalRequest};
use toolwright_core::call::ValidCall;
use toolwright_core::catalogue::{CallScope, Entry};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::{Event, Refused};
use toolwright_core::policy::{Decision, Effect, PolicyQuery};
use toolwright_core::redact::shown_arguments;

use super::account::Account;
use super::pipeline::Stop;
use super::{Executor, RunContext};

/// Whether an earlier `always` answers the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Counts,
    /// A guard asks about this very call.
    Ignored,
}

/// How a call came to be let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admitted {
    /// Policy lets it run.
    Allowed,
    /// Policy asks about it, and it was approved, now or before.
    Approved,
}

impl Executor {
    /// Asks policy, and a person where policy or a guard asks.
    pub(super) async fn admit(
        &self,
        call: &ValidCall,
        guard_asks: Option<String>,
        run: &RunContext,
        account: &mut Account,
    ) -> Result<Admitted, Stop> {
        let scope = call.entry.provider.scope(call.entry.id(), &call.arguments, &run.session);
        let mut decision = policy(call, scope, run);
        let mut standing = Standing::Counts;
        if let (Effect::Allow, Some(reason)) = (decision.effect, guard_asks) {
            decision = Decision { effect: Effect::Ask, rule: "guard".into(), reason };
            standing = Standing::Ignored;
        }
        account.decided_by = Cow::Owned(decision.rule.clone());
        match decision.effect {
            Effect::Allow => Ok(Admitted::Allowed),
            Effect::Deny => {
                account.refused = Some(self.refused(call));
                Err(denied(&call.entry, &decision.reason).into())
            }
            Effect::Ask => {
                let answer = self.approval(call, scope, &decision, standing, run, account).await;
                if answer.is_err() {
                    account.refused = Some(self.refused(call));
                }
                answer.map(|()| Admitted::Approved)
            }
        }
    }

    fn refused(&self, call: &ValidCall) -> Refused {
        let arguments = shown_arguments(&call.entry, &call.arguments, &*self.options.services.redactor);
        Refused { name: call.entry.wire_name.clone(), arguments }
    }

    async fn approval(
        &self,
        call: &ValidCall,
        scope: CallScope,
        decision: &Decision,
        standing: Standing,
        run: &RunContext,
        account: &mut Account,
    ) -> Result<(), Stop> {
        let (id, session) = (call.entry.id(), run.session.id.as_str());
        let request = ApprovalRequest {
            call_id: call.id.clone(),
            session: run.session.id.clone(),
            tool: id.clone(),
            definition: call.entry.tool.hash(),
            arguments: call.arguments.clone(),
            effects: call.entry.definition().effects,
            scope,
            reason: decision.reason.clone(),
        };
        let key = request.standing_key();
        // A store that cannot answer has approved nothing: the person is asked again.
        if standing == Standing::Counts && self.options.approvals.is_approved(session, id, key).await.unwrap_or(false) {
            account.approval = Some("always");
            return Ok(());
        }
        let events = &self.options.services.events;
        events.emit(Event::ApprovalRequested {
            op: account.op.clone(),
            call: call.id.clone(),
            tool: id.clone(),
            reason: decision.reason.clone(),
        });
        let answer = tokio::select! {
            answer = run.approver.ask(&request) => answer,
            cause = run.cancel.cancelled() => return Err(ToolError::canceled(cause).into()),
        };
        let word = match &answer {
            ApprovalDecision::Approve => "approve",
            ApprovalDecision::Always => "always",
            ApprovalDecision::Deny { .. } => "deny",
            ApprovalDecision::Skip => "skip",
            ApprovalDecision::Later => "later",
        };
        account.approval = Some(word);
        events.emit(Event::ApprovalDecided {
            op: account.op.clone(),
            call: call.id.clone(),
            tool: id.clone(),
            decision: word.into(),
        });
        match answer {
            ApprovalDecision::Approve => Ok(()),
            ApprovalDecision::Always => {
                if let Err(error) = self.options.approvals.approve_always(session, id, key).await {
                    tracing::warn!(tool = %id, "`always` was not kept: {error}");
                }
                Ok(())
            }
            ApprovalDecision::Deny { reason } => Err(denied(&call.entry, &reason).into()),
            ApprovalDecision::Skip => Err(Stop::Skipped),
            ApprovalDecision::Later => Err(Stop::Pending(Box::new(request))),
        }
    }
}

/// What policy says of a call.
pub(super) fn policy(call: &ValidCall, scope: CallScope, run: &RunContext) -> Decision {
    let entry = &call.entry;
    run.policy.decide(&PolicyQuery {
        definition: entry.definition(),
        trust: entry.provider.trust(),
        roles: &run.session.principal.roles,
        inside_workspace: scope == CallScope::Workspace,
        unvalidated: call.unvalidated,
    })
}

pub(super) fn denied(entry: &Entry, reason: &str) -> ToolError {
    ToolError::new(ErrorKind::Denied, format!("{} was denied: {reason}", entry.id()))
        .with_model_message(format!("denied: {reason}"))
}
