//! What is kept of others' definitions.

use async_trait::async_trait;
use serde_json::Value;

use super::StoreError;
use crate::error::Unsupported;
use crate::json::canonical::ContentHash;
use crate::pins::{Note, Pin, PinSource};
use crate::tool_id::ToolId;

/// What is to be noted of one foreign definition.
#[derive(Debug, Clone, PartialEq)]
pub struct PinNote {
    /// The name at its source; where it takes the place of a pinned tool, that one's.
    pub tool: String,
    /// The name at its source, where it takes the place of a pinned tool.
    pub renamed: Option<String>,
    /// Its id.
    pub id: ToolId,
    /// What is noted: anything but [`Note::Nothing`], which notes nothing.
    pub note: Note,
    /// Hash of its contract as its source gave it.
    pub hash: ContentHash,
    /// That contract.
    pub contract: Value,
}

/// The definitions behind a pin.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PinContracts {
    /// What is approved.
    pub approved: Option<Value>,
    /// What waits for approval.
    pub waiting: Option<Value>,
}

/// What somebody decides about a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinDecision {
    /// What waits is approved; only this one, where a hash is given. What has another name is pinned under that.
    Approve(Option<ContentHash>),
    /// Nothing of it is approved any more: it waits.
    Revoke,
    /// It is as if it had never been seen.
    Forget,
}

/// Foreign definitions, pinned (see [`crate::pins`]).
#[async_trait]
pub trait PinStore: Send + Sync {
    /// The pins of a source, or of all, by provider, scope and tool.
    async fn pins(&self, _source: Option<&PinSource>) -> Result<Vec<Pin>, StoreError> {
        Err(Unsupported("the pin store").into())
    }
    /// The definitions of some tools of a source, in their order; empty where there is none.
    async fn pin_contracts(&self, _source: &PinSource, _tools: &[String]) -> Result<Vec<PinContracts>, StoreError> {
        Err(Unsupported("the pin store").into())
    }
    /// Notes what was seen of a source, all of it or nothing. A tool that another process has pinned meanwhile keeps
    /// that pin.
    async fn note_pins(&self, _source: &PinSource, _notes: Vec<PinNote>) -> Result<(), StoreError> {
        Err(Unsupported("the pin store").into())
    }
    /// Decides about a pin in somebody's name, for this source alone; whether there was what was decided about.
    async fn decide_pin(
        &self,
        _source: &PinSource,
        _tool: &str,
        _decision: PinDecision,
        _by: &str,
    ) -> Result<bool, StoreError> {
        Err(Unsupported("the pin store").into())
    }
    /// A number that is another after each decision, of any process.
    async fn pin_decisions(&self) -> Result<u64, StoreError> {
        Err(Unsupported("the pin store").into())
    }
}
