//! Scores tools for a task with a model.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use toolwright_core::context::NestedCalls;
use toolwright_core::{Cancel, Entry, Lineage, Session};
use toolwright_search::{Score, Scorer, ScorerError, judge};

use crate::Executor;

/// A model that scores how well tools fit a task, all in one request of at most [`judge::MAX_JUDGED`] tools. Larger
/// sets use it as the second pass of a cascade.
pub struct ModelJudge {
    executor: Arc<Executor>,
    session: Arc<Session>,
    model: String,
    name: String,
}

impl ModelJudge {
    /// Creates a judge that asks `model` (`provider/model`). Each request is recorded in the ledger, also if it is
    /// abandoned: as part of the run or call that it serves, or else as a request of `session`, through the client of
    /// `executor`.
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
        calls: Option<&dyn NestedCalls>,
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
                // Dropping the future ends the request, so no other cancel is needed.
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
