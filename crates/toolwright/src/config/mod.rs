//! Configuration: `toolwright.yaml` and what is laid under it. Two types: as [`typed`] in a file, and
//! as resolved ([`Config`]).

mod catalogues;
mod check;
mod compat;
pub mod edit;
mod expand;
mod exposure;
mod fill;
pub(crate) mod foreign;
mod layers;
mod llm_markdown;
mod llm_tools;
mod load;
mod models;
mod node;
mod oauth;
mod openapi;
mod places;
mod policy;
mod problem;
mod project;
mod resolved;
mod rest;
mod sandbox;
mod schema;
mod secret_file;
mod secrets;
mod selection;
mod servers;
mod stamp;
mod telemetry;
pub mod typed;

pub use compat::{CompatSource, read as read_compat};
pub use expand::Variables;
pub use layers::{Layer, LayerKind, user_file};
pub use llm_tools::{LlmEntry, Tuned};
pub use load::{LoadOptions, load, state_dir};
pub use policy::policy_file;
pub use problem::{At, Problem, Severity};
pub use resolved::{Config, EmbeddingSource, NamedRestTool, Server, policy_of, profile_of};
pub use schema::published as json_schema;
pub(crate) use secret_file::environment;
pub use secret_file::{forget_secrets, keep_secrets, names_variable, secret_file, variable};
pub use telemetry::Telemetry;

pub(crate) use check::snake_case;
pub(crate) use layers::{checked, read_text};
pub(crate) use load::place_of_code;
pub use openapi::origin as document_origin;
pub(crate) use project::project_kind;
pub(crate) use resolved::selector_of_guard;
pub(crate) use secrets::{decides_what_runs, in_address, in_arguments, looks_secret, without_scheme};

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
    secrets::mask(&mut value);
    value
}

/// Whether the value, as it may be written to a file, holds what is or may be a secret.
#[must_use]
pub fn holds_secrets(value: &serde_json::Value) -> bool {
    masked(value) != *value
}
