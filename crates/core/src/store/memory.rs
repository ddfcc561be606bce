//! Defines the search over the values and conversations of sessions.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::StoreError;
use crate::duration::iso;
use crate::error::Unsupported;
use crate::identity::session::Session;

/// How passages are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchMode {
    /// By the words of the query.
    Text,
    /// By the meaning of the query.
    Semantic,
    /// By both.
    #[default]
    Hybrid,
}

/// A piece of stored text or conversation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Passage {
    /// The author: `user`, `assistant` for the model, a tool, an agent, a channel's author.
    pub who: String,
    /// The place, like `run 7c2f` or `scratch.plan in session s`.
    pub place: String,
    /// The time, in milliseconds since the epoch.
    pub at_ms: u64,
    /// The text.
    pub text: String,
}

impl Passage {
    /// Formats it as a line.
    #[must_use]
    pub fn line(&self) -> String {
        format!("[{}, {}, {}] {}", iso(self.at_ms), self.place, self.who, self.text)
    }

    /// Formats it for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({"who": self.who, "where": self.place, "at": iso(self.at_ms), "text": self.text})
    }
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundPassages {
    /// The best first.
    pub passages: Vec<Passage>,
    /// Why another ranking was used, if so.
    pub note: Option<String>,
}

/// Searches the session log and the saved runs of a principal.
#[async_trait]
pub trait Memory: Send + Sync {
    /// Returns the passages of the session's principal that fit a query best, at most `limit`. The session's own
    /// conversation is excluded: the asker has it.
    async fn search(
        &self,
        _session: &Session,
        _query: &str,
        _mode: SearchMode,
        _limit: usize,
    ) -> Result<FoundPassages, StoreError> {
        Err(Unsupported("searching the memory").into())
    }
}

/// Without memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMemory;

impl Memory for NoMemory {}
