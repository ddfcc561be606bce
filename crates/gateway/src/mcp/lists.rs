//! Prompts, resources and resource templates, read from the catalogue's lists and merged for a caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{ListKind, Provider};
use toolwright_mcp::merge::{Merged, Owned, merge};
use toolwright_runtime::catalogue::SourceLists;
use toolwright_runtime::executor::is_denied;

use super::call::{Caller, Work};
use super::message::{RpcError, to_json};
use super::protocol::Era;
use super::view::Scope;
use crate::Gateway;

/// A source that does not announce changes of a list is asked for it again when a client reads one that is older.
const STALE: Duration = Duration::from_secs(30);
/// Merged lists that are kept of the catalogue as it is now.
const MAX_MERGED: usize = 256;

/// One list as a caller sees it.
pub(crate) struct MergedList {
    /// The JSON array of the items.
    pub(crate) json: Bytes,
    /// Whose each item is, by the name or address that it has here.
    pub(crate) owners: HashMap<String, Owned>,
    /// Hash of `json`: equal lists need no `list_changed`.
    fingerprint: ContentHash,
}

/// What was made of the catalogue's lists as they are now. Of older ones nothing is kept.
#[derive(Default)]
pub(crate) struct MergedLists(Mutex<Made>);

#[derive(Default)]
struct Made {
    of: Option<Arc<[SourceLists]>>,
    lists: HashMap<Key, Arc<MergedList>>,
}

/// What a merged list was made of.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    kind: ListKind,
    /// Whether the items have the names that their source has for them.
    has_own_names: bool,
    /// The positions of the sources.
    sources: Vec<usize>,
}

impl MergedList {
    fn build(all: &[SourceLists], key: &Key) -> Self {
        let kind = key.kind;
        let sources = key.sources.iter().map(|at| &all[*at]);
        let (json, owners) = if key.has_own_names {
            let items: Vec<&Value> = sources.flat_map(|source| source.items(kind).iter()).collect();
            (to_json(&items), HashMap::new())
        } else {
            let lists = sources.map(|source| (source.provider().name(), &source.items(kind)[..])).collect();
            let Merged { items, owners } = merge(kind, lists);
            (to_json(&items), owners)
        };
        Self { fingerprint: ContentHash::of_bytes(&json), json: json.into(), owners }
    }
}

impl Gateway {
    /// The sources of a caller whose lists of this kind it sees, by their positions. `None`: no source has such a list.
    fn listing(&self, caller: &Caller, all: &[SourceLists], kind: ListKind) -> Option<Vec<usize>> {
        let policy = self.policy_at(&caller.view);
        let mut having = all
            .iter()
            .enumerate()
            .filter(|(_, source)| self.has_method(&caller.view.scope, source.provider(), kind.method()))
            .peekable();
        having.peek()?;
        let is_shown = |source: &SourceLists| {
            let methods = self.methods_of(source.provider());
            let entry = methods.as_ref().and_then(|methods| methods.entry(kind.method()));
            entry.is_some_and(|entry| !is_denied(entry, &policy, &caller.session))
        };
        Some(having.filter(|(_, source)| is_shown(source)).map(|(at, _)| at).collect())
    }

    /// A caller's list of this kind, as of now. `None`: none of its sources has such a list.
    pub(crate) fn list_of(&self, caller: &Caller, kind: ListKind) -> Option<Arc<MergedList>> {
        let all = self.options.catalogue.lists();
        let has_own_names = matches!(caller.view.scope, Scope::Provider(_));
        let key = Key { kind, has_own_names, sources: self.listing(caller, &all, kind)? };
        let mut made = self.merged.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !made.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, &all)) || made.lists.len() >= MAX_MERGED {
            *made = Made { of: Some(Arc::clone(&all)), lists: HashMap::new() };
        }
        if let Some(list) = made.lists.get(&key) {
            return Some(Arc::clone(list));
        }
        let list = Arc::new(MergedList::build(&all, &key));
        made.lists.insert(key, Arc::clone(&list));
        Some(list)
    }

    /// What tells a caller's list of this kind from another one; `None` of an empty one.
    pub(crate) fn list_fingerprint(&self, caller: &Caller, kind: ListKind) -> Option<ContentHash> {
        self.list_of(caller, kind).filter(|list| &list.json[..] != b"[]").map(|list| list.fingerprint)
    }

    /// Waits for the first lists of sources that have just been started, until two seconds after the start of the gateway at
    /// the most.
    async fn await_lists(&self, scope: &Scope, kind: ListKind) {
        let catalogue = &self.options.catalogue;
        let is_awaited = |source: &SourceLists| source.is_awaited(kind) && scope.may_have(&**source.provider());
        let mut changes = catalogue.changes();
        let listed = async {
            while catalogue.lists().iter().any(is_awaited) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout_at(self.first_lists, listed).await.is_err() {
            tracing::debug!("{} goes out before every server has said what it has", kind.method());
        }
    }

    /// Asks sources that do not announce changes of their lists again, beside all else, where that was long ago.
    fn refresh_stale(&self, scope: &Scope, kind: ListKind) {
        let announces_changes = |provider: &Arc<dyn Provider>| {
            let announced = provider.capabilities();
            announced.and_then(|all| all.get(kind.capability())?.get("listChanged")?.as_bool()) == Some(true)
        };
        for source in self.options.catalogue.lists().iter() {
            if scope.may_have(&**source.provider()) && !announces_changes(source.provider()) {
                source.refresh_after(kind, STALE);
            }
        }
    }
}

impl Work {
    /// A list of the caller, once the sources that have just been started have said theirs.
    ///
    /// # Errors
    /// That there is no such method, if no source of the address has it.
    pub(crate) async fn merged_list(&self, kind: ListKind) -> Result<Arc<MergedList>, RpcError> {
        tokio::select! {
            () = self.gateway.await_lists(&self.caller.view.scope, kind) => {}
            // Its end is the end of the request.
            _ = self.cancel.cancelled() => {}
        }
        self.gateway.list_of(&self.caller, kind).ok_or_else(|| RpcError::method_not_found(kind.method()))
    }

    /// Answers a list method.
    pub(crate) async fn list(
        &self,
        kind: ListKind,
        era: Era,
        arguments: &Map<String, Value>,
    ) -> Result<Vec<u8>, RpcError> {
        if arguments.get("cursor").is_some_and(|cursor| !cursor.is_null()) {
            return Err(RpcError::invalid_params("this list has one page only, so no cursor is valid"));
        }
        let list = self.merged_list(kind).await?;
        self.gateway.refresh_stale(&self.caller.view.scope, kind);
        Ok(self.gateway.list_result(kind.list_key(), &list.json, era))
    }
}
