//! The model APIs, and an encoded request to one of them with the parts that it leaves out.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolwright_core::model::{Effort, Message, ModelRequest, ToolChoice};

use crate::dialect::Dialect;

/// A model API that Toolwright speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `OpenAI` Chat Completions, and whatever is compatible with it.
    #[serde(rename = "openai_chat")]
    OpenAiChat,
    /// `OpenAI` Responses.
    #[serde(rename = "openai_responses")]
    OpenAiResponses,
    /// Anthropic Messages.
    Anthropic,
    /// Gemini `generateContent`.
    Gemini,
    /// Ollama.
    Ollama,
}

impl Api {
    /// Every API.
    pub const ALL: [Self; 5] = [Self::OpenAiChat, Self::OpenAiResponses, Self::Anthropic, Self::Gemini, Self::Ollama];

    /// The dialect of its tool schemas.
    #[must_use]
    pub fn dialect(self) -> Dialect {
        match self {
            Self::OpenAiChat | Self::OpenAiResponses => Dialect::OpenAi,
            Self::Anthropic => Dialect::Anthropic,
            Self::Gemini => Dialect::GeminiJsonSchema,
            Self::Ollama => Dialect::Ollama,
        }
    }

    /// Its name, which also tags its opaque data.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAiChat => "openai_chat",
            Self::OpenAiResponses => "openai_responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
        }
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A part of a request that a model or its API may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestPart {
    /// The token limit as high as asked.
    MaxTokens,
    /// `temperature`.
    Temperature,
    /// `top_p`.
    TopP,
    /// `top_k`.
    TopK,
    /// `seed`.
    Seed,
    /// Stop sequences.
    Stop,
    /// The effort of reasoning.
    Effort,
    /// Thinking at all.
    Thinking,
    /// The budget of thinking, as asked.
    Budget,
    /// A forced call.
    ToolChoice,
    /// Whether there may be several calls.
    ParallelCalls,
    /// Thinking that another API signed.
    ThinkingBlocks,
}

impl RequestPart {
    /// Its name in responses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::Temperature => "temperature",
            Self::TopP => "top_p",
            Self::TopK => "top_k",
            Self::Seed => "seed",
            Self::Stop => "stop",
            Self::Effort => "reasoning_effort",
            Self::Thinking => "thinking",
            Self::Budget => "thinking.budget_tokens",
            Self::ToolChoice => "tool_choice",
            Self::ParallelCalls => "parallel_tool_calls",
            Self::ThinkingBlocks => "thinking blocks",
        }
    }

    /// Returns the parameter of this name, if a client can ask for it.
    pub(crate) fn of_parameter(name: &str) -> Option<Self> {
        let parts = [Self::Temperature, Self::TopP, Self::TopK, Self::Seed, Self::Stop, Self::ParallelCalls];
        parts.into_iter().find(|part| part.name() == name)
    }

    /// Whether `request` has it.
    pub(crate) fn is_asked(self, request: &ModelRequest) -> bool {
        let settings = &request.settings;
        let has_budget = settings.thinking_tokens.is_some_and(|tokens| tokens > 0);
        match self {
            Self::MaxTokens => request.max_tokens.is_some(),
            Self::Temperature => request.temperature.is_some(),
            Self::TopP => settings.top_p.is_some(),
            Self::TopK => settings.top_k.is_some(),
            Self::Seed => settings.seed.is_some(),
            Self::Stop => !settings.stop.is_empty(),
            Self::Effort => settings.effort.is_some_and(|effort| effort > Effort::None),
            Self::Thinking => has_budget || settings.asks_thinking == Some(true),
            Self::Budget => has_budget,
            Self::ToolChoice => request.tool_choice != ToolChoice::Auto,
            Self::ParallelCalls => request.parallel_calls.is_some(),
            Self::ThinkingBlocks => request
                .messages
                .iter()
                .any(|message| matches!(message, Message::Assistant { opaque, .. } if !opaque.is_empty())),
        }
    }
}

/// The key of the tools in every API's body.
const TOOLS: &str = "tools";
/// Keys of the object with model parameters in Gemini and Ollama; other APIs have them at the root.
const PARAMETERS: [&str; 2] = ["generationConfig", "options"];
/// Location of the answer's schema in OpenAI's APIs: a key, and the pointer below it.
const SCHEMAS: [[&str; 2]; 2] = [["response_format", "/json_schema/schema"], ["text", "/format/schema"]];

/// An encoded request: a POST of JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedRequest {
    /// Path under the endpoint's base URL, with its query.
    pub path: Cow<'static, str>,
    /// Headers that the API requires besides content type and key.
    pub headers: &'static [(&'static str, &'static str)],
    body: Map<String, Value>,
    /// The JSON of `tools`, serialised once for many requests.
    tools: Option<Arc<str>>,
    /// Text to insert into the tools' JSON for this request, with its position.
    insertion: Option<(usize, &'static str)>,
    losses: Vec<RequestPart>,
}

impl EncodedRequest {
    /// A request with the tools in `body`, if any.
    pub(crate) fn new(path: impl Into<Cow<'static, str>>, body: Map<String, Value>) -> Self {
        Self { path: path.into(), headers: &[], body, tools: None, insertion: None, losses: Vec::new() }
    }

    /// Inserts `tools`, a JSON text, at the key `tools` of `body`.
    pub(crate) fn with_tools(mut self, tools: Option<Arc<str>>) -> Self {
        self.tools = tools;
        self
    }

    /// Inserts `text` into the tools at this byte.
    pub(crate) fn with_insertion(mut self, insertion: Option<(usize, &'static str)>) -> Self {
        self.insertion = insertion;
        self
    }

    /// Notes the parts of the request that it leaves out.
    pub(crate) fn without(mut self, losses: Vec<RequestPart>) -> Self {
        self.losses = losses;
        self
    }

    /// Notes another part that it leaves out.
    pub(crate) fn lose(&mut self, part: RequestPart) {
        self.losses.push(part);
    }

    /// The parts of the request that it leaves out, because the API, the model or its server lacks them.
    #[must_use]
    pub fn losses(&self) -> &[RequestPart] {
        &self.losses
    }

    /// Splits the tools at the insertion.
    fn pieces<'t>(&self, tools: &'t str) -> [&'t str; 3] {
        let whole = [tools, "", ""];
        let Some((at, text)) = self.insertion else { return whole };
        tools.split_at_checked(at).map_or(whole, |(before, after)| [before, text, after])
    }

    /// Returns the value at `key` of the body, set to `absent` if missing.
    pub(crate) fn entry(&mut self, key: &str, absent: Value) -> &mut Value {
        self.body.entry(key).or_insert(absent)
    }

    /// Whether the body has this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.body.contains_key(key)
    }

    /// Returns the body's value at `key`.
    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.body.get(key)
    }

    /// Whether the body has this parameter, at its root or where its API puts parameters.
    pub(crate) fn has_parameter(&self, key: &str) -> bool {
        self.parameter(key).is_some()
    }

    /// Returns this parameter, at the root of the body or where its API puts parameters.
    pub(crate) fn parameter(&self, key: &str) -> Option<&Value> {
        self.value(key).or_else(|| PARAMETERS.iter().find_map(|place| self.body.get(*place)?.get(key)))
    }

    /// Removes a parameter from the body, at either place.
    pub(crate) fn leave_out(&mut self, key: &str) {
        self.body.shift_remove(key);
        for place in PARAMETERS {
            if let Some(Value::Object(all)) = self.body.get_mut(place) {
                all.shift_remove(key);
            }
        }
    }

    /// Calls the key `from` of the body `to`, in its place.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        let renamed = |(key, value)| if key == from { (to.to_owned(), value) } else { (key, value) };
        self.body = std::mem::take(&mut self.body).into_iter().map(renamed).collect();
    }

    /// Replaces the schemas of OpenAI's tools, including those loaded by a search, and of the
    /// answer.
    pub(crate) fn map_schemas(&mut self, view: fn(&Value) -> Cow<'_, Value>) {
        fn change(place: Option<&mut Value>, view: fn(&Value) -> Cow<'_, Value>) {
            if let Some(schema) = place
                && let Cow::Owned(other) = view(schema)
            {
                *schema = other;
            }
        }
        fn list<'v>(value: &'v mut Value, key: &str) -> impl Iterator<Item = &'v mut Value> {
            value.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
        }
        for [key, rest] in SCHEMAS {
            change(self.body.get_mut(key).and_then(|value| value.pointer_mut(rest)), view);
        }
        let loaded = self.body.get_mut("input").and_then(Value::as_array_mut).into_iter().flatten();
        for space in loaded.filter(|item| item["type"] == "tool_search_output").flat_map(|item| list(item, TOOLS)) {
            list(space, TOOLS).for_each(|tool| change(tool.get_mut("parameters"), view));
        }
        let Some(tools) = self.tools.take() else { return };
        let mut tools: Value = serde_json::from_str(&self.pieces(&tools).concat()).unwrap_or_default();
        self.insertion = None;
        for tool in tools.as_array_mut().into_iter().flatten() {
            change(tool.pointer_mut("/function/parameters"), view);
            change(tool.get_mut("parameters"), view);
        }
        self.body.insert(TOOLS.to_owned(), tools);
    }

    /// The body. Its keys keep their order.
    #[must_use]
    pub fn body(&self) -> Value {
        let mut body = self.body.clone();
        if let (Some(place), Some(tools)) = (body.get_mut(TOOLS), &self.tools) {
            *place = serde_json::from_str(&self.pieces(tools).concat()).unwrap_or_default();
        }
        Value::Object(body)
    }

    /// Serialises the body. Equal requests give equal bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.tools.as_ref().map_or(0, |tools| tools.len()) + 4096);
        for (key, value) in &self.body {
            bytes.push(if bytes.is_empty() { b'{' } else { b',' });
            // Writing to memory does not fail.
            let _ = serde_json::to_writer(&mut bytes, key);
            bytes.push(b':');
            match &self.tools {
                Some(tools) if key == TOOLS => {
                    self.pieces(tools).iter().for_each(|piece| bytes.extend_from_slice(piece.as_bytes()));
                }
                _ => drop(serde_json::to_writer(&mut bytes, value)),
            }
        }
        bytes.push(b'}');
        bytes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_of_loaded_tools_are_reached() {
        let whole = |schema: Value| {
            let tool = json!({"type": "function", "name": "t", "parameters": schema});
            let space = json!({"type": "namespace", "name": "n", "tools": [tool]});
            json!({"tools": [tool], "input": [
                {"type": "message", "role": "user", "content": "q"},
                {"type": "tool_search_output", "call_id": "c", "tools": [space]},
            ]})
        };
        let Value::Object(body) = whole(json!({"pattern": "a"})) else { unreachable!("an object") };
        let tools = body[TOOLS].to_string();
        let mut request = EncodedRequest::new("/responses", body).with_tools(Some(tools.into()));
        request.map_schemas(|_| Cow::Owned(json!({})));
        assert_eq!(request.body(), whole(json!({})));
    }
}
