//! OpenAI Chat Completions (platform.openai.com/docs/api-reference/chat), and the freedom that
//! compatible servers take with it.

mod decode;
mod echo;
mod encode;

pub(crate) use decode::Assembly;
pub(crate) use encode::{encode, tool};

use crate::api::Api;

const API: Api = Api::OpenAiChat;
