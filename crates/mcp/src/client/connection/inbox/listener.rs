//! Passes messages of a server outside of calls to the catalogue, the gateway and the operator, and sends the
//! server its folders.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use toolwright_core::catalogue::{NoticeSink, SourceNotice};
use toolwright_core::client::Roots;
use toolwright_core::event::{Event, EventSink};
use toolwright_core::session::SessionId;

use crate::config::AsTools;
use crate::transport::FrameSink;

/// Characters shown of a line that is not a message.
const EXCERPT: usize = 120;

/// Handles messages of a server outside of calls.
pub(crate) struct Listener {
    /// Name of the server, for logs.
    pub(crate) server: Arc<str>,
    /// Receives warnings.
    events: Arc<dyn EventSink>,
    /// Called when its tools may have changed.
    tools_changed: Arc<dyn Fn() + Send + Sync>,
    /// Whether its prompts are also tools.
    prompts: AsTools,
    /// The session that owns the connection.
    session: Option<SessionId>,
    /// Receives the messages of its connections.
    pub(crate) frames: Option<Arc<dyn FrameSink>>,
    common: Arc<SharedListenerState>,
}

/// State shared by all listeners of one server.
#[derive(Default)]
struct SharedListenerState {
    notices: Mutex<Option<NoticeSink>>,
    garbage: AtomicU64,
    broken: AtomicU64,
}

impl Listener {
    /// A listener to `server`.
    pub(crate) fn new(
        server: Arc<str>,
        events: Arc<dyn EventSink>,
        tools_changed: Arc<dyn Fn() + Send + Sync>,
        prompts: AsTools,
    ) -> Arc<Self> {
        Arc::new(Self { server, events, tools_changed, prompts, session: None, frames: None, common: Arc::default() })
    }

    /// Returns a listener that also passes its messages to `frames`.
    pub(crate) fn shown_to(self: Arc<Self>, frames: Option<Arc<dyn FrameSink>>) -> Arc<Self> {
        match frames {
            None => self,
            frames => Arc::new(Self { frames, ..self.copy(None) }),
        }
    }

    /// A listener on a connection that this session has for itself.
    pub(crate) fn of_session(&self, session: SessionId) -> Self {
        self.copy(Some(session))
    }

    fn copy(&self, session: Option<SessionId>) -> Self {
        Self {
            server: Arc::clone(&self.server),
            events: Arc::clone(&self.events),
            tools_changed: Arc::clone(&self.tools_changed),
            prompts: self.prompts,
            session,
            frames: self.frames.clone(),
            common: Arc::clone(&self.common),
        }
    }

    /// Passes notices on to `sink` from here on.
    pub(crate) fn listen(&self, sink: NoticeSink) {
        *self.common.notices.lock().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    }

    /// Its tools may have changed.
    pub(crate) fn tools_changed(&self) {
        (self.tools_changed)();
    }

    /// Passes a notice on.
    pub(crate) fn notice(&self, notice: SourceNotice) {
        if notice == SourceNotice::PromptsChanged && self.prompts == AsTools::Yes {
            self.tools_changed();
        }
        let sink = self.common.notices.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(sink) = sink {
            sink(notice);
        }
    }

    /// It logs, and it is not known for which call.
    pub(crate) fn log(&self, message: Value) {
        self.notice(match self.session.clone() {
            Some(session) => SourceNotice::SessionLog { session, message },
            None => SourceNotice::Log(message),
        });
    }

    /// Counts a line that is not a message; warns at the first, the tenth, the hundredth and so on.
    pub(crate) fn count_garbage(&self, line: &[u8]) {
        let line_text = String::from_utf8_lossy(&line[..line.len().min(1000)]);
        tracing::debug!(server = &*self.server, line = %line_text, "not a message");
        if let Some(count) = is_due(&self.common.garbage) {
            let excerpt: String = line_text.chars().take(EXCERPT).collect();
            let message = format!(
                "{count} line(s) of its standard output are not messages and were skipped; only messages may be \
                 written there, logs belong on standard error. Last: {excerpt}"
            );
            self.warn("mcp_garbage", &message);
        }
    }

    /// Counts another kind of malformed message, with rate-limited warnings.
    pub(crate) fn broken(&self, what: &str) {
        tracing::debug!(server = &*self.server, "{what}");
        if let Some(count) = is_due(&self.common.broken) {
            let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
            self.warn("mcp_broken_message", &format!("{what}{times}"));
        }
    }

    /// Warns the operator.
    pub(crate) fn warn(&self, code: &str, message: &str) {
        tracing::warn!(server = &*self.server, "{message}");
        self.events
            .emit(Event::Warning { code: code.to_owned(), message: format!("MCP server {}: {message}", self.server) });
    }
}

/// Counts one more; the number if it is worth a warning.
fn is_due(count: &AtomicU64) -> Option<u64> {
    let count = count.fetch_add(1, Ordering::Relaxed) + 1;
    (count == 10_u64.saturating_pow(count.ilog10())).then_some(count)
}

/// How long an answer waits for the client with the folders; less than servers' own timeout (SDKs: 60 s).
const CLIENT: Duration = Duration::from_secs(20);

/// The folders (roots) told to one server.
pub(crate) struct ServerRoots {
    pub(crate) roots: Arc<Roots>,
    /// Whether the server asks for them before calls.
    are_asked_for: AtomicBool,
    /// Whether that is known for this process.
    is_known: AtomicBool,
}

impl ServerRoots {
    /// The folders of `roots`.
    pub(crate) fn new(roots: Arc<Roots>) -> Arc<Self> {
        Arc::new(Self { roots, are_asked_for: AtomicBool::new(false), is_known: AtomicBool::new(false) })
    }

    /// Records whether the server asked before calls.
    pub(crate) fn asked_for(&self, did_ask: bool) {
        self.is_known.store(true, Ordering::Relaxed);
        self.are_asked_for.store(did_ask, Ordering::Relaxed);
    }

    /// Notes that it did in an earlier run, which this one may know better.
    pub(crate) fn note_roots_request(&self) {
        if !self.is_known.load(Ordering::Relaxed) {
            self.are_asked_for.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the server asked for them the last time.
    pub(crate) fn are_asked_for(&self) -> bool {
        self.are_asked_for.load(Ordering::Relaxed)
    }

    /// Whether folders are known outside of calls.
    pub(crate) fn are_known(&self) -> bool {
        self.roots.are_known()
    }

    /// Returns `ListRootsResult`; `None` if there is no answer. If the client does not come in time the list is empty;
    /// its folders are announced later.
    pub(crate) async fn now(&self) -> Option<Value> {
        tokio::time::timeout(CLIENT, self.roots.known()).await.unwrap_or_else(|_| Some(Roots::none()))
    }
}
