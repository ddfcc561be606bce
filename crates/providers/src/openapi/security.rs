//! Security requirements of an operation, met with what is configured.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE};
use serde_json::Value;
use tokio::sync::Mutex;
use url::Url;

use super::document::{Document, Origin, Part};
use super::spec::{Auth, OpenApiConfig};
use crate::rest::{Credential, TokenSource};

/// Makes credentials out of settings, once each.
pub(super) struct Keyring<'d> {
    spec: &'d OpenApiConfig,
    document: &'d Document,
    made: BTreeMap<String, Credential>,
    /// Requirements that nothing configured meets, each once.
    unmet: Vec<String>,
}

/// How an operation is let in.
#[derive(Debug, Default)]
pub(super) struct Admission {
    pub(super) credentials: Vec<Credential>,
    /// Places that credentials fill, so that no argument does: (`query`, `header` or `cookie`; name).
    pub(super) places: Vec<(&'static str, String)>,
}

impl<'d> Keyring<'d> {
    pub(super) fn new(spec: &'d OpenApiConfig, document: &'d Document) -> Self {
        Self { spec, document, made: BTreeMap::new(), unmet: Vec::new() }
    }

    /// What an operator should know: requirements that are not met, so that calls go without credentials.
    pub(super) fn warnings(self) -> Vec<String> {
        self.unmet
            .iter()
            .map(|schemes| {
                format!("no credentials are configured for {schemes}: operations that need them are called without")
            })
            .collect()
    }

    /// The credentials for an operation: of its alternatives the first that is wholly configured and can be sent.
    ///
    /// # Errors
    /// Why nothing of what is configured can be used.
    pub(super) fn admission(&mut self, operation: Part<'d>) -> Result<Admission, String> {
        let requirements = operation.get("security").or_else(|| self.document.root().get("security"));
        let Some(requirements) = requirements else { return Ok(Admission::default()) };
        let mut missing = Vec::new();
        let mut is_optional = false;
        let mut unusable = None;
        for alternative in requirements.items() {
            let names: Vec<&String> = alternative.members().map(|(name, _)| name).collect();
            if names.is_empty() {
                is_optional = true;
                continue;
            }
            if names.iter().all(|name| self.spec.auth.contains_key(*name)) {
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
        Ok(Admission::default())
    }

    fn all(&mut self, names: &[&String]) -> Result<Admission, String> {
        let mut admission = Admission::default();
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

    fn scheme(&self, name: &str) -> Result<Part<'d>, String> {
        let schemes = self.document.root().get("components").and_then(|components| components.get("securitySchemes"));
        let scheme = schemes.and_then(|schemes| schemes.get(name));
        let scheme = scheme.ok_or_else(|| format!("its security scheme `{name}` is not in the document"))?;
        self.document.follow(scheme)
    }

    fn make(&self, name: &str, scheme: Part<'d>) -> Result<Credential, String> {
        let Some(auth) = self.spec.auth.get(name) else { return Err("is not configured".into()) };
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
                    held: Mutex::new(None),
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

    /// The address of tokens. A document from the network may not choose who gets the secret.
    fn token_url(&self, scheme: Part<'d>, configured: Option<&str>) -> Result<Url, String> {
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

    /// Every scope that the document requires of a scheme.
    fn required_scopes(&self, name: &str) -> Vec<String> {
        let root = self.document.root();
        let operations = root.get("paths").into_iter().flat_map(Part::members).flat_map(|(_, item)| item.members());
        let own = operations.filter_map(|(_, operation)| operation.get("security"));
        let mut scopes = Vec::new();
        for requirement in root.get("security").into_iter().chain(own).flat_map(Part::items) {
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

/// The place that a scheme's credential fills.
fn place(scheme: Part<'_>) -> Option<(&'static str, String)> {
    match (scheme.text("type")?, scheme.text("in")) {
        ("apiKey", Some("query")) => Some(("query", scheme.text("name")?.to_owned())),
        ("apiKey", Some("header")) => Some(("header", scheme.text("name")?.to_ascii_lowercase())),
        ("apiKey", Some("cookie")) => Some(("cookie", scheme.text("name")?.to_owned())),
        ("apiKey", _) => None,
        _ => Some(("header", AUTHORIZATION.as_str().to_owned())),
    }
}

fn api_key(scheme: Part<'_>, key: &str) -> Result<Credential, String> {
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
