//! A tool in a snapshot.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Provider, RegisteredTool};
use crate::definition::ToolDefinition;
use crate::pattern::glob_match;
use crate::policy::HintTrust;
use crate::select::Source;
use crate::tool_id::ToolId;

/// A tool in a snapshot.
pub struct Entry {
    /// The tool.
    pub tool: Arc<RegisteredTool>,
    /// Who runs it.
    pub provider: Arc<dyn Provider>,
    /// Its wire name (64 characters at most).
    pub wire_name: String,
    /// The same, for events: each call makes several.
    told_name: Arc<str>,
    /// What is searched of its provider.
    pub(crate) source: Arc<Source>,
}

impl Entry {
    pub(super) fn new(
        tool: Arc<RegisteredTool>,
        provider: Arc<dyn Provider>,
        wire_name: &str,
        source: Arc<Source>,
    ) -> Arc<Self> {
        Arc::new(Self { tool, provider, wire_name: wire_name.to_owned(), told_name: wire_name.into(), source })
    }

    /// Its wire name, to be shared.
    #[must_use]
    pub fn told_name(&self) -> &Arc<str> {
        &self.told_name
    }

    /// The tool's definition.
    #[must_use]
    pub fn definition(&self) -> &ToolDefinition {
        self.tool.definition()
    }

    /// The name of its provider.
    #[must_use]
    pub fn provider_name(&self) -> &Arc<str> {
        &self.source.name
    }

    /// The tool's id.
    #[must_use]
    pub fn id(&self) -> &ToolId {
        &self.tool.definition().id
    }

    /// The protocol's method that it is (`resources/read`), where it is no tool.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        self.provider.is_of_methods().then(|| self.tool.raw_name())
    }

    /// Whether a call that may have run can run again without harm: by hints that are trusted it only reads, or twice
    /// is the same as once. What makes calls of its own is not known to be so.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        let effects = self.definition().effects;
        self.provider.trust() == HintTrust::Trusted
            && (effects.read_only || effects.idempotent)
            && !self.provider.awaits_others(self.id())
    }

    /// The tool as programs are shown it in a list: an element of `tools ls --json` and of `GET /api/tools`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let definition = self.definition();
        json!({
            "id": definition.id,
            "wire_name": self.wire_name,
            "description": definition.description,
            "parameters": definition.parameters,
            "tags": definition.tags,
            "safe": definition.safe,
            "effects": definition.effects,
            "provider": self.provider.name(),
        })
    }

    /// As [`Entry::to_json`], with `raw_name`, `hash` and the whole `definition`: `tools show --json`.
    #[must_use]
    pub fn to_whole_json(&self) -> Value {
        let mut value = self.to_json();
        value["raw_name"] = self.tool.raw_name().into();
        value["hash"] = self.tool.hash().to_string().into();
        value["definition"] = json!(self.definition());
        value
    }

    /// Whether one of the globs is on its id, with or without its version, or on its wire name.
    #[must_use]
    pub fn is_named_by(&self, globs: &[String]) -> bool {
        let id = self.id();
        let names = [id.as_str(), id.without_version(), &self.wire_name];
        globs.iter().any(|glob| names.iter().any(|name| glob_match(glob, name)))
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({} from {})", self.id(), self.provider.name())
    }
}
