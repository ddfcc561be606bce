//! The agents of the configuration as tools.

use std::sync::{Arc, PoisonError};

use toolwright_agent::{AGENTS, AgentProvider, AgentProviderOptions, AgentTools, Driver, Limits, RunConfig};
use toolwright_core::agents::{AgentConfig, AgentLimits};
use toolwright_core::catalogue::Provider;
use toolwright_search::ToolFinder;

use crate::app::{ProviderSettings, ReloadChanges, Toolwright};
use crate::config::Config;
use crate::config::file::AgentToolName;

/// The configuration of the provider of agents.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::app) struct ConfiguredAgents {
    agents: Vec<AgentConfig>,
    limits: AgentLimits,
}

impl ConfiguredAgents {
    fn of(config: &Config) -> Self {
        let agents = config.agents.iter().map(|agent| agent.config.clone()).collect();
        Self { agents, limits: config.sections.defaults.agents.clone() }
    }
}

impl Toolwright {
    /// Updates the agents to the configuration in force.
    pub(in crate::app) async fn resolve_agents_in(
        self: &Arc<Self>,
        config: &Config,
        running: &mut ProviderSettings,
        done: &mut ReloadChanges,
    ) {
        let settings = ConfiguredAgents::of(config);
        if running.agents.as_ref() == Some(&settings) || (running.agents.is_none() && settings.agents.is_empty()) {
            return;
        }
        let provider = (!settings.agents.is_empty()).then(|| {
            let app = Arc::downgrade(self);
            let parts = AgentProviderOptions {
                runs: self.runs(),
                tree: Arc::clone(&self.store) as _,
                limits: settings.limits.clone(),
                default_model: self.default_model.clone(),
                config: Arc::new(move |model| match app.upgrade() {
                    Some(app) => app.run_config(model),
                    None => RunConfig::new(model, ""),
                }),
            };
            Arc::new(AgentProvider::new(settings.agents.clone(), parts)) as Arc<dyn Provider>
        });
        self.put_own(AGENTS, provider, done).await;
        running.agents = Some(settings);
    }

    /// Returns the driver of runs on the whole catalogue.
    pub(crate) fn driver(self: &Arc<Self>) -> Driver {
        let config = self.config();
        let mut cached_driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, driver)) = cached_driver.as_ref().filter(|(of, _)| Arc::ptr_eq(of, &config)) {
            return driver.clone();
        }
        let finder = ToolFinder::new(Arc::clone(self.selector()), config.sections.selection.pick_options());
        let model = Arc::clone(&self.executor.services().model);
        let driver = Driver::new(Arc::clone(&self.executor), Arc::clone(&self.catalogue), model, Some(self.runs()))
            .with_finder(finder)
            .with_agents(Arc::clone(&self.store) as _, config.sections.defaults.agents.clone());
        *cached_driver = Some((config, driver.clone()));
        driver
    }

    /// Returns the default limits of a task.
    pub(crate) fn usual_limits(&self) -> Limits {
        let (limits, usual) = (self.config().sections.defaults.agents.clone(), Limits::default());
        Limits { turns: limits.turns.unwrap_or(usual.turns), calls: limits.calls, time: limits.time, ..usual }
    }

    /// Returns the configured specification of a run with this model, without a prompt.
    pub(crate) fn run_config(&self, model: &str) -> RunConfig {
        let config = self.config();
        let (defaults, selection) = (&config.sections.defaults, &config.sections.selection);
        let card = toolwright_core::model::ModelClient::card(&*self.models, model);
        let known_as = card.stands_for.as_deref().unwrap_or(model);
        let shows = |tool| defaults.agent_tools.contains(&tool);
        RunConfig {
            limits: self.usual_limits(),
            dispatch: defaults.dispatch,
            window: config.window(known_as),
            exposure: config.exposure(known_as),
            pinned: selection.pinned.clone(),
            pick_size: selection.pick_size,
            agent_tools: AgentTools {
                report: None,
                task_status: shows(AgentToolName::TaskStatus),
                batch: shows(AgentToolName::Batch),
                hands_back_to: None,
            },
            context: config.sections.context.clone(),
            ..RunConfig::new(model, String::new())
        }
    }
}
