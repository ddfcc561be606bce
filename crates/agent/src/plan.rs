//! Asks a model which calls it would make, and returns them as values. Nothing runs.

use serde::Serialize;
use serde_json::Value;
use toolwright_core::ToolId;
use toolwright_core::arguments::Provenance;
use toolwright_core::call::{CallMeta, Caller, RawArguments, Rejection, ToolCall, ValidCall, check};
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::Snapshot;
use toolwright_core::definition::NoSchemaMode;
use toolwright_core::model::{
    IgnoreModelEvents, ModelClient, ModelError, ModelRequest, ModelResponse, StopReason, Usage,
};
use toolwright_core::session::{CallId, Principal};
use toolwright_core::variables::PendingReference;

use crate::driver::tool_view;

/// A call that can run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedCall {
    /// Unique among the calls of the answer.
    pub id: CallId,
    /// The tool.
    pub tool: ToolId,
    /// Its wire name.
    pub wire_name: String,
    /// Its arguments: an object, valid under the tool's schema unless `pending` or `unvalidated` say
    /// otherwise.
    pub arguments: Value,
    /// The metadata of the call.
    #[serde(flatten)]
    pub meta: CallMeta,
    /// How its name and arguments were changed.
    pub provenance: Provenance,
    /// References whose values are not known yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<PendingReference>,
    /// Set when no schema validated the arguments: how such a call may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unvalidated: Option<NoSchemaMode>,
}

impl PlannedCall {
    /// Returns the call for the executor, which checks it again before it runs. Replaced references are not resolved
    /// again.
    #[must_use]
    pub fn to_call(&self) -> ToolCall {
        let arguments = RawArguments::Resolved(self.arguments.clone(), self.pending.clone());
        ToolCall::new(self.id.clone(), self.tool.to_string(), arguments).with_meta(self.meta.clone())
    }

    fn of(call: ValidCall) -> Self {
        Self {
            id: call.id,
            tool: call.entry.id().clone(),
            wire_name: call.entry.wire_name.clone(),
            arguments: call.arguments,
            meta: call.meta,
            provenance: call.provenance,
            pending: call.pending,
            unvalidated: call.unvalidated,
        }
    }
}

/// The answer of a model, independent of its API.
#[derive(Debug, Clone)]
pub struct PlannedCalls {
    /// Text beside the calls.
    pub text: String,
    /// The calls in written order, each valid or with the reason why it is not.
    pub calls: Vec<Result<PlannedCall, Box<Rejection>>>,
    /// The model's stop reason.
    pub stop: StopReason,
    /// Its usage.
    pub usage: Usage,
}

/// Asks `model` (`provider/model`) once with those of `tools` that the caller may use, which replace the tools of
/// `request`. Returns its checked calls as values.
///
/// # Errors
/// [`ModelError`] if the model did not answer. An invalid call is not an error: its place holds a rejection.
pub async fn plan_calls(
    client: &dyn ModelClient,
    model: &str,
    request: ModelRequest,
    tools: &Snapshot,
    caller: Caller<'_>,
    cancel: &Cancel,
) -> Result<PlannedCalls, ModelError> {
    let request = offer(request, tools, caller.principal);
    let response = client.complete(model, &request, &IgnoreModelEvents, cancel).await?;
    Ok(read_calls(response, tools, caller))
}

/// Returns the request with the tools that `principal` may use.
#[must_use]
pub fn offer(request: ModelRequest, tools: &Snapshot, principal: &Principal) -> ModelRequest {
    ModelRequest {
        tools: tool_view::usable_tools(tools, principal).map(|entry| tool_view::request_tool(entry)).collect(),
        ..request
    }
}

/// Checks the calls of an answer. Makes their ids unique, because they may be empty or equal.
#[must_use]
pub fn read_calls(response: ModelResponse, tools: &Snapshot, caller: Caller<'_>) -> PlannedCalls {
    let mut ids: Vec<String> = Vec::with_capacity(response.calls.len());
    let mut calls = Vec::with_capacity(response.calls.len());
    for (index, call) in response.calls.into_iter().enumerate() {
        let mut id = call.id;
        let mut attempt = index;
        while id.trim().is_empty() || ids.contains(&id) {
            id = format!("call_{attempt}");
            attempt += 1;
        }
        ids.push(id.clone());
        let written = ToolCall::new(CallId::new(id), call.name, RawArguments::Text(call.arguments));
        calls.push(check(written, tools, caller).map(PlannedCall::of));
    }
    PlannedCalls { text: response.text, calls, stop: response.stop, usage: response.usage }
}
