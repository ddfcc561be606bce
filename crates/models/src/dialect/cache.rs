//! Views of tools, kept from request to request.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::value::RawValue;
use toolwright_core::model::ShownTool;

use super::{Dialect, Toolset, translate};
use crate::api::Api;

/// Sets of tools that are remembered.
const MAX_KEPT: usize = 8;

/// The views that were made last, so that a request which shows the same tools as one before it costs no
/// translation. The same are those of one `Arc`; at most eight sets are kept, and none keeps its tools alive.
#[derive(Debug, Default)]
pub struct Toolsets {
    /// Least recently used first.
    kept: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    tools: Weak<[ShownTool]>,
    dialect: Dialect,
    strict: bool,
    view: Arc<Toolset>,
}

impl Toolsets {
    /// [`translate`], or what it gave for the same tools before.
    #[must_use]
    pub fn get(&self, dialect: Dialect, tools: &Arc<[ShownTool]>, strict: bool) -> Arc<Toolset> {
        let same = |kept: &Kept| {
            kept.dialect == dialect && kept.strict == strict && std::ptr::eq(kept.tools.as_ptr(), Arc::as_ptr(tools))
        };
        {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = kept.iter().position(same) {
                let found = kept.remove(at);
                let view = Arc::clone(&found.view);
                kept.push(found);
                return view;
            }
        }
        // Made without the lock: others need not wait for it, and making it twice does no harm.
        let view = Arc::new(translate(dialect, tools, strict));
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| kept.tools.strong_count() > 0 && !same(kept));
        if kept.len() >= MAX_KEPT {
            kept.remove(0);
        }
        kept.push(Kept { tools: Arc::downgrade(tools), dialect, strict, view: Arc::clone(&view) });
        view
    }
}

/// The `tools` of a request as text, one for each API that shares the view.
#[derive(Debug, Default)]
pub(super) struct Rendered(Mutex<Vec<(Api, Arc<RawValue>)>>);

impl Clone for Rendered {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()))
    }
}

/// It follows from the rest of a [`Toolset`].
impl PartialEq for Rendered {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Rendered {
    pub(super) fn get(&self, api: Api, render: impl FnOnce() -> Box<RawValue>) -> Arc<RawValue> {
        let known = |list: &Vec<(Api, Arc<RawValue>)>| {
            list.iter().find(|(known, _)| *known == api).map(|(_, text)| Arc::clone(text))
        };
        let kept = known(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        kept.unwrap_or_else(|| {
            let text: Arc<RawValue> = Arc::from(render());
            let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if known(&list).is_none() {
                list.push((api, Arc::clone(&text)));
            }
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_tools_are_translated_once() {
        let tools = |name: &str| -> Arc<[ShownTool]> {
            Arc::from(vec![ShownTool { name: name.into(), ..ShownTool::default() }])
        };
        let sets = Toolsets::default();
        let (a, b) = (tools("a"), tools("a"));
        let first = sets.get(Dialect::OpenAi, &a, false);
        assert!(Arc::ptr_eq(&first, &sets.get(Dialect::OpenAi, &Arc::clone(&a), false)));
        for (dialect, tools, strict) in
            [(Dialect::OpenAi, &b, false), (Dialect::Ollama, &a, false), (Dialect::OpenAi, &a, true)]
        {
            assert!(!Arc::ptr_eq(&first, &sets.get(dialect, tools, strict)));
        }
        let others: Vec<_> = (0..20).map(|_| tools("x")).collect();
        others.iter().for_each(|tools| drop(sets.get(Dialect::OpenAi, tools, false)));
        assert_eq!(sets.kept.lock().expect("no panic").len(), MAX_KEPT);
        assert!(!Arc::ptr_eq(&first, &sets.get(Dialect::OpenAi, &a, false)), "it was forgotten");
    }

    #[test]
    fn text_is_made_once_for_each_api() {
        let rendered = Rendered::default();
        let text = || RawValue::from_string("[]".into()).expect("JSON");
        let first = rendered.get(Api::OpenAiChat, text);
        assert!(Arc::ptr_eq(&first, &rendered.get(Api::OpenAiChat, || unreachable!("kept"))));
        assert!(!Arc::ptr_eq(&first, &rendered.get(Api::Ollama, text)));
    }
}
