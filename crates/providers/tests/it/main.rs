//! Tool sources against real processes, files and sockets.
#![expect(clippy::expect_used, reason = "a test stops at its first surprise")]

mod catalogue;
mod files;
mod openapi;
mod output;
#[path = "../../../sandbox/tests/it/processes.rs"]
mod processes;
mod published;
mod rest;
mod session_log_tools;
mod shell;
mod web;
#[path = "../../../net/tests/it/wire.rs"]
mod wire;
