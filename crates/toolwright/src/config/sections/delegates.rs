//! The section `delegates`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

/// Which documents `_delegate` may take from URLs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DelegatesConfig {
    /// URLs whose documents `_delegate` may name. A URL that ends with `/` stands for all URLs below it. Default: none.
    /// Changing it needs a restart.
    pub urls: Vec<String>,
}

impl DelegatesConfig {
    /// Returns whether the document at a URL may be read.
    pub(crate) fn allows(&self, url: &Url) -> bool {
        let is_plain = url.username().is_empty() && url.password().is_none();
        let allows = |allowed: &Url| {
            let same = (allowed.scheme(), allowed.host_str(), allowed.port_or_known_default())
                == (url.scheme(), url.host_str(), url.port_or_known_default());
            let below = allowed.path().ends_with('/') && url.path().starts_with(allowed.path());
            same && (below || (allowed.path(), allowed.query()) == (url.path(), url.query()))
        };
        is_plain && self.urls.iter().filter_map(|allowed| Url::parse(allowed).ok()).any(|allowed| allows(&allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_allowed_by_name_or_folder() {
        let config = DelegatesConfig { urls: vec!["https://a.example/d/".into(), "https://b.example/one.json".into()] };
        for (url, expect) in [
            ("https://a.example/d/x.yaml", true),
            ("https://a.example/d/../e.yaml", false),
            ("https://a.example/dx", false),
            ("http://a.example/d/x.yaml", false),
            ("https://a.example:8443/d/x.yaml", false),
            ("https://a.example.evil/d/x.yaml", false),
            ("https://user@a.example/d/x.yaml", false),
            ("https://b.example/one.json", true),
            ("https://b.example/one.json?x=1", false),
        ] {
            assert_eq!(config.allows(&Url::parse(url).expect("url")), expect, "{url}");
        }
    }
}
