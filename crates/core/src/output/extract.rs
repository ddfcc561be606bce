//! Extraction from a stored output by a model, as the tool that offers it sees it.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::context::ToolContext;
use crate::tool_id::ToolId;

/// Id of the tool that reads ranges of stored outputs.
pub const READ_ID: &str = "output:read@1.0.0";
/// Id of the tool that searches them.
pub const GREP_ID: &str = "output:grep@1.0.0";
/// Id of the tool that has a model extract from them.
pub const EXTRACT_ID: &str = "output:extract@1.0.0";

/// Whether a tool is one of those for stored outputs, which are of use only once there is one.
#[must_use]
pub fn is_output_tool(id: &ToolId) -> bool {
    [READ_ID, GREP_ID, EXTRACT_ID].contains(&id.as_str())
}

/// How something is extracted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExtractMode {
    /// By the size of the output.
    Auto,
    /// A model reads all of it, part by part, and puts together what it found.
    FullChunked,
    /// A model searches and reads in it on its own.
    ReadGrep,
    /// No model: head and tail.
    Truncate,
}

/// What is to be extracted, from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtractRequest {
    /// The stored output, of the call's session.
    pub handle: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// What is wanted of it, in words.
    pub extract: String,
    /// How; never [`ExtractMode::Truncate`].
    pub mode: ExtractMode,
}

/// Why nothing could be extracted, in words for the model: it gets a shortened text instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExtractError(pub String);

/// Extracts by a model. In [`crate::context::Services::extensions`] as `Arc<dyn Extractor>`.
#[async_trait]
pub trait Extractor: Send + Sync {
    /// What was asked for, as text. Ends well before the call's deadline.
    ///
    /// # Errors
    /// [`ExtractError`]: there is no model, it failed, or a limit was reached.
    async fn extract(&self, request: ExtractRequest, context: &ToolContext) -> Result<String, ExtractError>;

    /// Whether there is a model for a call that no run makes, which would have one.
    fn has_model(&self) -> bool {
        true
    }
}
