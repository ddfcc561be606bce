//! A tool written in Rust, and the provider that holds such tools.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use crate::catalogue::{
    CallScope, Health, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool, RegistrationError,
};
use crate::context::ToolContext;
use crate::definition::ToolDefinition;
use crate::error::{ErrorKind, ToolError};
use crate::outcome::ToolOutput;
use crate::session::Session;

/// A tool implemented in Rust.
#[async_trait]
pub trait Tool: Send + Sync {
    /// Its definition. Asked once, at registration.
    fn definition(&self) -> ToolDefinition;

    /// Runs with validated arguments.
    ///
    /// # Errors
    /// [`ToolError`]; for a failure that the model should read and act on, prefer
    /// [`ToolOutput::failure`] or `ErrorKind::ExecutionError`.
    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError>;

    /// What a call with these arguments would touch, for policy. The default claims nothing.
    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Anywhere
    }
}

/// A provider of Rust tools, fixed at construction.
pub struct StaticProvider {
    name: String,
    kind: ProviderKind,
    tools: Vec<Arc<RegisteredTool>>,
    by_name: HashMap<String, Arc<dyn Tool>>,
}

impl StaticProvider {
    /// Registers `tools` under the provider `name`.
    ///
    /// # Errors
    /// [`RegistrationError`] for a tool that breaks the registration rules; nothing is registered then.
    pub fn new(
        name: impl Into<String>,
        kind: ProviderKind,
        tools: Vec<Arc<dyn Tool>>,
    ) -> Result<Self, RegistrationError> {
        let mut registered = Vec::with_capacity(tools.len());
        let mut by_name = HashMap::with_capacity(tools.len());
        for tool in tools {
            let entry = RegisteredTool::own(tool.definition())?;
            by_name.insert(entry.raw_name().to_owned(), tool);
            registered.push(entry);
        }
        Ok(Self { name: name.into(), kind, tools: registered, by_name })
    }
}

#[async_trait]
impl Provider for StaticProvider {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> ProviderKind {
        self.kind
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        Ok(self.tools.clone())
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        match self.by_name.get(call.raw_name) {
            Some(tool) => tool.run(call.arguments, context).await,
            None => Err(ToolError::new(
                ErrorKind::InternalError,
                format!("provider {} lost its tool {}", self.name, call.raw_name),
            )),
        }
    }

    fn scope(&self, raw_name: &str, arguments: &Value, session: &Session) -> CallScope {
        self.by_name.get(raw_name).map_or(CallScope::Anywhere, |tool| tool.scope(arguments, session))
    }

    fn health(&self) -> Health {
        Health::Ready
    }
}
