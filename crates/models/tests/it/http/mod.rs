//! The client of model APIs over HTTP, and recordings in its place.

pub(crate) mod client;
pub(crate) mod embeddings;
mod limits;
mod replay;
