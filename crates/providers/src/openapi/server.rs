//! Where an operation is: the first server of the operation, its path or the document, or the configured one.

use serde_json::Value;
use url::Url;

use super::document::{Document, Origin, Part};
use super::spec::OpenApiConfig;

/// An address, in the pieces that a request is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Base {
    /// Scheme and authority.
    pub(super) origin: String,
    /// Its path between slashes, encoded.
    pub(super) path: Vec<String>,
    /// The server as the document states it, its variables filled in but for those that the operator sets; absolute where
    /// the document was found elsewhere than its operator says. Empty where the operator says it.
    pub(super) stated: String,
    /// Whether credentials may go there without the operator having named it: it is the operator's own word, or a
    /// document's about its own host.
    pub(super) is_vouched_for: bool,
    /// The origin whose redirect led to the document on this host, where it did: the operator has named that one alone.
    pub(super) led_from: Option<String>,
}

/// The base of an operation.
///
/// # Errors
/// Why there is none, with the remedy.
pub(super) fn base(
    spec: &OpenApiConfig,
    document: &Document,
    path_item: &[Part<'_>],
    operation: Part<'_>,
) -> Result<Base, String> {
    if let Some(configured) = &spec.base_url {
        return split(configured, String::new(), true).map_err(|reason| format!("base_url: {reason}"));
    }
    let Filled { url, mut stated } = match server_of(document, path_item, operation) {
        Some(server) => filled(server, spec)?,
        None => Filled { url: "/".to_owned(), stated: "/".to_owned() },
    };
    // Where it was found, which redirects may have led to, and where its operator says it is.
    let (own, named) = (address(&document.origin), address(&spec.document));
    let absolute = match (Url::parse(&url), own) {
        (Ok(_), _) => url,
        (Err(url::ParseError::RelativeUrlWithoutBase), Some(own)) => {
            let absolute = own.join(&url).map_err(|error| format!("its server `{url}` is malformed: {error}"))?;
            // A redirect may lead the document elsewhere, and its calls with it: that is no other than what was pinned.
            if named != Some(own) {
                stated = absolute.to_string();
            }
            absolute.to_string()
        }
        (Err(url::ParseError::RelativeUrlWithoutBase), None) => {
            return Err(format!("its server is `{url}`, which does not say on which host: set base_url"));
        }
        (Err(error), _) => return Err(format!("its server `{url}` is malformed: {error}")),
    };
    let server = Url::parse(&absolute).ok();
    let is_vouched_for = match (named.or(own), &server) {
        (Some(named), Some(server)) => vouches(named, server),
        (None, _) => true,
        (Some(_), None) => false,
    };
    let led_from = match (named, own, &server) {
        (Some(named), Some(own), Some(server)) if own.origin() == server.origin() && !is_vouched_for => {
            Some(named.origin().ascii_serialization())
        }
        _ => None,
    };
    let base =
        split(&absolute, stated, is_vouched_for).map_err(|reason| format!("its server `{absolute}`: {reason}"))?;
    Ok(Base { led_from, ..base })
}

/// The server that the document states for an operation.
pub(super) fn server_of<'d>(document: &'d Document, path_item: &[Part<'d>], operation: Part<'d>) -> Option<&'d Value> {
    let mut levels = [operation].into_iter().chain(path_item.iter().copied()).chain([document.root()]);
    let servers = levels.find_map(|part| part.value.get("servers")?.as_array().filter(|list| !list.is_empty()));
    servers.and_then(|list| list.first())
}

/// Whether who names an address trusts this server with credentials: it is the same origin, or the same host and port over
/// `https`, to which servers lead those who come over `http`.
fn vouches(named: &Url, server: &Url) -> bool {
    let is_upgrade = (named.scheme(), server.scheme()) == ("http", "https")
        && named.host() == server.host()
        // As it is written: that of the scheme, or the same.
        && named.port() == server.port();
    is_upgrade || named.origin() == server.origin()
}

fn address(origin: &Origin) -> Option<&Url> {
    match origin {
        Origin::Url(url) => Some(url),
        Origin::File(_) => None,
    }
}

/// A server's URL with its variables filled in.
struct Filled {
    /// All of them.
    url: String,
    /// Those of which the document says the value.
    stated: String,
}

fn filled(server: &Value, spec: &OpenApiConfig) -> Result<Filled, String> {
    let template = server.get("url").and_then(Value::as_str).unwrap_or("/");
    let (mut url, mut stated) = (String::new(), String::new());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or_else(|| format!("its server `{template}` has an open `{{`"))?;
        let variable = server.get("variables").and_then(|variables| variables.get(name));
        let value = match (spec.server_variables.get(name), variables_of(variable, "default")) {
            (Some(chosen), _) => match wrong_value(name, chosen, variable) {
                None => chosen.clone(),
                Some(why) => return Err(why),
            },
            (None, Some(default)) => text(default),
            (None, None) => return Err(format!("its server needs a value: set server_variables.{name}")),
        };
        // What the operator sets changes no pin.
        let known = if spec.server_variables.contains_key(name) { format!("{{{name}}}") } else { value.clone() };
        for (text, value) in [(&mut url, &value), (&mut stated, &known)] {
            text.push_str(before);
            text.push_str(value);
        }
        rest = after;
    }
    url.push_str(rest);
    stated.push_str(rest);
    Ok(Filled { url, stated })
}

/// The variables in the address of a server, by their names, each with what is said of it.
pub(super) fn variables(server: &Value) -> impl Iterator<Item = (&str, Option<&Value>)> {
    let template = server.get("url").and_then(Value::as_str).unwrap_or_default();
    let names = template.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    names.map(move |name| (name, server.get("variables").and_then(|variables| variables.get(name))))
}

/// That the value which is set for a variable is none that it may have, if so.
pub(super) fn wrong_value(name: &str, chosen: &str, variable: Option<&Value>) -> Option<String> {
    let options = variables_of(variable, "enum").and_then(Value::as_array).into_iter().flatten();
    let options: Vec<String> = options.map(text).collect();
    let is_wrong = !options.is_empty() && !options.iter().any(|option| option == chosen);
    is_wrong.then(|| format!("server_variables.{name}: `{chosen}` is not one of {}", options.join(", ")))
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
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
    Ok(Base { origin, path, stated, is_vouched_for, led_from: None })
}
