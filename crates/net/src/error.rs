//! Defines the errors of HTTP requests.

use std::error::Error as StdError;

use toolwright_core::{CancelCause, ErrorKind, ToolError};
use url::Url;

/// Why a response is missing or incomplete. No variant's text holds a URL's query or credentials.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NetError {
    /// The address policy forbids the target. Nothing was sent to it.
    #[error("{target} is refused: {reason}")]
    Refused {
        /// Host, and port if the URL has one.
        target: String,
        /// Why the address is refused.
        reason: String,
    },
    /// The URL cannot be requested.
    #[error("`{url}` cannot be requested: {reason}")]
    Url {
        /// The URL as given.
        url: String,
        /// Why not.
        reason: String,
    },
    /// The host name does not resolve, or the connection failed. Nothing was sent.
    #[error("cannot connect to {host}: {reason}")]
    Connect {
        /// Host, and port if the URL has one.
        host: String,
        /// Why not.
        reason: String,
    },
    /// The exchange broke after it may have begun.
    #[error("the exchange with {host} failed: {reason}")]
    Exchange {
        /// Host, and port if the URL has one.
        host: String,
        /// What failed.
        reason: String,
    },
    /// A redirect is not followed; the requests before it were sent.
    #[error("a redirect of {host} is not followed: {reason}")]
    Redirect {
        /// Host that sent the redirect.
        host: String,
        /// Why it is not followed.
        reason: String,
    },
    /// The client cannot be built.
    #[error("the HTTP client cannot be built: {0}")]
    Setup(String),
    /// The call's deadline passed.
    #[error("the deadline passed before the response was complete")]
    Timeout,
    /// The call was cancelled.
    #[error("canceled {}", .0.describe())]
    Canceled(CancelCause),
}

impl NetError {
    /// Converts to a tool error for the call that made the request. `settings` is the configuration section whose
    /// `allow_private` and `allowed_hosts` apply, like `web`: a refusal names them as the remedy.
    #[must_use]
    pub fn into_tool_error(self, settings: &str) -> ToolError {
        let kind = match &self {
            Self::Canceled(cause) => return ToolError::canceled(*cause),
            Self::Refused { .. } => {
                let message = format!(
                    "{self}; to allow it, list the host in {settings}.allowed_hosts, or set {settings}.allow_private"
                );
                return ToolError::new(ErrorKind::NotPermitted, message).with_source(self);
            }
            Self::Connect { .. } => {
                return ToolError::new(ErrorKind::TransportError, self.to_string()).with_source(self).retryable();
            }
            Self::Url { .. } => ErrorKind::InvalidParameters,
            Self::Exchange { .. } => ErrorKind::TransportError,
            Self::Redirect { .. } => ErrorKind::ExecutionError,
            Self::Setup(_) => ErrorKind::InternalError,
            Self::Timeout => ErrorKind::Timeout,
        };
        ToolError::new(kind, self.to_string()).with_source(self)
    }

    /// Converts a failed request to `host`: to our resolver's refusal if there is one, else to the client's error.
    pub(crate) fn from_reqwest(error: reqwest::Error, host: String) -> Self {
        if let Some(refused) = causes(&error).find_map(|cause| cause.downcast_ref::<Self>()) {
            return refused.clone();
        }
        // The URL may carry secrets, and the reason is in the causes.
        let error = error.without_url();
        let reason = causes(&error).skip(1).last().map_or_else(|| error.to_string(), ToString::to_string);
        if error.is_connect() { Self::Connect { host, reason } } else { Self::Exchange { host, reason } }
    }
}

fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    // `io::Error::source` skips its custom error itself, so it is unwrapped here.
    std::iter::successors(Some(error as &(dyn StdError + 'static)), |&error| {
        let opened = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        opened.map(|inner| inner as &(dyn StdError + 'static)).or_else(move || error.source())
    })
}

/// Formats a URL without credentials, query and fragment.
pub(crate) fn without_secrets(url: &Url) -> String {
    let mut shown = url.clone();
    // These fail only for URLs that cannot have credentials.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.set_query(None);
    shown.set_fragment(None);
    shown.to_string()
}
