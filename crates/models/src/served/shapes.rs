//! Fields of nested objects in requests, and how each is handled: one table of shapes, walked by one function.
//!
//! A request with a field outside of its shape is refused, as by the APIs themselves. Parts of an answer that a client
//! sends back were written by a server, here or elsewhere: unknown fields there have no effect, and the response names
//! them.

use serde_json::{Map, Value};

use super::{RequestError, ServedApi};
use ServedApi::{Chat, Messages, Responses};

/// The fields of one kind of object. Names are separated by spaces; `NAME:SHAPE` is a field with nested objects.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The API.
    pub api: ServedApi,
    /// The kind of object.
    pub name: &'static str,
    /// Values of `type`, or of a message's `role`, that it applies to; `""` for none. If empty, it applies to all.
    pub kinds: &'static [&'static str],
    /// Fields that have their documented effect.
    pub honoured: &'static str,
    /// Fields that have no effect.
    pub ignored: &'static str,
    /// Fields that are refused.
    pub refused: &'static str,
    /// Whether clients send it back from an answer: then unknown fields have no effect, here and below.
    pub is_answer: bool,
}

impl Shape {
    const fn of(api: ServedApi, name: &'static str, kinds: &'static [&'static str], honoured: &'static str) -> Self {
        Self { api, name, kinds, honoured, ignored: "", refused: "", is_answer: false }
    }

    const fn ignoring(self, ignored: &'static str) -> Self {
        Self { ignored, ..self }
    }

    const fn refusing(self, refused: &'static str) -> Self {
        Self { refused, ..self }
    }

    const fn of_answers(self) -> Self {
        Self { is_answer: true, ..self }
    }

    /// Returns the shape of an honoured field's objects, `""` for none; `None` for an unknown field.
    fn inner(&self, field: &str) -> Option<&'static str> {
        let mut honoured = self.honoured.split_whitespace().map(|word| word.split_once(':').unwrap_or((word, "")));
        honoured.find_map(|(name, inner)| (name == field).then_some(inner))
    }

    fn matches(&self, api: ServedApi, name: &str, kind: &str) -> bool {
        self.api == api && self.name == name && (self.kinds.is_empty() || self.kinds.contains(&kind))
    }
}

/// Items and blocks of an answer that other servers write: they are ignored, and the response names their types.
const FOREIGN: [(ServedApi, &str, &[&str]); 2] = [
    (
        Responses,
        "item",
        &[
            "apply_patch_call",
            "apply_patch_call_output",
            "code_interpreter_call",
            "compaction",
            "computer_call",
            "computer_call_output",
            "file_search_call",
            "image_generation_call",
            "local_shell_call",
            "local_shell_call_output",
            "shell_call",
            "shell_call_output",
            "tool_search_call",
            "tool_search_output",
        ],
    ),
    (Messages, "block", &["compaction", "container_upload", "fallback"]),
];

/// Whether an object of this shape and kind is ignored because only other servers write it.
pub(super) fn is_foreign(api: ServedApi, name: &str, kind: &str) -> bool {
    FOREIGN.iter().any(|(of, shape, kinds)| (*of, *shape) == (api, name) && kinds.contains(&kind))
}

/// All shapes. Objects of other types are refused by their type, except items and blocks that show what ran on a
/// server: those are ignored.
pub const SHAPES: &[Shape] = &[
    Shape::of(Chat, "message", &["system", "developer", "user"], "role content:part").ignoring("name cache_control"),
    Shape::of(Chat, "message", &["tool"], "role tool_call_id content:part").ignoring("name cache_control"),
    Shape::of(Chat, "message", &["assistant"], "role content:part refusal tool_calls:call")
        .ignoring("name annotations reasoning_content")
        .refusing("audio function_call")
        .of_answers(),
    Shape::of(Chat, "part", &["text"], "type text").ignoring("cache_control prompt_cache_breakpoint"),
    Shape::of(Chat, "part", &["refusal"], "type refusal"),
    Shape::of(Chat, "part", &["image_url"], "type image_url:image").ignoring("cache_control prompt_cache_breakpoint"),
    Shape::of(Chat, "part", &["file"], "type file:file").ignoring("cache_control prompt_cache_breakpoint"),
    Shape::of(Chat, "image", &[], "url").ignoring("detail"),
    Shape::of(Chat, "file", &[], "filename file_data").refusing("file_id"),
    Shape::of(Chat, "call", &["", "function"], "type id function:called").ignoring("index"),
    Shape::of(Chat, "called", &[], "name arguments"),
    Shape::of(Chat, "tool", &["function"], "type function:function").ignoring("cache_control"),
    Shape::of(Chat, "function", &[], "name description parameters strict"),
    Shape::of(Chat, "choice", &["function"], "type function:chosen"),
    Shape::of(Chat, "chosen", &[], "name"),
    Shape::of(Chat, "format", &["text", "json_object"], "type"),
    Shape::of(Chat, "format", &["json_schema"], "type json_schema:schema"),
    Shape::of(Chat, "schema", &[], "name schema").ignoring("description strict"),
    Shape::of(Chat, "stream_options", &[], "include_usage").ignoring("include_obfuscation"),
    Shape::of(Responses, "item", &["user", "system", "developer"], "type role content:part id status")
        .ignoring("phase"),
    Shape::of(
        Responses,
        "item",
        &["function_call_output", "custom_tool_call_output"],
        "type call_id output:part id status",
    )
    .ignoring("caller name namespace"),
    Shape::of(Responses, "item", &["mcp_approval_response"], "type approval_request_id approve reason id"),
    Shape::of(Responses, "item", &["item_reference"], "type id"),
    Shape::of(Responses, "item", &["assistant"], "type role content:part id status").ignoring("phase").of_answers(),
    Shape::of(Responses, "item", &["function_call"], "type call_id name namespace arguments id status")
        .ignoring("async caller")
        .of_answers(),
    Shape::of(Responses, "item", &["custom_tool_call"], "type call_id name input id status")
        .ignoring("async caller namespace")
        .of_answers(),
    Shape::of(Responses, "item", &["reasoning"], "type encrypted_content summary content id status").of_answers(),
    Shape::of(Responses, "part", &["input_text", "text"], "type text").ignoring("prompt_cache_breakpoint"),
    Shape::of(Responses, "part", &["output_text"], "type text annotations logprobs"),
    Shape::of(Responses, "part", &["refusal"], "type refusal"),
    Shape::of(Responses, "part", &["input_image"], "type image_url")
        .ignoring("detail prompt_cache_breakpoint")
        .refusing("file_id"),
    Shape::of(Responses, "part", &["input_file"], "type filename file_data")
        .ignoring("detail prompt_cache_breakpoint")
        .refusing("file_id file_url"),
    Shape::of(Responses, "tool", &["function"], "type name description parameters strict")
        .ignoring("allowed_callers async defer_loading output_schema"),
    Shape::of(Responses, "tool", &["custom"], "type name description format:grammar")
        .ignoring("allowed_callers async defer_loading"),
    Shape::of(Responses, "tool", &["namespace"], "type name tools:tool").ignoring("description"),
    Shape::of(Responses, "grammar", &["text"], "type"),
    Shape::of(Responses, "grammar", &["grammar"], "type definition").ignoring("syntax"),
    Shape::of(Responses, "choice", &["function", "custom"], "type name"),
    Shape::of(Responses, "reasoning", &[], "effort summary").ignoring("context generate_summary mode"),
    Shape::of(Responses, "text", &[], "format:format").ignoring("verbosity"),
    Shape::of(Responses, "format", &["text", "json_object"], "type"),
    Shape::of(Responses, "format", &["json_schema"], "type name schema").ignoring("description strict"),
    Shape::of(Responses, "stream_options", &[], "").ignoring("include_obfuscation"),
    Shape::of(Responses, "conversation", &[], "id"),
    Shape::of(Responses, "new_conversation", &[], "metadata items:item"),
    Shape::of(Responses, "changed_conversation", &[], "metadata"),
    Shape::of(Responses, "new_items", &[], "items:item"),
    Shape::of(Messages, "message", &["user"], "role content:block"),
    Shape::of(Messages, "message", &["system"], "role content:block").ignoring("clear_at output_config"),
    Shape::of(Messages, "message", &["assistant"], "role content:block").of_answers(),
    Shape::of(Messages, "block", &["text"], "type text").ignoring("cache_control citations"),
    Shape::of(Messages, "block", &["image"], "type source:source").ignoring("cache_control transformations"),
    Shape::of(Messages, "block", &["document"], "type title source:source").ignoring("cache_control citations context"),
    Shape::of(Messages, "block", &["search_result"], "type source content:block")
        .ignoring("cache_control citations title"),
    Shape::of(Messages, "block", &["tool_reference"], "type tool_name").ignoring("cache_control"),
    Shape::of(Messages, "block", &["tool_result"], "type tool_use_id content:block is_error")
        .ignoring("cache_control toolset_name"),
    Shape::of(Messages, "block", &["tool_use"], "type id name input")
        .ignoring("cache_control caller toolset_name")
        .of_answers(),
    Shape::of(Messages, "block", &["thinking"], "type thinking signature").of_answers(),
    Shape::of(Messages, "block", &["redacted_thinking"], "type data").of_answers(),
    Shape::of(Messages, "source", &["base64", "text"], "type media_type data"),
    Shape::of(Messages, "source", &["content"], "type content:block"),
    Shape::of(Messages, "tool", &["", "custom"], "type name description input_schema strict")
        .ignoring("allowed_callers cache_control defer_loading eager_input_streaming input_examples"),
    Shape::of(Messages, "choice", &["auto", "any", "none"], "type disable_parallel_tool_use"),
    Shape::of(Messages, "choice", &["tool"], "type name disable_parallel_tool_use"),
    Shape::of(Messages, "thinking", &["enabled"], "type budget_tokens").ignoring("block_binding display"),
    Shape::of(Messages, "thinking", &["adaptive", "disabled"], "type").ignoring("block_binding display"),
    Shape::of(Messages, "output_config", &[], "effort format:format").ignoring("task_budget"),
    Shape::of(Messages, "format", &[], "type schema"),
    Shape::of(Messages, "metadata", &[], "user_id"),
];

/// Paths that an answer names.
const MAX_IGNORED: usize = 64;
/// Characters of a client's name for a field that a path shows.
const MAX_NAME: usize = 64;

/// A place in a request.
#[derive(Clone, Copy)]
pub(super) enum FieldPath<'a> {
    Field(Option<&'a FieldPath<'a>>, &'a str),
    At(&'a FieldPath<'a>, usize),
}

impl FieldPath<'_> {
    /// Its path; with `[]` for every place of a list unless `is_exact`.
    fn path(&self, is_exact: bool) -> String {
        match self {
            Self::Field(None, name) => named(name),
            Self::Field(Some(above), name) => format!("{}.{}", above.path(is_exact), named(name)),
            Self::At(above, at) if is_exact => format!("{}[{at}]", above.path(is_exact)),
            Self::At(above, _) => format!("{}[]", above.path(is_exact)),
        }
    }
}

/// Formats a name for a path, whatever a client sent.
pub(super) fn named(name: &str) -> String {
    if name.is_empty() {
        return "\"\"".to_owned();
    }
    name.chars().flat_map(char::escape_default).take(MAX_NAME).collect()
}

/// Checks the fields of the objects at `place`, which have this shape, and everything below. Adds ignored fields to
/// `ignored`, each path once.
pub(super) fn check(
    (api, name, in_answer): (ServedApi, &str, bool),
    place: &FieldPath<'_>,
    value: &Value,
    ignored: &mut Vec<String>,
) -> Result<(), RequestError> {
    match value {
        Value::Array(values) => {
            let mut values = values.iter().enumerate();
            values.try_for_each(|(at, value)| check((api, name, in_answer), &FieldPath::At(place, at), value, ignored))
        }
        Value::Object(map) => check_fields((api, name, in_answer), Some(place), map, ignored),
        _ => Ok(()),
    }
}

/// Adds a path once, if there is room.
pub(super) fn note(path: String, ignored: &mut Vec<String>) {
    if ignored.len() < MAX_IGNORED && !ignored.contains(&path) {
        ignored.push(path);
    }
}

/// Checks the fields of an object of this shape; `place` is its path, unless it is the whole body.
pub(super) fn check_fields(
    (api, name, in_answer): (ServedApi, &str, bool),
    place: Option<&FieldPath<'_>>,
    map: &Map<String, Value>,
    ignored: &mut Vec<String>,
) -> Result<(), RequestError> {
    let text = |key: &str| map.get(key).and_then(Value::as_str);
    // A message has its type only if it is written out.
    let kind = text("type").filter(|kind| *kind != "message").or(text("role")).unwrap_or_default();
    // The reader reports objects of another kind.
    let Some(shape) = SHAPES.iter().find(|shape| shape.matches(api, name, kind)) else {
        if is_foreign(api, name, kind) {
            note(format!("{}={kind}", FieldPath::Field(place, "type").path(false)), ignored);
        }
        return Ok(());
    };
    let in_answer = in_answer || shape.is_answer;
    for (field, value) in map.iter().filter(|(_, value)| !value.is_null()) {
        let place = FieldPath::Field(place, field);
        let is_in = |names: &str| names.split(' ').any(|name| name == field);
        if let Some(inner) = shape.inner(field) {
            check((api, inner, in_answer), &place, value, ignored)?;
        } else if is_in(shape.refused) {
            return Err(RequestError::new(place.path(true), "it is not supported here"));
        } else if in_answer || is_in(shape.ignored) {
            note(place.path(false), ignored);
        } else {
            return Err(RequestError::new(place.path(true), "this API has no such field"));
        }
    }
    Ok(())
}
