//! Shared by this crate's tests.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use toolwright_core::catalogue::{
    Health, Listing, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool,
};
use toolwright_core::context::ToolContext;
use toolwright_core::definition::ToolDefinition;
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::tool_id::ToolId;

/// A provider that is nothing but its name and kind.
pub(crate) struct Named(pub(crate) &'static str, ProviderKind);

#[async_trait]
impl Provider for Named {
    fn name(&self) -> &str {
        self.0
    }
    fn kind(&self) -> ProviderKind {
        self.1
    }
    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        Ok(Vec::new())
    }
    async fn call(&self, _call: ProviderCall<'_>, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::text(self.0))
    }
    fn health(&self) -> Health {
        Health::Ready
    }
}

pub(crate) fn definition(id: &str) -> ToolDefinition {
    ToolDefinition::new(ToolId::parse(id).expect("id"), "", Some(json!({"type": "object"})))
}

pub(crate) fn own(definition: ToolDefinition) -> Arc<RegisteredTool> {
    RegisteredTool::own(definition).expect("registers")
}

pub(crate) fn listing(name: &'static str, tools: Vec<Arc<RegisteredTool>>) -> Listing {
    Listing { provider: Arc::new(Named(name, ProviderKind::Native)), tools, error: None, withheld: Vec::new() }
}
