//! Built-in tools and supervised processes against real processes and files.
#![expect(clippy::expect_used, reason = "a test stops at its first surprise")]

mod catalogue;
mod fs;
mod fs_race;
#[cfg(target_os = "linux")]
mod limits;
mod mcp;
mod net;
mod oauth;
mod openapi;
mod output;
mod process;
mod protected;
mod published;
mod rest;
mod sandbox;
mod shell;
mod web;
mod wire;
mod workspace;
