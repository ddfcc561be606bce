//! The headers of a request.

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use toolwright_core::model::{ModelError, ModelErrorKind};

use crate::api::Api;
use crate::endpoint::Endpoint;

/// A header whose values add up: what is configured stands beside what a request demands.
const LISTED: &str = "anthropic-beta";

/// Those that `endpoint` is asked with: its key's, what the request demands, and what is configured, which counts where
/// both say the same header.
///
/// # Errors
/// `Invalid` for a header that is not a legal one.
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
