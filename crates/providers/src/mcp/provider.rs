//! The provider of one server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::cancel::CancelCause;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{
    CallLimits, ChangeNotifier, Health, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool,
};
use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::event::{Event, McpPeer};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::policy::HintTrust;
use toolwright_core::session::Principal;

use super::call;
use super::connect::Connector;
use super::link::{Link, Patience};
use super::listener::Listener;
use super::listing::{self, RawList};
use super::peer::AskError;
use super::relist::{Attempt, Changes, Relist};
use super::spec::{McpDeps, McpServerSpec};

/// Bound on one whole list, unless calls have less. It stays below what a catalogue waits for a list, so that
/// a server that does not answer is found out here, where it can be probed.
const LIST_TIMEOUT: Duration = Duration::from_secs(50);

/// One configured MCP server as a source of tools.
///
/// It connects when it is first asked to list, call or warm up, keeps one connection, and makes it again
/// when it ends. A call that may have reached the server is never sent twice.
pub struct McpProvider {
    spec: Arc<McpServerSpec>,
    deps: McpDeps,
    manifest_key: String,
    credential_scope: ContentHash,
    link: Arc<Link>,
    changes: Arc<Changes>,
    relist: Relist,
    listed: Mutex<Listed>,
}

/// What the last list, or the cached one, brought.
#[derive(Default)]
struct Listed {
    withheld: Vec<(String, String)>,
    instructions: Option<String>,
    /// The outcome of the last list; `None` before the first.
    outcome: Option<Result<(), String>>,
}

impl std::fmt::Debug for McpProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("McpProvider").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl McpProvider {
    /// A provider that is not connected yet.
    #[must_use]
    pub fn new(spec: McpServerSpec, deps: McpDeps) -> Arc<Self> {
        let spec = Arc::new(spec);
        let changes = Arc::new(Changes::default());
        let announced = Arc::clone(&changes);
        let listener =
            Listener::new(spec.name.as_str().into(), Arc::clone(&deps.events), Arc::new(move || announced.announce()));
        let followed = Arc::default();
        let connector = Connector { spec: Arc::clone(&spec), events: Arc::clone(&deps.events), listener, followed };
        let announced = Arc::clone(&changes);
        Arc::new(Self {
            manifest_key: spec.manifest_key(),
            credential_scope: spec.credential_scope(),
            link: Link::new(connector, Arc::new(move || announced.announce())),
            spec,
            deps,
            relist: Relist::new(Arc::clone(&changes)),
            changes,
            listed: Mutex::default(),
        })
    }

    /// What is configured.
    #[must_use]
    pub fn spec(&self) -> &McpServerSpec {
        &self.spec
    }

    /// Asks for the list. Whatever goes wrong once there is a connection, being dropped included, the list is
    /// asked for again after a pause; without a connection, the next one is announced.
    async fn fetch(&self) -> Result<(Attempt<'_>, RawList), String> {
        let bound = list_bound(self.spec.request_timeout);
        let mut renewed = false;
        loop {
            let connection = self.link.connection(Patience::WaitToList).await?;
            let mut attempt = self.relist.attempt(Arc::clone(&connection));
            let fetched = tokio::time::timeout(bound, listing::fetch(&connection)).await;
            attempt.was_answered = fetched.is_ok();
            return match fetched {
                Ok(Ok(list)) => Ok((attempt, list)),
                // A list may be asked for again: it changes nothing.
                Ok(Err(AskError::NotSent(_))) if connection.is_expired() && !renewed => {
                    renewed = true;
                    attempt.succeeded();
                    continue;
                }
                Ok(Err(AskError::Rpc(error))) => {
                    Err(format!("it refused to list its tools: {} (code {})", error.message, error.code))
                }
                Ok(Err(AskError::Broken(reason) | AskError::NotSent(reason) | AskError::Final(reason))) => Err(reason),
                Ok(Err(AskError::Ended(_))) => Err("the connection is closed".to_owned()),
                Ok(Err(AskError::Full)) => Err("too many requests are in flight to it".to_owned()),
                Err(_) => {
                    let within = toolwright_core::duration::format(bound);
                    let remedy = if bound < LIST_TIMEOUT { "`request_timeout` can be raised" } else { "see its log" };
                    Err(format!("it did not list its tools within {within}; {remedy}"))
                }
            };
        }
    }

    async fn keep_manifest(&self, tools: &[Value], instructions: Option<&str>) {
        let manifest = json!({"tools": tools, "instructions": instructions});
        if let Err(error) = self.deps.manifests.set_manifest(&self.manifest_key, &manifest).await {
            tracing::debug!(server = self.spec.name, "the tool list was not cached: {error}");
        }
    }

    fn listed(&self) -> std::sync::MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn named(&self, reason: &str) -> ProviderError {
        ProviderError::new(format!("MCP server {}: {reason}", self.spec.name))
    }
}

#[async_trait]
impl Provider for McpProvider {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn kind(&self) -> ProviderKind {
        ProviderKind::Mcp
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        let built = match self.fetch().await {
            Ok((attempt, list)) => listing::build(&self.spec, &list.tools).map(|built| (attempt, list, built)),
            Err(reason) => Err(self.named(&reason)),
        };
        let (attempt, list, built) = match built {
            Ok(built) => built,
            Err(error) => {
                self.listed().outcome = Some(Err(error.message.clone()));
                return Err(error);
            }
        };
        let instructions = attempt.connection.server().instructions.clone();
        attempt.succeeded();
        self.keep_manifest(&list.tools, instructions.as_deref()).await;
        if let Some(reason) = list.cut {
            let message = format!("MCP server {}: {reason}", self.spec.name);
            self.deps.events.emit(Event::Warning { code: "mcp_list_cut".to_owned(), message });
        }
        *self.listed() = Listed { withheld: built.withheld, instructions, outcome: Some(Ok(())) };
        Ok(built.tools)
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let name = &self.spec.name;
        let connection = tokio::select! {
            biased;
            cause = context.cancel.cancelled() => return Err(ToolError::canceled(cause)),
            connection = self.link.connection(Patience::FailFast) => {
                connection.map_err(|reason| call::transport(name, &reason).retryable())?
            }
        };
        tokio::select! {
            biased;
            cause = context.cancel.cancelled() => {
                if cause == CancelCause::Deadline {
                    connection.probe();
                }
                Err(ToolError::canceled(cause))
            }
            result = call::run(&connection, name, call, context) => result,
        }
    }

    async fn warm_up(&self) -> Result<(), ProviderError> {
        self.link.connection(Patience::Wait).await.map(drop).map_err(|reason| self.named(&reason))
    }

    async fn shut_down(&self) {
        self.relist.close();
        self.link.shut_down().await;
    }

    fn health(&self) -> Health {
        match (&self.listed().outcome, self.link.failure()) {
            (_, Some(reason)) => Health::Failed { reason: reason.to_string() },
            (Some(Err(reason)), None) => Health::Failed { reason: reason.clone() },
            (Some(Ok(())), None) => Health::Ready,
            (None, None) => Health::Starting,
        }
    }

    fn instructions(&self) -> Option<String> {
        let said = self.link.current().and_then(|connection| connection.server().instructions.clone());
        said.or_else(|| self.listed().instructions.clone())
    }

    fn mcp_peer(&self) -> Option<McpPeer> {
        let version = self.link.current().map(|connection| connection.server().version.to_owned());
        Some(McpPeer { server: self.spec.name.clone(), protocol_version: version, session: None })
    }

    fn limits(&self) -> CallLimits {
        let spec = &self.spec;
        CallLimits { timeout: spec.request_timeout, idle_timeout: spec.idle_timeout, retries: Some(spec.retries) }
    }

    fn credential_scope(&self, _principal: &Principal) -> Option<ContentHash> {
        Some(self.credential_scope)
    }

    fn trust(&self) -> HintTrust {
        if self.spec.trusted { HintTrust::Trusted } else { HintTrust::Foreign }
    }

    fn on_change(&self, notify: ChangeNotifier) {
        self.changes.listen(notify);
    }

    fn withheld(&self) -> Vec<(String, String)> {
        self.listed().withheld.clone()
    }

    async fn cached(&self) -> Option<Vec<Arc<RegisteredTool>>> {
        let manifest = match self.deps.manifests.manifest(&self.manifest_key).await {
            Ok(manifest) => manifest?,
            Err(error) => {
                tracing::debug!(server = self.spec.name, "the cached tool list was not read: {error}");
                return None;
            }
        };
        let built = listing::build(&self.spec, manifest.get("tools")?.as_array()?).ok()?;
        let mut listed = self.listed();
        if listed.outcome.is_none() {
            listed.withheld = built.withheld;
            listed.instructions = manifest.get("instructions").and_then(Value::as_str).map(str::to_owned);
        }
        Some(built.tools)
    }
}

impl Drop for McpProvider {
    fn drop(&mut self) {
        self.relist.close();
        self.link.give_up();
    }
}

/// How long one whole list may take.
fn list_bound(request_timeout: Option<Duration>) -> Duration {
    request_timeout.map_or(LIST_TIMEOUT, |limit| limit.min(LIST_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_limit_of_calls_does_not_let_a_list_outlast_the_catalogues_patience() {
        for (request_timeout, expect) in [(None, 50), (Some(300), 50), (Some(5), 5)] {
            let bound = list_bound(request_timeout.map(Duration::from_secs));
            assert_eq!(bound, Duration::from_secs(expect), "{request_timeout:?}");
        }
    }
}
