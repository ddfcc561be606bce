//! The provider of one remote catalogue, and the download of its bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolwright_core::catalogue::{CallLimits, ChangeNotifier, PromptSize, PromptSizeQuery, WithheldTool};
use toolwright_core::event::{CATALOGUE_KEPT, Event};
use toolwright_core::llm::LlmDefinition;
use toolwright_core::pattern::allowed_by;
use toolwright_core::policy::HintTrust;
use toolwright_core::store::{LASTING_MANIFESTS, ManifestCache, StoreError};
use toolwright_core::{
    Cancel, ContentHash, ErrorKind, Health, Principal, Provider, ProviderCall, ProviderError, ProviderKind,
    RegisteredTool, Tool as _, ToolContext, ToolError, ToolId, ToolOutput, duration,
};
use toolwright_net::{Bounds, HttpClient, HttpRequest, NetError};

use crate::DocumentOptions;
use crate::catalogue::config::{CatalogueConfig, is_secure};
use crate::catalogue::document::{
    PublicKey, Refusal, SeenVersion, Times, Verified, VerifyOptions, check_time, check_version, verify,
};
use crate::catalogue::tool::{Grants, Implementation, RefusedTool, make, registered};
use crate::list_retry::ListRetry;

/// The most refused tools that are named together.
const NAMED_REFUSALS: usize = 3;
/// The most characters of a reason.
const MAX_REASON: usize = 400;

/// One configured catalogue: provider and namespace are its name.
///
/// It is fetched when it is listed. It announces a change after each [`CatalogueConfig::refresh`], when its document
/// expires, and, while it cannot be fetched, with growing pauses of at most five minutes. If a document is refused as a
/// whole, the last accepted one stays in use, verified again, until it expires; a warning and [`Provider::issues`]
/// report that.
pub struct CatalogueProvider {
    config: CatalogueConfig,
    options: DocumentOptions,
    client: HttpClient,
    credential_scope: ContentHash,
    loaded: RwLock<LoadedCatalogue>,
    outcome: Mutex<Option<Result<(), String>>>,
    retry: ListRetry,
    /// Held by a call that precedes the first list.
    first: tokio::sync::Mutex<()>,
}

/// The state of the last accepted document.
#[derive(Default)]
struct LoadedCatalogue {
    /// The tools by name: the hash of the definition, and the implementation of that definition.
    tools: HashMap<String, (ContentHash, Arc<Implementation>)>,
    listed: Vec<Arc<RegisteredTool>>,
    withheld: Vec<WithheldTool>,
    /// The refused tools, as a sentence.
    refused: Option<String>,
    /// The document; `None` before the first.
    document: Option<AcceptedDocument>,
}

/// A document that was verified under this entry's keys, and its tools.
#[derive(Clone, Copy)]
struct AcceptedDocument {
    /// The hash of all of its bytes.
    bytes: ContentHash,
    times: Times,
    seen: SeenVersion,
}

/// A document to use.
struct CurrentDocument {
    accepted: AcceptedDocument,
    tools: DocumentTools,
}

enum DocumentTools {
    /// The same document as before, so its tools are reused.
    Loaded(Vec<Arc<RegisteredTool>>),
    /// A new document, whose tools must be built.
    Of(Box<Verified>),
}

/// A document as stored.
#[derive(Serialize, Deserialize)]
struct StoredDocument {
    text: String,
    /// The newest accepted version, by the key that was trusted then: each publisher is checked against its own
    /// versions only.
    seen: BTreeMap<String, SeenVersion>,
}

/// Forgets the last accepted document of the catalogue of this name, so that an older version is accepted the next
/// time. Returns whether there was one.
///
/// # Errors
/// Errors of the store.
pub async fn forget(manifests: &dyn ManifestCache, namespace: &str) -> Result<bool, StoreError> {
    manifests.remove_manifest(&key_of(namespace)).await
}

fn key_of(namespace: &str) -> String {
    format!("{LASTING_MANIFESTS}{namespace}")
}

/// Returns the message that the published document is not used, and which one is used instead.
fn kept(why: &str, AcceptedDocument { times, seen, .. }: AcceptedDocument) -> String {
    let (version, until) = (seen.version, duration::iso(times.expires.saturating_mul(1000)));
    format!(
        "the published version is not used: {}; version {version}, which was accepted before, stays in use until \
         {until}",
        shortened(why)
    )
}

/// Returns the message that tools are refused, and why; `None` if there are none.
fn refusals(refused: &[RefusedTool], all: usize) -> Option<String> {
    let named = refused.iter().take(NAMED_REFUSALS);
    let named: Vec<String> =
        named.map(|tool| format!("`{}` is {}", shortened(&tool.id), shortened(&tool.why))).collect();
    let more = match refused.len() - named.len() {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let warning = format!("{} of its {all} tools are refused: {}{more}", refused.len(), named.join("; "));
    (!refused.is_empty()).then_some(warning)
}

/// Shortens a reason, because it contains a publisher's text.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_REASON).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Returns the seconds since the epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl std::fmt::Debug for CatalogueProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CatalogueProvider").field("config", &self.config).finish_non_exhaustive()
    }
}

impl CatalogueProvider {
    /// Creates a catalogue, which is not fetched yet.
    #[must_use]
    pub fn new(config: CatalogueConfig, options: DocumentOptions) -> Arc<Self> {
        let client = HttpClient::new(config.address_policy(), options.http.clone());
        let secrets: Vec<(&String, &String)> = config.secrets.iter().collect();
        let credential_scope = ContentHash::of_value(&serde_json::json!([config.url.as_str(), secrets]));
        Arc::new(Self {
            config,
            options,
            client,
            credential_scope,
            loaded: RwLock::default(),
            outcome: Mutex::default(),
            retry: ListRetry::default(),
            first: tokio::sync::Mutex::default(),
        })
    }

    /// Returns its stored document.
    ///
    /// # Errors
    /// It cannot be read, so it is unknown which versions are too old.
    async fn stored_document(&self) -> Result<Option<StoredDocument>, String> {
        let kept = match self.options.manifests.manifest(&key_of(&self.config.namespace)).await {
            Ok(Some(kept)) => kept,
            Ok(None) | Err(StoreError::Unsupported(_)) => return Ok(None),
            Err(error) => return Err(format!("the version that was accepted before is not known: {error}")),
        };
        let unread = |error| {
            let namespace = &self.config.namespace;
            format!(
                "the version that was accepted before cannot be read ({error}): `toolwright catalogue forget \
                 {namespace}` drops it"
            )
        };
        serde_json::from_value(self.by_key(kept)).map(Some).map_err(unread)
    }

    /// Converts a stored document to the present form. Up to 0.1 it did not name the key of the newest version, which
    /// counted for any trusted key; that still applies.
    fn by_key(&self, mut kept: Value) -> Value {
        if let Some(seen) = kept.get_mut("seen").filter(|seen| seen.get("version").is_some_and(Value::is_u64)) {
            let alone = seen.take();
            *seen = self.config.keys.iter().map(|key| (key.to_string(), alone.clone())).collect();
        }
        kept
    }

    fn verify(&self, bytes: &[u8], seen: Option<SeenVersion>) -> Result<CurrentDocument, Refusal> {
        let hash = ContentHash::of_bytes(bytes);
        let is_same_document = |accepted: &AcceptedDocument| accepted.bytes == hash;
        let loaded = {
            let loaded = self.loaded();
            loaded.document.filter(is_same_document).map(|accepted| (accepted, loaded.listed.clone()))
        };
        if let Some((accepted, listed)) = loaded {
            check_time(accepted.times, now())?;
            check_version(accepted.seen, seen)?;
            return Ok(CurrentDocument { accepted, tools: DocumentTools::Loaded(listed) });
        }
        let CatalogueConfig { keys, namespace, max_bytes, .. } = &self.config;
        let verified = verify(bytes, &VerifyOptions { keys, namespace, now: now(), max_bytes: *max_bytes, seen })?;
        let times = Times { issued: verified.document.issued, expires: verified.document.expires };
        let accepted = AcceptedDocument { bytes: hash, times, seen: verified.seen };
        Ok(CurrentDocument { accepted, tools: DocumentTools::Of(Box::new(verified)) })
    }

    fn loaded(&self) -> RwLockReadGuard<'_, LoadedCatalogue> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the newest version that was accepted under the present keys.
    fn newest_accepted(&self, kept: Option<&StoredDocument>) -> Option<SeenVersion> {
        let of_key = |key: &PublicKey| kept?.seen.get(&key.to_string()).copied();
        self.config.keys.iter().filter_map(of_key).max_by_key(|seen| seen.version)
    }

    /// Returns the document to use: the fetched one, or else the stored one with the reason.
    async fn current(&self) -> Result<(CurrentDocument, Option<String>), String> {
        let kept = self.stored_document().await?;
        let fetched = match fetch(&self.client, &self.config).await {
            Ok(bytes) => self.verify(&bytes, self.newest_accepted(kept.as_ref())).map(|believed| (believed, bytes)),
            Err(error) => return self.fall_back(kept.as_ref(), error.to_string()),
        };
        match fetched {
            Ok((believed, bytes)) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let mut seen = kept.map(|kept| kept.seen).unwrap_or_default();
                seen.extend(self.config.keys.iter().map(|key| (key.to_string(), believed.accepted.seen)));
                self.keep(&StoredDocument { text, seen }).await;
                Ok((believed, None))
            }
            Err(refusal) => self.fall_back(kept.as_ref(), refusal.to_string()),
        }
    }

    fn fall_back(
        &self,
        kept: Option<&StoredDocument>,
        why: String,
    ) -> Result<(CurrentDocument, Option<String>), String> {
        let Some(kept) = kept else { return Err(why) };
        match self.verify(kept.text.as_bytes(), None) {
            Ok(believed) => Ok((believed, Some(why))),
            // Its publisher is not trusted any more.
            Err(Refusal::WrongKey(_)) => Err(why),
            Err(refusal) => Err(format!("{why}; the last accepted version has this fault: {refusal}")),
        }
    }

    async fn keep(&self, kept: &StoredDocument) {
        let stored = match serde_json::to_value(kept) {
            Ok(value) => self
                .options
                .manifests
                .set_manifest(&key_of(&self.config.namespace), &value)
                .await
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = stored {
            tracing::warn!(catalogue = self.config.namespace, "the catalogue was not kept: {error}");
        }
    }

    /// Builds the tools of a document, and replaces the previous ones.
    fn load(&self, CurrentDocument { accepted, tools }: CurrentDocument) -> Vec<Arc<RegisteredTool>> {
        let verified = match tools {
            DocumentTools::Loaded(listed) => return listed,
            DocumentTools::Of(verified) => verified,
        };
        let grants = Grants {
            secrets: self.config.secrets.clone(),
            address: self.config.address_policy(),
            insecure_loopback: self.config.insecure_loopback,
            http: self.options.http.clone(),
        };
        let (made, refused) = make(&verified, &grants);
        let refusals = refusals(&refused, made.len() + refused.len());
        let mut loaded = LoadedCatalogue { document: Some(accepted), refused: refusals, ..LoadedCatalogue::default() };
        // By the name that other withheld tools have.
        let name =
            |id: &str| id.split_once(':').map_or(id, |(_, rest)| rest.split('@').next().unwrap_or(rest)).to_owned();
        loaded.withheld.extend(refused.into_iter().map(|refused| WithheldTool::new(name(&refused.id), refused.why)));
        loaded.listed.reserve(made.len());
        for tool in made {
            let name = tool.definition.id.name().to_owned();
            if !allowed_by(&self.config.tools_allowed, &[], &name) {
                loaded.withheld.push(WithheldTool::new(name, "filtered by tools_allowed"));
            } else if !allowed_by(&[], &self.config.tools_denied, &name) {
                loaded.withheld.push(WithheldTool::new(name, "filtered by tools_denied"));
            } else {
                let entry = registered(&tool, self.config.tools.get(&name));
                loaded.tools.insert(name, (entry.source_hash(), Arc::new(tool.implementation)));
                loaded.listed.push(entry);
            }
        }
        let listed = loaded.listed.clone();
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        listed
    }

    fn implementation(&self, tool: &ToolId) -> Option<Arc<Implementation>> {
        let loaded = self.loaded();
        loaded.tools.get(tool.name()).map(|(_, implementation)| Arc::clone(implementation))
    }

    fn ended(&self, outcome: Result<(), String>) -> bool {
        let mut held = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        held.replace(outcome.clone()) != Some(outcome)
    }

    /// Returns how long the loaded document may be used: until the next refresh, or its expiry.
    fn fresh(&self, times: Times) -> Duration {
        let left = times.expires.saturating_sub(now());
        self.config.refresh.min(Duration::from_secs(left.max(1)))
    }

    /// Lists it if that has not happened yet: a call of a tool that another provider of this name listed may come
    /// first.
    async fn first_list(&self) {
        if !self.is_unlisted() {
            return;
        }
        let _first = self.first.lock().await;
        if self.is_unlisted() {
            // The result is in `outcome`, and the call reports it.
            let _ = self.list().await;
        }
    }

    fn is_unlisted(&self) -> bool {
        let is_loaded = self.loaded().document.is_some();
        !is_loaded && self.outcome.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

#[async_trait]
impl Provider for CatalogueProvider {
    fn name(&self) -> &str {
        &self.config.namespace
    }

    fn defined_in(&self) -> &str {
        &self.config.defined_in
    }

    fn kind(&self) -> ProviderKind {
        ProviderKind::Catalogue
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        let name = &self.config.namespace;
        let attempt = self.retry.attempt();
        match self.current().await {
            Ok((believed, why)) => {
                if why.is_none() {
                    attempt.succeeded(Some(self.fresh(believed.accepted.times)));
                }
                let outcome = why.map_or(Ok(()), Err);
                let warning = outcome.clone().err();
                // Each new reason is reported once.
                if self.ended(outcome)
                    && let Some(why) = warning
                {
                    let kept = kept(&why, believed.accepted);
                    tracing::warn!(catalogue = name, "{kept}");
                    let message = format!("catalogue {name}: {kept}");
                    self.options.events.emit(Event::Warning { code: CATALOGUE_KEPT.to_owned(), message });
                }
                Ok(self.load(believed))
            }
            Err(why) => {
                self.ended(Err(why.clone()));
                *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = LoadedCatalogue::default();
                Err(ProviderError::new(format!("catalogue {name}: {why}")))
            }
        }
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let (name, tool) = (&self.config.namespace, call.raw_name);
        let listed = Bounds::of(context).run(self.first_list()).await;
        listed.map_err(|error| error.into_tool_error(&format!("catalogues.{name}")))?;
        let (found, expires) = {
            let loaded = self.loaded();
            (loaded.tools.get(tool).cloned(), loaded.document.map(|document| document.times.expires))
        };
        // It was valid when it was listed, which may be long ago.
        if let Some(expired) = expires.and_then(|expires| now().checked_sub(expires)) {
            let refusal = Refusal::Expired(expired);
            let message = format!("the catalogue {name} is not believed any more, so `{tool}` was not run: {refusal}");
            return Err(ToolError::new(ErrorKind::UnknownTool, message));
        }
        let Some((hash, implementation)) = found else {
            let message = match &*self.outcome.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(Err(why)) => format!("the catalogue {name} cannot be fetched, so `{tool}` was not run: {why}"),
                _ => format!("the catalogue {name} has no tool `{tool}` any more"),
            };
            return Err(ToolError::new(ErrorKind::UnknownTool, message));
        };
        // The old definition was checked and approved, but the new one would run.
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

    fn prompt_size(&self, tool: &ToolId, asked: PromptSizeQuery<'_>) -> PromptSize {
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
        self.retry.close();
    }

    fn health(&self) -> Health {
        match &*self.outcome.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Health::Starting,
            Some(Ok(())) => Health::Ready,
            Some(Err(reason)) => Health::Failed { reason: reason.clone() },
        }
    }

    fn trust(&self) -> HintTrust {
        if self.config.trusted { HintTrust::Trusted } else { HintTrust::Foreign }
    }

    fn on_change(&self, notify: ChangeNotifier) {
        self.retry.listen(notify);
    }

    fn withheld(&self) -> Vec<WithheldTool> {
        self.loaded().withheld.clone()
    }

    fn issues(&self) -> Vec<String> {
        let why = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone().and_then(Result::err);
        let loaded = self.loaded();
        let kept = loaded.document.zip(why).map(|(accepted, why)| kept(&why, accepted));
        kept.into_iter().chain(loaded.refused.clone()).collect()
    }

    async fn cached(&self) -> Option<Vec<Arc<RegisteredTool>>> {
        let kept = self.stored_document().await.ok()??;
        match self.verify(kept.text.as_bytes(), None) {
            Ok(believed) => Some(self.load(believed)),
            Err(refusal) => {
                tracing::warn!(catalogue = self.config.namespace, "its stored copy is not used: {refusal}");
                None
            }
        }
    }
}

/// The time limit of a fetch.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The reason why a catalogue was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The address is not protected.
    #[error("`{0}` is refused: catalogues are fetched over https")]
    Insecure(String),
    /// The exchange failed, or the address is not allowed.
    #[error("it could not be fetched: {0}")]
    Net(#[from] NetError),
    /// The server answered with an error status.
    #[error("its server answered HTTP {0}")]
    Status(u16),
    /// It is too large.
    #[error("it is larger than {0} bytes; `max_bytes` can be raised")]
    TooLarge(usize),
}

/// Fetches the document of `config`. Follows redirects, checks each like the address itself, and refuses those to
/// unprotected addresses.
///
/// # Errors
/// [`FetchError`].
pub async fn fetch(client: &HttpClient, config: &CatalogueConfig) -> Result<Vec<u8>, FetchError> {
    if !is_secure(&config.url, config.insecure_loopback) {
        return Err(FetchError::Insecure(config.url.scheme().to_owned()));
    }
    let cancel = Cancel::new();
    let bounds = Bounds::new(&cancel, Instant::now().checked_add(TIMEOUT));
    let response = client.send(HttpRequest::get(config.url.clone()), bounds).await?;
    if !is_secure(response.url(), config.insecure_loopback) {
        return Err(FetchError::Insecure(response.public_url()));
    }
    if !response.status().is_success() {
        return Err(FetchError::Status(response.status().as_u16()));
    }
    let body = response.read(config.max_bytes, bounds).await?;
    if body.cut { Err(FetchError::TooLarge(config.max_bytes)) } else { Ok(body.bytes) }
}
