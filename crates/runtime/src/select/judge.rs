//! A model as a scorer.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use toolwright_core::model::{IgnoreModelEvents, ModelClient};
use toolwright_core::select::{Score, Scorer, ScorerError, Scores, judge};
use toolwright_core::{Cancel, Entry};

/// A model that judges how well tools fit, all of them in one request; tools beyond [`judge::MAX_JUDGED`] are
/// not shown to it and score 0.
pub struct ModelJudge {
    client: Arc<dyn ModelClient>,
    model: String,
    name: String,
}

impl ModelJudge {
    /// Asks `model`, `provider/model`, through `client`.
    pub fn new(client: Arc<dyn ModelClient>, model: impl Into<String>) -> Self {
        let model = model.into();
        Self { client, name: format!("judge {model}"), model }
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
        let request = judge::request(query, tools);
        // Whoever drops the future ends the request; there is nobody else to cancel it.
        let answer = self.client.complete(&self.model, &request, &IgnoreModelEvents, &Cancel::new()).await;
        let answer = answer.map_err(|error| ScorerError(error.message))?;
        let mut values = judge::read(&answer, tools.len().min(judge::MAX_JUDGED)).map_err(ScorerError)?;
        values.resize(tools.len(), 0.0);
        let score = |value: f32| Score {
            reason: Some(format!("{} finds it fit by {value:.2}", self.model)),
            ..Score::from(value)
        };
        Ok(Scores { scores: values.into_iter().map(score).collect(), usage: answer.usage })
    }
}
