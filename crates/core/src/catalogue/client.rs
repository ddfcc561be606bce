//! Defines the client of a call: it answers questions of the tool's source. MCP calls this "client features".

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::Poll;

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::context::UsageRecorder;
use crate::cancel::Cancel;
use crate::error::{ErrorKind, ProtocolError, ToolError};
use crate::identity::tool_id::ToolId;

/// Something that the source of a running call wants of the call's client: `elicitation/create`,
/// `sampling/createMessage` or `roots/list`, in the words of MCP.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientRequest {
    /// What the source calls it, where it names what it asks (2026-07-28: its key in `inputRequests`). A client of
    /// the same generation is asked under this name, if no other request of the call has it.
    pub key: Option<String>,
    /// The method.
    pub method: String,
    /// Its parameters, as the source wrote them; an empty object where it wrote none.
    pub params: Value,
}

impl ClientRequest {
    /// Whether it is put to a person, who takes the time that people take.
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
    /// Its operation, as W3C trace context: what is done to answer belongs inside it.
    pub traceparent: Arc<str>,
    /// Fires when it is to stop, and nobody waits for answers any more.
    pub cancel: Cancel,
    /// Hears what models are asked to answer its source, where somebody counts what its run uses.
    pub usage: Option<Arc<dyn UsageRecorder>>,
}

impl fmt::Debug for AskingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskingCall").field("tool", &self.tool).finish_non_exhaustive()
    }
}

/// How a client is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AskStyle {
    /// However the source does it.
    #[default]
    Either,
    /// By requests in the middle of a call (MCP up to 2025-11-25). A source that speaks that as well as what came later
    /// may be able to ask this client only so.
    Requests,
}

/// The client of a call. What it answers goes to the tool's source, which is not trusted with more than that.
#[async_trait]
pub trait CallClient: Send + Sync {
    /// The client that this one stands before. What that says of itself holds for this one too, where this one says
    /// nothing else; how it is asked, and who it is for one call, this one says in any case.
    fn inner(&self) -> Option<&dyn CallClient> {
        None
    }

    /// What it can be asked, as MCP's `ClientCapabilities` names it. Nothing else may be asked.
    fn capabilities(&self) -> Map<String, Value> {
        self.inner().map(CallClient::capabilities).unwrap_or_default()
    }

    /// How it is asked.
    fn ask_style(&self) -> AskStyle {
        self.inner().map(CallClient::ask_style).unwrap_or_default()
    }

    /// How the client of this call's session is asked, the same for all calls of the session: whether this one can be
    /// asked just now does not matter.
    fn session_ask_style(&self) -> AskStyle {
        match self.inner() {
            Some(inner) => inner.session_ask_style(),
            None if self.capabilities().is_empty() => AskStyle::Either,
            None => self.ask_style(),
        }
    }

    /// Whether it sees to the pages itself that its user has to open before a call is let through (MCP 2025-11-25, error
    /// -32042), and so wants the refusal as it is.
    fn follows_pages(&self) -> bool {
        self.inner().map_or_else(|| self.ask_style() == AskStyle::Requests, CallClient::follows_pages)
    }

    /// The client as the source of this very call meets it; `None` where it is the same for every call.
    fn for_call(&self, _asking: &AskingCall) -> Option<Arc<dyn CallClient>> {
        None
    }

    /// Who is asked, where a session does not tell: two calls of one session whose clients say different names are of
    /// different askers, and what belongs to one must not reach the other. `None` where the session is one client.
    fn identity(&self) -> Option<String> {
        self.inner().and_then(CallClient::identity)
    }

    /// Whether it was asked something and no request of it waits for the call now: it comes back with the answers, or not.
    fn is_away(&self) -> bool {
        self.inner().is_some_and(CallClient::is_away)
    }

    /// Asks all of these at once and waits for the answers, one each, in order: the result, or the client's refusal.
    ///
    /// # Errors
    /// [`ToolError`] where there is nobody to answer: the client cannot be asked, has gone, or did not answer in time.
    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        let methods: Vec<_> = requests.iter().map(|request| request.method.as_str()).collect();
        let message = format!("the tool asks for {}, and whoever made the call cannot be asked", methods.join(", "));
        Err(ToolError::new(ErrorKind::ExecutionError, message))
    }

    /// The same, until `over` comes: then the question is taken back and nothing is returned. Whoever gave something up
    /// while the client is asked has it again at the end, either way.
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

    /// The least severe log message that it wants of a source (`debug`, `info`, …); `None` for none.
    fn log_level(&self) -> Option<String> {
        self.inner().and_then(CallClient::log_level)
    }

    /// Takes a log message of the source (the parameters of `notifications/message`). Must not block.
    fn log(&self, message: Value) {
        if let Some(inner) = self.inner() {
            inner.log(message);
        }
    }

    /// What the client's own request said in `_meta` beyond what the protocol owns; it is passed on to the source.
    fn meta(&self) -> Map<String, Value> {
        self.inner().map(CallClient::meta).unwrap_or_default()
    }
}

/// A client that can be asked nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoClient;

impl NoClient {
    /// One for all.
    #[must_use]
    pub fn shared() -> Arc<dyn CallClient> {
        static SHARED: LazyLock<Arc<dyn CallClient>> = LazyLock::new(|| Arc::new(NoClient));
        Arc::clone(&SHARED)
    }
}

#[async_trait]
impl CallClient for NoClient {}
