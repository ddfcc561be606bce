//! Defines the tools that a model's provider runs itself, and the report of their uses, sources and files in an answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A tool that providers of models have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NativeTool {
    /// Searches the web.
    WebSearch,
    /// Runs code in a container of the provider.
    CodeExecution,
    /// Searches files that are stored at the provider.
    FileSearch,
    /// Draws images.
    ImageGen,
}

impl NativeTool {
    /// All native tools.
    pub const ALL: [Self; 4] = [Self::WebSearch, Self::CodeExecution, Self::FileSearch, Self::ImageGen];

    /// The id of the tool.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::WebSearch => "native:web_search@1.0.0",
            Self::CodeExecution => "native:code_execution@1.0.0",
            Self::FileSearch => "native:file_search@1.0.0",
            Self::ImageGen => "media:image_gen@1.0.0",
        }
    }
}

/// A use of a native tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NativeUse {
    /// The tool.
    pub tool: NativeTool,
    /// The provider's id for it; may be empty.
    pub id: String,
    /// Its input, written by the model.
    pub input: Value,
    /// Whether it succeeded, as far as the answer says.
    pub ok: bool,
}

/// A source that an answer cites.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Citation {
    /// Its title, or the name of a file.
    pub title: String,
    /// Its address; `None` for a file at the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// A file that came with an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Its media type.
    pub media_type: String,
    /// Its bytes in base64; `None` for a file that stays at the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The provider's name for it; may be empty.
    pub name: String,
    /// Path for fetching it, below the API's base address; `None` if it cannot be fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A file that was fetched from a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedFile {
    /// Its media type as reported; `application/octet-stream` by default.
    pub media_type: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Output of the provider's native tools for one answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NativeOutput {
    /// Their uses, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<NativeUse>,
    /// The sources that the text cites, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub citations: Vec<Citation>,
    /// The files that they made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// The uses that the provider reports in its usage, if it does.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub reported: BTreeMap<NativeTool, u64>,
}

impl NativeOutput {
    /// Whether no native tool was used.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds a source, if new.
    pub fn cite(&mut self, citation: Citation) {
        if !self.citations.contains(&citation) {
            self.citations.push(citation);
        }
    }

    /// Number of charged uses of `tool`: as reported, else the successful ones.
    #[must_use]
    pub fn charged(&self, tool: NativeTool) -> u64 {
        let succeeded = || self.uses.iter().filter(|used| used.tool == tool && used.ok).count();
        self.reported.get(&tool).copied().unwrap_or_else(|| u64::try_from(succeeded()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_uses_are_charged_else_those_that_succeeded() {
        let used = |ok| NativeUse { tool: NativeTool::WebSearch, id: String::new(), input: Value::Null, ok };
        let mut output = NativeOutput { uses: vec![used(true), used(false), used(true)], ..NativeOutput::default() };
        assert_eq!((output.charged(NativeTool::WebSearch), output.charged(NativeTool::ImageGen)), (2, 0));
        output.reported.insert(NativeTool::WebSearch, 3);
        assert_eq!(output.charged(NativeTool::WebSearch), 3);
    }
}
