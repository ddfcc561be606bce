//! How models answer: what stands in `models` and in the preferences of LLM-backed tools alike.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::model::{Effort, ModelSettings, PromptCache};

use super::llm::LlmPreference;
use super::models::ModelHabits;

/// How much a model thinks before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EffortSetting {
    /// Not at all, or as little as it can.
    None,
    /// Hardly.
    Minimal,
    /// A little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// Very much.
    Xhigh,
    /// As much as it can.
    Max,
}

impl From<EffortSetting> for Effort {
    fn from(effort: EffortSetting) -> Self {
        match effort {
            EffortSetting::None => Self::None,
            EffortSetting::Minimal => Self::Minimal,
            EffortSetting::Low => Self::Low,
            EffortSetting::Medium => Self::Medium,
            EffortSetting::High => Self::High,
            EffortSetting::Xhigh => Self::Xhigh,
            EffortSetting::Max => Self::Max,
        }
    }
}

/// How long a provider is asked to keep what is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CacheSetting {
    /// It is not asked to.
    #[serde(rename = "off")]
    Off,
    /// For five minutes after its last use.
    #[serde(rename = "5m")]
    FiveMinutes,
    /// For an hour after its last use.
    #[serde(rename = "1h")]
    Hour,
}

impl From<CacheSetting> for PromptCache {
    fn from(cache: CacheSetting) -> Self {
        match cache {
            CacheSetting::Off => Self::Off,
            CacheSetting::FiveMinutes => Self::FiveMinutes,
            CacheSetting::Hour => Self::Hour,
        }
    }
}

impl ModelHabits {
    /// How it answers.
    pub(crate) fn settings(&self) -> ModelSettings {
        ModelSettings {
            effort: self.effort.map(Effort::from),
            thinking_tokens: self.thinking_tokens,
            top_p: self.top_p,
            top_k: self.top_k,
            seed: self.seed,
            stop: self.stop.clone(),
            cache: self.cache.map(PromptCache::from),
        }
    }
}

impl LlmPreference {
    /// How its models answer.
    pub(crate) fn settings(&self) -> ModelSettings {
        ModelSettings {
            effort: self.effort.map(Effort::from),
            thinking_tokens: self.thinking_tokens,
            top_p: self.top_p,
            top_k: self.top_k,
            seed: self.seed,
            stop: self.stop.clone(),
            cache: self.cache.map(PromptCache::from),
        }
    }
}
