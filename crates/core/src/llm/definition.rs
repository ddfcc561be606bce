//! LLM-backed and template tools as they are written: in a file, or in Rust.

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use super::template::{check_entry, check_template};
use crate::definition::{Effects, ModelPreference, OnOutputMismatch, ToolDefinition};
use crate::model::is_replay;
use crate::name::ToolId;
use crate::schema::CompiledSchema;

/// What a model's answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputKind {
    /// Text, as it is.
    Text,
    /// A JSON value; with an output schema, an object that fits it.
    Json,
}

/// How long an answer may be: `base + per_input_token x tokens of the prompts`, and `max` at most.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaxTokens {
    /// Tokens of any answer.
    pub base: u32,
    /// Tokens more for each token of the prompts.
    #[serde(default, alias = "perInputToken")]
    pub per_input_token: f64,
    /// Tokens at most.
    pub max: u32,
}

impl MaxTokens {
    /// The limit for prompts of so many tokens.
    #[must_use]
    pub fn of(&self, input_tokens: usize) -> u32 {
        let more = (input_tokens as f64 * self.per_input_token).ceil();
        // The cast saturates; a figure that is none was refused when the definition was checked.
        self.base.saturating_add(more as u32).min(self.max)
    }
}

/// A tool that a model answers (SPEC section 11). The form of a file is this struct.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlmDefinition {
    /// Canonical id.
    pub id: ToolId,
    /// Human-readable name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What a model reads to decide whether to call it.
    pub description: String,
    /// JSON Schema of the arguments.
    #[serde(alias = "inputSchema", alias = "input_schema")]
    pub parameters: Value,
    /// JSON Schema of the result, an object; only with `output: json`. A result that breaks it is a failed attempt.
    #[serde(default, alias = "outputSchema", skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Template of the system prompt.
    #[serde(default, alias = "systemPrompt", alias = "system_prompt")]
    pub system: String,
    /// Template of the one user message.
    #[serde(alias = "userPrompt", alias = "user_prompt", alias = "userPromptTemplate", alias = "user_prompt_template")]
    pub user: String,
    /// What the answer is; without it JSON where there is an output schema, else text.
    #[serde(default, alias = "outputType", alias = "output_type", skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputKind>,
    /// Values made of the arguments before the prompts are rendered, in order, each seeing those before it: an
    /// expression (`suggestions | length`), or a text with `{{ … }}`.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub prepare: IndexMap<String, String>,
    /// Limit of the answer; without it that of `model_preference`.
    #[serde(default, alias = "maxTokens", skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<MaxTokens>,
    /// An example of the result, shown to the model.
    #[serde(default, alias = "outputExample", alias = "output_example", skip_serializing_if = "Option::is_none")]
    pub example: Option<Value>,
    /// Other ways of asking, by mode and by model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<Variant>,
    /// Models that are asked, and how.
    #[serde(default, alias = "modelPreference", skip_serializing_if = "is_default")]
    pub model_preference: ModelPreference,
    /// Benchmark score (0-100) from which a model is recommended for it.
    #[serde(default = "hundred", alias = "recommendedThreshold")]
    pub recommended_threshold: u8,
    /// Free labels for search, filters and policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// One way of asking. What it does not say is as in the definition. Fields that describe the tool before a model is
/// chosen (id, title, description, parameters, threshold, tags) are the definition's alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Variant {
    /// Its name, unique in the tool.
    pub id: String,
    /// The mode that it belongs to; a caller may name one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Parts of `provider/model`, any of which makes it that model's; the whole of it makes it so before others.
    #[serde(alias = "providerMatch", deserialize_with = "one_or_more", skip_serializing_if = "Vec::is_empty")]
    pub provider_match: Vec<String>,
    /// Whether it is chosen where no `provider_match` decides.
    #[serde(alias = "isDefault", skip_serializing_if = "std::ops::Not::not")]
    pub is_default: bool,
    /// In place of the definition's.
    #[serde(alias = "outputSchema", skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// In place of the definition's.
    #[serde(alias = "systemPrompt", alias = "system_prompt", skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// In place of the definition's.
    #[serde(
        alias = "userPrompt",
        alias = "user_prompt",
        alias = "userPromptTemplate",
        alias = "user_prompt_template",
        skip_serializing_if = "Option::is_none"
    )]
    pub user: Option<String>,
    /// In place of the definition's.
    #[serde(alias = "outputType", alias = "output_type", skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputKind>,
    /// In place of the definition's, as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare: Option<IndexMap<String, String>>,
    /// In place of the definition's.
    #[serde(alias = "maxTokens", skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<MaxTokens>,
    /// In place of the definition's.
    #[serde(alias = "outputExample", alias = "output_example", skip_serializing_if = "Option::is_none")]
    pub example: Option<Value>,
    /// In place of the definition's temperature, token limit and settings; its models have been chosen by then.
    #[serde(alias = "modelPreference", skip_serializing_if = "Option::is_none")]
    pub model_preference: Option<ModelPreference>,
}

/// A tool that fills its arguments into a text. No model is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateDefinition {
    /// Canonical id.
    pub id: ToolId,
    /// Human-readable name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What a model reads to decide whether to call it.
    pub description: String,
    /// JSON Schema of the arguments.
    #[serde(alias = "inputSchema", alias = "input_schema")]
    pub parameters: Value,
    /// As in [`LlmDefinition::prepare`].
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub prepare: IndexMap<String, String>,
    /// The text.
    pub template: String,
    /// Free labels for search, filters and policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// Why a definition makes no tool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{id}: `{field}`: {reason}")]
pub struct DefineError {
    /// The tool.
    pub id: ToolId,
    /// The field, dotted.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

fn hundred() -> u8 {
    100
}

fn is_default(preference: &ModelPreference) -> bool {
    *preference == ModelPreference::default()
}

fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Texts {
        One(String),
        More(Vec<String>),
    }
    Ok(match Texts::deserialize(deserializer)? {
        Texts::One(text) => vec![text],
        Texts::More(texts) => texts,
    })
}

impl LlmDefinition {
    /// A definition of two prompts and nothing else: the answer is text.
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
        }
    }

    /// What the answer is.
    #[must_use]
    pub fn output_kind(&self) -> OutputKind {
        let by_schema = if self.output_schema.is_some() { OutputKind::Json } else { OutputKind::Text };
        self.output.unwrap_or(by_schema)
    }

    /// Whether it makes a tool: templates can be read, schemas compile, figures make sense, names are unique.
    ///
    /// # Errors
    /// [`DefineError`] names the field.
    pub fn check(&self) -> Result<(), DefineError> {
        check_threshold(self)?;
        self.check_way("")?;
        for (index, variant) in self.variants.iter().enumerate() {
            let field = |name: &str| format!("variants[{index}].{name}");
            let refused = |name: &str, reason: &str| Err(self.error(&field(name), reason));
            if variant.id.trim().is_empty() {
                return refused("id", "it is empty");
            }
            if self.variants[..index].iter().any(|other| other.id == variant.id) {
                return refused("id", "another variant has it");
            }
            if variant.provider_match.iter().any(String::is_empty) {
                return refused("provider_match", "an empty text is part of every model's id");
            }
            variant.over(self).check_way(&field(""))?;
        }
        Ok(())
    }

    /// What a variant may say otherwise. `place` is put before the names of fields.
    fn check_way(&self, place: &str) -> Result<(), DefineError> {
        let refused = |name: &str, reason: String| self.error(&format!("{place}{name}"), reason);
        check_template(&self.system).map_err(|error| refused("system", error.to_string()))?;
        check_template(&self.user).map_err(|error| refused("user", error.to_string()))?;
        check_prepare(&self.prepare).map_err(|(key, reason)| refused(&format!("prepare.{key}"), reason))?;
        if self.user.trim().is_empty() {
            return Err(refused("user", "it is empty".to_owned()));
        }
        if let Some(rule) = self.max_tokens {
            let is_sound = rule.per_input_token.is_finite() && rule.per_input_token >= 0.0;
            if !is_sound || rule.base > rule.max {
                return Err(refused(
                    "max_tokens",
                    "base may not be over max, and no figure negative or no number".into(),
                ));
            }
            if rule.of(usize::MAX) == 0 {
                return Err(refused("max_tokens", "it lets no answer be".to_owned()));
            }
        }
        if self.model_preference.max_tokens == Some(0) {
            return Err(refused("model_preference.max_tokens", "it is 0, which lets no answer be".to_owned()));
        }
        if let Some(temperature) = self.model_preference.temperature
            && !(0.0..=2.0).contains(&temperature)
        {
            return Err(refused("model_preference.temperature", "it is not within 0 and 2".to_owned()));
        }
        let settings = self.model_preference.settings.check();
        settings.map_err(|(field, reason)| refused(&format!("model_preference.{field}"), reason))?;
        let models = self.model_preference.preferred_model.iter().chain(&self.model_preference.fallback_models);
        for model in models {
            if !model.split_once('/').is_some_and(|(provider, name)| !provider.is_empty() && !name.is_empty()) {
                return Err(refused("model_preference", format!("`{model}` is not provider/model")));
            }
            if is_replay(model) {
                let why = format!("`{model}` is a recording, which only `--model` and `models.default` may name");
                return Err(refused("model_preference", why));
            }
        }
        let Some(schema) = &self.output_schema else { return Ok(()) };
        if self.output_kind() == OutputKind::Text {
            return Err(refused("output_schema", "the output is text, which has none".to_owned()));
        }
        if schema.get("type") != Some(&json!("object")) {
            return Err(refused("output_schema", "its `type` is not `object`: structured results are objects".into()));
        }
        let compiled = CompiledSchema::compile(schema).map_err(|error| refused("output_schema", error.to_string()))?;
        match &self.example {
            Some(example) if !compiled.is_valid(example) => {
                let first = compiled.violations(example).into_iter().next();
                let why = first.map_or_else(String::new, |violation| format!(": {violation}"));
                Err(refused("example", format!("it breaks the output schema{why}")))
            }
            _ => Ok(()),
        }
    }

    fn error(&self, field: &str, reason: impl Into<String>) -> DefineError {
        DefineError { id: self.id.clone(), field: field.to_owned(), reason: reason.into() }
    }

    /// The tool as the catalogue holds it: it only reads, twice is the same as once, and its arguments leave the
    /// house. The prompts are its declaration, so that a change of them is a change of the tool.
    #[must_use]
    pub fn tool(&self) -> ToolDefinition {
        ToolDefinition {
            title: self.title.clone(),
            output_schema: self.promised(),
            tags: self.tags.clone(),
            effects: Effects::FETCH,
            on_output_mismatch: OnOutputMismatch::Error,
            model_preference: (!is_default(&self.model_preference)).then(|| self.model_preference.clone()),
            recommended_threshold: self.recommended_threshold,
            declaration: Some(self.declaration()),
            ..ToolDefinition::new(self.id.clone(), self.description.clone(), Some(self.parameters.clone()))
        }
    }

    /// What its result fits, whichever way it is asked: the schema that all ways have, or else that of any of them.
    /// Each attempt checks its own.
    fn promised(&self) -> Option<Value> {
        let mut ways: Vec<Value> = Vec::new();
        for variant in &self.variants {
            // One of them is always taken.
            let schema = variant.output_schema.as_ref().or(self.output_schema.as_ref())?;
            if !ways.contains(schema) {
                ways.push(schema.clone());
            }
        }
        match ways.len() {
            0 => self.output_schema.clone(),
            1 => ways.pop(),
            // A reference is to a place in its own schema, and would be to none in this one.
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
        // Only where there are some: what was approved without them is the same still.
        if !self.model_preference.settings.is_empty() {
            declared["llm"]["settings"] = json!(self.model_preference.settings);
        }
        declared
    }
}

/// Whether a schema refers to another, or has a name that others refer to it by.
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

fn check_threshold(definition: &LlmDefinition) -> Result<(), DefineError> {
    if definition.recommended_threshold > 100 {
        return Err(definition.error("recommended_threshold", "it is over 100"));
    }
    Ok(())
}

fn check_prepare(prepare: &IndexMap<String, String>) -> Result<(), (&str, String)> {
    prepare.iter().try_for_each(|(key, entry)| check_entry(entry).map_err(|error| (key.as_str(), error.to_string())))
}

impl TemplateDefinition {
    /// Whether it makes a tool.
    ///
    /// # Errors
    /// [`DefineError`] names the field.
    pub fn check(&self) -> Result<(), DefineError> {
        let refused =
            |field: &str, reason: String| DefineError { id: self.id.clone(), field: field.to_owned(), reason };
        check_template(&self.template).map_err(|error| refused("template", error.to_string()))?;
        check_prepare(&self.prepare).map_err(|(key, reason)| refused(&format!("prepare.{key}"), reason))
    }

    /// The tool as the catalogue holds it: it reads its arguments and nothing else.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn written(more: Value) -> Result<LlmDefinition, String> {
        let mut definition = json!({
            "id": "x:t@1.0.0", "description": "d", "parameters": {"type": "object", "properties": {}}, "user": "u",
        });
        for (key, value) in more.as_object().expect("an object") {
            definition[key] = value.clone();
        }
        serde_json::from_value(definition).map_err(|error| error.to_string())
    }

    #[test]
    fn a_definition_says_what_is_wrong_with_it() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
        for (more, expect) in [
            (json!({}), Ok(OutputKind::Text)),
            (json!({"outputSchema": schema, "example": {"a": 1}}), Ok(OutputKind::Json)),
            (json!({"output": "json"}), Ok(OutputKind::Json)),
            (json!({"maxTokens": {"base": 10, "perInputToken": 0.5, "max": 20}}), Ok(OutputKind::Text)),
            (json!({"variants": [{"id": "a", "providerMatch": "mini"}]}), Ok(OutputKind::Text)),
            (json!({"user": "{{ a"}), Err("`user`")),
            (json!({"user": " "}), Err("it is empty")),
            (json!({"system": "{% if %}"}), Err("`system`")),
            (json!({"prepare": {"n": "a |"}}), Err("`prepare.n`")),
            (json!({"output": "text", "output_schema": schema}), Err("the output is text")),
            (json!({"output_schema": {"type": "array"}}), Err("not `object`")),
            (json!({"output_schema": {"type": "object", "properties": 3}}), Err("`output_schema`")),
            (json!({"output_schema": schema, "example": {"a": "x"}}), Err("`example`")),
            (json!({"max_tokens": {"base": 30, "max": 20}}), Err("`max_tokens`")),
            (json!({"max_tokens": {"base": 1, "per_input_token": -1.0, "max": 20}}), Err("`max_tokens`")),
            (json!({"recommended_threshold": 101}), Err("over 100")),
            (json!({"max_tokens": {"base": 0, "max": 20}}), Err("lets no answer be")),
            (json!({"model_preference": {"maxTokens": 0}}), Err("`model_preference.max_tokens`")),
            (json!({"variants": [{"id": "a", "model_preference": {"max_tokens": 0}}]}), Err("`variants[0].model_pref")),
            (json!({"model_preference": {"temperature": 3}}), Err("within 0 and 2")),
            (
                json!({"model_preference": {"effort": "low", "topK": 4, "stop": ["END"], "cache": "1h"}}),
                Ok(OutputKind::Text),
            ),
            (json!({"model_preference": {"efort": "low"}}), Err("unknown field `efort`")),
            (json!({"model_preference": {"top_p": 2}}), Err("`model_preference.top_p`")),
            (json!({"model_preference": {"fallback_models": ["gpt"]}}), Err("`gpt` is not provider/model")),
            (json!({"model_preference": {"preferred_model": "replay:a/b"}}), Err("is a recording")),
            (json!({"variants": [{"id": "a"}, {"id": "a"}]}), Err("`variants[1].id`: another")),
            (json!({"variants": [{}]}), Err("`variants[0].id`: it is empty")),
            (json!({"variants": [{"id": "a", "provider_match": [""]}]}), Err("`variants[0].provider_match`")),
            (json!({"variants": [{"id": "a", "user": "{{"}]}), Err("`variants[0].user`")),
            (json!({"variants": [{"id": "a", "tags": []}]}), Err("unknown field `tags`")),
        ] {
            let checked = written(more.clone()).and_then(|definition| {
                definition.check().map_err(|error| error.to_string()).map(|()| definition.output_kind())
            });
            match (checked, expect) {
                (Ok(kind), Ok(expect)) => assert_eq!(kind, expect, "{more}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{more}: {error}"),
                (got, expect) => panic!("{more}: {got:?}, not {expect:?}"),
            }
        }
    }

    #[test]
    fn a_result_is_promised_that_every_way_of_asking_gives() {
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
            // Its own way is never taken, where there are variants.
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
    fn a_change_of_a_prompt_is_a_change_of_the_tool() {
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
