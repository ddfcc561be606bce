//! Tool sources against real processes, files and sockets.
#![expect(clippy::expect_used, reason = "a test stops at its first surprise")]

mod catalogue;
mod edits;
mod fs;
mod fs_race;
mod json_files;
mod kept;
mod openapi;
mod output;
#[path = "../../../sandbox/tests/it/processes.rs"]
mod processes;
mod protected;
mod published;
mod rest;
mod shell;
mod web;
#[path = "../../../net/tests/it/wire.rs"]
mod wire;
mod workspace;
