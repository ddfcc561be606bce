//! The gateway over real sockets and pipes, asked in raw JSON-RPC and by another implementation.

#![expect(clippy::expect_used, clippy::panic, reason = "tests")]

mod asking;
mod catalogue;
mod http;
mod protocol;
mod sources;
mod support;
