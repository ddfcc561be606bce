//! What only a person does: nothing that a Toolwright started decides in its owner's name.

use toolwright::providers::process::is_nested;

use crate::exit::{Exit, Failure};

/// Refuses to go on below a Toolwright. `what` completes "a process that Toolwright started cannot …".
///
/// # Errors
/// This process is a command of a model's shell, a server's, or something that these started.
pub(crate) fn not_nested(what: &str) -> Result<(), Failure> {
    if is_nested() {
        let message =
            format!("a process that Toolwright started cannot {what}: the owner does, in a terminal of their own");
        return Err(Failure { exit: Exit::Denied, message });
    }
    Ok(())
}
