//! Identifies the caller and the session. Handles, jobs, approvals and read-before-write state belong to them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a text; any text is an id.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

text_id! {
    /// Id of one call, as the model or client gave it; unique within its turn.
    CallId
}
text_id! {
    /// Id of a session: a run, a process, a connection or an MCP session.
    SessionId
}

/// The program at the other end of a connection on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerProcess {
    /// Run by this process's user, and not started by Toolwright.
    Owners,
    /// Started by Toolwright, directly or indirectly: it makes no decisions in its owner's name.
    Nested,
    /// Run by another user, or not found.
    Unknown,
}

/// A configured identity: the owner of the machine, or a token's subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// Stable name, for the ledger.
    pub id: String,
    /// Roles it has; a tool with `allowed_roles` needs one of them.
    pub roles: Vec<String>,
    /// Whether it is the owner: CLI and stdio callers are.
    pub owner: bool,
}

impl Principal {
    /// The id of the owner. No token has this name, because stored objects belong to an id.
    pub const OWNER: &str = "owner";

    /// The owner, who passes every role check.
    #[must_use]
    pub fn owner() -> Self {
        Self { id: Self::OWNER.into(), roles: Vec::new(), owner: true }
    }

    /// Whether this principal may use a tool limited to `allowed` roles (empty: all roles).
    #[must_use]
    pub fn may_use(&self, allowed: &[String]) -> bool {
        allowed.is_empty() || self.owner || allowed.iter().any(|role| self.roles.contains(role))
    }
}

/// A session. Cheap to clone; immutable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its id; output handles start with it.
    pub id: SessionId,
    /// The principal of the session.
    pub principal: Principal,
    /// Workspace root: relative paths resolve here, and the path guard keeps writes inside.
    pub root: PathBuf,
    /// Name of the agent that runs in it, if one does.
    pub agent: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_open_tools() {
        let roles = ["dev".to_owned()];
        let guest = Principal { id: "g".into(), roles: vec![], owner: false };
        let dev = Principal { roles: vec!["dev".into()], ..guest.clone() };
        assert!(guest.may_use(&[]) && !guest.may_use(&roles));
        assert!(dev.may_use(&roles) && Principal::owner().may_use(&roles));
    }
}
