//! What `tools/list` says: one list per view and caller, written once per snapshot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{Entry, ProviderKind, Snapshot};
use toolwright_core::names::Resolution;
use toolwright_core::passthrough::LISTED_FIELDS;
use toolwright_core::session::Principal;

use super::message::to_json;
use crate::Gateway;

/// A part of the catalogue that has an address of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum View {
    /// `/mcp` and stdio: everything, under wire names.
    Whole,
    /// `/mcp/{provider}`: one provider, under its own names.
    Provider(Arc<str>),
}

impl View {
    /// Its path.
    pub(crate) fn path(&self) -> String {
        match self {
            Self::Whole => "/mcp".into(),
            Self::Provider(name) => format!("/mcp/{name}"),
        }
    }
}

/// The tools that one caller sees in one view of one snapshot.
pub(crate) struct ToolList {
    pub(crate) snapshot: Arc<Snapshot>,
    /// The JSON array of tools.
    pub(crate) json: Bytes,
    /// Hash of `json`: equal lists need no `list_changed`.
    pub(crate) fingerprint: ContentHash,
    offered: HashMap<String, usize>,
}

impl ToolList {
    fn build(snapshot: Arc<Snapshot>, view: &View, principal: &Principal, max_name: usize) -> Self {
        let names = matches!(view, View::Whole).then(|| snapshot.names_within(max_name));
        let mut offered = HashMap::new();
        let mut tools = Vec::new();
        for (index, entry) in snapshot.list().iter().enumerate() {
            let name = match view {
                View::Whole => names.as_ref().map_or("", |names| names.wire_name(index)),
                View::Provider(provider) if entry.provider.name() == &**provider => entry.tool.raw_name(),
                View::Provider(_) => continue,
            };
            if principal.may_use(&entry.definition().allowed_roles) && !offered.contains_key(name) {
                offered.insert(name.to_owned(), index);
                tools.push(Offered { name, entry });
            }
        }
        let json = Bytes::from(to_json(&tools));
        Self { fingerprint: ContentHash::of_bytes(&json), json, offered, snapshot }
    }

    /// The name that the executor resolves for what a client wrote. In the whole catalogue every
    /// spelling of SPEC section 1 is left to it; a provider's view knows its own names only.
    ///
    /// # Errors
    /// For a view of one provider: the message for a name it does not have.
    pub(crate) fn name_for_executor(&self, view: &View, written: &str) -> Result<String, String> {
        if let Some(&index) = self.offered.get(written) {
            return Ok(self.snapshot.list()[index].id().as_str().to_owned());
        }
        let View::Provider(provider) = view else { return Ok(written.to_owned()) };
        let shown: String = written.chars().take(100).collect();
        let near = match self.near(written) {
            Some(name) => format!("; did you mean {name}?"),
            None => String::new(),
        };
        Err(format!("{provider} has no tool called `{shown}`{near}"))
    }

    fn near(&self, written: &str) -> Option<&str> {
        let wire = match self.snapshot.resolve(written) {
            Resolution::Found(index, _) => return self.offered_as(index),
            Resolution::Unknown(near) => near,
        };
        let index_of = |wire: &String| self.snapshot.list().iter().position(|entry| entry.wire_name == *wire);
        wire.iter().filter_map(index_of).find_map(|index| self.offered_as(index))
    }

    fn offered_as(&self, index: usize) -> Option<&str> {
        self.offered.iter().find(|(_, other)| **other == index).map(|(name, _)| name.as_str())
    }
}

/// The lists of the current snapshot.
#[derive(Default)]
pub(crate) struct ToolLists {
    lists: Mutex<HashMap<(View, String), Arc<ToolList>>>,
}

impl Gateway {
    /// The caller's list in a view, as of now. Lists of older snapshots are let go.
    pub(crate) fn tools(&self, view: &View, principal: &Principal) -> Arc<ToolList> {
        let snapshot = self.options.catalogue.snapshot();
        let key = (view.clone(), principal.id.clone());
        let mut lists = self.lists.lists.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = lists.get(&key).filter(|list| Arc::ptr_eq(&list.snapshot, &snapshot)) {
            return Arc::clone(list);
        }
        let list = Arc::new(ToolList::build(Arc::clone(&snapshot), view, principal, self.options.max_tool_name));
        lists.retain(|_, list| Arc::ptr_eq(&list.snapshot, &snapshot));
        lists.insert(key, Arc::clone(&list));
        list
    }

    /// What clients tell their model about a view.
    pub(crate) fn instructions(&self, view: &View) -> Option<String> {
        match view {
            View::Whole => self.options.instructions.clone(),
            View::Provider(name) => {
                let snapshot = self.options.catalogue.snapshot();
                let entry = snapshot.list().iter().find(|entry| entry.provider.name() == &**name)?;
                entry.provider.instructions()
            }
        }
    }
}

/// One tool as MCP lists it.
struct Offered<'a> {
    name: &'a str,
    entry: &'a Entry,
}

impl Serialize for Offered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let definition = self.entry.definition();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", self.name)?;
        if let Some(title) = &definition.title {
            map.serialize_entry("title", title)?;
        }
        if !definition.description.is_empty() {
            map.serialize_entry("description", &definition.description)?;
        }
        match &definition.parameters {
            Some(schema @ Value::Object(_)) => map.serialize_entry("inputSchema", schema)?,
            // MCP demands an object schema.
            _ => map.serialize_entry("inputSchema", &json!({"type": "object"}))?,
        }
        if let Some(schema @ Value::Object(_)) = &definition.output_schema {
            map.serialize_entry("outputSchema", schema)?;
        }
        if self.entry.provider.kind() == ProviderKind::Mcp {
            for (key, value) in definition.meta.get(LISTED_FIELDS).and_then(Value::as_object).into_iter().flatten() {
                map.serialize_entry(key, value)?;
            }
        } else {
            map.serialize_entry("annotations", &annotations(self.entry))?;
        }
        map.end()
    }
}

fn annotations(entry: &Entry) -> Value {
    let effects = entry.definition().effects;
    json!({
        "readOnlyHint": effects.read_only,
        "destructiveHint": effects.destructive,
        "idempotentHint": effects.idempotent,
        "openWorldHint": effects.open_world,
    })
}
