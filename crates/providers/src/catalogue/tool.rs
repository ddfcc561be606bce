//! Tools of a verified catalogue: each entry becomes a tool or is refused with a reason. Template tools answer with text.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::catalogue::RegisteredTool;
use toolwright_core::duration::format;
use toolwright_core::llm::{LlmDefinition, LlmHooks, LlmTool};
use toolwright_core::{Effects, ToolDefinition, ToolId};
use toolwright_net::{AddressPolicy, HttpClient, HttpOptions};
use url::Url;

use crate::catalogue::config::is_secure;
use crate::catalogue::document::Verified;
use crate::rest::{HttpTool, RestOptions, RestToolConfig, compile};

/// Fields of a REST tool that only its operator may set.
const OPERATORS: [&str; 4] = ["allow_private", "allowed_hosts", "queue", "allowed_roles"];

/// The limits on a publisher's settings: no more than an operator may configure, and reasonable for one response or
/// call.
const MAX_RETRIES: u32 = 10;
const OUTPUT: RangeInclusive<usize> = 256..=(1 << 20);
const RESPONSE: RangeInclusive<usize> = 256..=(16 << 20);
const MAX_TIME: Duration = Duration::from_secs(3600);
const MAX_CACHE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The operator's grants for the tools of a catalogue.
#[derive(Debug, Clone, Default)]
pub struct Grants {
    /// Values for `${NAME}`.
    pub secrets: BTreeMap<String, String>,
    /// Addresses allowed in addition to public ones.
    pub address: AddressPolicy,
    /// Whether plain `http` on the loopback interface is allowed.
    pub insecure_loopback: bool,
    /// Resolver and proxies.
    pub http: HttpOptions,
}

/// A refused tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedTool {
    /// Its id as written, or its position.
    pub id: String,
    /// The reason, as a clause with the tool as its subject: `refused: …`.
    pub why: String,
}

/// The implementation of a tool.
pub(super) enum Implementation {
    /// One HTTP request.
    Rest(Box<HttpTool>),
    /// A text.
    Template(TextTemplate),
    /// A model's answer.
    Llm(LlmTool),
}

/// A tool of a catalogue.
pub(super) struct VerifiedTool {
    pub(super) definition: ToolDefinition,
    pub(super) implementation: Implementation,
}

/// A tool as written in the document.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum RawTool {
    /// An HTTP endpoint, as in `rest_tools`.
    Rest { id: String, rest: Value },
    /// A text with placeholders `${parameters.x}`.
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

/// Builds the tools of a verified catalogue, in their order.
pub(super) fn make(verified: &Verified, grants: &Grants) -> (Vec<VerifiedTool>, Vec<RefusedTool>) {
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

/// Returns the ids of the tools that a verified catalogue has under these grants, and the refused ones.
pub fn check_tools(verified: &Verified, grants: &Grants) -> (Vec<ToolId>, Vec<RefusedTool>) {
    let (made, refused) = make(verified, grants);
    (made.into_iter().map(|tool| tool.definition.id).collect(), refused)
}

fn one(
    verified: &Verified,
    entry: &Value,
    grants: &Grants,
    clients: &mut Vec<Arc<HttpClient>>,
) -> Result<VerifiedTool, String> {
    let written: RawTool = serde_json::from_value(entry.clone()).map_err(|error| error.to_string())?;
    let mut made = match written {
        RawTool::Rest { id, rest } => self::rest(own_id(verified, &id)?, &rest, grants, clients)?,
        RawTool::Template { id, title, description, parameters, template, tags } => {
            let compiled = TextTemplate::compile(&template, &parameters)?;
            let definition = ToolDefinition {
                title,
                tags,
                effects: Effects::READ,
                declaration: Some(json!({"template": template})),
                ..ToolDefinition::new(own_id(verified, &id)?, description, Some(parameters))
            };
            VerifiedTool { definition, implementation: Implementation::Template(compiled) }
        }
        RawTool::Llm(definition) => llm(verified, *definition)?,
    };
    declare_settings(&mut made.definition, entry);
    // As strict as for local tools, because its author meant it to be valid.
    RegisteredTool::own(made.definition.clone()).map_err(|error| error.to_string())?;
    made.definition.signed_by = Some(verified.key.to_string());
    made.definition.signature = Some(verified.signature.clone());
    Ok(made)
}

/// Adds the publisher's other settings (tags, times, limits) to the contract, so that a change is noticed. For local
/// tools the operator controls these.
fn declare_settings(definition: &mut ToolDefinition, entry: &Value) {
    let plain = ToolDefinition::new(definition.id.clone(), String::new(), None);
    let (Ok(Value::Object(set)), Ok(plain)) = (serde_json::to_value(&*definition), serde_json::to_value(plain)) else {
        return;
    };
    let contract = definition.contract();
    let is_set = |(key, value): &(String, Value)| {
        contract.get(key).is_none() && plain.get(key).is_none_or(|usual| usual != value)
    };
    let mut settings: Map<String, Value> = set.into_iter().filter(is_set).collect();
    let of_rest = |key: &str| entry.get("rest").and_then(|rest| rest.get(key)).filter(|value| !value.is_null());
    for key in ["response", "select", "max_bytes", "maxBytes"] {
        settings.extend(of_rest(key).map(|value| (key.to_owned(), value.clone())));
    }
    if let (Some(Value::Object(declaration)), false) = (&mut definition.declaration, settings.is_empty()) {
        declaration.insert("settings".to_owned(), settings.into());
    }
}

/// Parses an id in the catalogue's namespace.
fn own_id(verified: &Verified, written: &str) -> Result<ToolId, String> {
    let id = ToolId::parse(written).map_err(|error| error.to_string())?;
    let namespace = &verified.document.namespace;
    if id.namespace() != namespace {
        return Err(format!("`{id}` is not in the catalogue's namespace `{namespace}`"));
    }
    Ok(id)
}

/// Builds an LLM-backed tool. The operator, who pays for models, selects them.
fn llm(verified: &Verified, definition: LlmDefinition) -> Result<VerifiedTool, String> {
    own_id(verified, definition.id.as_str())?;
    let preference = &definition.model_preference;
    if preference.preferred_model.is_some() || !preference.fallback_models.is_empty() {
        return Err("it names models, which are not its publisher's to choose".to_owned());
    }
    let tool = LlmTool::new(definition, LlmHooks::default()).map_err(|error| error.to_string())?;
    Ok(VerifiedTool { definition: tool.source().tool(), implementation: Implementation::Llm(tool) })
}

fn rest(
    id: ToolId,
    written: &Value,
    grants: &Grants,
    clients: &mut Vec<Arc<HttpClient>>,
) -> Result<VerifiedTool, String> {
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
    let config: RestToolConfig = serde_json::from_value(Value::Object(filled)).map_err(|error| error.to_string())?;
    within_bounds(&config)?;
    // Compiling checks that placeholders are in path and query only, so this is the host of every call.
    let url = Url::parse(&config.url).map_err(|error| format!("its url is not valid: {error}"))?;
    if !is_secure(&url, grants.insecure_loopback) {
        return Err("its url is not https".to_owned());
    }
    let config = RestToolConfig { written: Some(written.clone()), ..config };
    let options = RestOptions { address: grants.address.clone(), http: grants.http.clone(), ..RestOptions::default() };
    let (definition, tool) = compile(id.name(), config, &options, clients).map_err(|error| error.to_string())?;
    let tool = HttpTool { settings: format!("catalogues.{}", id.namespace()).into(), ..tool };
    Ok(VerifiedTool {
        definition: ToolDefinition { id, ..definition },
        implementation: Implementation::Rest(Box::new(tool)),
    })
}

/// Checks that a tool's settings are within the publisher's limits.
fn within_bounds(config: &RestToolConfig) -> Result<(), String> {
    let size = |field: &str, value: Option<usize>, bounds: RangeInclusive<usize>| match value {
        Some(value) if !bounds.contains(&value) => {
            Err(format!("its `{field}` is {value}, and from {} to {} is open to it", bounds.start(), bounds.end()))
        }
        _ => Ok(()),
    };
    let time = |field: &str, value: Option<Duration>, most: Duration| match value {
        Some(value) if value.is_zero() || value > most => {
            Err(format!("its `{field}` is {}, and up to {} is open to it", format(value), format(most)))
        }
        _ => Ok(()),
    };
    if config.limits.retries.is_some_and(|retries| retries > MAX_RETRIES) {
        return Err(format!("its `retries` is more than {MAX_RETRIES}"));
    }
    size("max_output", config.limits.max_output, OUTPUT)?;
    size("max_bytes", config.max_bytes, RESPONSE)?;
    time("timeout", config.limits.timeout, MAX_TIME)?;
    time("idle_timeout", config.limits.idle_timeout, MAX_TIME)?;
    time("cache", config.cache.0, MAX_CACHE)
}

/// Returns whether the field exists, in either spelling.
fn is_field(fields: &Map<String, Value>, name: &str) -> bool {
    let plain = |text: &str| text.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect::<String>();
    fields.keys().any(|field| plain(field) == plain(name))
}

/// Replaces `${NAME}` by the granted values; `${parameters.…}` is left for the call.
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

/// Returns the tool as the catalogue's provider lists it.
pub(super) fn registered(
    made: &VerifiedTool,
    shown: Option<&toolwright_core::catalogue::ToolOverride>,
) -> Arc<RegisteredTool> {
    let name = made.definition.id.name().to_owned();
    match shown {
        Some(shown) => RegisteredTool::foreign_with_overrides(made.definition.clone(), name, shown),
        None => RegisteredTool::foreign(made.definition.clone(), name),
    }
}

/// The largest rendered text, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// A compiled text with placeholders `${parameters.x}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TextTemplate {
    segments: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Text(String),
    Parameter(Vec<String>),
}

impl TextTemplate {
    /// Compiles `text`, whose placeholders must be properties of `schema`.
    ///
    /// # Errors
    /// A message.
    pub(super) fn compile(text: &str, schema: &Value) -> Result<Self, String> {
        let mut segments = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            let (before, after) = (&rest[..start], &rest[start + 2..]);
            let end = after.find('}').ok_or("its template has `${` without `}`")?;
            let inside = &after[..end];
            let path = inside
                .strip_prefix("parameters.")
                .ok_or_else(|| format!("its template has `${{{inside}}}`: only ${{parameters.name}} is filled in"))?;
            let keys: Vec<String> = path.split('.').map(str::to_owned).collect();
            if schema.get("properties").and_then(|properties| properties.get(&keys[0])).is_none() {
                return Err(format!("its template uses `{path}`, which is not among its parameters"));
            }
            segments.push(Segment::Text(before.to_owned()));
            segments.push(Segment::Parameter(keys));
            rest = &after[end + 1..];
        }
        segments.push(Segment::Text(rest.to_owned()));
        Ok(Self { segments })
    }

    /// Renders the text for these arguments: strings unchanged, other values as JSON, missing ones as nothing.
    ///
    /// # Errors
    /// The result is larger than a mebibyte.
    pub(super) fn render(&self, arguments: &Value) -> Result<String, String> {
        let mut out = String::new();
        for segment in &self.segments {
            match segment {
                Segment::Text(text) => out.push_str(text),
                Segment::Parameter(keys) => match keys.iter().try_fold(arguments, |value, key| value.get(key)) {
                    None | Some(Value::Null) => {}
                    Some(Value::String(text)) => out.push_str(text),
                    Some(other) => out.push_str(&other.to_string()),
                },
            }
            if out.len() > MAX_BYTES {
                return Err(format!("the text is longer than {MAX_BYTES} bytes"));
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_template_is_filled_in_once() {
        let schema = json!({"properties": {"a": {}, "b": {}}});
        for (text, arguments, expect) in [
            ("Hello ${parameters.a}!", json!({"a": "you"}), Ok("Hello you!")),
            ("${parameters.a}${parameters.b.c}", json!({"a": [1], "b": {"c": true}}), Ok("[1]true")),
            ("x${parameters.a}y", json!({}), Ok("xy")),
            ("${parameters.a}", json!({"a": "${parameters.b}", "b": "never"}), Ok("${parameters.b}")),
            ("plain $", json!({}), Ok("plain $")),
            ("${parameters.z}", json!({}), Err("not among its parameters")),
            ("${HOME}", json!({}), Err("only ${parameters.name}")),
            ("${parameters.a", json!({}), Err("without `}`")),
        ] {
            let made = TextTemplate::compile(text, &schema).and_then(|template| template.render(&arguments));
            match (made, expect) {
                (Ok(made), Ok(expect)) => assert_eq!(made, expect, "{text}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
