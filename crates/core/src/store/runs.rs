//! Saved runs.

use async_trait::async_trait;
use serde_json::Value;

use super::StoreError;
use crate::error::Unsupported;
use crate::outcome::Outcome;
use crate::session::CallId;

/// A saved run: its state machine, and what is known of the calls in flight.
#[derive(Debug, Clone, Default)]
pub struct SavedRun {
    /// The state machine as JSON.
    pub state: Value,
    /// Calls that were dispatched after that state was saved, with their outcome once finished.
    pub calls: Vec<(CallId, Option<Outcome>)>,
}

/// The answer to [`RunStore::claim`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// This process may drive the run.
    Held,
    /// A living process drives it; who, in words.
    TakenBy(String),
}

/// Runs that can be resumed. Every method commits before it returns.
#[async_trait]
pub trait RunStore: Send + Sync {
    /// Claims the right to drive a run, which need not exist yet. A claim of this very process or of a
    /// dead one is taken over; drivers inside one process are not kept apart.
    async fn claim(&self, _run: &str) -> Result<Claim, StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Gives this process's claim back.
    async fn release(&self, _run: &str) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Saves the state between two steps and forgets the calls of the step before.
    async fn save_run(&self, _run: &str, _state: &Value) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Saves the state amid a step, and keeps what is known of its calls.
    async fn save_amid(&self, _run: &str, _state: &Value) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// A run, if it exists.
    async fn run(&self, _run: &str) -> Result<Option<SavedRun>, StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Notes that a call is about to be dispatched.
    async fn call_dispatched(&self, _run: &str, _call: &CallId) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
    /// Notes its outcome.
    async fn call_finished(&self, _run: &str, _outcome: &Outcome) -> Result<(), StoreError> {
        Err(Unsupported("the run store").into())
    }
}
