//! Model APIs: pure encoders and decoders, and the HTTP client that carries them.
//!
//! Encoding and decoding are pure: [`encode()`] turns a conversation into the body of a request, [`Decoder`] turns the
//! bytes of a response, cut anywhere, into a [`ModelResponse`](toolwright_core::model::ModelResponse). `http` is the only
//! module that talks to servers, and `replay` the only one that reads files. [`Models`] sends a request to whichever of
//! them its model's id names.

mod api;
mod client;
mod codec;
pub mod dialect;
mod failure;
mod http;
mod rate_limits;
mod replay;
pub mod served;

pub use api::{Api, EncodedRequest, RequestPart};
pub use client::Models;
pub use codec::{Decoder, EncodedTools, EncodedToolsCache, decode_whole, encode, encode_with, tools_json};
pub use http::discover::{
    default_model, default_variables, endpoints_from_env, key_variable, list_models, named_model,
};
pub use http::embeddings::{EmbeddingsApi, HttpEmbedder};
pub use http::endpoint::{Endpoint, Endpoints, ModelOverrides, TimeoutOverrides, ToolFormat};
pub use http::{HttpModelClient, Timeouts};
pub use replay::Replayed;
