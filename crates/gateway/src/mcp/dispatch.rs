//! One request in, one reply out: the methods that are served, whatever the transport.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use toolwright_mcp::tasks::announce;

use super::call::{Ask, Caller, Work};
use super::changes::{Granted, OfSubscription};
use super::message::{Filter, Id, Params, Request, RpcError, notification, to_json};
use super::methods::is_forwarded;
use super::protocol::{Era, MODERN_VERSIONS, SERVER_INFO, negotiate};
use super::response_channel::{To, Waiting};
use super::tasks;
use crate::Gateway;

/// How long a modern client may keep what the server says about itself, in milliseconds.
const DISCOVER_TTL_MS: u64 = 3_600_000;
/// A list may change at any moment: a client that keeps it subscribes.
const LIST_TTL_MS: u64 = 0;

const CALL: &str = "tools/call";
/// The one legacy revision that has tasks.
const WITH_TASKS: &str = "2025-11-25";

/// What a request comes to.
pub(crate) enum Reply {
    /// A result, as JSON.
    Result(Vec<u8>),
    /// An error.
    Error(RpcError),
    /// Something that runs and ends its response itself.
    Running(Waiting),
    /// A subscription, with what it asks for.
    Listen(Filter),
}

impl From<Result<Reply, RpcError>> for Reply {
    fn from(result: Result<Reply, RpcError>) -> Self {
        result.unwrap_or_else(Reply::Error)
    }
}

/// Whether a request of this method is answered with instructions: see [`Gateway::introduced`].
pub(crate) fn introduces(method: &str) -> bool {
    matches!(method, "initialize" | "server/discover")
}

impl Gateway {
    /// Answers a request; what takes a while is answered to `to`, which takes its notifications too.
    pub(crate) fn reply(self: &Arc<Self>, caller: &Caller, era: Era, request: Request, to: To) -> Reply {
        let Request { id, method, mut params, raw } = request;
        match (era, method.as_str()) {
            (Era::Legacy, "initialize") => Reply::Result(self.initialize(caller, &params)),
            (Era::Legacy, "ping") => Reply::Result(b"{}".to_vec()),
            (Era::Modern, "server/discover") => Reply::Result(self.discover(caller)),
            (Era::Modern, "subscriptions/listen") => match params.notifications {
                Some(filter) => Reply::Listen(filter),
                None => Reply::Error(RpcError::invalid_params("subscriptions/listen needs `notifications`")),
            },
            (_, "tools/list") if self.awaits_lists(&caller.view.scope) => {
                let ask = Ask { id, era, method, params, raw, to, task: None };
                self.start_list(caller, ask).map(Reply::Running).into()
            }
            (_, "tools/list") => self.list_tools(caller, era, params.cursor.is_some()).map(Reply::Result).into(),
            (_, name) if name == CALL || is_forwarded(era, name) => {
                let is_call = name == CALL;
                let state = params.request_state.take().filter(|_| era == Era::Modern);
                let ask = Ask { id, era, method, params, raw, to, task: None };
                match state {
                    Some(state) => self.resume(caller, ask, &state),
                    None if is_call => self.start_call(caller, ask).map(Reply::Running),
                    None => self.start_method(caller, ask).map(Reply::Running),
                }
                .into()
            }
            (_, name) if tasks::serves(era, name) => {
                self.start_tasks(caller, Ask { id, era, method, params, raw, to, task: None }).into()
            }
            _ => Reply::Error(RpcError::method_not_found(&method)),
        }
    }

    fn initialize(&self, caller: &Caller, params: &Params) -> Vec<u8> {
        let version = negotiate(params.protocol_version.as_deref());
        caller.peer.introduced(version, params.capabilities.as_ref());
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

    /// Lists the tools once the sources that are just starting have said theirs.
    fn start_list(self: &Arc<Self>, caller: &Caller, ask: Ask) -> Result<Waiting, RpcError> {
        let (era, has_cursor) = (ask.era, ask.params.cursor.is_some());
        self.start(caller, ask, async move |work| {
            let Work { gateway, caller, cancel, .. } = work;
            tokio::select! {
                () = gateway.listed(&caller.view.scope) => {}
                // Its end is the end of the request.
                _ = cancel.cancelled() => {}
            }
            gateway.list_tools(&caller, era, has_cursor)
        })
    }

    fn list_tools(&self, caller: &Caller, era: Era, has_cursor: bool) -> Result<Vec<u8>, RpcError> {
        if has_cursor {
            return Err(RpcError::invalid_params("this list has one page only, so no cursor is valid"));
        }
        let known = self.broken_output_schemas.count();
        let list = self.tools(&caller.view, &caller.session);
        caller.peer.has_listed(known);
        Ok(self.list_result("tools", list.json(era), era))
    }

    /// The result of a list method, of this JSON array under this key.
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

    /// The result that ends a subscription in good order.
    pub(crate) fn listen_result(&self, subscription: &Id) -> Vec<u8> {
        to_json(&OfSubscription::new(subscription, json!({"resultType": "complete"})).by(&self.options.info))
    }
}

/// What a subscription is told first: how much of it was granted.
pub(crate) fn acknowledged(granted: &Granted) -> Bytes {
    let params = OfSubscription::new(&granted.id, json!({"notifications": granted.filter}));
    notification("notifications/subscriptions/acknowledged", Some(&params))
}
