//! Connecting: starting the process or reaching the URL, and finding the generation.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolwright_core::event::{Event, EventSink};
use toolwright_mcp::revision::Era;
use url::Url;

use super::connection::Connection;
use super::explain::Failure;
use super::folders::Folders;
use super::generation::{Certainty, Generation};
use super::handshake::{ServerInfo, shake};
use super::inbox::Inbox;
use super::listener::Listener;
use super::log_level::LogLevel;
use super::nesting::{self, DEPTH_VARIABLE};
use super::peer::Peer;
use super::process::{Process, with_last_words};
use super::remote::{self, Target, Way, header_map};
use super::spec::{McpServerSpec, McpTransport};
use super::stdio::StdioTransport;
use super::subscription::Followed;
use super::transport::{Incoming, SendError, Transport};
use crate::process::{Stdin, SupervisedCommand};

/// What a server of unknown generation has for its answer to a `server/discover` that comes first. On a pipe an older
/// one may leave it unanswered; over HTTP each request has a response of its own, so that silence there is slowness, unless
/// a bridge stands before a pipe. Whoever gives a server more time to connect says that it is slow: it has
/// a third of that.
const DISCOVER_FIRST: Duration = Duration::from_secs(2);
const DISCOVER_FIRST_HTTP: Duration = Duration::from_secs(10);
/// What a server that was silent has for its second chance.
const SECOND_CHANCE: Duration = Duration::from_secs(5);

/// Connects to a server.
#[derive(Clone)]
pub(super) struct Connector {
    /// What is configured.
    pub(super) spec: Arc<McpServerSpec>,
    /// Takes warnings.
    pub(super) events: Arc<dyn EventSink>,
    /// Takes what the server says by itself.
    pub(super) listener: Arc<Listener>,
    /// The resources that are followed.
    pub(super) followed: Arc<Followed>,
    /// How much the server is to log.
    pub(super) log_level: Arc<LogLevel>,
    /// The folders that the server may work in, as far as it asks outside of calls.
    pub(super) folders: Arc<Folders>,
    /// What its server speaks, as far as that is known.
    pub(super) generation: Arc<Generation>,
    /// The generation that is wanted, where that is not the newest; what is found then says nothing of the server.
    pub(super) wanted: Option<Wish>,
}

/// A generation that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// Before the other, which serves as well.
    Rather(Era),
    /// Where the server speaks it: another connection serves until that is known.
    Only(Era),
}

/// One try at a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Attempt {
    era: Era,
    bound: Duration,
}

impl Connector {
    /// Connects. Bounded by twice the connect timeout and some seconds.
    ///
    /// # Errors
    /// Cause and remedy, for the operator.
    pub(super) async fn connect(&self) -> Result<Arc<Connection>, String> {
        let known = match self.wanted {
            Some(Wish::Rather(era) | Wish::Only(era)) => Some(era),
            None => self.generation.known().await,
        };
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
            McpTransport::Http { url, headers } => self.connect_url(Way::Http, url, headers, known).await,
            McpTransport::Sse { url, headers } => self.connect_url(Way::Sse, url, headers, known).await,
            McpTransport::WebSocket { url, headers } => self.connect_url(Way::WebSocket, url, headers, known).await,
        }
    }

    /// `program` is for the operator: the command without its arguments, which may be secret.
    async fn connect_process(
        &self,
        program: &str,
        command: impl Fn() -> SupervisedCommand + Send + Sync,
        known: Option<Era>,
    ) -> Result<Arc<Connection>, String> {
        let mut attempts = VecDeque::from(attempts(None, known, self.spec.connect_timeout));
        let mut running = None;
        let mut best = None;
        let mut tried = Tried::default();
        while let Some(attempt) = attempts.pop_front() {
            let is_used = running.is_some();
            let (peer, process) = match running.take() {
                Some(running) => running,
                None => self.start(command())?,
            };
            let failure = match tried.shake(&peer, attempt).await {
                Ok(server) => return Ok(self.connected(peer, server, &tried).await),
                Err(failure) => failure,
            };
            let message = match failure {
                Failure::Fault(message) if self.wanted == Some(Wish::Only(attempt.era)) => return Err(message),
                Failure::Refused(message) | Failure::Fault(message) => {
                    running = Some((peer, process));
                    message
                }
                Failure::Silent(message) => {
                    let lines = process.last_lines();
                    // What it holds alone must be free for the next.
                    process.close().await;
                    if lines.is_empty() { message } else { with_last_words(&message, &lines) }
                }
                Failure::Broken(message) | Failure::Unreachable(message) => {
                    let end = if peer.inbox.over.is_cancelled() { process.epitaph().await } else { None };
                    let end = end.map_or_else(String::new, |end| format!(": {end}"));
                    process.close().await;
                    // A process that ends on `server/discover`, or once it has refused that, may be an old one; any
                    // other just ends.
                    if attempt.era == Era::Legacy {
                        attempts.clear();
                        attempts.extend(is_used.then_some(attempt));
                    }
                    format!("{message}{end}\nrun `{program}` by hand, with its arguments, to see why")
                }
                Failure::Final(message) => return Err(message),
            };
            if best.is_none() || attempt.era == Era::Legacy {
                best = Some(message);
            }
        }
        Err(best.unwrap_or_default())
    }

    fn inbox(&self) -> Arc<Inbox> {
        let inbox = Inbox::new(Arc::clone(&self.listener));
        inbox.tell_folders(Arc::clone(&self.folders));
        inbox
    }

    /// Notes what was found, and lets a server that will ask for its folders do so: what is called before it has them is
    /// refused by it.
    async fn connected(&self, peer: Arc<Peer>, server: ServerInfo, tried: &Tried) -> Arc<Connection> {
        if self.wanted.is_none() {
            self.generation.note(&server, tried.certainty);
        }
        if server.era == Era::Legacy {
            self.folders.told_to(&peer).await;
        }
        Connection::new(peer, server, &self.followed, &self.log_level)
    }

    fn start(&self, command: SupervisedCommand) -> Result<(Arc<Peer>, Arc<StdioTransport>), String> {
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the command has no standard streams".to_owned());
        };
        if let Some(gaps) = child.enforcement.take().and_then(|enforcement| enforcement.gaps()) {
            let message = format!("server {}: {gaps}", self.spec.name);
            self.events.emit(Event::Warning { code: "sandbox_incomplete".into(), message });
        }
        let inbox = self.inbox();
        let process = Process::watch(child, Arc::clone(&self.listener.server));
        let transport = StdioTransport::new((stdin, stdout), process, self.spec.max_message_bytes, Arc::clone(&inbox));
        Ok((Peer::new(Arc::clone(&transport) as Arc<dyn Transport>, inbox), transport))
    }

    async fn connect_url(
        &self,
        way: Way,
        url: &str,
        headers: &BTreeMap<String, String>,
        known: Option<Era>,
    ) -> Result<Arc<Connection>, String> {
        let url = Url::parse(url).map_err(|error| format!("`url` is not a URL: {error}"))?;
        let (headers, authorizer) = (header_map(headers)?, self.spec.authorizer.clone());
        let target = Target::new(way, url, headers, authorizer, self.spec.max_message_bytes).await?;
        let mut best = None;
        let mut tried = Tried::default();
        for attempt in attempts(Some(way), known, self.spec.connect_timeout) {
            let inbox = self.inbox();
            let incoming = Arc::clone(&inbox) as Arc<dyn Incoming>;
            let opened = tokio::time::timeout(attempt.bound, remote::open(way, &target, incoming)).await;
            let transport = match opened {
                Ok(Ok(transport)) => transport,
                Ok(Err(
                    SendError::NotSent(reason)
                    | SendError::Broken(reason)
                    | SendError::Fault(reason)
                    | SendError::Final(reason),
                )) => return Err(reason),
                Ok(Err(SendError::Expired)) | Err(_) => return Err("it opens no connection in time".to_owned()),
            };
            let peer = Peer::new(transport, inbox);
            let failure = match tried.shake(&peer, attempt).await {
                Ok(server) => return Ok(self.connected(peer, server, &tried).await),
                Err(failure) => failure,
            };
            peer.transport.close().await;
            match failure {
                Failure::Final(message) | Failure::Unreachable(message) => return Err(message),
                // Neither silence nor a fault says what it speaks; what is wanted is tried again later.
                Failure::Silent(message) | Failure::Fault(message) if self.wanted == Some(Wish::Only(attempt.era)) => {
                    return Err(message);
                }
                // What an old server says to `initialize` tells more than its word on `server/discover`.
                Failure::Refused(message)
                | Failure::Fault(message)
                | Failure::Silent(message)
                | Failure::Broken(message) => {
                    if best.is_none() || attempt.era == Era::Legacy {
                        best = Some(message);
                    }
                }
            }
        }
        Err(best.unwrap_or_default())
    }
}

/// Which handshakes are tried on a pipe (`None`) or at a URL, in this order.
fn attempts(way: Option<Way>, known: Option<Era>, timeout: Duration) -> Vec<Attempt> {
    let (legacy, modern) = (attempt(Era::Legacy, timeout), attempt(Era::Modern, timeout));
    let second_chance = if way == Some(Way::Http) { modern } else { attempt(Era::Modern, timeout.min(SECOND_CHANCE)) };
    match (way, known) {
        // Revisions without sessions never had it.
        (Some(Way::Sse), _) => vec![legacy],
        (_, Some(Era::Modern)) => vec![modern, legacy],
        (_, None) => {
            let first = if way == Some(Way::Http) { DISCOVER_FIRST_HTTP.max(timeout / 3) } else { DISCOVER_FIRST };
            vec![attempt(Era::Modern, timeout.min(first)), legacy, second_chance]
        }
        (_, Some(Era::Legacy)) => vec![legacy, second_chance],
    }
}

/// What the attempts so far tell of the newest that a server speaks.
#[derive(Default)]
struct Tried {
    certainty: Certainty,
    was_silent: bool,
}

impl Tried {
    async fn shake(&mut self, peer: &Peer, Attempt { era, bound }: Attempt) -> Result<ServerInfo, Failure> {
        let start = Instant::now();
        let shaken = shake(peer, era, bound).await;
        match (&shaken, era) {
            (Err(Failure::Silent(_)), Era::Modern) => self.was_silent = true,
            (Err(Failure::Refused(_) | Failure::Broken(_)), Era::Modern) => self.certainty = Certainty::Tried,
            // It is not slow: it was silent because it did not know what it was asked.
            (Ok(_), Era::Legacy) if self.was_silent && start.elapsed() < DISCOVER_FIRST / 2 => {
                self.certainty = Certainty::Tried;
            }
            _ => {}
        }
        shaken
    }
}

fn attempt(era: Era, bound: Duration) -> Attempt {
    Attempt { era, bound }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_unknown_generation_that_is_slow_over_http_has_the_time_that_it_is_given() {
        for (way, timeout, first) in [
            (None, 30, 2),
            (None, 300, 2),
            (Some(Way::Http), 5, 5),
            (Some(Way::Http), 30, 10),
            (Some(Way::Http), 90, 30),
        ] {
            let tried = attempts(way, None, Duration::from_secs(timeout));
            assert_eq!(tried[0], attempt(Era::Modern, Duration::from_secs(first)), "{way:?} {timeout}");
            assert_eq!(tried[1], attempt(Era::Legacy, Duration::from_secs(timeout)), "{way:?} {timeout}");
        }
    }
}
