//! Scores tools for a task by asking a model.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use toolwright_core::context::InnerCalls;
use toolwright_core::{Cancel, Entry, Lineage, Session};
use toolwright_search::{Score, Scorer, ScorerError, judge};

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
    /// Asks `model`, `provider/model`, and enters each request in the ledger, those that nobody waited for too: as a part of
    /// the run or call that it is made for, or else, by the client of `executor`, as one of `session`.
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

    async fn score(
        &self,
        query: &str,
        tools: &[&Entry],
        calls: Option<&dyn InnerCalls>,
    ) -> Result<Vec<Score>, ScorerError> {
        if tools.len() > judge::MAX_JUDGED {
            let (most, count) = (judge::MAX_JUDGED, tools.len());
            return Err(ScorerError(format!("a model judges {most} tools at most, not {count}: put it in a cascade")));
        }
        let request = judge::request(query, tools);
        let answer = match calls {
            Some(calls) => calls.ask(&self.model, &request).await,
            None => {
                let lineage = Lineage::named(self.session.id.as_str());
                // Whoever drops the future ends the request; there is nobody else to cancel it.
                let cancel = Cancel::new();
                self.executor.ask_as(&lineage, &self.session, &self.model, &request, None, &cancel).await
            }
        };
        let answer = answer.map_err(|error| ScorerError(error.message))?;
        let values = judge::read(&answer, tools.len()).map_err(ScorerError)?;
        let score = |value: f32| Score {
            reason: Some(format!("{} finds it fit by {value:.2}", self.model)),
            ..Score::from(value)
        };
        Ok(values.into_iter().map(score).collect())
    }
}
