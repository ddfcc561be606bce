//! What the encoders share about requests: structured output, cache keys, instructions.

use serde_json::{Map, Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{ModelRequest, OutputFormat, PromptCache, Reuse, ShownTool};

use super::model_family::ModelFamily;
use crate::dialect::{self, Dialect, translate};

/// The schema of structured output as a dialect has it.
pub(crate) struct OutputSchema {
    /// The schema to send.
    pub schema: Value,
    /// Whether the API can enforce it and it allows the shapes that were asked for.
    pub strict: bool,
}

/// The translation that the API can enforce, if there is one with the same shapes; bounds of values that it lacks are checked
/// on the response. Else the schema itself without the patterns that the API refuses, or for Gemini, which refuses unknown
/// keywords, its translation.
pub(crate) fn output_schema(dialect: Dialect, schema: &Value) -> OutputSchema {
    if let Some(schema) = dialect::response_schema(dialect, schema) {
        return OutputSchema { schema, strict: true };
    }
    let view = || {
        let tool = ShownTool { name: "output".into(), parameters: schema.clone(), ..ShownTool::default() };
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

/// The instruction for the shape of the answer where the API has no parameter for it.
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
    let is_said = match &output.schema {
        None => speaks_of_json(system),
        Some(schema) => system.contains(&schema.to_string()),
    };
    if is_said { system.to_owned() } else { format!("{system}\n\n{}", output_instruction(output)).trim().to_owned() }
}

/// Whether a text contains the word "JSON", which OpenAI requires before it takes `json_object`.
pub(crate) fn speaks_of_json(text: &str) -> bool {
    text.as_bytes().windows(4).any(|word| word.eq_ignore_ascii_case(b"json"))
}

/// The `prompt_cache_key` by which OpenAI's servers find the caches of a conversation
/// (developers.openai.com/api/docs/guides/prompt-caching): a hash of how it begins, which stays the same from turn to turn.
/// Only for requests that will be sent again, and only to OpenAI's own models: other servers may refuse an unknown key.
pub(crate) fn cache_key(request: &ModelRequest, model: &str) -> Option<String> {
    if request.reuse == Reuse::Once
        || request.settings.cache == Some(PromptCache::Off)
        || !ModelFamily::of(model).is_openai()
    {
        return None;
    }
    let first = request.messages.first().filter(|_| request.reuse == Reuse::Conversation);
    let hash = ContentHash::of_value(&json!([request.system, first])).to_hex();
    Some(format!("tw-{}", &hash[..32]))
}

/// Sets `key` if there is a value for it.
pub(crate) fn set(body: &mut Map<String, Value>, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        body.insert(key.into(), value.into());
    }
}

/// The placeholder that [`EncodedRequest`](crate::api::EncodedRequest) fills with the serialised tools.
pub(crate) fn tools_place() -> Value {
    json!([])
}
