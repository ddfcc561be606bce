//! Configures an MCP server: its entry in `mcp_servers`, and the settings around it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{CallLimits, ToolOverride};
use toolwright_core::client::Roots;
use toolwright_core::definition::NoSchemaMode;
use toolwright_core::event::EventSink;
use toolwright_core::setting::{CacheTtl, LiteralText, TimeSpan};
use toolwright_core::store::ManifestCache;
use toolwright_core::{SandboxProfile, duration};
use toolwright_net::Authorizer;
use toolwright_oauth::OAuthConfig;
use toolwright_sandbox::enforce::Sandbox;
use toolwright_sandbox::withheld_by_default;

use crate::transport::FrameSink;

/// Bound on connecting, the start of the process included: `npx` may have to download first.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bound on one message of a server.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// One MCP server. Keys of other clients are understood where they mean the same, and warned about
/// where they are not.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("x-foreign-keys" = "warn"), transform = flatten_transport)]
pub struct McpServerConfig {
    /// Whether it is used. Default true.
    pub enabled: bool,
    /// The transport.
    #[serde(flatten)]
    pub transport: McpTransport,
    /// OAuth settings of an `http` server.
    pub oauth: Option<OAuthConfig>,
    /// Tools that are offered, as case-insensitive globs; empty: all.
    pub tools_allowed: Vec<String>,
    /// Tools that are not offered, as globs. Applied after `tools_allowed`.
    pub tools_denied: Vec<String>,
    /// Settings of single tools, by the server's names for them. A list is read as `tools_allowed`.
    pub tools: BTreeMap<String, ToolOverride>,
    /// The queue that its calls wait in.
    pub queue: Option<String>,
    /// How long results of its read-only tools are cached: a duration, or `off`, the default.
    pub cache: CacheTtl,
    /// Like `cache` for single tools, by the server's names for them. It applies whatever effects the server declares.
    pub tools_cache: BTreeMap<String, CacheTtl>,
    /// Limit of one call to it. Default: `defaults.tool_timeout`. `requestTimeoutMs` is another name for it.
    // Also of a whole list, which never has more than 50 seconds.
    #[serde(with = "duration::option")]
    #[schemars(with = "Option<TimeSpan>", extend("x-aliases" = ["request_timeout_ms"]))]
    pub request_timeout: Option<Duration>,
    /// Time limit for connecting, including the start of its process and all attempts at a handshake. Default 30s.
    #[serde(with = "duration::required")]
    #[schemars(with = "TimeSpan")]
    pub connect_timeout: Duration,
    /// Largest message from it, in bytes. A call with a larger answer fails. Default 16777216 (16 MiB).
    #[schemars(range(min = 65_536, max = 1_073_741_824))]
    pub max_message_bytes: usize,
    /// Tools that always run as background jobs, as case-insensitive globs.
    pub background: Vec<String>,
    /// Time after which a call to it that still runs becomes a background job. Default:
    /// `defaults.auto_background_after`.
    #[serde(with = "duration::option")]
    #[schemars(with = "Option<TimeSpan>")]
    pub auto_background_after: Option<Duration>,
    /// What the process of a `stdio` server may do. Default: `full`, all that your user may do.
    pub sandbox: SandboxProfile,
    /// How long a call to it may run without a progress report. Default: `defaults.idle_timeout`.
    #[serde(with = "duration::option")]
    #[schemars(with = "Option<TimeSpan>")]
    pub idle_timeout: Option<Duration>,
    /// How often a failed call to it is retried. Only a call that was not sent is retried, or one whose tool a trusted
    /// server declares as read-only or idempotent. Default 1.
    #[schemars(range(max = 10))]
    pub retries: u32,
    /// Whether policy believes its claims that a tool only reads. Default false.
    pub trusted: bool,
    /// Which calls run without a schema to validate their arguments: `read-only` (calls of read-only tools; a person is
    /// asked about the others), `human-approval` (a person is asked about each) or `full` (all). Default:
    /// `human-approval` for a tool without a schema, `full` for a tool with a broken one.
    pub no_schema_mode: Option<NoSchemaMode>,
    /// Whether all sessions share one connection. With `false` each session opens its own at its first call and closes
    /// it after ten minutes without a call. Use it for servers that keep state per client, or that ask their client
    /// questions during calls. Tools are then discovered on a separate connection: tools that a session's connection
    /// adds later are not listed, and resources cannot be subscribed to. Default true.
    pub shared: bool,
    /// Whether it is started only when a call needs it. Its tools must be known from an earlier run. Default false.
    pub lazy: bool,
    /// With `tools` its resources are offered as tools: `list_resources` and `read_resource`.
    pub resources: AsTools,
    /// With `tools` each of its prompts is offered as a tool, `prompt_` and its name.
    pub prompts: AsTools,
    /// A note on its purpose. It is not shown to models.
    pub description: Option<String>,
}

impl Default for McpServerConfig {
    /// The default settings. Configuration always sets the transport.
    fn default() -> Self {
        Self {
            enabled: true,
            transport: McpTransport::Stdio {
                command: String::new(),
                args: Vec::new(),
                env: BTreeMap::new(),
                cwd: None,
            },
            oauth: None,
            tools_allowed: Vec::new(),
            tools_denied: Vec::new(),
            tools: BTreeMap::new(),
            queue: None,
            cache: CacheTtl(None),
            tools_cache: BTreeMap::new(),
            request_timeout: None,
            connect_timeout: CONNECT_TIMEOUT,
            max_message_bytes: MAX_MESSAGE_BYTES,
            background: Vec::new(),
            auto_background_after: None,
            sandbox: SandboxProfile::Full,
            idle_timeout: None,
            retries: 1,
            trusted: false,
            no_schema_mode: None,
            shared: true,
            lazy: false,
            resources: AsTools::No,
            prompts: AsTools::No,
            description: None,
        }
    }
}

impl From<McpTransport> for McpServerConfig {
    /// A server with default settings.
    fn from(transport: McpTransport) -> Self {
        Self { transport, ..Self::default() }
    }
}

/// Whether something of a server that is no tool is offered as one too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
pub enum AsTools {
    /// It is not.
    #[default]
    #[serde(skip)]
    No,
    /// As tools.
    #[serde(rename = "tools")]
    Yes,
}

/// How a server is reached. `Debug` shows names, never the values of variables and headers.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum McpTransport {
    /// A child process that speaks on its standard streams.
    Stdio {
        /// Program of a `stdio` server.
        // Looked up in `PATH` unless it has a slash.
        #[schemars(extend("x-variables" = "setting"))]
        command: String,
        /// Its arguments.
        #[serde(default)]
        #[schemars(with = "Vec<LiteralText>", extend("x-variables" = "argument"))]
        args: Vec<String>,
        /// Environment variables that are set for it; `${VAR}` and `${VAR:-default}` are filled in.
        // Values may be secret. `DEPTH_VARIABLE` cannot be set.
        #[serde(default)]
        #[schemars(with = "BTreeMap<String, LiteralText>", extend("x-variables" = "pair"))]
        env: BTreeMap<String, String>,
        /// Folder it runs in, relative to the configuration's own. Default: the workspace root.
        // Here `None` inherits ours.
        #[serde(default)]
        #[schemars(with = "Option<String>", extend("x-variables" = "setting"))]
        cwd: Option<PathBuf>,
    },
    /// Streamable HTTP, or the older HTTP with server-sent events where the server turns out to be older.
    // Private addresses are allowed in all of these: the operator wrote the URL.
    Http {
        /// Address of an `http` server.
        #[schemars(extend("x-variables" = "setting"))]
        url: String,
        /// Headers sent with every request; `${VAR}` is filled in.
        // To this origin only; values may be secret.
        #[serde(default)]
        #[schemars(with = "BTreeMap<String, LiteralText>", extend("x-variables" = "pair"))]
        headers: BTreeMap<String, String>,
    },
    /// The older HTTP with server-sent events (2024-11-05).
    Sse {
        /// Where the event stream is, often with the path `/sse`.
        url: String,
        /// Sent with every request, to this origin only; values may be secret.
        #[serde(default)]
        headers: BTreeMap<String, String>,
    },
    /// WebSocket.
    #[serde(rename = "ws")]
    WebSocket {
        /// The endpoint, `ws` or `wss`.
        url: String,
        /// Sent when the socket is opened; values may be secret.
        #[serde(default)]
        headers: BTreeMap<String, String>,
    },
}

impl McpTransport {
    /// The address of a server that is no process of ours.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        match self {
            Self::Stdio { .. } => None,
            Self::Http { url, .. } | Self::Sse { url, .. } | Self::WebSocket { url, .. } => Some(url),
        }
    }
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

/// Merges the keys of all transports into the entry's, as people write them: `type` is optional.
fn flatten_transport(schema: &mut Schema) {
    let Some(object) = schema.as_object_mut() else { return };
    let Some(Value::Array(transports)) = object.remove("oneOf") else { return };
    let (mut kinds, mut keys) = (Vec::new(), Map::new());
    for transport in transports {
        let description = transport["description"].clone();
        let Some(properties) = transport["properties"].as_object() else { continue };
        for (key, property) in properties {
            if key == "type" {
                let mut kind = property.clone();
                kind["description"] = description.clone();
                kinds.push(kind);
            } else {
                keys.entry(key.clone()).or_insert_with(|| property.clone());
            }
        }
    }
    let Some(own) = object.get_mut("properties").and_then(Value::as_object_mut) else { return };
    let mut all: Map<String, Value> = own.remove_entry("enabled").into_iter().collect();
    let description = "The transport. Default: `stdio` with `command`; with `url`, `ws` for ws:// and wss:// addresses, else \
                `http`.";
    all.insert("type".into(), serde_json::json!({"description": description, "oneOf": kinds}));
    all.append(&mut keys);
    all.append(own);
    *own = all;
}

/// A configured MCP server with its runtime options.
#[derive(Debug, Clone)]
pub struct McpServerOptions {
    /// Name of the entry, and of the provider.
    pub name: String,
    /// Namespace of its tools; must be legal (see [`toolwright_core::tool_id`]).
    pub namespace: String,
    /// The defining place, see [`Provider::defined_in`](toolwright_core::catalogue::Provider::defined_in).
    pub defined_in: String,
    /// Its entry.
    pub config: McpServerConfig,
    /// Environment variables that its process does not inherit, as `*` and `?` patterns; the transport's
    /// `env` adds wanted ones back.
    pub withheld_env: Vec<String>,
    /// Sandbox of its process; `None` for the user's own rights. Unused for a URL.
    pub sandbox: Option<Sandbox>,
    /// Adds credentials that a server at a URL demands.
    pub authorizer: Option<Arc<dyn Authorizer>>,
    /// Receives its messages.
    pub frames: Option<Arc<dyn FrameSink>>,
}

impl McpServerOptions {
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
            frames: None,
        }
    }

    /// Returns the limits of its calls.
    pub(crate) fn limits(&self) -> CallLimits {
        let McpServerConfig { request_timeout, idle_timeout, retries, .. } = self.config;
        CallLimits { timeout: request_timeout, idle_timeout, retries: Some(retries) }
    }

    /// Identifies its address and credentials, including secret values.
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

    /// Combines [`Self::credential_scope`] (`fixed`) with the current login.
    pub(crate) fn scope_now(&self, fixed: ContentHash) -> ContentHash {
        let identity = self.authorizer.as_ref().map(|authorizer| authorizer.identity());
        match identity.filter(|identity| !identity.is_empty()) {
            Some(identity) => ContentHash::of_value(&json!([fixed.to_string(), identity])),
            None => fixed,
        }
    }

    /// Key of its cached list: depends on settings that decide its tools, and holds no secret value.
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
        // Another file's entry of the same name may use another account, whose list must not be pinned as ours.
        if !self.defined_in.is_empty() {
            key["defined_in"] = self.defined_in.as_str().into();
        }
        format!("mcp:{}", ContentHash::of_value(&key))
    }
}

/// Dependencies from the application.
#[derive(Clone)]
pub struct McpOptions {
    /// Keeps tool lists between runs.
    pub manifests: Arc<dyn ManifestCache>,
    /// Receives warnings.
    pub events: Arc<dyn EventSink>,
    /// Answers servers that ask for folders while no call runs.
    pub roots: Arc<Roots>,
}

impl fmt::Debug for McpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpOptions").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn entries_deserialise_into_the_client_config() {
        let entry = json!({
            "type": "stdio", "command": "uvx", "args": ["x"], "tools": {"a": {"name": "b"}}, "cache": "5m",
            "tools_cache": {"a": "off"}, "request_timeout": "9s", "connect_timeout": 500, "resources": "tools",
        });
        let read: McpServerConfig = serde_json::from_value(entry).expect("an entry");
        let McpTransport::Stdio { command, args, env, cwd } = &read.transport else { panic!("{read:?}") };
        assert_eq!((&**command, &**args, env.len(), cwd), ("uvx", &["x".to_owned()][..], 0, &None));
        assert_eq!(read.tools["a"].name.as_deref(), Some("b"));
        assert_eq!((read.cache.0, read.tools_cache["a"].0), (Some(Duration::from_secs(300)), None));
        assert_eq!(read.request_timeout, Some(Duration::from_secs(9)));
        assert_eq!(read.connect_timeout, Duration::from_millis(500));
        assert_eq!((read.resources, read.prompts, read.retries), (AsTools::Yes, AsTools::No, 1));
    }
}

#[cfg(test)]
mod config_tests {
    use super::*;

    fn http(url: &str, headers: &[(&str, &str)]) -> McpServerOptions {
        let headers = headers.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        McpServerOptions::new("s", McpTransport::Http { url: url.into(), headers })
    }

    #[test]
    fn the_manifest_key_ignores_secret_values_and_filters() {
        let one = http("http://a/mcp", &[("Authorization", "one")]);
        let mut two = http("http://a/mcp", &[("Authorization", "two")]);
        two.config.tools_denied = vec!["x".into()];
        assert_eq!(one.manifest_key(), two.manifest_key());
        assert_ne!(one.credential_scope(), two.credential_scope(), "results of two keys are not shared");
        assert_ne!(one.manifest_key(), http("http://b/mcp", &[("Authorization", "one")]).manifest_key());
        let elsewhere = McpServerOptions { defined_in: "/p/toolwright.yaml".into(), ..http("http://a/mcp", &[]) };
        assert_ne!(elsewhere.manifest_key(), http("http://a/mcp", &[]).manifest_key(), "another file's entry");
        assert!(!format!("{one:?}").contains("\"one\""));
    }
}
