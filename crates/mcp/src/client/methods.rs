//! Provides the other methods of a server, with its lists of prompts and resources: a provider whose tools
//! are protocol methods.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::ToolId;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{
    CallLimits, Health, ListKind, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool,
};
use toolwright_core::client::AskStyle;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::event::McpPeer;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::passthrough::METHOD_RESULT;
use toolwright_core::session::Principal;
use toolwright_core::store::ManifestCache;

use super::connection::Connection;
use super::connection::managed::WaitPolicy;
use super::connection::peer::AskError;
use super::connection::subscription::SET_LEVEL;
use super::exchange::{Exchange, OutgoingRequest, refusal};
use super::listing::{Bounds, fetch_checked};
use super::provider::{list_bound, reason};
use super::source::{ConnectionChoice, Source};
use crate::protocol::list_validation;
use crate::protocol::message::{RpcError, to_json};
use crate::protocol::revision::Era;

/// A method: its description, required parameter, and the parameter that names its object (header `Mcp-Name`).
struct Method {
    name: &'static str,
    description: &'static str,
    required: &'static [&'static str],
    named_by: Option<&'static str>,
}

const fn method(name: &'static str, description: &'static str) -> Method {
    Method { name, description, required: &[], named_by: None }
}

const METHODS: [Method; 9] = [
    method("resources/list", "Lists resources."),
    method("resources/templates/list", "Lists templates of resources."),
    Method { required: &["uri"], named_by: Some("uri"), ..method("resources/read", "Reads a resource.") },
    Method { required: &["uri"], ..method("resources/subscribe", "Has changes of a resource announced.") },
    Method { required: &["uri"], ..method("resources/unsubscribe", "Has them announced no more.") },
    method("prompts/list", "Lists prompts."),
    Method { required: &["name"], named_by: Some("name"), ..method("prompts/get", "Makes a prompt.") },
    Method { required: &["ref", "argument"], ..method("completion/complete", "Completes an argument.") },
    Method { required: &["level"], ..method(SET_LEVEL, "Sets how much the server logs.") },
];

/// Methods that need one connection for all sessions.
const FOLLOWING: [&str; 2] = ["resources/subscribe", "resources/unsubscribe"];

/// The methods of one server.
pub(crate) struct McpMethods {
    source: Arc<Source>,
    credential_scope: ContentHash,
    /// Built on first use.
    tools: OnceLock<Vec<Arc<RegisteredTool>>>,
}

impl McpMethods {
    /// The methods of `source`.
    pub(crate) fn new(source: Arc<Source>) -> Arc<Self> {
        let credential_scope = source.options.credential_scope();
        Arc::new(Self { credential_scope, source, tools: OnceLock::new() })
    }

    /// Stores the log level of a server that is not running, for its start: a lazy server, or that of one session.
    fn store_log_level(&self, method: &str, params: &Map<String, Value>, context: &ToolContext) -> Option<Value> {
        let options = &self.source.options;
        let is_later = method == SET_LEVEL && (options.config.lazy || !options.config.shared);
        let keep = || self.source.pool.keep_level(&context.session.id, context.client.session_ask_style(), params);
        (is_later && keep()).then(|| json!({}))
    }
}

/// The id contains the method with `-` for `/`: `{namespace}__resources-read` on the wire.
fn tool(namespace: &str, method: &Method) -> Option<Arc<RegisteredTool>> {
    let id = ToolId::foreign(namespace, &method.name.replace('/', "-")).ok()?;
    let schema = json!({"type": "object", "required": method.required});
    let mut definition = ToolDefinition::new(id, method.description.to_owned(), Some(schema));
    definition.effects = Effects::FETCH;
    Some(RegisteredTool::foreign(definition, method.name))
}

#[async_trait]
impl Provider for McpMethods {
    fn name(&self) -> &str {
        &self.source.options.name
    }

    fn kind(&self) -> ProviderKind {
        ProviderKind::Mcp
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        let options = &self.source.options;
        // Subscriptions need a shared connection.
        let had = METHODS.iter().filter(|method| options.config.shared || !FOLLOWING.contains(&method.name));
        // An illegal namespace gives no methods; the list of tools reports it.
        Ok(self.tools.get_or_init(|| had.filter_map(|method| tool(&options.namespace, method)).collect()).clone())
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let params = match call.arguments {
            Value::Object(params) => params,
            _ => Map::new(),
        };
        if let Some(result) = self.store_log_level(call.raw_name, &params, context) {
            return Ok(ToolOutput::default().with_extra(METHOD_RESULT, result));
        }
        // Subscriptions are shared by all sessions, and outlast any of them.
        let choice = match call.raw_name {
            method if FOLLOWING.contains(&method) => ConnectionChoice::Shared,
            // On a shared connection these need no questions in the older style.
            _ => ConnectionChoice::OfSession(AskStyle::Either),
        };
        let result = self
            .source
            .run_on_connection(context, choice, |connection| {
                run(&self.source, connection, call.raw_name, params, context)
            })
            .await?;
        Ok(ToolOutput::default().with_extra(METHOD_RESULT, result))
    }

    fn mcp_peer(&self) -> Option<McpPeer> {
        Some(self.source.peer())
    }

    fn lists_methods(&self) -> bool {
        true
    }

    fn is_io_bound(&self) -> bool {
        true
    }

    fn limits(&self) -> CallLimits {
        self.source.options.limits()
    }

    fn credential_scope(&self, _principal: &Principal) -> Option<ContentHash> {
        Some(self.source.options.scope_now(self.credential_scope))
    }

    fn health(&self) -> Health {
        Health::Ready
    }
}

async fn run(
    source: &Source,
    connection: Arc<Connection>,
    method: &str,
    params: Map<String, Value>,
    context: &ToolContext,
) -> Result<Value, ToolError> {
    let exchange = Exchange { server: &source.options.name, connection: &connection, context };
    let refused = |error: RpcError| refusal(&source.options.name, method.into(), error);
    let is_modern = connection.server().era == Era::Modern;
    let uri = params.get("uri").and_then(Value::as_str).unwrap_or_default().to_owned();
    match method {
        "resources/subscribe" => {
            let was_followed = source.followed.has(&uri);
            source.followed.add(&uri).map_err(refused)?;
            if is_modern {
                source.followed.accepted(&uri).await.map_err(refused)?;
                return Ok(json!({}));
            }
            let result = send(&exchange, method, params).await;
            if result.is_err() && !was_followed {
                source.followed.remove(&uri);
            }
            result
        }
        "resources/unsubscribe" => {
            source.followed.remove(&uri);
            if is_modern { Ok(json!({})) } else { send(&exchange, method, params).await }
        }
        SET_LEVEL => {
            let proposed = connection.log_level().keep(params.clone());
            if is_modern {
                // Modern requests state the level themselves. The older connection is told without waiting.
                proposed.taken();
                if let Some(beside) = source.pool.legacy_connection() {
                    beside.send_level();
                }
                return Ok(json!({}));
            }
            let result = send(&exchange, method, params).await?;
            if !proposed.taken() {
                // A newer level may have been sent before this one.
                connection.send_level();
            }
            Ok(result)
        }
        _ => send(&exchange, method, params).await,
    }
}

async fn send(exchange: &Exchange<'_>, method: &str, params: Map<String, Value>) -> Result<Value, ToolError> {
    let named_by = METHODS.iter().find(|known| known.name == method).and_then(|known| known.named_by);
    let name = named_by.and_then(|key| params.get(key)).and_then(Value::as_str).map(str::to_owned);
    let name = name.as_deref();
    exchange.run(OutgoingRequest::of(method, name, params)).await
}

/// Bounds on each of these lists.
const BOUNDS: Bounds = Bounds { pages: 100, entries: 10_000 };
/// Maximal bytes of a stored list of a lazy server.
const MAX_KEPT: usize = 1 << 20;

/// Lists prompts, resources and templates of a server, over the connection that lists its tools.
pub(crate) struct NonToolLists {
    source: Arc<Source>,
    credential_scope: ContentHash,
    manifests: Arc<dyn ManifestCache>,
    /// The last warning about each list: equal warnings are not repeated.
    warned: Mutex<[Option<String>; 3]>,
}

impl NonToolLists {
    /// The lists of `source`; those of a lazy one are stored in `manifests`, so that it need not be started for them
    /// again.
    pub(crate) fn new(source: Arc<Source>, manifests: Arc<dyn ManifestCache>) -> Self {
        let credential_scope = source.options.credential_scope();
        Self { source, credential_scope, manifests, warned: Mutex::default() }
    }

    /// Lists all pages of a kind, each item checked; empty if the server does not announce such a list.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn list(&self, kind: ListKind) -> Result<Arc<[Value]>, String> {
        if let Some(stored_items) = self.stored_items(kind).await {
            return Ok(stored_items);
        }
        let mut renewed = false;
        loop {
            let connection = self.source.pool.shared.connection(WaitPolicy::Wait).await?;
            if !connection.server().offers(kind.capability()) {
                return Ok(Arc::default());
            }
            match self.fetch(&connection, kind).await {
                Err(_) if connection.is_expired() && !renewed => renewed = true,
                listed => return listed,
            }
        }
    }

    async fn fetch(&self, connection: &Arc<Connection>, kind: ListKind) -> Result<Arc<[Value]>, String> {
        let mut mistakes = Vec::new();
        let mut check = |page: &mut Value| {
            if let Some(page) = page.as_object_mut() {
                mistakes.extend(list_validation::page(kind, page));
            }
        };
        let bound = list_bound(self.source.options.config.request_timeout);
        let fetched = fetch_checked(connection, kind.method(), kind.list_key(), BOUNDS, &mut check);
        let listed = match tokio::time::timeout(bound, fetched).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(AskError::Rpc(error))) if error.code == RpcError::METHOD_NOT_FOUND => {
                return Ok(Arc::default());
            }
            Ok(Err(error)) => return Err(reason(error, kind.words())),
            Err(_) => {
                connection.probe();
                let within = toolwright_core::duration::format(bound);
                return Err(format!("it did not list its {} within {within}", kind.words()));
            }
        };
        let mended = list_validation::mistakes_warning(&self.source.options.name, kind.words(), &mistakes);
        let cut = listed.cut.map(|cut| format!("{}: {cut}", self.source.options.name));
        self.warn(kind, mended.into_iter().chain(cut).collect::<Vec<_>>().join("; "));
        self.keep(kind, &listed.entries).await;
        Ok(listed.entries.into())
    }

    fn warn(&self, kind: ListKind, message: String) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let last = &mut warned[kind as usize];
        if !message.is_empty() && last.as_ref() != Some(&message) {
            tracing::warn!("{message}");
        }
        *last = Some(message);
    }

    /// Returns the stored list of a lazy server that is not running.
    async fn stored_items(&self, kind: ListKind) -> Option<Arc<[Value]>> {
        if !self.source.options.config.lazy || !self.source.pool.are_idle() {
            return None;
        }
        let mut stored_list = self.manifests.manifest(&self.key(kind)).await.unwrap_or_else(|error| {
            tracing::debug!(server = self.source.options.name, "what it listed was not read: {error}");
            None
        })?;
        match stored_list.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => Some(items.into()),
            _ => None,
        }
    }

    async fn keep(&self, kind: ListKind, items: &[Value]) {
        if !self.source.options.config.lazy {
            return;
        }
        let list_json = json!({"items": items});
        let key = self.key(kind);
        let done = if to_json(&list_json).len() > MAX_KEPT {
            self.manifests.remove_manifest(&key).await.map(drop)
        } else {
            self.manifests.set_manifest(&key, &list_json).await
        };
        if let Err(error) = done {
            tracing::debug!(server = self.source.options.name, "what it listed was not kept: {error}");
        }
    }

    /// Returns the storage key of a list: unlike that of tools, it depends on the login, as a hash.
    fn key(&self, kind: ListKind) -> String {
        let options = &self.source.options;
        format!("{} {} {}", options.manifest_key(), options.scope_now(self.credential_scope), kind.method())
    }
}
