//! What outlives a call: outputs, the ledger, pins, manifests, approvals, runs. The traits are
//! here, the embedded store in `toolwright-runtime`. A method without an implementation answers
//! `unsupported`.

mod ledger;
mod outputs;
mod pins;
mod runs;

use async_trait::async_trait;
use serde_json::Value;

use crate::approval::{InboxStore, Standing};
use crate::error::Unsupported;
use crate::json::canonical::ContentHash;
use crate::tool_id::ToolId;

pub use self::ledger::{
    Appended, LedgerCondition, LedgerEntry, LedgerMode, LedgerStore, LedgerTotals, RUNNING, TraceSummary, TraceSums,
    UNKNOWN_OUTCOME,
};
pub use self::outputs::{LineRange, OpenOutput, OutputSlice, OutputStore, OutputWriter, ReadSeek, StoredOutput};
pub use self::pins::{PinContracts, PinDecision, PinNote, PinStore};
pub use self::runs::{Claim, RunStore, SavedRun};
pub use crate::error::StoreError;

/// What the keys of manifests begin with that are more than a cache: which version of a signed catalogue was accepted
/// last keeps older ones out, for as long as it is known. They are kept until they are removed, and no age ends them.
pub const LASTING_MANIFESTS: &str = "catalogue:";

/// Tool lists of servers, kept so that a cold start lists tools at once. Those that nobody has read or replaced for long may
/// be forgotten, but for those under [`LASTING_MANIFESTS`].
#[async_trait]
pub trait ManifestCache: Send + Sync {
    /// The cached list for a server's configuration key.
    async fn manifest(&self, _key: &str) -> Result<Option<Value>, StoreError> {
        Err(Unsupported("the manifest cache").into())
    }
    /// Replaces it.
    async fn set_manifest(&self, _key: &str, _manifest: &Value) -> Result<(), StoreError> {
        Err(Unsupported("the manifest cache").into())
    }
    /// Forgets it; returns whether there was one.
    async fn remove_manifest(&self, _key: &str) -> Result<bool, StoreError> {
        Err(Unsupported("the manifest cache").into())
    }
}

/// Standing approvals, bound to a definition's hash.
#[async_trait]
pub trait ApprovalStore: Send + Sync {
    /// Whether `always` was said in this scope for what the key stands for.
    async fn is_approved(&self, _scope: &str, _tool: &ToolId, _key: ContentHash) -> Result<bool, StoreError> {
        Err(Unsupported("the approval store").into())
    }
    /// Remembers `always`. Said again, it keeps its first id.
    async fn approve_always(&self, _standing: &Standing) -> Result<(), StoreError> {
        Err(Unsupported("the approval store").into())
    }
    /// Those that hold, newest first, at most `limit`.
    async fn standing(&self, _limit: usize) -> Result<Vec<Standing>, StoreError> {
        Err(Unsupported("the approval store").into())
    }
    /// Takes one back; whether there was one with this id.
    async fn revoke(&self, _id: &str) -> Result<bool, StoreError> {
        Err(Unsupported("the approval store").into())
    }
}

/// A store that has none of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStore;

impl OutputStore for NoStore {}
impl LedgerStore for NoStore {}
impl PinStore for NoStore {}
impl ManifestCache for NoStore {}
impl ApprovalStore for NoStore {}
impl InboxStore for NoStore {}
impl RunStore for NoStore {}
