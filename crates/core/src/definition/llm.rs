//! LLM-backed and template tools as they are written: in a file, or in Rust.

use std::time::Duration;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use super::variant::Variant;
use super::{Effects, Guidance, ModelPreference, OnOutputMismatch, ToolDefinition};
use crate::identity::tool_id::ToolId;

/// What a model's answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputKind {
    /// Text.
    Text,
    /// A JSON value.
    // With an output schema, an object that fits it.
    Json,
}

/// How long an answer may be, in tokens: `base`, and `per_input_token` for each token of the prompts, and `max` at most.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaxTokens {
    /// Tokens that any answer may have.
    pub base: u32,
    /// Tokens to add for each token of the prompts. Default 0.
    #[serde(default, alias = "perInputToken")]
    pub per_input_token: f64,
    /// Upper bound of the sum.
    pub max: u32,
}

impl MaxTokens {
    /// The limit for prompts of so many tokens.
    #[must_use]
    pub fn of(&self, input_tokens: usize) -> u32 {
        let more = (input_tokens as f64 * self.per_input_token).ceil();
        // The cast saturates; the definition check has refused NaN.
        self.base.saturating_add(more as u32).min(self.max)
    }
}

/// A tool that a model answers. The form of a file is this struct.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LlmDefinition {
    /// Canonical id.
    #[schemars(skip)]
    pub id: ToolId,
    /// Human-readable name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What a model reads to decide whether to call it.
    pub description: String,
    /// JSON Schema of the arguments.
    #[serde(alias = "inputSchema", alias = "input_schema")]
    #[schemars(extend("x-aliases" = ["input_schema"]))]
    pub parameters: Value,
    /// JSON Schema of the result, an object; only where the answer is JSON.
    // A result that breaks it is a failed attempt.
    #[serde(default, alias = "outputSchema", skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Template of the system prompt: `{{ name }}` is an argument, `{{ a.b }}` a part of one. A missing value is an
    /// error, null becomes an empty text, and a value that is not a text is written as JSON.
    #[serde(default, alias = "systemPrompt", alias = "system_prompt")]
    #[schemars(extend("x-aliases" = ["system_prompt"]))]
    pub system: String,
    /// Template of the user's message.
    #[serde(
        alias = "userPrompt",
        alias = "user_prompt",
        alias = "userPromptTemplate",
        alias = "user_prompt_template",
        alias = "userTemplate",
        alias = "user_template"
    )]
    #[schemars(extend("x-aliases" = ["user_template", "user_prompt", "user_prompt_template"]))]
    pub user: String,
    /// What the answer is. Default: JSON where there is an output schema, else text.
    #[serde(
        default,
        alias = "outputType",
        alias = "output_type",
        alias = "outputFormat",
        alias = "output_format",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("x-aliases" = ["output_format", "output_type"]))]
    pub output: Option<OutputKind>,
    /// Values that are computed from the arguments, in order, before the templates are filled in: an expression like
    /// `items | length`, or a text with `{{ … }}`.
    // Each sees those before it.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub prepare: IndexMap<String, String>,
    /// Most tokens of an answer. Default: those of `model_preference`.
    #[serde(default, alias = "maxTokens", skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<MaxTokens>,
    /// An example of the result, for the model.
    #[serde(default, alias = "outputExample", alias = "output_example", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-aliases" = ["output_example"]))]
    pub example: Option<Value>,
    /// Variants of the prompts and settings, by mode and by model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<Variant>,
    /// Which models it asks, and how. Default: `models.default`.
    #[serde(default, alias = "modelPreference", skip_serializing_if = "is_default")]
    pub model_preference: ModelPreference,
    /// Lowest benchmark score, from 0 to 100, at which a model is recommended for it. Default 100.
    #[serde(default = "hundred", alias = "recommendedThreshold")]
    #[schemars(range(min = 0, max = 100))]
    pub recommended_threshold: u8,
    /// Labels for search, filters and policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What happens to an answer that breaks the output schema: `error`, the default, makes it a failed attempt; `warn`
    /// passes it on with a warning.
    #[serde(default = "error", alias = "onOutputMismatch", skip_serializing_if = "is_error")]
    pub on_output_mismatch: OnOutputMismatch,
    /// How it is called and explained.
    #[serde(flatten)]
    pub guidance: Guidance,
    /// Examples of its arguments. No file says them.
    #[serde(skip)]
    pub examples: Vec<Value>,
    /// Limit of one call. No file says it: there, `builtin_tools` and overrides do.
    #[serde(skip)]
    pub timeout: Option<Duration>,
}

/// A tool that fills its arguments into a text template, without a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateDefinition {
    /// Canonical id.
    pub id: ToolId,
    /// Human-readable name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The description for models.
    pub description: String,
    /// JSON Schema of the arguments.
    #[serde(alias = "inputSchema", alias = "input_schema")]
    pub parameters: Value,
    /// See [`LlmDefinition::prepare`].
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub prepare: IndexMap<String, String>,
    /// The text.
    pub template: String,
    /// Free labels for search, filters and policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

fn error() -> OnOutputMismatch {
    OnOutputMismatch::Error
}

fn is_error(word: &OnOutputMismatch) -> bool {
    *word == OnOutputMismatch::Error
}

fn hundred() -> u8 {
    100
}

fn is_default(preference: &ModelPreference) -> bool {
    *preference == ModelPreference::default()
}

impl LlmDefinition {
    /// Creates a definition of two prompts with a text answer.
    #[must_use]
    pub fn new(
        id: ToolId,
        description: impl Into<String>,
        parameters: Value,
        system: impl Into<String>,
        user: impl Into<String>,
    ) -> Self {
        Self {
            id,
            title: None,
            description: description.into(),
            parameters,
            output_schema: None,
            system: system.into(),
            user: user.into(),
            output: None,
            prepare: IndexMap::new(),
            max_tokens: None,
            example: None,
            variants: Vec::new(),
            model_preference: ModelPreference::default(),
            recommended_threshold: hundred(),
            tags: Vec::new(),
            on_output_mismatch: error(),
            guidance: Guidance::default(),
            examples: Vec::new(),
            timeout: None,
        }
    }

    /// The kind of answer.
    #[must_use]
    pub fn output_kind(&self) -> OutputKind {
        let by_schema = if self.output_schema.is_some() { OutputKind::Json } else { OutputKind::Text };
        self.output.unwrap_or(by_schema)
    }

    /// The tool's definition for the catalogue: it only reads and is idempotent, and its arguments leave the
    /// program. The declaration contains the prompts, so changed prompts change the tool.
    #[must_use]
    pub fn tool(&self) -> ToolDefinition {
        let mut tool = ToolDefinition {
            title: self.title.clone(),
            output_schema: self.common_result_schema(),
            tags: self.tags.clone(),
            effects: Effects::FETCH,
            on_output_mismatch: self.on_output_mismatch,
            model_preference: (!is_default(&self.model_preference)).then(|| self.model_preference.clone()),
            recommended_threshold: self.recommended_threshold,
            declaration: Some(self.declaration()),
            examples: self.examples.clone(),
            timeout: self.timeout,
            ..ToolDefinition::new(self.id.clone(), self.description.clone(), Some(self.parameters.clone()))
        };
        self.guidance.apply(&mut tool);
        tool
    }

    /// Returns a schema that every result fits, for any variant: the schema shared by all variants, or a union of
    /// theirs. Each attempt checks its own.
    pub(crate) fn common_result_schema(&self) -> Option<Value> {
        let mut ways: Vec<Value> = Vec::new();
        for variant in &self.variants {
            // One of the variants is always used.
            let schema = variant.output_schema.as_ref().or(self.output_schema.as_ref())?;
            if !ways.contains(schema) {
                ways.push(schema.clone());
            }
        }
        match ways.len() {
            0 => self.output_schema.clone(),
            1 => ways.pop(),
            // References cannot be moved into another schema.
            _ if ways.iter().any(has_reference) => Some(json!({"type": "object"})),
            _ => Some(json!({"type": "object", "anyOf": ways})),
        }
    }

    fn declaration(&self) -> Value {
        let mut declared = json!({"llm": {
            "system": self.system,
            "user": self.user,
            "output": self.output_kind(),
            "prepare": self.prepare,
            "max_tokens": self.max_tokens,
            "example": self.example,
            "variants": self.variants,
            "temperature": self.model_preference.temperature,
        }});
        // Only if there are any, so that definitions without them keep their approval.
        if !self.model_preference.settings.is_empty() {
            declared["llm"]["settings"] = json!(self.model_preference.settings);
        }
        declared
    }
}

/// Whether a schema has references or an id that others may refer to.
fn has_reference(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => {
            members.keys().any(|key| matches!(key.as_str(), "$ref" | "$dynamicRef" | "$id"))
                || members.values().any(has_reference)
        }
        Value::Array(items) => items.iter().any(has_reference),
        _ => false,
    }
}

impl TemplateDefinition {
    /// Returns the tool's definition for the catalogue: it has no effects.
    #[must_use]
    pub fn tool(&self) -> ToolDefinition {
        let mut declaration = Map::new();
        declaration.insert("template".to_owned(), self.template.as_str().into());
        if !self.prepare.is_empty() {
            declaration.insert("prepare".to_owned(), json!(self.prepare));
        }
        ToolDefinition {
            title: self.title.clone(),
            tags: self.tags.clone(),
            effects: Effects::READ,
            declaration: Some(Value::Object(declaration)),
            ..ToolDefinition::new(self.id.clone(), self.description.clone(), Some(self.parameters.clone()))
        }
    }
}

/// Parses a definition as written in a file, with the fields in `more` added to the required ones.
#[cfg(test)]
pub(crate) fn written(more: Value) -> Result<LlmDefinition, String> {
    let mut definition = json!({
        "id": "x:t@1.0.0", "description": "d", "parameters": {"type": "object", "properties": {}}, "user": "u",
    });
    for (key, value) in more.as_object().expect("an object") {
        definition[key] = value.clone();
    }
    serde_json::from_value(definition).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn output_schema_covers_every_variant() {
        let form = |name: &str| {
            json!({
                "type": "object", "properties": {name: {"type": "string"}}, "required": [name],
                "additionalProperties": false,
            })
        };
        let (tags, label) = (form("tags"), form("label"));
        let referring = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}});
        let variant = |id: &str, schema: Option<&Value>| {
            let mut variant = json!({"id": id});
            if let Some(schema) = schema {
                variant["outputSchema"] = schema.clone();
            }
            variant
        };
        for (own, variants, expect) in [
            (None, vec![], None),
            (Some(&tags), vec![], Some(tags.clone())),
            (Some(&tags), vec![variant("a", None)], Some(tags.clone())),
            // The definition itself is never used if there are variants.
            (Some(&tags), vec![variant("a", Some(&label))], Some(label.clone())),
            (None, vec![variant("a", Some(&label)), variant("b", Some(&label))], Some(label.clone())),
            (None, vec![variant("a", Some(&label)), variant("b", None)], None),
            (
                Some(&tags),
                vec![variant("a", Some(&label)), variant("b", None), variant("c", Some(&label))],
                Some(json!({"type": "object", "anyOf": [label, tags]})),
            ),
            (Some(&tags), vec![variant("a", Some(&referring)), variant("b", None)], Some(json!({"type": "object"}))),
        ] {
            let mut more = json!({"variants": variants});
            if let Some(own) = own {
                more["outputSchema"] = own.clone();
            }
            let definition = written(more.clone()).expect("a definition");
            definition.check().expect("sound");
            assert_eq!(definition.tool().output_schema, expect, "{more}");
        }
    }

    #[test]
    fn prompt_change_changes_the_contract() {
        let hash = |more| written(more).expect("a definition").tool().contract_hash();
        let plain = hash(json!({}));
        for more in [
            json!({"system": "other"}),
            json!({"user": "other"}),
            json!({"variants": [{"id": "a", "system": "other"}]}),
            json!({"prepare": {"n": "1"}}),
            json!({"model_preference": {"effort": "low"}}),
        ] {
            assert_ne!(hash(more.clone()), plain, "{more}");
        }
        assert_eq!(hash(json!({"model_preference": {"preferred_model": "a/b"}})), plain, "an operator's setting");
    }

    #[test]
    fn the_limit_grows_with_the_prompts_and_ends() {
        let rule = MaxTokens { base: 400, per_input_token: 1.5, max: 1000 };
        assert_eq!([0, 1, 100, 10_000, usize::MAX].map(|tokens| rule.of(tokens)), [400, 402, 550, 1000, 1000]);
    }
}
