//! Both MCP test servers as processes, judged by the bytes on their pipes and sockets.

#![expect(clippy::unwrap_used, reason = "tests")]

mod conformance;
mod misbehaving;
mod peer;
mod rules_examples;
