//! OpenAPI 3.0, 3.1 and 3.2 documents, and Swagger 2.0 ones, as tools. An operation is compiled to the same request
//! description as a configured REST tool ([`crate::rest`]), so the same code makes its calls.
//!
//! Arguments are the operation's parameters by name (with the place as a prefix if two share a name) and its body as
//! `body`. Documents are untrusted: their references are not fetched from the network, and credentials are only sent to
//! servers that the operator named.

mod arguments;
mod body;
mod config;
mod document;
mod import;
mod operation;
mod provider;
mod schema;
mod schema_walk;
mod security;

pub use config::{Auth, CallConfig, Filter, GroupBy, OpenApiConfig, Operation};
pub use document::{OpenApiError, Origin, content_hash, server_addresses};
pub use import::{Import, Imported, RefusedOperation, import};
pub use provider::{FetchedDocument, OpenApiProvider, text};
