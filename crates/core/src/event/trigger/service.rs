//! Defines the service through which tools install, list and remove the triggers of their session.

use async_trait::async_trait;

use super::{Creator, Target, Trigger, TriggerConfig};
use crate::error::{StoreError, ToolError, Unsupported};
use crate::identity::session::Session;
use crate::policy::Rights;

/// A trigger to install.
#[derive(Debug, Clone)]
pub struct TriggerRequest {
    /// Its id; `None` for a new one.
    pub id: Option<String>,
    /// When it fires, and what it starts.
    pub config: TriggerConfig,
    /// The receiver of its firings.
    pub target: Target,
    /// Its rights.
    pub rights: Rights,
    /// Its creator.
    pub creator: Creator,
}

/// A trigger that was installed.
#[derive(Debug, Clone)]
pub struct InstalledTrigger {
    /// The trigger.
    pub trigger: Trigger,
    /// Its next slots, in milliseconds since the epoch.
    pub next: Vec<u64>,
    /// Whether some process runs triggers now.
    pub is_run: bool,
}

/// The triggers of the store.
#[async_trait]
pub trait Triggers: Send + Sync {
    /// Installs a trigger.
    ///
    /// # Errors
    /// `invalid_parameters` with the remedy, for a trigger that could not fire; `limit_exceeded` when the principal has
    /// [`MAX_TRIGGERS`](super::MAX_TRIGGERS).
    async fn install(&self, request: TriggerRequest) -> Result<InstalledTrigger, ToolError>;

    /// The triggers of this session and its principal, or all.
    async fn list(&self, of: Option<&Session>) -> Result<Vec<Trigger>, StoreError>;

    /// Removes a trigger of this session and its principal, or any. Returns whether there was one.
    async fn remove(&self, id: &str, of: Option<&Session>) -> Result<bool, StoreError>;
}

/// Without triggers.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTriggers;

#[async_trait]
impl Triggers for NoTriggers {
    async fn install(&self, _request: TriggerRequest) -> Result<InstalledTrigger, ToolError> {
        Err(ToolError::from(StoreError::from(Unsupported("triggers"))))
    }

    async fn list(&self, _of: Option<&Session>) -> Result<Vec<Trigger>, StoreError> {
        Ok(Vec::new())
    }

    async fn remove(&self, _id: &str, _of: Option<&Session>) -> Result<bool, StoreError> {
        Ok(false)
    }
}
