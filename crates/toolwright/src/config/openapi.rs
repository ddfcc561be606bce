//! From a written `openapi` entry to what its provider takes.

use std::path::Path;

use toolwright_core::Effects;
use toolwright_core::canonical::ContentHash;
use toolwright_core::tool_id::{RESERVED_NAMESPACES, ToolId};
use toolwright_net::AddressPolicy;
use toolwright_providers::openapi::{Auth, Filter, GroupBy, OpenApiSpec, Operation, Origin, ResultSchemas};
use toolwright_providers::rest::{ResponseFormat, Selection};
use url::Url;

use super::fill::{Holds, Scope};
use super::node::Member;
use super::problem::At;
use super::resolved::Config;
use super::typed::{
    EffectFlags, OpenApiAuth, OpenApiEntry, OpenApiGrouping, OpenApiOperation, RestResponse, WebSection, Written,
};
use crate::trust::Judged;

/// Resolves one entry; `None`, with the reason among the problems, when it is switched off or cannot be used. `taken` says
/// whether a namespace is another source's.
pub(crate) fn resolve(
    member: &Member,
    written: &OpenApiEntry,
    web: &WebSection,
    taken: &dyn Fn(&str) -> bool,
    trust: &[Judged],
    scope: &mut Scope<'_>,
) -> Option<OpenApiSpec> {
    if written.enabled == Some(false) {
        return None;
    }
    let mut resolver = Resolver { at: &member.at, entry: format!("openapi.{}", member.key), scope };
    let before = resolver.scope.problems.len();
    let name = written.prefix.clone().unwrap_or_else(|| member.key.clone());
    resolver.check_name(&name, taken);
    // Where the document is named, which may be a farther file than the entry's.
    let file = &member.value.get("document").map_or(&member.at, |named| &named.at).file;
    let document = resolver.document(written.document.as_deref(), file.parent().unwrap_or(Path::new("")))?;
    let approved = resolver.approved(&document, file, trust);
    let mut spec = OpenApiSpec::new(name, document);
    spec.approved = approved;
    spec.defined_in = resolver.scope.places.of(&member.at);
    spec.document_headers = resolver.pairs("document_headers", &written.document_headers);
    spec.headers = resolver.pairs("headers", &written.headers);
    spec.base_url = written.base_url.as_ref().map(|url| resolver.text("base_url", url, Holds::Setting));
    for (name, Written(value)) in &written.server_variables {
        let value = resolver.text(&format!("server_variables.{name}"), value, Holds::Setting);
        spec.server_variables.insert(name.clone(), value);
    }
    spec.filter = Filter {
        tags: written.tags.clone(),
        methods: written.methods.clone(),
        allowed: written.operations_allowed.clone(),
        denied: written.operations_denied.clone(),
    };
    spec.group_by = match written.group_by {
        Some(OpenApiGrouping::Tag) => GroupBy::Tag,
        Some(OpenApiGrouping::None) | None => GroupBy::None,
    };
    for (name, auth) in &written.auth {
        if let Some(auth) = resolver.auth(name, auth) {
            spec.auth.insert(name.clone(), auth);
        }
    }
    for (name, operation) in &written.operations {
        spec.operations.insert(name.clone(), resolver.operation(&format!("operations.{name}"), operation));
    }
    let defaults = OpenApiOperation {
        response: written.response,
        timeout: written.timeout,
        idle_timeout: written.idle_timeout,
        retries: written.retries,
        queue: written.queue.clone(),
        cache: written.cache,
        max_output: written.max_output,
        allowed_roles: written.allowed_roles.clone(),
        ..OpenApiOperation::default()
    };
    spec.defaults = resolver.operation("", &defaults);
    if written.output_schemas == Some(true) {
        spec.results = ResultSchemas::Kept;
    }
    spec.max_bytes = written.max_bytes;
    spec.address = AddressPolicy {
        allow_private: written.allow_private.unwrap_or(web.allow_private),
        allowed_hosts: written.allowed_hosts.clone().unwrap_or_else(|| web.allowed_hosts.clone()),
    };
    (resolver.scope.problems.len() == before).then_some(spec)
}

struct Resolver<'a, 'b> {
    at: &'a At,
    entry: String,
    scope: &'a mut Scope<'b>,
}

impl Resolver<'_, '_> {
    fn fail(&mut self, field: &str, message: impl Into<String>, remedy: &str) {
        let field = if field.is_empty() { self.entry.clone() } else { format!("{}.{field}", self.entry) };
        self.scope.leave_out(self.at, &field, message.into(), remedy);
    }

    fn check_name(&mut self, name: &str, taken: &dyn Fn(&str) -> bool) {
        if let Some(problem) = unusable(name, taken) {
            self.fail("", problem, "choose another with `prefix`");
        }
    }

    fn text(&mut self, field: &str, text: &str, holds: Holds<'_>) -> String {
        let mut text = text.to_owned();
        let field = format!("{}.{field}", self.entry);
        self.scope.fill(self.at, &field, &mut text, holds);
        text
    }

    fn pairs(&mut self, field: &str, pairs: &indexmap::IndexMap<String, Written>) -> Vec<(String, String)> {
        let pair = |(name, Written(value)): (&String, &Written)| {
            (name.clone(), self.text(&format!("{field}.{name}"), value, Holds::Pair(name)))
        };
        pairs.iter().map(pair).collect()
    }

    fn document(&mut self, written: Option<&str>, folder: &Path) -> Option<Origin> {
        let Some(written) = written.filter(|written| !written.trim().is_empty()) else {
            self.fail("document", "it is missing", "give the document's file or address");
            return None;
        };
        let text = self.text("document", written, Holds::Setting);
        Some(origin(&text, folder))
    }

    /// What the document must hold where a project's file names it.
    fn approved(&mut self, document: &Origin, file: &Path, trust: &[Judged]) -> Option<ContentHash> {
        let Origin::File(path) = document else { return None };
        let content = trust.iter().find(|judged| judged.file == file)?.in_force.as_ref()?;
        let approved = content.document(file, path);
        if approved.is_none() {
            let message = format!("{} was not approved with the file that names it", path.display());
            self.fail("document", message, "write its path without variables, and run `toolwright trust`");
        }
        approved
    }

    fn auth(&mut self, name: &str, written: &OpenApiAuth) -> Option<Auth> {
        let field = format!("auth.{name}");
        let mut secret = |key: &'static str, value: &Option<Written>| {
            value.as_ref().map(|Written(value)| self.text(&format!("{field}.{key}"), value, Holds::OwnKey(key)))
        };
        let (token, username) = (secret("token", &written.token), secret("username", &written.username));
        let password = secret("password", &written.password);
        let client = (secret("client_id", &written.client_id), secret("client_secret", &written.client_secret));
        match (token, (username, password), client) {
            (Some(token), (None, None), (None, None)) => Some(Auth::Token(token)),
            (None, (Some(username), Some(password)), (None, None)) => Some(Auth::Basic { username, password }),
            (None, (None, None), (Some(client_id), Some(client_secret))) => Some(Auth::ClientCredentials {
                client_id,
                client_secret,
                token_url: written
                    .token_url
                    .as_ref()
                    .map(|url| self.text(&format!("{field}.token_url"), url, Holds::Setting)),
                scopes: written.scopes.clone(),
            }),
            _ => {
                let remedy = "give a `token`, or `username` and `password`, or `client_id` and `client_secret`";
                self.fail(&field, "these credentials are not whole, or of two kinds", remedy);
                None
            }
        }
    }

    fn operation(&mut self, field: &str, written: &OpenApiOperation) -> Operation {
        if let Some(queue) = &written.queue {
            let dot = if field.is_empty() { "" } else { "." };
            self.scope.check_queue(self.at, &format!("{}.{field}{dot}queue", self.entry), queue);
        }
        if let Some(Err(reason)) = written.select.as_deref().map(Selection::parse) {
            self.fail(&format!("{field}.select"), reason, "write it like /items/*/name");
        }
        Operation {
            enabled: written.enabled,
            name: written.name.clone(),
            title: written.title.clone(),
            description: written.description.clone(),
            effects: written.effects.map(effects),
            tags: written.tags.clone(),
            allowed_roles: written.allowed_roles.clone(),
            content_type: written.content_type.clone(),
            response: written.response.map(response),
            select: written.select.clone(),
            timeout: written.timeout.map(|span| span.0),
            idle_timeout: written.idle_timeout.map(|span| span.0),
            retries: written.retries,
            queue: written.queue.clone(),
            cache: written.cache.map(|ttl| ttl.0),
            max_output: written.max_output,
        }
    }
}

/// Why a document's tools cannot have this namespace, if they cannot; `taken` says whether it is another source's.
fn unusable(name: &str, taken: &dyn Fn(&str) -> bool) -> Option<String> {
    if let Err(error) = ToolId::format(name, "x", "0.0.0") {
        return Some(error.to_string());
    }
    let is_taken = RESERVED_NAMESPACES.contains(&name) || name == "builtin" || taken(name);
    is_taken.then(|| format!("the namespace `{name}` is another's"))
}

impl Config {
    /// Why a new entry of `openapi` cannot be called so, if it cannot: other sources have the name, or nobody may. One of
    /// the same key is not looked at.
    #[must_use]
    pub fn unusable_for_document(&self, key: &str) -> Option<String> {
        let documents = &self.written.openapi;
        unusable(key, &|name| {
            self.servers.iter().any(|server| server.namespace == name)
                || self.catalogues.iter().any(|catalogue| catalogue.namespace == name)
                || documents.iter().any(|(other, entry)| other != key && entry.prefix.as_deref() == Some(name))
        })
    }
}

/// A document's place as it is written: an address, or a file relative to `folder`.
#[must_use]
pub fn origin(written: &str, folder: &Path) -> Origin {
    match Url::parse(written) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Origin::Url(url),
        _ => Origin::File(folder.join(written)),
    }
}

fn effects(flags: EffectFlags) -> Effects {
    let unknown = Effects::UNKNOWN;
    Effects {
        read_only: flags.read_only.unwrap_or(unknown.read_only),
        destructive: flags.destructive.unwrap_or(unknown.destructive),
        idempotent: flags.idempotent.unwrap_or(unknown.idempotent),
        open_world: flags.open_world.unwrap_or(unknown.open_world),
    }
}

fn response(written: RestResponse) -> ResponseFormat {
    match written {
        RestResponse::Auto => ResponseFormat::Auto,
        RestResponse::Text => ResponseFormat::Text,
        RestResponse::Json => ResponseFormat::Json,
        RestResponse::Events => ResponseFormat::Events,
        RestResponse::JsonLines => ResponseFormat::JsonLines,
    }
}
