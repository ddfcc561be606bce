//! A tool ready for the catalogue, and the rules of becoming one.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::definition::meta_fields::BadMetaField;
use crate::definition::{Effects, Guidance, ToolDefinition, ToolLimits};
use crate::identity::tool_id::{IdError, ToolId, short_hash};
use crate::json::canonical::ContentHash;
use crate::model::definition_bytes;
use crate::schema::{CompiledSchema, SchemaError, shorten};
use crate::secret::marks_secrets;

/// Why a tool cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    /// No schema, and no opt-in for none.
    #[error(
        "tool {0} has no `parameters`: give it a JSON Schema (an empty object for no arguments), or set allow_no_schema together with no_schema_mode"
    )]
    MissingSchema(ToolId),
    /// The opt-in lacks its mode.
    #[error("tool {0} sets allow_no_schema without no_schema_mode: choose read-only, human-approval or full")]
    MissingMode(ToolId),
    /// The schema is not of an object.
    #[error(
        "tool {0} has `parameters` that no object fits ({1}): arguments are an object, so give it `type: object` and name the value under `properties`"
    )]
    NotAnObject(ToolId, String),
    /// A meta field of the schema cannot be used.
    #[error("tool {0}: the meta field `{1}` {2}")]
    MetaField(ToolId, &'static str, String),
    /// The schema does not compile.
    #[error("tool {id}: {error}")]
    Schema {
        /// Tool.
        id: ToolId,
        /// The fault.
        error: SchemaError,
    },
}

/// The origin of a tool's definition; decides which parts are filled in and which faults are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefinitionOrigin {
    /// Ours: defaults are filled in, a broken schema is refused at registration.
    Own,
    /// From another party: arguments are passed as written, a broken schema leaves the tool unvalidated.
    Foreign,
}

/// How a tool of a server is shown. What it is, and what is pinned of it, stays as its server says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct ToolOverride {
    /// Its name for models and clients, without the server's prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What it does, for the model that chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Its effects. No configuration says them: there, rules of the policy do.
    #[serde(skip)]
    pub effects: Option<Effects>,
    /// Labels for search, filters and policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Other names under which a model may call it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// How it is called and explained.
    #[serde(flatten)]
    pub guidance: Guidance,
    /// The limits of its calls.
    #[serde(flatten)]
    pub limits: ToolLimits,
}

impl ToolOverride {
    fn apply(&self, definition: &mut ToolDefinition) {
        if let Some(title) = &self.title {
            definition.title = Some(title.clone());
        }
        if let Some(description) = &self.description {
            definition.description.clone_from(description);
        }
        if let Some(effects) = self.effects {
            definition.effects = effects;
        }
        self.guidance.apply(definition);
        self.limits.apply(definition);
        for (more, have) in [(&self.tags, &mut definition.tags), (&self.aliases, &mut definition.aliases)] {
            let new: Vec<String> = more.iter().filter(|one| !have.contains(one)).cloned().collect();
            have.extend(new);
        }
    }
}

/// The source's own statements about a tool with overrides.
struct SourceDefinition {
    contract: Value,
    hash: ContentHash,
    /// The name that is shown.
    name: Option<String>,
    /// Whether the operator wrote its hint.
    has_own_hint: bool,
}

/// A tool ready for the catalogue: definition, hash and validator, each made once. Snapshots share it.
pub struct RegisteredTool {
    definition: ToolDefinition,
    raw_name: String,
    origin: DefinitionOrigin,
    hash: ContentHash,
    as_given: Option<Box<SourceDefinition>>,
    serial: u64,
    schema: OnceLock<Result<Option<CompiledSchema>, SchemaError>>,
    output_schema: OnceLock<Result<Option<CompiledSchema>, SchemaError>>,
    call_fields: OnceLock<Result<Option<CompiledSchema>, SchemaError>>,
    bytes: OnceLock<usize>,
    marks_secrets: OnceLock<bool>,
}

impl RegisteredTool {
    /// Registers a tool of our own; its schema is compiled now.
    ///
    /// # Errors
    /// [`RegistrationError`] names the tool and the remedy.
    pub fn own(definition: ToolDefinition) -> Result<Arc<Self>, RegistrationError> {
        let raw_name = definition.id.name().to_owned();
        Self::own_named(definition, raw_name)
    }

    /// Like [`RegisteredTool::own`], for a tool whose source uses another name.
    ///
    /// # Errors
    /// [`RegistrationError`] names the tool and the remedy.
    pub fn own_named(
        mut definition: ToolDefinition,
        raw_name: impl Into<String>,
    ) -> Result<Arc<Self>, RegistrationError> {
        if definition.parameters.is_none() && !definition.allow_no_schema {
            return Err(RegistrationError::MissingSchema(definition.id));
        }
        if definition.allow_no_schema && definition.no_schema_mode.is_none() {
            return Err(RegistrationError::MissingMode(definition.id));
        }
        let had_output = definition.output_schema.is_some();
        if let Err(BadMetaField { field, why }) = definition.lift_meta_fields() {
            return Err(RegistrationError::MetaField(definition.id, field, why));
        }
        let tool = Self::build(definition, raw_name.into(), DefinitionOrigin::Own);
        let result = if had_output { Ok(None) } else { tool.output_schema() };
        if let Err(error) = tool.schema().and(result).and(tool.call_fields()) {
            return Err(RegistrationError::Schema { id: tool.definition.id.clone(), error: error.clone() });
        }
        if let Some(schema) = &tool.definition.parameters
            && let Some(why) = refuses_objects(schema, schema, 0)
        {
            return Err(RegistrationError::NotAnObject(tool.definition.id.clone(), why));
        }
        Ok(Arc::new(tool))
    }

    /// Registers a foreign tool. Never fails; a schema that does not compile is found at first use.
    pub fn foreign(definition: ToolDefinition, raw_name: impl Into<String>) -> Arc<Self> {
        Arc::new(Self::build(definition, raw_name.into(), DefinitionOrigin::Foreign))
    }

    /// Like [`RegisteredTool::foreign`], with the operator's overrides.
    pub fn foreign_with_overrides(
        mut definition: ToolDefinition,
        raw_name: impl Into<String>,
        overrides: &ToolOverride,
    ) -> Arc<Self> {
        if *overrides == ToolOverride::default() {
            return Self::foreign(definition, raw_name);
        }
        let contract = definition.contract();
        let has_own_hint = overrides.guidance.contribution.is_some();
        let as_given = SourceDefinition {
            hash: ContentHash::of_value(&contract),
            contract,
            name: overrides.name.clone(),
            has_own_hint,
        };
        overrides.apply(&mut definition);
        let tool = Self::build(definition, raw_name.into(), DefinitionOrigin::Foreign);
        Arc::new(Self { as_given: Some(Box::new(as_given)), ..tool })
    }

    fn build(definition: ToolDefinition, raw_name: String, origin: DefinitionOrigin) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let (hash, serial) = (definition.contract_hash(), SERIAL.fetch_add(1, Ordering::Relaxed));
        Self {
            definition,
            raw_name,
            origin,
            hash,
            as_given: None,
            serial,
            schema: OnceLock::new(),
            output_schema: OnceLock::new(),
            call_fields: OnceLock::new(),
            bytes: OnceLock::new(),
            marks_secrets: OnceLock::new(),
        }
    }

    /// The definition.
    #[must_use]
    pub fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    /// The schema of its parameters, if it marks any as secret.
    #[must_use]
    pub fn secret_schema(&self) -> Option<&Value> {
        let schema = self.definition.parameters.as_ref()?;
        self.marks_secrets.get_or_init(|| marks_secrets(schema)).then_some(schema)
    }

    /// The name at its source.
    #[must_use]
    pub fn raw_name(&self) -> &str {
        &self.raw_name
    }

    /// Its origin.
    #[must_use]
    pub fn origin(&self) -> DefinitionOrigin {
        self.origin
    }

    /// The name that its wire name is based on: the source's, unless its operator renamed it.
    #[must_use]
    pub fn shown_name(&self) -> &str {
        self.as_given.as_ref().and_then(|given| given.name.as_deref()).unwrap_or(&self.raw_name)
    }

    /// Its hint for the system prompt, if written by us or the operator: a foreign hint would speak in our
    /// voice.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        let is_own =
            self.origin == DefinitionOrigin::Own || self.as_given.as_ref().is_some_and(|given| given.has_own_hint);
        self.definition.contribution.as_deref().filter(|_| is_own)
    }

    /// The hash of its original contract, which pins use.
    #[must_use]
    pub fn source_hash(&self) -> ContentHash {
        self.as_given.as_ref().map_or(self.hash, |given| given.hash)
    }

    /// Its original contract.
    #[must_use]
    pub fn source_contract(&self) -> Value {
        self.as_given.as_ref().map_or_else(|| self.definition.contract(), |given| given.contract.clone())
    }

    /// The contract hash of the definition with overrides.
    #[must_use]
    pub fn hash(&self) -> ContentHash {
        self.hash
    }

    /// Bytes of its definition in a request, with an empty name.
    pub(crate) fn bytes_without_name(&self) -> usize {
        *self.bytes.get_or_init(|| definition_bytes("", &self.definition.description, &self.definition.shown_schema()))
    }

    /// A number that no other tool of this process has.
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the validator, compiled on first use; `None` for a tool without a schema.
    ///
    /// # Errors
    /// The reason why the schema does not compile, the same each time.
    pub fn schema(&self) -> Result<Option<&CompiledSchema>, &SchemaError> {
        self.schema
            .get_or_init(|| self.definition.parameters.as_ref().map(CompiledSchema::compile).transpose())
            .as_ref()
            .map(Option::as_ref)
    }

    /// Returns the validator of structured results, compiled on first use; `None` for a tool without an output schema.
    ///
    /// # Errors
    /// The reason why the schema does not compile, the same each time.
    pub fn output_schema(&self) -> Result<Option<&CompiledSchema>, &SchemaError> {
        self.output_schema
            .get_or_init(|| self.definition.output_schema.as_ref().map(CompiledSchema::compile).transpose())
            .as_ref()
            .map(Option::as_ref)
    }

    /// Returns the validator of meta fields, compiled on first use; `None` for a tool without meta fields.
    ///
    /// # Errors
    /// The reason why the schema does not compile, the same each time.
    pub fn call_fields(&self) -> Result<Option<&CompiledSchema>, &SchemaError> {
        let fields = &self.definition.call_fields;
        let compile = || CompiledSchema::compile(&json!({"type": "object", "properties": fields}));
        self.call_fields
            .get_or_init(|| if fields.is_empty() { Ok(None) } else { compile().map(Some) })
            .as_ref()
            .map(Option::as_ref)
    }
}

/// Nesting depth of schemas searched for one that excludes objects.
const MAX_DEPTH: usize = 8;

/// Returns the part of `schema` that no object can satisfy, as written in `root`.
fn refuses_objects(root: &Value, schema: &Value, depth: usize) -> Option<String> {
    if depth > MAX_DEPTH {
        return None;
    }
    let inner = |schema: &Value| refuses_objects(root, schema, depth + 1);
    let part = |keyword: &str| schema.get(keyword);
    let all_of = |keyword: &str| part(keyword).and_then(Value::as_array).filter(|schemas| !schemas.is_empty());
    let written = |keyword: &str, value: &Value| Some(shorten(&format!("{keyword}: {value}"), 100));
    match (part("type"), part("enum"), part("const")) {
        _ if *schema == Value::Bool(false) => return Some("false".into()),
        (Some(Value::Array(kinds)), ..) if kinds.iter().all(|kind| kind != "object") => {
            return written("type", &kinds.clone().into());
        }
        (Some(kind @ Value::String(name)), ..) if name != "object" => return written("type", kind),
        (_, Some(Value::Array(options)), _) if !options.iter().any(Value::is_object) => {
            return written("enum", &options.clone().into());
        }
        (.., Some(fixed)) if !fixed.is_object() => return written("const", fixed),
        _ => {}
    }
    let target = part("$ref").and_then(Value::as_str).and_then(|path| root.pointer(path.strip_prefix('#')?));
    let either = |keyword| all_of(keyword).and_then(|schemas| schemas.iter().map(inner).collect::<Option<Vec<_>>>());
    target
        .and_then(inner)
        .or_else(|| all_of("allOf")?.iter().find_map(inner))
        .or_else(|| either("anyOf").or_else(|| either("oneOf")).map(|whys| whys.join(", ")))
}

impl fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredTool({})", self.definition.id)
    }
}

/// Returns ids for the raw names of one foreign source: legal, unique, and with a hash for every member of a collision.
/// An id does not depend on the order of the names, unless a name was crafted to look like the hashed id of another.
///
/// # Errors
/// When the namespace is illegal.
pub fn foreign_ids(namespace: &str, raw_names: &[&str]) -> Result<Vec<ToolId>, IdError> {
    let plain: Vec<ToolId> = raw_names.iter().map(|raw| ToolId::foreign(namespace, raw)).collect::<Result<_, _>>()?;
    let mut taken = HashSet::new();
    let mut ids = free(&mut taken, plain.iter().cloned().map(Some).collect());
    for digits in [8, 64] {
        let hashed = |(index, id): (usize, &ToolId)| {
            ids[index].is_none().then(|| id.with_suffix(&short_hash(raw_names[index], digits)))
        };
        let hashed = plain.iter().enumerate().map(hashed).collect();
        for (id, found) in ids.iter_mut().zip(free(&mut taken, hashed)) {
            *id = id.take().or(found);
        }
    }
    let mut counts = (2_usize..).map(|count| count.to_string());
    let numbered = |(id, plain): (Option<ToolId>, ToolId)| match id {
        Some(id) => id,
        // There are more numbers than names.
        None => loop {
            let Some(count) = counts.next() else { break plain };
            let numbered = plain.with_suffix(&count);
            if taken.insert(numbered.clone()) {
                break numbered;
            }
        },
    };
    Ok(ids.into_iter().zip(plain).map(numbered).collect())
}

/// Returns the ids that occur once and are not taken, by index, and marks them as taken.
fn free(taken: &mut HashSet<ToolId>, ids: Vec<Option<ToolId>>) -> Vec<Option<ToolId>> {
    let mut count: HashMap<ToolId, usize> = HashMap::new();
    for id in ids.iter().flatten() {
        *count.entry(id.clone()).or_default() += 1;
    }
    let free: Vec<Option<ToolId>> =
        ids.into_iter().map(|id| id.filter(|id| count.get(id) == Some(&1) && !taken.contains(id))).collect();
    taken.extend(free.iter().flatten().cloned());
    free
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
        let of = |kind| RegisteredTool::own(ToolDefinition::new(id(), "", Some(json!({"type": kind}))));
        assert!(of(json!("string")).expect_err("no object").to_string().contains("x:t@1.0.0"));
        assert!(of(json!(["array", "null"])).is_err());
        assert!(of(json!("object")).is_ok() && of(json!(["object", "null"])).is_ok());
        let broken = ToolDefinition::new(id(), "", Some(json!({"$ref": "http://x/y"})));
        assert!(RegisteredTool::own(broken.clone()).expect_err("remote").to_string().contains("http://x/y"));
        assert!(RegisteredTool::foreign(broken, "t").schema().is_err(), "a foreign one is kept, unvalidated");
    }

    #[test]
    fn parameters_that_no_object_fits_are_refused() {
        let of = |schema: Value| {
            RegisteredTool::own(ToolDefinition::new(ToolId::parse("x:t@1.0.0").expect("id"), "", Some(schema)))
        };
        for schema in [
            json!(false),
            json!({"enum": ["a", 1]}),
            json!({"const": 3}),
            json!({"$defs": {"t": {"type": "string"}}, "$ref": "#/$defs/t"}),
            json!({"anyOf": [{"type": "string"}, false]}),
            json!({"allOf": [{}, {"type": "array"}]}),
        ] {
            assert!(matches!(of(schema.clone()), Err(RegistrationError::NotAnObject(..))), "{schema}");
        }
        for schema in [json!(true), json!({}), json!({"enum": [{}, 1]}), json!({"anyOf": [{"type": "object"}, false]})]
        {
            assert!(of(schema.clone()).is_ok(), "{schema}");
        }
    }

    #[test]
    fn colliding_foreign_names_are_all_hashed() {
        let ids = foreign_ids("s", &["A.b", "a_b", "c"]).expect("ids");
        assert!(ids[0].name().starts_with("a_b_") && ids[1].name().starts_with("a_b_") && ids[0] != ids[1]);
        assert_eq!(ids[2].name(), "c");
    }

    #[test]
    fn foreign_ids_never_collide() {
        let hashed = |raw: &str, digits| format!("a_b_{}", crate::identity::tool_id::short_hash(raw, digits));
        let (short, long) = (hashed("A.b", 8), hashed("A.b", 64));
        let names = ["A.b", "a_b", &short, &short.to_uppercase(), &long, &long.to_uppercase(), "a_b_2", "x", "x", "x"];
        let ids = foreign_ids("s", &names).expect("ids");
        let distinct: HashSet<&ToolId> = ids.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{ids:?}");
        assert_eq!(ids, foreign_ids("s", &names).expect("ids"));
        assert_eq!(foreign_ids("s", &["a_b", &short]).expect("ids")[1].name(), short, "what collides with none stays");
    }
}
