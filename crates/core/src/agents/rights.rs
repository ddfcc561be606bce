//! On whose behalf something works later, like what a trigger starts or a member of a group.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::AgentLimits;
use crate::identity::session::Principal;
use crate::policy::{Profile, Rule};

/// What its creator may do: what it starts may do as much, and never more. Kept in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rights {
    /// Its principal.
    pub principal: Principal,
    /// What decides where no rule of policy matches.
    pub profile: Profile,
    /// The rules that deny calls of its creator. They stand before those of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Its tools, by id or pattern; empty: all.
    pub tools: Vec<String>,
    /// The limits of its creator, for each run that is started.
    #[serde(default, skip_serializing_if = "AgentLimits::is_empty")]
    pub limits: AgentLimits,
    /// The workspace.
    pub root: PathBuf,
}
