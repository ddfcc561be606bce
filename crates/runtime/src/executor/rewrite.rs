//! Replaces a call's arguments.

use serde_json::Value;
use toolwright_core::arguments::{Fitted, RawArguments};
use toolwright_core::call::ValidCall;
use toolwright_core::error::{ErrorKind, ToolError};

/// Puts `arguments` in place of the call's: an object, fitted to the schema as any call's are, but without
/// references. `who` is named if they do not fit.
///
/// # Errors
/// `invalid_parameters`.
pub(super) fn rewrite(call: &mut ValidCall, arguments: Value, who: &str) -> Result<(), ToolError> {
    let invalid = |why: &str| {
        let message = format!("{who} rewrote the arguments of {} to something invalid: {why}", call.entry.id());
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
