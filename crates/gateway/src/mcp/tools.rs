//! The tool lists: the answer to `tools/list` for each view and caller, and the meaning of listed names.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value, json};
use toolwright_core::call::{RawArguments, missing};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{Entry, Provider, ProviderKind, Snapshot};
use toolwright_core::error::ToolError;
use toolwright_core::exposure::{CALL_ID, DESCRIBE_ID, SEARCH_ID};
use toolwright_core::indirect_call::is_carrier;
use toolwright_core::job::{JOB_NEXT_IDS, JobFollower};
use toolwright_core::name_table::Resolution;
use toolwright_core::output::{MAX_RESULT_CHARS, ResultAudience, announced_chars, is_output_tool};
use toolwright_core::passthrough::LISTED_FIELDS;
use toolwright_core::schema::wrapped;
use toolwright_core::session::{Principal, Session};
use toolwright_mcp::{list_validation, tasks};
use toolwright_models::dialect::PortableSchema;
use toolwright_search::namespaces;
use toolwright_search::{ToolFinder, searchable};

use super::message::to_json;
use super::protocol::Era;
use crate::Gateway;
use crate::instructions;
use crate::view::{Expose, ListedSchemas, Scope, View, ViewConfig};

/// The tools that find, describe and call others, in the order of their use.
const FINDERS: [&str; 3] = [SEARCH_ID, DESCRIBE_ID, CALL_ID];
const JOB_WAIT: &str = "job__wait";
const NOT_SERVED_HERE: &str = "not served at this address";
/// `_meta` key that keeps a tool in the model's context in Claude Code, despite its own tool search ("Scale with MCP
/// Tool Search" of its documentation, anthropics/claude-code#54158).
const ALWAYS_LOAD: &str = "anthropic/alwaysLoad";
const HOW_TO_SEARCH: &str = "Most tools are not listed: tools__search finds them by what they do, tools__describe \
                             gives their schemas, tools__call runs them.";

const WHOSE_TOOLS: &str = "Toolwright has the tools of several sources; a tool's name begins with its source, as in \
                           source__tool. How many each has:";

/// The tools of one caller in one view of one snapshot.
pub(crate) struct ToolList {
    /// The snapshot in which names are resolved.
    pub(crate) snapshot: Arc<Snapshot>,
    /// The JSON array of the listed tools.
    json: Bytes,
    /// The same for legacy clients, which require output schemas to be objects.
    legacy_json: Bytes,
    /// Hash of `json`: equal lists need no `list_changed`.
    pub(crate) fingerprint: ContentHash,
    /// The instructions about namespaces and unlisted tools.
    index: Option<String>,
    /// Tools by their names in the view, listed or not.
    named: HashMap<String, Arc<Entry>>,
    /// Portable schemas whose renamed arguments must be mapped back in calls.
    renaming: Schemas,
}

/// Portable schemas by the hash of the tool.
type Schemas = HashMap<ContentHash, Arc<PortableSchema>>;

/// The cache key of a tool list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    view: View,
    principal: String,
}

impl ToolList {
    fn build(
        gateway: &Gateway,
        snapshot: Arc<Snapshot>,
        key: &Key,
        principal: &Principal,
        schemas: &mut Schemas,
    ) -> Self {
        let (Key { view, .. }, options) = (key, &gateway.options);
        let form = gateway.listed_schemas(&view.scope);
        let executor = &options.executor;
        let names = snapshot.names_within(options.server.max_tool_name);
        let finders = FINDERS.iter().filter_map(|id| snapshot.get(id)).map(|entry| (entry.wire_name.as_str(), entry));
        let others = snapshot.list().iter().enumerate().filter(|(_, entry)| !is_finder(entry));
        let others = others.filter_map(|(index, entry)| match &view.scope {
            Scope::Whole | Scope::View(_) => Some((names.wire_name(index), entry)),
            Scope::Provider(provider) if entry.provider.name() == &**provider => Some((entry.tool.raw_name(), entry)),
            Scope::Provider(_) => None,
        });
        let mut named = HashMap::new();
        let mut tools = Vec::new();
        for (name, entry) in finders.chain(others) {
            // A client cannot call a tool that the model's provider runs.
            let is_callable = entry.definition().provider_native.is_none();
            if is_callable && principal.may_use(&entry.definition().allowed_roles) && !named.contains_key(name) {
                named.insert(name.to_owned(), Arc::clone(entry));
                let portable = (form == ListedSchemas::Portable).then(|| {
                    let make = || Arc::new(PortableSchema::new(&entry.wire_name, &entry.shown_schema()));
                    Arc::clone(schemas.entry(entry.tool.hash()).or_insert_with(make))
                });
                let always_loaded = is_finder(entry) || is_follow_up(entry) || entry.is_named_by(&options.pinned);
                let output_schema =
                    output_schema(entry).filter(|_| !gateway.broken_output_schemas.has(entry.tool.hash()));
                let max_chars = announced_chars(executor.max_output(entry, ResultAudience::Client));
                tools.push(ListedTool {
                    name,
                    entry,
                    max_chars,
                    portable,
                    output_schema,
                    always_loaded,
                    era: Era::Modern,
                });
            }
        }
        let is_renaming = |tool: &ListedTool<'_>| {
            let portable = tool.portable.as_ref().filter(|portable| portable.renames())?;
            Some((tool.entry.tool.hash(), Arc::clone(portable)))
        };
        let renaming = tools.iter().filter_map(is_renaming).collect();
        let index = index_of(view, &tools);
        if view.expose == Expose::Search {
            tools.retain(|tool| {
                is_finder(tool.entry) || is_follow_up(tool.entry) || tool.entry.is_named_by(&options.pinned)
            });
        }
        let json = Bytes::from(to_json(&tools));
        let legacy_json = if tools.iter().any(ListedTool::differs_by_era) {
            tools.iter_mut().for_each(|tool| tool.era = Era::Legacy);
            Bytes::from(to_json(&tools))
        } else {
            json.clone()
        };
        Self { fingerprint: ContentHash::of_bytes(&json), json, legacy_json, index, named, renaming, snapshot }
    }

    /// Returns the JSON array of the tools for clients of `era`.
    pub(crate) fn json(&self, era: Era) -> &Bytes {
        match era {
            Era::Modern => &self.json,
            Era::Legacy => &self.legacy_json,
        }
    }

    /// Returns the tool of this name in the view.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Entry>> {
        self.named.get(name)
    }

    /// Returns the tool that the executor resolves this name to.
    pub(crate) fn resolve(&self, name: &str) -> Option<&Arc<Entry>> {
        self.named.get(name).or_else(|| match self.snapshot.resolve(name) {
            Resolution::Found(index, _) => self.snapshot.list().get(index),
            Resolution::Unknown(_) => None,
        })
    }

    /// Returns the same tool; for a call that carries another call, the carried one's.
    pub(crate) fn resolve_inner_call(&self, name: &str, arguments: &Value) -> Option<&Arc<Entry>> {
        let entry = self.resolve(name)?;
        let inside = arguments.get("name").and_then(Value::as_str).filter(|_| is_carrier(entry));
        inside.map_or(Some(entry), |name| self.resolve(name))
    }

    /// Translates a call for the executor. In the whole catalogue the executor resolves every spelling of a name; the
    /// list of one provider accepts only its own names. The name of a carried call is translated too.
    ///
    /// # Errors
    /// For the list of one provider: it has no tool of this name, with the reason if known.
    pub(crate) fn for_executor(
        &self,
        view: &View,
        written: &str,
        mut arguments: Value,
    ) -> Result<(String, RawArguments), ToolError> {
        let Some(entry) = self.named.get(written) else {
            self.check_unlisted(view, written)?;
            let arguments = match self.resolve(written) {
                Some(entry) => self.with_own_names(entry, arguments),
                None => arguments,
            };
            return Ok((written.to_owned(), RawArguments::Value(arguments)));
        };
        if is_carrier(entry)
            && let Some(inside) = arguments.get_mut("name")
            && let Some(meant) = inside.as_str().and_then(|name| self.named.get(name))
        {
            *inside = meant.wire_name.as_str().into();
            if let Some(carried) = arguments.get_mut("arguments") {
                *carried = self.with_own_names(meant, carried.take());
            }
        }
        Ok((entry.wire_name.clone(), RawArguments::Value(self.with_own_names(entry, arguments))))
    }

    /// Maps arguments written for the listed schema to the tool's own names.
    fn with_own_names(&self, entry: &Entry, arguments: Value) -> Value {
        match self.renaming.get(&entry.tool.hash()) {
            Some(portable) => portable.restore(arguments),
            None => arguments,
        }
    }

    /// Checks that the executor may resolve an unlisted name: its snapshot contains only tools of the view.
    fn check_unlisted(&self, view: &View, written: &str) -> Result<(), ToolError> {
        let View { scope: Scope::Provider(provider), expose: Expose::Direct } = view else { return Ok(()) };
        let quoted_name: String = written.chars().take(100).collect();
        let near = match self.near(written) {
            Some(name) => format!("; did you mean {name}?"),
            None => String::new(),
        };
        let none = |why: &str| format!("{provider} has no tool called `{quoted_name}`{why}{near}");
        Err(missing(&self.snapshot, &format!("{provider}__{}", written.trim()), &quoted_name, none))
    }

    fn near(&self, written: &str) -> Option<&str> {
        let list = self.snapshot.list();
        let wire = match self.snapshot.resolve(written) {
            Resolution::Found(index, _) => return self.name_of(&list[index]),
            Resolution::Unknown(near) => near,
        };
        let of_wire = |wire: &String| list.iter().find(|entry| entry.wire_name == *wire);
        wire.iter().filter_map(of_wire).find_map(|entry| self.name_of(entry))
    }

    /// Returns the name in the view of a tool of the snapshot.
    pub(crate) fn name_of(&self, entry: &Entry) -> Option<&str> {
        self.named.iter().find(|(_, other)| std::ptr::eq(&***other, entry)).map(|(name, _)| name.as_str())
    }

    /// Returns whether a call of this tool may become a task, as listed.
    pub(crate) fn may_be_task(&self, name: &str) -> bool {
        self.named.get(name).is_some_and(|entry| match entry.provider.kind() {
            ProviderKind::Mcp => {
                let listed = entry.definition().meta.get(LISTED_FIELDS);
                listed.and_then(|listed| listed.get("execution")).is_some_and(tasks::supports)
            }
            _ => is_slow(entry),
        })
    }
}

/// The most lists of tools that are kept of the current snapshot.
const MAX_LISTS: usize = 1024;

/// Lists made from the current snapshot. Lists of older snapshots are dropped.
#[derive(Default)]
pub(crate) struct ToolLists(Mutex<ToolListCache>);

impl ToolLists {
    /// Drops all lists, because views have changed.
    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ToolListCache::default();
    }
}

#[derive(Default)]
struct ToolListCache {
    of: Option<Arc<Snapshot>>,
    /// Parts of the snapshot with the search tools added.
    searchable: HashMap<Scope, Arc<Snapshot>>,
    /// Parts of the snapshot that configured views allow, by view name.
    parts: HashMap<String, Arc<Snapshot>>,
    /// By view and caller.
    lists: HashMap<Key, Arc<ToolList>>,
    /// Portable schemas, which the next snapshot reuses.
    schemas: Schemas,
}

impl ToolListCache {
    fn searchable(&mut self, scope: &Scope, whole: &Arc<Snapshot>, finder: &ToolFinder) -> Arc<Snapshot> {
        let make = || match scope {
            Scope::Whole => searchable(whole, finder.clone()),
            Scope::Provider(name) => {
                let part = whole.only(|entry| entry.provider.name() == &**name, NOT_SERVED_HERE);
                searchable(&Arc::new(part), finder.clone())
            }
            Scope::View(_) => searchable(whole, finder.clone()),
        };
        Arc::clone(self.searchable.entry(scope.clone()).or_insert_with(make))
    }

    /// Returns the part of the snapshot that a view allows.
    fn part(&mut self, view: &Arc<ViewConfig>, whole: &Arc<Snapshot>) -> Arc<Snapshot> {
        let make = || Arc::new(whole.only(|entry| view.shows(&entry.wire_name), NOT_SERVED_HERE));
        Arc::clone(self.parts.entry(view.name.clone()).or_insert_with(make))
    }
}

impl Gateway {
    /// Returns the current list of a session in a view.
    pub(crate) fn tools(&self, view: &View, session: &Session) -> Arc<ToolList> {
        let principal = &session.principal;
        let key = Key { view: view.clone(), principal: principal.id.clone() };
        let mut made = self.lists.0.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = self.options.catalogue.snapshot();
        if !made.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, &whole)) || made.lists.len() >= MAX_LISTS {
            let mut schemas = std::mem::take(&mut made.schemas);
            let current_hashes: HashSet<ContentHash> = whole.list().iter().map(|entry| entry.tool.hash()).collect();
            schemas.retain(|hash, _| current_hashes.contains(hash));
            *made = ToolListCache { of: Some(Arc::clone(&whole)), schemas, ..ToolListCache::default() };
        }
        if let Some(list) = made.lists.get(&key) {
            return Arc::clone(list);
        }
        // A tool outside the view must not run there, so the snapshot lacks it.
        let whole = match &view.scope {
            Scope::View(name) => match self.view(name) {
                Some(view) => made.part(&view, &whole),
                None => Arc::default(),
            },
            Scope::Whole | Scope::Provider(_) => whole,
        };
        let snapshot = match view.expose {
            Expose::Direct => whole,
            Expose::Search => made.searchable(&view.scope, &whole, &self.options.finder),
        };
        let list = Arc::new(ToolList::build(self, snapshot, &key, principal, &mut made.schemas));
        made.lists.insert(key, Arc::clone(&list));
        list
    }

    /// Returns whether a view contains the tools that follow jobs.
    pub(crate) fn follows_jobs(&self, view: &View) -> JobFollower {
        let has_them = match &view.scope {
            Scope::Whole => true,
            Scope::Provider(_) => false,
            Scope::View(name) => self.view(name).is_some_and(|view| view.shows(JOB_WAIT)),
        };
        if has_them { JobFollower::Itself } else { JobFollower::Operator }
    }

    /// Returns the instructions of a view: its namespaces and how to find unlisted tools, the configured text, and the
    /// sources' instructions. The gateway's own text comes first, because clients cut at the end.
    pub(crate) fn instructions(&self, view: &View, session: &Session) -> Option<String> {
        let list = self.tools(view, session);
        let sources = self.options.catalogue.sources();
        let of_source = |provider: &Arc<dyn Provider>| Some((provider.name().to_owned(), provider.instructions()?));
        let mut ours = Vec::from_iter(list.index.clone());
        match &view.scope {
            Scope::Whole | Scope::View(_) => {
                ours.extend(self.options.instructions.clone());
                let listed_providers: HashSet<&str> = list.named.values().map(|entry| entry.provider.name()).collect();
                let listed_sources = sources.iter().filter(|provider| listed_providers.contains(provider.name()));
                instructions::combine_instructions(&ours, listed_sources.filter_map(of_source))
            }
            Scope::Provider(name) => {
                let instructions =
                    sources.iter().find(|provider| provider.name() == &**name).and_then(|it| it.instructions());
                instructions::of_one(&ours, instructions)
            }
        }
    }
}

/// Returns one line about the tools' namespaces and about how to find unlisted tools.
fn index_of(view: &View, tools: &[ListedTool<'_>]) -> Option<String> {
    let others = tools.iter().map(|tool| &**tool.entry).filter(|entry| !is_finder(entry));
    let list = namespaces(others);
    match (view.expose, &view.scope) {
        (Expose::Search, _) if list.is_empty() => Some(HOW_TO_SEARCH.to_owned()),
        (Expose::Search, _) => Some(format!("{HOW_TO_SEARCH} What there is: {list}")),
        (Expose::Direct, Scope::Provider(_)) => None,
        (Expose::Direct, _) if list.is_empty() => None,
        (Expose::Direct, _) => Some(format!("{WHOSE_TOOLS} {list}")),
    }
}

fn is_finder(entry: &Entry) -> bool {
    FINDERS.contains(&entry.id().as_str())
}

/// Returns whether results refer to the tool. Many clients list tools once, and their models call only listed ones.
fn is_follow_up(entry: &Entry) -> bool {
    is_output_tool(entry.id()) || JOB_NEXT_IDS.contains(&entry.id().as_str())
}

/// A tool as MCP lists it.
struct ListedTool<'a> {
    name: &'a str,
    entry: &'a Arc<Entry>,
    /// The portable form of its input schema; `None`: listed unchanged.
    portable: Option<Arc<PortableSchema>>,
    /// The output schema that it is listed with.
    output_schema: Option<&'a Value>,
    /// Whether clients with their own tool search should load it from the start.
    always_loaded: bool,
    /// The limit of its results in characters.
    max_chars: usize,
    /// The generation of the clients that list it.
    era: Era,
}

impl ListedTool<'_> {
    fn differs_by_era(&self) -> bool {
        self.output_schema.is_some_and(|schema| !wrapped::is_of_object(schema))
    }

    /// Returns its `_meta`: the keys that its server listed, and the gateway's own.
    fn meta(&self, listed: Option<&Value>) -> Map<String, Value> {
        let mut meta = listed.and_then(Value::as_object).cloned().unwrap_or_default();
        meta.insert(MAX_RESULT_CHARS.to_owned(), self.max_chars.into());
        if self.always_loaded {
            meta.insert(ALWAYS_LOAD.to_owned(), true.into());
        }
        meta
    }
}

/// Returns the output schema of a tool.
pub(crate) fn output_schema(entry: &Entry) -> Option<&Value> {
    entry.definition().output_schema.as_ref().filter(|schema| schema.is_object())
}

impl Serialize for ListedTool<'_> {
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
        match &self.portable {
            Some(portable) => map.serialize_entry("inputSchema", portable.schema())?,
            None => {
                let schema = definition.provider_schema.as_ref().or(definition.parameters.as_ref());
                map.serialize_entry("inputSchema", &list_validation::input_schema(schema))?;
            }
        }
        if let Some(schema) = self.output_schema {
            map.serialize_entry("outputSchema", &list_validation::output_schema(schema, self.era))?;
        }
        if self.entry.provider.kind() == ProviderKind::Mcp {
            let listed = definition.meta.get(LISTED_FIELDS).and_then(Value::as_object);
            for (key, value) in listed.into_iter().flatten().filter(|(key, _)| *key != "_meta") {
                // One malformed field would make clients reject the whole list.
                let Some(value) = list_validation::field(key, value) else { continue };
                match key.as_str() {
                    "execution" => map.serialize_entry(key, &tasks::execution(&value))?,
                    _ => map.serialize_entry(key, &value)?,
                }
            }
            map.serialize_entry("_meta", &self.meta(listed.and_then(|listed| listed.get("_meta"))))?;
        } else {
            if is_slow(self.entry) {
                map.serialize_entry("execution", &json!({"taskSupport": "optional"}))?;
            }
            map.serialize_entry("annotations", &annotations(self.entry))?;
            map.serialize_entry("_meta", &self.meta(None))?;
        }
        map.end()
    }
}

/// Returns whether a built-in tool usually takes longer than a client waits.
fn is_slow(entry: &Entry) -> bool {
    entry.definition().auto_background_after.is_some() || entry.provider.awaits_others(entry.id())
}

fn annotations(entry: &Entry) -> Value {
    let effects = entry.effects();
    json!({
        "readOnlyHint": effects.read_only,
        "destructiveHint": effects.destructive,
        "idempotentHint": effects.idempotent,
        "openWorldHint": effects.open_world,
    })
}
