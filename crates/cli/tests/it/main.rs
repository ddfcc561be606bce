//! Tests of the whole: configuration, import, and the program as it is run.

#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod agents;
mod calls;
mod command_line;
mod configuration;
mod develop;
mod operate;
mod serving;
mod support;
