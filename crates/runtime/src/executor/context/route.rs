//! Runs calls that their own tool does not run: latent calls, and calls by an activity or a delegate.

use std::sync::Arc;

use serde_json::{Map, Value};
use toolwright_core::approval::DecisionPending;
use toolwright_core::call::meta::Route;
use toolwright_core::call::{ToolCall, ValidCall};
use toolwright_core::context::{DelegateRequest, ToolContext};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::{Outcome, ToolOutput};
use toolwright_core::variables::KnownValue;

use super::{NestedContext, RunContext};

/// The message to the author of a latent call, whose result is in the call itself.
const ACCEPTED: &str = "Your result was accepted.";

/// Returns the output of a call by its route; `None`: its tool runs it.
pub(in crate::executor) async fn routed(
    call: &ValidCall,
    context: &ToolContext,
) -> Option<Result<ToolOutput, ToolError>> {
    if let Some(inner) = call.activity_call() {
        return Some(act(call, inner, context).await);
    }
    match &call.provenance.route {
        Route::Tool | Route::Activity(_) => None,
        Route::Latent => Some(Ok(latent_output(call))),
        Route::Delegate(delegate) => {
            let request = DelegateRequest {
                delegate,
                entry: &call.entry,
                arguments: &call.arguments,
                tainted: &call.provenance.tainted,
                meta: &call.meta,
            };
            Some(match &context.services.delegates {
                Some(delegates) => delegates.run(request, context).await,
                None => Err(ToolError::new(ErrorKind::ExecutionError, "no delegates are set up here")),
            })
        }
    }
}

/// Returns the result that the author of the call wrote, which was validated with the call. Nothing runs.
fn latent_output(call: &ValidCall) -> ToolOutput {
    let structured = call.meta.output.clone();
    ToolOutput { structured, ..ToolOutput::text(ACCEPTED) }.with_extra("executed", false)
}

/// Runs the activity as an inner call, which is checked, judged and recorded like any other.
async fn act(call: &ValidCall, inner: ToolCall, context: &ToolContext) -> Result<ToolOutput, ToolError> {
    let activity = inner.name.clone();
    let nested = NestedContext::of(context)
        .ok_or_else(|| ToolError::new(ErrorKind::InternalError, "an activity cannot be started from here"))?;
    let granted_values = call.meta.granted(nested.run.variables.as_deref())?;
    let (mut granted, mut read_taint) = (Map::new(), nested.run.read_taint.clone());
    for (name, variable) in granted_values {
        if let Some(KnownValue { value, taint }) = variable {
            read_taint.add(&taint);
            granted.insert(name, value);
        }
    }
    let run = RunContext { granted: Arc::new(granted), read_taint, ..nested.run.clone() };
    let outcomes = Box::pin(nested.executor.run_calls(vec![inner], &run)).await;
    match outcomes.into_iter().next() {
        Some(outcome) => output(outcome),
        None => Err(ToolError::new(ErrorKind::InternalError, format!("the activity {activity} gave nothing"))),
    }
}

/// Returns an inner call's output as the call's own.
fn output(outcome: Outcome) -> Result<ToolOutput, ToolError> {
    let Outcome { ok, content, structured, error, meta, extras, pending, .. } = outcome;
    if let Some(request) = pending {
        let error = ToolError::new(ErrorKind::Denied, "a person has not decided yet");
        return Err(error.with_source(DecisionPending(request)));
    }
    match error {
        Some(error) if !ok => Err(error),
        _ => {
            let structured = structured.or_else(|| only_json(&content));
            Ok(ToolOutput { content, structured, is_error: !ok, meta, extras, ..ToolOutput::default() })
        }
    }
}

/// Parses the JSON in a single text block: activities return text, but their tools promise a structured result.
fn only_json(content: &[toolwright_core::ContentBlock]) -> Option<Value> {
    let [block] = content else { return None };
    serde_json::from_str(block.as_text()?).ok()
}
