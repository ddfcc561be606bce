//! The methods beside `tools/*`: lists come from the catalogue; other methods run through the executor as calls of
//! their source, and their results pass through.

pub(crate) mod capabilities;
pub(crate) mod lists;
pub(crate) mod log_levels;
pub(crate) mod notifications;
pub(crate) mod subscriptions;

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use toolwright_core::call::RawArguments;
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::{ListKind, Provider};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::{Outcome, STANDS_IN};
use toolwright_core::passthrough::METHOD_RESULT;
use toolwright_mcp::convert;

use self::log_levels::SET_LEVEL;
use super::message::{self, RpcError, to_json};
use super::protocol::Era;
use super::request::call::source_error;
use super::request::{McpRequestContext, PendingRequest};
use super::response::ResponseGuard;
use super::session::Caller;
use crate::Gateway;
use crate::view::Scope;

/// The methods of both generations.
const METHODS: [&str; 6] = [
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
    "prompts/get",
    "completion/complete",
];
/// The methods that 2026-07-28 has dropped.
const LEGACY_METHODS: [&str; 3] = ["resources/subscribe", "resources/unsubscribe", SET_LEVEL];
/// Sources that are asked concurrently.
pub(crate) const AT_ONCE: usize = 32;
/// Time limit for one of several sources.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);
/// Fields of the parameters that are for the gateway, not the source.
const OWN_FIELDS: [&str; 3] = ["_meta", "inputResponses", "requestState"];

/// Returns whether this method is forwarded to sources.
pub(crate) fn is_forwarded(era: Era, method: &str) -> bool {
    METHODS.contains(&method) || (era == Era::Legacy && LEGACY_METHODS.contains(&method))
}

/// Returns the parameters for the source.
fn arguments(raw: Option<&RawValue>) -> Result<Map<String, Value>, RpcError> {
    let Some(raw) = raw else { return Ok(Map::new()) };
    let mut arguments: Map<String, Value> =
        message::read(raw).map_err(|error| RpcError::invalid_params(format!("the params: {error}")))?;
    for own in OWN_FIELDS {
        arguments.shift_remove(own);
    }
    Ok(arguments)
}

impl Gateway {
    /// Starts the work on such a request.
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub(crate) fn start_method(
        self: &Arc<Self>,
        caller: &Caller,
        pending: PendingRequest,
    ) -> Result<ResponseGuard, RpcError> {
        let arguments = arguments(pending.request.raw.as_deref())?;
        let (era, method) = (pending.era, pending.request.method.clone());
        self.start(caller, pending, async move |work| work.answer(era, &method, arguments).await)
    }
}

impl McpRequestContext {
    async fn answer(&self, era: Era, method: &str, arguments: Map<String, Value>) -> Result<Vec<u8>, RpcError> {
        if let Some(kind) = ListKind::of_method(method) {
            return self.list(kind, era, &arguments).await;
        }
        let uri = arguments.get("uri").and_then(Value::as_str).map(str::to_owned);
        let answered = match method {
            SET_LEVEL => self.set_level(&arguments).await,
            "resources/subscribe" => self.subscribe(arguments).await,
            "resources/unsubscribe" => self.unsubscribe(&arguments).await,
            _ => match &self.caller.view.scope {
                Scope::Provider(name) => {
                    let provider = self.provider(name)?;
                    self.ask_source(&provider, method, arguments).await
                }
                Scope::Whole | Scope::View(_) => self.routed(era, method, arguments).await,
            },
        };
        match answered {
            Ok(mut result) => {
                convert::result(era, method, &mut result, &self.gateway.server_info);
                if era == Era::Legacy && method == "prompts/get" {
                    convert::prompt(self.caller.client.version(), &mut result);
                }
                Ok(to_json(&result))
            }
            Err(error) => Err(convert::error(era, method, uri.as_deref(), error)),
        }
    }

    /// Returns the provider of this name.
    pub(crate) fn provider(&self, name: &str) -> Result<Arc<dyn Provider>, RpcError> {
        let all = self.gateway.options.catalogue.sources();
        let found = all.iter().find(|provider| provider.name() == name).cloned();
        found.ok_or_else(|| RpcError::new(RpcError::INTERNAL, format!("{name} is not served any more")))
    }

    /// Runs a method of a source if the address allows it, and returns the source's own result or error.
    pub(crate) async fn ask_source(
        &self,
        provider: &Arc<dyn Provider>,
        method: &str,
        arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>, RpcError> {
        if !self.gateway.shows_method(&self.caller.view.scope, provider.name(), method) {
            return Err(RpcError::method_not_found(method));
        }
        self.run_method(provider, method, arguments).await
    }

    /// Like [`McpRequestContext::ask_source`], for the gateway's own purposes: also if the address does not allow it.
    pub(crate) async fn run_method(
        &self,
        provider: &Arc<dyn Provider>,
        method: &str,
        arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>, RpcError> {
        let lacks = || RpcError::method_not_found(method);
        let methods = self.gateway.methods_of(provider).ok_or_else(lacks)?;
        let id = methods.id(method).ok_or_else(lacks)?;
        let arguments = RawArguments::Value(Value::Object(arguments));
        let outcome = self.run_call(&methods.snapshot, id, arguments, None).await?;
        own_result(outcome).inspect_err(|error| self.caller.client.refused(Some(provider.name()), error))
    }

    /// Returns the sources of this address that have a method.
    ///
    /// # Errors
    /// No source has this method.
    pub(crate) fn sources_with(&self, method: &str) -> Result<Vec<Arc<dyn Provider>>, RpcError> {
        let scope = &self.caller.view.scope;
        let mut having = self.gateway.providers_of(scope);
        having.retain(|provider| self.gateway.has_method(scope, provider, method));
        if having.is_empty() { Err(RpcError::method_not_found(method)) } else { Ok(having) }
    }

    /// Asks one of several sources, with a limit of two seconds, so that a silent source does not delay the others.
    /// After that it is cancelled.
    ///
    /// # Errors
    /// The error of `ask`, or a timeout.
    pub(crate) async fn in_time<T, F>(
        &self,
        provider: &Arc<dyn Provider>,
        method: &str,
        ask: impl FnOnce(Self) -> F,
    ) -> Result<T, RpcError>
    where
        F: Future<Output = Result<T, RpcError>>,
    {
        let cancel = self.cancel.child();
        let mut asking = Box::pin(ask(self.with_cancel(cancel.clone())));
        if let Ok(answer) = tokio::time::timeout(LIST_TIMEOUT, asking.as_mut()).await {
            return answer;
        }
        cancel.cancel(CancelCause::CallerGone);
        // The executor ends the call within its grace period.
        asking.await.map_err(|_| {
            let text = format!("{} did not answer {method} within {LIST_TIMEOUT:?}", provider.name());
            let data = serde_json::json!({"kind": ErrorKind::Timeout});
            RpcError { data: Some(Box::new(data)), ..RpcError::new(RpcError::INTERNAL, text) }
        })
    }
}

/// Returns the source's own result or error from the outcome of its call.
fn own_result(mut outcome: Outcome) -> Result<Map<String, Value>, RpcError> {
    if let Some(error) = &outcome.error {
        return Err(error.protocol().map_or_else(|| not_answered(error), source_error));
    }
    match outcome.extras.remove(METHOD_RESULT) {
        Some(Value::Object(result)) => Ok(result),
        _ if outcome.pending.is_some() => {
            Err(RpcError::new(RpcError::INTERNAL, "this waits for a person's approval; ask again later"))
        }
        // The call waits or became a job, which no client can follow here.
        _ if outcome.extras.contains_key(STANDS_IN) => Err(RpcError::new(RpcError::INTERNAL, outcome.text())),
        _ => Err(RpcError::new(RpcError::INTERNAL, "the server answered with something that is no result")),
    }
}

/// Returns the error for a failure that the source did not report itself.
fn not_answered(error: &ToolError) -> RpcError {
    let code = match error.kind() {
        ErrorKind::LimitExceeded => RpcError::BUSY,
        ErrorKind::InvalidParameters => RpcError::INVALID_PARAMS,
        _ => RpcError::INTERNAL,
    };
    let data = serde_json::json!({"kind": error.kind()});
    RpcError { data: Some(Box::new(data)), ..RpcError::new(code, error.message().to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolwright_core::error::ProtocolError;
    use toolwright_core::session::CallId;

    #[test]
    fn a_sources_result_and_error_pass_through() {
        let failed = |error| own_result(Outcome::failed(CallId::new("c"), error)).expect_err("failed");
        let own = ProtocolError { code: -32002, message: "no".into(), data: Some(json!({"uri": "a"})) };
        let error = failed(ToolError::new(ErrorKind::ExecutionError, "x").with_protocol(own));
        assert_eq!((error.code, error.data), (-32002, Some(Box::new(json!({"uri": "a"})))));
        let error = failed(ToolError::new(ErrorKind::Denied, "denied: no"));
        assert_eq!((error.code, &*error.message), (RpcError::INTERNAL, "denied: no"));
        let mut outcome = Outcome::failed(CallId::new("c"), ToolError::new(ErrorKind::Timeout, "x"));
        outcome.error = None;
        outcome.extras.insert(METHOD_RESULT.into(), json!({"prompts": [], "later": 1}));
        assert_eq!(own_result(outcome).map(Value::Object), Ok(json!({"prompts": [], "later": 1})));
    }

    #[test]
    fn methods_that_a_generation_lacks_are_not_forwarded() {
        for (era, method, expect) in [
            (Era::Legacy, "resources/subscribe", true),
            (Era::Modern, "resources/subscribe", false),
            (Era::Modern, "logging/setLevel", false),
            (Era::Modern, "prompts/get", true),
            (Era::Legacy, "tools/call", false),
        ] {
            assert_eq!(is_forwarded(era, method), expect, "{era:?} {method}");
        }
    }
}
