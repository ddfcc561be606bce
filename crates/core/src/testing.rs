//! Shared by this crate's tests.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use crate::catalogue::context::ToolContext;
use crate::catalogue::{Health, Listing, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool};
use crate::definition::ToolDefinition;
use crate::error::ToolError;
use crate::identity::tool_id::ToolId;
use crate::output::outcome::ToolOutput;

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

/// A listing of `tools__call`.
pub(crate) fn carrying() -> Listing {
    let tools = vec![own(definition(crate::model::exposure::CALL_ID))];
    Listing { provider: Arc::new(Named("tools", ProviderKind::Builtin)), tools, error: None, withheld: Vec::new() }
}
