//! Variants of an LLM-backed tool: other ways of asking, by the caller's mode and by the model.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::ModelPreference;
use super::llm::{LlmDefinition, MaxTokens, OutputKind};

/// A variant of the tool's prompts and settings; fields that it leaves out are the tool's. It is chosen by the caller's
/// mode, then by the model's name.
// Fields that describe the tool before a model is chosen (id, title, description, parameters, threshold, tags) are the
// definition's alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Variant {
    /// Its name.
    // Unique in the tool.
    pub id: String,
    /// The mode that it belongs to. `call --mode` selects a mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// It is used for models whose `provider/model` contains one of these texts.
    // The whole of it makes it so before others.
    #[serde(alias = "providerMatch", deserialize_with = "one_or_more", skip_serializing_if = "Vec::is_empty")]
    pub provider_match: Vec<String>,
    /// Whether it is used when no `provider_match` decides. Default false.
    #[serde(alias = "isDefault", skip_serializing_if = "std::ops::Not::not")]
    pub is_default: bool,
    /// Replaces the tool's.
    #[serde(alias = "outputSchema", skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Replaces the tool's.
    #[serde(alias = "systemPrompt", alias = "system_prompt", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-aliases" = ["system_prompt"]))]
    pub system: Option<String>,
    /// Replaces the tool's.
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
    /// Replaces the tool's.
    #[serde(
        alias = "outputType",
        alias = "output_type",
        alias = "outputFormat",
        alias = "output_format",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("x-aliases" = ["output_format", "output_type"]))]
    pub output: Option<OutputKind>,
    /// Replaces all of the tool's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare: Option<IndexMap<String, String>>,
    /// Replaces the tool's.
    #[serde(alias = "maxTokens", skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<MaxTokens>,
    /// Replaces the tool's.
    #[serde(alias = "outputExample", alias = "output_example", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-aliases" = ["output_example"]))]
    pub example: Option<Value>,
    /// Replaces the tool's temperature, token limit and settings.
    // Its models have been chosen by then.
    #[serde(alias = "modelPreference", skip_serializing_if = "Option::is_none")]
    pub model_preference: Option<ModelPreference>,
}

fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        More(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(text) => vec![text],
        OneOrMany::More(texts) => texts,
    })
}

impl Variant {
    /// Returns the definition with this variant's overrides.
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
    /// Returns the variant for `model`, `provider/model`, in the caller's mode. Candidates are the variants of that
    /// mode, or all if the mode is unknown or unset. First comes an exact match of the model, then a partial match,
    /// then the default, then the first variant. `None` without variants.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::identity::tool_id::ToolId;

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
    fn a_variant_overrides_some_fields() {
        let variant = Variant { system: Some("mine".to_owned()), ..variant("a", None, &[], false) };
        let over = variant.over(&definition(vec![variant.clone()]));
        assert_eq!((over.system.as_str(), over.user.as_str(), over.variants.len()), ("mine", "user", 0));
    }
}
