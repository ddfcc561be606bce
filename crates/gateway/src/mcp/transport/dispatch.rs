//! Dispatches requests of every transport by method, and the messages of a batch.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _, join_all};
use serde_json::json;
use tokio::sync::mpsc;
use toolwright_mcp::batch::batch;
use toolwright_mcp::tasks::announce;

use crate::Gateway;
use crate::mcp::message::{self, Id, Message, Params, RefusedMessage, Request, RpcError, notification, to_json};
use crate::mcp::protocol::{BATCHING, Era, MODERN_VERSIONS, SERVER_INFO, era_of, negotiate};
use crate::mcp::request::{CALL, McpRequestContext, PendingRequest, tasks};
use crate::mcp::response::{Event, Reply, ReplyTo, ResponseGuard, whole};
use crate::mcp::session::Caller;
use crate::mcp::sources::is_forwarded;
use crate::mcp::sources::notifications::{GrantedSubscription, WithSubscriptionId};

/// How long a modern client may cache the answer to `server/discover`, in milliseconds.
const DISCOVER_TTL_MS: u64 = 3_600_000;
/// How long a modern client may cache a list, in milliseconds. Zero, because a list may change at any moment.
const LIST_TTL_MS: u64 = 0;

/// The only legacy revision with tasks.
const WITH_TASKS: &str = "2025-11-25";

/// Returns the error for a client that may not send batches.
pub(crate) fn no_batches() -> RpcError {
    let why = format!("several messages at once are accepted only where {BATCHING} was agreed on");
    RpcError::new(RpcError::INVALID_REQUEST, why)
}

/// Returns whether the answer to this method contains instructions; see [`Gateway::await_capabilities`].
pub(crate) fn has_instructions(method: &str) -> bool {
    matches!(method, "initialize" | "server/discover")
}

impl Gateway {
    /// Answers a request. Longer work sends its notifications and its answer to `to`.
    pub(crate) fn reply(self: &Arc<Self>, caller: &Caller, era: Era, request: Request, to: ReplyTo) -> Reply {
        let has_cursor = request.params.cursor.is_some();
        match (era, request.method.as_str()) {
            (Era::Legacy, "initialize") => Reply::Result(self.initialize(caller, &request.params)),
            (Era::Legacy, "ping") => Reply::Result(b"{}".to_vec()),
            (Era::Modern, "server/discover") => Reply::Result(self.discover(caller)),
            (Era::Modern, "subscriptions/listen") => match request.params.notifications {
                Some(filter) => Reply::Listen(filter),
                None => Reply::Error(RpcError::invalid_params("subscriptions/listen needs `notifications`")),
            },
            (_, "tools/list") if self.is_awaiting_lists(&caller.view.scope) => {
                self.start_list(caller, PendingRequest::new(era, request, to)).map(Reply::Running).into()
            }
            (_, "tools/list") => self.list_tools(caller, era, has_cursor).map(Reply::Result).into(),
            (_, method) if method == CALL || is_forwarded(era, method) => {
                let is_call = method == CALL;
                let mut pending = PendingRequest::new(era, request, to);
                match pending.request.params.request_state.take().filter(|_| era == Era::Modern) {
                    Some(state) => self.resume(caller, pending, &state),
                    None if is_call => self.start_call(caller, pending).map(Reply::Running),
                    None => self.start_method(caller, pending).map(Reply::Running),
                }
                .into()
            }
            (_, method) if tasks::serves(era, method) => {
                self.start_tasks(caller, PendingRequest::new(era, request, to)).into()
            }
            (_, method) => Reply::Error(RpcError::method_not_found(method)),
        }
    }

    /// Handles the messages of a batch (2025-03-26, "Batching"). Each is handled like a single message, but sends
    /// nothing before its answer. `each` gets every request first.
    ///
    /// # Errors
    /// The batch is refused as a whole.
    pub(crate) fn batch(
        self: &Arc<Self>,
        caller: &Caller,
        body: &[u8],
        mut each: impl FnMut(&mut Request),
    ) -> Result<Batch, RpcError> {
        if caller.client.version() != BATCHING {
            return Err(no_batches());
        }
        let mut taken = Batch::default();
        for message in batch(body).map_err(|refused| refused.error)? {
            match message::parse(message.get().as_bytes()) {
                Ok(Message::Request(mut request)) => {
                    taken.has_requests = true;
                    each(&mut request);
                    taken.answers.push(self.answer_in_batch(caller, request));
                }
                Ok(Message::Notification { method, params, .. }) => {
                    caller.notified(&method, &params);
                    taken.notified.push(method);
                }
                Ok(Message::Response(response)) => caller.client.take_response(response),
                Err(RefusedMessage { id, error }) => {
                    taken.has_requests |= id.is_some();
                    let answer = message::error(id.as_ref(), &error);
                    taken.answers.push(std::future::ready(Some(answer)).boxed());
                }
            }
        }
        Ok(taken)
    }

    fn answer_in_batch(self: &Arc<Self>, caller: &Caller, request: Request) -> BoxFuture<'static, Option<Bytes>> {
        let id = request.id.clone();
        let (events, mut received) = mpsc::channel(1);
        let refuse = |why: &'static str| Reply::Error(RpcError::new(RpcError::INVALID_REQUEST, why));
        let reply = match era_of(&request, None) {
            Era::Modern => refuse("a request of 2026-07-28 must not be part of a batch"),
            // A client must initialize before any other request (2025-03-26, basic/lifecycle).
            Era::Legacy if request.method == "initialize" => refuse("`initialize` must not be part of a batch"),
            Era::Legacy => self.reply(caller, Era::Legacy, request, ReplyTo::Whole(events)),
        };
        let answer = match reply {
            Reply::Result(result) => message::result(&id, &result),
            Reply::Error(error) => message::error(Some(&id), &error),
            Reply::Listen(_) => message::error(Some(&id), &RpcError::method_not_found("subscriptions/listen")),
            Reply::Running(_) => {
                return async move {
                    match received.recv().await? {
                        Event::End(end) => Some(whole(&id, &end?)),
                        Event::Note(_) => None,
                    }
                }
                .boxed();
            }
        };
        std::future::ready(Some(answer)).boxed()
    }

    fn initialize(&self, caller: &Caller, params: &Params) -> Vec<u8> {
        let version = negotiate(params.protocol_version.as_deref());
        caller.client.initialized(version, params.capabilities.as_ref());
        let mut capabilities = self.capabilities(caller);
        if version == WITH_TASKS {
            announce(&mut capabilities, Era::Legacy);
        }
        let mut result = json!({
            "protocolVersion": version,
            "capabilities": capabilities,
            "serverInfo": self.options.info,
        });
        if let Some(instructions) = self.instructions(&caller.view, &caller.session) {
            result["instructions"] = instructions.into();
        }
        to_json(&result)
    }

    fn discover(&self, caller: &Caller) -> Vec<u8> {
        let mut capabilities = self.capabilities(caller);
        announce(&mut capabilities, Era::Modern);
        let mut result = json!({
            "resultType": "complete",
            "supportedVersions": MODERN_VERSIONS,
            "capabilities": capabilities,
            "ttlMs": DISCOVER_TTL_MS,
            "cacheScope": "private",
            "_meta": {SERVER_INFO: self.options.info},
        });
        if let Some(instructions) = self.instructions(&caller.view, &caller.session) {
            result["instructions"] = instructions.into();
        }
        to_json(&result)
    }

    /// Lists the tools after waiting for the first lists of starting sources.
    fn start_list(self: &Arc<Self>, caller: &Caller, pending: PendingRequest) -> Result<ResponseGuard, RpcError> {
        let (era, has_cursor) = (pending.era, pending.request.params.cursor.is_some());
        self.start(caller, pending, async move |work| {
            let McpRequestContext { gateway, caller, cancel, .. } = work;
            tokio::select! {
                () = gateway.await_first_lists(&caller.view.scope) => {}
                // A cancelled request does not wait.
                _ = cancel.cancelled() => {}
            }
            gateway.list_tools(&caller, era, has_cursor)
        })
    }

    fn list_tools(&self, caller: &Caller, era: Era, has_cursor: bool) -> Result<Vec<u8>, RpcError> {
        if has_cursor {
            return Err(RpcError::invalid_params("this list has one page only, so no cursor is valid"));
        }
        let broken_schemas = self.broken_output_schemas.count();
        let list = self.tools(&caller.view, &caller.session);
        caller.client.has_listed(broken_schemas);
        Ok(self.list_result("tools", list.json(era), era))
    }

    /// Returns the result of a list method: this JSON array under this key.
    pub(crate) fn list_result(&self, key: &str, json: &[u8], era: Era) -> Vec<u8> {
        let mut out = Vec::with_capacity(json.len() + 256);
        out.extend_from_slice(format!(r#"{{"{key}":"#).as_bytes());
        out.extend_from_slice(json);
        if era == Era::Modern {
            out.extend_from_slice(
                format!(r#","resultType":"complete","ttlMs":{LIST_TTL_MS},"cacheScope":"private","#).as_bytes(),
            );
            out.extend_from_slice(br#""_meta":"#);
            out.extend_from_slice(&to_json(&json!({SERVER_INFO: self.options.info})));
        }
        out.push(b'}');
        out
    }

    /// Returns the result that ends a subscription at shutdown.
    pub(crate) fn listen_result(&self, subscription: &Id) -> Vec<u8> {
        to_json(&WithSubscriptionId::new(subscription, json!({"resultType": "complete"})).by(&self.options.info))
    }
}

/// Returns the first notification of a subscription, which names what was granted.
pub(crate) fn subscription_acknowledgement(granted: &GrantedSubscription) -> Bytes {
    let params = WithSubscriptionId::new(&granted.id, json!({"notifications": granted.filter}));
    notification("notifications/subscriptions/acknowledged", Some(&params))
}

/// An accepted batch.
#[derive(Default)]
pub(crate) struct Batch {
    answers: Vec<BoxFuture<'static, Option<Bytes>>>,
    /// Whether the batch contains a request.
    pub(crate) has_requests: bool,
    /// The methods of the batch's notifications.
    pub(crate) notified: Vec<String>,
}

impl Batch {
    /// Waits for all answers and returns them as one message; `None` if there are none. A cancelled request has no
    /// answer.
    pub(crate) async fn answers(self) -> Option<Bytes> {
        let answers: Vec<Bytes> = join_all(self.answers).await.into_iter().flatten().collect();
        if answers.is_empty() {
            return None;
        }
        Some([b"[", &*answers.join(&b','), b"]"].concat().into())
    }
}
