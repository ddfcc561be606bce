//! Who is to be told when a resource changes. A source is subscribed to once, for all of its subscribers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde_json::{Map, Value};
use toolwright_mcp::merge::Owned;

use super::call::{Caller, Work};
use super::message::RpcError;
use super::view::Scope;
use crate::Gateway;

const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";

/// How many want to hear of what: by provider and the source's own address.
#[derive(Default)]
pub(crate) struct Subscribers(Mutex<HashMap<(String, String), usize>>);

impl Subscribers {
    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the first.
    fn enter(&self, owned: &Owned) -> bool {
        let mut all = self.lock();
        let count = all.entry((owned.server.clone(), owned.own.clone())).or_default();
        *count += 1;
        *count == 1
    }

    /// Whether this was the last.
    fn leave(&self, owned: &Owned) -> bool {
        let mut all = self.lock();
        let key = (owned.server.clone(), owned.own.clone());
        let Some(count) = all.get_mut(&key) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            all.remove(&key);
        }
        last
    }
}

/// One subscriber's interest in one resource; it ends with the guard.
pub(crate) struct Subscription {
    owned: Owned,
    gateway: Weak<Gateway>,
    /// On whose behalf the source is told that nobody is interested any more; without what it keeps.
    on_behalf_of: Caller,
}

impl Subscription {
    pub(crate) fn is_of(&self, provider: &str, uri: &str) -> bool {
        self.owned.server == provider && self.owned.own == uri
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(gateway) = self.gateway.upgrade() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !gateway.subscribers.leave(&self.owned) || gateway.is_draining() {
            return;
        }
        let (owned, caller) = (self.owned.clone(), self.on_behalf_of.clone());
        runtime.spawn(async move {
            let work = Work::of_nobody(&gateway, caller);
            if let Ok(provider) = work.provider(&owned.server) {
                let arguments = uri_argument(owned.own);
                if let Err(error) = work.ask_source(&provider, UNSUBSCRIBE, arguments).await {
                    tracing::debug!("{}: {UNSUBSCRIBE} failed: {}", owned.server, error.message);
                }
            }
        });
    }
}

fn uri_argument(uri: String) -> Map<String, Value> {
    Map::from_iter([("uri".to_owned(), Value::String(uri))])
}

impl Work {
    /// `resources/subscribe` of a session.
    pub(crate) async fn subscribe(&self, arguments: Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        let uri = wanted(&arguments)?;
        let subscription = self.interest(uri).await?;
        self.caller.peer.subscribe(uri, subscription).ok_or_else(|| {
            let max = super::peer::MAX_SUBSCRIBED;
            RpcError::new(RpcError::BUSY, format!("a session subscribes to at most {max} resources"))
        })?;
        Ok(Map::new())
    }

    /// `resources/unsubscribe` of a session; what was not subscribed to is no error.
    pub(crate) async fn unsubscribe(&self, arguments: &Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        self.sources_with(UNSUBSCRIBE).await?;
        self.caller.peer.unsubscribe(wanted(arguments)?);
        Ok(Map::new())
    }

    /// Subscribes to a resource at its source, unless somebody has.
    pub(crate) async fn interest(&self, uri: &str) -> Result<Subscription, RpcError> {
        self.sources_with(SUBSCRIBE).await?;
        let owned = match &self.caller.view.scope {
            Scope::Provider(name) => Owned { server: name.to_string(), own: uri.to_owned() },
            Scope::Whole | Scope::View(_) => self
                .resource_owner(uri)
                .await?
                .ok_or_else(|| RpcError::invalid_params("no server of this address has such a resource"))?,
        };
        let provider = self.provider(&owned.server)?;
        let first = self.gateway.subscribers.enter(&owned);
        let on_behalf_of = Caller::new(Arc::clone(&self.caller.session), self.caller.view.clone());
        let subscription = Subscription { owned, gateway: Arc::downgrade(&self.gateway), on_behalf_of };
        if first {
            self.ask_source(&provider, SUBSCRIBE, uri_argument(subscription.owned.own.clone())).await?;
        }
        Ok(subscription)
    }
}

fn wanted(arguments: &Map<String, Value>) -> Result<&str, RpcError> {
    let uri = arguments.get("uri").and_then(Value::as_str);
    uri.ok_or_else(|| RpcError::invalid_params("a subscription needs the `uri` of a resource"))
}
