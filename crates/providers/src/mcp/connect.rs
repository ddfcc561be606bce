//! Connecting: starting the process or reaching the URL, and finding the generation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::ProtocolVersion;
use rmcp::service::{ClientLifecycleMode, RoleClient, RunningService, serve_client_with_lifecycle_and_ct};
use rmcp::transport::Transport;
use tokio_util::sync::CancellationToken;
use toolwright_core::event::{Event, EventSink};
use url::Url;

use super::connection::{Carrier, Connection, Generation};
use super::explain::Failure;
use super::handler::Handler;
use super::http::{HttpPeer, header_map};
use super::inbox::Inbox;
use super::nesting::{self, DEPTH_VARIABLE};
use super::process::{Process, with_last_words};
use super::spec::{McpServerSpec, McpTransport};
use super::stdio::{Noise, StdioTransport};
use crate::net::{AddressPolicy, HttpClient, HttpOptions};
use crate::process::{Stdin, SupervisedCommand};

/// What a server of unknown generation has for its answer to a `server/discover` that comes first.
const DISCOVER_FIRST: Duration = Duration::from_secs(2);
/// What a process that was silent has for its second chance.
const SECOND_CHANCE: Duration = Duration::from_secs(5);
/// How long the end of a process may lag behind a failed handshake.
const END_LAG: Duration = Duration::from_millis(500);

/// Connects to a server.
pub(super) struct Connector {
    /// What is configured.
    pub(super) spec: Arc<McpServerSpec>,
    /// Takes warnings.
    pub(super) events: Arc<dyn EventSink>,
    /// Takes what the server says by itself.
    pub(super) handler: Arc<Handler>,
}

/// One try at a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Attempt {
    generation: Generation,
    bound: Duration,
}

impl Connector {
    /// Connects; `known` is the generation of an earlier connection. Bounded by twice the connect timeout
    /// and some seconds.
    ///
    /// # Errors
    /// Cause and remedy, for the operator.
    pub(super) async fn connect(&self, known: Option<Generation>) -> Result<Arc<Connection>, String> {
        match &self.spec.transport {
            McpTransport::Stdio { command, args, env, cwd } => {
                let depth = nesting::depth_of(command, args, env, cwd.as_deref())?;
                let supervised = || {
                    let supervised = SupervisedCommand::new(command)
                        .args(args)
                        .withhold(&self.spec.withheld_env)
                        .envs(env)
                        .envs([(DEPTH_VARIABLE, depth.to_string())])
                        .stdin(Stdin::Piped);
                    let supervised = cwd.iter().fold(supervised, SupervisedCommand::current_dir);
                    self.spec.sandbox.iter().cloned().fold(supervised, SupervisedCommand::sandbox)
                };
                self.connect_process(command, supervised, known).await
            }
            McpTransport::Http { url, headers } => self.connect_http(url, headers, known).await,
        }
    }

    /// `program` is for the operator: the command without its arguments, which may be secret.
    async fn connect_process(
        &self,
        program: &str,
        command: impl Fn() -> SupervisedCommand + Send + Sync,
        known: Option<Generation>,
    ) -> Result<Arc<Connection>, String> {
        let timeout = self.spec.connect_timeout;
        let attempts = match known {
            Some(Generation::Modern) => [attempt(Generation::Modern, timeout), attempt(Generation::Legacy, timeout)],
            _ => [attempt(Generation::Legacy, timeout), attempt(Generation::Modern, timeout.min(SECOND_CHANCE))],
        };
        let mut pipes = None;
        let mut first_failure = None;
        for attempt in attempts {
            let (transport, inbox, process) = match pipes.take() {
                Some(pipes) => pipes,
                None => self.start(command())?,
            };
            let close = CancellationToken::new();
            let failure = match self.shake_hands(transport.clone(), attempt, &close).await {
                Ok(running) => {
                    return Ok(Connection::new(running, attempt.generation, inbox, Carrier::Process(process), close));
                }
                Err(failure) => failure,
            };
            let message = match failure {
                Failure::Refused(message) => {
                    pipes = Some((transport, inbox, process));
                    message
                }
                Failure::Silent(message) => match process.last_lines() {
                    lines if lines.is_empty() => message,
                    lines => with_last_words(&message, &lines),
                },
                Failure::Broken(message) => {
                    drop(transport);
                    let end = process.epitaph(END_LAG).await;
                    let message = format!("{message}: {end}\nrun `{program}` by hand, with its arguments, to see why");
                    // A process that ends on `server/discover` may be an old one; any other just ends.
                    if attempt.generation == Generation::Legacy {
                        return Err(first_failure.unwrap_or(message));
                    }
                    message
                }
                Failure::Final(message) => return Err(message),
            };
            first_failure.get_or_insert(message);
        }
        Err(first_failure.unwrap_or_default())
    }

    fn start(&self, command: SupervisedCommand) -> Result<(StdioTransport, Arc<Inbox>, Process), String> {
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the command has no standard streams".to_owned());
        };
        if let Some(gaps) = child.enforcement.take().and_then(|enforcement| enforcement.gaps()) {
            let message = format!("server {}: {gaps}", self.spec.name);
            self.events.emit(Event::Warning { code: "sandbox_incomplete".into(), message });
        }
        let inbox = Arc::new(Inbox::default());
        let server: Arc<str> = Arc::clone(&self.handler.server);
        let noise = Noise::new(Arc::clone(&server), Arc::clone(&self.events));
        let transport = StdioTransport::new((stdin, stdout), self.spec.max_message_bytes, noise, Arc::clone(&inbox));
        Ok((transport, inbox, Process::watch(child, server)))
    }

    async fn connect_http(
        &self,
        url: &str,
        headers: &BTreeMap<String, String>,
        known: Option<Generation>,
    ) -> Result<Arc<Connection>, String> {
        let parsed = Url::parse(url).map_err(|error| format!("`url` is not a URL: {error}"))?;
        let headers = header_map(headers)?;
        // The operator wrote the URL: no address is refused. Redirects stay within its origin.
        let client = HttpClient::new(AddressPolicy::open(), HttpOptions::default());
        let client = client.client_for(&parsed).await.map_err(|error| error.to_string())?;
        let timeout = self.spec.connect_timeout;
        let (legacy, modern) = (attempt(Generation::Legacy, timeout), attempt(Generation::Modern, timeout));
        let attempts = match known {
            None => vec![attempt(Generation::Modern, timeout.min(DISCOVER_FIRST)), legacy, modern],
            Some(Generation::Legacy) => vec![legacy, modern],
            Some(Generation::Modern) => vec![modern, legacy],
        };
        let mut best = None;
        for attempt in attempts {
            let inbox = Arc::new(Inbox::default());
            let peer = HttpPeer::new(client.clone(), self.spec.max_message_bytes, Arc::clone(&inbox));
            let close = CancellationToken::new();
            let shaken = self.shake_hands(peer.transport(url, headers.clone()), attempt, &close).await;
            let failure = match (shaken, peer.last_failure()) {
                (Ok(running), _) => {
                    return Ok(Connection::new(running, attempt.generation, inbox, Carrier::Http(peer), close));
                }
                (Err(_), Some(failure)) if failure.is_final() => Failure::Final(failure.to_string()),
                (Err(Failure::Broken(_)), Some(failure)) => Failure::Broken(failure.to_string()),
                (Err(failure), _) => failure,
            };
            match failure {
                Failure::Final(message) => return Err(message),
                // What an old server says to `initialize` tells more than its word on `server/discover`.
                Failure::Refused(message) | Failure::Silent(message) | Failure::Broken(message) => {
                    if best.is_none() || attempt.generation == Generation::Legacy {
                        best = Some(message);
                    }
                }
            }
        }
        Err(best.unwrap_or_default())
    }

    async fn shake_hands<T>(
        &self,
        transport: T,
        attempt: Attempt,
        close: &CancellationToken,
    ) -> Result<RunningService<RoleClient, Arc<Handler>>, Failure>
    where
        T: Transport<RoleClient> + 'static,
    {
        let mode = match attempt.generation {
            Generation::Legacy => ClientLifecycleMode::Initialize,
            Generation::Modern => {
                ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
            }
        };
        let handler = Arc::clone(&self.handler);
        let shaken = serve_client_with_lifecycle_and_ct(handler, transport, mode, close.clone());
        match tokio::time::timeout(attempt.bound, shaken).await {
            Ok(Ok(running)) => Ok(running),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Failure::Silent(format!(
                "it did not answer `{}` within {}: is it an MCP server, and does it start that slowly?",
                match attempt.generation {
                    Generation::Legacy => "initialize",
                    Generation::Modern => "server/discover",
                },
                toolwright_core::duration::format(attempt.bound),
            ))),
        }
    }
}

fn attempt(generation: Generation, bound: Duration) -> Attempt {
    Attempt { generation, bound }
}
