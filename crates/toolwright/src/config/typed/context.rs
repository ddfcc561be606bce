//! `context`: room in long conversations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `context`. How `run` and `chat` make room in a conversation that comes near its model's window
/// (`models.<name>.window`): old results give way to handles, then the oldest turns to a summary and facts, then the next
/// turn is the last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContextSection {
    /// Whether a model may put the oldest turns together, by `llm:summarize` and `llm:fact-extract`.
    pub summarize: bool,
    /// That model, `provider/model`. Default: the model of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What making room once leaves, as a part of what a request may have. The less, the rarer the provider's prompt cache
    /// is lost.
    #[schemars(range(min = 0.2, max = 0.8))]
    pub target: f64,
}

impl Default for ContextSection {
    fn default() -> Self {
        Self { summarize: true, model: None, target: 0.5 }
    }
}
