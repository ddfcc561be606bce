//! The HTTP client against servers on real sockets.
#![expect(clippy::expect_used, reason = "a test stops at its first surprise")]

mod net;
mod wire;
