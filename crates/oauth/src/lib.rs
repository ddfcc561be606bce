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

mod bearer;
mod config;
mod consent;
mod credentials;
mod discovery;
mod error;
mod grants;
mod registration;
mod session;
mod store;
mod token;
mod wire;

pub use config::{ClientProof, Grant, IdentityProviderConfig, OAuthConfig};
pub use consent::Consent;
pub use credentials::{AuthMethod, Client, Credentials, LoginState, Token, TokenState};
pub use error::OAuthError;
pub use grants::SigningKey;
pub use session::{OAuth, OAuthParts};
pub use store::{CredentialLock, CredentialStore, ServerKey};
pub use token::{Logout, Revocation};
