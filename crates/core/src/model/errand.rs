//! What is asked of a model's API that is no conversation, like the vectors of texts: it goes the way of all requests
//! to models.

use async_trait::async_trait;

use super::{ModelError, ModelEvents, ModelPriority, Usage};

/// A request that knows how it is sent. What it is answered it keeps for whoever made it.
#[async_trait]
pub trait Errand: Send + Sync {
    /// Sends it once, and tells what becomes of it on its way. May be called again after an error.
    ///
    /// # Errors
    /// [`ModelError`].
    async fn send(&self, events: &dyn ModelEvents) -> Result<Usage, ModelError>;

    /// The characters that are sent of texts, for the account.
    fn characters(&self) -> u64;
}

/// Lets errands out: in the queue of their model, again where that may help, and entered in the account.
#[async_trait]
pub trait Carrier: Send + Sync {
    /// Has an errand to `model` (`provider/model`) sent.
    ///
    /// # Errors
    /// [`ModelError`] of its last attempt, or of the queue.
    async fn carry(&self, model: &str, errand: &dyn Errand, priority: ModelPriority) -> Result<Usage, ModelError>;
}
