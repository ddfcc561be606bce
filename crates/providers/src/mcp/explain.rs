//! Why a server cannot be used, and what would mend it.

use super::transport::SendError;

/// A failed HTTP exchange.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum HttpFailure {
    /// No connection was made.
    #[error("cannot connect: {0}; is the server running, and are host and port of `url` right?")]
    Connect(String),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The server answered with a status that says failure.
    #[error("{}", status_text(*.status, .location.as_deref(), .body))]
    Status {
        /// Status code.
        status: u16,
        /// Where it redirects to.
        location: Option<String>,
        /// Beginning of the body.
        body: String,
    },
    /// The session that the request belonged to is gone.
    #[error("the server has forgotten the session; the next call begins a new one")]
    SessionExpired,
    /// The response is something else altogether.
    #[error("it answers with `{0}`, which is not MCP: check the path of `url` (often /mcp)")]
    NotMcp(String),
    /// The response is JSON, but no message.
    #[error("it answers with JSON that is not an MCP message: {0}; check the path of `url`")]
    NotJsonRpc(String),
    /// A message over the bound.
    #[error("message over max_message_bytes ({0})")]
    TooLarge(usize),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl HttpFailure {
    /// Whether the request is known to have had no effect.
    fn had_no_effect(&self) -> bool {
        matches!(
            self,
            Self::Connect(_) | Self::SessionExpired | Self::Status { status: 300..=399 | 401 | 403 | 429, .. }
        )
    }

    /// What it means for the request.
    pub(super) fn to_send_error(&self) -> SendError {
        match self {
            Self::SessionExpired => SendError::Expired,
            Self::Status { status: 300..=399 | 401 | 403 | 407, .. } => SendError::Final(self.to_string()),
            _ if self.had_no_effect() => SendError::NotSent(self.to_string()),
            _ => SendError::Broken(self.to_string()),
        }
    }
}

impl From<reqwest::Error> for HttpFailure {
    fn from(error: reqwest::Error) -> Self {
        let connect = error.is_connect();
        // Its text names the URL, whose query may be secret; the cause says more anyway.
        let error = error.without_url();
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = cause.to_string();
            source = cause.source();
        }
        if connect { Self::Connect(text) } else { Self::Broken(text) }
    }
}

fn status_text(status: u16, location: Option<&str>, body: &str) -> String {
    let remedy = match (status, location) {
        (300..=399, Some(location)) => format!("it redirects to {location}: put that into `url`"),
        (401, _) => {
            "it wants to know who asks: set `headers.Authorization`, for example to `Bearer ${TOKEN}`".to_owned()
        }
        (403, _) => "it refuses access: check `headers.Authorization`".to_owned(),
        (404, _) => "there is nothing at this path: check `url` (often it ends in /mcp)".to_owned(),
        (405, _) => {
            "this path does not take MCP messages: check `url` (streamable HTTP is needed, not an SSE endpoint)"
                .to_owned()
        }
        (407, _) => "the proxy wants credentials: check HTTPS_PROXY".to_owned(),
        (429, _) => "it is asked too often: try again later".to_owned(),
        (500..=599, _) => "the fault is on the server's side: see its log".to_owned(),
        _ => "the request was refused".to_owned(),
    };
    let said = if body.is_empty() { String::new() } else { format!(" (it says: {body})") };
    format!("HTTP {status}: {remedy}{said}")
}

/// How an attempt to connect ended without a connection.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server answers, but not to this generation. What carries the connection may be used again.
    Refused(String),
    /// No answer in time.
    Silent(String),
    /// The answer makes no sense, or the connection ended.
    Broken(String),
    /// Nothing could be sent.
    Unreachable(String),
    /// Another attempt would fare no better.
    Final(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_come_with_a_remedy() {
        let failure = |status, location: Option<&str>| HttpFailure::Status {
            status,
            location: location.map(Into::into),
            body: "b".into(),
        };
        for (failure, expect, no_effect) in [
            (failure(401, None), "headers.Authorization", true),
            (failure(404, None), "/mcp", false),
            (failure(307, Some("https://x/mcp")), "https://x/mcp", true),
            (failure(500, None), "see its log", false),
        ] {
            assert!(failure.to_string().contains(expect), "{failure}");
            assert_eq!(failure.had_no_effect(), no_effect, "{failure}");
        }
    }
}
