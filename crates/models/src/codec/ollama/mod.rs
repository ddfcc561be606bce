//! Ollama `/api/chat` (github.com/ollama/ollama, docs/api.md). Calls come whole, with their arguments as
//! objects and without ids.

mod decode;
mod encode;

use crate::api::Api;
pub(crate) use decode::OllamaDecoder;
pub(crate) use encode::{MIN_ESTIMATE, encode, estimate, keep_alive, keep_window};

const API: Api = Api::Ollama;
