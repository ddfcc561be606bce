//! Configures the answers of a model: reasoning effort, sampling, stop sequences, and prompt caching.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bound on stop sequences. OpenAI's API allows four, and no other fewer.
pub const MAX_STOP: usize = 4;

/// The highest seed: Gemini's is a signed number of 32 bits.
pub const MAX_SEED: u32 = i32::MAX.unsigned_abs();
/// Maximal thinking tokens of a request; no model gives longer answers.
pub const MAX_THINKING_TOKENS: u32 = 131_072;

/// How much a model is to think before it answers. Models know some of these words: one that does not know this one
/// gets the next above, or else the highest that it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
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

impl Effort {
    /// Every effort, the least first.
    pub const ALL: [Self; 7] = [Self::None, Self::Minimal, Self::Low, Self::Medium, Self::High, Self::Xhigh, Self::Max];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Xhigh => "xhigh",
            Self::Max => "max",
        }
    }

    /// Equivalent thinking tokens for APIs that count them, as in
    /// ai.google.dev/gemini-api/docs/openai, "Thinking".
    #[must_use]
    pub fn tokens(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Minimal | Self::Low => 1024,
            Self::Medium => 8192,
            Self::High => 24_576,
            Self::Xhigh | Self::Max => 32_768,
        }
    }
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not the name of an effort.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no effort `{0}`; it is none, minimal, low, medium, high, xhigh or max")]
pub struct UnknownEffort(pub String);

impl FromStr for Effort {
    type Err = UnknownEffort;

    fn from_str(name: &str) -> Result<Self, UnknownEffort> {
        Self::ALL.into_iter().find(|effort| effort.as_str() == name).ok_or_else(|| UnknownEffort(name.to_owned()))
    }
}

/// How long a provider keeps a prompt that it is asked to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PromptCache {
    /// It is not asked to.
    #[serde(rename = "off")]
    Off,
    /// For five minutes after its last use.
    #[serde(rename = "5m")]
    FiveMinutes,
    /// For an hour after its last use; writing it costs more.
    #[serde(rename = "1h")]
    Hour,
}

/// The part of a request that will soon be sent again, and so is worth caching. Not part of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptReuse {
    /// No known part.
    #[default]
    Once,
    /// Its tools and its system prompt, with other messages.
    Prompt,
    /// All of it, followed by further messages.
    Conversation,
}

/// How a model is to answer. What is absent is left to the next who may say it: the request, then the model's
/// configuration, then the API. What an API or a model has no word for is left out of the request.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// How much it thinks before it answers. A model without this level gets the next higher one, or else its highest;
    /// a model that does not think gets none. Default: the provider's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Most tokens of thinking, where its API takes such a limit; 0 turns thinking off. It overrides `effort` there.
    #[serde(alias = "thinkingTokens", skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = MAX_THINKING_TOKENS))]
    pub thinking_tokens: Option<u32>,
    /// Nucleus sampling: it samples from the likeliest tokens up to this total probability.
    #[serde(alias = "topP", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_p: Option<f64>,
    /// It samples from this many of the likeliest tokens.
    #[serde(alias = "topK", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub top_k: Option<u32>,
    /// Seed of its sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = MAX_SEED))]
    pub seed: Option<u32>,
    /// Stop sequences: texts at which its answer ends; the answer does not include them. Four at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_STOP))]
    pub stop: Vec<String>,
    /// How long its provider is asked to cache prompts that are sent again: conversations of agents, and long system
    /// prompts of LLM-backed tools. Default 5m. `off` requests no caching; a provider may still cache by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<PromptCache>,
}

impl ModelSettings {
    /// Whether all settings are absent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Fills absent settings from `other`. Effort and thinking tokens are one setting: either replaces both.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        let thinks = self.effort.is_some() || self.thinking_tokens.is_some();
        Self {
            effort: if thinks { self.effort } else { other.effort },
            thinking_tokens: if thinks { self.thinking_tokens } else { other.thinking_tokens },
            top_p: self.top_p.or(other.top_p),
            top_k: self.top_k.or(other.top_k),
            seed: self.seed.or(other.seed),
            stop: if self.stop.is_empty() { other.stop.clone() } else { self.stop },
            cache: self.cache.or(other.cache),
        }
    }

    /// Tokens of an answer that thinking may take; `None` if not set.
    #[must_use]
    pub fn thinking(&self) -> Option<u32> {
        self.thinking_tokens.or_else(|| self.effort.map(Effort::tokens))
    }

    /// Tokens of an answer that thinking may use, as far as requested.
    #[must_use]
    pub fn thinking_room(&self) -> u32 {
        self.thinking().unwrap_or(0)
    }

    /// Checks that the values are in range.
    ///
    /// # Errors
    /// The field, and its fault.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.top_p.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return Err(("top_p", "it is not between 0 and 1".to_owned()));
        }
        if self.top_k == Some(0) {
            return Err(("top_k", "it is 0".to_owned()));
        }
        if self.seed.is_some_and(|seed| seed > MAX_SEED) {
            return Err(("seed", format!("it is over {MAX_SEED}")));
        }
        if self.thinking_tokens.is_some_and(|tokens| tokens > MAX_THINKING_TOKENS) {
            return Err(("thinking_tokens", format!("they are over {MAX_THINKING_TOKENS}")));
        }
        if self.stop.len() > MAX_STOP {
            return Err(("stop", format!("there are more than {MAX_STOP} texts")));
        }
        if self.stop.iter().any(|text| text.trim().is_empty()) {
            return Err(("stop", "a text is blank".to_owned()));
        }
        Ok(())
    }
}

/// The settings of a request, with what only the client of a served API says.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RequestSettings {
    /// The settings that others may say too.
    #[serde(flatten)]
    pub settings: ModelSettings,
    /// Whether a client asked for thinking in an API that sets it apart from the effort: `Some(false)` if the client set
    /// an effort and no thinking. `None` for all other requests, whose effort turns thinking on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asks_thinking: Option<bool>,
    /// Whether the request's `max_tokens` covers reasoning too, as in the APIs of models: a client set the limit. Other
    /// requests limit the answer, and thinking gets tokens beside it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub limit_covers_reasoning: bool,
}

impl RequestSettings {
    /// Whether all settings are absent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Fills absent settings from `other`, as [`ModelSettings::or`]. What a client asks of thinking replaces effort and
    /// thinking tokens too.
    #[must_use]
    pub fn or(self, other: &ModelSettings) -> Self {
        let (effort, thinking_tokens) = (self.effort, self.thinking_tokens);
        let mut settings = self.settings.or(other);
        if self.asks_thinking.is_some() {
            (settings.effort, settings.thinking_tokens) = (effort, thinking_tokens);
        }
        Self { settings, ..self }
    }
}

impl From<ModelSettings> for RequestSettings {
    fn from(settings: ModelSettings) -> Self {
        Self { settings, ..Self::default() }
    }
}

impl Deref for RequestSettings {
    type Target = ModelSettings;

    fn deref(&self) -> &ModelSettings {
        &self.settings
    }
}

impl DerefMut for RequestSettings {
    fn deref_mut(&mut self) -> &mut ModelSettings {
        &mut self.settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nearer_settings_win_and_thinking_counts() {
        let read = |value| serde_json::from_value::<RequestSettings>(value).expect("settings");
        for (near, far, expect) in [
            (json!({}), json!({"effort": "low", "top_k": 3}), json!({"effort": "low", "top_k": 3})),
            (json!({"effort": "none"}), json!({"effort": "max", "thinking_tokens": 9}), json!({"effort": "none"})),
            (json!({"thinking_tokens": 9}), json!({"effort": "max"}), json!({"thinking_tokens": 9})),
            (json!({"asks_thinking": true}), json!({"effort": "max"}), json!({"asks_thinking": true})),
            (json!({"cache": "off"}), json!({"cache": "1h", "seed": 4}), json!({"cache": "off", "seed": 4})),
            (json!({"stop": ["a"]}), json!({"stop": ["b", "c"], "top_p": 0.5}), json!({"stop": ["a"], "top_p": 0.5})),
        ] {
            assert_eq!(json!(read(near.clone()).or(&read(far.clone()))), expect, "{near} or {far}");
        }
        for unknown in ["efort", "asks_thinking", "limit_covers_reasoning"] {
            assert!(serde_json::from_value::<ModelSettings>(json!({unknown: true})).is_err(), "{unknown}");
        }
    }

    #[test]
    fn invalid_figures_are_refused() {
        let read = |value| serde_json::from_value::<ModelSettings>(value).expect("settings");
        for (settings, field) in [
            (json!({"top_p": 1.0, "top_k": 1, "thinking_tokens": 0, "stop": ["a", "b", "c", "d"]}), None),
            (json!({"seed": MAX_SEED, "thinking_tokens": MAX_THINKING_TOKENS}), None),
            (json!({"seed": 2_147_483_648_u32}), Some("seed")),
            (json!({"thinking_tokens": u32::MAX}), Some("thinking_tokens")),
            (json!({"top_p": 1.1}), Some("top_p")),
            (json!({"top_k": 0}), Some("top_k")),
            (json!({"stop": ["a", "b", "c", "d", "e"]}), Some("stop")),
            (json!({"stop": [" "]}), Some("stop")),
        ] {
            assert_eq!(read(settings.clone()).check().err().map(|(field, _)| field), field, "{settings}");
        }
    }

    #[test]
    fn efforts_are_parsed_by_name() {
        for effort in Effort::ALL {
            assert_eq!((effort.as_str().parse(), json!(effort)), (Ok(effort), json!(effort.as_str())));
        }
        assert!("lots".parse::<Effort>().is_err());
        assert!(Effort::ALL.is_sorted() && Effort::ALL.map(Effort::tokens).is_sorted());
    }
}
