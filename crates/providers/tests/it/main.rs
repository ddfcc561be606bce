//! Built-in tools and supervised processes against real processes and files.
#![expect(clippy::expect_used, reason = "a test stops at its first surprise")]

mod catalogue;
mod fs;
mod mcp;
mod net;
mod oauth;
mod openapi;
mod openapi_bodies;
mod openapi_documents;
mod openapi_names;
mod openapi_wild;
mod output;
mod process;
mod protected;
mod rest;
mod sandbox;
mod shell;
mod web;
mod wire;
mod workspace;
