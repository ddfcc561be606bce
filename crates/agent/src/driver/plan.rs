//! Drives runs that execute plans, and previews the decisions on held calls.

use std::sync::Arc;

use toolwright_core::cancel::Cancel;
use toolwright_core::plan::PlanDocument;
use toolwright_runtime::RunContext;

use super::tool_view::resolve;
use super::{Driver, DriverError, RunOptions};
use crate::report::{HeldCallDecision, RunReport};
use crate::run::{AfterPlan, RunConfig, RunState, Step, TransitionError};

impl Driver {
    /// Creates a run that executes `plan`, whose calls are held: see [`RunState::dispatch`]. Saves nothing.
    #[must_use]
    pub fn of_plan(
        &self,
        config: RunConfig,
        request: String,
        plan: &PlanDocument,
        then: AfterPlan,
        options: &RunOptions,
    ) -> RunState {
        let view = self.view(&config, options);
        let snapshot = Arc::clone(view.snapshot(None, &self.finder));
        RunState::of_plan(config, request, plan, then, &|call| resolve(&snapshot, call))
    }

    /// Continues with a new plan that replaces the failed part of the last one.
    ///
    /// # Errors
    /// As [`RunState::replan`].
    pub fn replan(
        &self,
        state: &mut RunState,
        plan: &PlanDocument,
        options: &RunOptions,
    ) -> Result<(), TransitionError> {
        let view = self.view(state.config(), options);
        let snapshot = Arc::clone(self.snapshot(state, &view));
        state.replan(plan, &|call| resolve(&snapshot, call))
    }

    /// Saves a run that is not being driven, so that it can be loaded later.
    ///
    /// # Errors
    /// [`DriverError::Store`] if it cannot be saved.
    pub async fn keep(&self, state: &RunState, options: &RunOptions) -> Result<(), DriverError> {
        self.save(state, options).await
    }

    /// Adds to held calls the present decision of check and policy.
    pub(super) fn decide_held_calls(&self, report: &mut RunReport, state: &RunState, options: &RunOptions) {
        let Step::AwaitDispatch(calls) = state.step() else { return };
        let view = self.view(state.config(), options);
        let snapshot = Arc::clone(self.snapshot(state, &view));
        let run = RunContext {
            variables: options.variables.clone(),
            cancel: Cancel::new(),
            ..self.run_context(state, &snapshot, options)
        };
        for held in &mut report.held {
            let Some(call) = calls.iter().find(|call| call.id.as_str() == held.id) else { continue };
            held.verdict = Some(match self.executor.verdict(call.clone(), &run) {
                Ok(decision) => {
                    HeldCallDecision { effect: decision.effect.as_str().to_owned(), reason: decision.reason }
                }
                Err(error) => HeldCallDecision { effect: "invalid".into(), reason: error.message().to_owned() },
            });
        }
    }
}
