//! Entries of tools over HTTP: `rest_tools`, `openapi` and `catalogues`.

use std::path::Path;

use serde_json::json;
use toolwright_core::canonical::ContentHash;
use toolwright_core::tool_id::{RESERVED_NAMESPACES, ToolId};
use toolwright_net::AddressPolicy;
use toolwright_providers::catalogue::{CatalogueConfig, PublicKey};
use toolwright_providers::openapi::{Auth, OpenApiConfig, Origin};
use toolwright_providers::rest::{RestError, RestOptions, RestProvider, RestToolConfig, Selection};
use url::Url;

use super::Config;
use super::files::node::{Data, Member, Node, Problem, Severity, SourceLocation};
use super::sections::check::{entry_schema, snake_case};
use super::sections::variables::{ResolveScope, StringUse};
use crate::trust::ProjectTrust;

const COMPARE: &str = "compare it with `toolwright config schema`";

/// Reads a REST tool and expands its variables; `None`, with the reason among the problems, if it is unusable.
pub(super) fn rest_tool(mut member: Member, scope: &mut ResolveScope<'_>) -> Option<(String, RestToolConfig)> {
    let (name, at, entry) = (member.key.clone(), member.at.clone(), format!("rest_tools.{}", member.key));
    let before = scope.problems.len();
    if let Err(error) = ToolId::format("rest", &name, "1.0.0") {
        scope.leave_out(&at, &entry, error.to_string(), "rename the tool");
    }
    if let Some(queue) = member.value.text_of("queue") {
        scope.check_queue(&at, &format!("{entry}.queue"), queue);
    }
    let written = member.value.to_value();
    let tool: RestToolConfig = scope.entry(&mut member, entry_schema("rest_tools"), "rest_tools")?;
    let mut tool = RestToolConfig { written: Some(written), ..tool };
    if tool.parameters.is_none() {
        let used = parameters(&member.value);
        if !used.is_empty() {
            let message = format!("`parameters` is missing: it must describe {}", used.join(", "));
            let remedy = format!("add a JSON Schema with properties {}", used.join(", "));
            scope.leave_out(&at, &entry, message, remedy);
            return None;
        }
        tool.parameters = Some(json!({"type": "object", "properties": {}, "additionalProperties": false}));
    }
    if scope.problems.len() > before {
        return None;
    }
    // The provider compiles templates and schema, so its errors are found here, with file and line.
    match RestProvider::new(vec![(name.clone(), tool.clone())], &RestOptions::default()) {
        Ok(provider) => {
            let remedy = "use it there, or take it out of `parameters`";
            let warn = |text: &String| Problem::new(Severity::Warning, &at, &entry, text, remedy);
            scope.problems.extend(provider.warnings().iter().map(warn));
            Some((name, tool))
        }
        Err(RestError::Field { field, reason, .. }) => {
            scope.leave_out(place(&member, &field), &format!("{entry}.{field}"), reason, remedy(&field));
            None
        }
        Err(error) => {
            scope.leave_out(&at, &entry, error.to_string(), COMPARE);
            None
        }
    }
}

/// Returns the place of an entry's field, or of the deepest existing part of its path.
fn place<'m>(member: &'m Member, field: &str) -> &'m SourceLocation {
    let mut found = member;
    for key in field.split('.') {
        match found.value.members().iter().find(|inner| inner.key == key || snake_case(&inner.key) == key) {
            Some(inner) => found = inner,
            None => break,
        }
    }
    &found.at
}

/// Returns the remedy for an error in a field.
fn remedy(field: &str) -> &'static str {
    match field.split('.').next().unwrap_or(field) {
        "url" => "write it like https://host/items/${parameters.id}, the placeholders in path and query",
        "headers" => "write text, with ${VAR} or ${parameters.x} where a value belongs",
        "query" => "write a text, a scalar, a list, or {value, style, explode}",
        "body" => "write JSON or a text, with ${parameters.x} where a value belongs",
        "parameters" => "write a JSON Schema of type object with a property for each placeholder",
        "output_schema" => "write a JSON Schema, or leave it out",
        "select" => "write names and positions after slashes, like /items/*/name",
        _ => COMPARE,
    }
}

/// Returns the arguments that a tool's placeholders name, each once.
fn parameters(entry: &Node) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for field in ["url", "headers", "query", "body"].into_iter().filter_map(|field| entry.get(field)) {
        each_text(&field.value, &mut |text| {
            for placeholder in text.split("${parameters.").skip(1) {
                let name = placeholder.split(['.', '}']).next().unwrap_or_default();
                if !name.is_empty() && names.iter().all(|have| have != name) {
                    names.push(name.to_owned());
                }
            }
        });
    }
    names
}

fn each_text(node: &Node, each: &mut dyn FnMut(&str)) {
    match &node.data {
        Data::Text(text) => each(text),
        Data::List(items) => items.iter().for_each(|item| each_text(item, each)),
        Data::Map(members) => members.iter().for_each(|member| each_text(&member.value, each)),
        _ => {}
    }
}

/// Reads an OpenAPI entry and expands its variables; `None`, with the reason among the problems, if it is unusable.
/// `taken` returns whether another source has a namespace; `web` has the default address settings.
pub(super) fn document(
    mut member: Member,
    web: &AddressPolicy,
    taken: &dyn Fn(&str) -> bool,
    trust: &[ProjectTrust],
    scope: &mut ResolveScope<'_>,
) -> Option<OpenApiConfig> {
    let (key, at, entry) = (member.key.clone(), member.at.clone(), format!("openapi.{}", member.key));
    let before = scope.problems.len();
    let name = member.value.text_of("prefix").unwrap_or(&key).to_owned();
    if let Some(problem) = unusable(&name, taken) {
        scope.leave_out(&at, &entry, problem, "choose another with `prefix`");
    }
    if member.value.text_of("document").is_none_or(|written| written.trim().is_empty()) {
        let remedy = "give the document's file or address";
        scope.leave_out(&at, &format!("{entry}.document"), "it is missing".to_owned(), remedy);
        return None;
    }
    // The file that names the document, which may not be that of the entry.
    let file = member.value.get("document").map_or(&at, |named| &named.at).file.clone();
    scope.fill_in(&mut member.value, entry_schema("openapi"), &at, &entry);
    for auth in member.value.get("auth").into_iter().flat_map(|all| all.value.members()) {
        if let Err(error) = serde_json::from_value::<Auth>(auth.value.to_value()) {
            let remedy = "give a `token`, or `username` and `password`, or `client_id` and `client_secret`";
            scope.leave_out(&at, &format!("{entry}.auth.{}", auth.key), error.to_string(), remedy);
        }
    }
    if scope.problems.len() > before {
        return None;
    }
    let document: OpenApiConfig = scope.read(&member, "openapi")?;
    let mut document = OpenApiConfig {
        name,
        defined_in: scope.places.of(&at),
        address: AddressPolicy {
            allow_private: document.allow_private.unwrap_or(web.allow_private),
            allowed_hosts: document.allowed_hosts.clone().unwrap_or_else(|| web.allowed_hosts.clone()),
        },
        document: document.document.within(file.parent().unwrap_or(Path::new(""))),
        ..document
    };
    document.approved = approved(&document.document, &file, trust, &mut |message| {
        let remedy = "write its path without variables, and run `toolwright trust`";
        scope.leave_out(&at, &format!("{entry}.document"), message, remedy);
    });
    if let Some(queue) = &document.calls.limits.queue {
        scope.check_queue(&at, &format!("{entry}.queue"), queue);
    }
    for (name, operation) in &document.operations {
        let field = format!("{entry}.operations.{name}");
        if let Some(queue) = &operation.calls.limits.queue {
            scope.check_queue(&at, &format!("{field}.queue"), queue);
        }
        if let Some(Err(reason)) = operation.select.as_deref().map(Selection::parse) {
            scope.leave_out(&at, &format!("{field}.select"), reason, "write it like /items/*/name");
        }
    }
    (scope.problems.len() == before).then_some(document)
}

/// Returns the required content of a document that a project's file names.
fn approved(
    document: &Origin,
    file: &Path,
    trust: &[ProjectTrust],
    refuse: &mut dyn FnMut(String),
) -> Option<ContentHash> {
    let Origin::File(path) = document else { return None };
    let content = trust.iter().find(|judged| judged.file == file)?.in_force.as_ref()?;
    let approved = content.document(file, path);
    if approved.is_none() {
        refuse(format!("{} was not approved with the file that names it", path.display()));
    }
    approved
}

/// Returns why a document's tools cannot have this namespace, if so; `taken` returns whether another source has it.
fn unusable(name: &str, taken: &dyn Fn(&str) -> bool) -> Option<String> {
    if let Err(error) = ToolId::format(name, "x", "0.0.0") {
        return Some(error.to_string());
    }
    let is_taken = RESERVED_NAMESPACES.contains(&name) || name == "builtin" || taken(name);
    is_taken.then(|| format!("the namespace `{name}` is another's"))
}

impl Config {
    /// Returns why a new entry of `openapi` cannot have this name, if so: another source has it, or it is invalid. An
    /// existing entry of the same key is ignored.
    #[must_use]
    pub fn unusable_for_document(&self, key: &str) -> Option<String> {
        let documents = self.tree["openapi"].as_object();
        unusable(key, &|name| {
            self.servers.iter().any(|server| server.namespace == name)
                || self.catalogues.iter().any(|catalogue| catalogue.namespace == name)
                || documents.into_iter().flatten().any(|(other, entry)| other != key && entry["prefix"] == name)
        })
    }
}

/// Reads a catalogue entry and expands its variables; `None`, with the reason among the problems, if it is unusable.
/// `taken` returns whether another source has a namespace.
pub(super) fn catalogue(
    mut member: Member,
    taken: &dyn Fn(&str) -> bool,
    scope: &mut ResolveScope<'_>,
) -> Option<CatalogueConfig> {
    let (name, at, entry) = (member.key.clone(), member.at.clone(), format!("catalogues.{}", member.key));
    let before = scope.problems.len();
    if let Err(error) = ToolId::format(&name, "x", "1.0.0") {
        scope.leave_out(&at, &entry, error.to_string(), "name it as the catalogue's namespace is called");
    } else if RESERVED_NAMESPACES.contains(&name.as_str()) || taken(&name) {
        let message = format!("the namespace `{name}` is reserved or another source's");
        scope.leave_out(&at, &entry, message, "rename the other one; a catalogue has the name that is signed");
    }
    scope.fill_in(&mut member.value, entry_schema("catalogues"), &at, &entry);
    if let Some(Err(error)) = member.value.text_of("url").map(Url::parse) {
        let message = format!("it is not an address: {error}");
        scope.leave_out(&at, &format!("{entry}.url"), message, "write it like https://host/catalogue.json");
    }
    let keys = match member.value.get("keys").map(|keys| &keys.value.data) {
        Some(Data::List(keys)) => keys.iter().filter_map(Node::text).collect(),
        _ => Vec::new(),
    };
    for error in keys.iter().filter_map(|key| key.parse::<PublicKey>().err()) {
        scope.leave_out(&at, &format!("{entry}.keys"), error.to_string(), "ask its publisher for the key");
    }
    if keys.is_empty() {
        let (message, remedy) = ("without keys no catalogue is believed", "list the publisher's public key");
        scope.leave_out(&at, &format!("{entry}.keys"), message.to_owned(), remedy);
    }
    fill_secrets(&mut member.value, &at, &entry, scope);
    if scope.problems.len() > before {
        return None;
    }
    let catalogue: CatalogueConfig = scope.read(&member, "catalogues")?;
    Some(CatalogueConfig { namespace: name, defined_in: scope.places.of(&at), ..catalogue })
}

/// Adds the values of the variables named in `secrets`.
fn fill_secrets(node: &mut Node, at: &SourceLocation, entry: &str, scope: &mut ResolveScope<'_>) {
    let Some(Member { value: Node { data: Data::List(names), at: here }, .. }) = node.take("secrets") else { return };
    let secrets = names.iter().filter_map(Node::text).map(|name| {
        let mut value = format!("${{{name}}}");
        scope.fill(at, &format!("{entry}.secrets"), &mut value, StringUse::OwnKey(name));
        Member { key: name.to_owned(), at: here.clone(), value: Node { at: here.clone(), data: Data::Text(value) } }
    });
    node.set("secrets", Data::Map(secrets.collect()));
}
