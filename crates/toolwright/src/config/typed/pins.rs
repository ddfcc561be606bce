//! When definitions of others are trusted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::pins::{FirstUse, OnDrift, PinOptions};

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

impl From<PinsSection> for PinOptions {
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
