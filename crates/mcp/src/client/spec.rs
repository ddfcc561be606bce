//! What the client of one server is made of.

use std::fmt;
use std::sync::Arc;

use serde_json::json;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::CallLimits;
use toolwright_core::event::EventSink;
use toolwright_core::roots::Roots;
use toolwright_core::store::ManifestCache;

use super::config::{McpServerConfig, McpTransport};
use toolwright_net::Authorizer;
use toolwright_sandbox::sandbox::Sandbox;
use toolwright_sandbox::withheld_by_default;

/// One configured MCP server, and what surrounds it.
#[derive(Debug, Clone)]
pub struct McpServerSpec {
    /// Name of the entry, and of the provider.
    pub name: String,
    /// Namespace of its tools; must be legal (see [`toolwright_core::name`]).
    pub namespace: String,
    /// What defines it, see [`Provider::defined_in`](toolwright_core::catalogue::Provider::defined_in).
    pub defined_in: String,
    /// Its entry.
    pub config: McpServerConfig,
    /// Environment variables that its process does not inherit, as `*` and `?` patterns; the transport's
    /// `env` gives back what it is to have.
    pub withheld_env: Vec<String>,
    /// What its process is kept in; `None` is its user's own rights. Nothing for a URL.
    pub sandbox: Option<Sandbox>,
    /// Adds what a server at a URL demands of its callers.
    pub authorizer: Option<Arc<dyn Authorizer>>,
}

impl McpServerSpec {
    /// A server by its entry or its transport alone, its name also its namespace.
    pub fn new(name: impl Into<String>, config: impl Into<McpServerConfig>) -> Self {
        let name = name.into();
        Self {
            namespace: name.clone(),
            name,
            defined_in: String::new(),
            config: config.into(),
            withheld_env: withheld_by_default(),
            sandbox: None,
            authorizer: None,
        }
    }

    /// Limits of its calls.
    pub(crate) fn limits(&self) -> CallLimits {
        let McpServerConfig { request_timeout, idle_timeout, retries, .. } = self.config;
        CallLimits { timeout: request_timeout, idle_timeout, retries: Some(retries) }
    }

    /// Tells what it is reached by and with, secret values included, from anything else.
    pub(crate) fn credential_scope(&self) -> ContentHash {
        ContentHash::of_value(&match &self.config.transport {
            McpTransport::Stdio { command, args, env, cwd } => {
                json!({"command": command, "args": args, "env": env, "cwd": cwd})
            }
            McpTransport::Http { url, headers } => json!({"url": url, "headers": headers}),
            McpTransport::Sse { url, headers } => json!({"sse": url, "headers": headers}),
            McpTransport::WebSocket { url, headers } => json!({"ws": url, "headers": headers}),
        })
    }

    /// The same beside whoever is logged in now; `fixed` is what [`Self::credential_scope`] said.
    pub(crate) fn scope_now(&self, fixed: ContentHash) -> ContentHash {
        let identity = self.authorizer.as_ref().map(|authorizer| authorizer.identity());
        match identity.filter(|identity| !identity.is_empty()) {
            Some(identity) => ContentHash::of_value(&json!([fixed.to_string(), identity])),
            None => fixed,
        }
    }

    /// Key of its cached list: changes with what decides which tools it has, and holds no secret value.
    pub(crate) fn manifest_key(&self) -> String {
        let source = match &self.config.transport {
            McpTransport::Stdio { command, args, env, cwd } => {
                json!({"command": command, "args": args, "env": env.keys().collect::<Vec<_>>(), "cwd": cwd})
            }
            McpTransport::Http { url, headers }
            | McpTransport::Sse { url, headers }
            | McpTransport::WebSocket { url, headers } => {
                json!({"url": url, "headers": headers.keys().collect::<Vec<_>>()})
            }
        };
        let mut key = json!({"name": self.name, "source": source});
        // What another file's entry of the name was told may be meant for its account alone, and would be pinned as ours.
        if !self.defined_in.is_empty() {
            key["defined_in"] = self.defined_in.as_str().into();
        }
        format!("mcp:{}", ContentHash::of_value(&key))
    }
}

/// What a provider of the application gets.
#[derive(Clone)]
pub struct McpDeps {
    /// Keeps tool lists between runs.
    pub manifests: Arc<dyn ManifestCache>,
    /// Takes warnings.
    pub events: Arc<dyn EventSink>,
    /// What servers are told that ask for folders while no call runs.
    pub roots: Arc<Roots>,
}

impl fmt::Debug for McpDeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpDeps").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(url: &str, headers: &[(&str, &str)]) -> McpServerSpec {
        let headers = headers.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        McpServerSpec::new("s", McpTransport::Http { url: url.into(), headers })
    }

    #[test]
    fn the_manifest_key_ignores_secret_values_and_filters() {
        let one = http("http://a/mcp", &[("Authorization", "one")]);
        let mut two = http("http://a/mcp", &[("Authorization", "two")]);
        two.config.tools_denied = vec!["x".into()];
        assert_eq!(one.manifest_key(), two.manifest_key());
        assert_ne!(one.credential_scope(), two.credential_scope(), "results of two keys are not shared");
        assert_ne!(one.manifest_key(), http("http://b/mcp", &[("Authorization", "one")]).manifest_key());
        let elsewhere = McpServerSpec { defined_in: "/p/toolwright.yaml".into(), ..http("http://a/mcp", &[]) };
        assert_ne!(elsewhere.manifest_key(), http("http://a/mcp", &[]).manifest_key(), "another file's entry");
        assert!(!format!("{one:?}").contains("\"one\""));
    }
}
