//! From an entry of a verified catalogue to a tool, or to the reason why it is refused.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::catalogue::RegisteredTool;
use toolwright_core::llm::{LlmDefinition, LlmHooks, LlmTool};
use toolwright_core::{Effects, ToolDefinition, ToolId};
use url::Url;

use super::document::Verified;
use super::spec::is_secure;
use super::template::TextTemplate;
use crate::net::{AddressPolicy, HttpClient, HttpOptions};
use crate::rest::{HttpTool, RestOptions, RestToolSpec, compile};

/// Fields of a REST tool that are its operator's to set.
const OPERATORS: [&str; 4] = ["allow_private", "allowed_hosts", "queue", "allowed_roles"];

/// What the tools of a catalogue are granted.
#[derive(Debug, Clone, Default)]
pub struct Grants {
    /// Values for `${NAME}`.
    pub secrets: BTreeMap<String, String>,
    /// Addresses besides public ones.
    pub address: AddressPolicy,
    /// Whether plain `http` on the loopback interface will do.
    pub insecure_loopback: bool,
    /// Resolver and proxies.
    pub http: HttpOptions,
}

/// One tool that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedTool {
    /// Its id as it was written, or its place.
    pub id: String,
    /// Why, as a clause of which it is the subject: `refused: …`.
    pub why: String,
}

/// What runs a tool.
pub(super) enum Implementation {
    /// One HTTP request.
    Rest(Box<HttpTool>),
    /// A text.
    Template(TextTemplate),
    /// A model's answer.
    Llm(LlmTool),
}

/// A tool of a catalogue.
pub(super) struct Made {
    pub(super) definition: ToolDefinition,
    pub(super) implementation: Implementation,
}

/// An entry as it is written.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Written {
    /// An HTTP endpoint, as in `rest_tools`.
    Rest { id: String, rest: Value },
    /// A text with `${parameters.x}`.
    Template {
        id: String,
        #[serde(default)]
        title: Option<String>,
        description: String,
        parameters: Value,
        template: String,
        #[serde(default)]
        tags: Vec<String>,
    },
    /// A tool that a model answers, as in `llm_tools`.
    Llm(Box<LlmDefinition>),
}

/// Makes the tools of a verified catalogue, in their order.
pub(super) fn make(verified: &Verified, grants: &Grants) -> (Vec<Made>, Vec<RefusedTool>) {
    let (mut made, mut refused) = (Vec::new(), Vec::new());
    let (mut names, mut clients) = (HashSet::new(), Vec::new());
    for (index, entry) in verified.document.tools.iter().enumerate() {
        let id = entry.get("id").and_then(Value::as_str).map_or_else(|| format!("tool {}", index + 1), str::to_owned);
        match one(verified, entry, grants, &mut clients) {
            Ok(tool) if !names.insert(tool.definition.id.name().to_owned()) => {
                refused.push(RefusedTool { id, why: "refused: the catalogue has its name twice".to_owned() });
            }
            Ok(tool) => made.push(tool),
            Err(why) => refused.push(RefusedTool { id, why: format!("refused: {why}") }),
        }
    }
    (made, refused)
}

/// What a verified catalogue would bring under these grants: ids, and what is refused.
pub fn check_tools(verified: &Verified, grants: &Grants) -> (Vec<ToolId>, Vec<RefusedTool>) {
    let (made, refused) = make(verified, grants);
    (made.into_iter().map(|tool| tool.definition.id).collect(), refused)
}

fn one(
    verified: &Verified,
    entry: &Value,
    grants: &Grants,
    clients: &mut Vec<Arc<HttpClient>>,
) -> Result<Made, String> {
    let written: Written = serde_json::from_value(entry.clone()).map_err(|error| error.to_string())?;
    let mut made = match written {
        Written::Rest { id, rest } => self::rest(own_id(verified, &id)?, &rest, grants, clients)?,
        Written::Template { id, title, description, parameters, template, tags } => {
            let compiled = TextTemplate::compile(&template, &parameters)?;
            let definition = ToolDefinition {
                title,
                tags,
                effects: Effects::READ,
                declaration: Some(json!({"template": template})),
                ..ToolDefinition::new(own_id(verified, &id)?, description, Some(parameters))
            };
            Made { definition, implementation: Implementation::Template(compiled) }
        }
        Written::Llm(definition) => llm(verified, *definition)?,
    };
    // As strict as with tools of our own: its author meant it to be valid.
    RegisteredTool::own(made.definition.clone()).map_err(|error| error.to_string())?;
    made.definition.signed_by = Some(verified.key.to_string());
    made.definition.signature = Some(verified.signature.clone());
    Ok(made)
}

/// An id of the catalogue's own namespace.
fn own_id(verified: &Verified, written: &str) -> Result<ToolId, String> {
    let id = ToolId::parse(written).map_err(|error| error.to_string())?;
    let namespace = &verified.document.namespace;
    if id.namespace() != namespace {
        return Err(format!("`{id}` is not in the catalogue's namespace `{namespace}`"));
    }
    Ok(id)
}

/// Which models are asked is for those to say who pay for them.
fn llm(verified: &Verified, definition: LlmDefinition) -> Result<Made, String> {
    own_id(verified, definition.id.as_str())?;
    let preference = &definition.model_preference;
    if preference.preferred_model.is_some() || !preference.fallback_models.is_empty() {
        return Err("it names models, which are not its publisher's to choose".to_owned());
    }
    let tool = LlmTool::new(definition, LlmHooks::default()).map_err(|error| error.to_string())?;
    Ok(Made { definition: tool.source().tool(), implementation: Implementation::Llm(tool) })
}

fn rest(id: ToolId, written: &Value, grants: &Grants, clients: &mut Vec<Arc<HttpClient>>) -> Result<Made, String> {
    let Some(fields) = written.as_object() else { return Err("`rest` is not an object".to_owned()) };
    if let Some(field) = OPERATORS.iter().find(|field| is_field(fields, field)) {
        return Err(format!("it sets `{field}`, which is not its publisher's to set"));
    }
    let mut filled = fields.clone();
    for (field, value) in &mut filled {
        match field.as_str() {
            "headers" | "query" | "body" => fill(value, &grants.secrets)?,
            "url" => fill(value, &BTreeMap::new())?,
            _ => {}
        }
    }
    let no_parameters = || json!({"type": "object", "properties": {}, "additionalProperties": false});
    if !is_field(&filled, "parameters") && !is_field(&filled, "parameters_schema") {
        filled.insert("parameters".to_owned(), no_parameters());
    }
    let spec: RestToolSpec = serde_json::from_value(Value::Object(filled)).map_err(|error| error.to_string())?;
    // Placeholders stand in path and query only, which compiling it checks, so this is the host of every call.
    let url = Url::parse(&spec.url).map_err(|error| format!("its url is none: {error}"))?;
    if !is_secure(&url, grants.insecure_loopback) {
        return Err("its url is not https".to_owned());
    }
    let spec = RestToolSpec { written: Some(written.clone()), ..spec };
    let options = RestOptions { address: grants.address.clone(), http: grants.http.clone(), ..RestOptions::default() };
    let (definition, tool) = compile(id.name(), spec, &options, clients).map_err(|error| error.to_string())?;
    let tool = HttpTool { settings: format!("catalogues.{}", id.namespace()).into(), ..tool };
    Ok(Made { definition: ToolDefinition { id, ..definition }, implementation: Implementation::Rest(Box::new(tool)) })
}

/// Whether there is such a field, in either spelling.
fn is_field(fields: &Map<String, Value>, name: &str) -> bool {
    let plain = |text: &str| text.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect::<String>();
    fields.keys().any(|field| plain(field) == plain(name))
}

/// Fills `${NAME}` in with what is granted; `${parameters.…}` is left to the call.
fn fill(value: &mut Value, secrets: &BTreeMap<String, String>) -> Result<(), String> {
    match value {
        Value::String(text) => {
            *text = filled(text, secrets)?;
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(|item| fill(item, secrets)),
        Value::Object(fields) => fields.values_mut().try_for_each(|item| fill(item, secrets)),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn filled(text: &str, secrets: &BTreeMap<String, String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (before, after) = (&rest[..start], &rest[start + 2..]);
        out.push_str(before);
        let end = after.find('}').ok_or("it has `${` without `}`")?;
        let name = &after[..end];
        if name.starts_with("parameters.") {
            out.push_str(&rest[start..start + 2 + end + 1]);
        } else {
            match secrets.get(name) {
                Some(secret) if !secret.contains("${") => out.push_str(secret),
                Some(_) => {
                    return Err(format!("the value of `{name}` has `${{`, which would be read as a placeholder"));
                }
                None => {
                    return Err(format!(
                        "it uses `${{{name}}}`, which is not granted to it here: list it under the catalogue's `secrets` to grant it"
                    ));
                }
            }
        }
        rest = &after[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

/// The tool as the catalogue's provider lists it.
pub(super) fn registered(made: &Made, shown: Option<&toolwright_core::catalogue::ToolOverride>) -> Arc<RegisteredTool> {
    let name = made.definition.id.name().to_owned();
    match shown {
        Some(shown) => RegisteredTool::foreign_as(made.definition.clone(), name, shown),
        None => RegisteredTool::foreign(made.definition.clone(), name),
    }
}
