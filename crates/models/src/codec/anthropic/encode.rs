//! Encodes requests to Anthropic Messages.

use serde::Serialize;
use serde_json::{Map, Value, json};
use toolwright_core::model::{ModelRequest, PromptCache, PromptReuse, RequestSettings, ToolChoice, ToolVisibility};

use super::{API, VERSION};
use crate::api::{EncodedRequest, RequestPart};
use crate::codec::EncodedTools;
use crate::codec::history::{
    AlternatingMessages, AssistantPiece, Document, Image, LegalCall, LegalResult, NOTHING, PDF, Part, Turn,
    legal_turns, pieces, user_parts,
};
use crate::codec::reasoning::{self, Thinking, ToolForcing, refuses_forced_calls};
use crate::codec::request::{
    ModelFamily, SamplingNames, output_schema, set, tools_place, with_instruction, write_sampling,
};
use crate::dialect::{Dialect, Toolset, TranslatedTool};

/// The API requires a limit.
pub(crate) const DEFAULT_MAX_TOKENS: u32 = 8192;

/// The API has no seed.
const NAMES: SamplingNames = SamplingNames {
    temperature: Some("temperature"),
    top_p: Some("top_p"),
    top_k: Some("top_k"),
    seed: None,
    stop: Some("stop_sequences"),
};
/// Sampling parameters that the API takes with thinking.
const THINKING: SamplingNames =
    SamplingNames { temperature: None, top_p: None, top_k: None, seed: None, stop: Some("stop_sequences") };

/// The token limit of a request without one: the default, and an allowance for thinking.
fn usual_max_tokens(model: &str, settings: &RequestSettings) -> u32 {
    let both = DEFAULT_MAX_TOKENS.saturating_add(reasoning::thinking_allowance(API, model, settings));
    both.min(ModelFamily::of(model).max_output().unwrap_or(u32::MAX))
}

pub(crate) fn encode(request: &ModelRequest, model: &str, encoded_tools: &EncodedTools) -> EncodedRequest {
    let mut messages = messages(request, encoded_tools.set());
    let (mut body, mut losses) = (Map::new(), Vec::new());
    let mut system = request.system.trim().to_owned();
    let mut output_config = Map::new();
    if let Some(output) = &request.output {
        // The API refuses a schema that it cannot enforce, and has no parameter for plain JSON: then the system prompt
        // contains the request.
        let form = output.schema.as_ref().map(|schema| output_schema(Dialect::Anthropic, schema));
        match form.filter(|form| form.strict) {
            Some(form) => {
                set(&mut output_config, "format", Some(json!({"type": "json_schema", "schema": form.schema})))
            }
            None => system = with_instruction(&system, output),
        }
    }
    body.insert("model".into(), json!(model));
    let choice = wanted_choice(encoded_tools.choice(request, &mut losses), model, &mut losses);
    let is_forced = encoded_tools.json.is_some() && matches!(choice, ToolChoice::Required | ToolChoice::Tool(_));
    let choosing = if is_forced { ToolForcing::Forced } else { ToolForcing::Free };
    let most = request.max_tokens.unwrap_or_else(|| usual_max_tokens(model, &request.settings));
    let mut thinking = reasoning::anthropic(model, &request.settings, Some(most), choosing);
    if thinking.budget().is_some() && began_without_thinking(&messages) {
        thinking.thinking = None;
    }
    let is_set = thinking.effort.is_some() || thinks(&thinking);
    reasoning::note_losses((API, model), &request.settings, (is_set, thinking.budget()), &mut losses);
    if !thinks(&thinking) && request.settings.asks_thinking == Some(true) && is_set {
        losses.push(RequestPart::Thinking);
    }
    set(&mut output_config, "effort", thinking.effort);
    let breakpoints = CacheBreakpoints::of(request);
    body.insert("max_tokens".into(), json!(most));
    let system = Some(system).filter(|system| !system.is_empty());
    set(
        &mut body,
        "system",
        system.map(|text| breakpoints.map_or_else(|| json!(text), |breakpoints| breakpoints.system(&text))),
    );
    let tools = encoded_tools.json.clone();
    if tools.is_some() {
        body.insert("tools".into(), tools_place());
        set(&mut body, "tool_choice", tool_choice(choice, request.parallel_calls));
    } else {
        // Past calls are refused without declared tools.
        let called = called_names(&messages);
        if !called.is_empty() {
            body.insert("tools".into(), called.iter().map(|name| retired(name)).collect());
            body.insert("tool_choice".into(), json!({"type": "none"}));
        }
    }
    set(&mut body, "output_config", Some(output_config).filter(|config| !config.is_empty()));
    if let Some(breakpoints) = breakpoints {
        breakpoints.messages(&mut messages);
    }
    body.insert("messages".into(), Value::Array(messages));
    // With thinking, the API takes no sampling parameters.
    let names = if thinks(&thinking) { &THINKING } else { &NAMES };
    write_sampling(&mut body, request, model, names, &mut losses);
    set(&mut body, "thinking", thinking.thinking);
    body.insert("stream".into(), json!(true));
    let mark = breakpoints.and_then(|breakpoints| breakpoints.tools(encoded_tools));
    let mut encoded = EncodedRequest::new("/v1/messages", body).with_tools(tools).with_insertion(mark).without(losses);
    encoded.headers = &[VERSION];
    encoded
}

/// Whether the model is told to think.
fn thinks(thinking: &Thinking) -> bool {
    thinking.thinking.as_ref().is_some_and(|thinking| thinking["type"] != "disabled")
}

/// Whether the current turn began with a call and without thinking. Such a turn cannot continue with a thinking budget
/// ("Expected `thinking` or `redacted_thinking`, but found `tool_use`"); the next one can.
fn began_without_thinking(messages: &[Value]) -> bool {
    let is_asked =
        |message: &&Value| message["role"] == "user" && !blocks_of(message).any(|block| block["type"] == "tool_result");
    let turn = messages.iter().rev().take_while(|message| !is_asked(message));
    let began = turn.filter(|message| message["role"] == "assistant").last();
    began.is_some_and(|began| {
        blocks_of(began).any(|block| block["type"] == "tool_use") && !blocks_of(began).next().is_some_and(is_thought)
    })
}

fn blocks_of(message: &Value) -> impl Iterator<Item = &Value> {
    message["content"].as_array().into_iter().flatten()
}

/// Whether a block is thinking.
pub(super) fn is_thought(block: &Value) -> bool {
    matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"))
}

/// The choice; `auto` in place of a forced call for a model that refuses one.
fn wanted_choice<'a>(choice: &'a ToolChoice, model: &str, losses: &mut Vec<RequestPart>) -> &'a ToolChoice {
    match choice {
        ToolChoice::Required | ToolChoice::Tool(_) if refuses_forced_calls(model) => {
            losses.push(RequestPart::ToolChoice);
            &ToolChoice::Auto
        }
        choice => choice,
    }
}

/// The limit to one call at a time belongs to the tool choice. No choice means `auto`.
fn tool_choice(choice: &ToolChoice, parallel: Option<bool>) -> Option<Value> {
    let mut written = match choice {
        ToolChoice::Auto => json!({"type": "auto"}),
        ToolChoice::Required => json!({"type": "any"}),
        ToolChoice::None => return Some(json!({"type": "none"})),
        ToolChoice::Tool(name) => json!({"type": "tool", "name": name}),
    };
    match parallel {
        Some(parallel) => written["disable_parallel_tool_use"] = json!(!parallel),
        None if *choice == ToolChoice::Auto => return None,
        None => {}
    }
    Some(written)
}

#[derive(Serialize)]
pub(crate) struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    defer_loading: Option<bool>,
}

pub(crate) fn tool(view: &TranslatedTool) -> Tool<'_> {
    let TranslatedTool { name, description, parameters, .. } = view;
    let defer_loading = (view.exposed == ToolVisibility::Deferred).then_some(true);
    Tool { name, description, input_schema: parameters, strict: view.strict.then_some(true), defer_loading }
}

fn retired(name: &str) -> Value {
    let schema = json!({"type": "object", "properties": {}});
    json!({"name": name, "description": "Not available any more.", "input_schema": schema})
}

fn called_names(messages: &[Value]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for block in messages.iter().flat_map(blocks_of) {
        if block["type"] == "tool_use"
            && let Some(name) = block["name"].as_str()
            && !names.iter().any(|known| known == name)
        {
            names.push(name.to_owned());
        }
    }
    names
}

fn messages(request: &ModelRequest, tools: &Toolset) -> Vec<Value> {
    let nothing = || json!({"type": "text", "text": NOTHING});
    let mut out = AlternatingMessages { model: "assistant", key: "content", nothing, messages: Vec::new() };
    for turn in legal_turns(&request.messages, API, tools) {
        match turn {
            Turn::User(content) => out.push("user", blocks(user_parts(content))),
            Turn::Assistant { text, calls, opaque } => out.push("assistant", answer(text, &calls, &opaque)),
            Turn::Results(results) => {
                let mut images = Vec::new();
                let mut content: Vec<Value> =
                    results.iter().map(|result| tool_result(result, tools, &mut images)).collect();
                content.extend(images);
                out.push("user", content);
            }
        }
    }
    out.messages
}

/// Encodes a result. A failed one may contain only text, so its images follow the turn's results. A result that loads
/// tools contains only references to them («Tool definitions/code execution functions cannot be mixed with other
/// content»), which the API replaces with the definitions.
fn tool_result(result: &LegalResult<'_>, tools: &Toolset, images: &mut Vec<Value>) -> Value {
    let mut block = json!({"type": "tool_result", "tool_use_id": result.id});
    let loaded = result.loads(tools);
    if !loaded.is_empty() {
        let reference = |tool: &&TranslatedTool| json!({"type": "tool_reference", "tool_name": tool.name});
        block["content"] = loaded.iter().map(reference).collect();
        return block;
    }
    let mut parts = result.parts();
    if result.is_error() {
        let (text, found) = result.text_and_images();
        if !found.is_empty() {
            parts = vec![Part::Text(text)];
            images.extend(blocks(found));
        }
    }
    let content = blocks(parts);
    if !content.is_empty() {
        block["content"] = Value::Array(content);
    }
    if result.is_error() {
        block["is_error"] = json!(true);
    }
    block
}

/// A past response. The API refuses thinking at its end.
fn answer(text: &str, calls: &[LegalCall<'_>], opaque: &[&Value]) -> Vec<Value> {
    let mut content: Vec<Value> = Vec::new();
    for piece in pieces(text, calls, opaque) {
        match piece {
            AssistantPiece::Text(text) => content.extend(blocks(vec![Part::Text(text.to_owned())])),
            AssistantPiece::Call(_, call) => content
                .push(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments_object()})),
            AssistantPiece::Item(block) => content.push(block.clone()),
        }
    }
    while content.last().is_some_and(is_thought) {
        content.pop();
    }
    content
}

/// Content blocks without blank text, which the API refuses.
fn blocks(parts: Vec<Part<'_>>) -> Vec<Value> {
    let block = |part| match part {
        Part::Text(text) if text.trim().is_empty() => None,
        Part::Text(text) => Some(json!({"type": "text", "text": text})),
        Part::Document(Document { name, data }) => {
            let source = json!({"type": "base64", "media_type": PDF, "data": data});
            Some(json!({"type": "document", "title": name, "source": source}))
        }
        Part::Image(Image { mime_type, data }) => {
            Some(json!({"type": "image", "source": {"type": "base64", "media_type": mime_type, "data": data}}))
        }
    };
    parts.into_iter().filter_map(block).collect()
}

// Cache breakpoints (platform.claude.com/docs/en/build-with-claude/prompt-caching). A breakpoint caches everything
// before it: tools, then the system prompt, then messages. Tools and system prompt have one each, because either may be
// equal when the following part is not. The last two user messages have one each: this request reads the cache of the
// earlier one, and the next request that of the last. The API looks only twenty blocks back from a breakpoint, and a
// turn may have more calls. Prompts too short for a model are not cached, at no cost.

/// Messages with a breakpoint; with the tools and the system prompt that makes four, which the API allows.
const MESSAGES: usize = 2;

/// The cache breakpoints of a request.
#[derive(Clone, Copy)]
struct CacheBreakpoints {
    hour: bool,
    messages: usize,
}

impl CacheBreakpoints {
    /// The breakpoints of `request`, if it is to be cached.
    fn of(request: &ModelRequest) -> Option<Self> {
        let messages = match request.reuse {
            PromptReuse::Once => return None,
            PromptReuse::Prompt => 0,
            PromptReuse::Conversation => MESSAGES,
        };
        match request.settings.cache {
            Some(PromptCache::Off) => None,
            Some(PromptCache::Hour) => Some(Self { hour: true, messages }),
            Some(PromptCache::FiveMinutes) | None => Some(Self { hour: false, messages }),
        }
    }

    fn mark(self) -> Value {
        if self.hour { json!({"type": "ephemeral", "ttl": "1h"}) } else { json!({"type": "ephemeral"}) }
    }

    /// Returns the breakpoint of the last tool as text, with its position.
    fn tools(self, encoded_tools: &EncodedTools) -> Option<(usize, &'static str)> {
        let mark = if self.hour {
            r#","cache_control":{"type":"ephemeral","ttl":"1h"}"#
        } else {
            r#","cache_control":{"type":"ephemeral"}"#
        };
        encoded_tools.end_of_cached.map(|at| (at, mark))
    }

    /// The system prompt as a block with a breakpoint.
    fn system(self, text: &str) -> Value {
        json!([{"type": "text", "text": text, "cache_control": self.mark()}])
    }

    /// Sets breakpoints on the last blocks of the last user messages.
    fn messages(self, messages: &mut [Value]) {
        let of_user = messages.iter_mut().rev().filter(|message| message["role"] == "user").take(self.messages);
        for message in of_user {
            if let Some(block) = message["content"].as_array_mut().and_then(|blocks| blocks.last_mut()) {
                block["cache_control"] = self.mark();
            }
        }
    }
}
