//! Checks and runs plans: documents of calls whose arguments refer to each other's results.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest, Approver};
use toolwright_core::error::StoreError;
use toolwright_core::plan::{PlanApproval, PlanCall, PlanCheck, PlanContext, PlanDocument, check_plan, plan};
use toolwright_core::{Cancel, Lineage, Outcome, Policy, Profile, RunInput, Session};
use toolwright_runtime::executor::EndedCall;
use toolwright_runtime::{RunContext, RunVariables};

use super::Toolwright;

/// Options of one run of a plan.
#[derive(Clone)]
pub struct PlanOptions {
    /// The profile for calls that no rule matches. Default: that of the configuration, else `ask`.
    pub profile: Option<Profile>,
    /// What `†input.x` stands for, for all calls or by instance.
    pub input: RunInput,
    /// Answers where the policy asks about a call that no approval of the plan covers.
    pub approver: Arc<dyn Approver>,
    /// Whether the whole plan is approved, as it is checked. A call that the policy asks about for another reason, or whose
    /// written arguments have changed, is asked about by itself.
    pub approved: bool,
    /// Cancels the calls.
    pub cancel: Cancel,
}

impl std::fmt::Debug for PlanOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanOptions").field("profile", &self.profile).finish_non_exhaustive()
    }
}

/// A plan that has run.
#[derive(Debug)]
pub struct PlanReport {
    calls: Vec<(PlanCall, EndedCall)>,
    variables: Arc<RunVariables>,
}

impl PlanReport {
    /// What became of the calls, in written order.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.calls.iter().map(|(_, call)| &call.outcome)
    }

    /// `success` if every call succeeded, `failure` if none did, else `partial`.
    #[must_use]
    pub fn status(&self) -> &'static str {
        match (self.outcomes().all(|outcome| outcome.ok), self.outcomes().any(|outcome| outcome.ok)) {
            (true, _) => "success",
            (false, true) => "partial",
            (false, false) => "failure",
        }
    }

    /// What the calls left under their paths, for all instances.
    #[must_use]
    pub fn state(&self) -> Value {
        match self.variables.state(None) {
            Value::Null => json!({}),
            state => state,
        }
    }

    /// `{status, calls: [{index, tool, arguments, ok, output | error, started_ms, ended_ms}], state}`, times from the start
    /// of the plan.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let start = self.calls.iter().map(|(_, call)| call.started).min();
        let since = |at: tokio::time::Instant| {
            let since = start.map(|start| at.saturating_duration_since(start)).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        };
        let call = |(index, (call, ended)): (usize, &(PlanCall, EndedCall))| {
            let outcome = &ended.outcome;
            let mut value = json!({
                "index": index,
                "tool": call.tool,
                "arguments": outcome.ran_with.clone().unwrap_or_else(|| Value::Object(call.arguments.clone())),
                "ok": outcome.ok,
                "started_ms": since(ended.started),
                "ended_ms": since(ended.ended),
            });
            match &outcome.error {
                Some(error) => value["error"] = json!({"kind": error.kind(), "message": error.message()}),
                None => value["output"] = outcome.structured.clone().unwrap_or_else(|| outcome.text().into()),
            }
            value
        };
        let calls: Vec<Value> = self.calls.iter().enumerate().map(call).collect();
        json!({"status": self.status(), "calls": calls, "state": self.state()})
    }
}

/// Why a plan did not run.
#[derive(Debug, thiserror::Error)]
pub enum PlanRefused {
    /// What its check found.
    #[error("the plan is not valid")]
    Check(Box<PlanCheck>),
    /// Its state could not be read.
    #[error("the state of the plan could not be read: {0}")]
    Store(#[from] StoreError),
}

impl Toolwright {
    /// Checks a plan against the catalogue and the policy as they are now. Nothing runs.
    #[must_use]
    pub fn check_plan(&self, plan: &PlanDocument, profile: Option<Profile>, input: &RunInput) -> PlanCheck {
        let policy = self.config().policy(profile, Profile::Ask);
        self.checked(plan, &self.call_session(), &policy, &RunVariables::in_memory(for_all_tools(input)))
    }

    fn checked(&self, plan: &PlanDocument, session: &Session, policy: &Policy, values: &RunVariables) -> PlanCheck {
        check_plan(
            plan,
            &PlanContext {
                snapshot: &self.catalogue.snapshot(),
                session,
                policy: Some(policy),
                request: None,
                variables: Some(values),
                max_cost: None,
            },
        )
    }

    /// Runs a plan, each call as soon as the results are there that it refers to. References are replaced for tools of every
    /// origin.
    ///
    /// # Errors
    /// The check, where it finds anything wrong: then nothing has run; or that of the store.
    pub async fn run_plan(
        self: &Arc<Self>,
        document: &PlanDocument,
        options: PlanOptions,
    ) -> Result<PlanReport, PlanRefused> {
        let id = format!("plan-{}", uuid::Uuid::new_v4());
        let session = self.session(id.as_str());
        let policy = Arc::new(self.config().policy(options.profile, Profile::Ask));
        let services = self.executor.services();
        let input = for_all_tools(&options.input);
        let variables = RunVariables::open(&*services.log, &*services.outputs, &session.id, input).await?;
        let check = self.checked(document, &session, &policy, &variables);
        if !check.is_valid() {
            return Err(PlanRefused::Check(Box::new(check)));
        }
        let approval = options.approved.then(|| PlanApproval::of(document, &check, &*services.redactor));
        let run = RunContext {
            cancel: options.cancel,
            variables: Some(Arc::clone(&variables) as _),
            max_output: Some(self.config().sections.defaults.calls.whole_result_max_bytes),
            ..RunContext::under(
                Lineage::named(&id),
                session,
                self.catalogue.snapshot(),
                policy,
                Arc::new(PlanApprover { approval, otherwise: options.approver }),
            )
        };
        let checked = self.executor.check_calls(document.tool_calls(), &[], &run).await.calls;
        let ended = self.executor.execute_timed(plan(checked, usize::MAX, 0), &run).await;
        let mut calls: Vec<(PlanCall, EndedCall)> = Vec::with_capacity(ended.len());
        for ended in ended {
            let index = toolwright_core::plan::call_index(ended.outcome.call_id.as_str());
            if let Some(call) = index.and_then(|index| document.calls.get(index)) {
                calls.push((call.clone(), ended));
            }
        }
        Ok(PlanReport { calls, variables })
    }
}

/// References of a plan are replaced for tools of every origin.
fn for_all_tools(input: &RunInput) -> RunInput {
    RunInput { foreign: true, ..input.clone() }
}

/// Answers with the approval of the plan what that covers.
struct PlanApprover {
    approval: Option<PlanApproval>,
    otherwise: Arc<dyn Approver>,
}

#[async_trait]
impl Approver for PlanApprover {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        if self.approval.as_ref().is_some_and(|approval| approval.covers(request)) {
            return ApprovalDecision::Approve;
        }
        self.otherwise.ask(request).await
    }
}
