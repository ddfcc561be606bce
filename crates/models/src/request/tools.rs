//! Tools as an API is shown them, made once for many requests.

use std::sync::{Arc, Mutex, PoisonError};

use toolwright_core::model::{Exposed, ModelRequest, ShownTool, ToolChoice};

use crate::api::Api;
use crate::dialect::{Toolset, translate};
use crate::encoder::Tools;

/// Tools as one API is shown them: translated and serialised, so that many requests share the work.
#[derive(Debug, Clone)]
pub struct ShownTools {
    api: Api,
    set: Arc<Toolset>,
    json: Option<Arc<str>>,
    /// Where in it the last tool ends that is before the model from the beginning: before its closing brace.
    last: Option<usize>,
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
        Self { api, set, json, last }
    }

    /// The translated tools.
    #[must_use]
    pub fn set(&self) -> &Arc<Toolset> {
        &self.set
    }

    pub(crate) fn api(&self) -> Api {
        self.api
    }

    pub(crate) fn json(&self) -> Option<Arc<str>> {
        self.json.clone()
    }

    /// Where a tool can be marked as the last of those that are kept, in [`Self::json`]. Deferred ones are no part of what
    /// a provider keeps, and refuse the mark.
    pub(crate) fn last(&self) -> Option<usize> {
        self.last
    }

    /// The wish of `request`, as far as it can be met: a tool that is not shown cannot be demanded, nor
    /// can one that the API does not take for a function.
    pub(crate) fn choice<'a>(&self, request: &'a ModelRequest) -> &'a ToolChoice {
        match &request.tool_choice {
            ToolChoice::Tool(name) if !self.is_function(name) => &ToolChoice::Auto,
            choice => choice,
        }
    }

    fn is_function(&self, name: &str) -> bool {
        let search = if self.api == Api::OpenAiResponses { self.set.tool_search() } else { None };
        search.is_none_or(|search| search.name != name)
            && self.set.get(name).is_some_and(|tool| tool.exposed != Exposed::Deferred)
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
        let written = serde_json::to_string(&crate::anthropic::tool(view)).unwrap_or_default();
        end = end.checked_sub(written.len() + ",".len())?;
    }
    None
}

/// `set` without deferred tools, unless a result can put them before the model: over Anthropic one of any tool
/// (the API refuses tools that are all deferred), over OpenAI Responses one of the tool search alone, over
/// other APIs none.
pub(crate) fn loadable(api: Api, set: Arc<Toolset>) -> Arc<Toolset> {
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
                .position(|held| Arc::ptr_eq(&held.list, tools) && held.shown.api == api && held.strict == strict)
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
    fn one_list_is_translated_once_for_each_api_and_few_are_held() {
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
