//! What is said of models, other than where they are.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::model::{Effort, PromptCache};

use super::sections::ModelEndpoint;
use super::selection::ExposureSetting;
use toolwright_core::setting::TimeSpan;

/// `models`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Models {
    /// The model of `run` and `chat` where `--model` names none: `provider/model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// The model that judges rubrics in `toolwright bench`: `provider/model`. Default: `default`, where that is none of the
    /// models that are measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<String>,
    /// Places that answer model requests, by the name before the first `/` of a model id. They are
    /// added to those that the environment names.
    #[schemars(extend("x-entries" = true))]
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub endpoints: IndexMap<String, ModelEndpoint>,
    /// How requests to a model are made: by model id (`provider/model`), or by the name of its provider for
    /// all of its models. The nearer name counts.
    #[serde(flatten)]
    pub by_name: IndexMap<String, ModelOverrides>,
}

/// How requests to a model are made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOverrides {
    /// The text format of its tool calls, for a model that has none of its own over its API: the tools then
    /// stand in the system prompt and calls are read from its text. `auto` goes by the model's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_format: Option<String>,
    /// Whether to ask for strict decoding of tools whose author left it open. It is granted where the API has
    /// it and the strict form of a schema says the same as the schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict_tools: Option<bool>,
    /// How the catalogue is put before it; beats `selection.exposure`. `deferred` here also says that its endpoint
    /// loads deferred tools, where that is not known of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposure: Option<ExposureSetting>,
    /// Tokens that it takes in, for the choice of the exposure and to make room in long conversations; without it,
    /// 128,000 are assumed for that choice, and room is made when its API says that a conversation is too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024))]
    pub window: Option<usize>,
    /// Its `tokenizer.json`, or the directory with it, relative to the workspace root: long conversations are counted by it
    /// near the window. It is read when that is first needed. Default: tokens are estimated, and the estimate is
    /// corrected by what the API reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// Tokens that one of its answers may have: a request for more asks for that many.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_output: Option<u32>,
    /// How much it thinks before it answers. A model that does not know the word gets the next above that it knows, or
    /// else the highest; one that does not think gets none. Default: what its provider has for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Tokens that it may think for, where its API counts them; 0 for none. Counts before `effort` there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 131_072))]
    pub thinking_tokens: Option<u32>,
    /// Sampling temperature of requests that say none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 2.0))]
    pub temperature: Option<f64>,
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
    /// How long its provider is asked to keep what is sent again: the conversations of agents, and long system prompts of
    /// LLM-backed tools. Default 5m. `off` asks for nothing; a provider that keeps prompts unasked does so still.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<PromptCache>,
    /// How long Ollama keeps it in memory after an answer. Default: as Ollama is set up, 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<TimeSpan>,
    /// How its requests wait for each other, those of all agents, tools and servers together. Under a provider's name
    /// it is one queue for all of its models. Default: a queue for each model, 32 requests at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<ModelQueue>,
    /// When a request that failed is made again: only one that was refused as too many, or that met a provider that is
    /// down or overloaded, and never once an answer has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<ModelRetry>,
    /// Bounds of one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<ModelTimeouts>,
    /// What it costs; without it the cost of its requests is unknown. Changing it needs a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prices: Option<ModelPrices>,
    /// How well it does with tools, by tool id, 0 to 1: your word, before what `toolwright bench` found. With less than 0.8
    /// it is not recommended for the tool. Takes effect without a restart.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub tool_compat: IndexMap<String, f64>,
}

/// The queue of a model. Who waits goes by priority: a request that is made again, then what somebody waits for, then
/// work in the background, then what has time; but nobody waits for ever.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelQueue {
    /// Requests that run at once. Default 32.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub concurrent: Option<usize>,
    /// Requests that may start in any sixty seconds, those that are made again among them. Default: any number. A
    /// provider that says it has had enough holds up the queue in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub requests_per_minute: Option<usize>,
    /// Requests that may wait; one more fails at once, or the newest of the lowest priority where its own is higher. Default
    /// 1024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_waiting: Option<usize>,
    /// How long a request may wait. Default 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_timeout: Option<TimeSpan>,
}

/// When a request is made again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelRetry {
    /// Attempts in all; 1 for never again. Default 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10))]
    pub attempts: Option<u32>,
    /// The longest wait that a provider may ask for; over a longer one the request fails. Default 60s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_wait: Option<TimeSpan>,
}

/// Bounds of one request to a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelTimeouts {
    /// From sending to the first byte of the answer; a local server loads the model in this time. Default 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte: Option<TimeSpan>,
    /// Between two pieces of the answer. What only keeps the connection alive counts as a piece. Default 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<TimeSpan>,
    /// From the first byte of the answer to its end, however steadily it comes. Default 1h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<TimeSpan>,
}

/// US dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelPrices {
    /// What it takes in, other than from its provider's cache.
    #[schemars(range(min = 0.0))]
    pub input: f64,
    /// What it answers.
    #[schemars(range(min = 0.0))]
    pub output: f64,
    /// What it takes in from its provider's cache. Default: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub cached: Option<f64>,
    /// What it takes in and its provider writes to its cache, for the time that `cache` says. Default: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub cache_written: Option<f64>,
}

impl From<ModelPrices> for toolwright_core::model::Prices {
    fn from(ModelPrices { input, output, cached, cache_written }: ModelPrices) -> Self {
        Self { input, output, cached, cache_written }
    }
}
