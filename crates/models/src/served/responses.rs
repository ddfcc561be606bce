//! Requests of OpenAI Responses as a server reads them (platform.openai.com/docs/api-reference/responses).

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{Message, ModelRequest, ModelSettings, RawToolCall, RequestSettings, RequestTool};

use super::chat::tool_choice;
use super::reading::{Conversation, Object, ReadResult, content, distinct, file, function, image_by_url, output};
use super::shapes::{check_fields, is_foreign, named, note};
use super::{Namespaced, RequestError, ServedApi, ServedRequest};
use crate::api::Api;

/// Entries of `metadata`, and characters of a name and of a value, as the API bounds them.
const METADATA: (usize, usize, usize) = (16, 64, 512);
/// The supported value of `include`.
const SIGNED: &str = "reasoning.encrypted_content";
/// Values of `include` for items that answers here never have.
const WITHOUT_EFFECT: [&str; 7] = [
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "web_search_call.action.sources",
    "web_search_call.results",
];
/// Items that are added to a conversation at once, as the API bounds them.
const MAX_NEW_ITEMS: usize = 20;

pub(super) fn read(body: &Map<String, Value>) -> ReadResult<ServedRequest> {
    let root = Object::root(body);
    let mut approvals = Vec::new();
    let items = items_of(body.get("input"));
    let continued = ["previous_response_id", "conversation"].iter().any(|key| root.get(key).is_some());
    let Conversation { messages, mut system, moves_system, .. } =
        read_items(&items, ("input", continued), &mut approvals)?;
    if let Some(instructions) = root.text("instructions")?.filter(|text| !text.is_empty()) {
        system.insert(0, instructions.to_owned());
    }
    let mut given = Tools::default();
    for tool in root.objects("tools")? {
        given.read(&tool)?;
    }
    let Tools { shown: tools, custom: custom_tools, namespaced, mut ignored } = given;
    distinct(&tools)?;
    root.object("stream_options")?;
    let text = root.object("text")?;
    let format = text.as_ref().map(|text| text.object("format")).transpose()?.flatten();
    let output = format.map(|format| output(&format, &format)).transpose()?.flatten();
    let reasoning = root.object("reasoning")?;
    let effort = reasoning.as_ref().map(|reasoning| reasoning.effort("effort")).transpose()?.flatten();
    let summary = reasoning.as_ref().is_some_and(|reasoning| reasoning.get("summary").is_some());
    let metadata = metadata(&root)?.unwrap_or_default();
    let conversation = match root.get("conversation") {
        None => None,
        Some(Value::String(id)) => Some(id.clone()),
        Some(value) => Some(Object::of(value, "conversation")?.needed_text("id")?.to_owned()),
    };
    let previous_response = root.text("previous_response_id")?.map(str::to_owned);
    if conversation.is_some() && previous_response.is_some() {
        return Err(root.wrong("conversation", "send it or `previous_response_id`, not both"));
    }
    if messages.is_empty() && approvals.is_empty() && conversation.is_none() && previous_response.is_none() {
        return Err(root.wrong("input", "there is nothing to answer"));
    }
    let max_tokens = root.count("max_output_tokens")?;
    Ok(ServedRequest {
        model: root.needed_text("model")?.to_owned(),
        request: ModelRequest {
            system: system.join("\n\n"),
            messages,
            tool_choice: tool_choice(&root, &tools, "/name")?,
            tools: tools.into(),
            parallel_calls: root.bool("parallel_tool_calls")?,
            output,
            max_tokens,
            temperature: root.number("temperature", 2.0)?,
            settings: RequestSettings {
                settings: ModelSettings { effort, top_p: root.number("top_p", 1.0)?, ..ModelSettings::default() },
                limit_covers_reasoning: max_tokens.is_some(),
                ..RequestSettings::default()
            },
            ..ModelRequest::default()
        },
        stream: root.bool("stream")?.unwrap_or(false),
        wants_reasoning: summary,
        wants_signatures: includes(&root, &mut ignored)?,
        max_calls: root.count("max_tool_calls")?,
        user: root.text("user")?.map(str::to_owned),
        metadata,
        store: root.bool("store")?.unwrap_or(true),
        previous_response,
        conversation,
        background: root.bool("background")?.unwrap_or(false),
        approvals,
        custom_tools,
        namespaced,
        items: items.into_iter().collect(),
        echo: echo(body),
        ignored,
        include_usage: false,
        moves_system,
    })
}

/// Whether encrypted reasoning is requested. Adds other values to `ignored`.
fn includes(root: &Object<'_>, ignored: &mut Vec<String>) -> ReadResult<bool> {
    let mut wants_signatures = false;
    for (at, wanted) in root.list("include")?.iter().enumerate() {
        let wanted = wanted.as_str().unwrap_or_default();
        if is_signed(wanted).map_err(|why| root.wrong(&format!("include[{at}]"), why))? {
            wants_signatures = true;
        } else {
            note(format!("include[]={wanted}"), ignored);
        }
    }
    Ok(wants_signatures)
}

/// Whether this value of `include` asks for encrypted reasoning; the other documented values have no effect.
fn is_signed(wanted: &str) -> Result<bool, String> {
    match wanted {
        SIGNED => Ok(true),
        known if WITHOUT_EFFECT.contains(&known) => Ok(false),
        _ => Err(format!("it is not one of {SIGNED}, {}", WITHOUT_EFFECT.join(", "))),
    }
}

/// Checks a value of the parameter `include`, as it is checked in a body.
///
/// # Errors
/// [`RequestError`]: it is none of the documented values.
pub fn check_include(value: &str) -> Result<(), RequestError> {
    is_signed(value).map(drop).map_err(|why| RequestError::new("include", why))
}

fn metadata(root: &Object<'_>) -> ReadResult<Option<Metadata>> {
    let (entries, name, value) = METADATA;
    let Some(metadata) = root.object("metadata")? else { return Ok(None) };
    if metadata.map.len() > entries {
        return Err(root.wrong("metadata", format!("it has more than {entries} entries")));
    }
    for (key, given) in metadata.map {
        if key.chars().count() > name {
            return Err(root.wrong("metadata", format!("a name in it has more than {name} characters")));
        }
        if given.as_str().is_none_or(|text| text.chars().count() > value) {
            let why = format!("it is not a text of at most {value} characters");
            return Err(RequestError::new(format!("metadata.{}", named(key)), why));
        }
    }
    Ok(Some(metadata.map.clone()))
}

/// A body of a request to `/v1/conversations`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversationBody {
    /// A conversation to create.
    New,
    /// New metadata of a conversation.
    Changed,
    /// Items to add to a conversation.
    Items,
}

/// A client's texts stored with a conversation, by name.
pub type Metadata = Map<String, Value>;

/// Reads the body of a request to `/v1/conversations`; an empty one has no fields. Returns its metadata, if it has some, and its
/// items.
///
/// # Errors
/// [`RequestError`], naming the field.
pub fn read_conversation(body: &[u8], what: ConversationBody) -> Result<(Option<Metadata>, Vec<Value>), RequestError> {
    let body = if body.is_empty() { Map::new() } else { super::read_body(body)? };
    let shape = match what {
        ConversationBody::New => "new_conversation",
        ConversationBody::Changed => "changed_conversation",
        ConversationBody::Items => "new_items",
    };
    check_fields((ServedApi::Responses, shape, false), None, &body, &mut Vec::new())?;
    let root = Object::root(&body);
    let (metadata, items) = (metadata(&root)?, root.list("items")?.to_vec());
    if items.len() > MAX_NEW_ITEMS {
        return Err(root.wrong("items", format!("it has more than {MAX_NEW_ITEMS} items")));
    }
    if what == ConversationBody::Items && items.is_empty() {
        return Err(root.wrong("items", "there are none"));
    }
    read_items(&items, ("items", what == ConversationBody::Items), &mut Vec::new())?;
    Ok((metadata, items))
}

/// Returns the fields that a response repeats, with the API's defaults for absent ones.
fn echo(body: &Map<String, Value>) -> Map<String, Value> {
    let usual = json!({
        "instructions": null, "max_output_tokens": null, "max_tool_calls": null, "metadata": {},
        "parallel_tool_calls": true, "previous_response_id": null, "reasoning": {"effort": null, "summary": null},
        "service_tier": "default", "store": true, "temperature": 1.0, "text": {"format": {"type": "text"}},
        "tool_choice": "auto", "tools": [], "top_p": 1.0, "truncation": "disabled", "user": null, "background": false,
    });
    let mut echo = match usual {
        Value::Object(usual) => usual,
        _ => Map::new(),
    };
    for (key, value) in &mut echo {
        if let Some(given) = body.get(key).filter(|given| !given.is_null()) {
            *value = given.clone();
        }
    }
    match body.get("conversation") {
        Some(id @ Value::String(_)) => drop(echo.insert("conversation".into(), json!({"id": id}))),
        Some(Value::Object(given)) => drop(echo.insert("conversation".into(), json!({"id": given.get("id")}))),
        _ => {}
    }
    echo
}

/// The items of an `input`: of a text, one message.
fn items_of(input: Option<&Value>) -> Vec<Value> {
    match input {
        Some(Value::String(text)) => vec![json!({
            "type": "message", "role": "user", "content": [{"type": "input_text", "text": text}],
        })],
        Some(Value::Array(items)) => items.clone(),
        None | Some(Value::Null) => Vec::new(),
        Some(other) => vec![other.clone()],
    }
}

/// The items of an `input`, each with an id.
#[must_use]
pub fn input_items(items: &[Value], id: impl Fn(usize) -> String) -> Vec<Value> {
    let mut items = items.to_vec();
    for (at, item) in items.iter_mut().enumerate() {
        if let Some(item) = item.as_object_mut() {
            item.entry("type").or_insert_with(|| json!("message"));
            if !item.get("id").is_some_and(Value::is_string) {
                item.insert("id".into(), json!(id(at)));
            }
            if item.get("type").is_some_and(|kind| kind == "message") {
                item.entry("status").or_insert_with(|| json!("completed"));
                if let Some(Value::String(text)) = item.get("content") {
                    let kind = if item.get("role").is_some_and(|role| role == "assistant") {
                        "output_text"
                    } else {
                        "input_text"
                    };
                    let part = json!([{"type": kind, "text": text}]);
                    item.insert("content".into(), part);
                }
            }
        }
    }
    items
}

/// The messages of items, as of a conversation.
///
/// # Errors
/// [`RequestError`], naming the field.
pub fn input_messages(items: &[Value]) -> Result<Vec<Message>, RequestError> {
    Ok(read_items(items, ("items", true), &mut Vec::new())?.messages)
}

/// Returns the texts of system and developer items. Other items are ignored.
///
/// # Errors
/// [`RequestError`], naming the field.
pub fn input_system(items: &[Value]) -> Result<Vec<String>, RequestError> {
    let of_system = |item: &&Value| matches!(item["role"].as_str(), Some("system" | "developer"));
    let items: Vec<Value> = items.iter().filter(of_system).cloned().collect();
    Ok(read_items(&items, ("items", true), &mut Vec::new())?.system)
}

fn read_items(
    items: &[Value],
    (field, continues): (&str, bool),
    approvals: &mut Vec<(String, bool, String)>,
) -> ReadResult<Conversation> {
    let mut out = Conversation { continues, ..Conversation::default() };
    for (at, item) in items.iter().enumerate() {
        let item = Object::of(item, format!("{field}[{at}]"))?;
        match item.text("type")?.unwrap_or("message") {
            "message" => read_message(&item, &mut out)?,
            "function_call" => out.call(RawToolCall {
                id: item.needed_text("call_id")?.to_owned(),
                name: match item.text("namespace")? {
                    Some(namespace) => {
                        let name = item.needed_text("name")?.to_owned();
                        Namespaced { namespace: namespace.to_owned(), name }.quoted_name()
                    }
                    None => item.needed_text("name")?.to_owned(),
                },
                arguments: item.text("arguments")?.unwrap_or_default().to_owned(),
            }),
            "custom_tool_call" => out.call(RawToolCall {
                id: item.needed_text("call_id")?.to_owned(),
                name: item.needed_text("name")?.to_owned(),
                arguments: json!({"input": item.text("input")?.unwrap_or_default()}).to_string(),
            }),
            "function_call_output" | "custom_tool_call_output" => {
                out.result((&item, "call_id"), content(&item, "output", part)?, false)?;
            }
            // Without content it refers to reasoning stored by a server of the API.
            "reasoning" if item.text("encrypted_content")?.is_some() => {
                // The id may be one of ours, and the API checks it against the content if there is one.
                let mut item = item.map.clone();
                item.shift_remove("id");
                out.opaque(Api::OpenAiResponses.as_str(), Value::Object(item), 0);
            }
            "mcp_approval_response" => {
                let Some(approve) = item.bool("approve")? else { return Err(item.wrong("approve", "it is missing")) };
                let reason = item.text("reason")?.unwrap_or("the user said no").to_owned();
                approvals.push((item.needed_text("approval_request_id")?.to_owned(), approve, reason));
            }
            // The following texts contain the output of tools that ran here.
            "reasoning" | "mcp_call" | "mcp_list_tools" | "mcp_approval_request" | "web_search_call" => {}
            other if is_foreign(ServedApi::Responses, "item", other) => {}
            other => return Err(item.wrong("type", format!("items of the type `{other}` are not taken here"))),
        }
    }
    Ok(out)
}

fn read_message(message: &Object<'_>, out: &mut Conversation) -> ReadResult<()> {
    let said = content(message, "content", part)?;
    match message.needed_text("role")? {
        "system" | "developer" => out.instruct(toolwright_core::content::joined_text(&said)),
        "user" => out.user(said),
        "assistant" => out.say(&toolwright_core::content::joined_text(&said)),
        other => return Err(message.wrong("role", format!("there is no role `{other}`"))),
    }
    Ok(())
}

fn part(part: &Object<'_>) -> ReadResult<ContentBlock> {
    match part.needed_text("type")? {
        "input_text" | "output_text" | "text" => Ok(ContentBlock::text(part.needed_text("text")?)),
        "refusal" => Ok(ContentBlock::text(part.needed_text("refusal")?)),
        "input_image" => image_by_url(part, "image_url", part.needed_text("image_url")?),
        "input_file" => {
            let name = part.text("filename")?.unwrap_or_default();
            file(part, ("file_data", "file_data"), name, part.needed_text("file_data")?, None)
        }
        other => Err(part.wrong(
            "type",
            format!("parts of the type `{other}` are not taken: input_text, input_image or input_file"),
        )),
    }
}

/// The tools of a request.
#[derive(Default)]
struct Tools {
    shown: Vec<RequestTool>,
    custom: Vec<String>,
    namespaced: HashMap<String, Namespaced>,
    ignored: Vec<String>,
}

impl Tools {
    fn read(&mut self, tool: &Object<'_>) -> ReadResult<()> {
        match tool.needed_text("type")? {
            "function" => self.shown.push(function(tool, "parameters")?),
            "namespace" => self.read_namespace(tool)?,
            "custom" => {
                let mut shown = function(tool, "parameters")?;
                if let Some(format) = tool.get("format").filter(|format| format["type"] == "grammar") {
                    let definition = format["definition"].as_str().unwrap_or_default();
                    shown.description.push_str(&format!("\n\nThe input is a text of this grammar:\n{definition}"));
                }
                shown.parameters = json!({
                    "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
                    "additionalProperties": false,
                });
                self.custom.push(shown.name.clone());
                self.shown.push(shown);
            }
            hosted if hosted.starts_with("web_search") => self.ignored.push(format!("{}={hosted}", tool.at("type"))),
            other => {
                let why = "send functions, custom tools or namespaces of functions";
                return Err(tool.wrong("type", format!("tools of the type `{other}` are not taken: {why}")));
            }
        }
        Ok(())
    }

    /// Reads the functions of a namespace, as codex sends for its MCP servers.
    fn read_namespace(&mut self, tool: &Object<'_>) -> ReadResult<()> {
        let namespace = tool.needed_text("name")?;
        for inner in tool.objects("tools")? {
            let kind = inner.needed_text("type")?;
            if kind != "function" {
                return Err(inner.wrong("type", format!("tools of the type `{kind}` are not taken in a namespace")));
            }
            let mut shown = function(&inner, "parameters")?;
            let of = Namespaced { namespace: namespace.to_owned(), name: shown.name };
            shown.name = of.quoted_name();
            self.namespaced.insert(shown.name.clone(), of);
            self.shown.push(shown);
        }
        Ok(())
    }
}
