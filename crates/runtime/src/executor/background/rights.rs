//! Saves the rights of the run that began a job. A process that takes the job over without driving that run may have
//! wider rights; the job keeps the run's.

use std::sync::Arc;

use toolwright_core::agents::AgentTree;
use toolwright_core::call::ValidCall;
use toolwright_core::model::PriceTable;
use toolwright_core::policy::Policy;
use toolwright_core::store::StoreError;

use crate::executor::RunContext;
use crate::models::AgentBudget;
use crate::store::jobs::JobRights;

impl JobRights {
    pub(super) fn of(run: &RunContext, call: &ValidCall) -> Self {
        let reachable = || run.snapshot.list().iter().map(|entry| entry.id().clone()).collect();
        Self {
            run: run.journal.as_ref().map(|(_, run)| run.to_string()),
            policies: run.policy.chain(),
            tools: call.awaits_others().then(reachable),
            request: run.request.clone(),
            agents: run.agents.to_vec(),
            paying_run: run.agent_budget.as_ref().map(|agent_budget| agent_budget.id().to_string()),
            model: run.model.as_deref().map(str::to_owned),
            asker: run.asker.as_deref().map(str::to_owned),
        }
    }

    /// Restricts a run's terms: the stricter policy, only these tools, and the user's request of that time.
    fn restrict(&self, run: RunContext) -> RunContext {
        let policy = match Policy::of_chain(&self.policies) {
            Some(job_policy) => Arc::new(Policy::clone(&run.policy).under(job_policy)),
            None => Arc::clone(&run.policy),
        };
        let snapshot = match &self.tools {
            Some(tools) => {
                let may_use = |entry: &toolwright_core::Entry| tools.contains(entry.id());
                Arc::new(run.snapshot.only(may_use, "not among the tools of the run that began it"))
            }
            None => Arc::clone(&run.snapshot),
        };
        RunContext { policy, snapshot, request: self.request.clone(), ..run }
    }

    /// Restricts the terms of another run, or of a process that drives no run of the job's session; `None` if the run
    /// that pays for the job is unknown.
    pub(super) async fn narrow(
        self,
        run: RunContext,
        tree: Arc<dyn AgentTree>,
        prices: &PriceTable,
        now_ms: u64,
    ) -> Result<Option<RunContext>, StoreError> {
        let agent_budget = match (&self.paying_run, &run.agent_budget) {
            (Some(id), Some(agent_budget)) if **agent_budget.id() == **id => Some(Arc::clone(agent_budget)),
            (Some(id), _) => match AgentBudget::of_tree(tree, id, prices.clone(), now_ms).await? {
                None => return Ok(None),
                known => known,
            },
            (None, _) => None,
        };
        let run = self.restrict(run);
        Ok(Some(RunContext {
            agent_budget,
            // The job of another run does not count for this one.
            usage: run.usage.filter(|_| self.run.is_none()),
            agents: self.agents.into(),
            model: self.model.map(Into::into).or(run.model),
            asker: self.asker.map(Into::into),
            ..run
        }))
    }
}
