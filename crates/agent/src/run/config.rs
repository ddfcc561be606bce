//! The fixed configuration of a run: its model, tools and limits, and the notices when a limit is near.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::RunInput;
use toolwright_core::agents::prompt::Prompt;
use toolwright_core::agents::{AgentConfig, AgentLimits, OnChildren, Rights, Router, TimeLeft};
use toolwright_core::catalogue::Entry;
use toolwright_core::duration;
use toolwright_core::exposure::Exposure;
use toolwright_core::model::{RequestSettings, Usage};

use super::ClientRunOptions;
use crate::tools::{AgentTools, HandoffTool};

/// The default number of model answers in one task.
const DEFAULT_TURNS: u32 = 50;
/// The default number of tools picked for a task.
pub const DEFAULT_PICK_SIZE: usize = 8;

/// The fixed configuration of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// The model, `provider/model`.
    pub model: String,
    /// System prompt; see [`crate::Driver::system_prompt`].
    pub system: Prompt,
    /// Maximum tokens of one answer.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// Further settings of the model.
    #[serde(default, skip_serializing_if = "RequestSettings::is_empty")]
    pub settings: RequestSettings,
    /// Limits of each task.
    #[serde(default)]
    pub limits: Limits,
    /// When the model's calls start.
    #[serde(default)]
    pub dispatch: Dispatch,
    /// Globs on tool ids (with or without version) and wire names; empty for all tools. The run knows no others, even
    /// after it is resumed.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Globs on the tools among these that the run may not use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<String>,
    /// The agent whose run it is, if it has a definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Arc<AgentConfig>>,
    /// Restricts tools and limits of the run and of all agents that it starts or hands over to, if its principal has
    /// limited rights. The driver's options apply the other rights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rights: Option<Arc<Rights>>,
    /// The requirements of a client's request.
    #[serde(default, skip_serializing_if = "ClientRunOptions::is_empty")]
    pub client: ClientRunOptions,
    /// The model's context window in tokens, if known, so that room is made in time. If it is unknown, room is made
    /// when the API reports an overflow.
    #[serde(default)]
    pub window: Option<usize>,
    /// How the model is shown the catalogue; `None` to choose by the size of the definitions and the abilities of the
    /// model's API.
    #[serde(default)]
    pub exposure: Option<Exposure>,
    /// Tools that are shown in every exposure: globs as in `tools`.
    #[serde(default)]
    pub pinned: Vec<String>,
    /// The most tools that the exposure `pick` takes for a task, in addition to pinned, found and called ones. Fewer if
    /// their definitions are large: they may have a fiftieth of the catalogue's tokens.
    #[serde(default = "default_pick_size")]
    pub pick_size: usize,
    /// The agent's own tools that are shown.
    #[serde(default)]
    pub agent_tools: AgentTools,
    /// How room is made when the conversation approaches the window.
    #[serde(default)]
    pub context: ContextOptions,
    /// The values of references in calls, in addition to those of the session.
    #[serde(default, skip_serializing_if = "RunInput::is_empty")]
    pub input: RunInput,
}

impl RunConfig {
    /// Creates a run of this model with all tools and the usual limits.
    #[must_use]
    pub fn new(model: impl Into<String>, system: impl Into<Prompt>) -> Self {
        Self {
            model: model.into(),
            system: system.into(),
            max_tokens: None,
            temperature: None,
            settings: RequestSettings::default(),
            limits: Limits::default(),
            dispatch: Dispatch::default(),
            tools: Vec::new(),
            denied: Vec::new(),
            agent: None,
            rights: None,
            client: ClientRunOptions::default(),
            window: None,
            exposure: None,
            pinned: Vec::new(),
            pick_size: DEFAULT_PICK_SIZE,
            agent_tools: AgentTools::default(),
            context: ContextOptions::default(),
            input: RunInput::default(),
        }
    }
}

impl RunConfig {
    /// Returns the limits of the run together with the agents that it starts.
    #[must_use]
    pub fn tree_limits(&self) -> AgentLimits {
        let own = self.agent.as_ref().map(|agent| agent.limits.clone()).unwrap_or_default();
        self.rights.as_ref().map_or_else(|| own.clone(), |rights| own.within(&rights.limits))
    }

    /// Returns the tighter of the run's own limits and those that it shares with its agents.
    #[must_use]
    pub fn all_limits(&self) -> AgentLimits {
        AgentLimits::from(&self.limits).within(&self.tree_limits())
    }

    /// Returns the tools of the run's principal: globs as in [`RunConfig::tools`]; `None` for all.
    #[must_use]
    pub fn rights_tools(&self) -> Option<&[String]> {
        self.rights.as_ref()?.tools.as_deref()
    }

    /// Returns whether the run has this tool of the catalogue.
    #[must_use]
    pub fn has_tool(&self, entry: &Entry) -> bool {
        (self.tools.is_empty() || entry.is_named_by(&self.tools))
            && self.rights_tools().is_none_or(|tools| entry.is_named_by(tools))
            && !entry.is_named_by(&self.denied)
    }

    /// Returns what happens to agents that still run in the background when the model answers.
    #[must_use]
    pub fn on_children(&self) -> OnChildren {
        self.agent.as_ref().map(|agent| agent.on_children).unwrap_or_default()
    }
}

impl RunConfig {
    /// Returns the agents to which it may hand its request.
    pub(crate) fn router(&self) -> &Router {
        static NONE: Router = Router { destinations: Vec::new() };
        self.agent.as_ref().map_or(&NONE, |agent| &agent.router)
    }

    /// Whether the run may hand its request to `agent`.
    pub(crate) fn may_hand_to(&self, agent: &str) -> bool {
        self.router().destination(agent).is_some() || self.agent_tools.hands_back_to.as_deref() == Some(agent)
    }

    /// Returns the tool that hands its request over, if allowed.
    pub(crate) fn handoff(&self) -> Option<HandoffTool> {
        HandoffTool::new(self.router(), self.agent_tools.hands_back_to.as_deref())
    }
}

fn default_pick_size() -> usize {
    DEFAULT_PICK_SIZE
}

/// When the calls of a model's answer start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dispatch {
    /// By the caller: `run` stops and prints the calls, `run --resume` lets them run.
    // The run stops with the calls as values. It continues after [`super::RunState::dispatch`], or with outcomes from
    // elsewhere by [`super::RunState::on_tools`].
    Manual,
    /// When the answer is complete.
    #[default]
    TurnEnd,
    /// As soon as a call is written, if it is valid and needs no approval. All others start when the answer is complete.
    // A call that starts has a schema and no references, and is within the limits. If the answer breaks off, started
    // calls end and their results are kept.
    Streaming,
}

/// How `run` and `chat` make room in a conversation that comes near its model's window (`models.<name>.window`): old
/// results give way to handles, then the oldest turns to a summary and facts, then the next turn is the last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContextOptions {
    /// Whether a model may summarise the oldest turns, with `llm:summarize` and `llm:fact-extract`.
    pub summarize: bool,
    /// The model that summarises, `provider/model`. Default: the model of the run.
    // The conversation is sent to no other model unless it is named here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How much is kept when a conversation is shortened, as a share of what a request may hold. With a smaller share
    /// it is shortened less often, so that the provider's prompt cache stays valid for longer.
    #[schemars(range(min = 0.2, max = 0.8))]
    pub target: f64,
}

impl Default for ContextOptions {
    fn default() -> Self {
        Self { summarize: true, model: None, target: 0.5 }
    }
}

/// Limits of one task, which is the work on one message of the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Model answers; 0 counts as 1. A notice tells the model when two and one are left; in the last one it may not
    /// call tools.
    pub turns: u32,
    /// Calls, including refused ones. Once they are used up, the next turn is the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u32>,
    /// Time from the first step, including waits for model, tools and people. A notice tells the model once at four
    /// fifths.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    pub time: Option<Duration>,
    /// Input and output tokens of all turns, of repairs and of the calls' own requests to models; checked between
    /// turns. A notice tells the model once at four fifths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { turns: DEFAULT_TURNS, calls: None, time: None, tokens: None }
    }
}

impl From<&Limits> for AgentLimits {
    fn from(limits: &Limits) -> Self {
        let Limits { turns, calls, time, tokens } = *limits;
        Self { turns: Some(turns), calls, time, tokens, ..Self::default() }
    }
}

/// A notice to the model before its next turn.
pub(super) struct TurnNotice {
    pub(super) text: String,
    /// Whether that turn is the last, in which calls do not run.
    pub(super) last: bool,
}

/// Returns the notice before a last turn.
pub(super) fn last_turn(why: &str) -> TurnNotice {
    let text = format!(
        "[toolwright notice] {why}: calls no longer run. Give your final answer now; say what is done, and what is not."
    );
    TurnNotice { text, last: true }
}

impl Limits {
    /// Returns the tighter of each of these limits and of `outer`.
    #[must_use]
    pub fn within(&self, outer: &AgentLimits) -> Self {
        let AgentLimits { turns, calls, time, tokens, .. } = AgentLimits::from(self).within(outer);
        Self { turns: turns.unwrap_or(self.turns), calls, time, tokens }
    }

    /// Returns the reason why the model is not asked again.
    pub(super) fn exhausted(&self, turns: u32, usage: &Usage) -> Option<String> {
        if turns >= self.turns.max(1) {
            return Some(self.turn_limit_reason());
        }
        let used = usage.tokens();
        self.tokens.filter(|&limit| used >= limit).map(|limit| format!("the limit of {limit} tokens was reached"))
    }

    /// Returns the notice once four fifths of the time or tokens are used: these limits end a run at once.
    pub(super) fn near(&self, time: Option<Duration>, elapsed: Duration, usage: &Usage) -> Option<TurnNotice> {
        let used = usage.input_tokens.saturating_add(usage.output_tokens);
        let tokens = self.tokens.filter(|&limit| used >= limit - limit / 5).map(|limit| format!("{limit} tokens"));
        let time = time.filter(|&limit| elapsed >= limit / 5 * 4);
        let what = tokens.or_else(|| Some(format!("{} that this task may take", duration::format(time?))))?;
        let text = format!(
            "[toolwright notice] Four fifths of the {what} are used up. When nothing is left, the run ends at once. Finish what \
             matters most, and give your final answer soon."
        );
        Some(TurnNotice { text, last: false })
    }

    /// Returns the notice before a turn, after this many turns and calls.
    pub(super) fn notice(&self, turns: u32, calls: usize) -> Option<TurnNotice> {
        match self.turns.max(1).saturating_sub(turns) {
            1 => Some(last_turn("This is your last turn")),
            _ if self.calls_left(calls) == 0 => Some(last_turn("All calls of this run are used up")),
            2 => Some(TurnNotice {
                text: "[toolwright notice] Two turns are left. Calls run only in the first of them. Finish what matters most."
                    .into(),
                last: false,
            }),
            _ => None,
        }
    }

    /// Returns how many calls are left after this many.
    pub(super) fn calls_left(&self, calls: usize) -> usize {
        let limit = self.calls.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        limit.saturating_sub(calls)
    }

    /// Returns the reason why a turn was the last, for a model that still called tools in it.
    pub(super) fn last_turn_reason(&self, turns: u32) -> String {
        match self.calls {
            Some(limit) if turns < self.turns.max(1) => format!("the limit of {limit} calls was reached"),
            _ => self.turn_limit_reason(),
        }
    }

    /// Returns the reason why the time is over; `above`: the agent above whose time limits the run.
    pub(super) fn time_limit_reason(&self, above: Option<&TimeLeft>) -> String {
        match (self.time, above) {
            (own, Some(above)) if own.is_none_or(|own| above.left < own) => {
                format!("the time of {} was over (`limits.time`)", above.of)
            }
            (Some(limit), _) => format!("the time limit of {} was reached", duration::format(limit)),
            (None, _) => "a limit of the run was reached".into(),
        }
    }

    fn turn_limit_reason(&self) -> String {
        format!("the limit of {} turns was reached", self.turns.max(1))
    }
}
