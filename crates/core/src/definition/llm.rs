//! LLM-backed and template tools as they are written: in a file, or in Rust; and which variant of one a model is asked with.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

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
    /// Of any answer.
    pub base: u32,
    /// More for each token of the prompts. Default 0.
    #[serde(default, alias = "perInputToken")]
    pub per_input_token: f64,
    /// At most.
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
    /// Template of the system prompt: `{{ name }}` is an argument, `{{ a.b }}` a part of one. What is missing is an
    /// error, null is nothing, and what is no text is written as JSON.
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
    /// Values made of the arguments before the templates are filled in, in order: an expression like
    /// `items | length`, or a text with `{{ … }}`.
    // Each sees those before it.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub prepare: IndexMap<String, String>,
    /// Tokens of an answer at most. Default: those of `model_preference`.
    #[serde(default, alias = "maxTokens", skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<MaxTokens>,
    /// An example of the result, for the model.
    #[serde(default, alias = "outputExample", alias = "output_example", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-aliases" = ["output_example"]))]
    pub example: Option<Value>,
    /// Other ways of asking, by mode and by model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<Variant>,
    /// Which models it asks, and how. Default: `models.default`.
    #[serde(default, alias = "modelPreference", skip_serializing_if = "is_default")]
    pub model_preference: ModelPreference,
    /// Benchmark score from which a model is recommended for it. Default 100.
    #[serde(default = "hundred", alias = "recommendedThreshold")]
    #[schemars(range(min = 0, max = 100))]
    pub recommended_threshold: u8,
    /// Labels for search, filters and policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What to do when an answer breaks the output schema: `error`, the default, makes it a failed attempt, `warn` passes it on
    /// with a warning.
    #[serde(default = "error", alias = "onOutputMismatch", skip_serializing_if = "is_error")]
    pub on_output_mismatch: OnOutputMismatch,
    /// How it is called and explained.
    #[serde(flatten)]
    pub guidance: Guidance,
}

/// One way of asking; what it does not say is as in the tool. Chosen by the caller's mode, then by the model's name.
// Fields that describe the tool before a model is chosen (id, title, description, parameters, threshold, tags) are the
// definition's alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Variant {
    /// Its name.
    // Unique in the tool.
    pub id: String,
    /// The mode that it belongs to; `call --mode` names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Parts of `provider/model` that make it that model's.
    // The whole of it makes it so before others.
    #[serde(alias = "providerMatch", deserialize_with = "one_or_more", skip_serializing_if = "Vec::is_empty")]
    pub provider_match: Vec<String>,
    /// Whether it is taken where no `provider_match` decides. Default false.
    #[serde(alias = "isDefault", skip_serializing_if = "std::ops::Not::not")]
    pub is_default: bool,
    /// In place of the tool's.
    #[serde(alias = "outputSchema", skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// In place of the tool's.
    #[serde(alias = "systemPrompt", alias = "system_prompt", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-aliases" = ["system_prompt"]))]
    pub system: Option<String>,
    /// In place of the tool's.
    #[serde(
        alias = "userPrompt",
        alias = "user_prompt",
        alias = "userPromptTemplate",
        alias = "user_prompt_template",
        alias = "userTemplate",
        alias = "user_template",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("x-aliases" = ["user_template", "user_prompt", "user_prompt_template"]))]
    pub user: Option<String>,
    /// In place of the tool's.
    #[serde(
        alias = "outputType",
        alias = "output_type",
        alias = "outputFormat",
        alias = "output_format",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("x-aliases" = ["output_format", "output_type"]))]
    pub output: Option<OutputKind>,
    /// In place of the tool's, as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare: Option<IndexMap<String, String>>,
    /// In place of the tool's.
    #[serde(alias = "maxTokens", skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<MaxTokens>,
    /// In place of the tool's.
    #[serde(alias = "outputExample", alias = "output_example", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-aliases" = ["output_example"]))]
    pub example: Option<Value>,
    /// In place of the tool's temperature, token limit and settings.
    // Its models have been chosen by then.
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

/// Under what a list stands that is a result.
pub const ITEMS: &str = "items";

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
            on_output_mismatch: error(),
            guidance: Guidance::default(),
        }
    }

    /// The same where the output is a list, the tool's or a variant's: structured results are objects, so it stands in one, under
    /// `items`.
    #[must_use]
    pub fn with_listed_output(mut self) -> Self {
        let own = self.output_schema.as_ref().is_some_and(is_list);
        for variant in &mut self.variants {
            let is_listed = variant.output_schema.as_ref().map_or(own, is_list);
            listed(variant.output_schema.as_mut(), variant.example.as_mut(), is_listed);
        }
        listed(self.output_schema.as_mut(), self.example.as_mut(), own);
        self
    }

    /// What the answer is.
    #[must_use]
    pub fn output_kind(&self) -> OutputKind {
        let by_schema = if self.output_schema.is_some() { OutputKind::Json } else { OutputKind::Text };
        self.output.unwrap_or(by_schema)
    }

    /// The tool as the catalogue holds it: it only reads, twice is the same as once, and its arguments leave the
    /// program. The prompts are its declaration, so that a change of them is a change of the tool.
    #[must_use]
    pub fn tool(&self) -> ToolDefinition {
        let mut tool = ToolDefinition {
            title: self.title.clone(),
            output_schema: self.promised(),
            tags: self.tags.clone(),
            effects: Effects::FETCH,
            on_output_mismatch: self.on_output_mismatch,
            model_preference: (!is_default(&self.model_preference)).then(|| self.model_preference.clone()),
            recommended_threshold: self.recommended_threshold,
            declaration: Some(self.declaration()),
            ..ToolDefinition::new(self.id.clone(), self.description.clone(), Some(self.parameters.clone()))
        };
        self.guidance.apply(&mut tool);
        tool
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

/// Whether a schema is that of a list, itself or by a reference to a place in it.
fn is_list(schema: &Value) -> bool {
    let referred = || schema["$ref"].as_str().and_then(|reference| schema.pointer(reference.strip_prefix('#')?));
    schema["type"] == "array" || referred().is_some_and(|referred| referred["type"] == "array")
}

/// Puts a list into an object, and its example.
fn listed(schema: Option<&mut Value>, example: Option<&mut Value>, is_listed: bool) {
    if let Some(schema) = schema.filter(|_| is_listed) {
        let mut items = schema.take();
        let mut object = json!({"type": "object", "required": [ITEMS], "additionalProperties": false});
        // References are to places in the whole of it.
        for key in SHARED {
            if let Some(shared) = items.as_object_mut().and_then(|items| items.shift_remove(key)) {
                object[key] = shared;
            }
        }
        moved(&mut items);
        for key in SHARED {
            object.get_mut(key).into_iter().for_each(moved);
        }
        object["properties"] = json!({ITEMS: items});
        *schema = object;
    }
    if let Some(example) = example.filter(|example| is_listed && example.is_array()) {
        *example = json!({ITEMS: example.take()});
    }
}

/// What of a schema stays at its root.
const SHARED: [&str; 3] = ["$schema", "$defs", "definitions"];

/// Has references point to where the list now is.
fn moved(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                let place = value.as_str().filter(|_| key == "$ref").and_then(|text| text.strip_prefix('#'));
                let stays = |place: &&str| !place.starts_with("/$defs/") && !place.starts_with("/definitions/");
                match place.filter(|place| place.is_empty() || place.starts_with('/')).filter(stays) {
                    Some(place) => *value = format!("#/properties/{ITEMS}{place}").into(),
                    None => moved(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(moved),
        _ => {}
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

impl TemplateDefinition {
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

impl Variant {
    /// The definition with what this variant says otherwise.
    #[must_use]
    pub fn over(&self, definition: &LlmDefinition) -> LlmDefinition {
        let mut over = LlmDefinition { variants: Vec::new(), ..definition.clone() };
        let Self { system, user, prepare, model_preference, .. } = self.clone();
        over.system = system.unwrap_or(over.system);
        over.user = user.unwrap_or(over.user);
        over.prepare = prepare.unwrap_or(over.prepare);
        over.model_preference = model_preference.unwrap_or(over.model_preference);
        over.output = self.output.or(over.output);
        over.max_tokens = self.max_tokens.or(over.max_tokens);
        over.output_schema = self.output_schema.clone().or(over.output_schema);
        over.example = self.example.clone().or(over.example);
        over
    }
}

impl LlmDefinition {
    /// The variant for `model`, `provider/model`, in the mode that the caller named. Of those with that mode, or of all
    /// where none has it or none was named: the one that names exactly this model, the first that names a part of it,
    /// the default, the first. `None` where there are none.
    #[must_use]
    pub fn variant(&self, mode: Option<&str>, model: &str) -> Option<&Variant> {
        let in_mode = |variant: &&Variant| mode.is_some() && variant.mode.as_deref() == mode;
        let named: Vec<&Variant> = self.variants.iter().filter(in_mode).collect();
        let choice = if named.is_empty() { self.variants.iter().collect() } else { named };
        let matches = |variant: &&&Variant| variant.provider_match.iter().any(|part| model.contains(part.as_str()));
        let exact = choice.iter().find(|variant| variant.provider_match.iter().any(|part| part == model));
        let matching = || choice.iter().find(matches);
        let default = || choice.iter().find(|variant| variant.is_default);
        exact.or_else(matching).or_else(default).or_else(|| choice.first()).copied()
    }

    /// The modes that a caller may name, in order, each once.
    #[must_use]
    pub fn modes(&self) -> Vec<&str> {
        let mut modes: Vec<&str> = Vec::new();
        for mode in self.variants.iter().filter_map(|variant| variant.mode.as_deref()) {
            if !modes.contains(&mode) {
                modes.push(mode);
            }
        }
        modes
    }
}

/// A definition as it is written in a file, of what every one has and more.
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
    fn lists_stand_in_objects_wherever_they_are_declared() {
        let list = json!({"type": "array", "items": {"anyOf": [{"type": "string"}, {"$ref": "#"}]}});
        let by_reference =
            json!({"$ref": "#/$defs/l", "$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}}});
        let object = json!({"type": "object", "properties": {"l": {"type": "array"}}});
        let variants = json!([
            {"id": "a", "outputSchema": by_reference, "outputExample": [[]]}, {"id": "b", "outputExample": ["x"]},
            {"id": "c", "outputSchema": object, "outputExample": {"l": []}},
        ]);
        let written = written(json!({"outputSchema": list, "outputExample": [[]], "variants": variants}));
        let definition = written.expect("a definition").with_listed_output();
        definition.check().expect("sound");
        let own = definition.output_schema.as_ref().expect("a schema");
        assert_eq!(own["properties"][ITEMS]["items"]["anyOf"][1], json!({"$ref": "#/properties/items"}));
        let schema = |at: usize| definition.variants[at].output_schema.as_ref();
        let (first, third) = (schema(0).expect("one"), schema(2).expect("one"));
        assert_eq!(
            (&first["properties"][ITEMS]["$ref"], &first["$defs"]["l"]["type"]),
            (&json!("#/$defs/l"), &json!("array"))
        );
        assert_eq!((schema(1), third), (None, &object));
        let examples: Vec<_> =
            definition.variants.iter().map(|variant| variant.example.clone().expect("one")).collect();
        assert_eq!(examples, [json!({"items": [[]]}), json!({"items": ["x"]}), json!({"l": []})]);
        assert_eq!(definition.example, Some(json!({"items": [[]]})));
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

    fn definition(variants: Vec<Variant>) -> LlmDefinition {
        let id = ToolId::parse("x:t@1.0.0").expect("an id");
        LlmDefinition { variants, ..LlmDefinition::new(id, "d", json!({"type": "object"}), "system", "user") }
    }

    fn variant(id: &str, mode: Option<&str>, parts: &[&str], is_default: bool) -> Variant {
        Variant {
            id: id.to_owned(),
            mode: mode.map(str::to_owned),
            provider_match: parts.iter().map(|part| (*part).to_owned()).collect(),
            is_default,
            ..Variant::default()
        }
    }

    #[test]
    fn variant_is_chosen_by_mode_then_model() {
        let all = definition(vec![
            variant("first", None, &[], false),
            variant("mini", None, &["mini", "nano"], false),
            variant("gpt", None, &["gpt"], false),
            variant("exact", None, &["openai/gpt-5-mini"], false),
            variant("default", None, &[], true),
            variant("brief", Some("brief"), &[], false),
            variant("brief-mini", Some("brief"), &["mini"], false),
        ]);
        for (mode, model, expect) in [
            (None, "openai/gpt-5-mini", "exact"),
            (None, "openai/gpt-5-mini-2", "mini"),
            (None, "openai/gpt-5", "gpt"),
            (None, "anthropic/claude", "default"),
            (Some("brief"), "anthropic/claude", "brief"),
            (Some("brief"), "openai/gpt-5-mini", "brief-mini"),
            (Some("unheard-of"), "openai/gpt-5", "gpt"),
        ] {
            let got = all.variant(mode, model).map(|variant| variant.id.as_str());
            assert_eq!(got, Some(expect), "{mode:?} {model}");
        }
        let few = definition(vec![variant("a", None, &["x"], false), variant("b", None, &["y"], false)]);
        assert_eq!(few.variant(None, "p/m").map(|variant| variant.id.as_str()), Some("a"));
        assert_eq!(definition(Vec::new()).variant(Some("brief"), "p/m"), None);
        assert_eq!(all.modes(), ["brief"]);
    }

    #[test]
    fn a_variant_says_some_things_otherwise() {
        let variant = Variant { system: Some("mine".to_owned()), ..variant("a", None, &[], false) };
        let over = variant.over(&definition(vec![variant.clone()]));
        assert_eq!((over.system.as_str(), over.user.as_str(), over.variants.len()), ("mine", "user", 0));
    }
}
