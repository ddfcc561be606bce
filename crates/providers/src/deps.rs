//! What the sources that are read from documents get of the application.

use std::fmt;
use std::sync::Arc;

use toolwright_core::event::EventSink;
use toolwright_core::store::ManifestCache;

use toolwright_net::HttpOptions;

/// What the provider of an OpenAPI document or of a catalogue gets.
#[derive(Clone)]
pub struct DocumentDeps {
    /// Keeps the document that was read, or accepted, last.
    pub manifests: Arc<dyn ManifestCache>,
    /// Takes warnings.
    pub events: Arc<dyn EventSink>,
    /// Resolver and proxies.
    pub http: HttpOptions,
}

impl fmt::Debug for DocumentDeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentDeps").finish_non_exhaustive()
    }
}
