//! Views: the part of the catalogue that a client sees, and how its tools are exposed.

use std::str::FromStr;
use std::sync::Arc;

use toolwright_core::catalogue::Provider;
use toolwright_core::pattern::allowed_by;
use toolwright_core::policy::Profile;

/// How tools are exposed to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Expose {
    /// All tools are listed.
    #[default]
    Direct,
    /// Only three tools that find, describe and call the others are listed, and the pinned ones. A client may call the
    /// others all the same.
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
    /// The `expose` parameter of a query. The last one counts; other parameters are ignored.
    ///
    /// # Errors
    /// The message for another value.
    pub(crate) fn in_query(query: &str) -> Result<Option<Self>, String> {
        let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.filter(|(key, _)| *key == "expose").map(|(_, value)| value.parse()).next_back().transpose()
    }
}

/// The form in which input schemas are listed. Calls are checked against the tool's own schema either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ListedSchemas {
    /// The form that every known client accepts, see [`Portable`](toolwright_models::dialect::Portable).
    #[default]
    Portable,
    /// As the source gives them, except for root keywords that make clients reject a whole list.
    Raw,
}

/// A named part of the catalogue with its own address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewOptions {
    /// Its name and address: `/mcp/{name}`. No provider may have the same name.
    pub name: String,
    /// What it contains, as globs on wire names (`github__*`); empty: everything. Methods are named like tools:
    /// `github__resources_read` stands for a server's resources, their lists and subscriptions included, and
    /// `github__prompts_get` for its prompts and their list.
    pub allowed: Vec<String>,
    /// What it excludes; `github__resources_list` or `github__resources_subscribe` excludes that method alone.
    pub denied: Vec<String>,
    /// How tools are exposed where the client does not choose.
    pub expose: Option<Expose>,
    /// The form in which input schemas are listed; `None`: as [`GatewayOptions::schemas`](crate::GatewayOptions::schemas)
    /// says.
    pub schemas: Option<ListedSchemas>,
    /// Decides where no rule of the gateway's policy does; `None`: that policy's own profile.
    pub profile: Option<Profile>,
    /// Roles that may use it, besides the owner; empty: everybody.
    pub roles: Vec<String>,
}

impl ViewOptions {
    /// Whether it contains a tool or method of this wire name.
    pub(crate) fn shows(&self, wire_name: &str) -> bool {
        allowed_by(&self.allowed, &self.denied, wire_name)
    }

    /// Whether it excludes this wire name explicitly.
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

    /// Whether it can contain anything of a provider.
    pub(crate) fn may_have(&self, provider: &dyn Provider) -> bool {
        match self {
            Self::Whole | Self::View(_) => true,
            Self::Provider(name) => provider.name() == &**name,
        }
    }
}

/// What a client sees: a part of the catalogue, and how its tools are exposed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct View {
    pub(crate) scope: Scope,
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
