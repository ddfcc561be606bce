//! Resources and prompts of many sources at one address.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::{Map, Value};
use tokio::sync::OnceCell;
use toolwright_core::catalogue::Provider;
use toolwright_mcp::address::{fits, qualified, qualify};
use toolwright_mcp::convert::no_resource;
use toolwright_mcp::list_validation;
use toolwright_mcp::merge::{Kind, Merged, Owned, merge, readdress};

use super::call::Work;
use super::message::{RpcError, to_json};
use super::owners::{Owns, Said, Standing};
use super::patience::{ABREAST, is_unsaid};
use super::protocol::Era;
use super::resource_links::{beside, in_prompt};

/// Pages of one source's list.
const MAX_PAGES: usize = 100;
/// Items of one source's list.
const MAX_ITEMS: usize = 10_000;

/// What was listed for one request: nothing is listed twice for it.
#[derive(Default)]
pub(crate) struct Listed {
    prompts: OnceCell<Result<Owns, RpcError>>,
    resources: OnceCell<Result<Owns, RpcError>>,
    templates: OnceCell<Result<Owns, RpcError>>,
}

impl Listed {
    fn of(&self, kind: Kind) -> &OnceCell<Result<Owns, RpcError>> {
        match kind {
            Kind::Prompts => &self.prompts,
            Kind::Resources => &self.resources,
            Kind::Templates => &self.templates,
        }
    }
}

impl Work {
    /// Answers for all sources of the address.
    pub(crate) async fn merged(
        &self,
        era: Era,
        method: &str,
        arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>, RpcError> {
        match method {
            "prompts/list" => self.list(Kind::Prompts, &arguments).await,
            "resources/list" => self.list(Kind::Resources, &arguments).await,
            "resources/templates/list" => self.list(Kind::Templates, &arguments).await,
            "prompts/get" => self.get_prompt(arguments).await,
            "resources/read" => self.read(era, arguments).await,
            "completion/complete" => self.complete(era, arguments).await,
            _ => Err(RpcError::method_not_found(method)),
        }
    }

    async fn list(&self, kind: Kind, arguments: &Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        if arguments.get("cursor").is_some_and(|cursor| !cursor.is_null()) {
            return Err(RpcError::invalid_params("this list has one page only, so no cursor is valid"));
        }
        let merged = self.merge_lists(kind).await?;
        Ok(Map::from_iter([(kind.list_key().to_owned(), Value::Array(merged.0))]))
    }

    /// Lists all sources and remembers whose what is.
    async fn merge_lists(&self, kind: Kind) -> Result<(Vec<Value>, Owns), RpcError> {
        let all = self.gateway.options.catalogue.sources();
        let sources = self.sources_with(kind.method()).await?;
        let listing: Vec<_> = sources.iter().map(|provider| self.listed(provider, kind)).collect();
        let listed: Vec<(Said, Vec<Value>)> = stream::iter(listing).buffered(ABREAST).collect().await;
        let named = sources.iter().map(|provider| provider.name()).zip(listed);
        let (said, lists) = named.map(|(name, (said, list))| ((name, said), (name, list))).unzip();
        let Merged { items, owners } = merge(kind, lists);
        let owners = Arc::new(owners);
        self.gateway.owners.remember(&self.caller.place(), kind, Arc::clone(&owners), said, &all);
        Ok((items, owners))
    }

    /// A source's whole list. One that fails takes only its own away; one that says nothing keeps its place, with what
    /// it listed last.
    async fn listed(&self, provider: &Arc<dyn Provider>, kind: Kind) -> (Said, Vec<Value>) {
        match self.list_in_time(provider, kind).await {
            Ok(list) => (Said::List(to_json(&*list)), Arc::unwrap_or_clone(list)),
            Err(error) => {
                tracing::warn!("{}: {} failed: {}", provider.name(), kind.method(), error.message);
                let last = || self.gateway.owners.last(&self.caller.place(), kind, provider.name());
                match is_unsaid(&error).then(last) {
                    Some(Some((hash, last))) => (Said::Kept(hash), last),
                    Some(None) => (Said::Missed, Vec::new()),
                    None => (Said::Failed, Vec::new()),
                }
            }
        }
    }

    /// All pages of a source's list.
    pub(crate) async fn pages(&self, provider: &Arc<dyn Provider>, kind: Kind) -> Result<Vec<Value>, RpcError> {
        let mut all = Vec::new();
        let mut seen = HashSet::new();
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let arguments = cursor.map(|cursor| ("cursor".to_owned(), Value::String(cursor))).into_iter().collect();
            let mut page = self.page(provider, kind, arguments).await?;
            if let Some(Value::Array(items)) = page.remove(kind.list_key()) {
                all.extend(items);
            }
            let era = era_of(&page);
            let next = match page.remove("nextCursor") {
                Some(Value::String(next)) if era.leads_on(&next) => next,
                _ => return Ok(all),
            };
            // Pages that go in a circle are shown once.
            if all.len() >= MAX_ITEMS || !seen.insert(next.clone()) {
                break;
            }
            cursor = Some(next);
        }
        tracing::warn!("{}: of its {} only {} are shown", provider.name(), kind.list_key(), all.len());
        Ok(all)
    }

    /// A page of a source's list as every client takes it. Its operator is told of what had to be mended, once.
    pub(crate) async fn page(
        &self,
        provider: &Arc<dyn Provider>,
        kind: Kind,
        arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>, RpcError> {
        let mut page = self.ask_source(provider, kind.method(), arguments).await?;
        let mistakes = list_validation::page(kind, &mut page);
        if let Some(line) = self.gateway.careless.news(provider, kind, mistakes) {
            tracing::warn!("{line}");
        }
        Ok(page)
    }

    /// Whose what is by new lists, which are made once for the request.
    async fn owners_now(&self, kind: Kind) -> Result<Owns, RpcError> {
        let made = || async { self.merge_lists(kind).await.map(|(_, owners)| owners) };
        self.listed.of(kind).get_or_init(made).await.clone()
    }

    /// Whose this is, by the list that the caller had, or else by a new one.
    async fn owner(&self, kind: Kind, shown: &str) -> Result<Option<Owned>, RpcError> {
        let known = self.gateway.owners.of(&self.caller.place(), kind);
        let known = known.and_then(|owners| owners.get(shown).cloned());
        // One that is gone may have left the name to another.
        if let Some(owned) = known.filter(|owned| self.provider(&owned.server).is_ok()) {
            return Ok(Some(owned));
        }
        Ok(self.owners_now(kind).await?.get(shown).cloned())
    }

    /// Whose resource this is: by its address if that names the source, by the lists, by the result that named it last, by
    /// the nearest template, and at last because no other source has any. A result does not take away what a list has of
    /// another source alone, nor what is of a template of others alone.
    pub(crate) async fn resource_owner(&self, uri: &str) -> Result<Option<Owned>, RpcError> {
        let sources = self.sources_with("resources/read").await?;
        if let Some((server, own)) = qualified(uri)
            && sources.iter().any(|provider| provider.name() == server)
        {
            let listed = self.gateway.owners.of(&self.caller.place(), Kind::Resources);
            let listed = listed.and_then(|owners| owners.get(uri).cloned()).filter(|owned| owned.server == server);
            return Ok(Some(listed.unwrap_or_else(|| Owned { server: server.to_owned(), own: own.to_owned() })));
        }
        let named = self.named(uri, &sources);
        if let Some(listed) = self.owner(Kind::Resources, uri).await.ok().flatten() {
            return Ok(Some(match named.filter(|named| *named != listed.server) {
                // Its own is listed under another address, since this one was taken.
                Some(named) => {
                    self.owner(Kind::Resources, &qualify(&named, uri)).await.ok().flatten().unwrap_or(listed)
                }
                None => listed,
            }));
        }
        let nearest = |templates: &HashMap<String, Owned>| nearest(templates, uri, &sources, named.as_deref());
        let all = self.gateway.options.catalogue.sources();
        let standing = self.gateway.owners.standing(&self.caller.place(), Kind::Templates, &all);
        let known = match &standing {
            Some(Standing::Whole(templates) | Standing::Lacking(templates)) => nearest(templates),
            None => None,
        };
        let server = match (known, standing) {
            // What fits none of them may be of a source that they lack.
            (None, None | Some(Standing::Lacking(_))) => {
                self.owners_now(Kind::Templates).await.ok().and_then(|templates| nearest(&templates))
            }
            (known, _) => known,
        };
        let server = server.or(named);
        let own = |server: &str| Owned { server: server.to_owned(), own: uri.to_owned() };
        Ok(match (server, &sources[..]) {
            (Some(server), _) => Some(own(&server)),
            (None, [only]) => Some(own(only.name())),
            (None, _) => None,
        })
    }

    async fn read(&self, era: Era, mut arguments: Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        let shown = text(&arguments, "uri").ok_or_else(|| RpcError::invalid_params("resources/read needs a `uri`"))?;
        let owned = self.resource_owner(&shown).await?;
        let Owned { server, own } = owned.ok_or_else(|| no_resource(era, &shown))?;
        arguments.insert("uri".into(), own.clone().into());
        let provider = self.provider(&server)?;
        let mut result = self.ask_source(&provider, "resources/read", arguments).await?;
        self.named_by(&server, beside(&result, &own));
        if own != shown {
            readdress(&mut result, &own, &shown);
        }
        Ok(result)
    }

    async fn get_prompt(&self, mut arguments: Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        let shown = text(&arguments, "name").ok_or_else(|| RpcError::invalid_params("prompts/get needs a `name`"))?;
        let Owned { server, own } = self.prompt(&shown).await?;
        arguments.insert("name".into(), own.into());
        let provider = self.provider(&server)?;
        let result = self.ask_source(&provider, "prompts/get", arguments).await?;
        self.named_by(&server, in_prompt(&result));
        Ok(result)
    }

    async fn prompt(&self, shown: &str) -> Result<Owned, RpcError> {
        let unknown = || {
            let shown: String = shown.chars().take(100).collect();
            RpcError::invalid_params(format!("there is no prompt called `{shown}`"))
        };
        self.owner(Kind::Prompts, shown).await?.ok_or_else(unknown)
    }

    async fn complete(&self, era: Era, mut arguments: Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        self.sources_with("completion/complete").await?;
        let refuse = || RpcError::invalid_params("`ref` is a prompt or a resource template");
        let of = arguments.get_mut("ref").and_then(Value::as_object_mut).ok_or_else(refuse)?;
        let (key, owned) = match of.get("type").and_then(Value::as_str) {
            Some("ref/prompt") => {
                let shown = text(of, "name").ok_or_else(refuse)?;
                ("name", self.prompt(&shown).await?)
            }
            Some("ref/resource") => {
                let shown = text(of, "uri").ok_or_else(refuse)?;
                let template = self.owner(Kind::Templates, &shown).await.ok().flatten();
                let owned = match template {
                    Some(owned) => Some(owned),
                    None => self.resource_owner(&shown).await?,
                };
                ("uri", owned.ok_or_else(|| no_resource(era, &shown))?)
            }
            _ => return Err(refuse()),
        };
        of.insert(key.into(), owned.own.into());
        let provider = self.provider(&owned.server)?;
        self.ask_source(&provider, "completion/complete", arguments).await
    }
}

/// Whose template is the nearest that this address can be one of, of those that are shown as their sources have them:
/// an address that was made of another says its source. The source that `named` the address comes first where it has a
/// template for it at all; of two that are as near, that of the source that comes first.
fn nearest(
    templates: &HashMap<String, Owned>,
    uri: &str,
    sources: &[Arc<dyn Provider>],
    named: Option<&str>,
) -> Option<String> {
    if let Some(named) = named
        && templates.values().any(|owned| owned.server == named && fits(&owned.own, uri).is_some())
    {
        return Some(named.to_owned());
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

/// The generation in which a source gave this page. One that speaks both may be asked over either connection; results
/// name their type since 2026-07-28.
fn era_of(page: &Map<String, Value>) -> Era {
    if page.contains_key("resultType") { Era::Modern } else { Era::Legacy }
}
