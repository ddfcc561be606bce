//! Holds the outcomes of calls, and shapes them: decides how much of a result goes back, and describes the rest. Each
//! cut says what was cut and by whom, and names a handle if the caller can read one.

pub mod outcome;
pub(crate) mod provenance;
mod shorten;
mod stored;

use serde::{Deserialize, Serialize};

use crate::identity::tool_id::ToolId;

pub use crate::content::{countable, countable_text, is_binary, json_bytes, text_bytes};
pub use shorten::{CUT, head_and_tail, html_escaped, truncate};
pub use stored::{
    MAX_RESULT_CHARS, Readers, StoredOutput, add_note, announced_chars, client_max_bytes, cut_message, noted_outputs,
    stored_message, stored_note, without_preview,
};

/// Cap on the text of a result that goes into a conversation of ours, in bytes.
pub const DEFAULT_MAX_BYTES: usize = 12_288;
/// The extra of an outcome that says what was cut out of it: `{bytes, reason}`, and `handle` and more where it is kept
/// ([`add_note`]).
pub const TOOL_OUTPUT: &str = "tool_output";
/// The extra of an outcome of which something was cut and not kept: the bytes that there were.
pub const CUT_BYTES: &str = "cut_bytes";
/// Cap on what goes on whole or not at all, in bytes of JSON: the structured result of a tool with an output schema,
/// and what a protocol's method gives. As much as one message of a server may have.
pub const DEFAULT_MAX_WHOLE: usize = 16 * 1024 * 1024;

/// Whom results are for, as far as the cap on their text depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultsFor {
    /// A conversation of ours, which may have to keep many of them.
    #[default]
    Conversation,
    /// A client of the gateway, which limits its own context.
    Client,
}

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
