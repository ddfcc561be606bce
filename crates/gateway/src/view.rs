//! What a client asked to see: which part of the catalogue, and how it is put before it.

use std::str::FromStr;
use std::sync::Arc;

use toolwright_core::catalogue::Provider;
use toolwright_core::pattern::allowed_by;
use toolwright_core::policy::Profile;

/// How the catalogue is put before clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Expose {
    /// All tools are listed.
    #[default]
    Direct,
    /// Three tools are listed that find, describe and call the others, and those that are pinned. The others
    /// run all the same when they are called.
    Search,
}

impl FromStr for Expose {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, String> {
        match written {
            "direct" => Ok(Self::Direct),
            "search" => Ok(Self::Search),
            _ => Err("expose is `direct` or `search`".into()),
        }
    }
}

impl Expose {
    /// What the query of an address says; the last word counts, and other parameters are not looked at.
    ///
    /// # Errors
    /// The message for another value.
    pub(crate) fn in_query(query: &str) -> Result<Option<Self>, String> {
        let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.filter(|(key, _)| *key == "expose").map(|(_, value)| value.parse()).next_back().transpose()
    }
}

/// In which form input schemas are listed. Calls are checked against the tool's own schema either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ListedSchemas {
    /// In the form that every client in use takes, see [`Portable`](toolwright_models::dialect::Portable).
    #[default]
    Portable,
    /// As their sources give them, with only those keywords at the root mended by which clients refuse a whole list.
    Raw,
}

/// A part of the catalogue that the operator has made and named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewOptions {
    /// Its name, which is its address: `/mcp/{name}`. No provider may have it.
    pub name: String,
    /// What is in it, as globs on wire names (`github__*`); empty: everything. Methods are named as tools are:
    /// `github__resources_read` stands for a server's resources, their lists and subscriptions to them included, and
    /// `github__prompts_get` for its prompts and their list.
    pub allowed: Vec<String>,
    /// What of it is not; `github__resources_list` or `github__resources_subscribe` takes that alone away.
    pub denied: Vec<String>,
    /// How tools are put before a client that does not say.
    pub expose: Option<Expose>,
    /// In which form input schemas are listed; without one as [`GatewayOptions::schemas`](crate::GatewayOptions::schemas)
    /// says.
    pub schemas: Option<ListedSchemas>,
    /// What decides where no rule of the gateway's policy does; without one that policy's own profile.
    pub profile: Option<Profile>,
    /// Who may use it: principals with one of these roles, and the owner; empty: everybody.
    pub roles: Vec<String>,
}

impl ViewOptions {
    /// Whether a tool or method of this wire name is in it.
    pub(crate) fn shows(&self, wire_name: &str) -> bool {
        allowed_by(&self.allowed, &self.denied, wire_name)
    }

    /// Whether this wire name is among what is not in it.
    pub(crate) fn denies(&self, wire_name: &str) -> bool {
        !allowed_by(&[], &self.denied, wire_name)
    }
}

/// A part of the catalogue that has an address of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    /// `/mcp` and stdio: everything, under wire names.
    Whole,
    /// `/mcp/{provider}`: one provider, under its own names.
    Provider(Arc<str>),
    /// `/mcp/{view}`: what a configured view lets through, under wire names.
    View(Arc<str>),
}

impl Scope {
    /// Its path.
    pub(crate) fn path(&self) -> String {
        match self {
            Self::Whole => "/mcp".into(),
            Self::Provider(name) | Self::View(name) => format!("/mcp/{name}"),
        }
    }

    /// Whether anything of a provider can be in it.
    pub(crate) fn may_have(&self, provider: &dyn Provider) -> bool {
        match self {
            Self::Whole | Self::View(_) => true,
            Self::Provider(name) => provider.name() == &**name,
        }
    }
}

/// What one client sees.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct View {
    /// Of which part.
    pub(crate) scope: Scope,
    /// How.
    pub(crate) expose: Expose,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_how_tools_are_exposed() {
        for (query, expect) in [
            ("", Ok(None)),
            ("a=b&exposed=x", Ok(None)),
            ("expose=search", Ok(Some(Expose::Search))),
            ("expose=search&x&expose=direct", Ok(Some(Expose::Direct))),
            ("x=1&expose", Err(())),
            ("expose=Search", Err(())),
            ("expose=pick", Err(())),
        ] {
            assert_eq!(Expose::in_query(query).map_err(drop), expect, "{query}");
        }
    }
}
