//! The provider of one server.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize as _;
use serde_json::{Map, Value};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{
    CallLimits, ChangeNotifier, Health, ListKind, NoticeSink, Provider, ProviderCall, ProviderError, ProviderKind,
    RegisteredTool, WithheldTool,
};
use toolwright_core::client::AskStyle;
use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::event::{Event, McpPeer};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::policy::HintTrust;
use toolwright_core::session::{Principal, SessionId};

use super::connection::connect::Connector;
use super::connection::handshake::VersionProbe;
use super::connection::inbox::listener::{Listener, ServerRoots};
use super::connection::managed::{ManagedConnection, WaitPolicy};
use super::connection::peer::{AskError, EXPIRED};
use super::connection::pool::ConnectionPool;
use super::exchange::{Exchange, call_tool};
use super::listed_as_tools;
use super::listing::{self, ListedTools as Built, Manifest, RawList};
use super::methods::{McpMethods, NonToolLists};
use super::source::{Announcement, ChangeAnnouncer, ConnectionChoice, ListAttempt, ListRetry, Source};
use crate::config::{AsTools, McpOptions, McpServerOptions};

/// Time limit for a whole list, unless calls have less. It is below the catalogue's own limit, so that
/// a server that does not answer is noticed here, where it can be probed.
const LIST_TIMEOUT: Duration = Duration::from_secs(50);

/// A configured MCP server as a source of tools.
///
/// It connects on the first list, call or warm-up, keeps one connection, and restores it
/// when it ends. A call that may have reached the server is never sent twice.
pub struct McpProvider {
    source: Arc<Source>,
    methods: Arc<McpMethods>,
    other_lists: NonToolLists,
    deps: McpOptions,
    manifest_key: String,
    credential_scope: ContentHash,
    version_probe: Arc<VersionProbe>,
    folders: Arc<ServerRoots>,
    changes: Arc<ChangeAnnouncer>,
    relist: ListRetry,
    listed: Mutex<LastListing>,
    announced: Announcement,
}

/// Result of the last list, or the cached one.
#[derive(Default)]
struct LastListing {
    withheld: Vec<WithheldTool>,
    /// Its faults, as last reported.
    mistakes: Option<String>,
    instructions: Option<String>,
    capabilities: Option<Arc<Map<String, Value>>>,
    /// Outcome of the last list; `None` before the first.
    outcome: Option<Result<(), String>>,
}

impl std::fmt::Debug for McpProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("McpProvider").field("options", &self.source.options).finish_non_exhaustive()
    }
}

impl McpProvider {
    /// A provider that is not connected yet.
    #[must_use]
    pub fn new(options: McpServerOptions, deps: McpOptions) -> Arc<Self> {
        let options = Arc::new(options);
        let changes = Arc::new(ChangeAnnouncer::default());
        let announce = || {
            let changes = Arc::clone(&changes);
            Arc::new(move || changes.announce()) as Arc<dyn Fn() + Send + Sync>
        };
        let listener =
            Listener::new(options.name.as_str().into(), Arc::clone(&deps.events), announce(), options.config.prompts)
                .shown_to(options.frames.clone());
        let followed = Arc::default();
        let folders = ServerRoots::new(Arc::clone(&deps.roots));
        let (manifest_key, credential_scope) = (options.manifest_key(), options.credential_scope());
        let version_probe = VersionProbe::new(Arc::clone(&deps.manifests), manifest_key.clone());
        let connector = Connector {
            options: Arc::clone(&options),
            events: Arc::clone(&deps.events),
            listener: Arc::clone(&listener),
            followed: Arc::clone(&followed),
            log_level: Arc::default(),
            folders: Arc::clone(&folders),
            version_probe: Arc::clone(&version_probe),
            wanted_era: None,
        };
        let pool = ConnectionPool::new(connector, announce());
        let source = Source::new(options, pool, listener, followed);
        Arc::new(Self {
            methods: McpMethods::new(Arc::clone(&source)),
            other_lists: NonToolLists::new(Arc::clone(&source), Arc::clone(&deps.manifests)),
            source,
            deps,
            manifest_key,
            credential_scope,
            version_probe,
            folders,
            relist: ListRetry::new(Arc::clone(&changes)),
            changes,
            listed: Mutex::default(),
            announced: Announcement::default(),
        })
    }

    /// The configuration.
    #[must_use]
    pub fn options(&self) -> &McpServerOptions {
        &self.source.options
    }

    fn managed(&self) -> &Arc<ManagedConnection> {
        &self.source.pool.shared
    }

    /// Fetches the list. If the connection exists and anything goes wrong, including being dropped, the list is
    /// fetched again after a pause; without a connection, the next connection is announced.
    async fn fetch(&self) -> Result<(ListAttempt<'_>, RawList), String> {
        let bound = list_bound(self.options().config.request_timeout);
        let mut renewed = false;
        loop {
            let connection = self.managed().connection(WaitPolicy::WaitToList).await?;
            let mut attempt = self.relist.attempt(Arc::clone(&connection));
            let fetched = tokio::time::timeout(bound, listing::fetch(&connection, "tools/list", "tools")).await;
            attempt.was_answered = fetched.is_ok();
            return match fetched {
                Ok(Ok(list)) => Ok((attempt, list)),
                // A list may be repeated, because it changes nothing. It is repeated in a new session only;
                // a second refusal is reported.
                Ok(Err(AskError::NotSent(_) | AskError::Expired | AskError::Rpc(_)))
                    if connection.is_expired() && !renewed =>
                {
                    renewed = true;
                    attempt.succeeded();
                    continue;
                }
                Ok(Err(error)) => Err(reason(error, "tools")),
                Err(_) => {
                    let within = toolwright_core::duration::format(bound);
                    let remedy = if bound < LIST_TIMEOUT { "`request_timeout` can be raised" } else { "see its log" };
                    Err(format!("it did not list its tools within {within}; {remedy}"))
                }
            };
        }
    }

    /// Lists its prompts, if they are offered as tools. If that fails, the tools stay.
    async fn prompts(&self, attempt: &ListAttempt<'_>) -> Vec<Value> {
        if self.options().config.prompts == AsTools::No || !attempt.connection.server().offers("prompts") {
            return Vec::new();
        }
        let bound = list_bound(self.options().config.request_timeout);
        let fetched = listing::fetch(&attempt.connection, "prompts/list", "prompts");
        let problem = match tokio::time::timeout(bound, fetched).await {
            Ok(Ok(list)) => {
                self.warn_truncated_list(list.cut);
                return list.entries;
            }
            Ok(Err(error)) => reason(error, "prompts"),
            Err(_) => "it did not list its prompts in time".to_owned(),
        };
        self.source.listener.warn("mcp_prompts", &format!("{problem}; they are not offered as tools"));
        Vec::new()
    }

    fn warn_truncated_list(&self, cut: Option<String>) {
        if let Some(reason) = cut {
            let message = format!("MCP server {}: {reason}", self.options().name);
            self.deps.events.emit(Event::Warning { code: "mcp_list_cut".to_owned(), message });
        }
    }

    /// Returns the stored manifest of the last run.
    async fn manifest(&self) -> Option<Manifest> {
        let mut stored_manifest = match self.deps.manifests.manifest(&self.manifest_key).await {
            Ok(stored) => stored?,
            Err(error) => {
                tracing::debug!(server = self.options().name, "the cached tool list was not read: {error}");
                return None;
            }
        };
        // Its tools stay as they are: to read them as JSON of any type would be to make each once more.
        let Value::Array(tools) = stored_manifest.as_object_mut()?.shift_remove("tools")? else { return None };
        Some(Manifest { tools, ..Manifest::deserialize(stored_manifest).ok()? })
    }

    /// Takes over a manifest. Returns the tools it offers.
    fn take(&self, manifest: &Manifest, outcome: Option<Result<(), String>>) -> Result<Built, ProviderError> {
        let mut built = manifest.build(self.options())?;
        if manifest.asks_folders {
            self.folders.note_roots_request();
        }
        self.source.keep(std::mem::take(&mut built.facts));
        let mut listed = self.listed();
        // Reported once until it changes.
        if let Some(mistakes) = built.mistakes.as_ref().filter(|mistakes| listed.mistakes.as_ref() != Some(mistakes)) {
            tracing::warn!("{mistakes}");
        }
        *listed = LastListing {
            withheld: built.withheld.clone(),
            mistakes: built.mistakes.take(),
            instructions: manifest.instructions.clone(),
            capabilities: Some(Arc::clone(&manifest.capabilities)),
            outcome,
        };
        drop(listed);
        Ok(built)
    }

    /// Returns the tools of an earlier run, if the server need not be started for them.
    async fn cached_tools(&self) -> Option<Built> {
        if !self.options().config.lazy || !self.managed().is_idle() {
            return None;
        }
        let manifest = self.manifest().await?;
        self.take(&manifest, Some(Ok(()))).ok()
    }

    async fn keep_manifest(&self, manifest: &Manifest) {
        let stored = match serde_json::to_value(manifest) {
            Ok(value) => {
                self.deps.manifests.set_manifest(&self.manifest_key, &value).await.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = stored {
            tracing::debug!(server = self.options().name, "the tool list was not cached: {error}");
        }
    }

    fn listed(&self) -> std::sync::MutexGuard<'_, LastListing> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn named(&self, reason: &str) -> ProviderError {
        ProviderError::new(format!("MCP server {}: {reason}", self.options().name))
    }
}

#[async_trait]
impl Provider for McpProvider {
    fn name(&self) -> &str {
        &self.options().name
    }

    fn defined_in(&self) -> &str {
        &self.options().defined_in
    }

    fn kind(&self) -> ProviderKind {
        ProviderKind::Mcp
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        if let Some(built) = self.cached_tools().await {
            return Ok(built.tools);
        }
        let failed = |error: ProviderError| {
            self.listed().outcome = Some(Err(error.message.clone()));
            error
        };
        let (attempt, list) = self.fetch().await.map_err(|reason| failed(self.named(&reason)))?;
        let prompts = self.prompts(&attempt).await;
        let mut manifest =
            Manifest::new(attempt.connection.server(), self.version_probe.found(), list.entries, prompts);
        manifest.asks_folders = self.folders.are_asked_for();
        let built = self.take(&manifest, Some(Ok(()))).map_err(failed)?;
        attempt.succeeded();
        self.relist.schedule_after(list.ttl);
        self.keep_manifest(&manifest).await;
        self.warn_truncated_list(list.cut);
        Ok(built.tools)
    }

    async fn list_of(&self, kind: ListKind) -> Result<Arc<[Value]>, ProviderError> {
        self.other_lists.list(kind).await.map_err(|reason| self.named(&reason))
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let facts = self.source.facts();
        let fact = facts.of(call.raw_name);
        let server = &self.options().name;
        // A client without capabilities cannot be asked, so any connection serves.
        let ask_style =
            if context.client.capabilities().is_empty() { AskStyle::Either } else { context.client.ask_style() };
        let work = |connection| async move {
            let exchange = Exchange { server, connection: &connection, context };
            match fact.and_then(|fact| fact.wrapped_method.as_ref()) {
                Some(wrapped_method) => Box::pin(listed_as_tools::run(exchange, wrapped_method, call)).await,
                // Pinned, here and below: a future that is awaited by value is copied first.
                None => pin!(call_tool(exchange, call, fact)).await,
            }
        };
        pin!(self.source.run_on_connection(context, ConnectionChoice::OfSession(ask_style), work)).await
    }

    async fn warm_up(&self) -> Result<(), ProviderError> {
        if self.cached_tools().await.is_some() {
            return Ok(());
        }
        self.managed().connection(WaitPolicy::Wait).await.map(drop).map_err(|reason| self.named(&reason))
    }

    fn session_ended(&self, session: &SessionId) {
        self.source.pool.session_ended(session);
    }

    async fn shut_down(&self) {
        self.relist.close();
        self.source.pool.shut_down().await;
    }

    fn health(&self) -> Health {
        match (&self.listed().outcome, self.managed().failure()) {
            (_, Some(reason)) => Health::Failed { reason: reason.to_string() },
            (Some(Err(reason)), None) => Health::Failed { reason: reason.clone() },
            (Some(Ok(())), None) => Health::Ready,
            (None, None) => Health::Starting,
        }
    }

    fn instructions(&self) -> Option<String> {
        let instructions = self.managed().current().and_then(|connection| connection.server().instructions.clone());
        instructions.or_else(|| self.listed().instructions.clone())
    }

    fn mcp_peer(&self) -> Option<McpPeer> {
        Some(self.source.peer())
    }

    fn is_io_bound(&self) -> bool {
        true
    }

    fn limits(&self) -> CallLimits {
        self.options().limits()
    }

    fn credential_scope(&self, _principal: &Principal) -> Option<ContentHash> {
        Some(self.options().scope_now(self.credential_scope))
    }

    fn trust(&self) -> HintTrust {
        if self.options().config.trusted { HintTrust::Trusted } else { HintTrust::Foreign }
    }

    fn methods(&self) -> Option<Arc<dyn Provider>> {
        Some(Arc::clone(&self.methods) as Arc<dyn Provider>)
    }

    fn capabilities(&self) -> Option<Arc<Map<String, Value>>> {
        let capabilities = self.managed().current().map(|connection| Arc::clone(&connection.server().capabilities));
        let capabilities = capabilities.or_else(|| self.listed().capabilities.clone())?;
        Some(if self.options().config.shared {
            capabilities
        } else {
            self.announced.without_subscriptions(capabilities)
        })
    }

    fn on_notice(&self, notify: NoticeSink) {
        self.source.listener.listen(notify);
    }

    fn on_change(&self, notify: ChangeNotifier) {
        self.changes.listen(notify);
    }

    fn withheld(&self) -> Vec<WithheldTool> {
        self.listed().withheld.clone()
    }

    async fn cached(&self) -> Option<Vec<Arc<RegisteredTool>>> {
        let manifest = self.manifest().await?;
        if self.listed().outcome.is_some() {
            return manifest.build(self.options()).ok().map(|built| built.tools);
        }
        self.take(&manifest, None).ok().map(|built| built.tools)
    }
}

impl Drop for McpProvider {
    fn drop(&mut self) {
        self.relist.close();
        self.source.pool.close_permanently();
    }
}

/// Describes why there is no list of `what`.
pub(crate) fn reason(error: AskError, what: &str) -> String {
    match error {
        AskError::Rpc(error) => format!("it refused to list its {what}: {} (code {})", error.message, error.code),
        AskError::Broken(reason) | AskError::Fault(reason) | AskError::NotSent(reason) | AskError::Final(reason) => {
            reason
        }
        AskError::Expired => EXPIRED.to_owned(),
        AskError::Ended(_) => "the connection is closed".to_owned(),
        AskError::Full => "too many requests are in flight to it".to_owned(),
    }
}

/// Returns the time limit for a whole list.
pub(crate) fn list_bound(request_timeout: Option<Duration>) -> Duration {
    request_timeout.map_or(LIST_TIMEOUT, |limit| limit.min(LIST_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_end_within_the_catalogues_time_limit() {
        for (request_timeout, expect) in [(None, 50), (Some(300), 50), (Some(5), 5)] {
            let bound = list_bound(request_timeout.map(Duration::from_secs));
            assert_eq!(bound, Duration::from_secs(expect), "{request_timeout:?}");
        }
    }
}
