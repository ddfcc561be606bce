//! OAuth 2.1 as a client of MCP servers: the authorization of the MCP specification 2026-07-28, which also serves
//! servers of the revisions since 2025-03-26.
//!
//! ```text
//! 401 ── challenge ── discovery (RFC 9728, 8414) ── client (configured | document | RFC 7591) ── grant ── token
//!                                                                                                  └── store (0600)
//! ```
//!
//! [`OAuth`] is an [`Authorizer`](toolwright_net::Authorizer): it adds the token to requests, refreshes it a minute before
//! its end, and gets another where the server refuses it. It asks a person only if it has a [`Consent`]; otherwise a
//! grant that needs a person fails with the command that logs in.
//!
//! # What is not believed
//! The server names the authorization server, which names its endpoints. Each must have TLS and a public address,
//! unless it is on the server's own host or the operator configured it. Metadata must match the resource and the issuer
//! it was requested for. Tokens, registrations and configured secrets belong to one issuer and are not sent to another.

mod config;
mod credentials;
mod discovery;
mod grants;
mod login;
mod refresh;
mod registration;
mod session;
mod store;
mod token;
mod wire;

pub use config::{ClientProof, Grant, IdentityProviderConfig, OAuthConfig};
pub use credentials::{AuthMethod, Client, Credentials, LoginState, Token, TokenState};
pub use grants::SigningKey;
pub use login::Consent;
pub use session::{OAuth, OAuthOptions};
pub use store::{CredentialLock, CredentialStore, ServerKey};
pub use token::{Logout, Revocation};

use toolwright_core::pins::is_invisible;
use toolwright_net::NetError;

/// Why there is no token. No variant's text holds a token, a code or a secret; text from servers is cut.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OAuthError {
    /// An endpoint cannot be reached.
    #[error("{what}: {source}{}", remedy(source))]
    Unreachable {
        /// The request that failed.
        what: String,
        /// Why not.
        source: NetError,
    },
    /// Metadata of the server or its authorization server cannot be used.
    #[error("{0}")]
    Metadata(String),
    /// An endpoint answered with an error of RFC 6749 section 5.2.
    #[error("the authorization server refused the {what}: {error}{}", described(.description.as_deref()))]
    Refused {
        /// The request that failed.
        what: &'static str,
        /// Its code, like `invalid_grant`.
        error: String,
        /// Its words.
        description: Option<String>,
    },
    /// An endpoint's response does not conform to the protocol.
    #[error("the answer to the {what} cannot be used: {reason}")]
    Answer {
        /// The request that failed.
        what: &'static str,
        /// What is wrong with the response.
        reason: String,
    },
    /// The page of the authorization server sent back something that must not be accepted.
    #[error("the login is not accepted: {0}")]
    Redirect(String),
    /// A login is needed, but nobody is there.
    #[error("{reason}; log in with `toolwright mcp login {server}`")]
    LoginNeeded {
        /// Name of the server.
        server: String,
        /// Why it is needed.
        reason: String,
    },
    /// The server refuses a new token.
    #[error(
        "the server refuses the token that the authorization server has just given for it{}: see whether the account, or \
         the client in `oauth`, may use this server; `toolwright mcp logout {server}` and `toolwright mcp login \
             {server}` start again",
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
    /// The credentials cannot be read or stored.
    #[error("the credentials cannot be {doing}: {reason}")]
    Store {
        /// `read` or `kept`.
        doing: &'static str,
        /// Why not.
        reason: String,
    },
    /// The person did not finish the login in time, or gave up.
    #[error("{0}")]
    Abandoned(String),
}

fn described(description: Option<&str>) -> String {
    description.map(|text| format!(" ({text})")).unwrap_or_default()
}

/// Returns the remedy for an address that the policy forbids.
fn remedy(source: &NetError) -> &'static str {
    match source {
        NetError::Refused { .. } => "; if it is the right one, name its host in `oauth.allowed_hosts`",
        _ => "",
    }
}

/// Formats text from a server: one line, no invisible characters, at most 300 characters.
pub(crate) fn excerpt(text: &str) -> String {
    let line = text.split(|c: char| c.is_whitespace() || is_invisible(c)).filter(|part| !part.is_empty());
    line.collect::<Vec<_>>().join(" ").chars().take(300).collect()
}
