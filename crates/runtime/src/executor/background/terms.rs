//! What a job keeps of the run that began it. A process that takes the job over, and drives no run of its session, has terms
//! of its own, which may be wider: those of the run hold within them.

use std::sync::Arc;

use toolwright_core::agents::AgentTree;
use toolwright_core::call::ValidCall;
use toolwright_core::model::PriceTable;
use toolwright_core::policy::Policy;
use toolwright_core::store::StoreError;

use crate::executor::RunContext;
use crate::models::AgentAccount;
use crate::store::jobs::JobTerms;

impl JobTerms {
    pub(super) fn of(run: &RunContext, call: &ValidCall) -> Self {
        let chain = std::iter::successors(Some(&run.policy), |policy| policy.within.as_ref());
        let reachable = || run.snapshot.list().iter().map(|entry| entry.id().clone()).collect();
        Self {
            policies: chain.cloned().collect(),
            tools: call.awaits_others().then(reachable),
            request: run.request.clone(),
            agents: run.agents.to_vec(),
            account: run.account.as_ref().map(|account| account.id().to_string()),
            model: run.model.as_deref().map(str::to_owned),
            asker: run.asker.as_deref().map(str::to_owned),
        }
    }

    /// These terms within those of a run: the stricter policy, only these tools, and the user's words of that time.
    pub(super) fn restrict(&self, run: RunContext) -> RunContext {
        let kept =
            self.policies.iter().rev().map(|policy| Policy::clone(policy)).reduce(|outer, policy| policy.under(outer));
        let policy = match kept {
            Some(kept) => Arc::new(Policy::clone(&run.policy).under(kept)),
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

    /// The terms of a process that drives no run of the job's session, within these.
    pub(super) async fn narrow(
        self,
        run: RunContext,
        tree: Arc<dyn AgentTree>,
        prices: &PriceTable,
    ) -> Result<RunContext, StoreError> {
        let account = match &self.account {
            Some(account) => AgentAccount::known(tree, account, prices.clone()).await?,
            None => None,
        };
        let run = self.restrict(run);
        Ok(RunContext {
            account,
            agents: self.agents.into(),
            model: self.model.map(Into::into).or(run.model),
            asker: self.asker.map(Into::into),
            ..run
        })
    }
}
