//! Tools that come with Toolwright: files, a shell, stored outputs.
//!
//! Tools that need more than a file system and processes (`web:fetch`) are made elsewhere and handed to
//! [`provider`], so that all of them are one provider called `builtin`.

mod capture;
mod fs;
mod output;
mod shell;
pub mod web;

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use toolwright_core::ToolId;
use toolwright_core::catalogue::{ProviderKind, RegistrationError};
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::tool::{StaticProvider, Tool};

pub use fs::PathGuard;

/// Settings of the built-in tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltinOptions {
    /// What the `fs` tools do about paths outside the workspace root.
    pub path_guard: PathGuard,
    /// Environment variables that commands do not inherit, as `*` and `?` patterns.
    pub withheld_env: Vec<String>,
}

impl Default for BuiltinOptions {
    /// Paths outside are blocked; commands get the environment without Toolwright's own variables and the
    /// keys of model APIs, which are ours to spend and not a command's.
    fn default() -> Self {
        let withheld = ["TOOLWRIGHT_*", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"];
        Self { path_guard: PathGuard::default(), withheld_env: withheld.map(str::to_owned).to_vec() }
    }
}

/// The tools of `fs`, `shell` and `output`, in a fixed order.
#[must_use]
pub fn tools(options: &BuiltinOptions) -> Vec<Arc<dyn Tool>> {
    let mut tools = fs::tools(options.path_guard);
    tools.push(Arc::new(shell::Bash::new(options.withheld_env.clone())));
    tools.push(Arc::new(output::Read));
    tools
}

/// The provider `builtin`: [`tools`], and after them `more`.
///
/// # Errors
/// When a definition breaks the registration rules; those of [`tools`] do not.
pub fn provider(
    options: &BuiltinOptions,
    more: impl IntoIterator<Item = Arc<dyn Tool>>,
) -> Result<StaticProvider, RegistrationError> {
    let mut all = tools(options);
    all.extend(more);
    StaticProvider::new("builtin", ProviderKind::Builtin, all)
}

/// A definition of ours: `properties` becomes a closed object schema.
fn define(
    id: &str,
    title: &str,
    description: &str,
    effects: Effects,
    properties: Value,
    required: &[&str],
) -> ToolDefinition {
    #[expect(clippy::expect_used, reason = "the ids are constants of this module, and a test registers them all")]
    let id = ToolId::parse(id).expect("a legal id");
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    let mut definition = ToolDefinition::new(id, description, Some(schema));
    definition.title = Some(title.to_owned());
    definition.tags = vec![definition.id.namespace().to_owned()];
    definition.effects = effects;
    definition
}

/// Arguments as their type. They are validated already; what can still fail is a number that is too big.
fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolError> {
    serde_json::from_value(arguments)
        .map_err(|error| ToolError::new(ErrorKind::InvalidParameters, format!("the arguments do not fit: {error}")))
}

/// Runs file work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ToolError::new(ErrorKind::InternalError, format!("a file operation broke off: {error}"))),
    }
}

/// A failure that the caller can act on.
fn failed(message: impl Into<String>) -> ToolError {
    ToolError::new(ErrorKind::ExecutionError, message)
}
