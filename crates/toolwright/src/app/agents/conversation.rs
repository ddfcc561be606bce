//! A conversation with an agent: one message after another, and the events while it works.

use std::sync::Arc;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use toolwright_agent::{AfterPlan, Driver, DriverError, RunConfig, RunOptions, RunReport, RunState};
use toolwright_core::cancel::CancelOnDrop;
use toolwright_core::event::Event;
use toolwright_core::model::Message;
use toolwright_core::policy::UserRequest;
use toolwright_core::session::SessionId;
use toolwright_core::{Cancel, ContentBlock};
use toolwright_runtime::RunVariables;

use super::{OnEvent, as_agent, usage};
use crate::app::{PlanWriter, Toolwright, WrittenPlan};
use crate::error::Error;

/// A conversation with an agent.
pub struct Conversation {
    pub(super) app: Arc<Toolwright>,
    pub(super) driver: Driver,
    pub(super) options: RunOptions,
    pub(super) config: RunConfig,
    pub(super) state: Option<RunState>,
    pub(super) on_event: Option<OnEvent>,
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversation").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Conversation {
    /// Sends a message, and runs until it is answered.
    ///
    /// # Errors
    /// [`Error::Agent`] if the state cannot be saved, or the last message is not answered yet: see
    /// [`proceed`](Self::proceed).
    pub async fn send(&mut self, message: impl Into<String>) -> Result<RunReport, Error> {
        let message = message.into();
        match &mut self.state {
            None => self.state = Some(RunState::new(self.config.clone(), vec![Message::user(message)])),
            Some(state) => {
                state.continue_with(vec![ContentBlock::text(message)]).map_err(|error| Error::Agent(error.into()))?
            }
        }
        self.proceed().await
    }

    /// Continues with a message that is not answered yet: after a person has decided, or after an interruption.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::Usage`] before the first message.
    pub async fn proceed(&mut self) -> Result<RunReport, Error> {
        let state = self.state.as_mut().ok_or_else(|| usage("nothing was sent yet: begin with `send`"))?;
        let observation = self.on_event.clone().map(|see| {
            let (run, session) = (Arc::clone(&self.options.run_id), self.options.session.id.clone());
            self.app.events().observe(move |event| {
                if event.concerns(&run, &session) {
                    see(event);
                }
            })
        });
        let cancel_on_drop = CancelOnDrop::new(&self.options.cancel);
        let report = self.driver.run(state, &self.options).await;
        cancel_on_drop.disarm();
        if let Some(observation) = observation {
            observation.end().await;
        }
        Ok(report?)
    }

    /// Saves the conversation with the unanswered `message`, so that it can be [loaded](Self::load) and answered later.
    ///
    /// # Errors
    /// [`Error::Agent`] if it cannot be saved.
    pub async fn keep(&self, message: impl Into<String>) -> Result<(), Error> {
        let state = RunState::new(self.config.clone(), vec![Message::user(message.into())]);
        Ok(self.driver.keep(&state, &self.options).await?)
    }

    /// Waits for messages that wake the conversation, like the end of a background job or the firing of a trigger;
    /// [`proceed`](Self::proceed) then answers them. Before the user's first message it waits forever. Dropping the
    /// future loses nothing.
    ///
    /// # Errors
    /// [`Error::Agent`] if the messages cannot be read.
    pub async fn receive(&mut self) -> Result<(), Error> {
        match &mut self.state {
            Some(state) => self.driver.receive(state, &self.options).await.map_err(|error| Error::Agent(error.into())),
            None => std::future::pending().await,
        }
    }

    /// Loads the saved run of this conversation's name, and lets held calls run.
    ///
    /// # Errors
    /// [`Error::Agent`] if the run does not exist, cannot be read, or is driven by another process.
    pub async fn load(&mut self) -> Result<(), Error> {
        self.load_for(|_| true).await
    }

    /// Like [`load`](Self::load), but lets only the held calls run whose ids `may_run` selects.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub async fn load_for(&mut self, may_run: impl Fn(&str) -> bool) -> Result<(), Error> {
        let mut state = self.driver.load(&self.options).await?;
        state.dispatch_only(may_run);
        self.config = state.config().clone();
        if let Some(agent) = &self.config.agent {
            // Its profile is that of the resuming caller; its own restrictions stay.
            self.options.policy = Arc::new(agent.with_agent_rules(&self.options.policy));
            self.options.session = as_agent(&self.options.session, Some(agent));
        }
        self.state = Some(state);
        Ok(())
    }

    /// Loads the saved run of this conversation's name, or begins one that waits for messages, with `introduction`
    /// before them. See [`receive`](Self::receive).
    ///
    /// # Errors
    /// As [`load`](Self::load), except for a run that does not exist.
    pub async fn open_or_create(&mut self, introduction: String) -> Result<(), Error> {
        match self.load().await {
            Err(Error::Agent(DriverError::NotFound(_))) => {
                self.state = Some(RunState::resident(self.config.clone(), introduction));
                Ok(())
            }
            loaded => loaded,
        }
    }

    /// Lets the model plan the whole work on the first message before any of it is done. The calls of a valid plan are
    /// held: [`run_plan`](Self::run_plan) lets them run, and the model then answers with their results. A plan is
    /// invalid if its calls may cost more than `max_cost` US dollars, by the hints of their tools.
    ///
    /// # Errors
    /// [`Error::Plan`] if the model writes no plan, [`Error::Usage`] after the first message.
    pub async fn plan(&mut self, message: impl Into<String>, max_cost: Option<f64>) -> Result<WrittenPlan, Error> {
        if self.state.is_some() {
            return Err(usage("a conversation is planned with its first message"));
        }
        let message = message.into();
        let services = self.app.executor().services();
        // A plan's references apply to the arguments of all tools, as in its check.
        self.config.input.foreign = true;
        let input = self.config.input.clone();
        let values = RunVariables::open(&*services.log, &*services.outputs, &self.options.session.id, input).await?;
        let writer = PlanWriter {
            model: self.config.model.clone(),
            tools: self.config.tools.clone(),
            max_cost,
            ..PlanWriter::default()
        };
        let words = Arc::new(UserRequest::new([message.as_str()]));
        let written = self.app.write(&message, &writer, (&self.options, &values, Some(&words))).await?;
        if written.check.is_valid() {
            let (config, plan) = (self.config.clone(), &written.document.over(&self.config.input));
            let mut state = self.driver.of_plan(config, message, plan, AfterPlan::Answer, &self.options);
            state.on_planned(written.usage);
            self.driver.keep(&state, &self.options).await?;
            self.state = Some(state);
        }
        Ok(written)
    }

    /// Lets the calls of its plan run with [`proceed`](Self::proceed). If a person has approved the plan as shown, the
    /// policy asks only about deviations.
    pub fn run_plan(&mut self, plan: &WrittenPlan, is_approved: bool) {
        let Some(state) = &mut self.state else { return };
        if is_approved {
            state.approve_plan(plan.approval.clone());
        }
        state.dispatch();
    }

    /// Ends the conversation because a person did not approve its plan. It cannot be resumed.
    ///
    /// # Errors
    /// [`Error::Agent`] if that cannot be saved.
    pub async fn refuse_plan(&mut self) -> Result<(), Error> {
        let Some(state) = &mut self.state else { return Ok(()) };
        state.refuse_plan();
        Ok(self.driver.keep(state, &self.options).await?)
    }

    /// Forgets the conversation: the next message begins a new one.
    pub fn reset(&mut self) {
        self.state = None;
    }

    /// Sets the token that cancels later work.
    pub fn set_cancel(&mut self, cancel: Cancel) {
        self.options.cancel = cancel;
    }

    /// Returns the name under which it is saved.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.options.run_id
    }

    /// Returns the agent's specification.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Returns the state of the conversation; `None` before its first message.
    #[must_use]
    pub fn state(&self) -> Option<&RunState> {
        self.state.as_ref()
    }

    /// Returns the session of its calls.
    #[must_use]
    pub fn session(&self) -> &SessionId {
        &self.options.session.id
    }
}

/// The events of one run.
#[derive(Debug)]
pub struct Events {
    pub(super) events: Option<Receiver<Arc<Event>>>,
    pub(super) run: String,
    pub(super) session: SessionId,
}

impl Events {
    /// Returns the next event; `None` once the run has ended. A reader that is too slow loses the oldest.
    pub async fn next(&mut self) -> Option<Arc<Event>> {
        loop {
            match self.events.as_mut()?.recv().await {
                Ok(event) if event.concerns(&self.run, &self.session) => {
                    if matches!(&*event, Event::RunFinished { .. }) {
                        self.events = None;
                    }
                    return Some(event);
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }
}
