//! What a server can be asked besides calling its tools: the protocol's methods, as a provider whose tools they are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::ToolId;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{
    CallLimits, Health, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool, SourceNotice,
};
use toolwright_core::client::Manner;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::event::McpPeer;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::passthrough::METHOD_RESULT;
use toolwright_core::session::Principal;
use toolwright_core::store::ManifestCache;
use toolwright_mcp::message::{RpcError, to_json};
use toolwright_mcp::revision::Era;

use super::connection::Connection;
use super::exchange::{Exchange, Sent, refusal};
use super::log_level::SET_LEVEL;
use super::source::{Source, Way};

/// A method, what it does, the parameter that it needs, and the parameter that names its object (header `Mcp-Name`).
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

/// Those that a server has over one connection of all sessions alone.
const FOLLOWING: [&str; 2] = ["resources/subscribe", "resources/unsubscribe"];

/// Lists that are kept of a lazy server, so that it is not started for them again.
const KEPT: [&str; 3] = ["resources/list", "resources/templates/list", "prompts/list"];
/// Longest list that is kept, in bytes.
const MAX_KEPT: usize = 1 << 20;

/// The methods of one server.
pub(super) struct McpMethods {
    source: Arc<Source>,
    credential_scope: ContentHash,
    /// Made when they are first asked for.
    tools: OnceLock<Vec<Arc<RegisteredTool>>>,
    manifests: Arc<dyn ManifestCache>,
    /// Changes with every announcement that what is kept is not so any more.
    announced: AtomicU64,
}

impl McpMethods {
    /// The methods of `source`; what a lazy one lists is kept in `manifests`.
    pub(super) fn new(source: Arc<Source>, manifests: Arc<dyn ManifestCache>) -> Arc<Self> {
        let credential_scope = source.spec.credential_scope();
        let (tools, announced) = (OnceLock::new(), AtomicU64::new(0));
        let methods = Arc::new(Self { credential_scope, source, tools, manifests, announced });
        if methods.source.spec.lazy {
            let heard: Weak<Self> = Arc::downgrade(&methods);
            methods.source.listener.listen_first(Arc::new(move |notice| {
                if let Some(methods) = heard.upgrade() {
                    methods.heard(notice);
                }
            }));
        }
        methods
    }

    /// Forgets what is kept of a list that is announced to be another now: whoever runs next must not be told it.
    fn heard(self: &Arc<Self>, notice: &SourceNotice) {
        let changed = match notice {
            SourceNotice::ResourcesChanged => "resources/",
            SourceNotice::PromptsChanged => "prompts/",
            _ => return,
        };
        self.announced.fetch_add(1, Ordering::AcqRel);
        // Outside of a runtime everything is over.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let methods = Arc::clone(self);
        runtime.spawn(async move {
            for method in KEPT.iter().filter(|method| method.starts_with(changed)) {
                methods.forget(&methods.key(method)).await;
            }
        });
    }

    async fn forget(&self, key: &str) {
        if let Err(error) = self.manifests.remove_manifest(key).await {
            tracing::debug!(server = self.source.spec.name, "what it listed was not forgotten: {error}");
        }
    }

    /// What a server that is not running need not be started for: how much it is to log, which it is told when it starts
    /// (a lazy one, or that of one session), and of a lazy one what it listed last.
    async fn put_off(&self, method: &str, params: &Map<String, Value>, context: &ToolContext) -> Option<Value> {
        let spec = &self.source.spec;
        if method == SET_LEVEL && (spec.lazy || !spec.shared) {
            let of_session = context.client.manner_of_session();
            let kept = self.source.links.keep_level(&context.session.id, of_session, params);
            return kept.then(|| json!({}));
        }
        if !spec.lazy || !self.source.links.are_idle() {
            return None;
        }
        let kept = self.manifests.manifest(&self.kept_under(method, params)?).await.unwrap_or_else(|error| {
            tracing::debug!(server = self.source.spec.name, "what it listed was not read: {error}");
            None
        });
        kept.filter(Value::is_object)
    }

    /// Keeps what a lazy server listed, if that is the whole list, and no other was announced since (`announced`).
    async fn keep(&self, key: &str, announced: u64, result: &Value) {
        let Some(mut kept) = result.as_object().cloned() else { return };
        if kept.get("nextCursor").is_some_and(|next| !next.is_null()) || to_json(&kept).len() > MAX_KEPT {
            return;
        }
        // It is as old as it is when it is told.
        kept.shift_remove("ttlMs");
        if let Err(error) = self.manifests.set_manifest(key, &Value::Object(kept)).await {
            tracing::debug!(server = self.source.spec.name, "what it listed was not kept: {error}");
        }
        if self.announced.load(Ordering::Acquire) != announced {
            self.forget(key).await;
        }
    }

    /// Under what a list is kept; `None` for what is none, or not its beginning.
    fn kept_under(&self, method: &str, params: &Map<String, Value>) -> Option<String> {
        let is_first = params.get("cursor").is_none_or(Value::is_null);
        (self.source.spec.lazy && is_first && KEPT.contains(&method)).then(|| self.key(method))
    }

    /// Under what a list is kept: unlike that of the tools, it is of whoever is logged in, as a hash.
    fn key(&self, method: &str) -> String {
        let spec = &self.source.spec;
        format!("{} {} {method}", spec.manifest_key(), spec.scope_now(self.credential_scope))
    }
}

/// The id says the method with `-` for `/`: `{namespace}__resources-read` on the wire.
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
        &self.source.spec.name
    }

    fn kind(&self) -> ProviderKind {
        ProviderKind::Mcp
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        let spec = &self.source.spec;
        // Nobody follows what sessions have for themselves.
        let had = METHODS.iter().filter(|method| spec.shared || !FOLLOWING.contains(&method.name));
        // A namespace that is illegal has no tools either, and a list says so.
        Ok(self.tools.get_or_init(|| had.filter_map(|method| tool(&spec.namespace, method)).collect()).clone())
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let params = match call.arguments {
            Value::Object(params) => params,
            _ => Map::new(),
        };
        if let Some(result) = self.put_off(call.raw_name, &params, context).await {
            return Ok(ToolOutput::default().with_extra(METHOD_RESULT, result));
        }
        let kept_under = self.kept_under(call.raw_name, &params);
        let announced = self.announced.load(Ordering::Acquire);
        // What is followed is followed for all sessions, and longer than one of them is at work.
        let way = match call.raw_name {
            method if FOLLOWING.contains(&method) => Way::Shared,
            // On the one connection of all sessions nothing of this need be asked back in the older manner.
            _ => Way::OfSession(Manner::Either),
        };
        let result = self
            .source
            .during(context, way, |connection| run(&self.source, connection, call.raw_name, params, context))
            .await?;
        // Who has logged in meanwhile may have been answered already, or not yet.
        if let Some(key) = kept_under.filter(|key| *key == self.key(call.raw_name)) {
            self.keep(&key, announced, &result).await;
        }
        Ok(ToolOutput::default().with_extra(METHOD_RESULT, result))
    }

    fn mcp_peer(&self) -> Option<McpPeer> {
        Some(self.source.peer())
    }

    fn is_of_methods(&self) -> bool {
        true
    }

    fn only_waits(&self) -> bool {
        true
    }

    fn limits(&self) -> CallLimits {
        self.source.spec.limits()
    }

    fn credential_scope(&self, _principal: &Principal) -> Option<ContentHash> {
        Some(self.source.spec.scope_now(self.credential_scope))
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
    let exchange = Exchange { server: &source.spec.name, connection: &connection, context };
    let refused = |error: RpcError| refusal(&source.spec.name, method.into(), error);
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
                // There every request says it for itself. Nobody waits for the connection beside it.
                proposed.taken();
                if let Some(beside) = source.links.beside() {
                    beside.tell_level();
                }
                return Ok(json!({}));
            }
            let result = send(&exchange, method, params).await?;
            if !proposed.taken() {
                // What is newer may have gone out before this.
                connection.tell_level();
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
    exchange.run(Sent::of(method, name, params)).await
}
