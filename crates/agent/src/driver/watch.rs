//! Reports what a run says and calls, as it happens, to whoever waits for it.

use toolwright_core::call::ToolCall;
use toolwright_core::model::{ModelError, ModelResponse};
use toolwright_core::outcome::Outcome;

/// Hears what a run says and calls, in order. Must not block. Secrets are redacted in text.
pub trait RunWatcher: Send + Sync {
    /// A piece of the model's text.
    fn text(&self, piece: &str);

    /// A piece of its reasoning.
    fn reasoning(&self, _piece: &str) {}

    /// A model answered, or failed to: the pieces of its text have come.
    fn answered(&self, _answer: Result<&ModelResponse, &ModelError>) {}

    /// A call is about to run.
    fn began(&self, _call: &ToolCall) {}

    /// It has ended, or waits for a person.
    fn ended(&self, _outcome: &Outcome) {}
}
