//! `agent__final_report`: ends a run with a report in the requested format.

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::{Tool, ToolDefinition};

use super::define;
use crate::report::{FINAL_REPORT_ID, FinalReport, Format, ReportConfig};

/// Returns a whole schema as a part of another, whose root gets its `definitions`. If its references point elsewhere,
/// it becomes a description in words.
fn part(mut schema: Value, definitions: &mut Map<String, Value>) -> Value {
    const KEPT: [&str; 2] = ["$defs", "definitions"];
    let is_kept = |to: &str| KEPT.iter().any(|kept| to.strip_prefix("#/").is_some_and(|to| to.starts_with(kept)));
    if !references(&schema).into_iter().all(is_kept) {
        return json!({"description": format!("A value that fits this JSON Schema: {schema}")});
    }
    if let Some(members) = schema.as_object_mut() {
        definitions.extend(KEPT.iter().filter_map(|kept| members.remove_entry(*kept)));
        ["$schema", "$id"].iter().for_each(|name| drop(members.remove(*name)));
    }
    schema
}

/// Returns the targets of a schema's references.
fn references(schema: &Value) -> Vec<&str> {
    match schema {
        Value::Object(members) => {
            let own = members.get("$ref").and_then(Value::as_str);
            own.into_iter().chain(members.values().flat_map(references)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

/// The tool.
pub(super) struct FinalReportTool {
    pub(super) config: Option<ReportConfig>,
}

#[async_trait]
impl Tool for FinalReportTool {
    fn definition(&self) -> ToolDefinition {
        let status = json!({"type": "string", "enum": ["success", "failure", "partial"]});
        let metadata = json!({"type": "object"});
        let config = self.config.as_ref();
        let formats = match config {
            Some(config) => vec![config.format().as_str()],
            None => Format::ALL.map(Format::as_str).to_vec(),
        };
        let mut properties = json!({"status": status, "format": {"type": "string", "enum": formats}});
        let mut required = vec!["status", "format"];
        let mut definitions = Map::new();
        let content = json!({"type": "string"});
        match config {
            Some(config) if config.format() == Format::Json => {
                let schema = config.schema().cloned().unwrap_or_else(|| json!({"type": "object"}));
                properties["content_json"] = part(schema, &mut definitions);
                required.push("content_json");
            }
            Some(_) => {
                properties["content"] = content;
                required.push("content");
            }
            None => {
                properties["content"] = content;
                properties["content_json"] = json!({"description": "In place of content, for format json"});
            }
        }
        properties["metadata"] = metadata.clone();
        let mut listed_schema = json!({"type": "object", "properties": properties, "required": required});
        definitions.into_iter().for_each(|(name, schemas)| listed_schema[name] = schemas);
        let taken = json!({
            "type": "object",
            "properties": {
                "status": status, "format": {"type": "string"}, "content": {}, "content_json": {}, "metadata": metadata,
            },
        });
        let description = "Ends the run with your answer. Call it once, when the task is done or cannot be; other \
            calls of the same turn still finish.";
        let mut definition = define(FINAL_REPORT_ID, description, listed_schema, taken);
        definition.contribution =
            config.map(|_| "Give your final answer by calling agent__final_report, not as text.".to_owned());
        definition
    }

    async fn run(&self, arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(match FinalReport::accept(&arguments, self.config.as_ref()) {
            Ok(report) => {
                let mut text = String::from("The report was accepted.");
                report.warnings.iter().for_each(|warning| text.push_str(&format!("\nWarning: {warning}.")));
                ToolOutput { structured: serde_json::to_value(&report).ok(), ..ToolOutput::text(text) }
            }
            Err(why) => ToolOutput::failure(format!("(tool failed: {why})")),
        })
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }
}
