//! Defines the client of a call, which answers questions of the tool's source, and the roots that answer for it outside of
//! calls. MCP calls this "client features".

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use async_trait::async_trait;
use event_listener::Event as Wakeup;
use serde_json::{Map, Value, json};

use super::context::UsageRecorder;
use crate::cancel::Cancel;
use crate::error::{ErrorKind, ProtocolError, ToolError};
use crate::identity::tool_id::ToolId;

/// A request of a running call's source to the call's client: MCP's `elicitation/create`,
/// `sampling/createMessage` or `roots/list`.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientRequest {
    /// The source's name for the request (2026-07-28: its key in `inputRequests`). A client of the same revision is
    /// asked under this name, if no other request of the call has it.
    pub key: Option<String>,
    /// The method.
    pub method: String,
    /// Its parameters as the source wrote them; an empty object if there are none.
    pub params: Value,
}

impl ClientRequest {
    /// Whether a person answers it, which may take long.
    #[must_use]
    pub fn asks_person(&self) -> bool {
        self.method == "elicitation/create"
    }
}

/// The call whose source asks.
#[derive(Clone)]
pub struct AskingCall {
    /// Its tool.
    pub tool: ToolId,
    /// W3C trace context of the call's operation, the parent of work done to answer.
    pub traceparent: Arc<str>,
    /// Fires when answers are no longer awaited.
    pub cancel: Cancel,
    /// Records usage of model requests made to answer the source, if the run's usage is counted.
    pub usage: Option<Arc<dyn UsageRecorder>>,
}

impl fmt::Debug for AskingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskingCall").field("tool", &self.tool).finish_non_exhaustive()
    }
}

/// The way to ask a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AskStyle {
    /// However the source does it.
    #[default]
    Either,
    /// By requests during a call (MCP up to 2025-11-25). A source that also speaks later revisions may be limited to
    /// this for this client.
    Requests,
}

/// The client of a call. Its answers go to the tool's source, which gets nothing else.
#[async_trait]
pub trait CallClient: Send + Sync {
    /// The wrapped client. Its statements about itself are the defaults of this one, except how it is asked, and its
    /// form for one call.
    fn inner(&self) -> Option<&dyn CallClient> {
        None
    }

    /// The requests it supports, as MCP's `ClientCapabilities`. Nothing else may be asked.
    fn capabilities(&self) -> Map<String, Value> {
        self.inner().map(CallClient::capabilities).unwrap_or_default()
    }

    /// The way to ask it.
    fn ask_style(&self) -> AskStyle {
        self.inner().map(CallClient::ask_style).unwrap_or_default()
    }

    /// The way to ask the client of this call's session, equal for all calls of the session, even while this one
    /// cannot be asked.
    fn session_ask_style(&self) -> AskStyle {
        match self.inner() {
            Some(inner) => inner.session_ask_style(),
            None if self.capabilities().is_empty() => AskStyle::Either,
            None => self.ask_style(),
        }
    }

    /// Whether it handles pages that its user must open before a call is allowed (MCP 2025-11-25, error
    /// -32042), and so wants that error unchanged.
    fn follows_pages(&self) -> bool {
        self.inner().map_or_else(|| self.ask_style() == AskStyle::Requests, CallClient::follows_pages)
    }

    /// Returns the client as seen by the source of this call; `None` if it is the same for every call.
    fn for_call(&self, _asking: &AskingCall) -> Option<Arc<dyn CallClient>> {
        None
    }

    /// Identifies who is asked within a session: calls with different identities have different
    /// users, whose data must not mix. `None` if the session is one client.
    fn identity(&self) -> Option<String> {
        self.inner().and_then(CallClient::identity)
    }

    /// Whether it has an unanswered question and no open request for the call: it may return with the answers or not.
    fn is_client_absent(&self) -> bool {
        self.inner().is_some_and(CallClient::is_client_absent)
    }

    /// Asks all requests at once and waits for the answers, one each, in order: the result, or the client's refusal.
    ///
    /// # Errors
    /// [`ToolError`] if nobody answers: the client cannot be asked, has gone, or did not answer in time.
    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        let methods: Vec<_> = requests.iter().map(|request| request.method.as_str()).collect();
        let message = format!("the tool asks for {}, and whoever made the call cannot be asked", methods.join(", "));
        Err(ToolError::new(ErrorKind::ExecutionError, message))
    }

    /// Like `ask`, until `over` resolves; then the question is withdrawn and `None` returned. Resources released while
    /// the client is asked are taken back at the end, either way.
    async fn ask_until(
        &self,
        requests: Vec<ClientRequest>,
        mut over: Pin<&mut (dyn Future<Output = ()> + Send)>,
    ) -> Option<Result<Vec<Result<Value, ProtocolError>>, ToolError>> {
        let mut asking = self.ask(requests);
        poll_fn(|context| match over.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => asking.as_mut().poll(context).map(Some),
        })
        .await
    }

    /// The minimum level of log messages it wants from a source (`debug`, `info`, …); `None` for no messages.
    fn log_level(&self) -> Option<String> {
        self.inner().and_then(CallClient::log_level)
    }

    /// Receives a log message of the source (the parameters of `notifications/message`). Must not block.
    fn log(&self, message: Value) {
        if let Some(inner) = self.inner() {
            inner.log(message);
        }
    }

    /// Members of `_meta` in the client's own request that the protocol does not define; they are passed to the source.
    fn meta(&self) -> Map<String, Value> {
        self.inner().map(CallClient::meta).unwrap_or_default()
    }
}

/// A client that supports no requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoClient;

impl NoClient {
    /// A shared instance.
    #[must_use]
    pub fn shared() -> Arc<dyn CallClient> {
        static SHARED: LazyLock<Arc<dyn CallClient>> = LazyLock::new(|| Arc::new(NoClient));
        Arc::clone(&SHARED)
    }
}

#[async_trait]
impl CallClient for NoClient {}

/// Answers `roots/list` of a source while no call runs whose client could be asked. A process with one client
/// answers with that client's folders. With several clients, or none, there is no answer (the default): a source that
/// once got an empty list might not ask again during a call.
pub struct Roots {
    state: Mutex<RootsAnswer>,
    changed: Wakeup,
}

struct RootsAnswer {
    roots: RootsState,
    /// Changes with `roots`.
    version: u64,
}

enum RootsState {
    /// The process has several clients, or none.
    NobodysOwn,
    /// The one client has not given its folders yet.
    Awaited,
    /// The `ListRootsResult` of the one client.
    Given(Value),
}

impl RootsState {
    fn value(&self) -> Option<&Value> {
        match self {
            Self::Given(result) => Some(result),
            Self::NobodysOwn | Self::Awaited => None,
        }
    }
}

impl Roots {
    /// An answer without folders.
    #[must_use]
    pub fn none() -> Value {
        json!({"roots": []})
    }

    /// Expects one client, which will set its folders with [`Roots::set`].
    pub fn expect_client(&self) {
        self.lock().roots = RootsState::Awaited;
    }

    /// Stops answering: the client is asked during its calls only.
    pub fn withhold(&self) {
        self.lock().roots = RootsState::NobodysOwn;
        self.changed.notify(usize::MAX);
    }

    /// Answers with these folders (MCP, `ListRootsResult`) from now on.
    pub fn set(&self, result: Value) {
        {
            let mut state = self.lock();
            if state.roots.value() == Some(&result) {
                return;
            }
            (state.roots, state.version) = (RootsState::Given(result), state.version.wrapping_add(1));
        }
        self.changed.notify(usize::MAX);
    }

    /// Whether there is an answer, or will be once the expected client has connected.
    #[must_use]
    pub fn are_known(&self) -> bool {
        !matches!(self.lock().roots, RootsState::NobodysOwn)
    }

    /// Whether the expected client has not sent its folders yet.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        matches!(self.lock().roots, RootsState::Awaited)
    }

    /// The version of the answer. It changes with the answer.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// Returns the answer; waits for the expected client. `None` if there is no answer. Cancel-safe.
    pub async fn known(&self) -> Option<Value> {
        self.when(|state| match &state.roots {
            RootsState::Awaited => None,
            RootsState::NobodysOwn => Some(None),
            RootsState::Given(result) => Some(Some(result.clone())),
        })
        .await
    }

    /// Waits for a version other than `version`, and returns it. Cancel-safe.
    pub async fn newer_than(&self, version: u64) -> u64 {
        self.when(|state| (state.version != version && state.roots.value().is_some()).then_some(state.version)).await
    }

    async fn when<T>(&self, look: impl Fn(&RootsAnswer) -> Option<T>) -> T {
        loop {
            // Listen first, look second: a change between the two is not missed.
            let woken = self.changed.listen();
            if let Some(found) = look(&self.lock()) {
                return found;
            }
            woken.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, RootsAnswer> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Roots {
    fn default() -> Self {
        Self { state: Mutex::new(RootsAnswer { roots: RootsState::NobodysOwn, version: 0 }), changed: Wakeup::new() }
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roots").finish_non_exhaustive()
    }
}
