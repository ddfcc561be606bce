//! What is configured for one server.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{CallLimits, ToolOverride};
use toolwright_core::event::EventSink;
use toolwright_core::roots::Roots;
use toolwright_core::store::ManifestCache;

use crate::net::Authorizer;
use crate::process::sandbox::Sandbox;
use crate::process::withheld_by_default;

/// Bound on connecting, the start of the process included: `npx` may have to download first.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a failed call is tried again unless configured otherwise.
pub const DEFAULT_RETRIES: u32 = 1;
/// Bound on one message of a server.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// One configured MCP server.
#[derive(Debug, Clone)]
pub struct McpServerSpec {
    /// Name of the entry, and of the provider.
    pub name: String,
    /// Namespace of its tools; must be legal (see [`toolwright_core::name`]).
    pub namespace: String,
    /// What defines it, see [`Provider::defined_in`](toolwright_core::catalogue::Provider::defined_in).
    pub defined_in: String,
    /// How to reach it.
    pub transport: McpTransport,
    /// Patterns over raw names; empty offers all.
    pub tools_allowed: Vec<String>,
    /// Patterns over raw names, applied after `tools_allowed`.
    pub tools_denied: Vec<String>,
    /// How single tools are shown, by raw name.
    pub shown: BTreeMap<String, ToolOverride>,
    /// Environment variables that its process does not inherit, as `*` and `?` patterns; the transport's
    /// `env` gives back what it is to have.
    pub withheld_env: Vec<String>,
    /// What its process is kept in; `None` is its user's own rights. Nothing for a URL.
    pub sandbox: Option<Sandbox>,
    /// Limit of each call, where the caller sets none; also of a whole list, which never has more
    /// than 50 seconds.
    pub request_timeout: Option<Duration>,
    /// How long a call may go on without a report of progress.
    pub idle_timeout: Option<Duration>,
    /// How often a failed call is tried again where that is safe.
    pub retries: u32,
    /// Limit of connecting, all handshakes that are tried included.
    pub connect_timeout: Duration,
    /// Queue that its calls wait in.
    pub queue: Option<String>,
    /// Patterns over raw names of tools whose calls are background jobs.
    pub background: Vec<String>,
    /// How long a call keeps its caller waiting before it goes on as a background job.
    pub auto_background_after: Option<Duration>,
    /// How long results may be served again; applies to tools that say they only read.
    pub cache_ttl: Option<Duration>,
    /// The same for single tools, by raw name, whatever they say of themselves; `None` for never.
    pub tools_cache: BTreeMap<String, Option<Duration>>,
    /// Bound on one message from the server, in bytes.
    pub max_message_bytes: usize,
    /// Whether its hints may loosen policy.
    pub trusted: bool,
    /// Whether all sessions share one connection; if not, each has its own, made at its first call and ended after ten
    /// minutes without one. Its tools are then those of one more connection, which lists for all of them, and its
    /// resources are not subscribed to.
    pub shared: bool,
    /// Whether it is started no sooner than a call needs it, once its tools are known from an earlier run.
    pub lazy: bool,
    /// Whether its resources are offered as tools (`list_resources`, `read_resource`).
    pub resources: AsTools,
    /// Whether its prompts are offered as tools (`prompt_…`).
    pub prompts: AsTools,
    /// Adds what a server at a URL demands of its callers.
    pub authorizer: Option<Arc<dyn Authorizer>>,
}

/// Whether something of a server that is no tool is offered as one too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AsTools {
    /// It is not.
    #[default]
    No,
    /// It is.
    Yes,
}

impl McpServerSpec {
    /// A server with default settings, its name also its namespace.
    pub fn new(name: impl Into<String>, transport: McpTransport) -> Self {
        let name = name.into();
        Self {
            namespace: name.clone(),
            name,
            defined_in: String::new(),
            transport,
            tools_allowed: Vec::new(),
            tools_denied: Vec::new(),
            shown: BTreeMap::new(),
            withheld_env: withheld_by_default(),
            sandbox: None,
            request_timeout: None,
            idle_timeout: None,
            retries: DEFAULT_RETRIES,
            connect_timeout: CONNECT_TIMEOUT,
            queue: None,
            background: Vec::new(),
            auto_background_after: None,
            cache_ttl: None,
            tools_cache: BTreeMap::new(),
            max_message_bytes: MAX_MESSAGE_BYTES,
            trusted: false,
            shared: true,
            lazy: false,
            resources: AsTools::No,
            prompts: AsTools::No,
            authorizer: None,
        }
    }

    /// Limits of its calls.
    pub(super) fn limits(&self) -> CallLimits {
        CallLimits { timeout: self.request_timeout, idle_timeout: self.idle_timeout, retries: Some(self.retries) }
    }

    /// Tells what it is reached by and with, secret values included, from anything else.
    pub(super) fn credential_scope(&self) -> ContentHash {
        ContentHash::of_value(&match &self.transport {
            McpTransport::Stdio { command, args, env, cwd } => {
                json!({"command": command, "args": args, "env": env, "cwd": cwd})
            }
            McpTransport::Http { url, headers } => json!({"url": url, "headers": headers}),
            McpTransport::Sse { url, headers } => json!({"sse": url, "headers": headers}),
            McpTransport::WebSocket { url, headers } => json!({"ws": url, "headers": headers}),
        })
    }

    /// The same beside whoever is logged in now; `fixed` is what [`Self::credential_scope`] said.
    pub(super) fn scope_now(&self, fixed: ContentHash) -> ContentHash {
        let identity = self.authorizer.as_ref().map(|authorizer| authorizer.identity());
        match identity.filter(|identity| !identity.is_empty()) {
            Some(identity) => ContentHash::of_value(&json!([fixed.to_string(), identity])),
            None => fixed,
        }
    }

    /// Key of its cached list: changes with what decides which tools it has, and holds no secret value.
    pub(super) fn manifest_key(&self) -> String {
        let source = match &self.transport {
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

/// How a server is reached. `Debug` shows names, never the values of variables and headers.
#[derive(Clone)]
pub enum McpTransport {
    /// A child process that speaks on its standard streams.
    Stdio {
        /// Program, looked up in `PATH` unless it has a slash.
        command: String,
        /// Arguments.
        args: Vec<String>,
        /// Variables set over the inherited ones; values may be secret. [`DEPTH_VARIABLE`] cannot be set.
        ///
        /// [`DEPTH_VARIABLE`]: super::DEPTH_VARIABLE
        env: BTreeMap<String, String>,
        /// Working directory; `None` inherits ours.
        cwd: Option<PathBuf>,
    },
    /// Streamable HTTP, or HTTP with SSE where the server turns out to be older. Private addresses are allowed: the
    /// operator wrote the URL.
    Http {
        /// The endpoint, often with the path `/mcp`.
        url: String,
        /// Sent with every request, to this origin only; values may be secret.
        headers: BTreeMap<String, String>,
    },
    /// HTTP with SSE, as revision 2024-11-05 has it. Private addresses are allowed.
    Sse {
        /// Where the event stream is, often with the path `/sse`.
        url: String,
        /// Sent with every request, to this origin only; values may be secret.
        headers: BTreeMap<String, String>,
    },
    /// WebSocket, subprotocol `mcp`. Private addresses are allowed.
    WebSocket {
        /// The endpoint, `ws` or `wss`.
        url: String,
        /// Sent when the socket is opened; values may be secret.
        headers: BTreeMap<String, String>,
    },
}

impl fmt::Debug for McpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio { command, args, env, cwd } => f
                .debug_struct("Stdio")
                .field("command", command)
                .field("args", args)
                .field("env", &env.keys())
                .field("cwd", cwd)
                .finish(),
            Self::Http { url, headers } => at_url(f, "Http", url, headers),
            Self::Sse { url, headers } => at_url(f, "Sse", url, headers),
            Self::WebSocket { url, headers } => at_url(f, "WebSocket", url, headers),
        }
    }
}

fn at_url(f: &mut fmt::Formatter<'_>, name: &str, url: &str, headers: &BTreeMap<String, String>) -> fmt::Result {
    f.debug_struct(name).field("url", &url).field("headers", &headers.keys()).finish()
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
        two.tools_denied = vec!["x".into()];
        assert_eq!(one.manifest_key(), two.manifest_key());
        assert_ne!(one.credential_scope(), two.credential_scope(), "results of two keys are not shared");
        assert_ne!(one.manifest_key(), http("http://b/mcp", &[("Authorization", "one")]).manifest_key());
        let elsewhere = McpServerSpec { defined_in: "/p/toolwright.yaml".into(), ..http("http://a/mcp", &[]) };
        assert_ne!(elsewhere.manifest_key(), http("http://a/mcp", &[]).manifest_key(), "another file's entry");
        assert!(!format!("{one:?}").contains("\"one\""));
    }
}
