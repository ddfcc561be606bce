//! The model APIs, and one request in the form of each.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolwright_core::model::ModelRequest;

use crate::{anthropic, ollama, openai_chat};

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

/// Encodes `request` for `model` (the name without its provider), asking for a stream.
///
/// Never fails, and the result is a legal request whatever the history holds: arguments that do not
/// parse are replayed as `{}`, a call without a result gets one that says so, a result without a call is
/// left out, ids and names of past calls are made legal and unique. Schemas are shown with an object at
/// their root, as the APIs demand; the definition's own schema is not touched. Tools keep their order.
#[must_use]
pub fn encode(api: Api, request: &ModelRequest, model: &str) -> EncodedRequest {
    match api {
        Api::OpenAiChat => openai_chat::encode(request, model),
        Api::Anthropic => anthropic::encode(request, model),
        Api::Ollama => ollama::encode(request, model),
    }
}
