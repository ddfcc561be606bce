//! Configures the calls and the description of single tools, in one way for every source of tools.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Mode, ToolDefinition};
use crate::base::setting::TimeSpan;
use crate::duration;

/// How a tool is called and explained. What is `None` is as its source says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Guidance {
    /// How its results come back: `direct` in the turn, `background` as a job, `stateful` step by step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Time after which a call that still runs becomes a background job.
    #[serde(alias = "autoBackgroundAfter", with = "duration::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeSpan>")]
    pub auto_background_after: Option<Duration>,
    /// Its manual, which `job__info` returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documentation: Option<String>,
    /// Whether a model must read the manual before its first call.
    #[serde(alias = "manualRequired", skip_serializing_if = "Option::is_none")]
    pub manual_required: Option<bool>,
    /// A hint paragraph for the system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contribution: Option<String>,
    /// The most that one call costs, in US dollars. The check of plans uses it.
    #[serde(alias = "costHint", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub cost_hint: Option<Value>,
}

impl Guidance {
    /// Overrides the definition's values.
    pub fn apply(&self, definition: &mut ToolDefinition) {
        let Self { mode, auto_background_after, documentation, manual_required, contribution, cost_hint } = self;
        definition.mode = mode.unwrap_or(definition.mode);
        definition.auto_background_after = auto_background_after.or(definition.auto_background_after);
        definition.manual_required = manual_required.unwrap_or(definition.manual_required);
        if cost_hint.is_some() {
            definition.cost_hint.clone_from(cost_hint);
        }
        for (override_text, own) in
            [(documentation, &mut definition.documentation), (contribution, &mut definition.contribution)]
        {
            if override_text.is_some() {
                own.clone_from(override_text);
            }
        }
    }
}

/// The limits of a single tool's calls. An absent one is the tool's own, or else that of `defaults`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolLimits {
    /// The queue that its calls wait in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Time limit of one call. Default: the tool's own, or `defaults.tool_timeout`.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeSpan>")]
    pub timeout: Option<Duration>,
    /// How long a call may run without a progress report. Default: the tool's own, or `defaults.idle_timeout`.
    #[serde(alias = "idleTimeout", with = "duration::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeSpan>")]
    pub idle_timeout: Option<Duration>,
    /// How often a failed call is retried. Only a call that was not sent, or whose effects are `read_only` or
    /// `idempotent`, is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 10))]
    pub retries: Option<u32>,
    /// Longest text of a result, in bytes. Default: the tool's own, or `defaults.tool_response_max_bytes`.
    #[serde(alias = "maxOutput", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 256))]
    pub max_output: Option<usize>,
}

impl ToolLimits {
    /// Fills absent limits from `other`.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            queue: self.queue.or_else(|| other.queue.clone()),
            timeout: self.timeout.or(other.timeout),
            idle_timeout: self.idle_timeout.or(other.idle_timeout),
            retries: self.retries.or(other.retries),
            max_output: self.max_output.or(other.max_output),
        }
    }

    /// Overrides the definition's values.
    pub fn apply(&self, definition: &mut ToolDefinition) {
        let Self { queue, timeout, idle_timeout, retries, max_output } = self;
        if queue.is_some() {
            definition.queue.clone_from(queue);
        }
        definition.timeout = timeout.or(definition.timeout);
        definition.idle_timeout = idle_timeout.or(definition.idle_timeout);
        definition.retries = retries.or(definition.retries);
        definition.max_output = max_output.or(definition.max_output);
    }
}

/// What an operator says of a built-in tool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct ToolConfig {
    /// How it is called and explained.
    #[serde(flatten)]
    pub guidance: Guidance,
    /// The limits of its calls.
    #[serde(flatten)]
    pub limits: ToolLimits,
}

impl ToolConfig {
    /// Overrides the definition's values.
    pub fn apply(&self, definition: &mut ToolDefinition) {
        self.guidance.apply(definition);
        self.limits.apply(definition);
    }
}
