//! Requests to a model that a running call makes.

use std::time::Instant;

use toolwright_core::event::Event;
use toolwright_core::model::{IgnoreModelEvents, ModelError, ModelErrorKind, ModelRequest, ModelResponse};
use toolwright_core::operation::Op;

use super::{Executor, ModelAttempt, RunContext};

impl Executor {
    /// Asks `model` as an operation inside a call's own, until the call is cancelled. Told and accounted for
    /// however it ends.
    pub(super) async fn ask_inside(
        &self,
        model: &str,
        request: &ModelRequest,
        run: &RunContext,
    ) -> Result<ModelResponse, ModelError> {
        let services = &self.options.services;
        let op = self.begin(&run.lineage);
        services.events.tell(|| Event::ModelStarted {
            op: op.clone(),
            session: run.session.id.clone(),
            model: model.to_owned(),
            turn: run.lineage.turn,
            shown: request.tools.iter().map(|tool| tool.name.clone()).collect(),
            deferred: 0,
            exposure: None,
        });
        let mut asked = Asked { executor: self, run, model, request, op: Some(op), started: services.clock.now() };
        let answer = tokio::select! {
            biased;
            cause = run.cancel.cancelled() => Err(canceled(cause.describe())),
            answer = services.model.complete(model, request, &IgnoreModelEvents, &run.cancel) => answer,
        };
        asked.end(&answer);
        answer
    }
}

fn canceled(why: &str) -> ModelError {
    ModelError::new(ModelErrorKind::Canceled, format!("cancelled {why}"))
}

/// A request on its way.
struct Asked<'a> {
    executor: &'a Executor,
    run: &'a RunContext,
    model: &'a str,
    request: &'a ModelRequest,
    /// Taken at its end.
    op: Option<Op>,
    started: Instant,
}

impl Asked<'_> {
    fn end(&mut self, answer: &Result<ModelResponse, ModelError>) {
        let Some(op) = self.op.take() else { return };
        let Self { run, model, request, started, .. } = *self;
        let attempt = ModelAttempt { op, session: &run.session, model, request, tools: None, started };
        self.executor.account_model(attempt, answer);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.end(&Err(canceled("because nobody waited for the answer")));
    }
}
