//! Tool sources behind one trait: built-in tools, MCP servers, REST endpoints.

pub mod builtin;
pub mod mcp;
pub mod net;
pub mod oauth;
pub mod process;
mod protected;
pub mod rest;
