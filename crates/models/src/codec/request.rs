//! Provides the parts that the encoders share: structured output, cache keys and instructions; and reads from a model's
//! name its maker, its version and the sampling parameters that it accepts.

use serde_json::{Map, Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{ModelRequest, OutputFormat, PromptCache, PromptReuse, RequestTool};

use crate::api::RequestPart;
use crate::dialect::{self, Dialect, translate};

/// The schema of structured output as a dialect has it.
pub(crate) struct OutputSchema {
    /// The schema to send.
    pub schema: Value,
    /// Whether the API can enforce it and the schema allows the requested shapes.
    pub strict: bool,
}

/// Returns the translation that the API can enforce, if there is one with the same shapes; unsupported bounds of values
/// are checked on the response. Otherwise the schema itself without refused patterns, or, for Gemini, which refuses
/// unknown keywords, its translation.
pub(crate) fn output_schema(dialect: Dialect, schema: &Value) -> OutputSchema {
    if let Some(schema) = dialect::response_schema(dialect, schema) {
        return OutputSchema { schema, strict: true };
    }
    let view = || {
        let tool = RequestTool { name: "output".into(), parameters: schema.clone(), ..RequestTool::default() };
        let view = translate(dialect, &[tool], false).tools.pop()?;
        view.wrapped.is_none().then_some(view.parameters)
    };
    let view = if dialect == Dialect::GeminiJsonSchema { view() } else { None };
    let plain = || {
        let takes = if dialect == Dialect::OpenAi { dialect::is_regular } else { |_: &str| false };
        dialect::in_words(schema, takes).into_owned()
    };
    OutputSchema { schema: view.unwrap_or_else(plain), strict: false }
}

/// Returns the instruction for the answer's format, for APIs without a parameter for it.
pub(crate) fn output_instruction(output: &OutputFormat) -> String {
    match &output.schema {
        None => "Your final answer is one JSON object and nothing else.".to_owned(),
        Some(schema) => format!(
            "Your final answer is one JSON text and nothing else. It is valid under this JSON Schema:\n{schema}"
        ),
    }
}

/// The system prompt with that instruction at its end, unless it contains it already.
pub(crate) fn with_instruction(system: &str, output: &OutputFormat) -> String {
    let system = system.trim();
    let has_json_word = match &output.schema {
        None => contains_json_word(system),
        Some(schema) => system.contains(&schema.to_string()),
    };
    if has_json_word {
        system.to_owned()
    } else {
        format!("{system}\n\n{}", output_instruction(output)).trim().to_owned()
    }
}

/// Whether a text contains the word "JSON", which OpenAI requires for `json_object`.
pub(crate) fn contains_json_word(text: &str) -> bool {
    text.as_bytes().windows(4).any(|word| word.eq_ignore_ascii_case(b"json"))
}

/// Returns the `prompt_cache_key` by which OpenAI's servers find the caches of a conversation
/// (developers.openai.com/api/docs/guides/prompt-caching): a hash of its beginning, which is equal from turn to turn.
/// Only for requests that will be sent again, and only for OpenAI's own models: other servers may refuse an unknown
/// key.
pub(crate) fn cache_key(request: &ModelRequest, model: &str) -> Option<String> {
    if request.reuse == PromptReuse::Once
        || request.settings.cache == Some(PromptCache::Off)
        || !ModelFamily::of(model).is_openai()
    {
        return None;
    }
    let first = request.messages.first().filter(|_| request.reuse == PromptReuse::Conversation);
    let hash = ContentHash::of_value(&json!([request.system, first])).to_hex();
    Some(format!("tw-{}", &hash[..32]))
}

/// Sets `key` if there is a value.
pub(crate) fn set(body: &mut Map<String, Value>, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        body.insert(key.into(), value.into());
    }
}

/// The placeholder that [`EncodedRequest`](crate::api::EncodedRequest) fills with the serialised tools.
pub(crate) fn tools_place() -> Value {
    json!([])
}

/// A model family whose members support different parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelFamily {
    /// `gpt-5.2-pro`: its version and kind.
    Gpt((u32, u32), ModelKind),
    /// `o4-mini`; 0 for a number that cannot be read.
    O(u32, ModelKind),
    /// `claude-opus-4-8`; no version for a name without one, like `claude-latest`.
    Claude(ClaudeFamily, Option<(u32, u32)>),
    /// `gemini-3-flash-preview`; no version for `gemini-flash-latest`.
    Gemini(Option<(u32, u32)>, ModelKind),
    /// `gpt-oss`, over any API.
    GptOss,
    /// Any other.
    Other,
}

/// The words of a name that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelKind {
    Plain,
    /// Does not reason, or has no effort setting.
    Chat,
    Pro,
    Codex,
    CodexMax,
    Flash,
    FlashLite,
}

/// The lines of Claude.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaudeFamily {
    Opus,
    Sonnet,
    Haiku,
    /// Fable and Mythos.
    Fable,
    Other,
}

impl ModelFamily {
    /// Returns the family of `model`, the name without its provider.
    pub(crate) fn of(model: &str) -> Self {
        let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
        // A fine-tuned model is named after its base model.
        let name = name.trim_start_matches("ft:");
        if let Some((_, claude)) = name.split_once("claude-") {
            return Self::Claude(ClaudeFamily::of(claude), claude_version(claude));
        }
        if let Some(gemini) = name.strip_prefix("gemini-") {
            return Self::Gemini(dotted(gemini), ModelKind::of(gemini));
        }
        if name.starts_with("gpt-oss") {
            return Self::GptOss;
        }
        if let Some(gpt) = name.strip_prefix("gpt-").filter(|gpt| gpt.starts_with(|c: char| c.is_ascii_digit())) {
            return match dotted(gpt).unwrap_or((u32::MAX, 0)) {
                // Names at Azure had no dot: `gpt-35-turbo`.
                (35, 0) => Self::Gpt((3, 5), ModelKind::of(gpt)),
                version => Self::Gpt(version, ModelKind::of(gpt)),
            };
        }
        if name.starts_with("chatgpt-") {
            return Self::Gpt((4, 0), ModelKind::Chat);
        }
        match name.strip_prefix('o').filter(|o| o.starts_with(|c: char| c.is_ascii_digit())) {
            Some(o) => Self::O(leading(o).unwrap_or(0), ModelKind::of(o)),
            None => Self::Other,
        }
    }

    /// Whether it is one of OpenAI's own.
    pub(crate) fn is_openai(self) -> bool {
        matches!(self, Self::Gpt(..) | Self::O(..))
    }

    /// Whether it is a reasoning model of OpenAI.
    pub(crate) fn is_reasoning_openai(self) -> bool {
        matches!(self, Self::O(..)) || self.is_gpt_since_5() && !matches!(self, Self::Gpt((5, 0), ModelKind::Chat))
    }

    /// Maximal tokens of one answer, including reasoning, of models that think and answer 400 to more
    /// (platform.claude.com/docs/en/about-claude/models/overview, developers.openai.com/api/docs/models,
    /// ai.google.dev/gemini-api/docs/models; the limit of Vertex is 65,535, that of the others one more).
    pub(crate) fn max_output(self) -> Option<u32> {
        match self {
            Self::Claude(ClaudeFamily::Opus, Some((4, ..=1))) => Some(32_000),
            Self::Claude(_, Some((3, 7) | (4, ..=5))) => Some(64_000),
            Self::Claude(ClaudeFamily::Fable, _) | Self::Claude(_, Some((4.., _))) => Some(128_000),
            Self::Gpt((5.., _), ModelKind::Chat) => Some(16_384),
            Self::Gpt((5, 0), ModelKind::Pro) => Some(272_000),
            Self::Gpt((5.., _), _) => Some(128_000),
            Self::O(..) => Some(100_000),
            Self::Gemini(None | Some((2, 5..) | (3.., _)), _) => Some(65_535),
            _ => None,
        }
    }

    fn is_gpt_since_5(self) -> bool {
        matches!(self, Self::Gpt((5.., _), _))
    }
}

impl ModelKind {
    fn of(name: &str) -> Self {
        let has = |word: &str| name.split(['-', '@', ':', '.']).any(|part| part == word);
        match () {
            () if has("chat") => Self::Chat,
            () if has("codex") && has("max") => Self::CodexMax,
            () if has("codex") => Self::Codex,
            () if has("flash") && has("lite") => Self::FlashLite,
            () if has("flash") => Self::Flash,
            () if has("pro") => Self::Pro,
            () => Self::Plain,
        }
    }
}

impl ClaudeFamily {
    fn of(name: &str) -> Self {
        let has = |word: &str| name.split(['-', '@', ':', '.']).any(|part| part == word);
        match () {
            () if has("opus") => Self::Opus,
            () if has("sonnet") => Self::Sonnet,
            () if has("haiku") => Self::Haiku,
            () if has("fable") || has("mythos") => Self::Fable,
            () => Self::Other,
        }
    }
}

/// The version in the name of a model after `claude-`: `opus-4-7`, `3-5-sonnet-20241022`, `sonnet-4@20250514`.
fn claude_version(name: &str) -> Option<(u32, u32)> {
    let mut words = name.split(['-', '@', '.', ':']).skip_while(|word| leading(word).is_none());
    let major = leading(words.next()?)?;
    // More digits are a date.
    let minor = words.next().filter(|word| word.len() <= 2).and_then(leading);
    Some((major, minor.unwrap_or(0)))
}

/// The version that a text begins with, `5.2` or `5`.
fn dotted(text: &str) -> Option<(u32, u32)> {
    let major = leading(text)?;
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    Some((major, rest.strip_prefix('.').and_then(leading).unwrap_or(0)))
}

/// The number that a text begins with.
fn leading(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Whether `model` (the name without its provider) may be sent a temperature.
///
/// OpenAI's reasoning models refuse one ("'temperature' does not support 0 with this model"), and so does every model
/// of Anthropic's since Opus 4.7 ("`temperature` is deprecated for this model"). Other makers' models take one. A model
/// that takes a temperature also takes `top_p` and `top_k` if the API has them; the same holds for `stop` of OpenAI's
/// models ("'stop' is not supported with this model").
pub(crate) fn takes_temperature(model: &str) -> bool {
    match ModelFamily::of(model) {
        ModelFamily::Claude(_, version) => version.is_some_and(|version| version < (4, 7)),
        maker => !maker.is_reasoning_openai(),
    }
}

/// Whether `model` refuses a temperature beside `top_p`: Anthropic's since Opus 4.1 ("`temperature` and `top_p` cannot
/// both be specified for this model").
pub(crate) fn excludes_temperature_with_top_p(model: &str) -> bool {
    matches!(ModelFamily::of(model), ModelFamily::Claude(_, Some(version)) if version >= (4, 1))
}

/// The API's names of the sampling parameters; `None` for missing ones.
#[derive(Default)]
pub(crate) struct SamplingNames {
    pub temperature: Option<&'static str>,
    pub top_p: Option<&'static str>,
    pub top_k: Option<&'static str>,
    pub seed: Option<&'static str>,
    pub stop: Option<&'static str>,
}

/// Writes the sampling parameters of `request` that API and `model` support into `place`, and notes the others.
pub(crate) fn write_sampling(
    place: &mut Map<String, Value>,
    request: &ModelRequest,
    model: &str,
    names: &SamplingNames,
    losses: &mut Vec<RequestPart>,
) {
    let settings = &request.settings;
    let samples = takes_temperature(model);
    let mut put = |part, name: Option<&'static str>, is_taken: bool, value: Option<Value>| match (name, value) {
        (_, None) => {}
        (Some(name), value) if is_taken => set(place, name, value),
        _ => losses.push(part),
    };
    put(RequestPart::Temperature, names.temperature, samples, request.temperature.map(Value::from));
    let takes_top_p = samples && !(request.temperature.is_some() && excludes_temperature_with_top_p(model));
    put(RequestPart::TopP, names.top_p, takes_top_p, settings.top_p.map(Value::from));
    put(RequestPart::TopK, names.top_k, samples, settings.top_k.map(Value::from));
    put(RequestPart::Seed, names.seed, true, settings.seed.map(Value::from));
    let stop = (!settings.stop.is_empty()).then(|| settings.stop.clone().into());
    put(RequestPart::Stop, names.stop, !ModelFamily::of(model).is_reasoning_openai(), stop);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_name_gives_maker_and_version() {
        for (name, expect) in [
            ("gpt-4o-mini", ModelFamily::Gpt((4, 0), ModelKind::Plain)),
            ("ft:gpt-4.1-mini-2025:acme::a1", ModelFamily::Gpt((4, 1), ModelKind::Plain)),
            ("gpt-35-turbo-16k", ModelFamily::Gpt((3, 5), ModelKind::Plain)),
            ("openai/GPT-5.2-pro-2025-12-11", ModelFamily::Gpt((5, 2), ModelKind::Pro)),
            ("gpt-5-chat-latest", ModelFamily::Gpt((5, 0), ModelKind::Chat)),
            ("gpt-5.1-codex-max", ModelFamily::Gpt((5, 1), ModelKind::CodexMax)),
            ("gpt-5-codex", ModelFamily::Gpt((5, 0), ModelKind::Codex)),
            ("openai/gpt-oss-120b", ModelFamily::GptOss),
            ("o4-mini-2025-04-16", ModelFamily::O(4, ModelKind::Plain)),
            ("olmo-2", ModelFamily::Other),
            ("gpt-neo", ModelFamily::Other),
            ("claude-3-5-sonnet-20241022", ModelFamily::Claude(ClaudeFamily::Sonnet, Some((3, 5)))),
            ("eu.anthropic.claude-opus-4-7-v1:0", ModelFamily::Claude(ClaudeFamily::Opus, Some((4, 7)))),
            ("claude-sonnet-4@20250514", ModelFamily::Claude(ClaudeFamily::Sonnet, Some((4, 0)))),
            ("claude-fable-5-1", ModelFamily::Claude(ClaudeFamily::Fable, Some((5, 1)))),
            ("claude-mythos-preview", ModelFamily::Claude(ClaudeFamily::Fable, None)),
            ("gemini-3-flash-preview", ModelFamily::Gemini(Some((3, 0)), ModelKind::Flash)),
            ("models/gemini-2.5-flash-lite", ModelFamily::Gemini(Some((2, 5)), ModelKind::FlashLite)),
            ("gemini-3.1-pro-preview", ModelFamily::Gemini(Some((3, 1)), ModelKind::Pro)),
            ("gemini-flash-latest", ModelFamily::Gemini(None, ModelKind::Flash)),
            ("gemma-3", ModelFamily::Other),
            ("qwen3:8b", ModelFamily::Other),
        ] {
            assert_eq!(ModelFamily::of(name), expect, "{name}");
        }
    }

    #[test]
    fn model_name_decides_whether_temperature_is_sent() {
        for (takes, names) in [
            (true, "ft:gpt-4o-mini-2024-07-18:acme::a1"),
            (false, "ft:gpt-5-mini-2025-08-07:acme::a1 openai/ft:o4-mini-2025-04-16:acme:x:b2"),
            (true, "gpt-4.1 gpt-4o-mini gpt-3.5-turbo gpt-5-chat-latest gpt-oss:20b openai/gpt-oss-120b qwen3:8b"),
            (true, "olmo-2 o llama-4 mistral-large gemini-3-pro some-model meta/opt-1"),
            (
                false,
                "o1 o3-mini o4-mini-2025-04-16 gpt-5 gpt-5-mini gpt-5.2-chat-latest openai/gpt-5.6-sol gpt-6-astra GPT-5",
            ),
            (true, "claude-2.1 claude-3-opus-20240229 claude-3-5-sonnet-20241022 claude-3-7-sonnet-latest"),
            (true, "claude-opus-4-20250514 claude-sonnet-4@20250514 claude-opus-4-5-20251101 claude-haiku-4-5"),
            (true, "claude-sonnet-4-6 anthropic/claude-opus-4.6 us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
            (
                false,
                "claude-opus-4-7 claude-opus-4-8 claude-opus-5 claude-sonnet-5-5 claude-fable-5 claude-mythos-preview",
            ),
            (false, "anthropic/claude-opus-4.8 eu.anthropic.claude-opus-4-7-v1:0 claude-latest"),
        ] {
            for name in names.split(' ') {
                assert_eq!(takes_temperature(name), takes, "{name}");
            }
        }
    }
}
