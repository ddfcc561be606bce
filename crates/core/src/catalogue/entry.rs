//! A tool in a snapshot.

use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Write as _};
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{DefinitionOrigin, Provider, ProviderKind, RegisteredTool};
use crate::content::EstimatedTokens;
use crate::definition::meta_fields::with_properties;
use crate::definition::{Effects, ToolDefinition};
use crate::identity::tool_id::ToolId;
use crate::model::call_meta::{ACTIVITY, DELEGATE, OUTPUT};
use crate::model::{Route, definition_bytes};
use crate::pattern::glob_match;
use crate::policy::HintTrust;

/// Bytes of a provider's self-description that are indexed with each of its tools.
const MAX_SUMMARY_BYTES: usize = 512;

/// Bytes of the list of namespaces.
const MAX_NAMESPACES: usize = 1000;

/// Namespaces of built-in tools that work on a run.
const OF_RUN: [&str; 5] = ["agent", "job", "output", "router", "tools"];

/// A tool in a snapshot.
pub struct Entry {
    /// The tool.
    pub tool: Arc<RegisteredTool>,
    /// The provider that runs it.
    pub provider: Arc<dyn Provider>,
    /// Its wire name (64 characters at most).
    pub wire_name: String,
    /// The wire name, shared with events: each call emits several.
    shared_wire_name: Arc<str>,
    /// The description of its provider.
    pub(super) source: Arc<SourceDescription>,
    /// The route of calls that do not name one.
    route: Route,
    runner: Runner,
}

/// Who runs the calls of a tool.
pub(super) enum Runner {
    /// The tool's own code, a model or nobody.
    Itself,
    /// An activity.
    Activity(Arc<Entry>),
    /// A call may choose, or the activity is not there.
    Unknown,
}

/// The capability of a tool that models are not shown: it runs the calls of tools that name it as their activity.
pub const ACTIVITY_ONLY: &str = "activity_only";

/// Whether a model that calls a tool also writes its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WritesOutput {
    Never,
    Always,
    /// If the call says that nobody else runs it.
    May,
}

impl Entry {
    /// `namesake`: the tool that has code and is called like this one.
    pub(super) fn new(
        tool: Arc<RegisteredTool>,
        provider: Arc<dyn Provider>,
        wire_name: &str,
        source: Arc<SourceDescription>,
        namesake: Option<&ToolId>,
    ) -> Arc<Self> {
        let route = default_route(&tool, &*provider, namesake);
        let runner = match route {
            Route::Delegate(_) => Runner::Itself,
            Route::Activity(_) => Runner::Unknown,
            _ if tool.definition().call_fields.contains_key(ACTIVITY) => Runner::Unknown,
            _ => Runner::Itself,
        };
        let (wire_name, shared_wire_name) = (wire_name.to_owned(), wire_name.into());
        Arc::new(Self { tool, provider, wire_name, shared_wire_name, source, route, runner })
    }

    /// Sets the activity that its route names, unless a call may choose another.
    pub(super) fn run_by(&mut self, runner: Runner) {
        if !self.definition().call_fields.contains_key(ACTIVITY) {
            self.runner = runner;
        }
    }

    /// Returns the effects of its calls: the strictest of its own and its activity's. If a call may choose its
    /// activity, or a delegate answers it, the effects are unknown.
    #[must_use]
    pub fn effects(&self) -> Effects {
        let own = self.definition().effects;
        let may_delegate =
            matches!(self.route, Route::Delegate(_)) || self.definition().call_fields.contains_key(DELEGATE);
        match &self.runner {
            _ if may_delegate => Effects::UNKNOWN,
            Runner::Itself => own,
            Runner::Activity(activity) if activity.provider.trust() == HintTrust::Trusted => {
                own.and(activity.definition().effects)
            }
            Runner::Activity(_) | Runner::Unknown => Effects::UNKNOWN,
        }
    }

    /// The route of calls that do not name one.
    #[must_use]
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// Whether it is hidden from models because it only runs calls of other tools.
    #[must_use]
    pub fn is_activity(&self) -> bool {
        self.definition().capabilities.get(ACTIVITY_ONLY) == Some(&Value::Bool(true))
    }

    /// Whether it works on a run, such as its report, jobs, outputs and tools: its calls belong to no single input.
    #[must_use]
    pub fn targets_run(&self) -> bool {
        self.provider.kind() == ProviderKind::Builtin && OF_RUN.contains(&self.id().namespace())
    }

    fn writes_output(&self) -> WritesOutput {
        let definition = self.definition();
        if definition.output_schema.is_none() {
            return WritesOutput::Never;
        }
        // An empty name forbids activities.
        let may_force = definition.call_fields.get(ACTIVITY).is_some_and(|activity| {
            let options = activity.get("enum").and_then(Value::as_array);
            activity.get("const").is_none() && options.is_none_or(|options| options.iter().any(|one| one == ""))
        });
        match &self.route {
            Route::Latent => WritesOutput::Always,
            Route::Delegate(_) => WritesOutput::Never,
            _ if may_force => WritesOutput::May,
            _ => WritesOutput::Never,
        }
    }

    /// The schema shown to models: the parameters, and the meta fields they may set. It has `_output` only if nobody
    /// else produces the result.
    #[must_use]
    pub fn shown_schema(&self) -> Value {
        self.with_call_fields(self.definition().shown_schema())
    }

    /// Like [`Entry::shown_schema`], with the validating schema instead of a compact view; `None` for a tool without a
    /// schema.
    #[must_use]
    pub fn whole_schema(&self) -> Option<Value> {
        Some(self.with_call_fields(self.definition().parameters.clone()?))
    }

    fn with_call_fields(&self, schema: Value) -> Value {
        let (definition, output) = (self.definition(), self.writes_output());
        if definition.call_fields.is_empty() && output == WritesOutput::Never {
            return schema;
        }
        let is_open = |(_, field): &(&String, &Value)| field.get("const").is_none();
        let mut fields: Map<String, Value> =
            definition.call_fields.iter().filter(is_open).map(|(name, field)| (name.clone(), field.clone())).collect();
        let result = definition.output_schema.as_ref().filter(|_| output != WritesOutput::Never);
        fields.extend(result.map(|result| (OUTPUT.to_owned(), result.clone())));
        let required: &[&str] = if output == WritesOutput::Always { &[OUTPUT] } else { &[] };
        with_properties(schema, fields, required)
    }

    /// Its wire name, to be shared.
    #[must_use]
    pub fn shared_wire_name(&self) -> &Arc<str> {
        &self.shared_wire_name
    }

    /// The tool's definition.
    #[must_use]
    pub fn definition(&self) -> &ToolDefinition {
        self.tool.definition()
    }

    /// The name of its provider.
    #[must_use]
    pub fn provider_name(&self) -> &Arc<str> {
        &self.source.name
    }

    /// The first 512 bytes of its provider's description; may be empty.
    #[must_use]
    pub fn about(&self) -> &str {
        &self.source.about
    }

    /// Equal for equal providers with equal [`about`](Self::about).
    #[must_use]
    pub fn about_hash(&self) -> u64 {
        self.source.hash
    }

    /// The tool's id.
    #[must_use]
    pub fn id(&self) -> &ToolId {
        &self.tool.definition().id
    }

    /// Returns its protocol method (`resources/read`), if it is not a tool.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        self.provider.lists_methods().then(|| self.tool.raw_name())
    }

    /// Whether an interrupted call can be repeated without harm: by trusted hints it only reads or is idempotent, and
    /// so is the activity that runs it. A tool that makes calls itself is not repeatable.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        let effects = self.definition().effects;
        let is_own = self.provider.trust() == HintTrust::Trusted
            && (effects.read_only || effects.idempotent)
            && !self.provider.awaits_others(self.id());
        match &self.runner {
            Runner::Itself => is_own,
            Runner::Activity(activity) => is_own && activity.is_repeatable(),
            Runner::Unknown => false,
        }
    }

    /// Whether an interrupted call can be made again under its id: it, or its runner, is repeatable or resumes.
    #[must_use]
    pub fn is_resumable(&self) -> bool {
        match &self.runner {
            Runner::Itself => self.is_repeatable() || self.provider.resumes(self.id()),
            // The activity's call has an id derived from this call's.
            Runner::Activity(activity) => activity.is_resumable(),
            Runner::Unknown => false,
        }
    }

    /// Estimates tokens of its definition under its wire name, as [`shown_tokens`](crate::model::shown_tokens). The
    /// result is cached.
    #[must_use]
    pub fn tokens(&self) -> usize {
        let is_plain = self.definition().call_fields.is_empty() && self.writes_output() == WritesOutput::Never;
        let bytes = if is_plain {
            self.tool.bytes_without_name()
        } else {
            definition_bytes("", &self.definition().description, &self.shown_schema())
        };
        EstimatedTokens::of_bytes(bytes + self.wire_name.len())
    }

    /// The tool as programs are shown it in a list: an element of `tools ls --json` and of `GET /api/tools`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let definition = self.definition();
        json!({
            "id": definition.id,
            "wire_name": self.wire_name,
            "description": definition.description,
            "parameters": definition.parameters,
            "tags": definition.tags,
            "safe": definition.safe,
            "effects": self.effects(),
            "provider": self.provider.name(),
        })
    }

    /// Like [`Entry::to_json`], with `raw_name`, `hash` and the whole `definition`: `tools show --json`.
    #[must_use]
    pub fn to_whole_json(&self) -> Value {
        let mut value = self.to_json();
        value["raw_name"] = self.tool.raw_name().into();
        value["hash"] = self.tool.hash().to_string().into();
        value["definition"] = json!(self.definition());
        value
    }

    /// Whether a glob matches its id, with or without the version, or its wire name.
    #[must_use]
    pub fn is_named_by(&self, globs: &[String]) -> bool {
        let id = self.id();
        let names = [id.as_str(), id.without_version(), &self.wire_name];
        globs.iter().any(|glob| names.iter().any(|name| glob_match(glob, name)))
    }
}

/// Returns the default route of a tool: its delegate, its activity, its own code, the code of a namesake, or nobody.
fn default_route(tool: &RegisteredTool, provider: &dyn Provider, namesake: Option<&ToolId>) -> Route {
    let definition = tool.definition();
    if tool.origin() == DefinitionOrigin::Foreign {
        return Route::Tool;
    }
    if let Some(delegate) = definition.delegate.as_ref().and_then(Value::as_str).filter(|name| !name.is_empty()) {
        return Route::Delegate(delegate.to_owned());
    }
    match (definition.activity.as_deref(), namesake) {
        (Some(""), _) => Route::Latent,
        (Some(activity), _) => Route::Activity(activity.to_owned()),
        (None, _) if provider.implements(&definition.id) => Route::Tool,
        (None, Some(namesake)) => Route::Activity(namesake.to_string()),
        (None, None) => Route::Latent,
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({} from {})", self.id(), self.provider.name())
    }
}

/// The description of a provider, read once for all its tools.
#[derive(PartialEq, Eq)]
pub(super) struct SourceDescription {
    name: Arc<str>,
    hash: u64,
    about: Box<str>,
}

impl SourceDescription {
    pub(super) fn of(provider: &dyn Provider) -> Self {
        let mut about = provider.instructions().unwrap_or_default();
        about.truncate(about.floor_char_boundary(MAX_SUMMARY_BYTES));
        let mut hasher = DefaultHasher::new();
        (provider.name(), &about).hash(&mut hasher);
        Self { name: provider.name().into(), hash: hasher.finish(), about: about.into() }
    }
}

/// The namespaces of `tools` in their order, each with the number of its tools: `github (41), fs (9)`.
#[must_use]
pub fn namespaces<'a>(tools: impl Iterator<Item = &'a Entry>) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for entry in tools {
        let namespace = entry.id().namespace();
        // Tools of one namespace are usually adjacent.
        match counts.iter_mut().rev().find(|(name, _)| *name == namespace) {
            Some((_, count)) => *count += 1,
            None => counts.push((namespace, 1)),
        }
    }
    let mut list = String::new();
    for (n, (name, count)) in counts.iter().enumerate() {
        let comma = if n == 0 { "" } else { ", " };
        if list.len() + name.len() > MAX_NAMESPACES {
            let _ = write!(list, "{comma}… {} more", counts.len() - n);
            break;
        }
        let _ = write!(list, "{comma}{name} ({count})");
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Listing, ProviderKind, Snapshot};
    use crate::model::{RequestTool, shown_tokens};
    use crate::testing::{FakeProvider, definition, listing, own};

    #[test]
    fn server_instructions_are_cut() {
        let tools = vec![own(definition("post:weigh@1.0.0"))];
        let snapshot = |said: String| {
            let provider = Arc::new(FakeProvider::new("post", ProviderKind::Mcp, Some(&said)));
            Snapshot::build(&[Listing { provider, tools: tools.clone(), error: None, withheld: Vec::new() }])
        };
        let long = snapshot("é".repeat(9000) + "x");
        assert_eq!(long.list()[0].about(), "é".repeat(MAX_SUMMARY_BYTES / 2));
        for (said, is_same) in [("é".repeat(8000), true), ("é".repeat(10), false), (String::new(), false)] {
            let other = snapshot(said);
            assert_eq!(other.list()[0].about_hash() == long.list()[0].about_hash(), is_same);
            assert_eq!(other.list()[0].about() == long.list()[0].about(), is_same);
        }
        let odd = snapshot("x".to_owned() + &"é".repeat(9000));
        assert_eq!(odd.list()[0].about().len(), MAX_SUMMARY_BYTES - 1);
    }

    fn check(description: &str, parameters: Option<Value>) {
        let id = ToolId::parse("a:b@1.0.0").expect("id");
        let definition = ToolDefinition::new(id, description, parameters);
        let shown = RequestTool {
            name: "a__b".into(),
            description: description.into(),
            parameters: definition.shown_schema(),
            ..RequestTool::default()
        };
        let snapshot = Snapshot::build(&[listing("p", vec![RegisteredTool::foreign(definition, "b")])]);
        let json = json!({"name": shown.name, "description": shown.description, "parameters": shown.parameters});
        assert_eq!(shown_tokens(&shown), json.to_string().len().div_ceil(4), "{json}");
        assert_eq!(snapshot.list()[0].tokens(), shown_tokens(&shown), "{json}");
    }

    #[test]
    fn definitions_accept_the_same_fields_as_json() {
        check("Reads \"it\".\n", Some(json!({"type": "object", "properties": {"é": {"type": "dict"}}})));
        check("", None);
        check("Any.", Some(json!({})));
    }
}
