//! The codecs against goldens, recordings and arbitrary bytes; the client against a real socket.

#![expect(clippy::unwrap_used, reason = "tests")]

mod client;
mod deferred;
mod dialect;
mod echo;
mod embeddings;
mod golden;
mod hostile;
mod limits;
mod native;
mod recordings;
mod replay;
mod served;
mod settings;
mod shape;
mod stops;
mod streams;
