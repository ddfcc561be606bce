//! The model APIs, and an encoded request to one of them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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

    /// The rules that its tool schemas keep.
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

/// The key of a body under which every API takes tools.
const TOOLS: &str = "tools";
/// The keys of a body under which Gemini and Ollama take how a model is to answer; the others take it at the root.
const PARAMETERS: [&str; 2] = ["generationConfig", "options"];
/// Where OpenAI's APIs take the schema of an answer: a key, and the rest of the way.
const SCHEMAS: [[&str; 2]; 2] = [["response_format", "/json_schema/schema"], ["text", "/format/schema"]];

/// One request as it goes out: a POST of JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedRequest {
    /// Path under the endpoint's base URL, with its query.
    pub path: Cow<'static, str>,
    /// Headers that the API demands beside the content type and the key.
    pub headers: &'static [(&'static str, &'static str)],
    body: Map<String, Value>,
    /// The JSON that stands at `tools`, kept apart so that it is written once for many requests.
    tools: Option<Arc<str>>,
    /// What is put into that JSON for this request, and where.
    insertion: Option<(usize, &'static str)>,
}

impl EncodedRequest {
    /// A request whose tools are in `body`, if it has any.
    pub(crate) fn new(path: impl Into<Cow<'static, str>>, body: Map<String, Value>) -> Self {
        Self { path: path.into(), headers: &[], body, tools: None, insertion: None }
    }

    /// Puts `tools`, which is JSON, where `body` has the key `tools`.
    pub(crate) fn with_tools(mut self, tools: Option<Arc<str>>) -> Self {
        self.tools = tools;
        self
    }

    /// Puts `text` into the tools at this byte.
    pub(crate) fn with_insertion(mut self, insertion: Option<(usize, &'static str)>) -> Self {
        self.insertion = insertion;
        self
    }

    /// The tools in the pieces that follow one another.
    fn pieces<'t>(&self, tools: &'t str) -> [&'t str; 3] {
        let whole = [tools, "", ""];
        let Some((at, text)) = self.insertion else { return whole };
        tools.split_at_checked(at).map_or(whole, |(before, after)| [before, text, after])
    }

    /// The value at `key` of the body, `absent` where there is none.
    pub(crate) fn entry(&mut self, key: &str, absent: Value) -> &mut Value {
        self.body.entry(key).or_insert(absent)
    }

    /// Whether the body has this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.body.contains_key(key)
    }

    /// What the body has at `key`.
    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.body.get(key)
    }

    /// Whether the body has this parameter, at its root or where its API has parameters.
    pub(crate) fn has_parameter(&self, key: &str) -> bool {
        self.parameter(key).is_some()
    }

    /// What this parameter is, at the root of the body or where its API has parameters.
    pub(crate) fn parameter(&self, key: &str) -> Option<&Value> {
        self.value(key).or_else(|| PARAMETERS.iter().find_map(|place| self.body.get(*place)?.get(key)))
    }

    /// Takes a parameter out of the body, wherever it stands.
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

    /// Puts others in the place of the schemas of OpenAI's tools, those that a search has loaded among them, and of the
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

    /// The bytes of the body; those of equal requests are equal.
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
