//! Configuration: `toolwright.yaml` and what is laid under it. [`ConfigFile`] is what a file may say, [`Config`] what it comes
//! to with all its layers, variables filled in.

mod check;
pub mod file;
mod layers;
mod llm_tools;
mod load;
mod loaded;
mod models;
mod node;
mod servers;
mod sources;
pub mod trust;
mod variables;

pub use check::{json_schema, policy_file};
pub use file::{ConfigFile, EmbeddingsConfig, PolicyConfig};
pub use layers::{Layer, LayerKind, user_file};
pub use llm_tools::{LlmEntry, Tuned};
pub use load::{LoadOptions, load, state_dir};
pub use loaded::{Config, Server};
pub use models::{CompatSource, ModelConfig, ModelsConfig, read_compat};
pub use node::{At, Problem, Severity};
pub use variables::{Variables, forget_secrets, keep_secrets, names_variable, secret_file, variable};

pub(crate) use check::snake_case;
pub(crate) use layers::{checked, project_kind, read_text};
pub(crate) use load::place_of_code;
pub(crate) use servers::{is_understood, timeout};
pub(crate) use variables::environment;

/// Name of the provider of built-in tools.
pub(crate) const BUILTIN: &str = "builtin";
/// Name of the provider of tools that a model answers.
pub(crate) const LLM: &str = "llm";
/// Name of the provider of REST tools.
pub(crate) const REST: &str = "rest";

/// A document as a plain value, for files that are not ours.
pub(crate) fn parse_value(text: &str, file: &std::sync::Arc<std::path::Path>) -> Result<serde_json::Value, Problem> {
    node::Node::parse(text, file).map(|node| node.to_value())
}

/// The value with all masked that is or may be secret, for showing it: header, environment and query
/// values, passwords in addresses and arguments. `${VAR}` references stay.
#[must_use]
pub fn masked(value: &serde_json::Value) -> serde_json::Value {
    let mut value = value.clone();
    crate::secrets::mask(&mut value);
    value
}

/// Whether the value, as it may be written to a file, holds what is or may be a secret.
#[must_use]
pub fn holds_secrets(value: &serde_json::Value) -> bool {
    masked(value) != *value
}
