//! Tool sources behind one trait: built-in tools, REST endpoints, OpenAPI documents, published catalogues.

mod again;
pub mod builtin;
pub mod catalogue;
mod deps;
pub mod openapi;
pub mod rest;

pub use deps::DocumentDeps;
