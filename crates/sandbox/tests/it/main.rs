//! Supervised processes and sandboxes, with real processes and files.
#![expect(clippy::expect_used, reason = "a test stops at its first surprise")]

#[cfg(target_os = "linux")]
mod held;
mod limits;
mod process;
#[expect(dead_code, reason = "the tests of other crates use all of it")]
mod processes;
mod sandbox;
