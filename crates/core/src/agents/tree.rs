//! The tree of the agents of one run: parents, usage, and whether another agent may start or send a model request. The
//! decisions are pure; [`AgentTree`] keeps the tree and takes each decision in one transaction.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::AgentLimits;
use crate::canonical::ContentHash;
use crate::error::{ErrorKind, StoreError, ToolError};
use crate::session::{CallId, SessionId};

/// Levels of agents below a run, unless configured otherwise.
pub const DEFAULT_DEPTH: u32 = 5;
/// Agents below a run at once, unless configured otherwise.
pub const DEFAULT_LIVE: u32 = 8;
/// Agents below a run in all, unless configured otherwise.
pub const DEFAULT_AGENTS: u32 = 64;

impl AgentLimits {
    /// Fills missing limits on the size of the tree with the defaults.
    #[must_use]
    pub fn or_defaults(mut self) -> Self {
        self.depth.get_or_insert(DEFAULT_DEPTH);
        self.live.get_or_insert(DEFAULT_LIVE);
        self.agents.get_or_insert(DEFAULT_AGENTS);
        self
    }

    /// Fills missing limits from `other`.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            turns: self.turns.or(other.turns),
            calls: self.calls.or(other.calls),
            tokens: self.tokens.or(other.tokens),
            cost: self.cost.or(other.cost),
            time: self.time.or(other.time),
            depth: self.depth.or(other.depth),
            live: self.live.or(other.live),
            agents: self.agents.or(other.agents),
        }
    }

    /// The nearer of each of these limits and of `outer`.
    #[must_use]
    pub fn within(&self, outer: &Self) -> Self {
        fn tighter_limit<T: PartialOrd>(one: Option<T>, other: Option<T>) -> Option<T> {
            match (one, other) {
                (Some(one), Some(other)) => Some(if other < one { other } else { one }),
                (one, other) => one.or(other),
            }
        }
        Self {
            turns: tighter_limit(self.turns, outer.turns),
            calls: tighter_limit(self.calls, outer.calls),
            tokens: tighter_limit(self.tokens, outer.tokens),
            cost: tighter_limit(self.cost, outer.cost),
            time: tighter_limit(self.time, outer.time),
            depth: tighter_limit(self.depth, outer.depth),
            live: tighter_limit(self.live, outer.live),
            agents: tighter_limit(self.agents, outer.agents),
        }
    }

    /// Whether the tokens or the money of the tree are limited.
    #[must_use]
    pub fn limits_spending(&self) -> bool {
        self.tokens.is_some() || self.cost.is_some()
    }
}

/// Tokens and money.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Spending {
    /// Tokens, input and output.
    pub tokens: u64,
    /// US dollars.
    pub cost_usd: f64,
}

impl Spending {
    /// Adds `other`.
    pub fn add(&mut self, other: Self) {
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.cost_usd += other.cost_usd;
    }

    /// Subtracts `other`, saturating at zero.
    pub fn remove(&mut self, other: Self) {
        self.tokens = self.tokens.saturating_sub(other.tokens);
        self.cost_usd = (self.cost_usd - other.cost_usd).max(0.0);
    }
}

/// An agent in the tree. The root is the run that began all others.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentNode {
    /// The id of its run.
    pub id: Arc<str>,
    /// The parent run; `None` for the root.
    pub parent: Option<Arc<str>>,
    /// Its name; empty for a run without one.
    pub name: String,
    /// Limits of itself and all below it.
    pub limits: AgentLimits,
    /// Whether it is running in a live process.
    pub live: bool,
    /// Its own usage.
    pub spent: Spending,
    /// The most that its pending requests may use.
    pub held: Spending,
    /// Its deadline, in milliseconds since the epoch; `None` without a time limit.
    pub until_ms: Option<u64>,
}

/// An agent to start.
#[derive(Debug, Clone, PartialEq)]
pub struct NewAgent {
    /// The id of its run.
    pub id: Arc<str>,
    /// The parent run; `None` for a root.
    pub parent: Option<Arc<str>>,
    /// Its name; empty for a run without one.
    pub name: String,
    /// Limits of itself and all below it.
    pub limits: AgentLimits,
    /// Whether it starts a new task: usage of an earlier task of the same run, and its ended agents, no
    /// longer count.
    pub starts_task: bool,
    /// Its remaining time; `None` without a time limit.
    pub time_left: Option<Duration>,
}

/// The place of an agent that has begun.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentAllowance {
    /// Its usage before an interruption.
    pub spent: Spending,
    /// The nearest limits among its own and its ancestors'.
    pub limits: AgentLimits,
    /// Remaining time until the nearest deadline of an ancestor.
    pub time: Option<TimeLeft>,
}

/// The rest of the time of an agent, which bounds all agents below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeLeft {
    /// The agent that has the limit.
    pub of: String,
    /// The rest.
    pub left: Duration,
}

/// A limit of the tree that was reached.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TreeLimit {
    /// Too many levels.
    #[error("{of} may have {most} levels of agents below it, and this would be one more (`limits.depth`)")]
    Depth {
        /// The agent that has the limit.
        of: String,
        /// The limit.
        most: u32,
    },
    /// Too many running agents.
    #[error("{most} agents run below {of}, and no more may run at once (`limits.live`)")]
    Live {
        /// The agent that has the limit.
        of: String,
        /// The limit.
        most: u32,
    },
    /// Too many agents in total.
    #[error("{most} agents were started below {of}, and no more may be (`limits.agents`)")]
    Agents {
        /// The agent that has the limit.
        of: String,
        /// The limit.
        most: u32,
    },
    /// Too many tokens.
    #[error(
        "{of} and the agents below it have used {used} tokens, and the next request would exceed the limit of {most} \
         (`limits.tokens`)"
    )]
    Tokens {
        /// The agent that has the limit.
        of: String,
        /// Tokens used or reserved.
        used: u64,
        /// The limit.
        most: u64,
    },
    /// Too much money.
    #[error(
        "{of} and the agents below it have cost {used:.4} US dollars, and the next request would exceed the limit of \
         {most} (`limits.cost`)"
    )]
    Cost {
        /// The agent that has the limit.
        of: String,
        /// Money used or reserved, in US dollars.
        used: f64,
        /// The limit.
        most: f64,
    },
    /// The time is over.
    #[error("{of} has reached its time limit (`limits.time`)")]
    Time {
        /// The agent that has the limit.
        of: String,
    },
    /// A limit of money, and a model without a price.
    #[error("{of} has a limit of cost, and what {model} costs is not known: set models.\"{model}\".prices")]
    NoPrice {
        /// The agent that has the limit.
        of: String,
        /// The model.
        model: String,
    },
}

impl TreeLimit {
    /// The message for a model that wanted to start an agent.
    #[must_use]
    pub fn for_model(&self) -> String {
        let next = match self {
            Self::Live { .. } => "Wait until one of them has ended, or do this part yourself.",
            _ => "Do not start another agent: do the rest yourself, or give your answer.",
        };
        format!("the agent was not started: {self}. {next}")
    }
}

impl From<TreeLimit> for ToolError {
    fn from(limit: TreeLimit) -> Self {
        Self::new(ErrorKind::LimitExceeded, format!("the agent was not started: {limit}"))
            .with_model_message(limit.for_model())
    }
}

/// Checks whether `new` may start in this tree, by the limits of all its ancestors.
///
/// # Errors
/// The first exceeded limit, of the nearest ancestor first.
pub fn admit(tree: &[AgentNode], new: &NewAgent, now_ms: u64) -> Result<(), TreeLimit> {
    // A known running agent continues.
    if tree.iter().any(|node| node.id == new.id && node.live) {
        return Ok(());
    }
    let is_new = !tree.iter().any(|node| node.id == new.id);
    for (level, above) in (1..).zip(ancestors(tree, new.parent.as_deref())) {
        let of = || title(above);
        let below = || tree.iter().filter(|node| is_below(tree, node, &above.id));
        let reached = |limit: Option<u32>, count: usize| limit.filter(|&most| count >= most as usize);
        if let Some(most) = above.limits.depth.filter(|&most| level > most) {
            return Err(TreeLimit::Depth { of: of(), most });
        }
        if let Some(most) = reached(above.limits.agents.filter(|_| is_new), below().count()) {
            return Err(TreeLimit::Agents { of: of(), most });
        }
        if let Some(most) = reached(above.limits.live, below().filter(|node| node.live).count()) {
            return Err(TreeLimit::Live { of: of(), most });
        }
    }
    if let Some(TimeLeft { of, left: Duration::ZERO }) = time_left(tree, new.parent.as_deref(), now_ms) {
        return Err(TreeLimit::Time { of });
    }
    afford(tree, new.parent.as_deref(), &RequestEstimate::NOTHING)
}

/// Returns the remaining time of the agent `of`, by the nearest deadline among it and its ancestors.
#[must_use]
pub fn time_left(tree: &[AgentNode], of: Option<&str>, now_ms: u64) -> Option<TimeLeft> {
    let limited = ancestors(tree, of).filter_map(|node| Some((node.until_ms?, node)));
    let (until_ms, node) = limited.min_by_key(|(until_ms, _)| *until_ms)?;
    Some(TimeLeft { of: title(node), left: Duration::from_millis(until_ms.saturating_sub(now_ms)) })
}

/// Returns the nearest limits among those of an agent and its ancestors.
#[must_use]
pub fn nearest_limits(tree: &[AgentNode], of: &str) -> AgentLimits {
    ancestors(tree, Some(of)).fold(AgentLimits::default(), |nearest, node| nearest.within(&node.limits))
}

/// The most that a model request may use.
#[derive(Debug, Clone, Copy)]
pub struct RequestEstimate<'a> {
    /// `provider/model`.
    pub model: &'a str,
    /// Tokens of question and answer.
    pub tokens: u64,
    /// Cost of the tokens; `None` if the price is unknown.
    pub cost_usd: Option<f64>,
}

impl RequestEstimate<'static> {
    /// An empty request, to check the current usage alone.
    const NOTHING: Self = Self { model: "", tokens: 0, cost_usd: Some(0.0) };
}

/// Checks whether the agent `of` may send this request, by its own limits and those of all its ancestors.
///
/// # Errors
/// The first limit that it would exceed, the nearest first.
pub fn afford(tree: &[AgentNode], of: Option<&str>, request: &RequestEstimate<'_>) -> Result<(), TreeLimit> {
    for above in ancestors(tree, of).filter(|above| above.limits.limits_spending()) {
        let mut used = Spending::default();
        for node in tree.iter().filter(|node| node.id == above.id || is_below(tree, node, &above.id)) {
            used.add(node.spent);
            used.add(node.held);
        }
        let of = title(above);
        let is_nothing = request.tokens == 0;
        if let Some(most) = above.limits.tokens
            && (used.tokens.saturating_add(request.tokens) > most || (is_nothing && used.tokens >= most))
        {
            return Err(TreeLimit::Tokens { of, used: used.tokens, most });
        }
        match (above.limits.cost, request.cost_usd) {
            (Some(_), None) => return Err(TreeLimit::NoPrice { of, model: request.model.to_owned() }),
            (Some(most), Some(cost)) if used.cost_usd + cost > most || (is_nothing && used.cost_usd >= most) => {
                return Err(TreeLimit::Cost { of, used: used.cost_usd, most });
            }
            _ => {}
        }
    }
    Ok(())
}

/// A limit of the tree that is four fifths used, and the notice about it for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitWarning {
    /// Identifies the limit and its agent: a model gets one notice per key.
    pub key: String,
    /// The usage, and what the model should do.
    pub notice: String,
}

/// Advice for a model before its tokens or money run out.
const AT_THE_LIMIT: &str =
    "At the limit its work ends at once: finish what matters most, and give your final answer soon.";

/// The limits of tokens, money and agents of the agent `of` and its ancestors that are nearly used up.
#[must_use]
pub fn near_limits(tree: &[AgentNode], of: &str) -> Vec<LimitWarning> {
    let mut near = Vec::new();
    for above in ancestors(tree, Some(of)) {
        let AgentLimits { tokens, cost, agents, .. } = above.limits;
        let (mut used, mut count) = (Spending::default(), 0_u64);
        for node in tree {
            let below = is_below(tree, node, &above.id);
            count += u64::from(below);
            if below || node.id == above.id {
                used.add(node.spent);
                used.add(node.held);
            }
        }
        let of = title(above);
        let mut add = |limit: &str, notice| near.push(LimitWarning { key: format!("{limit} {}", above.id), notice });
        if let Some(most) = tokens.filter(|&most| is_near(used.tokens, most)) {
            add(
                "tokens",
                format!("{of} and the agents below it have used {} of {most} tokens. {AT_THE_LIMIT}", used.tokens),
            );
        }
        if let Some(most) = cost.filter(|&most| used.cost_usd >= most * 0.8) {
            let used = format!("{of} and the agents below it have cost {:.4} of {most} US dollars", used.cost_usd);
            add("cost", format!("{used}. {AT_THE_LIMIT}"));
        }
        if let Some(most) = agents.filter(|&most| is_near(count, most.into())) {
            add(
                "agents",
                format!("{count} of {most} agents were started below {of}. Start another only where you must."),
            );
        }
    }
    near
}

fn is_near(used: u64, most: u64) -> bool {
    used > 0 && used >= most - most / 5
}

/// Returns the session (also the run id) of the run that a call of `session` starts. It is always the same, so that a
/// repeated call continues its run.
#[must_use]
pub fn child_session(agent: &str, session: &SessionId, call: &CallId) -> SessionId {
    let hash = ContentHash::of_bytes(format!("{session}\n{call}").as_bytes()).to_string();
    SessionId::new(format!("{agent}_{}", hash.get(..16).unwrap_or(&hash)))
}

/// The agent `id` and its ancestors, the nearest first.
pub fn ancestors<'t>(tree: &'t [AgentNode], id: Option<&str>) -> impl Iterator<Item = &'t AgentNode> + use<'t> {
    let find = move |id: &str| tree.iter().find(|node| &*node.id == id);
    // Bounds the walk: a damaged tree could have cycles.
    std::iter::successors(id.and_then(find), move |node| find(node.parent.as_deref()?)).take(tree.len())
}

fn is_below(tree: &[AgentNode], node: &AgentNode, above: &str) -> bool {
    ancestors(tree, node.parent.as_deref()).any(|ancestor| &*ancestor.id == above)
}

fn title(node: &AgentNode) -> String {
    if node.name.is_empty() { "this run".to_owned() } else { format!("agent {}", node.name) }
}

/// Store of agent trees. Each method is one transaction, also between processes.
#[async_trait]
pub trait AgentTree: Send + Sync {
    /// Adds an agent, if [`admit`] allows it. A known agent continues with its earlier usage.
    ///
    /// # Errors
    /// [`TreeError`].
    async fn begin_agent(&self, new: NewAgent) -> Result<AgentAllowance, TreeError>;
    /// Sets the agent's usage and the reservation of its pending requests. `more` is a new request; it is reserved too,
    /// if [`afford`] allows it.
    ///
    /// # Errors
    /// [`TreeError`]; the usage is set even then.
    async fn charge_agent(
        &self,
        id: &str,
        spent: Spending,
        held: Spending,
        more: Option<RequestEstimate<'_>>,
    ) -> Result<(), TreeError>;
    /// Records that the agent has ended, and releases its reservations.
    ///
    /// # Errors
    /// Those of the store.
    async fn end_agent(&self, id: &str, spent: Spending) -> Result<(), StoreError>;
    /// Returns the tree that contains an agent, in start order.
    ///
    /// # Errors
    /// Those of the store.
    async fn agents_of(&self, id: &str) -> Result<Vec<AgentNode>, StoreError>;
}

/// Why an agent may not start or continue.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// A limit.
    #[error(transparent)]
    Limit(#[from] TreeLimit),
    /// It could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(depth: u32, live: u32, agents: u32) -> AgentLimits {
        AgentLimits { depth: Some(depth), live: Some(live), agents: Some(agents), ..AgentLimits::default() }
    }

    /// `name<parent`, with a `-` behind it if it has ended.
    fn node(written: &str, limits: AgentLimits) -> AgentNode {
        let live = !written.ends_with('-');
        let (name, parent) = written.trim_end_matches('-').split_once('<').unwrap_or((written, ""));
        let parent = Some(parent).filter(|parent| !parent.is_empty()).map(Into::into);
        let (spent, held) = (Spending::default(), Spending::default());
        AgentNode { id: name.into(), parent, name: name.into(), limits, live, spent, held, until_ms: None }
    }

    /// Checks whether an agent `new` below `parent` may start: `expect` is a part of the refusal, or empty.
    fn check(tree: &[(&str, AgentLimits)], new: &str, parent: &str, expect: &str) {
        let tree: Vec<_> = tree.iter().map(|(written, limits)| node(written, limits.clone())).collect();
        let agent = NewAgent {
            id: new.into(),
            parent: Some(parent.into()),
            name: new.into(),
            limits: AgentLimits::default(),
            starts_task: false,
            time_left: None,
        };
        let refused = admit(&tree, &agent, 0).err().map(|limit| limit.for_model()).unwrap_or_default();
        assert_eq!(refused.is_empty(), expect.is_empty(), "{new} below {parent}: {refused}");
        assert!(refused.contains(expect), "{new} below {parent}: {refused}");
    }

    #[test]
    fn every_ancestor_limits_depth_live_and_count() {
        let none = AgentLimits::default;
        check(&[("r", limits(1, 1, 1))], "a", "r", "");
        check(&[("r", limits(1, 9, 9)), ("a<r", none())], "b", "a", "agent r may have 1 levels");
        check(&[("r", limits(9, 2, 9)), ("a<r", none()), ("b<a", none())], "c", "b", "2 agents run below agent r");
        check(&[("r", limits(9, 2, 9)), ("a<r", none()), ("b<a-", none())], "c", "a", "");
        check(&[("r", limits(9, 9, 2)), ("a<r-", none()), ("b<a-", none())], "c", "r", "2 agents were started");
        check(&[("r", none()), ("a<r", limits(9, 1, 9)), ("b<a", none())], "c", "a", "below agent a");
        check(&[("r", limits(9, 9, 2)), ("a<r-", none()), ("b<r-", none())], "b", "r", "");
        check(&[("r", limits(9, 1, 1)), ("a<r", none())], "a", "r", "");
        check(&[("r", limits(9, 1, 9)), ("a<r-", none()), ("b<r", none())], "a", "r", "1 agents run");
    }

    #[test]
    fn usage_of_descendants_counts_for_ancestors() {
        let tree = |tokens: Option<u64>, cost: Option<f64>| {
            let mut tree = [
                node("r", AgentLimits { tokens, cost, ..AgentLimits::default() }),
                node("a<r-", AgentLimits::default()),
                node("b<a", AgentLimits::default()),
            ];
            tree[0].spent = Spending { tokens: 100, cost_usd: 0.1 };
            tree[1].spent = Spending { tokens: 200, cost_usd: 0.2 };
            tree[2].held = Spending { tokens: 300, cost_usd: 0.3 };
            tree
        };
        let ask = |tree: &[AgentNode], tokens, cost_usd| {
            afford(tree, Some("b"), &RequestEstimate { model: "p/m", tokens, cost_usd }).err()
        };
        assert_eq!(ask(&tree(None, None), 1 << 40, None), None);
        assert_eq!(ask(&tree(Some(700), None), 100, None), None);
        let over = TreeLimit::Tokens { of: "agent r".into(), used: 600, most: 699 };
        assert_eq!(ask(&tree(Some(699), None), 100, None), Some(over));
        assert_eq!(ask(&tree(None, Some(1.0)), 100, Some(0.3)), None);
        assert!(matches!(ask(&tree(None, Some(1.0)), 100, Some(0.5)), Some(TreeLimit::Cost { .. })));
        assert!(matches!(ask(&tree(None, Some(1.0)), 100, None), Some(TreeLimit::NoPrice { .. })));
        let new = NewAgent {
            id: "c".into(),
            parent: Some("b".into()),
            name: "c".into(),
            limits: AgentLimits::default(),
            starts_task: false,
            time_left: None,
        };
        assert!(admit(&tree(Some(601), None), &new, 0).is_ok());
        assert!(matches!(admit(&tree(Some(600), None), &new, 0), Err(TreeLimit::Tokens { .. })));
    }

    #[test]
    fn the_time_of_each_ancestor_bounds_agents() {
        let mut tree = [
            node("r", AgentLimits::default()),
            node("a<r-", AgentLimits::default()),
            node("b<a", AgentLimits::default()),
        ];
        let left =
            |tree: &[AgentNode], now| time_left(tree, Some("b"), now).map(|time| (time.of, time.left.as_millis()));
        assert_eq!(left(&tree, 0), None);
        tree[0].until_ms = Some(900);
        tree[2].until_ms = Some(1000);
        assert_eq!(left(&tree, 100), Some(("agent r".into(), 800)));
        tree[1].until_ms = Some(500);
        assert_eq!(left(&tree, 100), Some(("agent a".into(), 400)));
        assert_eq!(left(&tree, 700), Some(("agent a".into(), 0)));
        let new = |id: &str| NewAgent {
            id: id.into(),
            parent: Some("b".into()),
            name: id.into(),
            limits: AgentLimits::default(),
            starts_task: false,
            time_left: None,
        };
        assert!(admit(&tree, &new("c"), 499).is_ok());
        let over = TreeLimit::Time { of: "agent a".into() };
        assert_eq!(admit(&tree, &new("c"), 500), Err(over));
    }

    #[test]
    fn limits_that_are_nearly_used_up_are_found() {
        let check = |limits: AgentLimits, expect: &[&str]| {
            let mut tree =
                [node("r", limits), node("a<r-", AgentLimits::default()), node("b<a", AgentLimits::default())];
            tree[1].spent = Spending { tokens: 500, cost_usd: 0.5 };
            tree[2].held = Spending { tokens: 300, cost_usd: 0.3 };
            let near: Vec<String> = near_limits(&tree, "b").into_iter().map(|near| near.notice).collect();
            assert_eq!(near.len(), expect.len(), "{near:?}");
            assert!(near.iter().zip(expect).all(|(near, expect)| near.starts_with(expect)), "{near:?}");
        };
        let none = AgentLimits::default;
        check(none(), &[]);
        check(AgentLimits { tokens: Some(1001), cost: Some(1.1), agents: Some(3), ..none() }, &[]);
        check(
            AgentLimits { tokens: Some(1000), cost: Some(1.0), agents: Some(2), ..none() },
            &[
                "agent r and the agents below it have used 800 of 1000 tokens",
                "agent r and the agents below it have cost 0.8000 of 1 US dollars",
                "2 of 2 agents were started below agent r",
            ],
        );
    }
}
