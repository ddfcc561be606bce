//! LLM-backed tools: the shipped ones, those of the configuration, and which models answer them.

use std::sync::{Arc, PoisonError, RwLock};

use toolwright_core::catalogue::{Provider, ProviderKind};
use toolwright_core::llm::{LlmDefinition, LlmHooks, LlmTool, TemplateTool, shipped};
use toolwright_core::model::Usability;
use toolwright_core::pattern::allowed_by;
use toolwright_core::tool::StaticProvider;
use toolwright_core::tool_id::{ToolId, wire_candidate};
use toolwright_core::{Entry, Tool};
use toolwright_models::{Endpoints, named_model};
use toolwright_runtime::executor::ModelRecommender;
use toolwright_search::Compat;

use crate::app::Toolwright;
use crate::config::{Config, LLM, LlmEntry};

/// The settings of the provider of these tools.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::app) struct LlmProviderOptions {
    declared: Vec<LlmEntry>,
    /// The names of the shipped tools to offer.
    shipped: Vec<String>,
}

/// Whether a shipped tool is in the catalogue if no model is known to answer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::app) enum OfferRule {
    /// No: each tool costs tokens in every request that shows it.
    WithModel,
    /// Yes: the caller names a model.
    Always,
}

impl LlmProviderOptions {
    /// Reads the settings. `answers` returns whether a model is known for a shipped tool as configured.
    pub(in crate::app) fn of(config: &Config, answers: &dyn Fn(&LlmDefinition) -> bool) -> Self {
        let defaults = &config.sections.defaults;
        let is_offered = |tool: &LlmTool| {
            let id = &tool.source().id;
            let wire = wire_candidate(id.namespace(), id.name());
            let is_allowed = allowed_by(&defaults.builtins_allowed, &defaults.builtins_denied, &wire);
            is_allowed && configured(tool, &config.llm_tools).is_some_and(|definition| answers(&definition))
        };
        let shipped = if defaults.builtins { shipped() } else { &[] };
        let shipped = shipped.iter().filter(|tool| is_offered(tool));
        let shipped = shipped.map(|tool| tool.source().id.name().to_owned()).collect();
        Self { declared: config.llm_tools.clone(), shipped }
    }

    /// Returns the provider; `None` if it has no tools. A declared tool replaces or tunes the shipped tool of its name.
    pub(in crate::app) fn provider(&self) -> Option<Arc<dyn Provider>> {
        let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
        for tool in shipped().iter().filter(|tool| self.shipped.iter().any(|name| name == tool.source().id.name())) {
            let Some(definition) = configured(tool, &self.declared) else { continue };
            match LlmTool::new(definition, tool.hooks().clone()) {
                Ok(tool) => tools.push(Arc::new(tool)),
                // The configuration was checked when it was read.
                Err(error) => tracing::error!("{error}"),
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
            // Each tool was checked when the configuration was read.
            Err(error) => {
                tracing::error!("{error}");
                None
            }
        }
    }
}

/// Returns a shipped tool as configured; `None` if it is disabled or replaced.
fn configured(tool: &LlmTool, declared: &[LlmEntry]) -> Option<LlmDefinition> {
    match declared.iter().find(|entry| entry.name() == tool.source().id.name()) {
        None => Some((**tool.source()).clone()),
        Some(LlmEntry::Tuned(tuned)) => Some(tuned.over(tool.source())),
        Some(LlmEntry::Llm(_) | LlmEntry::Template(_) | LlmEntry::Off(_)) => None,
    }
}

/// Returns the model of LLM-backed tools without a preference: `models.default`, else that of the environment.
pub(in crate::app) fn default_model(
    config: &Config,
    variables: &dyn Fn(&str) -> Option<String>,
    endpoints: &Endpoints,
) -> Option<String> {
    config.sections.models.default.clone().or_else(|| named_model(variables, endpoints))
}

impl Toolwright {
    /// Returns the default model of LLM-backed tools, if it can be asked.
    #[must_use]
    pub fn default_model(&self) -> Option<&str> {
        let model = self.default_model.as_deref()?;
        let card = self.executor.services().model.card(model);
        (card.usability == Usability::Usable).then_some(model)
    }

    /// Returns whether a model is named for this tool: by benchmarks, its author or operator, `models.default` or the
    /// environment. That model may be unusable.
    #[must_use]
    pub fn names_model_for(&self, entry: &Entry) -> bool {
        let preference = entry.definition().model_preference.as_ref();
        let prefers = preference
            .is_some_and(|preference| preference.preferred_model.is_some() || !preference.fallback_models.is_empty());
        prefers || self.default_model.is_some() || !self.compat().recommended(entry.id().as_str()).is_empty()
    }

    /// Returns whether shipped LLM-backed tools are missing because no model is known for them. A caller that names a
    /// model adds them with [`Toolwright::offer_llm_tools`].
    #[must_use]
    pub fn lacks_llm_tools(&self) -> bool {
        let config = self.config();
        let shipped = LlmProviderOptions::of(&config, &|_| true).shipped;
        !shipped.is_empty() && !self.catalogue.snapshot().list().iter().any(|entry| entry.id().namespace() == LLM)
    }

    /// Adds the shipped LLM-backed tools to the catalogue even if no model is configured for them: for callers
    /// that name one. Tools that the configuration switches off stay out.
    pub async fn offer_llm_tools(self: &Arc<Self>) {
        self.resolve_llm(OfferRule::Always).await;
    }
}

/// The compat table in force: which models work well with which tools.
pub(in crate::app) type CompatCell = Arc<RwLock<Arc<Compat>>>;

pub(in crate::app) fn compat_cell(config: &Config) -> CompatCell {
    Arc::new(RwLock::new(Arc::clone(&config.compat.compat)))
}

/// Returns the executor's view of the compat table.
pub(in crate::app) fn recommends(cell: &CompatCell) -> ModelRecommender {
    let cell = Arc::clone(cell);
    Arc::new(move |tool: &ToolId| current(&cell).recommended(tool.as_str()).to_vec())
}

fn current(cell: &CompatCell) -> Arc<Compat> {
    Arc::clone(&cell.read().unwrap_or_else(PoisonError::into_inner))
}

impl Toolwright {
    /// Returns which models work well with which tools, by the compat file and the configuration in force.
    #[must_use]
    pub fn compat(&self) -> Arc<Compat> {
        current(&self.compat)
    }

    /// Returns the models that score at least `min_score` (0 to 1) with the tool of canonical id `tool`, recommended
    /// ones first.
    #[must_use]
    pub fn models_for(&self, tool: &str, min_score: f64) -> Vec<String> {
        let compat = self.compat();
        let fit: Vec<&str> = compat.models_for(tool, min_score).collect();
        let recommended = compat.recommended(tool).iter().map(String::as_str).filter(|model| fit.contains(model));
        let others = fit.iter().copied().filter(|model| !compat.recommended(tool).iter().any(|known| known == model));
        recommended.chain(others).map(str::to_owned).collect()
    }

    pub(in crate::app) fn put_compat(&self, config: &Config) {
        *self.compat.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&config.compat.compat);
    }
}
