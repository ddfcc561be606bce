//! A site that publishes one document, and what a store would keep of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::event::NoEvents;
use toolwright_core::store::{ManifestCache, StoreError};
use toolwright_providers::DocumentOptions;

use crate::wire::{Names, Reply, Server, options};

/// Keeps what a store would.
#[derive(Default)]
pub(crate) struct TestManifests(pub(crate) Mutex<HashMap<String, Value>>);

#[async_trait]
impl ManifestCache for TestManifests {
    async fn manifest(&self, key: &str) -> Result<Option<Value>, StoreError> {
        Ok(self.0.lock().expect("lock").get(key).cloned())
    }
    async fn set_manifest(&self, key: &str, manifest: &Value) -> Result<(), StoreError> {
        self.0.lock().expect("lock").insert(key.to_owned(), manifest.clone());
        Ok(())
    }
    async fn remove_manifest(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.0.lock().expect("lock").remove(key).is_some())
    }
}

/// The site: at one path what was published last, as JSON, or 503; an answer of its own to all else.
pub(crate) struct Site {
    pub(crate) server: Server,
    pub(crate) kept: Arc<TestManifests>,
    published: Arc<Mutex<Option<String>>>,
}

impl Site {
    /// A site with nothing published yet; all else is answered with `else_type` and `else_body`.
    pub(crate) async fn start(path: &'static str, (else_type, else_body): (&'static str, &'static str)) -> Self {
        let published: Arc<Mutex<Option<String>>> = Arc::default();
        let document = Arc::clone(&published);
        let server = Server::start(move |received| match received.line.contains(path) {
            true => match document.lock().expect("lock").clone() {
                Some(text) => Reply::ok("application/json", &text),
                None => Reply::new("503 Service Unavailable", "", ""),
            },
            false => Reply::ok(else_type, else_body),
        })
        .await;
        Self { server, published, kept: Arc::default() }
    }

    /// Publishes this text in place of what was there; or nothing.
    pub(crate) fn put(&self, text: Option<String>) {
        *self.published.lock().expect("lock") = text;
    }

    /// What a provider of its document gets.
    pub(crate) fn deps(&self) -> DocumentOptions {
        let manifests = Arc::clone(&self.kept) as _;
        DocumentOptions { manifests, events: Arc::new(NoEvents), http: options(&Names::new(&[])) }
    }
}
