//! Settings of an entry that nothing of its document is meant by: most are misspelt, and all do nothing.

use std::collections::BTreeSet;

use toolwright_core::pattern::{glob_match, nearest};

use super::document::{Document, Version};
use super::import::{Found, tags};
use super::server;
use super::spec::{Filter, OpenApiConfig};

/// Names that are said of a document, to choose among.
const SAID: usize = 8;

/// What the document has that settings may name, gathered operation by operation.
#[derive(Default)]
pub(super) struct Named {
    tags: BTreeSet<String>,
    methods: BTreeSet<String>,
    /// `operationId`s and names.
    names: BTreeSet<String>,
    /// `operationId`s, and method and path.
    keys: BTreeSet<String>,
    /// Variables of servers.
    variables: BTreeSet<String>,
    /// What is said of values that they may not have.
    wrong_values: BTreeSet<String>,
}

impl Named {
    pub(super) fn note(&mut self, found: &Found<'_>, spec: &OpenApiConfig, document: &Document) {
        self.tags.extend(tags(found.operation).into_iter().map(str::to_owned));
        self.methods.insert(found.method.to_string());
        self.names.extend([found.name.clone(), found.label()]);
        self.keys.extend([found.label(), format!("{} {}", found.method, found.path)]);
        if spec.base_url.is_some() || spec.server_variables.is_empty() {
            return;
        }
        let server = server::server_of(document, &found.path_item, found.operation);
        for (name, variable) in server.into_iter().flat_map(server::variables) {
            self.variables.insert(name.to_owned());
            let chosen = spec.server_variables.get(name);
            self.wrong_values.extend(chosen.and_then(|chosen| server::wrong_value(name, chosen, variable)));
        }
    }

    /// Each such setting in a sentence: where it is, what it names, and what it may have meant.
    pub(super) fn unmatched(&self, spec: &OpenApiConfig, document: &Document) -> Vec<String> {
        if document.version == Version::V2 {
            // Nothing of it is imported, whatever the settings say.
            return vec!["the document is Swagger 2.0, of which nothing is imported: convert it to OpenAPI 3".into()];
        }
        let mut all = Vec::new();
        let Filter { tags, methods, allowed, denied } = &spec.filter;
        for (field, patterns, what, known) in [
            ("tags", tags, "no operation of the document has such a tag", &self.tags),
            ("methods", methods, "no operation of the document has such a method", &self.methods),
            ("operations_allowed", allowed, "the document has no such operation", &self.names),
            ("operations_denied", denied, "the document has no such operation", &self.names),
        ] {
            for pattern in patterns.iter().filter(|pattern| !known.iter().any(|name| glob_match(pattern, name))) {
                all.push(format!("{field}: `{pattern}`: {what}{}", remedy(pattern, known)));
            }
        }
        for key in spec.operations.keys().filter(|key| !self.keys.contains(*key)) {
            let near = nearest(key, self.keys.iter().map(String::as_str));
            let remedy =
                near.map_or("write its operationId, or `GET /path`".into(), |near| format!("did you mean `{near}`?"));
            all.push(format!("operations.{key}: the document has no such operation; {remedy}"));
        }
        let schemes = document.root().get("components").and_then(|components| components.get("securitySchemes"));
        let schemes = schemes.and_then(|schemes| schemes.value.as_object().map(|map| map.keys().cloned().collect()));
        let schemes: BTreeSet<String> = schemes.unwrap_or_default();
        for name in spec.auth.keys().filter(|name| !schemes.contains(*name)) {
            all.push(format!(
                "auth.{name}: the document has no security scheme of that name, so that this is sent with no call{}",
                remedy(name, &schemes)
            ));
        }
        all.extend(self.wrong_values.iter().cloned());
        let is_unknown = |name: &&String| spec.base_url.is_none() && !self.variables.contains(*name);
        for name in spec.server_variables.keys().filter(is_unknown) {
            let remedy = remedy(name, &self.variables);
            all.push(format!("server_variables.{name}: no server of the document has such a variable{remedy}"));
        }
        all
    }
}

/// The nearest of what there is, else some of it.
fn remedy(written: &str, known: &BTreeSet<String>) -> String {
    if let Some(near) = nearest(written, known.iter().map(String::as_str)) {
        return format!("; did you mean `{near}`?");
    }
    let said: Vec<&str> = known.iter().take(SAID).map(String::as_str).collect();
    match (said.is_empty(), known.len() > SAID) {
        (true, _) => "; it has none: remove this".to_owned(),
        (false, true) => format!("; it has {} and {} more", said.join(", "), known.len() - SAID),
        (false, false) => format!("; it has {}", said.join(", ")),
    }
}
