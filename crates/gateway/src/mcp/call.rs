//! `tools/call`: from the client's parameters to a result.

use std::pin::pin;
use std::sync::Arc;

use serde_json::Value;
use toolwright_core::error::{ErrorKind, ProtocolError};
use toolwright_core::outcome::Outcome;
use toolwright_core::session::CallId;
use toolwright_runtime::executor::CallerNames;

use super::message::{RpcError, SaidBy, to_json};
use super::protocol::Era;
use super::request::PendingRequest;
use super::response::Waiting;
use super::result::CallResult;
use super::session::Caller;
use super::tasks::wished;
use super::tools::output_schema;
use crate::Gateway;

impl Gateway {
    /// Starts a call of a tool.
    ///
    /// # Errors
    /// A JSON-RPC error for what is no tool failure: no name, no such tool in the view, and as [`Gateway::start`].
    pub(crate) fn start_call(
        self: &Arc<Self>,
        caller: &Caller,
        mut pending: PendingRequest,
    ) -> Result<Waiting, RpcError> {
        let (era, params) = (pending.era, &mut pending.request.params);
        let written = params.name.take().ok_or_else(|| RpcError::invalid_params("tools/call needs a `name`"))?;
        let arguments = params.arguments.take().unwrap_or(Value::Null);
        let list = self.tools(&caller.view, &caller.session);
        pending.task = wished(era, params, &list, &written)?;
        let (named, meant) = (list.named(&written).cloned(), list.carried(&written, &arguments).cloned());
        let call = list.for_executor(&caller.view, &written, arguments);
        self.start(caller, pending, async move |work| {
            if let (Some(level), Some(entry)) = (work.level_asked(era), meant)
                && let Ok(provider) = work.provider(entry.provider.name())
            {
                Box::pin(work.set_level_once(&provider, level)).await;
            }
            let lists = Arc::clone(&list);
            let names: CallerNames = Arc::new(move |entry| lists.name_of(entry).map(str::to_owned));
            let outcome = match call {
                // Pinned: a future that is awaited by value is copied first.
                Ok((name, arguments)) => pin!(work.run_call(&list.snapshot, name, arguments, Some(names))).await?,
                Err(error) => Outcome::failed(CallId::new(&*written), error),
            };
            let ran = outcome.tool.as_ref().and_then(|id| list.snapshot.get(id.as_str()));
            if let Some(entry) = ran {
                work.note_links_in(entry.provider.name(), &outcome.content);
                work.gateway.note_broken_schema(entry, &outcome);
            }
            if let Some(error) = protocol_error(&outcome) {
                work.caller.client.refused(ran.map(|entry| entry.provider.name()), &error);
                return Err(error);
            }
            let schema = named.as_deref().and_then(output_schema);
            // A client that has listed since does not look for what is not promised any more.
            let hash = named.as_ref().map(|entry| entry.tool.hash());
            let schema = schema.filter(|_| !work.gateway.broken_output_schemas.is_known_to(hash, &work.caller.client));
            let result = CallResult::of(outcome, schema, era, &work.gateway.options.info);
            Ok(to_json(&match era {
                Era::Legacy => result.downgraded(work.caller.client.version()),
                Era::Modern => result,
            }))
        })
    }
}

/// The outcomes that are answered with a JSON-RPC error: an unknown tool (MCP, "Error Handling"), and
/// an upstream that needs what only the client can do: declare a capability, have its user open an address. An
/// unknown name inside a call is the model's to mend, who sees results but not errors.
fn protocol_error(outcome: &Outcome) -> Option<RpcError> {
    let error = outcome.error.as_ref()?;
    if error.kind() == ErrorKind::UnknownTool && !outcome.provenance.carried {
        return Some(RpcError::invalid_params(error.message().to_owned()));
    }
    let for_client = [RpcError::MISSING_CAPABILITY, RpcError::PAGES_REQUIRED];
    error.protocol().filter(|upstream| for_client.contains(&upstream.code)).map(passed_on)
}

/// A source's own error, untouched.
pub(crate) fn passed_on(error: &ProtocolError) -> RpcError {
    let data = error.data.clone().map(Box::new);
    RpcError { code: error.code, message: error.message.clone().into(), data, said_by: SaidBy::Source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolwright_core::error::{ProtocolError, ToolError};

    fn outcome(error: ToolError) -> Outcome {
        Outcome::failed(CallId::new("c"), error)
    }

    #[test]
    fn errors_the_client_must_fix_are_protocol_errors() {
        let failed = |code| {
            let protocol = ProtocolError { code, message: "m".into(), data: Some(json!({"a": 1})) };
            outcome(ToolError::new(ErrorKind::ExecutionError, "x").with_protocol(protocol))
        };
        let error = protocol_error(&failed(-32021)).expect("passed on");
        assert_eq!((error.code, error.data), (-32021, Some(Box::new(json!({"a": 1})))));
        assert!(protocol_error(&failed(-32602)).is_none());
        let unknown = ToolError::new(ErrorKind::UnknownTool, "did you mean x?");
        assert_eq!(protocol_error(&outcome(unknown)).expect("error").code, RpcError::INVALID_PARAMS);
    }
}
