//! One request in the form of each API.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{ModelRequest, OutputFormat, PromptCache, Reuse, ShownTool};

use crate::api::{Api, EncodedRequest};
use crate::dialect::{self, Dialect, Toolset, translate};
use crate::maker::Maker;
use crate::shown::{ShownTools, loadable};
use crate::{anthropic, gemini, ollama, openai_chat, responses};

/// Encodes `request` for `model` (the name without its provider), asking for a stream.
///
/// Never fails, and the result is a legal request whatever the history holds: arguments that do not
/// parse are replayed as `{}`, a call without a result gets one that says so, a result without a call is
/// left out, ids and names of past calls are made legal and unique. Tools are shown in the view that the
/// API's dialect gives of them; the definition's own schema is not touched. Tools keep their order. What
/// an API has no word for is left out: a forced call for Ollama, a limit on parallel calls for Gemini, a
/// temperature for models that refuse any; docs/model-differences.md lists all of it.
///
/// Deferred tools go to the two APIs that can load them. Anthropic Messages gets them with `defer_loading`, and
/// a result that loads some as `tool_reference` blocks. OpenAI Responses gets the tool that searches as
/// `tool_search`, past calls of it as `tool_search_call`, and the definitions that a result loads in its
/// `tool_search_output`. Either takes nothing beside what is loaded, so the text of such a result is left
/// out. Names of tools that are not deferred, or not in the request, load nothing.
#[must_use]
pub fn encode(api: Api, request: &ModelRequest, model: &str) -> EncodedRequest {
    encode_shown(request, model, &ShownTools::new(api, &request.tools))
}

/// [`encode`] with the view of the request's tools made beforehand.
#[must_use]
pub fn encode_with(api: Api, request: &ModelRequest, model: &str, tools: &Toolset) -> EncodedRequest {
    encode_shown(request, model, &ShownTools::of(api, Arc::new(tools.clone())))
}

/// [`encode`] with tools that are translated and serialised already.
#[must_use]
pub fn encode_shown(request: &ModelRequest, model: &str, shown: &ShownTools) -> EncodedRequest {
    match shown.api() {
        Api::OpenAiChat => openai_chat::encode(request, model, shown),
        Api::OpenAiResponses => responses::encode(request, model, shown),
        Api::Anthropic => anthropic::encode(request, model, shown),
        Api::Gemini => gemini::encode(request, model, shown),
        Api::Ollama => ollama::encode(request, model, shown),
    }
}

/// The `tools` of a request to `api`, exactly as [`encode_with`] sends them. Tools that the view
/// quarantines are not among them.
#[must_use]
pub fn tools_json(api: Api, tools: &Toolset) -> Value {
    let set = loadable(api, Arc::new(tools.clone()));
    // Writing to memory does not fail.
    serde_json::to_value(Tools { api, set: &set }).unwrap_or_default()
}

/// The `tools` of a request, written without a copy of their schemas.
pub(crate) struct Tools<'a> {
    pub api: Api,
    pub set: &'a Toolset,
}

impl Serialize for Tools<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let views = self.set.tools.iter();
        match self.api {
            Api::OpenAiChat | Api::Ollama => serializer.collect_seq(views.map(openai_chat::tool)),
            Api::OpenAiResponses => serializer.collect_seq(responses::tools(self.set)),
            Api::Anthropic => serializer.collect_seq(views.map(anthropic::tool)),
            Api::Gemini => serializer.collect_seq(gemini::tools(self.set)),
        }
    }
}

/// The schema of structured output as a dialect has it.
pub(crate) struct OutputSchema {
    /// The schema to send.
    pub schema: Value,
    /// Whether the API can hold the model to it, and it is of the shapes that were asked for.
    pub strict: bool,
}

/// The view that the API can hold a model to, where there is one with the shapes of the schema; bounds of values that it
/// lacks are checked when the answer is there. Else the schema itself without the patterns that the API refuses, or for
/// Gemini, which refuses what it does not know, its view.
pub(crate) fn output_schema(dialect: Dialect, schema: &Value) -> OutputSchema {
    if let Some(schema) = dialect::answer(dialect, schema) {
        return OutputSchema { schema, strict: true };
    }
    let view = || {
        let tool = ShownTool { name: "output".into(), parameters: schema.clone(), ..ShownTool::default() };
        let view = translate(dialect, &[tool], false).tools.pop()?;
        view.wrapped.is_none().then_some(view.parameters)
    };
    let view = if dialect == Dialect::GeminiJsonSchema { view() } else { None };
    let plain = || {
        let takes = if dialect == Dialect::OpenAi { dialect::of_openai } else { dialect::of_nobody };
        dialect::in_words(schema, takes).into_owned()
    };
    OutputSchema { schema: view.unwrap_or_else(plain), strict: false }
}

/// What a model is told of the shape of its answer where the API has no means of its own to demand it.
pub(crate) fn output_instruction(output: &OutputFormat) -> String {
    match &output.schema {
        None => "Your final answer is one JSON object and nothing else.".to_owned(),
        Some(schema) => format!(
            "Your final answer is one JSON text and nothing else. It is valid under this JSON Schema:\n{schema}"
        ),
    }
}

/// The system prompt with that at its end, unless it says it already.
pub(crate) fn with_instruction(system: &str, output: &OutputFormat) -> String {
    let system = system.trim();
    let is_said = match &output.schema {
        None => speaks_of_json(system),
        Some(schema) => system.contains(&schema.to_string()),
    };
    if is_said { system.to_owned() } else { format!("{system}\n\n{}", output_instruction(output)).trim().to_owned() }
}

/// Whether a text has the word that OpenAI wants to find before it takes `json_object`.
pub(crate) fn speaks_of_json(text: &str) -> bool {
    text.as_bytes().windows(4).any(|word| word.eq_ignore_ascii_case(b"json"))
}

/// What OpenAI's servers find the caches of a conversation by (developers.openai.com/api/docs/guides/prompt-caching): how it
/// begins, so that it is the same from turn to turn. Only for requests that will be sent again, and only to OpenAI's own
/// models: servers of others may refuse what they do not know.
pub(crate) fn cache_key(request: &ModelRequest, model: &str) -> Option<String> {
    if request.reuse == Reuse::Once || request.settings.cache == Some(PromptCache::Off) || !Maker::of(model).is_openai()
    {
        return None;
    }
    let first = request.messages.first().filter(|_| request.reuse == Reuse::Conversation);
    let hash = ContentHash::of_value(&json!([request.system, first])).to_hex();
    Some(format!("tw-{}", &hash[..32]))
}

/// Adds `key` where there is a value for it.
pub(crate) fn set(body: &mut Map<String, Value>, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        body.insert(key.into(), value.into());
    }
}

/// The place that [`EncodedRequest`] fills with the serialised tools.
pub(crate) fn tools_place() -> Value {
    json!([])
}
