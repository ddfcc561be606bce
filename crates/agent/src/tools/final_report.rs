//! `agent__final_report`: ends a run with a report in the requested format.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use toolwright_core::arguments::{Provenance, fit};
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::json::repair;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::schema::{CompiledSchema, SchemaError, Violation};
use toolwright_core::session::Session;
use toolwright_core::{Tool, ToolDefinition};

use super::{FINAL_REPORT_ID, define};
use crate::report::Status;

/// Violations of an output schema that a model is told.
const MAX_VIOLATIONS: usize = 10;

/// What a report is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Plain text.
    #[default]
    Text,
    /// Markdown.
    Markdown,
    /// A JSON value.
    Json,
    /// Text for a terminal, with ANSI colours at most.
    Tty,
    /// Slack's own markup.
    Slack,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Text, Self::Markdown, Self::Json, Self::Tty, Self::Slack];

    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Markdown => "markdown",
            Self::Json => "json",
            Self::Tty => "tty",
            Self::Slack => "slack",
        }
    }

    fn of(written: &str) -> Option<Self> {
        let written = written.trim();
        Self::ALL.into_iter().find(|format| format.as_str().eq_ignore_ascii_case(written))
    }
}

/// What a run is to end with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportSpec {
    format: Format,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
}

impl ReportSpec {
    /// A report in `format`.
    #[must_use]
    pub fn in_format(format: Format) -> Self {
        Self { format, schema: None }
    }

    /// A report in JSON that `schema` describes.
    ///
    /// # Errors
    /// [`SchemaError`] for one that does not compile.
    pub fn by_schema(schema: Value) -> Result<Self, SchemaError> {
        CompiledSchema::compile(&schema)?;
        Ok(Self { format: Format::Json, schema: Some(schema) })
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// The JSON Schema of its content.
    #[must_use]
    pub fn schema(&self) -> Option<&Value> {
        self.schema.as_ref()
    }
}

/// A final report as it was accepted: JSON has `content_json`, every other format `content`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinalReport {
    /// `success`, `failure` or `partial`.
    pub status: Status,
    /// What it is written in.
    pub format: Format,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_json: Option<Value>,
    /// Whatever else the model said of it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// What was not as it was asked for, and was made so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl FinalReport {
    /// Its content as a text.
    #[must_use]
    pub fn text(&self) -> String {
        match (&self.content, &self.content_json) {
            (Some(content), _) => content.clone(),
            (None, Some(value)) => format!("{value:#}"),
            (None, None) => String::new(),
        }
    }

    /// The report that the arguments of a call make. Without `spec`, any format is as good.
    ///
    /// # Errors
    /// Why there is no report in them, and what to write instead.
    pub(crate) fn accept(arguments: &Value, spec: Option<&ReportSpec>) -> Result<Self, String> {
        let status = match arguments.get("status").and_then(Value::as_str) {
            Some("failure") => Status::Failure,
            Some("partial") => Status::Partial,
            _ => Status::Success,
        };
        let mut warnings = Vec::new();
        let written = arguments.get("format").and_then(Value::as_str);
        let given = written.and_then(Format::of);
        let format = spec.map(|spec| spec.format).or(given).unwrap_or_default();
        if let Some(written) = written.filter(|_| given != Some(format)) {
            warnings.push(format!("the format {written:?} was taken for {}", format.as_str()));
        }
        let member = |name: &str| arguments.get(name).filter(|value| !value.is_null());
        let (content, json) = (member("content"), member("content_json"));
        let (content, content_json) = match format {
            Format::Json => {
                let value = match (json, content) {
                    (Some(value), _) => value,
                    (None, Some(value)) => {
                        warnings.push("`content` was taken for `content_json`".into());
                        value
                    }
                    (None, None) => return Err("the report needs `content_json`: the value itself, not a text".into()),
                };
                let schema = spec.and_then(ReportSpec::schema);
                (None, Some(fitted(value, schema, &mut warnings)?))
            }
            _ => (Some(text(content, json, &mut warnings)?), None),
        };
        let metadata = member("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
        Ok(Self { status, format, content, content_json, metadata, warnings })
    }

    /// The report that an answer in plain text makes.
    ///
    /// # Errors
    /// Why it makes none, and what to write instead.
    pub(crate) fn adopt(answer: &str, spec: &ReportSpec) -> Result<Self, String> {
        let member = if spec.format == Format::Json { "content_json" } else { "content" };
        let mut report = Self::accept(&json!({ member: answer }), Some(spec))?;
        // There was no call whose members could have been the wrong ones.
        report.warnings = vec!["the model answered in text; it was taken for its report".into()];
        Ok(report)
    }
}

/// The text of a report.
fn text(content: Option<&Value>, json: Option<&Value>, warnings: &mut Vec<String>) -> Result<String, String> {
    let written = |value: &Value| value.as_str().map_or_else(|| format!("{value:#}"), str::to_owned);
    let text = match (content, json) {
        (Some(Value::String(text)), _) => text.clone(),
        (Some(value), _) => {
            warnings.push("`content` was no text; its JSON was taken".into());
            written(value)
        }
        (None, Some(value)) => {
            warnings.push("`content_json` was taken for `content`".into());
            written(value)
        }
        (None, None) => String::new(),
    };
    if text.trim().is_empty() {
        return Err("the report needs `content`: its text".into());
    }
    Ok(text)
}

/// The value of a report, in the form that the schema wants.
fn fitted(written: &Value, schema: Option<&Value>, warnings: &mut Vec<String>) -> Result<Value, String> {
    let schema = schema.map(CompiledSchema::compile).transpose();
    let schema = schema.map_err(|error| format!("the output schema of this run cannot be used: {error}"))?;
    let value = match written {
        // A text that is itself what was asked for stays one.
        Value::String(text) if !schema.as_ref().is_some_and(|schema| schema.is_valid(written)) => {
            let read = repair(text).map_err(|error| format!("the report is not JSON: {error}"))?;
            if read.cut.is_some() || !(read.value.is_object() || read.value.is_array() || schema.is_some()) {
                return Err("the report is not whole JSON: write one JSON value".into());
            }
            warnings.push("`content_json` was a text that holds JSON".into());
            read.value
        }
        other => other.clone(),
    };
    let Some(schema) = schema else { return Ok(value) };
    let fitted = fit(&schema, value, Provenance::default());
    if fitted.violations.is_empty() {
        return Ok(fitted.arguments);
    }
    let shown: Vec<String> = fitted.violations.iter().take(MAX_VIOLATIONS).map(Violation::to_string).collect();
    Err(format!("the report does not fit its schema: {}", shown.join("; ")))
}

/// A whole schema as a part of another, to whose root its `definitions` move; in words where its references
/// lead elsewhere.
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

/// Where the references of a schema lead.
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
    pub(super) spec: Option<ReportSpec>,
}

#[async_trait]
impl Tool for FinalReportTool {
    fn definition(&self) -> ToolDefinition {
        let status = json!({"type": "string", "enum": ["success", "failure", "partial"]});
        let metadata = json!({"type": "object"});
        let asked = self.spec.as_ref();
        let formats = match asked {
            Some(spec) => vec![spec.format.as_str()],
            None => Format::ALL.map(Format::as_str).to_vec(),
        };
        let mut properties = json!({"status": status, "format": {"type": "string", "enum": formats}});
        let mut required = vec!["status", "format"];
        let mut definitions = Map::new();
        let content = json!({"type": "string"});
        match asked {
            Some(spec) if spec.format == Format::Json => {
                let schema = spec.schema().cloned().unwrap_or_else(|| json!({"type": "object"}));
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
        let mut shown = json!({"type": "object", "properties": properties, "required": required});
        definitions.into_iter().for_each(|(name, schemas)| shown[name] = schemas);
        let taken = json!({
            "type": "object",
            "properties": {
                "status": status, "format": {"type": "string"}, "content": {}, "content_json": {}, "metadata": metadata,
            },
        });
        let description = "Ends the run with your answer. Call it once, when the task is done or cannot be; other \
            calls of the same turn still finish.";
        let mut definition = define(FINAL_REPORT_ID, description, shown, taken);
        definition.contribution =
            asked.map(|_| "Give your final answer by calling agent__final_report, not as text.".to_owned());
        definition
    }

    async fn run(&self, arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(match FinalReport::accept(&arguments, self.spec.as_ref()) {
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
