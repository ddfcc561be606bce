//! Defines the store of groups: permanent agents, each with a mailbox, and the channels that deliver to them.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::StoreError;
use crate::duration::iso;
use crate::error::Unsupported;
use crate::identity::session::{Session, SessionId};
use crate::policy::Rights;

/// Members that one principal may have.
pub const MAX_MEMBERS: usize = 64;

/// Ids of the tools that change a group, without version. Only privileged members have them.
pub const CHANGES: [&str; 6] =
    ["group:add_agent", "group:remove_agent", "group:start", "group:stop", "group:channel", "group:wire"];

/// Prefix of a member's session in the name of its claim.
pub const CLAIM: &str = "group/";

/// The state of a member that is started, and that no process drives.
const UNSERVED: &str = "unserved";

/// An agent of a group. It is driven whenever its mailbox has mail, by any process that drives groups, while it is started.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Its name, unique for its principal.
    pub name: String,
    /// Its owner and rights: those of whoever added it.
    pub rights: Rights,
    /// The agent's name in the configuration; empty for the default model with instructions alone.
    pub agent: String,
    /// Additional instructions.
    pub instructions: Option<String>,
    /// Its session, which is also its mailbox and the id of its saved run.
    pub session: SessionId,
    /// Whether it may change the group.
    pub privileged: bool,
    /// Whether it should be driven.
    pub started: bool,
    /// Whether a living process that drives the groups of its workspace has claimed it. Set by the store.
    pub is_driven: bool,
    /// Creation time, in milliseconds since the epoch.
    pub created_ms: u64,
    /// Messages that wait for it.
    pub waiting: u64,
}

impl Member {
    /// Formats it for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "agent": self.agent,
            "session": self.session,
            "state": self.state(),
            "root": self.rights.root,
            "privileged": self.privileged,
            "waiting": self.waiting,
            "created": iso(self.created_ms),
        })
    }

    /// Formats it as a line.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { name, waiting, .. } = self;
        let agent = if self.agent.is_empty() { String::new() } else { format!(" ({})", self.agent) };
        let root = self.rights.root.display();
        let state = match self.state() {
            UNSERVED => format!("started, but no process serves its workspace {root}: run `toolwright serve` there"),
            state => state.to_owned(),
        };
        format!("{name}{agent} is {state}; {waiting} messages wait")
    }

    fn state(&self) -> &'static str {
        match (self.started, self.is_driven) {
            (false, _) => "stopped",
            (true, true) => "started",
            (true, false) => UNSERVED,
        }
    }

    /// Returns the name that its driving process claims.
    #[must_use]
    pub fn claim(&self) -> String {
        format!("{CLAIM}{}", self.session)
    }
}

/// Whether a session may change the group of its principal: the person's own sessions, privileged members, and runs of
/// the agents in `privileged`. For an agent started by others, the whole chain must be privileged, which shows in its
/// tools ([`CHANGES`]).
#[must_use]
pub fn is_privileged(session: &Session, members: &[Member], privileged: &[String]) -> bool {
    match members.iter().find(|member| member.session == session.id) {
        Some(member) => member.privileged,
        None => session.agent.as_ref().is_none_or(|agent| privileged.contains(agent)),
    }
}

/// Stores members of groups and their wiring. Every method commits before it returns.
#[async_trait]
pub trait Groups: Send + Sync {
    /// Adds a member, stopped.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when its name is taken, [`StoreError::Quota`] beyond [`MAX_MEMBERS`].
    async fn add(&self, _member: Member) -> Result<(), StoreError> {
        Err(Unsupported("groups").into())
    }

    /// Removes a member and its wiring.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    async fn remove(&self, _principal: &str, _name: &str) -> Result<(), StoreError> {
        Err(Unsupported("groups").into())
    }

    /// Starts or stops a member.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    async fn set_started(&self, _principal: &str, _name: &str, _started: bool) -> Result<(), StoreError> {
        Err(Unsupported("groups").into())
    }

    /// The members of a principal, or of all, by name.
    async fn members(&self, _principal: Option<&str>) -> Result<Vec<Member>, StoreError> {
        Err(Unsupported("groups").into())
    }

    /// Starts or stops copying messages that others write to the mailbox `from` to `to`.
    async fn wire(&self, _from: &SessionId, _to: &SessionId, _is_wired: bool) -> Result<(), StoreError> {
        Err(Unsupported("groups").into())
    }
}

/// Without groups.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoGroups;

impl Groups for NoGroups {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::session::Principal;
    use crate::policy::{AgentLimits, Policy, Profile};

    #[test]
    fn persons_and_privileged_members_change_groups() {
        let member = |name: &str, privileged| Member {
            name: name.into(),
            rights: Rights {
                principal: Principal::owner(),
                policies: vec![Policy::of(Profile::Ask)],
                tools: None,
                limits: AgentLimits::default(),
                root: "/".into(),
            },
            agent: "scout".into(),
            instructions: None,
            session: SessionId::new(name),
            privileged,
            started: true,
            is_driven: true,
            created_ms: 0,
            waiting: 0,
        };
        let members = [member("lead", true), member("hand", false)];
        let session = |id: &str, agent: Option<&str>| Session {
            id: SessionId::new(id),
            principal: Principal::owner(),
            root: "/".into(),
            agent: agent.map(str::to_owned),
        };
        for (id, agent, expect) in [
            ("chat", None, true),
            ("other", Some("scout"), false),
            ("lead", Some("scout"), true),
            ("hand", None, false),
            ("hand", Some("boss"), false),
            ("other", Some("boss"), true),
        ] {
            assert_eq!(is_privileged(&session(id, agent), &members, &["boss".into()]), expect, "{id}");
        }
    }
}
