//! Checks the tools of a request against the rules that each API publishes.
//!
//! [`check_tools`] takes the `tools` array of a request and reports every place that the API would refuse, and every
//! part of a schema that it would ignore. The rules were written from each API's own documentation, SDK types and
//! server sources ([`Rule::source`]), and this module shares no code with the encoder that it checks, so that the same
//! mistake cannot be in both.
//!
//! If documents of one API disagree (two endpoints, or an older and a newer page), the rule is what all of them accept.
//! There is no rule about anything that the documents leave open. Entries that are not functions (such as an API's own
//! web search) are not checked.
//!
//! ```
//! use serde_json::json;
//! use toolwright_testkit::rules::{ApiRules, check_tools};
//!
//! let tools = json!([{ "name": "look up", "input_schema": { "type": "object" } }]);
//! let breaches = check_tools(ApiRules::Anthropic, &tools);
//! assert_eq!(breaches[0].rule, "anthropic/name");
//! assert_eq!(breaches[0].path, "/0/name");
//! ```

mod anthropic;
mod common;
mod gemini;
mod gemini_json;
mod gemini_schema;
mod ollama;
mod openai;
mod openai_pattern;
mod openai_strict;
mod walk;

use serde_json::{Map, Value};

/// The API whose rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApiRules {
    /// OpenAI Chat Completions: functions wrapped under `function`.
    OpenAiChat,
    /// OpenAI Responses: flat functions.
    OpenAiResponses,
    /// Anthropic Messages.
    Anthropic,
    /// Gemini `generateContent`, with `parameters` or `parametersJsonSchema`.
    Gemini,
    /// Ollama `/api/chat`.
    Ollama,
}

impl ApiRules {
    /// All APIs.
    pub const ALL: [Self; 5] = [Self::OpenAiChat, Self::OpenAiResponses, Self::Anthropic, Self::Gemini, Self::Ollama];

    /// Returns every rule that [`check_tools`] can report for this API.
    #[must_use]
    pub fn rules(self) -> Vec<Rule> {
        let own: &[&[Rule]] = match self {
            Self::OpenAiChat => &[common::JSON_SCHEMA, openai::ALL, openai_pattern::ALL, openai_strict::ALL],
            Self::OpenAiResponses => {
                &[common::JSON_SCHEMA, openai::ALL, openai_pattern::ALL, openai::RESPONSES, openai_strict::ALL]
            }
            Self::Anthropic => &[anthropic::ALL],
            Self::Gemini => &[common::JSON_SCHEMA, gemini::ALL, gemini_schema::ALL, gemini_json::ALL],
            Self::Ollama => &[common::JSON_SCHEMA, ollama::ALL],
        };
        [common::ALL].iter().chain(own).flat_map(|rules| rules.iter().copied()).collect()
    }
}

/// One rule of an API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The id: the API (or `any`), a slash and the subject.
    pub id: &'static str,
    /// The requirement.
    pub says: &'static str,
    /// The document that states it.
    pub source: &'static str,
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// The tool's name as sent; empty if it has none or the breach concerns the whole request.
    pub tool: String,
    /// JSON pointer into the `tools` array.
    pub path: String,
    /// [`Rule::id`].
    pub rule: &'static str,
    /// A description of the breach.
    pub message: String,
}

/// Returns every breach in `tools`, the `tools` array of a request to `api`, in the order of the tools. Limits for a
/// whole request are checked over the whole array.
#[must_use]
pub fn check_tools(api: ApiRules, tools: &Value) -> Vec<Breach> {
    let mut report = Report::default();
    let Some(entries) = tools.as_array() else {
        report.add(&common::TOOLS, "", "tools is not an array");
        return report.breaches;
    };
    match api {
        ApiRules::OpenAiChat => openai::check_chat(entries, &mut report),
        ApiRules::OpenAiResponses => openai::check_responses(entries, &mut report),
        ApiRules::Anthropic => anthropic::check(entries, &mut report),
        ApiRules::Gemini => gemini::check(entries, &mut report),
        ApiRules::Ollama => ollama::check(entries, &mut report),
    }
    report.breaches
}

/// Returns every breach in the answer schema of `body`, a whole request to `api`. Schemas that are not strict are
/// checked only for their patterns (OpenAI and Ollama).
#[must_use]
pub fn check_answer(api: ApiRules, body: &Value) -> Vec<Breach> {
    let mut report = Report::default();
    let place = match api {
        ApiRules::OpenAiChat => "/response_format/json_schema",
        ApiRules::OpenAiResponses => "/text/format",
        ApiRules::Anthropic => "/output_config/format",
        ApiRules::Ollama => {
            ollama::check_answer(&body["format"], "/format", &mut report);
            return report.breaches;
        }
        ApiRules::Gemini => return report.breaches,
    };
    let Some(format) = body.pointer(place) else { return report.breaches };
    let path = format!("{place}/schema");
    match (api, format.get("schema")) {
        (ApiRules::Anthropic, Some(schema)) => anthropic::check_answer(schema, &path, &mut report),
        (_, Some(schema)) => {
            openai_pattern::check(schema, &path, &mut report);
            if format["strict"] == true {
                openai_strict::check(schema, &path, &mut report);
            }
        }
        _ => {}
    }
    report.breaches
}

/// The breaches so far, and the tool that is being checked.
#[derive(Default)]
struct Report {
    tool: String,
    breaches: Vec<Breach>,
}

impl Report {
    /// Makes `tool` the subject of the following breaches.
    fn enter(&mut self, tool: &Map<String, Value>) {
        self.tool = tool.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    }

    /// Makes the whole request the subject of the following breaches.
    fn leave(&mut self) {
        self.tool.clear();
    }

    fn add(&mut self, rule: &Rule, path: impl Into<String>, message: impl Into<String>) {
        let (tool, path, message) = (self.tool.clone(), path.into(), message.into());
        self.breaches.push(Breach { tool, path, rule: rule.id, message });
    }
}

/// Defines rules as constants and `ALL`, the list of them in order.
macro_rules! rules {
    ($list:ident: $($name:ident = $id:literal, $says:literal, $source:expr;)*) => {
        $(pub(super) const $name: crate::rules::Rule =
            crate::rules::Rule { id: $id, says: $says, source: $source };)*
        pub(super) const $list: &[crate::rules::Rule] = &[$($name),*];
    };
}
use rules;
