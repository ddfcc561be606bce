//! Files with a whole catalogue of tools, for selection only: their tools cannot be called.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use indexmap::IndexMap;
use serde_json::{Map, Value};
use toolwright_core::catalogue::foreign_ids;
use toolwright_core::tool_id::server_namespace;
use toolwright_core::{
    ErrorKind, Health, Listing, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool, Snapshot,
    ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_search::{Document, DocumentKey, Searchable};

use super::records::{AdjustedRecords, RecordFields, RecordLocation, SCHEMA, TOOLS, records, texts};

/// The largest catalogue, in bytes: a hundred thousand tools take about 80 million.
pub const MAX_CATALOGUE_BYTES: u64 = 256 << 20;

/// The namespace of tools without a known server.
const NO_SERVER: &str = "catalogue";

/// The tools of a file, grouped by server in the order in which servers first occur.
#[derive(Debug)]
pub struct CatalogueFile {
    /// In the file's order.
    pub tools: Vec<CatalogueTool>,
}

/// A tool of the file. Its schema is never compiled.
#[derive(Debug)]
pub struct CatalogueTool {
    /// A unique id of any form: the record's `id`, else `server:name`, else its name.
    pub id: String,
    /// The name in the file.
    pub name: String,
    /// For people.
    pub title: Option<String>,
    /// Its description; may be empty.
    pub description: String,
    /// Its schema.
    pub parameters: Option<Value>,
    /// Its tags.
    pub tags: Vec<String>,
    /// Example arguments.
    pub examples: Vec<Value>,
    /// Its server; empty without one.
    pub server: String,
    /// The server's own description; may be empty.
    pub server_description: String,
    /// Whether it may be picked without being requested.
    pub safe: bool,
    /// Roles that may pick it; empty for all.
    pub allowed_roles: Vec<String>,
    /// Its declared capabilities.
    pub capabilities: Map<String, Value>,
    position: usize,
}

impl CatalogueFile {
    /// Parses a JSON list of tools, an object with a list under `tools` or with tools as its members, or one tool per
    /// line. A tool is `{name, id?, title?, description?, parameters? | inputSchema? | input_schema?, tags?, examples?,
    /// server?, server_description?, safe?, allowed_roles? | roles?, capabilities?}`; all fields except the server's
    /// may be under `function`. `null` means absent, and other members are ignored. A tool with a duplicate id is left
    /// out, and counted in the second value.
    ///
    /// # Errors
    /// The error, with its place.
    pub fn parse(text: &str) -> Result<(Self, AdjustedRecords), String> {
        let mut again = AdjustedRecords::default();
        let mut places: HashMap<String, RecordLocation> = HashMap::new();
        let mut servers: IndexMap<String, Vec<CatalogueTool>> = IndexMap::new();
        for (place, record) in records(text, TOOLS)? {
            let tool = tool(record).map_err(|error| format!("{place}: {error}"))?;
            if let Some(other) = places.get(&tool.id) {
                again.add(|| format!("{place}: `{}` is {other}", tool.id));
                continue;
            }
            places.insert(tool.id.clone(), place);
            servers.entry(tool.server.clone()).or_default().push(tool);
        }
        let mut tools: Vec<_> = servers.into_values().flatten().collect();
        for (position, tool) in tools.iter_mut().enumerate() {
            tool.position = position;
        }
        Ok((Self { tools }, again))
    }

    /// Returns the position of each id.
    pub fn positions(&self) -> HashMap<&str, usize> {
        self.tools.iter().map(|tool| (tool.id.as_str(), tool.position)).collect()
    }

    /// Returns the same, and also the positions by name of tools whose name is unique and not another's id.
    pub fn positions_by_name(&self) -> HashMap<&str, usize> {
        let mut names: HashMap<&str, Option<usize>> = HashMap::new();
        for tool in &self.tools {
            names.entry(&tool.name).and_modify(|position| *position = None).or_insert(Some(tool.position));
        }
        let mut positions: HashMap<&str, usize> =
            names.into_iter().filter_map(|(name, position)| Some((name, position?))).collect();
        positions.extend(self.positions());
        positions
    }

    /// Returns one provider per server, in order. Their lists together give the tools in the file's order.
    pub fn providers(&self) -> Vec<Arc<FileProvider>> {
        let (mut namespaces, mut ids) = (HashSet::new(), HashSet::new());
        let servers = self.tools.chunk_by(|one, next| one.server == next.server);
        servers
            .map(|tools| {
                let server = tools.first().map_or("", |tool| tool.server.as_str());
                let asked = if server.is_empty() { NO_SERVER } else { server };
                let namespace = server_namespace(asked, &|name| namespaces.contains(name));
                let provider = FileProvider::new(server, &namespace, tools, &mut ids);
                namespaces.insert(namespace);
                Arc::new(provider)
            })
            .collect()
    }

    /// Returns the catalogue as a snapshot. Positions are those of [`CatalogueFile::tools`].
    pub fn snapshot(&self) -> Snapshot {
        let listings: Vec<Listing> = self
            .providers()
            .into_iter()
            .map(|provider| Listing { tools: provider.tools.clone(), provider, error: None, withheld: Vec::new() })
            .collect();
        Snapshot::build(&listings)
    }
}

fn tool(record: Value) -> Result<CatalogueTool, String> {
    let mut around = RecordFields::of(record)?;
    let mut function = match around.value(&["function"]) {
        Some(function) => {
            let mut function = RecordFields::of(function).map_err(|_| "its `function` is not an object")?;
            for (name, value) in std::mem::take(&mut around.0) {
                function.0.entry(name).or_insert(value);
            }
            function
        }
        None => around,
    };
    let record = &mut function;
    let name = record.text("name")?.ok_or("it has no `name`")?;
    let server = record.text("server")?.unwrap_or_default();
    let id = match record.text("id")? {
        Some(id) => id,
        None if server.is_empty() => name.clone(),
        None => format!("{server}:{name}"),
    };
    let capabilities = match record.value(&["capabilities"]) {
        None => Map::new(),
        Some(Value::Object(capabilities)) => capabilities,
        Some(names) => texts("capabilities", names)?.into_iter().map(|name| (name, Value::Bool(true))).collect(),
    };
    let mut allowed_roles = record.texts("allowed_roles")?;
    allowed_roles.extend(record.texts("roles")?);
    Ok(CatalogueTool {
        id,
        name,
        title: record.text("title")?,
        description: record.text("description")?.unwrap_or_default(),
        parameters: record.value(&SCHEMA),
        tags: record.texts("tags")?,
        examples: record.list("examples")?,
        server,
        server_description: record.text("server_description")?.unwrap_or_default(),
        safe: record.flag("safe")?.unwrap_or(true),
        allowed_roles,
        capabilities,
        position: 0,
    })
}

impl Searchable for CatalogueTool {
    fn key(&self) -> DocumentKey {
        // An index over a file has no predecessor.
        DocumentKey(self.position as u64, 0)
    }

    fn document(&self) -> Document<'_> {
        Document {
            name: &self.name,
            title: self.title.as_deref().unwrap_or_default(),
            description: &self.description,
            tags: self.tags.iter().map(String::as_str).collect(),
            parameters: self.parameters.as_ref(),
            examples: &self.examples,
            server: &self.server,
            server_description: Cow::Borrowed(&self.server_description),
        }
    }
}

/// A server of a file, whose tools cannot be called.
pub struct FileProvider {
    server: String,
    description: String,
    /// In the file's order.
    pub tools: Vec<Arc<RegisteredTool>>,
}

impl FileProvider {
    /// Creates it. `taken` contains the ids of other providers.
    fn new(server: &str, namespace: &str, tools: &[CatalogueTool], taken: &mut HashSet<ToolId>) -> Self {
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        // It fails only for an invalid namespace, which `server_namespace` never returns.
        let ids = foreign_ids(namespace, &names).unwrap_or_default();
        let register = |(tool, mut id): (&CatalogueTool, ToolId)| {
            // If a server has two tools of the same name, both are here.
            while !taken.insert(id.clone()) {
                id = id.with_hash_suffix(&tool.id);
            }
            let definition = ToolDefinition {
                title: tool.title.clone(),
                tags: tool.tags.clone(),
                examples: tool.examples.clone(),
                safe: tool.safe,
                allowed_roles: tool.allowed_roles.clone(),
                capabilities: tool.capabilities.clone(),
                ..ToolDefinition::new(id, tool.description.as_str(), tool.parameters.clone())
            };
            RegisteredTool::foreign(definition, tool.name.as_str())
        };
        let registered = tools.iter().zip(ids).map(register).collect();
        let description = tools.iter().map(|tool| tool.server_description.as_str()).find(|text| !text.is_empty());
        Self { server: server.into(), description: description.unwrap_or_default().into(), tools: registered }
    }
}

#[async_trait]
impl Provider for FileProvider {
    fn name(&self) -> &str {
        &self.server
    }

    fn kind(&self) -> ProviderKind {
        ProviderKind::Mcp
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        Ok(self.tools.clone())
    }

    async fn call(&self, call: ProviderCall<'_>, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let message = format!("{} is only known from a file: there is nothing behind it to call", call.tool);
        Err(ToolError::new(ErrorKind::ExecutionError, message))
    }

    fn health(&self) -> Health {
        Health::Ready
    }

    fn instructions(&self) -> Option<String> {
        (!self.description.is_empty()).then(|| self.description.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> CatalogueFile {
        CatalogueFile::parse(text).expect("a catalogue").0
    }

    #[test]
    fn tools_are_read_in_every_form() {
        let line =
            r#"{"name": "a.b", "description": null, "inputSchema": {"type": "dict"}, "server": "s", "roles": ["x"]}"#;
        let wrapped = r#"{"type": "function", "server": "s", "function": {"name": "a.b", "input_schema": {"type": "dict"},
            "allowed_roles": ["x"], "capabilities": ["streaming"], "safe": false}}"#;
        for text in [line.to_owned(), format!("[{line}]"), format!("{{\"tools\": [{line}]}}"), format!("[{wrapped}]")] {
            let tool = &read(&text).tools[0];
            assert_eq!(
                (tool.id.as_str(), tool.name.as_str(), tool.description.as_str()),
                ("s:a.b", "a.b", ""),
                "{text}"
            );
            assert_eq!(tool.parameters.as_ref().map(|schema| schema["type"] == "dict"), Some(true));
            assert_eq!(tool.allowed_roles, ["x"]);
            assert_eq!(tool.safe, tool.capabilities.is_empty(), "both or none of them is said");
        }
    }

    #[test]
    fn catalogue_file_errors_name_their_place() {
        for (text, expect) in [
            ("[{\"name\": \"a\"}, 3]", "tool 2: it is not an object"),
            ("[{\"name\": \"a\", \"tags\": [{}]}]", "tool 1: its `tags` holds what is not a text"),
            ("{\"name\": \"a\"}\n{\"name\"", "line 2:"),
            ("name: a", "it is not JSON"),
        ] {
            let error = CatalogueFile::parse(text).expect_err(text);
            assert!(error.contains(expect), "{text}: {error}");
        }
    }

    #[test]
    fn an_invalid_record_leaves_the_catalogue_usable() {
        let text = "{\"name\": \"a\", \"id\": 7, \"description\": 3.5, \"tags\": \"x\"}\n\n{\"name\": \"b\", \"id\": \"7\"}\n{\"name\": \"c\"}";
        let (file, again) = CatalogueFile::parse(text).expect("a catalogue");
        let ids: Vec<_> = file.tools.iter().map(|tool| (tool.id.as_str(), tool.name.as_str())).collect();
        assert_eq!(ids, [("7", "a"), ("c", "c")]);
        assert_eq!(
            (file.tools[0].description.as_str(), file.tools[0].tags.as_slice()),
            ("3.5", ["x".to_owned()].as_slice())
        );
        assert!(format!("{again:?}").contains("line 3: `7` is line 1"), "{again:?}");
    }

    #[test]
    fn snapshots_index_every_tool() {
        let file = read(
            r#"[{"name": "Read", "server": "fs", "server_description": "Files."}, {"name": "read", "server": "é"},
                {"name": "read", "server": "fs"}, {"name": "read", "server": "fs", "id": "ÿ\u2028"}, {"name": "read"}]"#,
        );
        let snapshot = file.snapshot();
        let names = |tool: &CatalogueTool| (tool.server.clone(), tool.name.clone());
        let entries: Vec<_> =
            snapshot.list().iter().map(|entry| (entry.provider.name().into(), entry.tool.raw_name().into())).collect();
        assert_eq!(file.tools.iter().map(names).collect::<Vec<_>>(), entries);
        assert_eq!(entries.len(), 5);
        assert!(snapshot.issues().is_empty(), "{:?}", snapshot.issues());
        assert_eq!(file.positions()["ÿ\u{2028}"], 2);
        let by_name = file.positions_by_name();
        assert_eq!(
            (by_name.get("Read"), by_name.get("fs:read"), by_name.get("ÿ\u{2028}")),
            (Some(&0), Some(&1), Some(&2))
        );
        assert_eq!(snapshot.list()[0].provider.instructions().as_deref(), Some("Files."));
        assert_eq!(file.tools[4].document().name, "read");
    }
}
