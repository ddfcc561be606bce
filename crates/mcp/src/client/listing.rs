//! Converts a server's tool list to tools of the catalogue, and stores the list between runs.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolwright_core::catalogue::{ProviderError, RegisteredTool, WithheldTool, foreign_ids};
use toolwright_core::definition::{Effects, Mode, ToolDefinition};
use toolwright_core::passthrough::LISTED_FIELDS;
use toolwright_core::pattern::allowed_by;

use super::connection::Connection;
use super::connection::handshake::{ProbeResult, ServerInfo};
use super::connection::peer::AskError;
use super::listed_as_tools;
use super::listed_as_tools::ListedTool;
use crate::config::{AsTools, McpServerOptions, McpTransport};
use crate::protocol::headers::MirroredParameter;
use crate::protocol::message::RpcError;
use crate::protocol::revision::MODERN_VERSIONS;
use crate::protocol::{headers, list_validation};

/// Bounds on one list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) pages: usize,
    pub(crate) entries: usize,
}

impl Bounds {
    /// Bounds of a tool list.
    const TOOLS: Self = Self { pages: 500, entries: 20_000 };
}

/// Fields of a tool that have a place of their own in a definition.
const KNOWN_FIELDS: [&str; 5] = ["name", "title", "description", "inputSchema", "outputSchema"];

/// A list as the server sent it.
#[derive(Debug, Default)]
pub(crate) struct RawList {
    /// Its entries.
    pub(crate) entries: Vec<Value>,
    /// How long it may be cached (2026-07-28), if stated.
    pub(crate) ttl: Option<Duration>,
    /// Why it is not whole, when a bound was reached.
    pub(crate) cut: Option<String>,
}

/// Reads all pages of `method`, with items under `key` in its results, within the bounds of tool lists.
pub(crate) async fn fetch(connection: &Connection, method: &str, key: &str) -> Result<RawList, AskError> {
    fetch_checked(connection, method, key, Bounds::TOOLS, &mut |_| {}).await
}

/// Like [`fetch`], within these bounds. `check` may correct each page.
pub(crate) async fn fetch_checked(
    connection: &Connection,
    method: &str,
    key: &str,
    bounds: Bounds,
    check: &mut (dyn FnMut(&mut Value) + Send),
) -> Result<RawList, AskError> {
    let mut list = RawList::default();
    let mut seen_cursors = HashSet::new();
    let mut cursor: Option<String> = None;
    for _ in 0..bounds.pages {
        let params = cursor.iter().map(|cursor| ("cursor".to_owned(), cursor.as_str().into())).collect();
        let mut page = match connection.ask_without_caller::<Value>(method, params).await {
            Ok(page) => page,
            // A server without tools, of prompts or resources.
            Err(AskError::Rpc(error)) if error.code == RpcError::METHOD_NOT_FOUND && cursor.is_none() => {
                return Ok(list);
            }
            Err(error) => return Err(error),
        };
        check(&mut page);
        match page.get_mut(key).map(Value::take) {
            Some(Value::Array(more)) => list.entries.extend(more),
            _ => return Err(AskError::Broken(format!("its answer to {method} has no list of {key}"))),
        }
        if let Some(ttl) = page.get("ttlMs").and_then(Value::as_u64).map(Duration::from_millis) {
            list.ttl = Some(list.ttl.map_or(ttl, |least| least.min(ttl)));
        }
        if list.entries.len() > bounds.entries {
            list.entries.truncate(bounds.entries);
            list.cut = Some(format!("it lists more than {} {key}; the rest is left out", bounds.entries));
            return Ok(list);
        }
        cursor = match page.get("nextCursor").and_then(Value::as_str) {
            Some(next) if connection.server().era.has_next_page(next) => Some(next.to_owned()),
            _ => return Ok(list),
        };
        if let Some(next) = &cursor
            && !seen_cursors.insert(next.clone())
        {
            list.cut = Some(format!("its pages of {key} go in a circle; each was read once"));
            return Ok(list);
        }
    }
    list.cut = Some(format!("its list of {key} has more than {} pages; the rest is left out", bounds.pages));
    Ok(list)
}

/// A raw list as the server sent it, which is stored between runs.
#[derive(Debug, Default)]
pub(crate) struct ListInput<'a> {
    /// Its tools.
    pub(crate) tools: &'a [Value],
    /// Our tools for its resources and prompts.
    pub(crate) resource_tools: Vec<ListedTool>,
    /// How header marks are handled.
    pub(crate) marks: HeaderMarks,
}

/// How `x-mcp-header` in input schemas is handled.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderMarks {
    /// Ignored: on a pipe, or up to 2025-11-25.
    #[default]
    Ignored,
    /// Marked parameters are repeated in headers, and a tool with invalid marks is not offered.
    Followed,
}

/// Tools for the catalogue, facts about them, and withheld names with reasons.
#[derive(Debug, Default)]
pub(crate) struct ListedTools {
    pub(crate) tools: Vec<Arc<RegisteredTool>>,
    pub(crate) facts: ToolFacts,
    pub(crate) withheld: Vec<WithheldTool>,
    /// Faults of the server's lists, in words. Clients get corrected lists; here everything stays as received.
    pub(crate) mistakes: Option<String>,
}

/// Converts a raw list to tools. An invalid tool does not affect the others.
///
/// # Errors
/// When the namespace is illegal.
pub(crate) fn build(options: &McpServerOptions, raw: ListInput<'_>) -> Result<ListedTools, ProviderError> {
    let mut listed = ListedTools::default();
    let mut sound = Vec::with_capacity(raw.tools.len() + raw.resource_tools.len());
    let mut names = HashSet::new();
    for (index, tool) in raw.tools.iter().enumerate() {
        match checked(tool) {
            Ok((name, _)) if !names.insert(name) => {
                listed.withheld.push(WithheldTool::new(name, "listed twice by the server; the first is kept"));
            }
            Ok((name, fields)) => match fact(fields, raw.marks) {
                Ok(fact) => sound.push((name, fields, fact)),
                Err(reason) => listed.withheld.push(WithheldTool::unreadable(name, format!("broken: {reason}"))),
            },
            Err(reason) => {
                let name =
                    tool.get("name").and_then(Value::as_str).map_or_else(|| format!("tool {index}"), str::to_owned);
                listed.withheld.push(WithheldTool::unreadable(name, format!("broken: {reason}")));
            }
        }
    }
    for ListedTool { name, fields, wrapped_method } in &raw.resource_tools {
        if names.insert(name) {
            sound.push((
                name,
                fields,
                Some(ToolFact { wrapped_method: Some(wrapped_method.clone()), ..ToolFact::default() }),
            ));
        } else {
            listed.withheld.push(WithheldTool::new(name, "the server has a tool of this name itself"));
        }
    }
    let wrong = sound.iter().map(|(name, fields, _)| (name, list_validation::mistakes(fields)));
    let wrong: Vec<_> = wrong.filter(|(_, fields)| !fields.is_empty()).collect();
    let wrong: Vec<String> = wrong.iter().map(|(name, fields)| list_validation::mistake(name, fields)).collect();
    listed.mistakes = list_validation::mistakes_warning(&options.name, "tools", &wrong);
    // All names, including filtered ones, so that a filter never renames a tool.
    let raw_names: Vec<&str> = sound.iter().map(|(name, ..)| *name).collect();
    let ids = foreign_ids(&options.namespace, &raw_names)
        .map_err(|error| ProviderError { message: error.to_string(), source: Some(Arc::new(error)) })?;
    for (id, (name, tool, fact)) in ids.into_iter().zip(sound) {
        if let Some(reason) = filtered(options, name) {
            listed.withheld.push(WithheldTool::new(name, reason));
        } else {
            let definition = definition(options, id, tool);
            listed.tools.push(match options.config.tools.get(name) {
                Some(overrides) => RegisteredTool::foreign_with_overrides(definition, name, overrides),
                None => RegisteredTool::foreign(definition, name),
            });
            listed.facts.0.extend(fact.map(|fact| (name.to_owned(), fact)));
        }
    }
    Ok(listed)
}

/// Returns facts about a tool; `None` for most.
///
/// # Errors
/// Why it cannot be offered where marked parameters are repeated in headers.
fn fact(tool: &Map<String, Value>, marks: HeaderMarks) -> Result<Option<ToolFact>, String> {
    let mirrored = match tool.get("inputSchema") {
        Some(schema) if marks == HeaderMarks::Followed => headers::mirrored(schema)?,
        _ => Vec::new(),
    };
    let task = tool.get("execution").and_then(|execution| execution.get("taskSupport")).and_then(Value::as_str);
    let wants_task = task == Some("required");
    Ok((wants_task || !mirrored.is_empty()).then_some(ToolFact { mirrored, wants_task, wrapped_method: None }))
}

/// The name and fields of a tool that can be offered.
fn checked(tool: &Value) -> Result<(&str, &Map<String, Value>), &'static str> {
    let fields = tool.as_object().ok_or("it is not an object")?;
    let name = fields.get("name").and_then(Value::as_str).ok_or("it has no name")?;
    if name.is_empty() {
        return Err("its name is empty");
    }
    match fields.get("inputSchema") {
        Some(Value::Object(schema)) if !list_validation::takes_objects(schema) => {
            Err("its inputSchema is not of an object, which arguments are")
        }
        None | Some(Value::Null | Value::Object(_)) => Ok((name, fields)),
        Some(_) => Err("its inputSchema is not an object"),
    }
}

fn filtered(options: &McpServerOptions, name: &str) -> Option<&'static str> {
    if !allowed_by(&options.config.tools_allowed, &[], name) {
        Some("filtered by tools_allowed")
    } else if !allowed_by(&[], &options.config.tools_denied, name) {
        Some("filtered by tools_denied")
    } else {
        None
    }
}

fn definition(options: &McpServerOptions, id: toolwright_core::ToolId, tool: &Map<String, Value>) -> ToolDefinition {
    let text = |fields: &Map<String, Value>, key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
    let annotations = tool.get("annotations").and_then(Value::as_object);
    let schema = |key: &str| tool.get(key).filter(|schema| schema.is_object()).cloned();
    let mut definition = ToolDefinition::new(id, text(tool, "description").unwrap_or_default(), schema("inputSchema"));
    definition.title = text(tool, "title").or_else(|| text(annotations?, "title"));
    definition.output_schema = schema("outputSchema");
    definition.effects = effects(annotations);
    definition.auto_background_after = options.config.auto_background_after;
    if !options.config.background.is_empty()
        && text(tool, "name").is_some_and(|name| allowed_by(&options.config.background, &[], &name))
    {
        definition.mode = Mode::Background;
    }
    definition.queue.clone_from(&options.config.queue);
    definition.no_schema_mode = options.config.no_schema_mode;
    let name = text(tool, "name").unwrap_or_default();
    // The operator's effects override the server's hints.
    let overridden_effects = options.config.tools.get(&name).and_then(|shown| shown.effects);
    let of_server = options.config.cache.0.filter(|_| overridden_effects.unwrap_or(definition.effects).read_only);
    definition.cache_ttl = options.config.tools_cache.get(&name).map_or(of_server, |ttl| ttl.0);
    let rest: Map<String, Value> = tool
        .iter()
        .filter(|(key, _)| !KNOWN_FIELDS.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if !rest.is_empty() {
        definition.meta.insert(LISTED_FIELDS.to_owned(), Value::Object(rest));
    }
    definition
}

/// A missing hint means the dangerous answer. `destructiveHint` and `idempotentHint` have no meaning for
/// a tool that only reads (MCP 2025-11-25, `ToolAnnotations`), so they count there only if they are given.
fn effects(annotations: Option<&Map<String, Value>>) -> Effects {
    let hint = |key: &str| annotations.and_then(|annotations| annotations.get(key)).and_then(Value::as_bool);
    let read_only = hint("readOnlyHint").unwrap_or(Effects::UNKNOWN.read_only);
    Effects {
        read_only,
        destructive: hint("destructiveHint").unwrap_or(!read_only),
        idempotent: hint("idempotentHint").unwrap_or(read_only),
        open_world: hint("openWorldHint").unwrap_or(Effects::UNKNOWN.open_world),
    }
}

/// The lists of a server.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Manifest {
    /// Its tools.
    pub(crate) tools: Vec<Value>,
    /// Its prompts, if they are offered as tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) prompts: Vec<Value>,
    /// Its instructions for models.
    pub(crate) instructions: Option<String>,
    /// Its announced capabilities.
    pub(crate) capabilities: Arc<Map<String, Value>>,
    /// The revision that it spoke.
    pub(crate) version: Option<String>,
    /// Whether it asked for folders before calls.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) asks_folders: bool,
    /// The protocol era found, under the key `KEPT` of `VersionProbe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<ProbeResult>,
}

impl Manifest {
    /// Builds it from a server's self-description and lists.
    pub(crate) fn new(server: &ServerInfo, found: Option<ProbeResult>, tools: Vec<Value>, prompts: Vec<Value>) -> Self {
        Self {
            tools,
            prompts,
            instructions: server.instructions.clone(),
            capabilities: Arc::clone(&server.capabilities),
            version: Some(server.version.to_owned()),
            asks_folders: false,
            generation: found,
        }
    }

    /// Builds the tools.
    ///
    /// # Errors
    /// When the namespace is illegal.
    pub(crate) fn build(&self, options: &McpServerOptions) -> Result<ListedTools, ProviderError> {
        let mut resource_tools = Vec::new();
        if options.config.resources == AsTools::Yes && self.capabilities.contains_key("resources") {
            resource_tools.extend(listed_as_tools::resources());
        }
        if options.config.prompts == AsTools::Yes {
            resource_tools.extend(listed_as_tools::prompts(&self.prompts));
        }
        let is_modern = self.version.as_deref().is_some_and(|version| MODERN_VERSIONS.contains(&version));
        let has_headers = matches!(options.config.transport, McpTransport::Http { .. });
        let marks = if is_modern && has_headers { HeaderMarks::Followed } else { HeaderMarks::Ignored };
        build(options, ListInput { tools: &self.tools, resource_tools, marks })
    }
}

/// Facts by tool. Most tools have none.
#[derive(Debug, Default)]
pub(crate) struct ToolFacts(pub(crate) HashMap<String, ToolFact>);

/// Facts about one tool.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolFact {
    /// Its parameters that are repeated in headers.
    pub(crate) mirrored: Vec<MirroredParameter>,
    /// It cannot be called but as a task (up to 2025-11-25).
    pub(crate) wants_task: bool,
    /// Set if it is not a tool of the server, but a prompt or resource method.
    pub(crate) wrapped_method: Option<WrappedMethod>,
}

/// The prompt or resource method behind one of our tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WrappedMethod {
    /// `resources/list` and `resources/templates/list`.
    Resources,
    /// `resources/read`.
    Resource,
    /// `prompts/get` of this prompt.
    Prompt(String),
}

impl ToolFacts {
    /// Returns the facts about the tool with this raw name.
    pub(crate) fn of(&self, raw_name: &str) -> Option<&ToolFact> {
        self.0.get(raw_name)
    }
}

impl ToolFact {
    /// The headers of a call with these arguments.
    pub(crate) fn headers(&self, arguments: &Map<String, Value>) -> Vec<(HeaderName, HeaderValue)> {
        let header = |mirrored: &MirroredParameter| {
            let name = HeaderName::try_from(mirrored.header.as_str()).ok()?;
            let value = HeaderValue::try_from(mirrored.value(arguments)?).ok()?;
            Some((name, value))
        };
        self.mirrored.iter().filter_map(header).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::McpTransport;
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::time::Duration;
    use toolwright_core::catalogue::ToolOverride;
    use toolwright_core::setting::CacheTtl;

    fn options() -> McpServerOptions {
        McpServerOptions::new("srv", McpTransport::Http { url: "http://x/mcp".into(), headers: BTreeMap::new() })
    }

    fn one(tool: Value) -> ToolDefinition {
        let listed = build(&options(), ListInput { tools: &[tool], ..ListInput::default() }).expect("listed");
        listed.tools[0].definition().clone()
    }

    #[test]
    fn a_tool_keeps_all_fields_of_its_server() {
        let tool = json!({
            "name": "Get.File", "title": "Get", "description": "d", "inputSchema": {"type": "object", "x-y": 1},
            "outputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true, "later": 1},
            "icons": [{"src": "a"}], "_meta": {"k": 0.1}, "execution": {"taskSupport": "optional"},
        });
        let definition = one(tool.clone());
        assert_eq!(definition.id.as_str(), "srv:get_file@0.0.0");
        assert_eq!(definition.parameters, Some(tool["inputSchema"].clone()));
        assert_eq!(definition.output_schema, Some(tool["outputSchema"].clone()));
        let mut again = definition.meta[LISTED_FIELDS].as_object().expect("rest").clone();
        again.extend(KNOWN_FIELDS.iter().map(|key| ((*key).to_owned(), tool[key].clone())));
        assert_eq!(Value::Object(again), tool);
    }

    #[test]
    fn missing_hints_mean_danger() {
        for (annotations, expect) in [
            (json!(null), Effects::UNKNOWN),
            (json!({}), Effects::UNKNOWN),
            (json!({"readOnlyHint": "yes"}), Effects::UNKNOWN),
            (json!({"readOnlyHint": true}), Effects::FETCH),
            (json!({"readOnlyHint": true, "openWorldHint": false}), Effects::READ),
            (
                json!({"destructiveHint": false, "idempotentHint": true}),
                Effects { destructive: false, idempotent: true, ..Effects::UNKNOWN },
            ),
            (json!({"readOnlyHint": true, "destructiveHint": true}), Effects { destructive: true, ..Effects::FETCH }),
        ] {
            let effects = one(json!({"name": "a", "annotations": annotations})).effects;
            assert_eq!(effects, expect, "{annotations}");
        }
    }

    #[test]
    fn one_bad_tool_does_not_lose_the_others() {
        let mut options = options();
        options.config.tools_allowed = vec!["*".into()];
        options.config.tools_denied = vec!["DROP*".into()];
        let raw = [
            json!({"name": "good"}),
            json!({"name": "bad", "inputSchema": "string"}),
            json!({"name": "of_text", "inputSchema": {"type": "string"}}),
            json!({"name": "nulls", "inputSchema": {}, "annotations": null}),
            json!({"title": "nameless"}),
            json!("text"),
            json!({"name": ""}),
            json!({"name": "good"}),
            json!({"name": "drop_all"}),
            json!({"name": "a.b"}),
            json!({"name": "a_b", "outputSchema": true}),
        ];
        let listed = build(&options, ListInput { tools: &raw, ..ListInput::default() }).expect("listed");
        let names: Vec<_> = listed.tools.iter().map(|tool| tool.raw_name()).collect();
        assert_eq!(names, ["good", "nulls", "a.b", "a_b"]);
        assert_ne!(listed.tools[2].definition().id, listed.tools[3].definition().id);
        let withheld: Vec<_> = listed.withheld.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(withheld, ["bad", "of_text", "tool 4", "tool 5", "", "good", "drop_all"]);
        assert_eq!(listed.withheld[6], WithheldTool::new("drop_all", "filtered by tools_denied"));
    }

    #[test]
    fn a_filter_renames_nothing() {
        let raw = [json!({"name": "a.b"}), json!({"name": "a_b"})];
        let all = build(&options(), ListInput { tools: &raw, ..ListInput::default() }).expect("listed");
        let mut options = options();
        options.config.tools_denied = vec!["a.b".into()];
        let some = build(&options, ListInput { tools: &raw, ..ListInput::default() }).expect("listed");
        assert_eq!(some.tools[0].definition().id, all.tools[1].definition().id);
    }

    #[test]
    fn operator_overrides_change_only_what_is_shown() {
        let raw = [json!({"name": "Get", "description": "From the server."}), json!({"name": "b"})];
        let plain = build(&options(), ListInput { tools: &raw, ..ListInput::default() }).expect("listed");
        let shown = ToolOverride {
            name: Some("fetch_page".into()),
            description: Some("Ours.".into()),
            tags: vec!["web".into()],
            ..serde_json::from_value(json!({"mode": "background", "queue": "slow", "timeout": "9s", "max_output": 500}))
                .expect("settings")
        };
        let mut options = options();
        options.config.no_schema_mode = Some(toolwright_core::definition::NoSchemaMode::ReadOnly);
        options.config.tools.insert("Get".into(), shown);
        let ours = build(&options, ListInput { tools: &raw, ..ListInput::default() }).expect("listed");
        let (was, is) = (&plain.tools[0], &ours.tools[0]);
        assert_eq!(was.definition().id, is.definition().id);
        assert_eq!(
            (is.raw_name(), is.shown_name(), is.definition().description.as_str()),
            ("Get", "fetch_page", "Ours.")
        );
        assert_eq!(is.definition().tags, ["web"]);
        let said = is.definition();
        assert_eq!((said.mode, said.queue.as_deref(), said.max_output), (Mode::Background, Some("slow"), Some(500)));
        assert_eq!(said.timeout, Some(Duration::from_secs(9)));
        assert_eq!(ours.tools[1].definition().no_schema_mode, options.config.no_schema_mode);
        assert_eq!((is.source_hash(), is.source_contract()), (was.hash(), was.definition().contract()));
        assert_ne!(is.hash(), was.hash(), "what is approved by a person is what is shown");
        assert_eq!(ours.tools[1].hash(), plain.tools[1].hash());
    }

    #[test]
    fn caching_applies_to_readers_and_named_tools() {
        let mut options = options();
        options.config.cache.0 = Some(Duration::from_secs(9));
        options.config.tools_cache =
            [("off".into(), CacheTtl(None)), ("own".into(), CacheTtl(Some(Duration::from_secs(1))))].into();
        let reads = |name: &str| json!({"name": name, "annotations": {"readOnlyHint": true}});
        let raw = [reads("r"), json!({"name": "w"}), reads("off"), json!({"name": "own"})];
        let listed = build(&options, ListInput { tools: &raw, ..ListInput::default() }).expect("listed");
        let ttls: Vec<_> = listed.tools.iter().map(|tool| tool.definition().cache_ttl).collect();
        assert_eq!(ttls, [Some(Duration::from_secs(9)), None, None, Some(Duration::from_secs(1))]);
    }

    #[test]
    fn declared_effects_decide_what_is_cached() {
        let mut options = options();
        options.config.cache.0 = Some(Duration::from_secs(9));
        let shown = |effects| ToolOverride { effects: Some(effects), ..ToolOverride::default() };
        options.config.tools = [("liar".into(), shown(Effects::UNKNOWN)), ("shy".into(), shown(Effects::READ))].into();
        let raw = [json!({"name": "liar", "annotations": {"readOnlyHint": true}}), json!({"name": "shy"})];
        let listed = build(&options, ListInput { tools: &raw, ..ListInput::default() }).expect("listed");
        let ttls: Vec<_> = listed.tools.iter().map(|tool| tool.definition().cache_ttl).collect();
        assert_eq!(ttls, [None, Some(Duration::from_secs(9))]);
    }
}
