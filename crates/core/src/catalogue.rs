//! Providers, registration, and the immutable snapshot that everything reads.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::ContentHash;
use crate::context::ToolContext;
use crate::definition::ToolDefinition;
use crate::error::ToolError;
use crate::name::{MAX_WIRE_NAME, RESERVED_NAMESPACES, ToolId};
use crate::names::{NameTable, NamedTool, Resolution};
use crate::outcome::ToolOutput;
use crate::policy::HintTrust;
use crate::schema::{CompiledSchema, SchemaError};
use crate::session::{CallId, Session};

/// What kind of source a tool comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// Shipped with Toolwright.
    Builtin,
    /// Registered from Rust.
    Native,
    /// An MCP server.
    Mcp,
    /// A configured REST tool.
    Rest,
    /// An agent.
    Agent,
    /// A model-backed tool.
    Llm,
}

/// How a provider is doing. Health is the outcome of its last list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Health {
    /// Listed and callable.
    Ready,
    /// Not connected yet; its tools may be known from a cached manifest.
    Starting,
    /// Down.
    Failed {
        /// Why, and what would mend it.
        reason: String,
    },
}

/// Why a provider cannot list.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// Cause and remedy, for the operator.
    pub message: String,
    /// The cause.
    #[source]
    pub source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl ProviderError {
    /// An error in words.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }
}

/// What a call would touch, as far as the provider can tell before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallScope {
    /// Nothing outside the workspace root.
    Workspace,
    /// Unknown, or more.
    Anywhere,
}

/// One call as a provider gets it: validated, approved, in its slot.
#[derive(Debug)]
pub struct ProviderCall<'a> {
    /// Canonical id.
    pub tool: &'a ToolId,
    /// The tool's name at its source.
    pub raw_name: &'a str,
    /// Arguments, an object.
    pub arguments: Value,
    /// Goes along with every dispatched call; the same for a retry of the same call.
    pub idempotency_key: &'a str,
}

/// Called by a provider whenever its tools or its health may have changed.
pub type ChangeNotifier = Arc<dyn Fn() + Send + Sync>;

/// A source of tools.
///
/// `call` is the executor's alone: nothing else may name it (a lint enforces it).
#[async_trait]
pub trait Provider: Send + Sync {
    /// Unique name.
    fn name(&self) -> &str;
    /// Kind.
    fn kind(&self) -> ProviderKind;
    /// Its tools, now. May connect; the caller bounds the wait.
    ///
    /// # Errors
    /// [`ProviderError`] with cause and remedy; the provider's tools then leave the catalogue.
    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError>;
    /// Runs one call.
    ///
    /// # Errors
    /// [`ToolError`] of an executed or a not executed kind; a call that may have reached its peer is
    /// never replayed.
    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError>;
    /// What a call would touch. The default claims nothing.
    fn scope(&self, _raw_name: &str, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Anywhere
    }
    /// Tells the source that a call is not wanted any more. The default relies on the call's token.
    async fn cancel(&self, _call: &CallId) {}
    /// Connects ahead of the first call.
    ///
    /// # Errors
    /// As [`Provider::list`].
    async fn warm_up(&self) -> Result<(), ProviderError> {
        Ok(())
    }
    /// Ends connections and child processes, within the caller's bound.
    async fn shut_down(&self) {}
    /// Whether it is up.
    fn health(&self) -> Health;
    /// What its source tells a model about using its tools. Data, not to be trusted.
    fn instructions(&self) -> Option<String> {
        None
    }
    /// Whether its hints may loosen policy.
    fn trust(&self) -> HintTrust {
        HintTrust::Trusted
    }
    /// Takes the catalogue's notifier, once, when the provider is added. The default never changes.
    fn on_change(&self, _notify: ChangeNotifier) {}
    /// Names it has but does not offer, each with the reason (`filtered by tools_denied`).
    fn withheld(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Cached tools for use until the first list has arrived.
    async fn cached(&self) -> Option<Vec<Arc<RegisteredTool>>> {
        None
    }
}

/// Why a tool cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    /// No schema, and no opt-in.
    #[error(
        "tool {0} has no `parameters`: give it a JSON Schema (an empty object for no arguments), or set allow_no_schema together with no_schema_mode"
    )]
    MissingSchema(ToolId),
    /// The opt-in lacks its mode.
    #[error("tool {0} sets allow_no_schema without no_schema_mode: choose read-only, human-approval or full")]
    MissingMode(ToolId),
    /// The schema does not compile.
    #[error("tool {id}: {error}")]
    Schema {
        /// Tool.
        id: ToolId,
        /// What is wrong.
        error: SchemaError,
    },
}

/// Where a tool's definition comes from; decides what is filled in and what is forgiven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Ours: defaults are filled in, a broken schema is refused at registration.
    Own,
    /// Somebody else's: arguments go as written, a broken schema leaves the tool unvalidated.
    Foreign,
}

/// A tool ready for the catalogue: definition, hash and validator, each made once. Snapshots share it.
pub struct RegisteredTool {
    definition: ToolDefinition,
    raw_name: String,
    origin: Origin,
    hash: ContentHash,
    schema: OnceLock<Result<Option<CompiledSchema>, SchemaError>>,
}

impl RegisteredTool {
    /// Registers a tool of our own; its schema is compiled now.
    ///
    /// # Errors
    /// [`RegistrationError`] names the tool and the remedy.
    pub fn own(definition: ToolDefinition) -> Result<Arc<Self>, RegistrationError> {
        let raw_name = definition.id.name().to_owned();
        Self::own_as(definition, raw_name)
    }

    /// As [`RegisteredTool::own`], for a tool whose source knows it by another name.
    ///
    /// # Errors
    /// [`RegistrationError`] names the tool and the remedy.
    pub fn own_as(definition: ToolDefinition, raw_name: impl Into<String>) -> Result<Arc<Self>, RegistrationError> {
        if definition.parameters.is_none() && !definition.allow_no_schema {
            return Err(RegistrationError::MissingSchema(definition.id));
        }
        if definition.allow_no_schema && definition.no_schema_mode.is_none() {
            return Err(RegistrationError::MissingMode(definition.id));
        }
        let tool = Self::build(definition, raw_name.into(), Origin::Own);
        match tool.schema() {
            Ok(_) => Ok(Arc::new(tool)),
            Err(error) => Err(RegistrationError::Schema { id: tool.definition.id.clone(), error: error.clone() }),
        }
    }

    /// Registers a foreign tool. Never fails; a schema that does not compile is found at first use.
    pub fn foreign(definition: ToolDefinition, raw_name: impl Into<String>) -> Arc<Self> {
        Arc::new(Self::build(definition, raw_name.into(), Origin::Foreign))
    }

    fn build(definition: ToolDefinition, raw_name: String, origin: Origin) -> Self {
        let hash = definition.contract_hash();
        Self { definition, raw_name, origin, hash, schema: OnceLock::new() }
    }

    /// The definition.
    #[must_use]
    pub fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    /// The name at its source.
    #[must_use]
    pub fn raw_name(&self) -> &str {
        &self.raw_name
    }

    /// Whose it is.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The contract hash.
    #[must_use]
    pub fn hash(&self) -> ContentHash {
        self.hash
    }

    /// The validator, compiled at the first use and kept; `None` for a tool without a schema.
    ///
    /// # Errors
    /// The reason why the schema does not compile, the same each time.
    pub fn schema(&self) -> Result<Option<&CompiledSchema>, &SchemaError> {
        self.schema
            .get_or_init(|| self.definition.parameters.as_ref().map(CompiledSchema::compile).transpose())
            .as_ref()
            .map(Option::as_ref)
    }
}

impl fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredTool({})", self.definition.id)
    }
}

/// Ids for the raw names of one foreign source: legal, and hashed for every member of a collision.
///
/// # Errors
/// When the namespace is illegal.
pub fn foreign_ids(namespace: &str, raw_names: &[&str]) -> Result<Vec<ToolId>, crate::name::IdError> {
    let plain: Vec<ToolId> = raw_names.iter().map(|raw| ToolId::foreign(namespace, raw)).collect::<Result<_, _>>()?;
    let mut count: HashMap<&ToolId, usize> = HashMap::new();
    for id in &plain {
        *count.entry(id).or_default() += 1;
    }
    Ok(plain
        .iter()
        .zip(raw_names)
        .map(|(id, raw)| if count.get(id) == Some(&1) { id.clone() } else { id.with_hash_suffix(raw) })
        .collect())
}

/// One provider with what it listed.
pub struct Listing {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// Its tools; empty when it failed.
    pub tools: Vec<Arc<RegisteredTool>>,
    /// Its last error.
    pub error: Option<String>,
    /// Names it has but does not offer, with the reason (`filtered by tools_denied`, …).
    pub withheld: Vec<(String, String)>,
}

/// A tool in a snapshot.
pub struct Entry {
    /// The tool.
    pub tool: Arc<RegisteredTool>,
    /// Who runs it.
    pub provider: Arc<dyn Provider>,
    /// Its wire name (64 characters at most).
    pub wire_name: String,
}

impl Entry {
    /// The tool's definition.
    #[must_use]
    pub fn definition(&self) -> &ToolDefinition {
        self.tool.definition()
    }

    /// The tool's id.
    #[must_use]
    pub fn id(&self) -> &ToolId {
        &self.tool.definition().id
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({} from {})", self.id(), self.provider.name())
    }
}

/// Something the operator should know about the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CatalogueIssue {
    /// Provider it concerns.
    pub provider: String,
    /// In words.
    pub message: String,
}

/// A provider as a snapshot saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProviderStatus {
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: ProviderKind,
    /// Number of its tools.
    pub tools: usize,
    /// Its last error.
    pub error: Option<String>,
    /// Names it withholds, with reasons.
    #[serde(skip)]
    withheld: Vec<(String, String)>,
}

/// The catalogue at one moment: immutable, ordered by registration, shared by `Arc`.
#[derive(Debug, Default)]
pub struct Snapshot {
    entries: Vec<Arc<Entry>>,
    names: NameTable,
    by_id: HashMap<ToolId, usize>,
    providers: Vec<ProviderStatus>,
    issues: Vec<CatalogueIssue>,
}

impl Snapshot {
    /// Builds a snapshot from listings in registration order. The first provider of an id wins; the
    /// loser is reported. Total: problems become [`Snapshot::issues`].
    #[must_use]
    pub fn build(listings: &[Listing]) -> Self {
        let mut chosen: Vec<(usize, &Arc<RegisteredTool>)> = Vec::new();
        let mut by_id: HashMap<ToolId, usize> = HashMap::new();
        let mut issues = Vec::new();
        let mut providers = Vec::with_capacity(listings.len());
        for (index, listing) in listings.iter().enumerate() {
            let name = listing.provider.name();
            let mut issue = |message: String| issues.push(CatalogueIssue { provider: name.to_owned(), message });
            let before = chosen.len();
            for tool in &listing.tools {
                let id = &tool.definition().id;
                let foreign = tool.origin() == Origin::Foreign;
                if foreign && RESERVED_NAMESPACES.contains(&id.namespace()) && id.namespace() != "rest" {
                    issue(format!("{id} is refused: the namespace `{}` is reserved", id.namespace()));
                } else if let Some(&other) = by_id.get(id) {
                    let (owner, _) = chosen[other];
                    if owner == index {
                        issue(format!("{id} is listed twice by the same provider; the first is kept"));
                    } else {
                        issue(format!(
                            "{id} is already provided by {}; this one is ignored",
                            listings[owner].provider.name()
                        ));
                    }
                } else {
                    by_id.insert(id.clone(), chosen.len());
                    chosen.push((index, tool));
                }
            }
            providers.push(ProviderStatus {
                name: name.to_owned(),
                kind: listing.provider.kind(),
                tools: chosen.len() - before,
                error: listing.error.clone(),
                withheld: listing.withheld.clone(),
            });
        }
        let names = name_table(chosen.iter().map(|(index, tool)| (*index, &***tool)), MAX_WIRE_NAME);
        let entries = chosen
            .iter()
            .enumerate()
            .map(|(position, (index, tool))| {
                Arc::new(Entry {
                    tool: Arc::clone(tool),
                    provider: Arc::clone(&listings[*index].provider),
                    wire_name: names.wire_name(position).to_owned(),
                })
            })
            .collect();
        Self { entries, names, by_id, providers, issues }
    }

    /// The tools, in registration order.
    #[must_use]
    pub fn list(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// The tool with exactly this canonical id; an id without a version finds nothing.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Arc<Entry>> {
        self.by_id.get(id).map(|&index| &self.entries[index])
    }

    /// Resolves what a model wrote (SPEC section 1).
    #[must_use]
    pub fn resolve(&self, written: &str) -> Resolution {
        self.names.resolve(written)
    }

    /// A table of shorter names for clients that cap them; index-compatible with [`Snapshot::list`].
    #[must_use]
    pub fn names_within(&self, max: usize) -> NameTable {
        let position: HashMap<&str, usize> =
            self.providers.iter().enumerate().map(|(n, p)| (p.name.as_str(), n)).collect();
        let index_of = |entry: &Entry| position.get(entry.provider.name()).copied().unwrap_or(0);
        name_table(self.entries.iter().map(|entry| (index_of(entry), &*entry.tool)), max)
    }

    /// The providers, in registration order.
    #[must_use]
    pub fn providers(&self) -> &[ProviderStatus] {
        &self.providers
    }

    /// What the operator should know.
    #[must_use]
    pub fn issues(&self) -> &[CatalogueIssue] {
        &self.issues
    }

    /// Why a name that does not resolve may be missing: filtered, or its provider down.
    #[must_use]
    pub fn why_missing(&self, written: &str) -> Option<String> {
        let (namespace, bare) = written.split_once("__")?;
        let provider = self.providers.iter().find(|provider| provider.name == namespace)?;
        if let Some((name, reason)) = provider.withheld.iter().find(|(name, _)| name.eq_ignore_ascii_case(bare)) {
            return Some(format!("provider {namespace} has `{name}`, but it is {reason}"));
        }
        provider.error.as_ref().map(|error| format!("provider {namespace} is down: {error}"))
    }
}

fn name_table<'a>(tools: impl Iterator<Item = (usize, &'a RegisteredTool)>, max: usize) -> NameTable {
    let named: Vec<NamedTool<'a>> = tools
        .map(|(provider, tool)| NamedTool {
            provider,
            id: &tool.definition().id,
            raw_name: tool.raw_name(),
            aliases: &tool.definition().aliases,
        })
        .collect();
    NameTable::build(&named, max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::listing;
    use serde_json::json;

    fn own(id: &str) -> Arc<RegisteredTool> {
        crate::testing::own(crate::testing::definition(id))
    }

    #[test]
    fn the_first_provider_of_an_id_wins_and_the_loser_is_reported() {
        let snapshot = Snapshot::build(&[
            listing("a", vec![own("x:t@1.0.0"), own("x:t@1.0.0"), own("x:u@1.0.0")]),
            listing("b", vec![own("x:t@1.0.0"), own("y:t@1.0.0")]),
        ]);
        let ids: Vec<_> = snapshot.list().iter().map(|e| format!("{} {}", e.id(), e.provider.name())).collect();
        assert_eq!(ids, ["x:t@1.0.0 a", "x:u@1.0.0 a", "y:t@1.0.0 b"]);
        assert_eq!(snapshot.issues().len(), 2);
        assert!(snapshot.issues()[1].message.contains("already provided by a"));
        assert!(snapshot.get("x:t@1.0.0").is_some() && snapshot.get("x:t").is_none());
    }

    #[test]
    fn a_foreign_tool_may_not_take_a_reserved_namespace() {
        let id = ToolId::parse("fs:read@0.0.0").expect("id");
        let snapshot = Snapshot::build(&[listing(
            "evil",
            vec![RegisteredTool::foreign(ToolDefinition::new(id, "", None), "read")],
        )]);
        assert!(snapshot.list().is_empty());
        assert!(snapshot.issues()[0].message.contains("reserved"));
    }

    #[test]
    fn registration_rules_name_tool_and_remedy() {
        let id = || ToolId::parse("x:t@1.0.0").expect("id");
        let missing = RegisteredTool::own(ToolDefinition::new(id(), "", None)).expect_err("no schema");
        assert!(missing.to_string().contains("x:t@1.0.0") && missing.to_string().contains("allow_no_schema"));
        let mut opted = ToolDefinition::new(id(), "", None);
        opted.allow_no_schema = true;
        assert!(matches!(RegisteredTool::own(opted.clone()), Err(RegistrationError::MissingMode(_))));
        opted.no_schema_mode = Some(crate::definition::NoSchemaMode::Full);
        assert!(RegisteredTool::own(opted).is_ok());
        let broken = ToolDefinition::new(id(), "", Some(json!({"$ref": "http://x/y"})));
        assert!(RegisteredTool::own(broken.clone()).expect_err("remote").to_string().contains("http://x/y"));
        assert!(RegisteredTool::foreign(broken, "t").schema().is_err(), "a foreign one is kept, unvalidated");
    }

    #[test]
    fn colliding_foreign_names_are_all_hashed() {
        let ids = foreign_ids("s", &["A.b", "a_b", "c"]).expect("ids");
        assert!(ids[0].name().starts_with("a_b_") && ids[1].name().starts_with("a_b_") && ids[0] != ids[1]);
        assert_eq!(ids[2].name(), "c");
    }

    #[test]
    fn a_missing_name_is_explained() {
        let snapshot = Snapshot::build(&[Listing {
            error: Some("exit status 1".into()),
            withheld: vec![("Drop".into(), "filtered by tools_denied".into())],
            ..listing("gh", vec![])
        }]);
        assert!(snapshot.why_missing("gh__drop").expect("why").contains("filtered by tools_denied"));
        assert!(snapshot.why_missing("gh__x").expect("why").contains("exit status 1"));
        assert!(snapshot.why_missing("zz__x").is_none());
    }
}
