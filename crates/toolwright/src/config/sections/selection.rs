//! The section `selection`: how tools are scored, picked and shown.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_agent::DEFAULT_PICK_SIZE;
use toolwright_core::exposure::ExposureSetting;
use toolwright_core::setting::TimeSpan;
use toolwright_core::{Secret, duration};
use toolwright_models::EmbeddingsApi;
use toolwright_search::{Cascade, Hybrid, Method, PickConfig, PickOptions};

/// `selection`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct SelectionConfig {
    /// How tools are shown to a model.
    pub exposure: ExposureSetting,
    /// How `pick`, `tools__search` and the exposure `pick` score tools.
    pub scorer: ScorerName,
    /// Which tools are picked, and how many.
    #[serde(flatten)]
    pub pick: PickConfig,
    /// The weights of the scorer `hybrid`. Default: 0.4 for words, 0.6 for meaning, combined by their mean.
    pub hybrid: Hybrid,
    /// The passes of the scorer `cascade`: a cheap one over all tools, an expensive one over the best of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cascade: Option<CascadeConfig>,
    /// How long scoring may take, embeddings and judge included. When the time is over, the scores by words count;
    /// without these, the order of registration.
    #[serde(with = "duration::required")]
    #[schemars(with = "TimeSpan")]
    pub timeout: Duration,
    /// Most tools that the exposure `pick` shows for a task, besides those that are pinned, found or called. It shows
    /// fewer when their definitions are large.
    #[schemars(range(min = 1, max = 128))]
    pub pick_size: usize,
    /// Tools that every exposure shows, as globs on ids and wire names.
    pub pinned: Vec<String>,
    /// Sentence embeddings. Without them tools are scored by words alone.
    #[serde(skip_serializing)]
    pub embeddings: Option<EmbeddingsConfig>,
    /// The model, `provider/model`, that the scorer `judge` asks. Each pick is a request to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge_model: Option<String>,
}

impl Default for SelectionConfig {
    fn default() -> Self {
        Self {
            exposure: ExposureSetting::Auto,
            scorer: ScorerName::Auto,
            pick: PickConfig::default(),
            hybrid: Hybrid::default(),
            cascade: None,
            timeout: Duration::from_secs(10),
            pick_size: DEFAULT_PICK_SIZE,
            pinned: Vec::new(),
            embeddings: None,
            judge_model: None,
        }
    }
}

impl SelectionConfig {
    /// Returns the scoring method of this name.
    #[must_use]
    pub fn method(&self, name: ScorerName) -> Method {
        match name {
            ScorerName::Auto => Method::Auto,
            ScorerName::Keyword => Method::Keyword,
            ScorerName::Bm25 => Method::Bm25,
            ScorerName::Embedding => Method::Embedding,
            ScorerName::Hybrid => Method::Hybrid(self.hybrid),
            ScorerName::Judge => Method::Judge,
            ScorerName::Cascade => {
                let CascadeConfig { first, then, survivors } = self.cascade.clone().unwrap_or_default();
                let pass = |name| match name {
                    // Cascades do not nest.
                    ScorerName::Cascade => Method::Auto,
                    name => self.method(name),
                };
                Method::Cascade(Arc::new(Cascade { first: pass(first), then: pass(then), survivors }))
            }
        }
    }

    /// Returns the options of a pick by this configuration.
    #[must_use]
    pub fn pick_options(&self) -> PickOptions {
        PickOptions {
            config: self.pick.clone(),
            scorer: self.method(self.scorer),
            timeout: Some(self.timeout),
            ..PickOptions::default()
        }
    }
}

/// Where sentence embeddings come from: `path`, or `url` and `model`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EmbeddingsConfig {
    /// Directory of a sentence-transformer: `config.json`, `tokenizer.json`, `model.safetensors`.
    // Absolute after loading.
    #[schemars(with = "Option<String>", extend("x-variables" = "setting"))]
    pub path: Option<PathBuf>,
    /// Base address of an API, like `https://api.openai.com/v1` or `http://localhost:11434`.
    #[schemars(extend("x-variables" = "setting"))]
    pub url: Option<String>,
    /// The API that `url` speaks.
    pub api: EmbeddingsApi,
    /// The model to ask `url` for.
    #[schemars(extend("x-variables" = "setting"))]
    pub model: Option<String>,
    /// Key, best as `${VAR}`.
    #[schemars(with = "Option<String>", extend("x-variables" = "secret"))]
    pub api_key: Option<Secret>,
}

/// A way to score tools that has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScorerName {
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
    /// Two passes, as `selection.cascade` says.
    Cascade,
}

/// `selection.cascade`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CascadeConfig {
    /// How all tools are scored.
    pub first: ScorerName,
    /// How the best of them are scored again. If it fails, the first pass counts.
    pub then: ScorerName,
    /// How many tools the second pass scores.
    #[schemars(range(min = 1, max = 1000))]
    pub survivors: usize,
}

impl Default for CascadeConfig {
    /// First by words, then by meaning among the best fifty.
    fn default() -> Self {
        Self { first: ScorerName::Bm25, then: ScorerName::Embedding, survivors: 50 }
    }
}
