//! Describes the endpoints of models: URL, key and headers, and the remedy when a request fails.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::json;
use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{ModelError, ModelErrorKind, ModelSettings};
use toolwright_core::setting::{LiteralText, TimeSpan};
use toolwright_core::{Secret, duration};
use toolwright_textcalls::{self as textcalls, Format};

use super::Timeouts;
use super::discover::{host_variable, key_variable};
use crate::api::Api;

/// One place that answers model requests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// The provider's name: what stands before the first `/` of a model id. It is the entry's key in a configuration.
    #[serde(skip)]
    pub provider: String,
    /// The API it speaks.
    pub api: Api,
    /// Base address, like `https://api.openai.com/v1`.
    // Without the path of [`crate::EncodedRequest`].
    #[schemars(extend("x-variables" = "setting"))]
    pub base_url: String,
    /// Key, best as `${VAR}`.
    // Local servers need none.
    #[serde(rename = "api_key")]
    #[schemars(with = "Option<String>", extend("x-variables" = "secret"))]
    pub key: Option<Secret>,
    /// Further headers.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, LiteralText>", extend("x-variables" = "own_pair"))]
    pub headers: BTreeMap<String, String>,
}

impl Endpoint {
    /// An endpoint without key and headers.
    pub fn new(provider: impl Into<String>, api: Api, base_url: impl Into<String>) -> Self {
        Self { provider: provider.into(), api, base_url: base_url.into(), key: None, headers: BTreeMap::new() }
    }

    /// Sets the key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(Secret::new(key));
        self
    }

    /// The URL of `path`.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base_url.trim_end_matches('/'))
    }

    /// Whether its server is OpenAI's: the public one, a regional one, or one on Azure, which
    /// has three names for the same resource.
    pub(crate) fn is_of_openai(&self) -> bool {
        const DOMAINS: [&str; 4] =
            [".api.openai.com", ".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com"];
        let Ok(url) = url::Url::parse(&self.base_url) else { return false };
        let ours = |host: &str| host == "api.openai.com" || DOMAINS.iter().any(|domain| host.ends_with(domain));
        url.host_str().is_some_and(ours)
    }
}

/// The text format of a model's tool calls.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub enum ToolFormat {
    /// The format of the model's family, by its name.
    Auto,
    /// None: calls and answer are one JSON value of one schema.
    Composed,
    /// This format.
    Named(&'static Format),
}

impl ToolFormat {
    /// Its name in a configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Composed => "composed",
            Self::Named(format) => format.name(),
        }
    }
}

impl PartialEq for ToolFormat {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl TryFrom<String> for ToolFormat {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match name.as_str() {
            "auto" => Ok(Self::Auto),
            "composed" => Ok(Self::Composed),
            name => {
                textcalls::by_name(name).map(Self::Named).ok_or_else(|| format!("there is no text format `{name}`"))
            }
        }
    }
}

impl JsonSchema for ToolFormat {
    fn schema_name() -> Cow<'static, str> {
        "ToolFormat".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = ["auto", "composed"].into_iter().chain(textcalls::formats().iter().map(Format::name));
        json_schema!({ "type": "string", "enum": names.collect::<Vec<_>>() })
    }
}

/// How requests to a model are made.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelOverrides {
    /// The text format of its tool calls, for a model whose API has none. The tools are then written into the system
    /// prompt, and calls are read from its text. `auto` chooses by the model's name. `composed` is one JSON value with
    /// calls and answer, for a model that has structured output but no tool calls.
    pub tool_format: Option<ToolFormat>,
    /// Whether to request strict decoding for tools whose author did not decide. It is used where the API supports it
    /// and the strict form of the schema means the same.
    pub strict_tools: bool,
    /// Whether deferred tools may be declared; absent for what is known of the provider and the model.
    #[serde(skip)]
    pub tool_search: Option<bool>,
    /// Whether tools that its provider runs may be declared in requests. Default: what is known about the model's
    /// maker.
    pub native_tools: Option<bool>,
    /// Whether this model gets its own HTTP client with its own connections. Otherwise the models of a provider share
    /// one.
    #[serde(alias = "requiresDedicatedClient")]
    pub requires_dedicated_client: bool,
    /// Its context window in tokens. It decides how tools are shown and when long conversations are shortened. Default:
    /// 128,000 tokens for the choice of the exposure; conversations are shortened when the API reports that they are
    /// too long.
    // Ollama is told to keep that many.
    #[schemars(range(min = 1024))]
    pub window: Option<usize>,
    /// Most tokens of one answer. A request for more is lowered to this.
    #[schemars(range(min = 1))]
    pub max_output: Option<u32>,
    /// Sampling temperature of requests that set none.
    #[schemars(range(min = 0.0, max = 2.0))]
    pub temperature: Option<f64>,
    /// How it answers where a request does not say it.
    #[serde(flatten)]
    pub settings: ModelSettings,
    /// How long Ollama keeps it in memory after an answer. Default: Ollama's own, 5m.
    #[serde(with = "duration::option")]
    #[schemars(with = "Option<TimeSpan>")]
    pub keep_alive: Option<Duration>,
    /// Time limits of one request.
    pub timeouts: TimeoutOverrides,
}

impl ModelOverrides {
    /// Fills missing sizes and bounds from the provider's overrides. Text calls,
    /// strict decoding and tool search are set per model only.
    #[must_use]
    pub fn or(self, provider: &Self) -> Self {
        Self {
            native_tools: self.native_tools.or(provider.native_tools),
            requires_dedicated_client: self.requires_dedicated_client || provider.requires_dedicated_client,
            window: self.window.or(provider.window),
            max_output: self.max_output.or(provider.max_output),
            temperature: self.temperature.or(provider.temperature),
            settings: self.settings.or(&provider.settings),
            keep_alive: self.keep_alive.or(provider.keep_alive),
            timeouts: self.timeouts.or(provider.timeouts),
            ..self
        }
    }
}

/// Bounds of one request to a model, in place of the client's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TimeoutOverrides {
    /// From sending to the first byte of the answer; a local server loads the model in this time. Default 5m.
    #[serde(with = "duration::option")]
    #[schemars(with = "Option<TimeSpan>")]
    pub first_byte: Option<Duration>,
    /// Between two pieces of the answer. Keep-alive data counts as a piece. Default 5m.
    #[serde(with = "duration::option")]
    #[schemars(with = "Option<TimeSpan>")]
    pub idle: Option<Duration>,
    /// From the first byte of the answer to its end, however steadily it comes. Default 1h.
    #[serde(with = "duration::option")]
    #[schemars(with = "Option<TimeSpan>")]
    pub answer: Option<Duration>,
}

impl TimeoutOverrides {
    /// Fills missing values from `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            first_byte: self.first_byte.or(others.first_byte),
            idle: self.idle.or(others.idle),
            answer: self.answer.or(others.answer),
        }
    }

    /// The client's bounds with these in their place. The time to connect is the client's for all.
    #[must_use]
    pub(crate) fn over(self, client: Timeouts) -> Timeouts {
        Timeouts {
            first_byte: self.first_byte.unwrap_or(client.first_byte),
            idle: self.idle.unwrap_or(client.idle),
            answer: self.answer.unwrap_or(client.answer),
            ..client
        }
    }
}

/// The configured endpoints, by provider name.
#[derive(Debug, Clone, Default)]
pub struct Endpoints {
    by_provider: BTreeMap<String, Endpoint>,
    /// Public providers without a key: facts about their models are known without requests.
    keyless: BTreeMap<String, Endpoint>,
    overrides: BTreeMap<String, ModelOverrides>,
    /// Overrides of models without an entry.
    usual: ModelOverrides,
}

impl Endpoints {
    /// Adds an endpoint, replacing one of the same provider.
    pub fn insert(&mut self, endpoint: Endpoint) {
        self.by_provider.insert(endpoint.provider.clone(), endpoint);
    }

    /// Adds a public provider without a key. Nothing is sent to it.
    pub(crate) fn insert_public(&mut self, endpoint: Endpoint) {
        self.keyless.insert(endpoint.provider.clone(), endpoint);
    }

    /// Like [`Self::resolve`], including public providers without a key: for facts about a model.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn endpoint_of<'m>(&self, model: &'m str) -> Result<(&Endpoint, &'m str), ModelError> {
        self.resolve(model).or_else(|error| {
            let public = model.split_once('/').filter(|(_, name)| !name.is_empty());
            public.and_then(|(provider, name)| Some((self.keyless.get(provider)?, name))).ok_or(error)
        })
    }

    /// Sets how requests are made: to one model by its id `provider/model`, or to all models of a provider
    /// by its name.
    pub fn set_overrides(&mut self, name: impl Into<String>, overrides: ModelOverrides) {
        self.overrides.insert(name.into(), overrides);
    }

    /// Returns the overrides of `model`: by its id, else by its provider's name, else the default.
    #[must_use]
    pub fn overrides(&self, model: &str) -> &ModelOverrides {
        let provider = || model.split_once('/').and_then(|(provider, _)| self.overrides.get(provider));
        self.overrides.get(model).or_else(provider).unwrap_or(&self.usual)
    }

    /// A hash of the location and request settings of a model, as far as its answers depend on them: equal for models
    /// that would answer alike. Keys, headers and times are excluded.
    #[must_use]
    pub fn fingerprint(&self, model: &str) -> ContentHash {
        let at = self.resolve(model).ok().map(|(at, _)| (at.api.as_str(), at.base_url.trim_end_matches('/')));
        let overrides = self.overrides(model);
        let ModelOverrides {
            tool_format,
            strict_tools,
            tool_search,
            native_tools,
            window,
            max_output,
            temperature,
            settings,
            ..
        } = overrides;
        let format = tool_format.map(ToolFormat::name);
        ContentHash::of_value(&json!({
            "at": at,
            "tool_format": format,
            "strict_tools": strict_tools,
            "tool_search": tool_search,
            "native_tools": native_tools,
            "window": window,
            "max_output": max_output,
            "temperature": temperature,
            "settings": settings,
        }))
    }

    /// The endpoint of a provider.
    #[must_use]
    pub fn get(&self, provider: &str) -> Option<&Endpoint> {
        self.by_provider.get(provider)
    }

    /// All endpoints, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.by_provider.values()
    }

    /// Returns the endpoint and model name of `provider/model`, split at the first `/`.
    ///
    /// # Errors
    /// `Unsupported` for an id without provider or model and for an unknown provider; the message names the required
    /// setting and the configured providers.
    pub fn resolve<'m>(&self, model: &'m str) -> Result<(&Endpoint, &'m str), ModelError> {
        let unsupported = |message: String| ModelError::new(ModelErrorKind::Unsupported, message);
        let known = || match self.by_provider.len() {
            0 => "no provider is configured".to_owned(),
            _ => format!("configured providers: {}", self.by_provider.keys().cloned().collect::<Vec<_>>().join(", ")),
        };
        let (provider, name) = model
            .split_once('/')
            .filter(|(provider, name)| !provider.is_empty() && !name.is_empty())
            .ok_or_else(|| unsupported(format!("`{model}` is not a model id: write provider/model; {}", known())))?;
        let endpoint = self.get(provider).ok_or_else(|| {
            unsupported(match key_variable(provider) {
                Some(variable) => format!(
                    "model `{model}` has no key: set {variable}, or name its server under models.endpoints.{provider}"
                ),
                None => format!(
                    "model `{model}` names the unknown provider `{provider}`: name its server under \
                     models.endpoints.{provider}; {}",
                    known()
                ),
            })
        })?;
        Ok((endpoint, name))
    }
}

/// A header whose values are combined: the configured ones and those that a request demands.
const LISTED: &str = "anthropic-beta";

/// Returns the headers for `endpoint`: its key's, those the request demands, and the configured ones, which override
/// the others.
///
/// # Errors
/// `Invalid` for an illegal header.
pub(crate) fn headers(endpoint: &Endpoint, demanded: &[(&'static str, &'static str)]) -> Result<HeaderMap, ModelError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream, application/x-ndjson"));
    for (name, value) in demanded {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let mut set = |name: &str, value: &str| {
        let illegal = || {
            ModelError::new(
                ModelErrorKind::Invalid,
                format!("header `{name}` of provider `{}` is not a legal HTTP header", endpoint.provider),
            )
        };
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| illegal())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| illegal())?;
        value.set_sensitive(true);
        headers.insert(header, value);
        Ok::<_, ModelError>(())
    };
    if let Some(key) = &endpoint.key {
        match endpoint.api {
            Api::Anthropic => set("x-api-key", key.expose())?,
            Api::Gemini => set("x-goog-api-key", key.expose())?,
            Api::OpenAiChat | Api::OpenAiResponses | Api::Ollama => {
                set("authorization", &format!("Bearer {}", key.expose()))?
            }
        }
    }
    for (name, value) in &endpoint.headers {
        let beside = demanded.iter().find(|(other, _)| *other == LISTED && name.eq_ignore_ascii_case(LISTED));
        match beside.filter(|(_, other)| !value.split(',').any(|one| one.trim() == *other)) {
            Some((_, other)) => set(name, &format!("{value},{other}"))?,
            None => set(name, value)?,
        }
    }
    Ok(headers)
}

/// Wordings of a model that the provider does not have.
const NO_MODEL: [&str; 5] = ["not found", "not_found", "does not exist", "unknown model", "not a valid model"];

/// Returns the remedy for `error` of a request to the model `name`, if one is known.
pub(crate) fn remedy(endpoint: &Endpoint, name: &str, error: &ModelError) -> Option<String> {
    let provider = &endpoint.provider;
    let is_unknown = || {
        let words = error.message.to_lowercase();
        words.contains("model") && NO_MODEL.iter().any(|wording| words.contains(wording))
    };
    match error.kind {
        ModelErrorKind::Auth => Some(match key_variable(provider) {
            Some(variable) => format!("set {variable} to a valid key of provider `{provider}`"),
            None => format!("set models.endpoints.{provider}.api_key to a valid key"),
        }),
        ModelErrorKind::Quota => {
            Some(format!("add credit to the account at provider `{provider}`, or name another model with --model"))
        }
        ModelErrorKind::Unavailable if error.unsent && endpoint.api == Api::Ollama => {
            Some("start it with `ollama serve`, or set OLLAMA_HOST to where it runs".to_owned())
        }
        ModelErrorKind::Unavailable if error.unsent => Some(match host_variable(provider) {
            Some(variable) => format!("check the network, and {variable} if it is set"),
            None => format!("check that the server of models.endpoints.{provider} runs"),
        }),
        ModelErrorKind::Invalid if is_unknown() => Some(match endpoint.api {
            Api::Ollama => format!("`ollama pull {name}` fetches the model, `ollama list` names the installed ones"),
            _ => "name a model that the provider has: `toolwright doctor` lists some".to_owned(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_ids_split_at_the_first_slash() {
        let mut endpoints = Endpoints::default();
        endpoints.insert(Endpoint::new("router", Api::OpenAiChat, "http://h/v1/").with_key("sk-hidden"));
        let (endpoint, model) = endpoints.resolve("router/meta/llama-4").expect("found");
        assert_eq!(
            (endpoint.url("/chat/completions").as_str(), model),
            ("http://h/v1/chat/completions", "meta/llama-4")
        );
        assert!(!format!("{endpoints:?}").contains("hidden"));
        for (id, part) in [
            ("gpt", "provider/model"),
            ("/x", "provider/model"),
            (
                "other/x",
                "unknown provider `other`: name its server under models.endpoints.other; configured providers: router",
            ),
            ("openai/gpt", "has no key: set OPENAI_API_KEY, or name its server under models.endpoints.openai"),
            ("anthropic/c", "has no key: set ANTHROPIC_API_KEY, or"),
            ("gemini/g", "has no key: set GEMINI_API_KEY, or"),
        ] {
            let error = endpoints.resolve(id).expect_err("refused");
            assert!(error.message.contains(part), "{error}");
        }
    }

    #[test]
    fn common_failures_name_a_remedy() {
        let at = |provider: &str, api| Endpoint::new(provider, api, "http://h");
        let error = |kind, message: &str, unsent| ModelError { unsent, ..ModelError::new(kind, message) };
        for (at, error, expect) in [
            (at("openai", Api::OpenAiChat), error(ModelErrorKind::Auth, "no", false), "OPENAI_API_KEY"),
            (at("own", Api::OpenAiChat), error(ModelErrorKind::Auth, "no", false), "models.endpoints.own.api_key"),
            (at("openai", Api::OpenAiChat), error(ModelErrorKind::Quota, "no", false), "add credit"),
            (at("ollama", Api::Ollama), error(ModelErrorKind::Unavailable, "no", true), "ollama serve"),
            (at("openai", Api::OpenAiChat), error(ModelErrorKind::Unavailable, "no", true), "OPENAI_BASE_URL"),
            (at("ollama", Api::Ollama), error(ModelErrorKind::Invalid, "model \"m\" not found", false), "pull m"),
            (at("x", Api::Anthropic), error(ModelErrorKind::Invalid, "model: m (not_found_error)", false), "doctor"),
        ] {
            let said = remedy(&at, "m", &error).unwrap_or_default();
            assert!(said.contains(expect), "{expect}: {said}");
        }
        let broken = error(ModelErrorKind::Unavailable, "overloaded", false);
        assert_eq!(remedy(&at("openai", Api::OpenAiChat), "m", &broken), None);
    }
}
