//! Both MCP test servers as processes, judged by the bytes on their pipes and sockets.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod conformance;
mod misbehaving;
mod peer;
mod replaced;
mod rules;
mod rules_arbitrary;
mod rules_examples;
