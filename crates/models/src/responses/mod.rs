//! OpenAI Responses (platform.openai.com/docs/api-reference/responses), used without state on the server:
//! every request carries the whole conversation, reasoning comes encrypted and goes back as it came.

mod decode;
mod encode;
mod items;

pub(crate) use decode::Assembly;
pub(crate) use encode::{encode, tool};

use crate::api::Api;

const API: Api = Api::OpenAiResponses;
