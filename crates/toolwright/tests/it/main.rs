//! The library as its users see it: everything is named by way of the facade, the parts are real ones (child processes,
//! sockets, SQLite), and only the model is scripted.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod agents;
mod builder;
mod configs;
mod definitions;
mod examples;
mod groups;
mod memory;
mod runs;
mod served;
mod support;
mod tool_examples;
mod triggers;
