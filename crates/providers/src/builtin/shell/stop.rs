//! Why a command was not left to end by itself.

use std::time::Duration;

use toolwright_core::cancel::CancelCause;
use toolwright_core::error::{ErrorKind, ToolError};

pub(super) enum Stop {
    TimedOut,
    /// It printed nothing for longer than a call may be without progress.
    Silent,
    Canceled(CancelCause),
    Lost(std::io::Error),
}

impl Stop {
    pub(super) fn into_error(self, limit: Duration) -> ToolError {
        match self {
            Self::TimedOut => {
                let limit = toolwright_core::duration::format(limit);
                let message = format!("the command ran longer than {limit}; it and all it had started were killed");
                ToolError::new(ErrorKind::Timeout, message)
            }
            Self::Silent => {
                let message = "the command printed nothing for too long; it and all it had started were killed";
                ToolError::new(ErrorKind::Timeout, message)
            }
            Self::Canceled(cause) => ToolError::canceled(cause),
            Self::Lost(source) => {
                ToolError::new(ErrorKind::InternalError, format!("the end of the command is unknown: {source}"))
                    .with_source(source)
            }
        }
    }
}
