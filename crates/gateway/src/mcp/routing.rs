//! Which source a prompt or resource belongs to, where one address has many sources.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolwright_core::catalogue::{ListKind, Provider};
use toolwright_mcp::address::{fits, qualified, qualify};
use toolwright_mcp::convert::no_resource;
use toolwright_mcp::merge::{Owned, readdress};

use super::call::Work;
use super::message::RpcError;
use super::protocol::Era;
use super::resource_links::{beside, in_prompt};

impl Work {
    /// Has the source do it whose prompt, resource or template this is.
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

    /// Whose this is, by the list.
    async fn owner(&self, kind: ListKind, shown: &str) -> Result<Option<Owned>, RpcError> {
        Ok(self.merged_list(kind).await?.owners.get(shown).cloned())
    }

    /// Whose resource this is: by its address if that names the source, by the list, by the result that named it last, by
    /// the nearest template, and at last because no other source has any. A result does not take away what a list has of
    /// another source alone, nor what is of a template of others alone.
    pub(crate) async fn resource_owner(&self, uri: &str) -> Result<Option<Owned>, RpcError> {
        let sources = self.sources_with("resources/read")?;
        let listed = async |uri: &str| self.owner(ListKind::Resources, uri).await.ok().flatten();
        if let Some((server, own)) = qualified(uri)
            && sources.iter().any(|provider| provider.name() == server)
        {
            let listed = listed(uri).await.filter(|owned| owned.server == server);
            return Ok(Some(listed.unwrap_or_else(|| Owned { server: server.to_owned(), own: own.to_owned() })));
        }
        let linked = self.linked_by(uri, &sources);
        if let Some(owned) = listed(uri).await {
            return Ok(Some(match linked.filter(|linked| *linked != owned.server) {
                // Its own is listed under another address, since this one was taken.
                Some(linked) => listed(&qualify(&linked, uri)).await.unwrap_or(owned),
                None => owned,
            }));
        }
        let templates = self.merged_list(ListKind::Templates).await.ok();
        let nearest = templates.and_then(|list| nearest(&list.owners, uri, &sources, linked.as_deref()));
        let own = |server: &str| Owned { server: server.to_owned(), own: uri.to_owned() };
        Ok(match (nearest.or(linked), &sources[..]) {
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
        self.note_links(&server, beside(&result, &own));
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
        self.note_links(&server, in_prompt(&result));
        Ok(result)
    }

    async fn prompt(&self, shown: &str) -> Result<Owned, RpcError> {
        let unknown = || {
            let shown: String = shown.chars().take(100).collect();
            RpcError::invalid_params(format!("there is no prompt called `{shown}`"))
        };
        self.owner(ListKind::Prompts, shown).await?.ok_or_else(unknown)
    }

    async fn complete(&self, era: Era, mut arguments: Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        self.sources_with("completion/complete")?;
        let refuse = || RpcError::invalid_params("`ref` is a prompt or a resource template");
        let of = arguments.get_mut("ref").and_then(Value::as_object_mut).ok_or_else(refuse)?;
        let (key, owned) = match of.get("type").and_then(Value::as_str) {
            Some("ref/prompt") => {
                let shown = text(of, "name").ok_or_else(refuse)?;
                ("name", self.prompt(&shown).await?)
            }
            Some("ref/resource") => {
                let shown = text(of, "uri").ok_or_else(refuse)?;
                let template = self.owner(ListKind::Templates, &shown).await.ok().flatten();
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
/// an address that was made of another says its source. The source whose result `linked` to the address comes first where it has a
/// template for it at all; of two that are as near, that of the source that comes first.
fn nearest(
    templates: &HashMap<String, Owned>,
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
