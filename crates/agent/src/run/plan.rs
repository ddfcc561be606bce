//! Runs a plan as a turn: its calls are held until somebody releases them, and then run together.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolwright_core::canonical::ContentHash;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::{Message, Usage};
use toolwright_core::outcome::Outcome;
use toolwright_core::plan::{PlanApproval, PlanDocument, call_id, call_index};
use toolwright_core::session::CallId;

use super::turn_call::{CallStatus, Resolve, TurnCall};
use super::{Phase, RunConfig, RunState, TransitionError};
use crate::report::{ReportedCall, Status};

/// What comes after the calls of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterPlan {
    /// The run is over.
    End,
    /// The model sees the results, and goes on.
    Answer,
}

/// The plan that a run executes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunPlan {
    /// The plan as it is written: an array of calls. Those that plans in its place have added follow its own.
    pub document: Value,
    /// What a person approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approval: Option<PlanApproval>,
    /// What comes after its calls.
    pub then: AfterPlan,
    /// Where the calls of the latest plan begin.
    #[serde(default)]
    first: usize,
}

impl RunPlan {
    /// What a person approved of the plan, if it is the one that was shown.
    #[must_use]
    pub fn approval(&self) -> Option<&PlanApproval> {
        self.approval.as_ref().filter(|approval| approval.digest == ContentHash::of_value(&self.document))
    }
}

impl RunState {
    /// A run that executes a plan. Its calls are held: [`RunState::dispatch`] lets them run. The user's `request` stands
    /// before them.
    #[must_use]
    pub fn of_plan(
        spec: RunConfig,
        request: String,
        plan: &PlanDocument,
        then: AfterPlan,
        resolve: Resolve<'_>,
    ) -> Self {
        let mut state = Self::new(spec, vec![Message::user(request)]);
        state.plan = Some(Box::new(RunPlan { document: Value::Array(Vec::new()), approval: None, then, first: 0 }));
        state.hold(plan, resolve);
        state
    }

    /// The plan that the run executes; `None` once its model has gone on from it.
    #[must_use]
    pub fn plan(&self) -> Option<&RunPlan> {
        self.plan.as_deref()
    }

    /// Whether all of its calls wait for leave to run.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(&self.phase, Phase::Calls { calls } if calls.iter().all(TurnCall::is_held))
    }

    /// Whether the run is over with the calls of its plan.
    #[must_use]
    pub fn ends_with_plan(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.then == AfterPlan::End)
    }

    /// A person approved the plan as it was shown.
    pub fn approve_plan(&mut self, approval: PlanApproval) {
        if let Some(plan) = &mut self.plan {
            plan.approval = Some(approval);
        }
    }

    /// A person did not approve the plan: none of its calls runs, and the run is over.
    pub fn refuse_plan(&mut self) {
        let Phase::Calls { calls } = &mut self.phase else { return };
        for call in calls.iter_mut().filter(|call| !call.is_answered()) {
            let error = ToolError::new(ErrorKind::Denied, "the plan was not approved");
            call.end(Outcome::failed(call.id.clone(), error));
        }
        self.stop(Status::Failure, "the plan was not approved; nothing ran".into());
    }

    /// What a model used to write the plan.
    pub fn on_planned(&mut self, usage: Usage) {
        self.task.usage.add(usage);
        self.task.turns += 1;
    }

    /// Goes on with a plan in place of what failed. It is another plan than the one that was approved. Its calls are held.
    ///
    /// # Errors
    /// [`TransitionError`] unless the run is over and ended with a plan.
    pub fn replan(&mut self, plan: &PlanDocument, resolve: Resolve<'_>) -> Result<(), TransitionError> {
        if !self.is_over() || !self.ends_with_plan() {
            return Err(self.illegal("plan_anew"));
        }
        self.hold(plan, resolve);
        Ok(())
    }

    /// Puts the calls of a plan into the conversation, as calls that wait.
    fn hold(&mut self, plan: &PlanDocument, resolve: Resolve<'_>) {
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

    /// Ends a run that executes a plan alone: a success if every call was one.
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

    /// Lets those held calls run that `which` selects. Returns whether there were any.
    pub fn dispatch_only(&mut self, which: impl Fn(&str) -> bool) -> bool {
        let Phase::Calls { calls } = &mut self.phase else { return false };
        let mut held = calls.iter_mut().filter(|call| call.is_held() && which(call.id.as_str())).peekable();
        let any = held.peek().is_some();
        held.for_each(|call| call.status = CallStatus::Ready);
        calls.iter_mut().for_each(TurnCall::unblock);
        any
    }

    /// The outcome of a call of an ended plan as the run knows it: without its result.
    #[must_use]
    pub fn failure_of(&self, id: &str) -> Option<Outcome> {
        let record = self.task.calls.iter().find(|call| call.id == id)?;
        let error = record.error.as_ref()?;
        let error = ToolError::new(error.kind, error.message.clone());
        Some(Outcome { ran_with: record.ran_with.clone(), ..Outcome::failed(CallId::new(id), error) })
    }
}
