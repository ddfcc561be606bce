//! Tool search that the client executes: what its calls and results are in a request.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Value, json};

use super::encode::{content_of, tool};
use crate::dialect::{ToolView, Toolset};
use crate::request::history::{LegalCall, LegalResult, legal_name};

/// The namespace of loaded tools that have none of their own. The API gives each of those one that nobody
/// declared and demands it back with past calls, so all get one that is declared.
const NO_NAMESPACE: &str = "toolbox";

/// The tool search of a request, and what it has loaded so far.
pub(super) struct Search<'a> {
    set: &'a Toolset,
    tool: Option<&'a str>,
    /// Namespaces by the names of the tools that were loaded into them.
    loaded: HashMap<&'a str, Cow<'a, str>>,
}

impl<'a> Search<'a> {
    /// The search among `set`, which has loaded nothing.
    pub(super) fn new(set: &'a Toolset) -> Self {
        let tool = set.tool_search().map(|search| search.name.as_str());
        Self { set, tool, loaded: HashMap::new() }
    }

    /// Whether calls to `name` are searches.
    pub(super) fn is(&self, name: &str) -> bool {
        self.tool == Some(name)
    }

    /// The namespace that a call to `name` has. The API refuses a past call of a loaded tool without it
    /// («Missing namespace for function_call»).
    pub(super) fn namespace(&self, name: &str) -> Option<&str> {
        self.loaded.get(name).map(Cow::as_ref)
    }

    /// A past search.
    pub(super) fn call(call: &LegalCall<'_>) -> Value {
        json!({
            "type": "tool_search_call", "execution": "client", "call_id": call.id, "status": "completed",
            "arguments": call.arguments_object(),
        })
    }

    /// The result of a search: the definitions of what it loads, by namespace. The item has no place for words:
    /// those of a search that failed or found nothing go to `notes`, for a message after the results.
    pub(super) fn output(&mut self, result: &LegalResult<'_>, notes: &mut Vec<Value>) -> Value {
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

/// The namespace into which a tool is loaded. One of the tool's own name would be that of a tool without any.
fn namespace(view: &ToolView) -> Cow<'_, str> {
    let legal = legal_name(&view.namespace);
    match view.namespace.as_str() {
        "" => Cow::Borrowed(NO_NAMESPACE),
        _ if legal == view.name => Cow::Borrowed(NO_NAMESPACE),
        _ => Cow::Owned(legal),
    }
}
