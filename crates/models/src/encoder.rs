//! One request in the form of each API.

use toolwright_core::model::ModelRequest;

use crate::api::{Api, EncodedRequest};
use crate::dialect::{Toolset, translate};
use crate::{anthropic, ollama, openai_chat};

/// Encodes `request` for `model` (the name without its provider), asking for a stream.
///
/// Never fails, and the result is a legal request whatever the history holds: arguments that do not
/// parse are replayed as `{}`, a call without a result gets one that says so, a result without a call is
/// left out, ids and names of past calls are made legal and unique. Schemas are shown with an object at
/// their root, as the APIs demand; the definition's own schema is not touched. Tools keep their order.
#[must_use]
pub fn encode(api: Api, request: &ModelRequest, model: &str) -> EncodedRequest {
    encode_with(api, request, model, &translate(api.dialect(), &request.tools, false))
}

/// [`encode`] with the view of the request's tools made beforehand, so that it can be kept.
#[must_use]
pub fn encode_with(api: Api, request: &ModelRequest, model: &str, tools: &Toolset) -> EncodedRequest {
    match api {
        Api::OpenAiChat => openai_chat::encode(request, model, tools),
        Api::Anthropic => anthropic::encode(request, model, tools),
        Api::Ollama => ollama::encode(request, model, tools),
    }
}
