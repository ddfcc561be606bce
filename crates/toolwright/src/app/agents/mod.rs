//! Agents: a model that works on a task with the available tools.

mod conversation;
mod facades;
mod groups;
mod tools;
mod triggers;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolwright_agent::{
    BASE_PROMPT, Dispatch, Driver, Limits, PromptPreview, ReportConfig, RunConfig, RunOptions, RunReport, RunState,
    Transcript,
};
use toolwright_core::agents::{AgentConfig, Rights, unknown_agent};
use toolwright_core::event::Event;
use toolwright_core::exposure::Exposure;
use toolwright_core::model::{Message, ModelClient as _, ModelSettings};
use toolwright_core::session::SessionId;
use toolwright_core::store::StoreError;
use toolwright_core::store::group::CHANGES;
use toolwright_core::variables::Variables;
use toolwright_core::{Approver, Cancel, Profile, RunInput, Session};

use crate::app::{ClientOptions, LIST_WAIT, Person, Toolwright};
use crate::config::AgentEntry;
use crate::error::Error;

pub use conversation::{Conversation, Events};
pub(crate) use facades::Facades;
pub use groups::DrivenGroups;
pub(super) use tools::ConfiguredAgents;
pub use triggers::RunningTriggers;

/// How long a run that has answered waits for its background jobs.
const JOB_WAIT: Duration = Duration::from_secs(600);

type OnEvent = Arc<dyn Fn(&Event) + Send + Sync>;

impl Toolwright {
    /// Creates an agent that works with this model, `provider/model`, and with all tools unless [`Agent::tools`] limits
    /// them.
    pub fn agent(self: &Arc<Self>, model: impl Into<String>) -> Agent {
        Agent {
            app: Arc::clone(self),
            model: model.into(),
            id: format!("run-{}", uuid::Uuid::new_v4()),
            is_resumed: false,
            task: None,
            system: None,
            limits: self.usual_limits(),
            settings: ModelSettings::default(),
            tools: Vec::new(),
            config: None,
            window: None,
            exposure: None,
            dispatch: None,
            report: None,
            profile: None,
            approver: None,
            person: None,
            cancel: Cancel::new(),
            variables: None,
            input: RunInput::default(),
            transcript: None,
            on_event: None,
            list_wait: LIST_WAIT,
            job_wait: Some(JOB_WAIT),
            privileged: None,
            rights: None,
            reads_mailbox: false,
            session: None,
        }
    }

    /// Returns the agents that are defined in the configuration and in agent files.
    pub fn agents(&self) -> Vec<AgentConfig> {
        self.config().agents.iter().map(|agent| agent.config.clone()).collect()
    }

    /// Returns the agent that is defined by this name, with its prompt, model, tools, limits, report and policy. Later
    /// settings replace those of the definition, except its rules. Without a model it uses the default one.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is none, with the nearest name.
    pub fn agent_named(self: &Arc<Self>, name: &str) -> Result<Agent, Error> {
        let config = self.config();
        let Some(AgentEntry { config: definition, .. }) = config.agent(name) else {
            let agent_names = config.agents.iter().map(|agent| agent.config.name.as_str());
            return Err(Error::Usage(unknown_agent(name, agent_names)));
        };
        let model = definition.model.as_deref().or(config.sections.models.default.as_deref()).or(self.default_model());
        let mut agent = self.agent(model.unwrap_or_default());
        if !definition.prompt.is_empty() {
            agent = agent.system(&*definition.prompt);
        }
        let usual = agent.limits;
        agent.limits = Limits {
            turns: definition.limits.turns.unwrap_or(usual.turns),
            calls: definition.limits.calls.or(usual.calls),
            time: definition.limits.time.or(usual.time),
            tokens: definition.limits.tokens,
        };
        agent.tools = definition.tools.clone().unwrap_or_default();
        agent.settings = definition.settings.clone();
        agent.profile = definition.policy;
        let schema = definition.output_schema.clone().map(Value::Object);
        agent.report = Some(match schema {
            Some(schema) => {
                ReportConfig::by_schema(schema).map_err(|error| Error::Usage(format!("{name}: {error}")))?
            }
            None => ReportConfig::default(),
        });
        agent.config = Some(Arc::new(definition.clone()));
        Ok(agent)
    }
}

/// An agent that has not started. [`run`](Self::run) gives it one task; [`conversation`](Self::conversation) one
/// message after another.
#[must_use = "nothing happens before `run` or `conversation`"]
pub struct Agent {
    app: Arc<Toolwright>,
    model: String,
    id: String,
    is_resumed: bool,
    task: Option<String>,
    system: Option<String>,
    limits: Limits,
    settings: ModelSettings,
    tools: Vec<String>,
    config: Option<Arc<AgentConfig>>,
    window: Option<usize>,
    exposure: Option<Option<Exposure>>,
    dispatch: Option<Dispatch>,
    report: Option<ReportConfig>,
    profile: Option<Profile>,
    approver: Option<Arc<dyn Approver>>,
    person: Option<Arc<dyn Person>>,
    cancel: Cancel,
    variables: Option<Arc<dyn Variables>>,
    input: RunInput,
    transcript: Option<Arc<dyn Transcript>>,
    on_event: Option<OnEvent>,
    list_wait: Duration,
    job_wait: Option<Duration>,
    privileged: Option<bool>,
    rights: Option<Arc<Rights>>,
    reads_mailbox: bool,
    /// Id of its session, if that is not the name of the run.
    session: Option<String>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("id", &self.id).field("model", &self.model).finish_non_exhaustive()
    }
}

impl Agent {
    /// The task.
    pub fn task(mut self, task: impl Into<String>) -> Self {
        self.task = Some(task.into());
        self
    }

    /// Sets the model, `provider/model`.
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = model.into();
        self
    }

    /// Replaces the beginning of the system prompt. The workspace and the tools are always appended.
    pub fn system(mut self, prompt: impl Into<String>) -> Self {
        self.system = Some(prompt.into());
        self
    }

    /// Limits each task: turns (50 unless set), calls, time, tokens.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Returns the limits of each task, as set so far.
    #[must_use]
    pub fn limits_in_force(&self) -> &Limits {
        &self.limits
    }

    /// Returns the model settings, as set so far.
    #[must_use]
    pub fn settings_in_force(&self) -> &ModelSettings {
        &self.settings
    }

    /// Limits it to tools whose id or name matches one of these globs, like `fs__read` or `github__*`.
    pub fn tools<S: Into<String>>(mut self, globs: impl IntoIterator<Item = S>) -> Self {
        self.tools = globs.into_iter().map(Into::into).collect();
        self
    }

    /// Sets model settings: effort, sampling.
    pub fn settings(mut self, settings: ModelSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the model's context window in tokens, if neither the configuration nor the model's API provides it.
    pub fn window(mut self, tokens: usize) -> Self {
        self.window = Some(tokens);
        self
    }

    /// Sets how the tools are exposed to the model; `None` to choose by their cost. Default: `selection.exposure`.
    pub fn exposure(mut self, exposure: Option<Exposure>) -> Self {
        self.exposure = Some(exposure);
        self
    }

    /// Sets when the calls of an answer start. Default: `defaults.dispatch`, else when the answer is complete.
    pub fn dispatch(mut self, dispatch: Dispatch) -> Self {
        self.dispatch = Some(dispatch);
        self
    }

    /// Makes the run end with a report in this form, for example JSON that fits a schema; see
    /// [`RunReport::final_report`](toolwright_agent::RunReport::final_report).
    pub fn report(mut self, report: ReportConfig) -> Self {
        self.report = Some(report);
        self
    }

    /// Sets the profile that decides if no rule matches. Default: the profile of the builder or the configuration, else
    /// [`Profile::Ask`].
    pub fn policy(mut self, profile: Profile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// Sets who answers if policy asks: a function of the request, or any [`Approver`]. Default: the builder's
    /// approver, else nobody, and such calls are denied.
    pub fn approver(self, approver: impl Approver + 'static) -> Self {
        self.shared_approver(Arc::new(approver))
    }

    /// Like [`approver`](Self::approver), for a shared one.
    pub fn shared_approver(mut self, approver: Arc<dyn Approver>) -> Self {
        self.approver = Some(approver);
        self
    }

    /// Sets the person who fills in the forms of servers and opens their pages. Default: nobody, which servers are
    /// told.
    pub fn person(mut self, person: Arc<dyn Person>) -> Self {
        self.person = Some(person);
        self
    }

    /// Ends the run when it fires. Dropping the run's future also cancels it.
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Gives references in arguments their values, like `†state.user.name`. They are not saved with a run, so a resumed
    /// run needs them again.
    pub fn variables(mut self, variables: Arc<dyn Variables>) -> Self {
        self.variables = Some(variables);
        self
    }

    /// Sets values for references: `†input.name`. They are saved with the run, and its model is told of them.
    pub fn input(mut self, input: RunInput) -> Self {
        self.input = input;
        self
    }

    /// Receives the whole exchange with the model.
    pub fn transcript(mut self, transcript: Arc<dyn Transcript>) -> Self {
        self.transcript = Some(transcript);
        self
    }

    /// Calls `see` with the events of this run, a few milliseconds late, but before [`run`](Self::run) returns.
    pub fn on_event(mut self, see: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(see));
        self
    }

    /// Returns the events of this run as a stream. Call it before the run begins, and read it during the run.
    #[must_use]
    pub fn events(&self) -> Events {
        let session = SessionId::new(&*self.id);
        Events { events: Some(self.app.events().subscribe()), run: self.id.clone(), session }
    }

    /// Sets the name of the run, by which a saved run is found again. Default: a new name each time.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// Sets whether it may change groups of agents, regardless of its definition.
    pub(crate) fn privileged(self, is_privileged: bool) -> Self {
        Self { privileged: Some(is_privileged), ..self }
    }

    /// Restricts it to these rights, without roles that their principal has lost since.
    pub(crate) fn narrowed_to(self, rights: &Rights) -> Self {
        let mut rights = rights.clone();
        if let Ok(principal) = self.app.principal_now(&rights.principal) {
            rights.principal = principal;
        }
        Self { rights: Some(Arc::new(rights)), ..self }
    }

    /// Makes it read its mailbox after it has answered, for callers that wait for messages.
    pub fn reading_mailbox(self) -> Self {
        Self { reads_mailbox: true, ..self }
    }

    /// Saves a run with this task that has not begun, unless one of this name exists. [`resume`](Self::resume) begins
    /// it.
    ///
    /// # Errors
    /// As [`conversation`](Self::conversation), and [`Error::Store`] if it cannot be saved.
    pub(crate) async fn create(self, task: String) -> Result<(), Error> {
        let (runs, id) = (self.app.runs(), self.id.clone());
        if runs.run(&id).await?.is_some() {
            return Ok(());
        }
        let conversation = self.conversation().await?;
        let state = RunState::new(conversation.config.clone(), vec![Message::user(task)]);
        let state = state.to_json().map_err(|error| StoreError::failed("write a run as JSON", error))?;
        Ok(runs.save_run(&id, &state).await?)
    }

    /// Continues the saved run of this name instead of a new one with a task, with its own model, prompt and limits. The
    /// store must still have it: see [`Builder::state_dir`](crate::Builder::state_dir).
    pub fn resume(mut self, id: impl Into<String>) -> Self {
        self.is_resumed = true;
        self.id(id)
    }

    /// Sets how long to wait for sources that have not listed their tools yet: half a minute unless set. Tools that
    /// arrive later are available from the next turn on.
    pub fn list_wait(mut self, wait: Duration) -> Self {
        self.list_wait = wait;
        self
    }

    /// Sets how long a run that has answered waits for its background jobs, so that the model sees how they ended;
    /// `None` for not at all. Ten minutes unless set.
    pub fn job_wait(mut self, wait: Option<Duration>) -> Self {
        self.job_wait = wait;
        self
    }

    /// Runs until the task is done, a limit is reached, or a person is needed who cannot answer now.
    ///
    /// # Errors
    /// [`Error::Usage`] without a task; [`Error::Model`] for an unknown model; [`Error::Agent`] if the state cannot be
    /// saved, or the run does not exist. Other failures are in the report.
    pub async fn run(mut self) -> Result<RunReport, Error> {
        let task = match (self.task.take(), self.is_resumed) {
            (Some(task), false) => Some(task),
            (None, true) => None,
            (None, false) => return Err(usage("the agent has nothing to do: give it a task by `.task(..)`")),
            (Some(_), true) => return Err(usage("a run that is resumed has its task: leave out `.task(..)`")),
        };
        let mut conversation = self.conversation().await?;
        match task {
            Some(task) => conversation.send(task).await,
            None => {
                conversation.load().await?;
                conversation.proceed().await
            }
        }
    }

    /// Begins a conversation: each message is a task, and the agent remembers those before it.
    ///
    /// # Errors
    /// [`Error::Model`] for an unknown model.
    pub async fn conversation(self) -> Result<Conversation, Error> {
        self.check_principal()?;
        if !self.is_resumed {
            self.app.models().ready(&self.model).await?;
        }
        Ok(self.begun().await)
    }

    /// Checks that the principal still exists: work started on behalf of a token ends with the token, and so does its
    /// budget.
    fn check_principal(&self) -> Result<(), Error> {
        let Some(Rights { principal, .. }) = self.rights.as_deref() else { return Ok(()) };
        self.app.principal_now(principal).map(drop)
    }

    async fn begun(self) -> Conversation {
        let app = &self.app;
        // The agent's model answers them if nothing else names one.
        app.offer_llm_tools().await;
        app.catalogue().offer_extraction(true).await;
        app.list_unknown(self.list_wait).await;
        let driver = app.driver();
        let driver = match self.job_wait {
            Some(wait) => driver.with_job_wait(wait),
            None => driver,
        };
        let options = self.options();
        let config = self.run_config(&driver, &options);
        Conversation { app: self.app, driver, options, config, state: None, on_event: self.on_event }
    }

    /// Returns what its first request shows the model before the task: the system prompt in its sections, and the
    /// tools. Asks no model, so no key is needed.
    ///
    /// # Errors
    /// [`Error::Model`] for an unknown model.
    pub async fn preview(self) -> Result<PromptPreview, Error> {
        let models = self.app.models();
        if models.endpoints().endpoint_of(&self.model).is_err() {
            models.ready(&self.model).await?;
        }
        let Conversation { driver, options, config, .. } = self.begun().await;
        Ok(driver.preview(&config, &options).await)
    }

    fn options(&self) -> RunOptions {
        let app = &self.app;
        let mut policy = app.config().policy(self.profile, Profile::Ask);
        if let Some(config) = &self.config {
            policy = config.with_agent_rules(&policy);
        }
        if let Some(outer) = self.rights.as_ref().and_then(|rights| rights.policy()) {
            policy = policy.under(outer);
        }
        let policy = Arc::new(policy);
        let mut session = as_agent(&app.session(self.session.as_deref().unwrap_or(&self.id)), self.config.as_deref());
        if let Some(rights) = &self.rights {
            Arc::make_mut(&mut session).principal = rights.principal.clone();
        }
        let approver = self.approver.clone().unwrap_or_else(|| app.approver());
        let client = app.client(ClientOptions {
            session: Arc::clone(&session),
            policy: Arc::clone(&policy),
            approver: Arc::clone(&approver),
            person: self.person.clone(),
            model: Some(self.model.clone()).filter(|model| !model.is_empty()),
        });
        RunOptions {
            variables: self.variables.clone(),
            transcript: self.transcript.clone(),
            reads_mailbox: self.reads_mailbox,
            ..RunOptions::new(Arc::from(&*self.id), session, policy, approver, client, self.cancel.clone())
        }
    }

    /// Returns globs on the tools that it may not use, including itself; all tools if its definition has an empty list.
    fn denied(&self) -> Vec<String> {
        let Some(config) = &self.config else { return Vec::new() };
        let none = self.tools.is_empty() && config.tools.as_ref().is_some_and(Vec::is_empty);
        let own = format!("agent:{}", config.name);
        if none {
            return vec!["*".to_owned()];
        }
        let is_privileged = self.privileged.unwrap_or(config.privileged);
        let changes = CHANGES.iter().filter(|_| !is_privileged).map(|tool| (*tool).to_owned());
        config.disallowed_tools.iter().cloned().chain([own]).chain(changes).collect()
    }

    fn run_config(&self, driver: &Driver, options: &RunOptions) -> RunConfig {
        let usual = self.app.run_config(&self.model);
        let mut config = RunConfig {
            settings: self.settings.clone().into(),
            limits: self
                .rights
                .as_ref()
                .map_or_else(|| self.limits.clone(), |rights| self.limits.within(&rights.limits)),
            dispatch: self.dispatch.unwrap_or(usual.dispatch),
            tools: self.tools.clone(),
            denied: self.denied(),
            agent: self.config.clone(),
            rights: self.rights.clone(),
            window: self.window.or(usual.window),
            exposure: self.exposure.unwrap_or(usual.exposure),
            ..usual
        };
        config.agent_tools.report.clone_from(&self.report);
        let hints: Vec<String> = self.input.in_words().into_iter().collect();
        config.system = driver.system_prompt(self.system.as_deref().unwrap_or(BASE_PROMPT), &hints, &config, options);
        config.input = self.input.clone();
        config.input.foreign |= self.config.as_ref().is_some_and(|agent| agent.foreign_references);
        config
    }
}

/// Returns the session of a run of this agent.
fn as_agent(session: &Arc<Session>, agent: Option<&AgentConfig>) -> Arc<Session> {
    Arc::new(Session { agent: agent.map(|agent| agent.name.clone()), ..Session::clone(session) })
}

fn usage(message: &str) -> Error {
    Error::Usage(message.to_owned())
}
