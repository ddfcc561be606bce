//! Catalogues for the targets: tools that are listed and never run.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::catalogue::{
    Health, Listing, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool, Snapshot,
};
use toolwright_core::context::ToolContext;
use toolwright_core::definition::ToolDefinition;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::tool_id::ToolId;

/// A provider that is nothing but its name.
struct Named(&'static str);

#[async_trait]
impl Provider for Named {
    fn name(&self) -> &str {
        self.0
    }
    fn kind(&self) -> ProviderKind {
        ProviderKind::Native
    }
    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        Ok(Vec::new())
    }
    async fn call(&self, _call: ProviderCall<'_>, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Err(ToolError::new(ErrorKind::InternalError, "nothing runs here"))
    }
    fn health(&self) -> Health {
        Health::Ready
    }
}

/// A snapshot with a tool of our own and a foreign one for each schema: `own__tool_0`, `far__tool_0`, ….
pub fn snapshot(schemas: &[Value]) -> Snapshot {
    let definition = |namespace: &str, number: usize, schema: &Value| {
        let id = ToolId::format(namespace, &format!("tool_{number}"), "1.0.0").expect("a legal id");
        ToolDefinition::new(id, "", Some(schema.clone()))
    };
    let own = schemas.iter().enumerate().map(|(number, schema)| {
        RegisteredTool::own(definition("own", number, schema)).expect("a schema that compiles")
    });
    let far = schemas
        .iter()
        .enumerate()
        .map(|(number, schema)| RegisteredTool::foreign(definition("far", number, schema), format!("tool_{number}")));
    let listing = |name, tools| Listing { provider: Arc::new(Named(name)), tools, error: None, withheld: Vec::new() };
    Snapshot::build(&[listing("own", own.collect()), listing("far", far.collect())])
}
