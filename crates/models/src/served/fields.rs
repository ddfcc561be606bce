//! Lists the documented fields of the served APIs, and how each is handled.

use serde_json::{Map, Value};

use super::shapes::{self, FieldPath, named};
use super::{RequestError, ServedApi};

/// How a field is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handling {
    /// It has its documented effect, or the one in the note.
    Honoured,
    /// It has no effect. `x-toolwright-ignored` of the response names such fields.
    Ignored,
    /// The request is refused, unless the value is one of these or null.
    Refused(&'static [&'static str]),
}

/// A field of a request.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its API.
    pub api: ServedApi,
    /// Its name.
    pub name: &'static str,
    /// The [shape](super::SHAPES) of its objects; may be empty.
    pub inner: &'static str,
    /// How it is handled.
    pub handling: Handling,
    /// Further notes.
    pub note: &'static str,
}

macro_rules! fields {
    ($($api:ident { $($name:ident $(($inner:ident))?: $handling:expr, $note:literal;)* })*) => {
        /// Every documented field. A field that is not here is refused.
        pub const FIELDS: &[Field] = &[$($(
            Field {
                api: ServedApi::$api,
                name: stringify!($name),
                inner: concat!($(stringify!($inner))?),
                handling: $handling,
                note: $note,
            },
        )*)*];
    };
}

use Handling::{Honoured, Ignored, Refused};

fields! {
    Chat {
        audio: Refused(&[]), "answers are text";
        frequency_penalty: Refused(&["0", "0.0"]), "";
        function_call: Refused(&[]), "send `tool_choice`";
        functions: Refused(&[]), "send `tools`";
        logit_bias: Refused(&["{}"]), "";
        logprobs: Refused(&["false"]), "";
        max_completion_tokens: Honoured, "of each answer of the model, with its reasoning";
        max_tokens: Honoured, "as `max_completion_tokens`";
        messages (message): Honoured, "texts, images, text files and PDFs as data URLs; addresses are refused; system messages amid others move to the front, a loss";
        metadata: Ignored, "";
        modalities: Refused(&["[\"text\"]"]), "";
        model: Honoured, "an agent, `agent/NAME`, `raw/PROVIDER/MODEL` or a model";
        moderation: Refused(&[]), "";
        n: Refused(&["1"]), "";
        parallel_tool_calls: Honoured, "";
        prediction: Ignored, "";
        presence_penalty: Refused(&["0", "0.0"]), "";
        prompt_cache_key: Ignored, "";
        prompt_cache_options: Ignored, "";
        prompt_cache_retention: Ignored, "";
        reasoning_effort: Honoured, "";
        response_format (format): Honoured, "";
        safety_identifier: Ignored, "";
        seed: Honoured, "";
        service_tier: Ignored, "";
        stop: Honoured, "four at most";
        store: Ignored, "answers of this API are not kept";
        stream: Honoured, "";
        stream_options (stream_options): Honoured, "`include_usage`; `include_obfuscation` has no effect";
        temperature: Honoured, "";
        tool_choice (choice): Honoured, "in the first answer of the model";
        tools (tool): Honoured, "functions";
        top_logprobs: Refused(&["0"]), "";
        top_p: Honoured, "";
        user: Honoured, "names a session: stored outputs and jobs are shared by its requests";
        verbosity: Ignored, "";
        web_search_options: Refused(&[]), "agents bring their own tools";
    }
    Messages {
        billing_policy: Refused(&[]), "the keys of the server pay";
        cache_control: Ignored, "prompts are cached as configured; also in blocks";
        compaction: Refused(&[]), "room is made as configured";
        container: Refused(&[]), "";
        context_management: Ignored, "room is made as configured";
        diagnostics: Ignored, "";
        fallback_credit_token: Ignored, "";
        fallbacks: Ignored, "agents fall back as configured";
        inference_geo: Ignored, "";
        max_tokens: Honoured, "of each answer of the model, with its reasoning";
        mcp_servers: Refused(&["[]"]), "configure the servers here";
        messages (message): Honoured, "texts, images and PDFs as base64, text documents; addresses are refused; system messages amid others move to the front, a loss";
        metadata (metadata): Honoured, "`user_id` names a session";
        model: Honoured, "an agent, `agent/NAME`, `raw/PROVIDER/MODEL` or a model";
        output_config (output_config): Honoured, "`effort` and `format`";
        output_format (format): Honoured, "as `output_config.format`";
        service_tier: Ignored, "";
        speed: Ignored, "";
        stop_sequences: Honoured, "four at most";
        stream: Honoured, "";
        system (block): Honoured, "";
        temperature: Honoured, "";
        thinking (thinking): Honoured, "signatures are lost with other APIs than Anthropic's, and with agents";
        thread: Refused(&[]), "send the whole conversation";
        tool_choice (choice): Honoured, "in the first answer of the model";
        tools (tool): Honoured, "tools with an `input_schema`; web search and web fetch of the API have no effect";
        top_k: Honoured, "";
        top_p: Honoured, "";
    }
    Responses {
        access_programs: Refused(&[]), "";
        background: Honoured, "";
        client_metadata: Ignored, "";
        context_management: Ignored, "room is made as configured";
        conversation (conversation): Honoured, "";
        image: Refused(&[]), "answers are text";
        include: Honoured, "`reasoning.encrypted_content`, of models themselves, lost with agents and other APIs; the other documented values have no effect";
        input (item): Honoured, "texts, images, text files and PDFs as data URLs, calls and their outputs; addresses and ids of files are refused; system messages amid others move to the front, a loss";
        instructions: Honoured, "";
        max_output_tokens: Honoured, "of each answer of the model, with its reasoning";
        max_tool_calls: Honoured, "";
        metadata: Honoured, "";
        model: Honoured, "an agent, `agent/NAME`, `raw/PROVIDER/MODEL` or a model";
        moderation: Refused(&[]), "";
        parallel_tool_calls: Honoured, "";
        previous_response_id: Honoured, "";
        prompt: Refused(&[]), "send the text as `instructions`";
        prompt_cache_key: Ignored, "";
        prompt_cache_options: Ignored, "";
        prompt_cache_retention: Ignored, "";
        reasoning (reasoning): Honoured, "`effort`, `summary`";
        safety_identifier: Ignored, "";
        service_tier: Ignored, "";
        store: Honoured, "";
        stream: Honoured, "";
        stream_options (stream_options): Honoured, "`include_obfuscation` has no effect";
        temperature: Honoured, "";
        text (text): Honoured, "`format`; `verbosity` has no effect";
        tool_choice (choice): Honoured, "in the first answer of the model";
        tools (tool): Honoured, "functions, custom tools and namespaces of functions; web search of the API has no effect";
        top_logprobs: Refused(&["0"]), "";
        top_p: Honoured, "";
        truncation: Ignored, "room is made as configured";
        user: Honoured, "";
    }
}

/// The fields of this API, by name.
pub fn fields_of(api: ServedApi) -> impl Iterator<Item = &'static Field> {
    FIELDS.iter().filter(move |field| field.api == api)
}

/// Checks the names of all fields, including nested ones. Returns the ignored ones.
pub(super) fn check(api: ServedApi, body: &Map<String, Value>) -> Result<Vec<String>, RequestError> {
    let mut ignored = Vec::new();
    for (name, value) in body.iter().filter(|(_, value)| !value.is_null()) {
        let Some(field) = fields_of(api).find(|field| field.name == name) else {
            let name = named(name);
            return Err(RequestError::new(name, "this API has no such field"));
        };
        match field.handling {
            Handling::Honoured => {
                shapes::check((api, field.inner, false), &FieldPath::Field(None, name), value, &mut ignored)?;
            }
            Handling::Ignored => ignored.push(name.clone()),
            Handling::Refused(unless) if unless.contains(&value.to_string().as_str()) => {}
            Handling::Refused(unless) => {
                let mut message = "it is not supported here".to_owned();
                if !field.note.is_empty() {
                    message.push_str(&format!(": {}", field.note));
                }
                if !unless.is_empty() {
                    message.push_str(&format!("; leave it out, or send {}", unless[0]));
                }
                return Err(RequestError::new(name, message));
            }
        }
    }
    Ok(ignored)
}
