//! Scores tools for a task by asking a model.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use toolwright_core::{Cancel, Entry, Lineage, Session};
use toolwright_search::{Score, Scorer, ScorerError, Scores, judge};

use crate::Executor;

/// A model that judges how well tools fit, all of them in one request. It takes [`judge::MAX_JUDGED`] tools at
/// most; about more it is asked in the second pass of a cascade.
pub struct ModelJudge {
    executor: Arc<Executor>,
    session: Arc<Session>,
    model: String,
    name: String,
}

impl ModelJudge {
    /// Asks `model`, `provider/model`, by the client of `executor`, and enters each request in its ledger as one of
    /// `session`, those that nobody waited for too.
    pub fn new(executor: Arc<Executor>, session: Arc<Session>, model: impl Into<String>) -> Self {
        let model = model.into();
        Self { executor, session, name: format!("judge {model}"), model }
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
        let (lineage, request) = (Lineage::named(self.session.id.as_str()), judge::request(query, tools));
        // Whoever drops the future ends the request; there is nobody else to cancel it.
        let cancel = Cancel::new();
        let asked = self.executor.ask_as(&lineage, &self.session, &self.model, &request, None, &cancel);
        let answer = asked.await.map_err(|error| ScorerError(error.message))?;
        let values = judge::read(&answer, tools.len()).map_err(ScorerError)?;
        let score = |value: f32| Score {
            reason: Some(format!("{} finds it fit by {value:.2}", self.model)),
            ..Score::from(value)
        };
        Ok(Scores { scores: values.into_iter().map(score).collect(), usage: answer.usage })
    }
}
