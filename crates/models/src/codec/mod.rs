//! The codecs of the model APIs: one folder per API, with its encoder of requests and its decoder of responses.
//!
//! [`encode()`] and [`Decoder`] pick the folder. The files beside them are what the codecs share: legal histories,
//! reasoning, model families and tools for requests; events, framing and the response under assembly for responses.

pub(crate) mod anthropic;
pub(crate) mod decode;
mod event;
pub(crate) mod framing;
mod gemini;
pub(crate) mod history;
pub(crate) mod model_family;
pub(crate) mod ollama;
mod openai_chat;
mod openai_responses;
pub(crate) mod reasoning;
pub(crate) mod request;
mod response;

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Serialize, Serializer};
use serde_json::Value;
use toolwright_core::model::{Exposed, ModelRequest, ShownTool};

use crate::api::{Api, EncodedRequest};
use crate::dialect::{Toolset, translate};
pub use decode::{Decoder, decode_whole};
use request::ShownTools;

/// Encodes `request` for `model` (the name without its provider), asking for a stream.
///
/// Never fails, and the result is a legal request whatever the history holds: arguments that do not
/// parse are replayed as `{}`, a call without a result gets one that says so, a result without a call is
/// left out, ids and names of past calls are made legal and unique. Tools are shown in the view that the
/// API's dialect gives of them; the definition's own schema is not touched. Tools keep their order. What
/// an API has no word for is left out: a forced call for Ollama, a limit on parallel calls for Gemini, a
/// temperature for models that refuse any; docs/model-differences.md lists all of it.
///
/// Deferred tools go to the two APIs that can load them. Anthropic Messages gets them with `defer_loading`, and
/// a result that loads some as `tool_reference` blocks. OpenAI Responses gets the tool that searches as
/// `tool_search`, past calls of it as `tool_search_call`, and the definitions that a result loads in its
/// `tool_search_output`. Either takes nothing beside what is loaded, so the text of such a result is left
/// out. Names of tools that are not deferred, or not in the request, load nothing.
#[must_use]
pub fn encode(api: Api, request: &ModelRequest, model: &str) -> EncodedRequest {
    encode_shown(request, model, &ShownTools::new(api, &request.tools))
}

/// [`encode`] with the view of the request's tools made beforehand.
#[must_use]
pub fn encode_with(api: Api, request: &ModelRequest, model: &str, tools: &Toolset) -> EncodedRequest {
    encode_shown(request, model, &ShownTools::of(api, Arc::new(tools.clone())))
}

/// [`encode`] with tools that are translated and serialised already.
#[must_use]
pub fn encode_shown(request: &ModelRequest, model: &str, shown: &ShownTools) -> EncodedRequest {
    match shown.api() {
        Api::OpenAiChat => openai_chat::encode(request, model, shown),
        Api::OpenAiResponses => openai_responses::encode(request, model, shown),
        Api::Anthropic => anthropic::encode(request, model, shown),
        Api::Gemini => gemini::encode(request, model, shown),
        Api::Ollama => ollama::encode(request, model, shown),
    }
}

/// The `tools` of a request to `api`, exactly as [`encode_with`] sends them. Tools that the view
/// quarantines are not among them.
#[must_use]
pub fn tools_json(api: Api, tools: &Toolset) -> Value {
    let set = loadable(api, Arc::new(tools.clone()));
    // Writing to memory does not fail.
    serde_json::to_value(Tools { api, set: &set }).unwrap_or_default()
}

/// The `tools` of a request, written without a copy of their schemas.
pub(crate) struct Tools<'a> {
    pub api: Api,
    pub set: &'a Toolset,
}

impl Serialize for Tools<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let views = self.set.tools.iter();
        match self.api {
            Api::OpenAiChat | Api::Ollama => serializer.collect_seq(views.map(openai_chat::tool)),
            Api::OpenAiResponses => serializer.collect_seq(openai_responses::tools(self.set)),
            Api::Anthropic => serializer.collect_seq(views.map(anthropic::tool)),
            Api::Gemini => serializer.collect_seq(gemini::tools(self.set)),
        }
    }
}

impl ShownTools {
    /// The view that `api` gets of `tools`. Strict decoding is asked for where the tool's author did.
    #[must_use]
    pub fn new(api: Api, tools: &[ShownTool]) -> Self {
        Self::of(api, Arc::new(translate(api.dialect(), tools, false)))
    }

    /// A view made by other means, as with strict decoding or another of the API's dialects. Deferred tools
    /// stay in it only where the API can load them.
    #[must_use]
    pub fn of(api: Api, set: Arc<Toolset>) -> Self {
        let set = loadable(api, set);
        // Writing to memory does not fail.
        let write = || serde_json::to_string(&Tools { api, set: &set }).unwrap_or_default().into();
        let json: Option<Arc<str>> = (!set.tools.is_empty()).then(write);
        let last = json.as_deref().filter(|_| api == Api::Anthropic).and_then(|json| last_shown(&set, json));
        Self::from_parts(api, set, json, last)
    }
}

/// Where the object of the last tool that is not deferred ends, before its brace: what follows it is left out of the text
/// from behind, each tool as it is written there.
fn last_shown(set: &Toolset, json: &str) -> Option<usize> {
    let mut end = json.len().checked_sub("}]".len())?;
    for view in set.tools.iter().rev() {
        if view.exposed != Exposed::Deferred {
            return Some(end);
        }
        // Writing to memory does not fail.
        let written = serde_json::to_string(&anthropic::tool(view)).unwrap_or_default();
        end = end.checked_sub(written.len() + ",".len())?;
    }
    None
}

/// `set` without deferred tools, unless a result can put them before the model: over Anthropic one of any tool
/// (the API refuses tools that are all deferred), over OpenAI Responses one of the tool search alone, over
/// other APIs none.
fn loadable(api: Api, set: Arc<Toolset>) -> Arc<Toolset> {
    let loads = match api {
        Api::Anthropic => set.tools.iter().any(|tool| tool.exposed != Exposed::Deferred),
        Api::OpenAiResponses => set.tool_search().is_some(),
        Api::OpenAiChat | Api::Gemini | Api::Ollama => false,
    };
    if loads || set.tools.iter().all(|tool| tool.exposed != Exposed::Deferred) {
        return set;
    }
    let mut shown = Arc::unwrap_or_clone(set);
    shown.tools.retain(|tool| tool.exposed != Exposed::Deferred);
    Arc::new(shown)
}

/// How many lists of tools are remembered: one for each agent at work, more or less.
const MAX_LISTS: usize = 16;

/// Remembers the views of the lists of tools that requests share.
#[derive(Debug, Default)]
pub struct ShownCache {
    /// The latest first.
    lists: Mutex<Vec<Held>>,
}

#[derive(Debug)]
struct Held {
    /// Known by its address, which is its own for as long as it is held here.
    list: Arc<[ShownTool]>,
    strict: bool,
    shown: ShownTools,
}

impl ShownCache {
    /// The view that `api` gets of `tools`; `strict` as in [`translate`].
    #[must_use]
    pub fn get(&self, api: Api, tools: &Arc<[ShownTool]>, strict: bool) -> ShownTools {
        let held = |lists: &[Held]| {
            lists
                .iter()
                .position(|held| Arc::ptr_eq(&held.list, tools) && held.shown.api() == api && held.strict == strict)
        };
        {
            let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = held(&lists) {
                lists[..=at].rotate_right(1);
                return lists[0].shown.clone();
            }
        }
        let shown = ShownTools::of(api, Arc::new(translate(api.dialect(), tools, strict)));
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        if held(&lists).is_none() {
            lists.truncate(MAX_LISTS - 1);
            lists.insert(0, Held { list: Arc::clone(tools), strict, shown: shown.clone() });
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_lists_are_translated_once_per_api() {
        let cache = ShownCache::default();
        let list = || Arc::from(vec![ShownTool { name: "a".into(), ..ShownTool::default() }]);
        let tools: Arc<[ShownTool]> = list();
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
