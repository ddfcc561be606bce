//! Built-in tools of the namespace `web`.

mod blocks;
mod cache;
mod fetch;
mod markdown;
mod pdf;
mod search;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::setting::{CacheTtl, TimeSpan};
use toolwright_core::{Tool, duration};

use toolwright_net::{AddressPolicy, HttpClient, HttpOptions};

pub use fetch::WebFetch;
pub use search::{SearchApi, SearchEngine};

/// Which addresses `web__fetch` and REST tools may reach, and the bounds of `web__fetch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WebConfig {
    /// Addresses that are open besides public ones.
    #[serde(flatten)]
    pub address: AddressPolicy,
    /// Bytes of a page that `web__fetch` reads unless a call asks for another number.
    #[schemars(range(min = 256))]
    pub max_bytes: usize,
    /// Limit of one `web__fetch`.
    #[serde(with = "duration::required")]
    #[schemars(with = "TimeSpan")]
    pub timeout: Duration,
    /// How long `web__fetch` caches a page, where the page's server allows it: a duration, or `off`. Default 5m.
    pub cache: CacheTtl,
    /// The engines of `web__search`, asked in order until one answers. Without one, the tool is not listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<SearchEngine>,
}

impl Default for WebConfig {
    fn default() -> Self {
        Self {
            address: AddressPolicy::default(),
            max_bytes: 2 << 20,
            timeout: Duration::from_secs(30),
            cache: CacheTtl(Some(Duration::from_secs(300))),
            search: Vec::new(),
        }
    }
}

/// Returns the tools: `web:fetch`, and `web:search` if there are engines. Nothing is built or connected before the
/// first call.
#[must_use]
pub fn tools(options: &WebConfig) -> Vec<Arc<dyn Tool>> {
    tools_with(options, HttpOptions::default())
}

/// Like [`tools`], with the caller's resolver and proxies.
#[must_use]
pub fn tools_with(options: &WebConfig, http: HttpOptions) -> Vec<Arc<dyn Tool>> {
    let client = |http| HttpClient::new(options.address.clone(), http);
    let mut tools: Vec<Arc<dyn Tool>> = vec![Arc::new(WebFetch::new(client(http.clone()), options))];
    if !options.search.is_empty() {
        tools.push(Arc::new(search::WebSearch::new(client(http), options.search.clone(), options.timeout)));
    }
    tools
}
