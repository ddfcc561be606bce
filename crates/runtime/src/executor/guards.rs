//! The first stage: guards that deny, ask, or put other arguments in place of a call's own.

use serde_json::Value;
use toolwright_core::arguments::{Fitted, RawArguments};
use toolwright_core::call::ValidCall;
use toolwright_core::error::{ErrorKind, ToolError};

use super::admission::denied;
use super::seams::Verdict;
use super::{Executor, RunContext};

impl Executor {
    /// Hears every guard. The first denial ends the call; else the first reason to ask is returned.
    pub(super) async fn guards(&self, call: &mut ValidCall, run: &RunContext) -> Result<Option<String>, ToolError> {
        let mut ask = None;
        for guard in &self.options.guards {
            match guard.judge(call, run).await {
                Verdict::Allow => {}
                Verdict::Deny(reason) => return Err(denied(&call.entry, &reason)),
                Verdict::Ask(reason) => ask = ask.or(Some(reason)),
                Verdict::Rewrite(arguments) => rewrite(call, arguments)?,
            }
        }
        Ok(ask)
    }
}

/// Puts `arguments` in place of the call's: an object, fitted to the schema as any call's are, but without
/// references.
fn rewrite(call: &mut ValidCall, arguments: Value) -> Result<(), ToolError> {
    let invalid = |why: &str| {
        let message = format!("a guard rewrote the arguments of {} to something invalid: {why}", call.entry.id());
        ToolError::new(ErrorKind::InvalidParameters, message)
    };
    if !arguments.is_object() {
        return Err(invalid("they must be a JSON object"));
    }
    let fitted = Fitted::to(&call.entry, RawArguments::Value(arguments), None)
        .map_err(|no_object| invalid(&format!("they {}", no_object.message)))?;
    if let Some(violation) = fitted.violations.first() {
        return Err(invalid(&violation.to_string()));
    }
    call.arguments = fitted.arguments;
    call.provenance.rewritten = true;
    call.provenance.defaulted |= fitted.provenance.defaulted;
    call.provenance.coerced.extend(fitted.provenance.coerced);
    Ok(())
}
