//! A tool's definition, stored as its source gave it, and the hash of the parts that a model relies on.

pub mod approval;
pub mod inbox;
pub(crate) mod listed_output;
pub mod llm;
pub mod meta_fields;
pub mod sandbox;
mod settings;
mod source;
mod variant;

use std::borrow::Cow;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::duration;
use crate::identity::tool_id::ToolId;
use crate::json::canonical::ContentHash;
use crate::model::ModelSettings;

pub use self::sandbox::SandboxProfile;
pub use self::settings::{Guidance, ToolConfig, ToolLimits};
pub use self::source::{CallScope, McpPeer, ProviderKind, passthrough};

/// What a tool may do to the world. The names and their meaning are MCP's tool annotations; a hint
/// that is missing on a foreign tool means the dangerous answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Effects {
    /// It only reads.
    #[serde(default)]
    pub read_only: bool,
    /// It may destroy or overwrite.
    #[serde(default = "yes")]
    pub destructive: bool,
    /// A second call with the same arguments changes nothing more.
    #[serde(default)]
    pub idempotent: bool,
    /// It reaches beyond this machine and its owner's data.
    #[serde(default = "yes")]
    pub open_world: bool,
}

impl Effects {
    /// Effects of a tool without annotations: may write, may destroy, not idempotent, open world.
    pub const UNKNOWN: Self = Self { read_only: false, destructive: true, idempotent: false, open_world: true };
    /// Reads local state only.
    pub const READ: Self = Self { read_only: true, destructive: false, idempotent: true, open_world: false };
    /// Reads from beyond this machine.
    pub const FETCH: Self = Self { read_only: true, destructive: false, idempotent: true, open_world: true };
    /// Overwrites local state; repeating it has no further effect.
    pub const WRITE: Self = Self { read_only: false, destructive: true, idempotent: true, open_world: false };

    /// Combines two effects: harmless only where both are.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            read_only: self.read_only && other.read_only,
            destructive: self.destructive || other.destructive,
            idempotent: self.idempotent && other.idempotent,
            open_world: self.open_world || other.open_world,
        }
    }
}

impl Default for Effects {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

/// Annotations that [`Effects`] holds (MCP 2025-11-25, `ToolAnnotations`).
const HINTS: [&str; 4] = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];

/// How a call's result comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Awaited in the turn.
    #[default]
    Direct,
    /// A job id at once, the outcome later.
    Background,
    /// Partial results, continued by job id.
    Stateful,
}

/// Whether calls may run beside each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Concurrency {
    /// Any number at once.
    #[default]
    Safe,
    /// One at a time per workspace root, across all exclusive tools.
    Exclusive,
    /// After the earlier ordered calls of the same turn or connection, and beside all others: for tools that share a
    /// state outside the workspace.
    Ordered,
}

/// What may run through a tool that has no schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NoSchemaMode {
    /// Only tools whose effects say read-only; the rest goes to approval.
    ReadOnly,
    /// Every call waits for a person.
    HumanApproval,
    /// Every call runs.
    Full,
}

/// What to do when a result breaks `output_schema`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnOutputMismatch {
    /// Pass the result on with a warning.
    #[default]
    Warn,
    /// Fail the call.
    Error,
}

/// Which models an LLM-backed tool asks, `provider/model`, and how.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelPreference {
    /// The model that is asked first.
    #[serde(default, alias = "preferredModel")]
    pub preferred_model: Option<String>,
    /// Models that are asked next, in order, if it fails.
    #[serde(default, alias = "fallbackModels")]
    pub fallback_models: Vec<String>,
    /// Most tokens of an answer. A shipped tool computes its own limit, which this one bounds.
    #[serde(default, alias = "maxTokens")]
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 2.0))]
    pub temperature: Option<f64>,
    /// How else they answer.
    #[serde(flatten)]
    pub settings: ModelSettings,
}

/// Parts of a call that stands for several calls of another tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallParts {
    /// The argument that lists them: each item has the arguments of one call.
    pub argument: &'static str,
    /// The other tool.
    pub tool: ToolId,
}

/// The definition of one tool. Immutable once registered; kept verbatim.
///
/// Operator settings (`timeout`, `idle_timeout`, `retries`, `queue`, `cache_ttl`, `max_output`) do not enter the contract hash;
/// see [`ToolDefinition::contract_hash`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolDefinition {
    /// Canonical id.
    pub id: ToolId,
    /// Human-readable name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The description for models. Text of a foreign tool is data, never trusted.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of the arguments, as the author wrote it. `None` only with `allow_no_schema`, or
    /// for a foreign tool without a schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// JSON Schema of the structured result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Free labels for search, filters and policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Other names under which a model may call it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Example arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<Value>,
    /// Whether to request strict arguments from a model API; `None` leaves it to the encoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// `false` hides it from selection unless unsafe tools are allowed.
    #[serde(default = "yes")]
    pub safe: bool,
    /// Its possible effects.
    #[serde(default)]
    pub effects: Effects,
    /// Capabilities and needs (`streaming`, …), by name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub capabilities: Map<String, Value>,
    /// Roles that may see and call it; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_roles: Vec<String>,
    /// How results are returned.
    #[serde(default)]
    pub mode: Mode,
    /// Whether calls may overlap.
    #[serde(default)]
    pub concurrency: Concurrency,
    /// Absolute limit of one call; beats the provider's and the global one.
    #[serde(default, with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// Time after which a call continues as a job; overrides the provider's and the global setting.
    #[serde(default, with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub auto_background_after: Option<Duration>,
    /// Time limit between progress reports of a call; overrides the provider's and the global limit.
    #[serde(default, with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Duration>,
    /// Number of retries of a failed call, if a retry is safe; overrides the provider's setting. Zero by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Cap on the text of a result, in bytes; beats the global one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output: Option<usize>,
    /// Name of the queue its calls wait in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// How long a successful result is cached.
    #[serde(default, with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub cache_ttl: Option<Duration>,
    /// Opt-in to run without a schema; needs `no_schema_mode`.
    #[serde(default)]
    pub allow_no_schema: bool,
    /// How calls run without a schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_schema_mode: Option<NoSchemaMode>,
    /// Set if one call stands for several calls of another tool: policy rules about that tool cover it, and see
    /// each part. Set only by our own code: it is never serialised.
    #[serde(skip)]
    pub parts: Option<CallParts>,
    /// Models for LLM-backed tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_preference: Option<ModelPreference>,
    /// Benchmark score (0-100) from which a model is recommended.
    #[serde(default = "hundred")]
    pub recommended_threshold: u8,
    /// A hint paragraph for the system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contribution: Option<String>,
    /// The full manual, loaded on demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documentation: Option<String>,
    /// Whether the manual must be read before the first call.
    #[serde(default)]
    pub manual_required: bool,
    /// A compact schema for models; `parameters` still validates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_schema: Option<Value>,
    /// The argument that holds the body of a text-format call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_argument: Option<String>,
    /// Sandbox profile of its processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_profile: Option<SandboxProfile>,
    /// Extra approval demand, read by policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<String>,
    /// The author's own rating, read by policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threat_level: Option<String>,
    /// Cost of a call, in words or money.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_hint: Option<Value>,
    /// Handling of results that break the output schema.
    #[serde(default)]
    pub on_output_mismatch: OnOutputMismatch,
    /// Name of the registered tool that runs its calls; empty: none, so that the calling model writes the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<String>,
    /// Who answers its calls in a separate request: `anonymous`, a file or a URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegate: Option<Value>,
    /// Schemas of the meta fields of its calls, by name. Fields with a single allowed value are not
    /// shown to models.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub call_fields: Map<String, Value>,
    /// A model provider's own tool, per API; the executor refuses to run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_native: Option<Value>,
    /// Ed25519 signature of a remote definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// Key that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<String>,
    /// The executable part of a declarative tool (URL, method, templates, prompts): it enters the hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declaration: Option<Value>,
    /// Other fields of the source, kept and passed on.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub meta: Map<String, Value>,
}

impl ToolDefinition {
    /// Maximal cost of a call in US dollars, if its hint is a number or has one under `usd`.
    #[must_use]
    pub fn cost_usd(&self) -> Option<f64> {
        let hint = self.cost_hint.as_ref()?;
        hint.get("usd").unwrap_or(hint).as_f64().filter(|usd| *usd >= 0.0)
    }

    /// A definition with the defaults: safe, direct, parallel, effects unknown.
    #[must_use]
    pub fn new(id: ToolId, description: impl Into<String>, parameters: Option<Value>) -> Self {
        Self {
            id,
            title: None,
            description: description.into(),
            parameters,
            output_schema: None,
            tags: Vec::new(),
            aliases: Vec::new(),
            examples: Vec::new(),
            strict: None,
            safe: true,
            effects: Effects::UNKNOWN,
            capabilities: Map::new(),
            allowed_roles: Vec::new(),
            mode: Mode::Direct,
            concurrency: Concurrency::Safe,
            timeout: None,
            auto_background_after: None,
            idle_timeout: None,
            retries: None,
            max_output: None,
            queue: None,
            cache_ttl: None,
            allow_no_schema: false,
            no_schema_mode: None,
            parts: None,
            model_preference: None,
            recommended_threshold: hundred(),
            contribution: None,
            documentation: None,
            manual_required: false,
            provider_schema: None,
            body_argument: None,
            sandbox_profile: None,
            approval: None,
            threat_level: None,
            cost_hint: None,
            on_output_mismatch: OnOutputMismatch::Warn,
            activity: None,
            delegate: None,
            call_fields: Map::new(),
            provider_native: None,
            signature: None,
            signed_by: None,
            declaration: None,
            meta: Map::new(),
        }
    }

    /// The parts that models and clients see, the effects, and the executable part of a declarative tool. Operator
    /// settings (timeouts, queues, caches, caps) are excluded. Other fields that a server listed are under `listed`.
    #[must_use]
    pub fn contract(&self) -> Value {
        self.contract_fields().into_iter().map(|(name, value)| (name.to_owned(), value.into_owned())).collect()
    }

    /// The fields of [`ToolDefinition::contract`]; large values are borrowed.
    fn contract_fields(&self) -> Vec<(&'static str, Cow<'_, Value>)> {
        fn of<'v>(value: impl Serialize) -> Cow<'v, Value> {
            Cow::Owned(json!(value))
        }
        fn schema(schema: Option<&Value>) -> Cow<'_, Value> {
            schema.map_or(Cow::Owned(Value::Null), Cow::Borrowed)
        }
        let mut fields = vec![
            ("id", of(self.id.as_str())),
            ("title", of(&self.title)),
            ("description", of(&self.description)),
            ("parameters", schema(self.parameters.as_ref())),
            ("provider_schema", schema(self.provider_schema.as_ref())),
            ("output_schema", schema(self.output_schema.as_ref())),
            ("examples", of(&self.examples)),
            ("aliases", of(&self.aliases)),
            ("contribution", of(&self.contribution)),
            ("documentation", of(&self.documentation)),
            ("body_argument", of(&self.body_argument)),
            ("effects", of(self.effects)),
            ("declaration", of(&self.declaration)),
            ("activity", of(&self.activity)),
            ("delegate", of(&self.delegate)),
            ("provider_native", schema(self.provider_native.as_ref())),
        ];
        if !self.call_fields.is_empty() {
            fields.push(("call_fields", of(&self.call_fields)));
        }
        // Omitted if empty, so that older contracts of tools without it stay equal.
        fields.extend(self.listed().map(|listed| ("listed", Cow::Owned(Value::Object(listed)))));
        fields
    }

    /// Fields of a server's listing that are passed on unchanged: annotations, icons, execution, `_meta`. Without
    /// hints, which are in `effects`, and without fields that depend on the protocol revision.
    fn listed(&self) -> Option<Map<String, Value>> {
        let mut listed = self.meta.get(passthrough::LISTED_FIELDS)?.as_object()?.clone();
        if let Some(annotations) = listed.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|key, value| !(HINTS.contains(&key.as_str()) && value.is_boolean()));
        }
        drop_carriage(&mut listed);
        listed.retain(|_, value| !value.as_object().is_some_and(Map::is_empty) && !value.is_null());
        (!listed.is_empty()).then_some(listed)
    }

    /// SHA-256 over canonical JSON of [`ToolDefinition::contract`]: an approval bound to it survives only changes of
    /// operator settings.
    #[must_use]
    pub fn contract_hash(&self) -> ContentHash {
        ContentHash::of_fields(self.contract_fields().iter().map(|(name, value)| (*name, &**value)))
    }

    /// The schema shown to a model: the compact view if there is one; an open object for a tool
    /// without a schema.
    #[must_use]
    pub fn shown_schema(&self) -> Value {
        self.provider_schema
            .as_ref()
            .or(self.parameters.as_ref())
            .cloned()
            .unwrap_or_else(|| json!({"type": "object", "additionalProperties": true}))
    }
}

/// Removes `execution.taskSupport` from a tool's listing. It says how a call is transported (MCP 2025-11-25, "Tasks"),
/// not what it does, and only that revision has it: a server of several revisions lists the same tool with and without
/// it.
pub(crate) fn drop_carriage(listed: &mut Map<String, Value>) {
    if let Some(execution) = listed.get_mut("execution").and_then(Value::as_object_mut) {
        execution.shift_remove("taskSupport");
        if execution.is_empty() {
            listed.shift_remove("execution");
        }
    }
}

fn yes() -> bool {
    true
}

fn hundred() -> u8 {
    100
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ToolDefinition {
        let id = ToolId::parse("fs:read@1.0.0").expect("id");
        ToolDefinition::new(id, "Reads a file.", Some(json!({"type": "object"})))
    }

    /// Every field of a definition with a value that is not its default, and whether the contract holds it.
    fn fields() -> Vec<(&'static str, Value, bool)> {
        vec![
            ("id", json!("fs:read@2.0.0"), true),
            ("title", json!("Read"), true),
            ("description", json!("Reads."), true),
            ("parameters", json!({"type": "object", "required": ["a"]}), true),
            ("output_schema", json!({}), true),
            ("examples", json!([{}]), true),
            ("aliases", json!(["cat"]), true),
            ("contribution", json!("Read first."), true),
            ("documentation", json!("A manual."), true),
            ("provider_schema", json!({"type": "object"}), true),
            ("body_argument", json!("text"), true),
            ("effects", json!({"read_only": true}), true),
            ("declaration", json!({"url": "http://x"}), true),
            ("activity", json!("read"), true),
            ("delegate", json!("anonymous"), true),
            ("provider_native", json!({"openai": {}}), true),
            ("tags", json!(["files"]), false),
            ("strict", json!(true), false),
            ("safe", json!(false), false),
            ("capabilities", json!({"streaming": true}), false),
            ("allowed_roles", json!(["admin"]), false),
            ("mode", json!("background"), false),
            ("concurrency", json!("exclusive"), false),
            ("timeout", json!("3s"), false),
            ("auto_background_after", json!("4s"), false),
            ("idle_timeout", json!("1s"), false),
            ("retries", json!(2), false),
            ("max_output", json!(1), false),
            ("queue", json!("q"), false),
            ("cache_ttl", json!("1s"), false),
            ("allow_no_schema", json!(true), false),
            ("no_schema_mode", json!("read-only"), false),
            ("model_preference", json!({"preferred_model": "a/b"}), false),
            ("recommended_threshold", json!(95), false),
            ("manual_required", json!(true), false),
            ("sandbox_profile", json!("pure"), false),
            ("approval", json!("always"), false),
            ("threat_level", json!("low"), false),
            ("cost_hint", json!(0.1), false),
            ("on_output_mismatch", json!("error"), false),
            ("signature", json!("00"), false),
            ("signed_by", json!("me"), false),
            ("meta", json!({"a": 1}), false),
        ]
    }

    #[test]
    fn contract_holds_no_operator_settings() {
        let base = serde_json::to_value(sample()).expect("json");
        for (field, value, in_contract) in fields() {
            let mut changed = base.clone();
            changed[field] = value;
            let changed: ToolDefinition = serde_json::from_value(changed).expect(field);
            assert_ne!(changed, sample(), "{field}");
            assert_eq!(changed.contract_hash() != sample().contract_hash(), in_contract, "{field}");
            assert_eq!(changed.contract_hash(), ContentHash::of_value(&changed.contract()), "{field}");
        }
        // Hashes of pinned and approved definitions must never change.
        assert_eq!(
            sample().contract_hash().to_hex(),
            "4aa1eaf98164024d4b372cf810cb9c6fccaacfc0072275acf9e2dbb61bb7aec3"
        );
    }

    #[test]
    fn other_listed_fields_are_in_the_contract() {
        let with = |listed: Value| {
            let mut definition = sample();
            definition.meta.insert(passthrough::LISTED_FIELDS.to_owned(), listed);
            definition.contract_hash()
        };
        for (listed, in_contract) in [
            (json!({"annotations": {"title": "Harmless"}}), true),
            (json!({"execution": {"later": true}}), true),
            (json!({"icons": [{"src": "https://x/i.png"}]}), true),
            (json!({"_meta": {"template": "ui://x"}}), true),
            (json!({"annotations": {"readOnlyHint": "yes"}}), true),
            // Their meaning is in the effects.
            (json!({"annotations": {"readOnlyHint": true, "openWorldHint": false}}), false),
            (json!({"annotations": {}, "_meta": null}), false),
            // Only one revision lists this field of the same tool.
            (json!({"execution": {"taskSupport": "forbidden"}}), false),
            (json!({"execution": {"taskSupport": "required"}}), false),
        ] {
            assert_eq!(with(listed.clone()) != sample().contract_hash(), in_contract, "{listed}");
        }
    }

    #[test]
    fn every_field_survives_its_json_form() {
        let all: Map<String, Value> = fields().into_iter().map(|(field, value, _)| (field.to_owned(), value)).collect();
        let definition: ToolDefinition = serde_json::from_value(Value::Object(all.clone())).expect("definition");
        let written = serde_json::to_value(&definition).expect("json");
        assert!(all.keys().all(|field| written.get(field).is_some()), "{written}");
        assert_eq!(written.as_object().map(Map::len), Some(all.len()), "a field is missing in the table");
        assert_eq!(serde_json::from_value::<ToolDefinition>(written).expect("back"), definition);
    }

    #[test]
    fn missing_hints_mean_danger() {
        let bare: ToolDefinition = serde_json::from_value(json!({"id": "a:b@1.0.0"})).expect("bare");
        assert_eq!(bare.effects, Effects::UNKNOWN);
        assert!(bare.safe && bare.recommended_threshold == 100);
    }
}
