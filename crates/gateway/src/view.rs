//! Views: the part of the catalogue that a client sees, and how its tools are exposed.

use std::str::FromStr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::catalogue::Provider;
use toolwright_core::pattern::allowed_by;
use toolwright_core::policy::Profile;

/// How the catalogue is put before clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Expose {
    /// All are listed.
    #[default]
    Direct,
    /// Three tools that find, describe and call them are.
    // Pinned tools are listed too. All other tools can still be called.
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
    /// Parses the `expose` parameter of a query. The last one counts; other parameters are ignored.
    ///
    /// # Errors
    /// The message for an invalid value.
    pub(crate) fn in_query(query: &str) -> Result<Option<Self>, String> {
        let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.filter(|(key, _)| *key == "expose").map(|(_, value)| value.parse()).next_back().transpose()
    }
}

/// In which form the schemas of arguments are listed.
// Calls are checked against the tool's own schema either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ListedSchemas {
    /// In one that every client takes.
    // See [`PortableSchema`](toolwright_models::dialect::Portable).
    #[default]
    Portable,
    /// As their sources give them.
    // Changes only keywords at the root that make clients refuse the whole list.
    Raw,
}

/// One view: a part of the catalogue at an address of its own, `/mcp/{name}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ViewConfig {
    /// Its name, which is its address: `/mcp/{name}`. No provider may have it. It is the entry's key in a configuration.
    #[serde(skip)]
    pub name: String,
    /// Tools in it, as globs on the names that clients see (`github__*`). The name `github__resources_read` stands for
    /// a server's resources and their list, `github__prompts_get` for its prompts and their list. Default: all.
    #[serde(rename = "allow")]
    pub allowed: Vec<String>,
    /// Tools that are not in it, as globs.
    // `github__resources_list` or `github__resources_subscribe` denies that method alone.
    #[serde(rename = "deny")]
    pub denied: Vec<String>,
    /// How its tools are shown to clients: `direct` or `search`. Default: as `serve --expose` says.
    // A client may override this in its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expose: Option<Expose>,
    /// Form in which its schemas are listed: `portable` or `raw`. Default: as `server.schemas` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schemas: Option<ListedSchemas>,
    /// The profile that decides calls that no rule of `policy` matches. Default: the one of the whole server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Clients that may use it, by role. Default: all.
    pub roles: Vec<String>,
}

impl ViewConfig {
    /// Returns whether the view contains the tool or method with this wire name.
    pub(crate) fn shows(&self, wire_name: &str) -> bool {
        allowed_by(&self.allowed, &self.denied, wire_name)
    }

    /// Returns whether the view excludes this wire name explicitly.
    pub(crate) fn denies(&self, wire_name: &str) -> bool {
        !allowed_by(&[], &self.denied, wire_name)
    }
}

/// A part of the catalogue with its own address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    /// `/mcp` and stdio: everything, under wire names.
    Whole,
    /// `/mcp/{provider}`: one provider, under its own names.
    Provider(Arc<str>),
    /// `/mcp/{view}`: the part that a configured view allows, under wire names.
    View(Arc<str>),
}

impl Scope {
    /// Returns its path.
    pub(crate) fn path(&self) -> String {
        match self {
            Self::Whole => "/mcp".into(),
            Self::Provider(name) | Self::View(name) => format!("/mcp/{name}"),
        }
    }

    /// Returns whether the scope can contain anything of this provider.
    pub(crate) fn may_have(&self, provider: &dyn Provider) -> bool {
        match self {
            Self::Whole | Self::View(_) => true,
            Self::Provider(name) => provider.name() == &**name,
        }
    }
}

/// The part of the catalogue that a client sees, and how its tools are exposed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct View {
    pub(crate) scope: Scope,
    pub(crate) expose: Expose,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_sets_the_tool_exposure() {
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
