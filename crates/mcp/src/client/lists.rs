//! A server's prompts, resources and resource templates, as the catalogue lists them.

use std::sync::{Arc, Mutex, PoisonError};

use crate::protocol::list_validation;
use crate::protocol::message::{RpcError, to_json};
use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::ListKind;
use toolwright_core::store::ManifestCache;

use super::connection::Connection;
use super::link::Patience;
use super::listing::{Bounds, fetch_checked};
use super::peer::AskError;
use super::provider::{list_bound, reason};
use super::source::Source;

/// Bounds on one of these lists.
const BOUNDS: Bounds = Bounds { pages: 100, entries: 10_000 };
/// Longest list that is kept of a lazy server, in bytes.
const MAX_KEPT: usize = 1 << 20;

/// Lists what one server has besides tools, over the connection that lists its tools.
pub(crate) struct OtherLists {
    source: Arc<Source>,
    credential_scope: ContentHash,
    manifests: Arc<dyn ManifestCache>,
    /// What the operator was told of each list: the same is not told again.
    warned: Mutex<[Option<String>; 3]>,
}

impl OtherLists {
    /// The lists of `source`; those of a lazy one are kept in `manifests`, so that it is not started for them again.
    pub(crate) fn new(source: Arc<Source>, manifests: Arc<dyn ManifestCache>) -> Self {
        let credential_scope = source.spec.credential_scope();
        Self { source, credential_scope, manifests, warned: Mutex::default() }
    }

    /// All pages of a list, each item checked; empty where the server does not announce that it has such a list.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(crate) async fn list(&self, kind: ListKind) -> Result<Arc<[Value]>, String> {
        if let Some(kept) = self.kept(kind).await {
            return Ok(kept);
        }
        let mut renewed = false;
        loop {
            let connection = self.source.links.shared.connection(Patience::Wait).await?;
            if !connection.server().offers(kind.capability()) {
                return Ok(Arc::default());
            }
            match self.fetch(&connection, kind).await {
                Err(_) if connection.is_expired() && !renewed => renewed = true,
                listed => return listed,
            }
        }
    }

    async fn fetch(&self, connection: &Arc<Connection>, kind: ListKind) -> Result<Arc<[Value]>, String> {
        let mut mistakes = Vec::new();
        let mut check = |page: &mut Value| {
            if let Some(page) = page.as_object_mut() {
                mistakes.extend(list_validation::page(kind, page));
            }
        };
        let bound = list_bound(self.source.spec.config.request_timeout);
        let fetched = fetch_checked(connection, kind.method(), kind.list_key(), BOUNDS, &mut check);
        let listed = match tokio::time::timeout(bound, fetched).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(AskError::Rpc(error))) if error.code == RpcError::METHOD_NOT_FOUND => {
                return Ok(Arc::default());
            }
            Ok(Err(error)) => return Err(reason(error, kind.words())),
            Err(_) => {
                connection.probe();
                let within = toolwright_core::duration::format(bound);
                return Err(format!("it did not list its {} within {within}", kind.words()));
            }
        };
        let mended = list_validation::told(&self.source.spec.name, kind.words(), &mistakes);
        let cut = listed.cut.map(|cut| format!("{}: {cut}", self.source.spec.name));
        self.warn(kind, mended.into_iter().chain(cut).collect::<Vec<_>>().join("; "));
        self.keep(kind, &listed.entries).await;
        Ok(listed.entries.into())
    }

    fn warn(&self, kind: ListKind, message: String) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let last = &mut warned[kind as usize];
        if !message.is_empty() && last.as_ref() != Some(&message) {
            tracing::warn!("{message}");
        }
        *last = Some(message);
    }

    /// What a lazy server that is not running listed last.
    async fn kept(&self, kind: ListKind) -> Option<Arc<[Value]>> {
        if !self.source.spec.config.lazy || !self.source.links.are_idle() {
            return None;
        }
        let mut kept = self.manifests.manifest(&self.key(kind)).await.unwrap_or_else(|error| {
            tracing::debug!(server = self.source.spec.name, "what it listed was not read: {error}");
            None
        })?;
        match kept.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => Some(items.into()),
            _ => None,
        }
    }

    async fn keep(&self, kind: ListKind, items: &[Value]) {
        if !self.source.spec.config.lazy {
            return;
        }
        let kept = json!({"items": items});
        let key = self.key(kind);
        let done = if to_json(&kept).len() > MAX_KEPT {
            self.manifests.remove_manifest(&key).await.map(drop)
        } else {
            self.manifests.set_manifest(&key, &kept).await
        };
        if let Err(error) = done {
            tracing::debug!(server = self.source.spec.name, "what it listed was not kept: {error}");
        }
    }

    /// Under what a list is kept: unlike that of the tools, it is of whoever is logged in, as a hash.
    fn key(&self, kind: ListKind) -> String {
        let spec = &self.source.spec;
        format!("{} {} {}", spec.manifest_key(), spec.scope_now(self.credential_scope), kind.method())
    }
}
