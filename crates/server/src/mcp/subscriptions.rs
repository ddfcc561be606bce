//! Who is to be told when a resource changes. A source is subscribed to once, for all of its subscribers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::{StreamExt as _, stream};
use serde_json::{Map, Value};
use tokio::sync::MutexGuard;
use toolwright_core::catalogue::Provider;
use toolwright_core::error::ToolError;
use toolwright_mcp::merge::Owned;

use super::call::{Caller, Work};
use super::message::RpcError;
use super::patience::ABREAST;
use super::view::Scope;
use crate::Gateway;

const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";

/// A provider and the source's own address of a resource.
type Place = (String, String);

/// How many want to hear of what.
#[derive(Default)]
pub(crate) struct Subscribers(Mutex<HashMap<Place, Arc<Told>>>);

/// Who is told of one resource. Locked while the source is asked, so that what it is told keeps its order, and nobody
/// counts on a subscription that the source has not taken.
type Told = tokio::sync::Mutex<Following>;

/// How many are told of one resource; with none its source is not subscribed to.
#[derive(Default)]
struct Following {
    subscribers: usize,
    /// Who took the subscription: another may have its name meanwhile.
    at: Option<Weak<dyn Provider>>,
}

impl Following {
    fn is_at(&self, provider: &Arc<dyn Provider>) -> bool {
        let at = self.at.as_ref().filter(|_| self.subscribers > 0);
        at.is_some_and(|at| std::ptr::addr_eq(at.as_ptr(), Arc::as_ptr(provider)))
    }
}

impl Subscribers {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Place, Arc<Told>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, owned: &Owned) -> Arc<Told> {
        Arc::clone(self.lock().entry((owned.server.clone(), owned.own.clone())).or_default())
    }

    /// Whether somebody follows a resource of this source that another took the subscription to.
    fn is_astray(&self, owned: &Owned, provider: &Arc<dyn Provider>) -> bool {
        let told = self.lock().get(&(owned.server.clone(), owned.own.clone())).map(Arc::clone);
        // Where it is locked its source is being asked.
        told.is_some_and(|told| {
            told.try_lock().is_ok_and(|following| following.subscribers > 0 && !following.is_at(provider))
        })
    }

    /// Forgets a resource that nobody else looks at.
    fn tidy(&self, owned: &Owned, told: Arc<Told>) {
        let mut all = self.lock();
        drop(told);
        let key = (owned.server.clone(), owned.own.clone());
        let is_idle = |told: &Arc<Told>| {
            Arc::strong_count(told) == 1 && told.try_lock().is_ok_and(|following| following.subscribers == 0)
        };
        if all.get(&key).is_some_and(is_idle) {
            all.remove(&key);
        }
    }
}

/// For whom a resource is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follower {
    /// One more than before.
    New,
    /// Those who do already, if anybody does.
    Known,
}

/// One subscriber's interest in one resource; it ends with the guard.
pub(crate) struct Subscription {
    owned: Owned,
    gateway: Weak<Gateway>,
    /// On whose behalf the source is told that nobody is interested any more; without what it keeps.
    on_behalf_of: Caller,
}

impl Subscription {
    /// Whose resource it is.
    pub(crate) fn owned(&self) -> &Owned {
        &self.owned
    }

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
            let mut following = told.lock().await;
            let work = Work::of_nobody(&gateway, caller);
            let provider = work.provider(&owned.server).ok().filter(|provider| following.is_at(provider));
            following.subscribers = following.subscribers.saturating_sub(1);
            if following.subscribers == 0
                && let Some(provider) = provider
                && let Err(error) = work.tell_source(&provider, UNSUBSCRIBE, uri_argument(owned.own.clone())).await
            {
                tracing::debug!("{}: {UNSUBSCRIBE} failed: {}", owned.server, error.message);
            }
            drop(following);
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
        self.follow(&owned, &provider, Follower::New).await?;
        let on_behalf_of = Caller::new(Arc::clone(&self.caller.session), self.caller.view.clone());
        Ok(Subscription { owned, gateway: Arc::downgrade(&self.gateway), on_behalf_of })
    }

    /// Has a source take the subscription to one of its resources, unless it has.
    async fn follow(&self, owned: &Owned, provider: &Arc<dyn Provider>, follower: Follower) -> Result<(), RpcError> {
        let told = self.gateway.subscribers.of(owned);
        let taken = tokio::select! {
            biased;
            following = told.lock() => self.take(following, owned, provider, follower).await,
            cause = self.cancel.cancelled() => {
                Err(RpcError::new(RpcError::INTERNAL, ToolError::canceled(cause).message().to_owned()))
            }
        };
        self.gateway.subscribers.tidy(owned, told);
        taken
    }

    async fn take(
        &self,
        mut following: MutexGuard<'_, Following>,
        owned: &Owned,
        provider: &Arc<dyn Provider>,
        follower: Follower,
    ) -> Result<(), RpcError> {
        if follower == Follower::Known && following.subscribers == 0 {
            return Ok(());
        }
        if !following.is_at(provider) {
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
    /// Subscribes anew, beside all else, to those of these resources whose source is another one of its name than took
    /// the subscription.
    pub(crate) fn follow_again(self: &Arc<Self>, caller: &Caller, followed: Vec<Owned>) {
        if followed.is_empty() || self.is_draining() {
            return;
        }
        let sources = self.options.catalogue.sources();
        let of = |owned: Owned| {
            let provider = sources.iter().find(|provider| provider.name() == owned.server)?;
            self.subscribers.is_astray(&owned, provider).then(|| (owned, Arc::clone(provider)))
        };
        let astray: Vec<_> = followed.into_iter().filter_map(of).collect();
        if astray.is_empty() {
            return;
        }
        let work = Work::of_nobody(self, Caller::new(Arc::clone(&caller.session), caller.view.clone()));
        tokio::spawn(async move {
            let asking: Vec<_> = astray.iter().map(|(owned, provider)| work.again_in_time(owned, provider)).collect();
            stream::iter(asking).buffer_unordered(ABREAST).collect::<()>().await;
        });
    }
}

impl Work {
    /// One that says nothing is asked again when the catalogue changes next.
    async fn again_in_time(&self, owned: &Owned, provider: &Arc<dyn Provider>) {
        let (resource, source) = (owned.clone(), Arc::clone(provider));
        let follow = |work: Self| async move { work.follow(&resource, &source, Follower::Known).await };
        if let Err(error) = self.in_time(provider, SUBSCRIBE, follow).await {
            tracing::debug!("{}: {SUBSCRIBE} failed: {}", owned.server, error.message);
        }
    }
}

fn wanted(arguments: &Map<String, Value>) -> Result<&str, RpcError> {
    let uri = arguments.get("uri").and_then(Value::as_str);
    uri.ok_or_else(|| RpcError::invalid_params("a subscription needs the `uri` of a resource"))
}
