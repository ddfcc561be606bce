//! Tracks the agents that a run starts: its budget in their tree, and what happens to those that still run in the
//! background when it answers.

use std::sync::Arc;
use std::time::Duration;

use toolwright_core::agents::{AgentLimits, NewAgent, OnChildren, TreeError};
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::{Entry, ProviderKind};
use toolwright_core::event::Partial;
use toolwright_core::job::{JobRecord, JobScope};
use toolwright_core::store::{LogRow, StoreError};
use toolwright_runtime::AgentBudget;

use super::{Driver, DriverError, RunOptions};
use crate::report::{ChildEnd, Status, UnfinishedChild};
use crate::run::{RunConfig, RunState, Step, ToolBatch};

/// How long a run without a time limit waits for its agents.
const MAX_WAIT: Duration = Duration::from_secs(3600);

impl Driver {
    /// Registers the run in the tree of agents, if it is an agent's run, may start agents, or has limits that count
    /// there.
    pub(super) async fn begin_agent_budget(
        &self,
        state: &RunState,
        options: &RunOptions,
    ) -> Result<Option<Arc<AgentBudget>>, DriverError> {
        let Some((tree, limits)) = &self.agents else { return Ok(options.agent_budget.clone()) };
        let config = state.config();
        let above = options.parent.as_ref().and_then(|parent| parent.agent_budget.as_ref());
        let starts = |entry: &Arc<Entry>| is_agent(entry) || entry.definition().delegate.is_some();
        let starts_agents = || self.view(config, options).usable.iter().any(starts);
        if options.parent.is_none() && !config.tree_limits().limits_spending() && !starts_agents() {
            return Ok(None);
        }
        let limits = match above {
            Some(_) => config.tree_limits(),
            None => config.tree_limits().or(limits).or_defaults(),
        };
        let new = NewAgent {
            id: Arc::clone(&options.run_id),
            parent: above.map(|above| Arc::clone(above.id())),
            name: agent_name(config, options).or_else(|| last_step(options)).unwrap_or_default().to_owned(),
            limits: AgentLimits { turns: None, calls: None, time: None, ..limits },
            starts_task: state.turns() == 0,
            time_left: state.time_left(),
        };
        if let Some(above) = above {
            above.has_started();
        }
        match AgentBudget::begin(Arc::clone(tree), new, self.prices().clone()).await {
            Ok(agent_budget) => Ok(Some(agent_budget)),
            Err(TreeError::Limit(limit)) => Err(limit.into()),
            Err(TreeError::Store(error)) => Err(error.into()),
        }
    }

    /// Ends the run's budget, which then holds no room in the tree.
    pub(super) async fn end_agent_budget(&self, agent_budget: Option<&AgentBudget>, options: &RunOptions) {
        if self.agents.is_some()
            && let Some(agent_budget) = agent_budget
            && let Err(error) = agent_budget.end().await
        {
            tracing::warn!(run = &*options.run_id, "what the run used was not kept: {error}");
        }
    }

    /// Reports to the starter of the run what it is doing.
    pub(super) fn report_progress(&self, state: &RunState, options: &RunOptions, does: impl FnOnce() -> String) {
        let Some(progress) = &options.progress else { return };
        let agent = agent_name(state.config(), options).unwrap_or("agent");
        let turn = state.turns() + u32::from(state.waits_for_model());
        progress.send(Partial::Progress {
            progress: f64::from(turn),
            total: Some(f64::from(state.config().limits.turns)),
            message: Some(format!("{agent}, turn {turn}: {}", does())),
            more: serde_json::Map::new(),
        });
    }

    /// Decides about the agents among the `open` jobs of a run that ends: waits for them, cancels them or leaves them
    /// running. Agents may also have ended while no process drove the run; then `unread` has their messages. Returns
    /// whether the model is asked again: it is told of them before its answer is accepted.
    pub(super) async fn settle_children(
        &self,
        state: &mut RunState,
        open: &[JobRecord],
        unread: &[LogRow],
        options: &RunOptions,
    ) -> Result<bool, DriverError> {
        let Step::Done(result) = state.step() else { return Ok(false) };
        let mut children = self.agents_among(open, options);
        if children.is_empty() {
            return Ok(self.take_back_unread(state, unread, options).await?);
        }
        let cause = || options.cancel.cause();
        // The run can be resumed, and is then told of them; when the program ends, the next process continues the jobs.
        let can_resume = match result.status {
            Status::Failure => state.is_interrupted(),
            Status::Cancelled => cause() == Some(CancelCause::Shutdown),
            _ => false,
        };
        if can_resume {
            return Ok(false);
        }
        let (policy, open) = (state.config().on_children(), state.can_reopen_answer());
        let names = named(&children);
        match policy {
            OnChildren::Wait if open => {
                let notice = not_accepted("were still running", &children);
                children = self.wait_for(children, state.time_left().unwrap_or(MAX_WAIT), options).await?;
                let (cause, ended) = (cause(), children.is_empty());
                if cause == Some(CancelCause::Shutdown) && !ended {
                    return Err(DriverError::ProgramEnds);
                }
                // If it is cancelled during the wait, it does not end with that answer.
                if cause.is_none() == ended && state.take_back(notice) {
                    return Ok(true);
                }
            }
            policy if open && !state.has_named_children() => {
                let consequence =
                    if policy == OnChildren::Cancel { "they are cancelled" } else { "they continue without you" };
                let notice = format!(
                    "[toolwright notice] Your answer was not accepted yet, because agents that you started are still \
                     running: {names}. job__wait waits for one. If you give your answer again while they run, {consequence}."
                );
                if state.take_back(notice) {
                    return Ok(true);
                }
            }
            _ => {}
        }
        let detach = policy == OnChildren::Detach && result.status != Status::Cancelled;
        for child in &children {
            let end = if detach { ChildEnd::Detached } else { ChildEnd::Cancelled };
            if end == ChildEnd::Cancelled {
                // A job that has just ended needs no stop.
                let _ = self.executor.services().jobs.stop(JobScope::Of(&options.session), &child.id).await;
            }
            let agent = child.tool.name().to_owned();
            state.record_child_outcome(UnfinishedChild { agent, job: child.id.clone(), end });
        }
        if !children.is_empty() {
            self.save(state, options).await?;
        }
        Ok(false)
    }

    /// Returns whether the run waits for its agents before its answer is accepted.
    pub(super) fn waits_for_children(state: &RunState, options: &RunOptions) -> bool {
        options.agent_budget.is_some()
            && options.cancel.cause().is_none()
            && state.config().on_children() == OnChildren::Wait
            && state.can_reopen_answer()
    }

    /// Takes the answer back if agents for which the run waits have ended and the model was not told.
    async fn take_back_unread(
        &self,
        state: &mut RunState,
        unread: &[LogRow],
        options: &RunOptions,
    ) -> Result<bool, StoreError> {
        if !Self::waits_for_children(state, options) {
            return Ok(false);
        }
        let snapshot = self.catalogue.snapshot();
        let mut ended = Vec::new();
        for message in unread.iter().filter_map(LogRow::message) {
            if let Some(job) = self.job(message).await?
                && snapshot.get(job.tool.as_str()).is_some_and(|entry| is_agent(entry))
                && !state.has_child_outcome(&job.id)
            {
                ended.push(job);
            }
        }
        Ok(!ended.is_empty() && state.take_back(not_accepted("had not ended, or you had not read their end", &ended)))
    }

    /// Returns the agents among these jobs that the run has started and that have not ended.
    pub(super) fn agents_among(&self, jobs: &[JobRecord], options: &RunOptions) -> Vec<JobRecord> {
        if jobs.is_empty() || options.agent_budget.is_none() {
            return Vec::new();
        }
        let snapshot = self.catalogue.snapshot();
        let is_agent = |job: &&JobRecord| snapshot.get(job.tool.as_str()).is_some_and(|entry| is_agent(entry));
        jobs.iter().filter(|job| !job.state.is_over()).filter(is_agent).cloned().collect()
    }

    /// Waits until these have ended. Returns those that are left when the time is over or the run is cancelled.
    async fn wait_for(
        &self,
        children: Vec<JobRecord>,
        limit: Duration,
        options: &RunOptions,
    ) -> Result<Vec<JobRecord>, StoreError> {
        let clock = &self.executor.services().clock;
        let began = clock.now();
        let mut left = Vec::new();
        for child in children {
            let rest = limit.saturating_sub(clock.now().saturating_duration_since(began));
            let id = child.id.clone();
            let waiting = self.executor.services().jobs.wait(JobScope::Of(&options.session), &id, rest);
            let job = tokio::select! {
                job = waiting => job?,
                _ = options.cancel.cancelled() => child,
            };
            if !job.state.is_over() {
                left.push(job);
            }
        }
        Ok(left)
    }
}

/// Returns the names of the tools that a batch calls.
pub(super) fn called(batch: &ToolBatch) -> String {
    let mut names: Vec<&str> = batch.calls.iter().map(|call| call.name.as_str()).collect();
    names.dedup();
    names.join(", ")
}

/// Returns the name of the run's agent.
fn agent_name<'r>(config: &'r RunConfig, options: &'r RunOptions) -> Option<&'r str> {
    options.session.agent.as_deref().or_else(|| config.agent.as_ref().map(|agent| agent.name.as_str()))
}

/// Returns the run's last step in the path of agents, if a call started it.
fn last_step(options: &RunOptions) -> Option<&str> {
    options.parent.as_ref()?.agents.last().map(|step| step.agent.as_str())
}

/// Returns whether a tool is an agent.
pub(super) fn is_agent(entry: &Entry) -> bool {
    entry.provider.kind() == ProviderKind::Agent
}

/// Returns the notice that an answer is not accepted, because agents of the run `were` not ended.
fn not_accepted(were: &str, agents: &[JobRecord]) -> String {
    let names = named(agents);
    format!(
        "[toolwright notice] Your answer was not accepted yet, because agents that you started {were}: {names}. Messages \
         tell how they ended. Give your whole answer again."
    )
}

fn named(children: &[JobRecord]) -> String {
    let name = |child: &JobRecord| format!("{} (job {})", child.tool.name(), child.id);
    children.iter().map(name).collect::<Vec<_>>().join(", ")
}
