//! Triggers: the runs that they start, and the process that runs them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use tokio::task::JoinHandle;
use toolwright_agent::Status;
use toolwright_core::agents::{AgentLimits, Rights};
use toolwright_core::approval::AnswerSource;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::session::Principal;
use toolwright_core::trigger::{Creator, Firing, Trigger, TriggerConfig};
use toolwright_gateway::WebhookOptions;
use toolwright_runtime::triggers::{FiringEnd, FiringSuspension, FiringTarget};
use toolwright_runtime::{TriggerManager, TriggerRunner};

use super::Agent;
use crate::app::stores::QUESTION_TIMEOUT;
use crate::app::{LIST_WAIT, Toolwright};
use crate::error::Error;

/// Keeps this process's triggers running until it is dropped.
#[derive(Debug)]
#[must_use = "triggers run until it is dropped"]
pub struct RunningTriggers {
    end: Cancel,
    task: JoinHandle<()>,
}

impl Drop for RunningTriggers {
    fn drop(&mut self) {
        self.end.cancel(CancelCause::Shutdown);
        self.task.abort();
    }
}

impl Toolwright {
    /// Returns the triggers of the store.
    #[must_use]
    pub fn triggers(&self) -> &Arc<TriggerManager> {
        &self.triggers
    }

    /// Runs the triggers of this workspace, and those that its configuration names. Their runs have the rights of their
    /// creators. Calls that need a person wait in the inbox.
    pub async fn run_triggers(self: &Arc<Self>) -> RunningTriggers {
        self.runs_triggers.store(true, Ordering::Release);
        self.configure_triggers().await;
        let root = self.config().root.clone();
        let runner = TriggerRunner::new(Arc::clone(&self.triggers), root, Arc::new(AgentRunner(Arc::downgrade(self))));
        let end = Cancel::new();
        let task = tokio::spawn(runner.run(end.clone()));
        RunningTriggers { end, task }
    }

    /// Installs the triggers of the configuration, and removes those that it no longer names, if this process runs
    /// triggers.
    pub(in crate::app) async fn configure_triggers(&self) {
        if !self.runs_triggers.load(Ordering::Acquire) {
            return;
        }
        match self.triggers.configure(&self.owners_rights(), self.config().named_triggers()).await {
            Ok(refused) => {
                for (name, error) in refused {
                    tracing::warn!("triggers.{name}: {error}");
                }
            }
            Err(error) => tracing::warn!("the triggers of the configuration are not installed: {error}"),
        }
    }

    /// Returns the triggers of the configuration, installed or not.
    #[must_use]
    pub fn configured_triggers(&self) -> Vec<Trigger> {
        let rights = self.owners_rights();
        let named = self.config().named_triggers().into_iter();
        named.map(|(name, config)| self.triggers.configured(&rights, &name, config)).collect()
    }

    /// Returns why a webhook admits no request here; see [`TriggerConfig::missing_secret`].
    #[must_use]
    pub fn missing_secret(&self, config: &TriggerConfig) -> Option<String> {
        config.missing_secret(&*self.variables)
    }

    /// Names the webhooks of this workspace that admit no request here, with the remedy.
    pub async fn unsigned_webhooks(&self) -> Vec<String> {
        let mut all = self.triggers.of_root(&self.config().root).await.unwrap_or_default();
        all.retain(|trigger| trigger.creator != Creator::Configuration);
        all.extend(self.configured_triggers());
        let issue = |trigger: &Trigger| {
            let why = self.missing_secret(&trigger.config)?;
            Some(format!("trigger {} admits no request: {why}", trigger.id))
        };
        all.iter().filter_map(issue).collect()
    }

    /// Returns the rights of triggers that the owner creates, by the command line or the configuration.
    #[must_use]
    pub fn owners_rights(&self) -> Rights {
        Rights {
            principal: Principal::owner(),
            // When it fires, the configuration at that time applies.
            policies: Vec::new(),
            tools: None,
            limits: AgentLimits::default(),
            root: self.config().root.clone(),
        }
    }

    /// Returns a principal with its present configuration, but with no more roles than it had then.
    ///
    /// # Errors
    /// [`Error::Usage`] if its token no longer exists, so that nothing may be started on its behalf.
    pub fn principal_now(&self, then: &Principal) -> Result<Principal, Error> {
        if then.owner {
            return Ok(then.clone());
        }
        let config = self.config();
        let token = config.sections.server.tokens.get(&then.id).ok_or_else(|| {
            let name = &then.id;
            Error::Usage(format!(
                "it would run for `{name}`, and `server.tokens` has no such token any more: put it back, or remove what it made"
            ))
        })?;
        let roles = then.roles.iter().filter(|role| token.roles.contains(role)).cloned().collect();
        Ok(Principal { roles, ..then.clone() })
    }

    /// Returns the options of the endpoint `/webhooks`.
    pub(crate) fn webhooks(&self) -> WebhookOptions {
        let (variables, redactor) = (Arc::clone(&self.variables), Arc::clone(&self.redactor));
        let secrets = move |name: &str| {
            let secret = variables(name);
            redactor.add(secret.clone());
            secret
        };
        WebhookOptions { triggers: Arc::clone(&self.triggers), secrets: Arc::new(secrets) }
    }
}

/// Starts runs of agents.
struct AgentRunner(Weak<Toolwright>);

impl AgentRunner {
    fn app(&self) -> Result<Arc<Toolwright>, String> {
        self.0.upgrade().ok_or_else(|| "the program is ending".to_owned())
    }
}

/// Returns the agent of a trigger, with no more rights than its creator had.
fn agent(app: &Arc<Toolwright>, trigger: &Trigger, firing: &Firing) -> Result<Agent, Error> {
    let model = trigger.config.model.as_deref();
    let agent = match &trigger.config.agent {
        Some(name) => {
            let agent = app.agent_named(name)?;
            match model {
                Some(model) => agent.model(model),
                None => agent,
            }
        }
        None => {
            let config = app.config();
            let usual = config.sections.models.default.as_deref().or(app.default_model.as_deref());
            app.agent(model.or(usual).unwrap_or_default())
        }
    };
    Ok(agent.id(firing.run_id()).narrowed_to(&trigger.rights))
}

#[async_trait]
impl FiringTarget for AgentRunner {
    fn admit(&self, trigger: &Trigger) -> Result<(), String> {
        self.app()?.principal_now(&trigger.rights.principal).map(drop).map_err(|error| error.to_string())
    }

    async fn begin(&self, trigger: &Trigger, firing: &Firing) -> Result<(), String> {
        let app = self.app()?;
        // An agent's own list of tools applies within its creator's.
        app.list_unknown(LIST_WAIT).await;
        let agent = agent(&app, trigger, firing).map_err(|error| error.to_string())?;
        agent.create(firing.message(&trigger.config)).await.map_err(|error| error.to_string())
    }

    async fn finish(
        &self,
        trigger: &Trigger,
        firing: &Firing,
        suspension: FiringSuspension,
    ) -> Result<FiringEnd, String> {
        let app = self.app()?;
        let inbox = app.ask_inbox_for(QUESTION_TIMEOUT, AnswerSource::Elsewhere, move |_| {
            let suspension = suspension.clone();
            tokio::spawn(async move { suspension.suspend().await });
        });
        let agent = agent(&app, trigger, firing).map_err(|error| error.to_string())?;
        let report = agent.shared_approver(Arc::new(inbox)).resume(firing.run_id()).run().await;
        let report = report.map_err(|error| error.to_string())?;
        let why = || report.reason.clone().unwrap_or_else(|| report.status.as_str().to_owned());
        match report.status {
            Status::Success | Status::Partial => Ok(FiringEnd::Over),
            Status::Cancelled => Ok(FiringEnd::Left),
            Status::Failure => Err(why()),
            Status::Suspended => Err(format!(
                "it waits for a person: `toolwright run --resume {}` goes on with it in a terminal",
                firing.run_id()
            )),
        }
    }
}
