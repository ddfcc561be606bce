//! Model APIs: pure encoders and decoders, and the HTTP client that carries them.
//!
//! Encoding and decoding touch no socket and no clock: [`encode`] turns a conversation into the body of
//! a request, [`Decoder`] turns the bytes of an answer, cut anywhere, into a response. [`http`] is the only module that
//! talks to servers, and [`replay`] the only one that reads files.

mod anthropic;
pub mod api;
pub mod client;
pub mod decode;
pub mod dialect;
pub mod encode;
pub mod failure;
mod gemini;
pub mod http;
mod ollama;
mod openai_chat;
mod refusals;
pub mod replay;
mod request;
mod response;
mod responses;

pub use api::{Api, EncodedRequest};
pub use client::Models;
pub use decode::{Decoder, decode_whole};
pub use encode::{ShownCache, encode, encode_shown, encode_with, tools_json};
pub use http::discover::{default_model, default_variables, endpoints_from_env, list_models, named_model};
pub use http::embeddings::{EmbeddingsApi, HttpEmbedder};
pub use http::endpoint::{Endpoint, Endpoints, ModelOverrides, ToolFormat};
pub use http::{HttpModelClient, Timeouts};
pub use replay::Replayed;
pub use request::ShownTools;
