//! How each API checks a request and writes an answer.

pub(super) mod anthropic;
pub(super) mod gemini;
pub(super) mod ollama;
pub(super) mod openai;
pub(super) mod responses;
mod tool_search;
