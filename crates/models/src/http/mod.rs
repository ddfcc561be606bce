//! The HTTP client for all models. It sends each request once.

mod body;
pub(crate) mod discover;
pub(crate) mod embeddings;
pub(crate) mod endpoint;
mod overrides;
mod refusal_table;
mod refusals;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::{Client, RequestBuilder, Response};
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{
    FetchedFile, ModelCard, ModelClient, ModelError, ModelErrorKind, ModelEvents, ModelRequest, ModelResponse,
    RequestProgress, RequestSettings, RequestTool, Usability, Usage,
};
use toolwright_core::redact::is_secret_key;
use toolwright_textcalls::TextTools;
use toolwright_textcalls::composed::ComposedTools;

use crate::api::{Api, EncodedRequest, RequestPart};
use crate::codec::decode::MAX_ANSWER;
use crate::codec::losses;
use crate::codec::{Decoder, EncodedToolsCache, anthropic, encode_with, ollama};
use crate::failure;
use crate::rate_limits::limits;
use body::{media_type, read, read_all};
use endpoint::{Endpoint, Endpoints, ModelOverrides, ToolFormat, headers, remedy};
use overrides::{configured_request, has_deferred_tools, lacks_native, takes_deferred_tools, thinking_allowance};
use refusals::{Refusals, SentRequest, Workarounds};

/// The longest error body that is read, in bytes.
const MAX_ERROR_BODY: usize = 64 << 10;
/// Time limit for the body of an error; its status and headers have arrived.
const ERROR_BODY: Duration = Duration::from_secs(2);
/// Clients with connections of their own; models beyond them share their provider's.
const MAX_CLIENTS: usize = 64;
/// Maximal size of a file fetched from a provider, in bytes, and its time limit.
const MAX_FILE: usize = 32 << 20;
const FILE: Duration = Duration::from_secs(60);

/// Bounds of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Time limit for connecting.
    pub connect: Duration,
    /// Time limit from sending to the first byte of the answer; local servers load the model in this time.
    pub first_byte: Duration,
    /// Time limit between two pieces of the answer. Keep-alives count as pieces.
    pub idle: Duration,
    /// Time limit from the first byte of the answer to its end, against endless streams.
    pub answer: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(300),
            idle: Duration::from_secs(300),
            answer: Duration::from_secs(3600),
        }
    }
}

/// Sends requests to the configured endpoints. Each provider, and each model with special settings, has its own HTTP
/// client, which is built at its first request.
///
/// It sends each request once; the caller decides about retries. It reports the first byte of a response and the rate
/// limits in its headers to `events`, and its errors say whether the request can be sent again.
pub struct HttpModelClient {
    endpoints: Endpoints,
    timeouts: Timeouts,
    tools: EncodedToolsCache,
    refusals: Refusals,
    /// Models whose server was reported to shorten conversations.
    shortening: BoundedSet,
    clients: Mutex<BTreeMap<String, Client>>,
}

impl std::fmt::Debug for HttpModelClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpModelClient")
            .field("endpoints", &self.endpoints)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

impl HttpModelClient {
    /// A client for `endpoints` with the default timeouts.
    #[must_use]
    pub fn new(endpoints: Endpoints) -> Self {
        Self::with_timeouts(endpoints, Timeouts::default())
    }

    /// A client with these timeouts.
    #[must_use]
    pub fn with_timeouts(endpoints: Endpoints, timeouts: Timeouts) -> Self {
        Self {
            endpoints,
            timeouts,
            tools: EncodedToolsCache::default(),
            refusals: Refusals::default(),
            shortening: BoundedSet::default(),
            clients: Mutex::default(),
        }
    }

    /// The configured endpoints.
    #[must_use]
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// The body of a GET, at most `MAX_ANSWER` bytes, within `limit`.
    pub(crate) async fn get(&self, endpoint: &Endpoint, path: &str, limit: Duration) -> Result<Vec<u8>, ModelError> {
        Ok(self.get_file(endpoint, path, &[], limit, MAX_ANSWER).await?.bytes)
    }

    /// Returns the body of a GET with its media type, at most `max` bytes, within `limit`. Follows no redirects.
    async fn get_file(
        &self,
        endpoint: &Endpoint,
        path: &str,
        demanded: &[(&'static str, &'static str)],
        limit: Duration,
        max: usize,
    ) -> Result<FetchedFile, ModelError> {
        let headers = headers(endpoint, demanded)?;
        let request = self.client(endpoint, None)?.get(endpoint.url(path)).headers(headers).timeout(limit);
        let response = request.send().await.map_err(|error| unsent(endpoint, error))?;
        let (status, media) = (response.status(), media_type(&response));
        let timeouts = Timeouts { idle: limit, answer: limit, ..self.timeouts };
        let bytes = read_all(endpoint, response, Vec::new(), max, timeouts).await?;
        if !status.is_success() {
            return Err(redacted(endpoint, failure::from_status(endpoint.api, status.as_u16(), &bytes)));
        }
        let media_type = if media.is_empty() { "application/octet-stream".to_owned() } else { media };
        Ok(FetchedFile { media_type, bytes })
    }

    /// Returns the HTTP client of a provider, or of a model that requires its own: it uses the environment's proxies,
    /// except for this machine.
    fn client(&self, endpoint: &Endpoint, dedicated: Option<&str>) -> Result<Client, ModelError> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // Names of models may come from anywhere.
        let dedicated = dedicated.filter(|model| clients.contains_key(*model) || clients.len() < MAX_CLIENTS);
        let name = dedicated.unwrap_or(&endpoint.provider);
        if let Some(client) = clients.get(name) {
            return Ok(client.clone());
        }
        let client = build_client(self.timeouts.connect, is_loopback(&endpoint.base_url))?;
        clients.insert(name.to_owned(), client.clone());
        Ok(client)
    }

    /// The error with its remedy.
    fn with_remedy(&self, model: &str, mut error: ModelError) -> ModelError {
        let resolved = self.endpoints.resolve(model).ok();
        if let Some(remedy) = resolved.and_then(|(endpoint, name)| remedy(endpoint, name, &error)) {
            error.message.push_str("; ");
            error.message.push_str(&remedy);
        }
        error
    }

    /// Returns the text format for calls of a model without native ones; `None` for a model with native calls, and for
    /// one that answers in one composed object.
    #[must_use]
    pub fn text_tools(&self, model: &str) -> Option<TextTools> {
        match self.endpoints.overrides(model).tool_format? {
            ToolFormat::Named(format) => Some(TextTools::in_format(format)),
            ToolFormat::Auto => Some(TextTools::for_model(model)),
            ToolFormat::Composed => None,
        }
    }

    /// Sends the request with native tool calls, or with calls as text for a model without them.
    async fn answer_over(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
    ) -> Result<ModelResponse, ModelError> {
        if self.endpoints.overrides(model).tool_format == Some(ToolFormat::Composed) {
            let composed = ComposedTools::of(request);
            let answer = self.answer(model, &composed.request(request), &composed.listen(events)).await;
            return composed.finish(answer, events);
        }
        let Some(text) = self.text_tools(model) else { return self.answer(model, request, events).await };
        let listener = text.listen(request, events);
        let answer = self.answer(model, &text.request(request), &listener).await;
        listener.finish(answer)
    }

    async fn answer(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
    ) -> Result<ModelResponse, ModelError> {
        let (endpoint, name) = self.endpoints.resolve(model)?;
        let overrides = self.endpoints.overrides(model);
        let timeouts = overrides.timeouts.over(self.timeouts);
        let tools = self.tools.get(endpoint.api, &request.tools, overrides.strict_tools);
        let workarounds = self.refusals.workarounds(model, request);
        let asked = workarounds
            .without_refused_schema(endpoint.api, configured_request(request, endpoint, name, overrides, &workarounds));
        let mut encoded = encode_with(&asked, name, &tools);
        if endpoint.api == Api::Ollama {
            if let Some(window) = overrides.window {
                ollama::keep_window(&mut encoded, window);
            }
            if let Some(span) = overrides.keep_alive {
                ollama::keep_alive(&mut encoded, span);
            }
        }
        workarounds.apply(&asked.settings, &mut encoded);
        let lost = losses(endpoint.api, request, &asked, &encoded);
        if !lost.is_empty() {
            events.on_traffic(RequestProgress::Lost(lost.into_iter().map(RequestPart::name).collect()));
        }
        let dedicated = overrides.requires_dedicated_client.then_some(model);
        let sent = self.send(endpoint, dedicated, &encoded, timeouts, events).await;
        let (response, first) = match sent {
            Ok(answered) => answered,
            Err(mut error) => {
                let configured = configured_request(request, endpoint, name, overrides, &workarounds);
                let thinking_allowance = thinking_allowance(request, &configured, endpoint.api, name, overrides);
                let sent = SentRequest { api: endpoint.api, request: &asked, encoded: &encoded, thinking_allowance };
                self.refusals.failed(model, request, &sent, workarounds, &mut error);
                return Err(error);
            }
        };
        let media = media_type(&response);
        // Some servers do not stream although requested, or send another media type.
        let is_stream = matches!(&*media, "text/event-stream" | "application/x-ndjson");
        let decoder = if is_stream { Decoder::new(endpoint.api) } else { Decoder::detecting(endpoint.api) };
        let decoder = decoder.with_tools(Arc::clone(tools.set()));
        let answered = read(endpoint, decoder, response, first, timeouts, events).await;
        if let Ok(answer) = &answered {
            self.refusals.answered(model, &workarounds);
            if endpoint.api == Api::Ollama {
                self.warn_if_shortened(model, request, answer.usage, events);
            }
        }
        answered.map_err(|mut error| {
            let is_known = is_stream || media == "application/json";
            if error.kind == ModelErrorKind::BadResponse && error.partial.is_none() && !is_known {
                let media = if media.is_empty() { "missing" } else { &*media };
                error.message.push_str(&format!("; its content type is {media}, so something else may have answered"));
            }
            redacted(endpoint, error)
        })
    }

    /// Reports, once per model, a server that read far less than was sent. Versions of Ollama that do not know `truncate`
    /// silently shorten a conversation that does not fit.
    fn warn_if_shortened(&self, model: &str, request: &ModelRequest, usage: Usage, events: &dyn ModelEvents) {
        let (sent, read) = (ollama::estimate(request), usage.input_tokens);
        // Servers with the whole request cached may report no tokens.
        if read > 0 && sent >= ollama::MIN_ESTIMATE && read.saturating_mul(2) < sent && self.shortening.note(model) {
            events.on_traffic(RequestProgress::Shortened { sent, read });
        }
    }

    /// Returns the body of a POST without side effects, at most `MAX_ANSWER` bytes. Sent once.
    pub(crate) async fn post(
        &self,
        endpoint: &Endpoint,
        request: &EncodedRequest,
        events: &dyn ModelEvents,
    ) -> Result<Vec<u8>, ModelError> {
        let (response, first) = self.send(endpoint, None, request, self.timeouts, events).await?;
        read_all(endpoint, response, first.unwrap_or_default().into(), MAX_ANSWER, self.timeouts).await
    }

    /// Sends the request once and waits for the first bytes of a good answer.
    async fn send(
        &self,
        endpoint: &Endpoint,
        dedicated: Option<&str>,
        encoded: &EncodedRequest,
        timeouts: Timeouts,
        events: &dyn ModelEvents,
    ) -> Result<(Response, Option<Bytes>), ModelError> {
        let request = self
            .client(endpoint, dedicated)?
            .post(endpoint.url(&encoded.path))
            .headers(headers(endpoint, encoded.headers)?)
            .body(encoded.bytes());
        let answered = first_bytes(endpoint, request, timeouts.first_byte, events).await;
        answered.map_err(|error| redacted(endpoint, error))
    }
}

#[async_trait]
impl ModelClient for HttpModelClient {
    async fn complete(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        tokio::select! {
            biased;
            cause = cancel.cancelled() => {
                let message = format!("the model request was cancelled {}", cause.describe());
                Err(ModelError::new(ModelErrorKind::Canceled, message))
            }
            answer = self.answer_over(model, request, events) => answer.map_err(|error| self.with_remedy(model, error)),
        }
    }

    fn lacks_native(&self, model: &str, tool: &RequestTool, beside_others: bool) -> Option<String> {
        match self.endpoints.endpoint_of(model) {
            Ok((endpoint, name)) => lacks_native(endpoint, name, self.endpoints.overrides(model), tool, beside_others),
            Err(error) => Some(error.message),
        }
    }

    async fn fetch_file(&self, model: &str, path: &str, cancel: &Cancel) -> Result<FetchedFile, ModelError> {
        let (endpoint, _) = self.endpoints.resolve(model)?;
        let demanded = if endpoint.api == Api::Anthropic { anthropic::FILE_HEADERS } else { &[] };
        tokio::select! {
            biased;
            cause = cancel.cancelled() => {
                let message = format!("the file's download was cancelled {}", cause.describe());
                Err(ModelError::new(ModelErrorKind::Canceled, message))
            }
            file = self.get_file(endpoint, path, demanded, FILE, MAX_FILE) => file,
        }
    }

    fn has_tool_search(&self, model: &str) -> bool {
        let overrides = self.endpoints.overrides(model);
        let Ok((at, name)) = self.endpoints.endpoint_of(model) else { return false };
        let able = || overrides.tool_search.unwrap_or_else(|| takes_deferred_tools(at, name));
        // Text calls only know the tools in the prompt.
        overrides.tool_format.is_none() && has_deferred_tools(at.api) && able()
    }

    fn card(&self, model: &str) -> ModelCard {
        let &ModelOverrides { window, max_output, .. } = self.endpoints.overrides(model);
        let usability = match self.endpoints.resolve(model) {
            Err(error) => Usability::Unknown(error.message),
            // Configured headers may hold a key.
            Ok((at, _)) if at.key.is_some() || !at.headers.is_empty() => Usability::Usable,
            Ok((at, _)) if at.api == Api::Ollama || is_loopback(&at.base_url) => Usability::Usable,
            Ok(_) => Usability::NoKey,
        };
        ModelCard { usability, window, max_output, ..ModelCard::default() }
    }

    fn answer_tokens(&self, model: &str, max_tokens: Option<u32>, settings: &RequestSettings) -> Option<u32> {
        let overrides = self.endpoints.overrides(model);
        let Ok((endpoint, name)) = self.endpoints.resolve(model) else { return max_tokens };
        let request = ModelRequest { max_tokens, settings: settings.clone(), ..ModelRequest::default() };
        configured_request(&request, endpoint, name, overrides, &Workarounds::default())
            .max_tokens
            .or(overrides.max_output)
    }
}

fn build_client(connect: Duration, local: bool) -> Result<Client, ModelError> {
    static PROVIDER: Once = Once::new();
    // An error means that another one is installed, which is fine.
    PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    let builder = Client::builder()
        .user_agent(concat!("toolwright/", env!("CARGO_PKG_VERSION")))
        .tcp_nodelay(true)
        .connect_timeout(connect)
        .redirect(reqwest::redirect::Policy::none());
    let builder = if local { builder.no_proxy() } else { builder };
    builder.build().map_err(|error| {
        transport_error(ModelErrorKind::Unavailable, "the HTTP client for models cannot be built".into(), error)
    })
}

fn is_loopback(base_url: &str) -> bool {
    let Ok(url) = url::Url::parse(base_url) else { return false };
    match url.host() {
        Some(url::Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(url::Host::Ipv4(ip)) => IpAddr::from(ip).is_loopback(),
        Some(url::Host::Ipv6(ip)) => IpAddr::from(ip).is_loopback(),
        None => false,
    }
}

/// Returns the response with its first bytes, which must arrive within `limit`.
async fn first_bytes(
    endpoint: &Endpoint,
    request: RequestBuilder,
    limit: Duration,
    events: &dyn ModelEvents,
) -> Result<(Response, Option<Bytes>), ModelError> {
    let now = SystemTime::now();
    let begun = async {
        let mut response = request.send().await.map_err(|error| unsent(endpoint, error))?;
        if let Some(limits) = limits(&|name| header(&response, name), now) {
            events.on_traffic(RequestProgress::Limits(limits));
        }
        if !response.status().is_success() {
            return Ok((response, None));
        }
        let first = response.chunk().await.map_err(|error| broken(endpoint, error))?;
        events.on_traffic(RequestProgress::FirstByte);
        Ok((response, first))
    };
    let (mut response, first) = tokio::time::timeout(limit, begun).await.unwrap_or_else(|_| {
        let message = format!("{} gave no answer within {} s", describe(endpoint), limit.as_secs_f64());
        // The server may still be working on the request, and will bill it.
        Err(ModelError { should_retry: Some(false), ..ModelError::new(ModelErrorKind::Unavailable, message) })
    })?;
    let status = response.status();
    if status.is_success() {
        return Ok((response, first));
    }
    let wait = |name: &str| header(&response, name);
    let retry_after_ms = failure::retry_after_ms(wait("retry-after-ms"), wait("retry-after"), now);
    let should_retry = match header(&response, "x-should-retry") {
        Some("true") => Some(true),
        Some("false") => Some(false),
        _ => None,
    };
    let mut body = Vec::new();
    let rest = async {
        while let Ok(Some(chunk)) = response.chunk().await
            && body.len() < MAX_ERROR_BODY
        {
            body.extend_from_slice(&chunk);
        }
    };
    // Status and headers are enough if the body does not come.
    let _is_whole = tokio::time::timeout(ERROR_BODY, rest).await;
    let mut error = failure::from_status(endpoint.api, status.as_u16(), &body);
    if error.kind == ModelErrorKind::Auth {
        error.message.push_str(&match endpoint.key {
            Some(_) => format!("; check the key of provider `{}`", endpoint.provider),
            None => format!("; provider `{}` has no key", endpoint.provider),
        });
    }
    error.retry_after_ms = retry_after_ms.or(error.retry_after_ms);
    // The header is about requests in general, so it cannot make a refused one retryable.
    error.should_retry = should_retry.filter(|again| !again || error.kind.is_retryable());
    Err(error)
}

fn header<'r>(response: &'r Response, name: &str) -> Option<&'r str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

/// Provider and host; a base URL may hold credentials.
pub(crate) fn describe(endpoint: &Endpoint) -> String {
    let host = url::Url::parse(&endpoint.base_url).ok().and_then(|url| {
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        Some(format!(" at {}{port}", url.host_str()?))
    });
    format!("provider `{}`{}", endpoint.provider, host.unwrap_or_default())
}

/// Returns the error of a request without a response. Only one that was never sent can be repeated without being billed
/// twice.
fn unsent(endpoint: &Endpoint, error: reqwest::Error) -> ModelError {
    let error = error.without_url();
    let unsent = error.is_connect();
    if error.is_builder() {
        let message = format!(
            "the base URL of provider `{}` is not a URL; expected something like https://host/v1",
            endpoint.provider
        );
        return ModelError { unsent: true, ..transport_error(ModelErrorKind::Invalid, message, error) };
    }
    let message = format!("{} cannot be reached: {}", describe(endpoint), root_cause(&error));
    ModelError { should_retry: Some(unsent), unsent, ..transport_error(ModelErrorKind::Unavailable, message, error) }
}

pub(crate) fn broken(endpoint: &Endpoint, error: reqwest::Error) -> ModelError {
    let error = error.without_url();
    let message = format!("the answer of {} broke off: {}", describe(endpoint), root_cause(&error));
    transport_error(ModelErrorKind::BadResponse, message, error)
}

fn transport_error(kind: ModelErrorKind, message: String, error: reqwest::Error) -> ModelError {
    ModelError { source: Some(Box::new(error)), ..ModelError::new(kind, message) }
}

fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// The error without the key: providers quote a key that they refuse.
fn redacted(endpoint: &Endpoint, mut error: ModelError) -> ModelError {
    if let Some(key) = endpoint.key.as_ref().map(toolwright_core::Secret::expose).filter(|key| is_secret_key(key)) {
        error.message = error.message.replace(key, "***");
    }
    error
}

/// Names in the set; past that number all are dropped.
const MAX_KNOWN: usize = 256;

/// A set of names.
#[derive(Debug, Default)]
pub(crate) struct BoundedSet(Mutex<HashSet<String>>);

impl BoundedSet {
    /// Adds a name; `false` if it is there already.
    pub(crate) fn note(&self, name: &str) -> bool {
        let mut names = self.names();
        if names.contains(name) {
            return false;
        }
        if names.len() >= MAX_KNOWN {
            names.clear();
        }
        names.insert(name.to_owned())
    }

    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_never_proxied() {
        for (url, local) in [
            ("http://127.0.0.1:1", true),
            ("http://[::1]:2/v1", true),
            ("http://LocalHost", true),
            ("https://api.openai.com/v1", false),
        ] {
            assert_eq!(is_loopback(url), local, "{url}");
        }
    }

    #[test]
    fn remembered_names_are_bounded() {
        let known = BoundedSet::default();
        assert!(known.note("a") && !known.note("a"));
        (0..MAX_KNOWN).for_each(|number| assert!(known.note(&number.to_string())));
        assert!(known.note("a") && known.names().len() <= MAX_KNOWN);
    }
}
