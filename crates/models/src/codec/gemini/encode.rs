//! Encodes requests to Gemini.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::{Map, Value, json};
use toolwright_core::model::{ModelRequest, ToolChoice};

use super::API;
use crate::api::{EncodedRequest, RequestPart};
use crate::codec::history::{
    AlternatingMessages, AssistantPiece, Document, Image, LegalCall, LegalResult, NOTHING, PDF, Part, Turn,
    legal_turns, pieces, user_parts,
};
use crate::codec::request::{
    ModelFamily, SamplingNames, output_schema, set, tools_place, with_instruction, write_sampling,
};
use crate::codec::{EncodedTools, reasoning};
use crate::dialect::{Dialect, Toolset, TranslatedTool};

/// Characters that are not escaped in a model's name in a path.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
/// The signature of a turn's first call without one: otherwise Gemini 3 refuses it
/// (ai.google.dev/gemini-api/docs/thought-signatures).
const FOREIGN_SIGNATURE: &str = "skip_thought_signature_validator";

const NAMES: SamplingNames = SamplingNames {
    temperature: Some("temperature"),
    top_p: Some("topP"),
    top_k: Some("topK"),
    seed: Some("seed"),
    stop: Some("stopSequences"),
};

pub(crate) fn encode(request: &ModelRequest, model: &str, encoded_tools: &EncodedTools) -> EncodedRequest {
    let (mut body, mut losses) = (Map::new(), Vec::new());
    let tools = encoded_tools.json.clone();
    let mut system = request.system.clone();
    // If the API refuses a response schema beside tools, the system prompt contains it.
    let output = request.output.as_ref().filter(|output| {
        let refused = tools.is_some() && !takes_shape_with_tools(model);
        if refused {
            system = with_instruction(&system, output);
        }
        !refused
    });
    if !system.is_empty() {
        body.insert("systemInstruction".into(), json!({"parts": [{"text": system}]}));
    }
    body.insert("contents".into(), Value::Array(contents(request, model, encoded_tools.set())));
    if tools.is_some() {
        body.insert("tools".into(), tools_place());
        losses.push(RequestPart::ParallelCalls);
        let calling = match encoded_tools.choice(request, &mut losses) {
            ToolChoice::Auto => None,
            ToolChoice::Required => Some(json!({"mode": "ANY"})),
            ToolChoice::None => Some(json!({"mode": "NONE"})),
            ToolChoice::Tool(name) => Some(json!({"mode": "ANY", "allowedFunctionNames": [name]})),
        };
        let mut tool_config = Map::new();
        set(&mut tool_config, "functionCallingConfig", calling);
        if encoded_tools.native_kinds().next().is_some() && !encoded_tools.set().tools.is_empty() {
            // With functions, the API needs its native calls and their results back
            // (ai.google.dev/gemini-api/docs/tool-combination).
            tool_config.insert("includeServerSideToolInvocations".into(), json!(true));
        }
        set(&mut body, "toolConfig", Some(tool_config).filter(|config| !config.is_empty()));
    }
    let mut config = Map::new();
    set(&mut config, "maxOutputTokens", request.max_tokens);
    write_sampling(&mut config, request, model, &NAMES, &mut losses);
    let thinking = reasoning::gemini(model, &request.settings);
    let budget = thinking.as_ref().and_then(|thinking| reasoning::tokens(&thinking["thinkingBudget"]));
    reasoning::note_losses((API, model), &request.settings, (thinking.is_some(), budget), &mut losses);
    set(&mut config, "thinkingConfig", thinking);
    if let Some(output) = output {
        config.insert("responseMimeType".into(), json!("application/json"));
        let schema = output.schema.as_ref().map(|schema| output_schema(Dialect::GeminiJsonSchema, schema).schema);
        set(&mut config, "responseJsonSchema", schema);
    }
    set(&mut body, "generationConfig", Some(config).filter(|config| !config.is_empty()));
    EncodedRequest::new(path(model), body).with_tools(tools).without(losses)
}

/// Whether the model supports `responseMimeType: application/json` together with function declarations: generations 1
/// and 2 answer 400 (github.com/googleapis/python-genai, issue 867).
fn takes_shape_with_tools(model: &str) -> bool {
    !is_older_model(model)
}

/// Whether the model supports images inside a function's response, as Gemini does since its third generation
/// (ai.google.dev/gemini-api/docs/function-calling, multimodal function responses). Others answer 400.
fn takes_images_in_results(model: &str) -> bool {
    matches!(ModelFamily::of(model), ModelFamily::Gemini(..)) && !is_older_model(model)
}

fn is_older_model(model: &str) -> bool {
    matches!(ModelFamily::of(model), ModelFamily::Gemini(Some((..3, _)), _))
}

/// A bare name is in `models/`; a tuned model's name has its own folder.
fn path(model: &str) -> String {
    let folder = if model.contains('/') { "" } else { "models/" };
    format!("/v1beta/{folder}{}:streamGenerateContent?alt=sse", utf8_percent_encode(model, NAME))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Tool<'a> {
    function_declarations: Vec<Declaration<'a>>,
}

/// A function declaration.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Declaration<'a> {
    name: &'a str,
    description: &'a str,
    parameters_json_schema: &'a Value,
}

/// Returns one tool with all functions; `None` without functions.
pub(crate) fn tools(set: &Toolset) -> Option<Tool<'_>> {
    let declare = |view| {
        let TranslatedTool { name, description, parameters, .. }: &TranslatedTool = view;
        Declaration { name, description, parameters_json_schema: parameters }
    };
    let function_declarations: Vec<_> = set.tools.iter().map(declare).collect();
    (!function_declarations.is_empty()).then_some(Tool { function_declarations })
}

fn contents(request: &ModelRequest, model: &str, tools: &Toolset) -> Vec<Value> {
    let images_inside = takes_images_in_results(model);
    let nothing = || json!({"text": NOTHING});
    let mut out = AlternatingMessages { model: "model", key: "parts", nothing, messages: Vec::new() };
    let mut ids: Vec<Option<String>> = Vec::new();
    for turn in legal_turns(&request.messages, API, tools) {
        match turn {
            Turn::User(content) => out.push("user", wire_parts(user_parts(content))),
            Turn::Assistant { text, calls, opaque } => {
                let parts = answer(text, &calls, &opaque, &mut ids);
                out.push("model", parts);
            }
            Turn::Results(results) => {
                let mut after = Vec::new();
                let mut parts = Vec::with_capacity(results.len());
                for (number, result) in results.iter().enumerate() {
                    let id = ids.get(number).and_then(Option::as_deref);
                    parts.push(if images_inside {
                        whole_response(result, id)
                    } else {
                        response(result, id, &mut after)
                    });
                }
                parts.extend(after);
                out.push("user", parts);
            }
        }
    }
    out.messages
}

/// Encodes a past response part by part. `ids` gets the ids that the API itself assigned to calls; it is sent no
/// others.
fn answer(text: &str, calls: &[LegalCall<'_>], opaque: &[&Value], ids: &mut Vec<Option<String>>) -> Vec<Value> {
    *ids = vec![None; calls.len()];
    let mut out = Vec::new();
    let mut head: Option<&Value> = None;
    for piece in pieces(text, calls, opaque) {
        match piece {
            AssistantPiece::Text(text) => out.push(json!({"text": text})),
            AssistantPiece::Call(number, call) => {
                let mut function = json!({"name": call.name, "args": call.arguments_object()});
                let head = head.take();
                if let Some(id) = head.and_then(|head| head["functionCall"]["id"].as_str()) {
                    function["id"] = json!(id);
                    ids[number] = Some(id.to_owned());
                }
                let mut part = json!({"functionCall": function});
                if let Some(signature) = head.and_then(|head| head.get("thoughtSignature")) {
                    part["thoughtSignature"] = signature.clone();
                } else if number == 0 {
                    part["thoughtSignature"] = json!(FOREIGN_SIGNATURE);
                }
                out.push(part);
            }
            // Further data of the next call.
            AssistantPiece::Item(item) if item.get("functionCall").is_some() => head = Some(item),
            // A step of an interaction is no part of a content.
            AssistantPiece::Item(item) if item.get("type").is_some() => {}
            AssistantPiece::Item(item) => out.push(item.clone()),
        }
    }
    out
}

/// A result with its images inside.
fn whole_response(result: &LegalResult<'_>, id: Option<&str>) -> Value {
    let (images, texts): (Vec<_>, Vec<_>) = result.parts().into_iter().partition(|part| matches!(part, Part::Image(_)));
    let texts = texts.into_iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None });
    let mut part = function_response(result, texts.collect::<Vec<_>>().join("\n"), id);
    if !images.is_empty() {
        part["functionResponse"]["parts"] = wire_parts(images).into();
    }
    part
}

/// A result as a text; its images come `after` all results.
fn response(result: &LegalResult<'_>, id: Option<&str>, after: &mut Vec<Value>) -> Value {
    let (text, found) = result.text_and_images();
    after.extend(wire_parts(found));
    function_response(result, text, id)
}

/// A function response, with the documented keys for output and error.
fn function_response(result: &LegalResult<'_>, text: String, id: Option<&str>) -> Value {
    let key = if result.is_error() { "error" } else { "output" };
    let mut function = json!({"name": result.name, "response": {key: text}});
    if let Some(id) = id {
        function["id"] = json!(id);
    }
    json!({"functionResponse": function})
}

fn wire_parts(parts: Vec<Part<'_>>) -> Vec<Value> {
    let part = |part| match part {
        Part::Text(text) => json!({"text": text}),
        Part::Document(Document { data, .. }) => json!({"inlineData": {"mimeType": PDF, "data": data}}),
        Part::Image(Image { mime_type, data }) => json!({"inlineData": {"mimeType": mime_type, "data": data}}),
    };
    parts.into_iter().map(part).collect()
}
