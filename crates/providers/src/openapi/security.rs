//! Resolves the server of an operation and its credentials, from servers and security requirements.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE};
use serde_json::Value;
use tokio::sync::Mutex;
use url::Url;

use crate::openapi::config::{Auth, OpenApiConfig};
use crate::openapi::document::{Document, DocumentPart, Origin};
use crate::rest::{Credential, TokenSource};

/// Builds credentials from settings, each once.
pub(super) struct Keyring<'d> {
    config: &'d OpenApiConfig,
    document: &'d Document,
    made: BTreeMap<String, Credential>,
    /// Requirements that no configured credential meets, each once.
    unmet: Vec<String>,
}

/// The credentials of an operation.
#[derive(Debug, Default)]
pub(super) struct OperationAuth {
    pub(super) credentials: Vec<Credential>,
    /// Places that credentials fill, so that arguments cannot: (`query`, `header` or `cookie`; name).
    pub(super) places: Vec<(&'static str, String)>,
}

impl<'d> Keyring<'d> {
    pub(super) fn new(config: &'d OpenApiConfig, document: &'d Document) -> Self {
        Self { config, document, made: BTreeMap::new(), unmet: Vec::new() }
    }

    /// Returns warnings for the operator: unmet requirements, for which calls are sent without credentials.
    pub(super) fn warnings(self) -> Vec<String> {
        self.unmet
            .iter()
            .map(|schemes| {
                format!("no credentials are configured for {schemes}: operations that need them are called without")
            })
            .collect()
    }

    /// Returns the credentials for an operation: of its alternatives the first that is completely configured and can be
    /// sent.
    ///
    /// # Errors
    /// No configured credential can be used.
    pub(super) fn admission(&mut self, operation: DocumentPart<'d>) -> Result<OperationAuth, String> {
        let requirements = operation.get("security").or_else(|| self.document.root().get("security"));
        let Some(requirements) = requirements else { return Ok(OperationAuth::default()) };
        let mut missing = Vec::new();
        let mut is_optional = false;
        let mut unusable = None;
        for alternative in requirements.items() {
            let names: Vec<&String> = alternative.members().map(|(name, _)| name).collect();
            if names.is_empty() {
                is_optional = true;
                continue;
            }
            if names.iter().all(|name| self.config.auth.contains_key(*name)) {
                match self.all(&names) {
                    Ok(admission) => return Ok(admission),
                    Err(reason) => unusable = unusable.or(Some(reason)),
                }
                continue;
            }
            missing.push(names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" with "));
        }
        if let Some(reason) = unusable {
            return Err(reason);
        }
        let missing = missing.join(" or ");
        if !is_optional && !missing.is_empty() && !self.unmet.contains(&missing) {
            self.unmet.push(missing);
        }
        Ok(OperationAuth::default())
    }

    fn all(&mut self, names: &[&String]) -> Result<OperationAuth, String> {
        let mut admission = OperationAuth::default();
        for name in names {
            let scheme = self.scheme(name)?;
            if let Some(place) = place(scheme) {
                if let Some((kind, filled)) = admission.places.iter().find(|have| **have == place) {
                    return Err(format!(
                        "its security needs several schemes at once of which two fill the {kind} `{filled}`, which takes one"
                    ));
                }
                admission.places.push(place);
            }
            let credential = match self.made.get(*name) {
                Some(made) => made.clone(),
                None => {
                    let made = self.make(name, scheme).map_err(|reason| format!("auth.{name}: {reason}"))?;
                    self.made.insert((*name).clone(), made.clone());
                    made
                }
            };
            admission.credentials.push(credential);
        }
        Ok(admission)
    }

    fn scheme(&self, name: &str) -> Result<DocumentPart<'d>, String> {
        let schemes = self.document.root().get("components").and_then(|components| components.get("securitySchemes"));
        let scheme = schemes.and_then(|schemes| schemes.get(name));
        let scheme = scheme.ok_or_else(|| format!("its security scheme `{name}` is not in the document"))?;
        self.document.follow(scheme)
    }

    fn make(&self, name: &str, scheme: DocumentPart<'d>) -> Result<Credential, String> {
        let Some(auth) = self.config.auth.get(name) else { return Err("is not configured".into()) };
        let kind = scheme.text("type").unwrap_or_default();
        match (kind, auth) {
            ("apiKey", Auth::Token(key)) => api_key(scheme, key),
            ("http", auth) => {
                let method = scheme.text("scheme").unwrap_or_default();
                match (method.to_ascii_lowercase().as_str(), auth) {
                    ("basic", Auth::Basic { username, password }) => Credential::basic(username, password),
                    ("basic", _) => Err("this scheme needs `username` and `password`".into()),
                    ("bearer", Auth::Token(token)) => Credential::authorization("Bearer", token),
                    ("digest" | "hoba" | "negotiate" | "mutual" | "scram-sha-1" | "scram-sha-256", _) => {
                        Err(format!("the HTTP scheme `{method}` is not spoken"))
                    }
                    (_, Auth::Token(token)) => Credential::authorization(method, token),
                    _ => Err("this scheme needs a `token`".into()),
                }
            }
            ("oauth2" | "openIdConnect", Auth::Token(token)) => Credential::authorization("Bearer", token),
            ("oauth2" | "openIdConnect", Auth::ClientCredentials { client_id, client_secret, token_url, scopes }) => {
                let url = self.token_url(scheme, token_url.as_deref())?;
                let source = TokenSource {
                    url,
                    client_id: client_id.clone(),
                    client_secret: client_secret.clone(),
                    scopes: scopes.clone().unwrap_or_else(|| self.required_scopes(name)),
                    cached: Mutex::new(None),
                };
                Ok(Credential::Minted(Arc::new(source)))
            }
            ("oauth2" | "openIdConnect", _) => {
                Err("this scheme needs a `token`, or `client_id` and `client_secret`".into())
            }
            ("mutualTLS", _) => Err("client certificates are not supported".into()),
            ("apiKey", _) => Err("this scheme needs a `token`".into()),
            (other, _) => Err(format!("`{other}` is not a kind of security scheme")),
        }
    }

    /// Returns the address of tokens. A document from the network must not choose who gets the secret.
    fn token_url(&self, scheme: DocumentPart<'d>, configured: Option<&str>) -> Result<Url, String> {
        if let Some(configured) = configured {
            return Url::parse(configured).map_err(|error| format!("token_url: {error}"));
        }
        if matches!(self.document.origin, Origin::Url(_)) {
            return Err("set token_url: a document from the network does not choose where the secret goes".into());
        }
        let flow = scheme.get("flows").and_then(|flows| flows.get("clientCredentials"));
        let url = flow.and_then(|flow| flow.text("tokenUrl")).ok_or("the document has no token URL: set token_url")?;
        Url::parse(url).map_err(|error| format!("the document's token URL is malformed ({error}): set token_url"))
    }

    /// Returns every scope that the document requires for a scheme.
    fn required_scopes(&self, name: &str) -> Vec<String> {
        let root = self.document.root();
        let operations =
            root.get("paths").into_iter().flat_map(DocumentPart::members).flat_map(|(_, item)| item.members());
        let own = operations.filter_map(|(_, operation)| operation.get("security"));
        let mut scopes = Vec::new();
        for requirement in root.get("security").into_iter().chain(own).flat_map(DocumentPart::items) {
            let listed = requirement.value.get(name).and_then(Value::as_array).into_iter().flatten();
            for scope in listed.filter_map(Value::as_str) {
                if scopes.iter().all(|have| have != scope) {
                    scopes.push(scope.to_owned());
                }
            }
        }
        scopes
    }
}

/// Returns the place that a scheme's credential fills.
fn place(scheme: DocumentPart<'_>) -> Option<(&'static str, String)> {
    match (scheme.text("type")?, scheme.text("in")) {
        ("apiKey", Some("query")) => Some(("query", scheme.text("name")?.to_owned())),
        ("apiKey", Some("header")) => Some(("header", scheme.text("name")?.to_ascii_lowercase())),
        ("apiKey", Some("cookie")) => Some(("cookie", scheme.text("name")?.to_owned())),
        ("apiKey", _) => None,
        _ => Some(("header", AUTHORIZATION.as_str().to_owned())),
    }
}

fn api_key(scheme: DocumentPart<'_>, key: &str) -> Result<Credential, String> {
    let name = scheme.text("name").ok_or("the document does not name the key")?;
    match scheme.text("in") {
        Some("query") => Ok(Credential::Query(name.to_owned(), key.to_owned())),
        Some("header") => {
            let header =
                HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("`{name}` is not a header's name"))?;
            if header == COOKIE {
                return Err("the document puts the key into the header `Cookie`, which is not done".into());
            }
            Credential::header(header, key)
        }
        Some("cookie") => {
            if key.contains(|c: char| c.is_control() || matches!(c, ';' | ',' | '"' | '\\' | ' ')) {
                return Err("the value cannot stand in a cookie".into());
            }
            Ok(Credential::Cookie(name.to_owned(), key.to_owned()))
        }
        other => Err(format!("`{}` is no place for a key", other.unwrap_or_default())),
    }
}

/// A base address, in the parts of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Base {
    /// Scheme and authority.
    pub(super) origin: String,
    /// Its path segments, encoded.
    pub(super) path: Vec<String>,
    /// The server as the document declares it, with its variables filled in except those that the operator sets;
    /// absolute if the document was found at another place than configured. Empty if the operator sets the server.
    pub(super) stated: String,
    /// Whether credentials may be sent there: the operator set the server, or a document names its own host.
    pub(super) is_vouched_for: bool,
    /// The origin that redirected to the document on this host, if so: the operator named only that one.
    pub(super) led_from: Option<String>,
}

/// Returns the base address of an operation.
///
/// # Errors
/// There is none; with the remedy.
pub(super) fn base(
    config: &OpenApiConfig,
    document: &Document,
    path_item: &[DocumentPart<'_>],
    operation: DocumentPart<'_>,
) -> Result<Base, String> {
    if let Some(configured) = &config.base_url {
        return split(configured, String::new(), true).map_err(|reason| format!("base_url: {reason}"));
    }
    let FilledUrl { url, mut stated } = match server_of(document, path_item, operation) {
        Some(server) => filled(server, config)?,
        None => FilledUrl { url: "/".to_owned(), stated: "/".to_owned() },
    };
    // The found address, after redirects, and the configured one.
    let (own, named) = (address(&document.origin), address(&config.document));
    let absolute = match (Url::parse(&url), own) {
        (Ok(_), _) => url,
        (Err(url::ParseError::RelativeUrlWithoutBase), Some(own)) => {
            let absolute = own.join(&url).map_err(|error| format!("its server `{url}` is malformed: {error}"))?;
            // A redirect may lead the document and its calls elsewhere, which must not count as the pinned server.
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
        (Some(named), Some(server)) => trusts_server(named, server),
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

/// Returns the server that the document declares for an operation.
pub(super) fn server_of<'d>(
    document: &'d Document,
    path_item: &[DocumentPart<'d>],
    operation: DocumentPart<'d>,
) -> Option<&'d Value> {
    let mut levels = [operation].into_iter().chain(path_item.iter().copied()).chain([document.root()]);
    let servers = levels.find_map(|part| part.value.get("servers")?.as_array().filter(|list| !list.is_empty()));
    servers.and_then(|list| list.first())
}

/// Returns whether the operator's choice of an address covers this server: the same origin, or the same host and port
/// over `https`, to which `http` servers redirect.
fn trusts_server(named: &Url, server: &Url) -> bool {
    let is_upgrade = (named.scheme(), server.scheme()) == ("http", "https")
        && named.host() == server.host()
        // The ports must be equal, explicit or the default of the scheme.
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
struct FilledUrl {
    /// With all variables filled in.
    url: String,
    /// With only the variables filled in whose values are the document's.
    stated: String,
}

fn filled(server: &Value, config: &OpenApiConfig) -> Result<FilledUrl, String> {
    let template = server.get("url").and_then(Value::as_str).unwrap_or("/");
    let (mut url, mut stated) = (String::new(), String::new());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or_else(|| format!("its server `{template}` has an open `{{`"))?;
        let variable = server.get("variables").and_then(|variables| variables.get(name));
        let value = match (config.server_variables.get(name), variables_of(variable, "default")) {
            (Some(chosen), _) => match wrong_value(name, chosen, variable) {
                None => chosen.clone(),
                Some(why) => return Err(why),
            },
            (None, Some(default)) => text(default),
            (None, None) => return Err(format!("its server needs a value: set server_variables.{name}")),
        };
        // The operator's values do not change a pin.
        let known = if config.server_variables.contains_key(name) { format!("{{{name}}}") } else { value.clone() };
        for (text, value) in [(&mut url, &value), (&mut stated, &known)] {
            text.push_str(before);
            text.push_str(value);
        }
        rest = after;
    }
    url.push_str(rest);
    stated.push_str(rest);
    Ok(FilledUrl { url, stated })
}

/// Returns the variables in a server's address by name, each with its declaration.
pub(super) fn variables(server: &Value) -> impl Iterator<Item = (&str, Option<&Value>)> {
    let template = server.get("url").and_then(Value::as_str).unwrap_or_default();
    let names = template.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    names.map(move |name| (name, server.get("variables").and_then(|variables| variables.get(name))))
}

/// Returns the error if a variable is set to a value that it may not have.
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
