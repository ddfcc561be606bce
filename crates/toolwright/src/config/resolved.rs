//! The configuration as resolved: every layer laid together, variables filled in, names settled.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use toolwright_core::Secret;
use toolwright_core::model::PriceTable;
use toolwright_core::policy::{Effect, EffectSelector, Policy, Profile, Rule, Selector, ToolNote};
use toolwright_mcp::client::McpServerConfig;
use toolwright_models::{EmbeddingsApi, Endpoint, ModelOverrides};
use toolwright_oauth::OAuthSettings;
use toolwright_providers::catalogue::CatalogueSpec;
use toolwright_providers::openapi::OpenApiSpec;
use toolwright_providers::rest::RestToolSpec;
use toolwright_runtime::executor::{GuardBinding, ModelGuard};
use toolwright_runtime::{QueueSpec, TrafficTerms};
use toolwright_sandbox::sandbox::SandboxSettings;

use super::compat::CompatSource;
use super::layers::Layer;
use super::llm_tools::LlmEntry;
use super::problem::{At, Problem, Severity};
use super::stamp::Stamp;
use super::telemetry::Telemetry;
use super::typed::{
    ConfigFile, EffectFlags, PolicyEffect, PolicyGuard, PolicyProfile, PolicyRule, PolicySection, PolicyTool,
};
use crate::trust::Judged;

/// A configuration ready for use.
#[derive(Debug, Clone)]
pub struct Config {
    /// Files that were read, nearest first.
    pub files: Vec<PathBuf>,
    /// What the files that were read are called where pins are kept.
    pub pin_scopes: Vec<String>,
    /// Every place that was looked at, nearest first.
    pub candidates: Vec<Layer>,
    /// These places, and where approvals of a project's files are kept, as they were when they were looked at; hot
    /// reload watches them.
    pub(super) stamps: Vec<(PathBuf, Stamp)>,
    /// The project's files that are there, or were and still hold, and how they stand.
    pub trust: Vec<Judged>,
    /// Workspace root, absolute.
    pub root: PathBuf,
    /// State directory, absolute.
    pub state_dir: PathBuf,
    /// The settings, and every entry as it was written: variables not filled in.
    pub written: ConfigFile,
    /// All files laid over each other, as they were written.
    pub(super) tree: Value,
    /// MCP servers that can be used, in order.
    pub servers: Vec<Server>,
    /// The names of those that are switched off.
    pub servers_off: Vec<String>,
    /// REST tools that can be used, in order; `${VAR}` filled in, `${parameters.x}` kept.
    pub rest_tools: Vec<NamedRestTool>,
    /// OpenAPI documents that can be used, in order.
    pub openapi: Vec<OpenApiSpec>,
    /// Remote catalogues that can be used, in order.
    pub catalogues: Vec<CatalogueSpec>,
    /// Tools that a model answers and texts to fill in, in order.
    pub llm_tools: Vec<LlmEntry>,
    /// Files that LLM tools and OpenAPI documents are written in, there or not; hot reload watches them too.
    pub named_files: Vec<PathBuf>,
    /// What told these files' contents when they were read.
    pub(super) named_stamps: Vec<Stamp>,
    /// Which models do well with which tools.
    pub compat: CompatSource,
    /// Places that answer model requests, besides those that the environment names.
    pub model_endpoints: Vec<Endpoint>,
    /// How requests to models are made, by model id or provider.
    pub model_overrides: Vec<(String, ModelOverrides)>,
    /// How requests to models wait and are made again, by model id or provider.
    pub model_traffic: BTreeMap<String, TrafficTerms>,
    /// Files of tokenizers, by model id or provider.
    pub tokenizers: Vec<(String, PathBuf)>,
    /// Where sentence embeddings come from.
    pub embeddings: Option<EmbeddingSource>,
    /// Spans and metrics for others.
    pub telemetry: Telemetry,
    /// How processes are sandboxed; what it protects comes from the other settings.
    pub sandbox: SandboxSettings,
    /// Queues.
    pub queues: BTreeMap<String, QueueSpec>,
    /// Rules; the profile is the configured one, if any.
    pub policy: PolicySection,
    /// Values that must never be printed.
    pub secrets: Vec<String>,
    /// Variables that went into the server's token and the keys and headers of model endpoints; children do
    /// not inherit them.
    pub key_variables: Vec<String>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// Where sentence embeddings come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EmbeddingSource {
    /// A sentence-transformer directory, absolute.
    Directory(PathBuf),
    /// An API.
    Api {
        /// Which one.
        api: EmbeddingsApi,
        /// Its base address.
        base_url: String,
        /// Its key; local servers need none.
        key: Option<Secret>,
        /// The model to ask for.
        model: String,
    },
}

/// One MCP server. Two are equal when the same process or connection serves both.
#[derive(Debug, Clone)]
pub struct Server {
    /// Its name in the configuration.
    pub entry: String,
    /// The namespace its tools get.
    pub namespace: String,
    /// Where it was written.
    pub at: At,
    /// The file that its entry stands in, by which its pins are told from those of others of its name.
    pub defined_in: String,
    /// Its entry, variables filled in.
    pub config: McpServerConfig,
    /// How tokens for it are got; `None` where it needs none of ours.
    pub oauth: Option<OAuthSettings>,
}

impl PartialEq for Server {
    fn eq(&self, other: &Self) -> bool {
        let Self { entry: _, at: _, namespace, defined_in, config, oauth } = self;
        (namespace, defined_in, config, oauth) == (&other.namespace, &other.defined_in, &other.config, &other.oauth)
    }
}

/// A REST tool and its name.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedRestTool {
    /// Name; the tool is `rest:<name>@1.0.0`.
    pub name: String,
    /// The tool.
    pub spec: RestToolSpec,
}

impl Config {
    /// Whether it cannot be used.
    #[must_use]
    pub fn is_unusable(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// The rules under a profile: the one given, else the configured one, else `default`.
    #[must_use]
    pub fn policy(&self, given: Option<Profile>, default: Profile) -> Policy {
        let profile = given.or(self.policy.profile.map(profile_of)).unwrap_or(default);
        policy_of(&self.policy, profile)
    }

    /// The models that judge calls, in order.
    #[must_use]
    pub fn guards(&self) -> Vec<GuardBinding> {
        self.policy.guards.iter().map(guard_of).collect()
    }

    /// What models cost, by model id or provider.
    #[must_use]
    pub fn prices(&self) -> PriceTable {
        let models = self.written.models.by_name.iter();
        models.filter_map(|(name, overrides)| Some((name.clone(), overrides.prices?.into()))).collect()
    }

    /// Every file that decides what the configuration is, there or not.
    pub(crate) fn watched(&self) -> impl Iterator<Item = &PathBuf> {
        let places = self.stamps.iter().map(|(path, _)| path);
        places.chain(&self.named_files).chain(&self.compat.files)
    }

    /// Whether the files say what they said when they were read, as far as their stamps tell.
    pub(crate) fn is_current(&self) -> bool {
        let places = self.stamps.iter().map(|(path, stamp)| (path, stamp));
        let named = self.named_files.iter().zip(&self.named_stamps);
        let all = places.chain(named).chain(self.compat.files.iter().zip(&self.compat.stamps));
        all.into_iter().all(|(path, stamp)| Stamp::of(path) == *stamp)
    }

    /// The configuration as it was written, secrets masked.
    #[must_use]
    pub fn shown(&self) -> Value {
        let mut value = serde_json::to_value(ConfigFile::default()).unwrap_or_default();
        lay_over(&mut value, self.tree.clone());
        super::secrets::mask(&mut value);
        value
    }
}

/// Puts what was written over the defaults.
fn lay_over(defaults: &mut Value, written: Value) {
    match (defaults, written) {
        (Value::Object(defaults), Value::Object(written)) => {
            for (key, value) in written {
                lay_over(defaults.entry(key).or_insert(Value::Null), value);
            }
        }
        (place, written) => *place = written,
    }
}

/// The core's word for a configured profile.
#[must_use]
pub fn profile_of(profile: PolicyProfile) -> Profile {
    match profile {
        PolicyProfile::Ask => Profile::Ask,
        PolicyProfile::Client => Profile::Client,
        PolicyProfile::Workspace => Profile::Workspace,
        PolicyProfile::Trusted => Profile::Trusted,
    }
}

/// The core's policy out of a `policy` section, under a profile.
#[must_use]
pub fn policy_of(section: &PolicySection, profile: Profile) -> Policy {
    let note = |tool: &PolicyTool| ToolNote {
        tool: tool.tool.clone(),
        effects: effects_of(tool.effects),
        tags: tool.tags.clone(),
    };
    Policy {
        profile,
        rules: section.rules.iter().map(rule_of).collect(),
        tools: section.tools.iter().map(note).collect(),
    }
}

fn effects_of(flags: Option<EffectFlags>) -> EffectSelector {
    let flags = flags.unwrap_or_default();
    EffectSelector {
        read_only: flags.read_only,
        destructive: flags.destructive,
        idempotent: flags.idempotent,
        open_world: flags.open_world,
    }
}

/// Which calls a configured guard judges.
pub(crate) fn selector_of_guard(guard: &PolicyGuard) -> Selector {
    Selector {
        tool: guard.tool.clone(),
        namespace: guard.namespace.clone(),
        tag: guard.tag.clone(),
        effects: effects_of(guard.effects),
        role: guard.role.clone(),
        when: guard.when.clone(),
    }
}

fn guard_of(guard: &PolicyGuard) -> GuardBinding {
    let binding = GuardBinding::new(&*guard.name, Arc::new(ModelGuard::new(&*guard.model, &*guard.instructions)));
    let binding = binding.on(selector_of_guard(guard));
    match guard.timeout {
        Some(timeout) => binding.within(timeout.0),
        None => binding,
    }
}

fn rule_of(rule: &PolicyRule) -> Rule {
    Rule {
        effect: match rule.effect {
            PolicyEffect::Allow => Effect::Allow,
            PolicyEffect::Deny => Effect::Deny,
            PolicyEffect::Ask => Effect::Ask,
        },
        selector: Selector {
            tool: rule.tool.clone(),
            namespace: rule.namespace.clone(),
            tag: rule.tag.clone(),
            effects: effects_of(rule.effects),
            role: rule.role.clone(),
            when: rule.when.clone(),
        },
        reason: rule.reason.clone(),
    }
}
