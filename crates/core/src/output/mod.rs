//! Outcomes of calls and their shaping: how much of a result is returned, and a description of the rest. Each
//! cut says how much was cut and by whom, and names a handle if the caller can read one.

pub mod outcome;
pub(crate) mod provenance;
mod shorten;
mod stored;

use serde::{Deserialize, Serialize};

use crate::identity::tool_id::ToolId;

pub use crate::content::{countable, countable_text, is_binary, json_bytes, text_bytes};
pub use shorten::{CUT, head_and_tail, html_escaped, truncate};
pub use stored::{
    MAX_RESULT_CHARS, OutputReaders, StoredOutput, add_note, announced_chars, client_max_bytes, cut_message,
    outputs_of_note, stored_message, stored_note, without_preview,
};

/// Cap on the text of a result in our own conversations, in bytes.
pub const DEFAULT_MAX_BYTES: usize = 12_288;
/// Key in an outcome's extras that describes a cut: `{bytes, reason}`, plus `handle` and more if it is stored
/// ([`add_note`]).
pub const TOOL_OUTPUT: &str = "tool_output";
/// Key in an outcome's extras for output that was cut and not stored: its size in bytes.
pub const CUT_BYTES: &str = "cut_bytes";
/// Cap on results that are passed whole or not at all, in bytes of JSON: structured results of tools with an output
/// schema, and results of protocol methods. Equal to the bound on a server's message.
pub const DEFAULT_MAX_WHOLE: usize = 16 * 1024 * 1024;

/// The receiver of results, as far as the cap on their text depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultAudience {
    /// One of our conversations, which may keep many results.
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

/// Whether a tool reads stored outputs, so that it is useful only if there are any.
#[must_use]
pub fn is_output_tool(id: &ToolId) -> bool {
    [READ_ID, GREP_ID, EXTRACT_ID].contains(&id.as_str())
}

/// The method of extraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExtractMode {
    /// Chosen by the size of the output.
    Auto,
    /// A model reads the whole output in parts and combines its findings.
    FullChunked,
    /// A model searches and reads in it by itself.
    ReadGrep,
    /// Head and tail, without a model.
    Truncate,
}

/// A request to extract information from an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtractRequest {
    /// The stored output, of the call's session.
    pub handle: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The wanted information, in words.
    pub extract: String,
    /// The method; never [`ExtractMode::Truncate`].
    pub mode: ExtractMode,
}

/// Why extraction failed, in words for the model, which gets a shortened text instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExtractError(pub String);
