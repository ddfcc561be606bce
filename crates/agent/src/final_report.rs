//! The final report by which a model may give its answer: its format, and how it is read from a call or from text.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use toolwright_core::arguments::{Provenance, fit};
use toolwright_core::json::repair;
use toolwright_core::schema::{CompiledSchema, SchemaError, Violation};

use crate::report::Status;

/// Id of the tool that ends a run.
pub const FINAL_REPORT_ID: &str = "agent:final_report@1.0.0";
/// Maximum violations of an output schema in a message to the model.
const MAX_VIOLATIONS: usize = 10;

/// The format of a report.
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
    /// All formats.
    pub const ALL: [Self; 5] = [Self::Text, Self::Markdown, Self::Json, Self::Tty, Self::Slack];

    /// Returns the name of the format.
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

/// The report with which a run must end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportConfig {
    format: Format,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
}

impl ReportConfig {
    /// A report in `format`.
    #[must_use]
    pub fn in_format(format: Format) -> Self {
        Self { format, schema: None }
    }

    /// A report in JSON that `schema` describes.
    ///
    /// # Errors
    /// [`SchemaError`] if the schema does not compile.
    pub fn by_schema(schema: Value) -> Result<Self, SchemaError> {
        CompiledSchema::compile(&schema)?;
        Ok(Self { format: Format::Json, schema: Some(schema) })
    }

    /// Returns the format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the JSON Schema of its content.
    #[must_use]
    pub fn schema(&self) -> Option<&Value> {
        self.schema.as_ref()
    }
}

/// An accepted final report: `content_json` for JSON, `content` for every other format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinalReport {
    /// `success`, `failure` or `partial`.
    pub status: Status,
    /// The format.
    pub format: Format,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_json: Option<Value>,
    /// Further data from the model.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Conversions of content that did not have the requested form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl FinalReport {
    /// Returns the content as text.
    #[must_use]
    pub fn text(&self) -> String {
        match (&self.content, &self.content_json) {
            (Some(content), _) => content.clone(),
            (None, Some(value)) => format!("{value:#}"),
            (None, None) => String::new(),
        }
    }

    /// Reads the report in the arguments of a call. Without `config`, any format is accepted.
    ///
    /// # Errors
    /// The reason why they contain no report, and what to write instead.
    pub(crate) fn accept(arguments: &Value, config: Option<&ReportConfig>) -> Result<Self, String> {
        let status = match arguments.get("status").and_then(Value::as_str) {
            Some("failure") => Status::Failure,
            Some("partial") => Status::Partial,
            _ => Status::Success,
        };
        let mut warnings = Vec::new();
        let written = arguments.get("format").and_then(Value::as_str);
        let given_format = written.and_then(Format::of);
        let format = config.map(|config| config.format).or(given_format).unwrap_or_default();
        if let Some(written) = written.filter(|_| given_format != Some(format)) {
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
                let schema = config.and_then(ReportConfig::schema);
                (None, Some(fitted(value, schema, &mut warnings)?))
            }
            _ => (Some(text(content, json, &mut warnings)?), None),
        };
        let metadata = member("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
        Ok(Self { status, format, content, content_json, metadata, warnings })
    }

    /// Reads the report in an answer in plain text.
    ///
    /// # Errors
    /// The reason why it contains no report, and what to write instead.
    pub(crate) fn from_text(answer: &str, config: &ReportConfig) -> Result<Self, String> {
        let member = if config.format == Format::Json { "content_json" } else { "content" };
        let mut report = Self::accept(&json!({ member: answer }), Some(config))?;
        // Warnings about fields of a call do not apply.
        report.warnings = vec!["the model answered in text; it was taken for its report".into()];
        Ok(report)
    }
}

/// Returns the text of a report.
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

/// Returns the value of a report, fitted to the schema.
fn fitted(written: &Value, schema: Option<&Value>, warnings: &mut Vec<String>) -> Result<Value, String> {
    let schema = schema.map(CompiledSchema::compile).transpose();
    let schema = schema.map_err(|error| format!("the output schema of this run cannot be used: {error}"))?;
    let value = match written {
        // A text that the schema accepts stays a text.
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
    let violations: Vec<String> = fitted.violations.iter().take(MAX_VIOLATIONS).map(Violation::to_string).collect();
    Err(format!("the report does not fit its schema: {}", violations.join("; ")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a specification by its format, or by one of two schemas.
    pub(crate) fn report_config(format: &str) -> Option<ReportConfig> {
        match format {
            "" => None,
            "schema" => {
                let schema = json!({
                    "type": "object",
                    "properties": {"n": {"type": "integer"}, "s": {"$ref": "#/$defs/s"}},
                    "required": ["n"],
                    "$defs": {"s": {"type": "string"}},
                });
                Some(ReportConfig::by_schema(schema).expect("schema"))
            }
            "text schema" => Some(ReportConfig::by_schema(json!({"type": "string"})).expect("schema")),
            other => serde_json::from_value(json!({"format": other})).expect("format"),
        }
    }

    /// `expect`: the content and the number of warnings, or a part of the refusal.
    fn check(asked: &str, arguments: Value, expect: Result<(Value, usize), &str>) {
        let config = report_config(asked);
        match (FinalReport::accept(&arguments, config.as_ref()), expect) {
            (Ok(report), Ok((content, warnings))) => {
                let is_json = report.format == Format::Json;
                assert_eq!(
                    (report.content.is_none(), report.content_json.is_some()),
                    (is_json, is_json),
                    "{arguments}"
                );
                assert_eq!(report.content_json.unwrap_or_else(|| json!(report.content)), content, "{arguments}");
                assert_eq!(report.warnings.len(), warnings, "{arguments}: {:?}", report.warnings);
            }
            (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (found, expect) => panic!("{asked} {arguments}: {found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn a_report_is_converted_to_the_requested_form() {
        check("", json!({"content": "x"}), Ok((json!("x"), 0)));
        check("", json!({"format": "json", "content_json": [1]}), Ok((json!([1]), 0)));
        check("", json!({"format": "poem", "content": "x"}), Ok((json!("x"), 1)));
        check("markdown", json!({"format": "markdown", "content": "x"}), Ok((json!("x"), 0)));
        check("markdown", json!({"format": "json", "content_json": {"a": 1}}), Ok((json!("{\n  \"a\": 1\n}"), 2)));
        check("slack", json!({"format": "Slack", "content": 7}), Ok((json!("7"), 1)));
        check("tty", json!({"content": " "}), Err("needs `content`"));
        check("json", json!({"format": "json", "content_json": {"a": 1}}), Ok((json!({"a": 1}), 0)));
        check("json", json!({"format": "text", "content": "{\"a\": 1}"}), Ok((json!({"a": 1}), 3)));
        check("json", json!({"content": "just words"}), Err("not whole JSON"));
        check("json", json!({"content_json": "{\"a\": [1"}), Err("not whole JSON"));
        check("json", json!({"content_json": null}), Err("needs `content_json`"));
        check("schema", json!({"content_json": {"n": 1}}), Ok((json!({"n": 1}), 0)));
        check("schema", json!({"content_json": {"n": "1"}}), Ok((json!({"n": 1}), 0)));
        check("schema", json!({"content_json": {"n": "one"}}), Err("/n"));
        check("schema", json!({"content_json": {}}), Err("n"));
        check("text schema", json!({"content_json": "{1"}), Ok((json!("{1"), 0)));
    }

    #[test]
    fn a_report_keeps_its_status() {
        for (written, status) in
            [("success", Status::Success), ("failure", Status::Failure), ("partial", Status::Partial)]
        {
            let report = FinalReport::accept(&json!({"status": written, "content": "x"}), None).expect("report");
            assert_eq!((report.status, json!(report.status)), (status, json!(written)));
        }
    }
}
