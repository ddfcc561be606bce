//! Checks and runs plans: documents of calls whose arguments refer to each other's results.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest, Approver};
use toolwright_core::catalogue::Origin;
use toolwright_core::plan::{PlanApproval, PlanCall, PlanCheck, PlanContext, PlanDocument, check_plan, plan};
use toolwright_core::store::fold;
use toolwright_core::variables::{Kind, Values, Variables};
use toolwright_core::{Cancel, Lineage, Outcome, Policy, Profile, Session};
use toolwright_runtime::RunContext;
use toolwright_runtime::executor::{EndedCall, kept_value};

use super::Toolwright;

/// Options of one run of a plan.
#[derive(Clone)]
pub struct PlanOptions {
    /// The profile for calls that no rule matches. Default: that of the configuration, else `ask`.
    pub profile: Option<Profile>,
    /// What `†input.x` stands for.
    pub input: Value,
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

    /// What the calls left under their paths.
    #[must_use]
    pub fn state(&self) -> Value {
        let written: Vec<_> =
            self.calls.iter().filter_map(|(call, ended)| kept_value(&call.meta, &ended.outcome)).collect();
        fold(written.iter(), "", None).unwrap_or_else(|| Value::Object(Map::new()))
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

impl Toolwright {
    /// Checks a plan against the catalogue and the policy as they are now. Nothing runs.
    #[must_use]
    pub fn check_plan(&self, plan: &PlanDocument, profile: Option<Profile>, input: &Value) -> PlanCheck {
        let policy = self.config().policy(profile, Profile::Ask);
        self.checked(plan, &self.call_session(), &policy, input)
    }

    fn checked(&self, plan: &PlanDocument, session: &Session, policy: &Policy, input: &Value) -> PlanCheck {
        let values = PlanInput::new(input);
        check_plan(
            plan,
            &PlanContext {
                snapshot: &self.catalogue.snapshot(),
                session,
                policy: Some(policy),
                request: None,
                variables: Some(&values),
                max_cost: None,
            },
        )
    }

    /// Runs a plan, each call as soon as the results are there that it refers to. References are replaced for tools of every
    /// origin.
    ///
    /// # Errors
    /// The check, where it finds anything wrong: then nothing has run.
    pub async fn run_plan(
        self: &Arc<Self>,
        document: &PlanDocument,
        options: PlanOptions,
    ) -> Result<PlanReport, Box<PlanCheck>> {
        let id = format!("plan-{}", uuid::Uuid::new_v4());
        let session = self.session(id.as_str());
        let policy = Arc::new(self.config().policy(options.profile, Profile::Ask));
        let check = self.checked(document, &session, &policy, &options.input);
        if !check.is_valid() {
            return Err(Box::new(check));
        }
        let redactor = Arc::clone(&self.executor.services().redactor);
        let approval = options.approved.then(|| PlanApproval::of(document, &check, &*redactor));
        let run = RunContext {
            cancel: options.cancel,
            variables: Some(Arc::new(PlanInput::new(&options.input))),
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
        Ok(PlanReport { calls })
    }
}

/// What a plan was given; its references are replaced for all tools.
struct PlanInput(Values);

impl PlanInput {
    fn new(input: &Value) -> Self {
        Self(Values(json!({"input": input})))
    }
}

impl Variables for PlanInput {
    fn get(&self, kind: Kind, path: &[&str]) -> Option<Value> {
        self.0.get(kind, path)
    }

    fn serve(&self, _origin: Origin) -> bool {
        true
    }
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
