//! `llm_tools`: tools that a model answers, and texts to fill in.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolwright_core::model::{Effort, PromptCache};

/// `llm`: what holds for all tools that a model answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LlmSection {
    /// File of `toolwright bench` that says which models are recommended for which tools, relative to the workspace root.
    /// Default: `toolwright-compat.json` there, else `models/compat.json` in the state directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compat: Option<String>,
}

/// One tool that a model answers (`user`), or a text that is filled in (`template`). Its name here is its name in the
/// namespace `llm`. One of a shipped tool's name and with neither only changes how that tool is described, which models
/// it asks and how.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LlmToolEntry {
    /// Whether it is used; `false` takes a shipped tool of its name away. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// File that holds the rest, relative to the folder of the file that names it: YAML, or Markdown with front matter whose text is the
    /// user's message (or the parts under `# System` and `# User`, or the template). What stands here counts first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Version of its id. Default 1.0.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Human-readable name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What a model reads to decide whether to call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// JSON Schema of the result, an object; only where the answer is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Template of the system prompt: `{{ name }}` is an argument, `{{ a.b }}` a part of one. What is missing is an
    /// error, null is nothing, and what is no text is written as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Template of the user's message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The text of a tool that asks no model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// What the answer is. Default: JSON where there is an output schema, else text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<LlmOutput>,
    /// Values made of the arguments before the templates are filled in, in order: an expression like
    /// `items | length`, or a text with `{{ … }}`.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub prepare: IndexMap<String, String>,
    /// Tokens of an answer at most. Default: those of `model_preference`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<LlmTokens>,
    /// An example of the result, for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub example: Option<Value>,
    /// Other ways of asking, by mode and by model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<LlmVariant>,
    /// Which models it asks, and how. Default: `models.default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_preference: Option<LlmPreference>,
    /// Benchmark score from which a model is recommended for it. Default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub recommended_threshold: Option<u8>,
    /// Labels for search, filters and policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// What a model's answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LlmOutput {
    /// Text.
    Text,
    /// A JSON value.
    Json,
}

/// How long an answer may be, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LlmTokens {
    /// Of any answer.
    pub base: u32,
    /// More for each token of the prompts. Default 0.
    #[serde(default)]
    pub per_input_token: f64,
    /// At most.
    pub max: u32,
}

/// One way of asking; what it does not say is as in the tool. Chosen by the caller's mode, then by the model's name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LlmVariant {
    /// Its name.
    pub id: String,
    /// The mode that it belongs to; `call --mode` names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Parts of `provider/model` that make it that model's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub provider_match: Vec<String>,
    /// Whether it is taken where no `provider_match` decides. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_default: bool,
    /// In place of the tool's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// In place of the tool's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// In place of the tool's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// In place of the tool's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<LlmOutput>,
    /// In place of the tool's, as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare: Option<IndexMap<String, String>>,
    /// In place of the tool's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<LlmTokens>,
    /// In place of the tool's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub example: Option<Value>,
    /// In place of the tool's temperature, token limit and settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_preference: Option<LlmPreference>,
}

/// Which models a tool asks, `provider/model`, and how.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LlmPreference {
    /// Asked first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred_model: Option<String>,
    /// Asked next, in order, where it fails.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallback_models: Vec<String>,
    /// Tokens of an answer at most; of a shipped tool, of what it works out by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 2.0))]
    pub temperature: Option<f64>,
    /// How much they think before they answer, beside `max_tokens`. Default: as in `models`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Tokens that it may think for, where its API counts them; 0 for none. Counts before `effort` there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 131_072))]
    pub thinking_tokens: Option<u32>,
    /// Share of the likeliest tokens that it samples from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_p: Option<f64>,
    /// How many of the likeliest tokens it samples from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub top_k: Option<u32>,
    /// Seed of its sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 2_147_483_647))]
    pub seed: Option<u32>,
    /// Texts that end its answer, which does not hold them; four at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub stop: Vec<String>,
    /// How long a provider is asked to keep the tool's prompts, whatever their length. Default: a system prompt of 1,024
    /// tokens and more, for as long as `models` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<PromptCache>,
}
