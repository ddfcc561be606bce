//! Gemini `generateContent` and `streamGenerateContent` (ai.google.dev/api/generate-content). The decoder
//! also reads the Interactions API, which the same models answer through, and Vertex AI's streamed arguments.

mod decode;
mod encode;
mod interactions;
mod partial;

pub(crate) use decode::Assembly;
pub(crate) use encode::{encode, tools};

use crate::api::Api;

const API: Api = Api::Gemini;
