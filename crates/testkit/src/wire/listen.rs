//! Decides which connections are notified of a change: legacy connections get every change, except of resources without
//! their subscription; a modern subscription gets the kinds that it asked for and was granted.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::lock;
use super::outlet::Outlet;
use super::session::Session;
use super::{META, RpcError};

/// The most listeners; later ones are refused.
const MAX_LISTENERS: usize = 64;
/// The most resources or tasks of one subscription.
const MAX_WATCHED: usize = 256;

/// A change that clients can be notified of.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Tools,
    Prompts,
    Resources,
    /// The resource with this URI.
    Resource(String),
    /// A task, in the form of `tasks/get`.
    Task(Value),
}

impl Change {
    fn method(&self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources => "notifications/resources/list_changed",
            Self::Resource(_) => "notifications/resources/updated",
            Self::Task(_) => "notifications/tasks",
        }
    }

    fn params(&self) -> Value {
        match self {
            Self::Tools | Self::Prompts | Self::Resources => json!({}),
            Self::Resource(uri) => json!({"uri": uri}),
            Self::Task(task) => task.clone(),
        }
    }
}

/// The kinds of change that a modern client asked for and was granted.
#[derive(Debug, Default)]
struct Filter {
    granted: Value,
}

impl Filter {
    fn grant(wishes: &Value, capabilities: &Value) -> Result<Self, RpcError> {
        let mut granted = json!({});
        for (wish, capability) in [
            ("toolsListChanged", "/tools/listChanged"),
            ("promptsListChanged", "/prompts/listChanged"),
            ("resourcesListChanged", "/resources/listChanged"),
        ] {
            if wishes.get(wish) == Some(&json!(true)) && capabilities.pointer(capability) == Some(&json!(true)) {
                granted[wish] = json!(true);
            }
        }
        let tasks = format!("/extensions/{}tasks", META.replace('/', "~1"));
        for (wish, capability) in [("resourceSubscriptions", "/resources/subscribe"), ("taskIds", tasks.as_str())] {
            let Some(wanted) = wishes.get(wish) else { continue };
            let few = wanted.as_array().is_some_and(|all| all.len() <= MAX_WATCHED && all.iter().all(Value::is_string));
            if !few {
                return Err(RpcError::invalid(format!("{wish} is a list of at most {MAX_WATCHED} strings")));
            }
            if capabilities.pointer(capability).is_some_and(|able| *able != json!(false)) {
                granted[wish] = wanted.clone();
            }
        }
        Ok(Self { granted })
    }

    fn takes(&self, change: &Change) -> bool {
        let flag = |key: &str| self.granted.get(key).is_some();
        let listed = |key: &str, wanted: &str| {
            let all = self.granted.get(key).and_then(Value::as_array);
            all.is_some_and(|all| all.iter().any(|one| one == wanted))
        };
        match change {
            Change::Tools => flag("toolsListChanged"),
            Change::Prompts => flag("promptsListChanged"),
            Change::Resources => flag("resourcesListChanged"),
            Change::Resource(uri) => listed("resourceSubscriptions", uri),
            Change::Task(task) => task.get("taskId").and_then(Value::as_str).is_some_and(|id| listed("taskIds", id)),
        }
    }
}

enum ListenerPeer {
    Legacy(Arc<Session>),
    /// The id of the request that opened the subscription.
    Modern(Value, Filter),
}

pub(super) struct Listener {
    outlet: Outlet,
    ear: ListenerPeer,
}

/// All listeners.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Arc<Listener>>>);

impl Listeners {
    pub(super) fn add_legacy(&self, outlet: Outlet, session: Arc<Session>) -> bool {
        self.add(Listener { outlet, ear: ListenerPeer::Legacy(session) }).is_some()
    }

    /// Adds a modern subscription, then acknowledges it, so that no change after the acknowledgement is missed.
    pub(super) async fn add_modern(
        &self,
        outlet: Outlet,
        id: &Value,
        wishes: &Value,
        capabilities: &Value,
    ) -> Result<Arc<Listener>, RpcError> {
        let filter = Filter::grant(wishes, capabilities)?;
        let meta = json!({format!("{META}subscriptionId"): id});
        let params = json!({"_meta": meta, "notifications": filter.granted});
        let acknowledged =
            json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params});
        let listener = Listener { outlet: outlet.clone(), ear: ListenerPeer::Modern(id.clone(), filter) };
        let listener = self.add(listener).ok_or_else(|| RpcError::new(RpcError::BUSY, "too many listeners"))?;
        outlet.message(&acknowledged).await;
        Ok(listener)
    }

    fn add(&self, listener: Listener) -> Option<Arc<Listener>> {
        let mut listeners = lock(&self.0);
        listeners.retain(|listener| listener.outlet.is_open());
        if listeners.len() >= MAX_LISTENERS {
            return None;
        }
        let listener = Arc::new(listener);
        listeners.push(Arc::clone(&listener));
        Some(listener)
    }

    pub(super) fn remove(&self, listener: &Arc<Listener>) {
        lock(&self.0).retain(|other| !Arc::ptr_eq(other, listener));
    }

    pub(crate) async fn announce(&self, change: &Change) {
        let listeners = lock(&self.0).clone();
        for listener in listeners {
            let mut params = change.params();
            match (&listener.ear, change) {
                (ListenerPeer::Modern(_, filter), _) if !filter.takes(change) => continue,
                (ListenerPeer::Modern(id, _), _) => params["_meta"] = json!({format!("{META}subscriptionId"): id}),
                (ListenerPeer::Legacy(session), Change::Resource(uri)) if !session.is_subscribed(uri) => continue,
                (ListenerPeer::Legacy(_), Change::Task(_)) => continue,
                (ListenerPeer::Legacy(_), _) => {}
            }
            listener.outlet.message(&json!({"jsonrpc": "2.0", "method": change.method(), "params": params})).await;
        }
    }
}
