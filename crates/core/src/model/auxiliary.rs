//! Requests to a model's API that are no conversation, like the embeddings of texts. They go the same way as all
//! requests to models.

use async_trait::async_trait;

use super::{ModelError, ModelEvents, ModelPriority, Usage};

/// A request that knows how it is sent, and keeps its answer for whoever made it.
#[async_trait]
pub trait AuxiliaryRequest: Send + Sync {
    /// Sends the request once and reports what it used. May be called again after an error.
    ///
    /// # Errors
    /// [`ModelError`].
    async fn send(&self, events: &dyn ModelEvents) -> Result<Usage, ModelError>;

    /// The characters of the texts that are sent, for the ledger.
    fn characters(&self) -> u64;
}

/// Sends auxiliary requests: through the queue of their model, retried where that may help, recorded in the ledger.
#[async_trait]
pub trait AuxiliarySender: Send + Sync {
    /// Sends `request` to `model` (`provider/model`).
    ///
    /// # Errors
    /// [`ModelError`] of its last attempt, or of the queue.
    async fn send(
        &self,
        model: &str,
        request: &dyn AuxiliaryRequest,
        priority: ModelPriority,
    ) -> Result<Usage, ModelError>;
}
