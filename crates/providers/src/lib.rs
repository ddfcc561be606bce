//! Tool sources behind one trait: built-in tools, REST endpoints, OpenAPI documents, published catalogues.

pub mod builtin;
pub mod catalogue;
mod list_retry;
pub mod openapi;
pub mod rest;

use std::fmt;
use std::sync::Arc;

use toolwright_core::event::EventSink;
use toolwright_core::store::ManifestCache;
use toolwright_net::HttpOptions;

/// The application's parts for the provider of an OpenAPI document or of a remote catalogue.
#[derive(Clone)]
pub struct DocumentOptions {
    /// Stores the last document that was read or accepted.
    pub manifests: Arc<dyn ManifestCache>,
    /// Receives warnings.
    pub events: Arc<dyn EventSink>,
    /// Resolver and proxies.
    pub http: HttpOptions,
}

impl fmt::Debug for DocumentOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentOptions").finish_non_exhaustive()
    }
}
