//! Tools that model providers run themselves: `native:*` and `media:image_gen`. They are declared to models whose API
//! has them; the executor never runs them.

use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::NativeTool;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::tool::Tool;

use super::define;

/// `native_tools`: those that are offered. Each is declared to models whose API has it; a request to another model leaves it
/// out and says why.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NativeToolsConfig {
    /// `native__web_search`: a search of the web (Anthropic, OpenAI Responses, Gemini).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub web_search: Option<NativeToolConfig>,
    /// `native__code_execution`: code in a container of the provider (Anthropic, OpenAI Responses, Gemini).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_execution: Option<NativeToolConfig>,
    /// `native__file_search`: a search of files that are stored at the provider (OpenAI Responses); needs
    /// `openai_responses.vector_store_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_search: Option<NativeToolConfig>,
    /// `media__image_gen`: draws images (OpenAI Responses).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_gen: Option<NativeToolConfig>,
}

/// A tool of a model's provider.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NativeToolConfig {
    /// What one use costs, in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub price: Option<f64>,
    /// Keys of the declaration to Anthropic Messages, like `max_uses`, `allowed_domains` and another `type`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub anthropic: Map<String, Value>,
    /// Keys of the declaration to OpenAI Responses, like `filters`, `vector_store_ids` and `size`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub openai_responses: Map<String, Value>,
    /// Keys of the declaration to Gemini, like `excludeDomains`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub gemini: Map<String, Value>,
}

impl NativeToolsConfig {
    /// Returns the offered tools.
    pub fn offered(&self) -> impl Iterator<Item = (NativeTool, &NativeToolConfig)> {
        let all = [
            (NativeTool::WebSearch, &self.web_search),
            (NativeTool::CodeExecution, &self.code_execution),
            (NativeTool::FileSearch, &self.file_search),
            (NativeTool::ImageGen, &self.image_gen),
        ];
        all.into_iter().filter_map(|(tool, config)| Some((tool, config.as_ref()?)))
    }

    /// Returns the configured prices of uses, in US dollars.
    pub fn prices(&self) -> impl Iterator<Item = (NativeTool, f64)> {
        self.offered().filter_map(|(tool, config)| Some((tool, config.price?)))
    }
}

/// Returns the offered tools.
#[must_use]
pub fn tools(config: &NativeToolsConfig) -> Vec<Arc<dyn Tool>> {
    config.offered().map(|(tool, config)| Arc::new(Native { tool, config: config.clone() }) as Arc<dyn Tool>).collect()
}

struct Native {
    tool: NativeTool,
    config: NativeToolConfig,
}

impl Native {
    /// Returns the declaration for each API, by its name: the configured fields over the required ones.
    fn declarations(&self) -> Value {
        let NativeToolConfig { anthropic, openai_responses, gemini, .. } = &self.config;
        let over = |base: Value, keys: &Map<String, Value>| {
            let mut declaration = base;
            if let Some(object) = declaration.as_object_mut() {
                object.extend(keys.clone());
            }
            declaration
        };
        // Sources: platform.claude.com/docs/en/agents-and-tools/tool-use, developers.openai.com/api/docs/guides/tools
        // and ai.google.dev/gemini-api/docs/tools; types as in the official SDKs.
        match self.tool {
            NativeTool::WebSearch => json!({
                "anthropic": over(json!({"type": "web_search_20250305", "name": "web_search"}), anthropic),
                "openai_responses": over(json!({"type": "web_search"}), openai_responses),
                "gemini": {"googleSearch": over(json!({}), gemini)},
            }),
            NativeTool::CodeExecution => json!({
                "anthropic": over(json!({"type": "code_execution_20250825", "name": "code_execution"}), anthropic),
                "openai_responses":
                    over(json!({"type": "code_interpreter", "container": {"type": "auto"}}), openai_responses),
                "gemini": {"codeExecution": over(json!({}), gemini)},
            }),
            NativeTool::FileSearch => {
                json!({"openai_responses": over(json!({"type": "file_search", "vector_store_ids": []}), openai_responses)})
            }
            NativeTool::ImageGen => {
                json!({"openai_responses": over(json!({"type": "image_generation"}), openai_responses)})
            }
        }
    }
}

#[async_trait]
impl Tool for Native {
    fn definition(&self) -> ToolDefinition {
        let (title, description, contribution) = match self.tool {
            NativeTool::WebSearch => (
                "Web search of the model's provider",
                "Searches the web. The model's provider runs it, and the answer cites its sources.",
                "Search the web where an answer depends on what is new or not sure, and cite what you found.",
            ),
            NativeTool::CodeExecution => (
                "Code execution of the model's provider",
                "Runs code in a container of the model's provider. The container has no access to the workspace.",
                "Code that the provider runs does not see the workspace: use it to compute, and the tools for files and \
                 shell to work here.",
            ),
            NativeTool::FileSearch => (
                "File search of the model's provider",
                "Searches files that are stored at the model's provider, and cites them.",
                "The file search of the provider finds stored documents, not files of the workspace.",
            ),
            NativeTool::ImageGen => (
                "Image generation",
                "Draws an image from a description. The model's provider runs it; the image is stored and shown.",
                "Draw an image only where one is asked for. It is stored by itself: say what it shows.",
            ),
        };
        // They read, and reach beyond this machine.
        let mut definition = define(self.tool.id(), title, description, Effects::FETCH, json!({}), &[]);
        definition.contribution = Some(contribution.to_owned());
        definition.cost_hint = self.config.price.map(|price| json!({"usd_per_use": price}));
        definition.provider_native = Some(self.declarations());
        definition
    }

    async fn run(&self, _arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Err(ToolError::new(ErrorKind::NotPermitted, "the model's own provider runs this tool"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_keys_override_the_declarations() {
        let config: NativeToolsConfig = serde_json::from_value(json!({
            "web_search": {"price": 0.01, "anthropic": {"max_uses": 3}, "gemini": {"excludeDomains": ["a.example"]}},
            "file_search": {"openai_responses": {"vector_store_ids": ["vs_1"]}},
        }))
        .expect("a configuration");
        let all: Vec<_> = tools(&config).iter().map(|tool| tool.definition()).collect();
        let declared: Vec<_> = all.iter().map(|tool| (tool.id.as_str(), tool.provider_native.clone())).collect();
        assert_eq!(
            declared,
            [
                (
                    "native:web_search@1.0.0",
                    Some(json!({
                        "anthropic": {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
                        "openai_responses": {"type": "web_search"},
                        "gemini": {"googleSearch": {"excludeDomains": ["a.example"]}},
                    }))
                ),
                (
                    "native:file_search@1.0.0",
                    Some(json!({"openai_responses": {"type": "file_search", "vector_store_ids": ["vs_1"]}}))
                ),
            ]
        );
        assert!(all.iter().all(|tool| tool.documentation.as_ref().is_some_and(|text| text.len() > 80)));
        assert_eq!(all[0].cost_hint, Some(json!({"usd_per_use": 0.01})));
        assert_eq!(config.prices().collect::<Vec<_>>(), [(NativeTool::WebSearch, 0.01)]);
    }
}
