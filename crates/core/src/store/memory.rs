//! Defines the search over the values and conversations of sessions.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::StoreError;
use crate::duration::iso;
use crate::error::Unsupported;
use crate::identity::session::Session;

/// By what passages are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchMode {
    /// By the words of the query.
    Text,
    /// By its meaning.
    Semantic,
    /// By both.
    #[default]
    Hybrid,
}

/// A piece of text that somebody kept or said.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Passage {
    /// Who: `user`, the model as `assistant`, a tool, an agent, a channel's author.
    pub who: String,
    /// Where: like `run 7c2f` or `scratch.plan in session s`.
    pub place: String,
    /// When, in milliseconds since the epoch.
    pub at_ms: u64,
    /// What.
    pub text: String,
}

impl Passage {
    /// As a line.
    #[must_use]
    pub fn line(&self) -> String {
        format!("[{}, {}, {}] {}", iso(self.at_ms), self.place, self.who, self.text)
    }

    /// As programs are shown it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({"who": self.who, "where": self.place, "at": iso(self.at_ms), "text": self.text})
    }
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The best first.
    pub passages: Vec<Passage>,
    /// Why it was not ranked as asked for, if it was not.
    pub note: Option<String>,
}

/// Searches the session log and the saved runs of a principal.
#[async_trait]
pub trait Memory: Send + Sync {
    /// The passages of the session's principal that fit a query best, at most `limit`. The conversation of the session
    /// itself is left out: who asks has it.
    async fn search(
        &self,
        _session: &Session,
        _query: &str,
        _mode: SearchMode,
        _limit: usize,
    ) -> Result<Found, StoreError> {
        Err(Unsupported("searching the memory").into())
    }
}

/// No memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMemory;

impl Memory for NoMemory {}
