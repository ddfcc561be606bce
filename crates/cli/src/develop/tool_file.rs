//! Reads files that contain tools, for `encode` and `decode`.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value, json};
use toolwright::core::model::ShownTool;
use toolwright::core::tool_id::{MAX_WIRE_NAME, wire_names};

use crate::develop::records::{Members, TOOLS, records};
use crate::exit::Failure;
use crate::input;

/// What holds the schema, in the words of MCP, Anthropic and the OpenAI APIs.
pub(crate) const SCHEMA: [&str; 3] = ["parameters", "inputSchema", "input_schema"];

/// The tools of a file, in its order.
#[derive(Debug, Default)]
pub(crate) struct ToolFile {
    /// As a request shows them, by their wire names.
    pub(crate) shown: Vec<ShownTool>,
    /// The names in the file.
    given: Vec<String>,
    /// What stands for each tool: its `id` in the file, else its name.
    ids: Vec<String>,
}

impl ToolFile {
    /// Reads JSON, a list of tools, an object with one under `tools` or with tools as its members, or one tool
    /// a line. A tool is
    /// `{name, description?, parameters? | inputSchema? | input_schema?, id?, strict?, body_argument?}`, by
    /// itself or under `function`.
    pub(crate) fn read(file: &Path) -> Result<Self, Failure> {
        let name = file.display();
        let text = input::read(file)?;
        let records = records(&text, TOOLS).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
        let mut tools = Self { shown: Vec::with_capacity(records.len()), given: Vec::new(), ids: Vec::new() };
        for (place, record) in records {
            tools.add(record).map_err(|error| Failure::usage(format!("{name}: {place}: {error}")))?;
        }
        let wire = wire_names(tools.given.iter().map(String::as_str), MAX_WIRE_NAME);
        for (tool, wire) in tools.shown.iter_mut().zip(wire) {
            tool.name = wire;
        }
        Ok(tools)
    }

    fn add(&mut self, record: Value) -> Result<(), String> {
        let mut record = Members::of(record)?;
        if let Some(Value::Object(function)) = record.value(&["function"]) {
            record = Members(function);
        }
        let name = record.text("name")?.ok_or("it has no `name`")?;
        let (description, id) = (record.text("description")?.unwrap_or_default(), record.text("id")?);
        let body_argument = record.text("body_argument")?;
        let parameters = record.value(&SCHEMA);
        let strict = match record.0.get("strict").and_then(Value::as_bool) {
            // Nobody said what its arguments are.
            _ if parameters.is_none() => Some(false),
            said => said,
        };
        self.shown.push(ShownTool {
            name: String::new(),
            description,
            parameters: parameters.unwrap_or_else(|| json!({"type": "object"})),
            strict,
            body_argument,
            ..ShownTool::default()
        });
        self.ids.push(id.unwrap_or_else(|| name.clone()));
        self.given.push(name);
        Ok(())
    }

    /// The tools by their wire names and, where the file has others, by those too: a model that was shown them
    /// in a prompt may write either.
    pub(crate) fn by_every_name(&self) -> Vec<ShownTool> {
        let other = self.shown.iter().zip(&self.given).filter(|(tool, given)| tool.name != **given);
        let other = other.map(|(tool, given)| ShownTool { name: given.clone(), ..tool.clone() });
        self.shown.iter().cloned().chain(other).collect()
    }

    /// `{wire name: id}`.
    pub(crate) fn names(&self) -> Map<String, Value> {
        self.shown.iter().zip(&self.ids).map(|(tool, id)| (tool.name.clone(), id.as_str().into())).collect()
    }

    /// The names in the file, by wire name.
    pub(crate) fn given(&self) -> HashMap<String, String> {
        self.shown.iter().zip(&self.given).map(|(tool, given)| (tool.name.clone(), given.clone())).collect()
    }
}
