//! Encodes requests to OpenAI Responses.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value, json};
use toolwright_core::content::joined_text;
use toolwright_core::model::{Message, ModelRequest, OutputFormat, ToolVisibility};

use super::API;
use crate::api::EncodedRequest;
use crate::codec::history::{
    AssistantPiece, Image, LegalCall, LegalResult, Part, Turn, legal_name, legal_turns, pieces, user_parts,
};
use crate::codec::request::{
    ModelFamily, ModelKind, SamplingNames, cache_key, contains_json_word, output_instruction, output_schema, set,
    write_sampling,
};
use crate::codec::{EncodedTools, reasoning};
use crate::dialect::{Dialect, Toolset, TranslatedTool};

/// The API has no `top_k`, seed or stop texts.
const NAMES: SamplingNames =
    SamplingNames { temperature: Some("temperature"), top_p: Some("top_p"), top_k: None, seed: None, stop: None };

pub(crate) fn encode(request: &ModelRequest, model: &str, encoded_tools: &EncodedTools) -> EncodedRequest {
    let (mut body, mut losses) = (Map::new(), Vec::new());
    body.insert("model".into(), json!(model));
    set(&mut body, "instructions", Some(request.system.as_str()).filter(|system| !system.is_empty()));
    let mut input = input(request, encoded_tools.set());
    if let Some(output) = request.output.as_ref().filter(|output| output.schema.is_none())
        && !input_contains_json_word(request)
    {
        let message = json!({"type": "message", "role": "developer", "content": output_instruction(output)});
        input.insert(0, message);
    }
    body.insert("input".into(), Value::Array(input));
    let named = |name: &str| json!({"type": "function", "name": name});
    let tools = encoded_tools.write_openai(&mut body, request, named, &mut losses);
    set(&mut body, "text", request.output.as_ref().map(|output| json!({"format": format(output)})));
    set(&mut body, "max_output_tokens", request.max_tokens);
    write_sampling(&mut body, request, model, &NAMES, &mut losses);
    let effort = reasoning::openai_effort(model, &request.settings);
    reasoning::note_losses((API, model), &request.settings, (effort.is_some(), None), &mut losses);
    set(&mut body, "reasoning", effort.map(|effort| json!({"effort": effort})));
    set(&mut body, "prompt_cache_key", cache_key(request, model));
    body.insert("store".into(), json!(false));
    let mut include = Vec::new();
    if reasons(model) {
        include.push("reasoning.encrypted_content");
    }
    // Data that the server does not store must be requested in full, to be sent back.
    include.extend(encoded_tools.native_kinds().filter_map(|kind| match kind {
        "web_search" => Some("web_search_call.action.sources"),
        "file_search" => Some("file_search_call.results"),
        "code_interpreter" => Some("code_interpreter_call.outputs"),
        _ => None,
    }));
    set(&mut body, "include", Some(include).filter(|include| !include.is_empty()));
    body.insert("stream".into(), json!(true));
    EncodedRequest::new("/responses", body).with_tools(tools).without(losses)
}

/// Whether `model` may reason. For other models the API refuses `include` of reasoning.
fn reasons(model: &str) -> bool {
    !matches!(ModelFamily::of(model), ModelFamily::Gpt((..5, _), _) | ModelFamily::Gpt((5, 0), ModelKind::Chat))
}

/// Whether the input contains the word "JSON", which the API requires for `json_object`. It ignores the instructions.
fn input_contains_json_word(request: &ModelRequest) -> bool {
    request.messages.iter().any(|message| match message {
        Message::User { content } => contains_json_word(&joined_text(content)),
        _ => false,
    })
}

fn format(output: &OutputFormat) -> Value {
    let Some(schema) = &output.schema else { return json!({"type": "json_object"}) };
    let form = output_schema(Dialect::OpenAi, schema);
    json!({"type": "json_schema", "name": legal_name(&output.name), "schema": form.schema, "strict": form.strict})
}

/// A function. An absent `strict` means true in this API, so it is always sent.
#[derive(Serialize)]
pub(crate) struct Tool<'a> {
    r#type: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
    strict: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    defer_loading: Option<bool>,
}

/// The search tool.
#[derive(Serialize)]
pub(crate) struct ToolSearch<'a> {
    r#type: &'static str,
    execution: &'static str,
    description: &'a str,
    parameters: &'a Value,
}

/// An entry in the tools of a request.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Entry<'a> {
    Function(Tool<'a>),
    Search(ToolSearch<'a>),
}

/// The declared tools: all but the deferred ones.
pub(crate) fn tools(set: &Toolset) -> impl Iterator<Item = Entry<'_>> {
    let search = set.tool_search().map(|search| search.name.as_str());
    set.tools.iter().filter(|view| view.exposed != ToolVisibility::Deferred).map(move |view| {
        if search != Some(&view.name) {
            return Entry::Function(tool(view));
        }
        let TranslatedTool { description, parameters, .. } = view;
        Entry::Search(ToolSearch { r#type: "tool_search", execution: "client", description, parameters })
    })
}

fn tool(view: &TranslatedTool) -> Tool<'_> {
    let TranslatedTool { name, description, parameters, strict, .. } = view;
    let defer_loading = (view.exposed == ToolVisibility::Deferred).then_some(true);
    Tool { r#type: "function", name, description, parameters, strict: *strict, defer_loading }
}

fn input(request: &ModelRequest, tools: &Toolset) -> Vec<Value> {
    let mut out = Vec::new();
    let mut search = Search::new(tools);
    for turn in legal_turns(&request.messages, API, tools) {
        match turn {
            Turn::User(content) => {
                out.push(json!({"type": "message", "role": "user", "content": user_content(user_parts(content))}))
            }
            Turn::Assistant { text, calls, opaque } => answer(&mut out, text, &calls, &opaque, &search),
            Turn::Results(results) => {
                let mut notes = Vec::new();
                for result in &results {
                    out.push(if search.is(&result.name) { search.output(result, &mut notes) } else { output(result) });
                }
                out.extend(notes);
            }
        }
    }
    out
}

/// A past response, item by item. The API refuses reasoning at its end.
fn answer(out: &mut Vec<Value>, text: &str, calls: &[LegalCall<'_>], opaque: &[&Value], search: &Search<'_>) {
    let before = out.len();
    let mut phase = None;
    for piece in pieces(text, calls, opaque) {
        match piece {
            AssistantPiece::Text(text) => {
                let content = json!([{"type": "output_text", "text": text}]);
                let mut message = json!({"type": "message", "role": "assistant", "content": content});
                if let Some(phase) = phase {
                    message["phase"] = json!(phase);
                }
                out.push(message);
            }
            AssistantPiece::Call(_, call) if search.is(&call.name) => out.push(Search::call(call)),
            AssistantPiece::Call(_, call) => {
                let mut item = json!({
                    "type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments_text(),
                });
                if let Some(namespace) = search.namespace(&call.name) {
                    item["namespace"] = json!(namespace);
                }
                out.push(item);
            }
            // Data of a message besides its text.
            AssistantPiece::Item(item) if item["type"] == "message" => phase = item["phase"].as_str(),
            // Reasoning without content refers to data that the server did not store.
            AssistantPiece::Item(item) if is_reasoning(item) && !item["encrypted_content"].is_string() => {}
            AssistantPiece::Item(item) => out.push(item.clone()),
        }
    }
    while out.len() > before && out.last().is_some_and(is_reasoning) {
        out.pop();
    }
}

fn is_reasoning(item: &Value) -> bool {
    item["type"] == "reasoning"
}

fn output(result: &LegalResult<'_>) -> Value {
    json!({"type": "function_call_output", "call_id": result.id, "output": content_of(result.plain_parts())})
}

/// Encodes a single text, or a list of parts.
fn user_content(parts: Vec<Part<'_>>) -> Value {
    if parts.len() > 1 { listed(parts) } else { content_of(parts) }
}

/// A text, or the list of parts that holds images.
fn content_of(parts: Vec<Part<'_>>) -> Value {
    if parts.iter().all(|part| matches!(part, Part::Text(_))) {
        let texts: Vec<&str> = parts
            .iter()
            .filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None })
            .collect();
        return Value::String(texts.join("\n"));
    }
    listed(parts)
}

fn listed(parts: Vec<Part<'_>>) -> Value {
    let part = |part| match part {
        Part::Text(text) => json!({"type": "input_text", "text": text}),
        Part::Document(document) => {
            json!({"type": "input_file", "filename": document.name, "file_data": document.url()})
        }
        Part::Image(Image { mime_type, data }) => {
            json!({"type": "input_image", "image_url": format!("data:{mime_type};base64,{data}")})
        }
    };
    parts.into_iter().map(part).collect()
}

/// The namespace of loaded tools without one. The API assigns an undeclared one to each of those and requires it back
/// with past calls, so all get a declared one.
const NO_NAMESPACE: &str = "toolbox";

/// The tool search of a request, and the tools that it has loaded so far.
struct Search<'a> {
    set: &'a Toolset,
    tool: Option<&'a str>,
    /// Namespaces of the loaded tools, by name.
    loaded: HashMap<&'a str, Cow<'a, str>>,
}

impl<'a> Search<'a> {
    /// The search tool of `set`, with no tools loaded.
    fn new(set: &'a Toolset) -> Self {
        let tool = set.tool_search().map(|search| search.name.as_str());
        Self { set, tool, loaded: HashMap::new() }
    }

    /// Whether `name` is the search tool.
    fn is(&self, name: &str) -> bool {
        self.tool == Some(name)
    }

    /// The namespace that a call to `name` has. The API refuses a past call of a loaded tool without it
    /// («Missing namespace for function_call»).
    fn namespace(&self, name: &str) -> Option<&str> {
        self.loaded.get(name).map(Cow::as_ref)
    }

    /// A past search.
    fn call(call: &LegalCall<'_>) -> Value {
        json!({
            "type": "tool_search_call", "execution": "client", "call_id": call.id, "status": "completed",
            "arguments": call.arguments_object(),
        })
    }

    /// Encodes the result of a search: the definitions of the loaded tools, by namespace. The item has no text: the
    /// text of a failed or empty search goes to `notes`, for a message after the results.
    fn output(&mut self, result: &LegalResult<'_>, notes: &mut Vec<Value>) -> Value {
        let mut spaces: Vec<(Cow<'a, str>, Vec<Value>)> = Vec::new();
        for view in result.loads(self.set) {
            let space = namespace(view);
            self.loaded.insert(&view.name, space.clone());
            // Writing to memory does not fail.
            let definition = serde_json::to_value(tool(view)).unwrap_or_default();
            match spaces.iter_mut().find(|(known, _)| *known == space) {
                Some((_, tools)) => tools.push(definition),
                None => spaces.push((space, vec![definition])),
            }
        }
        if spaces.is_empty() {
            let mut parts = result.plain_parts();
            parts.insert(0, result.caption());
            notes.push(json!({"type": "message", "role": "user", "content": content_of(parts)}));
        }
        let tools: Vec<Value> = spaces
            .into_iter()
            .map(|(name, tools)| {
                json!({"type": "namespace", "name": name, "description": format!("Tools of {name}."), "tools": tools})
            })
            .collect();
        json!({
            "type": "tool_search_output", "execution": "client", "call_id": result.id, "status": "completed",
            "tools": tools,
        })
    }
}

/// The namespace into which a tool is loaded. A namespace with the tool's own name would mean a tool without one.
fn namespace(view: &TranslatedTool) -> Cow<'_, str> {
    let legal = legal_name(&view.namespace);
    match view.namespace.as_str() {
        "" => Cow::Borrowed(NO_NAMESPACE),
        _ if legal == view.name => Cow::Borrowed(NO_NAMESPACE),
        _ => Cow::Owned(legal),
    }
}
