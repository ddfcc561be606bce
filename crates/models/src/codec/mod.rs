//! The codecs of the model APIs: one file or folder per API, with its encoder of requests and its decoder of responses.
//!
//! [`encode()`] and [`Decoder`] pick the folder; [`losses`] names the parts of a request that its model does not get. The other files are shared by the codecs: legal histories, reasoning,
//! model families and tools for requests; events and the response under assembly for responses.

pub(crate) mod anthropic;
pub(crate) mod decode;
mod gemini;
pub(crate) mod history;
mod native;
pub(crate) mod ollama;
mod openai_chat;
mod openai_responses;
pub(crate) mod reasoning;
pub(crate) mod request;
mod response;

use std::sync::{Arc, Mutex, PoisonError};

use serde::ser::SerializeSeq as _;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use toolwright_core::model::{Effort, Message, ModelRequest, RequestTool, ToolChoice, ToolVisibility};

use self::request::{set, tools_place};
use self::response::ApiDecoder;
use crate::api::{Api, EncodedRequest, RequestPart};
use crate::dialect::{Toolset, translate};
pub use decode::{Decoder, decode_whole};

/// Encodes `request` for `model` (the name without its provider), asking for a stream.
///
/// Never fails, and always returns a legal request: arguments that do not parse are replayed as `{}`, a call without a
/// result gets one that says so, a result without a call is left out, ids and names of past calls are made legal and
/// unique. Tools are translated to the API's dialect and keep their order; their own definitions do not change.
/// Settings without a parameter in the API are left out: a forced call for Ollama, a limit on parallel calls for
/// Gemini, a temperature for models that refuse one. docs/model-differences.md lists all of it.
///
/// Deferred tools go to the two APIs that can load them. Anthropic Messages gets them with `defer_loading`, and results
/// that load tools as `tool_reference` blocks. OpenAI Responses gets the search tool as `tool_search`, past calls of it
/// as `tool_search_call`, and the definitions that a result loads in its `tool_search_output`. Both APIs allow nothing
/// else in such a result, so its text is left out. Names of tools that are not deferred, or not in the request, load
/// nothing.
#[must_use]
pub fn encode(api: Api, request: &ModelRequest, model: &str) -> EncodedRequest {
    encode_with(request, model, &EncodedTools::new(api, &request.tools))
}

/// [`encode()`] with tools that are translated and serialised already.
#[must_use]
pub fn encode_with(request: &ModelRequest, model: &str, tools: &EncodedTools) -> EncodedRequest {
    match tools.api {
        Api::OpenAiChat => openai_chat::encode(request, model, tools),
        Api::OpenAiResponses => openai_responses::encode(request, model, tools),
        Api::Anthropic => anthropic::encode(request, model, tools),
        Api::Gemini => gemini::encode(request, model, tools),
        Api::Ollama => ollama::encode(request, model, tools),
    }
}

impl RequestPart {
    /// The APIs that lack it for all models: those that leave it out of `request`, which has it.
    pub(crate) fn apis_without(self, request: &ModelRequest) -> Vec<Api> {
        let lacks = |api: &Api| {
            let model = match api {
                Api::Anthropic => "claude-sonnet-4-5",
                Api::Gemini => "gemini-2.5-pro",
                Api::OpenAiChat | Api::OpenAiResponses | Api::Ollama => "model",
            };
            encode(*api, request, model).losses().contains(&self)
        };
        Api::ALL.into_iter().filter(lacks).collect()
    }
}

/// Returns the parts of `asked` that `api` does not get: those that `encoded`, made of `configured`, leaves out, and those
/// that the configuration changed.
pub(crate) fn losses(
    api: Api,
    asked: &ModelRequest,
    configured: &ModelRequest,
    encoded: &EncodedRequest,
) -> Vec<RequestPart> {
    let (before, after) = (&asked.settings, &configured.settings);
    let budget = after.thinking_tokens.unwrap_or(0);
    let is_silent = after.effort.is_none_or(|effort| effort == Effort::None) && budget == 0;
    let is_foreign = |message: &Message| match message {
        Message::Assistant { opaque, .. } => opaque.iter().any(|data| data.api != api.as_str()),
        Message::User { .. } | Message::Tool { .. } => false,
    };
    let changed = [
        (RequestPart::MaxTokens, configured.max_tokens < asked.max_tokens),
        (RequestPart::Effort, is_silent),
        (RequestPart::Thinking, before.thinking_tokens.is_some() && budget == 0),
        (RequestPart::Budget, before.thinking_tokens.is_some_and(|tokens| tokens != budget)),
        (RequestPart::ThinkingBlocks, asked.messages.iter().any(is_foreign)),
    ];
    let changed = changed.into_iter().filter_map(|(part, is_lost)| is_lost.then_some(part));
    let mut lost: Vec<_> = encoded.losses().iter().copied().chain(changed).collect();
    // What the configuration adds is no loss of the request.
    lost.retain(|part| part.is_asked(asked));
    lost.sort_unstable();
    lost.dedup();
    lost
}

/// Returns the decoder of the responses of `api`.
fn decoder(api: Api) -> Box<dyn ApiDecoder> {
    match api {
        Api::OpenAiChat => Box::<openai_chat::ChatDecoder>::default(),
        Api::OpenAiResponses => Box::<openai_responses::ResponsesDecoder>::default(),
        Api::Anthropic => Box::<anthropic::AnthropicDecoder>::default(),
        Api::Gemini => Box::<gemini::GeminiDecoder>::default(),
        Api::Ollama => Box::<ollama::OllamaDecoder>::default(),
    }
}

/// The `tools` of a request to `api`, exactly as [`encode_with`] sends them. Quarantined tools are not among them.
#[must_use]
pub fn tools_json(api: Api, tools: &Toolset) -> Value {
    let set = loadable(api, Arc::new(tools.clone()));
    // Writing to memory does not fail.
    serde_json::to_value(Tools { api, set: &set, natives: &[] }).unwrap_or_default()
}

/// The `tools` of a request, written without a copy of their schemas.
struct Tools<'a> {
    api: Api,
    set: &'a Toolset,
    /// The declarations of tools that the provider runs. They come first: others may join at the end.
    natives: &'a [Value],
}

impl Serialize for Tools<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        self.natives.iter().try_for_each(|native| list.serialize_element(native))?;
        let mut views = self.set.tools.iter();
        match self.api {
            Api::OpenAiChat | Api::Ollama => {
                views.try_for_each(|view| list.serialize_element(&openai_chat::tool(view)))?
            }
            Api::OpenAiResponses => {
                openai_responses::tools(self.set).try_for_each(|tool| list.serialize_element(&tool))?;
            }
            Api::Anthropic => views.try_for_each(|view| list.serialize_element(&anthropic::tool(view)))?,
            Api::Gemini => gemini::tools(self.set).iter().try_for_each(|tool| list.serialize_element(tool))?,
        }
        list.end()
    }
}

/// Tools for one API, translated and serialised, so that many requests share the work.
#[derive(Debug, Clone)]
pub struct EncodedTools {
    api: Api,
    set: Arc<Toolset>,
    /// The declarations of tools that the provider runs.
    natives: Arc<[Value]>,
    /// `None` without tools.
    json: Option<Arc<str>>,
    /// Position before the closing brace of the last tool that is not deferred. A cache breakpoint can be inserted
    /// there; deferred tools are not cached, and the API refuses breakpoints on them.
    end_of_cached: Option<usize>,
}

impl EncodedTools {
    /// Translates `tools` for `api`. Strict decoding is requested where the tool's author did.
    #[must_use]
    pub fn new(api: Api, tools: &[RequestTool]) -> Self {
        Self::translated(api, tools, false)
    }

    /// Translates `tools` for `api`, and adds declarations of native tools; `strict` as in
    /// [`translate`].
    fn translated(api: Api, tools: &[RequestTool], strict: bool) -> Self {
        let declared = |tool: &RequestTool| tool.native.as_ref()?.get(api.as_str()).cloned();
        let natives: Arc<[Value]> = tools.iter().filter_map(declared).collect();
        if tools.iter().all(|tool| tool.native.is_none()) {
            return Self::with_natives(api, translate(api.dialect(), tools, strict).into(), natives);
        }
        let functions: Vec<RequestTool> = tools.iter().filter(|tool| tool.native.is_none()).cloned().collect();
        Self::with_natives(api, translate(api.dialect(), &functions, strict).into(), natives)
    }

    /// Uses an existing translation, as with strict decoding or another of the API's dialects. Deferred tools
    /// stay only if the API can load them.
    #[must_use]
    pub fn of(api: Api, set: impl Into<Arc<Toolset>>) -> Self {
        Self::with_natives(api, set.into(), Arc::default())
    }

    fn with_natives(api: Api, set: Arc<Toolset>, natives: Arc<[Value]>) -> Self {
        let set = loadable(api, set);
        // Writing to memory does not fail.
        let write = || serde_json::to_string(&Tools { api, set: &set, natives: &natives }).unwrap_or_default().into();
        let json: Option<Arc<str>> = (!set.tools.is_empty() || !natives.is_empty()).then(write);
        let end_of_cached =
            json.as_deref().filter(|_| api == Api::Anthropic).and_then(|json| end_of_cached(&set, json));
        Self { api, set, natives, json, end_of_cached }
    }

    /// The translated tools.
    #[must_use]
    pub fn set(&self) -> &Arc<Toolset> {
        &self.set
    }

    /// The types of the declared tools that the provider runs, or the one key of each.
    fn native_kinds(&self) -> impl Iterator<Item = &str> {
        self.natives.iter().filter_map(|native| match native["type"].as_str() {
            Some(kind) => Some(kind),
            None => native.as_object()?.keys().next().map(String::as_str),
        })
    }

    /// Returns the tool choice of `request`, as far as possible: a call of an undeclared tool, or of one that the API
    /// does not treat as a function, cannot be forced.
    fn choice<'a>(&self, request: &'a ModelRequest, losses: &mut Vec<RequestPart>) -> &'a ToolChoice {
        match &request.tool_choice {
            ToolChoice::Tool(name) if !self.is_function(name) => {
                losses.push(RequestPart::ToolChoice);
                &ToolChoice::Auto
            }
            choice => choice,
        }
    }

    /// Writes the keys of OpenAI's APIs that are about tools; `named` is how one forces the call of a tool. Returns the
    /// tools, and notes what it leaves out.
    fn write_openai(
        &self,
        body: &mut Map<String, Value>,
        request: &ModelRequest,
        named: impl FnOnce(&str) -> Value,
        losses: &mut Vec<RequestPart>,
    ) -> Option<Arc<str>> {
        let tools = self.json.clone()?;
        body.insert("tools".into(), tools_place());
        let choice = match self.choice(request, losses) {
            ToolChoice::Auto => None,
            ToolChoice::Required => Some("required".into()),
            ToolChoice::None => Some("none".into()),
            ToolChoice::Tool(name) => Some(named(name)),
        };
        set(body, "tool_choice", choice);
        set(body, "parallel_tool_calls", request.parallel_calls);
        Some(tools)
    }

    fn is_function(&self, name: &str) -> bool {
        let search = if self.api == Api::OpenAiResponses { self.set.tool_search() } else { None };
        search.is_none_or(|search| search.name != name)
            && self.set.get(name).is_some_and(|tool| tool.exposed != ToolVisibility::Deferred)
    }
}

/// Returns the position before the closing brace of the last tool that is not deferred, counted from the end by the
/// length of each deferred tool.
fn end_of_cached(set: &Toolset, json: &str) -> Option<usize> {
    let mut end = json.len().checked_sub("}]".len())?;
    for view in set.tools.iter().rev() {
        if view.exposed != ToolVisibility::Deferred {
            return Some(end);
        }
        // Writing to memory does not fail.
        let written = serde_json::to_string(&anthropic::tool(view)).unwrap_or_default();
        end = end.checked_sub(written.len() + ",".len())?;
    }
    None
}

/// Returns `set` without deferred tools, unless the API can load them: Anthropic through the result of any tool, so at
/// least one must not be deferred; OpenAI Responses through the result of the search tool; other APIs not at all.
fn loadable(api: Api, set: Arc<Toolset>) -> Arc<Toolset> {
    let loads = match api {
        Api::Anthropic => set.tools.iter().any(|tool| tool.exposed != ToolVisibility::Deferred),
        Api::OpenAiResponses => set.tool_search().is_some(),
        Api::OpenAiChat | Api::Gemini | Api::Ollama => false,
    };
    if loads || set.tools.iter().all(|tool| tool.exposed != ToolVisibility::Deferred) {
        return set;
    }
    let mut set = Arc::unwrap_or_clone(set);
    set.tools.retain(|tool| tool.exposed != ToolVisibility::Deferred);
    Arc::new(set)
}

/// Lists of tools in the cache: about one for each agent at work.
const MAX_LISTS: usize = 16;

/// Caches the lists of tools that requests share.
#[derive(Debug, Default)]
pub struct EncodedToolsCache {
    /// The latest first.
    lists: Mutex<Vec<CachedTools>>,
}

#[derive(Debug)]
struct CachedTools {
    /// Identified by its address, which stays unique while it is held here.
    list: Arc<[RequestTool]>,
    strict: bool,
    tools: EncodedTools,
}

impl EncodedToolsCache {
    /// The translation of `tools` for `api`; `strict` as in [`translate`].
    #[must_use]
    pub fn get(&self, api: Api, tools: &Arc<[RequestTool]>, strict: bool) -> EncodedTools {
        let held = |lists: &[CachedTools]| {
            lists
                .iter()
                .position(|held| Arc::ptr_eq(&held.list, tools) && held.tools.api == api && held.strict == strict)
        };
        {
            let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = held(&lists) {
                lists[..=at].rotate_right(1);
                return lists[0].tools.clone();
            }
        }
        let encoded = EncodedTools::translated(api, tools, strict);
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        if held(&lists).is_none() {
            lists.truncate(MAX_LISTS - 1);
            lists.insert(0, CachedTools { list: Arc::clone(tools), strict, tools: encoded.clone() });
        }
        encoded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_lists_are_translated_once_per_api() {
        let cache = EncodedToolsCache::default();
        let list = || Arc::from(vec![RequestTool { name: "a".into(), ..RequestTool::default() }]);
        let tools: Arc<[RequestTool]> = list();
        let first = cache.get(Api::Anthropic, &tools, false);
        assert!(Arc::ptr_eq(first.set(), cache.get(Api::Anthropic, &tools, false).set()));
        assert!(!Arc::ptr_eq(first.set(), cache.get(Api::Gemini, &tools, false).set()));
        assert!(!Arc::ptr_eq(first.set(), cache.get(Api::Anthropic, &tools, true).set()));
        for _ in 0..MAX_LISTS {
            drop(cache.get(Api::Ollama, &list(), false));
        }
        assert_eq!(cache.lists.lock().expect("lock").len(), MAX_LISTS);
        assert!(!Arc::ptr_eq(first.set(), cache.get(Api::Anthropic, &tools, false).set()));
    }
}
