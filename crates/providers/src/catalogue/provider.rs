//! A catalogue as a source of tools.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::task::AbortHandle;
use toolwright_core::catalogue::{CallLimits, ChangeNotifier, PromptQuestion, PromptSize};
use toolwright_core::event::Event;
use toolwright_core::llm::LlmDefinition;
use toolwright_core::pattern::allowed_by;
use toolwright_core::policy::HintTrust;
use toolwright_core::{
    ContentHash, ErrorKind, Health, Principal, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool,
    Tool as _, ToolContext, ToolError, ToolId, ToolOutput,
};

use super::document::{Refusal, Seen, Terms, Verified, verify};
use super::fetch::fetch;
use super::spec::{CatalogueDeps, CatalogueSpec};
use super::tool::{Grants, Implementation, make, registered};
use crate::net::HttpClient;

/// One configured catalogue: provider and namespace are its name.
///
/// It is fetched when it is listed, and announces a change whenever [`CatalogueSpec::refresh`] has passed. What is
/// refused as a whole leaves the last accepted document in force, verified again, until that expires; a warning says so.
pub struct CatalogueProvider {
    spec: CatalogueSpec,
    deps: CatalogueDeps,
    client: HttpClient,
    credential_scope: ContentHash,
    loaded: RwLock<Loaded>,
    outcome: Mutex<Option<Result<(), String>>>,
    timer: Mutex<Option<AbortHandle>>,
}

/// What the last accepted document came to.
#[derive(Default)]
struct Loaded {
    /// By name: the hash of the definition, and what runs calls of that definition.
    tools: HashMap<String, (ContentHash, Arc<Implementation>)>,
    withheld: Vec<(String, String)>,
}

/// A document as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    text: String,
    seen: Seen,
}

impl std::fmt::Debug for CatalogueProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CatalogueProvider").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl CatalogueProvider {
    /// A catalogue that is not fetched yet.
    #[must_use]
    pub fn new(spec: CatalogueSpec, deps: CatalogueDeps) -> Arc<Self> {
        let client = HttpClient::new(spec.address_policy(), deps.http.clone());
        let secrets: Vec<(&String, &String)> = spec.secrets.iter().collect();
        let credential_scope = ContentHash::of_value(&serde_json::json!([spec.url.as_str(), secrets]));
        Arc::new(Self {
            spec,
            deps,
            client,
            credential_scope,
            loaded: RwLock::default(),
            outcome: Mutex::default(),
            timer: Mutex::default(),
        })
    }

    fn key(&self) -> String {
        format!("catalogue:{}", self.spec.namespace)
    }

    async fn kept(&self) -> Option<Kept> {
        match self.deps.manifests.manifest(&self.key()).await {
            Ok(kept) => serde_json::from_value(kept?).ok(),
            Err(error) => {
                tracing::debug!(catalogue = self.spec.namespace, "the kept catalogue was not read: {error}");
                None
            }
        }
    }

    fn verify(&self, bytes: &[u8], seen: Option<Seen>) -> Result<Verified, Refusal> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let CatalogueSpec { keys, namespace, max_bytes, .. } = &self.spec;
        verify(bytes, &Terms { keys, namespace, now, max_bytes: *max_bytes, seen })
    }

    /// The document as it is to be had: fetched, or else the kept one, with the reason.
    async fn current(&self) -> Result<(Verified, Option<String>), String> {
        let kept = self.kept().await;
        let fetched = match fetch(&self.client, &self.spec).await {
            Ok(bytes) => self.verify(&bytes, kept.as_ref().map(|kept| kept.seen)).map(|verified| (verified, bytes)),
            Err(error) => return self.instead(kept, error.to_string()),
        };
        match fetched {
            Ok((verified, bytes)) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                self.keep(&Kept { text, seen: verified.seen }).await;
                Ok((verified, None))
            }
            Err(refusal) => self.instead(kept, refusal.to_string()),
        }
    }

    fn instead(&self, kept: Option<Kept>, why: String) -> Result<(Verified, Option<String>), String> {
        let Some(kept) = kept else { return Err(why) };
        match self.verify(kept.text.as_bytes(), None) {
            Ok(verified) => Ok((verified, Some(why))),
            Err(refusal) => Err(format!("{why}; and of the one that was accepted last: {refusal}")),
        }
    }

    async fn keep(&self, kept: &Kept) {
        let stored = match serde_json::to_value(kept) {
            Ok(value) => self.deps.manifests.set_manifest(&self.key(), &value).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = stored {
            tracing::warn!(catalogue = self.spec.namespace, "the catalogue was not kept: {error}");
        }
    }

    /// Makes the tools of a document, and puts them in the place of those before.
    fn load(&self, verified: &Verified) -> Vec<Arc<RegisteredTool>> {
        let grants = Grants {
            secrets: self.spec.secrets.clone(),
            address: self.spec.address_policy(),
            insecure_loopback: self.spec.insecure_loopback,
            http: self.deps.http.clone(),
        };
        let (made, refused) = make(verified, &grants);
        let mut loaded = Loaded::default();
        // By the name, as others that are withheld are called.
        let name =
            |id: &str| id.split_once(':').map_or(id, |(_, rest)| rest.split('@').next().unwrap_or(rest)).to_owned();
        loaded.withheld.extend(refused.into_iter().map(|refused| (name(&refused.id), refused.why)));
        let mut listed = Vec::with_capacity(made.len());
        for tool in made {
            let name = tool.definition.id.name().to_owned();
            if !allowed_by(&self.spec.tools_allowed, &[], &name) {
                loaded.withheld.push((name, "filtered by tools_allowed".to_owned()));
            } else if !allowed_by(&[], &self.spec.tools_denied, &name) {
                loaded.withheld.push((name, "filtered by tools_denied".to_owned()));
            } else {
                let entry = registered(&tool, self.spec.shown.get(&name));
                loaded.tools.insert(name, (entry.source_hash(), Arc::new(tool.implementation)));
                listed.push(entry);
            }
        }
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        listed
    }

    fn implementation(&self, tool: &ToolId) -> Option<Arc<Implementation>> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.tools.get(tool.name()).map(|(_, implementation)| Arc::clone(implementation))
    }

    fn ended(&self, outcome: Result<(), String>) -> bool {
        let mut held = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        held.replace(outcome.clone()) != Some(outcome)
    }

    fn stop(&self) {
        if let Some(timer) = self.timer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            timer.abort();
        }
    }
}

#[async_trait]
impl Provider for CatalogueProvider {
    fn name(&self) -> &str {
        &self.spec.namespace
    }

    fn kind(&self) -> ProviderKind {
        ProviderKind::Catalogue
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        let name = &self.spec.namespace;
        match self.current().await {
            Ok((verified, why)) => {
                let outcome = why.map_or(Ok(()), Err);
                let warning = outcome.clone().err();
                // Each new reason is told once.
                if self.ended(outcome)
                    && let Some(why) = warning
                {
                    let version = verified.document.version;
                    let message =
                        format!("catalogue {name}: {why}; version {version}, which was accepted before, serves on");
                    self.deps.events.emit(Event::Warning { code: "catalogue_kept".to_owned(), message });
                }
                Ok(self.load(&verified))
            }
            Err(why) => {
                self.ended(Err(why.clone()));
                *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Loaded::default();
                Err(ProviderError::new(format!("catalogue {name}: {why}")))
            }
        }
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let found = self.loaded.read().unwrap_or_else(PoisonError::into_inner).tools.get(call.raw_name).cloned();
        let (name, tool) = (&self.spec.namespace, call.raw_name);
        let Some((hash, implementation)) = found else {
            let message = format!("the catalogue {name} has no tool `{tool}` any more");
            return Err(ToolError::new(ErrorKind::UnknownTool, message));
        };
        // What was checked and approved is the old definition; what would run is the new one's.
        if hash != call.source_hash {
            let message = format!(
                "the catalogue {name} has changed its tool `{tool}` since this call was checked, so it was not run: \
                 look at the tool again, and call it as it is now"
            );
            return Err(ToolError::new(ErrorKind::UnknownTool, message));
        }
        match &*implementation {
            Implementation::Rest(tool) => tool.call(&call, context).await,
            Implementation::Template(template) => match template.render(&call.arguments) {
                Ok(text) => Ok(ToolOutput::text(text)),
                Err(error) => Err(ToolError::new(ErrorKind::ExecutionError, error)),
            },
            Implementation::Llm(tool) => tool.attempt(call.arguments, context).await,
        }
    }

    fn awaits_others(&self, tool: &ToolId) -> bool {
        self.llm(tool).is_some()
    }

    fn llm(&self, tool: &ToolId) -> Option<Arc<LlmDefinition>> {
        match &*self.implementation(tool)? {
            Implementation::Llm(tool) => Some(Arc::clone(tool.source())),
            Implementation::Rest(_) | Implementation::Template(_) => None,
        }
    }

    fn prompt_size(&self, tool: &ToolId, asked: PromptQuestion<'_>) -> PromptSize {
        match self.implementation(tool).as_deref() {
            Some(Implementation::Llm(tool)) => tool.prompt_size(asked.arguments, asked.model, asked.mode, asked.tokens),
            _ => PromptSize::default(),
        }
    }

    fn limits(&self) -> CallLimits {
        CallLimits { retries: Some(1), ..CallLimits::default() }
    }

    fn credential_scope(&self, _principal: &Principal) -> Option<ContentHash> {
        Some(self.credential_scope)
    }

    async fn shut_down(&self) {
        self.stop();
    }

    fn health(&self) -> Health {
        match &*self.outcome.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Health::Starting,
            Some(Ok(())) => Health::Ready,
            Some(Err(reason)) => Health::Failed { reason: reason.clone() },
        }
    }

    fn trust(&self) -> HintTrust {
        if self.spec.trusted { HintTrust::Trusted } else { HintTrust::Foreign }
    }

    fn on_change(&self, notify: ChangeNotifier) {
        let refresh = self.spec.refresh;
        let timer = tokio::spawn(async move {
            loop {
                tokio::time::sleep(refresh).await;
                notify();
            }
        });
        self.stop();
        *self.timer.lock().unwrap_or_else(PoisonError::into_inner) = Some(timer.abort_handle());
    }

    fn withheld(&self) -> Vec<(String, String)> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).withheld.clone()
    }

    async fn cached(&self) -> Option<Vec<Arc<RegisteredTool>>> {
        let kept = self.kept().await?;
        match self.verify(kept.text.as_bytes(), None) {
            Ok(verified) => Some(self.load(&verified)),
            Err(refusal) => {
                tracing::warn!(catalogue = self.spec.namespace, "what was kept of it is not used: {refusal}");
                None
            }
        }
    }
}

impl Drop for CatalogueProvider {
    fn drop(&mut self) {
        self.stop();
    }
}
