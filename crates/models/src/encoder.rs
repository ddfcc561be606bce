//! One request in the form of each API.

use toolwright_core::model::ModelRequest;

use crate::api::{Api, EncodedRequest};
use crate::{anthropic, ollama, openai_chat};

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
