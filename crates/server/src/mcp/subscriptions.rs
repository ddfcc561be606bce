//! Who is to be told when a resource changes. A source is subscribed to once, for all of its subscribers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde_json::{Map, Value};
use toolwright_core::error::ToolError;
use toolwright_mcp::merge::Owned;

use super::call::{Caller, Work};
use super::message::RpcError;
use super::view::Scope;
use crate::Gateway;

const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";

/// A provider and the source's own address of a resource.
type Place = (String, String);

/// How many want to hear of what.
#[derive(Default)]
pub(crate) struct Subscribers(Mutex<HashMap<Place, Arc<Told>>>);

/// How many are told of one resource; with none its source is not subscribed to. Locked while the source is asked, so
/// that what it is told keeps its order, and nobody counts on a subscription that the source has not taken.
type Told = tokio::sync::Mutex<usize>;

impl Subscribers {
    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Arc<Told>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, owned: &Owned) -> Arc<Told> {
        Arc::clone(self.lock().entry((owned.server.clone(), owned.own.clone())).or_default())
    }

    /// Forgets a resource that nobody else looks at.
    fn tidy(&self, owned: &Owned, told: Arc<Told>) {
        let mut all = self.lock();
        drop(told);
        let key = (owned.server.clone(), owned.own.clone());
        let is_idle = |told: &Arc<Told>| {
            Arc::strong_count(told) == 1 && told.try_lock().is_ok_and(|subscribers| *subscribers == 0)
        };
        if all.get(&key).is_some_and(is_idle) {
            all.remove(&key);
        }
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
        if gateway.is_draining() {
            return;
        }
        let (owned, caller) = (self.owned.clone(), self.on_behalf_of.clone());
        runtime.spawn(async move {
            let told = gateway.subscribers.of(&owned);
            let mut subscribers = told.lock().await;
            *subscribers = subscribers.saturating_sub(1);
            let work = Work::of_nobody(&gateway, caller);
            if *subscribers == 0
                && let Ok(provider) = work.provider(&owned.server)
                && let Err(error) = work.tell_source(&provider, UNSUBSCRIBE, uri_argument(owned.own.clone())).await
            {
                tracing::debug!("{}: {UNSUBSCRIBE} failed: {}", owned.server, error.message);
            }
            drop(subscribers);
            gateway.subscribers.tidy(&owned, told);
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
        let owned = self.subscribable(uri).await?;
        let subscription = self.interest(owned).await?;
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

    /// Whose resource this is, if it can be subscribed to.
    async fn subscribable(&self, uri: &str) -> Result<Owned, RpcError> {
        self.sources_with(SUBSCRIBE).await?;
        match &self.caller.view.scope {
            Scope::Provider(name) => Ok(Owned { server: name.to_string(), own: uri.to_owned() }),
            Scope::Whole | Scope::View(_) => self
                .resource_owner(uri)
                .await?
                .ok_or_else(|| RpcError::invalid_params("no server of this address has such a resource")),
        }
    }

    /// Subscribes to a resource among others; a source that says nothing is not waited for.
    pub(crate) async fn interest_in_time(&self, uri: &str) -> Result<Subscription, RpcError> {
        let owned = self.subscribable(uri).await?;
        let provider = self.provider(&owned.server)?;
        self.in_time(&provider, SUBSCRIBE, |work| async move { work.interest(owned).await }).await
    }

    /// Subscribes to a resource at its source, unless somebody has.
    async fn interest(&self, owned: Owned) -> Result<Subscription, RpcError> {
        let provider = self.provider(&owned.server)?;
        if !self.has_method(&provider, SUBSCRIBE).await {
            return Err(RpcError::method_not_found(SUBSCRIBE));
        }
        let told = self.gateway.subscribers.of(&owned);
        let mut subscribers = tokio::select! {
            biased;
            subscribers = Arc::clone(&told).lock_owned() => subscribers,
            cause = self.cancel.cancelled() => {
                self.gateway.subscribers.tidy(&owned, told);
                return Err(RpcError::new(RpcError::INTERNAL, ToolError::canceled(cause).message().to_owned()));
            }
        };
        if *subscribers == 0
            && let Err(error) = self.ask_source(&provider, SUBSCRIBE, uri_argument(owned.own.clone())).await
        {
            drop(subscribers);
            self.gateway.subscribers.tidy(&owned, told);
            return Err(error);
        }
        *subscribers += 1;
        let on_behalf_of = Caller::new(Arc::clone(&self.caller.session), self.caller.view.clone());
        Ok(Subscription { owned, gateway: Arc::downgrade(&self.gateway), on_behalf_of })
    }
}

fn wanted(arguments: &Map<String, Value>) -> Result<&str, RpcError> {
    let uri = arguments.get("uri").and_then(Value::as_str);
    uri.ok_or_else(|| RpcError::invalid_params("a subscription needs the `uri` of a resource"))
}
