//! Shared by this crate's tests.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::json;

use crate::catalogue::context::ToolContext;
use crate::catalogue::{
    Health, Listing, PromptPart, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool,
};
use crate::definition::ToolDefinition;
use crate::error::ToolError;
use crate::identity::tool_id::ToolId;
use crate::output::outcome::ToolOutput;
use crate::policy::HintTrust;

/// A provider with a self-description. Other crates' tests use the one of testkit, which depends on this crate.
pub(crate) struct FakeProvider {
    pub(crate) name: String,
    pub(crate) kind: ProviderKind,
    pub(crate) says: Mutex<Option<String>>,
    pub(crate) part: fn(&ToolId) -> Option<PromptPart>,
}

impl FakeProvider {
    pub(crate) fn new(name: &str, kind: ProviderKind, says: Option<&str>) -> Self {
        Self { name: name.to_owned(), kind, says: Mutex::new(says.map(str::to_owned)), part: |_| None }
    }
}

#[async_trait]
impl Provider for FakeProvider {
    fn name(&self) -> &str {
        &self.name
    }
    fn kind(&self) -> ProviderKind {
        self.kind
    }
    fn trust(&self) -> HintTrust {
        if self.kind == ProviderKind::Mcp { HintTrust::Foreign } else { HintTrust::Trusted }
    }
    fn instructions(&self) -> Option<String> {
        self.says.lock().expect("lock").clone()
    }
    fn prompt_part(&self, tool: &ToolId) -> Option<PromptPart> {
        (self.part)(tool)
    }
    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        Ok(Vec::new())
    }
    async fn call(&self, _call: ProviderCall<'_>, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::default())
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
    of_kind(name, ProviderKind::Native, tools)
}

/// A listing of `tools__call`.
pub(crate) fn listing_with_call_tool() -> Listing {
    of_kind("tools", ProviderKind::Builtin, vec![own(definition(crate::model::exposure::CALL_ID))])
}

pub(crate) fn of_kind(name: &str, kind: ProviderKind, tools: Vec<Arc<RegisteredTool>>) -> Listing {
    Listing { provider: Arc::new(FakeProvider::new(name, kind, None)), tools, error: None, withheld: Vec::new() }
}
