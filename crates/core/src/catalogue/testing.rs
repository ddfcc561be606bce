//! Shared by this crate's tests.

use std::sync::Arc;

use serde_json::json;

use crate::catalogue::tool::StaticProvider;
use crate::catalogue::{Listing, ProviderKind, RegisteredTool};
use crate::definition::ToolDefinition;
use crate::identity::tool_id::ToolId;

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
pub(crate) fn carrying() -> Listing {
    of_kind("tools", ProviderKind::Builtin, vec![own(definition(crate::model::exposure::CALL_ID))])
}

pub(crate) fn of_kind(name: &str, kind: ProviderKind, tools: Vec<Arc<RegisteredTool>>) -> Listing {
    let provider = StaticProvider::new(name, kind, Vec::new()).expect("nothing to register");
    Listing { provider: Arc::new(provider), tools, error: None, withheld: Vec::new() }
}
