//! OpenAI Responses (platform.openai.com/docs/api-reference/responses), used without state on the server: every request
//! carries the whole conversation, and encrypted reasoning is sent back unchanged.
//!
//! The client executes the search for deferred tools (developers.openai.com/api/docs/guides/tools-tool-search). They are not
//! declared beforehand, which would put their names and descriptions into the prompt. The output of a search holds the
//! definitions.

mod decode;
mod encode;

use crate::api::Api;
pub(crate) use decode::ResponsesDecoder;
pub(crate) use encode::{encode, tools};

const API: Api = Api::OpenAiResponses;
