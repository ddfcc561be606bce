//! OpenAPI 3.0, 3.1 and 3.2 documents, and Swagger 2.0 ones, as tools. An operation becomes the same request
//! description that a configured REST tool does ([`crate::rest`]), and its calls are made by the same code.
//!
//! Arguments are the operation's parameters by name (with the place before it where two share a name) and its body as
//! `body`. A document is foreign text: no reference of it is fetched, and credentials go nowhere that the operator did
//! not name.

mod arguments;
mod body;
mod config;
mod document;
mod files;
mod import;
mod operation;
mod provider;
mod schema;
mod schema_walk;
mod security;
mod swagger;

pub use config::{Auth, CallConfig, Filter, GroupBy, OpenApiConfig, Operation};
pub use document::Origin;
pub use files::{content_hash, server_addresses};
pub use import::OpenApiError;
pub use import::{Import, Imported, Refused, import};
pub use provider::{Fetched, OpenApiProvider, text};
