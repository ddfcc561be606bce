//! What calls come to, and shaping: how much of a result goes back, and what is said about the rest. Whatever is cut says who
//! cut how much, and names a handle where there is one that the caller can read.

mod extract;
pub mod outcome;
pub(crate) mod provenance;
mod shorten;
mod stored;

use serde::{Deserialize, Serialize};

pub use crate::content::{countable, countable_text, is_binary, json_bytes, text_bytes};
pub use extract::{EXTRACT_ID, GREP_ID, READ_ID};
pub use extract::{ExtractError, ExtractMode, ExtractRequest, Extractor, is_output_tool};
pub use shorten::{CUT, head_and_tail, truncate};
pub use stored::{
    Ends, MAX_RESULT_CHARS, Readers, StoredOutput, add_note, announced_chars, client_max_bytes, cut_message,
    noted_outputs, shown_ends, stored_message, stored_note,
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
    /// A client of the gateway, which keeps house with its own.
    Client,
}
