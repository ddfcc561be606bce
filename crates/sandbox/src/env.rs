//! Environment variables that children do not inherit.

use std::ffi::OsString;

use toolwright_core::pattern::glob_match;

/// Toolwright's own variables, its token among them, and the keys of model APIs.
const WITHHELD: [&str; 25] = [
    "TOOLWRIGHT_*",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "AZURE_OPENAI_API_KEY",
    "CEREBRAS_API_KEY",
    "COHERE_API_KEY",
    "CO_API_KEY",
    "DASHSCOPE_API_KEY",
    "DEEPSEEK_API_KEY",
    "FIREWORKS_API_KEY",
    "GROQ_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "MISTRAL_API_KEY",
    "MOONSHOT_API_KEY",
    "NVIDIA_API_KEY",
    "OLLAMA_API_KEY",
    "OPENROUTER_API_KEY",
    "PERPLEXITY_API_KEY",
    "REPLICATE_API_TOKEN",
    "TOGETHER_API_KEY",
    "XAI_API_KEY",
];

/// Patterns (`*` and `?`, without regard to case) of the variables that no child inherits unless its
/// configuration says otherwise: Toolwright's own and the keys of model APIs, which are ours to spend.
#[must_use]
pub fn withheld_by_default() -> Vec<String> {
    WITHHELD.map(str::to_owned).to_vec()
}

/// The variables of this process that match one of the patterns.
pub(crate) fn matching(patterns: &[String]) -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        patterns.iter().any(|pattern| glob_match(pattern, &name))
    })
}
