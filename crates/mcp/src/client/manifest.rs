//! What a server listed, kept between runs so that its tools are there before it is.

use std::sync::Arc;

use crate::protocol::revision::MODERN_VERSIONS;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolwright_core::catalogue::ProviderError;

use super::config::{AsTools, McpTransport};
use super::handshake::ServerInfo;
use super::listed_as_tools;
use super::listing::{Listed, Marks, Raw, build};
use super::spec::McpServerSpec;
use super::version_probe::Found;

/// What a server listed.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Manifest {
    /// Its tools.
    pub(crate) tools: Vec<Value>,
    /// Its prompts, where they are offered as tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) prompts: Vec<Value>,
    /// What it tells a model.
    pub(crate) instructions: Option<String>,
    /// What it announced.
    pub(crate) capabilities: Arc<Map<String, Value>>,
    /// The revision that it spoke.
    pub(crate) version: Option<String>,
    /// Whether it asked for folders before it was called.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) asks_folders: bool,
    /// The generation that was found, under the key `KEPT` of [`super::version_probe`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<Found>,
}

impl Manifest {
    /// That of a server that said this of itself.
    pub(crate) fn new(server: &ServerInfo, found: Option<Found>, tools: Vec<Value>, prompts: Vec<Value>) -> Self {
        Self {
            tools,
            prompts,
            instructions: server.instructions.clone(),
            capabilities: Arc::clone(&server.capabilities),
            version: Some(server.version.to_owned()),
            asks_folders: false,
            generation: found,
        }
    }

    /// The tools that it makes.
    ///
    /// # Errors
    /// When the namespace is illegal.
    pub(crate) fn build(&self, spec: &McpServerSpec) -> Result<Listed, ProviderError> {
        let mut shown = Vec::new();
        if spec.config.resources == AsTools::Yes && self.capabilities.contains_key("resources") {
            shown.extend(listed_as_tools::resources());
        }
        if spec.config.prompts == AsTools::Yes {
            shown.extend(listed_as_tools::prompts(&self.prompts));
        }
        let is_modern = self.version.as_deref().is_some_and(|version| MODERN_VERSIONS.contains(&version));
        let has_headers = matches!(spec.config.transport, McpTransport::Http { .. });
        let marks = if is_modern && has_headers { Marks::Followed } else { Marks::Ignored };
        build(spec, Raw { tools: &self.tools, shown, marks })
    }
}
