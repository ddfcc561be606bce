//! `catalogues`: signed tools from elsewhere.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::catalogue::ToolOverride;

use toolwright_core::setting::TimeSpan;

/// One remote catalogue. Its name here is the namespace of its tools, and must be the one that is signed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CatalogueEntry {
    /// Whether it is used. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Where it is fetched, over https.
    pub url: String,
    /// Public keys that are believed, `ed25519:…`; one good signature is enough.
    pub keys: Vec<String>,
    /// How often it is fetched again. Default 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<TimeSpan>,
    /// Its size at most, in bytes. Default 4 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 256, max = 67_108_864))]
    pub max_bytes: Option<usize>,
    /// Environment variables whose values its tools may send, as `${NAME}` in headers, query and body. Tools that name
    /// others are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Tools that are offered, as globs without regard to case; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools_allowed: Vec<String>,
    /// Tools that are not offered, as globs; counts after `tools_allowed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools_denied: Vec<String>,
    /// How single tools are shown, by their names in the catalogue.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, ToolOverride>,
    /// Whether its own word that a tool only reads may loosen policy. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted: Option<bool>,
    /// Whether private addresses are open to it and its tools. Default false, whatever `web` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_private: Option<bool>,
    /// Hosts that are open all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<String>,
    /// Whether plain http will do on this machine's loopback addresses. For tests. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insecure_loopback: Option<bool>,
}
