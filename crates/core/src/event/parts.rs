//! Parts of events that are types of their own.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How room was made in a conversation, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionLayer {
    /// Old results gave way to handles.
    Truncate,
    /// A model put the oldest turns together.
    Summarize,
    /// Nothing helped: the next turn is the last.
    ForceFinal,
}

impl CompactionLayer {
    /// The layer as it is written on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Truncate => "truncate",
            Self::Summarize => "summarize",
            Self::ForceFinal => "force_final",
        }
    }
}

/// A call that never started, as it was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// The tool's name.
    pub name: String,
    /// Redacted arguments; null if they could not be read.
    pub arguments: Value,
}

/// A progress report or a piece of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partial {
    /// Progress, as MCP's `notifications/progress` gives it.
    Progress {
        /// How far.
        progress: f64,
        /// Of how much.
        total: Option<f64>,
        /// In words.
        message: Option<String>,
        /// What else its source says of it, `_meta` among it: for the client of the call alone, and in no event.
        #[serde(skip)]
        more: Map<String, Value>,
    },
    /// A piece of text.
    Text(String),
}
