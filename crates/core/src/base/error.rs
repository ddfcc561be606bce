//! The error type of tool calls, with separate messages for operator and model.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cancel::CancelCause;

/// The kind of a call's failure. With the first six the tool did not run; with the last four it
/// ran, at least in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The caller's snapshot has no tool of that name.
    UnknownTool,
    /// The caller's role, view or the address and path policy forbids it.
    NotPermitted,
    /// The arguments are not valid under the tool's schema.
    InvalidParameters,
    /// A bound was reached: calls per turn, a queue, a wait, a size.
    LimitExceeded,
    /// Policy or a person denied the call.
    Denied,
    /// Cancelled; the cause is kept in [`ToolError::cancel_cause`].
    Canceled,
    /// The tool ran longer than its deadline allows.
    Timeout,
    /// The connection to the tool failed, or the peer broke its protocol.
    TransportError,
    /// The tool itself reports a failure.
    ExecutionError,
    /// A fault of Toolwright or a panic in a tool.
    InternalError,
}

impl ErrorKind {
    /// Every kind, in the order above.
    pub const ALL: [Self; 10] = [
        Self::UnknownTool,
        Self::NotPermitted,
        Self::InvalidParameters,
        Self::LimitExceeded,
        Self::Denied,
        Self::Canceled,
        Self::Timeout,
        Self::TransportError,
        Self::ExecutionError,
        Self::InternalError,
    ];

    /// Returns its wire form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownTool => "unknown_tool",
            Self::NotPermitted => "not_permitted",
            Self::InvalidParameters => "invalid_parameters",
            Self::LimitExceeded => "limit_exceeded",
            Self::Denied => "denied",
            Self::Canceled => "canceled",
            Self::Timeout => "timeout",
            Self::TransportError => "transport_error",
            Self::ExecutionError => "execution_error",
            Self::InternalError => "internal_error",
        }
    }

    /// Whether the tool may have run and so may have had effects.
    #[must_use]
    pub fn executed(self) -> bool {
        matches!(self, Self::Timeout | Self::TransportError | Self::ExecutionError | Self::InternalError)
    }
}

/// A failure as one line for people: its kind, unless the message begins with it, and the message. `timeout` and `timeout
/// after 1s` are `timeout after 1s`.
#[must_use]
pub fn labelled(kind: &str, message: &str) -> String {
    let (kind, plain) = (kind.trim(), kind.replace('_', " "));
    let begins = |label: &str| {
        let head = message.get(..label.len()).filter(|head| head.eq_ignore_ascii_case(label));
        !label.is_empty() && head.is_some() && !message[label.len()..].starts_with(char::is_alphanumeric)
    };
    match message.trim() {
        "" => kind.to_owned(),
        _ if begins(kind) || begins(&plain) => message.to_owned(),
        _ if kind.is_empty() => message.to_owned(),
        _ => format!("{kind}: {message}"),
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failed call. `Display` is the operator's message; [`ToolError::for_model`] is the model's.
#[derive(Clone)]
pub struct ToolError {
    kind: ErrorKind,
    operator: String,
    model: Option<String>,
    retryable: bool,
    cancel_cause: Option<CancelCause>,
    protocol: Option<Box<ProtocolError>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// A JSON-RPC error object from the tool's own peer, so that a gateway can pass it on
/// unchanged to a client of the same protocol.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProtocolError {
    /// Code.
    pub code: i64,
    /// Message.
    pub message: String,
    /// Data, if there was any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<serde_json::Value>,
}

impl ToolError {
    /// An error with one message for both readers. Not retryable.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            operator: message.into(),
            model: None,
            retryable: false,
            cancel_cause: None,
            protocol: None,
            source: None,
        }
    }

    /// Sets a separate message for the model, if the operator's would confuse it or reveal too much.
    #[must_use]
    pub fn with_model_message(mut self, message: impl Into<String>) -> Self {
        self.model = Some(message.into());
        self
    }

    /// Keeps the cause, for logs.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Keeps the peer's own error object.
    #[must_use]
    pub fn with_protocol(mut self, error: ProtocolError) -> Self {
        self.protocol = Some(Box::new(error));
        self
    }

    /// Marks the error retryable: nothing was dispatched, or another attempt is harmless.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// Marks the error as not retryable: a repeated call could repeat its effect.
    #[must_use]
    pub fn not_retryable(mut self) -> Self {
        self.retryable = false;
        self
    }

    /// Adds the last message of a tool that was stopped for this reason, unless it only says that it was cancelled.
    #[must_use]
    pub fn with_last_message(mut self, own: &Self) -> Self {
        if own.kind == ErrorKind::Canceled && own.model.is_none() {
            return self;
        }
        let model = self.model.take().unwrap_or_else(|| self.operator.clone());
        let last_message = own.model.as_deref().unwrap_or(&own.operator);
        self.model = Some(format!("{model}; it said: {last_message}"));
        self.operator = format!("{}; it said: {}", self.operator, own.operator);
        self
    }

    /// The error of a cancelled call. Operator and model can tell the causes apart.
    #[must_use]
    pub fn canceled(cause: CancelCause) -> Self {
        let mut error = Self::new(ErrorKind::Canceled, format!("canceled {}", cause.describe()));
        error.cancel_cause = Some(cause);
        error
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The operator's message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.operator
    }

    /// The text that takes the result's place in the conversation: `(tool failed: …)`.
    #[must_use]
    pub fn for_model(&self) -> String {
        format!("(tool failed: {})", self.model.as_deref().unwrap_or(&self.operator))
    }

    /// The message of [`ToolError::for_model`] without its frame.
    #[must_use]
    pub fn model_message(&self) -> &str {
        self.model.as_deref().unwrap_or(&self.operator)
    }

    /// Whether a retry cannot repeat an effect.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// The peer's own error object, when the failure is one.
    #[must_use]
    pub fn protocol(&self) -> Option<&ProtocolError> {
        self.protocol.as_deref()
    }

    /// Why the call was cancelled, when it was.
    #[must_use]
    pub fn cancel_cause(&self) -> Option<CancelCause> {
        self.cancel_cause
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operator)
    }
}

impl fmt::Debug for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolError({}: {})", self.kind, self.operator)
    }
}

impl StdError for ToolError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl Serialize for ToolError {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ErrorRecord::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ToolError {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let record = ErrorRecord::deserialize(deserializer)?;
        Ok(Self {
            kind: record.kind,
            operator: record.message,
            model: record.model_message,
            retryable: record.retryable,
            cancel_cause: record.cancel_cause,
            protocol: record.protocol.map(Box::new),
            source: None,
        })
    }
}

/// The serialised form: everything but the source.
#[derive(Serialize, Deserialize)]
struct ErrorRecord {
    kind: ErrorKind,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model_message: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    retryable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancel_cause: Option<CancelCause>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    protocol: Option<ProtocolError>,
}

impl From<&ToolError> for ErrorRecord {
    fn from(error: &ToolError) -> Self {
        Self {
            kind: error.kind,
            message: error.operator.clone(),
            model_message: error.model.clone(),
            retryable: error.retryable,
            cancel_cause: error.cancel_cause,
            protocol: error.protocol().cloned(),
        }
    }
}

/// The feature is missing in this build or configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not supported here")]
pub struct Unsupported(pub &'static str);

impl From<Unsupported> for ToolError {
    fn from(unsupported: Unsupported) -> Self {
        Self::new(ErrorKind::ExecutionError, unsupported.to_string()).with_source(unsupported)
    }
}

/// A failed store operation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// This store does not do that.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The row does not exist, or belongs to another principal.
    #[error("{0} was not found")]
    NotFound(String),
    /// A quota is used up.
    #[error("{0}")]
    Quota(String),
    /// The object is in the wrong state, as the message says.
    #[error("{0}")]
    Refused(String),
    /// The content is not text, although text was requested.
    #[error("the stored output is binary ({media_type}, {bytes} bytes)")]
    Binary {
        /// Its media type.
        media_type: String,
        /// Its size.
        bytes: u64,
    },
    /// The store failed.
    #[error("the store failed to {doing}: {source}")]
    Failed {
        /// The operation in progress.
        doing: String,
        /// Cause.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl StoreError {
    /// Wraps a cause.
    pub fn failed(doing: impl Into<String>, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Failed { doing: doing.into(), source: Arc::new(source) }
    }
}

impl From<StoreError> for ToolError {
    fn from(error: StoreError) -> Self {
        Self::new(ErrorKind::InternalError, error.to_string()).with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_split_into_not_executed_and_executed() {
        let executed: Vec<_> = ErrorKind::ALL.iter().filter(|k| k.executed()).map(|k| k.as_str()).collect();
        assert_eq!(executed, ["timeout", "transport_error", "execution_error", "internal_error"]);
        for kind in ErrorKind::ALL {
            assert_eq!(serde_json::to_value(kind).expect("json"), kind.as_str());
        }
    }

    #[test]
    fn a_failure_is_labelled_once() {
        let by_user = ToolError::canceled(CancelCause::User);
        for (kind, message, expect) in [
            ("canceled", by_user.message(), "canceled by the user"),
            ("timeout", "timeout after 1s", "timeout after 1s"),
            ("denied", "denied: no", "denied: no"),
            ("denied", "fs:write was denied: no", "denied: fs:write was denied: no"),
            ("execution_error", "exit 3", "execution_error: exit 3"),
            ("execution_error", "Execution error: exit 3", "Execution error: exit 3"),
            ("error", "errors were found", "error: errors were found"),
            ("error", "error: error: x", "error: error: x"),
            ("timeout", "", "timeout"),
            ("", "message", "message"),
            ("größe", "grö", "größe: grö"),
        ] {
            assert_eq!(labelled(kind, message), expect, "{kind} {message}");
        }
        for kind in ErrorKind::ALL {
            let once = labelled(kind.as_str(), "why");
            assert_eq!(labelled(kind.as_str(), &once), once, "labelled twice it is labelled once");
        }
    }

    #[test]
    fn operator_and_model_get_separate_messages() {
        let error = ToolError::new(ErrorKind::ExecutionError, "exit 3 from /opt/x")
            .with_model_message("the command failed")
            .with_source(std::io::Error::other("boom"));
        assert_eq!(error.to_string(), "exit 3 from /opt/x");
        assert_eq!(error.for_model(), "(tool failed: the command failed)");
        assert_eq!(std::error::Error::source(&error).expect("source").to_string(), "boom");
        let stopped = ToolError::new(ErrorKind::Timeout, "x:t did not finish within 1s").with_model_message("timeout");
        assert_eq!(
            stopped.clone().with_last_message(&error).for_model(),
            "(tool failed: timeout; it said: the command failed)"
        );
        let bare = ToolError::canceled(CancelCause::Deadline);
        assert_eq!(stopped.with_last_message(&bare).for_model(), "(tool failed: timeout)");
        let text = serde_json::to_string(&error).expect("json");
        let back: ToolError = serde_json::from_str(&text).expect("back");
        assert_eq!((back.kind(), back.for_model()), (error.kind(), error.for_model()));
    }
}
