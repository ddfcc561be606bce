//! Where an operation is: the first server of the operation, its path or the document, or the configured one.

use serde_json::Value;
use url::Url;

use super::document::{Document, Origin, Part};
use super::spec::OpenApiSpec;

/// An address, in the pieces that a request is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Base {
    /// Scheme and authority.
    pub(super) origin: String,
    /// Its path between slashes, encoded.
    pub(super) path: Vec<String>,
    /// The server as the document states it; empty where the operator says it.
    pub(super) stated: String,
    /// Whether credentials may go there without the operator having named it: it is the operator's own word, or a
    /// document's about its own host.
    pub(super) is_vouched_for: bool,
}

/// The base of an operation.
///
/// # Errors
/// Why there is none, with the remedy.
pub(super) fn base(
    spec: &OpenApiSpec,
    document: &Document,
    path_item: Part<'_>,
    operation: Part<'_>,
) -> Result<Base, String> {
    if let Some(configured) = &spec.base_url {
        return split(configured, String::new(), true).map_err(|reason| format!("base_url: {reason}"));
    }
    let levels = [operation, path_item, document.root()];
    let server = levels.iter().find_map(|part| part.value.get("servers")?.as_array().filter(|list| !list.is_empty()));
    let url = match server.and_then(|list| list.first()) {
        Some(server) => filled(server, spec)?,
        None => "/".to_owned(),
    };
    let own = match &document.origin {
        Origin::Url(own) => Some(own),
        Origin::File(_) => None,
    };
    let absolute = match (Url::parse(&url), own) {
        (Ok(_), _) => url,
        (Err(url::ParseError::RelativeUrlWithoutBase), Some(own)) => {
            own.join(&url).map_err(|error| format!("its server `{url}` is malformed: {error}"))?.to_string()
        }
        (Err(url::ParseError::RelativeUrlWithoutBase), None) => {
            return Err(format!("its server is `{url}`, which does not say on which host: set base_url"));
        }
        (Err(error), _) => return Err(format!("its server `{url}` is malformed: {error}")),
    };
    let is_vouched_for = match (own, Url::parse(&absolute)) {
        (Some(own), Ok(server)) => own.origin() == server.origin(),
        (None, _) => true,
        (Some(_), Err(_)) => false,
    };
    let stated = server.and_then(|list| list.first()?.get("url")?.as_str()).unwrap_or("/").to_owned();
    split(&absolute, stated, is_vouched_for).map_err(|reason| format!("its server `{absolute}`: {reason}"))
}

/// The server's URL with its variables filled in.
fn filled(server: &Value, spec: &OpenApiSpec) -> Result<String, String> {
    let template = server.get("url").and_then(Value::as_str).unwrap_or("/");
    let mut url = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or_else(|| format!("its server `{template}` has an open `{{`"))?;
        let variable = server.get("variables").and_then(|variables| variables.get(name));
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let options: Vec<String> =
            variables_of(variable, "enum").and_then(Value::as_array).into_iter().flatten().map(text).collect();
        let value = match (spec.server_variables.get(name), variables_of(variable, "default")) {
            (Some(chosen), _) if options.is_empty() || options.contains(chosen) => chosen.clone(),
            (Some(chosen), _) => {
                let options = options.join(", ");
                return Err(format!("server_variables.{name}: `{chosen}` is not one of {options}"));
            }
            (None, Some(default)) => text(default),
            (None, None) => return Err(format!("its server needs a value: set server_variables.{name}")),
        };
        url.push_str(before);
        url.push_str(&value);
        rest = after;
    }
    url.push_str(rest);
    Ok(url)
}

fn variables_of<'v>(variable: Option<&'v Value>, key: &str) -> Option<&'v Value> {
    variable.and_then(|variable| variable.get(key)).filter(|value| !value.is_null())
}

fn split(url: &str, stated: String, is_vouched_for: bool) -> Result<Base, String> {
    let url = Url::parse(url.trim()).map_err(|error| error.to_string())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("only http and https are spoken".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a user and password do not belong in an address: set auth".into());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("an address with a query or a fragment cannot be the base of others".into());
    }
    let origin = url.origin().ascii_serialization();
    let path = url.path().trim_matches('/');
    let path = if path.is_empty() { Vec::new() } else { path.split('/').map(str::to_owned).collect() };
    Ok(Base { origin, path, stated, is_vouched_for })
}
