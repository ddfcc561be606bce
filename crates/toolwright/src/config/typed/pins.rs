//! What is done about definitions of others: how they are shown, and when they are trusted.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::pins::{FirstUse, OnDrift, PinTerms};

/// `pins`. Every definition of an MCP server, a document from elsewhere or a remote catalogue is pinned by its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PinsSection {
    /// What happens to a definition that was never seen.
    pub first_use: FirstUseSetting,
    /// What happens to a definition that is not what was pinned.
    pub drift: DriftSetting,
}

/// What happens to a definition that was never seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FirstUseSetting {
    /// It is pinned and offered.
    #[default]
    Pin,
    /// It is withheld until `toolwright pins approve`.
    Ask,
}

/// What happens to a definition that is not what was pinned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriftSetting {
    /// It is withheld until `toolwright pins approve`.
    #[default]
    Withhold,
    /// It is offered as it is now, with a warning.
    Warn,
}

impl From<PinsSection> for PinTerms {
    fn from(section: PinsSection) -> Self {
        Self {
            first_use: match section.first_use {
                FirstUseSetting::Pin => FirstUse::Pin,
                FirstUseSetting::Ask => FirstUse::Ask,
            },
            drift: match section.drift {
                DriftSetting::Withhold => OnDrift::Withhold,
                DriftSetting::Warn => OnDrift::Warn,
            },
        }
    }
}

/// `tools` of a server: how its tools are shown, by the names that the server has for them; or, as some other clients
/// have it, a list of the tools that are offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ServerTools {
    /// How they are shown.
    Shown(IndexMap<String, ShownTool>),
    /// Other clients' word for `tools_allowed`.
    Allowed(Vec<String>),
}

/// How a tool of a server is shown. What it is, and what is pinned of it, stays as its server says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ShownTool {
    /// Its name for models and clients, behind the server's prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What it does, for the model that chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Labels for search, filters and policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Other names under which a model may call it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
}
