//! Sends a request for a call and follows it to its end: asks the call's client the server's questions and repeats
//! the request with the answers (2026-07-28: `input_required`), and follows a task that the server makes of it.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use toolwright_core::catalogue::ProviderCall;
use toolwright_core::client::ClientRequest;
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};
use toolwright_core::outcome::ToolOutput;

use super::connection::Connection;
use super::connection::handshake::modern_meta;
use super::connection::inbox::{Caller, RequestPurpose};
use super::connection::peer::{AskError, EXPIRED, Meta, Params, Request};
use super::listing::ToolFact;
use super::reply::{CallReply, Reply};
use super::{listing, tasks, url_elicitation};
use crate::protocol::asking;
use crate::protocol::message::RpcError;
use crate::protocol::revision::{CLIENT_CAPABILITIES, Era, LOG_LEVEL};
use crate::transport::UNREADABLE;

/// Bound on how often one request is repeated with more input.
const MAX_ROUNDS: u32 = 32;
/// Bound on the questions of one round.
const MAX_QUESTIONS: usize = 64;
/// Pause before repeating a request that the server only postponed, times the rounds so far.
const POSTPONED_PAUSE: Duration = Duration::from_millis(50);

/// The context of a request: the caller and the connection.
#[derive(Clone, Copy)]
pub(crate) struct Exchange<'a> {
    /// Name of the server.
    pub(crate) server: &'a str,
    /// The connection.
    pub(crate) connection: &'a Arc<Connection>,
    /// The call.
    pub(crate) context: &'a ToolContext,
}

/// A request to send.
pub(crate) struct OutgoingRequest<'a> {
    /// The method.
    pub(crate) method: &'a str,
    /// Its description, for error messages.
    pub(crate) label: RequestLabel<'a>,
    /// The object that it names, for the header `Mcp-Name`.
    pub(crate) name: Option<&'a str>,
    /// Further headers.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Its parameters, without `_meta`.
    pub(crate) params: Params<'a>,
    /// Sent in `_meta`.
    pub(crate) idempotency_key: Option<&'a str>,
}

impl<'a> OutgoingRequest<'a> {
    /// A protocol request; `name` is the object that it names.
    pub(crate) fn of(method: &'a str, name: Option<&'a str>, params: Map<String, Value>) -> Self {
        let params = params.into();
        Self { method, label: method.into(), name, headers: Vec::new(), params, idempotency_key: None }
    }
}

/// Description of a request, in two parts: `the call of ` and the tool's name.
#[derive(Clone, Copy)]
pub(crate) struct RequestLabel<'a>(pub(crate) &'a str, pub(crate) &'a str);

impl<'a> From<&'a str> for RequestLabel<'a> {
    fn from(what: &'a str) -> Self {
        Self(what, "")
    }
}

impl fmt::Display for RequestLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)?;
        f.write_str(self.1)
    }
}

impl<'a> Exchange<'a> {
    /// Sends a request and follows it to its result. Dropping the future cancels it at the server.
    ///
    /// # Errors
    /// [`ErrorKind::ExecutionError`] for an error of the server, [`ErrorKind::TransportError`]
    /// for a lost or malformed answer. Retryable only if nothing was sent: a server that has answered once has
    /// started, and a repeated request could have its effect twice.
    pub(crate) async fn run<R: Reply>(&self, mut sent: OutgoingRequest<'a>) -> Result<R, ToolError> {
        sent.params.meta = self.meta(sent.method, sent.idempotency_key);
        let headers = sent.headers.clone();
        let mut first = pin!(self.ask::<R>(sent.method, sent.label, sent.name, headers, &mut sent.params)).await;
        if first.as_ref().is_err_and(misses_headers) && Box::pin(self.takes_listed_headers(&mut sent)).await {
            let headers = sent.headers.clone();
            first = Box::pin(self.ask(sent.method, sent.label, sent.name, headers, &mut sent.params)).await;
        }
        let first = match first {
            Err(error) if url_elicitation::are_required(&error) => {
                Box::pin(url_elicitation::follow(self, &mut sent, error)).await.map_err(ToolError::not_retryable)?
            }
            first => first?,
        };
        if self.is_complete(&first) {
            return Ok(first);
        }
        let unreadable = |problem| transport(self.server, &format!("{UNREADABLE}: {problem}"));
        let result = Box::pin(self.proceed(sent, first.into_value())).await;
        result.and_then(|result| R::deserialize(result).map_err(unreadable)).map_err(ToolError::not_retryable)
    }

    /// Updates the mirrored headers of a call that was refused for its headers, from the tool's current definition
    /// (2026-07-28, `x-mcp-header`): the last list may be outdated. Returns whether they changed; the call did not run
    /// then, so it may be repeated.
    async fn takes_listed_headers(&self, sent: &mut OutgoingRequest<'_>) -> bool {
        let (Some(name), "tools/call") = (sent.name, sent.method) else { return false };
        self.connection.tools_have_changed();
        let Ok(list) = listing::fetch(self.connection, "tools/list", "tools").await else { return false };
        let tool = list.entries.iter().find(|tool| tool.get("name").and_then(Value::as_str) == Some(name));
        let mirrored = tool.and_then(|tool| tool.get("inputSchema")).map(crate::protocol::headers::mirrored);
        let (Some(Ok(mirrored)), Some(Value::Object(arguments))) = (mirrored, &sent.params.arguments) else {
            return false;
        };
        let headers = ToolFact { mirrored, ..ToolFact::default() }.headers(arguments);
        let are_others = headers != sent.headers;
        sent.headers = headers;
        are_others
    }

    /// Whether an answer is the final result: neither a request for input nor a task.
    fn is_complete(&self, result: &impl Reply) -> bool {
        let server = self.connection.server();
        let says_more = || !matches!(result.field("resultType").and_then(Value::as_str), None | Some("complete"));
        !tasks::is_task(server, result) && (server.era == Era::Legacy || !says_more())
    }

    /// Follows a request with the incomplete answer `result` to its end.
    async fn proceed(&self, sent: OutgoingRequest<'_>, mut result: Value) -> Result<Value, ToolError> {
        let OutgoingRequest { method, label: what, name, headers, mut params, .. } = sent;
        for round in 1..=MAX_ROUNDS {
            if tasks::is_task(self.connection.server(), &result) {
                return tasks::finish(self, what, result, &params).await;
            }
            if self.is_complete(&result) {
                return Ok(result);
            }
            match result.get("resultType").and_then(Value::as_str).unwrap_or_default() {
                "input_required" if round == MAX_ROUNDS => break,
                "input_required" => {}
                other => {
                    let reason = format!("it answers with a `{other}` in place of a result, which was not asked for");
                    return Err(transport(self.server, &reason));
                }
            }
            let state = result.get_mut("requestState").map(Value::take).filter(|state| !state.is_null());
            match result.get_mut("inputRequests").map(Value::take) {
                Some(Value::Object(requests)) if !requests.is_empty() => {
                    let responses = self.answers(requests).await?;
                    params.others.insert("inputResponses".to_owned(), responses.into());
                }
                _ if state.is_none() => {
                    let reason = "it wants input and does not say which";
                    return Err(transport(self.server, reason));
                }
                _ => {
                    params.others.shift_remove("inputResponses");
                    tokio::time::sleep(POSTPONED_PAUSE * round).await;
                }
            }
            match state {
                Some(state) => params.others.insert("requestState".to_owned(), state),
                None => params.others.shift_remove("requestState"),
            };
            self.resend_level(&mut params.meta.others);
            result = self.ask(method, what, name, headers.clone(), &mut params).await?;
        }
        let reason = format!("it asked for more input {MAX_ROUNDS} times; the call was stopped");
        Err(transport(self.server, &reason))
    }

    /// Sends the log level again: a client that returned with answers may want another one.
    fn resend_level(&self, meta: &mut Map<String, Value>) {
        match self.context.client.log_level() {
            Some(level) => _ = meta.insert(LOG_LEVEL.to_owned(), level.into()),
            None => _ = meta.shift_remove(LOG_LEVEL),
        }
    }

    /// Sends one request, during which the server may ask back and report progress.
    ///
    /// # Errors
    /// As [`Exchange::run`].
    pub(crate) async fn ask<R: DeserializeOwned>(
        &self,
        method: &str,
        what: RequestLabel<'_>,
        name: Option<&str>,
        headers: Vec<(HeaderName, HeaderValue)>,
        params: &mut Params<'_>,
    ) -> Result<R, ToolError> {
        let result = pin!(self.attempt(method, name, headers, params)).await;
        result.map_err(|error| tool_error(self.server, what, error))
    }

    /// Like [`Exchange::ask`], with the raw failure.
    ///
    /// # Errors
    /// [`AskError`].
    pub(crate) async fn attempt<R: DeserializeOwned>(
        &self,
        method: &str,
        name: Option<&str>,
        headers: Vec<(HeaderName, HeaderValue)>,
        params: &mut Params<'_>,
    ) -> Result<R, AskError> {
        let purpose = RequestPurpose::Call(Caller::from(self.context));
        let request = Request { method, name, headers, purpose, version: None };
        pin!(self.connection.ask(request, params)).await
    }

    /// Returns the `_meta` of a request: the client's own members, then ours.
    pub(crate) fn meta(&self, method: &str, idempotency_key: Option<&'a str>) -> Meta<'a> {
        let (server, context) = (self.connection.server(), self.context);
        let mut meta = context.client.meta();
        if server.era == Era::Modern {
            meta.extend(modern_meta(context.client.capabilities()));
            if tasks::are_offered(server, method)
                && let Some(Value::Object(capabilities)) = meta.get_mut(CLIENT_CAPABILITIES)
            {
                tasks::announce(capabilities);
            }
            if let Some(level) = context.client.log_level() {
                meta.insert(LOG_LEVEL.to_owned(), level.into());
            }
        }
        let traceparent = context.traceparent.as_deref();
        Meta { others: meta, idempotency_key, traceparent, progress_token: None }
    }

    /// Asks the call's client the server's questions, and returns the answers by the server's keys.
    ///
    /// # Errors
    /// The client cannot or will not answer.
    pub(crate) async fn answers(&self, requests: Map<String, Value>) -> Result<Map<String, Value>, ToolError> {
        if requests.len() > MAX_QUESTIONS {
            let reason = format!("it asks {} things at once; {MAX_QUESTIONS} are answered at most", requests.len());
            return Err(transport(self.server, &reason));
        }
        let capabilities = self.context.client.capabilities();
        let mut keys = Vec::with_capacity(requests.len());
        let mut questions = Vec::with_capacity(requests.len());
        for (key, mut request) in requests {
            let method = request.get("method").and_then(Value::as_str).unwrap_or_default().to_owned();
            // Missing parameters (`roots/list`) count as empty ones.
            let params = request.get_mut("params").map(Value::take).filter(|params| !params.is_null());
            let params = params.unwrap_or_else(|| Map::new().into());
            if asking::missing(&capabilities, &method, &params).is_some() {
                let text = format!(
                    "MCP server {} asks for `{method}` during the call, which its caller does not offer",
                    self.server
                );
                return Err(ToolError::new(ErrorKind::ExecutionError, text));
            }
            questions.push(ClientRequest { key: Some(key.clone()), method, params });
            keys.push(key);
        }
        let count = questions.len();
        let answers = self.context.client.ask(questions).await?;
        if answers.len() != count {
            let text = format!("{} of {count} questions of the tool were answered", answers.len());
            return Err(ToolError::new(ErrorKind::ExecutionError, text));
        }
        let mut responses = Map::with_capacity(count);
        for (key, answer) in keys.into_iter().zip(answers) {
            let answer = answer.map_err(|refusal| {
                let text = format!("the client refused what the tool asked of it: {}", refusal.message);
                ToolError::new(ErrorKind::ExecutionError, text).with_protocol(refusal)
            })?;
            responses.insert(key, answer);
        }
        Ok(responses)
    }
}

/// Whether a request was refused before running because of wrong or missing headers.
fn misses_headers(error: &ToolError) -> bool {
    error.protocol().is_some_and(|error| error.code == RpcError::HEADER_MISMATCH)
}

/// Converts a failed exchange with the server called `server` to a call's error; `what` describes the request.
pub(crate) fn tool_error(server: &str, what: RequestLabel<'_>, error: AskError) -> ToolError {
    match error {
        AskError::Rpc(error) => refusal(server, what, error),
        AskError::Broken(reason) | AskError::Fault(reason) | AskError::Final(reason) => transport(server, &reason),
        AskError::Ended(_) => transport(server, "the connection is closed"),
        AskError::NotSent(reason) => transport(server, &reason).retryable(),
        AskError::Expired => transport(server, EXPIRED).retryable(),
        AskError::Full => {
            let text = format!("MCP server {server} has too many calls in flight; call again when some have ended");
            ToolError::new(ErrorKind::LimitExceeded, text).retryable()
        }
    }
}

/// Converts an error object of the server called `server` in answer to `what`.
pub(crate) fn refusal(server: &str, what: RequestLabel<'_>, error: RpcError) -> ToolError {
    let RpcError { code, message, data, .. } = error;
    let message = message.into_owned();
    let text = format!("MCP server {server} refused {what}: {message} (code {code})");
    let own = ProtocolError { code, message: message.clone(), data: data.map(|data| *data) };
    ToolError::new(ErrorKind::ExecutionError, text).with_model_message(message).with_protocol(own)
}

/// The connection to `server` failed a call.
pub(crate) fn transport(server: &str, reason: &str) -> ToolError {
    let first_line = reason.lines().next().unwrap_or_default();
    ToolError::new(ErrorKind::TransportError, format!("MCP server {server}: {reason}"))
        .with_model_message(format!("the connection to the tool failed: {first_line}"))
}

/// Runs a call. Dropping the future cancels it at the server.
///
/// # Errors
/// As [`Exchange::run`].
pub(crate) async fn call_tool(
    exchange: Exchange<'_>,
    call: ProviderCall<'_>,
    fact: Option<&ToolFact>,
) -> Result<ToolOutput, ToolError> {
    let mut params = Params { name: Some(call.raw_name), ..Params::default() };
    let mut headers = Vec::new();
    if let Value::Object(arguments) = &call.arguments {
        headers = fact.map(|fact| fact.headers(arguments)).unwrap_or_default();
        params.arguments = Some(call.arguments);
    }
    if fact.is_some_and(|fact| fact.wants_task) && tasks::can_be_asked_for(exchange.connection.server()) {
        params.others.insert("task".to_owned(), json!({}));
    }
    let sent = OutgoingRequest {
        method: "tools/call",
        label: RequestLabel("the call of ", call.raw_name),
        name: Some(call.raw_name),
        headers,
        params,
        idempotency_key: Some(call.idempotency_key),
    };
    let reply = pin!(exchange.run::<CallReply>(sent)).await?;
    reply.output(exchange.connection.server().era).map_err(|reason| transport(exchange.server, reason))
}
