//! Notifications outside of requests: changed lists, changed resources, and log messages of sources.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{ListKind, SourceNotice};
use toolwright_runtime::catalogue::Notice;

use super::AT_ONCE;
use crate::mcp::message::{Filter, Id, notification};
use crate::mcp::protocol::Level;
use crate::mcp::request::McpRequestContext;
use crate::mcp::session::{Caller, Subscription, nearest};
use crate::view::Scope;
use crate::{Gateway, ServerInfo};

/// Changes within this time become one notification.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The most resources of one subscription. The client waits while sources are asked, so there are fewer than in a
/// session.
const MAX_GRANTED: usize = 256;

/// The granted part of a subscription (2026-07-28).
pub(crate) struct GrantedSubscription {
    pub(crate) id: Id,
    pub(crate) filter: Filter,
    /// Resources by the addresses that the client uses.
    resources: Vec<(String, Subscription)>,
}

/// The receiver of notifications.
enum Listener {
    /// A session's client, which gets everything and subscribes to resources by requests.
    Session,
    /// A subscription, which gets what it was granted.
    Subscription(GrantedSubscription),
}

impl Listener {
    fn wants(&self, of: impl Fn(&Filter) -> bool) -> bool {
        match self {
            Self::Session => true,
            Self::Subscription(granted) => of(&granted.filter),
        }
    }
}

/// Fingerprints of the lists that the receiver has seen.
struct SeenLists {
    prompts: Option<ContentHash>,
    /// For resources and for templates.
    resources: [Option<ContentHash>; 2],
}

impl SeenLists {
    fn of(gateway: &Gateway, caller: &Caller) -> Self {
        let fingerprint = |kind| gateway.list_fingerprint(caller, kind);
        Self {
            prompts: fingerprint(ListKind::Prompts),
            resources: [ListKind::Resources, ListKind::Templates].map(fingerprint),
        }
    }
}

/// The notifications for one caller, limited to what it may see.
pub(crate) struct Notifications {
    gateway: Arc<Gateway>,
    caller: Caller,
    listener: Listener,
    changes: watch::Receiver<u64>,
    notices: broadcast::Receiver<Notice>,
    tools_fingerprint: ContentHash,
    seen_lists: SeenLists,
}

impl Notifications {
    /// Creates the notifications of a session's client, from now on.
    pub(crate) fn of_session(gateway: &Arc<Gateway>, caller: &Caller) -> Self {
        Self::new(gateway, caller, Listener::Session)
    }

    /// Creates the notifications of a subscription, from now on.
    pub(crate) fn of_subscription(gateway: &Arc<Gateway>, caller: &Caller, granted: GrantedSubscription) -> Self {
        Self::new(gateway, caller, Listener::Subscription(granted))
    }

    fn new(gateway: &Arc<Gateway>, caller: &Caller, listener: Listener) -> Self {
        let changes = Self {
            changes: gateway.options.catalogue.changes(),
            notices: gateway.options.catalogue.notices(),
            tools_fingerprint: gateway.tools(&caller.view, &caller.session).fingerprint,
            seen_lists: SeenLists::of(gateway, caller),
            gateway: Arc::clone(gateway),
            caller: caller.clone(),
            listener,
        };
        // Sources may have changed before the stream was opened, or while the subscription was granted.
        changes.resubscribe();
        changes
    }

    /// Starts at the tool list with this fingerprint, which the client has.
    pub(crate) fn since(mut self, tools_fingerprint: ContentHash) -> Self {
        if self.tools_fingerprint != tools_fingerprint {
            self.changes.mark_changed();
        }
        self.tools_fingerprint = tools_fingerprint;
        self
    }

    /// Returns the notifications as a stream.
    pub(crate) fn stream(self) -> impl Stream<Item = Bytes> + Send {
        stream::unfold((self, Vec::new()), |(mut changes, mut due)| async move {
            while due.is_empty() {
                due = changes.next().await?;
                due.reverse();
            }
            let notification = due.pop()?;
            Some((notification, (changes, due)))
        })
    }

    /// Returns the next notifications, possibly an empty list; `None` at the end. Not cancel-safe: poll it to
    /// completion.
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        tokio::select! {
            changed = self.changes.changed() => {
                changed.ok()?;
                tokio::time::sleep(DEBOUNCE).await;
                self.changes.mark_unchanged();
                Some(self.changed())
            }
            noticed = self.notices.recv() => match noticed {
                Ok(Notice { provider, notice }) => Some(self.noticed(&provider, notice).into_iter().collect()),
                Err(RecvError::Lagged(_)) => Some(self.all_changed()),
                Err(RecvError::Closed) => None,
            },
        }
    }

    /// Returns the notifications after a change of the catalogue.
    fn changed(&mut self) -> Vec<Bytes> {
        let mut due = Vec::new();
        // A client without a session gets the address's current exposure with its next list.
        if matches!(self.listener, Listener::Subscription(_)) && self.caller.expose_asked.is_none() {
            self.caller.view.expose = self.gateway.usual_expose(&self.caller.view.scope);
        }
        let now = self.gateway.tools(&self.caller.view, &self.caller.session).fingerprint;
        if now != self.tools_fingerprint {
            self.tools_fingerprint = now;
            let is_wanted = self.listener.wants(|filter| filter.tools_list_changed);
            due.extend(is_wanted.then(|| self.notification("notifications/tools/list_changed", json!({}))));
        }
        let lists = SeenLists::of(&self.gateway, &self.caller);
        let before = std::mem::replace(&mut self.seen_lists, lists);
        if before.resources != self.seen_lists.resources {
            let is_wanted = self.listener.wants(|filter| filter.resources_list_changed);
            due.extend(is_wanted.then(|| self.notification("notifications/resources/list_changed", json!({}))));
        }
        if before.prompts != self.seen_lists.prompts {
            let is_wanted = self.listener.wants(|filter| filter.prompts_list_changed);
            due.extend(is_wanted.then(|| self.notification("notifications/prompts/list_changed", json!({}))));
        }
        self.resubscribe();
        due
    }

    /// Subscribes again at replaced sources, and sends them the session's log level.
    fn resubscribe(&self) {
        if matches!(self.listener, Listener::Session) {
            self.gateway.resend_level(&self.caller);
        }
        let followed = match &self.listener {
            Listener::Session => self.caller.client.followed(),
            Listener::Subscription(granted) => granted.resources.iter().map(|(_, at)| at.owned().clone()).collect(),
        };
        self.gateway.resubscribe(&self.caller, followed);
    }

    /// Returns the notifications after notices were missed: every subscribed resource may have changed.
    fn all_changed(&self) -> Vec<Bytes> {
        let subscribed = match &self.listener {
            Listener::Session => self.caller.client.subscribed(),
            Listener::Subscription(granted) => granted.resources.iter().map(|(shown, _)| shown.clone()).collect(),
        };
        subscribed.iter().map(|shown| self.updated(shown)).collect()
    }

    fn updated(&self, listed_uri: &str) -> Bytes {
        self.notification("notifications/resources/updated", json!({"uri": listed_uri}))
    }

    fn noticed(&self, provider: &str, notice: SourceNotice) -> Option<Bytes> {
        let method = match &notice {
            // The catalogue refreshes the list and reports the change.
            SourceNotice::ResourcesChanged | SourceNotice::PromptsChanged => return None,
            SourceNotice::ResourceUpdated { .. } => "resources/read",
            SourceNotice::SessionLog { session, .. } if *session != self.caller.session.id => return None,
            SourceNotice::Log(_) | SourceNotice::SessionLog { .. } => "logging/setLevel",
            SourceNotice::ElicitationComplete { id } => return self.elicited(provider, id),
        };
        let scope = &self.caller.view.scope;
        let is_here = match scope {
            Scope::Provider(name) => **name == *provider,
            Scope::Whole | Scope::View(_) => self.gateway.shows_method(scope, provider, method),
        };
        if !is_here {
            return None;
        }
        match notice {
            SourceNotice::ResourceUpdated { uri } => {
                self.subscribed_to(provider, &uri).map(|shown| self.updated(&shown))
            }
            SourceNotice::Log(message) | SourceNotice::SessionLog { message, .. } => match self.listener {
                Listener::Session if self.caller.client.wants(Level::of_message(&message)) => {
                    Some(notification("notifications/message", Some(&message)))
                }
                // 2026-07-28 sends log messages within requests only.
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the notification, only for the session's client that was asked to open the page (MCP 2025-11-25,
    /// "Completion Notifications for URL Mode Elicitation").
    fn elicited(&self, provider: &str, id: &str) -> Option<Bytes> {
        let is_here = || match &self.caller.view.scope {
            Scope::Provider(name) => **name == *provider,
            Scope::Whole => true,
            Scope::View(_) => {
                let tools = self.gateway.tools(&self.caller.view, &self.caller.session);
                tools.snapshot.list().iter().any(|entry| entry.provider.name() == provider)
            }
        };
        let was_asked =
            matches!(self.listener, Listener::Session) && is_here() && self.caller.client.page_is_done(provider, id);
        was_asked.then(|| self.notification("notifications/elicitation/complete", json!({"elicitationId": id})))
    }

    fn subscribed_to(&self, provider: &str, uri: &str) -> Option<String> {
        match &self.listener {
            Listener::Session => self.caller.client.subscribed_to(provider, uri),
            Listener::Subscription(granted) => {
                nearest(granted.resources.iter().map(|(shown, at)| (shown, at)), provider, uri)
            }
        }
    }

    fn notification(&self, method: &str, params: Value) -> Bytes {
        match &self.listener {
            Listener::Subscription(granted) => {
                notification(method, Some(&WithSubscriptionId::new(&granted.id, params)))
            }
            Listener::Session => {
                let is_bare = params.as_object().is_some_and(Map::is_empty);
                notification(method, (!is_bare).then_some(&params))
            }
        }
    }
}

/// Parameters or a result that name their subscription. The id is written exactly as received.
#[derive(Serialize)]
pub(crate) struct WithSubscriptionId<'a> {
    #[serde(flatten)]
    fields: Value,
    #[serde(rename = "_meta")]
    meta: SubscriptionMeta<'a>,
}

#[derive(Serialize)]
struct SubscriptionMeta<'a> {
    #[serde(rename = "io.modelcontextprotocol/subscriptionId")]
    subscription: &'a Id,
    #[serde(rename = "io.modelcontextprotocol/serverInfo", skip_serializing_if = "Option::is_none")]
    server: Option<&'a ServerInfo>,
}

impl<'a> WithSubscriptionId<'a> {
    /// Wraps these fields of an object without `_meta`.
    pub(crate) fn new(subscription: &'a Id, fields: Value) -> Self {
        Self { fields, meta: SubscriptionMeta { subscription, server: None } }
    }

    /// Adds the server's info.
    pub(crate) fn by(mut self, server: &'a ServerInfo) -> Self {
        self.meta.server = Some(server);
        self
    }
}

impl Gateway {
    /// Grants the available part of a subscription, and subscribes at the sources.
    pub(crate) async fn grant(self: &Arc<Self>, caller: &Caller, id: Id, requested: Filter) -> GrantedSubscription {
        let capabilities = self.capabilities(caller);
        let announces_changes_of = |part: &str| capabilities.get(part).is_some_and(|part| part["listChanged"] == true);
        let mut filter = Filter {
            tools_list_changed: requested.tools_list_changed,
            prompts_list_changed: requested.prompts_list_changed && announces_changes_of("prompts"),
            resources_list_changed: requested.resources_list_changed && announces_changes_of("resources"),
            resource_subscriptions: Vec::new(),
        };
        // The client waits for this, so its approver may be asked.
        let work = McpRequestContext::detached(self, caller.clone()).asking(&self.options.approver);
        let uris = requested.resource_subscriptions.into_iter().take(MAX_GRANTED);
        let asking: Vec<_> = uris.map(|uri| async { (work.subscribe_in_time(&uri).await, uri) }).collect();
        let mut asking = stream::iter(asking).buffered(AT_ONCE);
        let mut resources = Vec::new();
        while let Some((interest, uri)) = asking.next().await {
            match interest {
                Ok(subscription) => {
                    filter.resource_subscriptions.push(uri.clone());
                    resources.push((uri, subscription));
                }
                Err(error) => tracing::debug!("{uri} cannot be subscribed to: {}", error.message),
            }
        }
        drop(asking);
        GrantedSubscription { id, filter, resources }
    }
}
