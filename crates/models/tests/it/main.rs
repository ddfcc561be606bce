//! The codecs against goldens, recordings and arbitrary bytes; the client against a real socket.

#![expect(clippy::unwrap_used, reason = "tests")]

mod deferred;
mod dialect;
mod echo;
mod golden;
mod hostile;
mod http;
mod native;
mod recordings;
mod served;
mod settings;
mod shape;
mod stop_reasons;
mod streams;
