//! The HTTP client against servers on real sockets.
#![expect(clippy::expect_used, reason = "a test stops at its first surprise")]

mod net;
#[expect(dead_code, reason = "the tests of other crates use all of it")]
mod wire;
