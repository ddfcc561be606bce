//! Models without configuration: those in the usual environment variables, and an Ollama on this machine.

use std::net::Ipv6Addr;
use std::time::Duration;

use serde_json::Value;
use toolwright_core::model::{ModelError, ModelErrorKind};

use super::endpoint::{Endpoint, Endpoints, remedy};
use super::{HttpModelClient, describe};
use crate::api::Api;

const OPENAI_URL: &str = "https://api.openai.com/v1";
const ANTHROPIC_URL: &str = "https://api.anthropic.com";
const GEMINI_URL: &str = "https://generativelanguage.googleapis.com";
const OLLAMA_PORT: u16 = 11434;
/// The default models (November 2026).
const OPENAI_MODEL: &str = "gpt-5.5";
const ANTHROPIC_MODEL: &str = "claude-sonnet-5-5";
const GEMINI_MODEL: &str = "gemini-flash-latest";
/// Address and default model of a public API.
type PublicEndpoint = Option<(&'static str, &'static str)>;
/// Providers in order of preference: the variable that names a model, and the public API's address and default model.
const DEFAULTS: [(&str, &str, PublicEndpoint); 4] = [
    ("openai", "OPENAI_MODEL", Some((OPENAI_URL, OPENAI_MODEL))),
    ("anthropic", "ANTHROPIC_MODEL", Some((ANTHROPIC_URL, ANTHROPIC_MODEL))),
    ("gemini", "GEMINI_MODEL", Some((GEMINI_URL, GEMINI_MODEL))),
    ("ollama", "OLLAMA_MODEL", None),
];
/// Providers that need a key: their API, the variables that may hold it (the first one set counts), the variable for
/// another address, and the public address.
const KEYED: [(&str, Api, &[&str], &str, &str); 3] = [
    ("openai", Api::OpenAiChat, &["OPENAI_API_KEY"], "OPENAI_BASE_URL", OPENAI_URL),
    ("anthropic", Api::Anthropic, &["ANTHROPIC_API_KEY"], "ANTHROPIC_BASE_URL", ANTHROPIC_URL),
    ("gemini", Api::Gemini, &["GOOGLE_API_KEY", "GEMINI_API_KEY"], "GOOGLE_GEMINI_BASE_URL", GEMINI_URL),
];
/// Time limit for a local server to list its models. It answers at once if it runs.
const LOCAL_WAIT: Duration = Duration::from_millis(300);
const REMOTE_WAIT: Duration = Duration::from_secs(3);
/// Models of a list that are read.
const MAX_LISTED: usize = 1000;

/// Returns the endpoints configured in the environment, read with `get`: `openai` if `OPENAI_API_KEY` or
/// `OPENAI_BASE_URL` is set, `anthropic` if `ANTHROPIC_API_KEY` or `ANTHROPIC_BASE_URL` is, `gemini` if
/// `GOOGLE_API_KEY`, `GEMINI_API_KEY` or `GOOGLE_GEMINI_BASE_URL` is (names and order of Google's SDKs), and
/// always `ollama`, at `OLLAMA_HOST` (`host`, `host:port` or a URL) or the default port here. Empty variables
/// count as unset. Reads nothing else and does no I/O.
#[must_use]
pub fn endpoints_from_env(get: &dyn Fn(&str) -> Option<String>) -> Endpoints {
    let mut endpoints = Endpoints::default();
    for (provider, api, keys, url, default) in KEYED {
        let (key, url) = (keys.iter().find_map(|key| set(get, key)), set(get, url));
        let is_configured = key.is_some() || url.is_some();
        let mut endpoint = Endpoint::new(provider, api, url.unwrap_or_else(|| default.into()));
        endpoint.key = key.map(toolwright_core::Secret::new);
        match is_configured {
            true => endpoints.insert(endpoint),
            false => endpoints.insert_public(endpoint),
        }
    }
    let host = set(get, "OLLAMA_HOST");
    endpoints.insert(Endpoint::new("ollama", Api::Ollama, ollama_url(host.as_deref().unwrap_or_default())));
    endpoints
}

/// Returns the variable with the key of this provider, if there is one.
#[must_use]
pub fn key_variable(provider: &str) -> Option<&'static str> {
    let (.., keys, _, _) = KEYED.iter().find(|(name, ..)| *name == provider)?;
    keys.last().copied()
}

/// The variable that sets the address of a provider of this name.
pub(crate) fn host_variable(provider: &str) -> Option<&'static str> {
    KEYED.iter().find(|(name, ..)| *name == provider).map(|(_, _, _, url, _)| *url)
}

/// Returns the default `provider/model`, of the first provider configured in the environment, in the order OpenAI,
/// Anthropic, Gemini, Ollama. The model is that of `OPENAI_MODEL`, `ANTHROPIC_MODEL`, `GEMINI_MODEL` or `OLLAMA_MODEL`;
/// else the default of the public API; else the first that the server lists, which also finds an unconfigured Ollama on
/// this machine (within 300 ms).
///
/// # Errors
/// `Unsupported` with the ways to set a model, if there is none.
pub async fn default_model(
    get: &dyn Fn(&str) -> Option<String>,
    client: &HttpModelClient,
) -> Result<String, ModelError> {
    for (provider, variable, public) in DEFAULTS {
        let Some(endpoint) = client.endpoints().get(provider) else { continue };
        let model = match named(get, endpoint, variable, public) {
            Some(model) => Some(model),
            None => first_model(client, endpoint).await,
        };
        if let Some(model) = model {
            return Ok(format!("{provider}/{model}"));
        }
    }
    Err(ModelError::new(
        ModelErrorKind::Unsupported,
        "no model is configured. Any one of these sets one:\n\
         - --model PROVIDER/MODEL (of `bench`: --models)\n\
         - models.default in the configuration, for a server of your own with models.endpoints\n\
         - OPENAI_API_KEY, with OPENAI_BASE_URL and OPENAI_MODEL for a compatible server\n\
         - ANTHROPIC_API_KEY, with ANTHROPIC_MODEL for another model than the default\n\
         - GEMINI_API_KEY, with GEMINI_MODEL for another model than the default\n\
         - a running Ollama with a model (`ollama pull qwen3`), at OLLAMA_HOST if it is not on this machine",
    ))
}

/// Like [`default_model`], without I/O.
#[must_use]
pub fn named_model(get: &dyn Fn(&str) -> Option<String>, endpoints: &Endpoints) -> Option<String> {
    DEFAULTS.iter().find_map(|(provider, variable, public)| {
        let endpoint = endpoints.get(provider)?;
        Some(format!("{provider}/{}", named(get, endpoint, variable, *public)?))
    })
}

/// The model of a provider that a variable names, or that its public API has by default.
fn named(
    get: &dyn Fn(&str) -> Option<String>,
    endpoint: &Endpoint,
    variable: &str,
    public: PublicEndpoint,
) -> Option<String> {
    let public = || public.filter(|(url, _)| endpoint.base_url.trim_end_matches('/') == *url);
    set(get, variable).or_else(|| public().map(|(_, model)| model.to_owned()))
}

async fn first_model(client: &HttpModelClient, endpoint: &Endpoint) -> Option<String> {
    let wait = if endpoint.api == Api::Ollama { LOCAL_WAIT } else { REMOTE_WAIT };
    list_models(client, endpoint, wait).await.ok()?.into_iter().next()
}

/// Lists the names of a provider's models, at most 1000. The request is free, and shows whether the provider is
/// reachable and accepts the key.
///
/// # Errors
/// The request's error, with its remedy.
pub async fn list_models(
    client: &HttpModelClient,
    endpoint: &Endpoint,
    wait: Duration,
) -> Result<Vec<String>, ModelError> {
    let (path, list, name) = match endpoint.api {
        Api::Ollama => ("/api/tags", "models", "name"),
        Api::OpenAiChat | Api::OpenAiResponses => ("/models", "data", "id"),
        Api::Gemini => ("/v1beta/models", "models", "name"),
        Api::Anthropic => ("/v1/models", "data", "id"),
    };
    let answered = tokio::time::timeout(wait, client.get(endpoint, path, wait)).await;
    let timed_out = || {
        let message = format!("{} did not list its models within {wait:?}", describe(endpoint));
        Err(ModelError::new(ModelErrorKind::Unavailable, message))
    };
    let body = answered.unwrap_or_else(|_| timed_out()).map_err(|mut error| {
        if let Some(remedy) = remedy(endpoint, "", &error) {
            error.message = format!("{}; {remedy}", error.message);
        }
        error
    })?;
    let listed: Value = serde_json::from_slice(&body).map_err(|error| {
        let message = format!("{} listed its models, but not as JSON: {error}", describe(endpoint));
        ModelError::new(ModelErrorKind::BadResponse, message)
    })?;
    let models = listed.get(list).and_then(Value::as_array).into_iter().flatten().take(MAX_LISTED);
    let names = models.filter_map(|model| model.get(name)?.as_str());
    // Gemini lists its models with their folder.
    let is_gemini = endpoint.api == Api::Gemini;
    Ok(names.map(|name| name.strip_prefix("models/").filter(|_| is_gemini).unwrap_or(name).to_owned()).collect())
}

/// The variables that set up a provider of this name.
#[must_use]
pub fn default_variables(provider: &str) -> Vec<&'static str> {
    match KEYED.iter().find(|(name, ..)| *name == provider) {
        Some((_, _, keys, url, _)) => keys.iter().copied().chain([*url]).collect(),
        None if provider == "ollama" => vec!["OLLAMA_HOST"],
        None => Vec::new(),
    }
}

fn set(get: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Returns the base URL for `OLLAMA_HOST`, by Ollama's own rules: scheme and port are optional, and the wildcard
/// address means this machine to a client.
fn ollama_url(host: &str) -> String {
    let (scheme, rest) = host.split_once("://").unwrap_or(("", host));
    let (authority, path) =
        rest.split_once('/').map_or((rest, ""), |(authority, path)| (authority, path.trim_end_matches('/')));
    let default_port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => OLLAMA_PORT,
    };
    let (name, port) = match authority.rsplit_once(':') {
        _ if authority.parse::<Ipv6Addr>().is_ok() => (format!("[{authority}]"), default_port),
        Some((name, port)) if !name.ends_with(':') && port.parse::<u16>().is_ok() => {
            (name.to_owned(), port.parse().unwrap_or(default_port))
        }
        _ => (authority.to_owned(), default_port),
    };
    let name = match name.as_str() {
        "" | "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        name => name,
    };
    let scheme = if scheme.is_empty() { "http" } else { scheme };
    let path = if path.is_empty() { String::new() } else { format!("/{path}") };
    format!("{scheme}://{name}:{port}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ollama_hosts_are_read_as_ollama_reads_them() {
        for (host, url) in [
            ("", "http://127.0.0.1:11434"),
            ("box", "http://box:11434"),
            ("box:1234", "http://box:1234"),
            (":1234", "http://127.0.0.1:1234"),
            ("0.0.0.0", "http://127.0.0.1:11434"),
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("http://box", "http://box:80"),
            ("https://box/", "https://box:443"),
            ("https://box:8443/ollama/", "https://box:8443/ollama"),
            ("[::1]:5", "http://[::1]:5"),
            ("[::1]", "http://[::1]:11434"),
            ("::1", "http://[::1]:11434"),
            ("[::]", "http://[::1]:11434"),
        ] {
            assert_eq!(ollama_url(host), url, "{host}");
        }
    }

    #[test]
    fn the_environment_names_endpoints() {
        let check = |vars: &[(&str, &str)], expect: &[(&str, &str, bool)]| {
            let get = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            let endpoints = endpoints_from_env(&get);
            let got: Vec<_> =
                endpoints.iter().map(|e| (e.provider.as_str(), e.base_url.as_str(), e.key.is_some())).collect();
            assert_eq!(got, expect, "{vars:?}");
        };
        let ollama = ("ollama", "http://127.0.0.1:11434", false);
        check(&[], &[ollama]);
        check(&[("OPENAI_API_KEY", " "), ("OLLAMA_HOST", "box")], &[("ollama", "http://box:11434", false)]);
        check(
            &[("OPENAI_API_KEY", "k"), ("ANTHROPIC_API_KEY", "k")],
            &[("anthropic", ANTHROPIC_URL, true), ollama, ("openai", OPENAI_URL, true)],
        );
        check(&[("GEMINI_API_KEY", "k")], &[("gemini", GEMINI_URL, true), ollama]);
        check(&[("OPENAI_BASE_URL", "http://vllm/v1")], &[ollama, ("openai", "http://vllm/v1", false)]);
    }
}
