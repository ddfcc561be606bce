//! Holds the rights of work that starts later, like the run of a trigger or the work of a member of a group; and the limits
//! of an agent's run.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Policy, Profile};
use crate::duration;
use crate::identity::session::Principal;
use crate::setting::TimeSpan;

/// Limits of one run of an agent. What is absent is as whoever starts it has it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentLimits {
    /// How many answers the model may give.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub turns: Option<u32>,
    /// How many tool calls it may make.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u32>,
    /// Input and output tokens that it may use, including the agents that it starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// US dollars that it may cost, including the agents that it starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub cost: Option<f64>,
    /// How long it may run, from start to end.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeSpan>")]
    pub time: Option<Duration>,
    /// How many levels of agents may be below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// How many agents below it may run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<u32>,
    /// How many agents may be started below it in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<u32>,
}

impl AgentLimits {
    /// Whether the rights have no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The creator's rights, which bound the rights of everything it starts. Kept in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rights {
    /// Its principal.
    pub principal: Principal,
    /// The creator's policy, then its outer policies. When something is started, the strictest decision of these and
    /// the current policy counts.
    pub policies: Vec<Policy>,
    /// Its tools, by id or pattern; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// The creator's limits, for each run that is started; absent limits do not apply.
    #[serde(default, skip_serializing_if = "AgentLimits::is_empty")]
    pub limits: AgentLimits,
    /// The workspace.
    pub root: PathBuf,
}

impl Rights {
    /// Combines the policies into one; `None` without policies.
    #[must_use]
    pub fn policy(&self) -> Option<Policy> {
        Policy::of_chain(&self.policies)
    }

    /// The strictest profile of the policies.
    #[must_use]
    pub fn profile(&self) -> Option<Profile> {
        self.policies.iter().map(|policy| policy.profile).reduce(Profile::stricter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Rule;

    #[test]
    fn policies_are_kept_in_order() {
        let outer = Policy { rules: vec![Rule::ask("shell:*")], ..Policy::of(Profile::Trusted) };
        let own = Policy { rules: vec![Rule::allow("fs:read"), Rule::deny("fs:*")], ..Policy::of(Profile::Ask) };
        let policy = own.under(outer);
        let rights = Rights {
            principal: Principal::owner(),
            policies: policy.chain(),
            tools: None,
            limits: AgentLimits::default(),
            root: "/".into(),
        };
        let kept: Rights = serde_json::from_str(&serde_json::to_string(&rights).expect("json")).expect("rights");
        assert_eq!(kept.policy(), Some(policy));
        assert_eq!(kept.profile(), Some(Profile::Ask));
    }
}
