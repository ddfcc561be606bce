//! Exit codes and failures of commands.

use std::fmt::Display;

use serde_json::{Value, json};
use toolwright::Error;
use toolwright::core::ErrorKind;
use toolwright::core::store::StoreError;

/// The documented exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Ok,
    /// Invalid arguments, a timeout, or a failed tool or run.
    Failed,
    /// Bad usage or configuration.
    Usage,
    /// The tool does not exist.
    NoTool,
    /// The named job, question, run, definition, server or entry does not exist.
    NotFound,
    /// Denied or not permitted.
    Denied,
    /// Cancelled.
    Cancelled,
}

impl Exit {
    /// Returns the exit code as a number.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NoTool | Self::NotFound => 3,
            Self::Denied => 4,
            Self::Cancelled => 130,
        }
    }

    /// Returns the kind of a failure in JSON, if a tool's own error has none.
    fn kind(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::NoTool => ErrorKind::UnknownTool.as_str(),
            Self::NotFound => "not_found",
            Self::Denied => ErrorKind::Denied.as_str(),
            Self::Cancelled => ErrorKind::Canceled.as_str(),
        }
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::UnknownTool => Self::NoTool,
            ErrorKind::NotPermitted | ErrorKind::Denied => Self::Denied,
            ErrorKind::Canceled => Self::Cancelled,
            ErrorKind::InvalidParameters
            | ErrorKind::LimitExceeded
            | ErrorKind::Timeout
            | ErrorKind::TransportError
            | ErrorKind::ExecutionError
            | ErrorKind::InternalError => Self::Failed,
        }
    }
}

/// A failure of a command: the exit code, and the message for standard error.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Failure {
    /// Bad usage or configuration.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self { exit: Exit::Usage, message: message.to_string() }
    }

    /// The named object does not exist.
    pub(crate) fn not_found(message: impl Display) -> Self {
        Self { exit: Exit::NotFound, message: message.to_string() }
    }

    /// Cancelled before there was any output.
    pub(crate) fn cancelled() -> Self {
        Self { exit: Exit::Cancelled, message: "cancelled".into() }
    }

    /// Returns the output of `--json`: `{"error": {"kind", "message"}}`.
    pub(crate) fn to_json(&self) -> Value {
        json!({"error": {"kind": self.exit.kind(), "message": self.message}})
    }

    /// A general failure.
    pub(crate) fn failed(message: impl Display) -> Self {
        Self { exit: Exit::Failed, message: message.to_string() }
    }
}

/// A failed write to standard output.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            // The reader has stopped reading (`| head`), which is not an error.
            std::io::ErrorKind::BrokenPipe => Self { exit: Exit::Ok, message: String::new() },
            _ => Self::failed(format!("cannot write: {error}")),
        }
    }
}

/// An operation of the library failed.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::failed(error)
    }
}

/// Stored data cannot be read or written.
impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::failed(error)
    }
}

/// The result of commands.
pub(crate) type CommandResult = Result<Exit, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_code() {
        let codes: Vec<u8> = ErrorKind::ALL.into_iter().map(|kind| Exit::from(kind).code()).collect();
        assert_eq!(codes, [3, 4, 1, 1, 4, 130, 1, 1, 1, 1]);
    }
}
