//! Tool sources behind one trait: built-in tools, MCP servers, REST endpoints, OpenAPI documents.

mod again;
pub mod builtin;
pub mod catalogue;
mod deps;
pub mod mcp;
pub mod net;
pub mod oauth;
pub mod openapi;
pub mod process;
mod protected;
pub mod rest;

pub use deps::DocumentDeps;
