//! Connects to a server: starts the process or opens the URL, and detects the protocol generation. Refuses a server
//! that would start this Toolwright again.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolwright_core::event::{Event, EventSink};
use toolwright_sandbox::{Stdin, SupervisedCommand, nesting};
use url::Url;

use super::Connection;
use super::handshake::{
    DelayedDiscovery, EraCertainty, Failure, ServerInfo, VersionProbe, handshake, handshake_unknown_era,
};
use super::inbox::Inbox;
use super::inbox::listener::{Listener, ServerRoots};
use super::peer::Peer;
use super::subscription::{FollowedResources, LogLevel};
use crate::config::{McpServerOptions, McpTransport};
use crate::protocol::revision::Era;
use crate::transport::child_process::{Process, with_last_output};
use crate::transport::remote::{self, RemoteKind, Target, header_map};
use crate::transport::stdio::StdioTransport;
use crate::transport::{Incoming, SendError, Transport};

/// Time for the answer to a first `server/discover` of a server with unknown revision, at most a third of its connect
/// timeout. On a pipe an older server may not answer it, or may still be starting: `initialize` is sent as well
/// and gets the rest of the time, except for one more attempt. Over HTTP each request has its own response, so
/// silence there means slowness, unless a bridge to a pipe answers; there it gets a third.
const DISCOVER_FIRST: Duration = Duration::from_secs(2);
/// Time reserved for the attempt after one that may meet silence, at most a sixth of the connect timeout.
const RETRY_RESERVE: Duration = Duration::from_secs(5);
/// The error if no time is left for an attempt.
const NO_TIME: &str = "it has no time to answer: give it more (`connect_timeout`)";

/// Connects to a server.
#[derive(Clone)]
pub(crate) struct Connector {
    /// The configuration.
    pub(crate) options: Arc<McpServerOptions>,
    /// Receives warnings.
    pub(crate) events: Arc<dyn EventSink>,
    /// Handles messages outside of calls.
    pub(crate) listener: Arc<Listener>,
    /// The resources that are followed.
    pub(crate) followed: Arc<FollowedResources>,
    /// The server's log level.
    pub(crate) log_level: Arc<LogLevel>,
    /// The folders for the server, as far as it asks outside of calls.
    pub(crate) folders: Arc<ServerRoots>,
    /// The protocol era that the server supports, as far as known.
    pub(crate) version_probe: Arc<VersionProbe>,
    /// The wanted era, if not the newest; then the result does not update the version probe.
    pub(crate) wanted_era: Option<EraPreference>,
}

/// A generation that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EraPreference {
    /// Prefer this era, but accept the other.
    Prefer(Era),
    /// Only this era. Another connection is used until the server is known to support it.
    Only(Era),
}

/// An attempt at a handshake, and the time reserved for later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HandshakeAttempt {
    era: Era,
    reserved_time: Duration,
    /// Whether it is the first attempt, on a pipe to an unknown server.
    is_guess: bool,
}

impl HandshakeAttempt {
    /// An attempt that may use all remaining time.
    fn last(era: Era) -> Self {
        Self { era, reserved_time: Duration::ZERO, is_guess: false }
    }
}

impl Connector {
    /// Connects within the connect timeout, plus the time to end a process.
    ///
    /// # Errors
    /// Cause and remedy, for the operator.
    pub(crate) async fn connect(&self) -> Result<Arc<Connection>, String> {
        let era = match self.wanted_era {
            Some(EraPreference::Prefer(era) | EraPreference::Only(era)) => Some(era),
            None => self.version_probe.known_era().await,
        };
        match &self.options.config.transport {
            McpTransport::Stdio { command, args, env, cwd } => {
                check_recursion(command, args, env, cwd.as_deref())?;
                let supervised = || {
                    let supervised = SupervisedCommand::new(command)
                        .args(args)
                        .withhold(&self.options.withheld_env)
                        .envs(env)
                        .stdin(Stdin::Piped);
                    let supervised = cwd.iter().fold(supervised, SupervisedCommand::current_dir);
                    self.options.sandbox.iter().cloned().fold(supervised, SupervisedCommand::sandbox)
                };
                self.connect_process(command, supervised, era).await
            }
            McpTransport::Http { url, headers } => self.connect_url(RemoteKind::Http, url, headers, era).await,
            McpTransport::Sse { url, headers } => self.connect_url(RemoteKind::Sse, url, headers, era).await,
            McpTransport::WebSocket { url, headers } => {
                self.connect_url(RemoteKind::WebSocket, url, headers, era).await
            }
        }
    }

    /// `program` is for the operator: the command without its arguments, which may be secret.
    async fn connect_process(
        &self,
        program: &str,
        command: impl Fn() -> SupervisedCommand + Send + Sync,
        known_era: Option<Era>,
    ) -> Result<Arc<Connection>, String> {
        let attempts_of = |known| VecDeque::from(attempts(None, known, self.options.config.connect_timeout));
        let mut attempts = attempts_of(known_era);
        let mut running = None;
        let mut best = None;
        let mut tried = AttemptHistory::new(self.options.config.connect_timeout);
        while let Some(attempt) = attempts.pop_front().filter(|attempt| tried.has_time(*attempt)) {
            let is_used = running.is_some();
            let (peer, process) = match running.take() {
                Some(running) => running,
                None => self.spawn_server(command()).await?,
            };
            let inbox = Arc::clone(&peer.inbox);
            let failure = match tried.handshake(&peer, attempt).await {
                Ok(server) => return Ok(self.connected(peer, server, &tried).await),
                Err(failure) => failure,
            };
            if inbox.stdout_noise.is_flood() {
                // Any further request would cause the same output.
                process.close().await;
                return Err(inbox.last_word.get().cloned().unwrap_or_default());
            }
            let message = match failure {
                Failure::Fault(message) if self.wanted_era == Some(EraPreference::Only(attempt.era)) => {
                    return Err(message);
                }
                Failure::Refused(message) | Failure::Fault(message) => {
                    running = Some((peer, process));
                    message
                }
                Failure::Silent(message) => {
                    let lines = process.last_lines();
                    // The next process may need resources that this one holds exclusively.
                    process.close().await;
                    if attempt.is_guess {
                        // Both were tried in one process; maybe it stopped reading after the first, so a new process
                        // gets only `initialize`.
                        attempts = VecDeque::from([HandshakeAttempt::last(Era::Legacy)]);
                    }
                    if lines.is_empty() { message } else { with_last_output(&message, &lines) }
                }
                Failure::Broken(message) | Failure::Unreachable(message) => {
                    let end = if peer.inbox.over.is_cancelled() { process.end_reason().await } else { None };
                    let end = end.map_or_else(String::new, |end| format!(": {end}"));
                    process.close().await;
                    // A process that exits on `server/discover`, or after refusing it, may be an old server; otherwise
                    // it just ended.
                    if attempt.era == Era::Legacy {
                        attempts.clear();
                        attempts.extend(is_used.then_some(attempt));
                    }
                    format!("{message}{end}\nrun `{program}` by hand, with its arguments, to see why")
                }
                Failure::Final(message) => return Err(message),
            };
            if best.is_none() || attempt.era == Era::Legacy {
                best = Some(inbox.stdout_noise.explain(message));
            }
            if std::mem::take(&mut tried.speaks_newest) {
                attempts = attempts_of(Some(Era::Modern));
            }
        }
        Err(best.unwrap_or_else(|| NO_TIME.to_owned()))
    }

    fn inbox(&self) -> Arc<Inbox> {
        let inbox = Inbox::new(Arc::clone(&self.listener));
        inbox.answer_roots(Arc::clone(&self.folders));
        inbox
    }

    /// Records the result, and waits for a server that will ask for its folders: it may refuse calls before it
    /// has them.
    async fn connected(&self, peer: Arc<Peer>, server: ServerInfo, tried: &AttemptHistory) -> Arc<Connection> {
        if self.wanted_era.is_none() {
            self.version_probe.note(&server, tried.certainty);
        }
        if server.era == Era::Legacy {
            self.folders.follow(&peer).await;
        }
        Connection::new(peer, server, &self.followed, &self.log_level)
    }

    /// Starts the server's process and opens its pipes.
    async fn spawn_server(&self, command: SupervisedCommand) -> Result<(Arc<Peer>, Arc<StdioTransport>), String> {
        let mut child = command.spawn_blocking_thread().await.map_err(|error| error.to_string())?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the command has no standard streams".to_owned());
        };
        if let Some(gaps) = child.enforcement.take().and_then(|enforcement| enforcement.gaps()) {
            let message = format!("server {}: {gaps}", self.options.name);
            self.events.emit(Event::Warning { code: "sandbox_incomplete".into(), message });
        }
        let inbox = self.inbox();
        let process = Process::watch(child, Arc::clone(&self.listener.server));
        let transport = StdioTransport::new(
            (stdin, stdout),
            process,
            self.options.config.max_message_bytes,
            Arc::clone(&inbox) as _,
        );
        Ok((Peer::new(Arc::clone(&transport) as Arc<dyn Transport>, inbox), transport))
    }

    async fn connect_url(
        &self,
        kind: RemoteKind,
        url: &str,
        headers: &BTreeMap<String, String>,
        known_era: Option<Era>,
    ) -> Result<Arc<Connection>, String> {
        let url = Url::parse(url).map_err(|error| format!("`url` is not a URL: {error}"))?;
        let (headers, authorizer) = (header_map(headers)?, self.options.authorizer.clone());
        let target = Target::new(kind, url, headers, authorizer, self.options.config.max_message_bytes).await?;
        let mut best = None;
        let mut tried = AttemptHistory::new(self.options.config.connect_timeout);
        for attempt in attempts(Some(kind), known_era, self.options.config.connect_timeout) {
            if !tried.has_time(attempt) {
                break;
            }
            let inbox = self.inbox();
            let incoming = Arc::clone(&inbox) as Arc<dyn Incoming>;
            let opened = tokio::time::timeout(tried.bound(attempt), remote::open(kind, &target, incoming)).await;
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
            let failure = match tried.handshake(&peer, attempt).await {
                Ok(server) => return Ok(self.connected(peer, server, &tried).await),
                Err(failure) => failure,
            };
            peer.transport.close().await;
            match failure {
                Failure::Final(message) | Failure::Unreachable(message) => return Err(message),
                // Neither silence nor a fault tells which era it supports; the wanted one is tried again later.
                Failure::Silent(message) | Failure::Fault(message)
                    if self.wanted_era == Some(EraPreference::Only(attempt.era)) =>
                {
                    return Err(message);
                }
                // An old server's answer to `initialize` is more informative than its error for `server/discover`.
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
        Err(best.unwrap_or_else(|| NO_TIME.to_owned()))
    }
}

/// Returns the time reserved for one more attempt.
fn retry_reserve(timeout: Duration) -> Duration {
    (timeout / 6).min(RETRY_RESERVE)
}

/// Returns the handshakes to try on a pipe (`None`) or at a URL, in order, with `timeout` for all of
/// them. An attempt that ends early leaves its time to the next.
fn attempts(kind: Option<RemoteKind>, known_era: Option<Era>, timeout: Duration) -> Vec<HandshakeAttempt> {
    let third = timeout / 3;
    let reserved_time = retry_reserve(timeout);
    let last = HandshakeAttempt::last;
    let first = |era| HandshakeAttempt { era, reserved_time, is_guess: false };
    match (kind, known_era) {
        // Revisions without sessions never had it.
        (Some(RemoteKind::Sse), _) => vec![last(Era::Legacy)],
        (_, Some(Era::Modern)) => vec![first(Era::Modern), last(Era::Legacy)],
        (_, Some(Era::Legacy)) => vec![first(Era::Legacy), last(Era::Modern)],
        (_, None) => {
            let discover = if kind == Some(RemoteKind::Http) { third } else { third.min(DISCOVER_FIRST) };
            let reserved_time = timeout.saturating_sub(discover);
            let begin = HandshakeAttempt { era: Era::Modern, reserved_time, is_guess: kind.is_none() };
            vec![begin, first(Era::Legacy), last(Era::Modern)]
        }
    }
}

/// Findings of the attempts so far on the server's era, and the time.
struct AttemptHistory {
    limit: Duration,
    end: Instant,
    certainty: EraCertainty,
    was_silent: bool,
    /// Whether the server answered late that it supports the newest revision, in a process that failed.
    speaks_newest: bool,
}

impl AttemptHistory {
    fn new(limit: Duration) -> Self {
        let (certainty, end) = (EraCertainty::default(), Instant::now() + limit);
        Self { limit, end, certainty, was_silent: false, speaks_newest: false }
    }

    /// Returns the time limit of this attempt.
    fn bound(&self, attempt: HandshakeAttempt) -> Duration {
        self.end.saturating_duration_since(Instant::now()).saturating_sub(attempt.reserved_time)
    }

    fn has_time(&self, attempt: HandshakeAttempt) -> bool {
        !self.bound(attempt).is_zero()
    }

    async fn handshake(&mut self, peer: &Peer, attempt: HandshakeAttempt) -> Result<ServerInfo, Failure> {
        let (start, bound) = (Instant::now(), self.bound(attempt));
        let shaken = if attempt.is_guess {
            let left = self.end.saturating_duration_since(start).saturating_sub(bound);
            let beside = left.saturating_sub(retry_reserve(self.limit));
            let (shaken, discovery) = handshake_unknown_era(peer, (bound, beside), self.limit).await;
            match (&shaken, discovery) {
                (Ok(_), DelayedDiscovery::SpeaksNewest) => self.certainty = EraCertainty::Newer,
                (Ok(_), DelayedDiscovery::SpeaksOlder) => self.certainty = EraCertainty::Tried,
                (Err(_), DelayedDiscovery::SpeaksNewest) => self.speaks_newest = true,
                _ => {}
            }
            shaken
        } else {
            handshake(peer, attempt.era, bound, self.limit).await
        };
        match (&shaken, attempt.era) {
            (Err(Failure::Silent(_)), Era::Modern) => self.was_silent = true,
            (Err(Failure::Refused(_) | Failure::Broken(_)), Era::Modern) => self.certainty = EraCertainty::Tried,
            // It is not slow: it did not answer because it did not know the first request.
            (Ok(_), Era::Legacy) if self.was_silent && start.elapsed() < DISCOVER_FIRST / 2 => {
                self.certainty = EraCertainty::Tried;
            }
            _ => {}
        }
        shaken
    }
}

/// Variable that names a configuration file, as `--config` does.
const CONFIG_VARIABLE: &str = "TOOLWRIGHT_CONFIG";
/// A process at this depth starts no stdio servers.
const MAX_DEPTH: u32 = 3;

/// Checks that a server may be started.
///
/// # Errors
/// The reason and the remedy: this process is nested too deeply, or the server would be this
/// program with the same configuration.
fn check_recursion(
    command: &str,
    args: &[String],
    env: &BTreeMap<String, String>,
    cwd: Option<&Path>,
) -> Result<(), String> {
    let depth = nesting::depth();
    if depth >= MAX_DEPTH {
        return Err(format!(
            "this Toolwright was started by another one (depth {depth}); its own MCP servers are not started again: \
             remove the entry that starts Toolwright from the configuration, or give it one of its own with --config"
        ));
    }
    if serves_same_configuration(args, env) && is_this_program(command, env, cwd) {
        return Err("it would start this very Toolwright with this very configuration, again and again: remove the \
                    entry, or give it a configuration of its own with --config"
            .to_owned());
    }
    Ok(())
}

/// Whether the arguments make a Toolwright serve its default configuration.
fn serves_same_configuration(args: &[String], env: &BTreeMap<String, String>) -> bool {
    let names_another = |arg: &String| arg == "--config" || arg.starts_with("--config=");
    args.iter().any(|arg| arg == "serve") && !args.iter().any(names_another) && !env.contains_key(CONFIG_VARIABLE)
}

/// Whether the command is this process's own executable in its own working directory, where it
/// looks for its configuration.
fn is_this_program(command: &str, env: &BTreeMap<String, String>, cwd: Option<&Path>) -> bool {
    let Ok(here) = std::env::current_dir() else { return false };
    let folder = cwd.map_or_else(|| here.clone(), |cwd| here.join(cwd));
    let own = std::env::current_exe().and_then(|own| own.canonicalize()).ok();
    let path = env.get("PATH").map(|path| path.into()).or_else(|| std::env::var_os("PATH"));
    own.is_some()
        && own == find(command, &folder, path.as_deref())
        && folder.canonicalize().ok() == here.canonicalize().ok()
}

/// The file that the command names, looked up as exec does.
fn find(command: &str, folder: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    if command.contains('/') {
        return folder.join(command).canonicalize().ok();
    }
    let mut places = std::env::split_paths(path?).map(|place| folder.join(place).join(command));
    places.find(|place| place.is_file())?.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_share_the_connect_timeout() {
        let (modern, legacy) = (Some(Era::Modern), Some(Era::Legacy));
        for (kind, known, timeout, expect) in [
            (None, None, 30_000, &[2000, 23_000, 5000][..]),
            (None, None, 300_000, &[2000, 293_000, 5000]),
            (None, None, 3000, &[1000, 1500, 500]),
            (Some(RemoteKind::Http), None, 30_000, &[10_000, 15_000, 5000]),
            (Some(RemoteKind::Http), None, 90_000, &[30_000, 55_000, 5000]),
            (Some(RemoteKind::Sse), None, 30_000, &[30_000]),
            (None, modern, 30_000, &[25_000, 5000]),
            (Some(RemoteKind::Http), legacy, 30_000, &[25_000, 5000]),
        ] {
            let mut left = timeout;
            let tried = attempts(kind, known, Duration::from_millis(timeout));
            let shares = tried.iter().map(|attempt| {
                let kept = u64::try_from(attempt.reserved_time.as_millis()).expect("small");
                std::mem::replace(&mut left, kept) - kept
            });
            assert_eq!(shares.collect::<Vec<_>>(), expect, "{kind:?} {known:?} {timeout}");
        }
    }
}

#[cfg(test)]
mod recursion_guard_tests {
    use super::*;

    #[test]
    fn an_entry_that_starts_toolwright_is_recognised() {
        let own = std::env::current_exe().expect("this binary");
        let (folder, name) = (own.parent().expect("folder"), own.file_name().expect("name"));
        let (own, name) = (own.to_str().expect("text"), name.to_str().expect("text"));
        let on_path = format!("/nowhere:{}", folder.display());
        let check = |command: &str, args: &[&str], env: &[(&str, &str)], cwd: Option<&str>, refused: bool| {
            let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
            let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let checked = super::check_recursion(command, &args, &env, cwd.map(Path::new));
            assert_eq!(checked.is_err(), refused, "{command} {args:?} {env:?} {cwd:?}: {checked:?}");
        };
        check(own, &["serve", "--stdio"], &[], None, true);
        check(own, &["--root", "/x", "serve"], &[], Some("."), true);
        check(name, &["serve", "--stdio"], &[("PATH", &on_path)], None, true);
        check(name, &["serve", "--stdio"], &[("PATH", "/nowhere")], None, false);
        check(own, &["tools", "ls"], &[], None, false);
        check(own, &["serve", "--config", "other.yaml"], &[], None, false);
        check(own, &["--config=other.yaml", "serve"], &[], None, false);
        check(own, &["serve"], &[(CONFIG_VARIABLE, "other.yaml")], None, false);
        check(own, &["serve"], &[], Some("/"), false);
        check("sh", &["serve"], &[], None, false);
    }
}
