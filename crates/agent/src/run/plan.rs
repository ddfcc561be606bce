//! Runs a plan as a turn: its calls are held until they are released, and then run together.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolwright_core::canonical::ContentHash;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::{Message, Usage};
use toolwright_core::outcome::Outcome;
use toolwright_core::plan::{PlanApproval, PlanDocument, call_id, call_index};
use toolwright_core::session::CallId;

use super::turn_call::{CallStatus, ResolveTool, TurnCall};
use super::{Phase, RunConfig, RunState, TransitionError};
use crate::report::{ReportedCall, Status};

/// The step after the calls of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterPlan {
    /// The run is over.
    End,
    /// The model sees the results and continues.
    Answer,
}

/// The plan that a run executes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunPlan {
    /// The plan as a document: an array of calls. Calls of replacement plans follow its own.
    pub document: Value,
    /// A person's approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approval: Option<PlanApproval>,
    /// The step after its calls.
    pub then: AfterPlan,
    /// The position of the latest plan's first call.
    #[serde(default)]
    first: usize,
}

impl RunPlan {
    /// Returns a person's approval of the plan, if it applies to the plan that was shown.
    #[must_use]
    pub fn approval(&self) -> Option<&PlanApproval> {
        self.approval.as_ref().filter(|approval| approval.digest == ContentHash::of_value(&self.document))
    }
}

impl RunState {
    /// Creates a run that executes a plan. Its calls are held until [`RunState::dispatch`]. The user's `request` comes
    /// first.
    #[must_use]
    pub fn of_plan(
        config: RunConfig,
        request: String,
        plan: &PlanDocument,
        then: AfterPlan,
        resolve: ResolveTool<'_>,
    ) -> Self {
        let mut state = Self::new(config, vec![Message::user(request)]);
        state.plan = Some(Box::new(RunPlan { document: Value::Array(Vec::new()), approval: None, then, first: 0 }));
        state.hold(plan, resolve);
        state
    }

    /// Returns the plan that the run executes; `None` once its model has continued from it.
    #[must_use]
    pub fn plan(&self) -> Option<&RunPlan> {
        self.plan.as_deref()
    }

    /// Returns whether all of its calls wait for permission to run.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(&self.phase, Phase::Calls { calls } if calls.iter().all(TurnCall::is_held))
    }

    /// Returns whether the run ends with the calls of its plan.
    #[must_use]
    pub fn ends_with_plan(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.then == AfterPlan::End)
    }

    /// Records that a person approved the plan as shown.
    pub fn approve_plan(&mut self, approval: PlanApproval) {
        if let Some(plan) = &mut self.plan {
            plan.approval = Some(approval);
        }
    }

    /// Records that a person did not approve the plan: none of its calls runs, and the run ends.
    pub fn refuse_plan(&mut self) {
        let Phase::Calls { calls } = &mut self.phase else { return };
        for call in calls.iter_mut().filter(|call| !call.is_answered()) {
            let error = ToolError::new(ErrorKind::Denied, "the plan was not approved");
            call.end(Outcome::failed(call.id.clone(), error));
        }
        self.stop(Status::Failure, "the plan was not approved; nothing ran".into());
    }

    /// Adds the usage of writing the plan.
    pub fn on_planned(&mut self, usage: Usage) {
        self.task.usage.add(usage);
        self.task.turns += 1;
    }

    /// Continues with a new plan for the failed part, which the earlier approval does not cover. Its calls are held.
    ///
    /// # Errors
    /// [`TransitionError`] unless the run is over and ended with a plan.
    pub fn replan(&mut self, plan: &PlanDocument, resolve: ResolveTool<'_>) -> Result<(), TransitionError> {
        if !self.is_over() || !self.ends_with_plan() {
            return Err(self.illegal("plan_anew"));
        }
        self.hold(plan, resolve);
        Ok(())
    }

    /// Adds the calls of a plan to the conversation, held.
    fn hold(&mut self, plan: &PlanDocument, resolve: ResolveTool<'_>) {
        let Some(RunPlan { document: Value::Array(written), first: latest, .. }) = self.plan.as_deref_mut() else {
            return;
        };
        let first = written.len();
        *latest = first;
        written.extend(plan.calls.iter().map(|call| call.to_value()));
        let calls = plan.tool_calls().into_iter().enumerate();
        let calls = calls.map(|(index, call)| TurnCall::planned(call_id(first + index), call, resolve)).collect();
        self.begin_calls(calls, String::new(), Vec::new());
    }

    /// Ends a run that executes a plan without a model: a success if every call succeeded.
    pub(super) fn finish_plan(&mut self) {
        let first = self.plan.as_ref().map_or(0, |plan| plan.first);
        let is_latest = |call: &&ReportedCall| call_index(&call.id).is_some_and(|index| index >= first);
        let all = self.task.calls.iter().filter(is_latest).count();
        let failed = self.task.calls.iter().filter(is_latest).filter(|call| !call.ok).count();
        let status = match failed {
            0 => Status::Success,
            failed if failed == all => Status::Failure,
            _ => Status::Partial,
        };
        self.task.last_text = format!("{} of {all} calls succeeded.", all - failed);
        let reason = (failed > 0).then(|| format!("{failed} of {all} calls failed"));
        self.finish(status, reason);
    }

    /// Lets the held calls run that `which` selects. Returns whether there were any.
    pub fn dispatch_only(&mut self, which: impl Fn(&str) -> bool) -> bool {
        let Phase::Calls { calls } = &mut self.phase else { return false };
        let mut held = calls.iter_mut().filter(|call| call.is_held() && which(call.id.as_str())).peekable();
        let any = held.peek().is_some();
        held.for_each(|call| call.status = CallStatus::Ready);
        calls.iter_mut().for_each(TurnCall::unblock);
        any
    }

    /// Returns the outcome of a call of an ended plan without its result, which the run does not keep.
    #[must_use]
    pub fn failure_of(&self, id: &str) -> Option<Outcome> {
        let record = self.task.calls.iter().find(|call| call.id == id)?;
        let error = record.error.as_ref()?;
        let error = ToolError::new(error.kind, error.message.clone());
        Some(Outcome { ran_with: record.ran_with.clone(), ..Outcome::failed(CallId::new(id), error) })
    }
}
