//! Errors on the way to a token.

use toolwright_core::pins::is_invisible;

use toolwright_net::NetError;

/// Why there is no token. No variant's text holds a token, a code or a secret; what a server says is cut.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OAuthError {
    /// An endpoint cannot be reached.
    #[error("{what}: {source}{}", remedy(source))]
    Unreachable {
        /// Which request.
        what: String,
        /// Why not.
        source: NetError,
    },
    /// What the server or its authorization server publishes cannot be used.
    #[error("{0}")]
    Metadata(String),
    /// An endpoint answered with an error of RFC 6749 section 5.2.
    #[error("the authorization server refused the {what}: {error}{}", described(.description.as_deref()))]
    Refused {
        /// Which request.
        what: &'static str,
        /// Its code, like `invalid_grant`.
        error: String,
        /// Its words.
        description: Option<String>,
    },
    /// An endpoint's answer is not what the protocol prescribes.
    #[error("the answer to the {what} cannot be used: {reason}")]
    Answer {
        /// Which request.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The page of the authorization server sent back something that must not be accepted.
    #[error("the login is not accepted: {0}")]
    Redirect(String),
    /// Nobody is there to log in.
    #[error("{reason}; log in with `toolwright mcp login {server}`")]
    LoginNeeded {
        /// Name of the server.
        server: String,
        /// Why it is needed.
        reason: String,
    },
    /// The server does not take a token that it was just given.
    #[error(
        "the server refuses the token that the authorization server has just given for it{}: see whether the account, or \
         the client in `oauth`, may use this server; `toolwright mcp logout {server}` and `toolwright mcp login {server}` \
         begin anew",
        described(.said.as_deref())
    )]
    TokenRefused {
        /// Name of the server.
        server: String,
        /// Its words.
        said: Option<String>,
    },
    /// A setting cannot be used.
    #[error("{0}")]
    Setting(String),
    /// The credentials cannot be read or kept.
    #[error("the credentials cannot be {doing}: {reason}")]
    Store {
        /// `read` or `kept`.
        doing: &'static str,
        /// Why not.
        reason: String,
    },
    /// The person did not come back in time, or gave up.
    #[error("{0}")]
    Abandoned(String),
}

fn described(description: Option<&str>) -> String {
    description.map(|text| format!(" ({text})")).unwrap_or_default()
}

/// What there is to do where an address may not be asked.
fn remedy(source: &NetError) -> &'static str {
    match source {
        NetError::Refused { .. } => "; if it is the right one, name its host in `oauth.allowed_hosts`",
        _ => "",
    }
}

/// What a server says, on one line, without characters that are not seen, and cut to 300.
pub(crate) fn excerpt(text: &str) -> String {
    let line = text.split(|c: char| c.is_whitespace() || is_invisible(c)).filter(|part| !part.is_empty());
    line.collect::<Vec<_>>().join(" ").chars().take(300).collect()
}
