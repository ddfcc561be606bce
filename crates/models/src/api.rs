//! The model APIs, and what a request to one of them is.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::dialect::Dialect;

/// A model API that Toolwright speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// OpenAI Chat Completions, and whatever is compatible with it.
    OpenAiChat,
    /// Anthropic Messages.
    Anthropic,
    /// Ollama `/api/chat`.
    Ollama,
}

impl Api {
    /// Every API.
    pub const ALL: [Self; 3] = [Self::OpenAiChat, Self::Anthropic, Self::Ollama];

    /// The rules that its tool schemas keep.
    #[must_use]
    pub fn dialect(self) -> Dialect {
        match self {
            Self::OpenAiChat => Dialect::OpenAi,
            Self::Anthropic => Dialect::Anthropic,
            Self::Ollama => Dialect::Ollama,
        }
    }

    /// Its name, which also tags its opaque data.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAiChat => "openai_chat",
            Self::Anthropic => "anthropic",
            Self::Ollama => "ollama",
        }
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One request as it goes out: a POST of JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedRequest {
    /// Path under the endpoint's base URL.
    pub path: &'static str,
    /// Headers that the API demands beside the content type and the key.
    pub headers: &'static [(&'static str, &'static str)],
    /// The body. Its keys keep their order, so equal requests serialise to equal bytes.
    pub body: Value,
}

impl EncodedRequest {
    /// The bytes of the body.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.body.to_string().into_bytes()
    }
}
