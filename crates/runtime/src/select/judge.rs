//! A model as a scorer.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use toolwright_core::model::{IgnoreModelEvents, ModelClient, ModelError, ModelErrorKind, ModelRequest, ModelResponse};
use toolwright_core::operation::Op;
use toolwright_core::select::{Score, Scorer, ScorerError, Scores, judge};
use toolwright_core::{Cancel, Entry, Lineage, Session};

use crate::Executor;
use crate::executor::ModelAttempt;

/// A model that judges how well tools fit, all of them in one request. It takes [`judge::MAX_JUDGED`] tools at
/// most; about more it is asked in the second pass of a cascade.
pub struct ModelJudge {
    client: Arc<dyn ModelClient>,
    model: String,
    name: String,
    account: Option<(Arc<Executor>, Arc<Session>)>,
}

impl ModelJudge {
    /// Asks `model`, `provider/model`, through `client`.
    pub fn new(client: Arc<dyn ModelClient>, model: impl Into<String>) -> Self {
        let model = model.into();
        Self { client, name: format!("judge {model}"), model, account: None }
    }

    /// Enters each request in the account of `executor`, as one of `session`, those that nobody waited for too.
    #[must_use]
    pub fn accounted(self, executor: Arc<Executor>, session: Arc<Session>) -> Self {
        Self { account: Some((executor, session)), ..self }
    }

    async fn ask(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let Some((executor, session)) = &self.account else {
            return self.client.complete(&self.model, request, &IgnoreModelEvents, &Cancel::new()).await;
        };
        let lineage = Lineage::named(session.id.as_str());
        let op = Some(executor.begin_model(&lineage, session, &self.model, request));
        let started = executor.services().clock.now();
        let mut attempt = Attempt { executor, session, model: &self.model, request, started, op };
        // Whoever drops the future ends the request; there is nobody else to cancel it.
        let answer = self.client.complete(&self.model, request, &IgnoreModelEvents, &Cancel::new()).await;
        attempt.end(&answer);
        answer
    }
}

/// A request on its way, which is accounted for however it ends.
struct Attempt<'a> {
    executor: &'a Executor,
    session: &'a Session,
    model: &'a str,
    request: &'a ModelRequest,
    started: Instant,
    /// Taken at its end.
    op: Option<Op>,
}

impl Attempt<'_> {
    fn end(&mut self, answer: &Result<ModelResponse, ModelError>) {
        let Some(op) = self.op.take() else { return };
        let Self { session, model, request, started, .. } = *self;
        self.executor.account_model(ModelAttempt { op, session, model, request, tools: None, started }, answer);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.end(&Err(ModelError::new(ModelErrorKind::Canceled, "nobody waited for the answer")));
    }
}

impl fmt::Debug for ModelJudge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelJudge({})", self.model)
    }
}

#[async_trait]
impl Scorer for ModelJudge {
    fn name(&self) -> &str {
        &self.name
    }

    async fn score(&self, query: &str, tools: &[&Entry]) -> Result<Scores, ScorerError> {
        if tools.len() > judge::MAX_JUDGED {
            let (most, count) = (judge::MAX_JUDGED, tools.len());
            return Err(ScorerError(format!("a model judges {most} tools at most, not {count}: put it in a cascade")));
        }
        let answer = self.ask(&judge::request(query, tools)).await.map_err(|error| ScorerError(error.message))?;
        let values = judge::read(&answer, tools.len()).map_err(ScorerError)?;
        let score = |value: f32| Score {
            reason: Some(format!("{} finds it fit by {value:.2}", self.model)),
            ..Score::from(value)
        };
        Ok(Scores { scores: values.into_iter().map(score).collect(), usage: answer.usage })
    }
}
