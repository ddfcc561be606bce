//! Requests to a model that a call makes, or that are made about one.

use std::time::{Duration, Instant};

use toolwright_core::model::{IgnoreModelEvents, ModelError, ModelErrorKind, ModelRequest, ModelResponse};
use toolwright_core::operation::Op;

use super::{Executor, ModelAttempt, RunContext};

impl Executor {
    /// Asks `model` as an operation in the lineage of `run`, until that is cancelled or for at most `limit`. Told and
    /// accounted for however it ends.
    ///
    /// # Errors
    /// [`ModelError`] of the model client; `Canceled` and `Unavailable` for the two ends.
    pub async fn ask_model(
        &self,
        model: &str,
        request: &ModelRequest,
        limit: Option<Duration>,
        run: &RunContext,
    ) -> Result<ModelResponse, ModelError> {
        let services = &self.options.services;
        let op = self.begin_model(&run.lineage, &run.session, model, request);
        let mut asked = Asked { executor: self, run, model, request, op: Some(op), started: services.clock.now() };
        let answer = tokio::select! {
            biased;
            cause = run.cancel.cancelled() => Err(canceled(cause.describe())),
            answer = services.model.complete(model, request, &IgnoreModelEvents, &run.cancel) => answer,
            limit = passed(limit) => Err(late(limit)),
        };
        asked.end(&answer);
        answer
    }
}

/// Waits until `limit` is over; for ever where there is none.
async fn passed(limit: Option<Duration>) -> Duration {
    let Some(limit) = limit else { return std::future::pending().await };
    tokio::time::sleep(limit).await;
    limit
}

fn late(limit: Duration) -> ModelError {
    let limit = toolwright_core::duration::format(limit);
    ModelError::new(ModelErrorKind::Unavailable, format!("the model did not answer within {limit}"))
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
