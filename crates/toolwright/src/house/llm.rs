//! Tools that a model answers: the shipped ones, and those of the configuration.

use std::sync::Arc;

use toolwright_core::Tool;
use toolwright_core::catalogue::{Provider, ProviderKind};
use toolwright_core::llm::{LlmHooks, LlmTool, TemplateTool, shipped};
use toolwright_core::model::Usability;
use toolwright_core::name::wire_candidate;
use toolwright_core::pattern::allowed_by;
use toolwright_core::tool::StaticProvider;
use toolwright_models::{Endpoints, named_model};

use super::{House, LLM};
use crate::config::{Config, LlmEntry};

/// What the provider of these tools is built from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LlmSettings {
    declared: Vec<LlmEntry>,
    /// Which of the shipped tools there are; none where built-in tools are switched off.
    shipped: Option<Filter>,
}

#[derive(Debug, Clone, PartialEq)]
struct Filter {
    allowed: Vec<String>,
    denied: Vec<String>,
}

/// Whether the shipped tools are in the catalogue where no model is known that would answer them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offered {
    /// Only if there is one: each tool costs every model that is shown it.
    WithModel,
    /// In any case: the caller names a model.
    Always,
}

impl LlmSettings {
    pub(super) fn of(config: &Config, has_model: bool, offered: Offered) -> Self {
        let defaults = &config.written.defaults;
        let filter = || Filter { allowed: defaults.builtins_allowed.clone(), denied: defaults.builtins_denied.clone() };
        let is_offered = defaults.builtins && (has_model || offered == Offered::Always);
        Self { declared: config.llm_tools.clone(), shipped: is_offered.then(filter) }
    }

    /// The provider; `None` when it has no tools. What is declared replaces a shipped tool of its name, or tunes it.
    pub(super) fn provider(&self) -> Option<Arc<dyn Provider>> {
        let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
        for tool in shipped() {
            let name = tool.source().id.name().to_owned();
            let Some(filter) = &self.shipped else { continue };
            let mut entries = self.declared.iter().filter(|entry| entry.name() == name);
            let wire = wire_candidate(tool.source().id.namespace(), &name);
            if !allowed_by(&filter.allowed, &filter.denied, &wire) {
                continue;
            }
            match entries.next() {
                None => tools.push(Arc::new(tool)),
                Some(LlmEntry::Tuned(tuned)) => {
                    let definition = tuned.over(tool.source());
                    match LlmTool::new(definition, tool.hooks().clone()) {
                        Ok(tool) => tools.push(Arc::new(tool)),
                        // It was tried when the configuration was read.
                        Err(error) => tracing::error!("{error}"),
                    }
                }
                // It takes the shipped one's place, or switches it off.
                Some(_) => {}
            }
        }
        for entry in &self.declared {
            let tool: Option<Arc<dyn Tool>> = match entry {
                LlmEntry::Llm(definition) => {
                    LlmTool::new((**definition).clone(), LlmHooks::default()).ok().map(|tool| Arc::new(tool) as _)
                }
                LlmEntry::Template(definition) => {
                    TemplateTool::new(definition.clone()).ok().map(|tool| Arc::new(tool) as _)
                }
                LlmEntry::Tuned(_) | LlmEntry::Off(_) => None,
            };
            tools.extend(tool);
        }
        if tools.is_empty() {
            return None;
        }
        match StaticProvider::new(LLM, ProviderKind::Llm, tools) {
            Ok(provider) => Some(Arc::new(provider)),
            // Each tool was registered on trial when the configuration was read.
            Err(error) => {
                tracing::error!("{error}");
                None
            }
        }
    }
}

/// The model of LLM-backed tools that prefer none: `models.default`, else what the environment names.
pub(super) fn default_model(
    config: &Config,
    variables: &dyn Fn(&str) -> Option<String>,
    endpoints: &Endpoints,
) -> Option<String> {
    config.written.models.default.clone().or_else(|| named_model(variables, endpoints))
}

impl House {
    /// The model that answers LLM-backed tools for which nothing else says one, if it can be asked.
    #[must_use]
    pub fn default_model(&self) -> Option<&str> {
        let model = self.default_model.as_deref()?;
        let card = self.executor.services().model.card(model);
        (card.usability == Usability::Usable).then_some(model)
    }

    /// Puts the shipped LLM-backed tools into the catalogue, also where no model is configured for them: for callers
    /// that name one. Those that the configuration switches off stay away.
    pub async fn offer_llm_tools(self: &Arc<Self>) {
        self.settle_llm(Offered::Always).await;
    }
}
