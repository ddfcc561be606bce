//! The methods of sources beside tools: as calls for the executor, and the capabilities announced for them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolwright_core::catalogue::{Entry, Health, Provider, Snapshot};
use toolwright_core::tool_id::wire_candidate;
use toolwright_mcp::convert::{has_method, server_capabilities};

use crate::Gateway;
use crate::mcp::session::Caller;
use crate::view::Scope;

/// How long `initialize` waits for a server whose capabilities are unknown.
const INTRODUCTION: Duration = Duration::from_secs(2);
/// Announced capabilities, and the method that each needs.
const PARTS: [(&str, &str); 4] = [
    ("resources", "resources/read"),
    ("prompts", "prompts/get"),
    ("completions", "completion/complete"),
    ("logging", "logging/setLevel"),
];

/// The methods of one source.
pub(crate) struct Methods {
    /// The methods as tools for the executor.
    pub(crate) snapshot: Arc<Snapshot>,
    capabilities: Option<Arc<Map<String, Value>>>,
}

impl Methods {
    /// Returns the id of a method, if the source has it. Until a source has announced its capabilities it counts as
    /// having all.
    pub(crate) fn id(&self, method: &str) -> Option<String> {
        self.entry(method).map(|entry| entry.id().as_str().to_owned())
    }

    /// Returns the same as an entry, for policy.
    pub(crate) fn entry(&self, method: &str) -> Option<&Arc<Entry>> {
        if self.capabilities.as_ref().is_some_and(|announced| !has_method(announced, method)) {
            return None;
        }
        self.snapshot.list().iter().find(|entry| entry.tool.raw_name() == method)
    }
}

impl Gateway {
    /// Returns the current methods of a source; `None` if it has none, or is not in the catalogue any more.
    pub(crate) fn methods_of(&self, owner: &Arc<dyn Provider>) -> Option<Methods> {
        let lists = self.options.catalogue.lists();
        let source = lists.iter().find(|source| Arc::ptr_eq(source.provider(), owner))?;
        Some(Methods { snapshot: Arc::clone(source.methods()), capabilities: owner.capabilities() })
    }

    /// Returns the providers of a scope, in registration order.
    pub(crate) fn providers_of(&self, scope: &Scope) -> Vec<Arc<dyn Provider>> {
        let all = self.options.catalogue.sources();
        all.iter().filter(|provider| scope.may_have(&***provider)).cloned().collect()
    }

    /// Returns whether a scope allows a method of a provider. Views name methods like tools. Methods that list and
    /// subscribe are allowed or denied together with the method that reads.
    pub(crate) fn shows_method(&self, scope: &Scope, provider: &str, method: &str) -> bool {
        let Scope::View(name) = scope else { return true };
        self.view(name).is_some_and(|view| {
            let named = |method: &str| wire_candidate(provider, method);
            let (own, with) = (named(method), named(governing_method(method)));
            [&own, &with].into_iter().any(|name| view.shows(name)) && !view.denies(&own) && !view.denies(&with)
        })
    }

    /// Returns whether a scope allows a method and the source has it.
    pub(crate) fn has_method(&self, scope: &Scope, provider: &Arc<dyn Provider>, method: &str) -> bool {
        scope.may_have(&**provider)
            && self.shows_method(scope, provider.name(), method)
            && self.methods_of(provider).is_some_and(|methods| methods.entry(method).is_some())
    }

    /// Waits briefly for the capabilities of an address's only source. At other addresses waits for first lists,
    /// because instructions quote each source and are sent only once.
    pub(crate) async fn await_capabilities(&self, scope: &Scope) {
        let Scope::Provider(name) = scope else {
            return self.await_first_lists(scope).await;
        };
        let sources = self.options.catalogue.sources();
        let Some(provider) = sources.iter().find(|provider| provider.name() == &**name) else { return };
        if provider.methods().is_none() || provider.capabilities().is_some() {
            return;
        }
        match tokio::time::timeout(INTRODUCTION, provider.warm_up()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("{name} did not start: {error}"),
            Err(_) => tracing::debug!("{name} is still starting"),
        }
    }

    /// Returns the capabilities of a source that a scope allows; all possible ones until it has announced its own.
    /// `None` for a source without methods, or one that failed before announcing any.
    fn announced(&self, scope: &Scope, provider: &Arc<dyn Provider>) -> Option<Map<String, Value>> {
        provider.methods()?;
        let mut parts = match provider.capabilities() {
            Some(capabilities) => Map::clone(&capabilities),
            // A client asks only once, and an empty list does no harm.
            None if provider.health() == Health::Starting => {
                PARTS.into_iter().map(|(part, _)| (part.to_owned(), json!({}))).collect()
            }
            None => return None,
        };
        for (part, method) in PARTS {
            if !self.shows_method(scope, provider.name(), method) {
                parts.remove(part);
            }
        }
        if !self.shows_method(scope, provider.name(), "resources/subscribe")
            && let Some(resources) = parts.get_mut("resources").and_then(Value::as_object_mut)
        {
            resources.remove("subscribe");
        }
        Some(parts)
    }

    /// Returns the merged capabilities of a caller's sources.
    pub(crate) fn capabilities(&self, caller: &Caller) -> Map<String, Value> {
        let scope = &caller.view.scope;
        let providers = self.providers_of(scope);
        let announced: Vec<_> = providers.iter().filter_map(|provider| self.announced(scope, provider)).collect();
        let mut all = server_capabilities(announced.iter());
        if !matches!(scope, Scope::Provider(_)) {
            // Announced in any case, because sources may be added or removed, or start late.
            for part in ["resources", "prompts"] {
                if let Some(part) = all.get_mut(part).and_then(Value::as_object_mut) {
                    part.insert("listChanged".to_owned(), true.into());
                }
            }
        }
        all
    }
}

/// Returns the method whose permission also governs this one.
fn governing_method(method: &str) -> &str {
    match method {
        "resources/list" | "resources/templates/list" | "resources/subscribe" | "resources/unsubscribe" => {
            "resources/read"
        }
        "prompts/list" => "prompts/get",
        other => other,
    }
}
