//! Subscriptions to resources. The gateway subscribes at a source once, for all clients that follow a resource.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::{StreamExt as _, stream};
use serde_json::{Map, Value};
use tokio::sync::MutexGuard;
use toolwright_core::catalogue::Provider;
use toolwright_core::error::ToolError;
use toolwright_mcp::merge::ItemOrigin;

use super::AT_ONCE;
use crate::Gateway;
use crate::mcp::message::RpcError;
use crate::mcp::request::McpRequestContext;
use crate::mcp::session::{Caller, MAX_SUBSCRIBED, Subscription};
use crate::view::Scope;

const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";

/// A provider, and the source's own address of a resource.
type ResourceKey = (String, String);

/// The followed resources.
#[derive(Default)]
pub(crate) struct Subscribers(Mutex<HashMap<ResourceKey, Arc<SharedUpstreamSubscription>>>);

/// Locked while the source is asked, so that requests to it keep their order, and no caller relies on a subscription
/// that the source has not accepted.
type SharedUpstreamSubscription = tokio::sync::Mutex<UpstreamSubscription>;

/// One followed resource. Without subscribers the gateway is not subscribed.
#[derive(Default)]
struct UpstreamSubscription {
    subscribers: usize,
    /// The provider that accepted the subscription. Another provider may have its name now.
    at: Option<Weak<dyn Provider>>,
}

impl UpstreamSubscription {
    fn is_subscribed_at(&self, provider: &Arc<dyn Provider>) -> bool {
        let at = self.at.as_ref().filter(|_| self.subscribers > 0);
        at.is_some_and(|at| std::ptr::addr_eq(at.as_ptr(), Arc::as_ptr(provider)))
    }
}

impl Subscribers {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ResourceKey, Arc<SharedUpstreamSubscription>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, owned: &ItemOrigin) -> Arc<SharedUpstreamSubscription> {
        Arc::clone(self.lock().entry(place(owned)).or_default())
    }

    /// Returns whether a followed resource is subscribed at a provider other than this one.
    fn is_at_other_provider(&self, owned: &ItemOrigin, provider: &Arc<dyn Provider>) -> bool {
        // A locked entry is being subscribed right now. No reference may be held here, because `tidy` could then not
        // remove the entry.
        self.lock().get(&place(owned)).is_some_and(|shared| {
            shared.try_lock().is_ok_and(|following| following.subscribers > 0 && !following.is_subscribed_at(provider))
        })
    }

    /// Forgets a resource that has no subscriber and no other user.
    fn prune(&self, owned: &ItemOrigin, shared: Arc<SharedUpstreamSubscription>) {
        let mut all = self.lock();
        drop(shared);
        let key = place(owned);
        let is_idle = |shared: &Arc<SharedUpstreamSubscription>| {
            Arc::strong_count(shared) == 1 && shared.try_lock().is_ok_and(|following| following.subscribers == 0)
        };
        if all.get(&key).is_some_and(is_idle) {
            all.remove(&key);
        }
    }
}

fn place(owned: &ItemOrigin) -> ResourceKey {
    (owned.server.clone(), owned.own.clone())
}

/// The subscribers for whom a resource is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follower {
    /// One more subscriber.
    New,
    /// The existing subscribers, if any.
    Known,
}

/// Ends one subscriber's interest in a resource. The last one unsubscribes, on behalf of `caller`.
fn end(gateway: &Weak<Gateway>, caller: Caller, owned: ItemOrigin) {
    let Some(gateway) = gateway.upgrade() else { return };
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    if gateway.is_draining() {
        return;
    }
    runtime.spawn(async move {
        let shared = gateway.subscribers.of(&owned);
        let mut following = shared.lock().await;
        let work = McpRequestContext::detached(&gateway, caller);
        let provider = work.provider(&owned.server).ok().filter(|provider| following.is_subscribed_at(provider));
        following.subscribers = following.subscribers.saturating_sub(1);
        if following.subscribers == 0
            && let Some(provider) = provider
            && let Err(error) = work.run_method(&provider, UNSUBSCRIBE, uri_argument(owned.own.clone())).await
        {
            tracing::debug!("{}: {UNSUBSCRIBE} failed: {}", owned.server, error.message);
        }
        drop(following);
        gateway.subscribers.prune(&owned, shared);
    });
}

fn uri_argument(uri: String) -> Map<String, Value> {
    Map::from_iter([("uri".to_owned(), Value::String(uri))])
}

impl McpRequestContext {
    /// Handles `resources/subscribe` of a session.
    pub(crate) async fn subscribe(&self, arguments: Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        let uri = resource_uri(&arguments)?;
        let owned = self.subscribable(uri).await?;
        let subscription = self.subscribe_at_source(owned.clone()).await?;
        self.caller.client.subscribe(uri, subscription).ok_or_else(|| {
            RpcError::new(RpcError::BUSY, format!("a session subscribes to at most {MAX_SUBSCRIBED} resources"))
        })?;
        // The session's notification stream did not know this subscription until now.
        self.gateway.resubscribe(&self.caller, vec![owned]);
        Ok(Map::new())
    }

    /// Handles `resources/unsubscribe` of a session. An unknown subscription is ignored.
    pub(crate) async fn unsubscribe(&self, arguments: &Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        self.sources_with(UNSUBSCRIBE)?;
        self.caller.client.unsubscribe(resource_uri(arguments)?);
        Ok(Map::new())
    }

    /// Returns the source of a resource, if the address allows subscriptions.
    async fn subscribable(&self, uri: &str) -> Result<ItemOrigin, RpcError> {
        self.sources_with(SUBSCRIBE)?;
        match &self.caller.view.scope {
            Scope::Provider(name) => Ok(ItemOrigin { server: name.to_string(), own: uri.to_owned() }),
            Scope::Whole | Scope::View(_) => self
                .resource_owner(uri)
                .await?
                .ok_or_else(|| RpcError::invalid_params("no server of this address has such a resource")),
        }
    }

    /// Subscribes to one of several resources, without waiting for a silent source.
    pub(crate) async fn subscribe_in_time(&self, uri: &str) -> Result<Subscription, RpcError> {
        let owned = self.subscribable(uri).await?;
        let provider = self.provider(&owned.server)?;
        self.in_time(&provider, SUBSCRIBE, |work| async move { work.subscribe_at_source(owned).await }).await
    }

    /// Subscribes to a resource at its source, unless the gateway is subscribed.
    async fn subscribe_at_source(&self, owned: ItemOrigin) -> Result<Subscription, RpcError> {
        let provider = self.provider(&owned.server)?;
        if !self.gateway.has_method(&self.caller.view.scope, &provider, SUBSCRIBE) {
            return Err(RpcError::method_not_found(SUBSCRIBE));
        }
        self.follow(&owned, &provider, Follower::New).await?;
        let caller = Caller::new(Arc::clone(&self.caller.session), self.caller.view.clone());
        let gateway = Arc::downgrade(&self.gateway);
        Ok(Subscription::new(owned, move |owned| end(&gateway, caller, owned)))
    }

    /// Makes a source accept the subscription to a resource, unless it already has.
    async fn follow(
        &self,
        owned: &ItemOrigin,
        provider: &Arc<dyn Provider>,
        follower: Follower,
    ) -> Result<(), RpcError> {
        let shared = self.gateway.subscribers.of(owned);
        let taken = tokio::select! {
            biased;
            following = shared.lock() => self.take(following, owned, provider, follower).await,
            cause = self.cancel.cancelled() => {
                Err(RpcError::new(RpcError::INTERNAL, ToolError::canceled(cause).message().to_owned()))
            }
        };
        self.gateway.subscribers.prune(owned, shared);
        taken
    }

    async fn take(
        &self,
        mut following: MutexGuard<'_, UpstreamSubscription>,
        owned: &ItemOrigin,
        provider: &Arc<dyn Provider>,
        follower: Follower,
    ) -> Result<(), RpcError> {
        if follower == Follower::Known && following.subscribers == 0 {
            return Ok(());
        }
        if !following.is_subscribed_at(provider) {
            self.ask_source(provider, SUBSCRIBE, uri_argument(owned.own.clone())).await?;
            following.at = Some(Arc::downgrade(provider));
        }
        if follower == Follower::New {
            following.subscribers += 1;
        }
        Ok(())
    }
}

impl Gateway {
    /// Subscribes again, in the background, to those of these resources whose source was replaced. If policy asks, the
    /// subscription is denied.
    pub(crate) fn resubscribe(self: &Arc<Self>, caller: &Caller, followed: Vec<ItemOrigin>) {
        if followed.is_empty() || self.is_draining() {
            return;
        }
        let sources = self.options.catalogue.sources();
        let of = |owned: ItemOrigin| {
            let provider = sources.iter().find(|provider| provider.name() == owned.server)?;
            self.subscribers.is_at_other_provider(&owned, provider).then(|| (owned, Arc::clone(provider)))
        };
        let astray: Vec<_> = followed.into_iter().filter_map(of).collect();
        if astray.is_empty() {
            return;
        }
        let work = McpRequestContext::detached(self, Caller::new(Arc::clone(&caller.session), caller.view.clone()));
        tokio::spawn(async move {
            let again: Vec<_> =
                astray.iter().map(|(owned, provider)| work.resubscribe_source(owned, provider)).collect();
            stream::iter(again).buffer_unordered(AT_ONCE).collect::<()>().await;
        });
    }
}

impl McpRequestContext {
    /// Subscribes again. A source that does not answer is asked again after the next change of the catalogue.
    async fn resubscribe_source(&self, owned: &ItemOrigin, provider: &Arc<dyn Provider>) {
        let (resource, source) = (owned.clone(), Arc::clone(provider));
        let follow = |work: Self| async move { work.follow(&resource, &source, Follower::Known).await };
        if let Err(error) = self.in_time(provider, SUBSCRIBE, follow).await {
            tracing::debug!("{}: {SUBSCRIBE} failed: {}", owned.server, error.message);
        }
    }
}

fn resource_uri(arguments: &Map<String, Value>) -> Result<&str, RpcError> {
    let uri = arguments.get("uri").and_then(Value::as_str);
    uri.ok_or_else(|| RpcError::invalid_params("a subscription needs the `uri` of a resource"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{Expose, View};
    use toolwright_core::catalogue::ProviderKind;
    use toolwright_core::session::{Principal, Session, SessionId};
    use toolwright_core::tool::StaticProvider;

    fn owned() -> ItemOrigin {
        ItemOrigin { server: "a".into(), own: "a://one".into() }
    }

    #[test]
    fn subscriptions_after_a_client_left_are_dropped() {
        let session = Session { id: SessionId::new("s"), principal: Principal::owner(), root: "/".into(), agent: None };
        let view = View { scope: Scope::Whole, expose: Expose::Direct };
        let caller = Caller::new(Arc::new(session), view);
        let subscribe = || caller.client.subscribe("a://one", Subscription::new(owned(), |_| {}));
        assert_eq!((subscribe(), caller.client.followed().len()), (Some(()), 1));
        caller.client.close_subscriptions();
        assert_eq!((subscribe(), caller.client.followed().len()), (Some(()), 0));
    }

    #[test]
    fn looking_for_a_replaced_source_keeps_nothing() {
        let (all, source) = (Subscribers::default(), StaticProvider::new("a", ProviderKind::Mcp, Vec::new()));
        let source: Arc<dyn Provider> = Arc::new(source.expect("a provider"));
        let shared = all.of(&owned());
        assert!(!all.is_at_other_provider(&owned(), &source));
        all.prune(&owned(), shared);
        assert!(all.lock().is_empty());
    }
}
