//! Gemini `generateContent` and `streamGenerateContent` (ai.google.dev/api/generate-content). The decoder
//! also reads the Interactions API of the same models, and Vertex AI's streamed arguments.

mod decode;
mod encode;
mod interactions;

use crate::api::Api;
pub(crate) use decode::GeminiDecoder;
pub(crate) use encode::{encode, tools};

const API: Api = Api::Gemini;
