//! The batches of `run`: a run for each hundred inputs, one after the other.

use std::cell::RefCell;
use std::sync::Arc;

use toolwright::agent::{Dispatch, DriverError, ReportConfig, RunState};
use toolwright::app::Conversation;
use toolwright::core::run_input::MAX_INSTANCES;
use toolwright::core::{Cancel, Profile, RunInput};
use toolwright::{Error, Toolwright};

use super::plan::drawn;
use super::report::{exit, print_report};
use super::run::Run;
use crate::app::GlobalOptions;
use crate::app::agent::{agent, failed, question_recipient};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::person::Terminal;
use crate::terminal::progress::{ProgressDisplay, TextOutput};
use crate::terminal::screen::{DIM, sanitize, say, styled};
use crate::values::AskName;

/// A run over its inputs.
pub(super) struct Batches<'a> {
    pub(super) global: &'a GlobalOptions,
    pub(super) run: &'a Run,
    pub(super) app: &'a Arc<Toolwright>,
    pub(super) terminal: &'a Terminal,
    /// The name of the first batch; the others are named after it.
    pub(super) id: String,
    /// `None`: the run is resumed.
    pub(super) task: Option<String>,
    /// The model of a new run.
    pub(super) model: String,
    pub(super) profile: Option<Profile>,
    pub(super) report: Option<ReportConfig>,
    pub(super) inputs: Vec<RunInput>,
    pub(super) cancel: Cancel,
}

impl Batches<'_> {
    /// Runs one batch after the other, or resumes those that were kept.
    pub(super) async fn run(&self) -> CommandResult {
        let (run, count) = (self.run, self.inputs.len());
        if run.plan && count > 1 {
            say("each hundred inputs is planned by itself; after an interruption, start again with the inputs that \
                are left");
        }
        // All are stored before any starts: after a crash, resuming the first one's name also continues the others.
        if let Some(task) = self.task.as_ref().filter(|_| !run.plan) {
            for batch in 1..count {
                self.conversation(batch).await?.keep(task.as_str()).await.map_err(failed)?;
            }
        }
        let (mut whole, mut batch) = (Exit::Ok, 0);
        loop {
            let mut conversation = self.conversation(batch).await?;
            if self.task.is_none() && !self.load(&mut conversation, batch).await? {
                break;
            }
            let is_full = conversation.config().input.instances.len() == MAX_INSTANCES;
            let exit = self.run_one(&self.id_of(batch), conversation).await?;
            if exit != Exit::Ok {
                whole = exit;
            }
            batch += 1;
            // A call that is allowed to run belongs to this batch.
            let is_last = if self.task.is_some() { batch == count } else { !is_full || !run.calls.is_empty() };
            if is_last || self.cancel.is_cancelled() {
                break;
            }
        }
        Ok(whole)
    }

    /// The name of the run for a batch.
    fn id_of(&self, batch: usize) -> String {
        if batch == 0 { self.id.clone() } else { format!("{}-{}", self.id, batch + 1) }
    }

    async fn conversation(&self, batch: usize) -> Result<Conversation, Failure> {
        let (run, id) = (self.run, self.id_of(batch));
        let input = self.inputs.get(batch).cloned().unwrap_or_default();
        let whose = (&*id, &*self.model);
        let mut agent = agent(&run.agent, self.app, self.terminal, whose, self.profile, self.report.clone())?
            .cancel(self.cancel.clone())
            .input(RunInput { foreign: run.foreign_references, ..input });
        if self.task.is_none() {
            agent = agent.resume(&*id);
        }
        agent.conversation().await.map_err(failed)
    }

    /// Loads a batch that was kept, with the held calls that may run; `false` where there is no such batch.
    async fn load(&self, conversation: &mut Conversation, batch: usize) -> Result<bool, Failure> {
        let wanted = &self.run.calls;
        if batch > 0 {
            self.app.recover_jobs_of(conversation.session().clone());
        }
        let held = RefCell::new(Vec::new());
        let is_meant = |id: &str| {
            held.borrow_mut().push(id.to_owned());
            wanted.is_empty() || wanted.iter().any(|call| call == id)
        };
        match conversation.load_for(is_meant).await {
            Err(Error::Agent(DriverError::NotFound(_))) if batch > 0 => return Ok(false),
            loaded => loaded.map_err(failed)?,
        }
        let held = held.into_inner();
        if let Some(call) = wanted.iter().find(|call| !held.contains(call)) {
            let (id, held) = (&self.id, if held.is_empty() { "none".to_owned() } else { held.join(", ") });
            return Err(Failure::usage(format!("no call {call} is held; held calls of {id}: {held}")));
        }
        Ok(true)
    }

    /// Runs one conversation to its end, and prints its report.
    async fn run_one(&self, id: &str, mut conversation: Conversation) -> CommandResult {
        let (app, run, task) = (self.app, self.run, self.task.as_deref());
        if conversation.state().is_some_and(RunState::is_over) {
            say(styled(DIM, format_args!("{id} has ended; this is its report")));
        } else {
            let config = conversation.config();
            let tools = app.catalogue().snapshot().list().iter().filter(|entry| config.has_tool(entry)).count();
            let model = &config.model;
            say(styled(
                DIM,
                format_args!(
                    "{id} with {model} and {tools} tools; after an interruption: toolwright run --resume {id}"
                ),
            ));
        }
        if let Some(task) = task.filter(|_| run.plan) {
            self.plan_first(&mut conversation, task).await?;
        }
        let text = TextOutput::for_output(self.global.json);
        let progress = ProgressDisplay::begin(app.events().subscribe(), text, Arc::clone(&self.terminal.screen));
        let report = match task {
            Some(task) if !run.plan => conversation.send(task).await,
            _ => conversation.proceed().await,
        };
        let shown = progress.end().await;
        let report = report.map_err(failed)?;
        print_report(self.global, id, &report, text, shown)?;
        Ok(exit(report.status))
    }

    /// Lets the model plan the work, shows the plan, and runs it if that is requested or confirmed.
    async fn plan_first(&self, conversation: &mut Conversation, task: &str) -> Result<(), Failure> {
        let plan = conversation.plan(task, self.run.max_cost).await.map_err(failed)?;
        say(drawn(&plan.document, &plan.check).trim_end());
        if !plan.check.is_valid() {
            let faults: Vec<String> = plan.check.errors.iter().map(|fault| sanitize(&fault.to_string())).collect();
            return Err(Failure::failed(format!("the model wrote no plan that can run:\n{}", faults.join("\n"))));
        }
        if conversation.config().dispatch == Dispatch::Manual {
            return Ok(());
        }
        let asks = self.profile.is_none() && question_recipient(self.run.agent.ask) == AskName::Terminal;
        let is_approved = asks
            && self.terminal.console.ask("run this plan? [y/N] ").await.is_some_and(|word| {
                let word = word.trim().to_lowercase();
                word == "y" || word == "yes"
            });
        if asks && !is_approved {
            conversation.refuse_plan().await.map_err(failed)?;
            return Err(Failure::failed("the plan was not approved; nothing ran"));
        }
        conversation.run_plan(&plan, is_approved);
        Ok(())
    }
}
