//! Tools that are declared by a schema and have no code: a model answers their calls itself, or an activity or a delegate does.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::context::ToolContext;
use super::{Health, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool, RegistrationError};
use crate::definition::{Effects, ToolDefinition};
use crate::error::{ErrorKind, ToolError};
use crate::identity::tool_id::{IdError, ToolId};
use crate::output::outcome::ToolOutput;

/// The namespace of tools that are declared without one.
pub const SCHEMA_NAMESPACE: &str = "schema";

/// Why a schema declares no tool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeclarationError {
    /// Its name makes no id.
    #[error(transparent)]
    Name(#[from] IdError),
    /// It breaks the rules of registration.
    #[error(transparent)]
    Registration(#[from] RegistrationError),
}

/// Builds the tool that a JSON Schema declares: title and description are the schema's, parameters its properties
/// except meta fields (`_output`, `_activity`, …). `name` may be `namespace:name`. The tool has no code, so it only
/// reads; [`Entry::effects`](super::Entry::effects) adds its activity's effects, and the activity's call is judged
/// separately.
///
/// # Errors
/// [`DeclarationError`] for an unusable name or schema.
pub fn declared_tool(name: &str, schema: &Value) -> Result<Arc<RegisteredTool>, DeclarationError> {
    let (namespace, name) = name.split_once(':').unwrap_or((SCHEMA_NAMESPACE, name));
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    let text = |key| schema.get(key).and_then(Value::as_str).map(str::to_owned);
    let mut parameters = schema.clone();
    if let Some(object) = parameters.as_object_mut() {
        object.shift_remove("title");
        object.shift_remove("description");
    }
    let id = ToolId::foreign(namespace, name)?;
    let mut definition = ToolDefinition::new(id, text("description").unwrap_or_default(), Some(parameters));
    definition.title = text("title");
    definition.effects = Effects::READ;
    Ok(RegisteredTool::own_named(definition, name)?)
}

/// The provider of declared tools.
#[derive(Debug)]
pub struct DeclaredTools {
    name: String,
    tools: Vec<Arc<RegisteredTool>>,
    issues: Vec<String>,
}

impl DeclaredTools {
    /// Creates the provider of these tools, each a name and a schema. Invalid schemas are skipped, and
    /// [`Provider::issues`] reports them.
    #[must_use]
    pub fn new<'t>(name: impl Into<String>, tools: impl IntoIterator<Item = (&'t str, &'t Value)>) -> Self {
        let (mut registered, mut issues) = (Vec::new(), Vec::new());
        for (tool, schema) in tools {
            match declared_tool(tool, schema) {
                Ok(tool) => registered.push(tool),
                Err(error) => issues.push(format!("{tool} was left out: {error}")),
            }
        }
        Self { name: name.into(), tools: registered, issues }
    }

    /// Its tools, in the order in which they were given.
    #[must_use]
    pub fn tools(&self) -> &[Arc<RegisteredTool>] {
        &self.tools
    }
}

#[async_trait]
impl Provider for DeclaredTools {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> ProviderKind {
        ProviderKind::Native
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        Ok(self.tools.clone())
    }

    async fn call(&self, call: ProviderCall<'_>, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Err(ToolError::new(ErrorKind::InternalError, format!("{} has no code: its calls are not run by it", call.tool)))
    }

    fn implements(&self, _tool: &ToolId) -> bool {
        false
    }

    fn is_io_bound(&self) -> bool {
        true
    }

    fn health(&self) -> Health {
        Health::Ready
    }

    fn issues(&self) -> Vec<String> {
        self.issues.clone()
    }
}
