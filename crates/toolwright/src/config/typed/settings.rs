//! How models answer: what stands in `models` and in the preferences of LLM-backed tools alike.

use toolwright_core::model::ModelSettings;

use super::llm::LlmPreference;
use super::models::ModelOverrides;

/// The settings that both hold, field by field: a part that serde flattens would take unknown keys.
macro_rules! settings_of {
    ($($written:ty),*) => {$(
        impl $written {
            /// How its models answer.
            pub(crate) fn settings(&self) -> ModelSettings {
                ModelSettings {
                    effort: self.effort,
                    thinking_tokens: self.thinking_tokens,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    seed: self.seed,
                    stop: self.stop.clone(),
                    cache: self.cache,
                }
            }
        }
    )*};
}

settings_of!(ModelOverrides, LlmPreference);
