//! `selection`: which tools a model is shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_agent::DEFAULT_PICK_SIZE;

use toolwright_core::setting::TimeSpan;

/// `selection`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SelectionSection {
    /// How the catalogue is put before a model.
    pub exposure: ExposureSetting,
    /// How tools are scored, by `pick`, `tools__search` and the exposure `pick`.
    pub scorer: ScorerSetting,
    /// Tools that `pick` gives at most.
    #[schemars(range(min = 1, max = 1000))]
    pub max_candidates: usize,
    /// The least score, from 0 to 1, of a tool that is picked.
    #[schemars(range(min = 0, max = 1))]
    pub min_score: f64,
    /// How long scoring may take, embeddings and judge included; after that what is at hand counts: words, else the
    /// order of registration.
    pub timeout: TimeSpan,
    /// Tools that the exposure `pick` takes for a task at most, besides those that are pinned, found or called; fewer
    /// where their definitions are large.
    #[schemars(range(min = 1, max = 128))]
    pub pick_size: usize,
    /// Tools that every exposure shows, as globs on ids and wire names.
    pub pinned: Vec<String>,
    /// Sentence embeddings; without them scores go by words alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embeddings: Option<Embeddings>,
    /// The model, `provider/model`, that the scorer `judge` asks. Each pick is a request to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge_model: Option<String>,
}

impl Default for SelectionSection {
    fn default() -> Self {
        Self {
            exposure: ExposureSetting::Auto,
            scorer: ScorerSetting::Auto,
            max_candidates: 3,
            min_score: 0.05,
            timeout: TimeSpan::seconds(10),
            pick_size: DEFAULT_PICK_SIZE,
            pinned: Vec::new(),
            embeddings: None,
            judge_model: None,
        }
    }
}

/// How the catalogue is put before a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExposureSetting {
    /// `direct` while the tools are few and small, else `deferred` where the API has it, else `search`.
    #[default]
    Auto,
    /// All tools, whole.
    Direct,
    /// The tools that fit the conversation best, turn by turn.
    Pick,
    /// The API's own tool search: all tools are declared, and come before the model when it looks for them.
    Deferred,
    /// Three tools that find, describe and call the others.
    Search,
}

/// How tools are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScorerSetting {
    /// By words, task by task where a query has several; where embeddings are configured, put together with meaning,
    /// which weighs the less the more it looks like chance.
    #[default]
    Auto,
    /// The share of the query's words that a tool has.
    Keyword,
    /// BM25 over the fields of a tool.
    Bm25,
    /// Cosine of sentence embeddings.
    Embedding,
    /// BM25 and embeddings.
    Hybrid,
    /// A model's judgement of what `auto` finds.
    Judge,
}

/// Where sentence embeddings come from: `path`, or `url` and `model`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Embeddings {
    /// Directory of a sentence-transformer: `config.json`, `tokenizer.json`, `model.safetensors`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Base address of an API, like `https://api.openai.com/v1` or `http://localhost:11434`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The API that `url` speaks.
    pub api: EmbeddingApi,
    /// The model to ask `url` for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Key, best as `${VAR}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
}

/// An embeddings API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EmbeddingApi {
    /// `POST /embeddings` as `OpenAI` has it, and whatever is compatible with it.
    #[default]
    Openai,
    /// `POST /api/embed` as Ollama has it.
    Ollama,
}
