//! Reports a run's texts and calls as they happen.

use toolwright_core::call::ToolCall;
use toolwright_core::model::{ModelError, ModelResponse};
use toolwright_core::outcome::Outcome;

/// Receives a run's texts and calls, in order. Must not block. Secrets in text are redacted.
pub trait RunWatcher: Send + Sync {
    /// Called with a piece of the model's text.
    fn text(&self, piece: &str);

    /// Called with a piece of its reasoning.
    fn reasoning(&self, _piece: &str) {}

    /// Called when a model has answered or failed, after the pieces of its text.
    fn answered(&self, _answer: Result<&ModelResponse, &ModelError>) {}

    /// Called before a call runs.
    fn began(&self, _call: &ToolCall) {}

    /// Called when a call has ended, or waits for a person.
    fn ended(&self, _outcome: &Outcome) {}
}
