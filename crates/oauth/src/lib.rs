//! OAuth 2.1 as a client of MCP servers: the authorization of the MCP specification 2026-07-28, which also serves
//! servers of the revisions since 2025-03-26.
//!
//! ```text
//! 401 ── challenge ── discovery (RFC 9728, 8414) ── client (configured | document | RFC 7591) ── grant ── token
//!                                                                                                  └── store (0600)
//! ```
//!
//! [`OAuth`] is an [`Authorizer`](toolwright_net::Authorizer): it adds the token to requests, renews it a minute before
//! its end, and gets another where the server refuses it. It asks a person only where it was given a
//! [`Consent`]; without one, what needs a person fails with the command that logs in.
//!
//! # What is not believed
//! The server names the authorization server, and that one names its endpoints. Each must have TLS and a public
//! address, unless it lies on the server's own host or the operator wrote it. Metadata must be that of the resource
//! and of the issuer it was looked for under; tokens, registrations and configured secrets are one issuer's and are
//! not shown to another.

mod config;
mod consent;
mod credentials;
mod discovery;
mod grants;
mod refresh;
mod registration;
mod session;
mod store;
mod token;
mod wire;

pub use config::{ClientProof, Grant, IdentityProviderConfig, OAuthConfig};
pub use consent::Consent;
pub use credentials::{AuthMethod, Client, Credentials, LoginState, Token, TokenState};
pub use grants::SigningKey;
pub use session::{OAuth, OAuthOptions};
pub use store::{CredentialLock, CredentialStore, ServerKey};
pub use token::{Logout, Revocation};

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
