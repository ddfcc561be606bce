//! The agents and models behind the facades of `serve`.

use std::sync::Arc;

use async_trait::async_trait;
use toolwright_agent::BASE_PROMPT;
use toolwright_core::agents::{AgentLimits, Rights};
use toolwright_core::approval::{AnswerSource, Approver};
use toolwright_core::pattern::nearest;
use toolwright_core::store::{ObjectStore, RunStore};
use toolwright_gateway::{AgentSource, ModelTarget, PreparedRun, RunRequest, RunTarget};
use toolwright_models::Api;

use super::Agent;
use crate::app::Toolwright;

/// The optional prefix of the name of an agent.
const AGENT: &str = "agent/";
/// The prefix of the name of a model without an agent.
const RAW: &str = "raw/";

/// The agents and models of an instance, for clients of model APIs.
#[derive(Debug)]
pub(crate) struct Facades(pub(crate) Arc<Toolwright>);

impl Facades {
    /// Returns the id of a model, by its id or an alias.
    fn model(&self, name: &str) -> Result<String, String> {
        let config = self.0.config();
        let models = &config.sections.models;
        let id = models.aliases.get(name).map_or(name, String::as_str);
        match self.0.models().check(id) {
            Ok(()) => Ok(id.to_owned()),
            Err(error) => {
                let names = self.names();
                let near = nearest(name, names.iter().map(String::as_str));
                let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
                Err(format!(
                    "there is no agent or model `{name}`{hint} ({error}); `GET /v1/models` lists what there is"
                ))
            }
        }
    }

    /// Returns the id of the model that answers first.
    fn model_of(&self, target: &RunTarget) -> Option<String> {
        let config = self.0.config();
        let usual = || config.sections.models.default.as_deref().or(self.0.default_model());
        let model = match target {
            RunTarget::Agent(name) => config.agent(name)?.config.model.as_deref().or_else(usual)?,
            RunTarget::Model(model) | RunTarget::Raw(model) => model.as_str(),
        };
        Some(model.to_owned())
    }

    fn agent(&self, target: &RunTarget) -> Result<Agent, String> {
        match target {
            RunTarget::Agent(name) => self.0.agent_named(name).map_err(|error| error.to_string()),
            RunTarget::Model(model) | RunTarget::Raw(model) => Ok(self.0.agent(model.as_str())),
        }
    }
}

#[async_trait]
impl AgentSource for Facades {
    fn names(&self) -> Vec<String> {
        let config = self.0.config();
        let models = &config.sections.models;
        let agents = config.agents.iter().map(|agent| agent.config.name.clone());
        let default = models.default.clone().or_else(|| self.0.default_model().map(str::to_owned));
        let mut ids: Vec<String> = default.into_iter().collect();
        ids.extend(models.by_name.keys().filter(|name| name.contains('/')).cloned());
        ids.extend(models.aliases.values().cloned());
        let mut names: Vec<String> = agents.chain(models.aliases.keys().cloned()).chain(ids.iter().cloned()).collect();
        names.extend(ids.iter().map(|id| format!("{RAW}{id}")));
        let mut names_seen = std::collections::HashSet::new();
        names.retain(|name| names_seen.insert(name.clone()));
        names
    }

    fn resolve(&self, name: &str, mean: ModelTarget) -> Result<RunTarget, String> {
        if let Some(model) = name.strip_prefix(RAW) {
            return self.model(model).map(RunTarget::Raw);
        }
        let config = self.0.config();
        if let Some(agent) = name.strip_prefix(AGENT) {
            let target = config.agent(agent).map(|_| RunTarget::Agent(agent.to_owned()));
            return target.ok_or_else(|| format!("there is no agent `{agent}`"));
        }
        if config.agent(name).is_some() {
            return Ok(RunTarget::Agent(name.to_owned()));
        }
        let model = self.model(name)?;
        Ok(match mean {
            ModelTarget::Agent => RunTarget::Model(model),
            ModelTarget::Raw => RunTarget::Raw(model),
        })
    }

    fn api(&self, target: &RunTarget) -> Option<Api> {
        self.0.models().endpoints().resolve(&self.model_of(target)?).ok().map(|(endpoint, _)| endpoint.api)
    }

    async fn prepare(&self, order: RunRequest) -> Result<PreparedRun, String> {
        let mut agent = self.agent(&order.target)?;
        if !order.system.is_empty() {
            let own = agent.system.take();
            // The client's instructions replace the usual prompt, or follow the agent's.
            let both = own.map_or_else(|| order.system.clone(), |own| format!("{own}\n\n{}", order.system));
            agent = agent.system(both);
        } else if agent.system.is_none() {
            agent = agent.system(BASE_PROMPT);
        }
        agent.profile = Some(agent.profile.map_or(order.profile, |own| own.stricter(order.profile)));
        let rights = Rights {
            principal: order.principal,
            policies: Vec::new(),
            tools: order.tools,
            limits: AgentLimits::default(),
            root: self.0.config().root.clone(),
        };
        agent = agent.narrowed_to(&rights).shared_approver(order.approver).cancel(order.cancel).job_wait(None);
        agent.session = Some(order.session);
        let conversation = agent.id(order.run).conversation().await.map_err(|error| error.to_string())?;
        Ok(PreparedRun { driver: conversation.driver, options: conversation.options, config: conversation.config })
    }

    fn inbox(&self) -> Arc<dyn Approver> {
        self.0.own_approver().unwrap_or_else(|| Arc::new(self.0.ask_inbox(AnswerSource::Here, |_| ())))
    }

    fn objects(&self) -> Arc<dyn ObjectStore> {
        self.0.objects()
    }

    fn runs(&self) -> Arc<dyn RunStore> {
        self.0.runs()
    }
}
