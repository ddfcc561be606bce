//! A recorded request with the same accessors for every API.

use serde_json::Value;

use super::WireApi;

/// One request to the model.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// The API.
    pub api: WireApi,
    /// The path; Gemini's has the model and whether to stream.
    pub path: String,
    /// The body as sent.
    pub body: Value,
    /// The tokens of the request, by the script's count; 10 without one.
    pub tokens: u64,
}

/// A tool result in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// The id of its call; empty for Ollama, which has none, and for Gemini, which finds calls by position.
    pub call_id: String,
    /// The text of its content; the names of the loaded tools, one a line, if it loads any.
    pub text: String,
    /// The failure flag, which Anthropic has and Gemini shows by a key.
    pub is_error: bool,
}

impl RecordedRequest {
    /// Returns the system prompt, empty if there is none.
    #[must_use]
    pub fn system(&self) -> String {
        match self.api {
            WireApi::Anthropic => text_of(&self.body["system"]),
            WireApi::Responses => text_of(&self.body["instructions"]),
            WireApi::Gemini => text_of(&self.body["systemInstruction"]["parts"]),
            WireApi::OpenAi | WireApi::Ollama => {
                let system = self.messages().iter().find(|m| m["role"] == "system");
                system.map(|m| text_of(&m["content"])).unwrap_or_default()
            }
        }
    }

    /// Returns the names of the tools in order, including those of namespaces; the type for tools without a name.
    #[must_use]
    pub fn tool_names(&self) -> Vec<String> {
        let name = |tool: &Value| {
            let tool = tool.get("function").unwrap_or(tool);
            tool["name"].as_str().or(tool["type"].as_str()).unwrap_or_default().to_owned()
        };
        let tools = match self.api {
            WireApi::Gemini => &self.body["tools"][0]["functionDeclarations"],
            _ => &self.body["tools"],
        };
        let namespaced = |tool: &Value| tool["tools"].as_array().into_iter().flatten().map(name).collect::<Vec<_>>();
        tools
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|tool| if tool["type"] == "namespace" { namespaced(tool) } else { vec![name(tool)] })
            .collect()
    }

    /// Returns the text of the last user message with text, and the names of its files. Notes with the images of
    /// results count.
    #[must_use]
    pub fn last_user_text(&self) -> String {
        if let (WireApi::Responses, Some(text)) = (self.api, self.body["input"].as_str()) {
            return text.to_owned();
        }
        let users = self.messages().iter().rev().filter(|m| m["role"] == "user");
        users.map(|m| text_of(&m[self.content_key()])).find(|text| !text.is_empty()).unwrap_or_default()
    }

    /// Returns the results that answer the last assistant message, in order.
    #[must_use]
    pub fn last_results(&self) -> Vec<ToolResult> {
        let messages = self.messages();
        let answers = |m: &Value| m["role"] == "assistant" || m["role"] == "model" || is_call(m);
        let start = messages.iter().rposition(answers).map_or(0, |at| at + 1);
        let after = messages[start..].iter();
        match self.api {
            WireApi::Anthropic => after
                .flat_map(|m| m["content"].as_array().into_iter().flatten())
                .filter(|block| block["type"] == "tool_result")
                .map(|block| result(block, "tool_use_id"))
                .collect(),
            WireApi::Responses => after
                .filter(|m| m["type"] == "function_call_output" || m["type"] == "tool_search_output")
                .map(|m| ToolResult {
                    call_id: m["call_id"].as_str().unwrap_or_default().to_owned(),
                    text: if m["type"] == "tool_search_output" { loaded(m) } else { text_of(&m["output"]) },
                    is_error: false,
                })
                .collect(),
            WireApi::Gemini => after
                .flat_map(|m| m["parts"].as_array().into_iter().flatten())
                .filter_map(|part| part.get("functionResponse"))
                .map(|response| {
                    let response = &response["response"];
                    let is_error = response.get("error").is_some();
                    let text = text_of(&response[if is_error { "error" } else { "output" }]);
                    ToolResult { call_id: String::new(), text, is_error }
                })
                .collect(),
            WireApi::OpenAi | WireApi::Ollama => {
                after.filter(|m| m["role"] == "tool").map(|m| result(m, "tool_call_id")).collect()
            }
        }
    }

    /// Returns the text of the last results, joined by line feeds.
    #[must_use]
    pub fn last_result_text(&self) -> String {
        self.last_results().into_iter().map(|result| result.text).collect::<Vec<_>>().join("\n")
    }

    pub(super) fn messages(&self) -> &[Value] {
        let key = match self.api {
            WireApi::Responses => "input",
            WireApi::Gemini => "contents",
            WireApi::OpenAi | WireApi::Anthropic | WireApi::Ollama => "messages",
        };
        self.body[key].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    fn content_key(&self) -> &'static str {
        if self.api == WireApi::Gemini { "parts" } else { "content" }
    }

    pub(super) fn wants_stream(&self) -> bool {
        match self.api {
            WireApi::Gemini => self.path.contains(":streamGenerateContent"),
            _ => self.body["stream"].as_bool().unwrap_or(self.api == WireApi::Ollama),
        }
    }

    /// Returns the request as one for a whole answer instead of a stream.
    pub(super) fn unstreamed(mut self) -> Self {
        self.path = self.path.replace(":streamGenerateContent", ":generateContent");
        self.body["stream"] = false.into();
        self
    }

    /// Whether calls have ids. Gemini's have since its third generation.
    pub(super) fn names_calls(&self) -> bool {
        self.api != WireApi::Gemini || self.model().starts_with("gemini-3")
    }

    /// Returns the requested model.
    #[must_use]
    pub fn model(&self) -> &str {
        // Gemini's path is `/v1beta/models/MODEL:method`.
        let in_path = || self.path.rsplit_once("/models/").and_then(|(_, rest)| rest.split_once(':'));
        self.body["model"].as_str().or_else(|| in_path().map(|(model, _)| model)).unwrap_or("scripted")
    }
}

fn is_call(item: &Value) -> bool {
    item["type"] == "function_call" || item["type"] == "tool_search_call"
}

/// Returns the names of the functions in the output of a tool search.
fn loaded(output: &Value) -> String {
    let spaces = output["tools"].as_array().into_iter().flatten();
    let functions = spaces.flat_map(|space| space["tools"].as_array().into_iter().flatten());
    functions.filter_map(|function| function["name"].as_str()).collect::<Vec<_>>().join("\n")
}

fn result(value: &Value, id: &str) -> ToolResult {
    ToolResult {
        call_id: value[id].as_str().unwrap_or_default().to_owned(),
        text: text_of(&value["content"]),
        is_error: value["is_error"] == true,
    }
}

/// Returns the text of a content that is a text or a list of parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let text = parts.iter().filter_map(|part| {
                let named =
                    [&part["text"], &part["tool_name"], &part["filename"], &part["file"]["filename"], &part["title"]];
                named.iter().find_map(|text| text.as_str())
            });
            text.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}
