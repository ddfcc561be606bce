//! Prompts, resources and resource templates: the catalogue's lists merged for a caller, and the source of each item.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::{Map, Value};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{ListKind, Provider};
use toolwright_core::content::ContentBlock;
use toolwright_mcp::convert::no_resource;
use toolwright_mcp::merge::{ItemOrigin, MergedItems, fits, merge, qualified, qualify, rewrite_uri};
use toolwright_runtime::catalogue::SourceLists;
use toolwright_runtime::executor::is_denied;

use crate::Gateway;
use crate::mcp::message::{RpcError, to_json};
use crate::mcp::protocol::Era;
use crate::mcp::request::McpRequestContext;
use crate::mcp::session::Caller;
use crate::view::Scope;

/// The most merged lists that are kept of the current catalogue.
const MAX_MERGED: usize = 256;
/// The most links per generation. Two generations are kept.
const MAX_LINKS: usize = 2048;
/// The longest address that is remembered, in bytes.
const MAX_LINK: usize = 2048;

/// A list as a caller sees it.
pub(crate) struct MergedList {
    /// The JSON array of the items.
    pub(crate) json: Bytes,
    /// The source of each item, by the name or address in the merged list.
    pub(crate) by_shown_name: HashMap<String, ItemOrigin>,
    /// Hash of `json`: equal lists need no `list_changed`.
    fingerprint: ContentHash,
}

/// Lists merged from the current catalogue. Older ones are dropped.
#[derive(Default)]
pub(crate) struct MergedLists(Mutex<ListCache>);

#[derive(Default)]
struct ListCache {
    of: Option<Arc<[SourceLists]>>,
    lists: HashMap<Key, Arc<MergedList>>,
}

/// The cache key of a merged list.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    kind: ListKind,
    /// Whether items keep their source's names.
    has_own_names: bool,
    /// The positions of the sources.
    sources: Vec<usize>,
}

impl MergedList {
    fn build(all: &[SourceLists], key: &Key) -> Self {
        let kind = key.kind;
        let sources = key.sources.iter().map(|at| &all[*at]);
        let (json, by_shown_name) = if key.has_own_names {
            let items: Vec<&Value> = sources.flat_map(|source| source.items(kind).iter()).collect();
            (to_json(&items), HashMap::new())
        } else {
            let lists = sources.map(|source| (source.provider().name(), &source.items(kind)[..])).collect();
            let MergedItems { items, by_shown_name } = merge(kind, lists);
            (to_json(&items), by_shown_name)
        };
        Self { fingerprint: ContentHash::of_bytes(&json), json: json.into(), by_shown_name }
    }
}

impl Gateway {
    /// Returns the positions of the sources whose list of this kind a caller sees; `None` if no source has such a list.
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

    /// Returns a caller's current list of this kind; `None` if none of its sources has such a list.
    pub(crate) fn list_of(&self, caller: &Caller, kind: ListKind) -> Option<Arc<MergedList>> {
        let all = self.options.catalogue.lists();
        let has_own_names = matches!(caller.view.scope, Scope::Provider(_));
        let key = Key { kind, has_own_names, sources: self.listing(caller, &all, kind)? };
        let mut made = self.merged.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !made.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, &all)) || made.lists.len() >= MAX_MERGED {
            *made = ListCache { of: Some(Arc::clone(&all)), lists: HashMap::new() };
        }
        if let Some(list) = made.lists.get(&key) {
            return Some(Arc::clone(list));
        }
        let list = Arc::new(MergedList::build(&all, &key));
        made.lists.insert(key, Arc::clone(&list));
        Some(list)
    }

    /// Returns the fingerprint of a caller's list of this kind; `None` for an empty one.
    pub(crate) fn list_fingerprint(&self, caller: &Caller, kind: ListKind) -> Option<ContentHash> {
        self.list_of(caller, kind).filter(|list| &list.json[..] != b"[]").map(|list| list.fingerprint)
    }

    /// Waits for first lists of this kind, until two seconds after the start of the gateway.
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

    /// Refreshes the stale lists of the sources of this address, in the background.
    fn refresh_if_stale(&self, scope: &Scope, kind: ListKind) {
        for source in self.options.catalogue.lists().iter().filter(|source| scope.may_have(&**source.provider())) {
            source.refresh_if_stale(kind);
        }
    }
}

impl McpRequestContext {
    /// Returns a list of the caller, after waiting for first lists.
    ///
    /// # Errors
    /// No source of the address has this method.
    pub(crate) async fn merged_list(&self, kind: ListKind) -> Result<Arc<MergedList>, RpcError> {
        tokio::select! {
            () = self.gateway.await_lists(&self.caller.view.scope, kind) => {}
            // A cancelled request does not wait.
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
        self.gateway.refresh_if_stale(&self.caller.view.scope, kind);
        Ok(self.gateway.list_result(kind.list_key(), &list.json, era))
    }
}

/// The source that linked to a resource last, by caller and address. It routes a link to that source, even if no list
/// contains the address or another source has the same one. Holds the newer and the older generation.
#[derive(Default)]
pub(crate) struct ResourceLinks(Mutex<[HashMap<String, String>; 2]>);

impl ResourceLinks {
    fn note<'a>(&self, caller: &Caller, server: &str, uris: impl Iterator<Item = &'a str>) {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for uri in uris.filter(|uri| uri.len() <= MAX_LINK) {
            if links[0].len() >= MAX_LINKS {
                links[1] = std::mem::take(&mut links[0]);
            }
            links[0].insert(link_key(caller, uri), server.to_owned());
        }
    }

    fn of(&self, caller: &Caller, uri: &str) -> Option<String> {
        let (links, key) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), link_key(caller, uri));
        links.iter().find_map(|links| links.get(&key)).cloned()
    }
}

fn link_key(caller: &Caller, uri: &str) -> String {
    format!("{} at {} {uri}", caller.session.principal.id, caller.view.scope.path())
}

impl McpRequestContext {
    /// Records the resources that a source's content links to or contains.
    pub(crate) fn note_links_in(&self, server: &str, content: &[ContentBlock]) {
        self.note_links(server, in_content(content));
    }

    fn note_links<'a>(&self, server: &str, uris: impl Iterator<Item = &'a str>) {
        let mut uris = uris.peekable();
        // With one source no routing is needed.
        if uris.peek().is_some() && !matches!(self.caller.view.scope, Scope::Provider(_)) {
            self.gateway.resource_links.note(&self.caller, server, uris);
        }
    }

    /// Returns which of these sources linked to this resource last.
    fn linked_by(&self, uri: &str, sources: &[Arc<dyn Provider>]) -> Option<String> {
        let server = self.gateway.resource_links.of(&self.caller, uri)?;
        sources.iter().any(|provider| provider.name() == server).then_some(server)
    }
}

impl McpRequestContext {
    /// Routes a request to the source of its prompt, resource or template.
    pub(crate) async fn routed(
        &self,
        era: Era,
        method: &str,
        arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>, RpcError> {
        match method {
            "prompts/get" => self.get_prompt(arguments).await,
            "resources/read" => self.read(era, arguments).await,
            "completion/complete" => self.complete(era, arguments).await,
            _ => Err(RpcError::method_not_found(method)),
        }
    }

    /// Returns the source of an item in a merged list.
    async fn owner(&self, kind: ListKind, listed_name: &str) -> Result<Option<ItemOrigin>, RpcError> {
        Ok(self.merged_list(kind).await?.by_shown_name.get(listed_name).cloned())
    }

    /// Returns the source of a resource: named by its address, else by the list, the last link, the nearest template,
    /// or as the only source. A link overrides neither a list entry nor a template of another source only.
    pub(crate) async fn resource_owner(&self, uri: &str) -> Result<Option<ItemOrigin>, RpcError> {
        let sources = self.sources_with("resources/read")?;
        let listed = async |uri: &str| self.owner(ListKind::Resources, uri).await.ok().flatten();
        if let Some((server, own)) = qualified(uri)
            && sources.iter().any(|provider| provider.name() == server)
        {
            let listed = listed(uri).await.filter(|owned| owned.server == server);
            return Ok(Some(listed.unwrap_or_else(|| ItemOrigin { server: server.to_owned(), own: own.to_owned() })));
        }
        let linked = self.linked_by(uri, &sources);
        if let Some(owned) = listed(uri).await {
            return Ok(Some(match linked.filter(|linked| *linked != owned.server) {
                // The item of the linking source has a qualified address in the list, because this one was taken.
                Some(linked) => listed(&qualify(&linked, uri)).await.unwrap_or(owned),
                None => owned,
            }));
        }
        let templates = self.merged_list(ListKind::Templates).await.ok();
        let nearest = templates.and_then(|list| nearest(&list.by_shown_name, uri, &sources, linked.as_deref()));
        let own = |server: &str| ItemOrigin { server: server.to_owned(), own: uri.to_owned() };
        Ok(match (nearest.or(linked), &sources[..]) {
            (Some(server), _) => Some(own(&server)),
            (None, [only]) => Some(own(only.name())),
            (None, _) => None,
        })
    }

    async fn read(&self, era: Era, mut arguments: Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        let listed_uri =
            text(&arguments, "uri").ok_or_else(|| RpcError::invalid_params("resources/read needs a `uri`"))?;
        let owned = self.resource_owner(&listed_uri).await?;
        let ItemOrigin { server, own } = owned.ok_or_else(|| no_resource(era, &listed_uri))?;
        arguments.insert("uri".into(), own.clone().into());
        let provider = self.provider(&server)?;
        let mut result = self.ask_source(&provider, "resources/read", arguments).await?;
        self.note_links(&server, other_resources(&result, &own));
        if own != listed_uri {
            rewrite_uri(&mut result, &own, &listed_uri);
        }
        Ok(result)
    }

    async fn get_prompt(&self, mut arguments: Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        let listed_name =
            text(&arguments, "name").ok_or_else(|| RpcError::invalid_params("prompts/get needs a `name`"))?;
        let ItemOrigin { server, own } = self.prompt(&listed_name).await?;
        arguments.insert("name".into(), own.into());
        let provider = self.provider(&server)?;
        let result = self.ask_source(&provider, "prompts/get", arguments).await?;
        self.note_links(&server, in_prompt(&result));
        Ok(result)
    }

    async fn prompt(&self, listed_name: &str) -> Result<ItemOrigin, RpcError> {
        let unknown = || {
            let quoted_name: String = listed_name.chars().take(100).collect();
            RpcError::invalid_params(format!("there is no prompt called `{quoted_name}`"))
        };
        self.owner(ListKind::Prompts, listed_name).await?.ok_or_else(unknown)
    }

    async fn complete(&self, era: Era, mut arguments: Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        self.sources_with("completion/complete")?;
        let refuse = || RpcError::invalid_params("`ref` is a prompt or a resource template");
        let of = arguments.get_mut("ref").and_then(Value::as_object_mut).ok_or_else(refuse)?;
        let (key, owned) = match of.get("type").and_then(Value::as_str) {
            Some("ref/prompt") => {
                let listed_name = text(of, "name").ok_or_else(refuse)?;
                ("name", self.prompt(&listed_name).await?)
            }
            Some("ref/resource") => {
                let listed_uri = text(of, "uri").ok_or_else(refuse)?;
                let template = self.owner(ListKind::Templates, &listed_uri).await.ok().flatten();
                let owned = match template {
                    Some(owned) => Some(owned),
                    None => self.resource_owner(&listed_uri).await?,
                };
                ("uri", owned.ok_or_else(|| no_resource(era, &listed_uri))?)
            }
            _ => return Err(refuse()),
        };
        of.insert(key.into(), owned.own.into());
        let provider = self.provider(&owned.server)?;
        self.ask_source(&provider, "completion/complete", arguments).await
    }
}

/// Returns the source of the nearest template that fits this address, among templates shown unchanged (changed ones
/// name their source). A source that `linked` to the address comes first if any of its templates fits. Of equally near
/// ones, the source registered first wins.
fn nearest(
    templates: &HashMap<String, ItemOrigin>,
    uri: &str,
    sources: &[Arc<dyn Provider>],
    linked: Option<&str>,
) -> Option<String> {
    if let Some(linked) = linked
        && templates.values().any(|owned| owned.server == linked && fits(&owned.own, uri).is_some())
    {
        return Some(linked.to_owned());
    }
    let bare = templates.iter().filter(|(shown, owned)| **shown == owned.own).map(|(_, owned)| owned);
    let fitting = bare.filter_map(|owned| {
        let place = sources.iter().position(|provider| provider.name() == owned.server)?;
        Some((fits(&owned.own, uri)?, Reverse(place), &owned.server))
    });
    fitting.max().map(|(.., server)| server.clone())
}

fn text(of: &Map<String, Value>, key: &str) -> Option<String> {
    of.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// Returns the resources that content links to or contains.
fn in_content(blocks: &[ContentBlock]) -> impl Iterator<Item = &str> {
    blocks.iter().filter_map(|block| match block {
        ContentBlock::Link { uri, .. } => Some(uri.as_str()),
        ContentBlock::Resource { resource, .. } => uri_of(resource),
        ContentBlock::Text { .. } | ContentBlock::Image { .. } | ContentBlock::Audio { .. } => None,
    })
}

/// Returns the same for the messages of a `prompts/get` result.
fn in_prompt(result: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let messages = result.get("messages").and_then(Value::as_array).into_iter().flatten();
    messages.filter_map(|message| {
        let block = message.get("content")?;
        match block.get("type")?.as_str()? {
            "resource_link" => uri_of(block),
            "resource" => uri_of(block.get("resource")?),
            _ => None,
        }
    })
}

/// Returns the resources in a `resources/read` result other than the requested one.
fn other_resources<'a>(result: &'a Map<String, Value>, read: &'a str) -> impl Iterator<Item = &'a str> {
    let contents = result.get("contents").and_then(Value::as_array).into_iter().flatten();
    contents.filter_map(uri_of).filter(move |uri| *uri != read)
}

fn uri_of(of: &Value) -> Option<&str> {
    of.get("uri")?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{Expose, View};
    use serde_json::json;
    use toolwright_core::session::{Principal, Session, SessionId};

    fn caller(principal: &str) -> Caller {
        let principal = Principal { id: principal.into(), ..Principal::owner() };
        let session = Session { id: SessionId::new("s"), principal, root: "/".into(), agent: None };
        Caller::new(Arc::new(session), View { scope: Scope::Whole, expose: Expose::Direct })
    }

    #[test]
    fn the_last_linking_source_counts_per_caller() {
        let (links, p, q) = (ResourceLinks::default(), caller("p"), caller("q"));
        for (caller, server) in [(&p, "a"), (&p, "b"), (&q, "c")] {
            links.note(caller, server, std::iter::once("x://1"));
        }
        assert_eq!((links.of(&p, "x://1").as_deref(), links.of(&q, "x://1").as_deref()), (Some("b"), Some("c")));
        assert_eq!((links.of(&p, "x://2"), links.of(&caller("r"), "x://1")), (None, None));
    }

    #[test]
    fn links_are_bounded_to_the_newest() {
        let (links, caller) = (ResourceLinks::default(), caller("p"));
        let uris: Vec<String> = (0..3 * MAX_LINKS).map(|at| format!("x://{at}")).collect();
        links.note(&caller, "a", uris.iter().map(String::as_str).chain(["x".repeat(MAX_LINK + 1).as_str()]));
        let is_kept = |at: usize| links.of(&caller, &uris[at]).is_some();
        assert_eq!((is_kept(0), is_kept(2 * MAX_LINKS), is_kept(3 * MAX_LINKS - 1)), (false, true, true));
        assert!(links.of(&caller, &"x".repeat(MAX_LINK + 1)).is_none());
        assert!(links.0.lock().expect("links").iter().map(HashMap::len).sum::<usize>() <= 2 * MAX_LINKS);
    }

    #[test]
    fn links_and_what_is_embedded_name_resources() {
        let blocks = json!([
            {"type": "text", "text": "x://text"},
            {"type": "resource_link", "uri": "x://link", "name": "n"},
            {"type": "resource", "resource": {"uri": "x://held", "text": "t"}},
            {"type": "resource", "resource": {"text": "t"}},
        ]);
        let content: Vec<ContentBlock> = serde_json::from_value(blocks.clone()).expect("blocks");
        assert_eq!(in_content(&content).collect::<Vec<_>>(), ["x://link", "x://held"]);
        let messages = blocks.as_array().expect("a list").iter().map(|block| json!({"role": "user", "content": block}));
        let prompt = json!({"messages": messages.collect::<Vec<_>>()});
        let prompt = prompt.as_object().expect("object");
        assert_eq!(in_prompt(prompt).collect::<Vec<_>>(), ["x://link", "x://held"]);
        let read = json!({"contents": [{"uri": "x://dir"}, {"uri": "x://dir/a"}, {}, 5]});
        let read = read.as_object().expect("object");
        assert_eq!(other_resources(read, "x://dir").collect::<Vec<_>>(), ["x://dir/a"]);
    }
}
