//! Charges the usage of one agent in the tree of its run, and checks its limits and those of its ancestors before each
//! request to a model.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolwright_core::agents::{
    AgentAllowance, AgentLimits, AgentTree, LimitWarning, NewAgent, RequestEstimate, Spending, TimeLeft, TreeError,
    near_limits, nearest_limits, time_left,
};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::{ModelClient, ModelRequest, PriceTable, Usage};
use toolwright_core::store::StoreError;

use super::budgets::USUAL_ANSWER;

/// The budget of an agent that runs in this process.
pub struct AgentBudget {
    tree: Arc<dyn AgentTree>,
    id: Arc<str>,
    prices: PriceTable,
    /// The tightest of its own and its ancestors' limits. Without a limit on tokens or money, nothing is written before
    /// the agent ends.
    limits: AgentLimits,
    /// The time that its ancestors had left when it began; for an agent that does not run here, also its own.
    time: Option<TimeLeft>,
    /// Whether it has started agents.
    has_children: AtomicBool,
    state: Mutex<BudgetUse>,
}

#[derive(Debug, Clone, Copy, Default)]
struct BudgetUse {
    spent: Spending,
    held: Spending,
}

impl fmt::Debug for AgentBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentBudget")
            .field("id", &self.id)
            .field("balance", &*self.budget_use())
            .finish_non_exhaustive()
    }
}

impl AgentBudget {
    /// Enters an agent in `tree`.
    ///
    /// # Errors
    /// [`TreeError`] if an ancestor's limit forbids it, or the tree cannot be written.
    pub async fn begin(tree: Arc<dyn AgentTree>, new: NewAgent, prices: PriceTable) -> Result<Arc<Self>, TreeError> {
        let id = Arc::clone(&new.id);
        let AgentAllowance { spent, limits, time } = tree.begin_agent(new).await?;
        let state = Mutex::new(BudgetUse { spent, ..BudgetUse::default() });
        let has_children = AtomicBool::new(false);
        Ok(Arc::new(Self { tree, id, prices, limits, time, has_children, state }))
    }

    /// Returns the budget of an agent of the tree that does not run here, for work that continues without it, within
    /// the rest of its time; `None` if the tree does not contain it.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn of_tree(
        tree: Arc<dyn AgentTree>,
        id: &str,
        prices: PriceTable,
        now_ms: u64,
    ) -> Result<Option<Arc<Self>>, StoreError> {
        let nodes = tree.agents_of(id).await?;
        let Some(node) = nodes.iter().find(|node| &*node.id == id) else { return Ok(None) };
        let limits = nearest_limits(&nodes, id);
        let time = time_left(&nodes, Some(id), now_ms);
        let state = Mutex::new(BudgetUse { spent: node.spent, ..BudgetUse::default() });
        let (id, has_children) = (Arc::clone(&node.id), AtomicBool::new(true));
        Ok(Some(Arc::new(Self { tree, id, prices, limits, time, has_children, state })))
    }

    /// Returns the least time that one of its ancestors had left when it began. For work that continues without the
    /// agent, its own time counts too.
    #[must_use]
    pub fn time(&self) -> Option<&TimeLeft> {
        self.time.as_ref()
    }

    /// Returns the tightest of its own and its ancestors' limits.
    #[must_use]
    pub fn limits(&self) -> &AgentLimits {
        &self.limits
    }

    /// Enters an agent below this one that a job will run, so that it holds its place before the job begins. A known
    /// agent stays as it is, and gives `None`.
    ///
    /// # Errors
    /// [`TreeError`] if a limit forbids it, or the tree cannot be read or written.
    pub async fn reserve_agent(&self, id: Arc<str>, name: &str) -> Result<Option<ReservedAgent>, TreeError> {
        if self.tree.agents_of(&self.id).await?.iter().any(|node| node.id == id) {
            return Ok(None);
        }
        let new = NewAgent {
            id: Arc::clone(&id),
            parent: Some(Arc::clone(&self.id)),
            name: name.to_owned(),
            limits: AgentLimits::default(),
            starts_task: true,
            time_left: None,
        };
        self.has_started();
        self.tree.begin_agent(new).await?;
        Ok(Some(ReservedAgent { tree: Arc::clone(&self.tree), id }))
    }

    /// Records that it has started an agent.
    pub fn has_started(&self) {
        self.has_children.store(true, Ordering::Relaxed);
    }

    /// Returns the limits of itself and its ancestors that are nearly used up.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn near_limits(&self) -> Result<Vec<LimitWarning>, StoreError> {
        if !self.limits.limits_spending() && !self.has_children.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let mut tree = self.tree.agents_of(&self.id).await?;
        if let Some(this) = tree.iter_mut().find(|node| node.id == self.id) {
            BudgetUse { spent: this.spent, held: this.held } = *self.budget_use();
        }
        Ok(near_limits(&tree, &self.id))
    }

    /// Returns the agent's id, which is the id of its run.
    #[must_use]
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Returns its spending so far.
    #[must_use]
    pub fn spent(&self) -> Spending {
        self.budget_use().spent
    }

    /// Reserves room for a request to `model` before it is sent.
    ///
    /// # Errors
    /// `limit_exceeded` for a limit of tokens or money, its own or an ancestor's; otherwise the error of the store.
    pub async fn reserve(
        self: &Arc<Self>,
        client: &dyn ModelClient,
        model: &str,
        request: &ModelRequest,
    ) -> Result<SpendingReservation, ToolError> {
        if !self.limits.limits_spending() {
            return Ok(self.hold(model, Spending::default()));
        }
        let answer = client.longest_answer(model, request.max_tokens, &request.settings, USUAL_ANSWER);
        let usage = Usage { input_tokens: request.tokens() as u64, output_tokens: answer.into(), ..Usage::default() };
        let cost_usd = self.prices.of(model).map(|prices| prices.cost(usage));
        let tokens = usage.tokens();
        let BudgetUse { spent, held } = *self.budget_use();
        // Held here first, so that concurrent requests count it. Dropping it frees it.
        let room = self.hold(model, Spending { tokens, cost_usd: cost_usd.unwrap_or_default() });
        let request_estimate = RequestEstimate { model, tokens, cost_usd };
        match self.tree.charge_agent(&self.id, spent, held, Some(request_estimate)).await {
            Ok(()) => Ok(room),
            Err(TreeError::Limit(limit)) => Err(ToolError::new(ErrorKind::LimitExceeded, limit.to_string())),
            Err(TreeError::Store(error)) => Err(error.into()),
        }
    }

    fn hold(self: &Arc<Self>, model: &str, held: Spending) -> SpendingReservation {
        self.budget_use().held.add(held);
        SpendingReservation { agent_budget: Arc::clone(self), model: model.to_owned(), held, used: Usage::default() }
    }

    /// Ends the agent, which then holds no room.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn end(&self) -> Result<(), StoreError> {
        let spent = self.spent();
        self.tree.end_agent(&self.id, spent).await
    }

    fn budget_use(&self) -> MutexGuard<'_, BudgetUse> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of an agent that a job runs.
pub struct ReservedAgent {
    tree: Arc<dyn AgentTree>,
    id: Arc<str>,
}

impl fmt::Debug for ReservedAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReservedAgent").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ReservedAgent {
    /// Frees the place of an agent whose job is over. An agent that has begun has freed it itself.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn release(self) -> Result<(), StoreError> {
        let nodes = self.tree.agents_of(&self.id).await?;
        match nodes.iter().find(|node| node.id == self.id && node.live) {
            Some(node) => self.tree.end_agent(&self.id, node.spent).await,
            None => Ok(()),
        }
    }
}

/// Room for one request. Dropping it charges the known usage of the request and frees the rest.
#[derive(Debug)]
pub struct SpendingReservation {
    agent_budget: Arc<AgentBudget>,
    model: String,
    held: Spending,
    used: Usage,
}

impl SpendingReservation {
    /// Sets the actual usage of the request.
    pub fn settle(mut self, usage: Usage) {
        self.used = usage;
    }
}

impl Drop for SpendingReservation {
    fn drop(&mut self) {
        let cost = self.agent_budget.prices.of(&self.model).map(|prices| prices.cost(self.used));
        let mut budget_use = self.agent_budget.budget_use();
        budget_use.held.remove(self.held);
        budget_use.spent.add(Spending { tokens: self.used.tokens(), cost_usd: cost.unwrap_or_default() });
    }
}
