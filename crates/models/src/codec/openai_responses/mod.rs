//! OpenAI Responses (platform.openai.com/docs/api-reference/responses), used without state on the server:
//! every request carries the whole conversation, reasoning comes encrypted and goes back as it came.
//!
//! Deferred tools are found by a search that the client executes (developers.openai.com/api/docs/guides/
//! tools-tool-search). They are not declared beforehand: declared, each would stand before the model with its
//! name and description. A search's output brings the definitions.

mod decode;
mod encode;

use crate::api::Api;
pub(crate) use decode::ResponsesDecoder;
pub(crate) use encode::{encode, tools};

const API: Api = Api::OpenAiResponses;
