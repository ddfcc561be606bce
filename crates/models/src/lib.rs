//! Model APIs: pure encoders and decoders, and the HTTP client that carries them.
//!
//! Encoding and decoding touch no socket and no clock: [`encode`] turns a conversation into the body of
//! a request, [`Decoder`] turns the bytes of an answer, cut anywhere, into a response. [`http`],
//! [`discover`] and [`embeddings`] are the only modules that talk to anybody, and [`replay`] the only one that reads
//! files.

mod answer;
mod anthropic;
pub mod api;
mod configured;
pub mod decoder;
pub mod dialect;
pub mod discover;
pub mod embeddings;
pub mod encoder;
pub mod endpoint;
pub mod failure;
mod framing;
mod gemini;
mod headers;
mod history;
pub mod http;
mod known;
mod limits;
mod maker;
pub mod models;
mod ollama;
mod openai_chat;
mod reading;
mod reasoning;
mod refusals;
pub mod replay;
mod responses;
mod sampling;
mod shown;
mod tool_search;
mod turn;
mod wire;

pub use api::{Api, EncodedRequest};
pub use decoder::{Decoder, decode_whole};
pub use discover::{default_model, default_variables, endpoints_from_env, list_models, named_model};
pub use embeddings::{EmbeddingsApi, HttpEmbedder};
pub use encoder::{encode, encode_shown, encode_with, tools_json};
pub use endpoint::{Endpoint, Endpoints, ModelOverrides, ToolFormat};
pub use http::{HttpModelClient, Timeouts};
pub use models::Models;
pub use replay::Replayed;
pub use shown::{ShownCache, ShownTools};
